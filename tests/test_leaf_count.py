"""Priors on the number of leaves: the exact posterior and Metropolis-Hastings against enumeration.

Deterministic checks have fixed seeds and tolerances of rounding error; statistical ones state their
false-alarm rate. Each has a mutation twin: on something broken on purpose it must fail.
"""

import functools
import math
from collections import Counter

import enumeration as en
import exact_problems as ep
import jax
import jax.numpy as jnp
import leaf_count_problems as lp
import numpy as np
import pytest
from exact_problems import FALSE_ALARM, TIGHT

from bdtppl.inference import hard_model
from bdtppl.inference.greedy_modal.problem import pose as pose_greedy
from bdtppl.inference.metropolis import moves
from bdtppl.inference.metropolis.convert import as_shape, write_out
from bdtppl.inference.metropolis.kernel import walk
from bdtppl.inference.metropolis.sample import sample
from bdtppl.inference.metropolis.state import state_of
from bdtppl.inference.pcfg import leaf_count_posterior
from bdtppl.inference.pcfg.compiler import compile_grammar
from bdtppl.inference.pcfg.exact import ExactPosterior
from bdtppl.inference.pcfg.leaf_count_posterior import (
    LeafCountPosterior,
    exact_posterior,
    with_num_trees,
)
from bdtppl.inference.pcfg.marginal import TreeMarginal
from bdtppl.models.data import Design
from bdtppl.models.hard_tree import log_joint
from bdtppl.models.leaf_count_priors import LeafCount, Pinball
from bdtppl.models.leaves import DirichletCategorical
from bdtppl.models.priors import LeafPenalty

CAPACITY = 15
DRAWS = 20_000
# Arrays of the same sizes are compiled once, so the fast run has two cases of one size.
FAST = [
    ("leaf count", "cuts", "classes", 0, {"max_depth": 3}),
    ("balanced pinball", "gaps", "values", 1, {"max_depth": 3}),
]
CASES = [
    *FAST,
    *(
        pytest.param(prior, rules, family, seed, {}, marks=pytest.mark.slow)
        for prior in lp.PRIORS
        for rules in ("gaps", "cuts")
        for family in ep.FAMILIES
        for seed in range(2, 5)
    ),
]
FEW = [FAST[1], pytest.param(*FAST[0], marks=pytest.mark.slow)]


@functools.cache
def cached_case(prior, rules, family, seed, options):
    return lp.leaf_case(prior, rules, family, seed, most_trees=800, **dict(options))


def the_case(prior, rules, family, seed, options):
    return cached_case(prior, rules, family, seed, tuple(options.items()))


def close(got, expected, tolerance=TIGHT):
    got, expected = np.asarray(got, float), np.asarray(expected, float)
    assert got.shape == expected.shape
    assert np.all(np.abs(got - expected) <= tolerance), f"{got} is not {expected}"


# ------------------------------------------------------------------------------------- checks


def check_evidence(case, exact):
    close(exact.log_partition, en.log_partition(case.scored))
    close(exact.log_prior_normaliser, en.log_prior_normaliser(case.scored))
    close(exact.log_evidence, en.log_evidence(case.scored))
    by_leaves = np.zeros(lp.MAX_LEAVES)
    for tree, p in case.probabilities.items():
        if p > 0:
            by_leaves[en.num_leaves(tree) - 1] += p
    close(exact.leaves_probability, by_leaves)
    close(exact.expected_leaves, en.expected_leaves(case.scored))


def check_prior_of_leaves(case, exact):
    """The law of the number of leaves under the prior alone."""
    nothing = [each._replace(log_likelihood=0.0) for each in case.scored]
    by_leaves = np.zeros(lp.MAX_LEAVES)
    for tree, p in en.tree_probabilities(nothing).items():
        if p > 0:
            by_leaves[en.num_leaves(tree) - 1] += p
    close(exact.prior_leaves_probability, by_leaves)


def check_marginals(case, exact):
    close(exact.entropy, en.entropy(en.DescriptionLength(0.0), case.scored))
    close(exact.split_inclusion, en.feature_probabilities(case.problem, case.scored))
    expected = en.production_probabilities(case.scored)
    rows = ep.node_rows(exact.grammar)
    for production, parent in enumerate(exact.grammar.parent):
        rules = ep.rules_of_production(exact.grammar, production)
        total = math.fsum(expected.get((rows[parent], rule), 0.0) for rule in rules)
        close(exact.production_probability[production], total)
    leaves = Counter()
    for tree, p in case.probabilities.items():
        stack = [tree]
        for node in stack:
            if isinstance(node, en.Split):
                stack += [node.left, node.right]
            else:
                leaves[node.rows] += p
    close(exact.leaf_probability, [leaves[each] for each in rows])
    splits = np.zeros(case.problem.num_features)
    for tree, p in case.probabilities.items():
        for split in en.tree_splits(tree):
            splits[split.rule.feature] += p
    close(exact.expected_splits, splits)


def check_best(case, exact):
    """The best tree of each number of leaves."""
    weights = {each.tree: each.log_prior + each.log_likelihood for each in case.scored}
    best = {}
    for tree, weight in weights.items():
        if weight > -math.inf:
            best[en.num_leaves(tree)] = max(best.get(en.num_leaves(tree), -math.inf), weight)
    ranked = exact.best_by_leaves()
    found = ep.rule_trees(case, ranked.trees)
    assert [en.num_leaves(tree) for tree in found] == sorted(best)
    close(ranked.log_joint, [best[k] for k in sorted(best)])
    close([weights[tree] for tree in found], ranked.log_joint)
    top = exact.k_best(1)
    close(top.log_joint, [max(best.values())])
    close(top.probability, np.exp(top.log_joint - en.log_partition(case.scored)))


def check_log_joint(case, exact):
    """Every tree's log joint, from the rows in its nodes."""
    drawn = exact.sample(ep.key(1), chains=4, draws=250)
    weights = {each.tree: each.log_prior + each.log_likelihood for each in case.scored}
    expected = [weights[tree] for tree in ep.rule_trees(case, drawn.trees)]
    close(drawn.sample_stats["log_joint"].ravel(), expected)
    scored = log_joint(
        drawn.trees.reshape(-1), case.design, case.y, drawn.prior, case.leaf, case.constraints
    )
    close(scored.log_joint, expected)


def check_draws(case, exact):
    """Frequencies of trees among draws, by a G-test."""
    drawn = Counter(ep.rule_trees(case, exact.sample_trees(ep.key(2), DRAWS)))
    assert ep.g_test(drawn, case.probabilities) > FALSE_ALARM


def check_predictive(case, exact):
    """Rows like training rows are predicted exactly, others within sampling error."""
    rows = ep.queries(case)
    means = exact.predictive(rows).mean()
    expected = en.predictive_mean(case.problem, case.scored, case.reference_leaf, rows)
    close(means[:2], expected[:2])
    np.testing.assert_allclose(means, expected, atol=0.1)


CHECKS = (
    check_evidence,
    check_prior_of_leaves,
    check_marginals,
    check_best,
    check_log_joint,
    check_draws,
    check_predictive,
)


@pytest.mark.parametrize(("prior", "rules", "family", "seed", "options"), CASES)
def test_all_is_as_the_enumeration_says(prior, rules, family, seed, options):
    case = the_case(prior, rules, family, seed, options)
    for check in CHECKS:
        check(case, case.exact)
