"""Decision trees drawn by Metropolis-Hastings, for classification and regression."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Self, cast

import numpy as np
from sklearn.utils.validation import check_is_fitted

from bdtppl.estimators.base import estimator
from bdtppl.estimators.chains import agree, extensions_to, judge_chains, num_extensions
from bdtppl.estimators.hard import ClassLeaves, RealLeaves, TreeEstimator, require_finite
from bdtppl.estimators.long_fits import FansOut, RunsLong
from bdtppl.estimators.parameters import declared, made_of, parameter
from bdtppl.estimators.results import of_chains, of_evidence, of_room
from bdtppl.inference.greedy_modal.problem import pose
from bdtppl.inference.greedy_modal.tree_space import tree_space
from bdtppl.inference.hard.posterior import RankedTrees
from bdtppl.inference.metropolis.kernel import Kernel
from bdtppl.inference.metropolis.proposals import KERNELS, as_kernel
from bdtppl.inference.metropolis.sample import MetropolisChains
from bdtppl.inference.pcfg.compiler import compile_grammar
from bdtppl.inference.pcfg.leaf_count_posterior import with_num_trees
from bdtppl.models.edit_tree import EditTree
from bdtppl.models.hard.tree import Tree
from bdtppl.models.hard.tree_model import TreeModel
from bdtppl.models.leaf_count_priors import LeafCount
from bdtppl.models.prior_kinds import weighs
from bdtppl.models.priors import DepthDecay
from bdtppl.summary import summarised

_AUTO_EXTENSIONS, _MOST_ROW_STEPS = 2, 50_000_000  # about half a minute of CPU time
_AUTO_BINS = 30  # more cuts cost more a step, mix worse, and predicted no better in trials


@declared
class MetropolisParameters(RunsLong, FansOut):
    """Parameters of Metropolis-Hastings."""

    bins: int | Literal["auto"] | None = parameter(
        "auto",
        "Most buckets per feature; None keeps a cut between any two neighbouring distinct values. "
        f'"auto" means {_AUTO_BINS}, or None if a grid, start, prior or constraints name cuts.',
        option=str,
    )

    proposal: str | Mapping[str, float] | Kernel = parameter(
        "rotating",
        "How trees are proposed. "
        + "; ".join(f'"{name}" {kernel.in_words}' for name, kernel in sorted(KERNELS.items()))
        + "; a mapping from names of moves (`bdtppl.inference.metropolis.moves.MOVES`) to "
        "probabilities; or a kernel (`bdtppl.inference.metropolis.kernel.Kernel`). Under an "
        "`EditTree` leave it at its default: sequences of edits are regrown.",
        option=cast(Any, Literal)[tuple(sorted(KERNELS))],
    )
    chains: int = parameter(4, "Independent chains.", least=1)
    warmup: int = parameter(2_000, "Steps that each chain discards as warm-up.", least=0)
    draws: int = parameter(250, "Draws kept from each chain.", least=1)
    thin: int = parameter(20, "Steps per draw.", least=1)
    extensions: int | Literal["auto"] = extensions_to("the steps per draw double", "twice")
    temperatures: int | Sequence[float] = parameter(
        10,
        "Powers of the likelihood for parallel tempering of each chain: their number, or the "
        "powers themselves, rising to 1. Neighbouring powers exchange their trees. 1 means no "
        "tempering; 2 or more estimate the log evidence. If only the number is given, the powers "
        "are tuned in warm-up, so that neighbours exchange equally often.",
        option=int,
    )
    start: Literal["root", "prior", "greedy"] | Tree = parameter(
        "root",
        'Where chains start. "root" is the tree of one leaf (or the tree that the prior edits), '
        '"prior" trees grown from the prior, "greedy" the greedy modal tree; or pass a `Tree` or a '
        "batch [chains] of trees.",
        option=Literal["root", "prior", "greedy"],
    )
    capacity: int | None = parameter(
        None,
        "Most nodes of a tree; larger proposals are rejected and counted. None starts with 63 and "
        "doubles in warm-up, up to 1,023, if trees outgrow it.",
        least=1,
    )


class MetropolisTree(MetropolisParameters, TreeEstimator):
    """The inference, for any kind of target.

    Attributes
    ----------
    posterior_ : bdtppl.inference.hard.posterior.Posterior
        Draws of trees, [chains, draws].
    map_tree_ : bdtppl.models.hard.tree.Tree
        Draw with the highest log joint, with ``map_log_joint_``. Under an `EditTree` the most
        frequent tree, whose log joint is not known (NaN).
    log_evidence_, log_evidence_se_ : float
        Log marginal likelihood under the normalised prior by stepping stones, and its standard
        error. Available only if chains were tempered from power 0 and no feature is monotone.
    diagnostics_ : dict
        Rank-normalised R-hat and bulk effective sample size by quantity (the log joint, or the log
        likelihood under an `EditTree`, the number of leaves, and predictions at a few training
        rows), as ``diagnostics_["log_joint"]["r_hat"]`` and ``["ess"]``.
    acceptance_ : dict
        Share of accepted proposals after warm-up, by move, float64 [chain]; NaN for moves that were
        never proposed.
    num_overflows_ : numpy.ndarray
        int [chain]; proposals that were rejected because the tree would have outgrown ``capacity``.
    powers_, swap_rate_ : numpy.ndarray
        float64 [t] and [t - 1]; powers of the likelihood, and share of accepted exchanges with the
        next higher power.
    trajectory_, trajectory_steps_ : numpy.ndarray
        float64 [chain, record] and int [record]; log likelihood of the chains' trees, and the steps
        after which it was recorded (`bdtppl.plot_trajectories`).
    design_
        The coded training rows.
    prior_, leaf_, constraints_
        The model, with defaults filled in.
    {fitted}

    Notes
    -----
    `fit` warns (``ConvergenceWarning``) if R-hat exceeds 1.05, and names the chains that disagree.
    It also warns if chains cannot be compared (one chain, or fewer than 4 draws each), and if trees
    outgrew the capacity.

    A ``checkpoint`` is written between rounds, each of a twentieth of the steps: an unfinished
    round is lost if the fit is killed.

    References
    ----------
    Chipman, George and McCulloch 1998; Denison, Mallick and Smith 1998; Angelopoulos and Cussens
    2005, Exploiting informative priors for Bayesian classification and regression trees.
    """

    inference = "metropolis"
    in_words = (
        "Trees were drawn by Markov chains (Metropolis-Hastings) that converge to the posterior."
    )
    probability_name = "share of the draws"
    draws_are = "chains"
    default_prior = DepthDecay(0.95, 1.0)

    diagnostics_: dict[str, dict[str, float]]
    num_overflows_: np.ndarray
    powers_: np.ndarray
    trajectory_steps_: np.ndarray

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> Self:
        kernel = as_kernel(self.proposal)
        model = self._read_model(X, y, sample_weight)
        if weighs(model.prior) == "edits":
            if self.proposal != MetropolisParameters.proposal:
                raise ValueError(
                    "proposal must have its default under an EditTree, whose sequences of edits "
                    f"are regrown; got {self.proposal!r}."
                )
            kernel = None
        if isinstance(model.prior, LeafCount):  # counts trees before leaves are put in order
            unordered = replace(model.constraints, monotone=(), allows_path=None, allows_tree=None)
            grammar = compile_grammar(model.design, rules=model.prior.rules, constraints=unordered)
            model = replace(model, prior=with_num_trees(model.prior, grammar))
        rows = model.design.num_rows  # "auto" bounds the work of extensions, whatever the machine
        chains = made_of(
            self,
            MetropolisChains,
            model=model,
            kernel=kernel,
            first_trees=self._first_trees(model),
            extensions=num_extensions(self, rows, _MOST_ROW_STEPS, _AUTO_EXTENSIONS),
            agree=agree,
        )
        seed, state = self._run_to_end(chains, self._run_of(model), "Sampling trees")
        drawn = chains.result(state)
        scores = drawn.posterior.sample_stats
        what = "log_joint" if "log_joint" in scores else "log_likelihood"
        require_finite(f"The {what.replace('_', ' ')} of a tree", scores[what])
        self._keep_model(replace(model, prior=drawn.posterior.prior))
        self._random_seed = seed
        for name, value in drawn._asdict().items():
            setattr(self, f"{name}_", value)
        temper = "" if len(drawn.powers) > 1 else ", or temper the chains (temperatures=10)"
        judge_chains(self, f"Raise extensions, warmup, draws or thin{temper}, or try an ExactTree.")
        self._warn_of(of_room(self.num_overflows_, self._room))
        if drawn.posterior.trees.num_nodes.max() == 1:
            self._warn_of_no_rule()
        return self

    @property
    def _num_bins(self) -> int | None:
        """Return the most buckets of a column; a given tree has its own cuts."""
        if self.bins != "auto":
            return self.bins
        has_cuts = isinstance(self.start, Tree) or isinstance(self.prior, EditTree)
        has_cuts |= self.constraints is not None and bool(self.constraints.refused)
        return None if self.grid is not None or has_cuts else _AUTO_BINS

    def _first_trees(self, model: TreeModel) -> Tree | Literal["prior"] | None:
        if isinstance(self.start, Tree) or self.start == "prior":
            return self.start
        if self.start == "root":
            return None
        if self.start == "greedy":
            try:
                problem = pose(model)
            except ValueError as error:
                raise ValueError(f"start='greedy': {error}") from None
            return tree_space(problem)[0].tree
        raise ValueError(f"start must be 'root', 'prior', 'greedy' or a Tree; got {self.start!r}.")

    @property
    def _room(self) -> int:
        """Slots available to the trees."""
        return self.posterior_.trees.capacity

    @property
    def map_tree_(self) -> Tree:
        """Draw with the highest log joint, or the most frequent tree if none is known."""
        check_is_fitted(self)
        return self.k_best(1).trees[0]

    @property
    def map_log_joint_(self) -> float:
        """Log prior weights and leaf log marginals of ``map_tree_``, summed; NaN if unknown."""
        check_is_fitted(self)
        return float(self.posterior_.ranked.log_joint[0])

    @property
    def log_evidence_(self) -> float:
        """Log evidence by stepping stones.

        Raises
        ------
        AttributeError
            If chains were not tempered from power 0, or a feature is monotone.
        """
        self._require_stones()
        return self.posterior_.log_evidence

    @property
    def log_evidence_se_(self) -> float:
        """Standard error of ``log_evidence_``.

        Raises
        ------
        AttributeError
            If chains were not tempered from power 0, or a feature is monotone.
        """
        self._require_stones()
        return self.posterior_.log_evidence_se

    def _require_stones(self) -> None:
        check_is_fitted(self)
        if why := self._why_no_evidence():
            raise AttributeError(why)

    def _why_no_evidence(self) -> str | None:
        if self.constraints_.monotone:
            return (
                "log_evidence_ is not available under monotone constraints: which trees satisfy "
                "them depends on the targets, and so would the prior."
            )
        if self.powers_[0] != 0:
            return (
                "log_evidence_ is estimated between powers of the likelihood from 0 to 1, and the "
                "chains had no power 0: fit with temperatures=10, for example."
            )
        if np.isnan(self.posterior_.log_evidence):
            return "log_evidence_ is not available: time ran out in warm-up. Raise time_limit."
        return None

    @property
    def evidence_error(self) -> tuple[str, float]:
        """Standard error of the log evidence; 0 if there is no estimate."""
        return "log evidence", 0.0 if self._why_no_evidence() else self.log_evidence_se_

    @property
    def thrown_away(self) -> tuple[str, int]:
        """Steps of warm-up, including the draws of chains that were extended."""
        return "warm-up", int(self.trajectory_steps_[-self.posterior_.num_leaves.shape[1] - 1])

    def cautions(self) -> Iterator[str]:
        """Report chains that disagree, trees without room, and an imprecise evidence."""
        yield from of_chains(self)
        if self.num_overflows_.any():
            yield from of_room(self.num_overflows_, self._room)
        yield from of_evidence(self)

    def _most_probable(self, k: int) -> RankedTrees:
        return self.posterior_.ranked.by_rows(self.posterior_.matrix)[:k]

    @summarised
    def summary(self) -> dict:
        """Summarise the fit in numbers and text of JSON types."""
        check_is_fitted(self)
        trees, names = self.posterior_.trees.reshape(-1), self.design_.names
        inclusion = [float((trees.feature == j).any(axis=1).mean()) for j in range(len(names))]
        summary = {
            **self._describe(),
            "bins": self._num_bins,
            "chains": int(self.chains),
            "draws": int(self.posterior_.num_leaves.shape[1]),
            "distinct_trees": len(self.posterior_.ranked),
            "largest_r_hat": max(self._known("r_hat"), default=None),
            "least_ess": min(self._known("ess"), default=None),
            "expected_leaves": float(trees.num_leaves.mean()),
            "map_probability": float(self.k_best(1).probability[0]),
            "map_log_joint": None if math.isnan(self.map_log_joint_) else self.map_log_joint_,
            "map_leaves": int(self.map_tree_.num_leaves),
            "map_rules": self.rules(),
            "split_inclusion": dict(zip(names, inclusion, strict=True)),
        }
        if self._why_no_evidence() is None:
            summary["log_evidence"] = self.log_evidence_
            summary["log_evidence_se"] = self.log_evidence_se_
        return summary

    def _known(self, name: str) -> list[float]:
        """Return a diagnostic of the quantities that have one."""
        values = [each[name] for each in self.diagnostics_.values()]
        return [value for value in values if not math.isnan(value)]


@estimator
class MetropolisTreeClassifier(ClassLeaves, MetropolisTree):
    """Classify by trees drawn from their posterior by Metropolis-Hastings.

    Examples
    --------
    >>> from bdtppl import MetropolisTreeClassifier
    >>> X, y = [[1.0], [2.0], [3.0], [4.0]] * 5, ["a", "a", "b", "b"] * 5
    >>> model = MetropolisTreeClassifier(draws=1000, random_state=0).fit(X, y)
    >>> model.map_tree_.threshold[0].item()
    2.5
    """


@estimator
class MetropolisTreeRegressor(RealLeaves, MetropolisTree):
    """Regress by trees drawn from their posterior by Metropolis-Hastings.

    Examples
    --------
    >>> from bdtppl import MetropolisTreeRegressor
    >>> X, y = [[1.0], [2.0], [3.0], [4.0]] * 5, [0.0, 0.0, 9.0, 9.0] * 5
    >>> model = MetropolisTreeRegressor(draws=1000, random_state=0).fit(X, y)
    >>> model.map_tree_.threshold[0].item()
    2.5
    """
