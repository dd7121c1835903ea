"""The one loop that runs inferences: progress, time limits, checkpoints and interruption.

An inference is an object with a model and settings, and no state. Its states are pytrees of arrays
and plain numbers, each of which determines the rest of the run. So a run may stop after any chunk
of work and resume from the stored state; the result has the same bits.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np

from bdtppl.inference.compiling import Stopwatch
from bdtppl.models.arrays.precision import in_float64

AnyState = TypeVar("AnyState")
AnyResult = TypeVar("AnyResult")

MOST_EXTENSIONS = 60
"""How often chains may be told to go on; each time doubles what they have done."""

_TOLD_AFTER = 1.0  # seconds of running after which the remaining time is reported


class Inference(Generic[AnyState, AnyResult]):
    """Interface of the inferences that `run` runs.

    Attributes
    ----------
    counts
        Name of its steps, in the plural.
    """

    counts: ClassVar[str] = "steps"

    def start(self, rng_key: Any) -> AnyState:
        """Return the first state; axes of length 0, such as that of the draws, may grow later."""
        raise NotImplementedError

    def advance(self, state: AnyState) -> AnyState:
        """Do a chunk of work, which depends on the state alone, and leave the state unchanged.

        Independent parts of a chunk go through `bdtppl.inference.parallel.fan_out`.
        """
        raise NotImplementedError

    def num_steps(self, state: AnyState) -> tuple[int, int]:
        """Count the steps made, and those of the whole run."""
        raise NotImplementedError

    def is_done(self, state: AnyState) -> bool:
        """Return whether no work is left."""
        made, whole = self.num_steps(state)
        return made >= whole

    def result(self, state: AnyState) -> AnyResult:
        """Return the result, also for a run ended by a time limit; by default the state."""
        return cast(AnyResult, state)

    def in_words(self, state: AnyState) -> str:
        """Describe the progress besides the number of steps."""
        return ""

    def lengths(self, state: AnyState) -> dict[str, tuple[int, int]]:
        """List settings that may be raised to extend a run: what was done and is requested."""
        return {}

    def to_arrays(self, state: AnyState) -> dict[str, np.ndarray]:
        """Write a state as named arrays, for a file."""
        return write_state(state)

    def from_arrays(self, rng_key: Any, arrays: Mapping[str, np.ndarray]) -> AnyState:
        """Read a stored state; raise ValueError if the arrays are not one."""
        return read_state(self.start(rng_key), arrays)


class Progress(NamedTuple):
    """Progress of a run.

    Attributes
    ----------
    made, whole
        Steps made, and those of the whole run.
    words
        Progress in words.
    seconds_left
        Seconds until the end or the time limit; None until they can be estimated.
    """

    made: int
    whole: int
    words: str
    seconds_left: float | None


def run(
    inference: Inference[AnyState, Any],
    rng_key: Any,
    *,
    time_limit: float | None = None,
    keep: Any = None,
    on_progress: Callable[[Progress], Any] = lambda progress: None,
) -> AnyState:
    """Run an inference to its end, or until its time is over; return the last state.

    Parameters
    ----------
    inference, rng_key
        The inference, and the key that it starts from.
    time_limit
        Seconds after which only the first chunk of work may still begin, without compilation.
    keep
        Store of states, from which the run resumes if there is one: an object with the methods
        ``resumed``, ``offer`` and ``require_length`` of ``bdtppl.estimators.checkpoints.Run``.
    on_progress
        Called after each chunk.
    """
    state = None if keep is None else keep.resumed(partial(inference.from_arrays, rng_key))
    if state is None:
        state = inference.start(rng_key)
    elif keep is not None:
        for name, (done, asked) in inference.lengths(state).items():
            keep.require_length(name, done, asked)
    (begun, _), watch, is_first = inference.num_steps(state), Stopwatch(), True
    while not inference.is_done(state):
        if time_limit is not None and not is_first and watch.seconds > time_limit:
            break
        state, is_first = inference.advance(state), False
        if keep is not None:
            keep.offer(partial(inference.to_arrays, state))
        (made, whole), seconds, left = inference.num_steps(state), watch.seconds, None
        if seconds > _TOLD_AFTER and made > begun:
            left = seconds / (made - begun) * (whole - made)
            if time_limit is not None:
                left = max(0.0, min(left, time_limit - seconds))
        on_progress(Progress(made, whole, inference.in_words(state), left))
    return state


def write_state(state: Any) -> dict[str, np.ndarray]:
    """Write a pytree as named arrays; random number keys become their words."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    return {jax.tree_util.keystr(path): _as_numbers(value) for path, value in leaves}


@in_float64
def read_state(fresh: AnyState, arrays: Mapping[str, np.ndarray]) -> AnyState:
    """Read a stored pytree.

    Parameters
    ----------
    fresh
        A pytree of the same structure: arrays, or only their shapes and types, and numbers.
    arrays
        Result of `write_state`.

    Raises
    ------
    ValueError
        If an array is missing, or has another type or shape; axes of length 0 have any length.
    """

    def read(path: Any, own: Any) -> Any:
        name = jax.tree_util.keystr(path)
        like = own if isinstance(own, jax.ShapeDtypeStruct) else _as_numbers(own)
        given = arrays.get(name, np.array(None))
        fits = given.dtype == like.dtype and given.ndim == like.ndim
        if not (fits and all(n in (0, given.shape[i]) for i, n in enumerate(like.shape))):
            words = "nothing" if name not in arrays else f"{given.dtype} {given.shape}"
            raise ValueError(
                f"The checkpoint is from another problem or other settings: {name} must be "
                f"{like.dtype} {like.shape}; got {words}."
            )
        if isinstance(own, bool | int | float):
            return type(own)(given.item())
        if not isinstance(own, jax.Array):
            return given
        read = jnp.asarray(given)
        return jax.random.wrap_key_data(read) if _is_key(own) else read

    return jax.tree_util.tree_map_with_path(read, fresh)


def _is_key(value: Any) -> bool:
    return isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)


def _as_numbers(value: Any) -> np.ndarray:
    return np.asarray(jax.random.key_data(value) if _is_key(value) else value)
