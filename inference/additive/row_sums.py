"""Sums over the rows of nodes, of which the moves of a sum's trees are made.

A histogram has two or three numbers in each bin: the sums of precision times residual and of
precisions, and the number of rows, where it differs from the second by more than a factor.
"""

from typing import NamedTuple

import numpy as np

from bdtppl.inference.additive.complete_trees import inner, is_leaf
from bdtppl.inference.additive.tables import MOST_BINS

LANES = 64  # sums of every 64th row: vector units add them side by side
_CACHED_ROWS = 4096  # which stay in the processor's cache while several columns are read


class Room(NamedTuple):
    """Arrays that a sweep works in; their contents between two moves are meaningless.

    Attributes
    ----------
    histogram
        float64 [3, leaves * V + 256]; what lies behind the first leaves * V is never read.
    sums
        float64 [leaves, 3, R]; sums on the left side of each rule.
    gain, weight
        float64 [R].
    scaled, bits
        float64 [R], and the same memory as int64 [R].
    node
        int64 [4, nodes]; of each node the number of its histogram, or -1, and of each histogram its
        node, and the first and the end of the groups that it is over.
    start
        uint64 [2, nodes]; where the bins of a column begin in the histogram of each node, and the
        column.
    of_leaf
        float64 [2, nodes]; sums over the rows of each leaf.
    lanes
        float64 [2, 64]; partial sums of a leaf.
    leaf
        uint8 [3, n]; leaf of each row in the tree that is redrawn, in the one before, and below a
        side of a split.
    """

    histogram: np.ndarray
    sums: np.ndarray
    gain: np.ndarray
    weight: np.ndarray
    scaled: np.ndarray
    bits: np.ndarray
    node: np.ndarray
    start: np.ndarray
    of_leaf: np.ndarray
    lanes: np.ndarray
    leaf: np.ndarray


def sweep_room(num_rows: int, num_bins: int, num_rules: int, levels: int) -> Room:
    """Allocate what a sweep works in."""
    leaves, nodes = max(2**levels, 2), 2 ** (levels + 1) - 1
    scaled = np.empty(num_rules)
    return Room(
        histogram=np.empty((3, leaves * num_bins + MOST_BINS)),
        sums=np.empty((leaves, 3, num_rules)), gain=np.empty(num_rules),
        weight=np.empty(num_rules), scaled=scaled, bits=scaled.view(np.int64),
        node=np.empty((4, nodes), np.int64), start=np.empty((2, nodes), np.uint64),
        of_leaf=np.empty((2, nodes)), lanes=np.empty((2, LANES)),
        leaf=np.empty((3, num_rows), np.uint8),
    )  # fmt: skip


@inner
def _add_rows(
    bins, first, leaf, residual, precision, each_count, start, column, is_shared, histogram
):  # fmt: skip
    """Add rows from the ``first`` on to the bins of a histogram for each leaf."""
    sums, precisions, counts = histogram
    if each_count:
        for i in range(len(leaf)):
            v = leaf[i]
            k = start[v] + bins[column[v], first + i]
            sums[k] += precision[i] * residual[i]
            precisions[k] += precision[i]
            counts[k] += 1.0
    elif is_shared:
        own = bins[column[0], first : first + len(leaf)]
        for i in range(len(leaf)):
            k = start[leaf[i]] + own[i]
            sums[k] += residual[i]
            precisions[k] += 1.0
    else:
        for i in range(len(leaf)):
            v = leaf[i]
            k = start[v] + bins[column[v], first + i]
            sums[k] += residual[i]
            precisions[k] += 1.0


@inner
def clear(rows, room, num_slots):
    """Set the histograms of all slots to 0."""
    _, _, low, high = room.node
    for s in range(num_slots):
        begin = s * rows.offset[-1]
        for channel in room.histogram:
            channel[begin + rows.offset[low[s]] : begin + rows.offset[high[s]]] = 0.0


