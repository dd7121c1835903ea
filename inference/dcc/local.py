"""Inference given a topology: burn-in by stages, draws with importance weights, tempered SMC.

Burn-in has two stages. In the first, the pilot, chains from the prior warm up in a fraction of the
steps, and their last steps are the centres of importance samples. This estimate is unbiased, but if
the chains missed the main mode it is almost surely far too low. So a topology is dropped after the
pilot only if the estimate plus three standard errors plus some nats, for modes that may have been
missed, does not reach the least share of the weight. In the second stage new chains from the prior
warm up in full. Once splits are sharp, chains in modes of negligible mass move to the state of
another chain, which may be one of the pilot.

Pilots have to find modes, so their splits are soft at first: sharp splits hardly move across rows.
While many of a pilot's chains are in modes of negligible mass, these chains are restarted.

Optionally, N_INIT is "increased as necessary" (Algorithm 1): if chains disagree at the end of
warm-up, it is repeated with twice the steps.

References
----------
Cochrane, Wills and Johnson 2024, Divide, Conquer, Combine Bayesian Decision Tree Sampling, sections
3.3, 3.4 and 5.
"""

import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from bdtppl.inference.dcc.settings import DCC
from bdtppl.inference.evidence.estimates import Evidence, Moments, moments, summarise
from bdtppl.inference.evidence.importance import Mixture, fit_proposals, sample_layer, thin
from bdtppl.inference.evidence.tempered import Tempered, TemperedPath, tempered_evidence
from bdtppl.inference.nuts.kernel import Chains, NutsDraws
from bdtppl.inference.nuts.sample import NUTS
from bdtppl.inference.parallel import num_workers
from bdtppl.inference.soft.density import SoftDensity
from bdtppl.inference.summaries.diagnostics import diagnose, log_masses, stuck
from bdtppl.models.arrays.precision import in_float64
from bdtppl.models.soft.topology import Topology

_LEAST_PILOT = 20  # steps
_CENTRES = 16  # draws of each chain around which tempered SMC starts
_LARGEST_R_HAT = 1.1  # in the last steps of warm-up, which are few
_MOST_STUCK = 0.25  # share of a pilot's chains; the others may agree on a poor mode

# Purposes of a topology's random numbers; visits have the numbers from _VISIT on.
_PILOT, _BURN_IN, _RESTART, _COPIES, _TEMPERED, _VISIT = range(6)


@dataclass(frozen=True)
class Explored:
    """Results for one topology; C chains, V visits of N draws, M pseudo-samples a draw.

    Attributes
    ----------
    topology
        The topology.
    since
        Step of the walk that activated it.
    position
        float [C, V N, size]; weighted draws: a pseudo-sample for each draw, see
        `bdtppl.inference.evidence.importance.thin`.
    log_weight
        float [C, V N, M]; log weights of all pseudo-samples. A weighted draw has the log of its M
        weights' mean.
    chains, draws
        States and draws of its chains, those of the pilot before burn-in; None if it was dropped
        after the pilot.
    visits
        V; 0 after burn-in. The pilot is not a visit; the first visit's weights replace its weights.
    num_restarts
        Restarted chains of the pilot, which were stuck.
    """

    topology: Topology
    since: int
    position: np.ndarray
    log_weight: np.ndarray
    chains: Chains | None = None
    draws: NutsDraws | None = None
    visits: int = 0
    num_restarts: int = 0

    @property
    def is_left(self) -> bool:
        """Whether it was dropped after the pilot."""
        return self.chains is None

    @cached_property
    def evidence(self) -> Evidence:
        """The evidence by importance sampling; its log is -inf before there are weights."""
        return summarise(self.log_weight)

    @cached_property
    def moments(self) -> Moments:
        """Moments of the importance weights, which the walk needs before the evidence."""
        return moments(self.log_weight)


@in_float64
def begin_topologies(
    dcc: DCC, rng_key: jax.Array, topologies: Sequence[Topology], since: int
) -> list[Explored]:
    """Start topologies of one size, by pilots side by side if there is a first stage."""
    if not dcc.pilot:
        size = dcc.density(topologies[0].num_splits).size
        nothing = np.zeros((dcc.num_chains, 0, size)), np.zeros((dcc.num_chains, 0, 1))
        return [Explored(topology, since, *nothing) for topology in topologies]
    sampler = _searching(dcc)
    last = _last_steps(sampler, dcc.num_draws)
    with ThreadPoolExecutor(1) as aside:
        if num_workers() == 1:  # weighting is compiled here, while chains warm up
            nowhere = np.zeros((dcc.num_chains, last, dcc.density(topologies[0].num_splits).size))
            aside.submit(in_float64(_weigh_component), dcc, rng_key, topologies[0], nowhere)
        pilot = _warm_up(dcc, rng_key, sampler, topologies, _PILOT)
    begun_all = []
    for place, topology in enumerate(topologies):
        chains, draws = jax.tree.map(lambda a, i=place: a[i], pilot)
        draws = jax.tree.map(lambda a: a[:, -last:], draws)
        chains, draws, num_restarts = _restart(dcc, rng_key, topology, chains, draws)
        weighed = _weigh_component(
            dcc, _key_of_topology(rng_key, topology, _PILOT), topology, draws.position
        )
        begun = Explored(topology, since, *weighed, chains, draws, num_restarts=num_restarts)
        begun_all.append(begun)
    return begun_all


