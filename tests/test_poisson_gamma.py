"""Counts in the exact posterior, and what predictions of counts are held to.

Counts with a Poisson law whose rate has a gamma prior, against the enumeration of all trees. The
statistical test has a false-alarm rate of 1e-4 and a fixed seed.
"""

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import enumeration as en
import exact_problems as ep
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from exact_problems import TIGHT
from scipy.sparse import csr_array
from scipy.stats import nbinom

import bdtppl
from bdtppl.inference.hard.mixture import LeafMixture
from bdtppl.models.leaves import LEAF_FAMILIES, PoissonGamma
from bdtppl.models.pytrees import pytree_dataclass


@dataclass(frozen=True, eq=False)
class ReferencePoissonGamma:
    """The same law, predictive by predictive."""

    counts: list
    shape: float
    rate: float
    observed: Any = None

    def posterior(self, problem, rows):
        seen = en.observed_values(problem, self.counts, self.observed, rows)
        return self.shape + sum(w * y for y, w in seen), self.rate + sum(w for _, w in seen)

    def log_marginal(self, problem, rows):
        # The integral of the gamma density times the powers of the Poisson probabilities.
        seen = en.observed_values(problem, self.counts, self.observed, rows)
        shape, rate = self.posterior(problem, rows)
        total = self.shape * math.log(self.rate) - shape * math.log(rate)
        total += math.lgamma(shape) - math.lgamma(self.shape)
        return total - sum(w * math.lgamma(y + 1) for y, w in seen)

    def _mass(self, shape, rate, count):
        # Negative binomial: success probability rate / (rate + 1).
        choices = math.gamma(shape + count) / math.gamma(shape) / math.factorial(count)
        return choices * (rate / (rate + 1)) ** shape / (rate + 1) ** count

    def predictive_mean(self, problem, rows):
        shape, rate = self.posterior(problem, rows)
        return np.array(shape / rate)

    def predictive_density(self, problem, rows, value):
        return self._mass(*self.posterior(problem, rows), int(value))


def counts_case(model, seed):
    case = ep.random_case(model, "values", seed, most_trees=300)
    counts = np.random.default_rng(seed).poisson(2.5, len(case.y))
    return replace(
        case,
        y=counts,
        leaf=PoissonGamma(1.3, 0.6),
        reference_leaf=ReferencePoissonGamma(counts.tolist(), 1.3, 0.6),
    )


def check(case, exact):
    assert abs(exact.log_partition - en.log_partition(case.scored)) < TIGHT
    assert abs(exact.log_evidence - en.log_evidence(case.scored)) < TIGHT
    weights = en.k_best(case.problem, case.reference_prior, case.scored, 4)
    found = exact.k_best(4).log_joint
    assert np.abs(found - [weight for _, weight in weights]).max() < TIGHT
    rows, targets = ep.queries(case), np.arange(7)
    predictive = exact.predictive(rows)
    mean = en.predictive_mean(case.problem, case.scored, case.reference_leaf, rows)
    assert np.abs(predictive.mean() - mean).max() < TIGHT
    mass = en.predictive_density(case.problem, case.scored, case.reference_leaf, rows, targets)
    assert np.abs(predictive.log_density(targets) - np.log(mass)).max() < TIGHT


@pytest.mark.parametrize("model", ["leaf penalty, gaps", "depth decay, gaps"])
def test_counts(model):
    case = counts_case(model, 600)
    check(case, case.exact)
    with pytest.raises(AssertionError):
        check(case, case.posterior(leaf=PoissonGamma(1.3, 0.7)))


def test_partly_observed_counts():
    case = counts_case("leaf penalty, gaps", 601)
    observed = np.arange(len(case.y)) % 2 == 0
    scored = en.trees(case.problem, case.reference_prior, case.observing(observed))
    partly = case.posterior(observed=observed)
    assert abs(partly.log_partition - en.log_partition(scored)) < TIGHT


@pytest.mark.slow
def test_draws_of_trees_and_counts():
    case = counts_case("leaf penalty, gaps", 601)
    posterior = case.exact.sample(ep.key(1), chains=4, draws=5000)
    drawn = Counter(ep.rule_trees(case, posterior.trees))
    assert ep.g_test(drawn, case.probabilities) > ep.FALSE_ALARM
    rows = ep.queries(case)
    means = case.exact.predictive(rows).mean()
    targets = posterior.sample_predictive(ep.key(2), rows).reshape(-1, len(rows))
    error = targets.std(axis=0) / math.sqrt(len(targets))
    assert np.all(np.abs(targets.mean(axis=0) - means) < 5 * error)


def test_counts_of_single_rows_by_hand():
    with jax.enable_x64(True):
        leaf = PoissonGamma(1.0, 1.0)
        statistics = leaf.statistics(np.array([2]), np.array([1]))[0]
        # A geometric law: P(y) = 2^-(y + 1).
        assert float(leaf.log_marginal(statistics)) == pytest.approx(-3 * math.log(2))


def mixture(leaf, statistics, weights):
    rows = csr_array(np.atleast_2d(weights))
    return LeafMixture(leaf, np.asarray(statistics, float), rows, np.zeros(1, int))


