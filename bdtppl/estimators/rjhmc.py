"""Soft decision trees by reversible jumps between topologies: RJHMC-Tree."""

from collections.abc import Iterator
from typing import Any, ClassVar, Literal, Self

import numpy as np
from joblib import parallel_config

from bdtppl.estimators.base import estimator
from bdtppl.estimators.chains import judge_chains
from bdtppl.estimators.long_fits import RunsLong, time_limit
from bdtppl.estimators.parameters import declared, made_of, parameter
from bdtppl.estimators.results import of_chains
from bdtppl.estimators.soft import SoftClasses, SoftTargets, SoftTreeEstimator, finite
from bdtppl.inference.rjhmc import RJHMC, JumpingChains
from bdtppl.inference.soft.density import SoftDensity
from bdtppl.inference.soft.posterior import along_chains


@declared
class RJHMCParameters(RunsLong):
    """Parameters of RJHMC-Tree."""

    time_limit: float | None = time_limit(120.0)
    chains: int = parameter(4, "Independent chains.", least=1)
    burn_in: int = parameter(
        500,
        "Iterations that each chain discards. An iteration is a jump and a move within the "
        "topology.",
        least=0,
    )
    draws: int = parameter(500, "Iterations kept from each chain.", least=1, is_of_run=False)
    warmup: int = parameter(
        200,
        "Warm-up steps of the no-U-turn sampler: in each new topology, or in each move of the "
        "published scheme.",
    )
    inputs: Literal["soft", "hard"] = parameter(
        "soft",
        'Inputs of splits: "soft" splits along directions on the simplex (HMC-DFI), "hard" splits '
        "on one input each (HMC-DF).",
    )
    published: bool = parameter(
        False,
        "Whether to adapt the sampler anew within every iteration, from the current state, as in "
        "the paper. This is not exact, and many times slower.",
    )
    tries: int = parameter(
        20,
        "Draws of new parameters that a jump chooses from by likelihood; always 1 in the published "
        "scheme.",
        least=1,
    )
    start: Literal["greedy", "prior"] = parameter(
        "greedy",
        'Where chains start. "greedy" starts at greedy modal trees of at most three levels, each '
        'grown on rows drawn with replacement; "prior" at the best of some prior draws, as in the '
        "paper.",
    )
    restarts: int = parameter(
        4,
        "Most relocations of chains from poor modes to states of other chains in burn-in. They "
        "happen in its second half, from modes of negligible mass, at least 20 iterations apart. 0 "
        "never relocates chains.",
        least=0,
    )


