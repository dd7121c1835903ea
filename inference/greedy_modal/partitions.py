"""The partitions of the nodes of a level, and their scores.

A node's trivial partition has the score log_stop + log m(rows), the partition by a rule log_rule +
log m(left) + log m(right) (Nuti et al. 2021, equations 3 to 5; Algorithms 1 and 2). All rules of
one feature are scored by one cumulative sum over its order.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bdtppl.inference.greedy_modal.columns import Level
from bdtppl.inference.greedy_modal.cuts import Cuts, count_rules, cuts_of_feature
from bdtppl.inference.greedy_modal.problem import Problem
from bdtppl.inference.greedy_modal.weights import (
    LawOfCuts,
    count_by_column,
    log_rules_of_features,
)
from bdtppl.models.arrays.threads import in_threads
from bdtppl.models.data.splits import split_number
from bdtppl.models.leaf import CountTable

_SCORE_TIE = 1e-11  # relative difference below which scores are equal up to rounding


class Best(NamedTuple):
    """The best rule of each of K nodes.

    Attributes
    ----------
    score
        float64 [K]; log_rule and both sides' leaf scores; -inf if no rule is available.
    log_rule
        float64 [K]; the rule's log weight.
    feature
        int64 [K]; number among the columns, or beyond them for a hyperplane.
    split
        int64 [K]; number of the cut above the code below the gap, among those of the column
        (`bdtppl.models.data.splits.split_number` of a code); 0 for a hyperplane.
    high
        int64 [K]; code above the gap; 1 for a hyperplane.
    num_features
        int64 [K]; features with an available rule.
    hyperplane
        object [K]; the `Hyperplane` that splits the node, or None.
    """

    score: np.ndarray
    log_rule: np.ndarray
    feature: np.ndarray
    split: np.ndarray
    high: np.ndarray
    num_features: np.ndarray
    hyperplane: np.ndarray

    @property
    def is_oblique(self) -> np.ndarray:
        """Whether the rule is a hyperplane, bool [K]."""
        return np.not_equal(self.hyperplane, np.array(None)).astype(bool)

    @classmethod
    def none(cls, num_nodes: int) -> "Best":
        """Return the absence of a rule for every node."""
        none = np.zeros(num_nodes, np.int64)
        nowhere = np.full(num_nodes, -np.inf)
        no_plane = np.full(num_nodes, None)
        return cls(nowhere, nowhere, none, none, none, none, no_plane)

    @classmethod
    def joined(cls, parts: Sequence["Best"]) -> "Best":
        """Join the rules of different nodes."""
        return cls(*(np.concatenate(each) for each in zip(*parts, strict=True)))

    def at(self, nodes: int | slice | np.ndarray) -> "Best":
        """Select some of the nodes."""
        return Best(*(each[nodes] for each in self))


def node_scores(problem: Problem, level: Level) -> np.ndarray:
    """Return the leaf score of every node, float64 [K]."""
    return _score_sets(problem, list(level.statistics.T), level.pseudo)


def _score_sets(problem: Problem, statistics: list, pseudo: np.ndarray | None) -> np.ndarray:
    if pseudo is None:
        return problem.score(statistics)
    absorbed = list(pseudo.T)
    together = [s + p for s, p in zip(statistics, absorbed, strict=True)]
    return problem.score(together) - problem.score(absorbed)


def _sums(problem: Problem, level: Level, cuts: Cuts) -> np.ndarray:
    """Return leaf scores of both sides of every rule, float64 [a]; -inf if there is none."""
    where = np.flatnonzero(cuts.is_rule)
    segment = level.segment.take(where)
    left = [each.take(where) for each in cuts.left]
    right = [t.take(segment) - each for t, each in zip(level.statistics.T, left, strict=True)]
    pseudo = None if level.pseudo is None else level.pseudo[segment]
    sums = np.full(len(cuts.is_rule), -np.inf)
    sums[where] = _score_sets(problem, left, pseudo) + _score_sets(problem, right, pseudo)
    return sums


def best_rules(problem: Problem, level: Level, num_features: np.ndarray | None = None) -> Best:
    """Find the best rule of every node; ties go to the first feature, then to the lowest cut.

    Parameters
    ----------
    problem
        Rows and model.
    level
        The nodes.
    num_features
        int64 [K]; columns with an available rule in each node, if not counted here.
    """
    shape = level.num_segments, len(level.rows)
    node = np.arange(level.num_segments)
    law = LawOfCuts.of(problem, level, num_features)
    counts = _SumsOfCounts.of(problem, level)

    def best_of_feature(f: int) -> tuple[np.ndarray, ...]:
        if counts is not None and law is None and not problem.columns.has_missing[f]:
            return counts.best(f)
        return best_rules_of_feature(problem, level, law, f)

    of_features = in_threads(best_of_feature, range(shape[1]), len(level.segment))
    if not of_features:
        none = np.zeros(shape[0], np.int64)
        of_features = [(none, np.full(shape[0], -np.inf), none, none, none)]
    num_rules, scores, log_rule, split, high = (
        np.stack(each, axis=1) for each in zip(*of_features, strict=True)
    )
    if num_features is None:
        of_column, available = count_by_column(problem, num_rules[:, : shape[1]])
    else:
        of_column, available = num_rules, num_features
    if law is None and shape[1]:
        log_rule = log_rules_of_features(problem, level, of_column, available)
        scores = np.where(num_rules > 0, scores + log_rule, -np.inf)
    feature = (scores >= _least_equal(scores.max(axis=1))[:, None]).argmax(axis=1)
    score, weight, split, high = (each[node, feature] for each in (scores, log_rule, split, high))
    no_plane = np.full(shape[0], None)
    return Best(score, weight, feature, split, high, available, no_plane)


def best_rules_of_feature(
    problem: Problem, level: Level, law: "LawOfCuts | None", f: int
) -> tuple[np.ndarray, ...]:
    """Find a feature's best rule in each node, each [K].

    Returns the number of rules; the best one's score, which includes its weight if the prior
    weights cuts differently; that weight, else 0; its number; and the code above its gap.
    """
    codes, cuts = cuts_of_feature(problem, level, f)
    sums = [_sums(problem, level, each) for each in cuts]
    if law is None:
        weights = [np.zeros(len(codes))] * len(cuts)
    else:
        weights = law.log_rules(f, codes, cuts)
        sums = [s + w for s, w in zip(sums, weights, strict=True)]
    place, score, side = best_positions(level, sums)
    log_rule = np.stack(weights)[side, place]
    high = codes.take(place + 1, mode="clip")
    num_rules = count_rules(problem, level, codes, cuts)
    return num_rules, score, log_rule, split_number(codes[place], side), high


def every_rule(problem: Problem, level: Level) -> Best:
    """List all rules of a level of one node, K rules, the best first (stable)."""
    law = LawOfCuts.of(problem, level)
    listed = [_cuts_and_codes(problem, level, f) for f in range(len(level.rows))]
    num_rules = np.array([[int(n) for n, _, _ in listed]], np.int64).reshape(1, -1)
    of_column, num_features = count_by_column(problem, num_rules)
    log_rules = log_rules_of_features(problem, level, of_column, num_features)
    columns = []
    for f, (_, codes, cuts) in enumerate(listed):
        weights = None if law is None else law.log_rules(f, codes, cuts)
        for side, each in enumerate(cuts):
            place = np.flatnonzero(each.is_rule)
            weight = (
                np.full(len(place), log_rules[0, f]) if weights is None else weights[side][place]
            )
            score = _sums(problem, level, each)[place] + weight
            high = codes.take(place + 1, mode="clip")
            which = np.full(len(place), f)
            columns.append((score, weight, which, split_number(codes[place], side), high))
    if not columns:
        columns = [tuple(np.empty(0, t) for t in (float, float, int, int, int))]
    joined = [np.concatenate(column) for column in zip(*columns, strict=True)]
    order = ranked(joined[0])
    joined += [np.repeat(num_features, len(order)), np.full(len(order), None)]
    return Best(*joined).at(order)


def is_less(score: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Flag scores that are less than others by more than rounding."""
    return score < _least_equal(other)


