"""The exact posterior over decision trees under a prior on their number of leaves.

`LeafCountPosterior` is `ExactPosterior` on a chart with an axis of leaf counts
(`bdtppl.inference.pcfg.leaf_count`). It also provides the posterior of the number of leaves and the
best tree of each number.
"""

from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from bdtppl.inference.hard.posterior import RankedTrees
from bdtppl.inference.pcfg.chart import chart_for
from bdtppl.inference.pcfg.exact import ExactPosterior
from bdtppl.inference.pcfg.grammar import Grammar
from bdtppl.inference.pcfg.leaf_count import (
    LeafCountUsage,
    Weights,
    draw_with_leaf_counts,
    inside_by_leaves,
    leaf_count_choices,
    log_leaves,
    outside_by_leaves,
    without_facts,
)
from bdtppl.inference.pcfg.passes import Semiring
from bdtppl.inference.pcfg.paths import SampledPaths
from bdtppl.inference.pcfg.sampling import ChartChoices, Derivations
from bdtppl.models.arrays.padding import padded_size
from bdtppl.models.arrays.precision import as_float64, cached_in_float64, in_float64
from bdtppl.models.leaf import Leaf
from bdtppl.models.leaf_count_priors import LeafCount, LeafCountPrior
from bdtppl.models.prior_kinds import TreePrior, TreeShape, require_weighs, weighs

_MOST_ENTRIES = 1 << 29  # entries of the largest table, 4 GiB
_CHUNK = 4096  # trees drawn at once, and trees that predict new rows


def exact_posterior(
    grammar: Grammar, prior: TreePrior, leaf: Leaf, y: np.ndarray
) -> ExactPosterior:
    """Make the exact posterior for a prior of any kind; see `ExactPosterior`."""
    kinds: dict[Any, Any] = {"nodes": ExactPosterior, "leaf counts": LeafCountPosterior}
    require_weighs(prior, "The exact posterior", *kinds)
    return kinds[weighs(prior)](grammar, prior, leaf, y)


@in_float64
def with_num_trees(prior: LeafCount, grammar: Grammar) -> LeafCount:
    """Fill a prior with the counts of a grammar's trees by their numbers of leaves.

    Parameters
    ----------
    prior
        The prior.
    grammar
        Compiled grammar of the training rows, with the prior's ``rules``.

    Raises
    ------
    ValueError
        If the table of leaf counts would be too large.

    Examples
    --------
    >>> import numpy as np
    >>> from bdtppl.inference.pcfg.compiler import compile_grammar
    >>> from bdtppl.models.data.design import Design
    >>> grammar = compile_grammar(Design.from_matrix(np.arange(4.0)[:, None]))
    >>> prior = with_num_trees(LeafCount(2.0, max_leaves=5), grammar)
    >>> np.exp(prior.log_num_trees).round(6).tolist()  # the last one: no tree has 5 leaves
    [1.0, 3.0, 6.0, 5.0, 0.0]
    """
    _check_size(grammar, prior)
    chart = chart_for(grammar, cast(Any, prior))
    weights, _ = Weights.of(chart, as_float64(prior), np.zeros(grammar.design.num_features))
    log_q = inside_by_leaves(without_facts(chart), weights, np.zeros(len(chart.has_rule)), "sum")
    counts = np.array(log_q[grammar.root, 0])
    return LeafCount(prior.rate, counts, max_leaves=prior.max_leaves, rules=prior.rules)


def _check_size(grammar: Grammar, prior: LeafCountPrior) -> None:
    size = max(grammar.num_subproblems, grammar.num_productions, 1)
    if prior.depends_on_depth or grammar.depth_limit < grammar.height[-1]:
        size *= max(8, padded_size(grammar.depth_limit + 1))
    if size * prior.max_leaves > _MOST_ENTRIES:
        raise ValueError(
            f"{grammar.num_productions:,} ways to split sets of rows, with up to "
            f"{prior.max_leaves} leaves, need a table of "
            f"{size * prior.max_leaves / 2**27:,.1f} GiB, more than the "
            f"{_MOST_ENTRIES / 2**27:.1f} GiB there may be: about max_leaves="
            f"{_MOST_ENTRIES // size} would fit, or fewer bins or a larger min_leaf."
        )


@jax.jit
def _count_terms(prior: LeafCountPrior, production: jax.Array, left: jax.Array) -> jax.Array:
    """Return log weights of the numbers of leaves of trees [b, k]; unused slots count as leaves."""
    is_split = production >= 0

    def one(is_split, left):
        return prior.log_tree(TreeShape(~is_split, is_split, left, left + 1, None, None))

    return jax.vmap(one)(is_split, left)