@inner
def fill_histograms(rows, room, residual, precision, each_count, leaf, num_slots):
    """Add rows to the histograms of the slots of their leaves."""
    histogram, (slot_of, _, low, high) = room.histogram, room.node
    start, column = room.start
    width = 0
    for s in range(num_slots):
        width = max(width, high[s] - low[s])
    for first in range(0, len(leaf), _CACHED_ROWS):
        own = slice(first, min(first + _CACHED_ROWS, len(leaf)))
        for c in range(width):
            shared = min(low[0] + c, len(rows.offset) - 2)
            is_shared = True
            for v in range(len(slot_of)):
                s = slot_of[v]
                start[v], column[v] = histogram.shape[1] - MOST_BINS, shared
                if s >= 0 and low[s] + c < high[s]:
                    column[v] = low[s] + c
                    start[v] = s * rows.offset[-1] + rows.offset[low[s] + c]
                    is_shared = is_shared and low[s] + c == shared
            _add_rows(
                rows.group_bins, first, leaf[own], residual[own], precision[own], each_count, start,
                column, is_shared, histogram,
            )  # fmt: skip


@inner
def sum_left(rows, room, s, channels, low, high):
    """Sum a histogram up to the left sides of the rules of some groups."""
    num_bins = rows.offset[-1]
    histogram, sums = room.histogram[:, s * num_bins : (s + 1) * num_bins], room.sums[s]
    for k in range(len(rows.run_rule)):
        group = rows.group[rows.run_rule[k]]
        if group < low or group >= high:
            continue
        first, count, v = rows.run_rule[k], rows.run_length[k], rows.run_bin[k]
        missing = rows.run_missing[k]
        b = a = n = 0.0
        if missing >= 0:
            b, a, n = histogram[0, missing], histogram[1, missing], histogram[2, missing]
        for c in range(count):
            b += histogram[0, v + c]
            a += histogram[1, v + c]
            sums[0, first + c] = b
            sums[1, first + c] = a
        if channels > 2:
            for c in range(count):
                n += histogram[2, v + c]
                sums[2, first + c] = n
    for k in range(len(rows.set_rule)):
        q = rows.set_rule[k]
        if q < 0 or rows.group[q] < low or rows.group[q] >= high:
            continue
        v, end = rows.offset[rows.group[q]], rows.offset[rows.group[q] + 1]
        for channel in range(channels):
            left = 0.0
            for c in range(end - v):
                left += rows.goes_left[k, c] * histogram[channel, v + c]
            sums[channel, q] = left


@inner
def totals(rows, room, s, channels, group, total):
    """Sum a histogram up over the bins of a group, which are those of all rows."""
    for c in range(channels):
        total[c] = 0.0
        for v in range(rows.offset[group], rows.offset[group + 1]):
            total[c] += room.histogram[c, s * rows.offset[-1] + v]


@inner
def _add_leaf(node, leaf, precision, residual, each_count, lanes):
    """Sum precisions, and these times residuals, over the rows of a leaf.

    Rows that are a number of lanes apart are summed first, and then the lanes.
    """
    count, here, num_rows = 0, np.uint8(node), len(leaf)
    a, b = lanes[0], lanes[1]
    lanes[:] = 0.0
    end = num_rows - num_rows % LANES
    for first in range(0, end, LANES):
        own, r = leaf[first : first + LANES], residual[first : first + LANES]
        if each_count:
            p = precision[first : first + LANES]
            for k in range(LANES):
                a[k] += p[k] if own[k] == here else 0.0
            for k in range(LANES):
                b[k] += p[k] * r[k] if own[k] == here else 0.0
        else:
            for k in range(LANES):
                b[k] += r[k] if own[k] == here else 0.0
    for i in range(end, num_rows):
        if leaf[i] == here:
            weight = precision[i] if each_count else 1.0
            a[i - end] += weight
            b[i - end] += weight * residual[i]
    width = LANES
    while width > 1:
        width //= 2
        for k in range(width):
            a[k] += a[k + width]
            b[k] += b[k + width]
    if each_count:
        return a[0], b[0]
    for i in range(num_rows):
        count += leaf[i] == here
    return float(count), b[0]


@inner
def sums_of_leaves(tree, room, precision, residual, each_count, rule, leaf):
    """Sum precisions, and these times residuals, over the rows of each leaf, float64 [2, nodes]."""
    sums = room.of_leaf
    sums[:] = 0.0
    for first in range(0, len(leaf), _CACHED_ROWS):
        own = slice(first, min(first + _CACHED_ROWS, len(leaf)))
        for v in range(sums.shape[1]):
            if is_leaf(rule, tree, v):
                a, b = _add_leaf(
                    v, leaf[own], precision[own], residual[own], each_count, room.lanes
                )
                sums[0, v] += a
                sums[1, v] += b
    return sums
