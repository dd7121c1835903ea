"""Our no-U-turn sampler beside BlackJAX's and NumPyro's, on the posterior given a topology."""

import time
from dataclasses import replace
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpyro.infer import MCMC
from numpyro.infer import NUTS as NumPyroNUTS

from bdtppl.inference.dcc.settings import DCC
from bdtppl.inference.nuts.sample import KernelName
from bdtppl.inference.summaries.diagnostics import diagnose
from bdtppl.models.soft.topology import Topology
from benchmarks.soft.sets import Runs, problem
from benchmarks.text_table import print_table

__all__ = ["print_samplers"]

_TOPOLOGIES = ("10100", "1010100")
_CHAINS, _DRAWS, _WARMUP = 4, 300, 500


def print_samplers(name: str, runs: Runs) -> None:
    """Print effective draws of the log density a second, after warm-up and compilation.

    All samplers draw from the posterior at the final sharpness, from where our chains are after
    warm-up, with a diagonal mass matrix and the same target acceptance. A chain has its own
    effective draws, which are added up: so modes that chains do not leave do not matter.

    Then what is compiled for the first of these topologies and what warm-up takes after that, with
    our kernel and with BlackJAX's (`NUTS.kernel`).
    """
    dcc, table, stages = problem(name), [], []
    for code in _TOPOLOGIES:
        topology = Topology(code)
        for kernel in get_args(KernelName):
            stages.append([code, kernel, *_stages(_with_kernel(dcc, kernel), topology)])
        rates = [_rates(dcc, topology, seed) for seed in runs.seeds]
        of_each = [np.median(rate, axis=0) for rate in zip(*rates, strict=True)]
        table.append([code, *(f"{rate[i]:.0f}" for i in (0, 1) for rate in of_each)])
    each = ["lanes", "BlackJAX", "NumPyro"]
    headings = ["topology", *each, *(f"{sampler}, CPU" for sampler in each)]
    title = f"Effective draws a second on {name}, wall and CPU, median of {len(runs.seeds)} runs"
    print_table(title, headings, table)
    headings = ["topology", "kernel", "compiling, s", "warm-up, s", f"{_DRAWS} draws, s"]
    print_table(f"Seconds of {_CHAINS} chains on {name}", headings, stages)


def _with_kernel(dcc: DCC, kernel: KernelName) -> DCC:
    return replace(dcc, nuts=replace(dcc.nuts, kernel=kernel))


def _stages(dcc: DCC, topology: Topology) -> list[str]:
    """Seconds of compilation (with tracing), of warm-up and of draws once compiled."""
    density, paths, key = dcc.density(topology.num_splits), topology.paths, jax.random.key(0)
    start, passed = dcc.nuts.start(key, density, paths, _CHAINS), []
    for _ in range(2):
        watch = _Watch()
        warm, _ = dcc.nuts.warm_up(key, density, paths, start)
        passed.append(watch.passed()[0])
    watch = _Watch()
    dcc.nuts.draw(key, density, paths, warm, _DRAWS)
    draws, (first, again) = watch.passed()[0], passed
    return [f"{first - again:.1f}", f"{again:.2f}", f"{draws:.2f}"]


def _rates(dcc: DCC, topology: Topology, seed: int) -> tuple[np.ndarray, ...]:
    """Effective draws a second of wall and of CPU time: ours, BlackJAX's and NumPyro's."""
    density, paths = dcc.density(topology.num_splits), topology.paths
    keys = jax.random.split(jax.random.key(seed), 3)
    chains = dcc.nuts.start(keys[0], density, paths, _CHAINS)
    chains, _ = dcc.nuts.warm_up(keys[0], density, paths, chains)
    rates = []
    for kernel in get_args(KernelName):
        sampler = _with_kernel(dcc, kernel).nuts
        sampler.draw(keys[1], density, paths, chains, 1)  # compiles
        watch = _Watch()
        _, draws = sampler.draw(keys[1], density, paths, chains, _DRAWS)
        passed = watch.passed()
        rates.append(_effective(draws.log_density) / passed)

    kernel = NumPyroNUTS(density.model, target_accept_prob=dcc.nuts.target_acceptance)
    sampler = MCMC(
        kernel,
        num_warmup=_WARMUP,
        num_samples=1,
        num_chains=_CHAINS,
        chain_method="sequential",
        progress_bar=False,
    )
    with jax.numpy_rank_promotion("allow"):
        given = paths, density.x, density.y, dcc.nuts.h_final
        begin = jax.vmap(density.coordinates)(jnp.asarray(chains.position))
        sampler.warmup(keys[2], *given, init_params=begin)
        warm = sampler.post_warmup_state

        @jax.jit  # MCMC would compile anew for each chain and call
        def draw(state: Any) -> jax.Array:
            def step(state, _):
                state = kernel.sample(state, given, {})
                return state, state.potential_energy

            return lax.scan(step, state, length=_DRAWS)[1]

        starts = [jax.tree.map(lambda a, i=i: a[i], warm) for i in range(_CHAINS)]
        draw(starts[0]).block_until_ready()
        watch = _Watch()
        energy = np.stack([np.asarray(draw(start)) for start in starts])
        passed = watch.passed()
    return *rates, _effective(energy) / passed


class _Watch:
    """Wall and CPU seconds since it was made."""

    def __init__(self):
        self._start = self._now()

    def passed(self) -> np.ndarray:
        return self._now() - self._start

    @staticmethod
    def _now() -> np.ndarray:
        return np.array([time.perf_counter(), time.process_time()])


def _effective(values: np.ndarray) -> float:
    """Add up the effective draws of chains [chain, draw]."""
    return sum(diagnose({"value": chain[None]})["value"].ess for chain in np.asarray(values))
