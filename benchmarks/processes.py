"""Work in other processes: fresh compilers and memory that is nobody else's, or several at once."""

import argparse
import resource
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import (
    get_all_start_methods,
    get_context,
    get_start_method,
    set_start_method,
)
from typing import Any

from bdtppl.inference.parallel import fan_out, workers

__all__ = ["add_jobs", "in_fresh_process", "in_jobs", "peak_memory"]


def peak_memory() -> float:
    """Largest resident memory of this process so far, in GB (10^9 bytes)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e9 if sys.platform == "darwin" else peak * 1024 / 1e9


def in_fresh_process(function: Callable, *args: Any, **kwargs: Any) -> Any:
    """Call an importable function in a new interpreter and wait for what it returns."""
    if get_start_method(allow_none=True) not in (None, *get_all_start_methods()):
        set_start_method("spawn", force=True)  # a worker of joblib names its own, unknown to others
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(function, *args, **kwargs).result()


def add_jobs(parser: argparse.ArgumentParser) -> None:
    """Add the option ``--jobs``, a number for `in_jobs`."""
    parser.add_argument("--jobs", type=int, default=1, help="processes, of a thread each")


def in_jobs(function: Callable, tasks: Iterable[tuple], jobs: int) -> list:
    """Call a function on tasks, one after the other or in so many processes at once."""
    if jobs == 1:
        return [function(*task) for task in tasks]
    with workers(jobs):
        return fan_out(function, tasks)
