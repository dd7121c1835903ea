"""Leaving a row out by weights is fitting without it: all trees of a small chart, weighed anew."""

import numpy as np
import pytest
from tiers import slow_but

from bdtppl.inference.hard.posterior import Posterior
from bdtppl.inference.pcfg.compiler import compile_grammar
from bdtppl.inference.pcfg.exact import ExactPosterior
from bdtppl.inference.predictive.leave_one_out import leave_one_out
from bdtppl.inference.soft.mixture import NoiseMixture
from bdtppl.models.data.design import Design
from bdtppl.models.leaves import DirichletCategorical, NormalInverseGamma
from bdtppl.models.priors import DepthDecay

X = np.array([[0.0, 3.0], [1.0, 1.0], [2.0, 2.0], [3.0, 0.0], [4.0, 1.5]])
CASES = {
    "classes": (DirichletCategorical(np.array([1.0, 0.5])), np.array([0, 0, 1, 1, 0])),
    "reals": (NormalInverseGamma(1.0, 0.5, 2.0, 0.7), np.array([0.1, 0.3, 2.2, 1.9, 0.4])),
}


def problem(name):
    leaf, y = CASES[name]
    return compile_grammar(Design.from_matrix(X)), DepthDecay(0.7, 1.0), leaf, y


def all_trees(grammar, prior, leaf, y):
    """A posterior whose draws are all the trees there are, weighed by their probabilities."""
    best = ExactPosterior(grammar, prior, leaf, y).k_best(100_000)
    assert best.probability.sum() == pytest.approx(1)
    return Posterior(
        trees=best.trees.reshape(1, -1),
        statistics=best.statistics[None],
        sample_stats={"log_joint": best.log_joint[None]},
        leaf=leaf,
        prior=prior,
        design=grammar.design,
        y=y,
        log_evidence=0.0,
        log_weights=np.log(best.probability)[None],
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but(("reals",), CASES))
def test_weights_take_a_row_out(name):
    grammar, prior, leaf, y = problem(name)
    posterior = all_trees(grammar, prior, leaf, y)
    found = leave_one_out(posterior)
    for row in range(len(y)):
        others = ExactPosterior(grammar, prior, leaf, y, observed=np.arange(len(y)) != row)
        predictive = others.predictive(X[row : row + 1])
        np.testing.assert_allclose(found.mean[row], predictive.mean()[0], rtol=1e-9)
        own = predictive.log_density(y[row : row + 1])[0]
        assert found.log_density[row] == pytest.approx(own, rel=1e-9)
        if name == "reals":
            assert found.cdf[row] == pytest.approx(predictive.cdf(y[row : row + 1])[0], rel=1e-9)
    assert (found.efficiency <= 1 + 1e-12).all()
    # The twin: rows that stay in predict themselves better.
    kept = posterior.predictive(X)
    assert (kept.log_density(y) > found.log_density + 0.01).all()
    some = leave_one_out(posterior, [3, 1])
    np.testing.assert_allclose(some.mean, found.mean[[3, 1]])


def test_cdfs_are_inverse_to_quantiles():
    grammar, prior, leaf, y = problem("reals")
    mixture = ExactPosterior(grammar, prior, leaf, y).predictive(X)
    for p in (0.01, 0.4, 0.95):
        np.testing.assert_allclose(mixture.cdf(mixture.quantiles([p])[:, 0]), p, atol=1e-10)
    rng = np.random.default_rng(0)
    soft = NoiseMixture(rng.normal(size=(9, 4)), rng.uniform(0.5, 2, (9, 4)), 3.0)
    np.testing.assert_allclose(soft.cdf(soft.quantiles([0.3])[:, 0]), 0.3, atol=1e-9)
