"""The data sets and divisions of the DT-GFN paper, its appendix H and Table 9."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from sklearn.datasets import load_breast_cancer, load_iris, load_wine
from sklearn.model_selection import train_test_split

from bdtppl.datasets import load, make_hidden_xor

__all__ = [
    "ANOMALIES",
    "SEEDS",
    "SETS",
    "Division",
    "anomalies",
    "divided",
    "hidden_xor",
    "shifted",
    "table",
]

SETS = ("iris", "wine", "breast cancer", "raisin")
SEEDS = (1, 2, 3, 4, 5)  # of the paper's divisions
ANOMALIES = ("thyroid", "ecoli", "vertebral", "glass")

_BUNDLED: dict[str, Callable] = {
    "iris": load_iris,
    "wine": load_wine,
    "breast cancer": load_breast_cancer,
}
_FILES = {"raisin": "raisin", "breast cancer (original)": "breast_cancer_original"}
_SHIFTS = {"BMI": ("bmi", 30.0), "age": ("age", 29.0)}  # the limit
_SHIFT_SEED = 42


class Division(NamedTuple):
    """Rows to train on and rows to be judged by, each features [n, d] and classes [n]."""

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray


def table(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Get features [n, d], NaN where one is missing, and classes [n].

    Raises
    ------
    FileNotFoundError
        If ``BDTPPL_DATA`` has no file of it; says where to get it.
    """
    if name in _BUNDLED:
        return _BUNDLED[name](return_X_y=True)
    X, labels, _, _ = load(_FILES[name])
    return X.astype(float), np.unique(labels, return_inverse=True)[1]


def divided(name: str, seed: int, test_size: float = 0.2) -> Division:
    """Divide a set at random."""
    X, y = table(name)
    X, X_test, y, y_test = train_test_split(X, y, test_size=test_size, random_state=seed)
    return Division(X, y, X_test, y_test)


def shifted(feature: str) -> tuple[Division, np.ndarray, np.ndarray]:
    """Divide Pima's rows below a limit of BMI or age; also those above, features and classes.

    A fifth of the rows below it is held out: 61 and 80. The paper says 60 and 80, but the
    accuracies of its packages are multiples of 1/61 and of 1/80.
    """
    name, limit = _SHIFTS[feature]
    X, y, names, _ = load("pima")
    X, y, is_below = X.astype(float), np.asarray(y), X[:, names.index(name)] <= limit
    parts = train_test_split(X[is_below], y[is_below], test_size=0.2, random_state=_SHIFT_SEED)
    train, held_out, y_train, y_held_out = parts
    return Division(train, y_train, held_out, y_held_out), X[~is_below], y[~is_below]


def anomalies(name: str, seed: int) -> Division:
    """Train on half of the normal rows, class 0; the others are among anomalous ones, class 1."""
    X, y, _, _ = load(f"{name}_odds")
    X, y = X.astype(float), np.asarray(y).astype(int)
    normal = np.random.default_rng(seed).permutation(np.flatnonzero(y == 0))
    train = normal[: -(-len(normal) // 2)]
    rest = np.setdiff1d(np.arange(len(y)), train)
    return Division(X[train], y[train], X[rest], y[rest])


def hidden_xor(num_noise: int, kind: str, seed: int, sizes: Sequence[int] = (1000, 1000)):
    """Hide two bits among noise, "binary" or "real"; as many rows to be judged by, by default."""
    rng = np.random.default_rng(seed)
    X, y = make_hidden_xor(sum(sizes), 2 + num_noise, 2, random_state=seed)
    X = X.astype(float)
    if kind == "real":
        X[:, 2:] = rng.uniform(size=(len(X), num_noise))
    train = sizes[0]
    return Division(X[:train], y[:train], X[train:], y[train:])
