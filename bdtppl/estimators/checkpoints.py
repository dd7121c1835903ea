"""Folders that keep where a long fit stands, so that it goes on from there."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bdtppl.files import staged

__all__ = ["Checkpoint"]

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
        Text that tells the settings from others.
    """

    def __init__(self, path: str | os.PathLike, problem: Sequence[np.ndarray], settings: str = ""):
        self.folder = Path(path)
        digest = hashlib.sha256(settings.encode())
        for array in problem:
            digest.update(np.ascontiguousarray(array).tobytes())
        self.problem = digest.hexdigest()

    def read(self) -> dict[str, np.ndarray] | None:
        """Read what was written last; None where nothing was.

        Raises
        ------
        ValueError
            If it was written for other rows or targets, or with other settings.
        """
        file = self.folder / _FILE
        if not file.is_file():
            return None
        with np.load(file, allow_pickle=False) as stored:
            arrays = dict(stored)
        if str(arrays.pop("problem")) != self.problem:
            raise ValueError(
                f"The checkpoint {str(self.folder)!r} is of other rows, targets or settings: name "
                f"another folder, or remove it."
            )
        return arrays

    def write(self, arrays: Mapping[str, Any]) -> None:
        """Replace what was written before, as a whole or not at all."""
        with staged(self.folder) as folder:
            np.savez(folder / _FILE, problem=self.problem, **arrays)
