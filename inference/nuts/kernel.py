"""Chains of the no-U-turn sampler side by side: their steps and adaptation.

A lane runs one chain. All lanes extend their trajectories together, each by one evaluation of the
density; when a trajectory ends, its lane adapts and starts the next one, so no chain waits for
another. Splits on single inputs are redrawn before each step from their full conditionals, also
evaluation by evaluation. The adaptation and the sharpness of a step are data, so warm-up and draws
are one compiled function.

References
----------
Hoffman and Gelman 2014, The no-U-turn sampler; Nishimura, Dunson and Lu 2020, Discontinuous
Hamiltonian Monte Carlo for discrete parameters and discontinuous likelihoods (discrete parameters
between moves); Salmon, Moraes, Dror and Shaw 2011, Parallel random numbers: as easy as 1, 2, 3.
"""

from enum import IntEnum
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.adaptation.mass_matrix import mass_matrix_adaptation
from blackjax.adaptation.step_size import dual_averaging_adaptation
from jax import lax

from bdtppl.inference.compiling import OneKernel
from bdtppl.inference.nuts.trajectory import Trajectory, begin_trajectory, extend
from bdtppl.models.pytrees import pytree_dataclass, setting

_OF_MOMENTUM = 1 << 30  # first of the random numbers for momenta, after those of evaluations
_ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)

# This vectorises sums over rows on CPUs, which nearly halves the time of a step.
COMPILED = {
    "xla_backend_optimization_level": 2,  # as fast as the default, 3, and compiled sooner
    "xla_cpu_enable_fast_math": True,
    "xla_cpu_fast_math_honor_nans": True,  # energy error from which a trajectory is divergent
    "xla_cpu_fast_math_honor_infs": True,
}

_begin_mass, _add_to_mass, _end_mass = mass_matrix_adaptation(is_diagonal_matrix=True)


class Kind(IntEnum):
    """Quantities that a step adapts."""

    STEP_SIZE = 0
    MASS = 1  # and the step size
    WINDOW_END = 2  # update the mass matrix, and restart the step size
    DRAW = 3  # nothing


class Chains(NamedTuple):
    """States of chains, and their adapted step sizes and masses; leading axes [..., chain].

    Attributes
    ----------
    position
        float32 [..., chain, size].
    inputs
        int [..., chain, n]; inputs of splits, None if they use directions.
    averaging
        State of the step size's dual averaging.
    mass
        State of the mass matrix's estimation.
    num_warm
        int [..., chain]; steps of warm-up made.
    """

    position: Any
    inputs: Any
    averaging: Any
    mass: Any
    num_warm: Any

    @property
    def step_size(self) -> np.ndarray:
        """Step size of draws, float32 [..., chain]."""
        return np.exp(self.averaging.log_step_size_avg)

    @property
    def inverse_mass(self) -> Any:
        """Diagonal of the inverse mass matrix, float32 [..., chain, size]."""
        return self.mass.inverse_mass_matrix

    def restarted(self, rng: np.random.Generator, is_stuck: np.ndarray) -> "Chains":
        """Move each stuck chain to the state of another chain of its topology that is not stuck.

        The chains separate again, because each has its own random numbers; draw some steps before
        use.

        Parameters
        ----------
        rng
            Generator that chooses the other chains, uniformly.
        is_stuck
            bool [..., chain]; see `bdtppl.inference.summaries.diagnostics.stuck`.

        Raises
        ------
        ValueError
            If all chains of a topology are stuck.
        """
        if is_stuck.all(axis=-1).any():
            raise ValueError("is_stuck must leave at least one chain of each topology.")
        healthy = [np.flatnonzero(~row) for row in is_stuck.reshape(-1, is_stuck.shape[-1])]
        chosen = np.stack([rng.choice(row, is_stuck.shape[-1]) for row in healthy])
        source = np.where(is_stuck, chosen.reshape(is_stuck.shape), np.arange(is_stuck.shape[-1]))

        def taken(a: np.ndarray) -> np.ndarray:
            index = source.reshape(source.shape + (1,) * (a.ndim - source.ndim))
            return np.take_along_axis(a, index, axis=source.ndim - 1)

        return jax.tree.map(taken, self)


