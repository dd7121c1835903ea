"""The restructure move of Wu, Tjelmeland and West 2007: another tree with the same leaves.

The proposal has leaves with the same sets of rows and so the same likelihood, but other splits
above them. It is built from the root down: a node with several of the leaves gets a rule, uniformly
among its available ones that leave every leaf whole on one side. A tree's proposal probability is
the product of one over the number of these rules at each of its splits, and the reverse probability
is the same product along the current tree's splits.

The move alone never changes the leaves, so it is combined with local moves (see `Alternate`).
"""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from bdtppl.inference.hard.shapes import Shape, grown, roots, running_count, select_trees
from bdtppl.inference.metropolis.alternate import Alternate
from bdtppl.inference.metropolis.kernel import KERNELS, NamedKernel, Proposal
from bdtppl.inference.metropolis.moves import CHIPMAN, LocalMoves
from bdtppl.inference.metropolis.state import State, scored
from bdtppl.models.hard.packed_model import PackedModel, available_rules, children
from bdtppl.models.pytrees import pytree_dataclass


@pytree_dataclass
class Restructure:
    """A kernel that proposes another tree with the same leaves in each chain."""

    names: ClassVar[tuple[str, ...]] = ("restructure",)

    def propose(
        self,
        rng_keys: jax.Array,
        number: jax.Array,
        model: PackedModel,
        state: State,
        power: jax.Array,
    ) -> Proposal:
        """Propose to all chains (see `Kernel`)."""
        shape = (state.shape.capacity,)
        return restructured(
            model, state, jax.vmap(lambda key: jax.random.uniform(key, shape))(rng_keys)
        )


def _cut_leaves(model: PackedModel, state: State) -> jax.Array:
    """Return which rules cut the leaf in each slot, bool [b, k, R]; False if there is no leaf."""
    num_chains, num_slots, num_words = state.rows.shape
    rows = state.rows.reshape(-1, num_words)
    available = available_rules(model, rows, jnp.zeros(len(rows), jnp.int32))
    is_cut = (available.num_left > 0) & (available.num_left < available.num_rows[:, None])
    return is_cut.reshape(num_chains, num_slots, -1) & state.shape.is_leaf[..., None]


def restructured(model: PackedModel, state: State, uniform: jax.Array) -> Proposal:
    """Build another tree above the leaves of each chain's.

    Parameters
    ----------
    model
        The model.
    state
        States of the chains.
    uniform
        float64 [b, k]; random numbers, one per slot.
    """
    num_chains, capacity = uniform.shape
    chain = jnp.arange(num_chains)
    num_words = len(model.left_rows)
    leaf_rows, is_leaf = state.rows[..., :num_words], state.shape.is_leaf
    is_cut = _cut_leaves(model, state)

    @jax.vmap
    def choices(rows, depth):
        """Return rules [b, R] that leave all leaves of nodes whole; none if there is one leaf."""
        is_inside = is_leaf & ((leaf_rows & ~rows[:, None, :num_words]) == 0).all(axis=2)
        cuts = (is_inside[..., None] & is_cut).any(axis=1)
        is_choice = available_rules(model, rows, depth).is_rule & ~cuts
        num_leaves = is_inside.sum(axis=1)
        return is_choice & (num_leaves > 1)[:, None], num_leaves

    def settle(slot, carry):
        shape, rows, log_ratio = carry
        own = rows[:, slot]
        depth = jnp.stack([shape.depth[:, slot], state.shape.depth[:, slot]])
        # For the new tree and, for the reverse move, the current one.
        both, num_leaves = choices(jnp.stack([own, state.rows[:, slot]]), depth)
        is_choice, num_leaves, back = both[0], num_leaves[0], both[1].sum(axis=1)
        running = running_count(is_choice)
        count = running[:, -1]
        rank = jnp.minimum((uniform[:, slot] * count).astype(jnp.int32), count - 1)
        rule = jnp.where(count > 0, (running <= rank[:, None]).sum(axis=1), 0).astype(jnp.int32)
        has_several = (slot < shape.size) & (num_leaves > 1)
        splits, is_stuck = has_several & (count > 0), has_several & (count == 0)
        end = jnp.where(splits, shape.size, capacity)
        shape = select_trees(splits, grown(shape, jnp.full(num_chains, slot), rule), shape)
        for place, side in zip((end, end + 1), children(model, own, rule), strict=True):
            rows = rows.at[chain, place].set(side, mode="drop")

        back = jnp.where(state.shape.is_split[:, slot], back, 1)
        log_ratio += jnp.where(splits, jnp.log(count.astype(float)), 0.0) - jnp.log(back)
        return shape, rows, jnp.where(is_stuck, -jnp.inf, log_ratio)

    start = (
        roots(num_chains, capacity),
        jnp.zeros_like(state.rows).at[:, 0].set(model.every_row),
        jnp.zeros(num_chains),
    )
    shape, rows, log_ratio = lax.fori_loop(0, state.shape.size.max(), settle, start)
    is_built = log_ratio > -jnp.inf
    shape: Shape = select_trees(is_built, shape, state.shape)
    rows = select_trees(is_built, rows, state.rows)
    proposed = scored(model, shape, rows, state.scores, is_built[:, None] & shape.is_used)
    none = jnp.zeros(num_chains, jnp.int32)
    return Proposal(proposed, log_ratio, none, none > 0)


KERNELS["wu"] = NamedKernel(
    lambda: Alternate(LocalMoves.of(CHIPMAN), Restructure()),
    "makes Chipman's moves and, at every tenth step, the restructure move of Wu, Tjelmeland and "
    "West 2007",
)
