"""A leaf family that the package has never seen works in the exact posterior as it is.

Counts with a Poisson law whose rate has a gamma prior, against the enumeration of all trees. The
statistical test has a false-alarm rate of 1e-4 and a fixed seed.
"""

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import enumeration as en
import exact_problems as ep
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from exact_problems import TIGHT
from jax.scipy.special import gammaln
from numpyro.distributions import constraints

from bdtppl.models.leaves import Leaf
from bdtppl.models.pytrees import pytree_dataclass


class NegativeBinomial(dist.GammaPoisson):
    """NumPyro's law by `gammaln`: JAX's `betaln` is right to 1e-6 only."""

    def log_prob(self, value):
        shape, rate = self.concentration, self.rate
        choices = gammaln(shape + value) - gammaln(shape) - gammaln(value + 1.0)
        return choices + shape * jnp.log(rate) - (shape + value) * jnp.log1p(rate)


@pytree_dataclass
class PoissonGamma:
    """Counts; statistics are (rows, sum of y, sum of log y!), [..., 3]."""

    shape: Any
    rate: Any

    parameter_support: ClassVar[dict] = {
        "shape": constraints.positive,
        "rate": constraints.positive,
    }

    def statistics(self, y, weight):
        y, weight = jnp.asarray(y, float), jnp.asarray(weight, float)
        return jnp.stack([weight, weight * y, weight * gammaln(y + 1)], axis=-1)

    def log_marginal(self, statistics):
        shape, rate = self.shape + statistics[..., 1], self.rate + statistics[..., 0]
        return (
            gammaln(shape)
            - gammaln(self.shape)
            + self.shape * jnp.log(self.rate)
            - shape * jnp.log(rate)
            - statistics[..., 2]
        )

    def posterior_mean(self, statistics):
        return (self.shape + statistics[..., 1]) / (self.rate + statistics[..., 0])

    def predictive(self, statistics):
        return NegativeBinomial(self.shape + statistics[..., 1], self.rate + statistics[..., 0])

    def sample(self, rng_key, statistics):
        return self.predictive(statistics).sample(rng_key)


@dataclass(frozen=True, eq=False)
class ReferencePoissonGamma:
    """The same law, predictive by predictive."""

    counts: list
    shape: float
    rate: float
    observed: Any = None

    def posterior(self, problem, rows):
        seen = en.observed_values(problem, self.counts, self.observed, rows)
        return self.shape + sum(seen), self.rate + len(seen)

    def log_marginal(self, problem, rows):
        total, shape, rate = 0.0, self.shape, self.rate
        for count in en.observed_values(problem, self.counts, self.observed, rows):
            total += math.log(self._mass(shape, rate, count))
            shape, rate = shape + count, rate + 1
        return total

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
    assert isinstance(case.leaf, Leaf)
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
