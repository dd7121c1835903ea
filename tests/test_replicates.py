"""Replicated data sets share tree and leaf parameters: sums over rows have their known laws."""

import jax
import numpy as np
import pytest
from handmade import batch, posterior_of, split
from scipy import stats

from bdtppl.inference.hard.posterior import Posterior
from bdtppl.inference.predictive.replicates import replicate
from bdtppl.models.data.design import Design
from bdtppl.models.leaves import DirichletCategorical, NormalInverseGamma
from bdtppl.models.priors import LeafPenalty

DRAWS, ROWS = 2000, 12
MATRIX = np.zeros((ROWS, 1))


def one_leaf(leaf, y):
    """The posterior of a tree of one leaf."""
    return posterior_of([{}], (1, 1), matrix=np.zeros((len(y), 1)), y=y, leaf=leaf)


def independent(posterior):
    """The twin: every row has leaf parameters of its own."""
    matrix = np.zeros((DRAWS * ROWS, 1))
    drawn = posterior.predictive(matrix).sample(jax.random.key(1), 1)
    return drawn.reshape(DRAWS, ROWS)


def count_p_value(replicates):
    """Chi-squared test of the numbers of rows of class 0."""
    law = stats.betabinom(ROWS, 3 + 1.0, 1 + 0.5).pmf(np.arange(ROWS + 1))
    counts = np.bincount((replicates == 0).sum(axis=1), minlength=ROWS + 1)
    kept = law * DRAWS > 5
    observed, expected = (
        np.append(each[kept], each[~kept].sum()) for each in (counts, law * DRAWS)
    )
    return stats.chisquare(observed[expected > 0], expected[expected > 0]).pvalue


def mean_p_value(replicates, leaf, y):
    """Kolmogorov-Smirnov test of the means of rows."""
    n, shift = len(y), y.mean() - leaf.mean
    count = leaf.pseudo_count + n
    mean = leaf.mean + n * shift / count
    squares = n * y.var() + leaf.pseudo_count * n / count * shift**2
    shape, scale = leaf.shape + n / 2, leaf.scale + squares / 2
    width = np.sqrt(scale / shape * (1 / ROWS + 1 / count))
    law = stats.t(2 * shape, mean, width)
    return stats.kstest(replicates.mean(axis=1), law.cdf).pvalue


def test_counts_of_classes_are_beta_binomial():
    posterior = one_leaf(DirichletCategorical(np.array([1.0, 0.5])), np.array([0, 0, 1, 0]))
    replicates = replicate(jax.random.key(0), posterior, MATRIX, DRAWS)
    assert replicates.shape == (DRAWS, ROWS)
    assert count_p_value(replicates) > 1e-4  # the rate of false alarms
    assert count_p_value(independent(posterior)) < 1e-4


def test_means_of_real_targets_are_student_t():
    leaf, y = NormalInverseGamma(0.5, 1.5, 2.0, 1.2), np.array([0.2, 1.4, 2.2])
    posterior = one_leaf(leaf, y)
    assert mean_p_value(replicate(jax.random.key(0), posterior, MATRIX, DRAWS), leaf, y) > 1e-4
    assert mean_p_value(independent(posterior), leaf, y) < 1e-4


def test_rows_follow_the_tree_that_was_drawn():
    """Two stumps, of weights 1/4 and 3/4, whose leaves are as good as certain."""
    nested = [split(0, 0.5), split(0, 1.5)]
    sure = np.array([[0.0, 0.0], [1e6, 0.0], [0.0, 1e6]])
    posterior = Posterior(
        trees=batch(nested, (1, 2)),
        statistics=np.broadcast_to(sure, (1, 2, 3, 2)),
        sample_stats={"log_joint": np.array([[0.0, 1.0]])},
        leaf=DirichletCategorical.symmetric(2, 1e-3),
        prior=LeafPenalty(),
        design=Design.from_matrix(np.arange(3.0)[:, None]),
        y=np.array([0, 1, 1]),
        log_evidence=0.0,
        log_weights=np.log([[0.25, 0.75]]),
    )
    replicates = replicate(jax.random.key(0), posterior, np.arange(3.0)[:, None], 400)
    assert replicates[:, 0].max() == 0
    assert replicates[:, 2].min() == 1
    assert (replicates[:, 1] == 1).mean() == pytest.approx(0.25, abs=0.003)
