"""Redrawn subtrees of at most two levels against conditional laws from the enumeration."""

import functools
from collections import Counter, defaultdict
from dataclasses import replace

import chains
import enumeration as en
import exact_problems as ep
import jax
import jax.numpy as jnp
import leaf_count_problems as lp
import numpy as np
import pytest
from chains import walk_chains
from tiers import few_of

from bdtppl.inference.hard.written_trees import as_shape
from bdtppl.inference.metropolis import redraw
from bdtppl.inference.metropolis.redraw import Redraw, redrawn
from bdtppl.inference.metropolis.state import state_of
from bdtppl.models.hard import packed_model
from bdtppl.models.hard.node_scores import node_weights
from bdtppl.models.pytrees import pytree_dataclass

CAPACITY = 31
NUM_CHAINS = 8_000
LEVELS = 3

# A prior for each way to weigh, with either family.
GIBBS = {
    "depth decay, gaps": "classes",
    "depth decay, cuts": "values",
    "depth decay by gap, gaps": "classes",
    "greedy partition, gaps": "values",
    "description length, cuts": "classes",
    "leaf penalty, gaps": "values",
}


@functools.cache
def distinct_case(model):
    """Draw a case of distinct rows, where it is known whether a node of few rows can be split."""
    options = {"min_leaf": 1, "max_depth": None, "weighted": False, "missing": False}
    options |= {"repeated": False, "binning": {}, "features": None, "num_rows": 6}
    for seed in range(100):
        case = ep.random_case(model, GIBBS[model], seed, most_trees=600, **options)
        if (
            len(np.unique(case.matrix, axis=0)) == len(case.matrix)
            and max(height(s.tree) for s in case.scored) > LEVELS
        ):
            return case
    raise AssertionError


def chains_of(case):
    return chains.Chains(case, case.exact.prior, CAPACITY)


# ----------------------------------------------------------------------------- conditional laws


def height(tree):
    return 0 if isinstance(tree, en.Leaf) else 1 + max(height(tree.left), height(tree.right))


def kept(tree, first, depth=0):
    """The tree without the subtrees that are redrawn."""
    is_picked = depth % LEVELS == first and height(tree) < LEVELS
    if is_picked or isinstance(tree, en.Leaf):
        return en.Leaf(en.tree_rows(tree))
    return en.Split(tree.rule, *(kept(side, first, depth + 1) for side in (tree.left, tree.right)))


def one_step(start, power=1.0):
    """Redraw from every exact draw: numbers of the trees before and after, levels, proposals."""
    before, state = start.drawn(NUM_CHAINS)
    first = np.arange(NUM_CHAINS) % LEVELS
    uniform = jax.random.uniform(ep.key(4), (NUM_CHAINS, CAPACITY, 3))
    proposal = jax.jit(redrawn)(
        start.model, state, jnp.asarray(first, jnp.int32), uniform, jnp.full(NUM_CHAINS, power)
    )
    number = {tree: i for i, tree in enumerate(start.trees)}
    after = [number[tree] for tree in start.read(proposal.state.shape)]
    gain = (proposal.state.log_prior - state.log_prior) + power * (
        proposal.state.log_likelihood - state.log_likelihood
    )
    return before, after, first, np.asarray(gain + proposal.log_ratio)


def check_conditional_laws(start, before, after, first, log_acceptance):
    """Every step is a draw from the posterior given what is kept, and always accepted."""
    np.testing.assert_allclose(log_acceptance, 0.0, atol=1e-9)
    members, groups = defaultdict(list), defaultdict(Counter)
    of_tree = {}
    for i, tree in enumerate(start.trees):
        for level in range(LEVELS):
            of_tree[i, level] = kept(tree, level), level
            members[of_tree[i, level]].append(i)
    for old, new, level in zip(before, after, first, strict=True):
        groups[of_tree[old, level]][new] += 1
    num_tests = 0
    for group, observed in groups.items():
        own = members[group]
        assert set(observed) <= set(own)
        p = start.probability[own] / start.probability[own].sum()
        if sum(observed.values()) * (1 - p.max()) > 10:
            num_tests += 1
            assert ep.g_test(observed, dict(zip(own, p, strict=True))) > ep.FALSE_ALARM / 100
    assert 3 <= num_tests <= 300


