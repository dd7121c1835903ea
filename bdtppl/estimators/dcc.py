"""Soft decision trees by DCC-Tree: divide, conquer, combine."""

import time
from dataclasses import fields
from typing import Any, Literal, get_args

import jax
import numpy as np
from sklearn.base import ClassifierMixin, RegressorMixin

from bdtppl.estimators.base import require_boolean, require_integer
from bdtppl.estimators.checkpoints import Checkpoint
from bdtppl.estimators.soft import (
    CLASSES,
    FITTED,
    MODEL,
    USE,
    SoftClasses,
    SoftTargets,
    SoftTreeEstimator,
    plain,
)
from bdtppl.inference.dcc.checkpoint import from_arrays, to_arrays
from bdtppl.inference.dcc.combine import Component, combine
from bdtppl.inference.dcc.explore import State, explore, start
from bdtppl.inference.dcc.local import Explored
from bdtppl.inference.dcc.settings import DCC
from bdtppl.inference.evidence.estimates import EvidenceMethod
from bdtppl.inference.nuts.sample import NUTS
from bdtppl.inference.soft.posterior import TopologyDraws, Votes, resample
from bdtppl.inference.summaries.diagnostics import diagnose, energy_information
from bdtppl.models.soft.topology import TopologyPrior
from bdtppl.models.soft.tree import LikelihoodName, SoftClassification, SoftRegression
from bdtppl.progress import counting

__all__ = ["DCCTreeClassifier", "DCCTreeRegressor"]

_KEPT_EVERY = 60.0  # seconds between checkpoints
_MATTERS = 0.01  # of the weight, from which on a topology's evidence is warned of

_PARAMETERS = f"""

    Parameters
    ----------
    iterations
        Steps of the walk over topologies (T), each of which looks at one of them.
    initial_trees
        Topologies drawn from the prior at first (T_0).
    activation_count
        A topology is looked at once it has been proposed more often than this (C_0).
    chains
        Chains in each topology.
    warmup
        Steps of warm-up in each topology (N_INIT).
    draws
        Draws of each chain in an iteration (N_s).
    pseudo_samples
        Importance samples around each draw (N_M).
{MODEL}
    with_leaf
        Whether the tree without a split is one of the topologies.
    evidence
        "lais" for layered importance sampling, "smc" for tempered sequential Monte Carlo, or "auto"
        for the second where the weights of the first are too uneven.
    checkpoint
        Folder that keeps the walk, once a minute and when it ends or is interrupted. A fit that
        finds one there goes on from it, by the seed that the walk began with, to the result that it
        would have come to without a break; with more ``iterations`` it makes the further ones.
        Another number as ``random_state`` than the walk's is refused.
    patience
        Stop before ``iterations`` where the topologies that became active in the last so many steps
        together hold less than a thousandth of the weight; None for no such stop. To become active
        takes several times ``activation_count`` steps: ask for many more.
{USE}

    Attributes
    ----------
    posterior_ : bdtppl.inference.soft.posterior.SoftPosterior
        Equally weighted draws of trees of all topologies, resampled by their weights.
    components_ : list of bdtppl.inference.dcc.combine.Component
        Each topology that was looked at, the most probable first: its log evidence and how that was
        got, its probability, and weighted draws (of standardised targets). They are not saved.
    diagnostics_ : dict
        By the topology's code: how its evidence was estimated ("method") and why so ("reason"),
        with the effective size of the weights and Pareto's k; R-hat and effective size of the
        chains' log density, their least energy information (E-BFMI), divergent draws, and chains
        that began again because they were stuck.
    num_iterations_ : int
        Steps that the walk has made.
    num_proposed_ : int
        Distinct topologies that the walk has met, most of them too seldom to be looked at.
    prior_mass_ : float
        Prior probability of the topologies that were looked at; the others' weight is unknown.
    log_evidence_, log_evidence_se_ : float
        Log marginal likelihood over the topologies that were looked at, with its error.{{fitted}}
{FITTED}

    Notes
    -----
    `fit` warns where the evidence of a topology that matters is not to be relied on. Its error is
    that of the weights: of gaps in which no chain has been they know nothing. Where splits are
    sharp, few or short chains miss some, and the error is too small: take many chains.

    ``h_final`` is a hyperparameter. Where nothing else says how sharp splits are, take that with
    the largest ``log_evidence_``{{comparable}}.

    References
    ----------
    Cochrane, Wills and Johnson 2024, Divide, Conquer, Combine Bayesian Decision Tree Sampling.

    Examples
    --------
    >>> import numpy as np
    >>> from bdtppl import {{name}}
    >>> X = np.linspace(0, 1, 40)[:, None]
    >>> y = {{targets}}
    >>> few = {{{{"iterations": 2, "initial_trees": 10, "chains": 2, "warmup": 60, "draws": 50}}}}
    >>> model = {{name}}(max_splits=1, random_state=0, **few).fit(X, y)
    >>> model.posterior_.topologies[0].code
    '100'
"""


