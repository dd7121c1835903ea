"""Soft decision trees by DCC-Tree: divide, conquer, combine."""

from collections.abc import Iterator
from typing import Any, Self

import numpy as np

from bdtppl.estimators.base import estimator
from bdtppl.estimators.long_fits import FansOut, RunsLong
from bdtppl.estimators.parameters import declared, made_of, parameter
from bdtppl.estimators.results import LARGEST_R_HAT, of_evidence, unjudged
from bdtppl.estimators.soft import SoftClasses, SoftTargets, SoftTreeEstimator, finite
from bdtppl.inference.dcc.combine import Component, combine
from bdtppl.inference.dcc.explore import TopologyWalk
from bdtppl.inference.dcc.local import Explored
from bdtppl.inference.dcc.settings import DCC
from bdtppl.inference.evidence.estimates import GREATEST_ERROR, LARGEST_PARETO_K, EvidenceMethod
from bdtppl.inference.evidence.importance import Denominator
from bdtppl.inference.soft.posterior import TopologyDraws, resample
from bdtppl.inference.summaries.diagnostics import diagnose, energy_information
from bdtppl.models.soft.topology import DEFAULT_MOVES
from bdtppl.models.wording import counted
from bdtppl.summary import why_no_r_hat

_LEAST_MASS = 0.9  # least prior probability of the sampled topologies
_MATTERS = 0.01  # probability from which a topology's diagnostics give warnings


@declared
class DCCParameters(RunsLong, FansOut):
    """Parameters of DCC-Tree, named as in the paper."""

    iterations: int = parameter(
        50,
        "Steps of the walk over topologies (T), each of which samples one of them.",
        least=1,
        is_of_run=False,
    )
    initial_trees: int = parameter(
        100,
        "Topologies drawn from the prior at first (T_0); larger values find more topologies of "
        "little prior probability.",
        least=1,
    )
    activation_count: int = parameter(
        5, "A topology is sampled once it has been proposed more often than this (C_0).", least=0
    )
    chains: int = parameter(16, "Chains in each topology.", least=1)
    warmup: int = parameter(1000, "Steps of warm-up in each topology (N_INIT).")
    warmup_doublings: int = parameter(
        0,
        "Most repetitions of a topology's warm-up, each with twice the steps. Warm-up is repeated "
        "if chains disagree over its last steps (R-hat above 1.1); the paper increases N_INIT as "
        "necessary.",
        least=0,
    )
    draws: int = parameter(100, "Draws of each chain in an iteration (N_s).", least=2)
    pseudo_samples: int = parameter(10, "Importance samples around each draw (N_M).", least=1)
    denominator: Denominator = parameter(
        "mixture",
        'Proposals whose mean density is the denominator of the importance weights: "mixture" for '
        'those of all chains, "spatial" for those of the '
        "sample's chain (equation 12), "
        '"basic" for the '
        "sample's own, as in the authors' runs.",
    )
    delta: float = parameter(
        0.0,
        "Share of exploration against exploitation in the utility of topologies, in [0, 1] "
        "(equation 10).",
        least=0,
    )
    kappa: float = parameter(
        0.0,
        "Weight (at least -1) of the variance of the importance weights in exploitation, which is "
        "the root of Z^2 + (1 + kappa) sigma^2.",
        least=-1,
    )
    optimism: float = parameter(
        1.0, "Weight of topologies with few visits in the utility (beta).", least=0
    )
    look_ahead: int = parameter(
        1000, "Further weights that exploration imagines (T_a); used if delta is not 0.", least=1
    )
    moves: Any = parameter(
        None,
        'Relative probabilities of the walk\'s proposals "grow", "prune" and "stay", a mapping; '
        "None for 0.6, 0.3 and 0.1, those of the authors' program.",
        option=False,
    )
    with_leaf: bool = parameter(True, "Whether the tree without splits is one of the topologies.")
    evidence: EvidenceMethod = parameter(
        "auto",
        'How the evidence of topologies is estimated. "lais" is layered importance sampling, "smc" '
        'tempered sequential Monte Carlo, and "auto" uses "smc" if the weights of "lais" are too '
        "uneven.",
        is_of_run=False,
    )
    patience: int | None = parameter(
        None,
        "Stop after this many iterations without a topology of weight: those activated in them "
        "hold less than a thousandth of the total. None never stops early. Activation takes "
        "several times ``activation_count`` steps, so set many more.",
        least=1,
        is_of_run=False,
    )


