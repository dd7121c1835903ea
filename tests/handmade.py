"""Posteriors made by hand: what an inference would return, from trees that the test chooses."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from sklearn.base import BaseEstimator

from bdtppl import storage
from bdtppl.estimators.parameters import declared, parameter
from bdtppl.estimators.results import Results
from bdtppl.inference.hard.posterior import Posterior
from bdtppl.models.data.design import Design
from bdtppl.models.hard.tree import Tree, route
from bdtppl.models.leaves import DirichletCategorical, NormalInverseGamma
from bdtppl.models.priors import LeafPenalty

LEAF: dict = {}
NAMES = ("age", "dose", "size")


def split(feature: int, threshold: float, left: dict = LEAF, right: dict = LEAF, **options) -> dict:
    return {"feature": feature, "threshold": threshold, "left": left, "right": right, **options}


def batch(nested: Sequence[dict], shape: tuple[int, ...]) -> Tree:
    """Stack single trees, given as nested dictionaries, into a batch."""
    singles = [Tree.from_nested(tree) for tree in nested]
    capacity = max(tree.capacity for tree in singles)
    singles = [Tree.from_nested(tree, capacity) for tree in nested]
    names = ("feature", "threshold", "missing_left", "left", "right", "num_nodes")
    arrays = {name: np.stack([getattr(tree, name) for tree in singles]) for name in names}
    return Tree(**arrays).reshape(*shape)


def node_statistics(trees: Tree, matrix: np.ndarray, per_row: np.ndarray) -> np.ndarray:
    """Sum the statistics of the rows in every node, [..., k, s]."""
    flat, slots = trees.reshape(-1), route(trees, matrix).reshape(-1, len(matrix))
    sums = np.zeros((len(slots), trees.capacity, per_row.shape[1]))
    for tree, slot in enumerate(slots):
        np.add.at(sums[tree], slot, per_row)
        for node in reversed(range(trees.capacity)):
            if flat.feature[tree, node] >= 0:
                children = [flat.left[tree, node], flat.right[tree, node]]
                sums[tree, node] = sums[tree, children].sum(axis=0)
    return sums.reshape(*trees.batch_shape, *sums.shape[1:])


def posterior_of(nested, shape, *, matrix, y, leaf, prior=None, weights=None, **options):
    """Make a posterior of given trees, in the order of chain, then draw."""
    weights = np.ones(len(y), np.int64) if weights is None else np.asarray(weights)
    trees = batch(nested, shape)
    with jax.enable_x64(True):
        own = np.asarray(leaf.statistics(y, weights.astype(float)))
        statistics = node_statistics(trees, matrix, own)
        log_likelihood = (np.asarray(leaf.log_marginal(statistics)) * trees.is_leaf).sum(-1)
    log_prior = -2.0 * (trees.num_leaves - 1)
    return Posterior(
        trees=trees,
        statistics=statistics,
        sample_stats={
            "log_joint": log_prior + log_likelihood,
            "log_likelihood": log_likelihood,
            "num_leaves": trees.num_leaves,
            "max_leaf_depth": trees.depth,
        },
        leaf=leaf,
        prior=LeafPenalty(2.0) if prior is None else prior,
        design=Design.from_matrix(matrix, weights=weights, names=NAMES[: matrix.shape[1]]),
        y=y,
        log_evidence=-12.25,
        **options,
    )


def some_posterior(task: str = "classification", **options) -> Posterior:
    """Make a posterior of 2 chains x 8 draws over five trees, 12 rows and 3 features."""
    return _made(task, **options) if options else _same(task)


def _made(task: str, **options) -> Posterior:
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(12, 3))
    matrix[3, 1] = np.nan
    if task == "classification":
        y, leaf = rng.integers(0, 3, 12), DirichletCategorical.symmetric(3)
    else:
        y = matrix[:, 0] + rng.normal(size=12)
        leaf = NormalInverseGamma.from_targets(y)
    forest = [
        LEAF,
        split(0, 0.1),
        split(1, 0.0, missing_left=True),
        split(0, 0.1, right=split(2, -0.2)),
        split(0, -0.5, left=split(1, 0.3), right=split(2, 0.4, left=split(0, 0.6))),
    ]
    nested = [forest[i] for i in rng.permutation(np.arange(16) % len(forest))]
    return posterior_of(nested, (2, 8), matrix=matrix, y=y, leaf=leaf, **options)


_same = functools.cache(_made)


@declared
class HandmadeTree(Results, BaseEstimator):
    """An estimator whose posterior is given: the least that `storage` asks of an estimator."""

    prior: Any = parameter(None, "A prior.")
    constraints: Any = parameter(None, "Constraints.")
    classes: Any = parameter(None, "Class labels.")
    bins: int = parameter(5, "Buckets.")
    random_state: Any = parameter(None, "A seed.")

    def fit(self, posterior: Posterior, **attributes) -> "HandmadeTree":
        self._keep(posterior)
        self.design_ = posterior.design
        self.leaf_, self.prior_ = posterior.leaf, posterior.prior
        self.map_tree_ = posterior.trees[0, 3]
        self.log_evidence_ = posterior.log_evidence
        self.n_features_in_ = posterior.design.num_features
        for name, value in attributes.items():
            setattr(self, name, value)
        return self

    @property
    def task(self) -> str:
        return "classification" if "classes_" in vars(self) else "regression"

    def _keep(self, posterior: Posterior) -> None:
        self.posterior_ = posterior

    def _saved_state(self) -> dict:
        return {}

    def _restore(self, posterior: Posterior, state: dict) -> None:
        self._keep(posterior)

    def predict(self, matrix) -> np.ndarray:
        return self.posterior_.mean(matrix)

    def save(self, path) -> None:
        storage.save(self, path)


class LazyHandmadeTree(HandmadeTree):
    """One that keeps its posterior, and the seed of its predictions, to itself."""

    def _keep(self, posterior: Posterior) -> None:
        self._private = (posterior, 9)

    @property
    def posterior_(self) -> Posterior:
        return self._private[0]

    def _saved_state(self) -> dict:
        return {"seed": self._private[1]}

    def _restore(self, posterior: Posterior, state: dict) -> None:
        self._private = (posterior, state["seed"])
