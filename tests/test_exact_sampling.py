"""Draws from the exact posterior against the enumeration of all trees.

Statistical tests have a false-alarm rate of 1e-4 each and fixed seeds. Each check is a function
that takes the posterior to be checked, and has a mutation twin: on a sampler broken on purpose it
must fail.
"""

import functools
import math
import weakref
from collections import Counter

import enumeration as en
import exact_problems as ep
import jax
import numpy as np
import pytest
from exact_problems import FALSE_ALARM, TIGHT, key
from scipy import stats
from tiers import few_of, slow_but

from bdtppl.inference.pcfg.compiler import compile_grammar
from bdtppl.inference.pcfg.exact import ExactPosterior
from bdtppl.inference.pcfg.sampling import sample_derivations
from bdtppl.models.data.design import Design
from bdtppl.models.leaves import DirichletCategorical
from bdtppl.models.priors import LeafPenalty

DRAWS = 20_000
# Broken samplers are tried on the same cases, so that nothing is compiled twice.
CASES = {
    "leaf penalty, gaps": ("classes", 50, {"copied": True, "missing": False}),
    "leaf penalty, cuts": ("values", 51, {}),
    "description length, cuts": ("classes", 52, {"missing": True, "binning": {"grid": 4}}),
    "depth decay, gaps": ("values", 53, {}),
    "depth decay by gap, cuts": ("classes", 54, {}),
    "greedy partition, gaps": ("values", 55, {}),
}
# The fast run has those that broken samplers are tried on.
FAST = ("leaf penalty, gaps", "description length, cuts", "depth decay, gaps")
MANY = [(m, ep.FAMILIES[(i + i // 2) % 2], 60) for i, m in enumerate(ep.MODELS)]


@functools.cache
def the_case(model):
    family, seed, options = CASES[model]
    return ep.random_case(model, family, seed, most_trees=500, **options)


# ------------------------------------------------------------------------------------- checks


def check_trees(case, exact, probabilities=None):
    """Frequencies of rule-trees among 20,000 draws, by a G-test."""
    drawn = Counter(ep.rule_trees(case, draws_of(exact).trees))
    p_value = ep.g_test(drawn, case.probabilities if probabilities is None else probabilities)
    assert p_value > FALSE_ALARM


def check_log_joint(case, exact):
    """Log joint minus log probability of a draw is one constant, the log partition."""
    posterior = draws_of(exact)
    draw_probability = _DrawProbability(case, exact)
    stats_of_draws = [posterior.sample_stats[n].ravel() for n in ("log_joint", "log_likelihood")]
    weights = dict(en.k_best(case.problem, case.reference_prior, case.scored, len(case.scored)))
    likelihoods = {s.tree: s.log_likelihood for s in case.scored}
    trees = ep.rule_trees(case, posterior.trees)
    constants = []
    for tree, log_joint, log_likelihood in set(zip(trees, *stats_of_draws, strict=True)):
        constants.append(log_joint - draw_probability(tree))
        name = en.candidate_key(case.problem, case.reference_prior, tree)
        assert abs(log_joint - weights[name]) < TIGHT
        assert abs(log_likelihood - likelihoods[tree]) < TIGHT
    assert np.ptp(constants) < TIGHT
    assert abs(constants[0] - en.log_partition(case.scored)) < TIGHT
    leaves = [en.num_leaves(tree) for tree in trees]
    np.testing.assert_array_equal(posterior.sample_stats["num_leaves"].ravel(), leaves)
    depths = [ep.depth_of(tree) for tree in trees]
    np.testing.assert_array_equal(posterior.sample_stats["max_leaf_depth"].ravel(), depths)


_drawn = weakref.WeakKeyDictionary()


def draws_of(exact):
    """Return 20,000 draws, always the same ones."""
    if exact not in _drawn:
        _drawn[exact] = exact.sample(key(1), chains=4, draws=DRAWS // 4)
    return _drawn[exact]


class _DrawProbability:
    """Log probability of a tree, as the prior counts trees, from the sampler's own tables."""

    def __init__(self, case, exact):
        self.problem, self.by_partition = case.problem, exact.prior.counts_partitions
        self.stop = np.asarray(exact._choices.stop)
        cumulative = np.asarray(exact._choices.cumulative)
        self.number = {rows: node for node, rows in enumerate(ep.node_rows(exact.grammar))}
        self.choices = {}
        first = exact.grammar.first_production
        for rows, node in self.number.items():
            before = np.zeros(cumulative.shape[1])
            for production in range(first[node], first[node + 1]):
                probability, before = cumulative[production] - before, cumulative[production]
                rules = ep.rules_of_production(exact.grammar, production)
                for rule in rules:
                    self.choices[rows, rule] = probability / len(rules)

    def __call__(self, tree, depth=0):
        rows = en.tree_rows(tree)
        level = min(depth, self.stop.shape[1] - 1)
        if isinstance(tree, en.Leaf):
            return math.log(self.stop[self.number[rows], level])
        if self.by_partition:
            pair = {en.tree_rows(tree.left), en.tree_rows(tree.right)}
            probability = sum(
                self.choices[rows, rule][level]
                for rule in en.available_rules(self.problem, rows, depth)
                if set(en.part(self.problem, rows, rule)) == pair
            )
        else:
            probability = self.choices[rows, tree.rule][level]
        return math.log(probability) + self(tree.left, depth + 1) + self(tree.right, depth + 1)


def check_targets(case, exact):
    """Targets drawn at new rows against the predictive, row by row."""
    rows = ep.queries(case)
    drawn = np.asarray(exact.predictive(rows).sample(key(3), DRAWS))
    assert drawn.shape == (DRAWS, len(rows))
    for row, targets in zip(rows, drawn.T, strict=True):
        leaves = en.leaf_probabilities(case.problem, case.scored, row)
        if isinstance(case.reference_leaf, en.DirichletCategorical):
            mean = sum(
                p * case.reference_leaf.predictive_mean(case.problem, leaf)
                for leaf, p in leaves.items()
            )
            p_value = ep.g_test(Counter(targets.tolist()), dict(enumerate(mean)))
        else:
            p_value = stats.kstest(targets, lambda y: ep.mixture_cdf(case, leaves, y)).pvalue  # noqa: B023
        assert p_value > FALSE_ALARM / len(rows)


# -------------------------------------------------------------------- against the enumeration


@pytest.mark.parametrize("model", slow_but(FAST, CASES))
def test_trees_have_their_probabilities(model):
    case = the_case(model)
    check_trees(case, case.exact)
    check_log_joint(case, case.exact)


@pytest.mark.parametrize("model", slow_but(FAST, list(CASES)[:4]))
def test_targets_have_the_predictive(model):
    case = the_case(model)
    check_targets(case, case.exact)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "family", "seed"), few_of(MANY, 4))
def test_draws_on_many(model, family, seed):
    case = ep.random_case(model, family, seed)
    for check in (check_trees, check_log_joint, check_targets):
        check(case, case.exact)


@pytest.mark.parametrize("model", slow_but(FAST, list(CASES)[2:5:2]))
def test_draws_with_nothing_observed_are_the_prior(model):
    case = the_case(model)
    prior = case.posterior(observed=np.zeros(len(case.y), bool))
    probabilities = en.tree_probabilities(en.trees(case.problem, case.reference_prior, None))
    assert abs(prior.log_evidence) < 1e-12
    check_trees(case, prior, probabilities)
    with pytest.raises(AssertionError):
        check_trees(case, case.exact, probabilities)


def test_a_draw_depends_on_the_key_and_its_number_alone():
    case = the_case("depth decay, gaps")
    posterior = draws_of(case.exact)
    many = ep.rule_trees(case, posterior.trees)
    few = ep.rule_trees(case, case.exact.sample_trees(key(1), 100))
    assert many[:100] == few
    assert ep.rule_trees(case, case.exact.sample_trees(key(2), 100)) != few
    assert len(set(map(tuple, np.array_split(np.array(list(map(hash, many))), 40)))) == 40


def test_slots_that_do_not_suffice_are_doubled():
    design = Design.from_matrix(np.arange(12.0)[:, None])
    leaf = DirichletCategorical.symmetric(2)
    exact = ExactPosterior(compile_grammar(design), LeafPenalty(-2.0), leaf, np.arange(12) % 2)

    @jax.enable_x64(True)
    def drawn(capacity):
        return sample_derivations(
            exact.chart, exact._choices, key(6), 90, capacity, False, lambda drawn: drawn
        )[0]

    small, large = drawn(1), drawn(32)
    assert large.num_nodes.max() > 16
    np.testing.assert_array_equal(small.num_nodes, large.num_nodes)
    np.testing.assert_array_equal(small.production, large.production)


# ----------------------------------------------------------------------------- mutation twins


class StopsMore(ExactPosterior):
    """Stops more often than it should."""

    @functools.cached_property
    def _choices(self):
        choices = super()._choices
        return choices._replace(stop=choices.stop + 0.1 * (1 - choices.stop))


class FirstProductionMore(ExactPosterior):
    """Slips towards later productions."""

    @functools.cached_property
    def _choices(self):
        choices = super()._choices
        return choices._replace(cumulative=choices.cumulative * 0.95)


class AlwaysTheMiddleCut(ExactPosterior):
    """Takes the middle cut of every gap."""

    def _write_out(self, trees, derivations):
        super()._write_out(trees, derivations._replace(place=0.5 + 0 * derivations.place))


class MissingToTheOtherSide(ExactPosterior):
    """Sends missing values to the side that the rule does not name."""

    @functools.cached_property
    def _sides(self):
        sides = super()._sides
        return sides._replace(missing_left=~sides.missing_left)


class LogJointOfRules(ExactPosterior):
    """Scores a tree by the weights of its rules, as if partitions were not shared."""

    def _log_joints(self, derivations):
        joint, likelihood = super()._log_joints(derivations)
        used = np.maximum(derivations.production, 0)
        share = np.where(
            derivations.production >= 0, np.log(self.grammar.num_equivalent[used]), 0.0
        )
        return joint - share.sum(axis=1), likelihood


class LeavesForgotten(ExactPosterior):
    """Leaves the weight of stopping out of the log joint."""

    def _log_joints(self, derivations):
        joint, likelihood = super()._log_joints(derivations)
        return joint + np.log(0.1) * derivations.num_nodes, likelihood


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "mutant", "check"),
    [
        ("leaf penalty, gaps", StopsMore, check_trees),
        ("leaf penalty, gaps", FirstProductionMore, check_trees),
        ("leaf penalty, gaps", LogJointOfRules, check_log_joint),
        ("leaf penalty, gaps", FirstProductionMore, check_log_joint),
        ("depth decay, gaps", StopsMore, check_log_joint),
        ("depth decay, gaps", LeavesForgotten, check_log_joint),
        ("depth decay, gaps", StopsMore, check_targets),
        ("description length, cuts", AlwaysTheMiddleCut, check_trees),
        ("description length, cuts", MissingToTheOtherSide, check_trees),
        ("description length, cuts", MissingToTheOtherSide, check_targets),
    ],
)
def test_a_broken_sampler_is_noticed(model, mutant, check):
    case = the_case(model)
    check(case, case.exact)
    with jax.enable_x64(True):
        broken = case.posterior(mutant)
        with pytest.raises((AssertionError, KeyError)):
            check(case, broken)
