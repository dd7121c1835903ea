"""The rules of one feature in all nodes of a level, and their left-side statistics."""

from typing import NamedTuple

import numpy as np

from bdtppl.inference.greedy_modal.columns import Level
from bdtppl.inference.greedy_modal.problem import Problem


class Cuts(NamedTuple):
    """Rules of one feature and side of missing values in a level's nodes; a positions, K segments.

    Attributes
    ----------
    is_rule
        bool [a]; whether the gap after a position can be cut.
    left
        Statistics of the rows on the left of it, s arrays [a].
    """

    is_rule: np.ndarray
    left: list[np.ndarray]


def cuts_of_feature(problem: Problem, level: Level, f: int) -> tuple[np.ndarray, list[Cuts]]:
    """Find the rules of a feature, once for each side to which missing values can go.

    Returns
    -------
    codes
        int32 [a]; codes in the feature's order.
    cuts
        One or two `Cuts`; missing values go right in the first, and left in the second.
    """
    columns = problem.columns
    rows = level.rows[f]
    codes = columns.codes[f].take(rows)
    is_rule = np.empty(len(codes), bool)
    np.not_equal(codes[1:], codes[:-1], out=is_rule[:-1])
    is_rule[level.is_last] = False
    if columns.has_missing[f]:
        is_rule &= codes >= 0
    if problem.split_precision > 0:
        gap = np.flatnonzero(is_rule)
        offset = problem.design.offset[columns.features[f]]
        width = problem.design.gap_width(offset + codes[gap], offset + codes[gap + 1])
        is_rule[gap] = width > problem.split_precision
    left = [_running(each.take(rows), level) for each in columns.statistics]
    if problem.constraints.min_leaf == 1 and not columns.has_missing[f]:
        return codes, [Cuts(is_rule, left)]

    counts = np.ones(len(rows), np.int64) if columns.counts is None else columns.counts[rows]
    count = _running(counts, level)
    total = count[level.is_last]
    cuts = []
    if columns.has_missing[f]:
        is_missing = codes < 0
        less = [
            _missing(each.take(rows), is_missing, level)[level.segment]
            for each in columns.statistics
        ]
        fewer = _missing(counts, is_missing, level)[level.segment]
        cuts.append(([each - m for each, m in zip(left, less, strict=True)], count - fewer))
    cuts.append((left, count))
    least = problem.constraints.min_leaf
    return codes, [
        Cuts(is_rule & (w >= least) & (total[level.segment] - w >= least), sides)
        for sides, w in cuts
    ]


def _running(values: np.ndarray, level: Level) -> np.ndarray:
    """Sum up to each position from the start of its segment, [a]."""
    running = np.cumsum(values, dtype=np.float64 if values.dtype.kind == "f" else np.int64)
    if level.num_segments > 1:
        before = np.concatenate([[0], running[level.start[1:-1] - 1]])
        running -= before.astype(running.dtype).take(level.segment)
    return running


def _missing(values: np.ndarray, is_missing: np.ndarray, level: Level) -> np.ndarray:
    """Sum over the missing rows of each segment, [K]."""
    return np.add.reduceat(np.where(is_missing, values, 0), level.start[:-1])


def num_cuts(problem: Problem, codes: np.ndarray) -> np.ndarray | int:
    """Return the number of rules in each gap, [a]."""
    if problem.prior.rules == "gaps":
        return 1
    return np.diff(codes, append=codes[-1:]).astype(np.int64)


def count_rules(problem: Problem, level: Level, codes: np.ndarray, cuts: list[Cuts]) -> np.ndarray:
    """Available rules of the feature in each node, int64 [K]."""
    count = num_cuts(problem, codes)
    rules = sum(np.where(each.is_rule, count, 0) for each in cuts)
    return np.add.reduceat(rules, level.start[:-1], dtype=np.int64)
