"""Flows of subproblems against enumeration and the exact posterior."""

import functools
from collections import Counter

import chains
import equinox as eqx
import exact_problems as ep
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from handmade import batch
from tiers import slow_but

from bdtppl.inference.gflownet import grammar
from bdtppl.inference.gflownet.grammar import NUM_FACTS, pose_problem
from bdtppl.inference.gflownet.grammar_best import best_tree
from bdtppl.inference.gflownet.grammar_draws import as_heap, draw, follow_trees, from_heap, go_down
from bdtppl.inference.gflownet.grammar_network import FlowNetwork
from bdtppl.inference.gflownet.grammar_posterior import sample_weighted, score
from bdtppl.inference.gflownet.grammar_training import (
    GrammarSettings,
    balance_loss,
    initial_flow_state,
    learn,
    train_flow,
    train_step,
)
from bdtppl.inference.hard.shapes import LEAF
from bdtppl.inference.hard.written_trees import as_shape
from bdtppl.inference.run import read_state, write_state
from bdtppl.models.constraints import Constraints, KeepTogether
from bdtppl.models.data.design import Design
from bdtppl.models.hard.log_joint import log_joint
from bdtppl.models.hard.tree_model import TreeModel
from bdtppl.models.leaves import DirichletCategorical
from bdtppl.models.priors import DescriptionLength

DEPTH = 3
WITHIN = 4  # standard errors: a false alarm in 16,000 tests
TREES = 16  # drawn at once, as by `sample_weighted`
SETTINGS = GrammarSettings(num_trees=TREES, epsilon=0.5, updates=8, batch=64, ring=512)

MODELS = ("description length, cuts", "depth decay, gaps", "leaf penalty, gaps")
FIRST = MODELS[0], "classes"
CASES = slow_but(
    {FIRST},
    [(model, family) for model in MODELS for family in ep.FAMILIES],
    few=3,
)
every_case = pytest.mark.parametrize(("model", "family"), CASES)


class Table(eqx.Module):
    """A flow with a number of its own for each set of rows at each depth."""

    value: jax.Array  # [D, 2^n]

    def statistics(self, rows):
        return 2.0 ** jnp.arange(len(rows))[:, None]

    def place(self, statistics, facts):
        level = jnp.rint(facts[:, 0] * len(self.value)).astype(int)
        return level, statistics[:, 0].astype(int)

    def __call__(self, statistics, facts):
        return self.value[self.place(statistics, facts)]


@functools.cache
def case_of(model, family):
    options = {"num_rows": 8, "max_depth": DEPTH, "weighted": False, "min_leaf": 1}
    options |= {"repeated": False, "most_trees": 1500, "features": None}
    for seed in range(1000):
        case = ep.random_case(model, family, seed, **options)
        if max(map(ep.depth_of, case.probabilities)) == DEPTH:
            return case
    raise AssertionError


@functools.cache
def posed(model, family):
    case = case_of(model, family)
    arguments = case.design, case.y, case.prior, case.leaf, case.constraints
    return pose_problem(TreeModel(*arguments))


def network(problem, seed=0):
    """A network whose flows are far from balanced."""
    with jax.enable_x64(True):
        flow = FlowNetwork(ep.key(seed), problem.rows.shape[1], NUM_FACTS, width=16)
        last = flow.head.layers[-1]
        noise = jax.random.normal(ep.key(seed + 1), last.weight.shape, jnp.float32)
        return eqx.tree_at(lambda flow: flow.head.layers[-1].weight, flow, noise)


@functools.cache
def all_trees(case):
    """Every tree as arrays, and its log joint by enumeration."""
    nested = [chains.nested(case.problem, scored.tree) for scored in case.scored]
    expected = [scored.log_prior + scored.log_likelihood for scored in case.scored]
    return batch(nested, (len(nested),)), np.array(expected)


def drawn_from(problem, flow, seed=0, epsilon=0.0):
    with jax.enable_x64(True):
        return draw(ep.key(seed), problem, flow, epsilon, num_trees=TREES)


def pieces(heap):
    """Heaps of trees by as many as are compiled for, the last piece filled up."""
    for start in range(0, len(heap), TREES):
        yield np.resize(heap[start : start + TREES], (TREES, heap.shape[1]))


def balanced(case, problem):
    """A table that meets the local balance at all subproblems, and the greatest loss there."""
    heap = heaps(case, problem, all_trees(case)[0])
    with jax.enable_x64(True):
        flow = Table(jnp.zeros((DEPTH, 2 ** len(problem.rows))))
        statistics = flow.statistics(problem.rows)
        for _ in range(DEPTH):  # from the bottom up
            losses = []
            for some in pieces(heap):
                _, visits = follow_trees(problem, flow, some)
                words, facts, imbalance = (
                    np.asarray(array)[np.asarray(visits.is_learned)] for array in visits[:3]
                )
                if not len(words):
                    continue
                losses.append(float(balance_loss(flow, problem, words, facts, imbalance)))
                place = flow.place(grammar.row_sums(words, statistics), facts)
                flow = Table(flow.value.at[place].set(imbalance))
    return flow, max(losses)


