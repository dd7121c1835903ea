"""Evidence by sequential Monte Carlo from one density to another.

Particles are drawn from a normalised density, and moved through densities that lead from it to the
target, numbered by a power that rises from 0 to 1. After each rise they are resampled and moved by
Hamiltonian Monte Carlo. The product of the mean weights estimates the evidence. A first run adapts:
it finds the powers, by the effective sample size of each rise, the step sizes, by acceptance, and
the mass matrices, by the particles' variances. Estimates of runs that adapt are only consistent; so
the estimate is the mean of independent runs that follow the schedule found, each of them unbiased.

The first density may be the prior, where modes are few or wide; or what chains have found, such as
`bdtppl.inference.evidence.importance.Mixture`. Then rises are few, and no mode is lost on the way
that chains were in.

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
    """How particles rise.

    Attributes
    ----------
    power
        float [rises]; power after each rise, the last of them 1.
    step_size
        float [rises]; of the leapfrog integrator.
    variance
        float [rises, size]; inverse mass matrices, diagonal.
    """

    power: np.ndarray
    step_size: np.ndarray
    variance: np.ndarray


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


def adapt(
    rng_key: jax.Array,
    log_density: Partial,
    particles: jax.Array,
    *,
    target_ess: float = 0.7,
    num_moves: int = 3,
) -> Schedule:
    """Find a schedule by a run that adapts.

    Parameters
    ----------
    rng_key
        Key.
    log_density
        Log density of a position [size] under a ``power=``: at 0 a normalised density, such as the
        prior, at 1 the target, such as its product with the likelihood.
    particles
        float [particles, size], drawn from the density at 0.
    target_ess
        Effective share of the particles after each rise.
    num_moves
        Moves after each rise.
    """
    dtype = particles.dtype
    power, step_size = np.zeros((), dtype), np.asarray(particles.shape[1] ** -0.25, dtype)
    rises: list[tuple[Any, ...]] = []
    while power < 1:
        higher, variance = _next_rise(log_density, particles, power, target_ess)
        higher = np.asarray(higher if len(rises) < _MOST_RISES - 1 else 1.0, dtype)
        key = jax.random.fold_in(rng_key, len(rises))
        rises.append((higher, step_size, variance))
        particles, _, accepted = _rise(
            key, log_density, particles, power, *rises[-1], num_moves=num_moves
        )
        power = higher
        step_size = step_size * np.exp(np.asarray(accepted) - _TARGET_ACCEPTANCE, dtype=dtype)
    return Schedule(*(np.stack(each) for each in zip(*rises, strict=True)))


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
    power = np.zeros((), particles.dtype)
    log_evidence = jnp.asarray(power)
    for place, rise in enumerate(zip(*schedule, strict=True)):
        key = jax.random.fold_in(rng_key, place)
        particles, gain, _ = _rise(key, log_density, particles, power, *rise, num_moves=num_moves)
        log_evidence, power = log_evidence + gain, rise[0]
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


@jax.jit
def _next_rise(log_density: Partial, particles: jax.Array, power, target_ess) -> tuple[Any, Any]:
    """Find the greatest power after which weights are still even enough, and their variances."""

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
    _, found = jax.lax.fori_loop(0, _HALVINGS, halve, (jnp.asarray(power), one))
    higher = jnp.where(is_even(one), one, found)
    weight = jax.nn.softmax(_log_weight(log_density, particles, power, higher))
    return higher, _variance(particles, weight)


@partial(jax.jit, static_argnames="num_moves")
def _rise(
    rng_key, log_density: Partial, particles, power, higher, step_size, variance, *, num_moves: int
) -> tuple[Any, Any, Any]:
    """Weigh, resample and move; the particles, the log of the mean weight, and the acceptance."""
    key_resample, key_move = jax.random.split(rng_key)
    number = len(particles)
    log_weight = _log_weight(log_density, particles, power, higher)
    chosen = resampling.systematic(key_resample, jax.nn.softmax(log_weight), number)
    density, kernel = partial(log_density, power=higher), hmc.build_kernel()

    def move(given):
        key, position = given

        def once(state, key):
            return kernel(key, state, density, step_size, variance, _INTEGRATION_STEPS)

        start = hmc.init(position, density)
        state, info = jax.lax.scan(once, start, jax.random.split(key, num_moves))
        return state.position, jnp.nan_to_num(info.acceptance_rate).mean()

    keys = jax.random.split(key_move, number)
    with jax.numpy_rank_promotion("allow"):  # BlackJAX's own code broadcasts
        moved, accepted = jax.lax.map(move, (keys, particles[chosen]), batch_size=_BLOCK)
    return moved, logsumexp(log_weight) - np.log(number), accepted.mean()


def _variance(particles: jax.Array, weight: jax.Array) -> jax.Array:
    """Variances of weighted particles, [size]."""
    mean = weight @ particles
    return jnp.maximum(weight @ (particles - mean[None]) ** 2, 1e-8)
