"""The posterior over topologies and parameters, from the results of DCC-Tree's walk.

Topology m has the probability Z_m p(m) / sum (equations 29 and 38), and its draws have their
importance weights (equation 14).

References
----------
Cochrane, Wills and Johnson 2024, Divide, Conquer, Combine Bayesian Decision Tree Sampling, sections
3.4 and A.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from scipy.special import softmax

from bdtppl.inference.dcc.explore import WalkState, within_reach
from bdtppl.inference.dcc.local import Explored, temper
from bdtppl.inference.dcc.settings import DCC
from bdtppl.inference.evidence.estimates import (
    Evidence,
    EvidenceMethod,
    choose_estimate,
    log_mean,
    may_need_tempered,
)
from bdtppl.inference.parallel import fan_out
from bdtppl.models.soft.topology import Topology, TopologyPrior

_LEAST_VISITS = 3  # visits whose spread is informative


class Component(NamedTuple):
    """The posterior given a topology.

    Attributes
    ----------
    topology
        The topology.
    evidence
        Estimate of log Z_m, without p(m).
    probability
        Probability of the topology given the data.
    position
        float [draws, size]; coordinates of `bdtppl.inference.soft.density.SoftDensity`.
    weight
        float64 [draws]; sums to 1.
    """

    topology: Topology
    evidence: Evidence
    probability: float
    position: np.ndarray
    weight: np.ndarray


def topology_weights(
    topologies: Sequence[Topology], log_evidence: np.ndarray, prior: TopologyPrior
) -> np.ndarray:
    """Compute Z_m p(m) / sum, float64 [m].

    Parameters
    ----------
    topologies
        Topologies, each once.
    log_evidence
        float [m]; log Z_m, without p(m).
    prior
        p(m).

    Examples
    --------
    >>> shapes = [Topology("0"), Topology("100")]
    >>> topology_weights(shapes, np.zeros(2), TopologyPrior(0.5, 0.0)).round(2)
    array([0.8, 0.2])
    """
    log_prior = np.array([prior.log_prob(topology) for topology in topologies])
    return softmax(np.asarray(log_evidence, np.float64) + log_prior)


def combine(
    dcc: DCC,
    state: WalkState,
    *,
    evidence: EvidenceMethod = "auto",
    smc_share: float = 0.01,
    **smc: Any,
) -> list[Component]:
    """Combine the topologies, the most probable first.

    Parameters
    ----------
    dcc, state
        The settings and the last state of the walk.
    evidence
        "lais", "smc" for all sampled topologies, or "auto": SMC if importance weights are too
        uneven and the topology may have ``smc_share`` of the weight. Draws are then its particles.
    smc_share
        In [0, 1].
    smc
        Options of `bdtppl.inference.evidence.tempered.tempered_evidence`.
    """
    explored = [each for each in state.explored.values() if each.log_weight.size]
    matters = within_reach(dcc, state.explored, smc_share)

    layered = {each.topology: layered_evidence(each) for each in explored if each.visits}
    uncertain = [
        each
        for each in explored
        if each.visits
        and each.position.shape[-1]
        and (evidence != "auto" or each.topology in matters)
        and may_need_tempered(evidence, layered[each.topology])
    ]
    # They compile and run side by side in threads.
    tasks = [(each,) for each in uncertain]
    found = fan_out(partial(temper, **smc), tasks, shared=(dcc, state.rng_key), has_shares=True)
    tempered = {each.topology: of_it for each, of_it in zip(uncertain, found, strict=True)}

    def estimate(each: Explored) -> tuple[Evidence, np.ndarray, np.ndarray]:
        if not each.position.shape[-1]:
            exact = {"method": "exact", "effective_size": np.inf, "pareto_k": -np.inf}
            return each.evidence._replace(**exact, reason="no parameters"), *_layered(each)
        if not each.visits:
            reason = "left after the pilot" if each.is_left else "from the pilot: not sampled yet"
            return each.evidence._replace(reason=reason), *_layered(each)
        own = layered[each.topology]
        if evidence == "auto" and each.topology not in matters:
            reason = f"it cannot have {smc_share:g} of the weight"
            return own._replace(reason=reason), *_layered(each)
        chosen = choose_estimate(evidence, own, lambda: tempered[each.topology][0])
        if chosen.method != "smc":
            return chosen, *_layered(each)
        _, particles = tempered[each.topology]
        return chosen, np.concatenate(particles.position), softmax(particles.log_weight.ravel())

    estimates = [estimate(each) for each in explored]
    shapes = [each.topology for each in explored]
    weights = topology_weights(
        shapes, np.array([each.log_evidence for each, _, _ in estimates]), dcc.prior
    )
    parts = []
    for shape, (each, position, of_draws), weight in zip(shapes, estimates, weights, strict=True):
        parts.append(Component(shape, each, float(weight), position, of_draws))
    return sorted(parts, key=lambda part: -part.probability)


def layered_evidence(explored: Explored) -> Evidence:
    """Estimate evidence by importance sampling, with an error that reflects differences of visits.

    Weights of one visit share their centres, so the error is at least that of the visits' separate
    estimates.
    """
    found, visits = explored.evidence, explored.visits
    if visits < _LEAST_VISITS:
        return found
    chains, draws, samples = explored.log_weight.shape
    of_visit = explored.log_weight.reshape(chains, visits, draws // visits, samples)
    of_visit = np.logaddexp.reduce(of_visit.astype(np.float64), axis=(0, 2, 3))
    return found._replace(standard_error=max(found.standard_error, log_mean(of_visit)[1]))


def _layered(explored: Explored) -> tuple[np.ndarray, np.ndarray]:
    """Return draws by importance sampling, and their weights."""
    log_weight = np.logaddexp.reduce(explored.log_weight.astype(np.float64), axis=-1)
    return np.concatenate(explored.position), softmax(log_weight.ravel())
