"""Progress on the terminal for what takes longer than a second.

It goes to the standard error stream, and only where that is a terminal or a notebook; a forecast of
what takes long goes there in any case.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Timer

__all__ = ["counting", "forecast", "paced", "waiting"]

_PATIENCE = 1.0  # seconds before anything is shown
_LONG = 10.0  # seconds that are worth a forecast
_PACE = 8  # steps after which one is made, the first of which compile


@contextmanager
def counting(what: str, *, shown: bool) -> Iterator[Callable[..., None] | None]:
    """Show a growing count while the block runs, from the first second on.

    Parameters
    ----------
    what
        Name of what is counted.
    shown
        Whether to show anything at all.

    Yields
    ------
    callable or None
        To be called with the count so far, and more to say if there is; None where nothing is
        shown.
    """
    if not (shown and _is_watched()):
        yield None
        return
    bar = _progress_bar("{task.completed:,} " + _escape_braces(what) + "{task.fields[more]}")
    task = bar.add_task(what, total=None, more="")
    start = time.monotonic()

    def report(count: int, more: str = "") -> None:
        if not bar.live.is_started and time.monotonic() - start > _PATIENCE:
            bar.start()
        bar.update(task, completed=count, more=more and f": {more}")

    try:
        yield report
    finally:
        bar.stop()


@contextmanager
def waiting(what: str, *, shown: bool) -> Iterator[None]:
    """Show what is being done, and for how long, while the block runs, from the first second on.

    Parameters
    ----------
    what
        What is being done.
    shown
        Whether to show anything at all.
    """
    if not (shown and _is_watched()):
        yield
        return
    bar = _progress_bar(_escape_braces(what))
    bar.add_task(what, total=None)
    timer = Timer(_PATIENCE, bar.start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # a bar that starts after it was stopped would stay
        bar.stop()


def forecast(what: str, seconds: float) -> None:
    """Say how much longer something takes, if that is long, with or without a terminal.

    Parameters
    ----------
    what
        What is being done.
    seconds
        How much longer it takes.
    """
    if seconds >= _LONG:
        time_left = f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} minutes"
        sys.stderr.write(f"{what}: about {time_left} more.\n")
        sys.stderr.flush()


def paced(
    report: Callable[..., None] | None, what: str, total: int, time_limit: float | None
) -> Callable[..., bool]:
    """Make a report of a count that forecasts the time of all of it, and says when time is over.

    Parameters
    ----------
    report
        Called with the count, and what more there is to say, where it is not None.
    what
        What is being done.
    total
        The count at the end.
    time_limit
        Seconds from now on; None for no limit.

    Returns
    -------
    callable
        Takes the count so far, and more to say; returns whether time is over.
    """
    start = time.monotonic()
    first: tuple[int, float] | None = None
    is_forecast = False

    def told(count: int, more: str = "") -> bool:
        nonlocal first, is_forecast
        now = time.monotonic()
        if report is not None:
            report(count, more)
        if first is None:
            first = count, now
        elif not is_forecast and count - first[0] >= _PACE:
            is_forecast = True
            left = (now - first[1]) / (count - first[0]) * (total - count)
            if time_limit is not None:
                left = min(left, time_limit - (now - start))
            forecast(what, left)
        return time_limit is not None and now - start > time_limit and count < total

    return told


def _is_watched() -> bool:
    from rich.console import Console

    console = Console(stderr=True)
    return console.is_terminal or console.is_jupyter


def _progress_bar(text: str):
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn(text, markup=False), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)


def _escape_braces(text: str) -> str:
    """Keep braces out of a format."""
    return text.replace("{", "{{").replace("}", "}}")