@pytest.mark.slow
@pytest.mark.parametrize("model", few_of(GIBBS, 2))
def test_steps_are_draws_from_conditional_laws(model):
    case = distinct_case(model)
    with jax.enable_x64(True):
        start = chains_of(case)
        before, after, first, log_acceptance = one_step(start)
        check_conditional_laws(start, before, after, first, log_acceptance)
        with pytest.raises(AssertionError):  # the likelihood counts less than it should
            check_conditional_laws(start, *one_step(start, power=0.5))


# ------------------------------------------------------------------------- from exact draws

CASES = {
    "depth decay, gaps": ("classes", 12, {"min_leaf": 1, "max_depth": None, "weighted": True}),
    "depth decay by gap, cuts": ("values", 4, {"missing": True}),
    "greedy partition, cuts": ("classes", 5, {"max_depth": 3}),
    "leaf penalty, cuts": ("values", 6, {"copied": True}),
}
LAWS = {"program": ("levels", "order"), "chronological": ("boxes",)}


def the_case(model):
    if model in lp.PRIORS:
        return lp.leaf_case(model, "gaps", "classes", 7, most_trees=300, num_rows=6)
    if model in LAWS:
        rules = "cuts" if model == "chronological" else "gaps"
        return ep.case_of_law(model, rules, "classes", 1, path=LAWS[model], most_trees=300)
    family, seed, options = CASES[model]
    return ep.random_case(model, family, seed, most_trees=600, num_rows=6, **options)


def walked(case, kernel, num_steps, power=1.0):
    """Trees after some steps from exact draws under a power of the likelihood, and their law."""
    start = chains_of(case)
    scores = {each.tree: each for each in case.scored}
    likelihood = np.array([scores[tree].log_likelihood for tree in start.trees])
    start.probability = start.probability * np.exp((power - 1) * likelihood)
    start.probability /= start.probability.sum()
    found = Counter(start.walked(kernel, NUM_CHAINS, num_steps, power))
    return found, dict(zip(start.trees, start.probability, strict=True))


def check_invariance(case, kernel, num_steps, power=1.0):
    with jax.enable_x64(True):
        found, law = walked(case, kernel, num_steps, power)
    assert ep.g_test(found, law) > ep.FALSE_ALARM


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "num_steps"),
    [(model, (1, 5)[i % 2]) for i, model in enumerate(few_of([*CASES, *LAWS, *lp.PRIORS], 2))],
)
def test_exact_draws_stay_exact(model, num_steps):
    check_invariance(the_case(model), Redraw(), num_steps)


@pytest.mark.slow
def test_exact_draws_under_a_power_of_the_likelihood_stay_exact():
    check_invariance(the_case("depth decay, gaps"), Redraw(), 2, power=0.3)


@pytree_dataclass
class AtFullPower(Redraw):
    """Draws as if the likelihood counted in full, and accepts everything."""

    def propose(self, rng_keys, number, model, state, power):
        one = jnp.ones_like(power)
        proposal = super().propose(rng_keys, number, model, state, one)
        new = proposal.state
        gain = new.log_prior - state.log_prior + new.log_likelihood - state.log_likelihood
        step = power * (new.log_likelihood - state.log_likelihood) + new.log_prior - state.log_prior
        return proposal._replace(log_ratio=proposal.log_ratio + gain - step)


@pytree_dataclass
class Unadjusted(Redraw):
    """Accepts what is drawn, right or wrong as the guess may be."""

    def propose(self, rng_keys, number, model, state, power):
        proposal = super().propose(rng_keys, number, model, state, power)
        new = proposal.state
        gain = new.log_prior - state.log_prior
        gain += power * (new.log_likelihood - state.log_likelihood)
        return proposal._replace(log_ratio=jnp.where(jnp.isfinite(gain), -gain, -jnp.inf))


@pytest.mark.slow
@pytest.mark.parametrize(("kernel", "power"), [(AtFullPower(), 0.3), (Unadjusted(), 1.0)])
def test_mistakes_are_noticed(kernel, power):
    with pytest.raises(AssertionError):
        check_invariance(the_case("depth decay, gaps"), kernel, 5, power)


