"""One chain of the no-U-turn sampler: its steps, and how it adapts.

A step is one transition of BlackJAX's NUTS; where splits look at single inputs, these are drawn
before it from their exact conditional laws. What a step adapts and how sharp splits are is data, so
warm-up and draws are one compiled function.

References
----------
Hoffman and Gelman 2014, The no-U-turn sampler; Nishimura, Dunson and Lu 2020, Discontinuous
Hamiltonian Monte Carlo for discrete parameters and discontinuous likelihoods (discrete parameters
between moves).
"""

from collections.abc import Callable
from dataclasses import replace
from enum import IntEnum
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.adaptation.mass_matrix import mass_matrix_adaptation
from blackjax.adaptation.step_size import dual_averaging_adaptation
from blackjax.mcmc import nuts
from jax import lax

from bdtppl.inference.per_chain import PerChain
from bdtppl.models.pytrees import pytree_dataclass, setting

__all__ = ["ROOM", "Chains", "Draws", "Kind", "Start", "Steps", "advance", "begin"]

ROOM = 100  # steps at most of one call of the compiled function

_begin_mass, _add_to_mass, _end_mass = mass_matrix_adaptation(is_diagonal_matrix=True)


class Kind(IntEnum):
    """What a step adapts."""

    STEP_SIZE = 0
    MASS = 1  # and the step size
    WINDOW_END = 2  # where the mass matrix is taken over, and the step size begins anew
    DRAW = 3  # nothing


class Chains(NamedTuple):
    """Where chains are, and what they have adapted; leading axes [..., chain].

    Attributes
    ----------
    position
        float64 [..., chain, size].
    inputs
        int [..., chain, n]; inputs of splits, None where they look along directions.
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
        """Step size of draws, float64 [..., chain]."""
        return np.exp(self.averaging.log_step_size_avg)

    @property
    def inverse_mass(self) -> np.ndarray:
        """Diagonal of the inverse mass matrix, float64 [..., chain, size]."""
        return self.mass.inverse_mass_matrix

    def restarted(self, rng: np.random.Generator, is_stuck: np.ndarray) -> "Chains":
        """Put each stuck chain where another chain of its topology is that is not stuck.

        Chains part again, as each has random numbers of its own; draw some steps before use.

        Parameters
        ----------
        rng
            Chooses the other chains, uniformly.
        is_stuck
            bool [..., chain]; see `bdtppl.inference.diagnostics.stuck`.

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


