"""Sums over what both sides of each rule do on one level, compiled for CPUs.

The statistics of a side's sides are prefix sums of the histogram of a node's rows over the codes of
two features. So a row costs one addition for each pair of features, however many rules there are.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numba
import numpy as np

from bdtppl.models.arrays.foreign import arguments, matrix, register, results

__all__ = ["Tables", "stump_sums"]

_NAME = "bdtppl_stump_sums"
# Rows of `Tables.rules`.
_FEATURE, _CODE, _MISSING_LEFT, _CAN_CUT = range(4)
# Columns of `Tables.nodes`.
_POWER, _CAN_SPLIT, _PER_FEATURES, _PER_RULES, _LOG_STOP, _LOG_STOP_BELOW, _LOG_SPLIT = (
    *range(5),
    6,
    8,
)


class Tables(NamedTuple):
    """Nodes, rules, and what the prior and the leaf family weigh; all arrays have two axes.

    There are m nodes, n rows, W words, R rules, d features and s statistics.

    Attributes
    ----------
    codes
        int32 [n, d]; codes of the rows, -1 where the value is missing.
    num_codes
        int32 [1, d].
    statistics
        float64 [n, s].
    rules
        int32 [4, R]; feature, code below the cut, whether missing values go left, and whether a
        tree may use the rule.
    each, total
        float64 [s, n + 1] and [1, n + 1]; terms of log marginals by the count of each class and by
        the number of rows. There are none of classes, [0, n + 1], for normal targets.
    numbers
        float64 [1, 6]; of normal leaves the mean less the centre, pseudo count, shape and scale;
        fewest rows of a leaf, at least 1; and 1 where the only rule of a gap is the cut next to the
        code below it, else 0.
    rows
        uint64 [m, W]; sets of rows of the nodes.
    is_wanted
        bool [m, R]; rules whose sides are summed over.
    nodes
        float64 [m, 8 + d]; the power of the likelihood; 1 where sides may split; what the log
        weight of a rule gains for each unit of the log of the number of features with a rule, and
        of that of the feature's rules; log weight of stopping in a side, without and with a rule;
        the same in a side's side; log weight of a rule of each feature but for the two counts.
    """

    codes: jax.Array
    num_codes: jax.Array
    statistics: jax.Array
    rules: jax.Array
    each: jax.Array
    total: jax.Array
    numbers: jax.Array
    rows: jax.Array
    is_wanted: jax.Array
    nodes: jax.Array


def stump_sums(tables: Tables) -> jax.Array:
    """Sum over what both sides of rules do on one level: stop, or take a rule and stop there.

    Returns
    -------
    log_sums
        float64 [m, R]; logs of the sums of both sides, added up; 0 for rules that are not wanted.
    """
    shape = jax.ShapeDtypeStruct(tables.is_wanted.shape, jnp.float64)
    return jax.ffi.ffi_call(_NAME, shape)(*tables)


@numba.njit(cache=True, nogil=True)
def _score(each, total, numbers, values):
    """Log marginal of statistics [s]."""
    if len(each):
        rows, result = 0.0, 0.0
        for s in range(len(each)):
            rows += values[s]
            result += each[s, int(values[s] + 0.5)]
        return result + total[0, int(rows + 0.5)]
    rows, first, second = values[0], values[1], values[2]
    shift, pseudo_count, shape, scale = numbers[0, 0], numbers[0, 1], numbers[0, 2], numbers[0, 3]
    second += shift * (shift * rows - 2 * first)
    first -= shift * rows
    squares = max(second - first * first / (pseudo_count + rows), 0.0)
    return total[0, int(rows + 0.5)] - (shape + rows / 2) * math.log(scale + squares / 2)


@numba.njit(cache=True, nogil=True)
def _num_rows(each, values):
    return values.sum() if len(each) else values[0]


@numba.njit(cache=True, nogil=True)
def _log_sum(tables, node, start, cells, terms, left, right, total):
    """Sum over what a side does, from its histogram ``cells`` [codes of all features, s]; log."""
    rules, num_rules, num_values = tables.rules, tables.rules.shape[1], cells.shape[1]
    least, is_gaps = tables.numbers[0, 4], tables.numbers[0, 5] > 0
    weights = tables.nodes[node]
    power, log_split = weights[_POWER], weights[_LOG_SPLIT:]
    log_stop, stop_below = weights[_LOG_STOP:_LOG_STOP_BELOW], weights[_LOG_STOP_BELOW:_LOG_SPLIT]
    total[:] = 0.0
    for cell in range(start[0], start[1]):
        for s in range(num_values):
            total[s] += cells[cell, s]
    rows = _num_rows(tables.each, total)
    own = power * _score(tables.each, tables.total, tables.numbers, total)
    if rows < 2 * least or weights[_CAN_SPLIT] == 0:
        return log_stop[0] + own
    count, num_available, begin, rule = 0, 0, 0, 0
    while rule < num_rules:
        f = rules[_FEATURE, rule]
        missing = start[f]  # its cell; those of codes follow
        num_missing = _num_rows(tables.each, cells[missing])
        while rule < num_rules and rules[_FEATURE, rule] == f:
            if rules[_CODE, rule] <= 0:  # the first rule of a side of missing values
                left[:] = 0.0
                if rules[_MISSING_LEFT, rule]:
                    left[:] = cells[missing]
                    before = 0.0
            is_present = False
            if 0 <= rules[_CODE, rule] < tables.num_codes[0, f]:
                cell = missing + 1 + rules[_CODE, rule]
                for s in range(num_values):
                    left[s] += cells[cell, s]
                is_present = _num_rows(tables.each, cells[cell]) > 0.5
            if rules[_CAN_CUT, rule] and (is_present or not is_gaps):
                for s in range(num_values):
                    right[s] = total[s] - left[s]
                on_left, on_right = _num_rows(tables.each, left), _num_rows(tables.each, right)
                least_left, least_right = least, least
                if rules[_MISSING_LEFT, rule]:
                    least_left = max(least, num_missing + 1)
                else:
                    least_right = max(least, num_missing + 1)
                if on_left > least_left - 0.5 and on_right > least_right - 0.5:
                    terms[count] = (
                        log_split[f]
                        + stop_below[int(on_left > 2 * least - 0.5)]
                        + stop_below[int(on_right > 2 * least - 0.5)]
                        + power * (_score(tables.each, tables.total, tables.numbers, left) + _score(tables.each, tables.total, tables.numbers, right))
                    )
                    count += 1
            rule += 1
        if count > begin:
            num_available += 1
            less = weights[_PER_RULES] * math.log(count - begin)
            for place in range(begin, count):
                terms[place] += less
            begin = count
    if count == 0:
        return log_stop[0] + own
    less = weights[_PER_FEATURES] * math.log(num_available)
    stop = log_stop[1] + own - less
    most = stop
    for place in range(count):
        most = max(most, terms[place])
    if most == -np.inf:
        return most
    result = math.exp(stop - most)
    for place in range(count):
        if terms[place] - most > -40.0:  # what is smaller is lost in rounding
            result += math.exp(terms[place] - most)
    return math.log(result) + most + less


@numba.njit(cache=True, nogil=True)
def _fill(tables, result):
    """Write what `stump_sums` returns."""
    rules, codes, statistics, is_wanted = (
        tables.rules, tables.codes, tables.statistics, tables.is_wanted
    )
    num_nodes, num_rules = is_wanted.shape
    num_rows, num_features = codes.shape
    num_values = statistics.shape[1]
    start = np.zeros(num_features + 1, np.int64)
    for f in range(num_features):
        start[f + 1] = start[f] + tables.num_codes[0, f] + 1
    width = tables.num_codes.max() + 1
    joint = np.zeros((width, start[-1], num_values))
    whole, below, above = np.zeros((3, start[-1], num_values))
    terms = np.zeros(num_rules)
    left, right, total = np.zeros((3, num_values))
    inside = np.zeros(num_rows, np.int64)
    result[:] = 0.0
    for node in range(num_nodes):
        count = 0
        for row in range(num_rows):
            if (tables.rows[node, row >> 6] >> np.uint64(row & 63)) & np.uint64(1):
                inside[count] = row
                count += 1
        rule = 0
        while rule < num_rules:
            f, first, is_any = rules[_FEATURE, rule], rule, False
            while rule < num_rules and rules[_FEATURE, rule] == f:
                is_any |= is_wanted[node, rule]
                rule += 1
            if not is_any:
                continue
            joint[: tables.num_codes[0, f] + 1] = 0.0
            for i in range(count):
                row = inside[i]
                slab = joint[codes[row, f] + 1]
                for g in range(num_features):
                    cell = start[g] + codes[row, g] + 1
                    for s in range(num_values):
                        slab[cell, s] += statistics[row, s]
            whole[:] = 0.0
            for code in range(tables.num_codes[0, f] + 1):
                whole += joint[code]
            for own in range(first, rule):
                if rules[_CODE, own] <= 0:  # the first rule of a side of missing values
                    below[:] = 0.0
                    if rules[_MISSING_LEFT, own]:
                        below += joint[0]
                if 0 <= rules[_CODE, own] < tables.num_codes[0, f]:
                    below += joint[rules[_CODE, own] + 1]
                if is_wanted[node, own]:
                    above[:] = whole - below
                    for side in (below, above):
                        result[node, own] += _log_sum(
                            tables, node, start, side, terms, left, right, total
                        )


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
            matrix(given[7], np.uint64),
            matrix(given[8], np.bool_),
            matrix(given[9], np.float64),
        )
        _fill(tables, matrix(results(frame)[0], np.float64))
    return 0


register(_NAME, _call)
