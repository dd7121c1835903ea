"""The exact posterior by boxes against the chart, which enumeration checks; and its twins."""

from collections import Counter
from dataclasses import replace

import exact_problems as ep
import numpy as np
import pytest
from tiers import slow_but

from bdtppl import ExactTreeClassifier
from bdtppl.inference.boxes.exact import BoxPosterior
from bdtppl.inference.boxes.histograms import BoxHistograms, CellLayout, row_keys
from bdtppl.inference.boxes.space import BoxSpace
from bdtppl.inference.boxes.weights import PriorGrid
from bdtppl.inference.exact_cost import box_cost_of, num_cells
from bdtppl.inference.pcfg.compiler import compile_grammar
from bdtppl.inference.pcfg.exact import ExactPosterior
from bdtppl.models.constraints import Constraints, KeepTogether
from bdtppl.models.data.design import Design
from bdtppl.models.hard.log_joint import log_joint as scored
from bdtppl.models.hard.tree_model import TreeModel
from bdtppl.models.leaves import DirichletCategorical, NormalInverseGamma, PoissonGamma
from bdtppl.models.prior_kinds import weighs_each_cut
from bdtppl.models.priors import DepthDecay, DescriptionLength, GreedyPartition, LeafPenalty
from bdtppl.models.pytrees import pytree_dataclass


@pytree_dataclass
class WeighedLeaves(LeafPenalty):
    """A leaf weighs the same where it could be split and where it could not."""

    def log_stop(self, node):
        return super().log_stop(node) - 0.3


PRIORS = (
    DepthDecay(0.9, 1.0),
    DepthDecay(0.8, 0.5, rules="cuts"),
    DepthDecay(0.8, 0.5, cut_weights="gap"),
    LeafPenalty(1.5),
    WeighedLeaves(1.5, rules="cuts"),
    DescriptionLength(),
    GreedyPartition(0.9),
)
LEAVES = ("classes", "values", "counts")
CLOSE = {"rtol": 1e-10, "atol": 1e-10}


def _leaf_and_targets(rng, kind, num_rows):
    if kind == "classes":
        return DirichletCategorical.symmetric(3, 0.7), rng.integers(0, 3, num_rows)
    if kind == "values":
        leaf = NormalInverseGamma(0.1, 0.5, 2.0, 1.3, centre=0.3)
        return leaf, rng.normal(size=num_rows)
    return PoissonGamma(2.0, 1.0), rng.poisson(2, num_rows)


def _constraints(rng, names, prior):
    options = {"max_depth": int(rng.integers(1, 4)), "min_leaf": int(rng.integers(1, 4))}
    kind = rng.integers(0, 2 if prior.counts_partitions else 4)
    if kind == 1:
        options["features"] = names[:-1] or names
    elif kind == 2 and len(names) > 1:
        options["before"] = ((names[0], names[-1]),)
    elif kind == 3:
        options["features_at_depth"] = {1: names[:1]}
    return Constraints(**options)


def _table(rng, *, shares_columns=False):
    size = int(rng.integers(5, 40)), int(rng.integers(1, 4))
    matrix = rng.integers(0, rng.integers(2, 6), size).astype(float)
    if rng.random() < 0.4:
        matrix[rng.random(size) < 0.15] = np.nan
    weights = rng.integers(1, 3, size[0]) if rng.random() < 0.5 else None
    column = np.arange(size[1]) // 2 if shares_columns else None
    return Design.from_matrix(matrix, weights=weights, column=column)


def _both(seed, prior, kind):
    rng = np.random.default_rng([seed, PRIORS.index(prior), LEAVES.index(kind)])
    design = _table(rng, shares_columns=seed % 2 == 0)
    leaf, y = _leaf_and_targets(rng, kind, design.num_rows)
    limits = _constraints(rng, design.names, prior)
    grammar = compile_grammar(
        design, rules=prior.rules, constraints=limits, each_cut=weighs_each_cut(prior)
    )
    boxes = BoxPosterior(design, prior, leaf, y, max_depth=limits.max_depth, constraints=limits)
    return ExactPosterior(grammar, prior, leaf, y), boxes


def _compare(chart, boxes):
    for name in (
        "log_partition",
        "log_prior_normaliser",
        "expected_splits",
        "split_inclusion",
        "prior_inclusion",
        "entropy",
    ):
        np.testing.assert_allclose(
            getattr(boxes, name), getattr(chart, name), **CLOSE, err_msg=name
        )
    best, wanted = boxes.k_best(20), chart.k_best(20)
    np.testing.assert_allclose(best.log_joint, wanted.log_joint, **CLOSE)
    np.testing.assert_allclose(best.probability, wanted.probability, **CLOSE)
    rows = chart.grammar.design.matrix
    predicted, expected = boxes.predictive(rows), chart.predictive(rows)
    np.testing.assert_allclose(predicted.mean(), expected.mean(), **CLOSE)
    np.testing.assert_allclose(
        predicted.log_density(chart.y), expected.log_density(chart.y), **CLOSE
    )


