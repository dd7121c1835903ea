"""The best rule of every node of a sparse level.

The entries of one node and feature are a *group*. The group's rows of value zero are one more
entry, with the node's statistics minus those of the others. The search then treats a group like a
node of a dense column: groups are scored by the same cumulative sums, all features at once. A
feature without an entry in a node is constant there and has no rule.
"""

from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from bdtppl.inference.greedy_modal.columns import Columns, Level
from bdtppl.inference.greedy_modal.partitions import Best, best_positions, best_rules_of_feature
from bdtppl.inference.greedy_modal.problem import Problem
from bdtppl.inference.greedy_modal.sparse_columns import SparseLevel
from bdtppl.inference.greedy_modal.weights import log_rules
from bdtppl.models.arrays.threads import in_threads
from bdtppl.models.data.splits import split_number

_GROUPS_A_PIECE = 1 << 17  # entries whose groups are searched at once


def best_sparse_rules(problem: Problem, level: SparseLevel) -> Best:
    """Find the best rule of every node; ties go to the first feature, then to the lowest cut."""
    best = Best(*(each.copy() for each in Best.none(level.num_segments)))
    groups = _Groups.of(level)
    if not len(groups.node):
        return best
    # Pieces bound the memory of a search besides the entries.
    pieces = np.searchsorted(groups.start, np.arange(0, len(level.row), _GROUPS_A_PIECE))
    bounds = np.unique(np.append(pieces, len(groups.node))).tolist()
    of_pieces = in_threads(
        lambda piece: _best_of_groups(problem, level, groups.at(*piece)),
        pairwise(bounds),
        min(_GROUPS_A_PIECE, len(level.row)),
    )
    num_rules, score, _, split, high = (
        np.concatenate(each) for each in zip(*of_pieces, strict=True)
    )
    node, feature = groups.node, groups.feature
    best.num_features[:] = np.bincount(node[num_rules > 0], minlength=level.num_segments)
    log_rule = log_rules(problem, level, num_rules, best.num_features, node, feature)
    score = np.where(num_rules > 0, score + log_rule, -np.inf)
    # The groups of a node are contiguous, in order of the feature, like a feature's rows.
    searched, first = np.unique(node, return_index=True)
    start = np.append(first, len(node))
    place, _, _ = best_positions(replace(level, start=start), [score])
    offset = problem.design.offset[feature]
    columns = score, log_rule, feature, split - split_number(offset, False), high - offset
    for into, values in zip(best, columns, strict=False):
        into[searched] = values[place]
    return best


class _Groups(NamedTuple):
    """Groups of a level, G of them.

    Attributes
    ----------
    start
        int64 [G + 1]; bounds of their entries.
    node, feature
        int32 [G].
    """

    start: np.ndarray
    node: np.ndarray
    feature: np.ndarray

    @classmethod
    def of(cls, level: SparseLevel) -> "_Groups":
        """Find the changes of node or feature."""
        node, feature = level.segment_of_row.take(level.row), level.feature
        is_first = np.ones(len(node), bool)
        is_first[1:] = (node[1:] != node[:-1]) | (feature[1:] != feature[:-1])
        start = np.flatnonzero(is_first)
        return cls(np.append(start, len(node)), node[start], feature[start])

    def at(self, first: int, stop: int) -> "_Groups":
        """Select a run of groups."""
        return _Groups(
            self.start[first : stop + 1], self.node[first:stop], self.feature[first:stop]
        )


def _best_of_groups(problem: Problem, level: SparseLevel, groups: _Groups) -> tuple:
    """Find the best rule of each group, each [G] (see `best_rules_of_feature`); codes are flat."""
    columns, design = problem.columns, problem.design
    entries = slice(groups.start[0], groups.start[-1])
    row, code = level.row[entries], level.code[entries]
    start, size = groups.start[:-1] - groups.start[0], np.diff(groups.start)
    zero_code = design.zero_code[groups.feature]
    has_zero = size < np.diff(level.start)[groups.node]
    num_before = np.cumsum(has_zero) - has_zero

    # Places of entries and zeros: a missing value, whose code is -1, is below zero, too.
    is_above = code > np.repeat(zero_code, size)
    shift = np.repeat(num_before, size) + (is_above & np.repeat(has_zero, size))
    place = np.arange(len(code)) + shift
    num_below = size - np.add.reduceat(is_above, start, dtype=np.int64)
    place_of_zero = (start + num_before + num_below)[has_zero]
    num_places = len(code) + len(place_of_zero)

    def laid_out(values: np.ndarray, zeros: np.ndarray) -> np.ndarray:
        joined = np.empty(num_places, values.dtype)
        joined[place], joined[place_of_zero] = values, zeros[has_zero]
        return joined

    def with_zeros(values: np.ndarray, total: np.ndarray) -> np.ndarray:
        values = values.take(row).astype(total.dtype)
        return laid_out(values, total[groups.node] - np.add.reduceat(values, start))

    codes = laid_out(code, zero_code)
    each_one = np.ones(columns.num_rows, np.int64)
    counts = with_zeros(each_one, np.diff(level.start))
    pairs = zip(columns.statistics, level.statistics.T, strict=True)
    has_missing = design.has_missing[groups.feature]
    as_columns = Columns(
        np.stack([with_zeros(values, total) for values, total in pairs]),
        counts,  # whose sums are not numbers of positions: see `_SumsOfCounts`
        np.zeros(1, np.int64),
        codes[None],
        np.array([has_missing.any()]),
        np.zeros(1, bool),
        counts,
    )
    as_level = Level(
        level.depth,
        [np.arange(num_places)],
        np.append(start + num_before, num_places),
        level.statistics[groups.node],
        None if level.pseudo is None else level.pseudo[groups.node],
    )
    as_problem = replace(problem, columns=as_columns)
    num_rules, *best = best_rules_of_feature(as_problem, as_level, None, 0)
    if as_columns.has_missing[0]:  # then every rule was tried with missing values on either side
        num_rules = np.where(has_missing, num_rules, num_rules // 2)
    return num_rules, *best
