"""The greedy modal tree against a plain recursion over sets of rows, and published figures."""

from dataclasses import replace
from itertools import cycle, product

import enumeration as en
import exact_problems as ep
import jax
import numpy as np
import pytest
from sklearn.datasets import load_iris
from tiers import slow_but

from bdtppl.inference.greedy_modal.growth import grow, prune
from bdtppl.inference.greedy_modal.node import partition_posterior
from bdtppl.inference.greedy_modal.problem import pose
from bdtppl.inference.greedy_modal.tree_space import tree_space
from bdtppl.inference.pcfg.compiler import compile_grammar
from bdtppl.inference.pcfg.exact import ExactPosterior
from bdtppl.models.constraints import Constraints
from bdtppl.models.data.design import Design
from bdtppl.models.hard.log_joint import log_joint
from bdtppl.models.hard.tree import route
from bdtppl.models.hard.tree_model import TreeModel
from bdtppl.models.leaves import DirichletCategorical, NormalInverseGamma
from bdtppl.models.priors import DepthDecay, GreedyPartition, LeafPenalty

TIGHT = 1e-9
# In the fast run the families of leaves take turns.
ONE_EACH = list(zip(ep.SOME_MODELS, cycle(ep.FAMILIES), strict=False))[::2]


def posed(case: ep.Case, **options):
    model = case.design, case.y, case.prior, case.leaf, case.constraints
    return pose(TreeModel(*model), **options)


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


def value(case: ep.Case, rows: frozenset[int], depth: int, lookahead: int) -> float:
    """What a node is worth with that many levels of splits below it."""
    stop, splits = choices(case, rows, depth)
    return max([stop, *(v for v, _ in ahead(case, rows, depth, splits, lookahead).values())])


def ahead(case: ep.Case, rows, depth: int, splits: dict, lookahead: int) -> dict:
    """Values of a node's rules when each side goes on for that many levels."""
    if lookahead == 1:
        return splits
    found = {}
    for rule, left, right, _ in en.productions(case.problem, case.reference_prior, rows, depth):
        log_weight = splits[rule][1]
        sides = sum(value(case, side, depth + 1, lookahead - 1) for side in (left, right))
        found[rule] = log_weight + sides, log_weight
    return found


def check_is_greedy(
    case: ep.Case, tree, depth: int = 0, lookahead: int = 1, below: int = 0
) -> float:
    """Assert that nodes from a depth on take their best partition; returns the log joint."""
    rows = en.tree_rows(tree)
    stop, splits = choices(case, rows, depth)
    splits = ahead(case, rows, depth, splits, lookahead)
    best = max((score for score, _ in splits.values()), default=-np.inf)
    if isinstance(tree, en.Leaf):
        assert depth < below or best <= stop + TIGHT
        return stop
    score, log_weight = splits[tree.rule]
    assert depth < below or score > stop - TIGHT
    assert depth < below or score >= best - TIGHT
    sides = (tree.left, tree.right)
    return log_weight + sum(check_is_greedy(case, t, depth + 1, lookahead, below) for t in sides)


@pytest.mark.parametrize("family", ep.FAMILIES)
@pytest.mark.parametrize("model", ep.MODELS)
def test_every_node_takes_its_most_probable_partition(model, family):
    for seed in range(8):
        case = ep.random_case(model, family, 7000 + seed)
        grown = grow(posed(case))
        found = check_is_greedy(case, ep.rule_tree(case, grown.tree))
        assert abs(found - grown.log_joint) < TIGHT, seed


@pytest.mark.parametrize(
    ("model", "family"),
    slow_but(ONE_EACH, product(ep.SOME_MODELS, ep.FAMILIES)),
)
def test_its_log_joint_is_that_of_the_model_and_at_most_the_best_tree_s(model, family):
    case = ep.random_case(model, family, 7050)
    grown = grow(posed(case))
    scored = log_joint(grown.tree, case.model)
    assert abs(float(scored.log_joint) - grown.log_joint) < TIGHT
    assert abs(float(scored.log_likelihood) - grown.log_likelihood) < TIGHT
    assert grown.log_joint <= float(case.exact.k_best(1).log_joint[0]) + TIGHT


