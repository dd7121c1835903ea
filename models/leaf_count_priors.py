"""Tree priors on the number of leaves.

Such a prior first draws the number of leaves of the tree, then a tree of that size. Its weight is a
product over the nodes, like that of any prior, times terms of the numbers of leaves below the root
and below each split: `LeafCountPrior` is the shared form. The exact posterior sums over them on an
axis of leaf counts (`bdtppl.inference.pcfg.leaf_count`).

References
----------
Denison, Mallick and Smith 1998, A Bayesian CART algorithm; Wu, Tjelmeland and West 2007, Bayesian
CART: prior specification and posterior simulation.
"""

from dataclasses import field
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import betaln, gammaln
from numpyro.distributions import constraints
from numpyro.distributions.constraints import Constraint

from bdtppl.models.arguments import require_choice, require_integer
from bdtppl.models.prior_kinds import Node, Rule, Rules, TreeShape, Weighed, WholeTreePrior
from bdtppl.models.pytrees import Number, pytree_dataclass, require, setting
from bdtppl.models.wording import number


class LeafCountPrior(WholeTreePrior):
    """A prior on the number of leaves; see `bdtppl.models.prior_kinds.TreePrior`.

    A tree T with K leaves has log weight ``log_leaves(K)``, plus ``log_division(k_left, k)`` for
    every split with k leaves below it, k_left of them on its left, plus ``log_rule`` of every
    split.

    Attributes
    ----------
    max_leaves
        Most leaves of a tree.
    rules
        See `bdtppl.models.prior_kinds.TreePrior`.
    """

    max_leaves: int
    rules: Rules

    weighs: ClassVar[Weighed] = "leaf counts"
    sums_to_at_most_one: ClassVar[bool] = True
    parameter_support: ClassVar[dict[str, Constraint]] = {"rate": constraints.positive}

    def log_leaves(self, num_leaves: Any) -> Any:
        """Return the log weight of the tree's number of leaves; -inf beyond `max_leaves`."""
        raise NotImplementedError

    def log_division(self, num_left: Any, num_leaves: Any) -> Any:
        """Return the log weight of a split's leaves on the left; -inf if impossible.

        1 to ``num_leaves - 1`` are possible.
        """
        raise NotImplementedError

    def log_tree(self, tree: TreeShape) -> Any:
        """Return the log weight of the numbers of leaves of one tree, without that of its rules."""
        num_slots = len(tree.is_leaf)

        def gather(i, counts):
            slot = num_slots - 1 - i
            below = counts[tree.left[slot]] + counts[tree.right[slot]]
            return counts.at[slot].set(jnp.where(tree.is_split[slot], below, counts[slot]))

        counts = lax.fori_loop(0, num_slots, gather, tree.is_leaf.astype(jnp.int32))
        divisions = self.log_division(counts[tree.left], counts)
        return self.log_leaves(counts[0]) + jnp.where(tree.is_split, divisions, 0.0).sum()


def _require_sizes(prior: LeafCountPrior) -> None:
    require_integer("max_leaves", prior.max_leaves)
    require_choice("rules", prior.rules, ("gaps", "cuts"))


@pytree_dataclass
class LeafCount(LeafCountPrior):
    """A Poisson number of leaves, with all trees of the same size equally probable.

    Denison, Mallick and Smith 1998. The number of leaves K is a Poisson(rate) variable conditioned
    on 1 <= K <= ``max_leaves``. Given K, all trees with K leaves, including their rules, that the
    table and the constraints allow have the same probability. With N_K the number of these,

        P(T) = rate^K / K! / N_K / sum over j with N_j > 0 of rate^j / j!

    Numbers of leaves that no tree has are omitted from the sum. With monotone features, N_K
    includes trees that are not monotone, because these depend on the targets. N_K is counted for
    each table on the exact chart (`bdtppl.inference.pcfg.leaf_count_posterior.with_num_trees`).

    Attributes
    ----------
    rate
        Rate of the Poisson distribution; the paper uses 10.
    log_num_trees
        float64 [max_leaves]; log N_K of K = 1, 2, ..., -inf if there is none. None until counted.
    max_leaves
        Most leaves of a tree.

    Examples
    --------
    >>> LeafCount(5.0, max_leaves=8)
    LeafCount(rate=5.0, max_leaves=8, rules='gaps')
    """

    rate: Number = 10.0
    log_num_trees: Any = field(default=None, repr=False)  # a table's counts, not set by users
    max_leaves: int = setting(default=20)
    rules: Rules = setting(default="gaps")

    def __post_init__(self):
        require(lambda r: (r > 0) & np.isfinite(r), "rate must be above 0; got {}.", self.rate)
        _require_sizes(self)
        if isinstance(self.log_num_trees, np.ndarray) and (
            self.log_num_trees.shape != (self.max_leaves,)
        ):
            raise ValueError(
                f"log_num_trees must have one entry per number of leaves, ({self.max_leaves},); "
                f"got {self.log_num_trees.shape}."
            )

    def in_words(self) -> list[str]:
        """Describe how probable the prior finds trees."""
        return [
            f"The number of leaves has a Poisson distribution of rate {number(self.rate)}, between "
            f"1 and {self.max_leaves}; all trees with the same number of leaves are equally "
            "probable."
        ]

    def log_leaves(self, num_leaves: Any) -> Any:
        """Return the log of the Poisson probability over the number of such trees.

        Raises
        ------
        ValueError
            If the trees have not been counted.
        """
        if self.log_num_trees is None:
            raise ValueError(
                "LeafCount needs the number of trees with each number of leaves: count them with "
                "bdtppl.inference.pcfg.leaf_count_posterior.with_num_trees(prior, grammar)."
            )
        place = jnp.clip(num_leaves - 1, 0, self.max_leaves - 1)
        log_num_trees = jnp.asarray(self.log_num_trees)[place]
        exists = (num_leaves <= self.max_leaves) & (log_num_trees > -jnp.inf)
        return jnp.where(exists, _log_poisson(num_leaves, self.rate) - log_num_trees, -jnp.inf)

    def log_division(self, num_left: Any, num_leaves: Any) -> Any:
        """Return 0 if the division is possible."""
        return jnp.where((num_left >= 1) & (num_left < num_leaves), 0.0, -jnp.inf)


