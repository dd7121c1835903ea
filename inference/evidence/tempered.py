"""Evidence by sequential Monte Carlo from the prior to the posterior.

Particles are drawn from the prior and moved through densities that lead from it to the posterior,
numbered by a power that rises from 0 to 1. After each rise they are resampled and moved by
Hamiltonian Monte Carlo. The product of the mean weights estimates the evidence. A first run adapts:
it finds the powers, by the effective sample size of each rise, the step sizes, by acceptance, and
the mass matrices, by the particles' variances. Estimates of runs that adapt are only consistent; so
the estimate is the mean of independent runs that follow the schedule found, each of them unbiased.

The power is that of the likelihood, and may change more besides: where splits of soft trees get
sharper as it rises, particles find modes while there are few, and fill them by their weights.

References
----------
Del Moral, Doucet and Jasra 2006, Sequential Monte Carlo samplers; Buchholz, Chopin and Jacob 2021,
Adaptive tuning of Hamiltonian Monte Carlo within sequential Monte Carlo.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.mcmc import hmc
from blackjax.smc import resampling
from jax.scipy.special import logsumexp
from jax.tree_util import Partial

from bdtppl.inference.evidence.estimates import Evidence, log_mean
from bdtppl.models.pytrees import as_partial

__all__ = ["Schedule", "Tempered", "adapt", "follow", "tempered_evidence"]

_TARGET_ACCEPTANCE = 0.8
_INTEGRATION_STEPS = 5
_MOST_RISES = 200
_HALVINGS = 30
_BLOCK = 16  # particles that move together


class Schedule(NamedTuple):
    """How particles rise; padded to a fixed number of rises.

    Attributes
    ----------
    power
        float [rises]; power after each rise, the last of them 1.
    step_size
        float [rises]; of the leapfrog integrator.
    variance
        float [rises, size]; inverse mass matrices, diagonal.
    num_rises
        int; how many there are.
    """

    power: jax.Array
    step_size: jax.Array
    variance: jax.Array
    num_rises: jax.Array


class Tempered(NamedTuple):
    """Particles of one run under the posterior.

    Attributes
    ----------
    log_evidence
        float.
    position
        float [particles, size]; all have the same weight.
    """

    log_evidence: jax.Array
    position: jax.Array

    @property
    def log_weight(self) -> np.ndarray:
        """Log weights float [..., particles]: in each run their mean is the evidence."""
        return np.broadcast_to(self.log_evidence[..., None], self.position.shape[:-1])


class _Adapting(NamedTuple):
    particles: jax.Array
    power: jax.Array
    step_size: jax.Array
    schedule: Schedule


@partial(jax.jit, static_argnames="num_moves")
def adapt(
    rng_key: jax.Array,
    log_density: Partial,
    particles: jax.Array,
    *,
    target_ess: Any = 0.7,
    num_moves: int = 3,
) -> Schedule:
    """Find a schedule by a run that adapts.

    Parameters
    ----------
    rng_key
        Key.
    log_density
        Log density of a position [size] under a ``power=``: at 0 the normalised prior, at 1 its
        product with the likelihood.
    particles
        float [particles, size], drawn from the prior.
    target_ess
        Effective share of the particles after each rise.
    num_moves
        Moves after each rise.
    """
    size, dtype = particles.shape[1], particles.dtype
    empty = Schedule(
        jnp.ones(_MOST_RISES, dtype),
        jnp.ones(_MOST_RISES, dtype),
        jnp.ones((_MOST_RISES, size), dtype),
        jnp.int32(0),
    )

    def is_on_its_way(carry: _Adapting) -> jax.Array:
        return (carry.power < 1) & (carry.schedule.num_rises < _MOST_RISES)

    def rise(carry: _Adapting) -> _Adapting:
        particles, power, step_size, schedule = carry
        place = schedule.num_rises
        higher = _next_power(log_density, particles, power, target_ess)
        higher = jnp.where(place == _MOST_RISES - 1, 1.0, higher)
        log_weight = _log_weight(log_density, particles, power, higher)
        variance = _variance(particles, jax.nn.softmax(log_weight))
        key = jax.random.fold_in(rng_key, place)
        density = partial(log_density, power=higher)
        particles, accepted = _renew(
            key, density, particles, log_weight, step_size, variance, num_moves
        )
        schedule = Schedule(
            schedule.power.at[place].set(higher),
            schedule.step_size.at[place].set(step_size),
            schedule.variance.at[place].set(variance),
            place + 1,
        )
        step_size = step_size * jnp.exp(accepted - _TARGET_ACCEPTANCE)
        return _Adapting(particles, higher, step_size, schedule)

    start = _Adapting(particles, jnp.zeros((), dtype), jnp.asarray(size**-0.25, dtype), empty)
    with jax.numpy_rank_promotion("allow"):  # BlackJAX's own code broadcasts
        return jax.lax.while_loop(is_on_its_way, rise, start).schedule


@partial(jax.jit, static_argnames="num_moves")
def follow(
    rng_key: jax.Array,
    log_density: Partial,
    particles: jax.Array,
    schedule: Schedule,
    *,
    num_moves: int = 3,
) -> Tempered:
    """Run with a given schedule; the mean of exp(log_evidence) over runs is the evidence.

    Parameters
    ----------
    rng_key, log_density, particles, num_moves
        See `adapt`.
    schedule
        What `adapt` has found with other particles.
    """

    def rise(place, carry):
        particles, power, log_evidence = carry
        higher = schedule.power[place]
        log_weight = _log_weight(log_density, particles, power, higher)
        particles, _ = _renew(
            jax.random.fold_in(rng_key, place),
            partial(log_density, power=higher),
            particles,
            log_weight,
            schedule.step_size[place],
            schedule.variance[place],
            num_moves,
        )
        return particles, higher, log_evidence + logsumexp(log_weight) - np.log(len(particles))

    none = jnp.zeros((), particles.dtype)
    with jax.numpy_rank_promotion("allow"):
        particles, _, log_evidence = jax.lax.fori_loop(
            0, schedule.num_rises, rise, (particles, none, none)
        )
    return Tempered(log_evidence, particles)


def tempered_evidence(
    rng_key: jax.Array,
    log_density: Callable[..., jax.Array],
    draw_prior: Callable[[np.random.Generator, int], Any],
    *,
    particles: int = 128,
    runs: int = 16,
    target_ess: float = 0.7,
    num_moves: int = 3,
) -> tuple[Evidence, Tempered]:
    """Estimate the evidence by independent runs that follow the schedule of a first one.

    Parameters
    ----------
    rng_key, log_density, target_ess, num_moves
        See `adapt`.
    draw_prior
        Draws so many positions [number, size] from the prior.
    particles, runs
        Particles of each run, and the runs.

    Returns
    -------
    evidence, tempered
        The log of the mean of the runs' estimates with a standard error by their spread, and the
        particles of the runs, with a leading axis.
    """
    key_prior, key_adapt, key_follow = jax.random.split(rng_key, 3)
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key_prior)))
    start = jnp.asarray(draw_prior(rng, (runs + 1) * particles))
    start = start.reshape(runs + 1, particles, -1)
    density = as_partial(log_density)
    schedule = adapt(key_adapt, density, start[0], target_ess=target_ess, num_moves=num_moves)
    found = [
        follow(key, density, each, schedule, num_moves=num_moves)
        for key, each in zip(jax.random.split(key_follow, runs), start[1:], strict=True)
    ]
    found = jax.tree.map(lambda *a: np.stack(a), *found)
    log_evidence, error = log_mean(found.log_evidence.astype(np.float64))
    weight = np.exp(found.log_weight - found.log_weight.max())
    effective_size = float(weight.sum() ** 2 / (weight**2).sum())
    return Evidence(log_evidence, error, "smc", effective_size), found


def _log_weight(log_density: Callable, particles: jax.Array, power, higher) -> jax.Array:
    """Log weights of a rise, [particles]."""

    def of_one(position):
        found = log_density(position, power=higher) - log_density(position, power=power)
        # Far out a density may overflow.
        return jnp.where(jnp.isnan(found), -jnp.inf, found)

    return jax.lax.map(of_one, particles, batch_size=_BLOCK)


def _next_power(log_density: Callable, particles: jax.Array, power, target_ess) -> jax.Array:
    """Find the greatest power after which the weights are still even enough, by bisection."""

    def is_even(higher):
        log_weight = _log_weight(log_density, particles, power, higher)
        log_ess = 2 * logsumexp(log_weight) - logsumexp(2 * log_weight)
        return log_ess >= jnp.log(target_ess * len(particles))

    def halve(_, bounds):
        low, high = bounds
        middle = (low + high) / 2
        is_low = is_even(middle)
        return jnp.where(is_low, middle, low), jnp.where(is_low, high, middle)

    one = jnp.ones_like(power)
    _, found = jax.lax.fori_loop(0, _HALVINGS, halve, (power, one))
    return jnp.where(is_even(one), one, found)


def _renew(rng_key, log_density, particles, log_weight, step_size, variance, num_moves):
    """Resample and move; the particles, and the rate of acceptance."""
    key_resample, key_move = jax.random.split(rng_key)
    number = len(particles)
    chosen = resampling.systematic(key_resample, jax.nn.softmax(log_weight), number)
    kernel = hmc.build_kernel()

    def move(given):
        key, position = given

        def once(state, key):
            return kernel(key, state, log_density, step_size, variance, _INTEGRATION_STEPS)

        start = hmc.init(position, log_density)
        state, info = jax.lax.scan(once, start, jax.random.split(key, num_moves))
        return state.position, jnp.nan_to_num(info.acceptance_rate).mean()

    keys = jax.random.split(key_move, number)
    moved, accepted = jax.lax.map(move, (keys, particles[chosen]), batch_size=_BLOCK)
    return moved, accepted.mean()


def _variance(particles: jax.Array, weight: jax.Array) -> jax.Array:
    """Variances of weighted particles, [size]."""
    mean = weight @ particles
    return jnp.maximum(weight @ (particles - mean[None]) ** 2, 1e-8)
