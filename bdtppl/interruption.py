"""The signal SIGTERM as an exception, so that finished work is stored as after Ctrl-C."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

TERMINATED = 128 + signal.SIGTERM  # the status that a shell reports for a command ended by SIGTERM


class Terminated(SystemExit):
    """Raised by SIGTERM; if it is not caught, the process ends without a traceback."""

    def __init__(self):
        super().__init__(TERMINATED)


@contextmanager
def terminable() -> Iterator[None]:
    """Raise `Terminated` if SIGTERM arrives in the block.

    Only the main thread receives signals, so nothing changes in other threads, or if the program
    has its own handler.
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
