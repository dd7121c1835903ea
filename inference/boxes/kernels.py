"""The recursion over boxes, compiled: log Q of boxes, outside visits, and lists of rules.

A node's statistics and those of the left side of each of its rules are differences of prefix sums.
They are taken axis by axis, so that boxes which share their sides on the first features share that
work. Level l needs the values of level l + 1 alone; below the last level every node is a leaf,
whose score is computed when needed and never stored.

Functions take the tables of one group of boxes (`bdtppl.inference.boxes.tables`) and add to arrays
of one level.
"""

import math
from typing import NamedTuple

import numba
import numpy as np

from bdtppl.models.leaf_kernels import score_leaves

INSIDE, BEST, OUTSIDE, EXPAND = 0, 1, 2, 3  # tasks of visits


class _Box(NamedTuple):
    """Workspace for the current box.

    Attributes
    ----------
    low, high, missing
        int64 [d]; its side of each feature.
    place
        int64 [k]; places of the sides of cut features.
    slab, slab_start
        Prefix sums with the first axes reduced, one after another.
    key_slab, key_slab_start
        The same for keys.
    total, left
        float64 [s]; statistics of the box and of one side of a rule.
    table, stamp, count
        Hash table of partitions.
    """

    low: np.ndarray
    high: np.ndarray
    missing: np.ndarray
    place: np.ndarray
    slab: np.ndarray
    slab_start: np.ndarray
    key_slab: np.ndarray
    key_slab_start: np.ndarray
    total: np.ndarray
    left: np.ndarray
    table: np.ndarray
    stamp: np.ndarray
    count: np.ndarray


@numba.njit(cache=True, nogil=True)
def _make_box(group):
    k = len(group.own)
    _, d, width, num_values = group.values.shape
    start, key_start = np.zeros(k + 1, np.int64), np.zeros(k + 1, np.int64)
    for axis in range(k):
        cells = d * width
        for later in range(axis + 1, k):
            cells *= group.lengths[later]
        start[axis + 1] = start[axis] + cells * num_values
        key_start[axis + 1] = key_start[axis] + cells
    slots = 64
    has_keys = group.keys.shape[2] > 1
    while has_keys and slots < 4 * d * width:
        slots *= 2
    box = _Box(
        np.zeros(d, np.int64), group.num_codes.copy(), np.zeros(d, np.int64),
        np.full(k, -1, np.int64), np.zeros(start[k]), start,
        np.zeros(key_start[k] if has_keys else 1, np.uint64), key_start, np.zeros(num_values),
        np.zeros(num_values), np.zeros(slots, np.uint64), np.zeros(slots, np.int64),
        np.zeros(slots, np.int64),
    )  # fmt: skip
    for g in range(d):
        box.missing[g] = 1 if group.has_missing[g] else 0
    return box


@numba.njit(cache=True, nogil=True, inline="always")
def _take_side(source, target, low, high, missing, last):
    """Reduce the first axis of flat prefix sums to one side."""
    size = len(target)
    for i in range(size):
        target[i] = source[high * size + i]
    if low > 0:
        for i in range(size):
            target[i] -= source[low * size + i]
    if missing:
        for i in range(size):
            target[i] += source[last * size + i]


@numba.njit(cache=True, nogil=True, inline="always")
def _open_box(group, box, number):
    """Reduce to the sides of a box of the group; return its prefix sums and keys, flat."""
    k = len(group.own)
    has_keys = group.keys.shape[2] > 1
    values, keys = group.values.reshape(-1), group.keys.reshape(-1)
    rest, step = number, 1
    for axis in range(k):
        step *= group.shape[axis]
    changed = False
    for axis in range(k):
        step //= group.shape[axis]
        side = rest // step
        rest -= side * step
        begin, end = box.slab_start[axis], box.slab_start[axis + 1]
        key_begin, key_end = box.key_slab_start[axis], box.key_slab_start[axis + 1]
        if changed or side != box.place[axis]:
            changed = True
            box.place[axis] = side
            f = group.own[axis]
            low, high = group.side_low[axis, side], group.side_high[axis, side]
            missing = group.side_missing[axis, side]
            box.low[f], box.high[f], box.missing[f] = low, high, missing
            last = group.num_codes[f] + 1
            _take_side(values, box.slab[begin:end], low, high, missing, last)
            if has_keys:
                _take_side(keys, box.key_slab[key_begin:key_end], low, high, missing, last)
        values = box.slab[begin:end]
        if has_keys:
            keys = box.key_slab[key_begin:key_end]
    return values, keys


