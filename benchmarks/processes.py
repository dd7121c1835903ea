"""Work in processes of its own: fresh compilers, and memory that is nobody else's."""

import resource
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

__all__ = ["in_fresh_process", "peak_memory"]


def peak_memory() -> float:
    """Largest resident memory of this process so far, in GB (10^9 bytes)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e9 if sys.platform == "darwin" else peak * 1024 / 1e9


def in_fresh_process(function: Callable, *args: Any, **kwargs: Any) -> Any:
    """Call an importable function in a new interpreter and wait for what it returns."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(function, *args, **kwargs).result()
