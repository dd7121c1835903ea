"""The interface of exact posteriors over hard trees, however they sum over trees."""

from functools import cached_property
from typing import Any, ClassVar

import jax
import numpy as np

from bdtppl.inference.hard.posterior import Posterior, RankedTrees
from bdtppl.models.constraints import Constraints
from bdtppl.models.hard.tree import Tree
from bdtppl.models.hard.tree_model import TreeModel
from bdtppl.models.leaf import Leaf
from bdtppl.models.prior_kinds import TreePrior


class ExactTrees:
    """An exact posterior of hard trees; d features of the design.

    Attributes
    ----------
    prior, leaf, y
        The model: prior with its hyperparameters resolved, leaf family, targets [n].
    """

    bytes_a_row: ClassVar[int] = 0  # mixtures use little but codes, and divide rows by their kinds

    prior: TreePrior
    leaf: Leaf
    y: np.ndarray
    design: Any
    constraints: Constraints
    log_evidence: Any
    log_partition: Any
    log_prior_normaliser: Any
    expected_splits: Any

    _k_best: Any  # takes a number of at least 1; returns `RankedTrees`
    _draw: Any  # takes a key and b; returns trees [b], statistics, log joints, log likelihoods
    _log_without: Any  # takes whether there are targets; returns log sums without each feature, [d]
    _rule_uses: Any  # returns features, thresholds and expected numbers of uses of rules

    @property
    def expected_leaves(self) -> float:
        """Expected number of leaves."""
        return 1 + float(self.expected_splits.sum())

    @cached_property
    def split_inclusion(self) -> np.ndarray:
        """Return the probability that a tree splits on each feature at all, float64 [d].

        This is one minus the share of the sum over trees that remains without the feature.
        """
        return _less_share(self._log_without(True), self.log_partition)

    @cached_property
    def prior_inclusion(self) -> np.ndarray:
        """Return the probability that a tree of the prior splits on each feature, float64 [d]."""
        return _less_share(self._log_without(False), self.log_prior_normaliser)

    def rule_inclusion(self) -> list[tuple[int, float, float]]:
        """List rules with their expected number of uses, as (feature, threshold, expectation).

        Rules are in order of expectation; those that no posterior tree uses are omitted. If a tree
        can use a rule only once, the expectation is a probability.
        """
        feature, threshold, uses = self._rule_uses()
        order = np.argsort(-uses, kind="stable")
        return [(int(feature[i]), float(threshold[i]), float(uses[i])) for i in order if uses[i]]

    def k_best(self, k: int) -> RankedTrees:
        """List the k trees of greatest posterior probability, or all if there are fewer.

        Under a prior that counts partitions, entries are partitions with their full weight. Trees
        that differ only by the cut inside a gap are one entry, ranked by the log joint of one such
        tree, with the probability of all.

        Parameters
        ----------
        k
            Number of trees.

        Raises
        ------
        ValueError
            If k is less than 1.
        """
        if k < 1:
            raise ValueError(f"k must be at least 1; got {k}.")
        return self._k_best(k)

    def sample_trees(self, rng_key: jax.Array, num_draws: int) -> Tree:
        """Draw trees i.i.d. from the posterior, a batch [num_draws]."""
        _require_draws(num_draws)
        return self._draw_trees(rng_key, num_draws)

    def _draw_trees(self, rng_key: jax.Array, num_draws: int) -> Tree:
        return self._draw(rng_key, num_draws)[0]

    def sample(self, rng_key: jax.Array, *, chains: int = 4, draws: int = 250) -> Posterior:
        """Draw trees i.i.d. from the posterior, with statistics for predictions and diagnostics.

        The draws are independent; they are arranged in chains for diagnostics.
        """
        _require_draws(chains * draws)
        trees, statistics, log_joint, log_likelihood = self._draw(rng_key, chains * draws)
        return Posterior.of(
            TreeModel(self.design, self.y, self.prior, self.leaf, self.constraints),
            trees.reshape(chains, draws),
            statistics,
            log_evidence=self.log_evidence,
            log_evidence_se=0.0,
            log_joint=log_joint,
            log_likelihood=log_likelihood,
        )


def _less_share(log_part: np.ndarray, log_whole: float) -> np.ndarray:
    """Return one minus the share of parts in a sum; up to rounding, no part exceeds the sum."""
    return 0.0 - np.expm1(np.minimum(log_part - log_whole, 0.0))


def _require_draws(number: int) -> None:
    if number < 1:
        raise ValueError(f"At least one draw is needed; got {number}.")