@numba.njit(cache=True, nogil=True, inline="always")
def _rows_at(leaf, values, at, num_values):
    """Return the rows behind the statistics at a position."""
    if leaf.sums_to_rows:
        total = 0.0
        for s in range(num_values):
            total += values[at + s]
        return total
    return values[at]


@numba.njit(cache=True, nogil=True, inline="always")
def _sum_box(group, leaf, box, values):
    """Write the statistics of the box into ``box.total``; return its rows."""
    num_values = group.values.shape[3]
    last = (group.values.shape[2] - 1) * num_values
    for s in range(num_values):
        box.total[s] = values[box.high[0] * num_values + s] + values[last + s]
    return _rows_at(leaf, box.total, 0, num_values)


@numba.njit(cache=True, nogil=True, inline="always")
def _left_side(group, box, rules, j, values):
    """Write the statistics of the left side of an entry into ``box.left``."""
    _, _, width, num_values = group.values.shape
    start = rules.feature[j] * width * num_values
    at = start + (rules.low[j] + 1) * num_values
    for s in range(num_values):
        box.left[s] = values[at + s]
    if rules.missing_left[j]:
        at = start + (width - 1) * num_values
        for s in range(num_values):
            box.left[s] += values[at + s]


@numba.njit(cache=True, nogil=True, inline="always")
def _partition_slot(box, key, stamp):
    """Return the place of a partition in the hash table, and insert it if it is new."""
    mask = len(box.table) - 1
    slot = np.int64((key * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32)) & mask
    while box.stamp[slot] == stamp:
        if box.table[slot] == key:
            return slot
        slot = (slot + 1) & mask
    box.stamp[slot], box.table[slot], box.count[slot] = stamp, key, 0
    return slot


@numba.njit(cache=True, nogil=True, inline="always")
def _find_gaps(group, leaf, box, rows, values, rules):
    """List the gaps that rules can cut; return their number and that of their columns.

    For the weights, ``rules.left`` temporarily stores the cuts of the column, and ``rules.below``
    the log of the gap's share of the column's width.
    """
    _, d, width, num_values = group.values.shape
    count, num_columns, first = 0, 0, 0
    num_cuts, total_width = 0, 0.0
    for g in range(d):
        low, high = box.low[g], box.high[g]
        if high - low >= 2 and group.allowed[g]:
            start = g * width * num_values
            missing = _rows_at(leaf, values, start + (width - 1) * num_values, num_values)
            before, last_code = 0.0, -1
            for code in range(low, high):
                here = _rows_at(leaf, values, start + (code + 1) * num_values, num_values)
                if here < before + 0.5:
                    continue
                if last_code >= 0:
                    for side in range(2 if group.has_missing[g] else 1):
                        left = before + side * missing
                        if left < group.min_leaf or rows - left < group.min_leaf:
                            continue
                        rules.feature[count], rules.missing_left[count] = g, side
                        rules.low[count], rules.high[count] = last_code, code
                        rules.num_cuts[count] = code - last_code if group.each_cut else 1
                        num_cuts += rules.num_cuts[count]
                        total_width += group.gap_width[g, last_code, code]
                        count += 1
                last_code, before = code, here
        if g + 1 < d and group.column[g + 1] == group.column[g]:
            continue
        for j in range(first, count):
            rules.left[j] = num_cuts
            share = group.gap_width[rules.feature[j], rules.low[j], rules.high[j]] / total_width
            rules.below[j] = math.log(share)
        num_columns += count > first
        first, num_cuts, total_width = count, 0, 0.0
    return count, num_columns


