"""Groups of rules of a node that split its rows alike."""

import numpy as np

from bdtppl.inference.greedy_modal.columns import Level
from bdtppl.inference.greedy_modal.partitions import Best
from bdtppl.inference.greedy_modal.problem import Problem
from bdtppl.models.data.splits import missing_goes_left, position_below


def partition_of_rules(problem: Problem, node: Level, rules: Best) -> np.ndarray:
    """Assign numbers to the partitions of the rules of a level of one node, int [r].

    A side's identity is the sum of random 64-bit keys of its rows.
    """
    keys = np.random.default_rng(0).integers(0, 2**64, problem.columns.num_rows, np.uint64)
    left = np.empty(len(rules.score), np.uint64)
    for f, rows in enumerate(node.rows):
        codes = problem.columns.codes[f][rows]  # ascending, missing ones (-1) first
        running = np.concatenate([[np.uint64(0)], np.cumsum(keys[rows])])
        own = np.flatnonzero(rules.feature == f)
        left[own] = running[np.searchsorted(codes, position_below(rules.split[own]), side="right")]
        goes_right = own[~missing_goes_left(rules.split[own])]
        left[goes_right] -= running[np.searchsorted(codes, 0)]
    if not len(left):
        return np.zeros(0, np.int64)
    lesser = np.minimum(left, keys[node.rows[0]].sum() - left)
    return np.unique(lesser, return_inverse=True)[1].ravel()
