"""Trees of a sum as complete binary arrays: follow their rules and draw them."""

import numba
import numpy as np

# Divisions that may raise an error are not vectorised.
vectorised = numba.njit(cache=True, nogil=True, error_model="numpy")
inlined = numba.njit(cache=True, nogil=True, error_model="numpy", inline="always")


@vectorised
def follow_rule(node, rule, rows, place):
    """Move the rows that are at a node to its children; ``place``, uint8 [n], is changed.

    There is no branch: the processor could not predict it.
    """
    bins, last, missing = rows.bins[rows.feature[rule]], rows.last[rule], rows.missing[rule]
    for i in range(len(place)):
        child = 2 * node + 2 - ((bins[i] <= last) | (bins[i] == missing))
        place[i] = child if place[i] == node else place[i]


@inlined
def node_splits(rule, tree, node):
    """Whether a node of a tree is a split."""
    return node < rule.shape[1] and rule[tree, node] >= 0


@inlined
def node_exists(rule, tree, node):
    """Whether a tree has a node."""
    return node == 0 or rule[tree, (node - 1) // 2] >= 0


@vectorised
def multiply(value, leaf, total):
    """Multiply the values of the leaves that rows reach in all trees; ``total`` [n] is changed."""
    total[:] = 1.0
    for tree in range(len(leaf)):
        for i in range(len(total)):
            total[i] *= value[tree, leaf[tree, i]]


@vectorised
def grow_prior(rows, prior, rule, generator):
    """Draw trees [m] from the prior, each anew until all its leaves have rows enough.

    Parameters
    ----------
    rows, prior
        `bdtppl.inference.additive.tables.RowTables` and `SumPriorTables`.
    rule
        int32 [m, 2^levels - 1]; changed.
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
            fits = True
            for v in range(len(count)):
                is_leaf = node_exists(rule, tree, v) and not node_splits(rule, tree, v)
                if is_leaf and count[v] < prior.min_leaf:
                    fits = False
