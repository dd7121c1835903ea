"""Trees of a batch of chains as arrays of one capacity, and how they change shape.

Slot 0 is the root, children lie side by side and after their parent, and slots in use come first.
All functions work on a whole batch; b chains, k slots.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

__all__ = ["LEAF", "Shape", "grown", "pruned", "roots"]

LEAF = -1


class Shape(NamedTuple):
    """Structure of trees.

    Attributes
    ----------
    rule
        int32 [b, k]; rule of each split (see `Model`), `LEAF` in leaves and unused slots.
    left
        int32 [b, k]; slot of the left child, which the right one follows; 0 where there is none.
    parent
        int32 [b, k]; 0 in the root and in unused slots.
    depth
        int32 [b, k]; splits above the slot.
    size
        int32 [b]; slots in use.
    """

    rule: jax.Array
    left: jax.Array
    parent: jax.Array
    depth: jax.Array
    size: jax.Array

    @property
    def is_used(self) -> jax.Array:
        """Slots in use, bool [b, k]."""
        return _places(self.rule) < self.size[:, None]

    @property
    def is_split(self) -> jax.Array:
        """Slots that hold a split, bool [b, k]."""
        return self.rule != LEAF

    @property
    def is_leaf(self) -> jax.Array:
        """Slots that hold a leaf, bool [b, k]."""
        return self.is_used & ~self.is_split

    @property
    def is_left(self) -> jax.Array:
        """Slots that hold a left child, bool [b, k]: these are the odd ones."""
        return jnp.broadcast_to(_places(self.rule) % 2 == 1, self.rule.shape)

    @property
    def has_leaves(self) -> jax.Array:
        """Slots that hold a split whose children are both leaves, bool [b, k]."""
        is_leaf = self.is_leaf
        left = jnp.take_along_axis(is_leaf, self.left, axis=1)
        right = jnp.take_along_axis(is_leaf, jnp.minimum(self.left + 1, is_leaf.shape[1] - 1), 1)
        return self.is_split & left & right


def roots(num_chains: int, capacity: int) -> Shape:
    """Make trees of one leaf."""
    nothing = jnp.zeros((num_chains, capacity), jnp.int32)
    size = jnp.ones(num_chains, jnp.int32)
    return Shape(jnp.full_like(nothing, LEAF), nothing, nothing, nothing, size)


def _places(array: jax.Array) -> jax.Array:
    """Numbers of the slots, int32 [1, k]."""
    return jnp.arange(array.shape[1], dtype=jnp.int32)[None]


def _put(array: jax.Array, slot: jax.Array, value: jax.Array) -> jax.Array:
    """Write one value a chain."""
    return jnp.where(_places(array) == slot[:, None], value[:, None], array)


def grown(shape: Shape, slot: jax.Array, rule: jax.Array) -> Shape:
    """Split a leaf of each tree, which must have room for two more slots."""
    end = shape.size
    depth = jnp.take_along_axis(shape.depth, slot[:, None], axis=1)[:, 0] + 1
    parent, depths = shape.parent, shape.depth
    for child in (end, end + 1):
        parent, depths = _put(parent, child, slot), _put(depths, child, depth)
    return Shape(_put(shape.rule, slot, rule), _put(shape.left, slot, end), parent, depths, end + 2)


def pruned(shape: Shape, slot: jax.Array) -> tuple[Shape, jax.Array]:
    """Merge the two leaves below a split of each tree.

    Returns
    -------
    shape
        The trees; later slots move down by two.
    source
        int32 [b, k]; the slot that each one was.
    """
    gone = jnp.take_along_axis(shape.left, slot[:, None], axis=1)  # [b, 1]
    place = _places(shape.rule)
    source = jnp.minimum(place + 2 * (place >= gone), shape.rule.shape[1] - 1)
    size = shape.size - 2
    is_used = place < size[:, None]

    def moved(values, unused):
        return jnp.where(is_used, jnp.take_along_axis(values, source, axis=1), unused)

    def slots(values):
        return moved(values - 2 * (values > gone), 0)

    return Shape(
        _put(moved(shape.rule, LEAF), slot, jnp.full_like(slot, LEAF)),
        _put(slots(shape.left), slot, jnp.zeros_like(slot)),
        slots(shape.parent),
        moved(shape.depth, 0),
        size,
    ), source
