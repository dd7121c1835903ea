"""Local moves: grow, prune, change, shift and swap.

Chipman, George and McCulloch 1998 propose the first two, change and swap; Denison, Mallick and
Smith 1998 also change a split's cut alone (here: shift). A new rule is drawn feature first,
uniformly among those with an available rule, then uniformly among the feature's rules.
"""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bdtppl.inference.hard_model import Available, Model, available_rules
from bdtppl.inference.metropolis.state import State, scored
from bdtppl.inference.shapes import Shape, grown, places, pruned, select, with_rules

__all__ = [
    "CHIPMAN",
    "DENISON",
    "MOVES",
    "NUM_UNIFORMS",
    "Proposal",
    "log_probabilities",
    "propose",
]

MOVES = ("grow", "prune", "change", "shift", "swap")
_GROW, _PRUNE, _CHANGE, _SHIFT, _SWAP = range(len(MOVES))

# Probabilities as in Chipman, George and McCulloch 2010 (BART); the papers of 1998 print none.
CHIPMAN: Mapping[str, float] = {"grow": 0.25, "prune": 0.25, "change": 0.4, "swap": 0.1}
DENISON: Mapping[str, float] = {"grow": 0.25, "prune": 0.25, "change": 0.25, "shift": 0.25}

NUM_UNIFORMS = 3  # random numbers that a proposal takes


class Proposal(NamedTuple):
    """Proposed states of b chains.

    Attributes
    ----------
    state
        The proposal.
    log_ratio
        float64 [b]; log of the probability of proposing back over that of proposing; -inf where
        nothing can be proposed.
    move
        int32 [b]; place in `MOVES`.
    overflows
        bool [b]; whether a tree would need more slots than there are.
    """

    state: State
    log_ratio: jax.Array
    move: jax.Array
    overflows: jax.Array


