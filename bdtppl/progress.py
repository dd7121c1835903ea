"""Progress on the terminal for work that takes longer than a second.

Progress goes to the standard error stream if that is a terminal or a notebook; forecasts of long
work always go there.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Timer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bdtppl.inference.run import Progress

_PATIENCE = 1.0  # seconds before anything is shown
_LONG = 10.0  # remaining seconds that are worth a forecast


@contextmanager
def counting(what: str, *, shown: bool) -> Iterator[Callable[..., None] | None]:
    """Show a growing count while the block runs, after the first second.

    Parameters
    ----------
    what
        Name of what is counted.
    shown
        Whether to show anything at all.

    Yields
    ------
    callable or None
        Called with the count so far, and optional further text; None if nothing is shown.
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
    """Show the current work and its time while the block runs, after the first second.

    Parameters
    ----------
    what
        Description of the work.
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
        timer.join()  # a bar that starts after its stop would stay
        bar.stop()


def forecast(what: str, seconds: float) -> None:
    """Print how much longer something takes, if that is long, with or without a terminal.

    Parameters
    ----------
    what
        Description of the work.
    seconds
        Remaining seconds.
    """
    if seconds >= _LONG:
        time_left = f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} minutes"
        sys.stderr.write(f"{what}: about {time_left} more.\n")
        sys.stderr.flush()


@contextmanager
def following(what: str, counts: str, *, shown: bool) -> "Iterator[Callable[[Progress], None]]":
    """Follow a run (`bdtppl.inference.run.run`): show its progress, and forecast its end.

    Parameters
    ----------
    what
        Description of the work.
    counts
        Name of its steps, in the plural.
    shown
        Whether to show anything but a forecast of long work.
    """
    forecast_of = 0  # steps of the run when its end was last forecast
    with counting(counts, shown=shown) as report:

        def told(progress: "Progress") -> None:
            nonlocal forecast_of
            if report is not None:
                report(progress.made, progress.words)
            if progress.seconds_left is not None and progress.whole > forecast_of:
                forecast_of = progress.whole
                forecast(what, progress.seconds_left)

        yield told


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
    """Escape braces in a format."""
    return text.replace("{", "{{").replace("}", "}}")
