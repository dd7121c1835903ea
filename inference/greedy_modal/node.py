"""The posterior over all partitions of one node of a tree (Nuti et al. 2021, equations 3 to 5)."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from bdtppl.inference.greedy_modal.choices import choose
from bdtppl.inference.greedy_modal.columns import Level, root_level
from bdtppl.inference.greedy_modal.equivalence import partition_of_rules
from bdtppl.inference.greedy_modal.partitions import every_rule, ranked
from bdtppl.inference.greedy_modal.problem import Problem
from bdtppl.models.data.splits import position_below
from bdtppl.models.hard.tree import Tree


@dataclass(frozen=True, eq=False, repr=False)
class PartitionPosterior:
    """Log probabilities of a node's partitions, r rules, the most probable rule first.

    Attributes
    ----------
    log_stop
        Log probability of the trivial partition.
    feature
        int [r]; feature of each rule.
    threshold
        float64 [r].
    missing_left
        bool [r]; side of missing values.
    log_rule
        float64 [r]; log probability of each rule. If the prior counts the cuts inside a gap, they
        are one entry with the lowest cut's threshold; if it counts partitions, rules that make the
        same one share its probability equally.
    log_feature
        float64 [d]; log probability of all rules of each feature together, -inf if it has no rule,
        like a projection: the paper's measure of a feature's importance in the node.
    """

    log_stop: float
    feature: np.ndarray
    threshold: np.ndarray
    missing_left: np.ndarray
    log_rule: np.ndarray
    log_feature: np.ndarray

    def __repr__(self) -> str:
        best = f", the best of {np.exp(self.log_rule[0]):.3g}" if len(self.log_rule) else ""
        stop = f"probability {np.exp(self.log_stop):.3g} of no split"
        return f"PartitionPosterior({len(self.log_rule)} rules{best}, {stop})"


def partition_posterior(problem: Problem, tree: Tree, slot: int) -> PartitionPosterior:
    """Normalise the scores of the trivial partition and of all rules of a node.

    Parameters
    ----------
    problem
        Rows and model.
    tree
        One tree.
    slot
        The node.

    Raises
    ------
    ValueError
        If the slot has no node.
    """
    if not 0 <= slot < int(tree.num_nodes):
        raise ValueError(f"node must be one of the {int(tree.num_nodes)} of the tree; got {slot}.")
    level = _node(problem, tree, slot)
    rules, choice = every_rule(problem, level), choose(problem, level)
    if not np.isfinite(choice.best.score).any():  # at the depth limit, too
        rules = rules.at(slice(0))
    num_cuts = np.ones(len(rules.score))
    if problem.prior.rules == "cuts":
        num_cuts = rules.high - position_below(rules.split)
    share = np.log(num_cuts)  # the cuts of a gap are listed together
    if problem.prior.counts_partitions:
        partition = partition_of_rules(problem, level, rules)
        share = share - np.log(np.bincount(partition, num_cuts)[partition])
    order = ranked(rules.score + share)
    rules = rules.at(order)
    scores = np.concatenate([choice.log_stop + choice.leaf_score, rules.score + share[order]])
    log_probability = scores - np.logaddexp.reduce(scores)
    splits = problem.splits(rules)
    log_feature = np.full(problem.design.num_features, -np.inf)
    np.logaddexp.at(log_feature, splits.feature, log_probability[1:])
    log_stop = float(log_probability[0])
    return PartitionPosterior(log_stop, *splits, log_probability[1:], log_feature)


def _node(problem: Problem, tree: Tree, slot: int) -> Level:
    """Return the rows of one node, as a level of its own."""
    columns, root = problem.columns, root_level(problem.columns, problem.smoothing)
    parent = {
        int(child): at
        for at in np.flatnonzero(tree.feature >= 0)
        for child in (tree.left[at], tree.right[at])
    }
    path = [slot]
    while path[-1]:
        path.append(int(parent[path[-1]]))
    path.reverse()
    inside, pseudo, values = np.ones(columns.num_rows, bool), root.pseudo, problem.design.matrix
    statistics = root.statistics
    for at, child in pairwise(path):
        goes_left = tree.split(at).goes_left(values[:, tree.feature[at]])
        inside &= goes_left == (child == tree.left[at])
        statistics = columns.sums(np.flatnonzero(inside), np.zeros(1, np.int64))
        if pseudo is not None:
            pseudo = pseudo + problem.smoothing * statistics
    return Level(
        len(path) - 1,
        [rows[inside[rows]] for rows in root.rows],
        np.array([0, inside.sum()]),
        statistics,
        pseudo,
    )
