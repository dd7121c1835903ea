"""Evidence by sequential Monte Carlo from one density to another.

Particles are drawn from a normalised density, and moved through the densities

    p_power(x) = start(x)^(1 - power) target(x)^power

as the power rises from 0 to 1. After each rise they are resampled and moved by Hamiltonian Monte
Carlo. The product of the mean weights estimates the evidence. A first run adapts: it sets the
powers by the effective sample size, the step sizes by acceptance, and the mass matrices by the
particles' variances. Estimates of adaptive runs are only consistent, not unbiased. So the estimate
is the mean of independent runs that follow the schedule of the first one; each of them is unbiased.

The start may be the prior, if modes are few or wide; or a density around the draws of chains, such
as `bdtppl.inference.evidence.importance.Mixture`. Then few rises are needed, and the modes of the
chains are kept.

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

from bdtppl.inference.compiling import COMPILED_LIGHTLY
from bdtppl.inference.evidence.estimates import Evidence, log_mean
from bdtppl.inference.parallel import in_shares
from bdtppl.inference.statistics import effective_sample_size
from bdtppl.models.arrays.threads import in_threads, num_threads
from bdtppl.models.pytrees import as_partial

_TARGET_ACCEPTANCE = 0.8
_INTEGRATION_STEPS = 5
_MOST_RISES = 200
_HALVINGS = 30
_PARTICLES_A_BLOCK = 16  # particles that are moved together


class TemperedPath(NamedTuple):
    """Log densities of a position [size] at both ends of a path.

    Attributes
    ----------
    start
        Normalised log density.
    target
        Log density up to a constant, whose log is estimated.
    """

    start: Partial
    target: Partial

    def log_density(self, position: jax.Array, power: Any) -> jax.Array:
        """Return the log density at a power."""
        return (1 - power) * self.start(position) + power * self.target(position)

    def log_ratio(self, position: jax.Array) -> jax.Array:
        """Return the log of target over start, the slope of log weights in the power."""
        ratio = self.target(position) - self.start(position)
        return jnp.where(jnp.isnan(ratio), -jnp.inf, ratio)  # a density may overflow far out


class Schedule(NamedTuple):
    """Schedule of the powers of particles.

    Attributes
    ----------
    power
        float [rises]; power after each rise; the last is 1.
    step_size
        float [rises]; step sizes of the leapfrog integrator.
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
        """Return log weights float [..., particles]: their mean in each run is the evidence."""
        return np.broadcast_to(self.log_evidence[..., None], self.position.shape[:-1])


def adapt_schedule(
    rng_key: jax.Array,
    path: TemperedPath,
    particles: jax.Array,
    *,
    target_ess: float = 0.7,
    num_moves: int = 3,
) -> Schedule:
    """Find a schedule by an adaptive run.

    Parameters
    ----------
    rng_key
        Key.
    path
        From a normalised density to the target. Functions that differ only in the data of a
        `jax.tree_util.Partial` are compiled once.
    particles
        float [particles, size], drawn from the start density.
    target_ess
        Effective share of the particles after each rise.
    num_moves
        Moves after each rise.
    """
    dtype = particles.dtype
    power, step_size = 0.0, particles.shape[1] ** -0.25
    log_ratio, rises = _log_ratios(path, particles), []
    while power < 1:
        is_last = len(rises) == _MOST_RISES - 1
        higher = 1.0 if is_last else _next_power(np.asarray(log_ratio), power, target_ess)
        variance = _variance(np.asarray(particles), (higher - power) * np.asarray(log_ratio))
        rises.append(tuple(np.asarray(a, dtype) for a in (higher, step_size, variance)))
        key = jax.random.fold_in(rng_key, len(rises))
        particles, _, accepted = _rise(
            key,
            path,
            particles,
            log_ratio,
            np.asarray(power, dtype),
            *rises[-1],
            num_moves=num_moves,
        )
        log_ratio = _log_ratios(path, particles)
        power, step_size = higher, step_size * np.exp(float(accepted) - _TARGET_ACCEPTANCE)
    return Schedule(*(np.stack(each) for each in zip(*rises, strict=True)))


def follow_schedule(
    rng_key: jax.Array,
    path: TemperedPath,
    particles: jax.Array,
    schedule: Schedule,
    *,
    num_moves: int = 3,
) -> Tempered:
    """Run with a given schedule; the mean of exp(log_evidence) over runs is the evidence.

    Parameters
    ----------
    rng_key, path, particles, num_moves
        See `adapt_schedule`.
    schedule
        Result of `adapt_schedule` with other particles.
    """
    power = np.zeros((), particles.dtype)
    log_evidence, log_ratio = jnp.asarray(power), _log_ratios(path, particles)
    for place, rise in enumerate(zip(*schedule, strict=True)):
        key = jax.random.fold_in(rng_key, place)
        particles, gain, _ = _rise(
            key, path, particles, log_ratio, power, *rise, num_moves=num_moves
        )
        log_ratio = _log_ratios(path, particles)  # not in _rise, which takes longer to compile
        log_evidence, power = log_evidence + gain, rise[0]
    return Tempered(log_evidence, particles)