class LeafCountPosterior(ExactPosterior):
    """Exact posterior of hard trees under a prior on the number of leaves.

    K is the prior's ``max_leaves``. Parameters, and attributes not named here, are as for
    `ExactPosterior`. A `LeafCount` prior without counts gets those of the grammar. `predictive` is
    exact for rows that every rule treats like some training row; other rows are predicted by a
    fixed sample of 4,096 trees.

    Raises
    ------
    ValueError
        As for `ExactPosterior`, or if the table of leaf counts would be too large.

    Examples
    --------
    >>> import numpy as np
    >>> from bdtppl.inference.pcfg.compiler import compile_grammar
    >>> from bdtppl.models.data.design import Design
    >>> from bdtppl.models.leaf_count_priors import Pinball
    >>> from bdtppl.models.leaves import DirichletCategorical
    >>> grammar = compile_grammar(Design.from_matrix(np.arange(6.0)[:, None]))
    >>> exact = LeafCountPosterior(grammar, Pinball(1.0, max_leaves=3),
    ...     DirichletCategorical.symmetric(2), np.array([0, 0, 0, 1, 1, 1]))
    >>> exact.leaves_probability.round(3).tolist()
    [0.181, 0.571, 0.248]
    """

    prior: LeafCountPrior

    def __init__(
        self,
        grammar: Grammar,
        prior: LeafCountPrior,
        leaf: Leaf,
        y: np.ndarray,
        observed: np.ndarray | None = None,
    ):
        super().__init__(grammar, cast(Any, prior), leaf, y, observed)
        _check_size(grammar, prior)
        if isinstance(prior, LeafCount) and prior.log_num_trees is None:
            self.prior = with_num_trees(prior, grammar)

    @property
    def lists_trees(self) -> bool:
        """Return False: each number of leaves has its own best tree."""
        return False

    def _check_prior(self, prior: TreePrior) -> None:
        require_weighs(prior, "LeafCountPosterior", "leaf counts")

    # The scored chart.

    def _inside(self, prior, scores, feature_weight, semiring: Semiring = "sum") -> jax.Array:
        by_split, by_rule = Weights.of(self.chart, prior, feature_weight)
        weights = by_rule if semiring == "max" else by_split
        return inside_by_leaves(without_facts(self.chart), weights, scores, semiring)

    @cached_in_float64
    def _weights(self) -> tuple[Weights, Weights]:
        prior, _, feature_weight = self._terms
        return Weights.of(self.chart, prior, feature_weight)

    @cached_in_float64
    def _log_leaves(self) -> np.ndarray:
        return np.asarray(log_leaves(self._terms[0]))

    def _root_terms(self, log_q: jax.Array) -> np.ndarray:
        """Return the log of the sum over trees with 1 to K leaves, [K]."""
        return np.asarray(log_q[self.grammar.root, 0]) + self._log_leaves

    def _at_root(self, log_q: jax.Array) -> float:
        return float(np.logaddexp.reduce(self._root_terms(log_q)))

    @cached_in_float64
    def leaves_probability(self) -> np.ndarray:
        """Posterior probability of 1, ..., K leaves, float64 [K]."""
        return np.exp(self._root_terms(self._log_q) - self.log_partition)

    @cached_in_float64
    def prior_leaves_probability(self) -> np.ndarray:
        """Prior probability of 1, ..., K leaves, float64 [K]."""
        prior, scores, feature_weight = self._terms
        terms = self._root_terms(self._inside(prior, jnp.zeros_like(scores), feature_weight))
        return np.exp(terms - self.log_prior_normaliser)

    @property
    def expected_leaves(self) -> float:
        """Expected number of leaves."""
        return float(self.leaves_probability @ (1 + np.arange(self.prior.max_leaves)))

    # Marginals.

    @cached_in_float64
    def _usage(self) -> LeafCountUsage:
        chart = without_facts(self.chart)
        return outside_by_leaves(chart, self._weights[0], self._log_q, self.leaves_probability)

    @property
    def expected_splits(self) -> np.ndarray:
        """Expected number of splits on each feature, float64 [d]."""
        num_features = self.grammar.design.num_features
        return np.bincount(self.grammar.feature, self.production_probability, num_features)

    @cached_in_float64
    def entropy(self) -> float:
        """Entropy in nats of the posterior over trees."""
        usage, (_, scores, _), (_, weights) = self._usage, self._terms, self._weights
        # The expected log joint, term by term; unused terms may have weight -inf.
        terms = (
            (usage.stops, scores),
            (usage.productions, weights.productions),
            (usage.divisions, weights.divisions),
            (self.leaves_probability, self._log_leaves),
        )
        expected = 0.0
        for probability, log_weight in terms:
            used = np.asarray(probability) > 0
            expected += float(np.asarray(probability)[used] @ np.asarray(log_weight)[used])
        return self.log_partition - expected

    # Trees.

    @cached_in_float64
    def _choices(self) -> ChartChoices:
        return leaf_count_choices(without_facts(self.chart), self._weights[0], self._log_q)

    @in_float64
    def _sample(self, rng_key, num_draws: int, finish) -> list:
        parts = []
        for chunk, start in enumerate(range(0, num_draws, _CHUNK)):
            drawn = draw_with_leaf_counts(
                without_facts(self.chart),
                self._weights[0],
                self._log_q,
                self._choices,
                self.leaves_probability,
                jax.random.fold_in(rng_key, chunk),
                _CHUNK,
            )
            kept = min(_CHUNK, num_draws - start)
            num_nodes = np.asarray(drawn.num_nodes)[:kept]
            used = int(num_nodes.max())
            production, place = (np.asarray(a)[:kept, :used] for a in drawn[:2])
            parts.append(finish(Derivations(production, place, num_nodes)))
        return parts

    def _log_joints(self, derivations: Derivations) -> tuple[np.ndarray, np.ndarray]:
        log_joint, log_likelihood = super()._log_joints(derivations)
        counts = _count_terms(self._terms[0], derivations.production, derivations.left)
        return log_joint + np.asarray(counts), log_likelihood

    @in_float64
    def best_by_leaves(self) -> RankedTrees:
        """Find the most probable tree of each number of leaves that a tree can have, in order.

        Trees that differ only by the cut inside a gap have the same probability; the middle cut is
        shown.
        """
        log_joint = self._root_terms(self._log_best)
        return self._best(1 + np.flatnonzero(log_joint > -np.inf))

    def _best(self, num_leaves: np.ndarray) -> RankedTrees:
        log_joint = self._root_terms(self._log_best)[num_leaves - 1]
        search = _BestTrees(self)
        production = np.full((len(num_leaves), 2 * int(num_leaves.max()) - 1), -1, np.int32)
        for row, count in zip(production, num_leaves, strict=True):
            row[: 2 * count - 1] = search.productions(int(count))
        place = np.full(production.shape, 0.5)
        derivations = Derivations(production, place, (2 * num_leaves - 1).astype(np.int32))
        trees, statistics = self._trees_of([derivations]), self._slot_statistics(derivations)
        return RankedTrees(trees, statistics, log_joint, np.exp(log_joint - self.log_partition))

    @in_float64
    def _k_best(self, k: int) -> RankedTrees:
        """Return the most probable tree alone; `best_by_leaves` has one per number of leaves."""
        return self._best(1 + np.argmax(self._root_terms(self._log_best), keepdims=True))

    # Predictions.

    @cached_in_float64
    def _paths(self) -> Any:
        (derivations,) = self._sample(jax.random.key(0), _CHUNK, lambda drawn: drawn)
        return SampledPaths(
            self.grammar,
            self._sides,
            self.leaf_probability,
            self._trees_of([derivations]),
            self._slot_nodes(derivations),
        )


