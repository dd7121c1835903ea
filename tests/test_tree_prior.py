"""The law of trees under a prior, against the enumeration of all trees."""

import math
from collections import Counter

import enumeration as en
import exact_problems as ep
import numpy as np
import pytest
from tiers import few_of, slow_but

from bdtppl.inference.prior_predictive import trees as tree_prior
from bdtppl.inference.prior_predictive.trees import PriorTrees
from bdtppl.models.constraints import Constraints
from bdtppl.models.data.design import Design
from bdtppl.models.hard.tree import Tree
from bdtppl.models.priors import DepthDecay, DescriptionLength

MODELS = slow_but(["depth decay, cuts"], ep.MODELS, few=6)


def small_case(model):
    return ep.random_case(model, "classes", 1, most_trees=150, num_rows=6)


def law_of(case):
    return PriorTrees(case.design, case.prior, case.constraints)


def expected(case):
    total = en.log_prior_normaliser(case.scored)
    return {s.tree: s.log_prior - total for s in case.scored}


@pytest.mark.parametrize("model", MODELS)
def test_all_trees_are_listed_with_their_probabilities(model):
    case = small_case(model)
    law, known = law_of(case), expected(case)
    trees, log_prob = law.enumerate()
    assert (np.diff(log_prob) <= 0).all()
    listed = dict(zip(ep.rule_trees(case, trees), log_prob.tolist(), strict=True))
    assert listed.keys() == known.keys()
    for tree, log_p in known.items():
        assert abs(listed[tree] - log_p) < ep.TIGHT
    np.testing.assert_allclose(law.log_prob(trees), log_prob, atol=ep.TIGHT)
    assert abs(law.log_mass - en.log_prior_normaliser(case.scored)) < ep.TIGHT


@pytest.mark.slow
@pytest.mark.parametrize("model", few_of(ep.MODELS, 6))
def test_draws_have_the_law_of_the_enumeration(model):
    case = small_case(model)
    drawn = Counter(ep.rule_trees(case, law_of(case).sample(ep.key(3), 20_000)))
    known = {tree: math.exp(log_p) for tree, log_p in expected(case).items()}
    assert ep.g_test(drawn, known) > ep.FALSE_ALARM


@pytest.mark.slow
def test_trees_do_not_depend_on_the_room_that_they_are_given_at_first(monkeypatch):
    law = PriorTrees(Design.from_matrix(np.arange(12.0)[:, None]), DepthDecay(0.99, 0.2))
    one = law.sample(ep.key(0), 20)
    monkeypatch.setattr(tree_prior, "_CAPACITY", 3)
    other = law.sample(ep.key(0), 20)
    np.testing.assert_array_equal(one.num_nodes, other.num_nodes)
    np.testing.assert_array_equal(one.threshold, other.threshold)


def test_trees_that_are_ruled_out_have_no_probability():
    design = Design.from_matrix(np.arange(6.0)[:, None])
    law = PriorTrees(design, DepthDecay(), Constraints(min_leaf=2))
    splits = [{"feature": 0, "threshold": at, "left": {}, "right": {}} for at in (0.5, 1.5, 9.0)]
    trees = Tree.concatenate([Tree.from_nested(split).reshape(1) for split in splits])
    np.testing.assert_array_equal(np.isfinite(law.log_prob(trees)), [False, True, False])


def test_what_cannot_be_answered_is_refused():
    law = PriorTrees(Design.from_matrix(np.arange(6.0)[:, None]), DescriptionLength())
    with pytest.raises(ValueError, match="more than limit=5 trees"):
        law.enumerate(5)
    with pytest.raises(TypeError, match=r"prior must be a tree prior of .*; got str"):
        PriorTrees(law.design, "GROWTREE")
    with pytest.raises(TypeError, match="design must be a Design; got ndarray"):
        PriorTrees(law.design.matrix, law.prior)
    with pytest.raises(TypeError, match="constraints must be a Constraints; got dict"):
        PriorTrees(law.design, law.prior, {"min_leaf": 2})
    with pytest.raises(ValueError, match="A prior without targets cannot use monotone features"):
        PriorTrees(law.design, law.prior, Constraints(monotone={0: 1}))
    with pytest.raises(ValueError, match="num_draws must be an integer of at least 1; got 0"):
        law.sample(ep.key(0), 0)
