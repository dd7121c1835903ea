"""The exact posterior over decision trees (BCART-PCFG).

`ExactPosterior` joins a compiled grammar, a tree prior, a leaf family and targets, and computes
exact results: evidence, i.i.d. trees, the most probable trees, predictions, marginals.

References
----------
Sullivan, Tiwari, Thrun and Piech 2023, Bayesian Decision Trees via Tractable Priors and
Probabilistic Context-Free Grammars.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from bdtppl.inference.exact_trees import ExactTrees
from bdtppl.inference.hard.posterior import RankedTrees
from bdtppl.inference.pcfg.chart import Chart, chart_for
from bdtppl.inference.pcfg.grammar import Grammar
from bdtppl.inference.pcfg.marginal import value_and_gradient
from bdtppl.inference.pcfg.passes import (
    Semiring,
    Usage,
    derivation_entropy,
    inside,
    outside,
    score_derivations,
)
from bdtppl.inference.pcfg.paths import DEPTH_NEGLIGIBLE, ChartMixture, PathWeights
from bdtppl.inference.pcfg.ranking import rank_derivations
from bdtppl.inference.pcfg.sampling import (
    ChartChoices,
    Derivations,
    choice_probabilities,
    sample_derivations,
)
from bdtppl.inference.pcfg.sides import Sides
from bdtppl.models.arrays.bitsets import unpack
from bdtppl.models.arrays.padding import padded
from bdtppl.models.arrays.precision import as_float64, cached_in_float64, in_float64
from bdtppl.models.arrays.threads import in_threads
from bdtppl.models.hard.leaf_scores import has_whole_counts, leaf_scorer
from bdtppl.models.hard.tree import Tree
from bdtppl.models.leaf import CountTable, Leaf
from bdtppl.models.prior_kinds import TreePrior, require_weighs
from bdtppl.models.row_statistics import row_statistics

_SETS_A_PIECE = 2048  # trees written out at once
_NEGLIGIBLE_LEAF = 1e-12  # probability
_LEAVES_A_PIECE = 4096


class ExactPosterior(ExactTrees):
    """Exact posterior of hard trees on a compiled grammar.

    N subproblems, E productions, D depths (1 if depth does not matter), d features, s statistics.
    Each result is computed at its first use and cached.

    Parameters
    ----------
    grammar
        Compiled grammar of the training rows, with the prior's ``rules``.
    prior
        Tree prior.
    leaf
        Leaf family.
    y
        Targets [n], one per row of the grammar's design; class indices for classification.
    observed
        bool [n]; unobserved rows stay in the grammar but add nothing to the leaves. Default all
        observed.

    Raises
    ------
    ValueError
        If the targets do not match the rows, or the prior the grammar (`Grammar.require`).

    Examples
    --------
    >>> import numpy as np
    >>> from bdtppl.inference.pcfg.compiler import compile_grammar
    >>> from bdtppl.models.data.design import Design
    >>> from bdtppl.models.leaves import DirichletCategorical
    >>> from bdtppl.models.priors import LeafPenalty
    >>> design = Design.from_matrix(np.arange(6.0)[:, None])
    >>> exact = ExactPosterior(compile_grammar(design), LeafPenalty(2.0),
    ...     DirichletCategorical.symmetric(2), np.array([0, 0, 0, 1, 1, 1]))
    >>> round(exact.log_evidence, 3)
    -4.148
    """

    def __init__(
        self,
        grammar: Grammar,
        prior: TreePrior,
        leaf: Leaf,
        y: np.ndarray,
        observed: np.ndarray | None = None,
    ):
        y = np.asarray(y)
        if y.shape != (grammar.design.num_rows,):
            raise ValueError(
                f"y must have one entry per row, shape ({grammar.design.num_rows},); got {y.shape}."
            )
        self._check_prior(prior)
        grammar.require(prior)
        self.grammar, self.design = grammar, grammar.design
        self.constraints = grammar.constraints
        self.prior = prior.resolve(grammar.design)
        self.leaf = leaf
        self.y = y
        self.observed = np.ones(len(y), bool) if observed is None else np.asarray(observed, bool)

    def _check_prior(self, prior: TreePrior) -> None:
        require_weighs(prior, "ExactPosterior", "nodes")

    # The scored chart.

    @cached_in_float64
    def chart(self) -> Chart:
        """The grammar as device arrays, shared by all posteriors on it."""
        return chart_for(self.grammar, self.prior)

    @cached_in_float64
    def statistics(self) -> np.ndarray:
        """Statistics of every subproblem, float64 [N, s]."""
        weight = self.grammar.design.weights * self.observed
        rows = row_statistics(self.leaf, self.y, weight)
        return self.grammar.node_sums(self.grammar.cell_sums(rows))

    @cached_in_float64
    def _terms(self) -> tuple:
        """Return (prior, leaf scores, feature weights), the arguments of the passes."""
        known = self.grammar.leaf_scores  # shared by priors
        key = _key_of((self.leaf, self.y, self.observed))
        if key not in known:
            known.clear()  # they are as long as the chart, so only the last ones are cached
            known[key] = self._leaf_scores()
        return as_float64(self.prior), known[key], np.zeros(self.grammar.design.num_features)

    def _leaf_scores(self) -> jax.Array:
        """Return the log marginal of every subproblem, float64 [N padded]."""
        statistics = self.statistics
        is_whole = has_whole_counts(self.leaf, statistics)
        score = leaf_scorer(self.leaf, self.grammar.design.total_weight, is_whole=is_whole)
        if isinstance(score, CountTable):
            statistics = statistics.astype(np.int64)
        return padded(score(list(statistics.T)), len(self.chart.has_rule))

    def _inside(self, prior, scores, feature_weight, semiring: Semiring = "sum") -> jax.Array:
        return inside(self.chart, prior, scores, feature_weight, semiring)

    @cached_in_float64
    def _log_q(self) -> jax.Array:
        return self._inside(*self._terms)

    @cached_in_float64
    def _log_best(self) -> jax.Array:
        return self._inside(*self._terms, semiring="max")

    def _at_root(self, log_q: jax.Array) -> float:
        return float(np.asarray(log_q)[self.grammar.root, 0])

    @cached_in_float64
    def _usage(self) -> Usage:
        prior, scores, feature_weight = self._terms
        return outside(self.chart, prior, scores, feature_weight, self._log_q)

    @cached_in_float64
    def _choices(self) -> ChartChoices:
        prior, scores, feature_weight = self._terms
        return choice_probabilities(self.chart, prior, scores, feature_weight, self._log_q)

    @cached_property
    def _sides(self) -> Sides:
        return Sides.of(self.grammar)

    # Evidence.

    @cached_in_float64
    def log_partition(self) -> float:
        """Log of the sum over trees of prior weight times likelihood."""
        return self._at_root(self._log_q)

    @cached_in_float64
    def log_prior_normaliser(self) -> float:
        """Log of the sum over trees of the prior weight alone."""
        prior, scores, feature_weight = self._terms
        known, key = self.grammar.normalisers, _key_of(prior)  # shared by targets
        if key not in known:
            log_q = self._inside(prior, jnp.zeros_like(scores), feature_weight)
            known[key] = self._at_root(log_q)
        return known[key]

    @cached_in_float64
    def log_evidence(self) -> float:
        """Log marginal likelihood of the targets under the normalised prior."""
        _ = self._terms  # computed once for both passes
        log_partition, log_prior_normaliser = in_threads(
            lambda name: getattr(self, name),
            ("log_partition", "log_prior_normaliser"),
            self.grammar.num_productions,
        )
        return log_partition - log_prior_normaliser

    def with_model(
        self, prior: TreePrior | None = None, leaf: Leaf | None = None
    ) -> "ExactPosterior":
        """Rescore the same chart with other hyperparameters of the prior or the leaf family.

        Parameters
        ----------
        prior, leaf
            Of the same kind as before; default unchanged.
        """
        prior = self.prior if prior is None else prior
        leaf = self.leaf if leaf is None else leaf
        return type(self)(self.grammar, prior, leaf, self.y, self.observed)

    def gradient(self, part: Literal["prior", "leaf"]) -> Any:
        """Gradient of the log evidence with respect to the prior's or leaf family's parameters.

        Returns
        -------
        pytree
            As the prior or the leaf family, with gradients instead of numbers.
        """
        return self._gradients[("prior", "leaf").index(part)]

    @cached_in_float64
    def _gradients(self) -> tuple[Any, Any]:
        prior, scores, no_weight = self._terms
        statistics = padded(self.statistics, len(scores))
        _, gradients = value_and_gradient(
            self.chart, statistics, prior, as_float64(self.leaf), no_weight
        )
        return gradients

    # Marginals, by differentiation.

    @cached_property
    def production_probability(self) -> np.ndarray:
        """Probability that a tree uses each production, float64 [E]."""
        return np.asarray(self._usage.productions)[: self.grammar.num_productions]

    @cached_property
    def leaf_probability(self) -> np.ndarray:
        """Probability that a tree has each subproblem as a leaf, float64 [N]."""
        return np.asarray(self._usage.stops)[: self.grammar.num_subproblems]

    @cached_property
    def expected_splits(self) -> np.ndarray:
        """Expected number of splits on each feature, float64 [d]."""
        return np.asarray(self._usage.feature_weight)

    @in_float64
    def _log_without(self, has_targets: bool) -> np.ndarray:
        prior, scores, zeros = self._terms
        scores = scores if has_targets else jnp.zeros_like(scores)
        forbidden = np.where(np.eye(len(zeros), dtype=bool), -np.inf, zeros)
        return np.array([self._at_root(self._inside(prior, scores, own)) for own in forbidden])

    def _rule_uses(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        grammar, sides = self.grammar, self._sides
        # Every cut of a gap is a rule, and all of them are equally probable.
        num_cuts = grammar.num_cuts
        production = np.repeat(np.arange(grammar.num_productions), num_cuts)
        cut = np.arange(len(production)) - np.repeat(np.cumsum(num_cuts) - num_cuts, num_cuts)
        threshold = sides.rule_threshold(
            grammar.design, production, (cut + 0.5) / num_cuts[production]
        )
        pairs, index = np.unique(
            np.stack([sides.feature[production], threshold], axis=1), axis=0, return_inverse=True
        )
        uses = (self.production_probability / num_cuts)[production]
        expected = np.bincount(index.ravel(), uses, minlength=len(pairs))
        return pairs[:, 0], pairs[:, 1], expected

    @cached_in_float64
    def entropy(self) -> float:
        """Entropy in nats of the posterior over trees, as the prior counts trees."""
        return float(derivation_entropy(self.chart, *self._terms, self._log_q, self._usage.visits))

    # Trees.

    @in_float64
    def _k_best(self, k: int) -> RankedTrees:
        prior, scores, _ = self._terms
        derivations, log_joint = rank_derivations(
            self.grammar, self.chart, prior, scores, self._log_best, k
        )
        trees, statistics = self._trees_of([derivations]), self._slot_statistics(derivations)
        probability = np.exp(log_joint - self.log_partition)
        if not prior.counts_partitions:
            num_cuts = np.append(self.grammar.num_cuts, 1)  # last: slots without a split
            probability *= num_cuts[derivations.production].prod(axis=1, dtype=np.float64)
        return RankedTrees(trees, statistics, log_joint, probability)

    def _draw_trees(self, rng_key: jax.Array, num_draws: int) -> Tree:
        return self._trees_of(self._sample(rng_key, num_draws, lambda derivations: derivations))

    def _draw(self, rng_key: jax.Array, num_draws: int) -> tuple[Tree, Any, Any, Any]:
        def finish(derivations: Derivations):
            statistics = self._slot_statistics(derivations)
            return derivations, statistics, *self._log_joints(derivations)

        derivations, statistics, log_joint, log_likelihood = zip(
            *self._sample(rng_key, num_draws, finish), strict=True
        )
        trees = self._trees_of(derivations)
        statistics = np.concatenate(
            [np.pad(s, ((0, 0), (0, trees.capacity - s.shape[1]), (0, 0))) for s in statistics]
        )
        return trees, statistics, np.concatenate(log_joint), np.concatenate(log_likelihood)

    @in_float64
    def _sample(self, rng_key, num_draws: int, finish) -> list:
        leaves = self.expected_leaves
        return sample_derivations(
            self.chart,
            self._choices,
            rng_key,
            num_draws,
            capacity=int(2 * (leaves + 4 * np.sqrt(leaves))),
            pick_cuts=self._sides.num_cuts is not None,
            finish=finish,
        )

    def _trees_of(self, parts: Sequence[Derivations]) -> Tree:
        """Convert derivations to one batch of trees."""
        num_trees = sum(len(part.num_nodes) for part in parts)
        trees = Tree.empty(num_trees, max(part.production.shape[1] for part in parts))
        pieces, end = [], 0
        for part in parts:  # pieces that stay in the cache
            for start in range(0, len(part.num_nodes), _SETS_A_PIECE):
                piece = Derivations(*(a[start : start + _SETS_A_PIECE] for a in part))
                begin, end = end, end + len(piece.num_nodes)
                pieces.append((trees[begin:end], piece))
        in_threads(lambda piece: self._write_out(*piece), pieces, trees.feature.size)
        return trees

    def _write_out(self, trees: Tree, derivations: Derivations) -> None:
        """Convert derivations to trees, whose arrays are contiguous."""
        sides, (num_trees, num_slots) = self._sides, derivations.production.shape
        production = np.full((num_trees, trees.capacity), -1, np.int32)
        production[:, :num_slots] = derivations.production
        # Most slots have no split: look up values of splits only, and fill the rest.
        split = np.flatnonzero(production >= 0)
        used = production.reshape(-1).take(split).astype(np.intp)
        place = np.zeros(0)
        if sides.num_cuts is not None:
            place = derivations.place[np.divmod(split, trees.capacity)]
        num_splits = derivations.num_nodes // 2
        number = np.arange(len(split), dtype=np.int32)  # of the split in its tree
        number -= np.repeat((np.cumsum(num_splits) - num_splits).astype(np.int32), num_splits)

        def write(array: np.ndarray, unused: float, values: np.ndarray | None) -> None:
            array = array.reshape(-1)
            array.fill(unused)
            if values is not None:
                array[split] = values

        write(trees.feature, -1, sides.feature.take(used))
        write(trees.threshold, np.nan, sides.rule_threshold(self.grammar.design, used, place))
        has_sides = self.grammar.missing_left is not None
        write(trees.missing_left, False, sides.missing_left.take(used) if has_sides else None)
        write(trees.left, 0, 2 * number + 1)
        write(trees.right, 0, 2 * number + 2)
        trees.num_nodes[:] = derivations.num_nodes

    def _slot_nodes(self, derivations: Derivations) -> np.ndarray:
        """Return the subproblem in each slot, int32 [b, k]; -1 in unused slots."""
        production = derivations.production
        node = np.full(production.shape, -1, np.int32)
        node[:, 0] = self.grammar.root
        row, slot = np.nonzero(production >= 0)
        used, left = production[row, slot], derivations.left[row, slot]
        node[row, left] = self.grammar.left[used]
        node[row, left + 1] = self.grammar.right[used]
        return node

    def _slot_statistics(self, derivations: Derivations) -> np.ndarray:
        node = self._slot_nodes(derivations)
        return np.where(node[..., None] >= 0, self.statistics[node], 0.0)

    def _log_joints(self, derivations: Derivations) -> tuple[np.ndarray, np.ndarray]:
        """Return the log joint (as the prior counts trees) and log likelihood of each tree, [b]."""
        node = self._slot_nodes(derivations)
        production = derivations.production
        depth = np.zeros(node.shape, np.int32)
        for slot in range(production.shape[1]):
            row = np.flatnonzero(production[:, slot] >= 0)
            for child in (derivations.left[row, slot], derivations.left[row, slot] + 1):
                depth[row, child] = depth[row, slot] + 1
        prior, scores, _ = self._terms
        log_joint, log_likelihood = (
            np.asarray(total)
            for total in score_derivations(self.chart, prior, scores, node, production, depth)
        )
        return log_joint, log_likelihood

    @property
    def size(self) -> dict[str, int]:
        """Sizes of the sum, by name."""
        grammar = self.grammar
        return {"subproblems": grammar.num_subproblems, "productions": grammar.num_productions}

    @property
    def has_rule(self) -> bool:
        """Whether any tree splits."""
        return self.grammar.num_productions > 0

    @property
    def num_rules(self) -> int:
        """Rules of all subproblems."""
        return self.grammar.num_productions

    @property
    def lists_trees(self) -> bool:
        """Return whether an entry of `k_best` is one tree, and not one for each cut of a gap."""
        return self._sides.num_cuts is None

    def co_membership(self, rows: np.ndarray) -> np.ndarray:
        """Return the probability that two of the training rows [m] share a leaf, [m, m]."""
        grammar, probability = self.grammar, self.leaf_probability
        used = np.flatnonzero(probability > _NEGLIGIBLE_LEAF)
        cells, place = np.unique(grammar.cell_of_row[rows], return_inverse=True)
        total = np.zeros((len(cells), len(cells)))
        for start in range(0, len(used), _LEAVES_A_PIECE):
            some = used[start : start + _LEAVES_A_PIECE]
            members = unpack(grammar.members[some], grammar.num_cells)[:, cells].astype(float)
            total += members.T @ (probability[some, None] * members)
        return total[np.ix_(place, place)]

    # Predictions.

    @cached_property
    def _paths(self) -> PathWeights:
        grammar = self.grammar
        visits = np.asarray(self._usage.visits)[: grammar.num_subproblems].sum(axis=0)
        # No row's path is deeper than the trees.
        depths = slice(int(np.flatnonzero(visits > DEPTH_NEGLIGIBLE).max()) + 1)
        cumulative = np.asarray(self._choices.cumulative)[: grammar.num_productions, depths].T
        use = np.empty(cumulative.shape)
        np.subtract(cumulative[:, 1:], cumulative[:, :-1], out=use[:, 1:])
        starts = grammar.first_production[:-1][grammar.has_rule]
        use[:, starts] = cumulative[:, starts]
        stop = np.asarray(self._choices.stop)[: grammar.num_subproblems, depths]
        return PathWeights(grammar, self._sides, stop, use)

    def predictive(self, matrix: np.ndarray) -> ChartMixture:
        """Return the exact posterior predictive at new rows [m, d], without sampling."""
        codes = self.grammar.design.encode(matrix)
        return ChartMixture(self.leaf, self.statistics, self._paths, matrix, codes)


def _key_of(pytree: Any) -> tuple:
    """Make a key of a pytree's structure and numbers."""
    numbers, kind = jax.tree.flatten(pytree)
    arrays = [np.asarray(number) for number in numbers]
    return kind, *((array.dtype.str, array.shape, array.tobytes()) for array in arrays)
