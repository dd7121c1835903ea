"""The base of estimators whose posterior is weighted draws, from particles or a policy."""

from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from bdtppl.estimators.hard import TreeEstimator
from bdtppl.inference.hard.posterior import Posterior, RankedTrees
from bdtppl.inference.statistics import effective_sample_size
from bdtppl.models.hard.tree import Tree
from bdtppl.summary import summarised


class WeightedTrees(TreeEstimator):
    """Evidence, most probable trees and summary of weighted draws.

    Attributes
    ----------
    log_partition_
        Estimate of the log of the sum over trees of prior weight times likelihood.
    """

    probability_name = "estimated posterior probability"

    posterior_: Posterior
    log_partition_: float
    log_partition_se_: float

    @property
    def log_evidence_(self) -> float:
        """Estimate of the log marginal likelihood.

        Raises
        ------
        AttributeError
            If the prior is not normalised.
        """
        return self._of_evidence("log_evidence")

    @property
    def log_evidence_se_(self) -> float:
        """Standard error of the log evidence, NaN for one run."""
        return self._of_evidence("log_evidence_se")

    def _of_evidence(self, name: str) -> float:
        check_is_fitted(self)
        if not self.prior_.is_normalised:
            raise AttributeError(
                f"{name}_ requires a prior whose weights sum to 1 (DepthDecay or Program); with a "
                f"{type(self.prior_).__name__} use log_partition_."
            )
        return getattr(self.posterior_, name)

    @property
    def evidence_error(self) -> tuple[str, float]:
        """Standard error of the log evidence, or of the log of the sum over trees."""
        if self.prior_.is_normalised:
            return "log evidence", self.log_evidence_se_
        return "log of the sum over trees", self.log_partition_se_

    @property
    def _effective_size(self) -> float:
        return effective_sample_size(self.posterior_.weights)

    @property
    def _found(self) -> RankedTrees:
        """Return the distinct trees found, the most probable first."""
        check_is_fitted(self)
        return self.posterior_.ranked

    @property
    def map_tree_(self) -> Tree:
        """Most probable tree found."""
        return self._found.trees[0]

    @property
    def map_log_joint_(self) -> float:
        """Sum of the prior's log weights and leaf log marginals of that tree."""
        return float(self._found.log_joint[0])

    def _most_probable(self, k: int) -> RankedTrees:
        """List trees by joints over the estimated total, or the total of those found if larger.

        The probabilities of trees that differ only by cuts inside gaps are summed.
        """
        trees, total = self._found, self.log_partition_
        if self.prior_.counts_partitions:  # each rule of a partition carries its full weight
            trees = trees.by_rows(self.posterior_.matrix)[:k]
            return replace(trees, probability=np.exp(trees.log_joint - total))
        total = max(total, np.logaddexp.reduce(trees.log_joint))
        trees = replace(trees, probability=np.exp(trees.log_joint - total))
        return trees.by_rows(self.posterior_.matrix)[:k]

    @summarised
    def summary(self) -> dict[str, Any]:
        """Summarise the fit in numbers and text of JSON types."""
        check_is_fitted(self)
        ranked, names = self._found, self.design_.names
        weights, trees = ranked.probability, ranked.trees
        uses = (trees.feature[..., None] == np.arange(len(names))).any(axis=1)
        is_known = self.prior_.is_normalised
        error = self.log_evidence_se_ if is_known else np.nan
        return {
            **self._describe(),
            "bins": self.bins,
            "effective_size": self._effective_size,
            "trees": len(weights),
            "log_evidence": self.log_evidence_ if is_known else None,
            "log_evidence_se": None if np.isnan(error) else error,
            "log_partition": self.log_partition_,
            "expected_leaves": float(weights @ trees.num_leaves),
            "map_probability": float(self.k_best(1).probability[0]),
            "map_log_joint": self.map_log_joint_,
            "map_leaves": int(self.map_tree_.num_leaves),
            "map_rules": self.rules(),
            "split_inclusion": dict(zip(names, map(float, weights @ uses), strict=True)),
        }
