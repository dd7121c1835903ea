"""Work on arrays in threads: NumPy lets other threads run while it is at work."""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

__all__ = ["in_threads"]

Item = TypeVar("Item")
Result = TypeVar("Result")

_MOST_THREADS = 8
_WORTH_A_THREAD = 1 << 15  # array entries


def in_threads(
    function: Callable[[Item], Result], items: Iterable[Item], size: int
) -> list[Result]:
    """Call a function on each item, and return the results in order.

    Parameters
    ----------
    function
        Works on arrays, and on nothing that it shares with other calls.
    items
        What to call it on.
    size
        Entries of the arrays of one call; for few there are no threads.
    """
    if size < _WORTH_A_THREAD:
        return [function(item) for item in items]
    with ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1)) as threads:
        return list(threads.map(function, items))
