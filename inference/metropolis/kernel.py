"""The Metropolis-Hastings step, in the form of BlackJAX's kernels, for a batch of chains.

The target is prior weight times likelihood to a power: 1 for the posterior, less when tempered.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import lax

from bdtppl.inference.hard.shapes import select_trees
from bdtppl.inference.metropolis.state import State
from bdtppl.models.hard.packed_model import PackedModel


class Proposal(NamedTuple):
    """Proposed states of b chains.

    Attributes
    ----------
    state
        The proposal: a `State`, or an object with ``shape``, ``log_prior`` and ``log_likelihood``.
    log_ratio
        float64 [b]; log of the reverse proposal probability over the forward one; -inf if nothing
        can be proposed.
    move
        int32 [b]; place in the kernel's `names`.
    overflows
        bool [b]; whether a tree would need more slots than there are.
    """

    state: Any
    log_ratio: jax.Array
    move: jax.Array
    overflows: jax.Array


class NamedKernel(NamedTuple):
    """A kernel that users choose by name.

    Attributes
    ----------
    make
        Constructor of the kernel.
    in_words
        Description of its proposals, which follows its name.
    """

    make: Callable[[], Any]
    in_words: str


KERNELS: dict[str, NamedKernel] = {}
"""Kernels by name; a module enters its own where it defines them."""


class Kernel(Protocol):
    """A proposal distribution of trees: a pytree with these members.

    Attributes
    ----------
    names
        Names of its moves.
    """

    @property
    def names(self) -> tuple[str, ...]:
        """Names of its moves."""
        ...

    def propose(
        self,
        rng_keys: jax.Array,
        number: jax.Array,
        model: PackedModel,
        state: State,
        power: jax.Array,
    ) -> Proposal:
        """Propose a state for each of b chains, with keys [b], at a numbered step.

        The power of the likelihood is float64 [b].
        """
        ...


class Info(NamedTuple):
    """Outcomes of b proposals.

    Attributes
    ----------
    move
        int32 [b]; place in the kernel's `names`.
    is_accepted
        bool [b].
    overflows
        bool [b]; whether the tree would have needed more slots than there are, and was rejected.
    is_undefined
        bool [b]; whether the prior's weight of the tree was not a number, and the tree was
        rejected.
    """

    move: jax.Array
    is_accepted: jax.Array
    overflows: jax.Array
    is_undefined: jax.Array


def step(
    rng_keys: jax.Array,
    number: jax.Array,
    state: State,
    model: PackedModel,
    kernel: Kernel,
    power: jax.Array,
) -> tuple[State, Info]:
    """Make one step in each chain.

    Parameters
    ----------
    rng_keys
        Keys [b], one per chain.
    number
        Number of the step.
    state
        States of the chains.
    model
        The model.
    kernel
        The kernel.
    power
        float64 [b]; power of the likelihood.
    """
    keys = jax.vmap(jax.random.split)(rng_keys)
    proposal = kernel.propose(keys[:, 0], number, model, state, power)
    uniform = jax.vmap(jax.random.uniform)(keys[:, 1])
    new = proposal.state
    log_acceptance = (
        new.log_prior
        - state.log_prior
        + power * (new.log_likelihood - state.log_likelihood)
        + proposal.log_ratio
    )
    is_accepted = jnp.log(uniform) < log_acceptance
    is_undefined = jnp.isnan(new.log_prior + proposal.log_ratio)
    is_undefined &= ~jnp.isneginf(proposal.log_ratio)
    info = Info(proposal.move, is_accepted, proposal.overflows, is_undefined)
    return select_trees(is_accepted, new, state), info


class Tally(NamedTuple):
    """Proposals since the start.

    Attributes
    ----------
    proposed, accepted
        int32 [b, moves].
    overflows, undefined
        int32 [b].
    """

    proposed: jax.Array
    accepted: jax.Array
    overflows: jax.Array
    undefined: jax.Array

    @classmethod
    def zero(cls, num_chains: int, num_moves: int) -> "Tally":
        """Return zero counts."""
        moves = jnp.zeros((num_chains, num_moves), jnp.int32)
        none = jnp.zeros(num_chains, jnp.int32)
        return cls(moves, moves, none, none)

    def plus(self, info: Info) -> "Tally":
        """Count one step."""
        made = info.move[:, None] == jnp.arange(self.proposed.shape[1])[None]
        return Tally(
            self.proposed + made,
            self.accepted + (made & info.is_accepted[:, None]),
            self.overflows + info.overflows,
            self.undefined + info.is_undefined,
        )


def steps(
    rng_keys: jax.Array,
    first: jax.Array,
    stop: jax.Array,
    state: State,
    tally: Tally,
    model: PackedModel,
    kernel: Kernel,
    power: jax.Array,
) -> tuple[State, Tally]:
    """Make the steps from one number up to another, and count their outcomes.

    A step's keys [b] are derived from those of the chains and its number.
    """

    def one(i, carry):
        state, tally = carry
        keys = jax.vmap(jax.random.fold_in, (0, None))(rng_keys, i)
        state, info = step(keys, i, state, model, kernel, power)
        return state, tally.plus(info)

    return lax.fori_loop(first, stop, one, (state, tally))
