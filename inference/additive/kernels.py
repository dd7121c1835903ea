"""One sweep over the trees of a sum, compiled for CPUs.

Trees are complete binary arrays: the children of node v are 2 v + 1 and 2 v + 2. A leaf with the
rows' total precision A and total precision times residual B has the marginal likelihood, but for
what all trees share, sqrt(q / (A + q)) exp(B^2 / (2 (A + q))), where q is the prior precision of
its value. Moves of one tree, given all others:

- A node whose subtree is a leaf or one split is redrawn among the leaf and all splits. The
  histogram of its rows over the bins of each feature, summed up along the bins, has the two sums of
  both sides of every rule.
- The rule of a split with splits below it is redrawn among all rules, those below it held. Here
  each leaf below has a histogram of the node's rows, as if all went to its side.
- Far quicker is the first move over the rules of one feature alone, and it mixes nearly as well. A
  feature is drawn given the node first: of a split its own, of a leaf j with its prior probability
  p(j). Given j, the leaf is p(j) times as likely beside the splits by j as without it. The features
  of one column, such as the sets of levels of a category, count as one (`RowTables`).

In a product of noise variances the residual of a row is its squared error over the values of all
other trees. A leaf with N rows whose residuals add up to S has the marginal likelihood, but for
what all trees share, c Gamma((v + N) / 2) / ((v l + S) / 2)^((v + N) / 2), where v and l are the
degrees of freedom and the scale of its prior, and c is the constant that makes it 1 without rows.
The moves are the same.

All draw from the conditional law, so every draw is accepted (Gibbs sampling). Leaf values are
integrated out, and drawn after them.

A histogram has two or three numbers in each bin: the sums of precision times residual and of
precisions, and the number of rows, where it differs from the second by more than a factor.
"""

import math
from typing import NamedTuple

import numba
import numpy as np

from bdtppl.inference.additive.complete_trees import (
    follow_rule,
    inlined,
    node_exists,
    node_splits,
    vectorised,
)

_reordered = numba.njit(
    cache=True,
    nogil=True,
    error_model="numpy",
    fastmath={"nnan", "nsz", "arcp", "contract", "reassoc"},
)

_LOG2_E = 1.4426950408889634
_LN_2 = 0.6931471805599453
_ROUNDS_TO_INTEGER = 6755399441055744.0  # 1.5 * 2^52: adding it rounds, into the low bits
_EXPONENT_OF_1 = 1023.0
_LEAST_LOG = -690.0

BY_ONE_FEATURE = 100  # added to the level of a move


class Room(NamedTuple):
    """Arrays that a sweep works in; their contents between two moves are meaningless.

    Attributes
    ----------
    histogram
        float64 [leaves, V, 3].
    sums
        float64 [leaves, 3, R]; sums on the left side of each rule.
    gain, weight
        float64 [R].
    scaled, bits
        float64 [R], and the same memory as int64 [R].
    slot
        int64 [n]; number of the histogram that a row is counted in, or -1.
    residual
        float64 [n]; targets less all trees but one.
    place
        uint8 [2, n]; leaf that each row reaches below each side of a split.
    """

    histogram: np.ndarray
    sums: np.ndarray
    gain: np.ndarray
    weight: np.ndarray
    scaled: np.ndarray
    bits: np.ndarray
    slot: np.ndarray
    residual: np.ndarray
    place: np.ndarray


def sweep_room(num_rows: int, num_bins: int, num_rules: int, levels: int) -> Room:
    """Allocate what a sweep works in."""
    leaves = max(2**levels, 2)
    scaled = np.empty(num_rules)
    return Room(
        histogram=np.empty((leaves, num_bins, 3)), sums=np.empty((leaves, 3, num_rules)),
        gain=np.empty(num_rules), weight=np.empty(num_rules), scaled=scaled,
        bits=scaled.view(np.int64), slot=np.empty(num_rows, np.int64), residual=np.empty(num_rows),
        place=np.empty((2, num_rows), np.uint8),
    )  # fmt: skip


@inlined
def uniforms_of_move(internal):
    """Count the uniform numbers that a move reads: for each node of a level three."""
    return 3 * (internal + 1) // 2


def uniforms_of_visit(levels: int, num_moves: int) -> int:
    """Count the uniform numbers that a visit of a tree reads."""
    return 1 + num_moves * uniforms_of_move(2**levels - 1)


