"""Sets of cells as rows of 64-bit words."""

import numpy as np


def unpack(words: np.ndarray, num_cells: int) -> np.ndarray:
    """Unpack sets [k, words], uint8 [k, cells]."""
    return np.unpackbits(words.view(np.uint8), axis=1, count=num_cells, bitorder="little")


def pack(bits: np.ndarray) -> np.ndarray:
    """Pack sets bool [k, cells] into uint64 [k, words]."""
    packed = np.packbits(bits, axis=1, bitorder="little")
    num_words = -(-bits.shape[1] // 64)
    padded = np.zeros((len(bits), num_words * 8), np.uint8)
    padded[:, : packed.shape[1]] = packed
    return padded.view(np.uint64)
