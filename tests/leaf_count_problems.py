"""Random tiny problems under priors on the number of leaves, and their laws tree by tree.

The reference lists all trees and weighs each by the definition, node by node; it shares nothing
with the recursion over leaf counts.
"""

import functools
import math
from dataclasses import dataclass, fields
from typing import Any

import enumeration as en
import exact_problems as ep
from scipy.special import betaln

from bdtppl.inference.pcfg.leaf_count_posterior import LeafCountPosterior
from bdtppl.models.leaf_count_priors import LeafCount, Pinball

MAX_LEAVES = 5


def log_poisson(count, rate):
    return count * math.log(rate) - rate - math.lgamma(count + 1)


@dataclass(frozen=True)
class PoissonLeaves:
    """Weigh a tree by the Poisson probability of its leaves over the number of such trees."""

    rate: float

    def weigh(self, problem, trees):
        counts = [en.num_leaves(tree) for tree in trees]
        return [
            log_poisson(k, self.rate) - math.log(counts.count(k)) if k <= MAX_LEAVES else -math.inf
            for k in counts
        ]


@dataclass(frozen=True)
class FallingLeaves:
    """Weigh a tree by how its leaves fall, one split after the other (Wu et al. 2007)."""

    rate: float
    balance: float

    def weigh(self, problem, trees):
        return [
            log_poisson(en.num_leaves(tree) - 1, self.rate) + self.below(problem, tree, 0)
            if en.num_leaves(tree) <= MAX_LEAVES
            else -math.inf
            for tree in trees
        ]

    def below(self, problem, tree, depth):
        if isinstance(tree, en.Leaf):
            return 0.0
        trials, hits = en.num_leaves(tree) - 2, en.num_leaves(tree.left) - 1
        a = self.balance
        division = math.log(math.comb(trials, hits)) + betaln(hits + a, trials - hits + a)
        rules = en.available_rules(problem, en.tree_rows(tree), depth)
        assert tree.rule in rules
        same_feature = [rule for rule in rules if rule.feature == tree.rule.feature]
        num_features = len({rule.feature for rule in rules})
        return (
            float(division - betaln(a, a))
            - math.log(num_features)
            - math.log(len(same_feature))
            + self.below(problem, tree.left, depth + 1)
            + self.below(problem, tree.right, depth + 1)
        )


PRIORS = {
    "leaf count": (
        lambda rules: LeafCount(3.0, max_leaves=MAX_LEAVES, rules=rules),
        PoissonLeaves(3.0),
    ),
    "pinball": (
        lambda rules: Pinball(1.7, max_leaves=MAX_LEAVES, rules=rules),
        FallingLeaves(1.7, 1.0),
    ),
    "balanced pinball": (
        lambda rules: Pinball(2.5, 2.2, max_leaves=MAX_LEAVES, rules=rules),
        FallingLeaves(2.5, 2.2),
    ),
}


@dataclass(frozen=True, eq=False)
class LeafCase(ep.Case):
    """A case whose prior counts leaves."""

    @functools.cached_property
    def exact(self) -> LeafCountPosterior:
        return self.posterior()

    def posterior(self, kind=LeafCountPosterior, **changes) -> LeafCountPosterior:
        return super().posterior(kind, **changes)

    @functools.cached_property
    def scored(self) -> list[en.ScoredTree]:
        return self.scored_with(self.reference_leaf)

    def scored_with(self, leaf: Any) -> list[en.ScoredTree]:
        every = en.trees(self.problem, en.DescriptionLength(0.0), leaf)
        weights = self.reference_prior.weigh(self.problem, [each.tree for each in every])
        return [
            each._replace(log_prior=weight) for each, weight in zip(every, weights, strict=True)
        ]


def leaf_case(prior: str, rules: str, family: str, seed: int, **options) -> LeafCase:
    """Draw a problem as `exact_problems.random_case` does."""
    model = f"description length, {rules}"
    case = ep.random_case(model, family, seed, **options)
    package_prior, reference_prior = PRIORS[prior]
    parts = {field.name: getattr(case, field.name) for field in fields(case)}
    parts |= {"prior": package_prior(rules), "reference_prior": reference_prior}
    return LeafCase(**parts)
