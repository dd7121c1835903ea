"""Passes over a chart with an axis of leaf counts, for priors on the number of leaves.

With Q(N, k) the sum over the trees of subproblem N that have k leaves, ::

    Q(N, 1) = L(N),
    Q(N, k) = sum over productions and i < k of
              exp(log_split + log_division(i, k)) Q(left, i) Q(right, k - i),

the recursion of `bdtppl.inference.pcfg.passes` with one more index (Denison, Mallick and Smith
1998; Wu, Tjelmeland and West 2007). All sums are in log space: a convolution of plain numbers would
lose the small counts, whose likelihoods can be smaller by hundreds of orders of magnitude.

Functions here run inside a `jax.enable_x64` scope (see `bdtppl.models.arrays.precision`).
In shapes K is the most leaves; the entry of k leaves has the index k - 1.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from bdtppl.inference.pcfg.chart import (
    BLOCK_NODES,
    Chart,
    ChartBlock,
    block_of,
    node_at,
    rule_at,
    take,
)
from bdtppl.inference.pcfg.passes import Semiring, one_level_down, one_level_up, segment
from bdtppl.inference.pcfg.sampling import ChartChoices, Derivations, accumulate, draw_production
from bdtppl.models.leaf_count_priors import LeafCountPrior


class Weights(NamedTuple):
    """Weights of a prior for the passes: the same compiled passes serve all priors.

    Attributes
    ----------
    productions
        float64 [E]; log_split of each production, or log_rule.
    divisions
        float64 [K, K]; log_division of i + 1 leaves on the left among j + 1, -inf where impossible.
    """

    productions: jax.Array
    divisions: jax.Array

    @property
    def most_leaves(self) -> int:
        """K."""
        return len(self.divisions)

    @classmethod
    def of(cls, chart: Chart, prior: LeafCountPrior, feature_weight) -> tuple["Weights", "Weights"]:
        """Compute weights by log_split and by log_rule, plus feature weights [d]."""
        log_split, log_rule, divisions = _tabulate_weights(chart, prior, feature_weight)
        return cls(log_split, divisions), cls(log_rule, divisions)


@jax.jit
def _tabulate_weights(chart: Chart, prior: LeafCountPrior, feature_weight: jax.Array):
    root = jnp.int32(0)  # weights do not depend on depth
    rule = rule_at(chart, jnp.arange(len(chart.parent)), root)
    node = node_at(chart, chart.parent, root)
    added = take(feature_weight, chart.feature)
    leaves = 1 + jnp.arange(prior.max_leaves)
    divisions = prior.log_division(leaves[:, None], leaves[None])
    return prior.log_split(node, rule) + added, prior.log_rule(node, rule) + added, divisions


def without_facts(chart: Chart) -> Chart:
    """Drop facts that only priors use, so that charts of all priors are alike."""
    return chart._replace(node_facts={}, rule_facts={})


@jax.jit
def log_leaves(prior: LeafCountPrior) -> jax.Array:
    """log_leaves of 1 to K leaves, [K]."""
    return prior.log_leaves(1 + jnp.arange(prior.max_leaves))


class _Pairs(NamedTuple):
    """Log weights of a block's productions by the number of left leaves.

    Attributes
    ----------
    log_weight
        float64 [P, D, 1]; weight of the production, -inf if there is none.
    left, right
        float64 [P, D, K]; log Q of the children; the right ones after K entries of -inf.
    log_division
        float64 [K, K].
    """

    log_weight: jax.Array
    left: jax.Array
    right: jax.Array
    log_division: jax.Array

    @classmethod
    def of(cls, chart: Chart, block: ChartBlock, weights: Weights, log_q: jax.Array) -> "_Pairs":
        """Look up the children of a block's productions."""
        left, right = (
            one_level_down(chart, take(log_q, child)) for child in (block.left, block.right)
        )
        size = len(block.is_production)
        log_weight = lax.dynamic_slice_in_dim(weights.productions, block.production_start, size)
        allowed = block.is_production[:, None] & block.node.has_rule
        return cls(
            jnp.where(allowed, log_weight[:, None], -jnp.inf)[..., None],
            left,
            jnp.concatenate([jnp.full_like(right, -jnp.inf), right], axis=2),
            weights.divisions,
        )

    def at(self, i: jax.Array) -> jax.Array:
        """Return the log weights with i + 1 leaves on the left, [P, D, K]."""
        size = self.left.shape[-1]
        rest = lax.dynamic_slice_in_dim(self.right, size - 1 - i, size, axis=2)
        left = lax.dynamic_slice_in_dim(self.left, i, 1, axis=2) + self.log_weight
        return left + rest + self.log_division[i][None, None]

    def best(self) -> jax.Array:
        """Return the greatest of all, [P, D, K]."""
        start = jnp.full(self.left.shape, -jnp.inf)
        return lax.fori_loop(
            0, self.left.shape[-1] - 1, lambda i, best: jnp.maximum(best, self.at(i)), start
        )

    def total(self, scale: jax.Array) -> jax.Array:
        """Return the sum of all, minus a scale in log space, [P, D, K]."""
        return lax.fori_loop(
            0,
            self.left.shape[-1] - 1,
            lambda i, total: total + jnp.exp(self.at(i) - scale),
            jnp.zeros(self.left.shape),
        )