class _DCCTree(SoftTreeEstimator):
    """What classification and regression share."""

    iterations: int
    initial_trees: int
    activation_count: int
    chains: int
    warmup: int
    draws: int
    pseudo_samples: int
    evidence: EvidenceMethod
    max_splits: int | None
    with_leaf: bool
    patience: int | None
    checkpoint: Any
    progress: bool

    def _check(self) -> None:
        super()._check()
        for name in ("iterations", "initial_trees", "chains", "draws", "pseudo_samples"):
            require_integer(name, getattr(self, name))
        if self.draws == 1:
            raise ValueError("draws must be at least 2, for their covariance; got 1.")
        require_boolean("with_leaf", self.with_leaf)
        if self.evidence not in get_args(EvidenceMethod):
            known = ", ".join(map(repr, get_args(EvidenceMethod)))
            raise ValueError(f"evidence must be one of {known}; got {self.evidence!r}.")
        if self.patience is not None:
            require_integer("patience", self.patience)

    def _fit(self, X: Any, y: Any, sample_weight: Any):
        problem = self._pose(X, y, sample_weight)
        dcc = DCC(
            model=problem.model,
            x=problem.x,
            y=problem.y,
            nuts=NUTS(warmup=self.warmup, h_init=self.h_init, h_final=self.h_final),
            prior=self.topology_prior_,
            num_chains=self.chains,
            num_draws=self.draws,
            pseudo_samples=self.pseudo_samples,
            initial_trees=self.initial_trees,
            activation_count=self.activation_count,
            max_splits=self.max_splits,
            with_leaf=self.with_leaf,
        )
        if self.patience is not None and self.patience <= self.activation_count:
            raise ValueError(
                f"patience must be above activation_count, {self.activation_count}: in fewer steps "
                f"no topology can become active; got {self.patience}."
            )
        seed, state = self._walk(dcc)
        self.num_iterations_ = len(state.visited)
        self.num_proposed_ = len(state.proposed)
        found = combine(dcc, state, evidence=self.evidence)
        self.diagnostics_ = {
            part.topology.code: _diagnose(part, state.explored[part.topology]) for part in found
        }
        posterior = resample(
            map(_draws, found),
            dcc.density,
            seed=seed,
            sharpness=self.h_final,
            names=self.schema_.features,
            matrix=problem.matrix,
            scaling=problem.scaling,
            **_total(found, dcc),
        )
        looked_at = [dcc.prior.log_prob(part.topology) for part in found]
        self.prior_mass_ = float(np.exp(np.logaddexp.reduce(looked_at) - _log_allowed(dcc)))
        self.components_ = [_shifted(part, problem.log_jacobian) for part in found]
        self._restore(problem.restored(posterior), {"seed": seed})
        for part in self.components_:
            if part.probability >= _MATTERS:
                part.evidence.warn(f"topology {part.topology.code}", stacklevel=3)
        return self

    def _walk(self, dcc: DCC) -> tuple[int, State]:
        """Walk over topologies, from the checkpoint on if there is one; the run's seed, and all."""
        seed, folder, found = self._draw_seed(), None, None
        if self.checkpoint is not None:
            settings = {each.name: getattr(dcc, each.name) for each in fields(dcc)}
            problem = settings.pop("x"), settings.pop("y")
            folder = Checkpoint(self.checkpoint, problem, settings | {"nuts": vars(dcc.nuts)})
            found = folder.read()
        if folder is None or found is None:
            state = start(dcc, jax.random.key(seed))
        else:
            own, seed, state = seed, int(found["seed"]), from_arrays(dcc, found)
            folder.require_seed(self.random_state, own, seed)
            folder.require_length("iterations", len(state.visited), self.iterations)
        kept = time.monotonic()

        def keep() -> None:
            if folder is not None:
                folder.write({"seed": seed, **to_arrays(state)})

        def tell(reached: State) -> None:
            nonlocal state, kept
            state = reached
            if time.monotonic() - kept >= _KEPT_EVERY:
                keep()
                kept = time.monotonic()
            if report is not None:
                report(len(state.visited))

        remaining = self.iterations - len(state.visited)
        with counting("iterations", shown=self.progress) as report:
            try:
                explore(dcc, state, remaining, patience=self.patience, tell=tell)
            finally:  # be it that somebody interrupts it
                keep()
        return seed, state

    @property
    def log_evidence_(self) -> float:
        """Log marginal likelihood over the topologies that were looked at."""
        return self._fitted_posterior().log_evidence

    @property
    def log_evidence_se_(self) -> float:
        """Standard error of ``log_evidence_``."""
        return self._fitted_posterior().log_evidence_se

    def summary(self) -> dict[str, Any]:
        """Summarise the fit in plain numbers and words, ready for JSON.

        Topologies are listed by probability, down to a thousandth, with their ``diagnostics_``.
        """
        found = super().summary()
        shown = [each | self.diagnostics_[each["code"]] for each in found["topologies"]]
        return found | {
            "topologies": shown,
            "iterations": self.num_iterations_,
            "topologies_proposed": self.num_proposed_,
            "prior_mass": self.prior_mass_,
        }


