"""What estimators answer without a parameter: ``python -m benchmarks.defaults``.

Five folds of real tables (`bdtppl.datasets`, in the folder that ``BDTPPL_DATA`` names): log loss of
classes, and of numeric targets the CRPS of 1,000 predictive draws, the RMSE, and the shares of
targets in their bands of 50 and 90 %. Beside the estimators stand scikit-learn's: a tree whose
number of leaves is tuned by five folds, with class shares smoothed by one row a class, and a random
forest; both predict a number, whose CRPS is its absolute error. Seconds are those of the processor,
for one fit and its predictions, without the first fold's compilation.
"""

import argparse
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, KFold, StratifiedKFold
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

import bdtppl
from bdtppl.datasets import load
from benchmarks.processes import add_jobs, in_jobs
from benchmarks.text_table import print_table

__all__ = ["main"]

CLASSES = (
    "heart_statlog",
    "pima",
    "breast_cancer_original",
    "raisin",
    "vertebral_2c",
    "messidor_features",
)
NUMBERS = ("auto_mpg", "energy_heating", "concrete")
LARGE = ("magic_gamma", "default_credit_card")
NUM_FOLDS, NUM_DRAWS = 5, 1_000
LEAVES = {"max_leaf_nodes": [2, 3, 5, 8, 12, 20, 40, 80]}


def _cart(is_classes: bool) -> GridSearchCV:
    tree = DecisionTreeClassifier if is_classes else DecisionTreeRegressor
    score = "accuracy" if is_classes else "neg_mean_squared_error"
    return GridSearchCV(tree(random_state=0), LEAVES, scoring=score, cv=NUM_FOLDS)


def _forest(is_classes: bool) -> Any:
    return (RandomForestClassifier if is_classes else RandomForestRegressor)(random_state=0)


def _ours(kind: str) -> Callable[[bool], Any]:
    def make(is_classes: bool) -> Any:
        name = f"{kind}{'Classifier' if is_classes else 'Regressor'}"
        return getattr(bdtppl, name)(random_state=0, progress=False)

    return make


MODELS: dict[str, Callable[[bool], Any]] = {
    "exact": _ours("ExactTree"),
    "greedy": lambda is_classes: (
        bdtppl.GreedyModalTreeClassifier if is_classes else bdtppl.GreedyModalTreeRegressor
    )(),
    "metropolis": _ours("MetropolisTree"),
    "bart": _ours("BART"),
    "CART": _cart,
    "forest": _forest,
}


def _shares(model: Any, X: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Class probabilities [m, c]; those of a single tree of scikit-learn are smoothed."""
    shares = np.zeros((len(X), len(classes)))
    shares[:, np.searchsorted(classes, model.classes_)] = model.predict_proba(X)
    if isinstance(model, GridSearchCV):
        tree: Any = model.best_estimator_
        count = tree.tree_.n_node_samples[tree.apply(X)][:, None]
        shares = (shares * count + 1) / (count + len(classes))
    return np.clip(shares, 1e-9, None) / np.clip(shares, 1e-9, None).sum(axis=1, keepdims=True)


def _crps(draws: np.ndarray, y: np.ndarray) -> float:
    """CRPS of draws [k, m], by the mean difference of sorted ones."""
    draws = np.sort(draws, axis=0)
    k = len(draws)
    spread = ((2 * np.arange(1, k + 1) - k - 1) @ draws) / k**2
    return float(np.mean(np.abs(draws - y).mean(axis=0) - spread))


def _scores(model: Any, X: np.ndarray, y: np.ndarray) -> list[float]:
    """CRPS, squared error, and shares in the bands of 50 and 90 %."""
    point = model.predict(X)
    square = float(np.mean((point - y) ** 2))
    if not hasattr(model, "sample_predictive"):
        return [float(np.abs(point - y).mean()), square, np.nan, np.nan]
    draws = np.asarray(model.sample_predictive(X, NUM_DRAWS)).reshape(NUM_DRAWS, len(X))
    inside = []
    for level in (0.5, 0.9):
        low, high = model.predict_interval(X, level).T
        inside.append(float(np.mean((low <= y) & (y <= high))))
    return [_crps(draws, y), square, *inside]


def measure(name: str, table: str) -> tuple[list[float], float]:
    """Scores of a model, mean of the folds, and its median CPU seconds after the first one."""
    X, y, *_ = load(table)
    is_classes = table not in NUMBERS
    split: Any = (StratifiedKFold if is_classes else KFold)(NUM_FOLDS, shuffle=True, random_state=0)
    found, seconds = [], []
    for fitted, held in split.split(X, y):
        start = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = MODELS[name](is_classes).fit(X[fitted], y[fitted])
            if is_classes:
                classes = np.unique(y)
                found.append([log_loss(y[held], _shares(model, X[held], classes), labels=classes)])
            else:
                found.append(_scores(model, X[held], y[held]))
        seconds.append(time.process_time() - start)
    mean = np.mean(found, axis=0)
    if not is_classes:
        mean[1] = np.sqrt(mean[1])
    return mean.tolist(), float(np.median(seconds[1:]))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables that the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.defaults", description=__doc__)
    tables = (*CLASSES, *NUMBERS, *LARGE)
    parser.add_argument("--sets", nargs="+", choices=tables, default=(*CLASSES, *NUMBERS))
    parser.add_argument("--models", nargs="+", choices=[*MODELS], default=[*MODELS])
    add_jobs(parser)
    options = parser.parse_args(arguments)
    for table in options.sets:
        is_numbers = table in NUMBERS
        headings = ("CRPS", "RMSE", "in 50 %", "in 90 %") if is_numbers else ("log loss",)
        rows = []
        tasks = [(name, table) for name in options.models]
        found = in_jobs(measure, tasks, options.jobs)
        for name, (scores, seconds) in zip(options.models, found, strict=True):
            cells = ["" if np.isnan(score) else f"{score:.3f}" for score in scores]
            rows.append((name, *cells, f"{seconds:.2f}"))
        print_table(f"{table}, five folds", ("model", *headings, "CPU s"), rows)


if __name__ == "__main__":
    main()
