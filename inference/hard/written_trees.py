"""Conversion of the trees of chains and particles to `Tree`, and back."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from bdtppl.inference.compiling import compiled_plainly
from bdtppl.inference.hard.shapes import LEAF, Shape
from bdtppl.models.arrays.padding import in_pieces, padded_size
from bdtppl.models.arrays.precision import in_float64
from bdtppl.models.data.design import Design
from bdtppl.models.data.splits import Split, split_number
from bdtppl.models.hard.node_scores import leaf_statistics
from bdtppl.models.hard.packed_model import PackedModel, children, thresholds
from bdtppl.models.hard.tree import Tree
from bdtppl.models.wording import threshold_text

_NODES = 1 << 13  # most nodes that are settled at once
_ENTRIES_SETTLED = 1 << 25  # nodes times rows or rules


class WrittenOut(NamedTuple):
    """Trees of m states; k slots, s statistics.

    Attributes
    ----------
    trees
        `Tree` batch [m].
    statistics
        float64 [m, k, s]; leaf statistics of the rows in each slot.
    """

    trees: Tree
    statistics: np.ndarray


def root_rows(model: PackedModel, shape: Shape) -> jax.Array:
    """Put all rows into the roots, uint64 [b, k, W]; other nodes are empty."""
    rows = jnp.zeros((*shape.rule.shape, len(model.every_row)), model.every_row.dtype)
    return rows.at[:, 0].set(model.every_row)


def hand_down(model: PackedModel, shape: Shape, rows: jax.Array, changed: jax.Array):
    """Pass rows down from parents to children below changed nodes, and mark these children."""
    chain = jnp.arange(len(shape.size))
    first = jnp.where(changed & shape.is_split, shape.left, shape.capacity).min()

    def settle(slot, carry):
        rows, changed = carry
        parent = shape.parent[:, slot]
        rule = jnp.maximum(shape.rule[chain, parent], 0)
        own = jnp.where(slot % 2 == 1, *children(model, rows[chain, parent], rule))
        below = changed[:, slot] | changed[chain, parent]
        return (
            lax.dynamic_update_index_in_dim(rows, own, slot, 1),
            lax.dynamic_update_index_in_dim(changed, below, slot, 1),
        )

    return lax.fori_loop(first, shape.size.max(), settle, (rows, changed))


@compiled_plainly
def _settle_rows(model: PackedModel, shape: Shape) -> tuple[jax.Array, jax.Array]:
    """Return the threshold and statistics of each slot, [m, k] and [m, k, s]."""
    size = shape.rule.shape
    rows, _ = hand_down(model, shape, root_rows(model, shape), shape.is_used)
    flat = rows.reshape(-1, rows.shape[-1])
    threshold = thresholds(model, flat, jnp.maximum(shape.rule.ravel(), 0))
    statistics = jnp.where(shape.is_used.reshape(-1, 1), leaf_statistics(model, flat), 0.0)
    return threshold.reshape(size), statistics.reshape(*size, -1)


@in_float64
def write_out(model: PackedModel, shape: Shape) -> WrittenOut:
    """Make trees from the structures of m states.

    Parameters
    ----------
    model
        The model.
    shape
        Structures, arrays [m, ...].
    """
    width = max(len(model.statistics), model.left_rows.shape[1])
    piece = max(1, min(_NODES, _ENTRIES_SETTLED // width) // shape.capacity)
    piece = min(piece, padded_size(len(shape.size)))
    shape = jax.tree.map(np.asarray, shape)
    threshold, statistics = in_pieces(partial(_settle_rows, model), piece, shape)
    rule, left = shape.rule, shape.left
    is_split, at = rule != LEAF, np.maximum(rule, 0)
    number = np.where(is_split, np.asarray(model.split)[at], -1)
    splits = Split.at_nodes(number, np.asarray(model.feature)[at], threshold)
    trees = Tree(*splits, left, right=left + is_split, num_nodes=shape.size)
    return WrittenOut(trees, statistics)


def as_shape(model: PackedModel, design: Design, trees: Tree, capacity: int) -> Shape:
    """Convert trees [m] to states of chains; a threshold becomes the nearest equivalent cut.

    A split with an empty side gets a rule that is never available.

    Raises
    ------
    ValueError
        If a tree needs more slots than the capacity, splits on a feature that does not exist, or
        separates rows in one bin of the design.
    """
    if capacity < int(trees.num_nodes.max()):
        raise ValueError(
            f"A tree has {int(trees.num_nodes.max())} nodes, and the capacity is {capacity}."
        )
    if trees.feature.max() >= design.num_features:
        raise ValueError(
            f"A tree splits on feature {trees.feature.max()}, and the last one is "
            f"{design.num_features - 1}."
        )
    number = model.rule_numbers()
    rule = np.full((len(trees.num_nodes), capacity), LEAF)
    is_gaps = model.prior.rules == "gaps"
    for m in range(len(trees.num_nodes)):
        _enter(design, trees[m], is_gaps, number, rule[m])
    return Shape.breadth_first(rule)


def _in_one_bin(design: Design, feature: int, threshold: float) -> str:
    """Raise: a threshold is between rows of one bin."""
    start, stop = design.offset[feature : feature + 2]
    cuts = design.cut_threshold[start + 1 : stop]
    nearest = sorted(cuts[np.argsort(np.abs(cuts - threshold))[:2]])
    cut, *others = map(threshold_text, (threshold, *nearest))
    return (
        f"A tree splits {design.names[feature]!r} at {cut}, between rows of one bin of the design; "
        f"its next cuts are {' and '.join(others)}. Use one of these, or bins=None."
    )


def _enter(design: Design, tree: Tree, is_gaps, number, rule) -> None:
    """Write the rules of one tree, breadth first."""
    matrix = design.matrix
    queue = [(0, design.weights > 0)]  # slots of the tree, and the rows in them
    for slot, (at, inside) in enumerate(queue):
        feature = int(tree.feature[at])
        if feature < 0:
            continue
        values, codes = matrix[:, feature], design.codes[:, feature]
        missing, threshold = np.isnan(values), tree.threshold[at]
        start, stop = design.offset[feature : feature + 2]
        code = stop - start - 1
        is_below = values < threshold
        below, above = codes[inside & is_below], codes[inside & ~is_below & ~missing]
        if len(below) and len(above):
            first, last = below.max(), above.min()
            if first >= last:
                raise ValueError(_in_one_bin(design, feature, threshold))
            cuts = design.cut_threshold[start + first + 1 : start + last + 1]
            code = first + (0 if is_gaps else np.abs(cuts - threshold).argmin())
        side = tree.split(at).goes_left(np.nan)
        rule[slot] = number[split_number(start + code, side)]
        goes_left = inside & np.where(missing, side, codes <= code)
        queue += [(int(tree.left[at]), goes_left), (int(tree.right[at]), inside & ~goes_left)]