@numba.njit(cache=True, nogil=True, inline="always")
def _weigh_gaps(group, prior, box, keys, rules, count, num_features, stamp):
    """Compute log weights of the entries that `_find_gaps` listed."""
    width = group.values.shape[2]
    if prior.reads_partitions:
        total = keys[box.high[0]] + keys[width - 1]
        for j in range(count):
            start = rules.feature[j] * width
            key = keys[start + rules.low[j] + 1]
            if rules.missing_left[j]:
                key += keys[start + width - 1]
            rules.key[j] = min(key, total - key)
            box.count[_partition_slot(box, rules.key[j], stamp)] += rules.num_cuts[j]
    steps = prior.strides
    for j in range(count):
        at = (
            rules.feature[j] * steps[0]
            + num_features * steps[1]
            + rules.num_cuts[j] * steps[2]
            + rules.left[j] * steps[3]
        )
        if prior.reads_partitions:
            at += box.count[_partition_slot(box, rules.key[j], stamp)] * steps[4]
        added = prior.feature_weight[rules.feature[j]]
        if prior.reads_width:
            added += rules.below[j]
        rules.split[j] = prior.split[at] + added
        rules.rule[j] = prior.rule[at] + added
        rules.right[j] = at


@numba.njit(cache=True, nogil=True, inline="always")
def _child(group, box, g, low, high, missing):
    """Find the number in the next level of the box with another side of one feature."""
    kind = 1 if low == 0 or high == group.num_codes[g] else 2
    if not group.has_missing[g]:
        missing = 0
    number = group.child_offset[g, kind]
    number += group.side_place[g, missing, low, high] * group.child_step[g, kind]
    for axis in range(len(group.own)):
        if group.own[axis] != g:
            number += box.place[axis] * group.child_stride[g, kind, axis]
    return number


@numba.njit(cache=True, nogil=True, inline="always")
def _children(group, box, rules, j, cut):
    """Return the numbers of the two children of an entry, for one of its cuts."""
    g = rules.feature[j]
    keeps = box.missing[g]
    left = _child(group, box, g, box.low[g], cut, keeps * rules.missing_left[j])
    right = _child(group, box, g, cut, box.high[g], keeps * (1 - rules.missing_left[j]))
    return left, right


@numba.njit(cache=True, nogil=True)
def _score_both_sides(
    address, tables, numbers, values, width, total, feature, low, missing_left, sides, scores,
    below, count, skipped,
):  # fmt: skip
    """Add the scores of both sides of entries to ``below``.

    Arrays are separate arguments, because passing a tuple of arrays costs more than a score.
    """
    num_values = len(total)
    for j in range(count):
        start = feature[j] * width * num_values
        at, missing = start + (low[j] + 1) * num_values, start + (width - 1) * num_values
        goes_left = float(missing_left[j])
        for s in range(skipped, num_values):
            left = values[at + s] + goes_left * values[missing + s]
            sides[j, s - skipped], sides[count + j, s - skipped] = left, total[s] - left
    score_leaves(address, sides[: 2 * count], tables, numbers, scores[: 2 * count])  # pyright: ignore[reportCallIssue]
    for j in range(count):
        below[j] += scores[j] + scores[count + j]


@numba.njit(cache=True, nogil=True)
def _score_box(address, tables, numbers, total, sides, scores, skipped):
    """Return the log marginal of statistics [s]."""
    for s in range(skipped, len(total)):
        sides[0, s - skipped] = total[s]
    score_leaves(address, sides[:1], tables, numbers, scores[:1])  # pyright: ignore[reportCallIssue]
    return scores[0]


@numba.njit(cache=True, nogil=True, inline="always")
def _score_below(group, prior, leaf, box, number, values, below, rules, sides, scores, count):
    """Write log Q of both children of every entry into ``rules.below``."""
    if not group.is_last:
        for j in range(count):
            left, right = _children(group, box, rules, j, rules.low[j] + 1)
            rules.below[j] = below[left] + below[right]
        return
    for j in range(count):
        rules.below[j] = 2 * prior.stop_below
    if leaf.is_silent:
        return
    if leaf.address == 0:
        for j in range(count):
            at = number - leaf.first, rules.feature[j], rules.missing_left[j], rules.low[j] + 1
            rules.below[j] += leaf.left[at] + leaf.right[at]
        return
    _score_both_sides(
        leaf.address, leaf.tables, leaf.numbers, values, group.values.shape[2], box.total,
        rules.feature, rules.low, rules.missing_left, sides, scores, rules.below, count,
        leaf.skipped,
    )  # fmt: skip


