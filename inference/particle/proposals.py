"""Proposals for a particle's next node: the three of Lakshminarayanan et al. 2013, and a mixture.

A node stops or is split by one of its rules; a proposal weights these choices. Many particles are
at the same node, so weights are computed once for each distinct node, in pieces of one size, and
every particle draws from the weights of its node.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import logsumexp

from bdtppl.inference.hard.shapes import select_trees
from bdtppl.inference.summaries.distinct import distinct
from bdtppl.models.hard.node_scores import leaf_scores, node_weights, split_scores
from bdtppl.models.hard.packed_model import PackedModel

_ENTRIES_WEIGHED = 1 << 15  # nodes times rules that are weighted at once
_LEAST_PIECE = 4
_SHARE_OF_PRIOR = 0.1  # share of the prior in the defensive proposal

ProposalWeights = Callable[[PackedModel, jax.Array, jax.Array], jax.Array]
"""From rows [p, W] of nodes and the prior's log weights [p, R + 1] of their rules and, last, of
stopping, to log weights [p, R + 1] of proposing them, which need not be normalised."""


def _prior(model: PackedModel, rows: jax.Array, log_weight: jax.Array) -> jax.Array:
    """Propose from the prior."""
    return log_weight


def _empirical(model: PackedModel, rows: jax.Array, log_weight: jax.Array) -> jax.Array:
    """Stop or choose a column by the prior, then choose uniformly among its available rules.

    The paper's proposal ignores the widths of the gaps between a node's values. It differs from the
    prior only if that weights cuts unequally.
    """
    log_rule = log_weight[:, :-1]
    is_rule = jnp.isfinite(log_rule)
    mass = jnp.exp(log_rule) @ model.by_column
    number = is_rule.astype(float) @ model.by_column
    share = mass / jnp.maximum(number, 1.0)
    log_share = jnp.log(share @ model.by_column.T)
    return jnp.concatenate([jnp.where(is_rule, log_share, -jnp.inf), log_weight[:, -1:]], axis=1)


def _optimal(model: PackedModel, rows: jax.Array, log_weight: jax.Array) -> jax.Array:
    """Weight choices by the prior times the change in likelihood (one-step optimal)."""
    gain = split_scores(model, rows) - leaf_scores(model, rows)[:, None]
    return log_weight + jnp.pad(gain, ((0, 0), (0, 1)))


def _defensive(model: PackedModel, rows: jax.Array, log_weight: jax.Array) -> jax.Array:
    """Propose by the optimal proposal, and once in ten times by the prior.

    The optimal proposal hardly ever draws splits that pay only with those below them, so trees with
    such splits have large weights but no particles. A mixture with the prior bounds these
    (Hesterberg 1995, Weighted average importance sampling and defensive mixture distributions).
    """
    optimal = _optimal(model, rows, log_weight)
    optimal -= logsumexp(optimal, axis=1, keepdims=True)
    prior = log_weight - logsumexp(log_weight, axis=1, keepdims=True)
    return jnp.logaddexp(optimal + np.log(1 - _SHARE_OF_PRIOR), prior + np.log(_SHARE_OF_PRIOR))


PROPOSALS: dict[str, ProposalWeights] = {
    "prior": _prior,
    "empirical": _empirical,
    "optimal": _optimal,
    "defensive": _defensive,
}


class ParticleChoice(NamedTuple):
    """Choices of m particles.

    Attributes
    ----------
    rule
        int32 [m]; rule, or the number of rules R to stop.
    terms
        float64 [m, 3]; the prior's log weight of the choice, the log proposal probability, and the
        prior's log weight of stopping.
    has_rule
        bool [m]; whether any rule was available.
    """

    rule: jax.Array
    terms: jax.Array
    has_rule: jax.Array


def draw_particle_choice(
    model: PackedModel,
    proposal: ProposalWeights,
    rows: jax.Array,
    depth: jax.Array,
    uniform: jax.Array,
) -> ParticleChoice:
    """Draw the choice for one node of each particle.

    Parameters
    ----------
    model
        The model.
    proposal
        Proposal for the choices.
    rows, depth
        uint64 [m, W] and int32 [m]; the nodes' rows, and the splits above them.
    uniform
        float64 [m]; uniform numbers in [0, 1).
    """
    num_particles, num_rules = len(depth), model.left_rows.shape[1]
    piece = min(num_particles, max(_LEAST_PIECE, _ENTRIES_WEIGHED // num_rules))
    words = jnp.concatenate([rows, depth[:, None].astype(rows.dtype)], axis=1)
    member, group, num_groups = distinct(words)
    member = jnp.pad(member, (0, piece))

    def weigh(carry):
        start, chosen = carry
        node = words[lax.dynamic_slice_in_dim(member, start, piece)]
        own_rows, own_depth = node[:, :-1], node[:, -1].astype(jnp.int32)
        prior = node_weights(model, own_rows, own_depth)
        log_weight = jnp.concatenate([prior.log_rules, prior.log_stop[:, None]], axis=1)
        log_probability = proposal(model, own_rows, log_weight)
        log_probability -= logsumexp(log_probability, axis=1, keepdims=True)
        log_stop = jnp.broadcast_to(prior.log_stop[:, None], log_weight.shape)
        terms = jnp.stack([log_weight, log_probability, log_stop], axis=-1)
        has_rule = jnp.isfinite(prior.log_rules).any(axis=1)

        own = jnp.clip(group - start, 0, piece - 1)
        rule = _draw_choices(jnp.cumsum(jnp.exp(log_probability), axis=1), own, uniform)
        choice = ParticleChoice(rule, terms[own, rule], has_rule[own])
        is_here = (group >= start) & (group < start + piece)
        return start + piece, select_trees(is_here, choice, chosen)

    none = ParticleChoice(
        jnp.zeros(num_particles, jnp.int32),
        jnp.zeros((num_particles, 3)),
        jnp.zeros(num_particles, bool),
    )
    return lax.while_loop(lambda carry: carry[0] < num_groups, weigh, (jnp.int32(0), none))[1]


def _draw_choices(cumulative: jax.Array, row: jax.Array, uniform: jax.Array) -> jax.Array:
    """Return the first place of each particle's row whose running sum exceeds its number, [m]."""
    last = cumulative.shape[1] - 1
    target = uniform * cumulative[row, last]

    def halve(_, ends):
        low, high = ends
        middle = (low + high) // 2
        is_beyond = cumulative[row, middle] <= target
        return jnp.where(is_beyond, middle + 1, low), jnp.where(is_beyond, high, middle)

    start = jnp.zeros_like(row), jnp.full_like(row, last)
    return lax.fori_loop(0, last.bit_length(), halve, start)[0]
