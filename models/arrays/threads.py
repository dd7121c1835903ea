"""Work on arrays in threads: NumPy releases the interpreter lock while it computes."""

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
        Works on arrays; shares nothing with other calls.
    items
        Arguments, one for each call.
    size
        Array entries of one call; few entries are computed without threads.
    """
    if size < _WORTH_A_THREAD:
        return [function(item) for item in items]
    with ThreadPoolExecutor(_NUM_THREADS) as threads:
        return list(threads.map(function, items))


def ahead_in_threads(function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Call a function on each item, and yield the results in order.

    Workers prefetch a few items.
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
    """Limit matrix products to one thread each, for work that is in threads already.

    The threads of BLAS spin while they wait for the next product, which takes processor time from
    other threads.
    """
    return _libraries().limit(limits=1, user_api="blas")