class DCCTree(DCCParameters, SoftTreeEstimator):
    """The inference, for any kind of target.

    Attributes
    ----------
    posterior_ : bdtppl.inference.soft.posterior.SoftPosterior
        Equally weighted draws of trees of all topologies, resampled by their weights.
    components_ : list of bdtppl.inference.dcc.combine.Component
        Each sampled topology, the most probable first: its log evidence and the method of its
        estimate, its probability, and weighted draws (of standardised targets). They are not saved.
    diagnostics_ : dict
        By the topology's code: how its evidence was estimated ("method") and why ("reason"), with
        the effective sample size of the weights and Pareto's k; R-hat and effective sample size of
        the chains' log density, their least energy information (E-BFMI), divergent draws, steps of
        warm-up, and chains that were restarted because they were stuck.
    num_iterations_ : int
        Steps of the walk.
    num_proposed_ : int
        Distinct topologies that the walk met, most of them too rarely to be sampled.
    prior_mass_ : float
        Prior probability of the sampled topologies; the others' evidence is unknown and counts as
        zero.
    log_evidence_upper_ : float
        Log marginal likelihood if all other topologies had the evidence of the best sampled one. It
        is not a bound: one of them may be better.
    log_evidence_, log_evidence_se_ : float
        Log marginal likelihood over the sampled topologies, with its standard error.
    model_, topology_prior_
        The model, with defaults filled in.
    {fitted}

    Notes
    -----
    `fit` warns if the evidence of an important topology is unreliable, and if the sampled
    topologies have less than 0.9 of the prior probability. The error of a topology's evidence comes
    from its weights, which do not cover modes that no chain visited. With sharp splits, few or
    short chains miss modes and the error is too small: use many chains.

    ``h_final`` is a hyperparameter. Without prior knowledge of the sharpness, choose the value with
    the largest ``log_evidence_``. For classes use ``likelihood="mixture"``, because equation 8 is
    not a probability of the labels and prefers sharp splits.

    References
    ----------
    Cochrane, Wills and Johnson 2024, Divide, Conquer, Combine Bayesian Decision Tree Sampling.
    """

    inference = "dcc"
    in_words = (
        "Soft trees were sampled within each topology by Hamiltonian Monte Carlo, and topologies "
        "weighted by their estimated evidence (DCC-Tree, Cochrane et al. 2024)."
    )
    log_evidence_upper_: float = np.nan  # absent from models in older files

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> Self:
        problem = self._pose(X, y, sample_weight)
        dcc = made_of(
            self,
            DCC,
            model=problem.model,
            x=problem.x,
            y=problem.y,
            weights=problem.weights,
            nuts=self._sampler(self.warmup),
            prior=self.topology_prior_,
            num_chains=self.chains,
            num_draws=self.draws,
            moves=DEFAULT_MOVES if self.moves is None else self.moves,
        )
        if self.patience is not None and self.patience <= self.activation_count:
            raise ValueError(
                f"patience must be above activation_count, {self.activation_count}: in fewer steps "
                f"no topology can become active; got {self.patience}."
            )
        keeping = self._run(
            self.schema_.features, problem.data, model=dcc.model, topology_prior=dcc.prior
        )
        walk = TopologyWalk(dcc, self.iterations, self.patience)
        seed, state = self._run_to_end(walk, keeping, "Walking over topologies")
        self.num_iterations_ = len(state.visited)
        self.num_proposed_ = len(state.proposed)
        components = combine(dcc, state, evidence=self.evidence)
        self.diagnostics_ = {
            part.topology.code: _diagnose(part, state.explored[part.topology])
            for part in components
        }
        posterior = resample(
            map(_draws, components),
            dcc.density,
            seed=seed,
            sharpness=self.h_final,
            names=self.schema_.features,
            matrix=problem.matrix,
            scaling=problem.scaling,
            weights=problem.weights,
            **_total(components, dcc),
        )
        looked_at = [dcc.prior.log_prob(part.topology) for part in components]
        self.prior_mass_ = float(np.exp(np.logaddexp.reduce(looked_at) - _log_allowed(dcc)))
        best = max(part.evidence.log_evidence for part in components)
        with np.errstate(divide="ignore"):
            rest = best + problem.log_jacobian + np.log(max(1 - self.prior_mass_, 0.0))
        self.components_ = [_with_jacobian(part, problem.log_jacobian) for part in components]
        self._restore(problem.restored(posterior), {"seed": seed})
        self.log_evidence_upper_ = float(np.logaddexp(self.log_evidence_, rest))
        self._warn_of(self._of_unseen())
        for part in self.components_:
            if part.probability >= _MATTERS:
                part.evidence.warn(f"topology {part.topology.code}", stacklevel=3)
        return self

    @property
    def log_evidence_(self) -> float:
        """Log marginal likelihood over the sampled topologies."""
        return self._fitted_posterior().log_evidence

    @property
    def log_evidence_se_(self) -> float:
        """Standard error of ``log_evidence_``."""
        return self._fitted_posterior().log_evidence_se

    @property
    def evidence_error(self) -> tuple[str, float]:
        """Standard error of the log evidence."""
        return "log evidence", self.log_evidence_se_

    def cautions(self) -> Iterator[str]:
        """List the topologies whose evidence or draws are imprecise."""
        posterior, is_unjudged = self.posterior_, False
        errors = posterior.log_evidence_ses
        for shape, share, error in zip(
            posterior.topologies, posterior.probability, errors, strict=True
        ):
            own = self.diagnostics_.get(shape.code)
            if own is None or share < _MATTERS:
                continue
            yield from _of_topology(
                own, f"In the topology {shape.code}, of probability {share:.2f},", error
            )
            # A topology that was summed over, or weighted without chains, lacks no diagnostics.
            is_unjudged |= own["r_hat"] is None and own["divergences"] is not None
        if is_unjudged:
            yield unjudged(why_no_r_hat(self.chains, self.draws) or "R-hat has no finite value")
        yield from self._of_unseen()
        yield from of_evidence(self)

    def _of_unseen(self) -> Iterator[str]:
        """Warn if topologies of much prior probability were not sampled."""
        if self.prior_mass_ < _LEAST_MASS:
            upper = (
                "If they had the evidence of the best one, it would be "
                f"{self.log_evidence_upper_:.2f} instead of {self.log_evidence_:.2f}. "
            )
            yield (
                f"The sampled topologies have {self.prior_mass_:.2f} of the prior probability, "
                f"less than {_LEAST_MASS}; the log evidence counts the others as zero, and its "
                "error does not cover them. "
                + ("" if np.isnan(self.log_evidence_upper_) else upper)
                + "Raise iterations and initial_trees, or lower max_splits or activation_count."
            )

    def summary(self) -> dict[str, Any]:
        """Summarise the fit in numbers and text of JSON types.

        Topologies are listed by probability, down to a thousandth, with their ``diagnostics_``.
        """
        summary = super().summary()
        shown = [each | self.diagnostics_[each["code"]] for each in summary["topologies"]]
        return summary | {
            "topologies": shown,
            "iterations": self.num_iterations_,
            "topologies_proposed": self.num_proposed_,
            "prior_mass": self.prior_mass_,
        }


