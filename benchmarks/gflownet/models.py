"""What the paper's tables compare: inferences of this suite, and packages.

All inferences have the paper's model: uniform thresholds, exp(-beta) a split with beta = log 4 +
log d, and Dirichlet(0.1) leaves. Leaves are those of the training rows, never of test labels.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from sklearn.base import clone
from sklearn.ensemble import RandomForestClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.tree import DecisionTreeClassifier

from bdtppl import (
    ExactTreeClassifier,
    GFlowNetTreeClassifier,
    MAPTreeClassifier,
    MetropolisTreeClassifier,
    ParticleTreeClassifier,
)
from bdtppl.inference.gflownet.ensembles import reweighted
from bdtppl.inference.hard.posterior import Posterior
from bdtppl.models.constraints import Constraints
from bdtppl.models.data.design import Design
from bdtppl.models.hard.tree import route
from bdtppl.models.hard.tree_model import TreeModel
from bdtppl.models.leaves import DirichletCategorical
from bdtppl.models.priors import DepthDecay, DescriptionLength
from bdtppl.presets import dt_gfn, plain_chains
from benchmarks.gflownet.problems import Division

__all__ = [
    "INFERENCES",
    "PACKAGES",
    "SCORINGS",
    "SINGLE_TREES",
    "Score",
    "best_tree",
    "ensemble",
    "inference",
    "model_of",
    "of_package",
    "package",
    "plain_mean",
    "scorings",
    "target_of",
]

_NUM_TREES = 1000
_NUM_SCORED = 500  # as the published code draws
SCORINGS = (
    "most probable, training leaves",
    "most probable, test leaves",
    "best in training, training leaves",
    "best in training, test leaves",
    "as the code does",
    "best on test rows, training leaves",
)
_MOST_SUBPROBLEMS = 2_000_000


class Score(NamedTuple):
    """Share of test rows that are classified right, nodes a tree, and trees that weights leave."""

    accuracy: float
    size: float | None
    effective: float | None = None


def model_of(
    X: np.ndarray, classes: np.ndarray, *, max_depth: int, grid: int, seed: int = 0
) -> dict[str, Any]:
    """Lay out the model as parameters of every estimator."""
    return {
        "prior": DescriptionLength(float(np.log(4 * X.shape[1]))),
        "leaf": DirichletCategorical.symmetric(len(classes), 0.1),
        "max_depth": max_depth,
        "grid": grid,
        "classes": classes,
        "random_state": seed,
    }


def target_of(X: np.ndarray, y: np.ndarray, *, max_depth: int, grid: int) -> TreeModel:
    """Lay out the model on training rows, as samplers take it."""
    design, classes = Design.from_matrix(X, grid=grid), np.unique(y)
    model = model_of(X, classes, max_depth=max_depth, grid=grid)
    prior, codes = model["prior"].resolve(design), np.searchsorted(classes, y)
    return TreeModel(design, codes, prior, model["leaf"], Constraints(max_depth=max_depth))


_DRAWS = {"chains": 4, "draws": _NUM_TREES // 4}
_OF_CHART = {"bins": None, "method": "chart", "max_subproblems": 2_000_000}
_WALKS = plain_chains() | _DRAWS | {"proposal": "chipman", "warmup": 10_000, "thin": 100}
INFERENCES: dict[str, Callable[..., Any]] = {
    "exact posterior": partial(ExactTreeClassifier, **_DRAWS, **_OF_CHART),
    # The model has its own prior, not the preset's.
    "DT-GFN": lambda **model: GFlowNetTreeClassifier(**(dt_gfn(1) | model)),
    "DT-GFN, 500 steps": lambda **model: GFlowNetTreeClassifier(
        **(dt_gfn(1) | {"steps": 500} | model)
    ),
    "SMC": partial(ParticleTreeClassifier, proposal="optimal"),  # as published
    "MCMC": partial(MetropolisTreeClassifier, **_WALKS),
}


def inference(
    name: str,
    X: np.ndarray,
    classes: np.ndarray,
    *,
    max_depth: int,
    grid: int = 99,
    seed: int = 0,
) -> Any:
    """Make an inference of the suite, not yet fitted; it has 1,000 trees or particles."""
    return INFERENCES[name](**model_of(X, classes, max_depth=max_depth, grid=grid, seed=seed))


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


def scorings(model: Any, data: Division, seed: int = 0) -> dict[str, float]:
    """Score one tree of 500 draws by the paper's text, by its published code, and in between.

    A policy's draws count alike, as in the code, without the weights of an ensemble. The last score
    is the best that any choice among the draws could reach with leaves of training rows.

    The code (GFNOrg/dt-gfn 7b83ad0, ``Tree.test``) takes the tree that fits the training rows best,
    and judges it by leaves that are fitted to the labels of the test rows; class probabilities of
    leaves are drawn from their Dirichlet posterior both times.
    """
    rng = np.random.default_rng(seed)
    is_policy = isinstance(model, GFlowNetTreeClassifier)
    drawn = reweighted(model.posterior_, "mean") if is_policy else model.posterior_
    posterior = drawn.resampled(seed, chains=1, draws=_NUM_SCORED)
    classes, prior = model.classes_, np.asarray(model.leaf_.concentration)
    rows = {"training": (data.X, data.y), "test": (data.X_test, data.y_test)}
    slots = {name: route(posterior.trees[0], X) for name, (X, _) in rows.items()}
    right: dict[str, np.ndarray] = {}  # by leaves fitted to some rows, and rows that are judged
    for leaves, (_, y) in rows.items():
        counts = np.zeros((_NUM_SCORED, posterior.trees.capacity, len(classes)))
        draws = np.arange(_NUM_SCORED)[:, None]
        np.add.at(counts, (draws, slots[leaves], np.searchsorted(classes, y)), 1)
        gammas = rng.standard_gamma(counts + prior)
        for how, shares in (("", counts), (", drawn", gammas)):
            for judged, (_, labels) in rows.items():
                predicted = classes[shares[draws, slots[judged]].argmax(axis=2)]
                right[f"{leaves}, {judged}{how}"] = (predicted == labels).mean(axis=1)
    probable = int(np.argmax(posterior.sample_stats["log_joint"][0]))
    fitting = int(np.argmax(right["training, training"]))
    published = int(np.argmax(right["training, training, drawn"]))
    found = (
        right["training, test"][probable],
        right["test, test"][probable],
        right["training, test"][fitting],
        right["test, test"][fitting],
        right["test, test, drawn"][published],
        right["training, test"].max(),
    )
    return dict(zip(SCORINGS, map(float, found), strict=True))


def ensemble(model: Any, data: Division) -> Score:
    """Score the posterior predictive, which averages over all trees drawn."""
    return _averaged(model, model.posterior_, data)


def plain_mean(model: GFlowNetTreeClassifier, data: Division) -> Score:
    """Score the average of a policy's draws without weights."""
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
        return Score(best.score(data.X_test, data.y_test), float(best.tree_.node_count))

    return score


