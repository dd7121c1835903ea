"""What benchmarks of Markov chains over trees share: the sets that the papers use, and fits."""

import warnings
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from bdtppl import MetropolisTreeClassifier
from bdtppl.datasets import load
from bdtppl.presets import plain_chains

__all__ = ["TABLES", "complete_rows", "fit_chains"]

TABLES = {"kyphosis": "kyphosis", "BCW": "breast_cancer_original", "Pima": "pima"}


def complete_rows(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Read the rows without missing values of one of `TABLES`, and their classes from 0 up.

    Raises
    ------
    FileNotFoundError
        If ``BDTPPL_DATA`` has no file of it; says where to get it.
    """
    matrix, labels, _, _ = load(TABLES[name])
    matrix = np.asarray(matrix, np.float64)
    complete = ~np.isnan(matrix).any(axis=1)
    return matrix[complete], np.unique(labels, return_inverse=True)[1][complete]


def fit_chains(X: np.ndarray, y: np.ndarray, **options: Any) -> MetropolisTreeClassifier:
    """Fit chains as in papers, without a warning where they disagree: the tables show that."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return MetropolisTreeClassifier(**plain_chains() | options).fit(X, y)