@vectorised
def _exponentials(room, count, largest):
    """Write exp(gain - largest) times weight into weight [count]; such loops use vector units.

    The argument is k ln 2 + f with an integer k: the series of exp(f) is within 1e-15, and k goes
    into the exponent of a number that multiplies it.
    """
    gain, weight, scaled, bits = room.gain, room.weight, room.scaled, room.bits
    for q in range(count):
        x = max(gain[q] - largest, _LEAST_LOG)
        shifted = x * _LOG2_E + (_ROUNDS_TO_INTEGER + _EXPONENT_OF_1)
        f = x - (shifted - (_ROUNDS_TO_INTEGER + _EXPONENT_OF_1)) * _LN_2
        scaled[q] = shifted
        p = 1 / 39916800.0
        p = p * f + 1 / 3628800.0
        p = p * f + 1 / 362880.0
        p = p * f + 1 / 40320.0
        p = p * f + 1 / 5040.0
        p = p * f + 1 / 720.0
        p = p * f + 1 / 120.0
        p = p * f + 1 / 24.0
        p = p * f + 1 / 6.0
        p = p * f + 0.5
        p = p * f + 1.0
        p = p * f + 1.0
        weight[q] *= p
    for q in range(count):
        bits[q] = bits[q] << 52
    total = 0.0
    for q in range(count):
        weight[q] *= scaled[q]
        total += weight[q]
    return total


@vectorised
def _chosen(weight, count, total, uniform):
    """Draw an index in proportion to weights [count] of a known total."""
    left = uniform * total
    last = -1
    for q in range(count):
        if weight[q] > 0:
            last = q
            left -= weight[q]
            if left <= 0:
                return q
    return last


@vectorised
def _count_rows(rows, room, precision, each_count, first, end, low, high):
    """Fill the histograms of the slots from ``first`` to ``end`` from the rows in them.

    Those of slot s are over the groups from ``low[s]`` to ``high[s]``.
    """
    histogram, residual, slot = room.histogram, room.residual, room.slot
    position = rows.position
    num_rows = len(slot)
    for s in range(first, end):
        histogram[s, rows.offset[low[s]] : rows.offset[high[s]]] = 0.0
    for i in range(num_rows):
        s = slot[i]
        if s < 0:
            continue
        a = precision[i]
        b = a * residual[i]
        if each_count:
            for j in range(low[s], high[s]):
                bin = histogram[s, position[i, j]]
                bin[0] += b
                bin[1] += a
                bin[2] += 1.0
        else:
            for j in range(low[s], high[s]):
                bin = histogram[s, position[i, j]]
                bin[0] += b
                bin[1] += a


@vectorised
def _sum_left(rows, room, s, channels, low, high):
    """Sum a histogram up to the left sides of the rules of some groups."""
    histogram, sums = room.histogram[s], room.sums[s]
    for k in range(len(rows.run_rule)):
        group = rows.group[rows.run_rule[k]]
        if group < low or group >= high:
            continue
        first, count, v = rows.run_rule[k], rows.run_length[k], rows.run_bin[k]
        missing = rows.run_missing[k]
        b = a = n = 0.0
        if missing >= 0:
            b, a = histogram[missing, 0], histogram[missing, 1]
            n = histogram[missing, 2] if channels > 2 else 0.0
        for c in range(count):
            b += histogram[v + c, 0]
            a += histogram[v + c, 1]
            sums[0, first + c] = b
            sums[1, first + c] = a
        if channels > 2:
            for c in range(count):
                n += histogram[v + c, 2]
                sums[2, first + c] = n
    for k in range(len(rows.set_rule)):
        q = rows.set_rule[k]
        if q < 0 or rows.group[q] < low or rows.group[q] >= high:
            continue
        v, end = rows.offset[rows.group[q]], rows.offset[rows.group[q] + 1]
        for channel in range(channels):
            left = 0.0
            for c in range(end - v):
                left += rows.goes_left[k, c] * histogram[v + c, channel]
            sums[channel, q] = left


@vectorised
def _totals(rows, room, s, channels, group, total):
    """Sum a histogram up over the bins of a group, which are those of all rows."""
    for c in range(channels):
        total[c] = 0.0
        for v in range(rows.offset[group], rows.offset[group + 1]):
            total[c] += room.histogram[s, v, c]


