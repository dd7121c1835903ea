"""Distinct rows of numbers, found by hashing instead of sorting."""

import numba
import numpy as np


def distinct_rows(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find the distinct rows of integers.

    Parameters
    ----------
    rows
        int [m, k].

    Returns
    -------
    first
        int64 [u]; place of the first row of each kind, in order.
    kind
        int64 [m]; kind of each row.

    Examples
    --------
    >>> distinct_rows(np.array([[1, 2], [3, 4], [1, 2]]))
    (array([0, 1]), array([0, 1, 0]))
    """
    rows = np.ascontiguousarray(rows)
    kind = np.empty(len(rows), np.int64)
    table = np.full(1 << (2 * len(rows)).bit_length(), -1, np.int64)
    return _number_rows(rows, table, kind), kind


@numba.njit(cache=True, nogil=True)
def _number_rows(rows, table, kind):
    """Write the kinds of rows in order of appearance, and return the first row of each."""
    first, size = np.empty(len(rows), np.int64), 0
    mask = np.uint64(len(table) - 1)
    for row in range(len(rows)):
        key = np.uint64(0xCBF29CE484222325)  # the hash of Fowler, Noll and Vo
        for value in rows[row]:
            key = (key ^ np.uint64(value)) * np.uint64(0x100000001B3)
        slot = (key ^ (key >> np.uint64(32))) & mask
        while table[slot] >= 0 and not np.array_equal(rows[first[table[slot]]], rows[row]):
            slot = (slot + np.uint64(1)) & mask
        if table[slot] < 0:
            table[slot], first[size] = size, row
            size += 1
        kind[row] = table[slot]
    return first[:size].copy()
