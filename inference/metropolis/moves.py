"""Local moves: grow, prune, change, shift, swap and rotate.

Chipman, George and McCulloch 1998 propose the first two, change and swap; Denison, Mallick and
Smith 1998 also change a split's cut alone (here: shift). A new rule is drawn feature first,
uniformly among those with an available rule, then uniformly among the feature's rules.

A rotation lifts a split over its parent, as in a binary search tree (Gramacy and Lee 2008, Bayesian
treed Gaussian process models with an application to computer modeling; here of any two features).
If both split on one feature, the leaves keep their rows: a chain moves from "x < 1.5" above "x <
2.5" to the reverse order, and may prune then. The split is uniform among those below the root;
lifting its former parent reverses the move, and the number of splits does not change, so the ratio
of the proposals is one.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from bdtppl.inference.hard.shapes import (
    LEAF,
    Shape,
    edit_node,
    places,
    rotated,
    running_count,
    with_rules,
)
from bdtppl.inference.metropolis.kernel import KERNELS, NamedKernel, Proposal
from bdtppl.inference.metropolis.state import State, rescored
from bdtppl.models.hard.packed_model import PackedModel, available_rules
from bdtppl.models.pytrees import pytree_dataclass

MOVES = ("grow", "prune", "change", "shift", "swap", "rotate")
_GROW, _PRUNE, _, _SHIFT, *_ = range(len(MOVES))

# Probabilities as in Chipman, George and McCulloch 2010 (BART); the papers of 1998 print none.
CHIPMAN: Mapping[str, float] = {"grow": 0.25, "prune": 0.25, "change": 0.4, "swap": 0.1}
DENISON: Mapping[str, float] = {"grow": 0.25, "prune": 0.25, "change": 0.25, "shift": 0.25}
# Chipman's moves, with rotations instead of some swaps and changes.
ROTATING: Mapping[str, float] = {
    "grow": 0.25,
    "prune": 0.25,
    "change": 0.35,
    "swap": 0.05,
    "rotate": 0.1,
}

_Edit = tuple[Shape, jax.Array, jax.Array]  # trees, and previous slots and changed nodes [b, k]


@pytree_dataclass
class LocalMoves:
    """A kernel that makes one of the local moves in each chain.

    Attributes
    ----------
    log_probability
        float64 [moves]; log probability of each of `MOVES`.
    """

    log_probability: Any

    names: ClassVar[tuple[str, ...]] = MOVES

    @classmethod
    def of(cls, moves: Mapping[str, float]) -> "LocalMoves":
        """Normalise the probabilities of moves by name.

        Raises
        ------
        ValueError
            If a name is unknown, a probability is not a number of at least 0, all are 0, or only
            one of grow and prune is given. Without these two the shape of a tree never changes.
        """
        unknown = sorted(set(moves) - set(MOVES))
        if unknown:
            raise ValueError(f"moves must name some of {', '.join(MOVES)}; got {unknown[0]!r}.")
        share = np.array([float(moves.get(name, 0.0)) for name in MOVES])
        if not np.isfinite(share).all() or (share < 0).any() or not share.sum() > 0:
            raise ValueError(f"moves must have probabilities of at least 0; got {dict(moves)!r}.")
        if (share[_GROW] > 0) != (share[_PRUNE] > 0):
            raise ValueError("moves must contain both grow and prune, or neither.")
        with np.errstate(divide="ignore"):
            return cls(np.log(share / share.sum()))

    def propose(
        self,
        rng_keys: jax.Array,
        number: jax.Array,
        model: PackedModel,
        state: State,
        power: jax.Array,
    ) -> Proposal:
        """Propose one move in each chain (see `Kernel`).

        All chains resize their trees, or all make the same other move, so only this work is done.
        Each chain chooses by itself to grow or to prune: neither move alone leaves the posterior
        invariant, and chains that all grow at a time would not be independent.
        """
        uniform = jax.vmap(lambda key: jax.random.uniform(key, (4,)))(rng_keys)
        ends = jnp.cumsum(jnp.exp(self.log_probability))
        move = jnp.minimum((uniform[0, 0] >= ends).sum(), len(MOVES) - 1)
        own = jnp.where(uniform[:, 1] * ends[_PRUNE] < ends[_GROW], _GROW, _PRUNE)
        move = jnp.where(move <= _PRUNE, own, move)
        return propose(model, state, move, self.log_probability, uniform[:, 2:])


def _pick(flags: jax.Array, uniform: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Pick one of the flags [b, m], and count them; int32 [b]."""
    running = running_count(flags)
    count = running[:, -1]
    rank = jnp.minimum((uniform * count).astype(jnp.int32), count - 1)
    place = (running <= rank[:, None]).sum(axis=1)
    return jnp.where(count > 0, place, 0).astype(jnp.int32), count


