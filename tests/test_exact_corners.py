"""Corners of the exact posterior: precision, extreme targets, rules that a design does not have."""

import inspect
import sys

import jax
import numpy as np
import pytest
from scipy.special import gammaln
from scipy.stats import t as student

from bdtppl.inference.empirical_bayes import empirical_bayes
from bdtppl.inference.pcfg.compiler import compile_grammar
from bdtppl.inference.pcfg.exact import ExactPosterior
from bdtppl.inference.pcfg.marginal import TreeMarginal
from bdtppl.models.data.design import Design
from bdtppl.models.hard.log_joint import log_joint
from bdtppl.models.hard.tree import Tree
from bdtppl.models.hard.tree_model import TreeModel
from bdtppl.models.leaves import DirichletCategorical, NormalInverseGamma
from bdtppl.models.priors import DepthDecay, LeafPenalty


@pytest.fixture(name="rows")
def _rows():
    rng = np.random.default_rng(0)
    return Design.from_matrix(rng.normal(size=(12, 2))), rng.normal(size=12)


@pytest.mark.slow
def test_a_chart_first_laid_out_for_prior_draws_is_in_double_precision(rows):
    design, y = rows
    prior, leaf = DepthDecay(cut_weights="gap"), NormalInverseGamma.from_targets(y)
    fresh, drawn = (compile_grammar(design, keep=False) for _ in range(2))
    TreeMarginal(drawn, prior, leaf).sample(jax.random.key(0), (1,))
    expected = ExactPosterior(fresh, prior, leaf, y).log_evidence
    assert ExactPosterior(drawn, prior, leaf, y).log_evidence == expected


def test_single_precision_targets_are_summed_in_double_precision(rows):
    design, y = rows
    single = (y + 100).astype(np.float32)
    leaf = NormalInverseGamma.from_targets(single)
    log_evidence = [
        ExactPosterior(compile_grammar(design), LeafPenalty(), leaf, targets).log_evidence
        for targets in (single, single.astype(np.float64))
    ]
    assert log_evidence[0] == log_evidence[1]


def _log_marginal(y, mean, pseudo_count, shape, scale):
    n, total = len(y), pseudo_count + len(y)
    squares = ((y - y.mean()) ** 2).sum() + pseudo_count * n / total * (y.mean() - mean) ** 2
    return (
        gammaln(shape + n / 2)
        - gammaln(shape)
        + shape * np.log(scale)
        - (shape + n / 2) * np.log(scale + squares / 2)
        + np.log(pseudo_count / total) / 2
        - n / 2 * np.log(2 * np.pi)
    )


def test_squares_of_targets_far_from_zero_do_not_cancel(rows):
    y = 1e6 + 1e-3 * rows[1]
    leaf = NormalInverseGamma(1e6, 1.0, 2.0, 1e-6)
    with jax.enable_x64(True):
        statistics = np.asarray(leaf.statistics(y, np.ones(len(y)))).sum(axis=0)
        found = float(leaf.log_marginal(statistics))
    assert found == pytest.approx(_log_marginal(y, 1e6, 1.0, 2.0, 1e-6), abs=1e-6)


@pytest.mark.parametrize("size", [3, 6, 7, 10])
def test_equal_targets_have_no_variance_however_their_mean_is_rounded(size):
    leaf = NormalInverseGamma.from_targets(np.full(size, 0.1), np.full(size, 3))
    assert (leaf.mean, leaf.scale) == (0.1, 1.0)


@pytest.mark.parametrize("factor", [1e200, 1e-200])
def test_targets_whose_variance_is_no_float_are_refused(rows, factor):
    with pytest.raises(ValueError, match="rescale y"):
        NormalInverseGamma.from_targets(rows[1] * factor)