def _of_topology(own: dict[str, Any], name: str, error: float) -> Iterator[str]:
    """Describe where the evidence or the draws of one topology are imprecise."""
    if own["pareto_k"] is not None and own["pareto_k"] > LARGEST_PARETO_K:
        yield (
            f"{name} few samples carry most of the weight (Pareto k {own['pareto_k']:.2f}, more "
            f"than {LARGEST_PARETO_K}): its evidence is not reliable."
        )
    if error > GREATEST_ERROR:
        yield (
            f"{name} log evidence has a standard error of {error:.2f}, and its probability is as "
            "uncertain."
        )
    if own["r_hat"] is not None and own["r_hat"] > LARGEST_R_HAT:
        yield (
            f"{name} chains disagree (R-hat {own['r_hat']:.2f}): they may not have explored all of "
            "its posterior."
        )
    if own["divergences"]:
        yield (
            f"{name} {counted(own['divergences'], 'draw', 'draws')} diverged: the sampler may have "
            f"missed narrow parts of the posterior."
        )


def _diagnose(part: Component, explored: Explored) -> dict[str, Any]:
    """Report how the evidence was estimated, and how well chains agree."""
    evidence = part.evidence
    diagnosed = {
        "method": evidence.method,
        "reason": evidence.reason,
        "effective_size": finite(evidence.effective_size),
        "pareto_k": finite(evidence.pareto_k),
        "restarts": explored.num_restarts,
        "warmup": None if explored.chains is None else int(explored.chains.num_warm.max()),
        "r_hat": None,
        "ess": None,
        "e_bfmi": None,
        "divergences": None,
    }
    draws: Any = explored.draws
    if draws is None:
        return diagnosed
    agreement = diagnose({"log_density": draws.log_density})["log_density"]
    return diagnosed | {
        "r_hat": finite(agreement.r_hat),
        "ess": finite(agreement.ess),
        "e_bfmi": finite(energy_information(draws.energy).min()),
        "divergences": int(draws.is_divergent.sum()),
    }