@numba.njit(cache=True, nogil=True, inline="always")
def _open(group, prior, leaf, box, rules, sides, scores, number, below):
    """Open a box; return its log weight of stopping, its score, entries, features and sums."""
    values, keys = _open_box(group, box, number)
    rows = _sum_box(group, leaf, box, values)
    if rows < 0.5:
        return -np.inf, 0.0, 0, 0, values
    count, num_features = 0, 0
    if rows > 1.5 and rows >= 2 * group.min_leaf:
        count, num_features = _find_gaps(group, leaf, box, rows, values, rules)
        _weigh_gaps(group, prior, box, keys, rules, count, num_features, number + 1)
        # `rules.right` contains places in the prior's table until the entries are scored.
        _score_below(group, prior, leaf, box, number, values, below, rules, sides, scores, count)
    if leaf.is_silent:
        own = 0.0
    elif leaf.address == 0:
        own = leaf.own[number - leaf.first]
    else:
        own = _score_box(
            leaf.address, leaf.tables, leaf.numbers, box.total, sides, scores, leaf.skipped
        )
    return prior.stop[num_features], own, count, num_features, values


@numba.njit(cache=True, nogil=True, inline="always")
def _add_up(rules, count, stop, is_max):
    """Return log Q of a box from its entries, or that of its best tree."""
    best = stop
    for j in range(count):
        if is_max:
            best = max(best, rules.rule[j] + rules.below[j])
        else:
            rules.split[j] += rules.below[j]
            best = max(best, rules.split[j])
    if not is_max and count and best > -np.inf:
        total = math.exp(stop - best)
        for j in range(count):
            total += math.exp(rules.split[j] - best)
        best += math.log(total)
    return best


@numba.njit(cache=True, nogil=True, inline="always")
def _surprise(weight, log_probability):
    return -weight * log_probability if weight > 0 else 0.0


@numba.njit(cache=True, nogil=True)
def _list_sides(events, at, box, number, feature, start, end, missing_left, share):
    """List both sides of a rule, a leaf each, for each of its cuts; return the next free place."""
    for cut in range(start, end):
        for side in range(2):
            events.box[at], events.feature[at], events.cut[at] = number, feature, cut
            events.missing_left[at], events.is_right[at] = missing_left, side
            events.weight[at] = share
            for s in range(len(box.left)):
                events.statistics[at, s] = box.left[s] if side == 0 else box.total[s] - box.left[s]
            at += 1
    return at


@numba.njit(cache=True, nogil=True, inline="always")
def _copy(values, target):
    """Copy in a loop: a slice assignment takes seconds to compile, for its error."""
    for s in range(len(values)):
        target[s] = values[s]


@numba.njit(cache=True, nogil=True, inline="always")
def _list_rules(group, box, rules, count, values, events):
    """Write the statistics of the box and of left sides, and the children of each rule."""
    _copy(box.total, events.statistics[0])
    for j in range(count):
        _left_side(group, box, rules, j, values)
        _copy(box.left, events.statistics[1 + j])
        if not group.is_last:
            cut = group.middle[rules.feature[j], rules.low[j], rules.high[j]]
            rules.left[j], rules.right[j] = _children(group, box, rules, j, cut)


@numba.njit(cache=True, nogil=True, inline="always")
def _hand_down(
    group, box, rules, count, values, number, own, seen, least, visits_below, usage, events, at
):
    """Pass the visits of a box to its children; return the next free place of the events."""
    for j in range(count):
        log_p = rules.split[j] + rules.below[j] - own
        weight = seen * math.exp(log_p)
        usage.split[rules.right[j]] += weight
        usage.entropy[0] += _surprise(weight, log_p + rules.rule[j] - rules.split[j])
        g, share = rules.feature[j], weight
        start, end = rules.low[j] + 1, rules.high[j] + 1
        if group.each_cut:
            share /= rules.num_cuts[j]
        else:
            start = group.middle[g, rules.low[j], rules.high[j]]
            end = start + 1
        if weight <= least:
            usage.cuts[g, start] += weight
            continue
        for cut in range(start, end):
            usage.cuts[g, cut] += share
            if not group.is_last:
                left, right = _children(group, box, rules, j, cut)
                visits_below[left] += share
                visits_below[right] += share
        if group.is_last:
            _left_side(group, box, rules, j, values)
            at = _list_sides(events, at, box, number, g, start, end, rules.missing_left[j], share)
    return at