def test_log_density_far_from_every_leaf_is_finite():
    y = np.random.default_rng(0).normal(size=2000)
    leaf = NormalInverseGamma(0.0, 1.0, 2.0, 1.0)
    design = Design.from_matrix(np.zeros((len(y), 1)))
    exact = ExactPosterior(compile_grammar(design), LeafPenalty(), leaf, y)
    found = exact.predictive(np.zeros((1, 1))).log_density(np.array([100.0]))[0]
    shape, total = 2 + len(y) / 2, 1 + len(y)
    scale = 1 + ((y**2).sum() - y.sum() ** 2 / total) / 2
    width = np.sqrt(scale * (total + 1) / (shape * total))
    assert found == pytest.approx(student.logpdf(100.0, 2 * shape, y.sum() / total, width))
    assert found < -1000


@pytest.mark.parametrize("factor", [1e-150, 1e-27, 1e100])
def test_quantiles_scale_with_the_targets(rows, factor):
    design, y = rows

    def quantiles(targets):
        leaf = NormalInverseGamma.from_targets(targets)
        exact = ExactPosterior(compile_grammar(design), LeafPenalty(), leaf, targets)
        return exact.predictive(design.matrix[:3]).quantiles([0.01, 0.5, 0.95])

    np.testing.assert_allclose(quantiles(y * factor) / factor, quantiles(y), rtol=1e-8)


@pytest.mark.parametrize(("threshold", "is_rule"), [(2.5, False), (4.2, True), (4.5, True)])
def test_a_tree_that_parts_a_bucket_is_ruled_out(threshold, is_rule):
    design = Design.from_matrix(np.arange(10.0)[:, None], bins=2)
    stump = Tree.from_nested({"feature": 0, "threshold": threshold, "left": {}, "right": {}})
    scored = log_joint(
        stump, TreeModel(design, np.arange(10.0), LeafPenalty(), NormalInverseGamma(4.5))
    )
    assert np.isfinite(scored.log_joint) == is_rule


def test_empirical_bayes_refuses_to_start_at_an_edge(rows):
    design, y = rows
    prior, leaf = DepthDecay(beta=0.0), NormalInverseGamma.from_targets(y)
    exact = ExactPosterior(compile_grammar(design), prior, leaf, y)
    with pytest.raises(ValueError, match="beta starts at the edge of its range"):
        empirical_bayes(exact, parameters=["alpha", "beta"])


def test_the_best_trees_can_be_deeper_than_the_stack():
    n = 120
    design = Design.from_matrix(np.arange(float(n))[:, None])
    leaf = DirichletCategorical.symmetric(2)
    # Nothing is observed, so all trees that part all rows tie, and the first of them is a chain.
    y, observed = np.zeros(n, int), np.zeros(n, bool)
    exact = ExactPosterior(compile_grammar(design), LeafPenalty(-5.0), leaf, y, observed)
    exact.k_best(1)  # compiles
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + 60)
    try:
        best = exact.k_best(3)
    finally:
        sys.setrecursionlimit(limit)
    assert best.trees.depth.max() > 100
    assert (np.diff(best.log_joint) <= 0).all()


@pytest.mark.parametrize("penalty", [1.5, 900.0])
def test_splits_that_weigh_far_more_than_stopping_are_added_up(penalty):
    """Splitting 4,000 rows into their classes weighs e^2,700 times as much as one leaf."""
    design = Design.from_matrix(np.array([[0.0], [1.0], [2.0]]), weights=np.array([2000, 2000, 1]))
    y, leaf = np.array([0, 1, 0]), DirichletCategorical.symmetric(2)
    exact = ExactPosterior(compile_grammar(design), LeafPenalty(penalty), leaf, y)

    def score(*counts):
        with jax.enable_x64(True):
            return float(leaf.log_marginal(np.array(counts, float)))

    first, second, third = (2000, 0), (0, 2000), (1, 0)
    pairs = [
        np.logaddexp(score(2000, 2000), score(*first) + score(*second) - penalty) + score(*third),
        np.logaddexp(score(1, 2000), score(*second) + score(*third) - penalty) + score(*first),
    ]
    expected = np.logaddexp.reduce([score(2001, 2000), *(pair - penalty for pair in pairs)])
    assert expected - score(2001, 2000) > 709
    np.testing.assert_allclose(exact.log_partition, expected, rtol=1e-12)
