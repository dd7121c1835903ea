"""The prior's log weights in all nodes of a level.

A prior is compiled for blocks of one size, so that levels of any size share compiled code.
"""

import jax
import numpy as np

from bdtppl.inference.greedy_modal.columns import Columns, Level
from bdtppl.inference.greedy_modal.cuts import Cuts, count_rules, cuts_of_feature, num_cuts
from bdtppl.inference.greedy_modal.problem import Problem
from bdtppl.models.prior_kinds import Node, Rule, TreePrior
from bdtppl.models.prior_weights import weigh

_NODES_A_BLOCK = 1 << 12  # weights that a compiled prior computes at once


def _in_blocks(prior: TreePrior, node: Node, rule: Rule) -> tuple[np.ndarray, ...]:
    """Compute log weights of stopping and rules from facts [K] or [K, d] in blocks of one size.

    Together they compile in the time of one.
    """
    width = max(int(np.prod(fact.shape[1:])) for fact in jax.tree.leaves(rule))
    sizes = (max(1, _NODES_A_BLOCK // width),)
    return weigh(prior, node, rule, wanted=("stop", "rule"), sizes=sizes)


def compile_weights(prior: TreePrior, num_features: int) -> None:
    """Compile the weights of stopping and of rules of a number of features."""
    column, row = np.ones((1, 1)), np.ones((1, num_features))
    node = Node(column, column > 0, column, column)
    _in_blocks(prior, node, Rule(row.astype(np.int32), row, row, row, row))


def _rows_of_nodes(problem: Problem, level: Level) -> np.ndarray:
    """Return the rows in each node, float64 [K]."""
    counts = problem.columns.counts
    if counts is None:
        return np.diff(level.start).astype(float)
    return np.add.reduceat(counts.take(level.members), level.start[:-1]).astype(float)


def log_stop_of_nodes(problem: Problem, level: Level, num_features: np.ndarray) -> np.ndarray:
    """Return the log weight of stopping in every node, float64 [K]."""
    num_nodes = level.num_segments
    node = Node(
        np.full((num_nodes, 1), float(level.depth)),
        num_features[:, None] > 0,
        _rows_of_nodes(problem, level)[:, None],
        np.log(np.maximum(num_features, 1))[:, None],
    )
    # Rules have the same shape as in `log_rules_of_features`, to share compiled code.
    is_dense = isinstance(problem.columns, Columns)
    num_columns = max(1, len(problem.columns.features)) if is_dense else 1
    row = np.ones((num_nodes, num_columns))
    return _in_blocks(problem.prior, node, Rule(row.astype(np.int32), row, row, row, row))[0][:, 0]


def count_by_column(problem: Problem, num_rules: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Count the rules of each feature's column [K, d], and the columns with a rule [K].

    Parameters
    ----------
    problem
        The problem.
    num_rules
        int [K, d]; available rules of each feature.
    """
    column = problem.design.column[problem.columns.features]
    starts = np.flatnonzero(np.diff(column, prepend=-1))
    if not len(starts):
        return num_rules, np.zeros(len(num_rules), np.int64)
    of_columns = np.add.reduceat(num_rules, starts, axis=1)
    sizes = np.diff(np.append(starts, len(column)))
    return np.repeat(of_columns, sizes, axis=1), (of_columns > 0).sum(axis=1)


def log_rules_of_features(problem, level, num_rules, num_features) -> np.ndarray:
    """Return the log weight of one rule of each feature in every node, float64 [K, d]."""
    node = np.arange(len(num_rules))[:, None]
    feature = np.broadcast_to(problem.columns.features, num_rules.shape)
    return log_rules(problem, level, num_rules, num_features, node, feature)


def log_rules(problem, level, num_rules, num_features, node, feature) -> np.ndarray:
    """Return log weights of single rules of given features in given nodes.

    Parameters
    ----------
    problem, level
        The nodes.
    num_rules
        int [p, ...]; available rules of the feature's column in the node.
    num_features
        int [K]; columns with an available rule.
    node
        int [p, ...]; index of the node in the level, of a shape that broadcasts.
    feature
        int [p, ...]; index of the feature in the design.

    Returns
    -------
    numpy.ndarray
        float64 [p, ...].
    """
    if not num_rules.size:
        return np.zeros(num_rules.shape)
    facts = Node(
        np.full(node.shape, float(level.depth)),
        (num_features > 0)[node],
        _rows_of_nodes(problem, level)[node],
        np.log(np.maximum(num_features, 1))[node],
    )
    zeros = np.zeros(num_rules.shape)
    counted = np.log(np.maximum(num_rules, 1))
    rule = Rule(feature.astype(np.int32), zeros, counted, zeros, zeros)
    return _in_blocks(problem.prior, facts, rule)[1]


class LawOfCuts:
    """Log weights of single rules, for a prior that weights cuts of one feature differently."""

    def __init__(self, problem: Problem, level: Level, num_features: np.ndarray | None):
        self.problem, self.level = problem, level
        counts = []
        for f in range(len(level.rows)):
            counts.append(count_rules(problem, level, *cuts_of_feature(problem, level, f)))
        num_rules = np.stack(counts, axis=1)
        self.num_rules, num_columns = count_by_column(problem, num_rules)
        self.num_features = num_columns if num_features is None else num_features
        # Widths of the other features' cuts: those of a column of several features are 1.
        self.other_width = self.num_rules - num_rules

    @classmethod
    def of(
        cls, problem: Problem, level: Level, num_features: np.ndarray | None = None
    ) -> "LawOfCuts | None":
        """Return the weights, or None if cuts of a feature have equal ones (see `best_rules`)."""
        if "log_width_share" not in problem.prior.rule_facts or not level.rows:
            return None
        return cls(problem, level, num_features)

    def log_rules(self, f: int, codes: np.ndarray, cuts: list[Cuts]) -> list[np.ndarray]:
        """Return log weights of the rules at all positions, by side of missing values, [a]."""
        problem, level = self.problem, self.level
        feature = int(problem.columns.features[f])
        flat = problem.design.offset[feature] + np.maximum(codes, 0)
        width = problem.design.gap_width(flat, np.append(flat[1:], flat[-1:]))
        widths = sum(np.where(each.is_rule, width, 0.0) for each in cuts)
        total = np.add.reduceat(widths, level.start[:-1]) + self.other_width[:, f]
        cuts_of_gap = np.broadcast_to(num_cuts(problem, codes), codes.shape)
        weights = []
        for each in cuts:
            where = np.flatnonzero(each.is_rule)
            segment = level.segment[where]
            log_weights = np.zeros(len(codes))
            if len(where):
                node = Node(
                    np.full(len(where), float(level.depth)),
                    self.num_features[segment] > 0,
                    _rows_of_nodes(problem, level)[segment],
                    np.log(self.num_features[segment]),
                )
                rule = Rule(
                    np.full(len(where), feature, np.int32),
                    np.log(cuts_of_gap[where]),
                    np.log(self.num_rules[segment, f]),
                    np.log(width[where] / total[segment]),
                    np.zeros(len(where)),
                )
                log_weights[where] = _in_blocks(problem.prior, node, rule)[1]
            weights.append(log_weights)
        return weights
