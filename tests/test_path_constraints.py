"""Constraints that look at the path from the root, against the enumeration of all trees.

Everything but the test of draws is deterministic; the checks of the posterior are those of
`test_exact_posterior`, each of which has its mutation twin there. Those of the memory are here.
"""

import itertools
from collections import Counter, OrderedDict

import enumeration as en
import exact_problems as ep
import jax
import numpy as np
import pytest
from test_exact_posterior import (
    check_evidence,
    check_normalised,
    check_ranking,
    check_rule_inclusion,
    check_sizes,
    must_fail,
)

from bdtppl.inference.hard.written_trees import as_shape
from bdtppl.inference.metropolis.state import state_of
from bdtppl.inference.pcfg import compiler
from bdtppl.inference.pcfg.compiler import compile_grammar
from bdtppl.inference.pcfg.exact import ExactPosterior
from bdtppl.models.constraints import Constraints, KeepTogether
from bdtppl.models.data.design import Design
from bdtppl.models.hard import packed_model
from bdtppl.models.hard.log_joint import log_joint
from bdtppl.models.hard.path_memory import PathMemory
from bdtppl.models.hard.tree import Tree
from bdtppl.models.hard.tree_model import TreeModel
from bdtppl.models.leaves import DirichletCategorical
from bdtppl.models.priors import DepthDecay, LeafPenalty

KINDS = (("boxes",), ("levels",), ("order",), ("boxes", "levels", "order"))
CHECKS = (check_evidence, check_ranking, check_sizes, check_rule_inclusion)
MODELS = [model for model in ep.MODELS if ep.MODELS[model][2] == 3 and not model.startswith("leaf")]


def check_scores(case, log_joint_of, trees=60):
    """Log joints of the best trees are those of the chart, which the enumeration vouches for."""
    best = case.exact.k_best(trees)
    np.testing.assert_allclose(log_joint_of(case, best.trees), best.log_joint, atol=1e-9)


def by_rows(case, trees):
    model = case.prior, case.leaf, case.constraints
    return log_joint(trees, TreeModel(case.design, case.y, *model)).log_joint


def by_tables(case, trees):
    model = case.prior, case.leaf, case.constraints
    with jax.enable_x64(True):
        tabled = packed_model.PackedModel.of(TreeModel(case.design, case.y, *model))
        state = state_of(tabled, as_shape(tabled, case.design, trees, 31))
        return np.asarray(state.log_prior + state.log_likelihood)


def check_draws(case, exact):
    """20,000 draws over trees; false alarm rate 1e-4."""
    drawn = Counter(ep.rule_trees(case, exact.sample_trees(ep.key(0), 20_000)))
    assert ep.g_test(drawn, case.probabilities) > ep.FALSE_ALARM


def check_predictive(case, exact):
    rows = ep.queries(case)
    expected = en.predictive_mean(case.problem, case.scored, case.reference_leaf, rows)
    np.testing.assert_allclose(exact.predictive(rows).mean(), expected, atol=1e-9)


# -------------------------------------------------------------------- against the enumeration


