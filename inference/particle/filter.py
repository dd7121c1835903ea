"""The particle filter: several independent runs, one compiled computation.

Trees grow from the root in breadth-first order. One node of each particle is settled at a time: it
stops or is split (section 3.1). The target after each step is the prior weight of the choices made
times the marginal likelihood of the partition so far; the weight of the particle is multiplied by
the ratio of targets over the proposal probability. If the effective sample size of a run is low,
its particles are resampled and share their mean weight. The mean weight of a run's particles is
therefore an unbiased estimate of the sum over all trees, for any resampling scheme.

References
----------
Lakshminarayanan, Roy and Teh 2013, Top-down particle filtering for Bayesian decision trees,
section 3 and Algorithm 1.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from blackjax.smc.ess import log_ess
from blackjax.smc.resampling import multinomial, systematic
from jax import lax
from jax.scipy.special import logsumexp

from bdtppl.inference.hard.shapes import Shape, grown, roots, select_trees
from bdtppl.inference.particle.proposals import ProposalWeights, draw_particle_choice
from bdtppl.models.hard.node_scores import leaf_scores
from bdtppl.models.hard.packed_model import PackedModel, children

_LEAF_ENTRIES = 1 << 22  # nodes times rows whose statistics are summed at once

Resampling = Callable[[jax.Array, jax.Array, int], jax.Array]
"""From a key, weights [N] that sum to one and N to the particles that stay, int [N]."""

RESAMPLING: dict[str, Resampling] = {"systematic": systematic, "multinomial": multinomial}


class Particles(NamedTuple):
    """Partial trees of m particles; k slots, W words.

    Attributes
    ----------
    shape
        The trees; slots in use that are not settled yet count as leaves.
    rows
        uint64 [m, k, W]; rows of each node.
    next
        int32 [m]; the first slot that is not settled.
    log_prior, log_likelihood
        float64 [m]; sum of log weights of the choices made and log marginals of the leaves.
    log_weight
        float64 [m].
    """

    shape: Shape
    rows: jax.Array
    next: jax.Array
    log_prior: jax.Array
    log_likelihood: jax.Array
    log_weight: jax.Array


class Stages(NamedTuple):
    """Records of the runs; k stages at most.

    Attributes
    ----------
    effective_size
        float64 [k, runs]; effective sample size after each stage of growth, NaN after the run's
        end.
    is_resampled
        bool [k, runs]; whether the particles were resampled before the stage.
    num_overflows
        int [runs]; nodes that had a rule and stopped because the tree was full.
    num_stages
        int32; stages of the longest run.
    """

    effective_size: jax.Array
    is_resampled: jax.Array
    num_overflows: jax.Array
    num_stages: jax.Array


class FinishedRuns(NamedTuple):
    """Finished particles, and records of the runs."""

    particles: Particles
    stages: Stages


def initial_particles(model: PackedModel, num_particles: int, capacity: int) -> Particles:
    """Make trees of one unsettled leaf."""
    rows = jnp.zeros((num_particles, capacity, len(model.every_row)), model.every_row.dtype)
    score = jnp.broadcast_to(leaf_scores(model, model.every_row[None]), num_particles)
    return Particles(
        roots(num_particles, capacity),
        rows.at[:, 0].set(model.every_row[None]),
        jnp.zeros(num_particles, jnp.int32),
        jnp.zeros(num_particles),
        score,
        score,
    )


def settle(
    model: PackedModel,
    proposal: ProposalWeights,
    particles: Particles,
    end: jax.Array,
    uniform: jax.Array,
) -> tuple[Particles, jax.Array]:
    """Settle the next node of every particle.

    Parameters
    ----------
    model
        The model.
    proposal
        Proposal for the choices.
    particles
        Particles.
    end
        int32 [m]; first slot that must not be settled.
    uniform
        float64 [m]; uniform numbers in [0, 1).

    Returns
    -------
    particles
        The particles. A tree without room for two more nodes stops with probability one.
    overflows
        bool [m]; whether that prevented a split.
    """
    shape, slot = particles.shape, particles.next
    every, capacity, num_rules = jnp.arange(len(slot)), shape.capacity, model.left_rows.shape[1]
    is_open = slot < end
    at = jnp.where(is_open, slot, 0)
    depth = shape.depth[every, at]
    # Particles with nothing to settle are assigned one and the same node, which costs next to
    # nothing.
    rows = jnp.where(is_open[:, None], particles.rows[every, at], 0)
    choice = draw_particle_choice(model, proposal, rows, jnp.where(is_open, depth, 0), uniform)

    log_weight, log_probability, log_stop = choice.terms.T
    is_full = shape.size + 2 > capacity
    is_split = is_open & ~is_full & (choice.rule < num_rules)
    log_weight = jnp.where(is_open, jnp.where(is_full, log_stop, log_weight), 0.0)
    log_probability = jnp.where(is_open & ~is_full, log_probability, 0.0)
    rule = jnp.minimum(choice.rule, num_rules - 1)
    left, right = children(model, rows, rule)
    gain = _score_leaves(model, left) + _score_leaves(model, right) - _score_leaves(model, rows)
    gain = jnp.where(is_split, gain, 0.0)
    # Slots beyond the capacity are dropped.
    new_slots = jnp.where(is_split, shape.size, capacity)[:, None] + jnp.arange(2)[None]
    sides = jnp.stack([left, right], axis=1)
    settled = Particles(
        select_trees(is_split, grown(shape, at, rule), shape),
        particles.rows.at[every[:, None], new_slots].set(sides, mode="drop"),
        slot + is_open,
        particles.log_prior + log_weight,
        particles.log_likelihood + gain,
        particles.log_weight + log_weight + gain - log_probability,
    )
    return settled, is_open & is_full & choice.has_rule


def _score_leaves(model: PackedModel, rows: jax.Array) -> jax.Array:
    """Return leaf scores of rows [m, W]; sums over rows are computed in pieces."""
    piece = max(1, _LEAF_ENTRIES // (64 * rows.shape[1]))
    if model.classes is not None or len(rows) <= piece:
        return leaf_scores(model, rows)
    return lax.map(lambda own: leaf_scores(model, own[None])[0], rows, batch_size=piece)


def resample_particles(
    rng_keys: jax.Array, particles: Particles, is_wanted: jax.Array, resampling: Resampling
) -> Particles:
    """Resample the particles of some runs in proportion to their weights.

    Parameters
    ----------
    rng_keys
        Keys [runs].
    particles
        Particles [runs * N], run by run.
    is_wanted
        bool [runs].
    resampling
        Resampling scheme.
    """
    num_runs = len(rng_keys)
    log_weight = particles.log_weight.reshape(num_runs, -1)
    size = log_weight.shape[1]
    log_mean = logsumexp(log_weight, axis=1, keepdims=True) - jnp.log(size)
    share = jnp.exp(log_weight - log_mean) / size
    chosen = jax.vmap(lambda key, share: resampling(key, share, size))(rng_keys, share)
    source = jnp.where(is_wanted[:, None], chosen, jnp.arange(size)[None])
    source = (source + size * jnp.arange(num_runs)[:, None]).ravel()
    kept = jax.tree.map(lambda a: a[source], particles._replace(log_weight=None))
    log_weight = jnp.where(is_wanted[:, None], log_mean, log_weight)
    return kept._replace(log_weight=log_weight.ravel())


class Noise(NamedTuple):
    """All random numbers of some runs; k slots.

    Attributes
    ----------
    uniform
        float64 [k, runs, N]; random number of each particle for each slot, until `renewed`.
    rng_keys
        Keys [k, runs] of the resampling before each stage.
    """

    uniform: jax.Array
    rng_keys: jax.Array


@partial(jax.jit, static_argnames=("runs", "size", "capacity"))
def draw_particle_noise(rng_key: jax.Array, *, runs: int, size: int, capacity: int) -> Noise:
    """Draw for runs of N particles (``size``); a run's numbers do not depend on the number of runs.

    This is separate from `grow_particles` because it is compiled once for all tables.
    """
    key_settle, key_resample = jax.random.split(rng_key)
    # Entries of an array of random numbers depend on their place alone, so the runs come first.
    uniform = jax.random.uniform(key_settle, (runs, capacity, size))
    rng_keys = jax.random.split(key_resample, (runs, capacity))
    return Noise(uniform.swapaxes(0, 1), rng_keys.T)


def renewed(rng_keys: jax.Array, uniform: jax.Array, is_wanted: jax.Array) -> jax.Array:
    """Redraw the numbers of some runs, float64 [k, runs, N].

    Particles whose layers differ in size are at different slots. A resampled particle may settle a
    slot that the particle in its place settled before. With the same number its choice would depend
    on the resampling, and the estimate would be biased.

    Parameters
    ----------
    rng_keys
        Keys [runs].
    uniform
        float64 [k, runs, N].
    is_wanted
        bool [runs].
    """
    capacity, _, size = uniform.shape
    drawn = jax.vmap(lambda key: jax.random.uniform(key, (capacity, size)))(rng_keys)
    return jnp.where(is_wanted[None, :, None], drawn.swapaxes(0, 1), uniform)


@partial(jax.jit, static_argnames=("proposal", "resampling"))
def grow_particles(
    noise: Noise,
    model: PackedModel,
    by_layer: jax.Array,
    ess_threshold: jax.Array,
    *,
    proposal: ProposalWeights,
    resampling: Resampling,
) -> FinishedRuns:
    """Run filters until all trees are grown.

    Parameters
    ----------
    noise
        Random numbers, whose shape gives the numbers of runs, particles and slots.
    model
        The model.
    by_layer
        bool; whether a stage settles all nodes of one depth, or one node.
    ess_threshold
        Particles are resampled before a stage if the effective sample size is below this share of
        their number.
    proposal
        Proposal for the choices.
    resampling
        Resampling scheme.

    Returns
    -------
    Run
        Finished runs, with particles [runs * N], run by run.
    """
    capacity, num_runs, size = noise.uniform.shape
    every = jnp.arange(num_runs * size)

    def is_unsettled(particles):
        return particles.next < particles.shape.size

    def effective_size(particles):
        return jnp.exp(jax.vmap(log_ess)(particles.log_weight.reshape(num_runs, size)))

    def stage(carry):
        particles, uniform, stages = carry
        number = stages.num_stages
        goes_on = is_unsettled(particles).reshape(num_runs, size).any(axis=1)
        is_wanted = goes_on & (effective_size(particles) < ess_threshold * size)
        keys = jax.vmap(jax.random.split)(noise.rng_keys[number])
        particles = lax.cond(
            is_wanted.any(),
            lambda some: resample_particles(keys[:, 0], some, is_wanted, resampling),
            lambda some: some,
            particles,
        )
        # All particles are at the same slot if nodes are settled one by one.
        uniform = lax.cond(
            is_wanted.any() & by_layer,
            lambda old: renewed(keys[:, 1], old, is_wanted),
            lambda old: old,
            uniform,
        )
        whole = particles.shape.size
        end = jnp.where(by_layer, whole, jnp.minimum(particles.next + 1, whole))

        def one(carry):
            particles, num_overflows = carry
            at = jnp.minimum(particles.next, capacity - 1)
            drawn = uniform[at, every // size, every % size]
            particles, overflows = settle(model, proposal, particles, end, drawn)
            return particles, num_overflows + overflows.reshape(num_runs, size).sum(axis=1)

        start = particles, stages.num_overflows
        particles, num_overflows = lax.while_loop(
            lambda carry: (carry[0].next < end).any(), one, start
        )
        size_after = jnp.where(goes_on, effective_size(particles), jnp.nan)
        stages = Stages(
            stages.effective_size.at[number].set(size_after),
            stages.is_resampled.at[number].set(is_wanted),
            num_overflows,
            number + 1,
        )
        return particles, uniform, stages

    nothing = Stages(
        jnp.full((capacity, num_runs), jnp.nan),
        jnp.zeros((capacity, num_runs), bool),
        jnp.zeros(num_runs, int),
        jnp.int32(0),
    )
    start = initial_particles(model, num_runs * size, capacity), noise.uniform, nothing
    carry = lax.while_loop(lambda carry: is_unsettled(carry[0]).any(), stage, start)
    return FinishedRuns(carry[0], carry[2])
