"""Settings of XLA: light compilation if more gains little, and loops of small steps as one kernel.

XLA compiles a sequence of kernels for CPUs, which a pool of threads runs one after the other. If a
loop's body takes microseconds, this overhead dominates, and a second thread spins while it waits
for work, so two such functions side by side take as long as one after the other. But XLA can also
compile a call with all its loops to one kernel, which then runs in its caller's thread. XLA does so
by itself for small loops (its pass SmallWhileLoopHoisting), with the mark that is used here.
"""

import os
import time
from collections.abc import Callable, Mapping
from ctypes import CDLL
from functools import cache, lru_cache, update_wrapper
from pathlib import Path
from threading import Lock
from typing import Any

import jax
from jax.core import Tracer
from jax.experimental.xla_metadata import set_xla_metadata

COMPILED_LIGHTLY = {"xla_backend_optimization_level": 1}  # as fast, and compiled in less time
COMPILED_QUICKLY = {"xla_backend_optimization_level": 0}  # for short functions that run once

_PLAINLY: dict[str, Any] = {"xla_cpu_use_fusion_emitters": False}  # as fast, in half of the time
_AS_ONE_KERNEL = {"xla_cpu_small_call": "true", "inlineable": "false"}
_WITHOUT_LIBRARIES = {"xla_cpu_experimental_ynn_fusion_type": ""}  # kernels cannot call these

_MAPS, _STATM = Path("/proc/self/maps"), Path("/proc/self/statm")  # on Linux
_MOST_MAPS = 30_000  # Linux allows a process 65,530 by default; XLA crashes beyond this
_PERIOD = 10.0  # seconds; counting takes milliseconds, and filling a thousand maps takes seconds
_MOST_MEMORY = 1.0  # GB of resident memory
_FEW_GB = 0.2  # GB, more than are worth dropping
_left = [0.0]  # GB when functions were last dropped


def compiled_plainly(
    function: Callable[..., Any], options: dict[str, Any] | None = None, **settings: Any
) -> Callable[..., Any]:
    """Compile a function for CPUs as older versions of XLA did, if this one still can.

    Parameters
    ----------
    function, settings
        As for `jax.jit`.
    options
        Further options of the compiler. Functions that are traced by others have no options.
    """
    plainly = jax.jit(function, compiler_options=(options or {}) | _PLAINLY, **settings)
    usually = jax.jit(function, **settings)

    def call(*args: Any, **kwargs: Any) -> Any:
        is_traced = any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((args, kwargs)))
        is_plain = not is_traced and _is_known(*_PLAINLY.items())
        return (plainly if is_plain else usually)(*args, **kwargs)

    vars(call)["versions"] = plainly, usually
    return update_wrapper(call, function)


@cache
def _is_known(*options: tuple[str, Any]) -> bool:
    """Whether XLA knows options of its compiler."""
    try:
        jax.jit(lambda: 0, compiler_options=dict(options))()
    except jax.errors.JaxRuntimeError:
        return False
    return True


def make_room() -> None:
    """Drop all compiled functions if they fill the memory of the process, or its memory maps.

    Each of them uses megabytes, and some of the maps that Linux limits for a process; a policy of
    trees uses 1,400. They are recompiled when needed.
    """
    is_full = _num_maps(int(time.monotonic() / _PERIOD)) > _MOST_MAPS
    most = max(_MOST_MEMORY, _left[0] + _FEW_GB)
    if is_full or (resident_memory() > most and resident_memory(trims=True) > most):
        jax.clear_caches()
        _num_maps.cache_clear()
        _left[0] = resident_memory(trims=True)


@lru_cache(maxsize=1)
def _num_maps(period: int) -> int:
    """Count the maps, once in each period; return 0 on other systems than Linux."""
    return _MAPS.read_bytes().count(b"\n") if _MAPS.exists() else 0


def resident_memory(*, trims: bool = False) -> float:
    """Return resident memory in GB, without what is free if trimmed; 0 except on Linux."""
    if not _STATM.exists():
        return 0.0
    if trims:
        CDLL(None).malloc_trim(0)
    return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e9


