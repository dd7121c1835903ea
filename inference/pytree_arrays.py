"""States, which are pytrees of arrays, as named arrays of files."""

from collections.abc import Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from bdtppl.models.arrays.precision import in_float64

__all__ = ["from_arrays", "to_arrays"]

Pytree = TypeVar("Pytree")  # a pytree of arrays


def to_arrays(state: Any) -> dict[str, np.ndarray]:
    """Write a state as named arrays, for a file."""
    return {name: np.asarray(value) for name, value in _named(state)}


@in_float64
def from_arrays(state: Pytree, arrays: Mapping[str, np.ndarray]) -> Pytree:
    """Read a state back.

    Parameters
    ----------
    state
        Any state of the same structure, with arrays, or their shapes and types alone, of the same
        shapes and types.
    arrays
        What `to_arrays` gave.

    Raises
    ------
    ValueError
        If an array is missing, or has another shape or type than the state's.
    """
    values = []
    for name, own in _named(state):
        given = arrays.get(name)
        if given is None or given.shape != own.shape or given.dtype != own.dtype:
            given_words = "nothing" if given is None else f"{given.dtype} {given.shape}"
            raise ValueError(
                f"The checkpoint is of another problem or of other settings: {name} must be "
                f"{own.dtype} {own.shape}; got {given_words}."
            )
        values.append(jnp.asarray(given))
    return jax.tree.unflatten(jax.tree.structure(state), values)


def _named(state: Any) -> list[tuple[str, Any]]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    return [(jax.tree_util.keystr(path), value) for path, value in leaves]
