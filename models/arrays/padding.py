"""Arrays padded to a few lengths, so that few shapes are compiled."""

import math

import jax
import numpy as np

__all__ = ["padded", "padded_size"]

_ALIGNMENT = 64  # bytes


def padded_size(length: int, sizes: int = 2) -> int:
    """Round a length up to one of few sizes, so that few shapes are compiled.

    From each power of two to the next there are ``sizes`` of them, a power of two.
    """
    power_below = 1 << max(length - 1, 0).bit_length() >> 1
    step = max(power_below // sizes, 1)
    return -(-length // step) * step


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
