"""What the paper's tables compare: inferences of this suite, and packages.

All inferences have the paper's model: uniform thresholds, exp(-beta) a split with beta = log 4 +
log d, and Dirichlet(0.1) leaves. Leaves are those of the training rows, never of test labels.
"""

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from sklearn.ensemble import RandomForestClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.tree import DecisionTreeClassifier

from bdtppl import (
    ExactTreeClassifier,
    GFlowNetTreeClassifier,
    MetropolisTreeClassifier,
    ParticleTreeClassifier,
)
from bdtppl.inference.gflownet.ensembles import reweighted
from bdtppl.inference.hard.posterior import Posterior
from bdtppl.inference.pcfg.compiler import TooManySubproblems
from bdtppl.models.hard.tree import route
from bdtppl.models.leaves import DirichletCategorical
from bdtppl.models.priors import DescriptionLength
from bdtppl.presets import dt_gfn
from benchmarks.gflownet.problems import Division

__all__ = [
    "PACKAGES",
    "SINGLE_TREES",
    "Runs",
    "Score",
    "best_tree",
    "ensemble",
    "fitted",
    "inferences",
    "model_of",
    "of_package",
    "packages",
    "plain_mean",
]

_NUM_TREES = 1000
_MOST_SUBPROBLEMS = 2_000_000


class Score(NamedTuple):
    """Share of test rows that are classified right, nodes a tree, and trees that weights leave."""

    accuracy: float
    size: float | None
    effective: float | None = None


def model_of(X: np.ndarray, classes: np.ndarray, *, max_depth: int, grid: int) -> dict[str, Any]:
    """Lay out the model as parameters of every estimator."""
    return {
        "prior": DescriptionLength(float(np.log(4 * X.shape[1]))),
        "leaf": DirichletCategorical.symmetric(len(classes), 0.1),
        "max_depth": max_depth,
        "grid": grid,
        "classes": classes,
        "random_state": 0,
    }


class Runs(NamedTuple):
    """What is run: depths in levels of splits, steps of the longer training, parts of names."""

    depths: Sequence[int]
    steps: int
    methods: Sequence[str] = ("",)


