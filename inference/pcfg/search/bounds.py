"""Bounds on the total weight of the subtrees below a set of cells, before its rules are known.

A subtree's worth is the product of its prior weights and of the marginal likelihoods of its leaves.
Upper bounds give every class of labels (or the equivalent for other targets) its own leaf
(`bdtppl.models.leaf.Leaf.log_marginal_bound`), and charge the prior weight of the splits that this
needs at least. Sullivan, Tiwari and Thrun 2024 (MAPTree) bound the best tree by a perfect split
that costs nothing. Here the split is charged, and its rule shares its weight with those that
separate two cells of the set. The sum over subtrees is bounded by the prior mass of all of them.
"""

from typing import NamedTuple

import numba
import numpy as np

from bdtppl.inference.pcfg.expansion import Cells
from bdtppl.models.arrays.precision import in_float64
from bdtppl.models.constraints import Constraints
from bdtppl.models.prior_kinds import Node, TreePrior, weight_bounds

MOST_LEVELS = 200  # below which bounds are those of the last level
_MOST_CELLS_TABLED = 20_000


class WeightTables(NamedTuple):
    """Bounds of prior weights by depth and by number of cells; L levels, C cells.

    Attributes
    ----------
    stop_alone
        float64 [L]; log weight of stopping if there is no rule.
    stop_least, stop_most
        float64 [L]; log weight of stopping if there may be one.
    rule_most
        float64 [L]; log weight of one rule.
    below
        float64 [L]; greatest log weight of any subtree of at least two cells.
    split_most
        float64 [L]; log weight of all rules of a set of cells together, with all subtrees below
        them.
    mass
        float64 [C + 1]; term added to it, by the number of cells.
    log_number
        float64; logs of 1, 1, 2, 3, ...
    last_level
        Level at which trees must stop.
    log_least
        Log of the fewest rules of a set with two classes, if rules share weights.
    """

    stop_alone: np.ndarray
    stop_least: np.ndarray
    stop_most: np.ndarray
    rule_most: np.ndarray
    below: np.ndarray
    split_most: np.ndarray
    mass: np.ndarray
    log_number: np.ndarray
    last_level: int
    log_least: float


@in_float64
def weight_tables(
    prior: TreePrior, constraints: Constraints, cells: Cells, log_least: float
) -> WeightTables:
    """Tabulate the bounds of a prior (see `WeightTables`).

    Raises
    ------
    TypeError
        If the prior has no bounds.
    ValueError
        If a rule may have a weight above 1.
    """
    depth = np.arange(float(MOST_LEVELS))
    bounds = weight_bounds(prior, depth)
    if not (bounds.rule_most <= 1e-12).all():
        raise ValueError(
            f"A search needs a prior with rule weights of at most 1; got {type(prior).__name__} "
            f"with a log weight of {bounds.rule_most.max():.3g}."
        )
    stop_alone = np.zeros(len(depth))
    if not prior.is_normalised:
        stop_alone += np.asarray(prior.log_stop(Node(depth, np.zeros(len(depth), bool))))
    if max(stop_alone.max(), np.max(bounds.stop_most)) > 1e-12:
        raise ValueError(
            "A search needs a prior with weights of stopping of at most 1; got "
            f"{type(prior).__name__}."
        )
    has_rule = not (
        constraints.min_leaf > 1
        or constraints.looks_at_path
        or constraints.refused
        or cells.has_missing.any()
    )
    stop_least, stop_most = np.array(bounds.stop_least), np.array(bounds.stop_most)
    if not has_rule:
        stop_least = np.full(len(depth), -np.inf)
        stop_most = np.maximum(stop_most, stop_alone)
    stop_most[-3:] = 0.0  # also of all deeper levels
    below = np.maximum(stop_most, bounds.rule_most)
    last_level = MOST_LEVELS + 1 if constraints.max_depth is None else int(constraints.max_depth)
    below[last_level:] = stop_alone[last_level:]
    num_cells = len(cells.size)
    split_most, mass = bounds.split_most, np.zeros(num_cells + 1)
    if split_most is None:
        split_most = np.array(bounds.rule_most)
        mass = _log_mass(prior, cells, float(bounds.rule_most.max()))
    elif not prior.sums_to_at_most_one:
        raise TypeError(f"{type(prior).__name__} bounds neither a node's rules nor all trees.")
    largest = max(num_cells, len(cells.code) + 1, 64)
    return WeightTables(
        stop_alone,
        stop_least,
        stop_most,
        np.array(bounds.rule_most),
        below,
        np.array(split_most),
        mass,
        np.log(np.maximum(np.arange(largest + 1.0), 1.0)),
        last_level,
        log_least,
    )