def _least_equal(score: np.ndarray) -> np.ndarray:
    """Return the least score that is equal up to rounding."""
    return score - np.where(np.isinf(score), 0.0, _SCORE_TIE * (1 + np.abs(score)))


def ranked(score: np.ndarray) -> np.ndarray:
    """Order scores from the largest; scores that are equal up to rounding keep their order."""
    order = np.argsort(-score, kind="stable")
    falls = score[order][1:] < _least_equal(score[order])[:-1]
    group = np.concatenate([[0], np.cumsum(falls)])[: len(order)]
    return order[np.lexsort((order, group))]


def _cuts_and_codes(problem: Problem, level: Level, f: int):
    codes, cuts = cuts_of_feature(problem, level, f)
    return count_rules(problem, level, codes, cuts)[0], codes, cuts


def best_positions(level: Level, sums: list[np.ndarray]) -> tuple[np.ndarray, ...]:
    """Return the first best position, its sum and the place of its `Cuts`, each [K]."""
    start = level.start[:-1]
    sums_there = sums[0] if len(sums) == 1 else np.maximum(*sums)
    best = np.maximum.reduceat(sums_there, start)
    if np.isnan(best).any():  # extreme leaves have no score, because no rule makes them
        sums = [np.where(np.isnan(each), -np.inf, each) for each in sums]
        return best_positions(level, sums)
    equal = np.flatnonzero(sums_there >= np.repeat(_least_equal(best), np.diff(level.start)))
    segment = level.segment.take(equal)  # every node has one: the best score without a rule is -inf
    first = equal[np.concatenate([[True], segment[1:] != segment[:-1]])]
    # The right one comes first of two equal sides of missing values.
    side = np.zeros(len(best), int)
    if len(sums) == 2:
        side += sums[0][first] < _least_equal(best)
    return first, best, side


