"""Trees grown top-down from a prior: open nodes stop or split until none is left.

An open node stops or uses a rule with the prior's weight, over the sum of all its weights. A tree's
prior weight is its probability of being grown times the sums of all its nodes, which may differ
from one.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.special import logsumexp

from bdtppl.inference.hard.shapes import LEAF, Shape, branched, places, roots
from bdtppl.inference.hard.written_trees import root_rows
from bdtppl.inference.metropolis.state import State, at_nodes, summed
from bdtppl.models.hard.node_scores import leaf_scores, node_weights
from bdtppl.models.hard.packed_model import PackedModel, children

ANY, SPLIT = -2, -1  # choices of an open node; other values name the feature that it must split on


class GrownTrees(NamedTuple):
    """Trees grown in b chains.

    Attributes
    ----------
    state
        The trees.
    log_normaliser
        float64 [b, k]; log of the sum of the prior's weights at nodes that were open.
    overflows
        bool [b]; whether a tree would need more slots than there are, and is incomplete.
    """

    state: State
    log_normaliser: jax.Array
    overflows: jax.Array


def grow_from_prior(model: PackedModel, start: State, is_open, wanted, uniform) -> GrownTrees:
    """Grow trees from the prior below some of their leaves.

    Parameters
    ----------
    model
        The model.
    start
        Trees; sums over nodes and scores of open nodes may be unset.
    is_open
        bool [b, k]; leaves to grow from.
    wanted
        int32 [b, k]; allowed choices of each leaf: `ANY`, `SPLIT`, or the feature to split on.
    uniform
        float64 [b, k]; the random number that decides the choice of the node in each slot.
    """

    def settle(nodes, rows, wanted, uniform):
        weights = node_weights(model, rows, Shape(nodes, None).depth)
        log_stop = jnp.where(wanted == ANY, weights.log_stop, -jnp.inf)
        is_wanted = (wanted[:, None] < 0) | (model.feature[None] == wanted[:, None])
        log_rules = jnp.where(is_wanted, weights.log_rules, -jnp.inf)
        rule = draw_choice(jnp.concatenate([log_stop[:, None], log_rules], axis=1), uniform) + LEAF
        place = jnp.maximum(rule, 0)
        log_rule = weights.log_rules[jnp.arange(len(rule)), place]
        terms = weights.log_stop, log_rule, leaf_scores(model, rows), weights.has_rule
        scores = jnp.stack([jnp.asarray(term, float) for term in terms], axis=1)
        log_normaliser = _log_sum(weights.log_stop, weights.log_rules)
        return rule, scores, log_normaliser, *children(model, rows, place)

    def layer(carry):
        shape, rows, scores, log_normaliser, wanted, is_open, overflows = carry
        inputs = shape.nodes, rows, wanted, uniform
        outputs = shape.rule, scores, log_normaliser, rows, rows
        settled = at_nodes(settle, model, is_open, inputs, outputs)
        rule, scores, log_normaliser, left_rows, right_rows = settled
        is_split = is_open & (rule != LEAF)
        shape, is_new, above, is_full = branched(shape, is_split, rule)
        sides = (jnp.take_along_axis(side, above, axis=1) for side in (left_rows, right_rows))
        handed_down = jnp.where((places(shape) % 2 == 1)[..., None], *sides)
        rows = jnp.where(is_new[..., None], handed_down, rows)
        wanted = jnp.where(is_new, ANY, wanted)
        return shape, rows, scores, log_normaliser, wanted, is_new, overflows | is_full

    nothing = jnp.zeros(uniform.shape)
    no_overflow = jnp.zeros(len(uniform), bool)
    carry = start.shape, start.rows, start.scores, nothing, wanted, is_open, no_overflow
    carry = lax.while_loop(lambda carry: carry[5].any(), layer, carry)
    shape, rows, scores, log_normaliser, _, _, overflows = carry
    return GrownTrees(summed(model, shape, rows, scores), log_normaliser, overflows)


@partial(jax.jit, static_argnames="capacity")
def grown_trees(rng_keys: jax.Array, model: PackedModel, *, capacity: int) -> GrownTrees:
    """Grow whole trees from the prior, one for each key [b].

    A slot's random number depends on its key and number alone, so more room changes only trees that
    lacked it.
    """
    num_trees = len(rng_keys)
    shape = roots(num_trees, capacity)
    scores, sums = jnp.zeros((num_trees, capacity, 4)), jnp.zeros(num_trees)
    start = State(shape, root_rows(model, shape), scores, sums, sums)
    anything = jnp.full((num_trees, capacity), ANY, jnp.int32)
    uniform = jax.vmap(_uniform_of_slots, (0, None))(rng_keys, jnp.arange(capacity))
    return grow_from_prior(model, start, shape.is_used, anything, uniform)


def _uniform_of_slots(rng_key: jax.Array, slots: jax.Array) -> jax.Array:
    return jax.vmap(lambda slot: jax.random.uniform(jax.random.fold_in(rng_key, slot)))(slots)


def log_normalisers(model: PackedModel, state: State, flags: jax.Array) -> jax.Array:
    """Return the log of the sum of the prior's weights at some nodes, else 0, [b, k]."""

    def normalise(nodes, rows):
        weights = node_weights(model, rows, Shape(nodes, None).depth)
        return _log_sum(weights.log_stop, weights.log_rules)

    inputs = state.shape.nodes, state.rows
    return at_nodes(normalise, model, flags, inputs, jnp.zeros(flags.shape))


def _log_sum(log_stop: jax.Array, log_rules: jax.Array) -> jax.Array:
    return jnp.logaddexp(log_stop, logsumexp(log_rules, axis=1))


def draw_choice(log_weights: jax.Array, uniform: jax.Array) -> jax.Array:
    """Draw an item by its weight [m, items], int32 [m]; the first if all weights are zero."""
    top = log_weights.max(axis=1, keepdims=True)
    weights = jnp.exp(log_weights - jnp.where(jnp.isfinite(top), top, 0.0))
    running = jnp.cumsum(weights, axis=1)
    is_beyond = running > uniform[:, None] * running[:, -1:]
    return jnp.argmax(is_beyond, axis=1).astype(jnp.int32)
