"""Folders that keep the state of a long fit, so that it can be resumed."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from bdtppl.files import require_writable

__all__ = ["KEPT_EVERY", "Checkpoint"]

KEPT_EVERY = 60.0
"""Seconds from one checkpoint to the next."""

_FILE = "checkpoint.npz"


class Checkpoint:
    """A folder for one fit.

    Parameters
    ----------
    path
        The folder; made when something is written.
    problem
        Arrays that tell the problem from others: its rows and targets.
    settings
        Settings by name, of what `bdtppl.storage` can write.

    Raises
    ------
    OSError
        If the folder cannot be written.
    TypeError
        If the path is none.
    ValueError
        If a setting cannot be written, such as a prior defined outside bdtppl: in another process
        it could not be told from others.
    """

    def __init__(
        self, path: str | os.PathLike, problem: Sequence[np.ndarray], settings: Mapping[str, Any]
    ):
        from bdtppl.storage.encoding import encode  # takes long

        if not isinstance(path, str | os.PathLike):
            raise TypeError(f"checkpoint must be the path of a folder; got {path!r}.")
        self.folder = Path(path)
        require_writable(self.folder, "checkpoint")
        try:
            written = {name: encode(value, name) for name, value in settings.items()}
        except ValueError as error:
            raise ValueError(f"There can be no checkpoint: {error}") from error
        digest = hashlib.sha256(json.dumps(written).encode())
        for array in problem:
            digest.update(np.ascontiguousarray(array).tobytes())
        self.problem = digest.hexdigest()

    def read(self) -> dict[str, np.ndarray] | None:
        """Read the last state; None where nothing was written.

        Raises
        ------
        ValueError
            If it was written for other rows or targets, or with other settings, or is no
            checkpoint.
        """
        file = self.folder / _FILE
        if not file.is_file():
            return None
        try:
            with file.open("rb") as opened, np.load(opened, allow_pickle=False) as stored:
                arrays = dict(stored)
            problem = str(arrays.pop("problem"))
        except (AttributeError, EOFError, KeyError, TypeError, ValueError, BadZipFile) as error:
            raise ValueError(
                f"{str(file)!r} is no checkpoint, or is damaged: remove it."
            ) from error
        if problem != self.problem:
            raise ValueError(
                f"The checkpoint {str(self.folder)!r} is of other rows, targets or settings: name "
                f"another folder, or remove it."
            )
        return arrays

    def write(self, arrays: Mapping[str, Any]) -> None:
        """Replace the last state. A killed process leaves the old or the new one."""
        self.folder.mkdir(parents=True, exist_ok=True)
        unfinished = self.folder / f".{_FILE}"
        with unfinished.open("wb") as file:
            np.savez(file, problem=self.problem, **arrays)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, self.folder / _FILE)

    def require_seed(self, random_state: Any, own: int, kept: int) -> None:
        """Refuse to resume a run of another seed.

        Parameters
        ----------
        random_state
            What the user gave; only a number names one run.
        own, kept
            The seed that it gives, and that of the run that is kept.

        Raises
        ------
        ValueError
            If a number was given, and the seeds differ.
        """
        if isinstance(random_state, int | np.integer) and own != kept:
            raise ValueError(
                f"The checkpoint {str(self.folder)!r} is of a run with another random_state than "
                f"{random_state}: name another folder, or remove it; random_state=None goes on "
                f"with any run."
            )

    def require_length(self, name: str, done: int, asked: int) -> None:
        """Raise ValueError where the run that is kept is longer than a parameter asks for."""
        if done > asked:
            raise ValueError(
                f"The checkpoint {str(self.folder)!r} has {done} {name}; got {name}={asked}."
            )
