"""Sums over the choices on both sides of each rule on one level, compiled for CPUs.

The statistics of a side's own sides are prefix sums of the histogram of a node's rows over the
codes of two features. So a row costs one addition a statistic for each pair of features, however
many rules there are.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numba
import numpy as np

from bdtppl.models.arrays.foreign import arguments, handler_name, matrix, results
from bdtppl.models.leaves import DirichletCategorical, NormalInverseGamma, PoissonGamma

# A score called by address would store a number of this process in XLA's cached programs.
SCORES = tuple(
    family.compiled_score for family in (DirichletCategorical, NormalInverseGamma, PoissonGamma)
)
_LOG_LOST = -40.0  # logs of terms that rounding loses anyway
# Rows of `Tables.rules`.
_FEATURE, _CODE, _MISSING_LEFT, _CAN_CUT = range(4)
# Columns of `Tables.nodes`.
_POWER, _CAN_SPLIT, _PER_FEATURES, _PER_RULES, _LOG_STOP, _LOG_STOP_BELOW, _LOG_SPLIT = (
    *range(5),
    6,
    8,
)


class Tables(NamedTuple):
    """Nodes, rules, and the terms of prior and leaf family; all arrays have two axes.

    There are m nodes, n rows, W words, R rules, d features and s statistics.

    Attributes
    ----------
    codes
        int32 [n, d]; codes of the rows, -1 if the value is missing.
    num_codes
        int32 [1, d].
    statistics
        float64 [n, 1 + s]; a one, and the other statistics of the rows.
    rules
        int32 [4, R]; feature, code below the cut, whether missing values go left, and whether a
        tree may use the rule.
    tables, numbers
        float64 [k, counts] and [1, p]; inputs of the leaf family's compiled score
        (`bdtppl.models.leaf.Leaf.score_tables`).
    limits
        float64 [1, 2]; fewest rows of a leaf, at least 1; and 1 if the only rule of a gap is the
        cut next to the code below it, else 0.
    kind
        int32 [1, 2]; place of the family's score in `SCORES`, and the number of leading statistics
        that it does not use.
    rows
        uint64 [m, W]; sets of rows of the nodes.
    is_wanted
        bool [m, R]; rules whose sides are summed over.
    nodes
        float64 [m, 8 + d]; the power of the likelihood; 1 if sides may split; slopes of the log
        weight of a rule in the log of the number of features with a rule, and in that of the
        feature's rules; log weight of stopping in a side, without and with a rule; the same in a
        side's side; log weight of a rule of each feature without the terms of the two counts.
    """

    codes: jax.Array
    num_codes: jax.Array
    statistics: jax.Array
    rules: jax.Array
    tables: jax.Array
    numbers: jax.Array
    limits: jax.Array
    kind: jax.Array
    rows: jax.Array
    is_wanted: jax.Array
    nodes: jax.Array


def stump_sums(tables: Tables) -> jax.Array:
    """Sum over choices on both sides of rules: stop, or split by a rule and stop there.

    Returns
    -------
    log_sums
        float64 [m, R]; sums of the logs for both sides; 0 for rules that are not requested.
    """
    shape = jax.ShapeDtypeStruct(tables.is_wanted.shape, jnp.float64)
    return jax.ffi.ffi_call(handler_name(_call), shape, vmap_method="sequential")(*tables)


_score_classes, _score_values, _score_counts = map(numba.njit(cache=True, nogil=True), SCORES)


@numba.njit(cache=True, nogil=True)
def _score_rules(tables, values, whole, chosen, sides, scores):
    """Score left sides of some rules, their right sides, and both together, in this order.

    Parameters
    ----------
    tables
        `Tables`.
    values, whole
        float64 [1 + s, R] and [1 + s]; statistics of left sides, and of both sides.
    chosen
        int64 [r]; the rules.
    sides, scores
        Room for statistics and scores of 2 r + 1 leaves.
    """
    kind, skipped = tables.kind[0, 0], tables.kind[0, 1]
    count = len(chosen)
    for s in range(sides.shape[1]):
        own, both = values[skipped + s], whole[skipped + s]
        for i in range(count):
            sides[i, s], sides[count + i, s] = own[chosen[i]], both - own[chosen[i]]
        sides[2 * count, s] = both
    sides, scores, numbers = sides[: 2 * count + 1], scores[: 2 * count + 1], tables.numbers[0]
    if kind == 0:
        _score_classes(sides, tables.tables, numbers, scores)
    elif kind == 1:
        _score_values(sides, tables.tables, numbers, scores)
    else:
        _score_counts(sides, tables.tables, numbers, scores)


@numba.njit(cache=True, nogil=True)
def _sum_side(tables, rules, weights, values, whole, chosen, sides, terms):
    """Return the log of the sum over a side's choices.

    Parameters
    ----------
    tables, rules
        `Tables`, and columns of `Tables.rules`, r of them: those that split the node's rows.
    weights
        float64 [8 + d]; a row of `Tables.nodes`.
    values, whole
        float64 [3 + s, r] and [1 + s]; statistics of the left sides of rules, rows at the code
        below the cut and rows without a value, and statistics of all rows.
    chosen, sides, terms
        Room for r numbers, at least 1, and for statistics and scores of 2 r + 1 leaves.
    """
    least, rows = tables.limits[0, 0], whole[0]
    feature, can_cut, is_right = rules[_FEATURE], rules[_CAN_CUT], rules[_MISSING_LEFT] == 0
    on_left, present, num_missing = values[0], values[-2], values[-1]
    count, is_gaps = 0, tables.limits[0, 1] > 0
    if rows >= 2 * least and weights[_CAN_SPLIT] != 0:
        for rule in range(len(on_left)):
            left = on_left[rule]
            is_rule = (can_cut[rule] != 0) & (left >= least) & (rows - left >= least)
            is_rule &= (present[rule] > 0) | (not is_gaps)
            # Rows without a value separate nothing by themselves.
            is_rule &= (rows - left if is_right[rule] else left) > num_missing[rule]
            chosen[count] = rule
            count += is_rule
    chosen = chosen[:count]
    _score_rules(tables, values, whole, chosen, sides, terms)
    own = weights[_POWER] * terms[2 * count]
    if count == 0:
        return weights[_LOG_STOP] + own
    right, terms = terms[count : 2 * count], terms[:count]
    stop, stop_with_rule = weights[_LOG_STOP_BELOW], weights[_LOG_STOP_BELOW + 1]
    num_features, begin = 0, 0
    while begin < count:
        f, end = feature[chosen[begin]], begin
        while end < count and feature[chosen[end]] == f:
            end += 1
        of_feature = weights[_LOG_SPLIT + f] + weights[_PER_RULES] * math.log(end - begin)
        for i in range(begin, end):
            left = on_left[chosen[i]]
            stops = stop_with_rule if left >= 2 * least else stop
            stops += stop_with_rule if rows - left >= 2 * least else stop
            terms[i] = of_feature + stops + weights[_POWER] * (terms[i] + right[i])
        num_features, begin = num_features + 1, end
    of_count = weights[_PER_FEATURES] * math.log(num_features)
    own += weights[_LOG_STOP + 1] - of_count
    most = max(own, terms.max())
    if most == -np.inf:
        return most
    result = math.exp(own - most)
    for i in range(count):
        if terms[i] - most > _LOG_LOST:
            result += math.exp(terms[i] - most)
    return math.log(result) + most + of_count


@numba.njit(cache=True, nogil=True)
def _histograms(tables, inside, joint):
    """Sum statistics over the codes of every two features.

    Parameters
    ----------
    tables
        `Tables`.
    inside
        int64; the rows.
    joint
        float64 [1 + s, codes of all features, codes of all features]; missing values are a separate
        code, before all others of the feature.
    """
    num_features, num_values = tables.codes.shape[1], tables.statistics.shape[1]
    joint[:] = 0.0
    cell = np.empty(num_features, np.int64)
    for row in inside:
        start = 1
        for f in range(num_features):
            cell[f] = start + tables.codes[row, f]
            start += tables.num_codes[0, f] + 1
        for s in range(num_values):
            own = tables.statistics[row, s]
            for f in range(num_features):
                slab = joint[s, cell[f]]
                for g in range(num_features):
                    slab[cell[g]] += own


@numba.njit(cache=True, nogil=True)
def _left_sides(tables, start, cells, chosen, target):
    """Sum values by code [codes of all features] over the left sides of chosen rules [r]."""
    rules, running, i = tables.rules, 0.0, 0
    for rule in range(rules.shape[1]):
        f, code = rules[_FEATURE, rule], rules[_CODE, rule]
        if code <= 0:  # the first rule of a side of missing values
            running = cells[start[f]] if rules[_MISSING_LEFT, rule] else 0.0
        if 0 <= code < tables.num_codes[0, f]:
            running += cells[start[f] + 1 + code]
        if i < len(chosen) and chosen[i] == rule:
            target[i] = running
            i += 1


@numba.njit(cache=True, nogil=True)
def _fill(tables, result):
    """Write the result of `stump_sums`."""
    is_wanted = tables.is_wanted
    num_nodes, num_rules = is_wanted.shape
    num_rows, num_features = tables.codes.shape
    num_values = tables.statistics.shape[1]
    start = np.zeros(num_features + 1, np.int64)
    start[1:] = np.cumsum(tables.num_codes[0] + 1)
    joint = np.zeros((num_values, start[-1], start[-1]))
    inside, every = np.zeros(num_rows, np.int64), np.arange(num_rules)
    terms, room = np.zeros(2 * num_rules + 1), np.zeros(num_rules + 1, np.int64)
    sides = np.zeros((len(terms), num_values - tables.kind[0, 1]))
    on_left = np.zeros(num_rules)
    result[:] = 0.0
    for node in range(num_nodes):
        count = 0
        for row in range(num_rows):
            if (tables.rows[node, row >> 6] >> np.uint64(row & 63)) & np.uint64(1):
                inside[count] = row
                count += 1
        _histograms(tables, inside[:count], joint)
        # Rules that split the rows of a side also split those of the node.
        at_codes = np.diag(joint[0])
        _left_sides(tables, start, at_codes, every, on_left)
        least = tables.limits[0, 0]
        able = every[(on_left >= least) & (count - on_left >= least)]
        _fill_node(
            tables, start, joint, able, tables.nodes[node], is_wanted[node], room, sides, terms,
            result[node],
        )  # fmt: skip


@numba.njit(cache=True, nogil=True)
def _fill_node(tables, start, joint, able, weights, is_wanted, room, sides, terms, result):
    """Write the sums of one node; ``able`` are the rules with enough rows on both sides."""
    rules, kept = tables.rules, tables.rules[:, able]
    num_values, num_cells, _ = joint.shape
    # From rows at each code: sums over the left sides of rules, rows at rules' codes, rows without
    # a value, and sums over all.
    at_code = np.zeros((num_cells, num_values + 2, len(able)))
    all_at_code = joint[:, :, : start[1]].sum(axis=2).T.copy()
    for cell in range(num_cells):
        if all_at_code[cell, 0] > 0:
            for s in range(num_values):
                _left_sides(tables, start, joint[s, cell], able, at_code[cell, s])
            for i in range(len(able)):
                missing = start[kept[_FEATURE, i]]
                at_code[cell, num_values, i] = joint[0, cell, missing + 1 + max(kept[_CODE, i], 0)]
                at_code[cell, num_values + 1, i] = joint[0, cell, missing]
    both, all_both = at_code[: start[1]].sum(axis=0), all_at_code[: start[1]].sum(axis=0)
    below, all_below = np.zeros_like(both), np.zeros_like(all_both)
    above = np.zeros_like(both)
    for rule in range(rules.shape[1]):
        f, code = rules[_FEATURE, rule], rules[_CODE, rule]
        if code <= 0:  # the first rule of a side of missing values
            below[:], all_below[:] = 0.0, 0.0
            if rules[_MISSING_LEFT, rule]:
                below += at_code[start[f]]
                all_below += all_at_code[start[f]]
        cell = start[f] + 1 + code
        if 0 <= code < tables.num_codes[0, f] and all_at_code[cell, 0] > 0:
            below += at_code[cell]
            all_below += all_at_code[cell]
        if is_wanted[rule]:
            above[:] = both - below
            for side, whole in ((below, all_below), (above, all_both - all_below)):
                result[rule] += _sum_side(tables, kept, weights, side, whole, room, sides, terms)


def _call(frame):
    """Read the arguments from XLA's frame, and fill its result."""
    given = arguments(frame)
    if len(given):
        tables = Tables(
            matrix(given[0], np.int32),
            matrix(given[1], np.int32),
            matrix(given[2], np.float64),
            matrix(given[3], np.int32),
            matrix(given[4], np.float64),
            matrix(given[5], np.float64),
            matrix(given[6], np.float64),
            matrix(given[7], np.int32),
            matrix(given[8], np.uint64),
            matrix(given[9], np.bool_),
            matrix(given[10], np.float64),
        )
        _fill(tables, matrix(results(frame)[0], np.float64))
    return 0