@pytest.mark.parametrize("lookahead", [2, 3])
@pytest.mark.parametrize(
    ("model", "family"),
    slow_but(ONE_EACH, product(ep.MODELS, ep.FAMILIES), few=8),
)
def test_looking_ahead_takes_the_partition_that_is_best_some_levels_on(model, family, lookahead):
    for seed in range(3 - lookahead):
        case = ep.random_case(model, family, 7200 + seed)
        grown = grow(posed(case), lookahead=lookahead)
        tree = ep.rule_tree(case, grown.tree)
        assert abs(check_is_greedy(case, tree, 0, lookahead) - grown.log_joint) < TIGHT, seed
        assert grown.log_joint <= float(case.exact.k_best(1).log_joint[0]) + TIGHT


def test_a_tree_that_does_not_look_ahead_is_noticed():
    case = ep.random_case("leaf penalty, gaps", "classes", 7217)
    tree = ep.rule_tree(case, grow(posed(case)).tree)
    check_is_greedy(case, tree)
    with pytest.raises(AssertionError):
        check_is_greedy(case, tree, 0, 2)


@pytest.mark.parametrize("root_levels", [1, 2])
@pytest.mark.parametrize("model", slow_but(ep.SOME_MODELS[::2], ep.SOME_MODELS))
def test_trees_grow_from_all_of_the_best_partitions_of_the_first_nodes(model, root_levels):
    """Each tree is greedy below the first levels, and these hold every pick of the best."""
    num_roots = 3
    for seed in range(4):
        case = ep.random_case(model, "classes", 7700 + seed)
        trees = tree_space(posed(case), num_roots, root_levels=root_levels)
        found = set()
        for grown in trees:
            tree = ep.rule_tree(case, grown.tree)
            joint = check_is_greedy(case, tree, below=root_levels)
            assert abs(joint - grown.log_joint) < TIGHT
            found.add(first_rules(tree, root_levels))
        assert len(found) == len(trees)
        expected = picks(case, case.problem.all_rows, 0, num_roots, root_levels)
        assert len(trees) == len(expected)
        # Equal scores may be listed in another order, so what is compared are the scores.
        scores = [sorted(score(case, pick) for pick in each) for each in (found, expected)]
        np.testing.assert_allclose(*scores, atol=TIGHT)


def first_rules(tree, levels: int):
    """Rules of the first levels of a tree: (rows, depth 0 first) and what they split by."""
    if levels == 0:
        return ()
    if isinstance(tree, en.Leaf):
        return ((en.tree_rows(tree), None),)
    below = first_rules(tree.left, levels - 1) + first_rules(tree.right, levels - 1)
    return ((en.tree_rows(tree), tree.rule), *below)


def picks(case: ep.Case, rows, depth: int, num_roots: int, levels: int) -> set:
    """All picks of the best partitions of the first nodes, as `first_rules` writes them."""
    if levels == 0:
        return {()}
    stop, splits = choices(case, rows, depth)
    # The cuts inside one gap make one and the same tree of the training rows, and so do all rules
    # of a partition where the prior counts partitions.
    kinds = {}
    for rule in splits:
        sides = en.part(case.problem, rows, rule)
        counts_partitions = case.reference_prior.counts_partitions
        own = frozenset(sides) if counts_partitions else (rule.feature, rule.missing_left, sides[0])
        kinds[own] = rule
    ranked = [(-stop, None), *((-splits[rule][0], rule) for rule in kinds.values())]
    ranked.sort(key=first)
    found = set()
    for _, rule in ranked[:num_roots]:
        if rule is None:
            found.add(((rows, None),))
            continue
        sides = en.part(case.problem, rows, rule)
        parts = [picks(case, side, depth + 1, num_roots, levels - 1) for side in sides]
        found |= {((rows, rule), *left, *right) for left in parts[0] for right in parts[1]}
    return found


def first(pair):
    return pair[0]


def score(case: ep.Case, pick) -> float:
    """Sum of the partition scores that a pick has on its deepest level."""
    total, depths = 0.0, {}
    for rows, rule in pick:
        depth = max((d + 1 for outer, d in depths.items() if rows < outer), default=0)
        depths[rows] = depth
        stop, splits = choices(case, rows, depth)
        total += stop if rule is None else splits[rule][0]
    return total


