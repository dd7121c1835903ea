"""Inside and outside passes over a chart.

The inside pass computes, for every subproblem N from the smallest up,

    Q(N) = exp(log_stop) L(N) + sum over productions exp(log_split) Q(left) Q(right)

(Sullivan et al. 2023, equation 13) in log space and float64. The outside pass runs down again and
computes the derivatives of log Q(root) with respect to every stop and every production, which are
the posterior probabilities that a tree uses them. Priors that depend on depth add an axis of
levels, on which a child's entry is one level further down.

Functions here run inside a `jax.enable_x64` scope (see `bdtppl.models.arrays.precision`).
"""

from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from bdtppl.inference.pcfg.chart import (
    BLOCK_NODES,
    Chart,
    ChartBlock,
    block_of,
    node_at,
    nodes_at_all_depths,
    rule_at,
    take,
)
from bdtppl.models.prior_kinds import TreePrior

Semiring = Literal["sum", "max"]


def one_level_down(chart: Chart, rows: jax.Array) -> jax.Array:
    """Return children's entries from their parent's depth, [P, D, ...]; the last depth has none."""
    if not chart.uses_depth:
        return rows
    return jnp.concatenate([rows[:, 1:], jnp.full_like(rows[:, :1], -jnp.inf)], axis=1)


def one_level_up(chart: Chart, rows: jax.Array) -> jax.Array:
    """Transpose `one_level_down`: add a parent's terms at depth l to its child at l + 1."""
    if not chart.uses_depth:
        return rows
    return jnp.concatenate([jnp.zeros_like(rows[:, :1]), rows[:, :-1]], axis=1)


def log_terms(chart: Chart, block: ChartBlock, log_q: jax.Array, log_split: jax.Array) -> jax.Array:
    """Return log_split + log Q(left) + log Q(right), [P, D]; -inf if there is no production."""
    children = take(log_q, block.left) + take(log_q, block.right)
    children = one_level_down(chart, children)
    allowed = block.is_production[:, None] & block.node.has_rule
    return jnp.where(allowed, log_split + children, -jnp.inf)


def rule_weights(prior, feature_weight, block: ChartBlock) -> jax.Array:
    """Return log_split of the block's productions plus feature weights, [P, D]."""
    log_split = prior.log_split(block.node, block.rule) + take(feature_weight, block.rule.feature)
    return jnp.broadcast_to(log_split, block.node.has_rule.shape)


def segment(reduce, values: jax.Array, slot: jax.Array) -> jax.Array:
    """Reduce values of productions [P, ...] to their parents, [BLOCK_NODES, ...]."""
    return reduce(values, slot, BLOCK_NODES, indices_are_sorted=True, mode="promise_in_bounds")


@jax.jit
def log_stops(chart: Chart, prior: TreePrior, leaf_scores: jax.Array) -> jax.Array:
    """Return log_stop + log L of every node, [N, D]."""
    nodes = nodes_at_all_depths(chart, jnp.arange(len(chart.has_rule)))
    return jnp.broadcast_to(prior.log_stop(nodes), nodes.has_rule.shape) + leaf_scores[:, None]


