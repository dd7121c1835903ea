"""float64 in a local scope: exact inference computes in double precision.

The package never changes the global precision of the process. Compiled passes run inside
`jax.enable_x64`; they return NumPy arrays, or arrays of the caller's precision.
"""

from collections.abc import Callable
from functools import cached_property, wraps
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

P = ParamSpec("P")
R = TypeVar("R")


def in_float64(function: Callable[P, R]) -> Callable[P, R]:
    """Run a function inside a double-precision scope."""

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        with jax.enable_x64(True):
            return function(*args, **kwargs)

    return wrapped


def in_float32(function: Callable[P, R]) -> Callable[P, R]:
    """Run a function inside a single-precision scope."""

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        with jax.enable_x64(False):
            return function(*args, **kwargs)

    return wrapped


def as_float32(tree):
    """Convert a pytree's leaves to NumPy arrays: floats in single precision, integers unchanged."""

    def single(leaf: Any) -> np.ndarray:
        leaf = np.asarray(leaf)
        return leaf.astype(np.float32) if np.issubdtype(leaf.dtype, np.floating) else leaf

    return jax.tree.map(single, tree)


def cached_in_float64(function: Callable[[Any], R]) -> cached_property[R]:
    """Make a method a cached property that is computed inside a double-precision scope."""
    return cached_property(in_float64(function))


def as_float64(tree):
    """Convert every leaf of a pytree to a float64 array, inside a double-precision scope."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), tree)
