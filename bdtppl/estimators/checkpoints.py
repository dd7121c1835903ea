"""Folders that keep training where it stands, so that it goes on from there."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bdtppl.files import staged
from bdtppl.inference.gflownet.checkpoint import from_arrays, to_arrays

__all__ = ["Checkpoint", "Training"]

_FILE = "training.npz"


class Training(NamedTuple):
    """Where a training stands.

    Attributes
    ----------
    seed
        Seed of the fit.
    state
        State of the method: a pytree of arrays.
    history
        What each step reported so far, arrays [steps] by name.
    """

    seed: int
    state: Any
    history: dict[str, np.ndarray]


class Checkpoint:
    """A folder for one training.

    Parameters
    ----------
    path
        The folder; made when something is written.
    problem
        Arrays that tell the problem from others: its rows and targets.
    """

    def __init__(self, path: str | os.PathLike, problem: Sequence[np.ndarray]):
        self.folder = Path(path)
        digest = hashlib.sha256()
        for array in problem:
            digest.update(np.ascontiguousarray(array).tobytes())
        self.problem = digest.hexdigest()

    def read(self, start: Any) -> Training | None:
        """Read what was written last; None where nothing was.

        Parameters
        ----------
        start
            A state at which training of the problem starts.

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
        if str(arrays["problem"]) != self.problem:
            raise ValueError(
                f"The checkpoint {str(self.folder)!r} is of other rows or targets: name another "
                f"folder, or remove it."
            )
        return Training(
            int(arrays["seed"]),
            from_arrays(start, _under("state/", arrays)),
            _under("history/", arrays),
        )

    def write(self, training: Training) -> None:
        """Replace what was written before, as a whole or not at all."""
        parts = {"state/": to_arrays(training.state), "history/": training.history}
        named: dict[str, Any] = {
            prefix + name: a for prefix, part in parts.items() for name, a in part.items()
        }
        with staged(self.folder) as folder:
            np.savez(folder / _FILE, seed=training.seed, problem=self.problem, **named)


def _under(prefix: str, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): a for name, a in arrays.items() if name.startswith(prefix)}