@partial(jax.jit, static_argnames="semiring")
def inside(
    chart: Chart,
    prior: TreePrior,
    leaf_scores: jax.Array,
    feature_weight: jax.Array,
    semiring: Semiring,
) -> jax.Array:
    """Score every subproblem from the smallest up.

    The semiring has no default, because a default and the same explicit value would be compiled
    twice.

    Parameters
    ----------
    chart
        The chart.
    prior
        Prior for whose facts the chart was built.
    leaf_scores
        float64 [N padded]; log marginal likelihood of each subproblem as a leaf.
    feature_weight
        float64 [d]; added to the log weight of every rule of the feature (0 changes nothing, -inf
        excludes the feature).
    semiring
        "sum" for log Q, the log of the sum over trees; "max" for log Q_max (section 5.4), the best
        tree, for which equivalent rules do not share their weight.

    Returns
    -------
    jax.Array
        float64 [N padded, D]: for each subproblem, at each depth.
    """

    def step(i, log_q):
        block = block_of(chart, i)
        old = lax.dynamic_slice_in_dim(log_q, block.nodes[0], BLOCK_NODES)
        if semiring == "max":
            log_rule = prior.log_rule(block.node, block.rule)
            log_rule = log_rule + take(feature_weight, block.rule.feature)
            terms = log_terms(chart, block, log_q, log_rule)
            new = jnp.maximum(old, segment(jax.ops.segment_max, terms, block.slot))
        else:
            log_split = rule_weights(prior, feature_weight, block)
            terms = log_terms(chart, block, log_q, log_split)

            def added_up(scale):
                scaled = jnp.exp(terms - take(scale, block.slot))
                total = jnp.exp(old - scale) + segment(jax.ops.segment_sum, scaled, block.slot)
                return scale + jnp.log(total)

            def added_up_by_the_largest():
                largest = segment(jax.ops.segment_max, terms, block.slot)
                return added_up(jnp.maximum(old, largest))

            # The weight of stopping is a known scale; it overflows only if splitting has e^700
            # times its weight.
            new = added_up(old)
            fits = (jnp.isfinite(new) | ~block.is_node[:, None]).all()
            new = lax.cond(fits, lambda: new, added_up_by_the_largest)
        new = jnp.where(block.is_node[:, None], new, old)
        return lax.dynamic_update_slice_in_dim(log_q, new, block.nodes[0], 0)

    return lax.fori_loop(0, chart.num_blocks, step, log_stops(chart, prior, leaf_scores))


class Usage(NamedTuple):
    """Derivatives of log Q(root), which are posterior probabilities.

    Attributes
    ----------
    visits
        float64 [N, D]; probability that a tree has this subproblem as a node at this depth.
    stops
        float64 [N]; probability that a tree has this subproblem as a leaf.
    productions
        float64 [E]; probability that a tree uses this production.
    prior
        Gradient with respect to the prior's parameters, a pytree like the prior.
    feature_weight
        float64 [d]; expected number of splits on each feature.
    """

    visits: jax.Array
    stops: jax.Array
    productions: jax.Array
    prior: TreePrior
    feature_weight: jax.Array


@jax.jit
def outside(
    chart: Chart,
    prior: TreePrior,
    leaf_scores: jax.Array,
    feature_weight: jax.Array,
    log_q: jax.Array,
) -> Usage:
    """Differentiate log Q(root) with respect to all terms, from the root down.

    The arguments are those of `inside`, and its result for "sum".
    """

    def step(k, carry):
        visits, productions, gradient = carry
        block = block_of(chart, chart.num_blocks - 1 - k)
        log_split, pullback = jax.vjp(
            lambda prior, weight: rule_weights(prior, weight, block), prior, feature_weight
        )
        terms = log_terms(chart, block, log_q, log_split)
        own = lax.dynamic_slice_in_dim(log_q, block.nodes[0], BLOCK_NODES)
        seen = lax.dynamic_slice_in_dim(visits, block.nodes[0], BLOCK_NODES)
        used = jnp.exp(terms - take(own, block.slot)) * take(seen, block.slot)
        passed = one_level_up(chart, used)
        visits = visits.at[block.left].add(passed, mode="promise_in_bounds")
        visits = visits.at[block.right].add(passed, mode="promise_in_bounds")
        gradient = jax.tree.map(jnp.add, gradient, pullback(used))
        old = lax.dynamic_slice_in_dim(productions, block.production_start, len(used))
        new = jnp.where(block.is_production, used.sum(1), old)
        productions = lax.dynamic_update_slice_in_dim(productions, new, block.production_start, 0)
        return visits, productions, gradient

    stop_terms, pullback = jax.vjp(lambda prior: log_stops(chart, prior, leaf_scores), prior)
    visits = jnp.zeros_like(log_q).at[chart.root, 0].set(1.0)
    productions = jnp.zeros(len(chart.left), log_q.dtype)
    zeros = jax.tree.map(jnp.zeros_like, (prior, feature_weight))
    visits, productions, (prior_gradient, feature_gradient) = lax.fori_loop(
        0, chart.num_blocks, step, (visits, productions, zeros)
    )
    stops = visits * jnp.exp(stop_terms - log_q)
    prior_gradient = jax.tree.map(jnp.add, prior_gradient, *pullback(stops))
    return Usage(visits, stops.sum(1), productions, prior_gradient, feature_gradient)


