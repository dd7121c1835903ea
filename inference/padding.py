"""Arrays padded to a few lengths, so that few shapes are compiled."""

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["padded", "padded_size"]


def padded_size(length: int) -> int:
    """Round a length up to 2^k or 1.5 * 2^k, so that few sizes are compiled."""
    power = 1 << max(length - 1, 0).bit_length()
    return 3 * power // 4 if length <= 3 * power // 4 else power


def padded(array: np.ndarray, length: int) -> jax.Array:
    """Lengthen the first axis and put the array on the device."""
    # Padding repeats no meaning: it is masked wherever it could be read. Ones keep logs finite.
    padded = np.ones((length, *array.shape[1:]), array.dtype)
    padded[: len(array)] = array
    return jnp.asarray(padded)
