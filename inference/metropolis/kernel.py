"""The Metropolis-Hastings step, in the form of BlackJAX's kernels, for a batch of chains.

The target is prior weight times likelihood to a power: 1 for the posterior, less when tempered.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from bdtppl.inference.hard_model import Model
from bdtppl.inference.metropolis.moves import MOVES, NUM_UNIFORMS, propose
from bdtppl.inference.metropolis.state import State
from bdtppl.inference.shapes import Shape, select

__all__ = ["Info", "Tally", "Walk", "step", "walk"]


class Info(NamedTuple):
    """What became of b proposals.

    Attributes
    ----------
    move
        int32 [b]; place in `MOVES`.
    is_accepted
        bool [b].
    overflows
        bool [b]; whether the tree would have needed more slots than there are, and was rejected.
    """

    move: jax.Array
    is_accepted: jax.Array
    overflows: jax.Array


def step(
    rng_keys: jax.Array, state: State, model: Model, log_probability: jax.Array, power: jax.Array
) -> tuple[State, Info]:
    """Make one step in each chain.

    Parameters
    ----------
    rng_keys
        Keys [b], one a chain.
    state
        Where the chains are.
    model
        The model.
    log_probability
        float64 [moves]; log probability of each of `MOVES`.
    power
        float64 [b]; power of the likelihood.
    """
    uniform = jax.vmap(lambda key: jax.random.uniform(key, (NUM_UNIFORMS + 1,)))(rng_keys)
    proposal = propose(model, state, log_probability, uniform[:, 1:])
    new = proposal.state
    log_acceptance = (
        new.log_prior
        - state.log_prior
        + power * (new.log_likelihood - state.log_likelihood)
        + proposal.log_ratio
    )
    is_accepted = jnp.log(uniform[:, 0]) < log_acceptance
    info = Info(proposal.move, is_accepted, proposal.overflows)
    return select(is_accepted, new, state), info


class Tally(NamedTuple):
    """Proposals since the start.

    Attributes
    ----------
    proposed, accepted
        int32 [b, moves].
    overflows
        int32 [b].
    """

    proposed: jax.Array
    accepted: jax.Array
    overflows: jax.Array

    @classmethod
    def zero(cls, num_chains: int) -> "Tally":
        """Count nothing yet."""
        moves = jnp.zeros((num_chains, len(MOVES)), jnp.int32)
        return cls(moves, moves, jnp.zeros(num_chains, jnp.int32))

    def plus(self, info: Info) -> "Tally":
        """Count one step."""
        made = info.move[:, None] == jnp.arange(len(MOVES))[None]
        return Tally(
            self.proposed + made,
            self.accepted + (made & info.is_accepted[:, None]),
            self.overflows + info.overflows,
        )


class Walk(NamedTuple):
    """States along chains; m draws.

    Attributes
    ----------
    shape
        Trees, arrays [m, b, ...].
    log_prior, log_likelihood
        float64 [m, b].
    """

    shape: Shape
    log_prior: jax.Array
    log_likelihood: jax.Array


Step = Callable[[jax.Array, State, Model, jax.Array, jax.Array], tuple[State, Info]]


@partial(jax.jit, static_argnames=("num_draws", "thin", "kernel"))
def walk(
    rng_keys: jax.Array,
    first_step: jax.Array,
    state: State,
    model: Model,
    log_probability: jax.Array,
    power: jax.Array,
    *,
    num_draws: int,
    thin: int,
    kernel: Step = step,
) -> tuple[State, Walk, Tally]:
    """Walk, and keep every ``thin``-th state.

    Parameters
    ----------
    rng_keys
        Keys [b] of the chains; a step's key is made from its chain's and its number.
    first_step
        Number of the first step.
    state, model, log_probability, power
        See `step`.
    num_draws
        States to keep.
    thin
        Steps to each.
    kernel
        The step.
    """

    def one(i, carry):
        state, tally = carry
        keys = jax.vmap(jax.random.fold_in, (0, None))(rng_keys, i)
        state, info = kernel(keys, state, model, log_probability, power)
        return state, tally.plus(info)

    def draw(carry, number):
        start = first_step + number * thin
        state, tally = lax.fori_loop(start, start + thin, one, carry)
        return (state, tally), Walk(state.shape, state.log_prior, state.log_likelihood)

    start = state, Tally.zero(len(rng_keys))
    (state, tally), kept = lax.scan(draw, start, jnp.arange(num_draws))
    return state, kept, tally
