"""Metropolis-Hastings on hard trees against enumeration and the exact posterior."""

import functools
import itertools
from collections import Counter, defaultdict

import enumeration as en
import exact_problems as ep
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from chains import Chains, walk_chains
from tiers import few_of, slow_but

from bdtppl.inference.hard import written_trees
from bdtppl.inference.hard.written_trees import as_shape, write_out
from bdtppl.inference.metropolis import moves
from bdtppl.inference.metropolis.alternate import Alternate
from bdtppl.inference.metropolis.redraw import Redraw
from bdtppl.inference.metropolis.regrow import Regrow
from bdtppl.inference.metropolis.restructure import Restructure
from bdtppl.inference.metropolis.sample import sample_chains
from bdtppl.inference.metropolis.state import initial, state_of
from bdtppl.models.data.design import Design
from bdtppl.models.hard import node_scores, packed_model
from bdtppl.models.hard.log_joint import log_joint
from bdtppl.models.hard.tree import Tree, route
from bdtppl.models.hard.tree_model import TreeModel
from bdtppl.models.leaves import DirichletCategorical
from bdtppl.models.priors import DescriptionLength, LeafPenalty
from bdtppl.models.pytrees import pytree_dataclass

CAPACITY = 31
NUM_CHAINS = 8_000
MOVES = {"grow": 1, "prune": 2, "change": 3, "shift": 1, "swap": 2, "rotate": 2}
LOCAL = moves.LocalMoves.of(MOVES)
KERNELS = {
    "local": LOCAL,
    "redraw": Redraw(),
    "regrow": Regrow(),
    "restructure": Alternate(LOCAL, Restructure(), period=5),
}

# Compiling is what takes time, so most models are left to the slow run.
CASES = [(model, ep.FAMILIES[i % 2]) for i, model in enumerate(ep.SOME_MODELS)]


def posed(case):
    return packed_model.PackedModel.of(case.model)


def small_case(model, family, seed, **fixed):
    """Draw a case of few trees whose choices of a rule `grid_of_choices` can make."""
    for attempt in itertools.count(100 * seed):
        case = ep.random_case(model, family, attempt, most_trees=100, num_rows=5, **fixed)
        tabled = posed(case)
        most = 4 if case.design.num_features == 1 else 3
        if (np.asarray(tabled.can_cut) @ np.asarray(tabled.by_column)).max() <= most:
            return case
    raise AssertionError


@pytest.mark.slow
@pytest.mark.parametrize(("model", "family"), few_of(CASES, 2))
def test_states_score_as_the_log_joint_does(model, family):
    case = ep.random_case(model, family, 3)
    trees = case.exact.sample_trees(ep.key(0), 40)
    with jax.enable_x64(True):
        tabled = posed(case)
        shape = as_shape(tabled, case.design, trees, 63)
        state = state_of(tabled, shape)
        written = write_out(tabled, shape)
    expected = log_joint(trees, case.model)
    np.testing.assert_allclose(state.log_likelihood, expected.log_likelihood, rtol=1e-9, atol=1e-9)
    if not case.prior.counts_partitions:  # there rules share the weight of a partition
        total = state.log_prior + state.log_likelihood
        np.testing.assert_allclose(total, expected.log_joint, rtol=1e-9, atol=1e-9)
    assert ep.rule_trees(case, written.trees) == ep.rule_trees(case, trees)
    again = log_joint(written.trees, case.model)
    np.testing.assert_allclose(again.log_joint, expected.log_joint, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "family"), slow_but(CASES[2:3], CASES))
def test_weights_of_all_rules_are_those_of_each(model, family):
    case = ep.random_case(model, family, 3)
    trees = case.exact.sample_trees(ep.key(0), 4)
    with jax.enable_x64(True):
        tabled = posed(case)
        state = state_of(tabled, as_shape(tabled, case.design, trees, 31))
        used = np.flatnonzero(state.shape.is_used)
        rows, depth = state.rows.reshape(-1, 1)[used], state.shape.depth.ravel()[used]
        weights = jax.jit(node_scores.node_weights)(tabled, rows, depth)
        score = jax.jit(node_scores.node_terms)
        for place in range(len(tabled.feature)):
            terms = score(tabled, rows, depth, jnp.full(len(used), place))
            np.testing.assert_allclose(weights.log_rules[:, place], terms.log_rule, rtol=1e-12)
            np.testing.assert_allclose(weights.log_stop, terms.log_stop, rtol=1e-12)
    if model.startswith("depth decay"):
        total = np.logaddexp(weights.log_stop, np.logaddexp.reduce(weights.log_rules, axis=1))
        np.testing.assert_allclose(total, 0.0, atol=1e-12)