class NutsDraws(NamedTuple):
    """Kept states of steps; leading axes [..., chain, draw].

    Attributes
    ----------
    position
        float32 [..., chain, draw, size].
    inputs
        int [..., chain, draw, n], or None.
    log_density
        float32; log density of the position, unnormalised, at the sharpness of the step.
    energy
        float32; see `bdtppl.inference.summaries.diagnostics.energy_information`.
    acceptance_rate
        float32; mean over the trajectory.
    num_steps
        int; leapfrog steps.
    is_divergent
        bool.
    """

    position: Any
    inputs: Any
    log_density: Any
    energy: Any
    acceptance_rate: Any
    num_steps: Any
    is_divergent: Any


class Inputs(NamedTuple):
    """Inputs of splits, drawn one split after another; each split tries all inputs.

    Attributes
    ----------
    chosen
        int [n].
    trial
        int; number of inputs tried so far over all splits.
    log_weight
        float; log of the sum of the densities with the inputs tried for the current split.
    candidate
        int; the input drawn from these.
    """

    chosen: Any
    trial: Any
    log_weight: Any
    candidate: Any


class Lane(NamedTuple):
    """A chain that makes steps.

    Attributes
    ----------
    chain
        Its state before the current step.
    inputs
        The chain's inputs while they are drawn; None if splits look along directions.
    trajectory
        Trajectory of the current step.
    seed
        uint32 [2]; seed of the chain's random numbers.
    step, stop
        int; number of the current step, and the one to stop before.
    count
        int; evaluations in the current step.
    """

    chain: Chains
    inputs: Inputs | None
    trajectory: Trajectory
    seed: Any
    step: Any
    stop: Any
    count: Any


@pytree_dataclass
class Steps:
    """Settings that all lanes share.

    Steps [s] have kinds, sharpness and most doublings; all further ones are like the last.
    """

    density: Any
    kinds: Any
    sharpness: Any
    doublings: Any
    target_acceptance: Any
    max_doublings: int = setting()


def new_chains(position: np.ndarray, inputs: np.ndarray | None) -> Chains:
    """Start chains [...] at positions [..., size]; NumPy arrays."""
    state = dual_averaging_adaptation(0.8)[0](1.0), _begin_mass(position.shape[-1])

    def of_each(value: Any) -> np.ndarray:
        value = np.asarray(value)
        dtype = position.dtype if np.issubdtype(value.dtype, np.floating) else np.int32
        return np.broadcast_to(value.astype(dtype), (*position.shape[:-1], *value.shape))

    averaging, mass = jax.tree.map(of_each, state)
    return Chains(position, inputs, averaging, mass, np.zeros(position.shape[:-1], np.int32))


def empty_lane(shared: Steps, chains: Chains) -> Lane:
    """Make idle lanes of given shapes; NumPy arrays."""
    number = np.zeros(len(chains.position), np.int32)
    none, seed = cast(Trajectory, None), np.zeros((len(number), 2), np.uint32)
    lane = Lane(chains, None, none, seed, number, number, number)
    begun = jax.eval_shape(_begin_all, shared, lane)
    empty = jax.tree.map(lambda a: np.zeros(a.shape, a.dtype), begun)
    return empty._replace(chain=chains)