def _diagnose(part: Component, explored: Explored) -> dict[str, Any]:
    """Say how the evidence was got, and how well chains agree."""
    evidence = part.evidence
    found = {
        "method": evidence.method,
        "reason": evidence.reason,
        "effective_size": plain(evidence.effective_size),
        "pareto_k": plain(evidence.pareto_k),
        "restarts": explored.num_restarts,
        "r_hat": None,
        "ess": None,
        "e_bfmi": None,
        "divergences": None,
    }
    draws: Any = explored.draws
    if draws is None:
        return found
    agreement = diagnose({"log_density": draws.log_density})["log_density"]
    return found | {
        "r_hat": plain(agreement.r_hat),
        "ess": plain(agreement.ess),
        "e_bfmi": plain(energy_information(draws.energy).min()),
        "divergences": int(draws.is_divergent.sum()),
    }


def _log_allowed(dcc: DCC) -> float:
    """Log prior mass of the topologies that the walk may meet: its prior is that of these."""
    return dcc.prior.log_mass(dcc.max_splits, with_leaf=dcc.with_leaf)


def _shifted(part: Component, log_jacobian: float) -> Component:
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
    """Log evidence over topologies, and its error by the delta method."""
    log_joint = [part.evidence.log_evidence + dcc.prior.log_prob(part.topology) for part in parts]
    errors = [part.probability * part.evidence.standard_error for part in parts]
    return {
        "log_evidence": float(np.logaddexp.reduce(log_joint)) - _log_allowed(dcc),
        "log_evidence_se": float(np.sqrt(np.nansum(np.square(errors)))),
    }