class OneKernel:
    """A function compiled by `jax.jit`; on CPUs into one kernel, if XLA can.

    XLA cannot if there are scatters, sorts, callbacks or linear algebra routines. Such a function
    is compiled as usual, like every function on accelerators.

    Parameters
    ----------
    function
        Function of arrays; its result has at least one.
    compiler_options, options
        Options of `jax.jit`.

    Attributes
    ----------
    plain, marked
        The function compiled as usual, and as one kernel.
    """

    def __init__(self, function: Callable, *, compiler_options: Mapping[str, Any], **options: Any):
        def with_arguments(*args, **kwargs):  # XLA ends the process if a kernel lacks one
            return function(*args, **kwargs), args

        inner = jax.jit(with_arguments, **options)

        def marked(*args, **kwargs):
            leaves, structure = jax.tree.flatten(inner(*args, **kwargs))
            leaves[0] = set_xla_metadata(leaves[0], **_AS_ONE_KERNEL)  # marks the call it is from
            return jax.tree.unflatten(structure, leaves)

        update_wrapper(self, function)
        with_arguments.__name__ = marked.__name__ = getattr(function, "__name__", "function")
        everywhere = dict(compiler_options)
        self.plain = jax.jit(function, compiler_options=everywhere, **options)
        self.marked = jax.jit(marked, compiler_options=everywhere | _WITHOUT_LIBRARIES, **options)
        self._refused: set[tuple] = set()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        result = self._as_one(args, kwargs)
        return self.plain(*args, **kwargs) if result is None else result[0]

    def is_one(self, *args: Any, **kwargs: Any) -> bool:
        """Return whether it is one kernel for such arguments, by calling it as one."""
        return self._as_one(args, kwargs) is not None

    def _as_one(self, args: tuple, kwargs: dict[str, Any]) -> tuple | None:
        """Call the one kernel, if there is one; return its results and the arguments."""
        if jax.default_backend() != "cpu":
            return None
        leaves, structure = jax.tree.flatten((args, kwargs))
        signature = structure, *(jax.typeof(leaf) for leaf in leaves)
        if signature in self._refused:
            return None
        try:
            return self.marked(*args, **kwargs)
        except jax.errors.JaxRuntimeError:  # an error of another kind will recur
            self._refused.add(signature)
            return None


class Stopwatch:
    """Measures seconds from its creation, without compilation by JAX or numba."""

    def __init__(self):
        self._compilers = _compilers()
        self._start = time.monotonic() - self._compilers.seconds

    @property
    def seconds(self) -> float:
        """Return the seconds so far, without those in which some thread compiled."""
        return time.monotonic() - self._start - self._compilers.seconds


class WorkClock:
    """Measures CPU seconds of the process from its creation, without compilation.

    CPU seconds of compilers are not known, so their share between two readings is that of the time.
    """

    def __init__(self):
        self._watch, self._total = Stopwatch(), 0.0
        self._read = self._readings()

    def _readings(self) -> tuple[float, float, float]:
        return time.process_time(), time.monotonic(), self._watch.seconds

    @property
    def seconds(self) -> float:
        """Return the seconds so far."""
        now = self._readings()
        cpu, passed, working = (new - old for new, old in zip(now, self._read, strict=True))
        self._total += cpu * min(1.0, max(0.0, working / max(passed, 1e-9)))
        self._read = now
        return self._total


class _Compilers:
    """Sums the time in which any compiler ran, in several threads or nested."""

    def __init__(self):
        self._lock = Lock()
        self._spans = [(0.0, 0.0, 0.0)]  # start, end, and seconds until then

    @property
    def seconds(self) -> float:
        """Return the seconds since the process began."""
        return self._spans[-1][2]

    def note(self, event: str, duration_secs: float, **_: Any) -> None:
        """Record a duration that JAX measured; it ends now."""
        if not event.startswith("/jax/core/compile/"):
            return
        with self._lock:
            end = time.monotonic()
            start, spans = end - duration_secs, list(self._spans)
            while spans[-1][1] > start:
                start = min(start, spans.pop()[0])
            self._spans = [*spans, (start, end, spans[-1][2] + end - start)]


@cache
def _compilers() -> _Compilers:
    """Listen to the compilers, from the first call."""
    from numba.core import event

    heard, begun = _Compilers(), []

    class Listener(event.Listener):
        def on_start(self, event: Any) -> None:
            begun.append(time.monotonic())

        def on_end(self, event: Any) -> None:
            if begun:  # it is missing if listening began in the middle
                heard.note("/jax/core/compile/numba", time.monotonic() - begun.pop())

    jax.monitoring.register_event_duration_secs_listener(heard.note)
    event.register("numba:compile", Listener())
    return heard