def total_variation(case, problem, flow):
    trees, expected = all_trees(case)
    log_probability = score(problem, flow, case.design, trees).log_probability
    p = np.exp(expected - np.logaddexp.reduce(expected))
    return np.abs(np.exp(log_probability) - p).sum() / 2


def log_partition_of(problem, flow):
    return float(drawn_from(problem, flow)[1].log_partition)


# ------------------------------------------------------------------------- what balance means


def check_balance_is_the_posterior(case, problem):
    flow, loss = balanced(case, problem)
    assert loss < 1e-10
    assert total_variation(case, problem, flow) < 1e-6
    assert abs(log_partition_of(problem, flow) - case.exact.log_partition) < 1e-6


@every_case
def test_flows_in_balance_are_the_exact_posterior(model, family):
    check_balance_is_the_posterior(case_of(model, family), posed(model, family))


@pytest.mark.slow
def test_a_flow_out_of_balance_is_noticed():
    case, problem = case_of(*FIRST), posed(*FIRST)
    flow, _ = balanced(case, problem)
    with jax.enable_x64(True):
        flow = Table(flow.value * 0.99)
    assert total_variation(case, problem, flow) > 1e-4
    assert abs(log_partition_of(problem, flow) - case.exact.log_partition) > 1e-4


@pytest.mark.slow
def test_a_child_counted_twice_is_noticed(monkeypatch):
    """Its flows are in balance, too, but they are those of another posterior."""
    monkeypatch.setattr(grammar, "joined", lambda left, right: 2 * left)
    go_down.clear_cache()
    try:
        with pytest.raises(AssertionError):
            check_balance_is_the_posterior(case_of(*FIRST), posed(*FIRST))
    finally:
        go_down.clear_cache()


# -------------------------------------------------------------------- draws of any flow at all


@pytest.mark.slow
@every_case
def test_probabilities_are_those_of_the_choices(model, family):
    """They sum to 1 over all trees, and log joints are those of the enumeration."""
    case, problem = case_of(model, family), posed(model, family)
    flow = network(problem)
    trees, expected = all_trees(case)
    scores = score(problem, flow, case.design, trees)
    assert abs(np.exp(scores.log_probability).sum() - 1) < 1e-9
    np.testing.assert_allclose(scores.log_joint, expected, atol=1e-9)

    probability = np.exp(scores.log_probability)
    log_z = np.logaddexp.reduce(expected)
    elbo = probability @ scores.log_weight
    eubo = np.exp(expected - log_z) @ scores.log_weight
    assert elbo < log_z - 1e-3
    assert eubo > log_z + 1e-3

    drawn, _ = drawn_from(problem, flow)
    again = follow_in_float64(problem, flow, drawn.rule)
    np.testing.assert_allclose(again.log_probability, drawn.log_probability, atol=1e-9)
    np.testing.assert_allclose(again.log_joint, drawn.log_joint, atol=1e-9)


@pytest.mark.slow
def test_weights_are_the_imbalance_of_what_was_visited():
    """Equation (2); the network computes in float32."""
    case, problem = case_of(*FIRST), posed(*FIRST)
    flow = network(problem)
    deepest = np.argsort(-all_trees(case)[0].num_nodes)[:5]
    for heap in heaps(case, problem, all_trees(case)[0][deepest]):
        with jax.enable_x64(True):
            drawn, visits = follow_trees(problem, flow, np.tile(heap, (TREES, 1)))
            sums = grammar.row_sums(visits.words, flow.statistics(problem.rows))
            imbalance = np.asarray(visits.imbalance - flow(sums, visits.facts))
        is_learned = np.asarray(visits.is_learned)
        assert is_learned.sum() > 0
        total = imbalance[is_learned].sum() + float(visits.log_partition)
        np.testing.assert_allclose(drawn.log_weight, total, atol=1e-4)


def follow_in_float64(problem, flow, rule):
    with jax.enable_x64(True):
        return follow_trees(problem, flow, rule)[0]


def p_value_of_draws(case, problem, epsilon):
    """G-test of draws against the probabilities of the policy without exploration."""
    flow, (trees, _) = network(problem), all_trees(case)
    probability = np.exp(score(problem, flow, case.design, trees).log_probability)
    number = {heap.tobytes(): place for place, heap in enumerate(heaps(case, problem, trees))}
    seen = Counter()
    for seed in range(160):
        drawn, _ = drawn_from(problem, flow, seed, epsilon)
        seen.update(number[heap.tobytes()] for heap in np.asarray(drawn.rule))
    return ep.g_test(seen, dict(enumerate(probability)))


