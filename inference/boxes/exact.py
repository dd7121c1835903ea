"""The exact posterior over trees of few levels, at any number of rows.

`BoxPosterior` has the interface of `bdtppl.inference.pcfg.exact.ExactPosterior`, for trees of at
most some levels. It needs only one pass over the rows, which fills histograms; a chart costs much
more, but its trees may have any depth.

A rule in a gap between two values of a node cuts at the design's cut nearest to the middle of the
gap, so that every leaf is a box of codes; a chart cuts in the middle itself. The two differ only
for new values inside such gaps.

References
----------
Sullivan et al. 2023 (BCART-PCFG), section 5, for the recursion.
"""

from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bdtppl.inference.boxes.histograms import BoxHistograms, row_keys
from bdtppl.inference.boxes.predictive import BoxMixture, LeafList, LeafTable
from bdtppl.inference.boxes.recursion import Leaves, Recursion
from bdtppl.inference.boxes.space import BoxSpace
from bdtppl.inference.boxes.tables import BoxUsage, PriorTables
from bdtppl.inference.boxes.trees import draw_trees, rank_trees
from bdtppl.inference.boxes.weights import PriorGrid, counts_apart, facts_beyond_counts
from bdtppl.inference.draws import draw_uniforms
from bdtppl.inference.exact_trees import ExactTrees
from bdtppl.inference.hard.mixture import leaf_means
from bdtppl.inference.hard.posterior import RankedTrees
from bdtppl.models.arrays.padding import padded
from bdtppl.models.arrays.precision import as_float64, in_float64
from bdtppl.models.constraints import Constraints
from bdtppl.models.hard.tree import Tree
from bdtppl.models.leaf import Leaf
from bdtppl.models.prior_kinds import TreePrior, require_rules_apart, weighs
from bdtppl.models.row_statistics import row_statistics

_LEAST_EXPECTED = 1e-13  # expected number of a node, below which marginals omit it
_LEAST_DERIVED = 1e-10  # the same for gradients
_LENGTHS = (1 << 12, 1 << 15, 1 << 18)  # leaves in compiled functions
_OF_PRIOR = ("log_prior_normaliser", "_log_prior_q", "_weights", "prior_inclusion")


def why_no_boxes(prior: TreePrior, constraints: Constraints) -> str | None:
    """State why boxes cannot be used where a chart can; None if they can.

    Parameters
    ----------
    prior, constraints
        The model.
    """
    other = sorted(facts_beyond_counts(prior)) if weighs(prior) == "nodes" else []
    kind = type(prior).__name__
    for is_so, reason in (
        (weighs(prior) != "nodes", f"a {kind} does not weight nodes one by one"),
        (other, f"a {kind} that uses {', '.join(other)} depends on more than counts of rules"),
        (constraints.keep_together, "codes do not determine what keep_together keeps"),
        (constraints.judges_cuts, "all cuts of a feature count, and some are excluded"),
    ):
        if is_so:
            return f"Boxes cannot sum over these trees: {reason}. method='chart' can."
    return None


def _bytes_of(prior: TreePrior) -> bytes:
    return b"".join(np.asarray(number, float).tobytes() for number in jax.tree.leaves(prior))


class _Marginals(NamedTuple):
    """Results of one walk from the root down."""

    usage: list[BoxUsage]
    table: LeafTable
    leaves: LeafList | None