def test_looking_ahead_finds_a_hidden_xor():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 2, (200, 12)).astype(float)
    y = (x[:, 3] != x[:, 7]).astype(int)
    problem = pose(
        TreeModel(Design.from_matrix(x), y, LeafPenalty(2.0), DirichletCategorical.symmetric(2))
    )
    found = tree_space(problem, lookahead=2)[0]
    assert set(found.tree.feature[found.tree.feature >= 0]) == {3, 7}
    assert found.tree.num_leaves == 4
    assert found.log_joint > tree_space(problem)[0].log_joint + 10


@pytest.mark.parametrize("model", ep.SOME_MODELS)
def test_the_better_of_the_greedy_and_the_look_ahead_tree_is_kept(model):
    for seed in range(5):
        problem = posed(ep.random_case(model, "classes", 7300 + seed))
        joints = [grow(problem, lookahead=levels).log_joint for levels in (1, 2)]
        assert tree_space(problem, lookahead=2)[0].log_joint == max(joints)


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
    grown = grow(pose(TreeModel(Design.from_matrix(x), y, prior, leaf), smoothing=0.5))
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
    leaf = DirichletCategorical.symmetric(3)
    grown = grow(pose(TreeModel(design, y, GreedyPartition(p), leaf), stop_pure=stop_pure))
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
    problem = pose(TreeModel(Design.from_matrix(x), y, LeafPenalty(0.1), leaf))
    assert abs(grow(problem).tree.threshold[0] - 1.0005) < 1e-9
    apart = pose(TreeModel(Design.from_matrix(x), y, LeafPenalty(0.1), leaf), split_precision=0.01)
    assert not np.isclose(grow(apart).tree.threshold, 1.0005).any()


def test_a_table_without_a_rule_is_one_leaf():
    design = Design.from_matrix(np.ones((5, 2)))
    for constraints in (Constraints(), Constraints(max_depth=0)):
        leaf = DirichletCategorical.symmetric(2)
        grown = grow(
            pose(TreeModel(design, np.array([0, 1, 0, 1, 1]), DepthDecay(), leaf, constraints))
        )
        assert grown.tree.num_leaves == 1
        assert grown.log_weight[0] == 0
        assert abs(grown.log_joint - grown.leaf_score[0]) < TIGHT


# ------------------------------------------------------------------- one node, gains and pruning


def nodes_of(tree, depth=0):
    """Nodes of a tree in the order of their slots, with depths."""
    queue = [(tree, 0)]
    for node, depth in queue:
        if not isinstance(node, en.Leaf):
            queue += [(node.left, depth + 1), (node.right, depth + 1)]
    return queue


@pytest.mark.parametrize("family", ep.FAMILIES)
@pytest.mark.parametrize("model", ep.MODELS)
def test_the_partitions_of_every_node_have_their_posterior_probabilities(model, family):
    for seed in range(3):
        case = ep.random_case(model, family, 7400 + seed)
        problem = posed(case)
        tree = grow(problem).tree
        for slot, (node, depth) in enumerate(nodes_of(ep.rule_tree(case, tree))):
            found = partition_posterior(problem, tree, slot)
            check_partitions(case, en.tree_rows(node), depth, found)


def check_partitions(case: ep.Case, rows, depth: int, found) -> None:
    stop, _ = choices(case, rows, depth)
    by_feature = np.full(case.design.num_features, -np.inf)
    for rule, left, right, log_weight in en.productions(
        case.problem, case.reference_prior, rows, depth
    ):
        score = log_weight + sum(
            en.leaf_log_marginal(case.problem, case.reference_leaf, child)
            for child in (left, right)
        )
        by_feature[rule.feature] = np.logaddexp(by_feature[rule.feature], score)
    total = np.logaddexp(stop, np.logaddexp.reduce(by_feature))
    assert abs(found.log_stop - (stop - total)) < TIGHT
    np.testing.assert_allclose(
        np.exp(found.log_feature), np.exp(by_feature - total), atol=TIGHT, rtol=0
    )
    assert abs(np.exp(found.log_stop) + np.exp(found.log_rule).sum() - 1) < TIGHT


def test_a_wrong_depth_of_a_node_is_noticed():
    case = ep.random_case("greedy partition, gaps", "classes", 7400)
    problem = posed(case)
    rows = case.problem.all_rows
    found = partition_posterior(problem, grow(problem).tree, 0)
    check_partitions(case, rows, 0, found)
    with pytest.raises(AssertionError):
        check_partitions(case, rows, 1, found)