@_reordered
def _score_splits(on_left, precision, rows, chance, total, a, n, scale, own, fewest, gain, weight):
    """Write the log gain of each rule, and its weight but for that; returns the largest gain.

    A loop reads few arrays: only then does the compiler use vector units.
    """
    half = 0.5 * scale * scale
    both = a + 2 * own
    for q in range(len(chance)):
        u = scale * precision[q] + own
        v = both - u
        left, right = on_left[q], total - on_left[q]
        weight[q] = 1 / (u * v)
        gain[q] = half * (left * left * v + right * right * u) * weight[q]
    for q in range(len(chance)):
        weight[q] = chance[q] * np.sqrt(weight[q])
    for q in range(len(chance)):
        fits = (rows[q] > fewest) & (n - rows[q] > fewest)
        weight[q] = weight[q] if fits else 0.0
        gain[q] = gain[q] if fits else 0.0
    largest = 0.0
    for q in range(len(chance)):
        largest = max(largest, gain[q])
    return largest


@inlined
def _log_of_noise_leaf(prior, squares, count):
    """Log marginal likelihood of a leaf of variances, but for the constant."""
    half = 0.5 * (prior.degrees + count)
    if len(prior.log_gamma) > 0:
        log_gamma = prior.log_gamma[int(count + 0.5)]
    else:
        log_gamma = math.lgamma(half)
    return log_gamma - half * math.log(0.5 * (prior.rate + max(squares, 0.0)))


@vectorised
def _redraw_noise_node(rows, prior, room, s, level, channels, low, high, total, uniform):
    """Draw the leaf (-1) or the split of a node of variances; see `_redraw_node`."""
    counted = channels - 1
    squares, weights, n, fewest = total[0], total[1], total[counted], prior.min_leaf - 0.5
    largest = of_leaf = _log_of_noise_leaf(prior, squares, weights)
    of_one = -_log_of_noise_leaf(prior, 0.0, 0.0)  # what one leaf more multiplies
    if n <= 2 * fewest or prior.log_split[level] == -np.inf:
        return -1
    _sum_left(rows, room, s, channels, low, high)
    first, end = np.searchsorted(rows.group, low), np.searchsorted(rows.group, high)
    on_left, weight_left = room.sums[s, 0, first:end], room.sums[s, 1, first:end]
    count = room.sums[s, counted, first:end]
    chance = prior.rule[first:end]
    gain, weight = room.gain, room.weight
    for q in range(end - first):
        fits = count[q] > fewest and n - count[q] > fewest
        weight[q] = chance[q] if fits else 0.0
        gain[q] = of_leaf
        if fits:
            gain[q] = of_one + _log_of_noise_leaf(prior, on_left[q], weight_left[q])
            gain[q] += _log_of_noise_leaf(prior, squares - on_left[q], weights - weight_left[q])
            largest = max(largest, gain[q])
    of_splits = _exponentials(room, end - first, largest)
    factor = np.exp(prior.log_split[level] + 2 * prior.log_stop[level + 1])
    share = chance.sum() if high == low + 1 else 1.0
    stop = share * np.exp(prior.log_stop[level] + of_leaf - largest)
    if uniform[0] * (stop + factor * of_splits) > stop and of_splits > 0:
        return first + _chosen(weight, end - first, of_splits, uniform[1])
    return -1


