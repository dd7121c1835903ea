"""The base of estimators that search for good trees and draw none."""

from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from bdtppl.estimators.hard import TreeEstimator
from bdtppl.inference.hard.posterior import Posterior, RankedTrees
from bdtppl.models.hard.tree import Tree


class FoundTrees(TreeEstimator):
    """The trees found, and the gain of each split of the best one.

    Attributes
    ----------
    posterior_
        The trees, the best first, stored as the draws of one chain.
    log_likelihood_gain_, log_prior_gain_
        Gain of the splits on each feature in nats, float64 [d].
    """

    probability_name = "probability among the trees found"
    draws_are = "found"

    posterior_: Posterior
    log_likelihood_gain_: np.ndarray
    log_prior_gain_: Any = 0.0  # for inferences that do not compute it

    @property
    def map_tree_(self) -> Tree:
        """Most probable tree found."""
        check_is_fitted(self)
        return self.posterior_.trees[0, 0]

    @property
    def feature_importances_(self) -> np.ndarray:
        """Share of each column of X in the total gain of the most probable tree's splits, float64.

        A split's gain is the score of its partition minus that of stopping, in nats; the attribute
        ``log_likelihood_gain_`` (plus ``log_prior_gain_``, if present) is its sum by feature.
        Negative sums, which lookahead can produce, count as 0. A category gets the gains of all its
        levels.
        """
        check_is_fitted(self)
        shares = self._shares_of_gain  # a sparse table has no categories
        return shares if self.columns_ is not None else self._shares_of_columns(shares)

    @property
    def _shares_of_gain(self) -> np.ndarray:
        """Return the share of each feature in the gain of the splits, float64 [d]."""
        gain = np.maximum(self.log_likelihood_gain_ + self.log_prior_gain_, 0)
        return gain / max(gain.sum(), np.finfo(float).tiny)

    def _most_probable(self, k: int) -> RankedTrees:
        posterior: Any = self.posterior_
        log_joint = posterior.sample_stats["log_joint"]
        parts = posterior.trees, posterior.statistics, log_joint, posterior.weights
        return RankedTrees(*(part[0, :k] for part in parts))
