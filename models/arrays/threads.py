"""Work on arrays in threads: NumPy and compiled code release the interpreter lock."""

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_MOST = 8  # threads, by default
_WORTH_A_THREAD = 1 << 15  # array entries
_own = threading.local()


def is_worker() -> bool:
    """Return whether the caller is a task among others, which computes in one thread."""
    return getattr(_own, "is_worker", False)


@contextmanager
def as_worker() -> Iterator[None]:
    """Prevent calls in the block from starting threads: other workers use the other cores."""
    before = is_worker()
    _own.is_worker = True
    try:
        yield
    finally:
        _own.is_worker = before


def num_threads() -> int:
    """Return the number of threads that the caller may use: one per core, or one in a worker."""
    return 1 if is_worker() else os.cpu_count() or 1


def in_threads(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    size: int = _WORTH_A_THREAD,
    *,
    most: int = _MOST,
) -> list[Result]:
    """Call a function on each item, and return the results in order.

    Parameters
    ----------
    function
        Works on arrays; must share nothing with other calls.
    items
        Arguments, one for each call.
    size
        Array entries of one call; calls of few entries run without threads.
    most
        Most threads.
    """
    items = list(items)
    threads = min(num_threads(), most, len(items))
    if size < _WORTH_A_THREAD or threads <= 1:
        return [function(item) for item in items]
    with ThreadPoolExecutor(threads) as workers:
        return list(workers.map(function, items))
