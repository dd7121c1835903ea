"""Consecutive numbers for distinct 64-bit keys, many at a time.

`distinct` finds equal keys by one sort of words that carry a key's leading bits and its position:
NumPy sorts plain integers many times faster than it looks them up. `HashTable` keeps the distinct
ones of all calls in flat arrays with open addressing.
"""

import numpy as np

__all__ = ["HashTable", "distinct"]


def distinct(keys: np.ndarray, key_bits: int = 64) -> tuple[np.ndarray, np.ndarray]:
    """Group equal keys.

    Parameters
    ----------
    keys
        uint64 [n].
    key_bits
        Bits that keys use at most. Fast where different keys already differ in the leading
        64 - log2(n) of these.

    Returns
    -------
    first
        int64; for each group, the position of its first key.
    group
        int32 [n]; the group of each key.
    """
    bits = np.uint64(max(1, (len(keys) - 1).bit_length()))
    low_bits = (np.uint64(1) << bits) - np.uint64(1)
    words = (keys << np.uint64(64 - key_bits)) & ~low_bits
    words |= np.arange(len(keys), dtype=np.uint64)
    words.sort()
    position = (words & low_bits).astype(np.int64)
    is_first = np.empty(len(keys), bool)
    is_first[:1] = True
    differs = words[1:] ^ words[:-1]
    np.greater(differs, low_bits, out=is_first[1:])
    in_order = keys.take(position)
    if ((in_order[1:] != in_order[:-1]) > is_first[1:]).any():  # keys of equal leading bits
        _, first, group = np.unique(keys, return_index=True, return_inverse=True)
        return first, group.astype(np.int32)
    group = np.empty(len(keys), np.int32)
    group[position] = np.cumsum(is_first, dtype=np.int32) - np.int32(1)
    return position[is_first], group


class HashTable:
    """Open-addressing table in flat arrays: distinct non-zero uint64 keys get ids 0, 1, 2, ..."""

    def __init__(self, capacity: int = 1000):
        self.size = 0
        self._keys_by_id: list[np.ndarray] = []
        self._allocate(int(3 * capacity).bit_length())

    def _allocate(self, bits: int) -> None:
        self._shift = np.uint64(64 - bits)
        self._mask = (1 << bits) - 1
        self._keys = np.zeros(1 << bits, np.uint64)
        self._ids = np.zeros(1 << bits, np.int32)

    def _reserve(self, extra: int) -> None:
        """Make room for that many more keys."""
        bits = int(self._mask).bit_length()
        needed = max(bits, int(3 * (self.size + extra)).bit_length())
        if needed == bits:
            return
        known = self._keys_by_id
        self._allocate(needed)
        self._keys_by_id = []
        self.size = 0
        for keys in known:  # in order of id: every key keeps its own
            self._place(keys)

    def _place(self, keys: np.ndarray) -> None:
        """Store distinct new keys under the next ids."""
        self._keys_by_id.append(keys)
        ids = np.arange(self.size, self.size + len(keys), dtype=np.int32)
        self.size += len(keys)
        slot = (keys >> self._shift).astype(np.int64)
        while len(keys):
            empty = np.flatnonzero(self._keys.take(slot) == 0)
            # Several keys may claim one slot: the last writer wins.
            self._keys[slot[empty]] = keys[empty]
            placed = self._keys.take(slot) == keys
            self._ids[slot[placed]] = ids[placed]
            rest = np.flatnonzero(~placed)
            keys, ids, slot = keys[rest], ids[rest], (slot[rest] + 1) & self._mask

    def _find(self, keys: np.ndarray) -> np.ndarray:
        """Ids of keys, int32; -1 where there is none."""
        slot = (keys >> self._shift).view(np.int64)
        held = self._keys.take(slot)
        is_held = held == keys
        ids = (self._ids.take(slot) + np.int32(1)) * is_held - np.int32(1)
        # A key whose slot was taken lies in one of the next slots.
        rest = np.flatnonzero(~is_held & (held != 0))
        pending, keys, slot = rest, keys.take(rest), slot.take(rest)
        while len(pending):
            slot = (slot + 1) & self._mask
            held = self._keys.take(slot)
            is_held = np.flatnonzero(held == keys)
            ids[pending.take(is_held)] = self._ids.take(slot.take(is_held))
            rest = np.flatnonzero((held != keys) & (held != 0))
            pending, keys, slot = pending.take(rest), keys.take(rest), slot.take(rest)
        return ids

    def insert(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Look keys up, adding those that are new.

        Returns
        -------
        ids
            int32, one per key.
        first
            int64; for each new id, in order, the position of the first key that has it.
        """
        ids = self._find(keys)
        unknown = np.flatnonzero(ids < 0)
        new_keys = keys.take(unknown)
        first, group = distinct(new_keys)
        ids[unknown] = group + np.int32(self.size)
        self._reserve(len(first))
        self._place(new_keys.take(first))
        return ids, unknown.take(first)