@partial(OneKernel, static_argnames="rounds", compiler_options=COMPILED)
def advance(
    shared: Steps, lanes: Lane, paths: Any, begins: Any, *, rounds: int
) -> tuple[Lane, Any, Any, Any]:
    """Continue until all lanes stop, or for some rounds.

    Parameters
    ----------
    shared
        Settings that all lanes share.
    lanes, paths
        The lanes, and the arrays of their topologies; leading axis [lane].
    begins
        bool [lane]; whether the lane starts a step.
    rounds
        A round ends as soon as some trajectory ends.

    Returns
    -------
    Lane, bool [lane], bool [round, lane], NutsDraws
        The lanes; whether they are to start a step; whether a step was made; its kept state.
    """
    evaluate, take_step = (jax.vmap(partial(f, shared)) for f in (_evaluate, _take_step))

    def is_over(lanes):
        return lanes.trajectory.is_over & (lanes.step < lanes.stop)

    def has_work(carry):
        number, lanes, *_ = carry
        return (number < rounds) & (lanes.step < lanes.stop).any()

    def play(carry):
        number, lanes, begins, made, kept = carry
        lanes = jax.vmap(_select_lane)(begins, _begin_all(shared, lanes), lanes)
        lanes = lax.while_loop(
            lambda lanes: ~is_over(lanes).any(), lambda lanes: evaluate(lanes, paths), lanes
        )
        ends = is_over(lanes)
        record = jax.vmap(_kept)(lanes)

        def put(whole, new):
            return lax.dynamic_update_index_in_dim(whole, new, number, 0)

        kept, made = jax.tree.map(put, (kept, made), (record, ends))
        return number + 1, take_step(lanes, ends, record), ends, made, kept

    with jax.numpy_rank_promotion("allow"):
        shapes = jax.eval_shape(jax.vmap(_kept), lanes), jax.ShapeDtypeStruct(begins.shape, bool)
        kept, made = jax.tree.map(lambda a: jnp.zeros((rounds, *a.shape), a.dtype), shapes)
        start = jnp.int32(0), lanes, begins, made, kept
        return lax.while_loop(has_work, play, start)[1:]


def _evaluate(shared: Steps, lane: Lane, paths: Any) -> Lane:
    """Evaluate the density once, for an input of a split or for the trajectory."""
    place = jnp.minimum(lane.step, len(shared.kinds) - 1)
    kind, sharpness, most = (a[place] for a in (shared.kinds, shared.sharpness, shared.doublings))
    step = step_size(kind, lane.chain.averaging)
    numbers = 3 * lane.count + jnp.arange(3)
    uniform = _counted_uniform(lane.seed, lane.step, numbers, lane.chain.position.dtype)
    inverse_mass = lane.chain.inverse_mass
    if lane.inputs is None:

        def log_density(position):
            return shared.density.log_density(position, paths, sharpness)

        moved = extend(lane.trajectory, log_density, step, inverse_mass, uniform, most)
        return lane._replace(trajectory=moved, count=lane.count + 1)

    number, (chosen, trial, _, _) = shared.density.x.shape[1], lane.inputs
    split, choice = trial // number, trial % number
    is_trial = trial < number * len(chosen)
    tried = jnp.where(is_trial & (jnp.arange(len(chosen)) == split), choice, chosen)

    def of_inputs(position):
        return shared.density.log_density(position, paths, sharpness, inputs=tried)

    moved = extend(lane.trajectory, of_inputs, step, inverse_mass, uniform, most)
    # A trajectory does not move at its start: the value is the density of the start.
    inputs = _tried(lane.inputs, moved.draw.log_density, number, uniform[0])
    trajectory = jax.tree.map(partial(jnp.where, is_trial), lane.trajectory, moved)
    inputs = jax.tree.map(partial(jnp.where, is_trial), inputs, lane.inputs)
    return lane._replace(trajectory=trajectory, inputs=inputs, count=lane.count + 1)


def _tried(inputs: Inputs, log_density, number: int, uniform) -> Inputs:
    """Choose among the tried inputs in proportion to their densities; after the last, keep it."""
    chosen, trial, log_weight, candidate = inputs
    split, choice = trial // number, trial % number
    log_density = jnp.where(jnp.isnan(log_density), -jnp.inf, log_density)
    log_weight = jnp.logaddexp(jnp.where(choice == 0, -jnp.inf, log_weight), log_density)
    candidate = jnp.where(jnp.log(uniform) < log_density - log_weight, choice, candidate)
    is_last = (choice == number - 1) & (jnp.arange(len(chosen)) == split)
    return Inputs(jnp.where(is_last, candidate, chosen), trial + 1, log_weight, candidate)


def _kept(lane: Lane) -> NutsDraws:
    """Return the kept state of a step."""
    trajectory, draw = lane.trajectory, lane.trajectory.draw
    return NutsDraws(
        draw.position,
        None if lane.inputs is None else lane.inputs.chosen,
        draw.log_density,
        draw.energy,
        trajectory.acceptance / trajectory.num_steps,
        trajectory.num_steps,
        trajectory.is_divergent,
    )