def tempered_evidence(
    rng_key: jax.Array,
    path: TemperedPath,
    draw_start: Callable[[np.random.Generator, int], Any],
    *,
    particles: int = 128,
    runs: int = 16,
    target_ess: float = 0.7,
    num_moves: int = 3,
) -> tuple[Evidence, Tempered]:
    """Estimate the evidence by independent runs that follow the schedule of a first one.

    Parameters
    ----------
    rng_key, path, target_ess, num_moves
        See `adapt_schedule`.
    draw_start
        Draws a number of positions [number, size] from the start density.
    particles, runs
        Number of particles of each run, and of runs.

    Returns
    -------
    evidence, tempered
        The log of the mean of the runs' estimates with a standard error by their spread, and the
        particles of the runs, with a leading axis.
    """
    key_start, key_adapt, key_follow = jax.random.split(rng_key, 3)
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key_start)))
    start = jnp.asarray(draw_start(rng, (runs + 1) * particles))
    start = start.reshape(runs + 1, particles, -1)
    path = TemperedPath(*map(as_partial, path))
    schedule = adapt_schedule(key_adapt, path, start[0], target_ess=target_ess, num_moves=num_moves)

    of_runs = jax.random.split(key_follow, runs), start[1:]
    tempered = in_shares(_follow_all, of_runs, shared=(path, schedule, num_moves))
    log_evidence, error = log_mean(tempered.log_evidence.astype(np.float64))
    weight = np.exp(tempered.log_weight - tempered.log_weight.max())
    return Evidence(log_evidence, error, "smc", effective_sample_size(weight)), tempered


def _follow_all(
    path: TemperedPath, schedule: Schedule, num_moves: int, keys: jax.Array, particles: Any
) -> Tempered:
    """Run some of the runs, in threads."""

    def run(rng_key: jax.Array, particles: jax.Array) -> Tempered:
        with jax.enable_x64(particles.dtype == np.float64):  # a setting of each thread
            return follow_schedule(rng_key, path, particles, schedule, num_moves=num_moves)

    runs = zip(keys, particles, strict=True)
    each = in_threads(lambda given: run(*given), runs, most=num_threads())
    return jax.tree.map(lambda *a: np.stack(a), *each)


def _next_power(log_ratio: np.ndarray, power: float, target_ess: float) -> float:
    """Return the greatest power, up to 1, at which weights are still even enough."""

    def is_even(higher: float) -> bool:
        weight = _weight((higher - power) * log_ratio)
        return effective_sample_size(weight) >= target_ess * len(weight)

    if is_even(1.0):
        return 1.0
    low, high = power, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_even(middle) else (low, middle)
    return high


def _variance(particles: np.ndarray, log_weight: np.ndarray) -> np.ndarray:
    """Return variances of weighted particles, [size]."""
    weight = _weight(log_weight) / _weight(log_weight).sum()
    return np.maximum(weight @ (particles - weight @ particles) ** 2, 1e-8)


def _weight(log_weight: np.ndarray) -> np.ndarray:
    """Return weights, the greatest of which is 1."""
    return np.exp(log_weight - log_weight.max())


@partial(jax.jit, compiler_options=COMPILED_LIGHTLY)
def _log_ratios(path: TemperedPath, particles: jax.Array) -> jax.Array:
    return jax.lax.map(path.log_ratio, particles, batch_size=_PARTICLES_A_BLOCK)


@partial(jax.jit, static_argnames="num_moves", compiler_options=COMPILED_LIGHTLY)
def _rise(
    rng_key,
    path: TemperedPath,
    particles,
    log_ratio,
    power,
    higher,
    step_size,
    variance,
    *,
    num_moves: int,
) -> tuple[Any, Any, Any]:
    """Weight, resample and move; return particles, log of the mean weight, and acceptance."""
    key_resample, key_move = jax.random.split(rng_key)
    number = len(particles)
    log_weight = (higher - power) * log_ratio
    chosen = resampling.systematic(key_resample, jax.nn.softmax(log_weight), number)
    density, kernel = partial(path.log_density, power=higher), hmc.build_kernel()

    def move(given):
        key, position = given

        def once(state, key):
            return kernel(key, state, density, step_size, variance, _INTEGRATION_STEPS)

        start = hmc.init(position, density)
        state, info = jax.lax.scan(once, start, jax.random.split(key, num_moves))
        accepted = jnp.nan_to_num(info.acceptance_rate).mean()
        return state.position, accepted

    keys = jax.random.split(key_move, number)
    with jax.numpy_rank_promotion("allow"):  # BlackJAX's own code broadcasts
        moved, accepted = jax.lax.map(
            move, (keys, particles[chosen]), batch_size=_PARTICLES_A_BLOCK
        )
    return moved, logsumexp(log_weight) - np.log(number), accepted.mean()
