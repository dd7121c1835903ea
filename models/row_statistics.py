"""Leaf statistics of single rows, for tables of any length."""

import jax
import numpy as np

from bdtppl.models.arrays.padding import padded, padded_size
from bdtppl.models.arrays.precision import as_float64
from bdtppl.models.leaf import Leaf


@jax.jit
def _statistics(leaf: Leaf, y: jax.Array, weights: jax.Array) -> jax.Array:
    return leaf.statistics(y, weights)


def row_statistics(leaf: Leaf, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Compute the statistics of rows, compiled for a few lengths of tables.

    Parameters
    ----------
    leaf
        Leaf family.
    y, weights
        Targets and weights [n].

    Returns
    -------
    numpy.ndarray
        float64 [n, s].
    """
    length = padded_size(len(y))
    with jax.enable_x64(True):
        rows = _statistics(as_float64(leaf), padded(y, length), padded(weights, length))
    return np.asarray(rows)[: len(y)]