def _take_step(shared: Steps, lane: Lane, ends: jax.Array, made: NutsDraws) -> Lane:
    """Adapt to a step, if it ends."""
    chain = lane.chain
    kind = shared.kinds[jnp.minimum(lane.step, len(shared.kinds) - 1)]
    chain = adapt_chain(shared, kind, chain, made)
    return _select_lane(ends, lane._replace(chain=chain, step=lane.step + 1), lane)


def _begun(shared: Steps, lane: Lane) -> Lane:
    """Start the current step."""
    position, inputs = lane.chain.position, lane.chain.inputs
    numbers = jnp.arange(2 * position.size) + _OF_MOMENTUM
    uniform = _counted_uniform(lane.seed, lane.step, numbers, position.dtype)
    radius, angle = uniform[: position.size], uniform[position.size :]
    normal = jnp.sqrt(-2 * jnp.log(radius)) * jnp.cos(2 * np.pi * angle)  # of Box and Muller
    momentum = normal / jnp.sqrt(lane.chain.inverse_mass)
    trajectory = begin_trajectory(position, momentum, shared.max_doublings)
    if inputs is not None:
        lowest = jnp.full((), -jnp.inf, position.dtype)
        inputs = Inputs(inputs, jnp.int32(0), lowest, jnp.zeros((), inputs.dtype))
    return lane._replace(trajectory=trajectory, inputs=inputs, count=jnp.int32(0))


@jax.jit  # so that it is traced once
def _begin_all(shared: Steps, lanes: Lane) -> Lane:
    return jax.vmap(partial(_begun, shared))(lanes)


def _select_lane(which: jax.Array, one: Lane, other: Lane) -> Lane:
    return jax.tree.map(lambda a, b: jnp.where(which, a, b).astype(b.dtype), one, other)


def step_size(kind: Any, averaging: Any) -> jax.Array:
    """Return the step size of a step of some kind: draws use the average."""
    return jnp.exp(
        jnp.where(kind == Kind.DRAW, averaging.log_step_size_avg, averaging.log_step_size)
    )


def adapt_chain(shared: Steps, kind: Any, chain: Chains, made: NutsDraws) -> Chains:
    """Apply Stan's adaptation of step size and mass matrix to a step of one chain."""
    begin_average, average, end_average = dual_averaging_adaptation(shared.target_acceptance)
    averaged = average(chain.averaging, made.acceptance_rate)
    added = _add_to_mass(chain.mass, made.position)
    is_end = kind == Kind.WINDOW_END

    def choose(cases, values):
        def of_each(*a):
            return jnp.select(cases, a[:-1], a[-1]).astype(a[-1].dtype)

        return jax.tree.map(of_each, *values)

    begun = begin_average(end_average(averaged))
    averaging = choose([is_end, kind != Kind.DRAW], [begun, averaged, chain.averaging])
    mass = choose([is_end, kind == Kind.MASS], [_end_mass(added), added, chain.mass])
    num_warm = chain.num_warm + (kind != Kind.DRAW)
    return Chains(made.position, made.inputs, averaging, mass, num_warm)


def _counted_uniform(seed: jax.Array, step: jax.Array, number: Any, dtype: Any) -> jax.Array:
    """Return uniform numbers in (0, 1), from seed [2], step and number.

    This is Threefry with 13 rounds, the fewest that pass all tests of Salmon et al. 2011. For few
    numbers at once, JAX's own implementation takes as long as the density.
    """
    key = (seed[0], seed[1], seed[0] ^ seed[1] ^ jnp.uint32(0x1BD11BDA))
    one = jnp.uint32(step) + key[0]
    other = jnp.asarray(number, jnp.uint32) + key[1]
    for turn in range(13):
        one = one + other
        shift = _ROTATIONS[turn % 8]
        other = (other << shift) | (other >> (32 - shift))
        other = other ^ one
        if turn % 4 == 3:
            place = turn // 4 + 1
            one = one + key[place % 3]
            other = other + key[(place + 1) % 3] + jnp.uint32(place)
    bits = (one >> 9).astype(dtype)  # so that 1 is never rounded to
    return (bits + 0.5) * 2.0**-23