class Draws(NamedTuple):
    """What is kept of steps; leading axes [..., chain, draw].

    Attributes
    ----------
    position
        float64 [..., chain, draw, size].
    inputs
        int [..., chain, draw, n], or None.
    log_density
        float64; of the position, unnormalised, at the sharpness of the step.
    energy
        float64; see `bdtppl.inference.diagnostics.energy_information`.
    acceptance_rate
        float64; mean over the trajectory.
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


@pytree_dataclass
class Start:
    """What all chains share when they begin."""

    density: Any
    sharpness: Any

    @property
    def rehearsal(self) -> "Start":
        """As it is: this is soon done."""
        return self


@pytree_dataclass
class Steps:
    """What all chains share in a piece of a walk: kinds and sharpness of its steps [ROOM]."""

    density: Any
    kinds: Any
    sharpness: Any
    first: Any
    count: Any
    target_acceptance: Any
    max_doublings: int = setting()

    @property
    def rehearsal(self) -> "Steps":
        """No step."""
        return replace(self, count=np.int64(0))


@PerChain
def begin(shared: Start, rng_key: jax.Array, own: tuple, paths: Any) -> tuple[Chains, Any]:
    """Put a chain at the best of some parameters, and return the log density there."""
    del rng_key
    _, parameters, inputs = own
    density = shared.density
    with jax.numpy_rank_promotion("allow"):
        position = jax.vmap(density.position)(parameters)
        log_density = jax.vmap(_at(density, paths, shared.sharpness, inputs))(position)
        best = jnp.argmax(jnp.where(jnp.isfinite(log_density), log_density, -jnp.inf))
        averaging = dual_averaging_adaptation(0.8)[0](1.0)
        mass = _begin_mass(position.shape[1])
        chain = Chains(position[best], inputs, averaging, mass, jnp.int32(0))
    return chain, log_density[best]


@PerChain
def advance(shared: Steps, rng_key: jax.Array, own: tuple, paths: Any) -> tuple[Chains, Draws]:
    """Make steps; of what is kept, entries from ``count`` on are garbage."""
    number, start = own
    density, key_chain = shared.density, jax.random.fold_in(rng_key, number)
    move, adapt = nuts.build_kernel(), _adaptation(shared.target_acceptance)

    def step(i, chain: Chains) -> tuple[Chains, Draws]:
        key_inputs, key_move = jax.random.split(jax.random.fold_in(key_chain, shared.first + i))
        kind, sharpness, inputs = shared.kinds[i], shared.sharpness[i], chain.inputs
        if inputs is not None:
            inputs = density.draw_inputs(key_inputs, inputs, chain.position, paths, sharpness)
        log_density = _at(density, paths, sharpness, inputs)
        averaging = chain.averaging
        inverse_mass: Any = chain.inverse_mass
        step_size: Any = jnp.exp(
            jnp.where(kind == Kind.DRAW, averaging.log_step_size_avg, averaging.log_step_size)
        )
        state, info = move(
            key_move,
            nuts.init(chain.position, log_density),
            log_density,
            step_size,
            inverse_mass,
            shared.max_doublings,
        )
        made = Draws(
            state.position,
            inputs,
            state.logdensity,
            info.energy,
            info.acceptance_rate,
            info.num_integration_steps,
            info.is_divergent,
        )
        adapted = adapt(kind, averaging, chain.mass, state.position, info.acceptance_rate)
        num_warm = chain.num_warm + (kind != Kind.DRAW)
        averaging, mass = adapted
        return Chains(state.position, inputs, averaging, mass, num_warm), made

    def keep(i, carry):
        chain, kept = carry
        chain, made = step(i, chain)
        return chain, jax.tree.map(lambda all, new: all.at[i].set(new), kept, made)

    with jax.numpy_rank_promotion("allow"):
        shapes = jax.eval_shape(step, 0, start)[1]
        room = jax.tree.map(lambda a: jnp.zeros((ROOM, *a.shape), a.dtype), shapes)
        return lax.fori_loop(0, shared.count, keep, (start, room))


def _at(density: Any, paths: Any, sharpness: Any, inputs: Any) -> Callable:
    """Log density as a function of the position alone."""
    if inputs is None:
        return lambda position: density.log_density(position, paths, sharpness)
    return lambda position: density.log_density(position, paths, sharpness, inputs=inputs)


def _adaptation(target_acceptance: Any) -> Callable:
    """Stan's adaptation of step size and mass matrix, by kinds of steps."""
    begin, average, end = dual_averaging_adaptation(target_acceptance)

    def step_size(averaging, mass, position, acceptance_rate):
        return average(averaging, acceptance_rate), mass

    def both(averaging, mass, position, acceptance_rate):
        return average(averaging, acceptance_rate), _add_to_mass(mass, position)

    def window_end(averaging, mass, position, acceptance_rate):
        averaging, mass = both(averaging, mass, position, acceptance_rate)
        return begin(end(averaging)), _end_mass(mass)

    def nothing(averaging, mass, position, acceptance_rate):
        return averaging, mass

    def adapt(kind, averaging, mass, position, acceptance_rate):
        cases = [step_size, both, window_end, nothing]
        found = lax.switch(kind, cases, averaging, mass, position, acceptance_rate)
        # Numbers without a type of their own would become others' and compile anew.
        return jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), found, (averaging, mass))

    return adapt
