"""Backward policies: which split was made last (DT-GFN, section 4.3).

A split whose children are both leaves can be undone. Undoing different splits gives different
trees, so a state has one parent for each such split. The paper's policy chooses uniformly among
them; a policy may also have learned logits.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.special import logsumexp

from bdtppl.inference.hard.shapes import Shape, places

_NEVER = -1e30


def steps_of_splits(shape: Shape) -> jax.Array:
    """Return the step at which each slot was split, int32 [b, k]; the number of slots for a leaf.

    Slots are in the order of their creation.
    """
    return jnp.where(shape.is_split, (shape.left - 1) // 2, shape.capacity)


def log_backward(shape: Shape, logits: jax.Array | None = None) -> jax.Array:
    """Return the log probability of undoing each split first, float64 [b, T], 0 beyond.

    Parameters
    ----------
    shape
        Trees, with slots in the order of their creation.
    logits
        Logits of undoing the split in each slot, [b, k]; None for a uniform policy.
    """
    split_at = steps_of_splits(shape)
    children = (jnp.take_along_axis(split_at, shape.left + side, axis=1) for side in (0, 1))
    until = jnp.minimum(*children)  # the split can be undone from its own step to this one
    step = jnp.arange(shape.capacity // 2)[None, :, None]
    is_last = shape.is_split[:, None] & (split_at[:, None] <= step) & (step < until[:, None])
    each = jnp.zeros(shape.rule.shape) if logits is None else logits.astype(float)
    log_sum = logsumexp(jnp.where(is_last, each[:, None], _NEVER), axis=2)
    own = jnp.where(split_at[:, None] == step, each[:, None], 0.0).sum(axis=2)
    return jnp.where(step[..., 0] < shape.size[:, None] // 2, own - log_sum, 0.0)


def reordered(rng_key: jax.Array, shape: Shape, logits: jax.Array | None = None) -> Shape:
    """Reorder trees by an order of construction drawn from the backward policy.

    Parameters
    ----------
    rng_key
        Key.
    shape
        Trees [b], their slots in any order.
    logits
        Logits of undoing the split in each slot, [b, k]; None for a uniform policy.
    """
    num_trees, capacity = shape.rule.shape
    num_splits = shape.size // 2
    number = jax.random.gumbel(rng_key, (capacity // 2, num_trees, capacity))
    if logits is not None:
        number += logits[None].astype(float)

    def undo(carry, each):
        is_split, made_at = carry
        back, number = each
        has_child = (jnp.take_along_axis(is_split, shape.left + side, axis=1) for side in (0, 1))
        is_last = is_split & ~jnp.logical_or(*has_child)
        slot = jnp.argmax(jnp.where(is_last, number, _NEVER), axis=1)
        is_own = (places(shape) == slot[:, None]) & is_last
        made_at = jnp.where(is_own, (num_splits - 1 - back)[:, None], made_at)
        return (is_split & ~is_own, made_at), None

    start = shape.is_split, jnp.zeros(shape.rule.shape, jnp.int32)
    steps = jnp.arange(capacity // 2, dtype=jnp.int32), number
    (_, made_at), _ = lax.scan(undo, start, steps)
    return _relaid(shape, jnp.where(shape.is_split, 2 * made_at + 1, 0))


def _relaid(shape: Shape, left: jax.Array) -> Shape:
    """Move children to other slots, given the new slot of each split's left child [b, k]."""
    tree = jnp.arange(len(shape.size))[:, None]
    is_right = places(shape) - jnp.take_along_axis(shape.left, shape.parent, axis=1)
    slot = jnp.take_along_axis(left, shape.parent, axis=1) + is_right
    slot = jnp.where(places(shape) == 0, 0, slot)
    parent = jnp.take_along_axis(slot, shape.parent, axis=1)
    nodes = jnp.stack([shape.rule, left, parent, shape.depth], axis=-1)
    target = jnp.where(shape.is_used, slot, shape.capacity)
    unused = jnp.zeros_like(nodes).at[..., 0].set(-1)
    return Shape(unused.at[tree, target].set(nodes, mode="drop"), shape.size)
