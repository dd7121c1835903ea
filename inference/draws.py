"""Random draws of any number, compiled for one number of them."""

import math
from collections.abc import Iterator

import jax
import numpy as np

from bdtppl.models.arrays.padding import padded
from bdtppl.models.arrays.precision import as_float64, in_float64
from bdtppl.models.leaves import Leaf

__all__ = ["draw_targets", "draw_uniforms"]

_LEAVES_DRAWN = 4096  # draws at once: to compile a sampler takes seconds, so it has one shape


def _pieces(rng_key: jax.Array, size: int) -> Iterator[tuple[jax.Array, slice]]:
    """Keys and places of the pieces of so many draws."""
    for start in range(0, size, _LEAVES_DRAWN):
        yield jax.random.fold_in(rng_key, start), slice(start, start + _LEAVES_DRAWN)


@in_float64
def draw_uniforms(rng_key: jax.Array, shape: tuple[int, ...]) -> np.ndarray:
    """Draw from [0, 1), float64 of a shape."""
    size = math.prod(shape)
    drawn = [
        np.asarray(jax.random.uniform(key, (_LEAVES_DRAWN,))) for key, _ in _pieces(rng_key, size)
    ]
    return np.concatenate([*drawn, np.empty(0)])[:size].reshape(shape)


@jax.jit
def _draw(leaf: Leaf, rng_key: jax.Array, statistics: jax.Array) -> jax.Array:
    return leaf.sample(rng_key, statistics)


@in_float64
def draw_targets(rng_key: jax.Array, leaf: Leaf, statistics: np.ndarray) -> np.ndarray:
    """Draw one new target per leaf, compiled once for a leaf family.

    Parameters
    ----------
    rng_key
        JAX key.
    leaf
        Leaf family.
    statistics
        float64 [..., s]; statistics of the leaves.

    Returns
    -------
    numpy.ndarray
        [...]; independent draws.
    """
    *shape, num_statistics = statistics.shape
    flat, leaf = statistics.reshape(-1, num_statistics), as_float64(leaf)
    drawn = [
        np.asarray(_draw(leaf, key, padded(flat[place], _LEAVES_DRAWN)))
        for key, place in _pieces(rng_key, len(flat))
    ]
    return np.concatenate(drawn)[: len(flat)].reshape(shape)
