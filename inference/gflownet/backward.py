"""The uniform backward policy: which split was made last (DT-GFN, section 4.3).

A split whose children are both leaves can be undone, and each that is undone gives another tree: a
state has as many parents as it has such splits.
"""

import jax
import jax.numpy as jnp
from jax import lax

from bdtppl.inference.shapes import Shape, places

__all__ = ["log_parents", "reordered", "steps_of_splits"]


def steps_of_splits(shape: Shape) -> jax.Array:
    """Step at which each slot was split, int32 [b, k]; the number of slots where it never was.

    Slots lie in the order of their making.
    """
    return jnp.where(shape.is_split, (shape.left - 1) // 2, shape.capacity)


def log_parents(shape: Shape) -> jax.Array:
    """Log of the number of parents after each split, float64 [b, T]; 0 beyond the last one.

    Slots lie in the order of their making.
    """
    split_at = steps_of_splits(shape)
    children = (jnp.take_along_axis(split_at, shape.left + side, axis=1) for side in (0, 1))
    until = jnp.minimum(*children)  # the split is a last one from its own step to this one
    step = jnp.arange(shape.capacity // 2)[None, :, None]
    is_last = shape.is_split[:, None] & (split_at[:, None] <= step) & (step < until[:, None])
    is_last &= step < shape.size[:, None, None] // 2
    return jnp.log(jnp.maximum(is_last.sum(axis=-1), 1).astype(float))


def reordered(rng_key: jax.Array, shape: Shape) -> Shape:
    """Lay trees out in an order of their making that is drawn from the backward policy.

    Parameters
    ----------
    rng_key
        Key.
    shape
        Trees [b], their slots in any order.
    """
    num_trees, capacity = shape.rule.shape
    num_splits = shape.size // 2
    uniform = jax.random.uniform(rng_key, (capacity // 2, num_trees, capacity))

    def undo(carry, each):
        is_split, made_at = carry
        back, number = each
        has_child = (jnp.take_along_axis(is_split, shape.left + side, axis=1) for side in (0, 1))
        is_last = is_split & ~jnp.logical_or(*has_child)
        slot = jnp.argmax(jnp.where(is_last, number, -1.0), axis=1)
        is_own = (places(shape) == slot[:, None]) & is_last
        made_at = jnp.where(is_own, (num_splits - 1 - back)[:, None], made_at)
        return (is_split & ~is_own, made_at), None

    start = shape.is_split, jnp.zeros(shape.rule.shape, jnp.int32)
    steps = jnp.arange(capacity // 2, dtype=jnp.int32), uniform
    (_, made_at), _ = lax.scan(undo, start, steps)
    return _relaid(shape, jnp.where(shape.is_split, 2 * made_at + 1, 0))


def _relaid(shape: Shape, left: jax.Array) -> Shape:
    """Move children to other slots, given where each split's left one goes, int32 [b, k]."""
    tree = jnp.arange(len(shape.size))[:, None]
    is_right = places(shape) - jnp.take_along_axis(shape.left, shape.parent, axis=1)
    slot = jnp.take_along_axis(left, shape.parent, axis=1) + is_right
    slot = jnp.where(places(shape) == 0, 0, slot)
    parent = jnp.take_along_axis(slot, shape.parent, axis=1)
    nodes = jnp.stack([shape.rule, left, parent, shape.depth], axis=-1)
    target = jnp.where(shape.is_used, slot, shape.capacity)
    unused = jnp.zeros_like(nodes).at[..., 0].set(-1)
    return Shape(unused.at[tree, target].set(nodes, mode="drop"), shape.size)
