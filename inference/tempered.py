"""Evidence by sequential Monte Carlo from the prior to the posterior.

Particles are drawn from the prior and moved through powers of the likelihood that rise from 0 to 1;
before each rise they are resampled and moved by Hamiltonian Monte Carlo. The product of the mean
weights estimates the evidence. A first run adapts: it finds the powers, by the effective sample
size of each rise, the step sizes, by acceptance, and the mass matrices, by the particles' variances
(BlackJAX's adaptive tempered SMC). Estimates of runs that adapt are only consistent; so the
estimate is the mean of independent runs that follow the schedule found, each of them unbiased.

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
from blackjax.smc import adaptive_tempered, resampling, tempered
from jax.tree_util import Partial

from bdtppl.inference.evidence import Evidence, log_mean
from bdtppl.models.pytrees import as_partial

__all__ = ["Schedule", "Tempered", "adapt", "follow", "tempered_evidence"]

_TARGET_ACCEPTANCE = 0.8
_INTEGRATION_STEPS = 5
_MOST_RISES = 200
_NEVER = -1e30
_BLOCK = 64  # particles that move together


class Schedule(NamedTuple):
    """How particles rise; padded to a fixed number of rises.

    Attributes
    ----------
    power
        float [rises]; power of the likelihood after each rise, the last of them 1.
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
        float [particles, size].
    log_weight
        float [particles]; the log of their mean is the log evidence.
    """

    log_evidence: jax.Array
    position: jax.Array
    log_weight: jax.Array


class _Adapting(NamedTuple):
    state: tempered.TemperedSMCState
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
        Log density of a position [size] under a ``power=``: the normalised prior times that power
        of the likelihood.
    particles
        float [particles, size], drawn from the prior.
    target_ess
        Effective share of the particles after each rise.
    num_moves
        Moves before each rise.
    """
    log_prior, log_likelihood = _parts(log_density)
    kernel = adaptive_tempered.build_kernel(
        log_prior,
        log_likelihood,
        hmc.build_kernel(),
        hmc.init,
        resampling.systematic,
        target_ess,
        batch_size=_BLOCK,
    )
    size, dtype = particles.shape[1], particles.dtype
    empty = Schedule(
        jnp.ones(_MOST_RISES, dtype),
        jnp.ones(_MOST_RISES, dtype),
        jnp.ones((_MOST_RISES, size), dtype),
        jnp.int32(0),
    )

    def is_on_its_way(carry: _Adapting) -> jax.Array:
        has_room = carry.schedule.num_rises < _MOST_RISES
        return (carry.state.tempering_param < 1 - 1e-6) & has_room

    def rise(carry: _Adapting) -> _Adapting:
        state, step_size, schedule = carry
        variance = _variance(state)
        place = schedule.num_rises
        state, info = kernel(
            jax.random.fold_in(rng_key, place), state, num_moves, _moves(step_size, variance)
        )
        schedule = Schedule(
            schedule.power.at[place].set(state.tempering_param),
            schedule.step_size.at[place].set(step_size),
            schedule.variance.at[place].set(variance),
            place + 1,
        )
        accepted = jnp.nan_to_num(info.update_info.acceptance_rate).mean()
        return _Adapting(state, step_size * jnp.exp(accepted - _TARGET_ACCEPTANCE), schedule)

    start = _Adapting(_start(particles), jnp.asarray(size**-0.25, dtype), empty)
    with jax.numpy_rank_promotion("allow"):  # BlackJAX's own code broadcasts
        found = jax.lax.while_loop(is_on_its_way, rise, start).schedule
    last = jnp.arange(_MOST_RISES) == found.num_rises - 1
    return found._replace(power=jnp.where(last, 1.0, found.power))


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
    log_prior, log_likelihood = _parts(log_density)
    kernel = tempered.build_kernel(
        log_prior,
        log_likelihood,
        hmc.build_kernel(),
        hmc.init,
        resampling.systematic,
        batch_size=_BLOCK,
    )

    def rise(place, carry):
        state, log_evidence = carry
        state, info = kernel(
            jax.random.fold_in(rng_key, place),
            state,
            num_moves,
            schedule.power[place],
            _moves(schedule.step_size[place], schedule.variance[place]),
        )
        return state, log_evidence + info.log_likelihood_increment

    start = _start(particles), jnp.zeros((), particles.dtype)
    with jax.numpy_rank_promotion("allow"):
        state, log_evidence = jax.lax.fori_loop(0, schedule.num_rises, rise, start)
    log_weight = jnp.log(state.weights * len(particles)) + log_evidence
    return Tempered(log_evidence, state.particles, log_weight)


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


def _parts(log_density: Partial) -> tuple[Callable, Callable]:
    """Prior and likelihood of a density with a power."""

    def log_prior(position):
        # A traced number: NumPyro refuses a power that it can see to be 0.
        return log_density(position, power=jnp.zeros((), position.dtype))

    def log_likelihood(position):
        found = log_density(position, power=1.0) - log_prior(position)
        # Far out a density may overflow; a finite number times the power 0 is 0.
        return jnp.nan_to_num(found, nan=_NEVER, neginf=_NEVER)

    return log_prior, log_likelihood


def _start(particles: jax.Array) -> tempered.TemperedSMCState:
    state = tempered.init(particles)
    return state._replace(tempering_param=jnp.zeros((), particles.dtype))


def _variance(state: tempered.TemperedSMCState) -> jax.Array:
    """Variances of weighted particles, [size]."""
    particles: Any = state.particles
    mean = state.weights @ particles
    variance = state.weights @ (particles - mean[None]) ** 2
    return jnp.maximum(variance, 1e-8)


def _moves(step_size: jax.Array, variance: jax.Array) -> dict[str, jax.Array]:
    """Arguments of Hamiltonian Monte Carlo, with a leading axis of 1: all particles share them."""
    return {
        "step_size": step_size[None],
        "inverse_mass_matrix": variance[None],
        "num_integration_steps": jnp.full(1, _INTEGRATION_STEPS),
    }
