"""A hash table in flat arrays: distinct 64-bit keys get consecutive numbers, many at a time."""

import numpy as np

__all__ = ["HashTable", "spread"]

# Odd, so multiplication is a bijection of keys; it spreads neighbouring keys over the table.
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


def spread(keys: np.ndarray) -> np.ndarray:
    """Map distinct uint64 keys to distinct, scattered ones."""
    return keys * _SPREAD


class HashTable:
    """Open-addressing table in flat arrays: distinct non-zero uint64 keys get ids 0, 1, 2, ..."""

    def __init__(self, capacity: int = 1000):
        self.size = 0
        self._keys_by_id: list[np.ndarray] = []
        self._allocate(int(1.5 * capacity).bit_length())

    def _allocate(self, bits: int) -> None:
        self._shift = np.uint64(64 - bits)
        self._mask = (1 << bits) - 1
        self._keys = np.zeros(1 << bits, np.uint64)
        self._ids = np.zeros(1 << bits, np.int32)

    def reserve(self, extra: int) -> None:
        """Make room for that many more keys."""
        bits = int(self._mask).bit_length()
        needed = max(bits, int(1.5 * (self.size + extra)).bit_length())
        if needed == bits:
            return
        known = self._keys_by_id
        self._allocate(needed)
        self.size, self._keys_by_id = 0, []
        for keys in known:  # in order of id and free of repetitions: every key keeps its id
            self._place(keys, np.arange(self.size, self.size + len(keys), dtype=np.int32))
            self.size += len(keys)
            self._keys_by_id.append(keys)

    def _place(self, keys: np.ndarray, ids: np.ndarray) -> None:
        """Store distinct new keys under given ids."""
        slot = (keys >> self._shift).astype(np.int64)
        while len(keys):
            empty = np.flatnonzero(self._keys.take(slot) == 0)
            self._keys[slot[empty]] = keys[empty]
            placed = self._keys.take(slot) == keys
            self._ids[slot[placed]] = ids[placed]
            rest = np.flatnonzero(~placed)
            keys, ids, slot = keys[rest], ids[rest], (slot[rest] + 1) & self._mask

    def insert(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Look keys up, adding those that are new.

        Returns
        -------
        ids
            int32, one per key.
        first
            int64; for each new id, in order, the position of one key that has it.
        """
        ids = np.empty(len(keys), np.int32)
        first = []
        slot = (keys >> self._shift).astype(np.int64)
        pending: np.ndarray | slice = slice(None)
        while len(keys):
            held = self._keys.take(slot)
            empty = np.flatnonzero(held == 0)
            if len(empty):
                target = slot[empty]
                # Several keys may claim one slot: the last writer wins both arrays.
                self._keys[target] = keys[empty]
                self._ids[target] = empty
                won = empty[self._ids.take(target) == empty]
                self._ids[slot[won]] = np.arange(self.size, self.size + len(won))
                self.size += len(won)
                self._keys_by_id.append(keys[won])
                first.append(won if isinstance(pending, slice) else pending[won])
                held = self._keys.take(slot)
            ids[pending] = self._ids.take(slot)
            rest = np.flatnonzero(held != keys)
            pending = rest if isinstance(pending, slice) else pending[rest]
            keys, slot = keys[rest], (slot[rest] + 1) & self._mask
        return ids, np.concatenate(first) if first else np.empty(0, np.int64)
