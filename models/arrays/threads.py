"""Work on arrays in threads: NumPy releases the interpreter lock while it computes."""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

__all__ = ["NUM_THREADS", "in_threads"]

Item = TypeVar("Item")
Result = TypeVar("Result")

NUM_THREADS = min(8, os.cpu_count() or 1)
_WORTH_A_THREAD = 1 << 15  # array entries


def in_threads(
    function: Callable[[Item], Result], items: Iterable[Item], size: int
) -> list[Result]:
    """Call a function on each item, and return the results in order.

    Parameters
    ----------
    function
        Works on arrays; shares nothing with other calls.
    items
        Arguments, one for each call.
    size
        Array entries of one call; few entries are computed without threads.
    """
    if size < _WORTH_A_THREAD:
        return [function(item) for item in items]
    with ThreadPoolExecutor(NUM_THREADS) as threads:
        return list(threads.map(function, items))