def _map_tree(data: Division) -> Score:
    """Take the tree that a search of 20 seconds finds, under the prior and leaves of MAPTree."""
    model = MAPTreeClassifier(
        prior=DepthDecay(0.95, 0.5, over="rules"),
        leaf=DirichletCategorical.symmetric(len(np.unique(data.y)), 2.5),
        bins=10,
        max_depth=5,
        time_limit=20.0,
    )
    clone(model).set_params(time_limit=2.0).fit(data.X, data.y)  # compiling counts as time
    return best_tree(model.fit(data.X, data.y), data)


SINGLE_TREES: dict[str, Callable[[Division], Score]] = {
    "CART, Gini": _best_of_many("gini"),
    "CART, entropy": _best_of_many("entropy"),
    "MAPTree": _map_tree,
}


def _forest(seed: int, number: int) -> Any:
    return RandomForestClassifier(number, random_state=seed)


def _perceptron(seed: int, number: int) -> Any:  # of no trees
    network = MLPClassifier((256, 256), max_iter=500, random_state=seed)
    return make_pipeline(MinMaxScaler(), network)


def _xgboost(seed: int, number: int) -> Any:
    from xgboost import XGBClassifier

    return XGBClassifier(n_estimators=number, random_state=seed, n_jobs=1)


def _lightgbm(seed: int, number: int) -> Any:
    from lightgbm import LGBMClassifier

    return LGBMClassifier(n_estimators=number, random_state=seed, n_jobs=1, verbose=-1)


def _catboost(seed: int, number: int) -> Any:
    from catboost import CatBoostClassifier

    return CatBoostClassifier(
        n_estimators=number,
        random_seed=seed,
        thread_count=1,
        verbose=False,
        allow_writing_files=False,
    )


PACKAGES: dict[str, Callable[[int, int], Any]] = {
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


def package(name: str, seed: int = 0, number: int = _NUM_TREES) -> Any:
    """Make the model of a package with a number of trees, not yet fitted.

    Raises
    ------
    ImportError
        If it is not installed (``pip install bdtppl[benchmarks]``).
    """
    return PACKAGES[name](seed, number)


def of_package(name: str, model: Any, data: Division) -> Score:
    """Score the fitted model of a package."""
    predicted = np.asarray(model.predict(data.X_test)).ravel()
    size = _SIZES[name](model) if name in _SIZES else None
    return Score(float((predicted == data.y_test).mean()), size)