def _log_mass(prior: TreePrior, cells: Cells, log_rule: float) -> np.ndarray:
    """Bound the log of the number of rules times the weights of subtrees below them, by cells.

    Let Z(m) be the greatest weight of all trees of m cells, and R(m) the most rules of m cells.
    Then Z(m) <= 1 + w R(m) max over a + b = m of Z(a) Z(b). The result is the log of R(m) max Z(a)
    Z(b).
    """
    num_cells = len(cells.size)
    sides = 1 + cells.has_missing
    ends = np.searchsorted(cells.feature, np.arange(len(sides) + 1))
    if prior.rules == "cuts" and not prior.counts_partitions:
        first, last = cells.code[ends[:-1]], cells.code[ends[1:] - 1]
        most = np.full(num_cells + 1, ((last - first) * sides).sum(dtype=float))
    else:  # m cells have at most m codes of a feature
        fewer = np.minimum(np.arange(num_cells + 1.0)[:, None], np.diff(ends)) - 1
        most = (fewer.clip(0) * sides).sum(axis=1)
    with np.errstate(divide="ignore"):
        log_most = np.log(most)
    return _settle_mass(log_most, log_rule, min(num_cells, _MOST_CELLS_TABLED))


@numba.njit(cache=True, nogil=True)
def _settle_mass(log_most, log_rule, tabled):
    mass = np.zeros(len(log_most))
    total = np.zeros(len(log_most))  # log Z
    for m in range(2, len(mass)):
        best = 0.0
        if m <= tabled:
            for a in range(1, m // 2 + 1):
                best = max(best, total[a] + total[m - a])
        else:  # there are at most 4^(k - 1) shapes of trees of k leaves
            best = (m - 2) * np.log1p(4 * np.exp(log_rule + log_most[m]))
        mass[m] = log_most[m] + best
        total[m] = np.logaddexp(0.0, log_rule + mass[m])
    return mass


@numba.njit(inline="always")
def bound_set(
    level, num_cells, apart, is_mixed, score, score_of_two, score_most, tables, low, high
):
    """Bound the log weight of the subtrees below a set: of the best one, and of all together.

    Parameters
    ----------
    level
        Splits above the set.
    num_cells
        Cells in it.
    apart
        Fewest features or rules that it has, if the prior shares weights among them.
    is_mixed
        Whether no single rule separates its two classes.
    score, score_of_two, score_most
        Log marginal of its rows; a bound of it for two leaves, if it is mixed; a bound for any
        number of leaves.
    tables
        The prior's bounds.
    low, high
        float64 [1] for the best subtree alone, [2] with the sum over all, [3] with the sum of their
        prior weights; written here.
    """
    place = min(level, len(tables.stop_most) - 3)
    number = len(low)
    is_alone = num_cells < 2 or level >= tables.last_level
    stop_low = tables.stop_alone[place] if is_alone else tables.stop_least[place]
    low[0] = stop_low + score
    if number > 1:
        low[1] = low[0]
    if number > 2:
        low[2] = stop_low
    if is_alone:
        high[:] = low
        return
    stop = tables.stop_most[place]
    log_number = tables.log_number[min(apart, len(tables.log_number) - 1)]
    if score_most > score:  # there are two classes
        log_number = max(log_number, tables.log_least)
    split = tables.rule_most[place] - log_number
    below = tables.below[place + 1] if num_cells > 2 else 0.0  # one of the children has two cells
    worth = below + (score_of_two if is_mixed else score_most)
    if is_mixed:  # two leaves are not pure, and more leaves need a second split
        second = tables.rule_most[place + 1] - tables.log_least
        if num_cells > 3:  # one of the three leaves has two cells
            second += max(tables.below[place + 1], tables.below[place + 2])
        worth = max(worth, second + score_most)
    high[0] = max(stop + score, split + worth)
    if number > 1:
        all_splits = tables.split_most[place] + tables.mass[num_cells]
        high[1] = _log_add(stop + score, all_splits + score_most)
        if number > 2:
            high[2] = _log_add(stop, all_splits)


@numba.njit(inline="always")
def _log_add(one, other):
    larger = max(one, other)
    return larger if larger == -np.inf else larger + np.log1p(np.exp(min(one, other) - larger))


@numba.njit(cache=True, nogil=True)
def score_counts(statistics, each, total):
    """Score sets by their counts of classes [m, c], with tables [c, rows + 1] and [rows + 1].

    Returns
    -------
    numpy.ndarray
        float64 [3, m]: log marginal; its bound for two leaves that are not pure, if there are two
        classes; its bound for any leaves, which gives each class one.

    Notes
    -----
    Moving a row of a class between two leaves, to the one that predicts its class more, makes all
    rows more probable, and so does repeating this. The last state before two pure leaves, or one
    leaf, differs by one row.
    """
    number, classes = statistics.shape[0], len(each)
    scores = np.zeros((3, number))
    for i in range(number):
        rows = 0
        for c in range(classes):
            count = int(statistics[i, c])
            rows += count
            scores[0, i] += each[c, count]
            scores[2, i] += each[c, count] + total[count]
        scores[0, i] += total[rows]
        scores[1, i] = scores[2, i]
        if classes == 2:
            a, b = int(statistics[i, 0]), int(statistics[i, 1])
            if a > 0 and b > 0:
                one = each[0, a] + each[1, 1] + total[a + 1] + each[1, b - 1] + total[b - 1]
                other = each[1, b] + each[0, 1] + total[b + 1] + each[0, a - 1] + total[a - 1]
                scores[1, i] = max(scores[0, i], max(one, other))
    return scores
