"""Look-up tables of the recursion over boxes: a prior's weights by counts, and leaf scores.

A prior's own methods tabulate its weights, for all values of the counts that they use, so every
prior that uses counts alone works without code for it here.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bdtppl.inference.boxes.space import BoxSpace
from bdtppl.inference.boxes.tables import LeafTables, PriorTables
from bdtppl.models.arrays.precision import as_float64, in_float64
from bdtppl.models.leaf import Leaf
from bdtppl.models.leaf_kernels import LeafKernel, has_kernel
from bdtppl.models.prior_kinds import Node, Rule, TreePrior
from bdtppl.models.prior_weights import log_weights, weigh

_NODE_COUNTS = {"log_num_features"}
_RULE_COUNTS = ("log_num_cuts", "log_num_feature_cuts", "log_num_equivalent")
_MOST_WEIGHTS = 20_000_000


def facts_beyond_counts(prior: TreePrior) -> set[str]:
    """Return names of a prior's facts other than counts of rules, widths of gaps and depth."""
    known = {*_RULE_COUNTS, "log_width_share"}
    return ({*prior.node_facts} - _NODE_COUNTS) | ({*prior.rule_facts} - known)


def _largest_counts(space: BoxSpace, prior: TreePrior) -> dict[str, int]:
    """Return one more than the largest value of each count that a prior uses, and 1 for others.

    Entry 0 of a used count stays empty, so that counts are places.
    """
    cuts = (space.num_codes - 1) * (1 + space.has_missing.astype(np.int64))
    most = {
        "log_num_features": space.num_features,
        "log_num_cuts": int(space.num_codes.max()) - 1 if prior.rules == "cuts" else 1,
        "log_num_feature_cuts": int(np.bincount(space.column, cuts).max()),
        "log_num_equivalent": int(cuts.sum()),
    }
    read = {*prior.node_facts, *prior.rule_facts}
    if prior.rules == "cuts":
        read.add("log_num_cuts")
    return {name: max(count, 1) + 1 if name in read else 1 for name, count in most.items()}


def num_weights(space: BoxSpace, prior: TreePrior) -> float:
    """Count the weights that `PriorGrid` tabulates."""
    places = math.prod(_largest_counts(space, prior).values())
    return float(space.num_levels * space.num_features * places)


class PriorGrid:
    """All counts that a prior may have on boxes, and its weights there; d features.

    Parameters
    ----------
    space
        The boxes.
    prior
        A resolved prior that uses counts alone; those of `tables` may have other hyperparameters.

    Raises
    ------
    ValueError
        If the table of its weights would be too large.
    """

    def __init__(self, space: BoxSpace, prior: TreePrior):
        self.space = space
        self.each_cut = prior.rules == "cuts"
        self.reads_width = "log_width_share" in prior.rule_facts
        most = _largest_counts(space, prior)
        self.shape = shape = (space.num_levels, space.num_features, *most.values())
        if num_weights(space, prior) > _MOST_WEIGHTS:
            raise ValueError(
                f"The weights of a {type(prior).__name__} on {space.num_features} features of up "
                f"to {space.num_codes.max() - 1} cuts are too many to tabulate; use fewer bins."
            )
        places = np.indices(shape, dtype=np.int32).reshape(len(shape), -1)
        logs = dict(zip(most, np.log(np.maximum(places[2:], 1)), strict=True))
        facts = {name: logs[name] for name in _RULE_COUNTS if most[name] > 1}
        if self.reads_width:
            facts["log_width_share"] = np.zeros(places.shape[1])
        self._node = Node(
            places[0].astype(float),
            np.ones(places.shape[1], bool),
            log_num_features=logs["log_num_features"],
        )
        self._rule = Rule(space.features.astype(np.int32)[places[1]], **facts)
        # Nodes can only stop at the root of a table without rules, and below the last level.
        depth, count = np.indices((space.num_levels + 1, space.num_features + 1))
        self._stop_shape = depth.shape
        has_rule = (count > 0) & (depth < space.num_levels)
        self._stops = Node(
            depth.ravel().astype(float),
            has_rule.ravel(),
            log_num_features=np.log(np.maximum(count.ravel(), 1)),
        )
        steps = np.ones(len(shape), np.int64)
        steps[:-1] = np.cumprod(shape[:0:-1])[::-1]
        self._steps = np.where(np.array(shape) > 1, steps, 0)[1:]

    def tables(self, prior: TreePrior, without: int | None = None) -> list[PriorTables]:
        """Tabulate a prior's weights on each level.

        Parameters
        ----------
        prior
            The prior.
        without
            Place of a feature whose rules get no weight, though they are counted.
        """
        split, rule = weigh(prior, self._node, self._rule, wanted=("split", "rule"))
        (stop,) = weigh(prior, self._stops, None, wanted=("stop",))
        levels = self.space.num_levels
        split, rule = split.reshape(levels, -1), rule.reshape(levels, -1)
        stop = stop.reshape(self._stop_shape)
        feature_weight = np.zeros(self.space.num_features)
        if without is not None:
            feature_weight[without] = -np.inf
        return [
            PriorTables(
                np.ascontiguousarray(split[level]),
                np.ascontiguousarray(rule[level]),
                np.ascontiguousarray(stop[level]),
                float(stop[levels, 0]),
                self._steps,
                self.reads_width,
                self.reads_partitions,
                feature_weight,
            )
            for level in range(levels)
        ]

    @property
    def reads_partitions(self) -> bool:
        """Whether rules that make the same partition are counted."""
        return self._rule.log_num_equivalent is not None

    @in_float64
    def gradient(self, prior: TreePrior, split: np.ndarray, stop: np.ndarray) -> Any:
        """Differentiate the sum of weights times expected uses with respect to the prior's numbers.

        Parameters
        ----------
        prior
            The prior.
        split, stop
            Expected uses of the weights on each level, [levels, ...] and [levels + 1, d + 1].

        Returns
        -------
        pytree
            As the prior, with gradients.
        """

        def total(prior: Any) -> Any:
            (weights,) = log_weights(prior, self._node, self._rule, wanted=("split",))
            (stops,) = log_weights(prior, self._stops, None, wanted=("stop",))
            used, stopped = jnp.asarray(split.ravel()), jnp.asarray(stop.ravel())
            expected = jnp.where(used > 0, used * jnp.where(used > 0, weights, 0.0), 0.0).sum()
            return expected + jnp.where(stopped > 0, stopped * stops, 0.0).sum()

        return jax.grad(total)(as_float64(prior))


def counts_apart(leaf: Leaf, has_weights: bool) -> bool:
    """Return whether rows are counted separately, because their statistics lack their number."""
    return has_weights or not has_kernel(leaf)


def leaf_tables(leaf: Leaf, most: int | None, skipped: int) -> LeafTables:
    """Tabulate inputs of scores for leaves of up to some weight; None if none are compiled."""
    given = np.zeros((0, 0, 0, 0))
    kernel = LeafKernel(0, np.zeros((1, 1)), np.zeros(1))
    if most is not None:
        kernel = LeafKernel.of(leaf, most)
    sums_to_rows = skipped == 0 and leaf.sums_to_rows
    return LeafTables(*kernel, skipped, sums_to_rows, False, 0, np.zeros(0), given, given)
