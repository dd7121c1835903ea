"""Draws from the prior: targets share their leaf's parameters, and trees are those of the prior."""

import jax
import numpy as np
import pytest
from scipy import stats

from bdtppl.inference.prior_predictive.draws import (
    draw_prior_targets,
    draw_prior_trees,
    draw_soft_prior,
)
from bdtppl.inference.prior_predictive.trees import PriorTrees
from bdtppl.inference.soft.posterior import SoftPosterior
from bdtppl.models.constraints import Constraints
from bdtppl.models.data.design import Design
from bdtppl.models.hard.tree import Tree
from bdtppl.models.leaves import DirichletCategorical, NormalInverseGamma
from bdtppl.models.priors import DepthDecay, LeafPenalty
from bdtppl.models.soft.topology import Topology, TopologyPrior
from bdtppl.models.soft.tree import SoftClassification, SoftRegression
from bdtppl.models.soft.tree_batch import SoftTrees

ROWS = np.array([[0.0], [0.0], [1.0]])
STUMP = Tree.from_nested({"feature": 0, "threshold": 0.5, "left": {}, "right": {}})
FALSE_ALARM = 1e-4
DRAWS = 4000


def repeated(tree: Tree, number: int) -> Tree:
    return tree.reshape(1)[np.zeros(number, int)]


@pytest.fixture(scope="module")
def labels() -> np.ndarray:
    leaf = DirichletCategorical([1.0, 2.0])
    return draw_prior_targets(jax.random.key(0), repeated(STUMP, DRAWS), leaf, ROWS)


def p_value(labels: np.ndarray) -> float:
    """Hold pairs of labels in one leaf to the Dirichlet-multinomial, by a chi-squared test."""
    counts = np.bincount(2 * labels[:, 0] + labels[:, 1], minlength=4)
    # Of labels (i, j): a_i (a_j + [i = j]) / (A (A + 1)) with a = (1, 2), A = 3.
    return stats.chisquare(counts, DRAWS * np.array([2, 2, 2, 6]) / 12).pvalue


def test_labels_of_one_leaf_share_its_probabilities(labels):
    assert p_value(labels) > FALSE_ALARM
    table = np.bincount(2 * labels[:, 0] + labels[:, 2], minlength=4).reshape(2, 2)
    assert stats.chi2_contingency(table).pvalue > FALSE_ALARM  # leaves are independent


def test_check_of_labels_sees_independent_ones(labels):
    shuffled = labels.copy()
    shuffled[:, 1] = np.roll(shuffled[:, 1], 1)
    assert p_value(shuffled) < FALSE_ALARM


def test_values_of_one_leaf_are_jointly_student():
    """Their mean and their difference are Student-t: tests of Kolmogorov and Smirnov."""
    leaf = NormalInverseGamma(1.0, 0.5, 3.0, 2.0)
    trees = repeated(STUMP, DRAWS)
    values = draw_prior_targets(jax.random.key(1), trees, leaf, ROWS) - 1.0
    scale = np.sqrt(2.0 / 3.0)
    mean, apart = values[:, :2].mean(axis=1), values[:, 0] - values[:, 1]
    for drawn, width in [
        (values[:, 2], scale * np.sqrt(1 + 1 / 0.5)),
        (mean, scale * np.sqrt(1 / 2 + 1 / 0.5)),
        (apart, scale * np.sqrt(2)),
    ]:
        assert stats.kstest(drawn / width, stats.t(6.0).cdf).pvalue > FALSE_ALARM
    assert stats.kstest(apart / (scale * np.sqrt(2 + 4 / 0.5)), stats.t(6.0).cdf).pvalue < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("prior", [DepthDecay(0.7, 1.0), LeafPenalty(1.0)])
def test_trees_are_drawn_by_their_prior_probability(prior):
    design = Design.from_matrix(np.arange(3.0)[:, None])
    known = PriorTrees(design, prior).enumerate()
    drawn = draw_prior_trees(jax.random.key(2), design, prior, Constraints(), DRAWS)
    leaves = np.bincount(drawn.num_leaves, minlength=4)[1:]
    wanted = np.bincount(known.trees.num_leaves, np.exp(known.log_prob), minlength=4)[1:]
    assert stats.chisquare(leaves, DRAWS * wanted).pvalue > FALSE_ALARM


def soft_posterior(model) -> SoftPosterior:
    """Make what a prior is drawn beside: rows, scaling and one draw of no account."""
    sites = model.draw_prior(np.random.default_rng(0), 1, 0, 2)
    unknown = np.full(1, np.nan)
    return SoftPosterior(
        model=model,
        sharpness=0.01,
        matrix=np.array([[10.0, 0.0], [20.0, 4.0]]),
        y=np.zeros(2, int),
        scaling=np.array([[10.0, 0.0], [10.0, 4.0]]),
        names=("a", "b"),
        topologies=(Topology(),),
        probability=np.ones(1),
        log_evidences=unknown,
        log_evidence_ses=unknown,
        trees=SoftTrees.of_topology(Topology(), np.ones((1, 0, 2)), np.zeros((1, 0)), sites)[None],
        topology=np.zeros((1, 1), int),
    )


def test_soft_trees_are_drawn_by_the_prior_of_topologies():
    prior, posterior = TopologyPrior(0.6, 1.0), soft_posterior(SoftRegression())
    drawn = draw_soft_prior(np.random.default_rng(0), posterior, prior, DRAWS, max_splits=2)
    assert {shape.num_splits for shape in drawn.topologies} == {0, 1, 2}
    wanted = np.exp([prior.log_prob(shape) for shape in drawn.topologies])
    counts = np.bincount(drawn.topology.ravel())
    assert stats.chisquare(counts, DRAWS * wanted / wanted.sum()).pvalue > FALSE_ALARM
    assert (drawn.trees.is_leaf.sum(axis=-1) == drawn.num_leaves).all()
    rng = np.random.default_rng(0)
    some = draw_soft_prior(
        rng, posterior, prior, 50, max_splits=1, with_leaf=False, hard_inputs=True
    )
    assert (some.num_leaves == 2).all()
    assert set(np.unique(some.trees.direction)) == {0.0, 1.0}


def test_equation_8_draws_no_labels():
    posterior = soft_posterior(SoftClassification(concentration=(1.0, 1.0)))
    with pytest.raises(ValueError, match="equation 8"):
        draw_soft_prior(np.random.default_rng(0), posterior, TopologyPrior(), 3)