@numba.njit(cache=True, nogil=True)
def visit(
    task, group, prior, leaf, log_q, below, first, last, rules, visits, visits_below, usage, events,
    least,
):  # fmt: skip
    """Visit some boxes of a group, for one of three tasks.

    `INSIDE` and `BEST` write log Q of boxes, or that of their best trees, into their level's array.
    `OUTSIDE` passes visits to children and lists leaves. `EXPAND` writes the rules of the last box
    to ``rules`` and its statistics, followed by those of left sides, to the events. They are one
    function because they share most of the code, which takes seconds to compile.

    Parameters
    ----------
    task
        The task.
    group, prior, leaf
        Tables.
    log_q, below
        float64; log Q of this level and of the next one.
    first, last
        The boxes of the group from ``first`` to ``last`` - 1.
    rules
        `BoxRules` with room for those of a box.
    visits, visits_below
        float64; expected number of nodes that are each box, of this level and the next.
    usage
        `BoxUsage` to add to.
    events
        `LeafEvents` to fill.
    least
        Visits below this are dropped.

    Returns
    -------
    next
        Box to continue with once there is room for events again.
    count
        Number of events, or of rules.
    stop, score
        Log weight of stopping in the last box, and its score.
    """
    box = _make_box(group)
    most = 1 + 4 * group.values.shape[1] * group.values.shape[2]  # events of one box
    # Room for leaves; inside the box it would slow down all code that reads the box.
    sides, scores = np.empty((most, group.values.shape[3] - leaf.skipped)), np.empty(most)
    num_events, stop, score = 0, 0.0, 0.0
    for number in range(first, last):
        seen = 1.0
        if task == OUTSIDE:
            seen = visits[group.offset + number]
            if seen <= least:
                continue
            if num_events + most > len(events.weight):
                return number, num_events, stop, score
        stop, score, count, num_features, values = _open(
            group, prior, leaf, box, rules, sides, scores, number, below
        )
        if task <= BEST:
            log_q[group.offset + number] = _add_up(rules, count, stop + score, task == BEST)
            continue
        if task == EXPAND:
            _list_rules(group, box, rules, count, values, events)
            num_events = count
            continue
        own = log_q[group.offset + number]
        weight = seen * math.exp(stop + score - own)
        usage.stop[num_features] += weight
        usage.entropy[0] += _surprise(weight, stop + score - own)
        if weight > least:
            events.box[num_events], events.feature[num_events] = number, -1
            events.weight[num_events] = weight
            _copy(box.total, events.statistics[num_events])
            num_events += 1
        num_events = _hand_down(
            group, box, rules, count, values, number, own, seen, least, visits_below, usage, events,
            num_events,
        )  # fmt: skip
    return last, num_events, stop, score


@numba.njit(cache=True, nogil=True)
def statistics(group, leaf, own, left, first):
    """Write the statistics of some boxes, and of the left side of every possible rule.

    Parameters
    ----------
    group, leaf
        Tables.
    own
        float64 [boxes, s].
    left
        float64 [boxes, d, 2, width, s], by whether missing values go left and the number of codes
        on the left; [0, ...] if rules are not needed.
    first
        First of the boxes.
    """
    box = _make_box(group)
    _, d, width, num_values = group.values.shape
    for number in range(len(own)):
        values, _ = _open_box(group, box, first + number)
        _sum_box(group, leaf, box, values)
        own[number] = box.total
        if len(left):
            for g in range(d):
                start = g * width * num_values
                for cut in range(width):
                    for s in range(num_values):
                        present = values[start + cut * num_values + s]
                        missing = values[start + (width - 1) * num_values + s]
                        left[number, g, 0, cut, s] = present
                        left[number, g, 1, cut, s] = present + missing
