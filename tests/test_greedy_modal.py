"""The greedy modal tree against a plain recursion over sets of rows, and published figures."""

from dataclasses import replace

import enumeration as en
import exact_problems as ep
import numpy as np
import pytest
from sklearn.datasets import load_iris

from bdtppl.inference.greedy_modal.growth import grow
from bdtppl.inference.greedy_modal.problem import pose
from bdtppl.models.constraints import Constraints
from bdtppl.models.data import Design
from bdtppl.models.hard_tree import log_joint
from bdtppl.models.leaves import DirichletCategorical, NormalInverseGamma
from bdtppl.models.priors import DepthDecay, GreedyPartition, LeafPenalty

TIGHT = 1e-9


def posed(case: ep.Case, **options):
    model = case.design, case.y, case.prior, case.leaf, case.constraints
    return pose(*model, **options)


def choices(case: ep.Case, rows: frozenset[int], depth: int):
    """Score of stopping, and of every rule with its children, as definitions have them."""
    problem, prior, leaf = case.problem, case.reference_prior, case.reference_leaf
    stop = en.log_stop(problem, prior, rows, depth) + en.leaf_log_marginal(problem, leaf, rows)
    splits = {}
    for rule, left, right, log_weight in en.productions(problem, prior, rows, depth):
        if prior.counts_partitions:
            log_weight = -prior.log_phi
        children = sum(en.leaf_log_marginal(problem, leaf, child) for child in (left, right))
        splits[rule] = log_weight + children, log_weight
    return stop, splits


def check_is_greedy(case: ep.Case, tree, depth: int = 0) -> float:
    """Assert that every node takes its best partition; returns the tree's log joint."""
    rows = en.tree_rows(tree)
    stop, splits = choices(case, rows, depth)
    best = max((score for score, _ in splits.values()), default=-np.inf)
    if isinstance(tree, en.Leaf):
        assert best <= stop + TIGHT
        return stop
    score, log_weight = splits[tree.rule]
    assert score > stop - TIGHT
    assert score >= best - TIGHT
    return log_weight + sum(check_is_greedy(case, t, depth + 1) for t in (tree.left, tree.right))


@pytest.mark.parametrize("family", ep.FAMILIES)
@pytest.mark.parametrize("model", ep.MODELS)
def test_every_node_takes_its_most_probable_partition(model, family):
    for seed in range(8):
        case = ep.random_case(model, family, 7000 + seed)
        grown = grow(posed(case))
        found = check_is_greedy(case, ep.rule_tree(case, grown.tree))
        assert abs(found - grown.log_joint) < TIGHT, seed


@pytest.mark.parametrize("family", ep.FAMILIES)
@pytest.mark.parametrize("model", ep.SOME_MODELS)
def test_its_log_joint_is_that_of_the_model_and_at_most_the_best_tree_s(model, family):
    case = ep.random_case(model, family, 7050)
    grown = grow(posed(case))
    scored = log_joint(grown.tree, case.design, case.y, case.prior, case.leaf, case.constraints)
    assert abs(float(scored.log_joint) - grown.log_joint) < TIGHT
    assert abs(float(scored.log_likelihood) - grown.log_likelihood) < TIGHT
    assert grown.log_joint <= float(case.exact.k_best(1).log_joint[0]) + TIGHT


def test_a_tree_that_is_not_greedy_is_noticed():
    """The mutation twin: a tree grown under another prior fails the same check."""
    failures = 0
    for seed in range(12):
        case = ep.random_case("greedy partition, gaps", "classes", 7000 + seed)
        grown = grow(posed(replace(case, prior=GreedyPartition(0.3))))
        try:
            check_is_greedy(case, ep.rule_tree(case, grown.tree))
        except AssertionError:
            failures += 1
    assert failures >= 6


@pytest.mark.parametrize("model", ep.SOME_MODELS)
@pytest.mark.parametrize("family", ep.FAMILIES)
def test_smoothing_by_a_share_of_no_rows_changes_nothing(model, family):
    case = ep.random_case(model, family, 7100)
    plain, smoothed = grow(posed(case)), grow(posed(case, smoothing=1e-13))
    assert plain.tree.to_nested() == smoothed.tree.to_nested()
    assert abs(plain.log_joint - smoothed.log_joint) < 1e-8


def test_smoothing_adds_a_share_of_the_rows_to_the_prior_of_the_leaves():
    x = np.arange(12.0)[:, None]
    y = np.array([0] * 6 + [1] * 6)
    prior = GreedyPartition(0.99)
    leaf = DirichletCategorical.symmetric(2)
    grown = grow(pose(Design.from_matrix(x), y, prior, leaf, smoothing=0.5))
    child = int(grown.tree.left[0])
    np.testing.assert_allclose(grown.statistics[child], [6, 0])
    np.testing.assert_allclose(grown.pseudo[child], [3, 0])
    expected = DirichletCategorical(np.array([4.0, 1.0])).log_marginal(np.array([6.0, 0.0]))
    assert abs(grown.leaf_score[child] - float(expected)) < 1e-6


@pytest.mark.parametrize(
    ("p", "stop_pure", "leaves", "expected"),
    [
        # Nuti et al.'s program does not search nodes of one class; their paper does.
        (0.99, True, 7, -68.706),
        (0.99, False, 10, -68.581),
        (0.9, True, 5, -54.475070),
        (0.9, False, 5, -54.475070),
    ],
)
def test_iris_has_the_published_scores(p, stop_pure, leaves, expected):
    X, y = load_iris(return_X_y=True)
    design = Design.from_matrix(X)
    problem = pose(design, y, GreedyPartition(p), DirichletCategorical.symmetric(3))
    grown = grow(problem, stop_pure=stop_pure)
    assert grown.tree.num_leaves == leaves
    assert abs(grown.log_joint - expected) < (1e-6 if p == 0.9 else 1e-3)
    if p == 0.9:
        assert abs(grown.log_stop[0] + grown.leaf_score[0] + 171.237403) < 1e-6
        assert grown.tree.feature[0] == 3
        assert abs(grown.tree.threshold[0] - 0.8) < 1e-12
        split = (
            grown.log_weight[0] + grown.leaf_score[[grown.tree.left[0], grown.tree.right[0]]].sum()
        )
        assert abs(split + 87.056887) < 1e-6


def test_close_values_can_be_kept_together():
    x = np.repeat([0.0, 1.0, 1.001, 2.0], 10)[:, None]
    y = np.repeat([0.0, 0.0, 9.0, 9.0], 10)
    leaf = NormalInverseGamma(4.5, 1.0, 2.0, 0.1)
    problem = pose(Design.from_matrix(x), y, LeafPenalty(0.1), leaf)
    assert abs(grow(problem).tree.threshold[0] - 1.0005) < 1e-9
    apart = pose(Design.from_matrix(x), y, LeafPenalty(0.1), leaf, split_precision=0.01)
    assert not np.isclose(grow(apart).tree.threshold, 1.0005).any()


def test_a_table_without_a_rule_is_one_leaf():
    design = Design.from_matrix(np.ones((5, 2)))
    for constraints in (Constraints(), Constraints(max_depth=0)):
        leaf = DirichletCategorical.symmetric(2)
        grown = grow(pose(design, np.array([0, 1, 0, 1, 1]), DepthDecay(), leaf, constraints))
        assert grown.tree.num_leaves == 1
        assert grown.log_weight[0] == 0
        assert abs(grown.log_joint - grown.leaf_score[0]) < TIGHT