@pytest.mark.parametrize("family", ep.FAMILIES)
@pytest.mark.parametrize("model", ep.SOME_MODELS)
def test_gains_are_what_a_tree_adds_to_its_root(model, family):
    for seed in range(4):
        case = ep.random_case(model, family, 7500 + seed)
        grown = grow(posed(case))
        likelihood, prior = grown.gains(case.design.num_features)
        # Stops of leaves are added once more for every split but in the tree's own sum.
        inner = grown.tree.feature >= 0
        stops = grown.log_stop[~inner].sum() - grown.log_stop[0] + grown.log_stop[inner].sum()
        gained = likelihood.sum() + prior.sum() + stops
        root = grown.log_stop[0] + grown.leaf_score[0]
        assert abs(root + gained - grown.log_joint) < TIGHT
        assert ((likelihood == 0) | np.isin(np.arange(len(likelihood)), grown.tree.feature)).all()


@pytest.mark.parametrize("family", ep.FAMILIES)
def test_pruning_merges_siblings_that_predict_the_same_and_nothing_else(family):
    merged = 0
    for seed in range(20):
        case = ep.random_case("leaf penalty, gaps", family, 7600 + seed)
        case = replace(case, prior=LeafPenalty(0.0), reference_prior=en.LeafPenalty(0.0))
        grown = grow(posed(case))
        pruned = prune(grown, case.leaf)
        merged += int(grown.tree.num_leaves) - int(pruned.tree.num_leaves)
        before, after = (
            decisions(case.leaf, each.statistics)[route(each.tree, case.design.matrix)]
            for each in (grown, pruned)
        )
        np.testing.assert_allclose(before, after, rtol=1e-9)
        assert abs(check_sums(case, ep.rule_tree(case, pruned.tree)) - pruned.log_joint) < TIGHT
        tree = pruned.tree
        for slot in np.flatnonzero(tree.feature >= 0):
            pair = [tree.left[slot], tree.right[slot]]
            if (tree.feature[pair] < 0).all():
                assert not np.isclose(*decisions(case.leaf, pruned.statistics)[pair], rtol=1e-12)
    assert (merged > 0) == (family == "classes")


def check_sums(case: ep.Case, tree) -> float:
    """Log joint of any tree, as definitions have it."""
    return check_is_greedy(case, tree, below=100)


def decisions(leaf, statistics):
    with jax.enable_x64(True):
        mean = np.asarray(leaf.posterior_mean(statistics))
    return mean.argmax(axis=1) if mean.ndim == 2 else mean


def test_partitions_of_one_dimension_have_likelihoods_by_hand():
    """As Nuti et al. 2021, Figure 1, does with Beta(1, 1); the text lost the figure's numbers."""
    design, y = Design.from_matrix(np.arange(6.0)[:, None]), np.array([0, 0, 0, 1, 1, 1])
    prior, leaf = GreedyPartition(0.5), DirichletCategorical.symmetric(2)
    problem = pose(TreeModel(design, y, prior, leaf))
    found = partition_posterior(problem, grow(problem).tree, 0)
    # A set with a zeros and b ones has likelihood a! b! / (a + b + 1)!.
    likelihood = {0.5: 1 / 2 / 60, 1.5: 1 / 3 / 20, 2.5: 1 / 16, 3.5: 1 / 20 / 3, 4.5: 1 / 60 / 2}
    weights = [0.5 / 140, *(0.5 / 5 * value for value in likelihood.values())]
    expected = dict(zip(["stop", *likelihood], np.log(weights / np.sum(weights)), strict=True))
    assert abs(found.log_stop - expected["stop"]) < TIGHT
    assert found.threshold[0] == 2.5
    for threshold, log_rule in zip(found.threshold, found.log_rule, strict=True):
        assert abs(log_rule - expected[float(threshold)]) < TIGHT


# ------------------------------------------------------------------------- what once went wrong


def test_large_whole_targets_do_not_overflow():
    x = np.array([0.0, 0.0, 1.0, 1.0])[:, None]
    y = np.array([3e9, 3e9 + 1e6, 6e9, 6e9 + 1e6])
    design, prior = Design.from_matrix(x), LeafPenalty(2.0)
    leaf = NormalInverseGamma(0.0, 1.0, 2.0, 1e12)
    grown = grow(pose(TreeModel(design, y, prior, leaf)))
    expected = float(log_joint(grown.tree, TreeModel(design, y, prior, leaf)).log_joint)
    exact = ExactPosterior(compile_grammar(design), prior, leaf, y)
    assert abs(grown.log_joint - expected) < 1e-6
    assert abs(exact.k_best(1).log_joint[0] - expected) < 1e-6


