"""Folders that store the states of long fits, so that these can be resumed.

Each run has a file of its own in the folder, so that one folder serves any number of fits: those of
a cross-validation, of several models, or of other rows. A run is identified by its estimator,
settings, seed and data. Settings that may be raised to extend a run, such as its number of
iterations, are not part of its name.
"""

import hashlib
import json
import os
import socket
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from bdtppl.array_files import read_arrays, write_arrays
from bdtppl.files import reason_of, require_writable
from bdtppl.inference.run import AnyState
from bdtppl.interruption import terminable

KEPT_EVERY = 60.0
"""Seconds from one writing of a state to the next."""

_KIND = "bdtppl checkpoint"


class Run:
    """A run in progress; see `keeping`.

    Attributes
    ----------
    seed
        Seed with which the run began.
    """

    def __init__(self, file: Path | None, seed: int):
        self.seed, self._file = seed, file
        self._read: dict[str, np.ndarray] | None = None
        if file is not None and os.path.lexists(file):
            self.seed, self._read = _read_checkpoint(file)
        self._offered: Callable[[], Mapping[str, Any]] | None = None
        self._last, self._has_warned = time.monotonic(), False

    def resumed(self, read: Callable[[Mapping[str, np.ndarray]], AnyState]) -> AnyState | None:
        """Read the last stored state.

        Parameters
        ----------
        read
            Makes a state from the stored arrays.

        Returns
        -------
        State or None
            None if no state was stored.

        Raises
        ------
        ValueError
            If no state can be made from the arrays.
        """
        arrays, self._read = self._read, None
        if arrays is None:
            return None
        try:
            return read(arrays)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise _damaged(self._file, error) from error

    def offer(self, arrays: Callable[[], Mapping[str, Any]]) -> None:
        """Offer the newest state; it is written if the last write was a minute ago.

        Parameters
        ----------
        arrays
            Returns the arrays of the state. It is also called when the run is interrupted, so they
            must be consistent at any moment.
        """
        self._offered = arrays
        if time.monotonic() - self._last >= KEPT_EVERY:
            self.keep()

    def keep(self) -> None:
        """Write the newest state, if there is one; a failed write does not fail the fit."""
        if self._file is None or self._offered is None:
            return
        self._last = time.monotonic()
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            header = {"run": self._file.stem, "seed": self.seed}
            arrays = {name: np.asarray(array) for name, array in self._offered().items()}
            write_arrays(self._file, _KIND, header, arrays)
        except (MemoryError, OSError) as error:
            if not self._has_warned:
                warnings.warn(
                    f"The checkpoint {str(self._file)!r} cannot be written ({reason_of(error)}); "
                    f"the fit continues, and tries again every {KEPT_EVERY:g} s.",
                    UserWarning,
                    stacklevel=2,
                )
            self._has_warned = True
        else:
            self._offered = None

    def require_length(self, name: str, done: int, asked: int) -> None:
        """Raise ValueError if the stored run is longer than a parameter requests."""
        if done > asked:
            raise ValueError(
                f"The checkpoint {str(self._file)!r} has {done} {name}; got {name}={asked}. Raise "
                f"it, or name another folder."
            )


@contextmanager
def keeping(folder: str | os.PathLike | None, name: Callable[[], str], seed: int) -> Iterator[Run]:
    """Store the states that a run offers: every minute, at its end, and when it is interrupted.

    Meanwhile SIGTERM interrupts the run like Ctrl-C, and no other process can make the same run.

    Parameters
    ----------
    folder
        The folder, created if it does not exist; None to store nothing.
    name
        Returns the name of the run (`name_of_run`); called if there is a folder.
    seed
        Seed of the run, if it begins here.

    Raises
    ------
    BlockingIOError
        If another process, or another thread, is making this run.
    OSError
        If the folder cannot be written.
    TypeError
        If the folder is not a path.
    ValueError
        If the file of the run is damaged.
    """
    if folder is None:
        yield Run(None, seed)
        return
    if not isinstance(folder, str | os.PathLike):
        raise TypeError(f"checkpoint must be the path of a folder; got {folder!r}.")
    file = Path(folder).expanduser() / f"{name()}.checkpoint"
    require_writable(file.parent, "checkpoint")
    with terminable(), _locked(file):
        run = Run(file, seed)
        try:
            yield run
        except Exception:  # the interruption may have left a state half made
            raise
        except BaseException:
            run.keep()
            raise
        run.keep()


def name_of_run(estimator: str, settings: Mapping[str, Any], data: Iterable[np.ndarray]) -> str:
    """Name a run, the same in every process.

    Parameters
    ----------
    estimator
        Name of the estimator.
    settings
        Settings by name, of types that `bdtppl.storage` can write.
    data
        Arrays that identify the problem: its rows and targets.

    Raises
    ------
    ValueError
        If a setting cannot be written, such as a prior defined outside bdtppl: another process
        could not identify it.
    """
    from bdtppl import __version__  # another version may give different bits
    from bdtppl.storage.encoding import encode  # takes long

    try:
        written = {name: encode(value, name) for name, value in settings.items()}
    except ValueError as error:
        raise ValueError(f"Checkpoints are not available: {error}") from error
    digest = hashlib.sha256(json.dumps([__version__, written], sort_keys=True).encode())
    for array in data:
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return f"{estimator}-{digest.hexdigest()[:16]}"


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Lock the run of a file; the system frees the lock of a killed process."""
    owner = file.with_name(f".{file.name}.owner")
    lock = FileLock(file.with_name(f".{file.name}.lock"))
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        who = "another process"
        with suppress(OSError, ValueError):
            who = " ".join(owner.read_text(encoding="utf-8")[:200].split()) or who
        raise BlockingIOError(
            f"The run of the checkpoint {str(file)!r} is being made by {who}: wait for its end, or "
            f"name another folder."
        ) from None
    except OSError as error:
        raise OSError(f"checkpoint {file.parent} cannot be written: {reason_of(error)}.") from error
    try:
        with suppress(OSError):  # the note is a convenience
            since = datetime.now().astimezone().isoformat(" ", "seconds")
            owner.write_text(
                f"process {os.getpid()} on {socket.gethostname()} since {since}", encoding="utf-8"
            )
        yield
    finally:
        with suppress(OSError):
            owner.unlink()
        lock.release()


def _read_checkpoint(file: Path) -> tuple[int, dict[str, np.ndarray]]:
    """Read the seed and the state of a run."""
    try:
        header, arrays = read_arrays(file, _KIND)
        if header["run"] != file.stem:
            raise ValueError("it belongs to another run")
        if type(header["seed"]) is not int:
            raise ValueError("its seed is not an integer")
    except (KeyError, OSError, TypeError, ValueError) as error:
        raise _damaged(file, error) from error
    return header["seed"], arrays


def _damaged(file: Path | None, error: Exception) -> ValueError:
    return ValueError(
        f"{str(file)!r} is not a checkpoint, or is damaged ({reason_of(error)}): remove it."
    )
