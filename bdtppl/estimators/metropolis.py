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

_AUTO_EXTENSIONS, _MOST_ROW_STEPS = 2, 50_000_000  # half a minute of the processor, about
_AUTO_BINS = 30  # more cuts cost more a step and mix worse, and predicted no better where tried


@declared
class MetropolisParameters(RunsLong, FansOut):
    """Parameters of Metropolis-Hastings."""

    bins: int | Literal["auto"] | None = parameter(
        "auto",
        "Most buckets per feature; None keeps a cut between any two neighbouring distinct values. "
        f'"auto" is for {_AUTO_BINS}, or None where a grid, start, prior or constraints name cuts.',
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
    warmup: int = parameter(2_000, "Steps of each chain that are thrown away.", least=0)
    draws: int = parameter(250, "Draws of each chain that are kept.", least=1)
    thin: int = parameter(20, "Steps to each draw.", least=1)
    extensions: int | Literal["auto"] = extensions_to("the steps to each draw double", "twice")
    temperatures: int | Sequence[float] = parameter(
        10,
        "Powers of the likelihood that each chain walks under; 2 or more estimate the log evidence."
        " Parallel tempering: how many, or the powers themselves, rising to 1. They exchange their "
        "trees. 1 for no tempering. Where only their number is given, the powers are tuned in "
        "warm-up, so that neighbours exchange equally often.",
        option=int,
    )
    start: Literal["root", "prior", "greedy"] | Tree = parameter(
        "root",
        'Where chains start. "root" is for the tree of one leaf (or that which the prior edits), '
        '"prior" for trees grown from the prior, "greedy" for the greedy modal tree, a `Tree`, or '
        "a batch [chains] of trees.",
        option=Literal["root", "prior", "greedy"],
    )
    capacity: int | None = parameter(
        None,
        "Most nodes of a tree; what would be larger is not proposed, and counted. None for 63 at "
        "first, doubled in warm-up where trees find no room, up to 1,023.",
        least=1,
    )


class MetropolisTree(MetropolisParameters, TreeEstimator):
    """The inference, for any kind of target.

    Attributes
    ----------
    posterior_ : bdtppl.inference.hard.posterior.Posterior
        Draws of trees, [chains, draws].
    map_tree_ : bdtppl.models.hard.tree.Tree
        Draw of the highest log joint, with ``map_log_joint_``. Under an `EditTree` the tree drawn
        most often, whose log joint is not known (NaN).
    log_evidence_, log_evidence_se_ : float
        Log marginal likelihood under the normalised prior by stepping stones, and its standard
        error. Only where chains were tempered from power 0 on, and no feature is monotone.
    diagnostics_ : dict
        Rank-normalised R-hat and bulk effective sample size by quantity (the log joint, or the log
        likelihood under an `EditTree`, the number of leaves, and predictions at a few training
        rows), as ``diagnostics_["log_joint"]["r_hat"]`` and ``["ess"]``.
    acceptance_ : dict
        Share of the proposals that were accepted after warm-up, by move, float64 [chain]; NaN for
        moves that were never proposed.
    num_overflows_ : numpy.ndarray
        int [chain]; proposals that were rejected because the tree would have outgrown ``capacity``.
    powers_, swap_rate_ : numpy.ndarray
        float64 [t] and [t - 1]; powers of the likelihood, and share of the exchanges with the next
        higher one that were accepted.
    trajectory_, trajectory_steps_ : numpy.ndarray
        float64 [chain, record] and int [record]; log likelihood of the chains' trees after so many
        steps, from the first one on (`bdtppl.plot_trajectories`).
    design_
        The coded training rows.
    prior_, leaf_, constraints_
        The model, defaults filled in.
    {fitted}

    Notes
    -----
    `fit` warns (``ConvergenceWarning``) where R-hat exceeds 1.05, and says which chains disagree
    with the others; where chains cannot be compared, as one chain or chains of fewer than 4 draws
    cannot; and where trees outgrew the capacity.

    A ``checkpoint`` is written between rounds, each of a twentieth of the steps: what a round has
    done so far is lost where the fit is killed.

    References
    ----------
    Chipman, George and McCulloch 1998; Denison, Mallick and Smith 1998; Angelopoulos and Cussens
    2005, Exploiting informative priors for Bayesian classification and regression trees.
    """

    inference = "metropolis"
    in_words = (
        "Trees were drawn by Markov chains (Metropolis-Hastings) whose law is the posterior in the "
        "long run."
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
                    f"proposal must be left at its default under an EditTree, whose sequences of "
                    f"edits are regrown; got {self.proposal!r}."
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
        """Most buckets of a column; a given tree has cuts of its own."""
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
        """Slots that the trees had."""
        return self.posterior_.trees.capacity

    @property
    def map_tree_(self) -> Tree:
        """Draw of the highest log joint, or the tree drawn most often where none is known."""
        check_is_fitted(self)
        return self.k_best(1).trees[0]

    @property
    def map_log_joint_(self) -> float:
        """Log weights of the grammar and leaf log marginals of ``map_tree_``; NaN if not known."""
        check_is_fitted(self)
        return float(self.posterior_.ranked.log_joint[0])

    @property
    def log_evidence_(self) -> float:
        """Log evidence by stepping stones.

        Raises
        ------
        AttributeError
            If chains were not tempered from power 0 on, or a feature is monotone.
        """
        self._require_stones()
        return self.posterior_.log_evidence

    @property
    def log_evidence_se_(self) -> float:
        """Standard error of ``log_evidence_``.

        Raises
        ------
        AttributeError
            If chains were not tempered from power 0 on, or a feature is monotone.
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
                "There is no log_evidence_ under monotone constraints: which trees keep to them "
                "depends on the targets, and so would the prior."
            )
        if self.powers_[0] != 0:
            return (
                "log_evidence_ is estimated between powers of the likelihood from 0 to 1, and the "
                "chains had no power 0: fit with temperatures=10, say."
            )
        if np.isnan(self.posterior_.log_evidence):
            return "There is no log_evidence_: time was over in warm-up. Raise time_limit."
        return None

    @property
    def evidence_error(self) -> tuple[str, float]:
        """Standard error of the log evidence; 0 where there is no estimate."""
        return "log evidence", 0.0 if self._why_no_evidence() else self.log_evidence_se_

    @property
    def thrown_away(self) -> tuple[str, int]:
        """Steps of warm-up, draws of chains that went on among them."""
        return "warm-up", int(self.trajectory_steps_[-self.posterior_.num_leaves.shape[1] - 1])

    def cautions(self) -> Iterator[str]:
        """Say where chains disagree, trees found no room, or the evidence is rough."""
        yield from of_chains(self)
        if self.num_overflows_.any():
            yield from of_room(self.num_overflows_, self._room)
        yield from of_evidence(self)

    def _most_probable(self, k: int) -> RankedTrees:
        return self.posterior_.ranked.by_rows(self.posterior_.matrix)[:k]

    @summarised
    def summary(self) -> dict:
        """Sum the fit up in numbers and text, with JSON types alone."""
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
        """Values of a diagnostic for the quantities that have one."""
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