class _BestTrees:
    """Follows the best choices down from the root."""

    def __init__(self, exact: LeafCountPosterior):
        _, weights = exact._weights
        self.grammar, self.uses_depth = exact.grammar, exact.chart.uses_depth
        self.log_best = np.asarray(exact._log_best)
        self.log_rule = np.asarray(weights.productions)
        self.log_division = np.asarray(weights.divisions)

    def productions(self, num_leaves: int) -> list[int]:
        """Return productions of the best tree with a number of leaves, slot by slot."""
        queue, chosen = [(self.grammar.root, 0, num_leaves)], []
        for node, depth, leaves in queue:
            if leaves == 1:
                chosen.append(-1)
                continue
            first, stop = self.grammar.first_production[node : node + 2]
            left, right = self.grammar.left[first:stop], self.grammar.right[first:stop]
            below = depth + self.uses_depth
            on_left = np.arange(leaves - 1)
            terms = (
                self.log_rule[first:stop, None]
                + self.log_best[left, below][:, on_left]
                + self.log_best[right, below][:, leaves - 2 - on_left]
                + self.log_division[on_left, leaves - 1][None]
            )
            place, share = np.unravel_index(int(np.argmax(terms)), terms.shape)
            chosen.append(int(first + place))
            queue += [
                (int(left[place]), below, int(share) + 1),
                (int(right[place]), below, leaves - 1 - int(share)),
            ]
        return chosen