def _log_allowed(dcc: DCC) -> float:
    """Return the log prior mass of the topologies that the walk may meet."""
    return dcc.prior.log_mass(dcc.max_splits, with_leaf=dcc.with_leaf)


def _with_jacobian(part: Component, log_jacobian: float) -> Component:
    log_evidence = part.evidence.log_evidence + log_jacobian
    return part._replace(evidence=part.evidence._replace(log_evidence=log_evidence))


def _draws(part: Component) -> TopologyDraws:
    evidence = part.evidence
    return TopologyDraws(
        part.topology,
        part.probability,
        evidence.log_evidence,
        evidence.standard_error,
        part.position,
        None,
        part.weight,
    )


def _total(parts: list[Component], dcc: DCC) -> dict[str, Any]:
    """Return the log evidence over topologies, and its error by the delta method."""
    log_joint = [part.evidence.log_evidence + dcc.prior.log_prob(part.topology) for part in parts]
    errors = [part.probability * part.evidence.standard_error for part in parts]
    return {
        "log_evidence": float(np.logaddexp.reduce(log_joint)) - _log_allowed(dcc),
        "log_evidence_se": float(np.sqrt(np.nansum(np.square(errors)))),
    }


@estimator
class DCCTreeRegressor(SoftTargets, DCCTree):
    """Regress by soft trees of all topologies that matter (DCC-Tree; Cochrane et al. 2024).

    Examples
    --------
    >>> import numpy as np
    >>> from bdtppl import DCCTreeRegressor
    >>> X = np.linspace(0, 1, 40)[:, None]
    >>> y = np.where(X[:, 0] > 0.5, 1.0, 0.0) + 0.1 * np.sin(50 * X[:, 0])
    >>> few = {"iterations": 2, "initial_trees": 10, "chains": 2, "warmup": 60, "draws": 50}
    >>> model = DCCTreeRegressor(max_splits=1, random_state=0, **few).fit(X, y)
    >>> model.posterior_.topologies[0].code
    '100'
    """


@estimator
class DCCTreeClassifier(SoftClasses, DCCTree):
    """Classify by soft trees of all topologies that matter (DCC-Tree; Cochrane et al. 2024).

    Examples
    --------
    >>> import numpy as np
    >>> from bdtppl import DCCTreeClassifier
    >>> X = np.linspace(0, 1, 40)[:, None]
    >>> y = (X[:, 0] > 0.5).astype(int)
    >>> few = {"iterations": 2, "initial_trees": 10, "chains": 2, "warmup": 60, "draws": 50}
    >>> model = DCCTreeClassifier(max_splits=1, random_state=0, **few).fit(X, y)
    >>> model.posterior_.topologies[0].code
    '100'
    """