class DCCTreeRegressor(SoftTargets, RegressorMixin, _DCCTree):
    """Regress by soft trees of all topologies that matter (DCC-Tree; Cochrane et al. 2024)."""

    def __init__(
        self,
        *,
        iterations: int = 50,
        initial_trees: int = 100,
        activation_count: int = 5,
        chains: int = 16,
        warmup: int = 1000,
        draws: int = 100,
        pseudo_samples: int = 10,
        h_init: float = 0.1,
        h_final: float = 0.025,
        model: SoftRegression | None = None,
        topology_prior: TopologyPrior | None = None,
        evidence: EvidenceMethod = "auto",
        max_splits: int | None = None,
        with_leaf: bool = True,
        patience: int | None = None,
        checkpoint: Any = None,
        routing: Literal["soft", "hard"] | float = "soft",
        drop_first: bool = False,
        random_state: Any = None,
        progress: bool = False,
    ):
        self.iterations = iterations
        self.initial_trees = initial_trees
        self.activation_count = activation_count
        self.chains = chains
        self.warmup = warmup
        self.draws = draws
        self.pseudo_samples = pseudo_samples
        self.h_init = h_init
        self.h_final = h_final
        self.model = model
        self.topology_prior = topology_prior
        self.evidence = evidence
        self.max_splits = max_splits
        self.with_leaf = with_leaf
        self.patience = patience
        self.checkpoint = checkpoint
        self.routing = routing
        self.drop_first = drop_first
        self.random_state = random_state
        self.progress = progress

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "DCCTreeRegressor":
        """Sample trees of all topologies that matter.

        Parameters
        ----------
        X
            Table [n, columns]: array, frame, or mapping of names to columns; no missing values.
        y
            Targets [n].
        sample_weight
            How often each row is repeated, integers [n].

        Raises
        ------
        ValueError
            If the input or a parameter is unfit; the message names the column, row or parameter.
        """
        return self._fit(X, y, sample_weight)


class DCCTreeClassifier(SoftClasses, ClassifierMixin, _DCCTree):
    """Classify by soft trees of all topologies that matter (DCC-Tree; Cochrane et al. 2024)."""

    def __init__(
        self,
        *,
        iterations: int = 50,
        initial_trees: int = 100,
        activation_count: int = 5,
        chains: int = 16,
        warmup: int = 1000,
        draws: int = 100,
        pseudo_samples: int = 10,
        h_init: float = 0.1,
        h_final: float = 0.025,
        likelihood: LikelihoodName = "compound",
        model: SoftClassification | None = None,
        topology_prior: TopologyPrior | None = None,
        evidence: EvidenceMethod = "auto",
        max_splits: int | None = None,
        with_leaf: bool = True,
        patience: int | None = None,
        checkpoint: Any = None,
        routing: Literal["soft", "hard"] | float = "soft",
        votes: Votes = "probability",
        classes: Any = None,
        drop_first: bool = False,
        random_state: Any = None,
        progress: bool = False,
    ):
        self.iterations = iterations
        self.initial_trees = initial_trees
        self.activation_count = activation_count
        self.chains = chains
        self.warmup = warmup
        self.draws = draws
        self.pseudo_samples = pseudo_samples
        self.h_init = h_init
        self.h_final = h_final
        self.likelihood = likelihood
        self.model = model
        self.topology_prior = topology_prior
        self.evidence = evidence
        self.max_splits = max_splits
        self.with_leaf = with_leaf
        self.patience = patience
        self.checkpoint = checkpoint
        self.routing = routing
        self.votes = votes
        self.classes = classes
        self.drop_first = drop_first
        self.random_state = random_state
        self.progress = progress

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "DCCTreeClassifier":
        """Sample trees of all topologies that matter.

        Parameters
        ----------
        X
            Table [n, columns]: array, frame, or mapping of names to columns; no missing values.
        y
            Class labels [n].
        sample_weight
            How often each row is repeated, integers [n].

        Raises
        ------
        ValueError
            If the input or a parameter is unfit; the message names the column, row or parameter.
        """
        return self._fit(X, y, sample_weight)


DCCTreeClassifier.__doc__ = f"{DCCTreeClassifier.__doc__}{_PARAMETERS}".format(
    model="SoftClassification",
    default="class\n        probabilities integrated out, uniform a priori (equation 8)",
    classes=CLASSES,
    fitted="""
    classes_ : numpy.ndarray
        Labels, sorted.""",
    name="DCCTreeClassifier",
    targets="(X[:, 0] > 0.5).astype(int)",
    comparable=(
        ', with\n    ``likelihood="mixture"``: equation 8 is no probability of the labels, and '
        "prefers sharp splits"
    ),
)
DCCTreeRegressor.__doc__ = f"{DCCTreeRegressor.__doc__}{_PARAMETERS}".format(
    model="SoftRegression",
    default="priors\n        on the scale of y (``SoftRegression.scaled_to``)",
    classes="",
    fitted="",
    name="DCCTreeRegressor",
    targets="np.where(X[:, 0] > 0.5, 1.0, 0.0) + 0.1 * np.sin(50 * X[:, 0])",
    comparable="",
)
