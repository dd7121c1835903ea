"""Decision trees drawn by a trained policy: generative flow networks."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Self, cast

import jax
import numpy as np
from sklearn.utils.validation import check_is_fitted

from bdtppl.estimators.base import estimator
from bdtppl.estimators.hard import ClassLeaves, RealLeaves
from bdtppl.estimators.long_fits import RunsLong, time_limit
from bdtppl.estimators.parameters import declared, parameter
from bdtppl.estimators.results import of_evidence, of_weights
from bdtppl.estimators.weighted import WeightedTrees
from bdtppl.inference.evidence.estimates import LARGEST_PARETO_K, pareto_k
from bdtppl.inference.gflownet import grammar_training, training
from bdtppl.inference.gflownet.construction import MOST_SPLITS
from bdtppl.inference.gflownet.ensembles import Ensemble, reweighted
from bdtppl.inference.gflownet.methods import Amortisation, Flows, Policies, key_of_use
from bdtppl.inference.hard.posterior import RankedTrees
from bdtppl.models.hard.tree_model import TreeModel
from bdtppl.models.leaves import DirichletCategorical
from bdtppl.models.priors import DescriptionLength

MethodName = Literal["grammar", "trajectory"]

_METHODS: dict[str, tuple[Any, type, int]] = {
    "grammar": (Flows, grammar_training.GrammarSettings, 300),
    "trajectory": (Policies, training.PolicySettings, 2000),
}
LARGEST_GAP = 0.25  # nats between the learned log Z and the estimate by weights


@declared
class GFlowNetParameters(RunsLong):
    """Parameters of generative flow networks."""

    time_limit: float | None = time_limit(120.0)

    bins: int | None = parameter(None, "Instead of ``grid``: most buckets per feature.", option=str)
    grid: int | None = parameter(
        99,
        "Number of evenly spaced cuts over each feature's range; None for a cut between any two "
        "neighbouring distinct values.",
        least=1,
    )
    max_depth: int | None = parameter(
        4,
        "Most levels of splits. (The paper counts levels of nodes, one more.) Without a limit, "
        "which the grammar needs, trees have at most 15 splits.",
        least=0,
    )
    method: MethodName = parameter(
        "grammar",
        "How the network is trained. "
        '"grammar" learns the flow through each set of rows at a depth, by local balance; '
        '"trajectory" a policy that builds trees split by split, by the balance of trajectories '
        "(DT-GFN).",
    )
    steps: int | None = parameter(
        None,
        "Steps of training; None is 300 for the grammar and 2,000 for trajectories.",
        least=1,
        is_of_run=False,
    )
    settings: Any = parameter(
        None,
        "All other settings of training: a "
        "`bdtppl.inference.gflownet.grammar_training.GrammarSettings`, or "
        "`bdtppl.inference.gflownet.training.PolicySettings` of the other methods, whose "
        "``num_steps`` is replaced by ``steps``.",
        option=False,
    )
    tolerance: float | None = parameter(
        None,
        "Difference of log Z at which training ends early, checked every 100 steps. If trees make "
        "at most 50,000 sets of rows, it is the gap between the upper and lower bounds of log Z "
        "(the sum of both Kullback-Leibler divergences). Otherwise it is the larger of two terms: "
        "the log of the number of draws over their effective sample size, and the error of the "
        "learned log Z against its estimate by the weights.",
        above=0,
        is_of_run=False,
    )
    ensemble: Ensemble = parameter(
        "importance",
        'How draws are weighted in predictions: "importance" by their importance weights, "mean" '
        'equally, "distinct" each distinct tree by its posterior probability, or "algorithm-1" '
        "each draw by its posterior probability, the paper's Algorithm 1 to the letter (which "
        "counts the posterior twice).",
        is_of_run=False,
    )
    chains: int = parameter(
        4, "Number of chains in which the draws are arranged.", least=1, is_of_run=False
    )
    draws: int = parameter(250, "Draws of each chain.", least=1, is_of_run=False)


class GFlowNetTree(GFlowNetParameters, WeightedTrees):
    """The inference, for any kind of target.

    Attributes
    ----------
    posterior_ : bdtppl.inference.hard.posterior.Posterior
        Independent draws from the policy with the weights of the ensemble, [chains, draws].
    log_partition_, log_partition_se_ : float
        Estimate of the log of the sum over trees of prior weight times likelihood, by importance
        sampling, and its standard error.
    lower_bound_ : float
        Mean log importance weight (ELBO), at most ``log_partition_`` on average.
    learned_log_partition_ : float
        The network's own estimate of the same number.
    log_evidence_, log_evidence_se_ : float
        Log marginal likelihood; absent if the prior is not normalised or without ``max_depth``.
    effective_size_ : float
        Effective sample size of the importance weights, out of chains times draws.
    pareto_k_ : float
        Shape of the largest importance weights; above 0.7, standard errors are not reliable.
    history_ : dict
        Diagnostics reported by training, by name: float64 [steps] each.
    map_tree_ : bdtppl.models.hard.tree.Tree
        Most probable tree found, with ``map_log_joint_``: drawn, met in training, or found by a
        search along the learned flows (``best_tree_``, with ``best_log_joint_`` and its rows by
        slot, ``best_statistics_``).
    design_
        The coded training rows.
    prior_, leaf_, constraints_
        The model, with defaults filled in.
    {fitted}

    Warns
    -----
    ConvergenceWarning
        If the learned log Z and its estimate by the weights differ by more than a quarter of a nat,
        which shows parts of the posterior that the policy never draws; or if ``pareto_k_`` is above
        0.7.

    References
    ----------
    Mahfoud et al. 2025, Learning Decision Trees as Amortized Structure Inference (DT-GFN);
    Sullivan et al. 2023, section 7, for the grammar.
    """

    inference = "gflownet"
    in_words = (
        "Trees were drawn by a policy trained to draw from the posterior (generative flow network, "
        "DT-GFN 2025), and weighted by importance weights."
    )
    default_prior = DescriptionLength()
    default_concentration = 0.1  # for each class: the paper's
    pareto_k_: float = np.nan  # NaN in models from older files

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> Self:
        self._check()
        target = self._read_model(X, y, sample_weight)
        target = replace(target, prior=target.prior.resolve(target.design))
        self._keep_model(target)
        design, constraints = target.design, target.constraints
        method = self._method(target)
        seed, state = self._run_to_end(method, self._run_of(target), "Training")
        key, learner = key_of_use(jax.random.key(seed), "draws"), method.result(state)
        drawn = method.draw(key, learner, self.chains, self.draws)
        best = method.best(learner)
        self.best_tree_, self.best_statistics_ = best.trees[0], best.statistics[0]
        self.best_log_joint_ = float(best.log_joint[0])
        self.history_ = state.history
        self.learned_log_partition_ = method.log_partition(learner)
        self.log_partition_ = drawn.log_partition
        self.log_partition_se_ = drawn.log_partition_se
        self.lower_bound_ = drawn.lower_bound
        self.effective_size_ = drawn.effective_size
        self.pareto_k_ = pareto_k(cast(np.ndarray, drawn.posterior.log_weights))
        posterior = reweighted(drawn.posterior, self.ensemble)
        most_splits = design.num_rows // constraints.min_leaf - 1
        if (
            constraints.max_depth is None and most_splits > MOST_SPLITS
        ):  # the prior allows larger trees
            posterior = replace(posterior, log_evidence=np.nan, log_evidence_se=np.nan)
        self._restore(posterior, {"seed": seed})
        self._warn_of(self._doubts())
        return self

    def _doubts(self) -> Iterator[str]:
        """Describe where the policy does not match the posterior yet.

        Trees that the policy never draws affect neither the weights nor their standard error, so
        the learned log Z serves as a second estimate.
        """
        if self.pareto_k_ > LARGEST_PARETO_K:
            yield (
                "Few trees carry most of the weight (effective sample size "
                f"{self.effective_size_:.0f}, Pareto k {self.pareto_k_:.2f}, above "
                f"{LARGEST_PARETO_K}): the error of the estimates is unknown. Raise steps or "
                "draws, or train by tolerance."
            )
        learned = self.learned_log_partition_
        if abs(learned - self.log_partition_) > LARGEST_GAP:
            yield (
                f"The log of the sum over trees is {learned:.2f} as learned and "
                f"{self.log_partition_:.2f} by the weights of the trees drawn. The policy does not "
                "match the posterior yet, and trees that it never draws do not affect the weights: "
                "train longer."
            )

    def _of_evidence(self, name: str) -> float:
        check_is_fitted(self)
        if np.isnan(self.posterior_.log_evidence) and self.prior_.is_normalised:
            raise AttributeError(
                f"{name}_ is not known without max_depth: trees have at most {MOST_SPLITS} splits, "
                "and log_partition_ lacks the contribution of larger ones."
            )
        return super()._of_evidence(name)

    @property
    def _found(self) -> RankedTrees:
        """Return the distinct trees drawn, led by the best of training if it is better."""
        drawn = super()._found
        if self.best_log_joint_ <= drawn.log_joint[0] + 1e-9:
            return drawn
        best = RankedTrees(
            self.best_tree_.reshape(1),
            self.best_statistics_[None],
            np.array([self.best_log_joint_]),
            np.zeros(1),
        )
        return RankedTrees.joined([best, drawn])

    def _check(self) -> None:
        """Check parameters that the inference does not check."""
        _, kind, _ = _METHODS[self.method]
        if self.settings is not None and not isinstance(self.settings, kind):
            raise TypeError(
                f"settings must be a {kind.__module__}.{kind.__name__} for "
                f"method={self.method!r}; got {type(self.settings).__name__}."
            )

    def _method(self, target: TreeModel) -> Amortisation:
        """Return the training method."""
        method, kind, steps = _METHODS[self.method]
        steps = steps if self.steps is None else int(self.steps)
        falls = {"decay_steps": steps} if self.method == "grammar" else {}
        settings = kind(**falls) if self.settings is None else self.settings
        return method(target, settings, steps, self.tolerance)

    @property
    def has_importance_weights(self) -> bool:
        """Whether the draws keep their importance weights."""
        return self.ensemble == "importance"

    def cautions(self) -> Iterator[str]:
        """Describe where the policy does not match the posterior, or weights are uneven."""
        yield from of_weights(self.summary()["effective_size"])
        yield from self._doubts()
        yield from of_evidence(self)

    def summary(self) -> dict[str, Any]:
        """Summarise the fit in numbers and text of JSON types."""
        return super().summary() | {
            "method": self.method,
            "steps": len(self.history_["loss"]),
            "effective_size": self.effective_size_,
            "learned_log_partition": self.learned_log_partition_,
            "lower_bound": self.lower_bound_,
        }


@declared
class GFlowNetClassParameters:
    """Parameters of GFlowNets of class labels."""

    leaves: Literal["integrated", "drawn"] = parameter(
        "integrated",
        'Predictions of the leaves: with class probabilities integrated out, or "drawn" from their '
        "posterior for each leaf of each draw (section 4.2). Intervals, rules, figures and exports "
        "always integrate them out.",
        is_last=True,
        is_of_run=False,
    )


class GFlowNetClasses(GFlowNetClassParameters, ClassLeaves):
    """Leaves of class labels, which may be drawn."""

    posterior_: Any
    _seed: int

    def _check(self) -> None:
        cast(Any, super())._check()
        if self.leaves == "drawn" and not isinstance(self.leaf, DirichletCategorical | None):
            raise TypeError(
                f"leaf must be a DirichletCategorical, or None, for leaves='drawn'; got "
                f"{type(self.leaf).__name__}."
            )

    @property
    def _predictive(self) -> Any:
        if self.leaves == "integrated":
            return cast(Any, super())._predictive
        key = key_of_use(jax.random.key(self._seed), "leaves")
        drawn = self.posterior_.with_drawn_classes(key)
        return partial(drawn.predictive, by_draw=True), drawn.bytes_a_row


@estimator
class GFlowNetTreeClassifier(GFlowNetClasses, GFlowNetTree):
    """Classify by decision trees that a trained policy draws (DT-GFN, and the grammar's flows).

    Examples
    --------
    >>> from bdtppl import GFlowNetTreeClassifier
    >>> X, y = [[1.0], [2.0], [3.0], [4.0]] * 5, ["a", "a", "b", "b"] * 5
    >>> model = GFlowNetTreeClassifier(grid=3, max_depth=1, steps=5, random_state=0).fit(X, y)
    >>> model.map_tree_.num_leaves.item()
    2
    """


@estimator
class GFlowNetTreeRegressor(RealLeaves, GFlowNetTree):
    """Regress by decision trees that a trained policy draws (DT-GFN, and the grammar's flows).

    Examples
    --------
    >>> from bdtppl import GFlowNetTreeRegressor
    >>> X, y = [[1.0], [2.0], [3.0], [4.0]] * 5, [0.0, 0.0, 9.0, 9.0] * 5
    >>> model = GFlowNetTreeRegressor(grid=3, max_depth=1, steps=5, random_state=0).fit(X, y)
    >>> model.map_tree_.num_leaves.item()
    2
    """