@pytest.mark.parametrize("place", slow_but([3, 4, 5], range(len(PRIORS))))
def test_agrees_with_the_chart(place):
    _compare(*_both(0, PRIORS[place], LEAVES[place % len(LEAVES)]))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
def test_agrees_with_the_chart_on_many_tables(seed):
    for place in range(4):
        _compare(*_both(seed, PRIORS[(seed + place) % len(PRIORS)], LEAVES[seed % len(LEAVES)]))


@pytest.mark.parametrize("fault", ["missing values go left", "leaves below cost more"])
def test_a_wrong_recursion_does_not_agree(fault, monkeypatch):
    """Mutation twins of the agreement with the chart."""
    rng = np.random.default_rng(0)
    matrix = rng.integers(0, 4, (30, 2)).astype(float)
    matrix[::3, 0] = np.nan
    design, limits = Design.from_matrix(matrix), Constraints(max_depth=2)
    model = LeafPenalty(1.0), DirichletCategorical.symmetric(2), rng.integers(0, 2, 30)
    chart = ExactPosterior(compile_grammar(design, constraints=limits), *model)
    right = BoxPosterior(design, *model, max_depth=2)
    assert right.log_partition == pytest.approx(chart.log_partition, abs=1e-10)
    columns, tables = CellLayout.columns, PriorGrid.tables
    if fault == "missing values go left":
        monkeypatch.setattr(
            CellLayout, "columns", lambda self, codes: columns(self, np.where(codes < 0, 0, codes))
        )
    else:
        monkeypatch.setattr(
            PriorGrid, "tables", lambda *of: [t._replace(stop_below=-0.1) for t in tables(*of)]
        )
    wrong = BoxPosterior(design, *model, max_depth=2)
    assert abs(wrong.log_partition - chart.log_partition) > 1e-3


@pytest.mark.parametrize("prior", [PRIORS[0], PRIORS[1], PRIORS[3]], ids=repr)
def test_draws_are_exact(prior):
    """G-test of independent draws against exact probabilities; a twin draws by other sums."""
    rng = np.random.default_rng(1)
    design = Design.from_matrix(rng.integers(0, 3, (25, 2)).astype(float))
    leaf, y = DirichletCategorical.symmetric(2), rng.integers(0, 2, 25)
    boxes = BoxPosterior(design, prior, leaf, y, max_depth=2)
    posterior = boxes.sample(ep.key(1), draws=1_250)
    trees, log_joint = posterior.trees.reshape(-1), posterior.sample_stats["log_joint"].ravel()
    model = TreeModel(design, y, prior, leaf, Constraints(max_depth=2))
    np.testing.assert_allclose(log_joint[:50], scored(trees[:50], model).log_joint, **CLOSE)
    # Rules that make the same partition are one tree in the list under a prior that counts these.
    every = boxes.k_best(100_000)
    assert every.probability.sum() == pytest.approx(1.0, abs=1e-9)
    expected = Counter()
    for tree, probability in zip(every, every.probability, strict=True):
        expected[_partition(tree, design.matrix)] += probability

    def p_value(trees):
        return ep.g_test(Counter(_partition(tree, design.matrix) for tree in trees), expected)

    assert p_value(trees) > ep.FALSE_ALARM
    boxes._log_q[1][:] += rng.normal(size=len(boxes._log_q[1]))
    assert p_value(boxes.sample_trees(ep.key(1), 5_000)) < ep.FALSE_ALARM


def _partition(tree, matrix):
    """Sets of rows in the leaves, nested as the tree splits them, without an order of sides."""

    def below(slot, rows):
        if tree.feature[slot] < 0:
            return frozenset(rows.tolist())
        is_left = matrix[rows, tree.feature[slot]] < tree.threshold[slot]
        sides = below(tree.left[slot], rows[is_left]), below(tree.right[slot], rows[~is_left])
        return frozenset(sides)

    return below(0, np.arange(len(matrix)))


@pytest.mark.parametrize("kind", ["classes", "values"])
@pytest.mark.parametrize("prior", [PRIORS[0], PRIORS[3]], ids=repr)
def test_gradient_is_that_of_the_log_evidence(prior, kind):
    rng = np.random.default_rng(3)
    design = Design.from_matrix(rng.integers(0, 4, (30, 3)).astype(float))
    leaf, y = _leaf_and_targets(rng, kind, 30)
    boxes = BoxPosterior(design, prior, leaf, y, max_depth=2)
    for part in ("prior", "leaf"):
        found = boxes.gradient(part)
        own = getattr(boxes, part)
        for name in own.parameter_support:
            value, step = np.asarray(getattr(own, name), float), 1e-5
            sides = [
                boxes.with_model(**{part: replace(own, **{name: value + sign * step})})
                for sign in (1, -1)
            ]
            wanted = (sides[0].log_evidence - sides[1].log_evidence) / (2 * step)
            derived = float(np.asarray(getattr(found, name)).sum())
            assert derived == pytest.approx(wanted, rel=1e-5, abs=1e-6), name