@in_float64
def burn_in(dcc: DCC, rng_key: jax.Array, group: Sequence[Explored]) -> list[Explored]:
    """Warm up the chains of topologies of one size, side by side, and move stuck ones.

    Chains are compared early in the last window of warm-up, when splits are as sharp as for draws,
    and at its end if warm-up may be repeated.
    """
    topologies = [each.topology for each in group]
    # Until the last window of warm-up, plus some steps to compare chains.
    annealing = min(dcc.nuts.last_window + dcc.num_draws, dcc.nuts.warmup)
    annealed = _warm_up(dcc, rng_key, dcc.nuts, topologies, _BURN_IN, annealing)
    settled = [
        _settle(dcc, rng_key, each, *jax.tree.map(lambda a, i=i: a[i], annealed))
        for i, each in enumerate(group)
    ]
    chains = jax.tree.map(lambda *each: np.stack(each), *settled)
    _, draws = annealed
    if annealing < dcc.nuts.warmup:
        chains, draws = dcc.nuts.warm_up(*_sites(dcc, rng_key, topologies, _BURN_IN), chains)
    burnt_in = [
        replace(each, chains=jax.tree.map(lambda a, i=i: a[i], chains), draws=None)
        for i, each in enumerate(group)
    ]
    if not dcc.warmup_doublings:
        return burnt_in
    last = draws.log_density[..., -_last_steps(dcc.nuts, dcc.num_draws) :]
    again = [i for i, each in enumerate(last) if diagnose({"": each})[""].r_hat > _LARGEST_R_HAT]
    if again:
        longer = replace(
            dcc,
            nuts=replace(dcc.nuts, warmup=2 * dcc.nuts.warmup),
            warmup_doublings=dcc.warmup_doublings - 1,
        )
        others = burn_in(longer, rng_key, [group[i] for i in again])
        burnt_in = [
            dict(zip(again, others, strict=True)).get(i, each) for i, each in enumerate(burnt_in)
        ]
    return burnt_in


@in_float64
def visit_topology(dcc: DCC, rng_key: jax.Array, explored: Explored) -> Explored:
    """Draw from the chains and weight importance samples around the draws."""
    topology, visits = explored.topology, explored.visits
    before: Any = explored.chains
    key_draw, key_weigh = jax.random.split(_key_of_topology(rng_key, topology, _VISIT + visits))
    density = dcc.density(topology.num_splits)
    chains, draws = dcc.nuts.draw(key_draw, density, topology.paths, before, dcc.num_draws)
    if visits:
        draws = _join_draws(explored.draws, draws)
    centres = draws.position[:, -dcc.num_draws :]
    weighed = _weigh_component(dcc, key_weigh, topology, centres)
    if visits:
        weighed = _join_draws((explored.position, explored.log_weight), weighed)
    position, log_weight = weighed
    return replace(
        explored,
        position=position,
        log_weight=log_weight,
        chains=chains,
        draws=draws,
        visits=visits + 1,
    )


