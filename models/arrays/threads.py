"""Work on arrays in threads: NumPy lets other threads run while it is at work."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import islice
from typing import TypeVar

from threadpoolctl import ThreadpoolController

__all__ = ["ahead_in_threads", "in_threads", "one_blas_thread"]

Item = TypeVar("Item")
Result = TypeVar("Result")

_NUM_THREADS = min(8, os.cpu_count() or 1)
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
    with ThreadPoolExecutor(_NUM_THREADS) as threads:
        return list(threads.map(function, items))


def ahead_in_threads(function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Call a function on each item, and yield the results in order.

    Threads are a few items ahead of who reads the results, so that both are at work.
    """
    items = list(items)
    if len(items) < 2:
        yield from map(function, items)
        return
    items = iter(items)
    with ThreadPoolExecutor(_NUM_THREADS) as threads:
        begun = deque(threads.submit(function, item) for item in islice(items, 2 * _NUM_THREADS))
        while begun:
            yield begun.popleft().result()
            begun.extend(threads.submit(function, item) for item in islice(items, 1))


@cache
def _libraries() -> ThreadpoolController:
    return ThreadpoolController()


def one_blas_thread():
    """Context in which a matrix product is the work of one thread: for work in threads.

    BLAS keeps threads of its own that wait for their next product by spinning, and so take the
    processor from others.
    """
    return _libraries().limit(limits=1, user_api="blas")