def _pick(flags: jax.Array, uniform: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Pick one of the slots that are flagged [b, k], and count these; int32 [b]."""
    running = jnp.cumsum(flags, axis=1, dtype=jnp.int32)
    count = running[:, -1]
    rank = jnp.minimum((uniform * count).astype(jnp.int32), count - 1)
    return jnp.argmax(running > rank[:, None], axis=1).astype(jnp.int32), count


def _log_law(model: Model, found: Available, rule: jax.Array) -> jax.Array:
    """Log probability of drawing a rule at a node, float64 [b]."""
    rules = found.num_feature_rules[jnp.arange(len(rule)), model.feature[rule]]
    return -jnp.log(jnp.maximum(rules, 1)) - jnp.log(jnp.maximum(found.num_features, 1))


def _draw_rule(model: Model, found: Available, uniform, same_feature, old) -> jax.Array:
    """Draw a rule at a node, of the old rule's feature alone where that is asked for, int32 [b]."""
    weight = jnp.where(found.num_feature_rules > 0, 1 / found.num_feature_rules, 0.0)
    weight = found.is_rule * (weight @ model.by_feature.T)
    is_same = model.feature[None] == model.feature[old][:, None]
    weight = jnp.where(same_feature[:, None] & ~is_same, 0.0, weight)
    running = jnp.cumsum(weight, axis=1)
    return jnp.argmax(running > uniform[:, None] * running[:, -1:], axis=1).astype(jnp.int32)


def _swapped(shape: Shape, slot: jax.Array) -> tuple[Shape, jax.Array]:
    """Exchange the rules of a split and its parent, and return the parent's slot.

    Where both children of the parent have the same rule, both get the parent's.
    """
    chain, place = jnp.arange(len(slot)), places(shape)
    parent = shape.parent[chain, slot]
    sibling = jnp.where(slot % 2 == 1, slot + 1, slot - 1)
    own, above = shape.rule[chain, slot][:, None], shape.rule[chain, parent][:, None]
    is_own = (place == slot[:, None]) | ((place == sibling[:, None]) & (shape.rule == own))
    is_above = place == parent[:, None]
    return with_rules(shape, is_own | is_above, jnp.where(is_above, own, above)), parent


def propose(model: Model, state: State, log_probability: jax.Array, uniform: jax.Array) -> Proposal:
    """Propose one move in each chain.

    Parameters
    ----------
    model
        The model.
    state
        Where the chains are.
    log_probability
        float64 [moves]; log probability of each of `MOVES`.
    uniform
        float64 [b, 3]; random numbers.
    """
    shape, capacity = state.shape, state.shape.capacity
    chain, place = jnp.arange(len(shape.size)), places(shape)
    ends = jnp.cumsum(jnp.exp(log_probability))[None]
    move = jnp.minimum((uniform[:, :1] >= ends).sum(axis=1), len(MOVES) - 1).astype(jnp.int32)
    is_grow, is_prune, is_swap = (move == kind for kind in (_GROW, _PRUNE, _SWAP))

    is_below_split = shape.is_split & (place > 0)
    flags = shape.is_split  # change and shift
    for kind, own in (
        (is_grow, state.is_growable),
        (is_prune, shape.has_leaves),
        (is_swap, is_below_split),
    ):
        flags = jnp.where(kind[:, None], own, flags)
    slot, count = _pick(flags, uniform[:, 1])

    found = available_rules(model, state.rows[chain, slot], shape.depth[chain, slot])
    old = jnp.maximum(shape.rule[chain, slot], 0)
    rule = _draw_rule(model, found, uniform[:, 2], move == _SHIFT, old)

    overflows = is_grow & (count > 0) & (shape.size + 2 > capacity)
    can_grow = is_grow & (count > 0) & ~overflows
    can_prune = is_prune & (count > 0)
    is_changed = ((move == _CHANGE) | (move == _SHIFT)) & (count > 0)
    can_swap = is_swap & (count > 0)

    changed = place == slot[:, None]
    pruned_shape, source = pruned(shape, slot)
    swapped_shape, parent = _swapped(shape, slot)
    new = select(can_grow, grown(shape, slot, rule), shape)
    new = select(can_prune, pruned_shape, new)
    new = select(is_changed, with_rules(shape, changed, rule[:, None]), new)
    new = select(can_swap, swapped_shape, new)

    source = jnp.where(can_prune[:, None], source, place)[..., None]
    rows, scores = (jnp.take_along_axis(old, source, axis=1) for old in (state.rows, state.scores))
    top = jnp.where(can_swap, parent, slot)
    changed = (place == top[:, None]) & (can_grow | is_changed | can_swap)[:, None]
    proposed = scored(model, new, rows, scores, changed)

    new_law, old_law = _log_law(model, found, rule), _log_law(model, found, old)
    log_count = jnp.log(jnp.maximum(count, 1))
    num_growable = jnp.maximum(proposed.is_growable.sum(axis=1), 1)
    num_prunable = jnp.maximum(new.has_leaves.sum(axis=1), 1)
    prune_over_grow = log_probability[_PRUNE] - log_probability[_GROW]
    log_ratio = jnp.zeros(len(chain))
    for kind, ratio in (
        (can_grow, prune_over_grow - jnp.log(num_prunable) + log_count - new_law),
        (can_prune, -prune_over_grow - jnp.log(num_growable) + old_law + log_count),
        (move == _CHANGE, old_law - new_law),
    ):
        log_ratio = jnp.where(kind, ratio, log_ratio)
    is_possible = can_grow | can_prune | is_changed | can_swap
    return Proposal(proposed, jnp.where(is_possible, log_ratio, -jnp.inf), move, overflows)


def log_probabilities(moves: Mapping[str, float]) -> np.ndarray:
    """Normalise the probabilities of moves, float64 [moves], logs.

    Raises
    ------
    ValueError
        If a name is unknown, a probability is not a number of at least 0, all are 0, or of grow and
        prune only one is there. Without these two the shape of a tree never changes.
    """
    unknown = sorted(set(moves) - set(MOVES))
    if unknown:
        raise ValueError(f"moves names {unknown[0]!r}; there are {', '.join(MOVES)}.")
    share = np.array([float(moves.get(name, 0.0)) for name in MOVES])
    if not np.isfinite(share).all() or (share < 0).any() or not share.sum() > 0:
        raise ValueError(f"moves must have probabilities of at least 0; got {dict(moves)!r}.")
    if (share[_GROW] > 0) != (share[_PRUNE] > 0):
        raise ValueError("moves must hold both grow and prune, or neither.")
    with np.errstate(divide="ignore"):
        return np.log(share / share.sum())
