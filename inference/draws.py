"""Random draws of any number, compiled for a single number of them."""

import math
from collections.abc import Callable, Iterator
from functools import partial

import jax
import numpy as np

from bdtppl.models.arrays.padding import padded
from bdtppl.models.arrays.precision import as_float64, in_float64
from bdtppl.models.leaf import Leaf

_LEAVES_DRAWN = 4096  # draws at once: compiling a sampler takes seconds, so it has one shape


def _pieces(rng_key: jax.Array, first: int, size: int) -> Iterator[tuple[jax.Array, slice]]:
    """Return keys of the pieces that contain the draws from the first on, and their places.

    The first piece may start before them, at a place below 0.
    """
    for start in range(first - first % _LEAVES_DRAWN, first + size, _LEAVES_DRAWN):
        place = start - first
        yield (
            jax.random.fold_in(rng_key, start // _LEAVES_DRAWN),
            slice(place, place + _LEAVES_DRAWN),
        )


def _stream(
    rng_key: jax.Array, shape: tuple[int, ...], first: int, draw: Callable[[jax.Array], jax.Array]
) -> np.ndarray:
    """Return numbers of an infinite stream from the first on; a key draws one piece of it."""
    size = math.prod(shape)
    drawn = [
        np.asarray(draw(key))[max(-place.start, 0) :]
        for key, place in _pieces(rng_key, first, size)
    ]
    return np.concatenate([*drawn, np.empty(0)])[:size].reshape(shape)


@in_float64
def draw_uniforms(rng_key: jax.Array, shape: tuple[int, ...], first: int = 0) -> np.ndarray:
    """Draw from [0, 1), float64 of a shape.

    Parameters
    ----------
    rng_key
        JAX key.
    shape
        Shape of the draws.
    first
        Index of the first draw among all draws of the key, which do not depend on how many are made
        at once.
    """
    return _stream(rng_key, shape, first, _uniform)


@in_float64
def draw_noise(
    rng_key: jax.Array,
    shape: tuple[int, ...],
    degrees_of_freedom: float | None = None,
    first: int = 0,
) -> np.ndarray:
    """Draw from a standard Student-t distribution, or a normal one without degrees of freedom.

    Parameters
    ----------
    rng_key, shape, first
        See `draw_uniforms`.
    degrees_of_freedom
        Degrees of freedom.
    """
    if degrees_of_freedom is None:
        return _stream(rng_key, shape, first, _normal)
    return _stream(rng_key, shape, first, partial(_student, degrees_of_freedom))


def draw_classes(
    rng_key: jax.Array, probability: np.ndarray, num_draws: int, first_row: int = 0
) -> np.ndarray:
    """Draw class indices of rows, int [num_draws, m].

    Parameters
    ----------
    rng_key
        JAX key.
    probability
        float64 [m, c].
    num_draws
        Draws of each row.
    first_row
        Index of the first row in a larger table: draws of a row depend on its index alone.
    """
    shape, first = (len(probability), num_draws), first_row * num_draws
    uniform = draw_uniforms(rng_key, shape, first).T
    drawn = np.zeros(uniform.shape, np.int64)
    for running in np.cumsum(probability, axis=1)[:, :-1].T:
        drawn += uniform >= running
    return drawn


@jax.jit
def _uniform(rng_key: jax.Array) -> jax.Array:
    return jax.random.uniform(rng_key, (_LEAVES_DRAWN,))


@jax.jit
def _normal(rng_key: jax.Array) -> jax.Array:
    return jax.random.normal(rng_key, (_LEAVES_DRAWN,))


@jax.jit
def _student(degrees_of_freedom: float, rng_key: jax.Array) -> jax.Array:
    return jax.random.t(rng_key, degrees_of_freedom, (_LEAVES_DRAWN,))


@jax.jit
def _draw(leaf: Leaf, rng_key: jax.Array, statistics: jax.Array) -> jax.Array:
    # Entries have their own keys, because some samplers let an entry depend on the others.
    return jax.vmap(leaf.sample)(jax.random.split(rng_key, len(statistics)), statistics)


@in_float64
def draw_targets(
    rng_key: jax.Array, leaf: Leaf, statistics: np.ndarray, first: int = 0
) -> np.ndarray:
    """Draw one new target per leaf, compiled once for a leaf family.

    Parameters
    ----------
    rng_key
        JAX key.
    leaf
        Leaf family.
    statistics
        float64 [..., s]; statistics of the leaves.
    first
        See `draw_uniforms`.

    Returns
    -------
    numpy.ndarray
        [...]; independent draws.
    """
    *shape, num_statistics = statistics.shape
    flat, leaf = statistics.reshape(-1, num_statistics), as_float64(leaf)
    drawn = []
    for key, place in _pieces(rng_key, first, len(flat)):
        own = flat[max(place.start, 0) : place.stop]
        before = max(-place.start, 0)
        own = np.pad(own, ((before, 0), (0, 0)), constant_values=1)  # as `padded` adds after them
        drawn.append(np.asarray(_draw(leaf, key, padded(own, _LEAVES_DRAWN)))[before:])
    return np.concatenate(drawn)[: len(flat)].reshape(shape)
