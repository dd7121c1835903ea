"""The weighted tree space: likely trees of different structure (Nuti et al. 2021, section 4).

The greedy tree is grown once from each of the k most probable partitions of the root. The trees'
probabilities, normalised over the trees found, weight their predictions.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from bdtppl.inference.greedy_modal.choices import choose, may_split, rules_ahead
from bdtppl.inference.greedy_modal.columns import Level, only, root_level
from bdtppl.inference.greedy_modal.equivalence import partition_of_rules
from bdtppl.inference.greedy_modal.growth import GreedyTree, grow
from bdtppl.inference.greedy_modal.hyperplanes import split
from bdtppl.inference.greedy_modal.partitions import Best
from bdtppl.inference.greedy_modal.problem import Problem
from bdtppl.inference.hard.posterior import Posterior
from bdtppl.models.hard.tree import Tree
from bdtppl.models.hard.tree_model import TreeModel

_TIE = 1e-9  # difference below which log joints are equal up to rounding


def tree_space(
    problem: Problem, num_roots: int = 1, lookahead: int = 1, root_levels: int = 1
) -> list[GreedyTree]:
    """Grow trees from the most probable partitions of the first nodes.

    Parameters
    ----------
    problem
        Rows and model.
    num_roots
        Partitions of a node to grow from, k, including the trivial one; fewer if there are fewer.
    lookahead
        Levels of splits by which rules are scored. If more than one, a tree is also grown without
        lookahead, and the better of the two is kept; likewise for hyperplanes.
    root_levels
        1 for the k best partitions of the root; 2 also tries the k best ones of both its children,
        in all combinations: at most k + k^3 trees.

    Returns
    -------
    list of GreedyTree
        The most probable first; all are different.
    """
    problems = [problem]
    if problem.num_starts:  # a hyperplane that gains more in a node can cost more below it
        problems.append(replace(problem, num_starts=0))

    def grown(*given: Best) -> GreedyTree:
        trees = [
            grow(each, lookahead=levels, given=given)
            for each in problems
            for levels in {1, lookahead}
        ]
        return max(trees, key=lambda tree: tree.log_joint)

    if num_roots == 1:
        return [grown()]
    root = root_level(problem.columns, problem.smoothing)
    trees = []
    for rule in _partitions(problem, root, num_roots, lookahead):
        if root_levels == 1 or not np.isfinite(rule.score[0]):
            trees.append(grown(rule))
            continue
        children = split(problem, root, np.zeros(1, np.int64), rule)
        sides = [
            _partitions(problem, only(children, side), num_roots, lookahead) for side in (0, 1)
        ]
        trees += [grown(rule, Best.joined(pair)) for pair in product(*sides)]
    trees = distinct_trees(trees)
    best = grown()  # with lookahead, its root may not be among the partitions above
    return trees if best.log_joint <= trees[0].log_joint + _TIE else [best, *trees[:-1]]


def distinct_trees(trees: Sequence[GreedyTree]) -> list[GreedyTree]:
    """Sort trees, the most probable first, and keep each once."""
    distinct = {}
    for each in sorted(trees, key=lambda tree: -tree.log_joint):
        normals = [plane.normal for plane in each.hyperplane if plane is not None]
        distinct.setdefault(tuple(array.tobytes() for array in (*each.tree.splits, *normals)), each)
    return list(distinct.values())


def numbered(trees: Sequence[GreedyTree], num_features: int) -> tuple[list[GreedyTree], np.ndarray]:
    """Assign feature numbers to the hyperplanes of trees, by their normals.

    Parameters
    ----------
    trees
        The trees.
    num_features
        Features d of the design.

    Returns
    -------
    trees
        The trees, with the feature d + i at splits by the i-th normal.
    normals
        float64 [h, d]; in the order of the trees and their slots.
    """
    number, renumbered = {}, []
    for each in trees:
        feature = each.tree.feature.copy()
        for slot in np.flatnonzero(feature >= num_features):
            normal = each.hyperplane[slot].normal
            place, _ = number.setdefault(normal.tobytes(), (len(number), normal))
            feature[slot] = num_features + place
        renumbered.append(replace(each, tree=replace(each.tree, feature=feature)))
    normals = np.array([normal for _, normal in number.values()])
    return renumbered, normals.reshape(-1, num_features)


def _partitions(problem: Problem, node: Level, num_partitions: int, lookahead: int) -> list[Best]:
    """List the most probable partitions of a level of one node; the trivial one has score -inf."""
    choice = choose(problem, node)
    trivial = choice.best._replace(score=np.full(1, -np.inf))
    if not np.isfinite(choice.best.score[0]) or not may_split(problem, node)[0]:
        return [trivial]
    rules = rules_ahead(problem, node, lookahead)
    if problem.prior.counts_partitions:  # rules that split the rows alike are one
        _, first = np.unique(partition_of_rules(problem, node, rules), return_index=True)
        rules = rules.at(np.sort(first))
    if choice.best.is_oblique[0]:  # better than all other rules
        rules = Best.joined([choice.best, rules])
    better = int((rules.score > (choice.log_stop + choice.leaf_score)[0]).sum())
    listed = [rules.at(slice(i, i + 1)) for i in range(min(num_partitions, len(rules.score)))]
    return [*listed[:better], trivial, *listed[better:]][:num_partitions]


def keep_used_features(
    problem: Problem, trees: Sequence[GreedyTree]
) -> tuple[Problem, list[GreedyTree], np.ndarray]:
    """Keep, as a dense design, only the features of a sparse table that trees split on.

    Returns
    -------
    problem
        The problem with that design.
    trees
        The trees with features numbered as in it.
    features
        int [k]; the features' places in the sparse table, at least one: the first if no tree
        splits.
    """
    used = np.unique(np.concatenate([each.tree.feature for each in trees]))
    features = used[used >= 0] if used[-1] >= 0 else np.zeros(1, used.dtype)

    def renumbered(tree: Tree) -> Tree:
        number = np.searchsorted(features, tree.feature).astype(np.int32)
        return replace(tree, feature=np.where(tree.is_leaf, np.int32(-1), number))

    kept = [replace(each, tree=renumbered(each.tree)) for each in trees]
    return replace(problem, design=problem.design.dense(features)), kept, features


def as_posterior(problem: Problem, trees: list[GreedyTree], y: np.ndarray) -> Posterior:
    """Weight trees by their probabilities, as draws [1, trees] of a posterior.

    The statistics of a leaf include the rows absorbed by its prior (smoothing), so that they
    predict like the leaf. The log evidence is not known: NaN.
    """
    batch = Tree.concatenate([each.tree.reshape(1) for each in trees])
    num_statistics = trees[0].statistics.shape[1]
    statistics = np.zeros((1, len(trees), batch.capacity, num_statistics))
    for place, each in enumerate(trees):
        statistics[0, place, : len(each.statistics)] = each.statistics + each.pseudo
    log_joint = np.array([[each.log_joint for each in trees]])
    return Posterior.of(
        TreeModel(problem.design, y, problem.prior, problem.leaf, problem.constraints),
        batch.reshape(1, len(trees)),
        statistics,
        log_weights=log_joint,
        smoothing=problem.smoothing,
        log_joint=log_joint,
        log_likelihood=np.array([each.log_likelihood for each in trees]),
    )
