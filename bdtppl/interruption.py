"""The signal SIGTERM as an exception, so that what is done is kept as after Ctrl-C."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

TERMINATED = 128 + signal.SIGTERM  # the status that a shell gives to a command that SIGTERM ended


class Terminated(SystemExit):
    """The process was asked to end; unless it is caught, it ends without a traceback."""

    def __init__(self):
        super().__init__(TERMINATED)


@contextmanager
def terminable() -> Iterator[None]:
    """Raise `Terminated` where SIGTERM arrives in the block.

    Signals reach the main thread alone, so nothing changes in others; nor does it where the program
    has a handler of its own.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def end(*_: Any) -> None:
        raise Terminated

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
