"""The models of Tables 1 to 3 of Sullivan et al. 2023.

Accuracy and size of the most probable tree and of the posterior ensemble against scikit-learn's
CART and random forest at their defaults, by 10-fold cross-validation. The paper buckets features
without saying how, so both binnings are run; buckets are fitted to the training folds, and all
models get the same ones. The paper gives neither rows nor noise of its hidden XOR set; here it has
1,000 rows, no noise, and trees of at most 5 levels of splits.
"""

from typing import NamedTuple

import jax
import numpy as np
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import StratifiedKFold
from sklearn.tree import DecisionTreeClassifier

from bdtppl.estimators.exact import ExactTreeClassifier
from bdtppl.models.data.design import Binning
from bdtppl.models.hard.tree import route
from bdtppl.models.priors import LeafPenalty
from benchmarks.pcfg.problems import Problem

__all__ = ["NUM_FOLDS", "Score", "score_fold"]

NUM_FOLDS = 10
_MAX_DEPTH = {"hidden XOR": 5}
_MAX_SUBPROBLEMS = 2_000_000


class Score(NamedTuple):
    """Accuracy on held-out rows, and nodes of a tree (of an ensemble's trees, their mean)."""

    accuracy: float
    nodes: float


def score_fold(problem: Problem, binning: Binning, trial: int, fold: int) -> dict[str, Score]:
    """Fit all models to nine tenths of a set and score them on the rest.

    Parameters
    ----------
    problem
        The set.
    binning
        How features are bucketed.
    trial
        Seed of the shuffled, stratified split and of scikit-learn's models.
    fold
        Which tenth is held out.
    """
    split = StratifiedKFold(NUM_FOLDS, shuffle=True, random_state=trial)
    training, held_out = list(split.split(problem.matrix, problem.y))[fold]
    matrix, y = problem.matrix[held_out], problem.y[held_out]
    exact = ExactTreeClassifier(
        prior=LeafPenalty(2.0),
        bins=problem.bins,
        binning=binning,
        max_depth=_MAX_DEPTH.get(problem.name),
        max_subproblems=_MAX_SUBPROBLEMS,
        classes=range(problem.num_classes),
    ).fit(problem.matrix[training], problem.y[training])
    best = exact.k_best(1)
    slots = route(best.trees[0], matrix)
    with jax.enable_x64(True):
        probability = np.asarray(exact.leaf_.posterior_mean(best.statistics[0][slots]))
    scores = {
        "MAP tree": Score(np.mean(probability.argmax(axis=1) == y), float(best.trees[0].num_nodes)),
        "posterior": Score(exact.score(matrix, y), 2 * exact.exact_.expected_leaves - 1),
    }
    codes = exact.design_.codes, exact.design_.encode(matrix)
    cart = DecisionTreeClassifier(random_state=trial).fit(codes[0], problem.y[training])
    forest = RandomForestClassifier(random_state=trial).fit(codes[0], problem.y[training])
    scores["CART"] = Score(cart.score(codes[1], y), cart.tree_.node_count)
    scores["forest"] = Score(
        forest.score(codes[1], y), np.mean([tree.tree_.node_count for tree in forest.estimators_])
    )
    return scores
