"""Decision trees with their exact posterior, for classification and regression."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Self

import jax
import numpy as np
from sklearn.utils.validation import check_is_fitted

from bdtppl.estimators.base import ShowsProgress, estimator
from bdtppl.estimators.hard import ClassLeaves, RealLeaves, TreeEstimator, require_finite
from bdtppl.estimators.parameters import declared, parameter, require_integer
from bdtppl.inference.hard.mixture import LeafMixture
from bdtppl.inference.hard.posterior import Posterior, RankedTrees
from bdtppl.inference.pcfg.budget import compile_within_budget
from bdtppl.inference.pcfg.compiler import compile_grammar
from bdtppl.inference.pcfg.exact import ExactPosterior
from bdtppl.inference.pcfg.grammar import Grammar
from bdtppl.inference.pcfg.leaf_count_posterior import exact_posterior
from bdtppl.models.constraints import Constraints
from bdtppl.models.data.design import Design
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


@dataclass
class _Fit:
    """Inputs to rebuild the chart, and cached results."""

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


_FEWEST_BINS = 5


@declared
class ExactParameters(ShowsProgress):
    """Parameters of the exact posterior."""

    bins: int | Literal["auto"] | None = parameter(
        "auto",
        "Most buckets per feature; None keeps a cut between any two neighbouring distinct values; "
        '"auto" takes the first of None, 10, 5, 3 and 2 whose chart fits ``max_subproblems``.',
        option=str,
    )
    max_subproblems: int = parameter(500_000, "Budget of the exact chart.", least=1)
    chains: int = parameter(4, "Chains that the independent draws are laid out as.", least=1)
    draws: int = parameter(250, "Draws of each chain.", least=1)


class ExactTree(ExactParameters, TreeEstimator):
    """The inference, for any kind of target."""

    inference = "exact"
    in_words = (
        "The posterior is exact: sums over all trees of the grammar of subproblems (Sullivan et "
        "al. 2023). Nothing in the evidence, the probabilities and the predictions is estimated."
    )
    draws_are = "exact"
    default_prior = LeafPenalty(2.0)

    _documentation = """
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
    design_
        The coded training rows.
    prior_, leaf_, constraints_
        The model, defaults filled in.
    bins_
        Buckets per feature that were used.
    {fitted}

    {wide_notes}
    """

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> Self:
        if isinstance(self.bins, str) and self.bins != "auto":
            raise ValueError(f"bins must be None, 'auto' or an integer; got {self.bins!r}.")
        prior = self._read_prior()
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
        self._warn_of_no_cut(schema, grammar.design)
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
        """Restore a saved fit; its chart is compiled where it is needed."""
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

    def cautions(self) -> Iterator[str]:
        """Say where columns were cut coarsely."""
        if self.bins == "auto" and self.bins_ is not None and self.bins_ < _FEWEST_BINS:
            yield (
                f"Columns were cut into at most {self.bins_} bins so that all trees could be "
                f"summed over: finer cuts were not considered."
            )

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


@estimator
class ExactTreeClassifier(ClassLeaves, ExactTree):
    """Classify by the exact posterior over decision trees (BCART-PCFG, Sullivan et al. 2023)."""


@estimator
class ExactTreeRegressor(RealLeaves, ExactTree):
    """Regress by the exact posterior over decision trees (BCART-PCFG, Sullivan et al. 2023)."""

    def __sklearn_tags__(self):
        """Say that a table of many features gets few bins, and so a coarse fit."""
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True
        return tags