def test_tables_and_trees_made_in_pieces_are_those_made_at_once(monkeypatch):
    case = ep.random_case("depth decay, gaps", "values", 0)
    assert case.design.has_missing.any()
    trees = case.exact.sample_trees(ep.key(0), 20)

    def made():
        with jax.enable_x64(True):
            tabled = posed(case)
            shape = as_shape(tabled, case.design, trees, 31)
            written, statistics = write_out(tabled, shape)
            return tabled, vars(written), statistics

    whole = made()
    monkeypatch.setattr(packed_model, "_COMPARED", 1)
    monkeypatch.setattr(written_trees, "_ENTRIES_SETTLED", 1)
    jax.tree.map(np.testing.assert_array_equal, made(), whole)


@functools.partial(jax.jit, static_argnames=("proposing",))
def proposed(tabled, state, log_probability, uniform, proposing):
    kinds = [
        proposing(tabled, state, jnp.full(len(uniform), move), log_probability, uniform)
        for move in range(len(moves.MOVES))
    ]
    return jax.tree.map(lambda *a: jnp.concatenate(a), *kinds)


def grid_of_choices():
    """Uniform numbers that make every choice equally often, [c, 2].

    Twelve numbers hit each of at most four nodes equally often, and thirty-six each rule: there are
    at most three features, and at most three rules of each, or four of a single one.
    """
    nodes, rules = ((np.arange(n) + 0.5) / n for n in (12, 36))
    return np.array(list(itertools.product(nodes, rules)))


def transitions(case, proposing):
    """Walk to every tree that can be reached, and add up the probabilities of all steps."""
    tabled = posed(case)
    log_probability = jnp.asarray(LOCAL.log_probability)
    numbers = grid_of_choices()
    share = np.repeat(np.exp(LOCAL.log_probability) / len(numbers), len(numbers))
    state = initial(tabled, 1, CAPACITY)
    root = ep.rule_trees(case, write_out(tabled, state.shape).trees)[0]
    score = {root: float((state.log_prior + state.log_likelihood)[0])}
    waiting, steps = [(root, state)], defaultdict(float)
    while waiting:
        tree, state = waiting.pop()
        many = jax.tree.map(lambda a: jnp.repeat(a, len(numbers), axis=0), state)
        proposal = proposed(tabled, many, log_probability, numbers, proposing)
        new = proposal.state
        log_score = np.asarray(new.log_prior + new.log_likelihood)
        log_acceptance = np.minimum(log_score - score[tree] + np.asarray(proposal.log_ratio), 0)
        taken = np.exp(log_acceptance) * share
        there = np.flatnonzero(taken > 0)
        shape = jax.tree.map(lambda a, at=there: np.asarray(a)[at], new.shape)
        names = ep.rule_trees(case, write_out(tabled, shape).trees)
        for place, name in zip(there, names, strict=True):
            steps[tree, name] += taken[place]
            if name not in score:
                score[name] = float(log_score[place])
                waiting.append((name, jax.tree.map(lambda a, at=place: a[at : at + 1], new)))
        steps[tree, tree] += 1 - taken[there].sum()
    return set(score), steps


def check_balance(case, proposing=moves.propose):
    with jax.enable_x64(True):
        reached, steps = transitions(case, proposing)
    probability = case.probabilities
    assert reached == {tree for tree, p in probability.items() if p > 0}
    for (one, other), forth in steps.items():
        back = steps.get((other, one), 0.0)
        assert abs(probability[one] * forth - probability[other] * back) < 1e-10
    for tree in reached:
        into = sum(probability[one] * p for (one, other), p in steps.items() if other == tree)
        assert abs(into - probability[tree]) < 1e-10