class BoxPosterior(ExactTrees):
    """Exact posterior of hard trees of at most some levels.

    Parameters
    ----------
    design
        `Design` of the rows, or `RowlessDesign` if histograms are given.
    prior
        Tree prior, node-wise; its weights may use counts of rules and the depth.
    leaf
        Leaf family.
    y
        Targets [n]; class indices for classification.
    max_depth
        Most levels of splits, at least 1.
    constraints
        Further limits.
    histograms
        Histograms of the rows, if they were filled elsewhere.

    Raises
    ------
    ValueError
        If the prior uses more than counts, or boxes do not support the constraints.
    """

    def __init__(
        self,
        design: Any,
        prior: TreePrior,
        leaf: Leaf,
        y: np.ndarray,
        *,
        max_depth: int,
        constraints: Constraints | None = None,
        histograms: BoxHistograms | None = None,
    ):
        constraints = Constraints() if constraints is None else constraints
        constraints.require_free_leaves("The exact posterior")
        reason = why_no_boxes(prior, constraints)
        if reason is not None:
            raise ValueError(reason)
        require_rules_apart(prior, constraints)
        self.design, self.leaf, self.y = design, leaf, np.asarray(y)
        self.constraints, self.prior = constraints, prior.resolve(design)
        self.space = BoxSpace.of(design, constraints, max_depth)
        self.grid = PriorGrid(self.space, self.prior)
        if histograms is None:
            values = row_statistics(leaf, self.y, design.weights)
            if counts_apart(leaf, design.has_weights):
                values = np.insert(values, 0, 1.0, axis=1)
            with_keys = self.grid.reads_partitions
            histograms = BoxHistograms(self.space, values.shape[1], with_keys=with_keys)
            codes = design.codes
            histograms.add(codes, values, row_keys(codes) if with_keys else None)
        self.histograms = histograms
        self.recursion = Recursion(
            design, self.space, histograms, constraints.min_leaf, self.grid, leaf
        )
        self._num_skipped = self.recursion.skipped

    def _count(self, values: np.ndarray) -> float:
        """Count the rows behind sums of their values [s], repeated by whole weights."""
        if self.recursion.most is None:  # the family's statistics do not contain it
            return float(values[0])
        of_family = values[self._num_skipped :]
        return float(of_family.sum() if self.leaf.sums_to_rows else of_family[0])

    def rows_of_slots(self, tree: Tree) -> np.ndarray:
        """Count the training rows in each slot of one tree of these boxes, float64 [k]."""
        count, boxes = np.zeros(tree.capacity), {0: {}}  # places inside, by cut feature
        for slot in range(tree.capacity):  # parents have smaller slots
            if slot not in boxes:
                continue
            box = boxes[slot]
            cells = self.histograms.over(sorted(box))
            for axis, cut in enumerate(sorted(box)):
                cells = np.compress(box[cut], cells, axis=axis)
            count[slot] = self._count(cells.reshape(-1, self.histograms.num_values).sum(axis=0))
            feature = tree.feature[slot]
            if feature >= 0:
                place = int(np.searchsorted(self.space.features, feature))
                first, end = self.design.offset[feature], self.design.offset[feature + 1]
                cuts = self.design.cut_threshold[first:end]
                if self.space.has_missing[place]:
                    cuts = np.append(cuts, np.nan)
                left = tree.split(slot).goes_left(cuts)
                for child, inside in ((tree.left, left), (tree.right, ~left)):
                    boxes[int(child[slot])] = {**box, place: box.get(place, True) & inside}
        return count

    def with_model(self, prior: TreePrior | None = None, leaf: Leaf | None = None):
        """Rescore the same boxes with other hyperparameters of the prior or the leaf family.

        Parameters
        ----------
        prior, leaf
            Of the same kind as before; default unchanged.
        """
        other = copy(self)
        if prior is not None:
            other.prior = prior.resolve(self.design)
        if leaf is not None:
            other.leaf = leaf
        # Results of the prior alone are kept if its hyperparameters do not change.
        kept = _OF_PRIOR if _bytes_of(other.prior) == _bytes_of(self.prior) else ()
        for name in list(vars(other)):
            if isinstance(getattr(type(self), name, None), cached_property) and name not in kept:
                del vars(other)[name]
        return other

    # Evidence.

    @cached_property
    def _log_q(self) -> list[np.ndarray]:
        return self.recursion.inside(self.prior, self.leaf)

    @cached_property
    def _log_best(self) -> list[np.ndarray]:
        return self.recursion.inside(self.prior, self.leaf, is_max=True)

    @cached_property
    def _weights(self) -> list[PriorTables]:
        return self.grid.tables(self.prior)

    @cached_property
    def log_partition(self) -> float:
        """Log of the sum over trees of prior weight times likelihood."""
        return float(self._log_q[0][0])

    @cached_property
    def log_prior_normaliser(self) -> float:
        """Log of the sum over trees of the prior weight alone."""
        if self.prior.is_normalised:
            return 0.0
        return float(self._log_prior_q[0][0])

    @cached_property
    def _log_prior_q(self) -> list[np.ndarray]:
        return self.recursion.inside(self.prior, None)

    @property
    def log_evidence(self) -> float:
        """Log marginal likelihood of the targets under the normalised prior."""
        return self.log_partition - self.log_prior_normaliser

    @in_float64
    def gradient(self, part: Literal["prior", "leaf"]) -> Any:
        """Return the gradient of the log evidence in the prior's or the leaf family's parameters.

        Returns
        -------
        pytree
            As the prior or the leaf family, with gradients instead of numbers.
        """
        if part == "leaf":
            return self._leaf_gradient
        _ = self._leaf_gradient
        by_prior = self._prior_gradient(self._derived_usage)
        if not self.prior.is_normalised:
            silent = self.recursion.no_usage()
            for _ in self._walk(None, self._log_prior_q, silent, _LEAST_DERIVED):
                pass
            by_prior = jax.tree.map(jnp.subtract, by_prior, self._prior_gradient(silent))
        return by_prior

    @cached_property
    def _derived_usage(self) -> list[BoxUsage]:
        return self.recursion.no_usage()

    @cached_property
    def _leaf_gradient(self) -> Any:
        """Return the gradient in the leaf family; its walk fills ``_derived_usage``."""
        return WeightedLeaves(self.prior, self.leaf, self._pieces()).gradient("leaf")

    def _pieces(self, least: float = _LEAST_DERIVED) -> Iterator[tuple]:
        for leaves in self._walk(self.leaf, self._log_q, self._derived_usage, least):
            size = len(leaves.weight)
            length = next(each for each in _LENGTHS if each >= size)
            yield padded(leaves.statistics, length), np.pad(leaves.weight, (0, length - size))

    @in_float64
    def weighted_leaves(self, least: float) -> "WeightedLeaves":
        """Return the leaves of a tree, without nodes whose expected number is small."""
        return WeightedLeaves(self.prior, self.leaf, list(self._pieces(least)))

    def _prior_gradient(self, usage: list[BoxUsage]) -> Any:
        split = np.stack([each.split for each in usage])
        stop = np.stack([each.stop for each in usage])
        # Every split of the last level has two leaves below it.
        stop = np.vstack([stop, np.zeros_like(stop[:1])])
        stop[-1, 0] = 2 * usage[-1].split.sum()
        return self.grid.gradient(self.prior, split, stop)

    # Marginals.

    def _walk(
        self, leaf: Leaf | None, log_q: list[np.ndarray], usage: list[BoxUsage], least: float
    ) -> Iterator[Leaves]:
        """Yield leaves with the statistics of the family."""
        for leaves in self.recursion.outside(self.prior, leaf, log_q, usage, least=least):
            yield leaves._replace(statistics=leaves.statistics[:, self._num_skipped :])

    @cached_property
    @in_float64
    def _marginals(self) -> _Marginals:
        layout = self.histograms.layout
        table, parts, usage = None, [], self.recursion.no_usage()
        for leaves in self._walk(self.leaf, self._log_q, usage, _LEAST_EXPECTED):
            means = leaf_means(self.leaf, leaves.statistics).reshape(len(leaves.weight), -1)
            if table is None:
                table = LeafTable(layout, means.shape[1] + 1)
            values = np.column_stack([means, np.ones(len(means))]) * leaves.weight[:, None]
            table.add(leaves, values)
            if self.leaf.task == "regression":
                parts.append(leaves)
        assert table is not None  # the root is a leaf of some tree
        return _Marginals(usage, table.finish(), LeafList(parts, layout) if parts else None)

    @cached_property
    def leaves(self) -> LeafList:
        """Return the leaves of greatest probability."""
        if self._marginals.leaves is not None:
            return self._marginals.leaves
        parts = self._walk(self.leaf, self._log_q, self.recursion.no_usage(), _LEAST_EXPECTED)
        return LeafList(parts, self.histograms.layout)

    @property
    def expected_splits(self) -> np.ndarray:
        """Expected number of splits on each feature, float64 [d of the design]."""
        return self._on_features(sum(each.cuts.sum(axis=1) for each in self._marginals.usage))

    def _on_features(self, values: Any) -> np.ndarray:
        """Spread values of usable features over those of the design."""
        result = np.zeros(self.design.num_features)
        result[self.space.features] = values
        return result

    def _log_without(self, has_targets: bool) -> np.ndarray:
        leaf = self.leaf if has_targets else None
        total = self.log_partition if has_targets else self.log_prior_normaliser
        result = np.full(self.design.num_features, total)  # no tree uses the others
        for place, feature in enumerate(self.space.features):
            result[feature] = self.recursion.inside(self.prior, leaf, without=place)[0][0]
        return result

    def _rule_uses(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        expected = np.sum([each.cuts for each in self._marginals.usage], axis=0)
        place, cut = np.nonzero(expected)
        feature = self.space.features[place]
        threshold = self.design.cut_threshold[self.design.offset[feature] + cut]
        return feature, threshold, expected[place, cut]

    @property
    def entropy(self) -> float:
        """Entropy in nats of the posterior over trees, as the prior counts trees."""
        return float(sum(each.entropy[0] for each in self._marginals.usage))

    # Trees.

    def _k_best(self, k: int) -> RankedTrees:
        counts_partitions = bool(self.prior.counts_partitions)
        best = rank_trees(
            self.recursion,
            self._weights,
            self.leaf,
            self._log_best,
            k,
            counts_partitions=counts_partitions,
            num_skipped=self._num_skipped,
        )
        probability = np.exp(best.log_joint - self.log_partition)
        if not counts_partitions:
            probability *= best.num_cuts
        return RankedTrees(best.trees, best.statistics, best.log_joint, probability)

    def _draw(self, rng_key: jax.Array, num_draws: int) -> tuple[Tree, Any, Any, Any]:
        uniform = draw_uniforms(rng_key, (num_draws, 2**self.space.num_levels - 1, 2))
        model = self._weights, self.leaf, self._log_q
        return draw_trees(self.recursion, *model, uniform, self._num_skipped)[:4]

    # Predictions.

    def predictive(self, matrix: np.ndarray) -> BoxMixture:
        """Exact posterior predictive at new rows [m, d], without sampling."""
        codes = self.design.encode(matrix)
        found = self._marginals.table.at(codes)
        mean = found[:, :-1] / found[:, -1:]
        if self.leaf.task == "regression":
            mean = mean[:, 0]
        return BoxMixture(self.leaf, mean, codes, lambda: self.leaves)

    @property
    def size(self) -> dict[str, int]:
        """Sizes of the sum, by name."""
        return {"boxes": int(sum(np.isfinite(level).sum() for level in self._log_q))}

    @property
    def has_rule(self) -> bool:
        """Whether any tree splits."""
        below = self._log_q[1] if len(self._log_q) > 1 else np.zeros(1)
        [root] = self.recursion.expand(self._weights[0], self.leaf, below, 0, [0])
        return len(root.rules.feature) > 0

    @property
    def num_rules(self) -> int:
        """Rules in all boxes, at most."""
        return int(self.space.num_scores)

    @property
    def lists_trees(self) -> bool:
        """Return whether an entry of `k_best` is one tree, and not one for each cut of a gap."""
        return not self.grid.each_cut

    def co_membership(self, rows: np.ndarray) -> np.ndarray:
        """Return the probability that two of the training rows [m] share a leaf, [m, m]."""
        return self.leaves.shared(self.design.codes[rows])


@dataclass(frozen=True, eq=False)
class WeightedLeaves:
    """Leaves of fixed weights, in place of a posterior: the M-step of EM is `empirical_bayes`.

    Attributes
    ----------
    prior, leaf
        The model.
    pieces
        Statistics and weights of leaves.
    """

    prior: TreePrior
    leaf: Leaf
    pieces: Iterable[tuple]

    def with_model(self, **model: Any) -> "WeightedLeaves":
        """Score the same leaves with other hyperparameters."""
        return replace(self, **model)

    @cached_property
    def _derived(self) -> tuple[Any, Any]:
        some = (_derived(as_float64(self.leaf), *piece) for piece in self.pieces)
        return jax.tree.map(lambda *each: sum(each), *some)

    @property
    def log_evidence(self) -> float:
        """Expected log likelihood."""
        return float(self._derived[0])

    def gradient(self, part: Literal["leaf"]) -> Any:
        """Return the gradient of the expected log likelihood in the leaf family's parameters."""
        return self._derived[1]


@jax.jit
def _derived(leaf: Leaf, statistics: jax.Array, weight: jax.Array) -> tuple[Any, Any]:
    return jax.value_and_grad(lambda leaf: (weight * leaf.log_marginal(statistics)).sum())(leaf)
