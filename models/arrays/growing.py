"""Arrays that grow at their end."""

import numpy as np


class Growing:
    """An array with room for more rows, whose memory the system provides when they are written.

    Parameters
    ----------
    start
        The first rows, of any shape except a scalar's.
    """

    def __init__(self, start: np.ndarray):
        self._memory, self._size = start, len(start)

    @property
    def array(self) -> np.ndarray:
        """The rows so far."""
        return self._memory[: self._size]

    def append(self, rows: np.ndarray) -> None:
        """Add rows at the end."""
        stop = self._size + len(rows)
        if stop > len(self._memory):
            memory = np.empty((stop + stop // 2, *rows.shape[1:]), self._memory.dtype)
            memory[: self._size] = self.array
            self._memory = memory
        self._memory[self._size : stop] = rows
        self._size = stop
