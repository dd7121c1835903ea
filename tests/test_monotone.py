"""Monotone features: leaf means in order, against a check written out over pairs of leaves."""

import math
from dataclasses import replace

import enumeration as en
import exact_problems as ep
import numpy as np
import pytest
from edit_law import edited_trees
from test_path_constraints import by_rows, by_tables

from bdtppl import MetropolisTreeClassifier
from bdtppl.inference.greedy_modal import problem as greedy
from bdtppl.inference.metropolis.sample import sample_chains
from bdtppl.inference.particle.sample import sample_particles as filtered
from bdtppl.inference.pcfg.compiler import compile_grammar
from bdtppl.inference.prior_predictive.trees import PriorTrees
from bdtppl.models.constraints import Constraints
from bdtppl.models.edit_tree import EditTree
from bdtppl.models.hard.tree import Tree
from bdtppl.models.hard.tree_model import TreeModel
from bdtppl.models.leaf_count_priors import LeafCount
from bdtppl.models.priors import DepthDecay

DIRECTIONS = {0: 1, 2: -1}


def leaves(problem, tree, box):
    """List the leaves of a tree with their boxes, {feature: (low, high)}."""
    if isinstance(tree, en.Leaf):
        return [(tree.rows, box)]
    cut, f = en.rule_threshold(problem, tree.rule), tree.rule.feature
    low, high = box[f]
    return [
        *leaves(problem, tree.left, {**box, f: (low, min(high, cut))}),
        *leaves(problem, tree.right, {**box, f: (max(low, cut), high)}),
    ]


def keeps_order(case, tree):
    whole = dict.fromkeys(range(case.problem.num_features), (-math.inf, math.inf))
    found = leaves(case.problem, tree, whole)

    def mean(rows):
        mean = case.reference_leaf.predictive_mean(case.problem, rows)
        return float(mean if mean.ndim == 0 else sum(k * p for k, p in enumerate(mean)))

    for rows, box in found:
        for other_rows, other in found:
            for f, direction in DIRECTIONS.items():
                overlaps = all(
                    max(box[g][0], other[g][0]) < min(box[g][1], other[g][1])
                    for g in whole
                    if g != f
                )
                is_ordered = box[f][1] <= other[f][0] and overlaps
                if is_ordered and direction * (mean(other_rows) - mean(rows)) < -1e-12:
                    return False
    return True


def check(family, rules, score, broken=False):
    case = ep.case_of_law("all rules alike", rules, family, 5)
    best = case.exact.k_best(150)
    limits = {f: -d for f, d in DIRECTIONS.items()} if broken else DIRECTIONS
    ordered = replace(case, constraints=replace(case.constraints, monotone=limits))
    found = score(ordered, best.trees)
    expected = [keeps_order(case, tree) for tree in ep.rule_trees(case, best.trees)]
    assert 3 < sum(expected) < len(expected) - 3
    np.testing.assert_allclose(found, np.where(expected, best.log_joint, -np.inf), atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("score", [by_rows, by_tables])
@pytest.mark.parametrize("rules", ["gaps", "cuts"])
@pytest.mark.parametrize("family", ep.FAMILIES)
def test_only_monotone_trees_have_weight(family, rules, score):
    check(family, rules, score)
    with pytest.raises(AssertionError):
        check(family, rules, score, broken=True)


@pytest.mark.slow
def test_chains_stay_monotone():
    case = ep.case_of_law("all rules alike", "gaps", "values", 5)
    limits = replace(case.constraints, monotone=DIRECTIONS)
    drawn = sample_chains(
        ep.key(0),
        replace(case.model, constraints=limits),
        warmup=50,
        draws=50,
        thin=5,
    )
    trees = ep.rule_trees(case, drawn.posterior.trees.reshape(-1))
    assert len(set(trees)) > 5
    assert all(keeps_order(case, tree) for tree in set(trees))
    assert np.isfinite(drawn.posterior.sample_stats["log_joint"]).all()


@pytest.mark.slow
@pytest.mark.runs_long
def test_edited_trees_stay_monotone():
    case = ep.case_of_law("all rules alike", "gaps", "values", 5)
    limits = replace(case.constraints, monotone=DIRECTIONS)
    arguments = case.design, case.y, EditTree(Tree.from_nested({}), 0.8, DepthDecay()), case.leaf
    options = {"chains": 16, "warmup": 50, "draws": 50, "thin": 5}

    def keep_order(constraints):
        drawn = sample_chains(ep.key(0), TreeModel(*arguments, constraints), **options)
        trees = set(ep.rule_trees(case, drawn.posterior.trees.reshape(-1)))
        assert len(trees) > 5
        return all(keeps_order(case, tree) for tree in trees)

    assert keep_order(limits)
    assert not keep_order(case.constraints)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("prior", [DepthDecay(), LeafCount(3.0, max_leaves=4)])
def test_there_is_no_evidence(prior):
    """Which trees are monotone depends on the targets, so evidences would not add up to 1."""
    few = {"temperatures": 3, "warmup": 100, "draws": 20, "extensions": 0, "random_state": 0}
    model = MetropolisTreeClassifier(prior=prior, constraints=Constraints(monotone={0: 1}), **few)
    model.fit(np.arange(9.0)[:, None], np.repeat([0, 1, 0], 3))
    with pytest.raises(
        AttributeError, match="log_evidence_ is not available under monotone constraints"
    ):
        _ = model.log_evidence_
    assert "log_evidence" not in model.summary()


def test_what_cannot_keep_to_them_says_so():
    case = ep.random_case("depth decay, gaps", "classes", 0)
    limits = Constraints(monotone={0: 1})
    with pytest.raises(ValueError, match="The exact posterior cannot use monotone features"):
        compile_grammar(case.design, constraints=limits)
    with pytest.raises(ValueError, match="Greedy modal trees cannot use monotone features"):
        greedy.pose(replace(case.model, constraints=limits))
    with pytest.raises(ValueError, match="The particle filter cannot use monotone features"):
        filtered(ep.key(0), replace(case.model, constraints=limits))
    with pytest.raises(ValueError, match="A prior without targets cannot use monotone features"):
        PriorTrees(case.design, case.prior, limits)
    with pytest.raises(ValueError, match="A prior without targets cannot use monotone features"):
        edited_trees(case.design, EditTree(Tree.from_nested({})), limits)
    with pytest.raises(ValueError, match="must give features 1 or -1"):
        Constraints(monotone={0: 2})
    with pytest.raises(ValueError, match="monotone names 'dose', which is not one of"):
        Constraints(monotone={"dose": 1}).allows(case.design.names)