@pytest.mark.parametrize(("model", "family"), slow_but(CASES[2:3], CASES, few=2))
def test_every_move_is_in_balance_with_the_posterior(model, family):
    check_balance(small_case(model, family, 0))


def check_that_chains_resize_by_themselves(kernel):
    """Of chains side by side one third grows where the others prune, within 5 standard errors.

    Growth alone leaves no posterior as it is: chains that grow together do not stay independent,
    and then exchanges between powers are biased. A false alarm is one in 10^5 (20 batches).
    """
    case = small_case("depth decay, gaps", "classes", 0)
    with jax.enable_x64(True):
        tabled = posed(case)
        state = initial(tabled, 900, CAPACITY)
        keys = jax.random.split(ep.key(0), (20, 900))
        made = np.array([moved(own, tabled, state, kernel=kernel) for own in keys])
    counts = (made[:, :, None] == np.arange(len(moves.MOVES))).sum(axis=1)
    together = counts[counts[:, :2].any(axis=1)]
    assert 0 < len(together) < len(counts)
    assert (together[:, :2].sum(axis=1) == 900).all()
    assert (np.abs(together[:, 0] / 900 - 1 / 3) < 5 * np.sqrt(2 / 9 / 900)).all()


@jax.jit
def moved(rng_keys, tabled, state, kernel):
    return kernel.propose(rng_keys, jnp.int32(0), tabled, state, jnp.ones(len(rng_keys))).move


def test_chains_resize_by_themselves():
    check_that_chains_resize_by_themselves(LOCAL)


def test_chains_that_grow_together_are_noticed():
    @pytree_dataclass
    class Together(moves.LocalMoves):
        def propose(self, rng_keys, number, model, state, power):
            proposal = super().propose(rng_keys, number, model, state, power)
            return proposal._replace(move=jnp.full_like(proposal.move, proposal.move[0]))

    with pytest.raises(AssertionError):
        check_that_chains_resize_by_themselves(Together(LOCAL.log_probability))


# ------------------------------------------------------------------------- from exact draws


def walked(case, trees, num_steps, kernel=LOCAL, power=1.0):
    with jax.enable_x64(True):
        tabled = posed(case)
        state = state_of(tabled, as_shape(tabled, case.design, trees, CAPACITY))
        num_chains = len(trees.num_nodes)
        _, kept, _ = walk_chains(
            jax.random.split(ep.key(1), num_chains),
            jnp.int32(0),
            state,
            tabled,
            kernel,
            jnp.full(num_chains, power),
            num_draws=1,
            thin=num_steps,
        )
        shape = jax.tree.map(lambda a: np.asarray(a)[0], kept.shape)
        return ep.rule_trees(case, write_out(tabled, shape).trees)


def check_invariance(case, num_chains, num_steps, kernel=LOCAL):
    trees = case.exact.sample_trees(ep.key(0), num_chains)
    after = Counter(walked(case, trees, num_steps, kernel))
    assert ep.g_test(after, case.probabilities) > ep.FALSE_ALARM


@pytest.mark.slow
@pytest.mark.runs_long
@pytest.mark.parametrize(
    ("model", "family", "num_steps"),
    [(*case, 20) for case in CASES[1:3]],  # classes and values, gaps and cuts
)
def test_exact_draws_stay_exact_under_every_prior(model, family, num_steps):
    check_invariance(ep.random_case(model, family, 8), NUM_CHAINS, num_steps)


@pytest.mark.slow
@pytest.mark.runs_long
@pytest.mark.parametrize(
    ("kernel", "model", "num_steps"),
    [
        ("local", "depth decay, gaps", 100),
        ("redraw", "depth decay, gaps", 30),
        ("restructure", "leaf penalty, gaps", 80),
    ],
)
def test_without_data_chains_draw_from_the_prior(kernel, model, num_steps):
    """Chains from the tree of one leaf, in as many steps as they need to forget it."""
    case = ep.random_case(model, "classes", 8)
    log_total = en.log_prior_normaliser(case.scored)
    expected = {s.tree: np.exp(s.log_prior - log_total) for s in case.scored}
    root = Tree.from_nested({})
    trees = Tree.concatenate([root.reshape(1)] * 4_000)
    after = Counter(walked(case, trees, num_steps, KERNELS[kernel], power=0.0))
    assert ep.g_test(after, expected) > ep.FALSE_ALARM


