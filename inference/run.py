"""The one loop that runs inferences: progress, time limits, checkpoints and interruption.

An inference is an object that knows its model and settings, and holds no state. Its states are
pytrees of arrays and plain numbers, each of which holds all that the rest of the run depends on. So
a run may stop after any chunk of work, and goes on from the state that was kept to the same bits.
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

_TOLD_AFTER = 1.0  # seconds of running after which the time left is told


class Inference(Generic[AnyState, AnyResult]):
    """What `run` asks of an inference.

    Attributes
    ----------
    counts
        What its steps are called, in the plural.
    """

    counts: ClassVar[str] = "steps"

    def start(self, rng_key: Any) -> AnyState:
        """Begin; an axis of no length, such as that of the draws, may grow on the way."""
        raise NotImplementedError

    def advance(self, state: AnyState) -> AnyState:
        """Do a chunk of work, which depends on the state alone, and leave the state as it was.

        Independent parts of a chunk go through `bdtppl.inference.parallel.fan_out`.
        """
        raise NotImplementedError

    def num_steps(self, state: AnyState) -> tuple[int, int]:
        """Count the steps that were made, and those of the whole run."""
        raise NotImplementedError

    def is_done(self, state: AnyState) -> bool:
        """Tell whether no work is left."""
        made, whole = self.num_steps(state)
        return made >= whole

    def result(self, state: AnyState) -> AnyResult:
        """Make the result, also of a run that a time limit has ended; by default the state."""
        return cast(AnyResult, state)

    def in_words(self, state: AnyState) -> str:
        """Say how it goes, beside the number of steps."""
        return ""

    def lengths(self, state: AnyState) -> dict[str, tuple[int, int]]:
        """List settings that may be raised to go on with a run: what was done, and is asked for."""
        return {}

    def to_arrays(self, state: AnyState) -> dict[str, np.ndarray]:
        """Write a state as named arrays, for a file."""
        return write_state(state)

    def from_arrays(self, rng_key: Any, arrays: Mapping[str, np.ndarray]) -> AnyState:
        """Read a state back; raises ValueError where the arrays make none."""
        return read_state(self.start(rng_key), arrays)


class Progress(NamedTuple):
    """How far a run has come.

    Attributes
    ----------
    made, whole
        Steps that were made, and those of the whole run.
    words
        How it goes, in words.
    seconds_left
        Seconds until the end or the time limit; None as long as they cannot be told.
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
        What is run, and what it starts from.
    time_limit
        Seconds after which no chunk of work is begun but the first. Compiling is not counted.
    keep
        Where states are kept, and where the run goes on if one was kept there: what has the
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
    """Write a pytree as named arrays; keys of random numbers as their words."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    return {jax.tree_util.keystr(path): _as_numbers(value) for path, value in leaves}


@in_float64
def read_state(fresh: AnyState, arrays: Mapping[str, np.ndarray]) -> AnyState:
    """Read a pytree back.

    Parameters
    ----------
    fresh
        A pytree of the same structure: arrays, or their shapes and types alone, and numbers.
    arrays
        What `write_state` gave.

    Raises
    ------
    ValueError
        If an array is missing, or of another type or shape; axes of no length have any length.
    """

    def read(path: Any, own: Any) -> Any:
        name = jax.tree_util.keystr(path)
        like = own if isinstance(own, jax.ShapeDtypeStruct) else _as_numbers(own)
        given = arrays.get(name, np.array(None))
        fits = given.dtype == like.dtype and given.ndim == like.ndim
        if not (fits and all(n in (0, given.shape[i]) for i, n in enumerate(like.shape))):
            words = "nothing" if name not in arrays else f"{given.dtype} {given.shape}"
            raise ValueError(
                f"The checkpoint is of another problem or of other settings: {name} must be "
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
