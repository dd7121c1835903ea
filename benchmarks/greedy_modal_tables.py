"""The sets and models of Tables 1 and 2 of Nuti, Jimenez Rugama and Cross 2021.

Accuracy and training time of the greedy modal tree (GMT) beside scikit-learn's decision tree and a
forest of five regression trees on the same folds. The paper shuffles ten folds with seeds of 0, but
does not say how; here they are those of KFold. Nor does it list the features that it takes for
nominal; here they are the ones that give its numbers of columns.
"""

import statistics
import time
from typing import Any, NamedTuple

import numpy as np
from sklearn.ensemble import RandomForestRegressor
from sklearn.model_selection import KFold
from sklearn.tree import DecisionTreeClassifier

from bdtppl import GreedyModalTreeClassifier
from bdtppl.datasets import load
from bdtppl.models.priors import GreedyPartition

__all__ = ["NAMES", "Problem", "Score", "problem", "score_fold"]

NAMES = ("heart", "credit", "haberman", "seismic", "ripley", "gamma", "diabetic", "eeg")

_NUM_FOLDS = 10
_FILES = {
    "heart": "heart_statlog",
    "credit": "default_credit_card",
    "haberman": "haberman",
    "seismic": "seismic_bumps",
    "ripley": "ripley_synth_train",
    "gamma": "magic_gamma",
    "diabetic": "messidor_features",
    "eeg": "eeg_eye_state",
}
_TEST_FILES = {"ripley": "ripley_synth_test"}
_NOMINAL = {"heart": ("chest_pain_type", "resting_ecg", "st_slope", "major_vessels", "thal")}


class Problem(NamedTuple):
    """A set of two classes with its divisions into training and held-out rows.

    Attributes
    ----------
    name
        Name in the tables.
    matrix
        float64 [n, d].
    y
        int [n]; class indices.
    folds
        Pairs of row numbers: training, held out.
    """

    name: str
    matrix: np.ndarray
    y: np.ndarray
    folds: list[tuple[np.ndarray, np.ndarray]]


class Score(NamedTuple):
    """Accuracy on held-out rows, and seconds of a fit."""

    accuracy: float
    seconds: float


def problem(name: str) -> Problem:
    """Get one of the eight sets.

    Parameters
    ----------
    name
        One of `NAMES`.

    Raises
    ------
    FileNotFoundError
        If ``BDTPPL_DATA`` has no file of it; says where to get it.
    """
    X, labels, feature_names, _ = load(_FILES[name])
    num_rows = len(X)
    if name in _TEST_FILES:
        test = load(_TEST_FILES[name])
        X, labels = np.concatenate([X, test.X]), np.concatenate([labels, test.y])
        folds = [(np.arange(num_rows), np.arange(num_rows, len(X)))]
    else:
        folds = list(KFold(_NUM_FOLDS, shuffle=True, random_state=0).split(X))
    columns = [
        column
        for values, feature in zip(X.T, feature_names, strict=True)
        for column in _coded(values, is_nominal=feature in _NOMINAL.get(name, ()))
    ]
    y = np.unique(labels, return_inverse=True)[1]
    return Problem(name, np.stack(columns, axis=1).astype(np.float64), y, folds)


def _coded(values: np.ndarray, *, is_nominal: bool) -> list[np.ndarray]:
    """Give a nominal feature a 0/1 column for each level but the first; rank letters."""
    if is_nominal:
        return [values == level for level in np.unique(values)[1:]]
    if isinstance(values[0], str):
        return [np.unique(values.astype(str), return_inverse=True)[1]]
    return [values]


class _Forest(RandomForestRegressor):
    """Forest of regression trees on 0/1 labels; a mean of exactly one half means class 0."""

    def score(self, X: np.ndarray, y: np.ndarray) -> float:
        return np.mean((self.predict(X) > 0.5) == y)


def _models() -> dict[str, Any]:
    return {
        "CART": DecisionTreeClassifier(random_state=0),
        "forest": _Forest(n_estimators=5, bootstrap=True, random_state=0),
        "GMT": GreedyModalTreeClassifier(prior=GreedyPartition(0.99)),
        "GMT, stop pure": GreedyModalTreeClassifier(prior=GreedyPartition(0.99), stop_pure=True),
    }


def score_fold(problem: Problem, fold: int, *, repeats: int = 3) -> dict[str, Score]:
    """Fit all models to the training rows and score them on those held out.

    Parameters
    ----------
    problem
        The set.
    fold
        Which of its divisions.
    repeats
        Warm fits of each model; the median time counts.
    """
    training, held_out = problem.folds[fold]
    scores = {}
    for name, model in _models().items():
        seconds = []
        for _ in range(1 + repeats):
            start = time.perf_counter()
            model.fit(problem.matrix[training], problem.y[training])
            seconds.append(time.perf_counter() - start)
        accuracy = model.score(problem.matrix[held_out], problem.y[held_out])
        scores[name] = Score(accuracy, statistics.median(seconds[1:]))  # the first fit may compile
    return scores