def _swapped(shape: Shape, slot: jax.Array) -> _Edit:
    """Exchange the rules of a split and its parent.

    If both children of the parent have the same rule, both get the parent's.
    """
    chain, place = jnp.arange(len(slot)), places(shape)
    parent = shape.parent[chain, slot]
    sibling = jnp.where(slot % 2 == 1, slot + 1, slot - 1)
    own, above = shape.rule[chain, slot][:, None], shape.rule[chain, parent][:, None]
    is_own = (place == slot[:, None]) | ((place == sibling[:, None]) & (shape.rule == own))
    is_above = place == parent[:, None]
    shape = with_rules(shape, is_own | is_above, jnp.where(is_above, own, above))
    return shape, jnp.broadcast_to(place, is_above.shape), is_above


def _rotated(shape: Shape, slot: jax.Array) -> _Edit:
    """Lift a split over its parent."""
    parent = shape.parent[jnp.arange(len(slot)), slot]
    shape, source = rotated(shape, slot)
    return shape, source, shape.is_used & (source == parent[:, None])


def _drawn_rule(
    model: PackedModel, state: State, slot: jax.Array, move: jax.Array, uniform: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Draw a rule for a node, of the column of its old one to shift; `LEAF` to prune.

    Returns
    -------
    rule
        int32 [b].
    log_ratio
        float64 [b]; log probability of drawing the old rule over that of drawing the new one, each
        if there is one.
    """
    chain = jnp.arange(len(slot))
    available = available_rules(model, state.rows[chain, slot], state.shape.depth[chain, slot])
    old, shifts = jnp.maximum(state.shape.rule[chain, slot], 0), move == _SHIFT

    def log_law(rule):
        rules = available.num_column_rules[chain, model.column[rule]]
        return -jnp.log(jnp.maximum(rules, 1)) - jnp.log(jnp.maximum(available.num_columns, 1))

    column, num_columns = _pick(available.num_column_rules > 0, uniform)
    rest = uniform * num_columns
    column = jnp.where(shifts, model.column[old], column)
    rest = jnp.where(shifts, uniform, rest - jnp.floor(rest))
    rule, _ = _pick(available.is_rule & (model.column[None] == column[:, None]), rest)
    log_ratio = jnp.where(move == _GROW, 0.0, log_law(old))
    log_ratio -= jnp.where(move == _PRUNE, 0.0, log_law(rule))
    return jnp.where(move == _PRUNE, LEAF, rule), jnp.where(shifts, 0.0, log_ratio)


def propose(
    model: PackedModel,
    state: State,
    move: jax.Array,
    log_probability: jax.Array,
    uniform: jax.Array,
) -> Proposal:
    """Propose to resize every chain's tree, or else the same move in every chain.

    Only the choice of a node and its edit depend on the move: what is traced once compiles faster.

    Parameters
    ----------
    model
        The model.
    state
        States of the chains.
    move
        int [b]; places in `MOVES`: any of grow and prune, or all the same.
    log_probability
        float64 [moves]; log probability of each of `MOVES`.
    uniform
        float64 [b, 2]; random numbers.
    """
    shape, grows, resizes = state.shape, move == _GROW, move <= _PRUNE
    draws_rule = move[0] <= _SHIFT

    is_end = jnp.where(grows[:, None], state.is_growable, shape.has_leaves)
    is_inner = shape.is_split & (draws_rule | (places(shape) > 0))
    slot, count = _pick(jnp.where(resizes[:, None], is_end, is_inner), uniform[:, 0])
    rule, log_ratio = lax.cond(
        draws_rule,
        lambda: _drawn_rule(model, state, slot, move, uniform[:, 1]),
        lambda: (jnp.zeros_like(slot), jnp.zeros(len(slot))),
    )

    def edited():
        is_changed = (places(shape) == slot[:, None]) & (move != _PRUNE)[:, None]
        return *edit_node(shape, slot, rule), is_changed

    edits = edited, lambda: _swapped(shape, slot), lambda: _rotated(shape, slot)
    new_shape, source, is_changed = lax.switch(jnp.maximum(move[0] - _SHIFT, 0), edits)
    new = rescored(model, state, new_shape, source, is_changed)
    is_way_back = jnp.where(grows[:, None], new_shape.has_leaves, new.is_growable)
    ways_back = is_way_back.sum(axis=1)
    ways = log_probability[_PRUNE] - log_probability[_GROW]
    ways = jnp.where(grows, ways, -ways) + jnp.log(count / jnp.maximum(ways_back, 1))
    log_ratio += jnp.where(resizes, ways, 0.0)
    overflows = grows & (count > 0) & (shape.size + 2 > shape.capacity)
    is_possible = (count > 0) & ~overflows
    return Proposal(
        new, jnp.where(is_possible, log_ratio, -jnp.inf), move.astype(jnp.int32), overflows
    )


KERNELS["rotating"] = NamedKernel(
    lambda: LocalMoves.of(ROTATING),
    "makes the moves of Chipman, George and McCulloch, and rotations (Gramacy and Lee 2008)",
)
KERNELS["chipman"] = NamedKernel(
    lambda: LocalMoves.of(CHIPMAN), "makes the moves of Chipman, George and McCulloch 1998"
)
KERNELS["denison"] = NamedKernel(
    lambda: LocalMoves.of(DENISON), "makes the moves of Denison, Mallick and Smith 1998"
)