@vectorised
def _redraw_node(rows, prior, room, s, level, scale, each_count, low, high, uniform):
    """Draw the leaf (-1) or the split of a node from its histogram, by two uniform numbers."""
    channels = 3 if each_count else 2
    total = np.empty(3)
    _totals(rows, room, s, channels, low, total)
    if prior.degrees > 0:
        return _redraw_noise_node(rows, prior, room, s, level, channels, low, high, total, uniform)
    own = prior.precision
    b, a = scale * total[0], scale * total[1]
    largest = b * b / (2 * (a + own))
    of_leaf = largest
    counted = channels - 1
    n, fewest = total[counted], prior.min_leaf - 0.5
    if n > 2 * fewest and prior.log_split[level] > -np.inf:
        _sum_left(rows, room, s, channels, low, high)
        first = np.searchsorted(rows.group, low)
        end = np.searchsorted(rows.group, high)
        sums, chance = room.sums[s], prior.rule[first:end]
        best = _score_splits(
            sums[0, first:end], sums[1, first:end], sums[counted, first:end], chance, total[0], a,
            n, scale, own, fewest, room.gain, room.weight,
        )  # fmt: skip
        largest = max(largest, best)
        of_splits = _exponentials(room, end - first, largest)
        below = prior.log_stop[level + 1]
        of_splits_log = prior.log_split[level] + 2 * below
        factor = np.exp(of_splits_log) * own
        share = chance.sum() if high == low + 1 else 1.0
        stop = share * np.exp(prior.log_stop[level] + of_leaf - largest) * np.sqrt(own / (a + own))
        if uniform[0] * (stop + factor * of_splits) > stop and of_splits > 0:
            return first + _chosen(room.weight, end - first, of_splits, uniform[1])
    return -1


@vectorised
def _redraw_level(
    tree, level, by_one, rows, prior, room, precision, scale, each_count, rule, leaf, uniform
):
    """Redraw the nodes of a level whose subtrees are leaves or one split.

    Where one feature is chosen first (``by_one``), that of a split is its own, and that of a leaf
    follows the prior.
    """
    first, last = 2**level - 1, 2 ** (level + 1) - 1
    internal = rule.shape[1]
    slots_end = 2 * internal + 1
    slot_of = np.full(slots_end, -1)
    node_of = np.empty(last - first, np.int64)
    low = np.zeros(last - first, np.int64)
    high = np.full(last - first, len(rows.offset) - 1)
    num_slots = 0
    for v in range(first, last):
        if not node_exists(rule, tree, v):
            continue
        if rule[tree, v] >= 0:
            left = 2 * v + 1
            if node_splits(rule, tree, left) or node_splits(rule, tree, left + 1):
                continue
            slot_of[left] = slot_of[left + 1] = num_slots
        slot_of[v] = num_slots
        node_of[num_slots] = v
        if by_one:
            q = rule[tree, v]
            if q < 0:
                q = _chosen(prior.rule, len(prior.rule), 1.0, uniform[3 * num_slots])
            group = rows.group[q] if q >= 0 else 0
            low[num_slots], high[num_slots] = group, group + 1
        num_slots += 1
    if num_slots == 0:
        return
    slot = room.slot
    for i in range(len(slot)):
        slot[i] = slot_of[leaf[tree, i]]
    _count_rows(rows, room, precision, each_count, 0, num_slots, low, high)
    for s in range(num_slots):
        rule[tree, node_of[s]] = _redraw_node(
            rows, prior, room, s, level, scale, each_count, low[s], high[s],
            uniform[3 * s + 1 : 3 * s + 3],
        )  # fmt: skip
    own_leaf = leaf[tree]
    for s in range(num_slots):
        v = node_of[s]
        left, q = 2 * v + 1, rule[tree, v]
        # Rows whose leaf is the node or a child of it come back to the node, and go on by its rule.
        if left < slots_end and slot_of[left] == s:
            for i in range(len(own_leaf)):
                u = own_leaf[i]
                own_leaf[i] = v if (u == left) | (u == left + 1) else u
        if q >= 0:
            follow_rule(v, q, rows, own_leaf)


@vectorised
def _find_leaves(tree, node, rows, rule, place):
    """Write the leaf below a node that each row reaches if it comes to the node, uint8 [n].

    One loop over all rows for each split: processors cannot predict the ways of single rows.
    """
    internal = rule.shape[1]
    place[:] = node
    low = high = node
    while low < internal:
        for v in range(low, high + 1):
            q = rule[tree, v]
            if q < 0 or not node_exists(rule, tree, v):
                continue
            follow_rule(v, q, rows, place)
        low, high = 2 * low + 1, 2 * high + 2


@vectorised
def _number_leaves(tree, node, rule, slot_of, num_slots):
    """Give numbers to the leaves below a node, from ``num_slots`` on; returns the next one."""
    internal = rule.shape[1]
    low = high = node
    inside = np.zeros(2 * internal + 1, np.bool_)
    inside[node] = True
    while low <= 2 * internal:
        for v in range(low, high + 1):
            if v != node:
                parent = (v - 1) // 2
                inside[v] = inside[parent] and rule[tree, parent] >= 0
            if inside[v] and not node_splits(rule, tree, v):
                slot_of[v] = num_slots
                num_slots += 1
        low, high = 2 * low + 1, 2 * high + 2
    return num_slots


