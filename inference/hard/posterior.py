"""The result of every inference over hard trees: weighted draws with predictions and diagnostics.

A posterior stores draws of trees on chain and draw axes, the sufficient statistics of the training
rows in every node, and the log evidence if the inference computes it. Leaf parameters are
integrated out: all results on the targets follow from the statistics and the leaf family.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import jax
import numpy as np
from scipy.sparse import csr_array

from bdtppl.inference.draws import draw_targets
from bdtppl.inference.hard.drawn_classes import DrawnClasses
from bdtppl.inference.hard.mixture import LeafMixture
from bdtppl.inference.hard.partitions import group, group_by_leaves, group_by_rows
from bdtppl.inference.statistics import systematic_resampling
from bdtppl.models.arrays.distinct_rows import distinct_rows
from bdtppl.models.data.design import Design
from bdtppl.models.hard.tree import Tree, route
from bdtppl.models.hard.tree_model import TreeModel
from bdtppl.models.leaf import Leaf
from bdtppl.models.leaves import DirichletCategorical


@dataclass(frozen=True, eq=False, repr=False)
class RankedTrees:
    """Trees in order of posterior probability; k slots, s statistics.

    Attributes
    ----------
    trees
        `Tree` batch [rank], the most probable first.
    statistics
        float64 [rank, k, s]; statistics of the training rows in each slot.
    log_joint
        float64 [rank]; sum of the prior's log weights and leaf log marginals.
    probability
        float64 [rank]; posterior probability. If trees that differ only by cuts inside gaps of rows
        are one entry, it is that of all of them, and the log joint is that of one.
    """

    trees: Tree
    statistics: np.ndarray
    log_joint: np.ndarray
    probability: np.ndarray

    @classmethod
    def joined(cls, parts: Sequence["RankedTrees"]) -> "RankedTrees":
        """Join lists, of trees of any capacities, one after the other."""
        trees = Tree.concatenate([part.trees for part in parts])

        def grown(values: np.ndarray) -> np.ndarray:
            return np.pad(values, ((0, 0), (0, trees.capacity - values.shape[1]), (0, 0)))

        return cls(
            trees,
            np.concatenate([grown(part.statistics) for part in parts]),
            np.concatenate([part.log_joint for part in parts]),
            np.concatenate([part.probability for part in parts]),
        )

    def by_rows(self, matrix: np.ndarray) -> "RankedTrees":
        """Keep the first of trees that split rows [n, d] alike, with the probability of all.

        They keep their order, or are ordered by probability if no log joint is known.
        """
        first, index = group_by_rows(self.trees, matrix)
        of_all = np.bincount(index, self.probability)
        is_known = not np.isnan(self.log_joint).any()
        order = np.argsort(first) if is_known else np.lexsort((first, -of_all))
        return replace(self[first[order]], probability=of_all[order])

    def by_leaves(self, matrix: np.ndarray) -> "RankedTrees":
        """Keep the first of trees whose leaves contain the same rows [n, d], with their sum.

        They are ordered by total probability.
        """
        first, index = group_by_leaves(self.trees, matrix)
        of_all = np.bincount(index, self.probability)
        order = np.lexsort((first, -of_all))
        return replace(self[first[order]], probability=of_all[order])

    def __repr__(self) -> str:
        shown = ", ".join(f"{p:.3g}" for p in self.probability[:5])
        more = ", ..." if len(self.probability) > 5 else ""
        return f"RankedTrees({len(self.probability)} trees, probability [{shown}{more}])"

    def __len__(self) -> int:
        return len(self.probability)

    def __getitem__(self, ranks: slice | np.ndarray) -> "RankedTrees":
        return RankedTrees(
            self.trees[ranks],
            self.statistics[ranks],
            self.log_joint[ranks],
            self.probability[ranks],
        )

    def __iter__(self) -> Iterator[Tree]:
        return (self.trees[rank] for rank in range(len(self)))


@dataclass(frozen=True, eq=False)
class Posterior:
    """Weighted draws of hard trees; k slots, s statistics.

    Attributes
    ----------
    trees
        `Tree` batch [chain, draw].
    statistics
        float64 [chain, draw, k, s]; statistics of the training rows in each slot.
    sample_stats
        Per-draw numbers [chain, draw] under shared names (``log_joint``, ``log_likelihood``,
        ``num_leaves``, ``max_leaf_depth``, ...).
    leaf, prior
        The model.
    design
        The training rows.
    y
        Targets [n]; class indices for classification.
    log_evidence, log_evidence_se
        Log evidence under the normalised prior and its standard error (0 if exact).
    log_weights
        float64 [chain, draw], or None for equal weights.
    smoothing
        Share of a row that its leaf's prior absorbs for each level of splits above the leaf.
    """

    trees: Tree
    statistics: np.ndarray
    sample_stats: Mapping[str, np.ndarray]
    leaf: Leaf
    prior: Any
    design: Design
    y: np.ndarray
    log_evidence: float
    log_evidence_se: float = 0.0
    log_weights: np.ndarray | None = None
    smoothing: float = 0.0

    has_pointwise_likelihood: ClassVar[bool] = True  # unlike some soft trees

    @classmethod
    def of(
        cls,
        model: TreeModel,
        trees: Tree,
        statistics: np.ndarray,
        *,
        log_evidence: float = np.nan,
        log_evidence_se: float = np.nan,
        log_weights: np.ndarray | None = None,
        smoothing: float = 0.0,
        **sample_stats: np.ndarray,
    ) -> "Posterior":
        """Collect draws of a model.

        Parameters
        ----------
        model
            The model.
        trees
            `Tree` batch [chain, draw].
        statistics
            float64 [..., k, s]; statistics of the training rows in each slot, draws in order.
        log_evidence, log_evidence_se, log_weights, smoothing
            See `Posterior`.
        **sample_stats
            Numbers of the draws, chain after chain; those that follow from the trees are added.
        """
        size = trees.batch_shape
        stats = {name: np.asarray(values).reshape(size) for name, values in sample_stats.items()}
        return cls(
            trees=trees,
            statistics=statistics.reshape(*size, *statistics.shape[-2:]),
            sample_stats=stats | {"num_leaves": trees.num_leaves, "max_leaf_depth": trees.depth},
            leaf=model.leaf,
            prior=model.prior.resolve(model.design),
            design=model.design,
            y=model.y,
            log_evidence=float(log_evidence),
            log_evidence_se=float(log_evidence_se),
            log_weights=log_weights,
            smoothing=smoothing,
        )

    @property
    def matrix(self) -> np.ndarray:
        """Values of the training rows, float64 [n, d]."""
        return self.design.matrix

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the features, [d]."""
        return self.design.names

    @property
    def num_leaves(self) -> np.ndarray:
        """Leaves of each draw, int [chain, draw]."""
        return self.trees.num_leaves

    @property
    def expected_splits(self) -> np.ndarray:
        """Expected number of splits on each feature, float64 [d]."""
        feature, weight = self.trees.feature, self.weights[..., None]
        is_split = feature >= 0
        weights = np.broadcast_to(weight, feature.shape)[is_split]
        return np.bincount(feature[is_split], weights, minlength=len(self.names))

    @property
    def bytes_a_row(self) -> int:
        """Bytes per row in temporary arrays of predictions, for each draw and its leaf."""
        return (10 + self.statistics.shape[-1]) * 8 * self.trees.num_nodes.size

    @property
    def row_weights(self) -> np.ndarray:
        """Weights of the training rows, [n]."""
        return self.design.weights

    @cached_property
    def weights(self) -> np.ndarray:
        """Normalised weights of the draws, float64 [chain, draw]."""
        shape = self.trees.batch_shape
        if self.log_weights is None:
            return np.full(shape, 1 / np.prod(shape))
        weights = np.exp(self.log_weights - self.log_weights.max())
        return weights / weights.sum()

    @cached_property
    def distinct(self) -> tuple[np.ndarray, np.ndarray]:
        """First draw of each distinct tree, int [tree], and the tree of each draw [chain, draw].

        Trees that differ only in the order of their slots are one.
        """
        trees = self.trees.reshape(-1)
        first, tree = group(trees, trees.threshold)
        return first, tree.reshape(self.trees.batch_shape)

    @cached_property
    def structures(self) -> tuple[np.ndarray, np.ndarray]:
        """Like `distinct`, but trees that differ only by cuts inside gaps of rows are one.

        The first draw of each is the first among those with the highest log joint.
        """
        return self._joined(group_by_rows)

    @cached_property
    def partitions(self) -> tuple[np.ndarray, np.ndarray]:
        """Like `structures`, but trees whose leaves contain the same training rows are one."""
        return self._joined(group_by_leaves)

    def _joined(self, group_trees: Callable) -> tuple[np.ndarray, np.ndarray]:
        first, tree = self.distinct
        _, index = group_trees(self.trees.reshape(-1)[first], self.matrix)
        best = np.lexsort((first, -self.scores(first)))
        _, chosen = np.unique(index[best], return_index=True)
        return first[best[chosen]], index[tree]

    def scores(self, draws: np.ndarray, name: str = "log_joint") -> np.ndarray:
        """Return a sample statistic of some draws, NaN if it is not known."""
        if name not in self.sample_stats:
            return np.full(len(draws), np.nan)
        return self.sample_stats[name].ravel()[draws]

    @cached_property
    def ranked(self) -> RankedTrees:
        """Return the distinct trees among the draws by log joint, with probabilities of the draws.

        Draws without a log joint (trees edited at random) are ranked by probability, then by log
        likelihood, and their log joint is NaN. See `distinct`.
        """
        first, tree = self.distinct
        probability = np.bincount(tree.ravel(), self.weights.ravel())
        log_joint = self.scores(first)
        is_known = not np.isnan(log_joint).any()
        likelihood = -self.scores(first, "log_likelihood")
        best = np.lexsort((first, -log_joint) if is_known else (first, likelihood, -probability))
        return self.listed(first[best], probability[best])

    def listed(self, draws: Any, probability: np.ndarray) -> RankedTrees:
        """List the trees of some draws, in their order, with these probabilities."""
        statistics = self.statistics.reshape(-1, *self.statistics.shape[2:])[draws]
        return RankedTrees(
            self.trees.reshape(-1)[draws], statistics, self.scores(draws), probability
        )

    def with_drawn_classes(self, rng_key: jax.Array) -> "Posterior":
        """Draw the class probabilities of each draw's leaves; see `DrawnClasses`.

        Raises
        ------
        TypeError
            If the leaf family is not a `DirichletCategorical`.
        """
        if not isinstance(self.leaf, DirichletCategorical):
            kind = type(self.leaf).__name__
            raise TypeError(f"leaf must be a DirichletCategorical for drawn leaves; got a {kind}.")
        leaf: Any = DrawnClasses(self.leaf)
        return replace(self, leaf=leaf, statistics=leaf.draw(rng_key, self.statistics))

    def predictive(self, matrix: np.ndarray, *, by_draw: bool = False) -> LeafMixture:
        """Return the mixture over the draws of the leaves that rows [m, d] reach.

        Parameters
        ----------
        matrix
            Rows.
        by_draw
            Whether equal trees keep separate statistics, as for drawn leaves.
        """
        weights = self.weights.ravel()
        ranked = self.listed(np.arange(len(weights)), weights) if by_draw else self.ranked
        num_trees, capacity = ranked.statistics.shape[:2]
        # Rows that reach the same leaves of all trees are of one kind.
        leaves = route(ranked.trees, matrix).T
        first, kind = distinct_rows(leaves)
        entries = (leaves[first] + np.arange(num_trees) * capacity).ravel()
        weights = np.tile(ranked.probability, len(first))
        pointers = np.arange(len(first) + 1) * num_trees
        return LeafMixture(
            self.leaf,
            ranked.statistics.reshape(num_trees * capacity, -1),
            csr_array((weights, entries, pointers), (len(first), num_trees * capacity)),
            kind,
        )

    def resampled(self, seed: int, *, chains: int = 4, draws: int = 250) -> "Posterior":
        """Draw equally weighted trees from the weighted ones, by systematic resampling.

        Parameters
        ----------
        seed
            Seed of the resampling.
        chains, draws
            Layout of the draws; their order is random.
        """
        chosen = systematic_resampling(seed, self.weights.ravel(), chains * draws)
        chosen = chosen.reshape(chains, draws)

        def take(values: np.ndarray) -> np.ndarray:
            return values.reshape(-1, *values.shape[2:])[chosen]

        return replace(
            self,
            trees=self.trees.reshape(-1)[chosen],
            statistics=take(self.statistics),
            sample_stats={name: take(values) for name, values in self.sample_stats.items()},
            log_weights=None,
        )

    def leaf_statistics(self, matrix: np.ndarray) -> np.ndarray:
        """Return statistics of the leaves that rows reach, float64 [chain, draw, m, s]."""
        slots = route(self.trees, matrix)
        return np.take_along_axis(self.statistics, slots[..., None], axis=2)

    def means(self, matrix: np.ndarray) -> np.ndarray:
        """Return means of a new target in the leaves that rows reach, [chain, draw, m].

        Class probabilities [chain, draw, m, c] if targets are classes.
        """
        with jax.enable_x64(True):
            return np.asarray(self.leaf.posterior_mean(self.leaf_statistics(matrix)))

    def mean(self, matrix: np.ndarray) -> np.ndarray:
        """Return the posterior mean of a new target at rows, [m], or probabilities, [m, c]."""
        return np.tensordot(self.weights, self.means(matrix), axes=2)

    def sample_predictive(self, rng_key: jax.Array, matrix: np.ndarray) -> np.ndarray:
        """Draw one new target per draw and row, [chain, draw, m]."""
        return draw_targets(rng_key, self.leaf, self.leaf_statistics(matrix))

    def log_likelihood(self) -> np.ndarray:
        """Return the pointwise log likelihood of the training rows, float64 [chain, draw, n].

        With the leaf parameters integrated out, a row's log likelihood given a tree and all other
        rows is log m(leaf) - log m(leaf without the row), which makes leave-one-out estimates
        right. A share of the row that the leaf's prior absorbed is left out, too. The likelihood is
        raised to the power of the row's weight, and the row is left out with its full weight.
        """
        with jax.enable_x64(True):
            own = np.asarray(self.leaf.statistics(self.y, self.row_weights.astype(float)))
            statistics = self.leaf_statistics(self.matrix)
            if self.smoothing:
                slots = route(self.trees, self.matrix)
                depth = np.take_along_axis(self.trees.node_depth, slots, axis=2)
                statistics = statistics - self.smoothing * depth[..., None] * own
            return np.asarray(
                self.leaf.log_marginal(statistics) - self.leaf.log_marginal(statistics - own)
            )
