"""Trees of a batch of chains or particles as arrays of one capacity, and their changes of shape.

Slot 0 is the root, children are adjacent and come after their parent, and slots in use come first.
All functions work on a whole batch; b chains, k slots.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

LEAF = -1

_FLAGS_A_PRODUCT = 32  # flags that are counted by one product

_RULE, _LEFT, _PARENT, _DEPTH = range(4)
_UNUSED = (LEAF, 0, 0, 0)


class Shape(NamedTuple):
    """Structure of trees.

    Attributes
    ----------
    nodes
        int32 [b, k, 4]; `rule`, `left`, `parent` and `depth` of each slot.
    size
        int32 [b]; slots in use.
    """

    nodes: Any
    size: Any

    @classmethod
    def breadth_first(cls, rule: np.ndarray) -> "Shape":
        """Lay out rules, int [b, k]: the j-th split has its children in 2 j + 1 and 2 j + 2."""
        is_split = rule != LEAF
        left = np.where(is_split, 2 * np.cumsum(is_split, axis=1) - 1, 0)
        parent, depth = np.zeros(rule.shape, np.int32), np.zeros(rule.shape, np.int32)
        for slot in range(rule.shape[1]):
            tree = np.flatnonzero(is_split[:, slot])
            for child in (left[tree, slot], left[tree, slot] + 1):
                parent[tree, child], depth[tree, child] = slot, depth[tree, slot] + 1
        nodes = np.stack([rule, left, parent, depth], axis=-1).astype(np.int32)
        return cls(nodes, (1 + 2 * is_split.sum(axis=1)).astype(np.int32))

    @property
    def rule(self) -> Any:
        """Rule of each split (see `Model`), `LEAF` in leaves and unused slots, int32 [b, k]."""
        return self.nodes[..., _RULE]

    @property
    def left(self) -> Any:
        """Slot of the left child, just before the right one, int32 [b, k]; 0 if none."""
        return self.nodes[..., _LEFT]

    @property
    def parent(self) -> Any:
        """Slot of the parent, int32 [b, k]; 0 in the root and in unused slots."""
        return self.nodes[..., _PARENT]

    @property
    def depth(self) -> Any:
        """Splits above the slot, int32 [b, k]."""
        return self.nodes[..., _DEPTH]

    @property
    def capacity(self) -> int:
        """Number of slots k."""
        return self.nodes.shape[1]

    @property
    def is_used(self) -> jax.Array:
        """Slots in use, bool [b, k]."""
        return places(self) < self.size[:, None]

    @property
    def is_split(self) -> jax.Array:
        """Slots with a split, bool [b, k]."""
        return self.rule != LEAF

    @property
    def is_leaf(self) -> jax.Array:
        """Slots with a leaf, bool [b, k]."""
        return self.is_used & ~self.is_split

    @property
    def has_leaves(self) -> jax.Array:
        """Slots with a split whose children are both leaves, bool [b, k]."""
        is_leaf = self.is_leaf
        both = is_leaf & jnp.roll(is_leaf, -1, axis=1)  # of a left child and the slot after it
        return self.is_split & jnp.take_along_axis(both, self.left, axis=1)


def heap_order(is_split: np.ndarray) -> np.ndarray:
    """List the slots of heaps that are in use, breadth first, int [b, k]; unused ones come last.

    Parameters
    ----------
    is_split
        bool [b, 2^D - 1]; splits of heaps, whose slot i has the children 2 i + 1 and 2 i + 2.
    """
    is_used = np.insert(np.repeat(is_split, 2, axis=1), 0, True, axis=1)
    order = np.argsort(~is_used, axis=1, kind="stable")
    return order[:, : is_used.sum(axis=1).max()]


def places(shape: Shape) -> jax.Array:
    """Return numbers of the slots, int32 [1, k]."""
    return jnp.arange(shape.capacity, dtype=jnp.int32)[None]


def with_capacity(shape: Shape, capacity: int) -> Shape:
    """Give trees more slots."""
    num_more = len(shape.size), capacity - shape.capacity, len(_UNUSED)
    more = jnp.broadcast_to(jnp.array(_UNUSED, jnp.int32), num_more)
    return shape._replace(nodes=jnp.concatenate([shape.nodes, more], axis=1))


def running_count(flags: jax.Array) -> jax.Array:
    """Count flags [b, k] up to each one along the second axis, int32 [b, k].

    Two matrix products: `jnp.cumsum` becomes dozens of small operations on a CPU.
    """
    size = flags.shape[1]
    blocks = -(-size // _FLAGS_A_PRODUCT)
    flags = jnp.pad(flags, ((0, 0), (0, blocks * _FLAGS_A_PRODUCT - size))).astype(jnp.float32)
    ones = jnp.ones((_FLAGS_A_PRODUCT, _FLAGS_A_PRODUCT), jnp.float32)
    within = flags.reshape(-1, blocks, _FLAGS_A_PRODUCT) @ jnp.triu(ones)
    before = within[..., -1] @ jnp.triu(jnp.ones((blocks, blocks), jnp.float32), 1)
    running = (within + before[..., None]).reshape(len(flags), -1)
    return running[:, :size].astype(jnp.int32)


def roots(num_chains: int, capacity: int) -> Shape:
    """Make trees of one leaf."""
    nodes = jnp.broadcast_to(jnp.array(_UNUSED, jnp.int32), (num_chains, capacity, 4))
    return Shape(nodes, jnp.ones(num_chains, jnp.int32))


def with_rules(shape: Shape, is_new: jax.Array, rule: jax.Array) -> Shape:
    """Set other rules in some slots, bool [b, k], int32 [b, k] or [b, 1]."""
    rule = jnp.where(is_new, rule, shape.rule)
    return shape._replace(nodes=jnp.concatenate([rule[..., None], shape.nodes[..., 1:]], axis=2))


def _put(shape: Shape, slot: jax.Array, *node: Any) -> Shape:
    """Write one node of each chain."""
    values = jnp.stack([jnp.broadcast_to(jnp.int32(value), slot.shape) for value in node], axis=1)
    is_there = (places(shape) == slot[:, None])[..., None]
    return shape._replace(nodes=jnp.where(is_there, values[:, None], shape.nodes))


def _cleared(shape: Shape) -> Shape:
    """Reset unused slots."""
    unused = jnp.array(_UNUSED, jnp.int32)[None, None]
    return shape._replace(nodes=jnp.where(shape.is_used[..., None], shape.nodes, unused))


def grown(shape: Shape, slot: jax.Array, rule: jax.Array) -> Shape:
    """Split a leaf of each tree, which must have room for two more slots."""
    end = shape.size
    old = shape.nodes[jnp.arange(len(slot)), slot]
    shape = _put(shape, slot, rule, end, old[:, _PARENT], old[:, _DEPTH])
    for child in (end, end + 1):
        shape = _put(shape, child, LEAF, 0, slot, old[:, _DEPTH] + 1)
    return shape._replace(size=end + 2)


def pruned(shape: Shape, slot: jax.Array) -> tuple[Shape, jax.Array]:
    """Merge the two leaves below a split of each tree.

    Returns
    -------
    shape
        The trees; later slots move down by two.
    source
        int32 [b, k]; the previous slot of each one.
    """
    old = shape.nodes[jnp.arange(len(slot)), slot]
    gone = old[:, _LEFT, None, None]
    source = jnp.minimum(places(shape) + 2 * (places(shape) >= gone[:, 0]), shape.capacity - 1)
    # Slots after the removed ones move down as well.
    is_slot = jnp.array([[[False, True, True, False]]])
    nodes = shape.nodes - jnp.where(is_slot & (shape.nodes > gone), 2, 0)
    nodes = jnp.take_along_axis(nodes, source[..., None], axis=1)
    smaller = _cleared(Shape(nodes, shape.size - 2))
    return _put(smaller, slot, LEAF, 0, old[:, _PARENT], old[:, _DEPTH]), source


def rotated(shape: Shape, slot: jax.Array) -> tuple[Shape, jax.Array]:
    """Lift a split of each tree, int32 [b], over its parent, which becomes one of its children.

    The three subtrees below the two keep their order from left to right, and the slots are
    renumbered, breadth first.

    Returns
    -------
    shape
        The trees.
    source
        int32 [b, k]; the previous slot of each one.
    """
    chain, is_right = jnp.arange(len(slot)), slot % 2 == 0
    parent, lifted = shape.parent[chain, slot], shape.nodes[chain, slot]
    first, own = shape.left[chain, parent], lifted[:, _LEFT]
    is_slot, is_parent = (places(shape) == each[:, None] for each in (slot, parent))
    rule = jnp.where(is_slot, shape.rule[chain, parent][:, None], shape.rule)
    rule = jnp.where(is_parent, lifted[:, _RULE, None], rule)
    above = jnp.where(is_right[:, None], jnp.stack([slot, own + 1], 1), jnp.stack([own, slot], 1))
    inner = jnp.where(is_right, first, own + 1)
    below = jnp.stack([inner, jnp.where(is_right, own, first + 1)], 1)
    children = jnp.stack([shape.left, shape.left + 1], axis=2)
    children = jnp.where(is_parent[..., None], above[:, None], children)
    children = jnp.where(is_slot[..., None], below[:, None], children)

    def lay_out(place, carry):
        new, source = carry
        old = source[:, place]
        is_split = (place < new.size) & (rule[chain, old] != LEAF)
        for side in range(2):
            is_there = is_split[:, None] & (places(new) == new.size[:, None] + side)
            source = jnp.where(is_there, children[chain, old, side][:, None], source)
        larger = grown(new, jnp.full_like(old, place), rule[chain, old])
        return select_trees(is_split, larger, new), source

    start = roots(len(slot), shape.capacity), jnp.zeros_like(shape.rule)
    return lax.fori_loop(0, shape.size.max(), lay_out, start)


def select_trees(condition: jax.Array, one, other):
    """Choose between two pytrees tree by tree, by bool [b]."""

    def choose(a, b):
        return jnp.where(condition.reshape(-1, *[1] * (a.ndim - 1)), a, b)

    return jax.tree.map(choose, one, other)


def edit_node(shape: Shape, slot: jax.Array, rule: jax.Array) -> tuple[Shape, jax.Array]:
    """Split a leaf of each tree, or set a split's rule; `LEAF` merges the two leaves below it.

    Returns
    -------
    shape
        The trees.
    source
        int32 [b, k]; the previous slot of each one.
    """
    chain, place = jnp.arange(len(slot)), places(shape)
    is_leaf, is_merge = shape.rule[chain, slot] == LEAF, rule == LEAF
    smaller, source = pruned(shape, slot)
    new = with_rules(shape, place == slot[:, None], rule[:, None])
    new = select_trees(is_leaf, grown(shape, slot, rule), new)
    new = select_trees(is_merge, smaller, new)
    return new, jnp.where(is_merge[:, None], source, place)


def branched(
    shape: Shape, is_wanted: jax.Array, rule: jax.Array
) -> tuple[Shape, jax.Array, jax.Array, jax.Array]:
    """Split several leaves of each tree at once, if there is room for all their children.

    Parameters
    ----------
    shape
        Trees.
    is_wanted
        bool [b, k]; leaves to split.
    rule
        int32 [b, k]; their rules.

    Returns
    -------
    shape
        The trees.
    is_new
        bool [b, k]; the new slots.
    above
        int32 [b, k, 1]; the slots above these.
    is_full
        bool [b]; trees without room, which do not change.
    """
    capacity, chain = shape.capacity, jnp.arange(len(shape.size))[:, None]
    is_full = shape.size + 2 * is_wanted.sum(axis=1) > capacity
    is_split = is_wanted & ~is_full[:, None]
    rank = running_count(is_split)
    left = jnp.where(is_split, shape.size[:, None] + 2 * (rank - 1), 0)
    size = shape.size + 2 * rank[:, -1]
    target = jnp.where(is_split, left, capacity)
    slot = jnp.broadcast_to(places(shape), rank.shape)
    parent = jnp.full_like(rank, capacity)
    for child in (target, target + 1):
        parent = parent.at[chain, child].set(slot, mode="drop")
    is_new, above = parent < capacity, jnp.minimum(parent, capacity - 1)
    nodes = jnp.stack(
        [
            jnp.where(is_split, rule, shape.rule),
            jnp.where(is_split, left, shape.left),
            jnp.where(is_new, parent, shape.parent),
            jnp.where(is_new, jnp.take_along_axis(shape.depth, above, axis=1) + 1, shape.depth),
        ],
        axis=-1,
    )
    return Shape(nodes, size), is_new, above[..., None], is_full


def cut_back(
    shape: Shape, is_leaf: jax.Array, is_gone: jax.Array
) -> tuple[Shape, Callable[[jax.Array], jax.Array]]:
    """Make leaves of some nodes of each tree, bool [b, k], and drop all nodes below these.

    Returns
    -------
    shape
        The trees; the remaining slots are compacted in order.
    moved
        Function that moves values [b, k, ...] of slots accordingly.
    """
    chain = jnp.arange(len(shape.size))[:, None]
    is_kept = shape.is_used & ~is_gone
    new_slot = running_count(is_kept) - 1
    target = jnp.where(is_kept, new_slot, shape.capacity)
    slot = jnp.broadcast_to(places(shape), target.shape)
    source = jnp.zeros_like(target).at[chain, target].set(slot, mode="drop")
    nodes = jnp.stack(
        [
            jnp.where(is_leaf, LEAF, shape.rule),
            jnp.where(is_leaf, 0, jnp.take_along_axis(new_slot, shape.left, axis=1)),
            jnp.take_along_axis(new_slot, shape.parent, axis=1),
            shape.depth,
        ],
        axis=-1,
    )
    smaller = Shape(jnp.take_along_axis(nodes, source[..., None], axis=1), new_slot[:, -1] + 1)
    return _cleared(smaller), lambda values: jax.vmap(lambda own, at: own[at])(values, source)


def subtree_sums(shape: Shape, values: jax.Array) -> jax.Array:
    """Sum values [b, k] over each node and all nodes below it; 0 in unused slots."""
    chain, end = jnp.arange(len(shape.size)), shape.size.max()

    def settle(step, sums):
        slot = end - 1 - step
        return sums.at[chain, shape.parent[:, slot]].add(sums[:, slot])

    return lax.fori_loop(0, end - 1, settle, jnp.where(shape.is_used, values, 0))
