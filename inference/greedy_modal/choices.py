"""The choice of a node: a leaf, or a split by its best rule.

A greedy choice scores a rule by its weight and the leaf scores of both sides (Nuti et al. 2021,
equations 3 to 5). Lookahead over L levels, left open in their section 6, scores it by L - 1 further
levels of choices: each side has the greater score of stopping and of its own best rule. All rules
of a node are tried, so one level more multiplies the cost by the number of rules.
"""

from typing import NamedTuple

import numpy as np

from bdtppl.inference.greedy_modal.columns import Level, descend, only
from bdtppl.inference.greedy_modal.hyperplanes import better_hyperplanes
from bdtppl.inference.greedy_modal.partitions import (
    Best,
    best_rules,
    every_rule,
    node_scores,
    ranked,
)
from bdtppl.inference.greedy_modal.problem import Problem
from bdtppl.inference.greedy_modal.sparse_columns import SparseLevel
from bdtppl.inference.greedy_modal.sparse_partitions import best_sparse_rules
from bdtppl.inference.greedy_modal.weights import log_stop_of_nodes

_COPIED_ENTRIES = 1 << 22  # rows times features of children that are scored at once


class NodeChoice(NamedTuple):
    """Choices of K nodes.

    Attributes
    ----------
    log_stop, leaf_score
        float64 [K]; log weight and leaf score of stopping.
    best
        The best rule of each node.
    is_split
        bool [K]; whether that rule is strictly better than stopping.
    """

    log_stop: np.ndarray
    leaf_score: np.ndarray
    best: Best
    is_split: np.ndarray

    @property
    def value(self) -> np.ndarray:
        """Score of the choice, float64 [K]."""
        return np.where(self.is_split, self.best.score, self.log_stop + self.leaf_score)


def choose(
    problem: Problem, level: Level, lookahead: int = 1, given: Best | None = None
) -> NodeChoice:
    """Choose for every node of a level.

    Parameters
    ----------
    problem
        Rows and model.
    level
        The nodes.
    lookahead
        Levels of splits by which a rule is scored, at least 1.
    given
        Rules that the nodes must use, whatever their scores; a score of -inf makes a node a leaf.
    """
    leaf_score, is_searched = node_scores(problem, level), may_split(problem, level)
    max_depth = problem.constraints.max_depth
    if max_depth is not None and level.depth >= max_depth:
        best = Best.none(level.num_segments)
    elif given is not None:
        best = given
    elif lookahead == 1:
        is_sparse = isinstance(level, SparseLevel)
        best = best_sparse_rules(problem, level) if is_sparse else best_rules(problem, level)
        if problem.num_starts:
            best = better_hyperplanes(problem, level, best, is_searched)
    else:
        nodes = [only(level, k) for k in range(level.num_segments)]
        best = Best.joined([_best_ahead(problem, node, lookahead) for node in nodes])
    log_stop = log_stop_of_nodes(problem, level, best.num_features)
    is_better = best.score > (log_stop + leaf_score if given is None else -np.inf)
    return NodeChoice(log_stop, leaf_score, best, is_better & is_searched)


def _best_ahead(problem: Problem, node: Level, lookahead: int) -> Best:
    rules = rules_ahead(problem, node, lookahead)
    return rules.at(slice(1)) if len(rules.score) else Best.none(1)


def rules_ahead(problem: Problem, node: Level, lookahead: int) -> Best:
    """List all rules of single features of one node by their lookahead scores, best first.

    Ties are in order of their scores without lookahead.
    """
    rules = every_rule(problem, node)
    num_rules = len(rules.score)
    if lookahead == 1 or not num_rules:
        return rules
    entries = max(1, len(node.segment) * len(node.rows))
    step = max(1, _COPIED_ENTRIES // entries)
    value = np.empty(num_rules)
    for start in range(0, num_rules, step):
        tried = rules.at(slice(start, start + step))
        children = descend(
            problem.columns,
            node,
            np.zeros(len(tried.score), np.int64),
            tried.feature,
            tried.split,
            problem.smoothing,
        )
        left, right = np.split(choose(problem, children, lookahead - 1).value, 2)
        value[start : start + step] = tried.log_rule + left + right
    return rules._replace(score=value).at(ranked(value))


def may_split(problem: Problem, level: Level) -> np.ndarray:
    """Return which nodes are searched, bool [K]; pure ones are excluded if the problem says so."""
    if problem.target is None:
        return np.ones(level.num_segments, bool)
    targets, start = problem.target.take(level.members), level.start[:-1]
    return np.maximum.reduceat(targets, start) > np.minimum.reduceat(targets, start)