def test_chunks_of_rows_add_up():
    """Histograms of parts, merged in any order, are those of all rows, bit for bit."""
    rng = np.random.default_rng(4)
    design = Design.from_matrix(rng.integers(0, 5, (90, 4)).astype(float))
    codes, values = design.codes, np.eye(3)[rng.integers(0, 3, 90)]
    space = BoxSpace.of(design, Constraints(), 3)

    def filled(rows):
        made = BoxHistograms(space, 3, with_keys=True)
        made.add(codes[rows], values[rows], row_keys(codes[rows]))
        return made

    whole, total = filled(slice(None)), filled(slice(60, 90))
    for part in (slice(0, 13), slice(13, 60)):
        total.merge(*filled(part).sums())
    np.testing.assert_array_equal(total.over((0, 2)), whole.over((0, 2)))
    np.testing.assert_array_equal(total.keys, whole.keys)


def test_costs_are_counted_without_listing_what_costs():
    """A forecast takes no time on tables of many features, whose groups are billions."""
    rng = np.random.default_rng(5)
    codes = np.column_stack([rng.integers(0, most, 60) for most in (2, 3, 9, 1, 30, 2)])
    codes = np.where(rng.random(codes.shape) < [0, 0, 0.1, 0, 0, 0.1], np.nan, codes.astype(float))
    for levels in (1, 2, 3, 7):
        space = BoxSpace.of(Design.from_matrix(codes), Constraints(), levels)
        assert num_cells(space) == CellLayout(space).num_cells
        for level in range(levels):
            assert space.num_groups(level) == len([*space.groups(level)])
    many = TreeModel(
        Design.from_matrix(rng.normal(size=(40, 300))),
        rng.normal(size=40),
        LeafPenalty(1.5),
        NormalInverseGamma(0.0, 1.0, 1.0, 1.0),
        Constraints(),
    )
    assert box_cost_of(many, 8).seconds > 1e9


def test_refuses_by_name_what_boxes_cannot_do():
    design = Design.from_matrix(np.arange(12.0).reshape(6, 2))
    model = DirichletCategorical.symmetric(2), np.array([0, 1, 0, 1, 0, 1])
    together = Constraints(keep_together=(KeepTogether({"x0": (1.0, 5.0)}),))
    with pytest.raises(ValueError, match=r"keep_together.*chart"):
        BoxPosterior(design, DepthDecay(0.9, 1.0), *model, max_depth=2, constraints=together)
    by_rows = DepthDecay(0.9, 1.0, cut_weights=lambda node, rule: rule.num_left)
    with pytest.raises(ValueError, match=r"log_share.*method='chart'"):
        BoxPosterior(design, by_rows, *model, max_depth=2)

    monotone = Constraints(monotone={"x0": 1})
    with pytest.raises(ValueError, match="use a Metropolis tree"):
        BoxPosterior(design, DepthDecay(0.9, 1.0), *model, max_depth=2, constraints=monotone)


def test_boxes_without_a_level_have_one_leaf():
    fitted = ExactTreeClassifier(method="boxes", max_depth=0).fit([[0.0], [1.0]] * 3, [0, 1] * 3)
    assert (fitted.method_, fitted.constraints_.max_depth) == ("boxes", 0)
    np.testing.assert_allclose(fitted.predict_proba([[1.0]]), 0.5)


def test_a_table_without_a_rule_has_one_tree():
    design = Design.from_matrix(np.ones((6, 2)))
    boxes = BoxPosterior(
        design,
        LeafPenalty(1.0),
        DirichletCategorical.symmetric(2),
        np.array([0, 1] * 3),
        max_depth=2,
    )
    assert boxes.expected_leaves == 1.0
    assert len(boxes.k_best(5)) == 1
    np.testing.assert_allclose(boxes.predictive(np.ones((2, 2))).mean(), 0.5)
    assert boxes.sample_trees(ep.key(0), 3).num_leaves.tolist() == [1, 1, 1]


def test_co_membership_is_that_of_the_chart():
    chart, boxes = _both(0, PRIORS[0], "classes")
    rows = np.arange(chart.grammar.design.num_rows)
    np.testing.assert_allclose(boxes.co_membership(rows), chart.co_membership(rows), **CLOSE)
