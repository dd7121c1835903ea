"""Equal subproblems computed once, because many draws and rules lead to the same sets of rows."""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # multiplier of Knuth's multiplicative hashing

T = TypeVar("T")


class Groups(NamedTuple):
    """Groups of equal nodes among m.

    Attributes
    ----------
    member
        int32 [m]; one node of each group, then 0.
    group
        int32 [m]; the group of each node.
    number
        int32; number of groups.
    """

    member: jax.Array
    group: jax.Array
    number: jax.Array

    @property
    def is_member(self) -> jax.Array:
        """Flag one node of each group, bool [m]."""
        return self.member[self.group] == jnp.arange(len(self.group))


def distinct(words: jax.Array) -> Groups:
    """Group equal nodes.

    Words uint64 [m, W] identify a node. Nodes are sorted by a hash and neighbours are compared in
    full: a collision may split a group, but unequal nodes are never joined.
    """
    factor = _GOLDEN * jnp.arange(1, 2 * words.shape[1], 2, dtype=words.dtype)
    mixed = words * factor[None]
    hashed = (mixed ^ (mixed >> 32)).sum(axis=1)
    order = jnp.argsort(hashed).astype(jnp.int32)
    ordered = words[order]
    is_new = (ordered != jnp.roll(ordered, 1, axis=0)).any(axis=1).at[0].set(True)
    number = jnp.cumsum(is_new, dtype=jnp.int32) - 1
    empty = jnp.zeros(len(order), jnp.int32)
    group = empty.at[order].set(number)
    member = empty.at[jnp.where(is_new, number, len(order))].set(order, mode="drop")
    return Groups(member, group, number[-1] + 1)


def map_distinct(
    function: Callable[[jax.Array], T], words: jax.Array, groups: Groups, piece: int
) -> T:
    """Apply a function to nodes, once for equal ones.

    Parameters
    ----------
    function
        From words [piece, W] to arrays [piece, ...], node by node.
    words
        uint64 [m, W].
    groups
        Groups of equal nodes.
    piece
        Number of nodes in one call.

    Returns
    -------
    arrays
        [m, ...].
    """
    piece = min(piece, len(words))
    member = jnp.pad(groups.member, (0, piece))

    def apply(carry):
        start, results = carry
        own = function(words[lax.dynamic_slice_in_dim(member, start, piece)])
        return start + piece, jax.tree.map(
            lambda all_, some: lax.dynamic_update_slice_in_dim(all_, some, start, 0), results, own
        )

    shapes = jax.eval_shape(function, words[:piece])
    nothing = jax.tree.map(
        lambda one: jnp.zeros((len(words) + piece, *one.shape[1:]), one.dtype), shapes
    )
    start = jnp.int32(0), nothing
    results = lax.while_loop(lambda carry: carry[0] < groups.number, apply, start)[1]
    return jax.tree.map(lambda array: array[groups.group], results)