def _finite_part(log_values: jax.Array) -> jax.Array:
    """Replace -inf by zero: a scale that can be subtracted from -inf."""
    return jnp.where(jnp.isneginf(log_values), 0.0, log_values)


@partial(jax.jit, static_argnames="semiring")
def inside_by_leaves(
    chart: Chart, weights: Weights, leaf_scores: jax.Array, semiring: Semiring
) -> jax.Array:
    """Score every subproblem with every number of leaves, from the smallest up.

    Parameters
    ----------
    chart
        The chart, without facts.
    weights
        Log weights by log_split for "sum", by log_rule for "max".
    leaf_scores
        float64 [N padded]; log marginal likelihood of each subproblem as a leaf.
    semiring
        "sum" for log Q(N, k); "max" for the best tree with k leaves.

    Returns
    -------
    jax.Array
        float64 [N padded, D, K]; -inf if there is no such tree.
    """

    def step(i, log_q):
        block = block_of(chart, i)
        old = lax.dynamic_slice_in_dim(log_q, block.nodes[0], BLOCK_NODES)
        pairs = _Pairs.of(chart, block, weights, log_q)
        new = jnp.maximum(old, segment(jax.ops.segment_max, pairs.best(), block.slot))
        if semiring == "sum":
            scale = _finite_part(new)
            total = pairs.total(take(scale, block.slot))
            total = segment(jax.ops.segment_sum, total, block.slot) + jnp.exp(old - scale)
            new = scale + jnp.log(total)
        new = jnp.where(block.is_node[:, None, None], new, old)
        return lax.dynamic_update_slice_in_dim(log_q, new, block.nodes[0], 0)

    shape = len(chart.has_rule), len(chart.levels), weights.most_leaves
    start = jnp.full(shape, -jnp.inf).at[:, :, 0].set(leaf_scores[:, None])
    return lax.fori_loop(0, chart.num_blocks, step, start)


class LeafCountUsage(NamedTuple):
    """Posterior probabilities of leaves, productions and divisions.

    Attributes
    ----------
    stops
        float64 [N]; probability that a tree has this subproblem as a leaf.
    productions
        float64 [E]; probability that a tree uses this production.
    divisions
        float64 [K, K]; expected number of splits with i + 1 leaves on the left of j + 1.
    """

    stops: jax.Array
    productions: jax.Array
    divisions: jax.Array


@jax.jit
def outside_by_leaves(
    chart: Chart, weights: Weights, log_q: jax.Array, leaves_probability: jax.Array
) -> LeafCountUsage:
    """Propagate the probabilities of 1 to K leaves [K] down from the root.

    The arguments are those of `inside_by_leaves` and its result ("sum").
    """
    most = weights.most_leaves

    def step(b, carry):
        visits, productions, divisions = carry
        block = block_of(chart, chart.num_blocks - 1 - b)
        pairs = _Pairs.of(chart, block, weights, log_q)
        own, seen = (
            take(lax.dynamic_slice_in_dim(a, block.nodes[0], BLOCK_NODES), block.slot)
            for a in (log_q, visits)
        )
        own = _finite_part(own)

        def share(i, sums):
            to_left, to_right, used, divisions = sums
            passed = jnp.exp(pairs.at(i) - own) * seen
            left = passed.sum(axis=2, keepdims=True)
            rest = jnp.concatenate([passed, jnp.zeros_like(passed)], axis=2)
            return (
                lax.dynamic_update_slice_in_dim(to_left, left, i, 2),
                to_right + lax.dynamic_slice_in_dim(rest, i + 1, most, axis=2),
                used + passed.sum((1, 2)),
                divisions.at[i].add(passed.sum((0, 1))),
            )

        nothing = jnp.zeros_like(own)
        to_left, to_right, used, divisions = lax.fori_loop(
            0, most - 1, share, (nothing, nothing, jnp.zeros(len(own)), divisions)
        )
        for child, passed in ((block.left, to_left), (block.right, to_right)):
            visits = visits.at[child].add(one_level_up(chart, passed), mode="promise_in_bounds")
        old = lax.dynamic_slice_in_dim(productions, block.production_start, len(used))
        new = jnp.where(block.is_production, used, old)
        productions = lax.dynamic_update_slice_in_dim(productions, new, block.production_start, 0)
        return visits, productions, divisions

    visits = jnp.zeros_like(log_q).at[chart.root, 0].set(leaves_probability)
    start = visits, jnp.zeros(len(chart.left)), jnp.zeros((most, most))
    visits, productions, divisions = lax.fori_loop(0, chart.num_blocks, step, start)
    return LeafCountUsage(visits[:, :, 0].sum(1), productions, divisions)