# ----------------------------------------------------------------------------- mutation twins


def with_ratio(change):
    def proposing(*arguments):
        proposal = moves.propose(*arguments)
        return proposal._replace(log_ratio=change(proposal))

    return proposing


BROKEN = {
    "no ratio": lambda p: jnp.where(jnp.isfinite(p.log_ratio), 0.0, p.log_ratio),
    "no ratio of a change": lambda p: jnp.where(
        p.move == moves.MOVES.index("change"), 0.0, p.log_ratio
    ),
    "grows too often": lambda p: p.log_ratio + 0.01 * (p.move == moves.MOVES.index("grow")),
    "rotates too often": lambda p: p.log_ratio + 0.01 * (p.move == moves.MOVES.index("rotate")),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(change, marks=() if name == "grows too often" else pytest.mark.slow, id=name)
        for name, change in BROKEN.items()
    ],
)
def test_a_move_out_of_balance_is_noticed(change):
    case = small_case("depth decay, gaps", "classes", 0, min_leaf=1, max_depth=None)
    with pytest.raises(AssertionError):
        check_balance(case, with_ratio(change))


ROTATIONS = moves.LocalMoves.of({"grow": 1, "prune": 1, "rotate": 2})


@pytree_dataclass
class Reckless(moves.LocalMoves):
    """Hardly ever rejects a rotation."""

    def propose(self, rng_keys, number, model, state, power):
        proposal = super().propose(rng_keys, number, model, state, power)
        gain = 5.0 * (proposal.move == moves.MOVES.index("rotate"))
        return proposal._replace(log_ratio=proposal.log_ratio + gain)


def check_rotations(kernel, num_steps):
    """Nearly all trees of this case have three leaves or more, so that many can be rotated."""
    case = ep.random_case("depth decay, gaps", "classes", 15, most_trees=400)
    with jax.enable_x64(True):
        after = Counter(Chains(case, case.prior, CAPACITY).walked(kernel, 4_000, num_steps))
    assert ep.g_test(after, case.probabilities) > ep.FALSE_ALARM


@pytest.mark.slow
@pytest.mark.runs_long
def test_exact_draws_stay_exact_under_rotations():
    check_rotations(ROTATIONS, 50)


@pytest.mark.slow
@pytest.mark.runs_long
def test_rotations_that_are_hardly_ever_rejected_are_noticed():
    with pytest.raises(AssertionError):
        check_rotations(Reckless(ROTATIONS.log_probability), 5)


@pytest.mark.slow
@pytest.mark.runs_long
def test_a_kernel_that_forgets_the_prior_is_noticed():
    @pytree_dataclass
    class Forgetful(moves.LocalMoves):
        def propose(self, rng_keys, number, model, state, power):
            proposal = super().propose(rng_keys, number, model, state, power)
            lost = proposal.state.log_prior - state.log_prior
            return proposal._replace(log_ratio=proposal.log_ratio - lost)

    case = ep.random_case("depth decay, gaps", "classes", 7)
    with pytest.raises(AssertionError):
        check_invariance(case, NUM_CHAINS, 10, Forgetful(LOCAL.log_probability))


# ------------------------------------------------------------------------------ whole chains


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "family"), few_of(zip(KERNELS, itertools.cycle(ep.FAMILIES), strict=False), 2)
)
def test_a_long_run_finds_the_posterior(kernel, family):
    case = ep.random_case("description length, cuts", family, 2)
    drawn = sample_chains(
        ep.key(3),
        case.model,
        chains=8,
        warmup=500,
        draws=2_000,
        thin=10,
        kernel=KERNELS[kernel],
        capacity=CAPACITY,
    )
    stats = drawn.posterior.sample_stats
    effective = float(az_ess(stats["log_joint"]))
    names = Counter(ep.rule_trees(case, drawn.posterior.trees.reshape(-1)))
    total = sum(names.values())
    p = np.array(list(case.probabilities.values()))
    q = np.array([names[tree] / total for tree in case.probabilities])
    bound = 2 * np.sqrt(p * (1 - p) / (2 * np.pi * effective)).sum()
    assert np.abs(p - q).sum() / 2 < bound
    expected = log_joint(drawn.posterior.trees, case.model)
    np.testing.assert_allclose(stats["log_joint"], expected.log_joint, atol=1e-9)
    assert drawn.num_overflows.shape == (8,)
    for share in drawn.acceptance.values():
        assert ((share > 0) & (share <= 1)).all()


