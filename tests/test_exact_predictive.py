"""The exact predictive against the enumeration, against many draws, and as a chain of evidences.

Everything but the comparison with draws is deterministic: fixed seeds, tolerances of rounding
error. Each check has a mutation twin: on a posterior broken on purpose it must fail.
"""

import math
import tracemalloc
from collections import Counter
from functools import cached_property

import enumeration as en
import exact_problems as ep
import jax
import numpy as np
import pytest
from exact_problems import TIGHT, key
from tiers import few_of, slow_but

from bdtppl.inference.hard import mixture
from bdtppl.inference.hard.mixture import LeafMixture
from bdtppl.inference.pcfg.compiler import compile_grammar
from bdtppl.inference.pcfg.exact import ExactPosterior
from bdtppl.inference.pcfg.paths import _list_leaves
from bdtppl.models.constraints import Constraints
from bdtppl.models.data.design import Design
from bdtppl.models.leaves import DirichletCategorical, NormalInverseGamma
from bdtppl.models.priors import DepthDecay, LeafPenalty

CASES = [(m, ep.FAMILIES[i % 2], 200 + i) for i, m in enumerate(ep.SOME_MODELS)]
CASES += [("leaf penalty, gaps", "values", 210)]
CHAINS = [(m, ep.FAMILIES[i % 2], 240 + i) for i, m in enumerate(ep.SOME_MODELS)]
MANY = [(m, ep.FAMILIES[(i + i // 2) % 2], 220 + i) for i, m in enumerate(ep.MODELS)]


# ------------------------------------------------------------------------------------- checks


def check_predictive(case, exact):
    """Means, densities and quantiles at training rows, between them and with missing entries."""
    rows = ep.queries(case)
    predictive = exact.predictive(rows)
    problem, leaf = case.problem, case.reference_leaf
    mean = en.predictive_mean(problem, case.scored, leaf, rows)
    assert np.abs(predictive.mean() - mean).max() < TIGHT
    if isinstance(leaf, en.DirichletCategorical):
        targets = np.arange(len(rows)) % 3
    else:
        targets = np.linspace(-4, 4, len(rows))
    density = en.predictive_density(problem, case.scored, leaf, rows, targets)
    assert np.abs(np.exp(predictive.log_density(targets)) - density).max() < TIGHT
    assert np.abs(predictive.log_density(targets) - np.log(density)).max() < 1e-8
    if isinstance(leaf, en.NormalInverseGamma):
        probabilities = (0.001, 0.05, 0.5, 0.9)
        for row, found in zip(rows, predictive.quantiles(probabilities), strict=True):
            leaves = en.leaf_probabilities(problem, case.scored, row)
            assert np.abs(ep.mixture_cdf(case, leaves, found) - probabilities).max() < TIGHT


def check_draws(case, exact, predictive=None):
    """The exact mean is the mean over 20,000 draws, within five standard errors of each entry.

    The false-alarm rate is below 1e-4 for up to 100 entries.
    """
    rows = ep.queries(case)
    predictive = case.exact.predictive(rows) if predictive is None else predictive
    draws = exact.sample(key(7), chains=4, draws=5000)
    with jax.enable_x64(True):
        means = np.asarray(exact.leaf.posterior_mean(draws.leaf_statistics(rows)))
    means = means.reshape(-1, *means.shape[2:])
    error = means.std(axis=0) / math.sqrt(len(means)) + 1e-12
    assert np.abs(draws.mean(rows) - means.mean(axis=0)).max() < TIGHT
    assert np.all(np.abs(means.mean(axis=0) - predictive.mean()) < 5 * error)


def check_chain_rule(case, kind=ExactPosterior):
    """Log evidence is the sum of log one-step predictives.

    Rows not yet seen stay in the grammar and add nothing to the leaves.
    """
    total = 0.0
    for row in range(len(case.y)):
        seen = np.arange(len(case.y)) < row
        before = case.posterior(kind, observed=seen)
        assert abs(before.log_evidence - total) < TIGHT
        step = before.predictive(case.matrix[[row]]).log_density(case.y[[row]])
        total += float(step[0])
    assert abs(case.exact.log_evidence - total) < TIGHT


# -------------------------------------------------------------------- against the enumeration


@pytest.mark.parametrize(("model", "family", "seed"), slow_but(CASES[:3], CASES))
def test_predictive_equals_enumeration(model, family, seed):
    case = ep.random_case(model, family, seed)
    check_predictive(case, case.exact)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "family", "seed"), few_of(MANY, 4))
def test_predictive_equals_enumeration_on_many(model, family, seed):
    case = ep.random_case(model, family, seed)
    check_predictive(case, case.exact)
    check_draws(case, case.exact)
    check_chain_rule(ep.random_case(model, family, seed, weighted=False))


@pytest.mark.slow
@pytest.mark.parametrize(("model", "family", "seed"), CASES[4:5])
def test_predictive_is_the_mean_over_draws(model, family, seed):
    case = ep.random_case(model, family, seed)
    check_draws(case, case.exact)


@pytest.mark.parametrize(("model", "family", "seed"), slow_but(CHAINS[:3:2], CHAINS))
def test_chain_rule(model, family, seed):
    check_chain_rule(ep.random_case(model, family, seed, weighted=False, num_rows=5))


@pytest.mark.parametrize("observed", [[False] * 3, [True, False, True]])
def test_partly_observed_posterior_equals_enumeration(observed):
    case = ep.random_case("leaf penalty, gaps", "values", 260)
    observed = np.resize(observed, len(case.y))
    leaf = case.observing(observed)
    scored = en.trees(case.problem, case.reference_prior, leaf)
    exact = case.posterior(observed=observed)
    assert abs(exact.log_partition - en.log_partition(scored)) < TIGHT
    rows = ep.queries(case)
    expected = en.predictive_mean(case.problem, scored, leaf, rows)
    assert np.abs(exact.predictive(rows).mean() - expected).max() < TIGHT


def test_a_sample_of_the_predictive_has_its_probabilities():
    case = ep.random_case("leaf penalty, gaps", "classes", 261)
    predictive = case.exact.predictive(ep.queries(case))
    for drawn, mean in zip(predictive.sample(key(8), 20_000).T, predictive.mean(), strict=True):
        p_value = ep.g_test(Counter(drawn.tolist()), dict(enumerate(mean)))
        assert p_value > ep.FALSE_ALARM / 10
        # Another row's probabilities are not these.
        assert ep.g_test(Counter(drawn.tolist()), dict(enumerate(mean[[1, 2, 0]]))) < 1e-9


@pytest.mark.slow
def test_a_sample_of_the_predictive_has_its_quantiles():
    case = ep.random_case("leaf penalty, gaps", "values", 261)
    predictive = case.exact.predictive(ep.queries(case))
    drawn = predictive.sample(key(8), 20_000)
    probabilities = np.array([0.1, 0.5, 0.95])
    quantiles = predictive.quantiles(probabilities)
    share = (drawn[..., None] < quantiles[None]).mean(axis=0)
    error = np.sqrt(probabilities * (1 - probabilities) / len(drawn))
    assert np.all(np.abs(share - probabilities[None]) < 5 * error[None])


def test_what_is_cut_off_on_a_larger_table_is_negligible():
    rng = np.random.default_rng(3)
    grammar = compile_grammar(Design.from_matrix(rng.normal(size=(30, 2))))
    assert grammar.num_subproblems > 5_000
    y = rng.normal(size=30)
    exact = ExactPosterior(grammar, LeafPenalty(1.0), NormalInverseGamma.from_targets(y), y)
    rows = np.concatenate([grammar.design.matrix[:2], rng.normal(size=(5, 2))])
    predictive = exact.predictive(rows)
    found = predictive.weights.toarray()[predictive.kind]
    assert np.abs(found.sum(axis=1) - 1).max() < 1e-12
    paths = exact._paths
    places = paths.places(rows, grammar.design.encode(rows))
    counts, node, weight = _list_leaves(paths._steps, places, -1.0, 0.0)
    whole = np.zeros_like(found)
    np.add.at(whole, (np.repeat(np.arange(len(rows)), counts), node), weight)
    assert np.abs(whole.sum(axis=1) - 1).max() < 1e-10
    assert np.abs(found - whole).sum(axis=1).max() < 2 * TIGHT


@pytest.fixture(scope="module")
def large():
    """A posterior of which a row meets many leaves."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 4))
    design, y = Design.from_matrix(X, bins=6), X[:, 0] + np.sin(3 * X[:, 1])
    leaf = NormalInverseGamma.from_targets(y)
    grammar = compile_grammar(design, constraints=Constraints(max_depth=3))
    return ExactPosterior(grammar, DepthDecay(), leaf, y)


@pytest.mark.slow
def test_predictions_do_not_depend_on_the_pieces_that_rows_are_cut_into(large, monkeypatch):
    rng = np.random.default_rng(1)
    rows, y = rng.normal(size=(21, 4)), rng.normal(size=21)
    rows[7:14] = rows[:7]  # of the same kinds
    whole = large.predictive(rows)
    found = [whole.mean(), whole.cdf(y), whole.log_density(y), whole.quantiles([0.1, 0.5])]
    plain = LeafMixture(whole.leaf, whole.statistics, whole.weights, whole.kind)
    np.testing.assert_allclose(found[0], plain.mean(), rtol=1e-12)
    monkeypatch.setattr(mixture, "_KINDS_AT_ONCE", 4)
    cut = [whole.mean(), whole.cdf(y), whole.log_density(y), whole.quantiles([0.1, 0.5])]
    for one, other in zip(found, cut, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-7)
    assert whole.sample(key(3), 5).shape == (5, 21)


def test_memory_does_not_grow_with_the_leaves_of_rows(large):
    """A row has hundreds of leaves: all leaves of these rows would take 50 MB."""
    rows = np.random.default_rng(2).normal(size=(4000, 4))
    large.predictive(rows[:10]).mean()
    tracemalloc.start()
    large.predictive(rows).mean()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5e6


def test_value_missing_where_training_had_none_goes_right():
    matrix, y = np.array([[0.0], [1.0], [2.0]]), np.array([0, 1, 1])
    leaf = DirichletCategorical.symmetric(2)
    exact = ExactPosterior(
        compile_grammar(Design.from_matrix(matrix)), DepthDecay(0.9, 1.0), leaf, y
    )
    missing, right = exact.predictive(np.array([[np.nan], [5.0]])).mean()
    np.testing.assert_allclose(missing, right, atol=TIGHT)


# ----------------------------------------------------------------------------- mutation twins


class CutsMoved(ExactPosterior):
    """Cuts gaps elsewhere than the trees do."""

    @cached_property
    def _sides(self):
        sides = super()._sides
        if sides.num_cuts is None:
            return sides._replace(threshold=sides.threshold + 1.0)
        return sides._replace(low=sides.low + 1)


class MissingGoesRight(ExactPosterior):
    """Sends missing values right, whatever the rule names."""

    @cached_property
    def _sides(self):
        sides = super()._sides
        return sides._replace(missing_left=np.zeros_like(sides.missing_left))


class Leaking(ExactPosterior):
    """Lets rows that are not observed add to the leaves."""

    def __init__(self, *model, observed=None, **named):
        super().__init__(*model, **named)


class LeakingALittle(ExactPosterior):
    """Lets the first row that is not observed add to the leaves."""

    def __init__(self, *model, observed=None, **named):
        if observed is not None and not observed.all():
            observed = observed | (np.arange(len(observed)) == np.argmin(observed))
        super().__init__(*model, observed=observed, **named)


class Unnormalised(ExactPosterior):
    """Takes the prior's weights for probabilities."""

    log_prior_normaliser = 0.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "family"),
    [("leaf penalty, gaps", "values"), ("description length, cuts", "classes")],
)
@pytest.mark.parametrize("mutant", [CutsMoved, MissingGoesRight])
def test_wrong_sides_are_noticed(model, family, mutant):
    binning = {"grid": 3} if "cuts" in model else {}
    case = ep.random_case(model, family, 270, missing=True, binning=binning, max_depth=None)
    check_predictive(case, case.exact)
    with pytest.raises(AssertionError):
        check_predictive(case, case.posterior(mutant))


def test_draws_of_another_posterior_are_noticed():
    case = ep.random_case("leaf penalty, gaps", "classes", 271)
    other = case.posterior(prior=LeafPenalty(0.9))
    check_draws(case, case.exact)
    with pytest.raises(AssertionError):
        check_draws(case, other)


@pytest.mark.parametrize("family", ep.FAMILIES)
@pytest.mark.parametrize("mutant", [Leaking, LeakingALittle, Unnormalised])
def test_a_broken_chain_is_noticed(family, mutant):
    case = ep.random_case("leaf penalty, gaps", family, 272, weighted=False, num_rows=5)
    check_chain_rule(case)
    with pytest.raises(AssertionError):
        check_chain_rule(case, mutant)
