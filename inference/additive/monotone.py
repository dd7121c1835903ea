"""Sums of trees each of which rises, or falls, along some features: order of leaves, and a sweep.

Two leaves are ordered in a feature if both have values of it that are not missing, those of one lie
wholly below those of the other, and in every other feature they share a value, or missing ones.
Then a row can pass from one to the other by changing that feature alone. A tree is monotone where
the values of all such pairs are in order. Rows that miss the feature are not ordered with others.

The law is that of `bdtppl.models.hard.additive` given that all trees are monotone: its density is
the one without constraints times an indicator. A move of `bdtppl.inference.additive.kernels` with
the draw of values after it is reversible with respect to the law without constraints. So it is a
proposal of Metropolis and Hastings that is accepted where the new tree is monotone; else the old
one stays. Of a visit with several moves each is accepted or not by itself, for only single moves
are reversible.

Where a tree stays, its values are redrawn one after the other within the bounds that the others set
it (slice sampling; Neal 2003). This leaves the law invariant, for whether a proposal is refused
depends on the structure of the old tree alone, and not on the values that are redrawn.

The constraint is that of Chipman, George, McCulloch and Shively 2022, mBART: Multidimensional
monotone BART, section 3. Their prior has a law of values for each structure by itself; here the
joint prior of structures and values is restricted, so that splits with many orders are rarer.
"""

import math

import numpy as np

from bdtppl.inference.additive.complete_trees import (
    bounds_of,
    find_leaves,
    has_order,
    is_leaf,
    vectorised,
)
from bdtppl.inference.additive.kernels import (
    move,
    redraw_values,
    uniforms_of_move,
)
from bdtppl.inference.additive.row_sums import sums_of_leaves


@vectorised
def slice_within(before, mean, deviation, low, high, generator):
    """Move on within bounds under a normal law, which stays invariant (Neal 2003)."""
    scaled = (before - mean) / deviation
    reach = deviation * math.sqrt(scaled * scaled + 2 * generator.standard_exponential())
    low, high = max(low, mean - reach), min(high, mean + reach)
    return low + (high - low) * generator.random()


@vectorised
def _redraw_within(
    tree, rows, prior, room, residual, precision, scale, each_count, rule, value, leaf, direction,
    generator,
):  # fmt: skip
    """Redraw the values of a tree's leaves one after the other, each within its bounds."""
    a, b = sums_of_leaves(tree, room, precision, residual, each_count, rule, leaf)
    for v in range(value.shape[1]):
        if is_leaf(rule, tree, v):
            low, high = bounds_of(tree, v, rows, rule, value, direction)
            total = scale * a[v] + prior.precision
            mean, deviation = scale * b[v] / total, 1 / math.sqrt(total)
            value[tree, v] = slice_within(value[tree, v], mean, deviation, low, high, generator)


@vectorised
def sweep_monotone(
    rows, prior, room, precision, scale, each_count, left, rule, value, moves, uniform, direction,
    generator,
):  # fmt: skip
    """Redraw all trees of a sum once, in place, each of which is and stays monotone.

    Parameters
    ----------
    rows, prior, room, precision, scale, each_count, left, rule, value, moves, uniform
        As in `bdtppl.inference.additive.kernels.sweep`.
    direction
        int64 [d]; 1 where values must not fall along the feature, -1 where not rise, else 0.
    generator
        numpy.random.Generator.

    Returns
    -------
    int
        Number of proposals that were accepted.
    """
    of_move, accepted = uniforms_of_move(rule.shape[1]), 0
    leaf = room.leaf[0]
    for tree in range(len(rule)):
        own_rule, own_value = rule[tree], value[tree]
        leaf[:] = 0
        find_leaves(tree, np.int64(0), rows, rule, leaf)
        for i in range(len(left)):
            left[i] += own_value[leaf[i]]
        visit = int(uniform[tree, 0] * len(moves))
        for k in range(moves.shape[1]):
            old_rule, old_value, old_leaf = own_rule.copy(), own_value.copy(), leaf.copy()
            move(
                tree, 0, rows, prior, room, left, precision, scale, each_count, rule, leaf,
                moves[visit : visit + 1, k : k + 1], uniform[tree, k * of_move :],
            )  # fmt: skip
            normal = generator.standard_normal(len(own_value))
            redraw_values(
                tree, prior, room, left, precision, scale, each_count, rule, value, leaf, normal
            )
            if has_order(tree, rows, rule, value, direction):
                accepted += 1
                continue
            own_rule[:], own_value[:], leaf[:] = old_rule, old_value, old_leaf
            _redraw_within(
                tree, rows, prior, room, left, precision, scale, each_count, rule, value, leaf,
                direction, generator,
            )  # fmt: skip
        for i in range(len(left)):
            left[i] -= own_value[leaf[i]]
    return accepted
