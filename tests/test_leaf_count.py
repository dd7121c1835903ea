"""Priors on the number of leaves: the exact posterior and Metropolis-Hastings against enumeration.

Deterministic checks have fixed seeds and tolerances of rounding error; statistical ones state their
false-alarm rate. Each has a mutation twin: on something broken on purpose it must fail.
"""

import functools
import math
from collections import Counter
from dataclasses import replace

import chains
import enumeration as en
import exact_problems as ep
import jax
import leaf_count_problems as lp
import numpy as np
import pytest
from exact_problems import FALSE_ALARM, TIGHT
from tiers import few_of

import bdtppl
from bdtppl import ExactTreeClassifier, GreedyModalTreeClassifier
from bdtppl.inference.metropolis.moves import CHIPMAN, LocalMoves
from bdtppl.inference.metropolis.sample import sample_chains
from bdtppl.inference.pcfg.compiler import compile_grammar
from bdtppl.inference.pcfg.exact import ExactPosterior
from bdtppl.inference.pcfg.leaf_count_posterior import LeafCountPosterior, exact_posterior
from bdtppl.inference.pcfg.marginal import TreeMarginal
from bdtppl.models.data.design import Design
from bdtppl.models.hard.log_joint import log_joint
from bdtppl.models.hard.tree_model import TreeModel
from bdtppl.models.leaf_count_priors import LeafCount, Pinball
from bdtppl.models.leaves import DirichletCategorical
from bdtppl.models.priors import LeafPenalty