@in_float64
def temper(
    dcc: DCC, rng_key: jax.Array, explored: Explored, **options: Any
) -> tuple[Evidence, Tempered]:
    """Estimate the evidence by tempered SMC; see `bdtppl.inference.evidence.tempered`.

    Particles start from normal distributions around some of the draws. Particles from the prior
    would settle in the modes of soft splits, and never find those of sharp splits.
    """
    draws = np.asarray(cast(Any, explored.draws).position, np.float64)
    proposals = fit_proposals(draws)
    some = proposals._replace(mean=proposals.mean[:, :: -(-draws.shape[1] // _CENTRES)])
    path = TemperedPath(
        Partial(Mixture.log_density, Mixture.of(some)), dcc.log_density(explored.topology)
    )
    key = _key_of_topology(rng_key, explored.topology, _TEMPERED)
    return tempered_evidence(key, path, some.draw, **options)


class _Sites(NamedTuple):
    """Keys, density and paths of the chains of topologies of one size."""

    keys: jax.Array
    density: SoftDensity
    paths: np.ndarray


def _sites(dcc: DCC, rng_key: jax.Array, topologies: Sequence[Topology], use: int) -> _Sites:
    """Return keys, density and paths of topologies of one size, side by side."""
    keys = jnp.stack([_key_of_topology(rng_key, topology, use) for topology in topologies])
    paths = np.stack([topology.paths for topology in topologies])
    return _Sites(keys, dcc.density(topologies[0].num_splits), paths)


def _warm_up(
    dcc: DCC,
    rng_key: jax.Array,
    sampler: NUTS,
    topologies: Sequence[Topology],
    use: int,
    num_steps: int | None = None,
) -> tuple[Chains, NutsDraws]:
    """Warm up chains from the prior; leading axes [topology, chain]."""
    sites = _sites(dcc, rng_key, topologies, use)
    return sampler.warm_up(*sites, sampler.start(*sites, dcc.num_chains), num_steps)


def _restart(
    dcc: DCC, rng_key: jax.Array, topology: Topology, chains: Chains, draws: NutsDraws
) -> tuple[Chains, NutsDraws, int]:
    """Restart stuck chains of a pilot while many are; return them and their number."""
    sampler, density = _searching(dcc), dcc.density(topology.num_splits)
    num_restarts, num_draws = 0, draws.position.shape[1]
    for attempt in range(dcc.restarts):
        is_stuck = stuck(_log_masses(dcc, draws))
        if is_stuck.mean() <= _MOST_STUCK:
            break
        key = jax.random.fold_in(_key_of_topology(rng_key, topology, _RESTART), attempt)
        again = sampler.start(key, density, topology.paths, int(is_stuck.sum()))
        again, last = sampler.warm_up(key, density, topology.paths, again)
        last = jax.tree.map(lambda a: a[:, -num_draws:], last)
        replaced = partial(_replaced, is_stuck)
        chains, draws = jax.tree.map(replaced, (chains, draws), (again, last))
        num_restarts += int(is_stuck.sum())
    return chains, draws, num_restarts


def _settle(
    dcc: DCC, rng_key: jax.Array, pilot: Explored, chains: Chains, draws: NutsDraws
) -> Chains:
    """Move stuck chains to states of others, including those of the pilot."""
    masses, every, num_warm = _log_masses(dcc, draws), chains, chains.num_warm
    if pilot.draws is not None:
        masses = np.concatenate([masses, _log_masses(dcc, pilot.draws)])
        every = jax.tree.map(lambda *a: np.concatenate(a), chains, pilot.chains)
    key = _key_of_topology(rng_key, pilot.topology, _COPIES)
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    every = every.restarted(rng, stuck(masses))
    return jax.tree.map(lambda a: a[: len(num_warm)], every)._replace(num_warm=num_warm)


def _searching(dcc: DCC) -> NUTS:
    """Make the sampler of pilots, which have to find modes."""
    warmup = max(int(dcc.nuts.warmup * dcc.pilot), _LEAST_PILOT) if dcc.pilot else dcc.nuts.warmup
    return replace(dcc.nuts, warmup=warmup, h_init=max(dcc.nuts.h_init, dcc.h_search))


def _log_masses(dcc: DCC, draws: NutsDraws) -> np.ndarray:
    """Return log masses of the modes of chains, [C], by the last draws of each."""
    last = slice(
        -min(_last_steps(each, dcc.num_draws) for each in (dcc.nuts, _searching(dcc))), None
    )
    return log_masses(draws.position[:, last], draws.log_density[:, last])


def _last_steps(sampler: NUTS, num_draws: int) -> int:
    """Count the last steps of warm-up that are like draws, in its last window."""
    return min(num_draws, sampler.warmup // 2)


def _weigh_component(
    dcc: DCC, rng_key: jax.Array, topology: Topology, centres: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Return weighted draws around centres [C, N, size], and all log weights."""
    key_layer, key_thin = jax.random.split(rng_key)
    layer = sample_layer(
        key_layer,
        dcc.log_density(topology),
        centres,
        pseudo_samples=dcc.pseudo_samples,
        denominator=dcc.denominator,
    )
    return thin(key_thin, layer).astype(np.float32), layer.log_weight.astype(np.float32)


def _replaced(where: np.ndarray, before: np.ndarray, after: np.ndarray) -> np.ndarray:
    result = np.array(before)
    result[where] = after
    return result


def _key_of_topology(rng_key: jax.Array, topology: Topology, use: int) -> jax.Array:
    """Return the key of a topology: draws do not depend on earlier topologies."""
    own = jax.random.fold_in(rng_key, zlib.crc32(topology.code.encode()))
    return jax.random.fold_in(own, use)


def _join_draws(before: Any, after: Any) -> Any:
    """Append arrays [C, draws, ...]."""
    return jax.tree.map(lambda *a: np.concatenate(a, axis=1), before, after)
