"""Decision trees with their exact posterior, for classification and regression."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import jax
import numpy as np
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from bdtppl.estimators.base import require_integer
from bdtppl.estimators.hard import (
    WIDE_LEAVES,
    ClassLeaves,
    RealLeaves,
    TreeEstimator,
    require_finite,
)
from bdtppl.inference.hard.mixture import LeafMixture
from bdtppl.inference.hard.posterior import Posterior, RankedTrees
from bdtppl.inference.pcfg.budget import compile_within_budget
from bdtppl.inference.pcfg.compiler import compile_grammar
from bdtppl.inference.pcfg.exact import ExactPosterior
from bdtppl.inference.pcfg.grammar import Grammar
from bdtppl.inference.pcfg.leaf_count_posterior import exact_posterior
from bdtppl.models.constraints import Constraints
from bdtppl.models.data.design import Binning, Design
from bdtppl.models.data.schema import Schema
from bdtppl.models.hard.tree import Tree
from bdtppl.models.leaves import Leaf
from bdtppl.models.priors import (
    LeafPenalty,
    TreePrior,
    require_rules_apart,
    weighs_each_cut,
)
from bdtppl.progress import counting, waiting
from bdtppl.summary import summarised

__all__ = ["ExactTreeClassifier", "ExactTreeRegressor"]

_PARAMETERS = """

    Parameters
    ----------
    prior
        Tree prior (`bdtppl.models.priors`, or on the number of leaves
        `bdtppl.models.leaf_count_priors`); default ``LeafPenalty(2.0)``.
    leaf
        Leaf family (`bdtppl.models.leaves`); the default is {leaf}.
    bins
        Most buckets per feature; None keeps a cut between any two neighbouring distinct values;
        "auto" takes the first of None, 10, 5, 3 and 2 whose chart fits ``max_subproblems``.
    binning
        "quantile" or "uniform" (equal width) buckets.
    grid
        Instead of bins: that many evenly spaced cuts over each feature's range.
    drop_first
        Give no 0/1 column to the first level of each category.
    max_depth
        Most levels of splits; None for no limit.
    min_leaf
        Fewest rows in a leaf.
    constraints
        Further `bdtppl.models.constraints.Constraints`.{classes}
    max_subproblems
        Budget of the exact chart.
    chains, draws
        Independent draws kept in ``posterior_``, laid out as chains.
    random_state
        Seed of the draws (scikit-learn's meaning).
    progress
        Whether to show a progress bar when fitting takes longer than a second.

    Attributes
    ----------
    posterior_ : bdtppl.inference.hard.posterior.Posterior
        Draws of trees, i.i.d. from the exact posterior.
    log_evidence_ : float
        Exact log marginal likelihood under the normalised prior; ``log_evidence_se_`` is 0.
    log_partition_ : float
        Log of the sum over trees of prior weight (not normalised) times likelihood.
    map_tree_ : bdtppl.models.hard.tree.Tree
        Most probable tree, with ``map_log_joint_`` and ``map_probability_``.
    exact_ : bdtppl.inference.pcfg.exact.ExactPosterior
        The exact posterior itself: entropy, marginals, paths.
    schema_, design_
        How tables are read, and the coded training rows.
    prior_, leaf_, constraints_
        The model, defaults filled in.
    bins_
        Buckets per feature that were used.{fitted}
    n_features_in_ : int
        Columns seen at `fit`; ``feature_names_in_`` are their names if X was a frame.{notes}
"""


@dataclass
class _Fit:
    """What the chart is rebuilt from, and what has been computed on it so far."""

    design: Design
    constraints: Constraints
    prior: TreePrior
    leaf: Leaf
    y: np.ndarray
    seed: int
    chains: int
    draws: int
    max_subproblems: int

    @cached_property
    def grammar(self) -> Grammar:
        return compile_grammar(
            self.design,
            rules=self.prior.rules,
            constraints=self.constraints,
            each_cut=weighs_each_cut(self.prior),
            max_subproblems=self.max_subproblems,
        )

    @cached_property
    def exact(self) -> ExactPosterior:
        return exact_posterior(self.grammar, self.prior, self.leaf, self.y)

    @cached_property
    def posterior(self) -> Posterior:
        key = jax.random.key(self.seed)
        return self.exact.sample(key, chains=self.chains, draws=self.draws)

    @cached_property
    def best(self) -> RankedTrees:
        return self.exact.k_best(1)

    def __getstate__(self) -> dict:
        # The chart is rebuilt where it is needed: copies stay small.
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


class _ExactTree(TreeEstimator):
    """What classification and regression share."""

    draws_are = "exact"

    prior: TreePrior | None
    bins: int | Literal["auto"] | None
    binning: Binning
    grid: int | None
    max_subproblems: int
    chains: int
    draws: int
    progress: bool
    _default_leaf: Any

    def _fit(self, X: Any, y: Any, sample_weight: Any):
        prior = self._read_prior(LeafPenalty(2.0))
        for name in ("chains", "draws", "max_subproblems"):
            require_integer(name, getattr(self, name))
        schema, matrix, y, weights = self._read_training(X, y, sample_weight)
        leaf = self._default_leaf(y, weights)
        constraints = self._limits(schema)
        require_rules_apart(prior, constraints)

        def make_design(bins: int | None) -> Design:
            return Design.from_matrix(
                matrix,
                weights=weights,
                bins=bins,
                binning=self.binning,
                grid=self.grid if bins in (None, self.bins) else None,  # bins that would fit
                names=schema.features,
                is_indicator=schema.is_indicator,
            )

        if isinstance(self.bins, str) and self.bins != "auto":
            raise ValueError(f"bins must be None, 'auto' or an integer; got {self.bins!r}.")
        with counting("subproblems", shown=self.progress) as on_progress:
            grammar, bins = compile_within_budget(
                make_design,
                None if self.grid is not None and self.bins == "auto" else self.bins,
                rules=prior.rules,
                constraints=constraints,
                each_cut=weighs_each_cut(prior),
                max_subproblems=self.max_subproblems,
                on_progress=on_progress,
            )
        fit = _Fit(
            grammar.design,
            constraints,
            prior.resolve(grammar.design),
            leaf,
            y,
            self._draw_seed(),
            int(self.chains),
            int(self.draws),
            int(self.max_subproblems),
        )
        fit.grammar = grammar
        with waiting("scoring the chart", shown=self.progress):
            log_partition, log_evidence = fit.exact.log_partition, fit.exact.log_evidence
        fit.prior = fit.exact.prior  # with what is counted on the chart
        require_finite("The log evidence", log_evidence)
        self._set_fitted(schema, fit, bins)
        self.log_partition_, self.log_evidence_ = log_partition, log_evidence
        if not grammar.num_productions:
            self._warn_of_no_rule()
        return self

    def _set_fitted(self, schema: Schema, fit: _Fit, bins: int | None) -> None:
        self.schema_ = schema
        self.design_ = fit.design
        self.prior_ = fit.prior
        self.leaf_ = fit.leaf
        self.constraints_ = fit.constraints
        self.bins_ = bins
        self.log_evidence_se_ = 0.0
        self._fitted = fit

    def _saved_state(self) -> dict:
        """Hand `bdtppl.storage` what is kept beside parameters, attributes and posterior."""
        fit = self._fitted
        return {name: getattr(fit, name) for name in ("seed", "chains", "draws", "max_subproblems")}

    def _restore(self, posterior: Posterior, state: dict) -> None:
        """Take up a fit that was saved; its chart is compiled where it is needed."""
        self._fitted = _Fit(
            posterior.design,
            self.constraints_,
            posterior.prior,
            posterior.leaf,
            posterior.y,
            **state,
        )
        self._fitted.posterior = posterior

    def __sklearn_is_fitted__(self) -> bool:
        """Say whether a fit has come to its end: one that fails leaves attributes behind."""
        return "_fitted" in vars(self)

    @property
    def _result(self) -> _Fit:
        check_is_fitted(self)  # its error is an AttributeError too, as `hasattr` needs
        return self._fitted

    @property
    def _seed(self) -> int:
        return self._result.seed

    @property
    def exact_(self) -> ExactPosterior:
        """The exact posterior; its chart is compiled anew after loading or copying."""
        return self._result.exact

    @property
    def posterior_(self) -> Posterior:
        """Independent draws of trees."""
        return self._result.posterior

    @property
    def map_tree_(self) -> Tree:
        """Most probable tree."""
        return self._result.best.trees[0]

    @property
    def map_log_joint_(self) -> float:
        """Log weights of the grammar and leaf log marginals of the most probable tree, summed."""
        return float(self._result.best.log_joint[0])

    @property
    def map_probability_(self) -> float:
        """Posterior probability of the most probable tree."""
        return float(self._result.best.probability[0])

    def _mixture_at(self, matrix: np.ndarray) -> LeafMixture:
        return self.exact_.predictive(matrix)

    def k_best(self, k: int) -> RankedTrees:
        """List the k most probable trees, fewer where there are fewer.

        Parameters
        ----------
        k
            Number of trees.

        Returns
        -------
        RankedTrees
            Trees, leaf statistics, log joints and probabilities, the most probable tree first.
        """
        check_is_fitted(self)
        require_integer("k", k)
        return self.exact_.k_best(k)

    @summarised
    def summary(self) -> dict:
        """Sum the fit up in numbers and text, with JSON types alone."""
        check_is_fitted(self)
        exact, names = self.exact_, self.design_.names
        return {
            **self._describe(),
            "features": len(names),
            "bins": self.bins_,
            "subproblems": exact.grammar.num_subproblems,
            "productions": exact.grammar.num_productions,
            "log_evidence": self.log_evidence_,
            "log_partition": self.log_partition_,
            "expected_leaves": exact.expected_leaves,
            "entropy": exact.entropy,
            "map_probability": self.map_probability_,
            "map_log_joint": self.map_log_joint_,
            "map_leaves": int(self.map_tree_.num_leaves),
            "map_rules": self.rules(),
            "split_inclusion": dict(zip(names, map(float, exact.split_inclusion), strict=True)),
        }


class ExactTreeClassifier(ClassLeaves, ClassifierMixin, _ExactTree):
    """Classify by the exact posterior over decision trees (BCART-PCFG, Sullivan et al. 2023)."""

    def __init__(
        self,
        *,
        prior: TreePrior | None = None,
        leaf: Leaf | None = None,
        bins: int | None | Literal["auto"] = "auto",
        binning: Binning = "quantile",
        grid: int | None = None,
        drop_first: bool = False,
        max_depth: int | None = None,
        min_leaf: int = 1,
        constraints: Constraints | None = None,
        classes: Any = None,
        max_subproblems: int = 500_000,
        chains: int = 4,
        draws: int = 250,
        random_state: Any = None,
        progress: bool = False,
    ):
        self.prior = prior
        self.leaf = leaf
        self.bins = bins
        self.binning = binning
        self.grid = grid
        self.drop_first = drop_first
        self.max_depth = max_depth
        self.min_leaf = min_leaf
        self.constraints = constraints
        self.classes = classes
        self.max_subproblems = max_subproblems
        self.chains = chains
        self.draws = draws
        self.random_state = random_state
        self.progress = progress

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "ExactTreeClassifier":
        """Compute the exact posterior.

        Parameters
        ----------
        X
            Table [n, columns]: array, pandas or polars frame; categories and missing values are
            read.
        y
            Labels [n].
        sample_weight
            Repeat counts [n], integers of at least 0. Default 1.

        Returns
        -------
        ExactTreeClassifier
            The estimator itself.

        Raises
        ------
        ValueError
            If the data or a parameter cannot be used, or the chart outgrows ``max_subproblems``.
        """
        return self._fit(X, y, sample_weight)


class ExactTreeRegressor(RealLeaves, RegressorMixin, _ExactTree):
    """Regress by the exact posterior over decision trees (BCART-PCFG, Sullivan et al. 2023)."""

    def __init__(
        self,
        *,
        prior: TreePrior | None = None,
        leaf: Leaf | None = None,
        bins: int | None | Literal["auto"] = "auto",
        binning: Binning = "quantile",
        grid: int | None = None,
        drop_first: bool = False,
        max_depth: int | None = None,
        min_leaf: int = 1,
        constraints: Constraints | None = None,
        max_subproblems: int = 500_000,
        chains: int = 4,
        draws: int = 250,
        random_state: Any = None,
        progress: bool = False,
    ):
        self.prior = prior
        self.leaf = leaf
        self.bins = bins
        self.binning = binning
        self.grid = grid
        self.drop_first = drop_first
        self.max_depth = max_depth
        self.min_leaf = min_leaf
        self.constraints = constraints
        self.max_subproblems = max_subproblems
        self.chains = chains
        self.draws = draws
        self.random_state = random_state
        self.progress = progress

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "ExactTreeRegressor":
        """Compute the exact posterior.

        Parameters
        ----------
        X
            Table [n, columns]: array, pandas or polars frame; categories and missing values are
            read.
        y
            Real targets [n].
        sample_weight
            Repeat counts [n], integers of at least 0. Default 1.

        Returns
        -------
        ExactTreeRegressor
            The estimator itself.

        Raises
        ------
        ValueError
            If the data or a parameter cannot be used, or the chart outgrows ``max_subproblems``.
        """
        return self._fit(X, y, sample_weight)

    def __sklearn_tags__(self):
        """Say that a table of many features gets few bins, and so a coarse fit."""
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True
        return tags


ExactTreeClassifier.__doc__ = f"{ExactTreeClassifier.__doc__}{_PARAMETERS}".format(
    leaf="``DirichletCategorical`` with concentration 1 a class",
    classes="""
    classes
        All labels, where some may be absent from training.""",
    fitted="""
    classes_ : numpy.ndarray
        Labels, sorted.""",
    notes="",
)
ExactTreeRegressor.__doc__ = f"{ExactTreeRegressor.__doc__}{_PARAMETERS}".format(
    leaf="``NormalInverseGamma.from_targets``",
    classes="",
    fitted="",
    notes=f"\n\n    Notes\n    -----\n{WIDE_LEAVES}",
)