def heaps(case, problem, trees):
    return as_heap(as_shape(problem.model, case.design, trees, trees.capacity), DEPTH)


@pytest.mark.slow
def test_draws_follow_their_probabilities():
    case, problem = case_of(*FIRST), posed(*FIRST)
    assert p_value_of_draws(case, problem, 0.0) > ep.FALSE_ALARM
    assert p_value_of_draws(case, problem, 0.3) < ep.FALSE_ALARM  # the twin


def test_heaps_and_structures_are_the_same_trees():
    case, problem = case_of(*FIRST), posed(*FIRST)
    trees, _ = all_trees(case)
    heap = heaps(case, problem, trees)
    np.testing.assert_array_equal(as_heap(from_heap(heap), DEPTH), heap)
    assert (from_heap(heap).size == trees.num_nodes).all()
    with pytest.raises(ValueError, match="3 levels of splits, more than max_depth=2"):
        as_heap(from_heap(heap), 2)


# ------------------------------------------------------------------------- evidence and draws


@pytest.mark.slow
@pytest.mark.parametrize("family", slow_but({"classes"}, ep.FAMILIES))
def test_weighted_draws_estimate_the_evidence(family):
    case, problem = case_of(MODELS[0], family), posed(MODELS[0], family)
    drawn = sampled(case, problem, network(problem), draws=500)
    assert abs(drawn.log_partition - case.exact.log_partition) < WITHIN * drawn.log_partition_se
    assert drawn.lower_bound < drawn.log_partition
    assert 1 < drawn.effective_size < 2000
    posterior = drawn.posterior
    assert posterior.trees.batch_shape == (4, 500)
    assert np.isnan(posterior.log_evidence)  # the prior is not normalised
    expected = log_joint(posterior.trees, case.model)
    np.testing.assert_allclose(posterior.sample_stats["log_joint"], expected.log_joint, atol=1e-9)
    np.testing.assert_allclose(
        posterior.log_weights,
        score(problem, network(problem), case.design, posterior.trees).log_weight,
        atol=1e-9,
    )
    unweighted = np.log(np.mean(np.exp(expected.log_joint)))  # the twin forgets the policy
    assert abs(unweighted - case.exact.log_partition) > WITHIN * drawn.log_partition_se


def test_draws_that_explore_are_weighed_by_how_they_were_drawn():
    """Of a tree that is one leaf the probability can be said in one line."""
    case, problem = case_of(*FIRST), posed(*FIRST)
    flow, trees = network(problem), all_trees(case)[0]
    leaf = np.full((1, 2**DEPTH - 1), LEAF, np.int32)
    num_choices = len({heap[0] for heap in heaps(case, problem, trees)})
    own = np.exp(follow_in_float64(problem, flow, leaf).log_probability)
    expected = np.log(0.7 * own + 0.3 / num_choices)
    with jax.enable_x64(True):
        given = go_down(ep.key(0), problem, flow, np.tile(leaf, (TREES, 1)), 0.3)[0]
    np.testing.assert_allclose(given.log_probability, expected[0], atol=1e-9)
    assert abs(np.log(own) - expected) > 0.01
    drawn = drawn_from(problem, flow, 0, 0.3)[0]
    with jax.enable_x64(True):
        again = go_down(ep.key(0), problem, flow, drawn.rule, 0.3)[0]
    np.testing.assert_allclose(drawn.log_probability, again.log_probability, atol=1e-9)


def sampled(case, problem, flow, seed=0, **options):
    arguments = case.design, case.y, case.prior, case.leaf
    return sample_weighted(ep.key(seed), problem, flow, TreeModel(*arguments), **options)


def test_draws_depend_on_their_key_alone():
    case, problem = case_of(*FIRST), posed(*FIRST)
    flow = network(problem)
    one, same, other = (sampled(case, problem, flow, seed, draws=20) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.posterior.log_weights, same.posterior.log_weights)
    assert (one.posterior.log_weights != other.posterior.log_weights).any()
    assert one.posterior.ranked.probability.sum() == pytest.approx(1)


@every_case
def test_the_best_tree_is_found(model, family):
    case, problem = case_of(model, family), posed(model, family)
    tree = best_tree(problem, network(problem), width=256).trees[0]
    _, expected = all_trees(case)
    scores = score(problem, network(problem), case.design, tree.reshape(1))
    assert scores.log_joint[0] == pytest.approx(expected.max(), abs=1e-9)