class RJHMCTree(RJHMCParameters, SoftTreeEstimator):
    """The inference, for any kind of target.

    Attributes
    ----------
    posterior_ : bdtppl.inference.soft.posterior.SoftPosterior
        Draws of trees, [chain, draw].
    diagnostics_ : dict
        Rank-normalised R-hat ("r_hat") and bulk effective sample size ("ess") of the log joint, the
        number of leaves, and predictions at a few training rows.
    trajectory_, trajectory_steps_ : numpy.ndarray
        float64 [chain, iteration] and int [iteration]; log joint density of the chains' trees,
        those of burn-in included (`bdtppl.plot_trajectories`).
    burn_in_ : int
        Iterations discarded: ``burn_in``, or fewer if ``time_limit`` was reached.
    ancestors_ : numpy.ndarray
        int [chain]; ancestor of each chain before relocations. Chains of one ancestor carry no
        information on modes that it did not find.
    model_, topology_prior_
        The model, with defaults filled in.
    {fitted}

    Notes
    -----
    `fit` warns (``ConvergenceWarning``) if R-hat exceeds 1.05, or if all chains have one ancestor.
    Chains that jump between topologies do not estimate the evidence; `DCCTreeRegressor` and
    `DCCTreeClassifier` do.

    References
    ----------
    Cochrane, Wills and Johnson 2023, RJHMC-Tree for exploration of the Bayesian decision tree
    posterior.
    """

    inference = "rjhmc"
    in_words = (
        "Soft trees were drawn by Markov chains that jump between topologies and move within each "
        "by Hamiltonian Monte Carlo (RJHMC-Tree, Cochrane et al. 2023)."
    )
    draws_are = "chains"
    ancestors_: np.ndarray | None = None  # absent from models in older files
    unknown: ClassVar = {
        "log_evidence": "chains that jump between topologies give no evidence; a DCC-Tree does"
    }

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> Self:
        problem = self._pose(X, y, sample_weight)
        rjhmc = made_of(
            self,
            RJHMC,
            sampler=self._sampler(self.warmup),
            topology_prior=self.topology_prior_,
            tries=1 if self.published else self.tries,
        )
        is_hard = self.inputs == "hard"
        posed = {"model": problem.model, "x": problem.x, "y": problem.y, "hard_inputs": is_hard}
        posed["weights"] = problem.weights
        chains = made_of(self, JumpingChains, settings=rjhmc, **posed)
        keeping = self._run(self.schema_.features, problem.data, model=problem.model)
        with parallel_config("sequential"):  # an iteration ends before workers would start
            seed, state = self._run_to_end(chains, keeping, "Jumping between topologies")
        walk = chains.result(state)
        iterations = walk.topology.shape[1]
        self.burn_in_ = self.burn_in
        if iterations < self.burn_in + self.draws:
            # All kept draws must come after the relocations of chains.
            compared = [last for last in rjhmc.stages(self.burn_in) if last < iterations]
            self.burn_in_ = min(self.burn_in, max(iterations // 2, *compared, 0))
        kept = slice(self.burn_in_, None)
        leaves = np.array([shape.num_leaves for shape in walk.topologies])[walk.topology]
        log_joint = problem.log_joint(walk.log_joint, leaves)
        drawn = along_chains(
            walk.topologies,
            walk.topology[:, kept],
            walk.position[:, kept],
            None if walk.inputs is None else walk.inputs[:, kept],
            lambda n: SoftDensity.filled_up(num_splits=n, **posed),
            sharpness=self.h_final,
            names=self.schema_.features,
            matrix=problem.matrix,
            scaling=problem.scaling,
            weights=problem.weights,
            sample_stats={"log_joint": log_joint[:, kept]},
        )
        posterior = problem.restored(drawn)
        self.ancestors_ = walk.ancestors
        self.trajectory_ = log_joint
        self.trajectory_steps_ = 1 + np.arange(iterations)
        self._restore(posterior, {"seed": seed})
        judge_chains(self, "Raise burn_in and draws, or use a DCC-Tree.")
        self._warn_of(self._of_ancestors())
        return self

    @property
    def thrown_away(self) -> tuple[str, int]:
        """Iterations of burn-in; the warm-up of NUTS comes before the first one."""
        return "burn-in", getattr(self, "burn_in_", self.burn_in)  # absent from older files

    def _of_ancestors(self) -> Iterator[str]:
        """Warn if all chains descend from one."""
        ancestors = self.ancestors_
        if ancestors is not None and self.chains > 1 and not np.ptp(ancestors):
            yield (
                f"In burn-in all chains moved to the state of chain {ancestors[0]}, whose "
                "posterior mass was by far the largest; their agreement does not rule out other "
                "modes. Raise chains or burn_in, or use a DCC-Tree."
            )

    def cautions(self) -> Iterator[str]:
        """Report chains that disagree or all descend from one."""
        yield from self._of_ancestors()
        yield from of_chains(self)

    def summary(self) -> dict[str, Any]:
        """Summarise the fit and the agreement of chains in numbers and text of JSON types."""
        summary = super().summary()
        r_hats = [quantity["r_hat"] for quantity in self.diagnostics_.values()]
        sizes = [quantity["ess"] for quantity in self.diagnostics_.values()]
        summary |= {"largest_r_hat": finite(max(r_hats)), "least_ess": finite(min(sizes))}
        if self.ancestors_ is not None:
            summary["ancestors"] = self.ancestors_.tolist()
        return summary


@estimator
class RJHMCTreeRegressor(SoftTargets, RJHMCTree):
    """Regress by soft trees whose topology jumps (RJHMC-Tree; Cochrane et al. 2023).

    Examples
    --------
    >>> import numpy as np
    >>> from bdtppl import RJHMCTreeRegressor
    >>> X = np.linspace(0, 1, 40)[:, None]
    >>> y = np.where(X[:, 0] > 0.5, 1.0, 0.0) + 0.1 * np.sin(50 * X[:, 0])
    >>> few = {"chains": 2, "burn_in": 50, "draws": 300, "warmup": 60}
    >>> model = RJHMCTreeRegressor(max_splits=1, random_state=0, **few).fit(X, y)
    >>> model.posterior_.topologies[0].code
    '100'
    """


@estimator
class RJHMCTreeClassifier(SoftClasses, RJHMCTree):
    """Classify by soft trees whose topology jumps (RJHMC-Tree; Cochrane et al. 2023).

    Examples
    --------
    >>> import numpy as np
    >>> from bdtppl import RJHMCTreeClassifier
    >>> X = np.linspace(0, 1, 40)[:, None]
    >>> y = (X[:, 0] > 0.5).astype(int)
    >>> few = {"chains": 2, "burn_in": 50, "draws": 300, "warmup": 60}
    >>> model = RJHMCTreeClassifier(max_splits=1, random_state=0, **few).fit(X, y)
    >>> model.posterior_.topologies[0].code
    '100'
    """
