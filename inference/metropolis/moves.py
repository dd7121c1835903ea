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

from bdtppl.inference.hard.shapes import Shape, places, rotated, running_count, with_rules
from bdtppl.inference.metropolis.kernel import KERNELS, NamedKernel, Proposal
from bdtppl.inference.metropolis.state import State, resized, scored
from bdtppl.models.hard.node_scores import log_rule
from bdtppl.models.hard.packed_model import Available, PackedModel, available_rules
from bdtppl.models.pytrees import pytree_dataclass

MOVES = ("grow", "prune", "change", "shift", "swap", "rotate")
_GROW, _PRUNE, *_ = range(len(MOVES))

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


def _log_law(model: PackedModel, available: Available, rule: jax.Array) -> jax.Array:
    """Return the log probability of drawing a rule at a node, float64 [b]."""
    rules = available.num_column_rules[jnp.arange(len(rule)), model.column[rule]]
    return -jnp.log(jnp.maximum(rules, 1)) - jnp.log(jnp.maximum(available.num_columns, 1))


def _draw_rule(model: PackedModel, available: Available, uniform: jax.Array) -> jax.Array:
    """Draw a rule at a node, first its column; int32 [b]."""
    column, num_columns = _pick(available.num_column_rules > 0, uniform)
    rest = uniform * num_columns
    return _draw_cut(model, available, rest - jnp.floor(rest), column)


def _draw_cut(
    model: PackedModel, available: Available, uniform: jax.Array, column: jax.Array
) -> jax.Array:
    """Draw a rule of a column at a node, int32 [b]."""
    is_same = model.column[None] == column[:, None]
    return _pick(available.is_rule & is_same, uniform)[0]


def _swapped(shape: Shape, slot: jax.Array) -> tuple[Shape, jax.Array]:
    """Exchange the rules of a split and its parent, and return the parent's slot.

    If both children of the parent have the same rule, both get the parent's.
    """
    chain, place = jnp.arange(len(slot)), places(shape)
    parent = shape.parent[chain, slot]
    sibling = jnp.where(slot % 2 == 1, slot + 1, slot - 1)
    own, above = shape.rule[chain, slot][:, None], shape.rule[chain, parent][:, None]
    is_own = (place == slot[:, None]) | ((place == sibling[:, None]) & (shape.rule == own))
    is_above = place == parent[:, None]
    return with_rules(shape, is_own | is_above, jnp.where(is_above, own, above)), parent


def _resize(model: PackedModel, state: State, move, log_probability, uniform) -> Proposal:
    shape, grows = state.shape, move == _GROW
    can_change = jnp.where(grows[:, None], state.is_growable, shape.has_leaves)
    slot, count = _pick(can_change, uniform[:, 0])
    available = _rules_at(model, state, slot)
    rule = jnp.where(grows, _draw_rule(model, available, uniform[:, 1]), _rule_of(state, slot))
    log_weight = log_rule(model, *_rows_and_depth(state, slot), available, rule)
    new = resized(model, state, grows, slot, rule, log_weight)
    ways_back = jnp.where(grows[:, None], new.shape.has_leaves, new.is_growable).sum(axis=1)
    # Ratio for growing; that of pruning, the reverse move, is its inverse.
    log_ratio = log_probability[_PRUNE] - log_probability[_GROW] - _log_law(model, available, rule)
    log_ratio = jnp.where(grows, log_ratio, -log_ratio) + jnp.log(count / jnp.maximum(ways_back, 1))
    overflows = grows & (count > 0) & (shape.size + 2 > shape.capacity)
    return _proposal(new, log_ratio, (count > 0) & ~overflows, move, overflows)


def _change(model: PackedModel, state: State, move, log_probability, uniform) -> Proposal:
    slot, count = _pick(state.shape.is_split, uniform[:, 0])
    available = _rules_at(model, state, slot)
    rule, old = _draw_rule(model, available, uniform[:, 1]), _rule_of(state, slot)
    log_ratio = _log_law(model, available, old) - _log_law(model, available, rule)
    return _proposal(_with_rule(model, state, slot, rule), log_ratio, count > 0, move)


def _shift(model: PackedModel, state: State, move, log_probability, uniform) -> Proposal:
    slot, count = _pick(state.shape.is_split, uniform[:, 0])
    available, old = _rules_at(model, state, slot), _rule_of(state, slot)
    rule = _draw_cut(model, available, uniform[:, 1], model.column[old])
    new = _with_rule(model, state, slot, rule)
    return _proposal(new, jnp.zeros(len(slot)), count > 0, move)


def _swap(model: PackedModel, state: State, move, log_probability, uniform) -> Proposal:
    shape, place = state.shape, places(state.shape)
    slot, count = _pick(shape.is_split & (place > 0), uniform[:, 0])
    swapped, parent = _swapped(shape, slot)
    new = scored(model, swapped, state.rows, state.scores, place == parent[:, None])
    return _proposal(new, jnp.zeros(len(slot)), count > 0, move)


def _rotate(model: PackedModel, state: State, move, log_probability, uniform) -> Proposal:
    slot, count = _pick(state.shape.is_split & (places(state.shape) > 0), uniform[:, 0])
    shape, source = rotated(state.shape, slot)
    scores = jnp.take_along_axis(state.scores, source[..., None], axis=1)
    parent = state.shape.parent[jnp.arange(len(slot)), slot]
    new = scored(model, shape, state.rows, scores, shape.is_used & (source == parent[:, None]))
    return _proposal(new, jnp.zeros(len(slot)), count > 0, move)


def _rows_and_depth(state: State, slot: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return rows and depth of a node of each tree."""
    chain = jnp.arange(len(slot))
    return state.rows[chain, slot], state.shape.depth[chain, slot]


def _rules_at(model: PackedModel, state: State, slot: jax.Array) -> Available:
    return available_rules(model, *_rows_and_depth(state, slot))


def _rule_of(state: State, slot: jax.Array) -> jax.Array:
    """Return the rule of a split of each tree, int32 [b]; 0 if there is none."""
    return jnp.maximum(state.shape.rule[jnp.arange(len(slot)), slot], 0)


def _with_rule(model: PackedModel, state: State, slot: jax.Array, rule: jax.Array) -> State:
    changed = places(state.shape) == slot[:, None]
    shape = with_rules(state.shape, changed, rule[:, None])
    return scored(model, shape, state.rows, state.scores, changed)


def _proposal(state: State, log_ratio, is_possible, move, overflows=None) -> Proposal:
    return Proposal(
        state,
        jnp.where(is_possible, log_ratio, -jnp.inf),
        move.astype(jnp.int32),
        jnp.zeros(len(is_possible), bool) if overflows is None else overflows,
    )


_PROPOSERS = (_resize, _change, _shift, _swap, _rotate)


def propose(
    model: PackedModel,
    state: State,
    move: jax.Array,
    log_probability: jax.Array,
    uniform: jax.Array,
) -> Proposal:
    """Propose to resize every chain's tree, or else the same move in every chain.

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
    which = jnp.maximum(move[0] - _PRUNE, 0)
    return lax.switch(which, _PROPOSERS, model, state, move, log_probability, uniform)


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