@pytest.mark.slow
@pytest.mark.parametrize("exposure", [1.0, 2.5])
def test_predictions_of_counts_are_negative_binomial(exposure):
    leaf = PoissonGamma(1.5, 0.5, exposure)
    statistics, shares = [[4.0, 9.0, 3.0], [2.0, 30.0, 40.0]], [0.3, 0.7]
    found = mixture(leaf, statistics, shares)
    laws = [nbinom(1.5 + s, (r := 0.5 + exposure * n) / (r + exposure)) for n, s, _ in statistics]
    counts = np.arange(400)
    prior = nbinom(1.5, 0.5 / (0.5 + exposure))
    one_row = jnp.stack([jnp.ones(400), counts, jax.scipy.special.gammaln(counts + 1.0)], axis=-1)
    np.testing.assert_allclose(leaf.log_marginal(one_row), prior.logpmf(counts), rtol=1e-4)
    cdf = sum(share * law.cdf(counts) for share, law in zip(shares, laws, strict=True))
    mass = sum(share * law.pmf(counts) for share, law in zip(shares, laws, strict=True))
    assert found.mean()[0] == pytest.approx(mass @ counts)
    for count in (0, 3, 17, 50):
        assert np.exp(found.log_density(np.array([count])))[0] == pytest.approx(mass[count])
        assert found.cdf(np.array([count]))[0] == pytest.approx(cdf[count])
    assert found.cdf(np.array([-0.5]))[0] == 0
    wanted = [int(np.argmax(cdf >= p)) for p in (0.05, 0.5, 0.95)]
    assert found.quantiles([0.05, 0.5, 0.95])[0].tolist() == wanted
    score = ((cdf - (counts >= 12)) ** 2).sum()
    assert found.crps(np.array([12]))[0] == pytest.approx(score)
    # The twin: of another exposure the quantiles are others.
    other = mixture(PoissonGamma(1.5, 0.5, 3 * exposure), statistics, shares)
    assert other.quantiles([0.05, 0.5, 0.95])[0].tolist() != wanted


@pytest.mark.slow
def test_an_estimator_of_counts_draws_scores_and_saves(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(80, 2)).round(2)
    y = rng.poisson(np.where(X[:, 0] > 0.5, 9.0, 1.0))
    model = bdtppl.ExactTreeRegressor(leaf=PoissonGamma.of_targets(y), bins=5, random_state=0)
    model.fit(X, y)
    interval = model.predict_interval(X, 0.9)
    assert (interval == np.floor(interval)).all()
    assert 0.85 < ((interval[:, 0] <= y) & (y <= interval[:, 1])).mean() <= 1
    assert np.issubdtype(model.sample_predictive(X[:2], 5).dtype, np.number)
    table = bdtppl.compare({"counts": model}, X, y, cv=2)
    assert table.rows()[0]["crps"] is not None
    model.save(tmp_path / "model")
    assert (bdtppl.load(tmp_path / "model").predict(X) == model.predict(X)).all()
    bdtppl.plot_predictive(model)
    bdtppl.plot_density(model, X[:2], y[:2])
    bdtppl.plot_predictive_check(model)
    for bad, said in ((-1, "row 79: the target -1 is negative"), (0.5, "row 79: the target 0.5")):
        with pytest.raises(ValueError, match=said):
            model.fit(X, np.append(y[:-1], bad))


def test_a_law_without_a_usable_cdf_is_named():
    @pytree_dataclass
    class Broken(PoissonGamma):
        is_discrete = False

        def predictive(self, statistics):
            return _NotANumber(super().predictive(statistics).mean)

    class _NotANumber(dist.Normal):
        def cdf(self, value):
            return jnp.full(np.shape(value), jnp.nan)

    del LEAF_FAMILIES["Broken"]
    broken = mixture(Broken(1.0, 1.0), [[4.0, 9.0, 3.0]], [1.0])
    with pytest.raises(ValueError, match="cdf of the predictive of a Broken is not a number"):
        broken.quantiles([0.1])


def test_a_family_that_is_no_pytree_is_refused():
    class Bare(PoissonGamma):
        pass

    del LEAF_FAMILIES["Bare"]
    with pytest.raises(TypeError, match="Bare, which is not a pytree: decorate the class"):
        bdtppl.ExactTreeRegressor(leaf=Bare()).fit([[0.0], [1.0]], [1.0, 2.0])


def test_methods_of_the_wrong_shape_or_that_cannot_be_traced_are_named():
    @pytree_dataclass
    class Turned(PoissonGamma):
        def statistics(self, y, weight):
            return super().statistics(y, weight).T[:1]

    @pytree_dataclass
    class Branching(PoissonGamma):
        def log_marginal(self, statistics):
            return super().log_marginal(statistics) if statistics.sum() > 0 else 0.0

    for kind in (Turned, Branching):
        del LEAF_FAMILIES[kind.__name__]
    X, y = [[0.0], [1.0]], [1.0, 2.0]
    with pytest.raises(TypeError, match=r"Turned\.statistics must have shape \[n, s\]"):
        bdtppl.GreedyModalTreeRegressor(leaf=Turned()).fit(X, y)
    with pytest.raises(TypeError, match=r"Branching\.log_marginal cannot be traced by JAX"):
        bdtppl.GreedyModalTreeRegressor(leaf=Branching()).fit(X, y)


@pytest.mark.parametrize(
    ("y", "numbers", "said"),
    [
        ([0.0, 2.0], {"exposure": np.array([1.0, 2.0])}, "exposure must be one number"),
        ([0.0, np.nan], {}, "y, row 1: the target nan is not a whole number"),
        ([0.0, np.inf], {}, "y, row 1: the target inf is not a whole number"),
        ([0.0, -1.0], {}, "y, row 1: the target -1 is negative"),
        ([], {}, "y has no targets"),
    ],
)
def test_priors_of_what_are_no_counts_are_refused(y, numbers, said):
    with pytest.raises(ValueError, match=said):
        PoissonGamma.of_targets(np.array(y), **numbers)