@pytest.mark.slow
def test_nodes_picked_by_the_size_of_other_subtrees_are_noticed(monkeypatch):
    """Of the nodes with low subtrees the highest ones: then the way back picks other nodes."""

    def highest(shape):
        is_low = redraw._is_low(shape)
        above = jnp.take_along_axis(is_low, shape.parent, axis=1) & (shape.depth > 0)
        return is_low & ~above

    case = distinct_case("description length, cuts")
    monkeypatch.setattr(redraw, "_picked", lambda shape, first: highest(shape))
    jax.clear_caches()
    with pytest.raises(AssertionError):
        check_invariance(case, Redraw(), 2)
    jax.clear_caches()


@pytest.mark.slow
def test_trees_that_find_no_room_are_left_as_they_are():
    """Exact draws among the trees of at most five nodes stay exact; what is larger is counted."""
    case = distinct_case("description length, cuts")
    with jax.enable_x64(True):
        start = chains_of(case)
        small = np.array([en.num_leaves(tree) <= 3 for tree in start.trees])
        start.probability = np.where(small, start.probability, 0) / start.probability[small].sum()
        _, state = start.drawn(NUM_CHAINS)
        state = state._replace(
            shape=state.shape._replace(nodes=state.shape.nodes[:, :5]),
            rows=state.rows[:, :5],
            scores=state.scores[:, :5],
        )
        keys = jax.random.split(ep.key(1), NUM_CHAINS)
        arguments = jnp.int32(0), state, start.model, Redraw(), jnp.ones(NUM_CHAINS)
        _, kept, tally = walk_chains(keys, *arguments, num_draws=1, thin=2)
        found = Counter(start.read(jax.tree.map(lambda a: np.asarray(a)[0], kept.shape)))
    assert tally.overflows.sum() > 0
    assert ep.g_test(found, dict(zip(start.trees, start.probability, strict=True))) > ep.FALSE_ALARM


# --------------------------------------------------------------------------------- compiled sums


def check_sums(model, family, seed, sums):
    """Sums over what both sides of rules do, under powers from 0 to 1, as XLA computes them."""
    case = ep.random_case(model, family, seed)
    case = replace(case, weights=np.ceil(case.weights))  # compiled scores need whole ones
    with jax.enable_x64(True):
        tabled = packed_model.PackedModel.of(case.model)
        assert redraw._is_compiled(tabled)
        shape = as_shape(tabled, case.design, case.exact.sample_trees(ep.key(0), 20), 63)
        state = state_of(tabled, shape)
        used = np.flatnonzero(shape.is_used)[:40]
        rows, depth = state.rows.reshape(-1, 1)[used], shape.depth.ravel()[used]
        arguments = tabled, rows, depth, jnp.linspace(0, 1, len(used))
        is_wanted = ~jnp.isneginf(node_weights(*arguments[:3]).log_rules)
        expected = np.where(is_wanted, redraw._log_below_by_xla(*arguments), 0.0)
        np.testing.assert_allclose(sums(*arguments, is_wanted), expected, atol=1e-10)


COMPILED = [  # every two of prior, rules and family meet
    (f"{prior}, {rules}", ep.FAMILIES[(i + j) % 2], 0)
    for i, prior in enumerate(("depth decay", "greedy partition", "description length"))
    for j, rules in enumerate(("gaps", "cuts"))
]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "family", "seed"), few_of(COMPILED, 3))
def test_compiled_sums_are_those_of_xla(model, family, seed):
    check_sums(model, family, seed, redraw._compiled_log_below)


@pytest.mark.slow
def test_sums_at_another_power_are_noticed():
    def halved(model, rows, depth, power, is_wanted):
        return redraw._compiled_log_below(model, rows, depth, power / 2, is_wanted)

    with pytest.raises(AssertionError):
        check_sums(*COMPILED[0], halved)


def test_too_many_rules_are_refused():
    case = ep.random_case("depth decay, gaps", "classes", 0)
    with jax.enable_x64(True):
        start = chains_of(case)
        many = start.model._replace(feature=np.zeros(5_000, np.int32))
        keys = jax.random.split(ep.key(0), len(start.trees))
        with pytest.raises(ValueError, match="pairs of rules"):
            Redraw().propose(keys, jnp.int32(0), many, start.state, jnp.ones(len(keys)))