def test_a_grid_may_have_as_many_codes_as_there_are_rows():
    x, y = np.array([0.0, 1, 2, 2, 4])[:, None], np.array([0, 0, 1, 1, 1])
    design, prior = Design.from_matrix(x, grid=4), DepthDecay(0.5, 2.0)
    grown = grow(pose(TreeModel(design, y, prior, DirichletCategorical.symmetric(2))))
    # Three gaps; one split into 2 and 3 rows of one class each.
    expected = np.log(0.5 / 3 / 3 / 4) + 2 * np.log(1 - 0.5 / 4)
    assert abs(grown.log_joint - expected) < TIGHT


@pytest.mark.parametrize("num_roots", [2, 3, 5])
def test_more_roots_never_lose_the_tree_that_looks_ahead(num_roots):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 2, (200, 12)).astype(float)
    y = (x[:, 3] != x[:, 7]).astype(int)
    problem = pose(
        TreeModel(Design.from_matrix(x), y, LeafPenalty(2.0), DirichletCategorical.symmetric(2))
    )
    alone = tree_space(problem, 1, 2)[0].log_joint
    assert tree_space(problem, num_roots, 2)[0].log_joint >= alone - TIGHT


def test_copies_of_a_column_make_no_more_partitions():
    x = np.random.default_rng(0).integers(0, 3, (12, 1)).astype(float)
    y = (x[:, 0] > 1).astype(int)
    leaf = DirichletCategorical.symmetric(2)
    once, twice = (
        tree_space(
            pose(TreeModel(Design.from_matrix(np.tile(x, copies)), y, LeafPenalty(1.0), leaf)), 3
        )
        for copies in (1, 2)
    )
    np.testing.assert_allclose([t.log_joint for t in once], [t.log_joint for t in twice])


def test_cuts_of_gaps_that_part_alike_share_by_their_number():
    design = Design.from_matrix(np.array([[0.0, 0], [1, 0], [2, 0], [3, 1], [0, 0], [0, 0]])).take(
        np.array([0, 3, 4, 5])
    )
    y, leaf = np.array([0, 1, 0, 0]), DirichletCategorical.symmetric(2)
    problem = pose(
        TreeModel(design, y, LeafPenalty(1.0, rules="cuts"), leaf, Constraints(max_depth=1))
    )
    found = partition_posterior(problem, grow(problem).tree, 0)
    grammar = compile_grammar(design, rules="cuts", constraints=Constraints(max_depth=1))
    exact = ExactPosterior(grammar, LeafPenalty(1.0, rules="cuts"), leaf, y)
    np.testing.assert_allclose(np.exp(found.log_feature), exact.expected_splits, atol=TIGHT)
    assert abs(found.log_feature[0] - found.log_feature[1] - np.log(3)) < TIGHT


def test_weights_are_repeated_rows_where_pure_nodes_stop():
    rng = np.random.default_rng(0)
    leaf = NormalInverseGamma(0.5, 1.0, 2.0, 0.1)
    for _ in range(20):
        x = rng.integers(0, 4, (8, 1)).astype(float)
        y, weights = rng.random(4)[x[:, 0].astype(int)], rng.choice([3, 5, 7], 8)
        trees = [
            grow(pose(TreeModel(design, targets, LeafPenalty(0.1), leaf), stop_pure=True))
            for design, targets in (
                (Design.from_matrix(x, weights=weights), y),
                (Design.from_matrix(np.repeat(x, weights, axis=0)), np.repeat(y, weights)),
            )
        ]
        assert trees[0].tree.to_nested() == trees[1].tree.to_nested()


def test_a_pure_table_is_one_leaf_where_pure_nodes_stop():
    x = np.arange(6.0)[:, None]
    leaf = NormalInverseGamma(0.5, 1.0, 2.0, 0.1)
    problem = pose(
        TreeModel(Design.from_matrix(x), np.zeros(6), LeafPenalty(0.1), leaf), stop_pure=True
    )
    assert [int(each.tree.num_leaves) for each in tree_space(problem, 3)] == [1]