CAPACITY = 15
DRAWS = 20_000
NUM_CHAINS = 8_000
# Compiling is what takes time, so most cases are left to the slow run.
FAST = ("leaf count", "cuts", "classes", 0, {"max_depth": None})
CASES = [
    FAST,
    pytest.param("balanced pinball", "gaps", "values", 1, {"max_depth": 3}, marks=pytest.mark.slow),
    *few_of(
        [
            pytest.param(prior, rules, family, seed, {}, marks=pytest.mark.slow)
            for prior in lp.PRIORS
            for rules in ("gaps", "cuts")
            for seed, family in enumerate(ep.FAMILIES, start=2)
        ],
        5,
    ),
]


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
    drawn = exact.sample(ep.key(1), chains=4, draws=25)
    weights = {each.tree: each.log_prior + each.log_likelihood for each in case.scored}
    expected = [weights[tree] for tree in ep.rule_trees(case, drawn.trees)]
    close(drawn.sample_stats["log_joint"].ravel(), expected)
    scored = log_joint(
        drawn.trees.reshape(-1),
        replace(case.model, prior=drawn.prior),
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


# ----------------------------------------------------------------------------- mutation twins


class Uncounted(LeafCountPosterior):
    """Forgets how many trees have each number of leaves."""

    @functools.cached_property
    def _log_leaves(self):
        return super()._log_leaves + np.nan_to_num(self.prior.log_num_trees, neginf=0.0)


class SidesUnlike(LeafCountPosterior):
    """Weighs divisions by the leaves on the left, as if the right ones were others."""

    def _inside(self, prior, scores, feature_weight, semiring="sum"):
        log_q = super()._inside(prior, scores, feature_weight, semiring)
        return log_q + 0.01 * np.arange(prior.max_leaves)[None, None]


class ProductionsMore(LeafCountPosterior):
    """Slips towards later productions."""

    @functools.cached_property
    def _choices(self):
        choices = super()._choices
        return choices._replace(cumulative=choices.cumulative * 0.9)


class LeavesUnscored(LeafCountPosterior):
    """Leaves the numbers of leaves out of the log joint."""

    def _log_joints(self, derivations):
        return super(LeafCountPosterior, self)._log_joints(derivations)


class LogSplitForBest(LeafCountPosterior):
    """Ranks trees by the weight of whole gaps."""

    def _inside(self, prior, scores, feature_weight, semiring="sum"):
        if semiring == "max":
            scores = scores + 0.01
        return super()._inside(prior, scores, feature_weight, semiring)


@pytest.mark.parametrize(
    ("mutant", "check"),
    [
        (Uncounted, check_evidence),
        (Uncounted, check_prior_of_leaves),
        (SidesUnlike, check_evidence),
        (SidesUnlike, check_marginals),
        (ProductionsMore, check_draws),
        (LeavesUnscored, check_log_joint),
        (LogSplitForBest, check_best),
    ],
)
def test_a_broken_posterior_is_noticed(mutant, check):
    case = the_case(*FAST)
    check(case, case.exact)
    with jax.enable_x64(True), pytest.raises(AssertionError):
        check(case, case.posterior(mutant))


# ------------------------------------------------------------------------ Metropolis-Hastings


def check_scores(case, state):
    """Scores of states at all trees, in the enumeration's order."""
    scored = [each for each in case.scored if each.log_prior > -math.inf]
    close(state.log_prior, [each.log_prior for each in scored])
    close(state.log_likelihood, [each.log_likelihood for each in scored])


@pytest.mark.slow
def test_states_score_as_the_enumeration_does():
    case = the_case(*FAST)
    with jax.enable_x64(True):
        start = chains.Chains(case, case.exact.prior, CAPACITY)
        check_scores(case, start.state)
        uniform = LeafCount(3.0, np.zeros(lp.MAX_LEAVES), max_leaves=lp.MAX_LEAVES, rules="cuts")
        with pytest.raises(AssertionError):
            check_scores(case, chains.Chains(case, uniform, CAPACITY).state)


def check_invariance(case, prior, num_steps):
    with jax.enable_x64(True):
        start = chains.Chains(case, prior, CAPACITY)
        found = start.walked(LocalMoves.of(CHIPMAN), NUM_CHAINS, num_steps)
    assert ep.g_test(Counter(found), case.probabilities) > FALSE_ALARM


@pytest.mark.slow
@pytest.mark.runs_long
@pytest.mark.parametrize(
    ("prior", "rules", "num_steps"), [("leaf count", "gaps", 1), ("pinball", "cuts", 10)]
)
def test_exact_draws_stay_exact(prior, rules, num_steps):
    case = the_case(prior, rules, "classes", 7, {})
    check_invariance(case, case.exact.prior, num_steps)


@pytest.mark.slow
@pytest.mark.runs_long
def test_chains_of_another_prior_are_noticed():
    case = the_case("pinball", "cuts", "classes", 7, {})
    with pytest.raises(AssertionError):
        check_invariance(case, Pinball(2.1, max_leaves=lp.MAX_LEAVES, rules="cuts"), 10)


@pytest.mark.slow
def test_chains_are_sampled_under_counts_of_the_chart():
    case = the_case("leaf count", "gaps", "classes", 7, {})
    model = case.design, case.y, case.exact.prior, case.leaf, case.constraints
    drawn = sample_chains(
        ep.key(0), TreeModel(*model), draws=20, warmup=100, capacity=CAPACITY
    ).posterior
    expected = log_joint(drawn.trees, TreeModel(*model))
    close(drawn.sample_stats["log_joint"], expected.log_joint)


# --------------------------------------------------------------------------------- estimators


def test_a_classifier_takes_a_prior_on_leaves(tmp_path):
    X, y = [[1.0], [2.0], [3.0], [4.0], [5.0]], list("aabbb")
    model = ExactTreeClassifier(prior=LeafCount(1.5, max_leaves=lp.MAX_LEAVES), draws=20).fit(X, y)
    assert model.summary()["expected_leaves"] == pytest.approx(model.exact_.expected_leaves)
    probability = model.predict_proba([[1.5], [4.0]])
    close(probability.sum(axis=1), [1.0, 1.0])
    assert len(model.k_best(2)) == 1
    with pytest.raises(
        ValueError, match="rank must be below 1, the number of distinct trees; got 1"
    ):
        model.rules(1)
    with pytest.raises(ValueError, match="k must be an integer of at least 1"):
        model.k_best(0)
    model.save(tmp_path / "model")
    again = bdtppl.load(tmp_path / "model")
    np.testing.assert_array_equal(again.prior_.log_num_trees, model.prior_.log_num_trees)


# -------------------------------------------------------------------------------- what is refused


def small():
    design = Design.from_matrix(np.arange(4.0)[:, None])
    return design, DirichletCategorical.symmetric(2), np.array([0, 0, 1, 1])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LeafCount(-1.0), "rate must be above 0"),
        (lambda: LeafCount(1.0, max_leaves=0), "max_leaves must be an integer of at least 1"),
        (lambda: LeafCount(1.0, np.zeros(3), max_leaves=4), "one entry per number of leaves"),
        (lambda: Pinball(balance=0.0), "balance must be above 0"),
        (lambda: Pinball(rules="rows"), "rules must be 'gaps' or 'cuts'"),
    ],
)
def test_numbers_without_sense_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_what_takes_other_priors_says_so():
    design, leaf, y = small()
    grammar = compile_grammar(design)
    with pytest.raises(ValueError, match="weight nodes one by one"):
        ExactPosterior(grammar, Pinball(), leaf, y)
    with pytest.raises(ValueError, match="weight nodes one by one"):
        TreeMarginal(grammar, Pinball(), leaf)
    with pytest.raises(ValueError, match="weight nodes one by one"):
        GreedyModalTreeClassifier(prior=Pinball()).fit([[1.0], [2.0]], ["a", "b"])
    with pytest.raises(ValueError, match="accepts priors that weight the number of leaves"):
        LeafCountPosterior(grammar, LeafPenalty(), leaf, y)
    assert type(exact_posterior(grammar, LeafPenalty(), leaf, y)) is ExactPosterior


def test_a_table_that_is_too_large_is_refused_with_advice():
    design, leaf, y = small()
    with pytest.raises(ValueError, match=r"about max_leaves=\d+ would fit"):
        LeafCountPosterior(compile_grammar(design), Pinball(max_leaves=10**9), leaf, y)


def test_trees_that_were_not_counted_are_asked_for():
    design, leaf, y = small()
    with pytest.raises(ValueError, match="with_num_trees"):
        sample_chains(ep.key(0), TreeModel(design, y, LeafCount(), leaf))


def test_states_are_the_trees_that_they_start_at():
    """Also where several cuts part a node's rows alike, and thresholds differ by rounding."""
    case = the_case("pinball", "cuts", "classes", 7, {})
    with jax.enable_x64(True):
        start = chains.Chains(case, case.exact.prior, CAPACITY)
        assert start.read(start.state.shape) == start.trees
