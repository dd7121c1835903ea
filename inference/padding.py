"""Arrays padded to a few lengths, so that few shapes are compiled."""

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["padded", "padded_size"]


def padded_size(length: int, sizes: int = 2) -> int:
    """Round a length up to one of few sizes, so that few are compiled.

    From each power of two to the next there are two, or another power of two of them.
    """
    power_below = 1 << max(length - 1, 0).bit_length() >> 1
    step = max(power_below // sizes, 1)
    return -(-length // step) * step


def padded(array: np.ndarray, length: int) -> jax.Array:
    """Lengthen the first axis and put the array on the device."""
    # Padding repeats no meaning: it is masked wherever it could be read. Ones keep logs finite.
    padded = np.ones((length, *array.shape[1:]), array.dtype)
    padded[: len(array)] = array
    return jnp.asarray(padded)