# -------------------------------------------------------------------------------- training


@pytest.mark.slow
def test_training_brings_flows_into_balance():
    case, problem = case_of(*FIRST), posed(*FIRST)
    before = total_variation(case, problem, network(problem))
    state = initial_flow_state(ep.key(0), problem, SETTINGS, network(problem))
    state, metrics = train_flow(ep.key(1), problem, state, SETTINGS, 60)
    assert metrics.loss.shape == (60,)
    assert metrics.loss[-1] < 0.01 * metrics.loss[0]
    assert total_variation(case, problem, state.flow) < 0.05 < before
    assert abs(metrics.log_partition[-1] - case.exact.log_partition) < 0.05
    assert metrics.effective_share[-1] > metrics.effective_share[0]
    assert (metrics.best_log_joint <= all_trees(case)[1].max() + 1e-9).all()


def test_a_checkpoint_goes_on_to_the_same_state():
    problem = posed(*FIRST)
    start = initial_flow_state(ep.key(0), problem, SETTINGS, network(problem))
    whole, _ = train_flow(ep.key(1), problem, start, SETTINGS, 4)
    half, _ = train_flow(ep.key(1), problem, start, SETTINGS, 2)
    arrays = {name: array.copy() for name, array in write_state(half).items()}
    resumed, _ = train_flow(ep.key(1), problem, read_state(start, arrays), SETTINGS, 2)
    for name, array in write_state(whole).items():
        np.testing.assert_array_equal(array, write_state(resumed)[name])
    other, _ = train_flow(ep.key(2), problem, start, SETTINGS, 4)
    assert (other.ring.words != whole.ring.words).any()

    arrays.popitem()
    with pytest.raises(ValueError, match="The checkpoint is from another problem"):
        read_state(start, arrays)


@pytest.mark.slow
def test_a_step_keeps_its_state_and_compiles_once():
    problem = posed(*FIRST)
    state = initial_flow_state(ep.key(0), problem, SETTINGS, network(problem))
    state, _ = train_step(ep.key(1), problem, state, SETTINGS)
    sizes = [function._cache_size() for function in (go_down, learn)]
    later, _ = train_step(ep.key(1), problem, state, SETTINGS)
    assert sizes == [function._cache_size() for function in (go_down, learn)]
    kinds = [jax.tree.map(lambda a: (a.shape, a.dtype), one) for one in (state, later)]
    assert kinds[0] == kinds[1]


def test_the_ring_keeps_the_latest():
    problem = posed(*FIRST)
    small = GrammarSettings(num_trees=TREES, ring=8)
    with jax.enable_x64(True):
        ring = initial_flow_state(ep.key(0), problem, small).ring
        _, visits = draw(ep.key(0), problem, network(problem), 0.5, num_trees=TREES)
        full = ring.put(visits)
    expected = np.asarray(visits.words)[np.asarray(visits.is_learned)]
    assert full.count == len(expected) > 8
    assert {w.tobytes() for w in np.asarray(full.words)} == {w.tobytes() for w in expected[-8:]}


# -------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("constraints", "message"),
    [
        (Constraints(), "needs max_depth, from 1 to 10"),
        (Constraints(max_depth=0), "got 0"),
        (Constraints(max_depth=11), "got 11"),
        (
            Constraints(max_depth=2, keep_together=[KeepTogether({0: (0.5, None)})]),
            "does not support constraints on paths",
        ),
    ],
)
def test_bad_problems_are_named(constraints, message):
    design = Design.from_matrix(np.arange(4.0)[:, None])
    leaf = DirichletCategorical.symmetric(2)
    with pytest.raises(ValueError, match=message):
        pose_problem(TreeModel(design, np.arange(4) % 2, DescriptionLength(), leaf, constraints))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_trees": 0}, "num_trees must be an integer of at least 1"),
        ({"batch": 1.5}, "batch must be an integer"),
        ({"epsilon": 1.0}, r"epsilon must be a number in \[0, 1\)"),
        ({"learning_rate": -1.0}, "learning_rate must be a positive number"),
    ],
)
def test_bad_settings_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        GrammarSettings(**options)


def test_bad_numbers_are_named():
    case, problem = case_of(*FIRST), posed(*FIRST)
    state = initial_flow_state(ep.key(0), problem, SETTINGS, network(problem))
    with pytest.raises(ValueError, match="num_steps must be an integer of at least 1"):
        train_flow(ep.key(0), problem, state, SETTINGS, 0)
    with pytest.raises(ValueError, match="At least one draw"):
        sampled(case, problem, state.flow, draws=0)
    with pytest.raises(ValueError, match="width must be at least 1"):
        best_tree(problem, state.flow, width=0)
