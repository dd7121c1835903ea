"""The weighted tree space: likely trees of different structure (Nuti et al. 2021, section 4).

The greedy tree is grown once from each of the k most probable partitions of the root. The trees'
probabilities, normalised over the trees found, weigh their predictions.
"""

import numpy as np

from bdtppl.inference.greedy_modal.columns import root_level
from bdtppl.inference.greedy_modal.growth import GreedyTree, grow
from bdtppl.inference.greedy_modal.partitions import Best, every_rule, node_scores
from bdtppl.inference.greedy_modal.problem import Problem
from bdtppl.inference.greedy_modal.weights import log_stops
from bdtppl.inference.posterior import Posterior
from bdtppl.models.tree import Tree

__all__ = ["as_posterior", "tree_space"]


def tree_space(problem: Problem, num_roots: int = 1, lookahead: int = 1) -> list[GreedyTree]:
    """Grow trees from the most probable partitions of the root.

    Parameters
    ----------
    problem
        Rows and model.
    num_roots
        Partitions of the root to grow from, k; the trivial one counts. Fewer trees are grown where
        there are fewer.
    lookahead
        Levels of splits by which rules are valued. Where that is more than one, a tree is also
        grown without looking ahead, and the better of the two is kept.

    Returns
    -------
    list of GreedyTree
        The most probable first.
    """

    def grown(root: Best | None = None) -> GreedyTree:
        trees = [grow(problem, lookahead=levels, root=root) for levels in {1, lookahead}]
        return max(trees, key=lambda tree: tree.log_joint)

    level = root_level(problem.columns, problem.smoothing)
    rules = every_rule(problem, level) if num_roots > 1 else Best.none(0)
    if not len(rules.score) or problem.constraints.max_depth == 0:
        return [grown()]
    stop = log_stops(problem, level, rules.num_features[:1])
    stop_rank = int((rules.score > (stop + node_scores(problem, level))[0]).sum())
    num_splits = min(num_roots - (stop_rank < num_roots), len(rules.score))
    trees = [grown(rules.at(slice(i, i + 1))) for i in range(num_splits)]
    if stop_rank < num_roots:
        trees.append(_trivial(problem, trees[0] if trees else grown()))
    return sorted(trees, key=lambda tree: -tree.log_joint)


def _trivial(problem: Problem, grown: GreedyTree) -> GreedyTree:
    """Read the tree that is one leaf off the root of another tree."""
    log_stop, leaf_score = float(grown.log_stop[0]), float(grown.leaf_score[0])
    return GreedyTree(
        Tree.from_nested({}),
        grown.statistics[:1],
        grown.pseudo[:1],
        log_stop + leaf_score,
        leaf_score,
        grown.log_stop[:1],
        grown.log_stop[:1],
        grown.leaf_score[:1],
    )


def as_posterior(problem: Problem, trees: list[GreedyTree], y: np.ndarray) -> Posterior:
    """Weigh trees by their probabilities, as draws [1, trees] of a posterior.

    The statistics of a leaf hold the rows that its prior has absorbed too (smoothing), so that they
    predict as the leaf does. The log evidence is not known: NaN.
    """
    batch = Tree.concatenate([each.tree.reshape(1) for each in trees])
    num_statistics = trees[0].statistics.shape[1]
    statistics = np.zeros((1, len(trees), batch.capacity, num_statistics))
    for place, each in enumerate(trees):
        statistics[0, place, : len(each.statistics)] = each.statistics + each.pseudo
    log_joint = np.array([[each.log_joint for each in trees]])
    return Posterior(
        trees=batch.reshape(1, len(trees)),
        statistics=statistics,
        sample_stats={
            "log_joint": log_joint,
            "log_likelihood": np.array([[each.log_likelihood for each in trees]]),
            "num_leaves": batch.num_leaves[None],
            "max_leaf_depth": batch.depth[None],
        },
        leaf=problem.leaf,
        prior=problem.prior,
        design=problem.design,
        y=y,
        log_evidence=float("nan"),
        log_evidence_se=float("nan"),
        log_weights=log_joint,
    )