def test_boxes_levels_and_order_equal_the_enumeration():
    case = ep.random_case(MODELS[1], "classes", 0, path=KINDS[-1])
    for check in (check_evidence, check_ranking):
        check(case, case.exact)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "family", "kinds"),
    [  # each prior under all kinds at once, and under one or two of them alone
        pytest.param(model, ep.FAMILIES[(i + j // 2) % 2], kinds, id=f"{model}-{'+'.join(kinds)}")
        for i, model in enumerate(MODELS)
        for j, kinds in enumerate(KINDS)
        if (i + j) % 2 == 0 or kinds == KINDS[-1]
    ],
)
def test_every_kind_equals_the_enumeration(model, family, kinds):
    for seed in range(2):
        case = ep.random_case(model, family, seed, path=kinds)
        for check in (*CHECKS, check_predictive):
            check(case, case.exact)
        if model.startswith("depth decay"):
            check_normalised(case, case.exact)
        check_draws(case, case.exact)
        check_scores(case, by_rows)
        check_scores(case, by_tables)


class Forgetful(PathMemory):
    """Hands the parent's memory on as it is."""

    def children(self, memory, feature, threshold):
        return memory, memory


class Careless(PathMemory):
    """Takes a cut at a box's low end for one that cuts it."""

    def allows(self, memory, feature, threshold):
        is_cut = self._boxes(feature, lambda low, high: (low <= threshold) & (threshold <= high))
        return (memory & (self.forbids[feature] | is_cut)) == 0


class Hasty(PathMemory):
    """Loses sight of every box at every split."""

    def children(self, memory, feature, threshold):
        kept = np.uint64((1 << len(self.low)) - 1)
        left, right = super().children(memory, feature, threshold)
        return left & ~kept, right & ~kept


def memory_case(kind):
    """Four points of a line and a box round two: what is broken changes the trees."""
    matrix = np.array([[0.0, 0], [1, 1], [2, 0], [3, 1], [4, 1]])
    constraints = {
        "box": Constraints(keep_together=[KeepTogether({0: (1.5, 3.2)})], max_depth=3),
        "order": Constraints(before=((0, 1),)),
    }[kind]
    y, weights = np.array([0, 1, 1, 2, 0]), np.ones(5, int)
    problem, cuts = ep.state(matrix, weights, constraints, rules="gaps")
    leaf, reference_leaf = ep.leaf_pair("classes", y)
    return ep.Case(
        matrix=matrix,
        y=y,
        weights=weights,
        cuts=cuts,
        binning={},
        constraints=constraints,
        prior=DepthDecay(0.9, 0.7),
        leaf=leaf,
        problem=problem,
        reference_prior=en.DepthDecay(0.9, 0.7),
        reference_leaf=reference_leaf,
    )


@pytest.mark.parametrize(
    ("kind", "broken"), [("order", Forgetful), ("box", Careless), ("box", Hasty)]
)
def test_a_broken_memory_is_noticed(monkeypatch, kind, broken):
    case = memory_case(kind)
    true = Constraints.path_memory
    monkeypatch.setattr(Constraints, "path_memory", lambda self, names: broken(*true(self, names)))
    monkeypatch.setattr(compiler, "_cache", OrderedDict())
    grammar = compile_grammar(case.design, constraints=case.constraints)
    wrong = ExactPosterior(grammar, case.prior, case.leaf, case.y)
    monkeypatch.undo()
    must_fail(check_evidence, case, wrong)


# -------------------------------------------------------------------------- what the words say


def trees_of(matrix, constraints):
    """List all trees of a grammar as (feature, threshold, left, right), leaves as None."""
    design = Design.from_matrix(np.array(list(matrix), float))
    grammar = compile_grammar(design, constraints=constraints)

    def grow(node, depth):
        yield None
        if depth == constraints.max_depth:
            return
        for e in range(*grammar.first_production[node : node + 2]):
            rule = int(grammar.feature[e]), float(grammar.threshold[e])
            for left in grow(grammar.left[e], depth + 1):
                for right in grow(grammar.right[e], depth + 1):
                    yield (*rule, left, right)

    return list(grow(grammar.root, 0))


def splits(tree, region=()):
    """List the splits of a tree with their regions, ((feature, threshold, is_left), ...)."""
    if tree is None:
        return []
    feature, threshold, left, right = tree
    found = [(feature, threshold, region)]
    for child, is_left in ((left, True), (right, False)):
        found += splits(child, (*region, (feature, threshold, is_left)))
    return found


def leaf_of(tree, row):
    """Name the leaf that a row ends in, by its path."""
    path = []
    while tree is not None:
        path.append(row[tree[0]] < tree[1])
        tree = tree[2] if path[-1] else tree[3]
    return tuple(path)


def test_a_box_ends_inside_one_leaf():
    matrix = list(itertools.product(range(4), range(3)))
    box = KeepTogether({"x0": (0.9, 2.2), "x1": (None, 0.4)})
    trees = trees_of(matrix, Constraints(keep_together=box, max_depth=2))
    corners = np.array([[0.9, -100.0], [2.2, -100.0], [0.9, 0.4], [2.2, 0.4]])
    free = trees_of(matrix, Constraints(max_depth=2))

    def leaves_met(some):
        return [len({leaf_of(tree, corner) for corner in corners}) for tree in some]

    assert set(leaves_met(trees)) == {1}
    assert leaves_met(free).count(1) == len(trees) < len(free)


def test_a_feature_that_the_box_does_not_name_cuts_it():
    box = KeepTogether({"x0": (0.9, 1.1)})
    trees = trees_of(itertools.product(range(3), range(2)), Constraints(keep_together=[box]))
    for tree in trees:
        for feature, _, region in splits(tree):
            is_held = all(
                f == 0 and (threshold > 1.1 if is_left else threshold <= 0.9)
                for f, threshold, is_left in region
            )
            assert feature == 0 or not is_held


def test_depths_and_order_say_which_features_rules_use():
    matrix = list(itertools.product(range(2), repeat=3))
    limits = Constraints(features_at_depth={0: ("x0", "x1"), 1: ("x2",)}, before=(("x2", "x0"),))
    trees = trees_of(matrix, limits)
    met = Counter()
    for tree in trees:
        for feature, _, region in splits(tree):
            met[len(region), feature] += 1
            assert feature != 0 or 2 in {f for f, _, _ in region}
    assert {depth_feature for depth_feature in met if depth_feature[0] < 2} == {(0, 1), (1, 2)}
    assert (2, 0) in met


@pytest.mark.slow
def test_the_log_joint_rules_out_what_cuts_a_box():
    design = Design.from_matrix(np.array([[0.0, 0], [1, 1], [2, 0], [3, 1]]))
    leaf, y = DirichletCategorical.symmetric(2), np.array([0, 1, 0, 1])
    limits = Constraints(keep_together=[KeepTogether({"x0": (None, 1)})])

    def score(cut, **inner):
        tree = {"feature": 0, "threshold": cut, "left": inner, "right": {}}
        tree = Tree.from_nested(tree, capacity=5)
        return log_joint(tree, TreeModel(design, y, DepthDecay(), leaf, limits)).log_joint

    assert score(0.5) == -np.inf
    assert np.isfinite(score(1.5))
    assert score(1.5, feature=1, threshold=0.5, left={}, right={}) == -np.inf


def evidences(*boxes):
    """Log evidence of 40 rows at five values, of which the three greatest are of one class."""
    x = np.repeat([10.0, 20, 26, 30, 40], 8)
    limits = Constraints(keep_together=[KeepTogether({"x0": ends}) for ends in boxes])
    grammar = compile_grammar(Design.from_matrix(x[:, None]), constraints=limits)
    leaf = DirichletCategorical.symmetric(2)
    return ExactPosterior(grammar, DepthDecay(), leaf, (x >= 27).astype(int)).log_evidence


@pytest.mark.parametrize(
    ("one", "same"),  # boxes that say the same of all rows
    [
        ([(27, None)], [(28.5, None)]),
        ([(None, 29)], [(None, 27.5)]),
        ([(27, 28), (28, 29)], [(27.1, 27.2)]),
        ([(26.5, 28), (27, None)], [(28, None)]),
        ([(26, 29), (27, 30), (28, 28.5)], [(26, 30)]),
        ([(26, 29), (29, 30)], [(26, 30)]),
    ],
)
def test_boxes_that_hold_the_same_values_say_the_same(one, same):
    assert evidences(*one) == pytest.approx(evidences(*same), abs=1e-12)


@pytest.mark.parametrize(
    ("boxes", "threshold"),
    [
        ([(0, 20)], 28),
        ([(27, 40)], 26.5),
        ([(0, 28.5)], 29.25),
        ([(27.9, 29), (26.4, 27.95)], 29.5),
        ([(26.5, 28), (26.1, 26.2), (27, 40)], 26.35),
        ([(26, 28), (28.5, 40)], 28.25),
        ([(26, 28), (28, 30)], 28),  # no part is left, and the middle is not allowed
    ],
)
def test_a_gap_is_cut_beside_the_boxes_in_it(boxes, threshold):
    limits = Constraints(keep_together=[KeepTogether({"x0": ends}) for ends in boxes])
    path, feature = limits.path_memory(["x0"]), np.array([0])
    cut = path.gap_threshold(path.start, feature, np.array([26.0]), np.array([30.0]))
    assert cut == pytest.approx(threshold, abs=1e-12)
    assert path.allows(path.start, feature, cut) == (len(boxes) != 2 or boxes[1] != (28, 30))


# ------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"keep_together": [KeepTogether({"x9": (0, 1)})]}, "keep_together names 'x9'"),
        ({"before": [("x0", "y")]}, "before names 'y'"),
        ({"features_at_depth": {0: ["z"]}}, "features_at_depth names 'z'"),
        ({"features_at_depth": {70: ["x0"]}}, "A node can remember 64 things"),
    ],
)
def test_features_that_do_not_exist_are_named(limits, message):
    design = Design.from_matrix(np.eye(3))
    with pytest.raises(ValueError, match=message):
        compile_grammar(design, constraints=Constraints(**limits))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: KeepTogether({"a": (3, 1)}), "low <= high"),
        (lambda: KeepTogether({"a": 3}), "A box needs intervals"),
        (lambda: KeepTogether({}), "A box needs intervals"),
        (lambda: KeepTogether({"a": ("b", 1)}), "must be numbers"),
        (lambda: Constraints(keep_together=[{"a": (0, 1)}]), "must contain KeepTogether"),
        (lambda: Constraints(before=(("a", "b", "c"),)), "pairs of features"),
        (lambda: Constraints(before="ab"), "must list features"),
        (lambda: Constraints(before=[("a", "a")]), "a cycle; got 'a' before 'a'"),
        (lambda: Constraints(before=[(1, 2), (2, 1)]), "a cycle; got (1 before 2|2 before 1)"),
        (lambda: Constraints(monotone=["a"]), "monotone must map features to 1 or -1"),
        (lambda: Constraints(features_at_depth={-1: ("a",)}), "depths of at least 0"),
        (lambda: Constraints(features_at_depth={0: "age"}), "must list features"),
    ],
)
def test_limits_without_sense_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_prior_that_counts_partitions_is_refused():
    design, y = Design.from_matrix(np.eye(3)), np.arange(3) % 2
    limits, leaf = Constraints(before=((0, 1),)), DirichletCategorical.symmetric(2)
    grammar = compile_grammar(design, constraints=limits)
    with pytest.raises(ValueError, match="LeafPenalty shares a weight"):
        ExactPosterior(grammar, LeafPenalty(), leaf, y)
    with pytest.raises(ValueError, match="LeafPenalty shares a weight"):
        packed_model.PackedModel.of(TreeModel(design, y, LeafPenalty(), leaf, limits))
