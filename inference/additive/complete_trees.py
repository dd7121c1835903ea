"""Trees of a sum as complete binary arrays: follow their rules and draw them."""

from typing import Any

import numba
import numpy as np

# Divisions that may raise an error are not vectorised.
vectorised = numba.njit(cache=True, nogil=True, error_model="numpy")
# Only other such functions call these: to compile how Python calls them takes a tenth of the time.
_unwrapped: Any = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
inner = numba.njit(cache=True, nogil=True, error_model="numpy", **_unwrapped)
inlined = numba.njit(cache=True, nogil=True, error_model="numpy", inline="always")


@inner
def follow_rule(node, rule, rows, place):
    """Move the rows that are at a node to its children; ``place``, uint8 [n], is changed.

    There is no branch: the processor could not predict it. All are bytes, so that vector units
    take many rows at once.
    """
    bins, last = rows.bins[rows.feature[rule]], np.uint8(rows.last[rule])
    missing = np.uint8(max(rows.missing[rule], 0))  # bin 0 goes left in any case
    here, left, right = np.uint8(node), np.uint8(2 * node + 1), np.uint8(2 * node + 2)
    for i in range(len(place)):
        child = left if (bins[i] <= last) | (bins[i] == missing) else right
        place[i] = child if place[i] == here else place[i]


@inlined
def node_splits(rule, tree, node):
    """Whether a node of a tree is a split."""
    return node < rule.shape[1] and rule[tree, node] >= 0


@inlined
def node_exists(rule, tree, node):
    """Whether a tree has a node."""
    return node == 0 or rule[tree, (node - 1) // 2] >= 0


@inlined
def is_leaf(rule, tree, node):
    """Whether a node of a tree is a leaf."""
    return node_exists(rule, tree, node) and not node_splits(rule, tree, node)


@inner
def _range_of(tree, node, feature, rows, rule):
    """Find the bins of a feature that reach a node: the first, the end, and whether missing do."""
    low, end, has_missing = 0, 1 << 30, True
    while node > 0:
        parent = (node - 1) // 2
        q = rule[tree, parent]
        if rows.feature[q] == feature:
            is_left = node == 2 * parent + 1
            has_missing = has_missing and is_left == (rows.missing[q] >= 0)
            if is_left:
                end = min(end, rows.last[q] + 1)
            else:
                low = max(low, rows.last[q] + 1)
        node = parent
    return low, end, has_missing


@vectorised
def _order_of(tree, first, second, rows, rule, direction):
    """Compare two leaves: 1 if the second one's value must not be lower, -1 if not higher, or 0."""
    apart, order = -1, 0
    for leaf in (first, second):
        node = leaf
        while node > 0:
            node = (node - 1) // 2
            j = rows.feature[rule[tree, node]]
            if j == apart:
                continue
            low, end, missing = _range_of(tree, first, j, rows, rule)
            other_low, other_end, other_missing = _range_of(tree, second, j, rows, rule)
            if max(low, other_low) < min(end, other_end) or (missing and other_missing):
                continue
            if apart >= 0 or direction[j] == 0 or low >= end or other_low >= other_end:
                return 0
            apart, order = j, direction[j] if end <= other_low else -direction[j]
    return order


@vectorised
def bounds_of(tree, node, rows, rule, value, direction):
    """Find the lowest and the highest value that the other leaves of a tree leave to a leaf."""
    low, high = -np.inf, np.inf
    for other in range(value.shape[1]):
        if other != node and is_leaf(rule, tree, other):
            order = _order_of(tree, other, node, rows, rule, direction)
            low = max(low, value[tree, other]) if order > 0 else low
            high = min(high, value[tree, other]) if order < 0 else high
    return low, high


@vectorised
def has_order(tree, rows, rule, value, direction):
    """Whether a tree is monotone (`bdtppl.inference.additive.monotone`)."""
    for v in range(value.shape[1]):
        if is_leaf(rule, tree, v):
            low, high = bounds_of(tree, v, rows, rule, value, direction)
            if value[tree, v] < low or value[tree, v] > high:
                return False
    return True


@inner
def find_leaves(tree, node, rows, rule, place):
    """Move the rows that are at a node on to the leaves below it; ``place``, uint8 [n], is changed.

    One loop over all rows for each split: processors cannot predict the ways of single rows.
    """
    low = high = node
    while low < rule.shape[1]:
        for v in range(low, high + 1):
            if rule[tree, v] >= 0:
                follow_rule(v, np.int64(rule[tree, v]), rows, place)
        low, high = 2 * low + 1, 2 * high + 2


@vectorised
def evaluate(rows, rule, value, is_product, total):
    """Write the sum, or the product, of all trees at each row into ``total`` [n]."""
    total[:] = 1.0 if is_product else 0.0
    leaf = np.empty(len(total), np.uint8)
    for tree in range(len(rule)):
        leaf[:] = 0
        find_leaves(tree, np.int64(0), rows, rule, leaf)
        own = value[tree]
        for i in range(len(total)):
            total[i] = total[i] * own[leaf[i]] if is_product else total[i] + own[leaf[i]]


@vectorised
def grow_prior(rows, prior, rule, value, direction, generator):
    """Draw trees [m] from the prior, each anew until all its leaves have rows enough and an order.

    Parameters
    ----------
    rows, prior
        `bdtppl.inference.additive.tables.RowTables` and `SumPriorTables`.
    rule
        int32 [m, 2^levels - 1]; changed.
    value
        float64 [m, 2^(levels + 1) - 1]; standard normal in leaves, 0 elsewhere; changed.
    direction
        int64 [d]; directions of features (`bdtppl.inference.additive.monotone`); empty for none.
    generator
        numpy.random.Generator.
    """
    num_rows, internal = len(rows.weights), rule.shape[1]
    running = np.cumsum(prior.rule)
    leaf = np.empty(num_rows, np.uint8)
    count = np.empty(2 * internal + 1)
    for tree in range(len(rule)):
        fits = False
        while not fits:
            rule[tree] = -1
            leaf[:] = 0
            low, level = 0, 0
            while low < internal:
                for v in range(low, 2 * low + 1):
                    if not node_exists(rule, tree, v):
                        continue
                    if generator.random() >= np.exp(prior.log_split[level]):
                        continue
                    q = np.searchsorted(running, generator.random() * running[-1], side="right")
                    q = min(q, len(running) - 1)
                    rule[tree, v] = q
                    follow_rule(v, q, rows, leaf)
                low, level = 2 * low + 1, level + 1
            count[:] = 0.0
            for i in range(num_rows):
                count[leaf[i]] += 1.0
            fits, value[tree] = True, 0.0
            for v in range(len(count)):
                if is_leaf(rule, tree, v):
                    value[tree, v] = generator.standard_normal()
                    fits = fits and count[v] >= prior.min_leaf
            if len(direction) > 0:
                fits = fits and has_order(tree, rows, rule, value, direction)