@jax.jit
def leaf_count_choices(chart: Chart, weights: Weights, log_q: jax.Array) -> ChartChoices:
    """Tabulate every node's choice of a production, at each depth and leaf count, [..., D * K]."""

    def step(i, cumulative):
        block = block_of(chart, i)
        pairs = _Pairs.of(chart, block, weights, log_q)
        parents = chart.node_range[i, 0] + block.slot
        share = pairs.total(_finite_part(take(log_q, parents)))
        share = share.reshape(len(share), -1)
        return accumulate(chart, block, share, parents, cumulative)

    num_levels = log_q.shape[1] * log_q.shape[2]
    stop = jnp.zeros(log_q.shape).at[:, :, 0].set(1.0).reshape(-1, num_levels)
    cumulative = jnp.zeros((len(chart.left), num_levels))
    return ChartChoices(stop, lax.fori_loop(0, chart.num_blocks, step, cumulative))


@partial(jax.jit, static_argnames="num_draws")
def draw_with_leaf_counts(
    chart: Chart,
    weights: Weights,
    log_q: jax.Array,
    choices: ChartChoices,
    leaves_probability: jax.Array,
    rng_key: jax.Array,
    num_draws: int,
) -> Derivations:
    """Draw trees, i.i.d.

    The number of leaves is drawn first, then, slot by slot, a production of the slot's subproblem
    with its number of leaves, and the number of left leaves.
    """
    most, capacity = weights.most_leaves, 2 * weights.most_leaves - 1
    every = jnp.arange(num_draws)
    # Three numbers per slot, and one more for the number of leaves.
    uniform = jax.random.uniform(rng_key, (num_draws, capacity + 1, 3))

    def pick(probability, slot, which):
        running = jnp.cumsum(probability, axis=1)
        return jnp.argmax(running > uniform[:, slot, which, None] * running[:, -1:], axis=1)

    def step(slot, carry):
        queue, production, end = carry
        node, count, level = (queue[:, slot, i] for i in range(3))
        _, used = draw_production(
            chart, choices, node, level * most + count - 1, uniform[:, slot, 0]
        )
        splits = count > 1
        used = jnp.where(splits, used, 0)
        left, right = take(chart.left, used), take(chart.right, used)
        below = level + 1 if chart.uses_depth else level
        # The other leaves are on the right, at least one.
        rest = count[:, None] - 2 - jnp.arange(most)[None]
        on_right = log_q[right[:, None], below[:, None], jnp.maximum(rest, 0)]
        weight = log_q[left, below] + on_right + weights.divisions[:, count - 1].T
        weight = jnp.where(rest >= 0, weight, -jnp.inf)
        weight = jnp.exp(weight - _finite_part(weight.max(axis=1, keepdims=True)))
        on_left = 1 + pick(weight, slot, 1)
        shares = jnp.stack([on_left, count - on_left], axis=1)
        children = [jnp.stack([left, right], axis=1), shares, jnp.stack([below, below], axis=1)]
        children = jnp.stack([a.astype(jnp.int32) for a in children], axis=2)
        place = jnp.where(splits, end, capacity)[:, None] + jnp.arange(2)[None]
        queue = queue.at[every[:, None], place].set(children, mode="drop")
        production = production.at[:, slot].set(jnp.where(splits, used, -1))
        return queue, production, end + 2 * splits

    probability = jnp.broadcast_to(leaves_probability[None], (num_draws, most))
    num_leaves = 1 + pick(probability, capacity, 0).astype(jnp.int32)
    # Subproblem, number of leaves and depth of each slot; unreached slots are leaves.
    queue = jnp.zeros((num_draws, capacity, 3), jnp.int32).at[:, :, 1].set(1)
    queue = queue.at[:, 0, 0].set(chart.root).at[:, 0, 1].set(num_leaves)
    production = jnp.full((num_draws, capacity), -1, jnp.int32)
    end = jnp.ones(num_draws, jnp.int32)
    _, production, end = lax.fori_loop(0, capacity, step, (queue, production, end))
    return Derivations(production, uniform[:, :capacity, 2], end)