@vectorised
def _redraw_rule(tree, node, rows, prior, room, precision, scale, each_count, rule, leaf, uniform):
    """Redraw the rule of a split with splits below it, which are held."""
    internal = rule.shape[1]
    left = 2 * node + 1
    if not node_splits(rule, tree, left) and not node_splits(rule, tree, left + 1):
        return
    channels = 3 if each_count else 2
    slot_of = np.full(2 * internal + 1, -1)
    on_left = _number_leaves(tree, left, rule, slot_of, 0)
    num_slots = _number_leaves(tree, left + 1, rule, slot_of, on_left)
    inside = np.zeros(2 * internal + 1, np.bool_)
    for v in range(len(inside)):
        inside[v] = v == node or (v > 0 and inside[(v - 1) // 2])
    num_groups = len(rows.offset) - 1
    low, high = np.zeros(num_slots, np.int64), np.full(num_slots, num_groups)
    place = room.place
    for side in range(2):
        _find_leaves(tree, left + side, rows, rule, place[side])
        for i in range(len(room.slot)):
            room.slot[i] = slot_of[place[side, i]] if inside[leaf[tree, i]] else -1
        first = 0 if side == 0 else on_left
        end = on_left if side == 0 else num_slots
        _count_rows(rows, room, precision, each_count, first, end, low, high)
    own, fewest, counted = prior.precision, prior.min_leaf - 0.5, channels - 1
    num_rules = len(rows.feature)
    gain, weight = room.gain, room.weight
    for q in range(num_rules):
        gain[q] = 0.0
        weight[q] = 1.0
    total = np.empty(3)
    half = 0.5 * scale * scale
    for s in range(num_slots):
        _sum_left(rows, room, s, channels, 0, num_groups)
        _totals(rows, room, s, channels, 0, total)
        sums = room.sums[s]
        is_left = s < on_left
        for q in range(num_rules):
            b = sums[0, q] if is_left else total[0] - sums[0, q]
            a = sums[1, q] if is_left else total[1] - sums[1, q]
            n = sums[counted, q] if is_left else total[counted] - sums[counted, q]
            if n <= fewest:
                gain[q] = -np.inf
            elif prior.degrees > 0:
                gain[q] += _log_of_noise_leaf(prior, b, a)
            else:
                u = scale * a + own
                gain[q] += half * b * b / u
                weight[q] *= own / u
    largest = -np.inf
    for q in range(num_rules):
        weight[q] = np.sqrt(weight[q]) * prior.rule[q]
        if weight[q] > 0:
            largest = max(largest, gain[q])
    for q in range(num_rules):
        if gain[q] == -np.inf:
            gain[q] = largest
            weight[q] = 0.0
    total_weight = _exponentials(room, num_rules, largest)
    rule[tree, node] = _chosen(weight, num_rules, total_weight, uniform)
    q = rule[tree, node]
    j, last, missing = rows.feature[q], rows.last[q], rows.missing[q]
    for i in range(len(room.slot)):
        if room.slot[i] >= 0:
            bin = rows.bins[j, i]
            leaf[tree, i] = place[1 - ((bin <= last) | (bin == missing)), i]


@_reordered
def sums_of_leaf(node, leaf, precision, residual):
    """Sum precisions, and these times residuals, over the rows of a leaf."""
    a = b = 0.0
    for i in range(len(leaf)):
        own = precision[i] if leaf[i] == node else 0.0
        a += own
        b += own * residual[i]
    return a, b


@vectorised
def redraw_values(tree, prior, room, precision, scale, rule, value, leaf, normal):
    """Draw the values of a tree's leaves."""
    for v in range(value.shape[1]):
        value[tree, v] = 0.0
        if node_exists(rule, tree, v) and not node_splits(rule, tree, v):
            a, b = sums_of_leaf(v, leaf[tree], precision, room.residual)
            total = scale * a + prior.precision
            value[tree, v] = scale * b / total + normal[v] / np.sqrt(total)


@vectorised
def move(tree, visit, rows, prior, room, precision, scale, each_count, rule, leaf, moves, uniform):
    """Make the moves of a visit, from uniform numbers."""
    of_move = uniforms_of_move(rule.shape[1])
    for k in range(moves.shape[1]):
        kind = moves[visit, k]
        own = uniform[1 + k * of_move : 1 + (k + 1) * of_move]
        if kind >= 0:
            _redraw_level(
                tree, kind % BY_ONE_FEATURE, kind >= BY_ONE_FEATURE, rows, prior, room, precision,
                scale, each_count, rule, leaf, own,
            )  # fmt: skip
            continue
        level = -1 - kind
        first = 2**level - 1
        for node in range(first, 2 * first + 1):
            if node_splits(rule, tree, node):
                _redraw_rule(
                    tree, node, rows, prior, room, precision, scale, each_count, rule, leaf,
                    own[node - first],
                )  # fmt: skip


@vectorised
def sweep_noise(
    rows, prior, room, each_count, ratio, rule, value, leaf, moves, uniform, generator
):  # fmt: skip
    """Redraw all trees of a product of variances once, in place.

    Parameters
    ----------
    rows, prior, room, each_count, rule, leaf, moves, uniform
        As in `sweep`; ``prior`` with the numbers of variances.
    ratio
        float64 [n]; squared errors over the product of all trees; changed.
    value
        float64 [m, 2^(levels + 1) - 1]; values of leaves, 1 elsewhere.
    generator
        numpy.random.Generator.
    """
    residual = room.residual
    num_trees, num_rows = leaf.shape
    for tree in range(num_trees):
        for i in range(num_rows):
            residual[i] = ratio[i] * value[tree, leaf[tree, i]]
        visit = int(uniform[tree, 0] * len(moves))
        own = uniform[tree]
        move(tree, visit, rows, prior, room, rows.weights, 1.0, each_count, rule, leaf, moves, own)
        for v in range(value.shape[1]):
            value[tree, v] = 1.0
            if node_exists(rule, tree, v) and not node_splits(rule, tree, v):
                count, squares = sums_of_leaf(v, leaf[tree], rows.weights, residual)
                chi = generator.chisquare(prior.degrees + count)
                value[tree, v] = (prior.rate + squares) / chi
        for i in range(num_rows):
            ratio[i] = residual[i] / value[tree, leaf[tree, i]]


@vectorised
def sweep(
    rows, prior, room, precision, scale, each_count, left, rule, value, leaf, moves, uniform,
    normal,
):  # fmt: skip
    """Redraw all trees once, one after the other; arrays are changed in place.

    Parameters
    ----------
    rows, prior, room
        `bdtppl.inference.additive.tables.RowTables`, `SumPriorTables`, and `Room`.
    precision, scale
        float64 [n] and a factor; their product is the precision of each target, weights included.
    each_count
        Whether rows must be counted apart from precisions; otherwise these are all 1.
    left
        float64 [n]; targets less all trees.
    rule
        int32 [m, 2^levels - 1]; rule of each node, -1 where it is no split.
    value
        float64 [m, 2^(levels + 1) - 1]; values of leaves, 0 elsewhere.
    leaf
        uint8 [m, n]; the leaf of each row in each tree.
    moves
        int64 [visits, k]; what one visit of a tree does, drawn anew for each: l redraws the nodes
        of level l among all rules, `BY_ONE_FEATURE` + l those among the rules of one feature, and
        -1 - l the rules of the splits of level l with splits below.
    uniform, normal
        float64 [m, `uniforms_of_visit`] and [m, 2^(levels + 1) - 1]; random numbers from 0 to 1,
        and standard normal ones.
    """
    residual = room.residual
    num_trees, num_rows = leaf.shape
    for tree in range(num_trees):
        own_leaf, own_value = leaf[tree], value[tree]
        for i in range(num_rows):
            residual[i] = left[i] + own_value[own_leaf[i]]
        visit = int(uniform[tree, 0] * len(moves))
        own = uniform[tree]
        move(tree, visit, rows, prior, room, precision, scale, each_count, rule, leaf, moves, own)
        redraw_values(tree, prior, room, precision, scale, rule, value, leaf, normal[tree])
        for i in range(num_rows):
            left[i] = residual[i] - own_value[own_leaf[i]]
