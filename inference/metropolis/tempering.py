"""Parallel tempering: chains under powers of the likelihood that exchange their trees.

A ladder has one walk for each power from the smallest, where the prior dominates and trees change
freely, to 1, the posterior. Neighbours exchange trees with the probability that leaves the product
of all tempered posteriors invariant (Geyer 1991). Even and odd pairs alternate, which moves trees
up and down faster than random pairs. This is most effective if all neighbours exchange equally
often, so powers are tuned for that (Syed et al. 2022).

References
----------
Geyer 1991, Markov chain Monte Carlo maximum likelihood; Friel and Pettitt 2008, Marginal likelihood
estimation via power posteriors; Syed, Bouchard-Cote, Deligiannidis and Doucet 2022, Non-reversible
parallel tempering.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from bdtppl.inference.compiling import compiled_plainly
from bdtppl.inference.hard.shapes import Shape
from bdtppl.inference.metropolis.kernel import Kernel, Tally, steps
from bdtppl.inference.metropolis.state import State
from bdtppl.models.hard.packed_model import PackedModel

_POWER_STEPS = 10  # steps of the walks between two exchanges
_CROWDING = 4  # a higher number puts more powers near 0
_LEAST_REJECTED = 0.01  # separates powers that accepted every exchange


def as_powers(temperatures: int | Sequence[float]) -> np.ndarray:
    """Return powers of the likelihood, float64 [t], ascending to 1.

    Parameters
    ----------
    temperatures
        Powers, or their number: then they are fourth powers of evenly spaced numbers from 0 to 1
        (Friel and Pettitt 2008), or 1 alone for one temperature.

    Raises
    ------
    ValueError
        If a number of temperatures is not an integer of at least 1, or powers do not rise from at
        least 0 to 1.

    Examples
    --------
    >>> as_powers(3).tolist()
    [0.0, 0.0625, 1.0]
    """
    if np.ndim(temperatures) == 0:
        if not isinstance(temperatures, int | np.integer) or isinstance(temperatures, bool):
            raise ValueError(
                f"temperatures must be an integer or a sequence of powers; got {temperatures!r}."
            )
        if temperatures < 1:
            raise ValueError(f"temperatures must be at least 1; got {temperatures!r}.")
        return np.linspace(0.0, 1.0, temperatures) ** _CROWDING if temperatures > 1 else np.ones(1)
    powers = np.array(temperatures, np.float64)
    if powers.ndim != 1 or not (np.diff(powers) > 0).all() or powers[0] < 0 or powers[-1] != 1:
        raise ValueError(f"temperatures must rise from at least 0 to 1; got {temperatures!r}.")
    return powers


class Exchanges(NamedTuple):
    """Exchanges between neighbours since the start; c ladders, t powers.

    Attributes
    ----------
    tried, accepted
        int32 [c, t - 1].
    """

    tried: jax.Array
    accepted: jax.Array


def evened(powers: np.ndarray, tried: np.ndarray, accepted: np.ndarray) -> np.ndarray:
    """Move powers so that all neighbours would reject equally many exchanges.

    The sum of rejections along the ladder hardly depends on the powers in between; new powers
    divide that sum evenly, by linear interpolation (Syed et al. 2022, section 5.2).

    Parameters
    ----------
    powers
        float64 [t]; ascending. The first and the last one stay.
    tried, accepted
        int [t - 1]; exchanges with the next higher power, at least one tried.

    Examples
    --------
    >>> import numpy as np
    >>> evened(np.array([0.0, 0.5, 1.0]), np.array([10, 10]), np.array([2, 8])).tolist()
    [0.0, 0.3125, 1.0]
    """
    rejected = np.maximum(1 - accepted / tried, _LEAST_REJECTED)
    barrier = np.concatenate([[0.0], np.cumsum(rejected)])
    return np.interp(np.linspace(0.0, barrier[-1], len(powers)), barrier, powers)


class Ladders(NamedTuple):
    """States along c ladders of t powers; m draws.

    Attributes
    ----------
    shape
        Trees under power 1, arrays [m, c, ...].
    log_prior
        float64 [m, c]; their log prior weights.
    log_likelihood
        float64 [m, c, t]; log likelihoods of the trees under every power.
    """

    shape: Shape
    log_prior: jax.Array
    log_likelihood: jax.Array


def exchange(
    rng_keys: jax.Array, parity: jax.Array, state: State, powers: jax.Array
) -> tuple[State, Exchanges]:
    """Exchange the trees of every other pair of neighbours, or reject.

    Parameters
    ----------
    rng_keys
        Keys [c], one a ladder.
    parity
        0 for the pairs (0, 1), (2, 3), ..., 1 for the others.
    state
        States of c times t walks, those of a ladder contiguous.
    powers
        float64 [t].
    """
    num_ladders, num_powers = len(rng_keys), len(powers)
    log_likelihood = state.log_likelihood.reshape(num_ladders, num_powers)
    log_acceptance = -jnp.diff(powers)[None] * jnp.diff(log_likelihood, axis=1)
    uniform = jax.vmap(lambda key: jax.random.uniform(key, (num_powers - 1,)))(rng_keys)
    is_tried = jnp.broadcast_to(jnp.arange(num_powers - 1) % 2 == parity, uniform.shape)
    is_accepted = is_tried & (jnp.log(uniform) < log_acceptance)
    change = jnp.pad(is_accepted, ((0, 0), (0, 1))).astype(int)
    change -= jnp.pad(is_accepted, ((0, 0), (1, 0)))
    source = (jnp.arange(len(state.log_likelihood)) + change.ravel()).astype(jnp.int32)
    taken = jax.tree.map(lambda a: a[source], state)
    return taken, Exchanges(is_tried.astype(jnp.int32), is_accepted.astype(jnp.int32))


@partial(compiled_plainly, static_argnames=("room",))
def climb(
    rng_keys: jax.Array,
    first_step: jax.Array,
    state: State,
    model: PackedModel,
    kernel: Kernel,
    powers: jax.Array,
    num_draws: jax.Array,
    thin: jax.Array,
    *,
    room: int,
) -> tuple[State, Ladders, Tally, Exchanges]:
    """Walk on ladders, and keep every ``thin``-th state.

    Parameters
    ----------
    rng_keys
        Keys [c] of the ladders.
    first_step
        Number of the first step.
    state
        States of c times t walks, those of a ladder contiguous.
    model, kernel
        See `bdtppl.inference.metropolis.kernel.step`.
    powers
        float64 [t]; ascending to 1. A single one makes plain chains.
    num_draws, thin
        States to keep, and steps to each.
    room
        At least the number of draws; draws beyond it are padded with zeros.
    """
    num_ladders, num_powers = len(rng_keys), len(powers)
    keys = jax.vmap(lambda key: jax.random.split(key, num_powers + 1))(rng_keys)
    walk_keys, exchange_keys = keys[:, 1:].ravel(), keys[:, 0]
    power = jnp.tile(powers, num_ladders)
    num_rounds = jnp.maximum(thin // _POWER_STEPS, 1) if num_powers > 1 else jnp.int32(1)

    def play(start, walked, number):
        state, tally, exchanges = walked
        first, stop = start + number * thin // num_rounds, start + (number + 1) * thin // num_rounds
        state, tally = steps(walk_keys, first, stop, state, tally, model, kernel, power)
        if num_powers > 1:
            own = jax.vmap(jax.random.fold_in, (0, None))(exchange_keys, stop)
            state, made = exchange(own, first // (thin // num_rounds) % 2, state, powers)
            exchanges = jax.tree.map(jnp.add, exchanges, made)
        return state, tally, exchanges

    def record(state):
        def coldest(a):
            return a.reshape(num_ladders, num_powers, *a.shape[1:])[:, -1]

        log_likelihood = state.log_likelihood.reshape(num_ladders, num_powers)
        return Ladders(jax.tree.map(coldest, state.shape), coldest(state.log_prior), log_likelihood)

    def draw(number, carry):
        *walked, kept = carry
        start = first_step + number * thin
        walked = lax.fori_loop(0, num_rounds, lambda r, c: play(start, c, r), tuple(walked))
        kept = jax.tree.map(lambda a, new: a.at[number].set(new), kept, record(walked[0]))
        return *walked, kept

    kept = jax.tree.map(lambda a: jnp.zeros((room, *a.shape), a.dtype), record(state))
    none = jnp.zeros((num_ladders, num_powers - 1), jnp.int32)
    tally = Tally.zero(len(power), len(kernel.names))
    start = state, tally, Exchanges(none, none), kept
    state, tally, exchanges, kept = lax.fori_loop(0, num_draws, draw, start)
    return state, kept, tally, exchanges
