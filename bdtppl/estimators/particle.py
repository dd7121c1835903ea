"""Decision trees by particle filters, for classification and regression."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Self

import numpy as np

from bdtppl.estimators.base import estimator
from bdtppl.estimators.hard import ClassLeaves, RealLeaves, require_finite
from bdtppl.estimators.long_fits import FansOut, RunsLong
from bdtppl.estimators.parameters import declared, made_of, parameter
from bdtppl.estimators.results import of_evidence, of_room, of_weights
from bdtppl.estimators.weighted import WeightedTrees
from bdtppl.inference.evidence.estimates import LARGEST_PARETO_K, pareto_k
from bdtppl.inference.particle.sample import (
    GrowthName,
    ParticleFilters,
    ProposalName,
    ResamplingName,
)
from bdtppl.models.priors import DepthDecay

_FEWEST_PARTICLES = 20  # effective particles of a run, at any stage
_SMALLEST_SHARE = 0.2  # of a run's particles, if these are few
_MOST_COLLAPSED = 0.5  # share of runs that may have fewer


@declared
class ParticleParameters(RunsLong, FansOut):
    """Parameters of particle filters."""

    particles: int = parameter(100, "Particles of each run.", least=1)
    runs: int = parameter(
        10,
        "Independent runs (the paper's islands), whose spread gives the standard error of the "
        "evidence.",
        least=1,
    )
    proposal: ProposalName = parameter(
        "defensive",
        'Proposal for a node: "prior"; "empirical", the prior with cuts uniform among the '
        'available ones of the feature; "optimal", the prior times the change in likelihood (the '
        "paper's one-step optimal proposal); or "
        '"defensive", nine parts "optimal" and one part "prior", which finds splits that pay only '
        "with those below them.",
    )
    growth: GrowthName = parameter(
        "node", 'Whether particles are weighted after each "node", breadth first, or each "layer".'
    )
    resampling: ResamplingName = parameter("systematic", "How particles are resampled.")
    ess_threshold: float = parameter(
        0.1, "Particles are resampled if their effective number falls below this share."
    )
    capacity: int = parameter(
        127, "Most nodes of a tree: larger trees get no weight. See ``num_overflows_``.", least=1
    )


class ParticleTree(ParticleParameters, WeightedTrees):
    """The inference, for any kind of target.

    Attributes
    ----------
    posterior_ : bdtppl.inference.hard.posterior.Posterior
        The particles with their weights, runs as chains.
    log_evidence_ : float
        Estimate of the log marginal likelihood, with its standard error ``log_evidence_se_`` from
        the spread of the runs and the trees found (NaN for one run). The error does not cover what
        all runs have lost, such as trees whose first split pays only with those below it; `fit`
        warns if the weights show that the error is too small. Absent if the prior is not
        normalised: only ``DepthDecay`` and ``Program`` are.
    log_partition_, log_partition_se_ : float
        Estimate of the log of the sum over trees of prior weight times likelihood; unbiased before
        taking the log.
    log_found_ : float
        Log of the sum over the distinct trees found; ``log_partition_`` estimates a larger sum.
    log_partition_of_run_ : numpy.ndarray
        float64 [runs]; each run's own estimate.
    map_tree_ : bdtppl.models.hard.tree.Tree
        Most probable tree found, with ``map_log_joint_``.
    effective_size_ : numpy.ndarray
        float64 [stages, runs]; effective number of particles after each stage of growth, NaN after
        a run ended.
    num_resampled_, num_overflows_ : numpy.ndarray
        int [runs]; number of resampling steps, and of nodes that could have split but for the
        ``capacity``: the posterior is over trees within the capacity.
    design_
        The coded training rows.
    prior_, leaf_, constraints_
        The model, with defaults filled in.
    {fitted}

    References
    ----------
    Lakshminarayanan, Roy and Teh 2013, Top-down particle filtering for Bayesian decision trees.
    """

    inference = "particle"
    in_words = (
        "Trees were grown from the root by particle filters, which give weighted draws and an "
        "unbiased estimate of the evidence (Lakshminarayanan et al. 2013)."
    )
    draws_are = "runs"
    default_prior = DepthDecay(0.95, 0.5)  # the paper's (which cuts by gap: cut_weights="gap")
    log_found_: float = np.nan  # NaN in models from older files
    effective_size_: np.ndarray
    log_partition_of_run_: np.ndarray
    num_overflows_: np.ndarray

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> Self:
        model = self._read_model(X, y, sample_weight)
        filters = made_of(self, ParticleFilters, model=model)
        seed, state = self._run_to_end(filters, self._run_of(model), "Growing trees")
        filtered = filters.result(state)
        require_finite("The log evidence", filtered.log_partition)
        self._keep_model(replace(model, prior=filtered.posterior.prior))
        for name, value in filtered._asdict().items():
            setattr(self, f"{name}_", value)
        self._restore(filtered.posterior, {"seed": seed})
        if self.posterior_.trees.num_nodes.max() == 1:
            self._warn_of_no_rule()
        self._warn_of(self._uneven_weights())
        self._warn_of(of_room(self.num_overflows_, self.capacity))
        return self

    def _uneven_weights(self) -> Iterator[str]:
        """State why the evidence may be too low by more than its error."""
        end = (
            "The evidence and its error are not reliable: the evidence is probably too low. Use "
            "more particles."
        )
        short = self.log_found_ - self.log_partition_
        if short > 0:
            yield (
                "The log evidence of the trees found exceeds the estimate for all trees by "
                f"{short:.2f}. {end}"
            )
        least = np.nanmin(self.effective_size_, axis=0)
        few = min(_FEWEST_PARTICLES, _SMALLEST_SHARE * self.particles)
        if least.size > 1 and (share := (least < few).mean()) >= _MOST_COLLAPSED:
            yield (
                f"In {share:.0%} of the runs less than {few:g} of {self.particles} particles "
                f"carried the weight at some stage. {end}"
            )
        with np.errstate(divide="ignore"):
            tail = pareto_k(np.log(self.posterior_.weights))
        if LARGEST_PARETO_K < tail < np.inf:  # infinite if too few weights differ
            yield (
                f"Few particles carry most of the weight (Pareto k {tail:.2f}, more than "
                f"{LARGEST_PARETO_K}). {end}"
            )

    def cautions(self) -> Iterator[str]:
        """Report trees that outgrew the capacity, and uneven weights or an imprecise evidence."""
        yield from of_room(self.num_overflows_, self.capacity)
        yield from self._uneven_weights()
        yield from of_weights(self._effective_size)
        yield from of_evidence(self)

    def summary(self) -> dict[str, Any]:
        """Summarise the fit in numbers and text of JSON types."""
        return super().summary() | {
            "particles": int(self.particles),
            "runs": len(self.log_partition_of_run_),
            "overflows": int(self.num_overflows_.sum()),
        }


@estimator
class ParticleTreeClassifier(ClassLeaves, ParticleTree):
    """Classify by particle filters over decision trees (Lakshminarayanan et al. 2013).

    Examples
    --------
    >>> from bdtppl import ParticleTreeClassifier
    >>> X, y = [[1.0], [2.0], [3.0], [4.0]] * 5, ["a", "a", "b", "b"] * 5
    >>> model = ParticleTreeClassifier(random_state=0).fit(X, y)
    >>> model.predict([[1.0], [4.0]]).tolist()
    ['a', 'b']
    """


@estimator
class ParticleTreeRegressor(RealLeaves, ParticleTree):
    """Regress by particle filters over decision trees (Lakshminarayanan et al. 2013).

    Examples
    --------
    >>> from bdtppl import ParticleTreeRegressor
    >>> X, y = [[1.0], [2.0], [3.0], [4.0]] * 5, [0.0, 0.0, 9.0, 9.0] * 5
    >>> model = ParticleTreeRegressor(random_state=0).fit(X, y)
    >>> model.predict([[1.0], [4.0]]).round(-1).tolist()
    [0.0, 10.0]
    """
