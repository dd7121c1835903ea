"""Derivatives of the log partition against central differences.

Deterministic: differences of step 1e-5 in float64. The check has a mutation twin: a derivative that
forgets or distorts one of its parts must fail.
"""

import enumeration as en
import exact_problems as ep
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiers import few_of, slow_but

from bdtppl.inference.pcfg.compiler import compile_grammar
from bdtppl.inference.pcfg.exact import ExactPosterior
from bdtppl.inference.pcfg.passes import inside, log_partition, outside
from bdtppl.models.data.design import Design

CASES = [(m, ep.FAMILIES[i % 2], 400 + i) for i, m in enumerate(ep.SOME_MODELS)]
MANY = [(m, f, seed) for m in ep.MODELS for f in ep.FAMILIES for seed in (420, 421)]
STEP, TOLERANCE = 1e-5, 1e-7


def terms(exact):
    """Prior, leaf scores and feature weights of a posterior; weights that are not all zero."""
    prior, scores, weights = exact._terms
    return prior, scores, weights + jnp.linspace(-0.3, 0.2, len(weights))


def check_gradient(case, function):
    """All derivatives, one by one: prior parameters, leaf scores, feature weights."""
    with jax.enable_x64(True):
        exact = case.posterior()
        where = terms(exact)
        found = jax.grad(function, argnums=(1, 2, 3))(exact.chart, *where)
        for gradient, point in zip(jax.tree.leaves(found), jax.tree.leaves(where), strict=True):
            assert gradient.dtype == jnp.float64
            assert gradient.shape == point.shape
        places, tree = jax.tree.flatten(where)
        gradients = jax.tree.leaves(found)
        for place, gradient in enumerate(gradients):
            is_scores = len(np.shape(gradient)) == 1 and place == len(gradients) - 2
            count = case.grammar.num_subproblems if is_scores else np.size(gradient)
            for entry in range(count):
                difference = central_difference(exact.chart, places, tree, place, entry)
                got = float(gradient.ravel()[entry])
                assert abs(got - difference) < TOLERANCE, f"{got} is not {difference}"
            if is_scores:  # what lies beyond the grammar does not count
                assert not np.any(gradient[count:])


def central_difference(chart, places, tree, place, entry):
    def value(step):
        moved = list(places)
        moved[place] = jnp.asarray(moved[place])
        shape = moved[place].shape
        moved[place] = moved[place].ravel().at[entry].add(step).reshape(shape)
        return float(log_partition(chart, *jax.tree.unflatten(tree, moved)))

    return (value(STEP) - value(-STEP)) / (2 * STEP)


@pytest.mark.parametrize(("model", "family", "seed"), slow_but(CASES[:3], CASES))
def test_gradient_equals_differences(model, family, seed):
    case = ep.random_case(model, family, seed, most_trees=300)
    check_gradient(case, log_partition)
    # As the log partition is differentiated, so it is computed.
    with jax.enable_x64(True):
        prior, scores, weights = case.exact._terms
        value = float(log_partition(case.exact.chart, prior, scores, weights))
    assert abs(value - en.log_partition(case.scored)) < ep.TIGHT


@pytest.mark.slow
@pytest.mark.parametrize(("model", "family", "seed"), few_of(MANY, 16))
def test_gradient_equals_differences_on_many(model, family, seed):
    check_gradient(ep.random_case(model, family, seed), log_partition)


def test_gradient_by_the_penalty_is_the_number_of_splits():
    case = ep.random_case("leaf penalty, gaps", "classes", 410)
    with jax.enable_x64(True):
        prior, scores, weights = case.exact._terms
        gradient, splits = jax.grad(log_partition, argnums=(1, 3))(
            case.exact.chart, prior, scores, weights
        )
    expected = en.expected_leaves(case.scored) - 1
    assert abs(float(gradient.log_phi) + expected) < ep.TIGHT
    assert abs(np.asarray(splits).sum() - expected) < ep.TIGHT


@pytest.mark.parametrize(
    "model", slow_but(ep.SOME_MODELS[:1], [ep.SOME_MODELS[0], ep.SOME_MODELS[3]])
)
def test_a_table_without_a_rule_has_one_tree(model):
    name, rules, num_features = ep.MODELS[model]
    prior = ep.PRIORS[name][0](rules)
    grammar = compile_grammar(Design.from_matrix(np.ones((3, num_features))), rules=rules)
    leaf, _ = ep.leaf_pair("classes", np.array([0, 1, 2]))
    exact = ExactPosterior(grammar, prior, leaf, np.array([0, 1, 2]))
    with jax.enable_x64(True):
        gradients = jax.grad(log_partition, argnums=(1, 2, 3))(exact.chart, *exact._terms)
    flat = [np.asarray(g) for g in jax.tree.leaves(gradients)]
    assert all(np.isfinite(g).all() for g in flat)
    assert sum(np.abs(g).sum() for g in flat) == 1  # of the root's own score
    assert exact.expected_leaves == 1
    assert exact.rule_inclusion() == []
    assert exact.entropy == 0
    assert exact.k_best(3).probability.tolist() == [1.0]
    assert exact.predictive(np.zeros((2, num_features))).mean().shape == (2, 3)
    if model == ep.SOME_MODELS[0]:
        assert (exact.sample_trees(ep.key(0), 5).num_nodes == 1).all()


# ----------------------------------------------------------------------------- mutation twins


def without(part):
    """The log partition, one part of whose derivative is dropped."""

    def function(chart, *where):
        where = [jax.lax.stop_gradient(w) if i == part else w for i, w in enumerate(where)]
        return log_partition(chart, *where)

    return function


@jax.custom_vjp
def without_stops(chart, prior, leaf_scores, feature_weight):
    return log_partition(chart, prior, leaf_scores, feature_weight)


def _forward(chart, prior, leaf_scores, feature_weight):
    log_q = inside(chart, prior, leaf_scores, feature_weight, "sum")
    usage = outside(chart, prior, leaf_scores, feature_weight, log_q)
    # What a child is visited with, less the chance that it stops: stops are forgotten.
    kept = usage.visits.sum(1) - usage.stops
    return log_q[chart.root, 0], (usage.prior, kept, usage.feature_weight)


def _backward(gradients, cotangent):
    return None, *jax.tree.map(lambda g: g * cotangent, gradients)


without_stops.defvjp(_forward, _backward)


def one_level_off(chart, *where):
    """The log partition with the derivative of one whose nodes lie a level deeper."""
    deeper = chart._replace(levels=chart.levels + 1)
    value = log_partition(chart, *map(jax.lax.stop_gradient, where))
    return value + log_partition(deeper, *where)


@pytest.mark.parametrize(
    ("model", "function"),
    [
        ("leaf penalty, gaps", without(0)),
        ("greedy partition, gaps", without(1)),
        ("depth decay, gaps", without(2)),
        ("depth decay, gaps", without_stops),
        ("depth decay, gaps", one_level_off),
    ],
)
def test_a_broken_gradient_is_noticed(model, function):
    case = ep.random_case(model, "classes", 430, most_trees=100)
    check_gradient(case, log_partition)
    with pytest.raises(AssertionError):
        check_gradient(case, function)
