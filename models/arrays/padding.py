"""Padding of arrays to a few lengths, so that few shapes are compiled."""

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

FEW_SIZES = 1 << 10, 1 << 15  # of pieces that are compiled
_ALIGNMENT = 64  # bytes


def padded_size(length: int, sizes: int = 2) -> int:
    """Round a length up to one of few sizes, so that few shapes are compiled.

    There are ``sizes`` of them, a power of two, between consecutive powers of two.
    """
    power_below = 1 << max(length - 1, 0).bit_length() >> 1
    step = max(power_below // sizes, 1)
    return -(-length // step) * step


def in_pieces(function: Callable[..., Any], sizes: int | tuple[int, ...], *arrays: Any) -> Any:
    """Call a function on pieces of few sizes of arrays, so that few shapes are compiled.

    Parameters
    ----------
    function
        From pytrees of arrays [size, ...] to another pytree, row by row.
    sizes
        Rows of a piece, one number or several in ascending order; the last piece is padded with its
        own rows.
    *arrays
        Pytrees of arrays [m, ...].

    Returns
    -------
    pytree
        The joined results: NumPy arrays [m, ...].

    Examples
    --------
    >>> in_pieces(lambda rows: rows**2, 4, np.arange(6)).tolist()
    [0, 1, 4, 9, 16, 25]
    """
    parts, start, number = [], 0, len(jax.tree.leaves(arrays)[0])
    sizes = (sizes,) if isinstance(sizes, int) else sizes
    while start < number or not parts:  # zero rows are one piece, too
        size = next((size for size in sizes if size >= number - start), sizes[-1])
        rows = slice(start, min(start + size, number))
        some = jax.tree.map(lambda a, r=rows, s=size: np.resize(a[r], (s, *a.shape[1:])), arrays)
        found = function(*some)
        parts.append(jax.tree.map(lambda a, r=rows: np.asarray(a)[: r.stop - r.start], found))
        start += size
    return jax.tree.map(lambda *own: np.concatenate(own), *parts)


def padded(array: np.ndarray, length: int) -> jax.Array:
    """Lengthen the first axis and put the array on the device."""
    shape = length, *array.shape[1:]
    size = math.prod(shape) * array.itemsize
    # XLA uses memory at aligned addresses directly and copies all other memory.
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    padded = memory[start : start + size].view(array.dtype).reshape(shape)
    padded[: len(array)] = array
    # Padding values are meaningless; they are masked. Ones keep logs finite.
    padded[len(array) :] = 1
    return jax.device_put(padded, may_alias=True)