def az_ess(values):
    import arviz as az

    return np.asarray(az.ess(values))


@pytest.mark.slow
def test_the_same_key_gives_the_same_draws_and_a_start_is_taken():
    case = ep.random_case("depth decay, cuts", "values", 5)
    arguments = case.design, case.y, case.prior, case.leaf, case.constraints
    options = {"chains": 3, "warmup": 7, "draws": 5, "thin": 2, "capacity": CAPACITY}
    start = case.exact.k_best(1).trees[0]
    one, two = (
        sample_chains(ep.key(0), TreeModel(*arguments), **options, first_trees=start)
        for _ in range(2)
    )
    other = sample_chains(ep.key(1), TreeModel(*arguments), **options, first_trees=start)
    np.testing.assert_array_equal(one.posterior.trees.threshold, two.posterior.trees.threshold)
    assert not np.array_equal(
        one.posterior.sample_stats["log_joint"], other.posterior.sample_stats["log_joint"]
    )


@pytest.mark.parametrize("threshold", [0.26, 0.485, 0.5])
def test_a_start_between_the_cuts_of_a_grid_parts_the_rows_as_it_says(threshold):
    matrix = np.array([[0.0], [0.26], [0.45], [0.52], [1.0]])
    design, y = Design.from_matrix(matrix, grid=3), np.arange(5) % 2
    tree = Tree.from_nested({"feature": 0, "threshold": threshold, "left": {}, "right": {}})
    with jax.enable_x64(True):
        tabled = packed_model.PackedModel.of(
            TreeModel(design, y, DescriptionLength(), DirichletCategorical.symmetric(2))
        )
        shape = as_shape(tabled, design, tree.reshape(1), 3)
        trees = write_out(tabled, shape).trees
    np.testing.assert_array_equal(route(trees, matrix)[0] == 1, matrix[:, 0] < threshold)


@pytest.mark.slow
def test_what_does_not_fit_is_rejected_and_counted():
    design = Design.from_matrix(np.arange(20.0)[:, None])
    leaf = DirichletCategorical.symmetric(2)
    y = np.arange(20) % 2
    drawn = sample_chains(
        ep.key(0), TreeModel(design, y, LeafPenalty(-1.0), leaf), capacity=5, draws=20, warmup=100
    )
    assert drawn.posterior.trees.num_nodes.max() == 5
    assert (drawn.num_overflows > 0).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"thin": 1.5}, "thin must be an integer"),
        ({"draws": 0}, "draws must be an integer of at least 1"),
        ({"capacity": 1}, "capacity must be an integer of at least 3"),
    ],
)
def test_bad_input_is_named(options, message):
    design = Design.from_matrix(np.arange(4.0)[:, None])
    leaf = DirichletCategorical.symmetric(2)
    with pytest.raises(ValueError, match=message):
        sample_chains(
            ep.key(0), TreeModel(design, np.arange(4) % 2, LeafPenalty(), leaf), **options
        )


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"jump": 1.0}, "moves must name .*; got 'jump'"),
        ({"grow": 1.0}, "both grow and prune"),
        ({"grow": 0.0}, "at least 0"),
    ],
)
def test_moves_without_sense_are_refused(named, message):
    with pytest.raises(ValueError, match=message):
        moves.LocalMoves.of(named)


def test_targets_that_do_not_fit_the_rows_are_refused():
    design = Design.from_matrix(np.arange(4.0)[:, None])
    leaf = DirichletCategorical.symmetric(2)
    with pytest.raises(ValueError, match="one entry per row"):
        sample_chains(ep.key(0), TreeModel(design, np.zeros(5, int), LeafPenalty(), leaf))