def inferences(
    runs: Runs, X: np.ndarray, classes: np.ndarray, *, max_depth: int, grid: int = 99
) -> dict[str, Any]:
    """Name the inferences of the suite that are run, not yet fitted."""
    model = model_of(X, classes, max_depth=max_depth, grid=grid)
    draws = {"chains": 4, "draws": _NUM_TREES // 4}
    every = {
        "exact posterior": ExactTreeClassifier(
            **model, **draws, bins=None, max_subproblems=_MOST_SUBPROBLEMS
        ),
        "grammar flow": GFlowNetTreeClassifier(**model, **draws, time_limit=None),
        "DT-GFN, Table 5": GFlowNetTreeClassifier(**(dt_gfn(X.shape[1]) | model)),
        f"DT-GFN, {runs.steps} steps": GFlowNetTreeClassifier(
            **model, **draws, method="trajectory", steps=runs.steps, time_limit=None
        ),
        "SMC": ParticleTreeClassifier(**model),
        "MCMC": MetropolisTreeClassifier(**model, **draws),
    }
    return {name: m for name, m in every.items() if any(part in name for part in runs.methods)}


def fitted(name: str, model: Any, data: Division) -> Any | None:
    """Fit, and tell how long it took; None where the exact chart does not fit."""
    start, is_there = time.perf_counter(), True
    try:
        model.fit(data.X, data.y)
    except TooManySubproblems:
        is_there = False
    said = [f"{name}, {len(data.X)} x {data.X.shape[1]}: {time.perf_counter() - start:.0f} s"]
    if is_there:
        said.append(f"accuracy {(model.predict(data.X_test) == data.y_test).mean():.3f}")
    print("; ".join(said), file=sys.stderr, flush=True)
    return model if is_there else None


def best_tree(model: Any, data: Division) -> Score:
    """Score the most probable of all trees where they can be ranked, else of the trees drawn.

    Not the best that training has met, or that a search finds: the paper's is the best of draws.
    """
    is_exact = isinstance(model, ExactTreeClassifier)
    found = model.k_best(1) if is_exact else model.posterior_.ranked
    tree, statistics = found.trees[0], found.statistics[0]
    with jax.enable_x64(True):
        probability = np.asarray(model.leaf_.posterior_mean(statistics))
    slots = route(tree.reshape(1), data.X_test)[0]
    predicted = model.classes_[probability[slots].argmax(axis=1)]
    return Score(float((predicted == data.y_test).mean()), float(tree.num_nodes))


def ensemble(model: Any, data: Division) -> Score:
    """Score the posterior predictive, which averages over all trees drawn."""
    return _averaged(model, model.posterior_, data)


def plain_mean(model: Any, data: Division) -> Score | None:
    """Score the average of a policy's draws without weights; None where no policy draws."""
    if not isinstance(model, GFlowNetTreeClassifier):
        return None
    return _averaged(model, reweighted(model.posterior_, "mean"), data)


def _averaged(model: Any, posterior: Posterior, data: Division) -> Score:
    weights = posterior.weights
    size = float((weights * posterior.trees.num_nodes).sum())
    predicted = model.classes_[posterior.predictive(data.X_test).mean().argmax(axis=1)]
    accuracy = float((predicted == data.y_test).mean())
    return Score(accuracy, size, float(1 / (weights**2).sum()))


def _best_of_many(criterion: str) -> Callable[[Division], Score]:
    """Take the CART tree that fits training best, of many with features in other orders."""

    def score(data: Division) -> Score:
        def fit(seed):
            tree = DecisionTreeClassifier(criterion=criterion, max_depth=5, random_state=seed)
            return tree.fit(data.X, data.y)

        best = max(map(fit, range(_NUM_TREES)), key=lambda tree: tree.score(data.X, data.y))
        return Score(best.score(data.X_test, data.y_test), best.tree_.node_count)

    return score


SINGLE_TREES = {"CART, Gini": _best_of_many("gini"), "CART, entropy": _best_of_many("entropy")}


def _forest(seed: int):
    return RandomForestClassifier(_NUM_TREES, random_state=seed)


def _perceptron(seed: int):
    network = MLPClassifier((256, 256), max_iter=500, random_state=seed)
    return make_pipeline(MinMaxScaler(), network)


def _xgboost(seed: int):
    from xgboost import XGBClassifier

    return XGBClassifier(n_estimators=_NUM_TREES, random_state=seed, n_jobs=2)


def _lightgbm(seed: int):
    from lightgbm import LGBMClassifier

    return LGBMClassifier(n_estimators=_NUM_TREES, random_state=seed, n_jobs=2, verbose=-1)


def _catboost(seed: int):
    from catboost import CatBoostClassifier

    return CatBoostClassifier(
        n_estimators=_NUM_TREES, random_seed=seed, verbose=False, allow_writing_files=False
    )


PACKAGES: dict[str, Callable[[int], Any]] = {
    "random forest": _forest,
    "XGBoost": _xgboost,
    "CatBoost": _catboost,
    "LightGBM": _lightgbm,
    "MLP": _perceptron,
}
_SIZES: dict[str, Callable[[Any], float]] = {
    "random forest": lambda m: float(np.mean([t.tree_.node_count for t in m.estimators_])),
    "XGBoost": lambda m: _nodes_a_tree(m.get_booster().trees_to_dataframe(), "Tree"),
    "LightGBM": lambda m: _nodes_a_tree(m.booster_.trees_to_dataframe(), "tree_index"),
    "CatBoost": lambda m: float(np.mean(2 * m.get_tree_leaf_counts() - 1)),
}


def _nodes_a_tree(nodes, column: str) -> float:
    return float(nodes.groupby(column).size().mean())


def packages(seed: int = 0) -> dict[str, Any]:
    """Name the packages that are installed, not yet fitted, and say which are not."""
    found = {}
    for name, make in PACKAGES.items():
        try:
            found[name] = make(seed)
        except ImportError:
            print(f"{name} is left out: it is not installed (pip install bdtppl[benchmarks]).\n")
    return found


def of_package(name: str, model: Any, data: Division) -> Score:
    """Fit a package and score it."""
    model.fit(data.X, data.y)
    predicted = np.asarray(model.predict(data.X_test)).ravel()
    size = _SIZES[name](model) if name in _SIZES else None
    return Score(float((predicted == data.y_test).mean()), size)
