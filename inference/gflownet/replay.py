"""A buffer of the best distinct trees, for replay (DT-GFN, appendix F.1)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from bdtppl.inference.gflownet.construction import Partial
from bdtppl.inference.hard.shapes import Shape, roots

_ODD = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # constants of the finaliser of splitmix64


class Buffer(NamedTuple):
    """K trees, the best first.

    Attributes
    ----------
    shape
        The trees; empty places contain trees of one leaf.
    key
        uint64 [K]; keys of the trees.
    log_joint
        float64 [K]; -inf in empty places.
    """

    shape: Shape
    key: jax.Array
    log_joint: jax.Array


def empty(size: int, capacity: int) -> Buffer:
    """Make an empty buffer for a number of trees with a number of slots."""
    return Buffer(
        roots(size, capacity), jnp.zeros(size, jnp.uint64), jnp.full(size, -jnp.inf, jnp.float64)
    )


def mixed(words: jax.Array) -> jax.Array:
    """Apply the finaliser of splitmix64 (Steele, Lea and Flood 2014): all bits depend on all."""
    words = (words ^ (words >> 30)) * jnp.uint64(_FIRST)
    words = (words ^ (words >> 27)) * jnp.uint64(_SECOND)
    return words ^ (words >> 31)


def path_keys(paths: jax.Array) -> jax.Array:
    """Return keys of nodes from their paths [..., D], uint64 [...]."""
    level = jnp.arange(1, paths.shape[-1] + 1, dtype=jnp.uint64)
    level = level.reshape((1,) * (paths.ndim - 1) + (-1,))
    each = mixed((paths + 2).astype(jnp.uint64) * jnp.uint64(_ODD) + level)
    return mixed(each).sum(axis=-1)


def tree_keys(trees: Partial) -> jax.Array:
    """Return keys of trees, uint64 [b]: equal trees have equal keys in any order of splits."""
    return jnp.where(trees.shape.is_leaf, mixed(path_keys(trees.paths)), 0).sum(axis=1)


def remember(buffer: Buffer, trees: Partial, log_joint: jax.Array) -> Buffer:
    """Add trees [b] with their log joints, and keep the best distinct ones."""
    new = Buffer(trees.shape, tree_keys(trees), log_joint)
    joined = jax.tree.map(lambda old, own: jnp.concatenate([old, own]), buffer, new)
    # Sorting brings equal keys together; all but the first of them are dropped.
    order = jnp.argsort(joined.key, stable=True)
    key, log_joints = joined.key[order], joined.log_joint[order]
    is_known = jnp.concatenate([jnp.zeros(1, bool), key[1:] == key[:-1]])
    log_joint, place = lax.top_k(jnp.where(is_known, -jnp.inf, log_joints), len(buffer.key))
    kept = jax.tree.map(lambda a: a[order][place], joined)
    return kept._replace(log_joint=log_joint)


def recall(rng_key: jax.Array, buffer: Buffer, num_trees: int) -> Shape:
    """Draw trees of the buffer uniformly with replacement; one leaf each if it is empty."""
    size = (buffer.log_joint > -jnp.inf).sum()
    place = jax.random.randint(rng_key, (num_trees,), 0, jnp.maximum(size, 1))
    return jax.tree.map(lambda a: a[place], buffer.shape)
