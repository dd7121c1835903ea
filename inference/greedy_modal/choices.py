"""What a node becomes: a leaf, or a split by its best rule.

A greedy choice values a rule by its weight and the leaf scores of both sides (Nuti et al. 2021,
equations 3 to 5). Looking L levels ahead, which their section 6 names and leaves open, values it by
the best that L - 1 further levels of choices make of each side: a side is worth the better of
stopping there and of its own best rule. All rules of a node are tried, so one level more costs a
factor of the number of rules.
"""

from typing import NamedTuple

import numpy as np

from bdtppl.inference.greedy_modal.columns import Level, descend, only
from bdtppl.inference.greedy_modal.partitions import (
    Best,
    best_rules,
    every_rule,
    first_of_best,
    node_scores,
)
from bdtppl.inference.greedy_modal.problem import Problem
from bdtppl.inference.greedy_modal.weights import log_stops

__all__ = ["Choice", "choose"]

_COPIED_ENTRIES = 1 << 22  # rows times features of the children that are valued at once


class Choice(NamedTuple):
    """What K nodes become.

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
        """Score of what was chosen, float64 [K]."""
        return np.where(self.is_split, self.best.score, self.log_stop + self.leaf_score)


def choose(problem: Problem, level: Level, lookahead: int = 1, given: Best | None = None) -> Choice:
    """Choose for every node of a level.

    Parameters
    ----------
    problem
        Rows and model.
    level
        The nodes.
    lookahead
        Levels of splits by which a rule is valued, at least 1.
    given
        Rules that the nodes split by whatever their scores; a score of -inf makes a node a leaf.
    """
    leaf_score = node_scores(problem, level)
    max_depth = problem.constraints.max_depth
    if max_depth is not None and level.depth >= max_depth:
        best = Best.none(level.num_segments)
    elif given is not None:
        best = given
    elif lookahead == 1:
        best = best_rules(problem, level)
    else:
        nodes = [only(level, k) for k in range(level.num_segments)]
        best = Best.joined([_best_ahead(problem, node, lookahead) for node in nodes])
    log_stop = log_stops(problem, level, best.num_features)
    is_split = best.score > log_stop + leaf_score
    if given is not None:
        is_split = best.score > -np.inf
    elif problem.stop_pure:
        is_split &= _is_mixed(problem, level)
    return Choice(log_stop, leaf_score, best, is_split)


def _best_ahead(problem: Problem, node: Level, lookahead: int) -> Best:
    """Find the best rule of a level of one node; of equal ones the best without looking ahead."""
    rules = every_rule(problem, node)
    num_rules = len(rules.score)
    if not num_rules:
        return Best.none(1)
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
            tried.low,
            tried.missing_left,
            problem.smoothing,
        )
        left, right = np.split(choose(problem, children, lookahead - 1).value, 2)
        value[start : start + step] = tried.log_rule + left + right
    best = first_of_best(value)
    return rules.at(slice(best, best + 1))._replace(score=value[best : best + 1])


def _is_mixed(problem: Problem, level: Level) -> np.ndarray:
    """Whether a node's rows have more than one distinct target, bool [K]."""
    if not level.rows:
        return np.zeros(level.num_segments, bool)
    statistics = problem.columns.statistics
    weights = 1 if problem.columns.weights is None else problem.columns.weights
    rows, start = level.rows[0], level.start[:-1]
    mixed = np.zeros(level.num_segments, bool)
    for each in statistics:
        values = (each / weights).take(rows)
        mixed |= np.maximum.reduceat(values, start) > np.minimum.reduceat(values, start)
    return mixed
