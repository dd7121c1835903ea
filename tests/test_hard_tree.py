"""The log joint of single trees, against the chart, which shares no code with it."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from sklearn.tree import DecisionTreeClassifier
from tiers import few_of

from bdtppl.inference.pcfg.compiler import compile_grammar
from bdtppl.inference.pcfg.exact import ExactPosterior
from bdtppl.models.constraints import Constraints
from bdtppl.models.data.design import Design
from bdtppl.models.hard.log_joint import log_joint
from bdtppl.models.hard.tree import Tree
from bdtppl.models.hard.tree_model import TreeModel
from bdtppl.models.leaves import DirichletCategorical, NormalInverseGamma
from bdtppl.models.priors import DepthDecay, DescriptionLength, GreedyPartition, LeafPenalty

PRIORS = [
    LeafPenalty(0.4),
    LeafPenalty(0.4, rules="cuts"),
    DescriptionLength(),
    DescriptionLength(1.0, rules="gaps"),
    DepthDecay(0.9, 0.3),
    DepthDecay(0.9, 0.3, rules="cuts"),
    DepthDecay(0.9, 0.3, cut_weights="gap"),
    DepthDecay(0.9, 0.3, cut_weights="gap", rules="cuts"),
    GreedyPartition(0.9),
]


def _problem(seed):
    rng = np.random.default_rng(seed)
    matrix = rng.integers(0, 5, (25, 3)).astype(float) ** 1.5
    matrix[rng.random(25) < 0.15, 1] = np.nan
    design = Design.from_matrix(
        matrix, weights=rng.integers(1, 4, 25), grid=6 if seed % 2 else None
    )
    return design, rng.integers(0, 3, 25), rng.normal(size=25)


def _check(prior, scored_under, seed, real, constraints):
    design, labels, values = _problem(seed)
    y = values if real else labels
    leaf = (
        NormalInverseGamma(0.1, 2.0, 3.0, 1.5) if real else DirichletCategorical.symmetric(3, 0.7)
    )
    grammar = compile_grammar(design, rules=prior.rules, constraints=constraints)
    posterior = ExactPosterior(grammar, prior, leaf, y).sample(
        jax.random.key(seed), chains=2, draws=40
    )
    scored = log_joint(posterior.trees, TreeModel(design, y, scored_under, leaf, constraints))
    for name in ("log_joint", "log_likelihood"):
        np.testing.assert_allclose(
            getattr(scored, name), posterior.sample_stats[name], rtol=1e-9, atol=1e-9
        )


LIMITS = [Constraints(), Constraints(min_leaf=3, max_depth=3, features=(0, 1))]


@pytest.mark.parametrize("number", [4])
def test_agrees_with_the_chart(number):
    prior, odd = PRIORS[number], number % 2
    _check(prior, prior, odd, bool(odd), LIMITS[odd])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("prior", "seed", "real", "constraints"),
    few_of(
        [
            pytest.param(prior, i % 3, bool(j % 2), limits, id=f"{prior}-{j % 2}-{k}")
            for i, prior in enumerate(PRIORS)
            for k, limits in enumerate(LIMITS)
            for j in [i + k]
        ],
        8,
    ),
)
def test_agrees_with_the_chart_everywhere(prior, seed, real, constraints):
    _check(prior, prior, seed, real, constraints)


@pytest.mark.parametrize("prior", PRIORS[:1] + PRIORS[4:5], ids=str)
def test_another_prior_does_not_agree(prior):
    other = DepthDecay(0.8, 0.3) if isinstance(prior, DepthDecay) else LeafPenalty(0.5)
    with pytest.raises(AssertionError):
        _check(prior, other, 0, False, Constraints())


def test_trees_that_the_model_rules_out_score_minus_infinity():
    design = Design.from_matrix(np.array([[0.0, 1], [1, 1], [2, 3]]))
    y, leaf = np.array([0, 1, 1]), DirichletCategorical.symmetric(2)

    def score(nested, **limits):
        tree = Tree.from_nested(nested, capacity=5)
        return log_joint(
            tree, TreeModel(design, y, LeafPenalty(1.0), leaf, Constraints(**limits))
        ).log_joint

    stump = {"feature": 0, "threshold": 0.5, "left": {}, "right": {}}
    assert np.isfinite(score(stump))
    assert score({**stump, "threshold": -1.0}) == -np.inf  # an empty leaf
    assert score(stump, min_leaf=2) == -np.inf
    assert score(stump, max_depth=0) == -np.inf
    assert score(stump, features=(1,)) == -np.inf
    deep = {**stump, "right": {"feature": 1, "threshold": 2.0, "left": {}, "right": {}}}
    assert np.isfinite(score(deep, max_depth=2))
    assert score(deep, max_depth=1) == -np.inf


@pytest.mark.parametrize("rules", ["gaps", "cuts"])
def test_trees_of_scikit_learn_are_scored_as_their_rules(rules):
    """Their flags of missing values mean nothing without some; their thresholds are of float32."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3))
    y = (X[:, 0] + rng.normal(size=60) > 0).astype(int)
    fitted = DecisionTreeClassifier(max_leaf_nodes=5, random_state=0).fit(X, y)
    tree = Tree.from_sklearn(fitted)
    tree = replace(tree, missing_left=tree.feature >= 0)
    leaf = DirichletCategorical.symmetric(2)
    model = TreeModel(Design.from_matrix(X), y, DepthDecay(rules=rules), leaf)
    place = fitted.apply(X)
    counts = [np.bincount(y[place == one], minlength=2) for one in np.unique(place)]
    wanted = sum(float(leaf.log_marginal(np.array(count, float))) for count in counts)
    scored = log_joint(tree, model)
    assert float(scored.log_likelihood) == pytest.approx(wanted, abs=1e-4)
    assert np.isfinite(scored.log_joint)
