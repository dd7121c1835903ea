"""A trajectory of the no-U-turn sampler, built point by point.

A transition of NUTS is usually written as a recursion, or as nested loops, so that all chains in a
batch wait for the longest trajectory. Here each part of the work evaluates the density once:
`extend` adds one point to a trajectory at any stage. Many trajectories are extended side by side,
and a finished one is replaced by the next.

The trajectory doubles until it turns back, or diverges: a subtree of as many points as there are is
built at one of its ends, point by point. The first momenta and the sums of momenta of the subtree's
own subtrees are stored, one for each level, to detect whether they turn back. Progressive
multinomial sampling selects a draw from the points.

References
----------
Hoffman and Gelman 2014, The no-U-turn sampler; Betancourt 2017, A conceptual introduction to
Hamiltonian Monte Carlo, A.3; Phan, Pradhan and Jankowiak 2019, Composable effects for flexible and
accelerated probabilistic programming in NumPyro, A (the iterative form); Dance, Glaser, Orbanz and
Adams 2025, Efficiently vectorized MCMC on modern accelerators (transitions as state machines).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

_DIVERGENCE = 1000.0  # limit of the energy error, as in Stan


class Draw(NamedTuple):
    """A point that may become the next draw.

    Attributes
    ----------
    position
        float [size].
    log_density, energy
        float.
    """

    position: Any
    log_density: Any
    energy: Any


class Trajectory(NamedTuple):
    """A trajectory, and the subtree that will double it.

    Attributes
    ----------
    position, momentum, gradient
        float [2, size]; values at its left and its right end, including the subtree.
    start
        Energy at the start; NaN before the start is evaluated.
    draw, log_weight, momentum_sum
        The draw, the log of the sum of weights, and the sum of momenta, without the subtree.
    doublings
        int; the trajectory has 2^doublings points.
    subtree_draw, subtree_log_weight, subtree_sum
        The same for the subtree.
    first, sum_before
        float [most doublings, size]; for each level, the first momentum of the latest subtree of
        the subtree, and the sum of momenta before it.
    leaf
        int; points of the subtree.
    goes_right
        bool; which end it grows at.
    acceptance
        float; sum over points of their acceptance probabilities.
    num_steps
        int; points without the start.
    is_over, is_divergent
        bool.
    """

    position: Any
    momentum: Any
    gradient: Any
    start: Any
    draw: Draw
    log_weight: Any
    momentum_sum: Any
    doublings: Any
    subtree_draw: Draw
    subtree_log_weight: Any
    subtree_sum: Any
    first: Any
    sum_before: Any
    leaf: Any
    goes_right: Any
    acceptance: Any
    num_steps: Any
    is_over: Any
    is_divergent: Any


def begin_trajectory(position: jax.Array, momentum: jax.Array, max_doublings: int) -> Trajectory:
    """Start with a point that is not evaluated yet."""
    zero, none = jnp.zeros((), position.dtype), jnp.zeros_like(position)
    draw = Draw(position, zero, zero)
    levels = jnp.zeros((max_doublings, *position.shape), position.dtype)
    ends = jnp.stack([position, position]), jnp.stack([momentum, momentum])
    lowest, count, no = jnp.full_like(zero, -jnp.inf), jnp.int32(0), jnp.bool_(False)
    return Trajectory(
        *ends,
        jnp.zeros_like(ends[0]),
        start=jnp.full_like(zero, jnp.nan),
        draw=draw,
        log_weight=zero,
        momentum_sum=momentum,
        doublings=count,
        subtree_draw=draw,
        subtree_log_weight=lowest,
        subtree_sum=none,
        first=levels,
        sum_before=levels,
        leaf=count,
        goes_right=no,
        acceptance=zero,
        num_steps=count,
        is_over=no,
        is_divergent=no,
    )


def extend(
    trajectory: Trajectory,
    log_density: Callable[[jax.Array], jax.Array],
    step_size: jax.Array,
    inverse_mass: jax.Array,
    uniform: jax.Array,
    most_doublings: Any = None,
) -> Trajectory:
    """Evaluate the start, or add the next point.

    Parameters
    ----------
    trajectory
        The trajectory so far.
    log_density
        Log density of a position [size].
    step_size
        Step size of the leapfrog integrator.
    inverse_mass
        float [size]; diagonal.
    uniform
        float [3]; independent numbers from (0, 1).
    most_doublings
        Doublings after which it ends; default, and at most, its capacity.
    """
    old, is_start = trajectory, jnp.isnan(trajectory.start)
    step = jnp.where(is_start, 0.0, jnp.where(old.goes_right, step_size, -step_size))
    position, momentum, gradient = (
        jnp.where(old.goes_right, ends[1], ends[0])
        for ends in (old.position, old.momentum, old.gradient)
    )
    momentum = momentum + step / 2 * gradient
    position = position + step * inverse_mass * momentum
    value, gradient = jax.value_and_grad(log_density)(position)
    momentum = momentum + step / 2 * gradient
    energy = -value + (inverse_mass * momentum**2).sum() / 2
    energy = jnp.where(jnp.isnan(energy), jnp.inf, energy)
    point = Draw(position, value, energy)

    # The start is the draw for any weight while it is the only point.
    loss = jnp.where(is_start, 0.0, energy - old.start)
    is_divergent = ~(loss <= _DIVERGENCE)
    log_weight = jnp.logaddexp(old.subtree_log_weight, -loss)
    is_drawn = jnp.log(uniform[0]) < -loss - log_weight
    subtree_draw = _choose_half(is_drawn, point, old.subtree_draw)
    subtree_sum = old.subtree_sum + momentum
    turns, first, sum_before = _subtrees(old, momentum, subtree_sum, inverse_mass)

    # The subtree is complete, or the trajectory ends without it.
    leaf = old.leaf + 1
    is_whole = ~is_start & ~is_divergent & ~turns & (leaf == 1 << old.doublings)
    moves = is_whole & (jnp.log(uniform[1]) < log_weight - old.log_weight)
    at_end = (jnp.arange(2) == old.goes_right)[:, None] | is_start
    momenta = jnp.where(at_end, momentum, old.momentum)
    momentum_sum = old.momentum_sum + subtree_sum
    doublings = old.doublings + is_whole
    has_turned = _turns(momenta[0], momenta[1], momentum_sum, inverse_mass)
    is_full = doublings >= (len(old.first) if most_doublings is None else most_doublings)
    begins = is_start | is_whole
    return Trajectory(
        position=jnp.where(at_end, position, old.position),
        momentum=momenta,
        gradient=jnp.where(at_end, gradient, old.gradient),
        start=jnp.where(is_start, energy, old.start),
        draw=_choose_half(is_start, point, _choose_half(moves, subtree_draw, old.draw)),
        log_weight=jnp.where(is_whole, jnp.logaddexp(old.log_weight, log_weight), old.log_weight),
        momentum_sum=jnp.where(is_whole, momentum_sum, old.momentum_sum),
        doublings=doublings,
        subtree_draw=subtree_draw,
        subtree_log_weight=jnp.where(begins, -jnp.inf, log_weight),
        subtree_sum=jnp.where(begins, 0.0, subtree_sum),
        first=first,
        sum_before=sum_before,
        leaf=jnp.where(begins, 0, leaf),
        goes_right=jnp.where(begins, uniform[2] < 0.5, old.goes_right),
        acceptance=old.acceptance + jnp.where(is_start, 0.0, jnp.minimum(jnp.exp(-loss), 1.0)),
        num_steps=old.num_steps + ~is_start,
        is_over=~is_start & (is_divergent | turns | is_whole & (has_turned | is_full)),
        is_divergent=is_divergent,
    )


def _subtrees(old: Trajectory, momentum, total, inverse_mass):
    """Return whether a subtree of the subtree that ends here turns back, and stored values."""
    level = jnp.arange(len(old.first))
    before = lax.population_count(old.leaf >> 1)  # level at which an even leaf is stored
    ending = lax.population_count(old.leaf ^ (old.leaf + 1)) - 1  # subtrees that end here
    ends_here = (level <= before) & (level > before - ending)
    within = total[None] - old.sum_before
    turns = (_turns(old.first, momentum[None], within, inverse_mass) & ends_here).any()
    is_kept = ((level == before) & (ending == 0))[:, None]
    first = jnp.where(is_kept, momentum, old.first)
    return turns, first, jnp.where(is_kept, total - momentum, old.sum_before)


def _turns(left, right, total, inverse_mass) -> jax.Array:
    """Return whether the ends of a trajectory approach each other, by momenta [..., size]."""
    way = (total - (left + right) / 2) * inverse_mass
    return ((left * way).sum(axis=-1) <= 0) | ((right * way).sum(axis=-1) <= 0)


def _choose_half(which: jax.Array, one: Draw, other: Draw) -> Draw:
    return jax.tree.map(lambda a, b: jnp.where(which, a, b), one, other)
