"""Sets of Cochrane et al. 2024 with the authors' splits, settings and priors."""

import csv
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.datasets import load_iris, load_wine

from bdtppl import DCCTreeClassifier, DCCTreeRegressor, presets
from bdtppl.datasets import load
from bdtppl.inference.dcc.settings import DCC
from bdtppl.inference.nuts.sample import NUTS
from bdtppl.models.soft.topology import TopologyPrior

__all__ = [
    "AUTHORS",
    "NAMES",
    "REGRESSION",
    "SETTINGS",
    "Runs",
    "Split",
    "agreement",
    "dcc_tree",
    "problem",
    "split",
]

NAMES: tuple[Any, ...] = ("wu", "cgm", "bcw", "iris", "wine", "raisin")
REGRESSION = ("wu", "cgm")


class Setting(NamedTuple):
    """Sharpness and warm-up of Cochrane et al.'s section 4 and Table 5."""

    h_init: float
    h_final: float
    warmup: int


SETTINGS = {
    name: Setting(*(presets.dcc_tree(name)[field] for field in Setting._fields)) for name in NAMES
}
_IN_SPLITS = {"bcw": "breast_cancer_original", "iris": "iris", "wine": "wine", "raisin": "raisin"}

# Priors of the authors' program, on targets as they are.
AUTHORS = presets.dcc_tree("wu")["model"]


class Runs(NamedTuple):
    """What is run: seeds, iterations T, and trees drawn at first, T_0."""

    seeds: Sequence[int]
    iterations: int
    initial_trees: int

    def __str__(self) -> str:
        return f"T = {self.iterations}, T_0 = {self.initial_trees}"


class Split(NamedTuple):
    """Training and test rows."""

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray


def split(name: str) -> Split:
    """Get the authors' split of a set.

    Parameters
    ----------
    name
        One of `NAMES`.

    Raises
    ------
    FileNotFoundError
        If ``BDTPPL_DATA`` lacks a file; says where to get it.
    """
    if name in REGRESSION:
        train, test = load(f"{name}_train"), load(f"{name}_test")
        return Split(*(np.asarray(a, float) for a in (*train[:2], *test[:2])))
    if name in ("iris", "wine"):
        matrix, y = (load_iris if name == "iris" else load_wine)(return_X_y=True)
    else:
        matrix, y, _, _ = load(_IN_SPLITS[name])
        matrix = np.asarray(matrix, float)
    rows = _rows(_IN_SPLITS[name])
    return Split(*(a[rows[part]] for part in ("train", "test") for a in (matrix, np.asarray(y))))


def _rows(dataset: str) -> dict[str, list[int]]:
    """Read which rows of a set the authors train and test on."""
    path = Path(os.environ.get("BDTPPL_DATA", "")) / "dcc_tree_splits.csv"
    if not path.is_file():
        raise FileNotFoundError(
            "the folder that BDTPPL_DATA names lacks dcc_tree_splits.csv (dataset, part, position, "
            "row), the row numbers of the pickles in github.com/jodie-c/DCC-Tree."
        )
    found: dict[str, list[tuple[int, int]]] = {"train": [], "test": []}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["dataset"] == dataset:
                found[row["part"]].append((int(row["position"]), int(row["row"])))
    return {part: [row for _, row in sorted(rows)] for part, rows in found.items()}


def dcc_tree(name: str, runs: Runs, **options: Any) -> Any:
    """Make an estimator with the authors' settings, not yet fitted; options are further ones."""
    length = {"iterations": runs.iterations, "initial_trees": runs.initial_trees}
    estimator = DCCTreeRegressor if name in REGRESSION else DCCTreeClassifier
    return estimator(**presets.dcc_tree(name) | length | options)


def problem(name: str) -> DCC:
    """Make the authors' settings for a regression set, with its rows."""
    data, setting = split(name), SETTINGS[name]
    low, high = data.X.min(axis=0), data.X.max(axis=0)
    return DCC(
        model=AUTHORS,
        x=(data.X - low) / (high - low),
        y=data.y,
        nuts=NUTS(**setting._asdict()),
        prior=TopologyPrior(),
    )


def agreement(model: Any, predicted: np.ndarray, y: np.ndarray) -> float:
    """Mean squared error of means, or accuracy of the likeliest class, of a fitted estimator."""
    if not hasattr(model, "classes_"):
        return float(((predicted - y) ** 2).mean())
    return float((model.classes_[predicted.argmax(axis=-1)] == y).mean())
