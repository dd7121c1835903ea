"""BlackJAX's no-U-turn sampler, as an alternative implementation of the same steps.

Chains step together in one `jax.vmap`, so each step takes as long as the longest trajectory among
them; `bdtppl.inference.nuts.lanes` avoids that. The kernel shares no code with ours except the
adaptation between steps, so each is a check of the other.

References
----------
Cabezas, Corenflos, Lao and Louf 2024, BlackJAX: Composable Bayesian inference in JAX; Phan, Pradhan
and Jankowiak 2019, Composable effects for flexible and accelerated probabilistic programming in
NumPyro, A (the iterative form of the trajectory).
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from bdtppl.inference.nuts.kernel import COMPILED, Chains, NutsDraws, Steps, adapt_chain, step_size
from bdtppl.models.arrays.padding import padded_size
from bdtppl.models.arrays.precision import in_float32

_CHAINS_TOGETHER = 4  # chains on CPUs, so that one size is compiled
_STEPS_A_CALL = 256  # steps of one call of the compiled function


@in_float32
def walk_by_blackjax(
    shared: Steps, first: int, stop: int, seeds: np.ndarray, paths: Any, chains: Chains
) -> tuple[Chains, NutsDraws]:
    """Make steps of all chains; see `bdtppl.inference.nuts.lanes.walk`.

    All trajectories have the most doublings of draws, including early steps, because BlackJAX
    compiles their number in.
    """
    number = len(seeds)
    width = _CHAINS_TOGETHER if jax.default_backend() == "cpu" else padded_size(number)
    groups = np.minimum(np.arange(-(-number // width) * width), number - 1).reshape(-1, width)
    walked = []
    for rows in groups:
        own, pieces = jax.tree.map(lambda a, i=rows: np.asarray(a)[i], (seeds, paths, chains)), []
        for begin in range(first, stop, _STEPS_A_CALL):
            end = min(begin + _STEPS_A_CALL, stop)
            advanced = _advance(shared, *own, begin, end, rounds=_STEPS_A_CALL)
            own_chains, kept = jax.tree.map(np.asarray, advanced)
            own = *own[:2], own_chains
            pieces.append(jax.tree.map(lambda a, n=end - begin: a[:n], kept))
        draws = jax.tree.map(lambda *a: np.moveaxis(np.concatenate(a), 0, 1), *pieces)
        walked.append((own[2], draws))
    return jax.tree.map(lambda *a: np.concatenate(a)[:number], *walked)


@partial(jax.jit, static_argnames="rounds", compiler_options=COMPILED)
def _advance(
    shared: Steps, seeds, paths, chains: Chains, first, stop, *, rounds: int
) -> tuple[Chains, NutsDraws]:
    """Make the steps from the first one, at most some rounds; return kept states."""
    step = jax.vmap(partial(_one_step, shared), in_axes=(0, 0, 0, None))

    def play(carry):
        number, chains, kept = carry
        chains, made = step(seeds, paths, chains, number)

        def put(whole, new):
            return lax.dynamic_update_index_in_dim(whole, new, number - first, 0)

        return number + 1, chains, jax.tree.map(put, kept, made)

    with jax.numpy_rank_promotion("allow"):
        _, shapes = jax.eval_shape(step, seeds, paths, chains, first)
        kept = jax.tree.map(lambda a: jnp.zeros((rounds, *a.shape), a.dtype), shapes)
        _, chains, kept = lax.while_loop(lambda carry: carry[0] < stop, play, (first, chains, kept))
    return chains, kept


def _one_step(shared: Steps, seed, paths, chain: Chains, number) -> tuple[Chains, NutsDraws]:
    """Draw the inputs, if they are hard, make a trajectory, and adapt."""
    place = jnp.minimum(number, len(shared.kinds) - 1)
    kind, sharpness = shared.kinds[place], shared.sharpness[place]
    key = jax.random.fold_in(jax.random.wrap_key_data(seed), number)
    key_inputs, key_trajectory = jax.random.split(key)
    log_density: Any = partial(shared.density.log_density, paths=paths, sharpness=sharpness)
    inputs = chain.inputs
    if inputs is not None:
        inputs = _draw_inputs(key_inputs, partial(log_density, chain.position), shared, inputs)
        log_density = partial(log_density, inputs=inputs)
    state, info = blackjax.nuts.build_kernel()(
        key_trajectory,
        blackjax.nuts.init(chain.position, log_density),
        log_density,
        step_size(kind, chain.averaging),
        chain.inverse_mass,
        shared.max_doublings,
    )
    made = NutsDraws(
        state.position,
        inputs,
        state.logdensity,
        info.energy,
        info.acceptance_rate,
        info.num_integration_steps,
        info.is_divergent,
    )
    return jax.tree.map(
        lambda a, b: a.astype(b.dtype), adapt_chain(shared, kind, chain, made), chain
    ), made


def _draw_inputs(rng_key, log_density: Callable, shared: Steps, inputs: jax.Array) -> jax.Array:
    """Draw the input of each split from its full conditional, one split after another."""
    every = jnp.arange(shared.density.x.shape[1], dtype=inputs.dtype)

    def draw(split, inputs):
        tried = jax.vmap(lambda choice: inputs.at[split].set(choice))(every)
        log_weight = jax.vmap(lambda each: log_density(inputs=each))(tried)
        log_weight = jnp.where(jnp.isnan(log_weight), -jnp.inf, log_weight)
        chosen = jax.random.categorical(jax.random.fold_in(rng_key, split), log_weight)
        return tried[chosen]

    return lax.fori_loop(0, len(inputs), draw, inputs) if len(inputs) else inputs