@jax.custom_vjp
def log_partition(
    chart: Chart, prior: TreePrior, leaf_scores: jax.Array, feature_weight: jax.Array
) -> jax.Array:
    """Return log Q(root), differentiable in the prior, the leaf scores and the feature weights."""
    return _at_root(chart, inside(chart, prior, leaf_scores, feature_weight, "sum"))


# Compiled, because eager operations are compiled one by one at the first call.


@jax.jit
def _at_root(chart: Chart, log_q: jax.Array) -> jax.Array:
    return log_q[chart.root, 0]


@jax.jit
def _scaled(gradients, cotangent):
    return jax.tree.map(lambda g: g * cotangent, gradients)


def _log_partition_forward(chart, prior, leaf_scores, feature_weight):
    log_q = inside(chart, prior, leaf_scores, feature_weight, "sum")
    usage = outside(chart, prior, leaf_scores, feature_weight, log_q)
    return _at_root(chart, log_q), (usage.prior, usage.stops, usage.feature_weight)


def _log_partition_backward(gradients, cotangent):
    return None, *_scaled(gradients, cotangent)


log_partition.defvjp(_log_partition_forward, _log_partition_backward)


@jax.jit
def derivation_entropy(
    chart: Chart, prior: TreePrior, leaf_scores, feature_weight, log_q, visits
) -> jax.Array:
    """Return the entropy of the posterior over trees, as the prior counts trees, in nats.

    The entropy of a derivation is the sum over nodes of the visit probability times the entropy of
    the node's choice. If one choice represents several trees, or several choices one tree, as the
    prior counts them, the entropy uses the log probability of a single tree.
    """

    def surprise(weight, log_probability):
        return jnp.where(weight > 0, -weight * log_probability, 0.0).sum()

    def step(i, total):
        block = block_of(chart, i)
        own = take(log_q, chart.node_range[i, 0] + block.slot)
        seen = take(visits, chart.node_range[i, 0] + block.slot)
        log_split = rule_weights(prior, feature_weight, block)
        log_p = log_terms(chart, block, log_q, log_split) - own
        log_rule = prior.log_rule(block.node, block.rule)
        return total + surprise(seen * jnp.exp(log_p), log_p + log_rule - log_split)

    log_stop = log_stops(chart, prior, leaf_scores) - log_q
    stops = surprise(visits * jnp.exp(log_stop), log_stop)
    return lax.fori_loop(0, chart.num_blocks, step, stops)


@jax.jit
def score_derivations(
    chart: Chart, prior: TreePrior, leaf_scores, node, production, depth
) -> tuple[jax.Array, jax.Array]:
    """Return the log joint, as the prior counts trees, and log likelihood of derivations [b, k].

    Slots contain subproblems (-1 if unused), productions (-1 in leaves) and depths.
    """
    splits, is_leaf = production >= 0, (node >= 0) & (production < 0)
    facts, rule = node_at(chart, node, depth), rule_at(chart, jnp.maximum(production, 0), depth)
    log_likelihood = jnp.where(is_leaf, leaf_scores[node], 0.0).sum(axis=1)
    log_stop = jnp.where(is_leaf, prior.log_stop(facts), 0.0).sum(axis=1)
    log_rule = jnp.where(splits, prior.log_rule(facts, rule), 0.0).sum(axis=1)
    return log_likelihood + log_stop + log_rule, log_likelihood
