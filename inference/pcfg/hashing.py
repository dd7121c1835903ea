"""Hash tables that number distinct 64-bit keys consecutively, many at a time.

`HashTable` uses open addressing. The low bits of a key give the first slot of its search. The slot
is one word: the other bits of the key and, instead of the low ones, the number of the key.
"""

import numba
import numpy as np

from bdtppl.models.arrays.growing import Growing


@numba.njit(cache=True, nogil=True)
def _slot_of(key, slots):
    """Return the slot of a key, or the empty one where it belongs."""
    low_bits = np.uint64(len(slots) - 1)
    slot = key & low_bits
    while slots[slot] != 0 and (slots[slot] ^ key) & ~low_bits != 0:
        slot = (slot + np.uint64(1)) & low_bits
    return slot


@numba.njit(cache=True, nogil=True)
def _place(keys, start, slots):
    """Assign keys the numbers from ``start`` on."""
    low_bits = np.uint64(len(slots) - 1)
    for i in range(len(keys)):
        # Numbers are stored plus one: no used slot is 0.
        slots[_slot_of(keys[i], slots)] = (keys[i] & ~low_bits) | np.uint64(start + i + 1)


@numba.njit(cache=True, nogil=True)
def _look_up(keys, begin, num_new, size, slots, numbers, first):
    """Return the numbers of keys from ``begin`` on; new keys are numbered in order of appearance.

    Stops when half of the slots are used. Returns the position, and the number of new keys so far.
    """
    low_bits = np.uint64(len(slots) - 1)
    for i in range(begin, len(keys)):
        slot = _slot_of(keys[i], slots)
        number = np.int64(slots[slot] & low_bits)
        if number == 0:
            number = size + num_new + 1
            if 2 * number > len(slots):
                return i, num_new
            slots[slot] = (keys[i] & ~low_bits) | np.uint64(number)
            first[num_new] = i
            num_new += 1
        numbers[i] = number - 1
    return len(keys), num_new


@numba.njit(cache=True, nogil=True)
def _renumber(numbers, start, rank):
    """Replace the numbers from ``start`` on."""
    for i in range(len(numbers)):
        if numbers[i] >= start:
            numbers[i] = start + rank[numbers[i] - start]


class HashTable:
    """Numbers 0, 1, 2, ... of distinct random uint64 keys.

    Keys are distinguished by the bits that do not index a slot, and by their approximate position;
    keys that are not random may be confused.
    """

    def __init__(self, num_slots: int = 1 << 12):
        self._keys = Growing(np.empty(0, np.uint64))
        self._slots = np.zeros(num_slots, np.uint64)

    @property
    def size(self) -> int:
        """Number of distinct keys."""
        return len(self.keys)

    @property
    def keys(self) -> np.ndarray:
        """Keys in order of their numbers, uint64 [size]."""
        return self._keys.array

    def insert(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Look keys up, and add those that are new, in ascending order.

        Returns
        -------
        numbers
            int32, one per key.
        first
            int64; for each new number, in order, the position of the first key that has it.
        """
        start = self.size
        numbers, first = np.empty(len(keys), np.int32), np.empty(len(keys), np.int64)
        done, num_new = _look_up(keys, 0, 0, start, self._slots, numbers, first)
        while done < len(keys):
            self._slots = np.zeros(2 * len(self._slots), np.uint64)
            _place(self.keys, 0, self._slots)
            _place(keys[first[:num_new]], start, self._slots)
            done, num_new = _look_up(keys, done, num_new, start, self._slots, numbers, first)
        order = np.argsort(keys[first[:num_new]])
        first = first[order]
        rank = np.empty(num_new, np.int32)
        rank[order] = np.arange(num_new, dtype=np.int32)
        _renumber(numbers, start, rank)
        _place(keys[first], start, self._slots)
        self._keys.append(keys[first])
        return numbers, first