@pytree_dataclass
class Pinball(LeafCountPrior):
    """Leaves that fall through the tree and divide at every split (Wu, Tjelmeland and West 2007).

    The number of leaves K is 1 + Poisson(rate), one of the paper's distributions, truncated at
    ``max_leaves``. A node with k > 1 leaves is a split; of the leaves

        k_left - 1 ~ BetaBinomial(k - 2, balance, balance)

    fall to its left: uniformly over 1, ..., k - 1 if ``balance`` is 1, nearer to halves if it is
    larger. Its feature is uniform among those with an available rule, its rule uniform among that
    feature's. A node with one leaf is a leaf. Trees that would need an unavailable rule do not
    exist: their mass is lost, and the prior is renormalised over the existing trees.

    Attributes
    ----------
    rate
        Rate of the Poisson distribution of K - 1.
    balance
        Parameter of the distribution of the division, above 0.
    max_leaves
        Most leaves of a tree.

    Examples
    --------
    >>> prior = Pinball(4.0, max_leaves=8)
    >>> round(float(prior.log_division(1, 5)), 4)  # log 1/4
    -1.3863
    """

    rate: Number = 5.0
    balance: Number = 1.0
    max_leaves: int = setting(default=20)
    rules: Rules = setting(default="gaps")

    parameter_support: ClassVar[dict[str, Constraint]] = {
        "rate": constraints.positive,
        "balance": constraints.positive,
    }
    node_facts: ClassVar[tuple[str, ...]] = ("log_num_features",)
    rule_facts: ClassVar[tuple[str, ...]] = ("log_num_cuts", "log_num_feature_cuts")

    def __post_init__(self):
        require(lambda r: (r > 0) & np.isfinite(r), "rate must be above 0; got {}.", self.rate)
        require(lambda b: b > 0, "balance must be above 0; got {}.", self.balance)
        _require_sizes(self)

    def in_words(self) -> list[str]:
        """Describe how probable the prior finds trees."""
        return [
            "The number of leaves is one more than a Poisson variable of rate "
            f"{number(self.rate)}, at most {self.max_leaves}. Leaves fall down the tree and divide "
            f"at every split by a beta-binomial distribution with parameter {number(self.balance)}."
        ]

    def log_split(self, node: Node, rule: Rule) -> Any:
        """Return the log probability of the feature and of the cut."""
        return rule.log_num_cuts - rule.log_num_feature_cuts - node.log_num_features

    def log_leaves(self, num_leaves: Any) -> Any:
        """Return the log of the Poisson probability of one leaf less."""
        log_p = _log_poisson(num_leaves - 1, self.rate)
        return jnp.where(num_leaves <= self.max_leaves, log_p, -jnp.inf)

    def log_division(self, num_left: Any, num_leaves: Any) -> Any:
        """Return the log of the beta-binomial probability, -inf if the division is impossible."""
        is_possible = (num_left >= 1) & (num_left < num_leaves)
        trials = jnp.where(is_possible, num_leaves - 2.0, 0.0)
        hits = jnp.where(is_possible, num_left - 1.0, 0.0)
        a = self.balance
        log_p = (
            gammaln(trials + 1.0)
            - gammaln(hits + 1.0)
            - gammaln(trials - hits + 1.0)
            + betaln(hits + a, trials - hits + a)
            - betaln(a, a)
        )
        return jnp.where(is_possible, log_p, -jnp.inf)


def _log_poisson(count: Any, rate: Any) -> Any:
    return count * jnp.log(rate) - rate - gammaln(count + 1.0)