class _SumsOfCounts:
    """Leaf scores of both sides of all rules by look-up, for counts of rows without weights.

    Terms of the number of rows on a side are the same for all features, as are the terms that a
    count of a class on the left adds for both sides: each node has a table of them, at its offset.
    """

    def __init__(self, problem: Problem, level: Level, table: CountTable):
        self.problem, self.level = problem, level
        size = np.diff(level.start)
        self.size, self.before = size, level.start[:-1]
        num_left = np.arange(1, level.start[-1] + 1) - np.repeat(level.start[:-1], size)
        rest = np.repeat(size, size) - num_left
        self.shared = table.total[num_left] + table.total[rest]
        self.shared[level.is_last] = -np.inf
        self.both, self.offset = zip(
            *(
                _of_both_sides(each, totals)
                for each, totals in zip(table.each, level.statistics.T, strict=True)
            ),
            strict=True,
        )
        # Entries of all classes in their tables sum to this.
        self.entries = num_left + np.repeat(sum(self.offset), size)

    @classmethod
    def of(cls, problem: Problem, level: Level) -> "_SumsOfCounts | None":
        """Prepare a level, or return None if there are weights, no counts or limits."""
        is_plain = problem.columns.weights is None and problem.constraints.min_leaf == 1
        if isinstance(problem.score, CountTable) and is_plain and not problem.split_precision:
            return cls(problem, level, problem.score)
        return None

    def best(self, f: int) -> tuple[np.ndarray, ...]:
        """Find a feature's best rule in each node (see `best_rules_of_feature`)."""
        columns, level = self.problem.columns, self.level
        rows = level.rows[f]
        sums = self.shared.copy()
        last = self.entries
        for values, both, offset in zip(
            columns.statistics[:-1], self.both[:-1], self.offset[:-1], strict=True
        ):
            running = np.cumsum(values.take(rows), dtype=np.intp)
            before = np.append(0, running[level.start[1:-1] - 1])
            running += np.repeat(offset - before, self.size)
            last = last - running
            # No index is out of range; "clip" saves NumPy a copy.
            sums += both.take(running, mode="clip")
        sums += self.both[-1].take(last, mode="clip")
        num_rules = self.size - 1
        if not columns.is_distinct[f] or self.problem.prior.rules == "cuts":
            codes = columns.codes[f].take(rows)
            step = np.empty(len(codes), np.int32)
            np.subtract(codes[1:], codes[:-1], out=step[:-1])
            step[level.is_last] = 0
            sums[step == 0] = -np.inf
            counted = step if self.problem.prior.rules == "cuts" else step > 0
            num_rules = np.add.reduceat(counted, self.before, dtype=np.int64)
        place, best, side = best_positions(level, [sums])
        after = np.minimum(place + 1, level.is_last)
        low, high = (columns.codes[f].take(rows.take(at)) for at in (place, after))
        return num_rules, best, np.zeros(len(best)), split_number(low, side), high


def _of_both_sides(table: np.ndarray, totals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Tabulate the scores that counts 0 to t on the left add for both sides, by the total t.

    Returns the nodes' tables one after the other, and the start of each.
    """
    size = totals + 1
    offset = np.cumsum(size) - size
    left = np.arange(size.sum()) - np.repeat(offset, size)
    return table.take(left) + table.take(np.repeat(totals, size) - left), offset
