"""The restructure move against a plain reference: other trees with the same leaves."""

import math
from collections import Counter, defaultdict

import chains
import enumeration as en
import exact_problems as ep
import jax
import leaf_count_problems as lp
import numpy as np
import pytest

from bdtppl.inference.metropolis.alternate import Alternate
from bdtppl.inference.metropolis.moves import CHIPMAN, LocalMoves
from bdtppl.inference.metropolis.restructure import Restructure, restructured
from bdtppl.models.pytrees import pytree_dataclass

CAPACITY = 15
NUM_CHAINS = 20_000

CASES = {
    "depth decay, gaps": ("classes", 3, {"max_depth": None, "min_leaf": 1}),
    "depth decay by gap, cuts": ("values", 4, {"missing": True, "max_depth": None}),
    "greedy partition, gaps": ("classes", 5, {"max_depth": 3}),
    "leaf penalty, cuts": ("values", 6, {"copied": True}),
}


def the_case(model):
    if model in lp.PRIORS:
        return lp.leaf_case(model, "gaps", "classes", 7, most_trees=300, num_rows=6)
    family, seed, options = CASES[model]
    return ep.random_case(model, family, seed, most_trees=300, num_rows=6, **options)


def chains_of(case):
    return chains.Chains(case, case.exact.prior, CAPACITY)


# ------------------------------------------------------------------------------- the reference


def leaves_of(tree):
    if isinstance(tree, en.Leaf):
        return frozenset({tree.rows})
    return leaves_of(tree.left) | leaves_of(tree.right)


def proposal_probability(problem, tree, depth=0):
    """Product over splits of one over the number of rules that cut no leaf."""
    if isinstance(tree, en.Leaf):
        return 1.0
    rows, leaves = en.tree_rows(tree), leaves_of(tree)
    whole = 0
    for rule in en.available_rules(problem, rows, depth):
        left, _ = en.part(problem, rows, rule)
        whole += all(leaf <= left or not leaf & left for leaf in leaves)
    below = (proposal_probability(problem, side, depth + 1) for side in (tree.left, tree.right))
    return math.prod(below) / whole


# ------------------------------------------------------------------------------------- checks


def proposals(start, proposing=restructured):
    """Propose once from every exact draw: numbers of trees, proposals, and what they are read as."""
    number, state = start.drawn(NUM_CHAINS)
    uniform = jax.random.uniform(ep.key(4), (NUM_CHAINS, CAPACITY))
    proposal = jax.jit(proposing)(start.model, state, uniform)
    return number, proposal, start.read(proposal.state.shape)


def check_proposals(case, start, number, proposal, found):
    """Leaves stay, ratios and scores are right, and each tree comes up as often as it should."""
    problem, scores = case.problem, {s.tree: s for s in case.scored}
    q = {tree: proposal_probability(problem, tree) for tree in start.trees}
    log_ratio = np.asarray(proposal.log_ratio)
    log_likelihood = np.asarray(proposal.state.log_likelihood)
    groups = defaultdict(Counter)
    for i in range(NUM_CHAINS):
        old, new = start.trees[number[i]], found[i]
        if log_ratio[i] == -np.inf:
            groups[leaves_of(old)]["stuck"] += 1
            continue
        assert leaves_of(new) == leaves_of(old)
        assert abs(log_ratio[i] - math.log(q[old] / q[new])) < 1e-9
        assert abs(log_likelihood[i] - scores[new].log_likelihood) < 1e-9
        groups[leaves_of(old)][new] += 1
    num_tests = 0
    for leaves, observed in groups.items():
        expected = {tree: q[tree] for tree in start.trees if leaves_of(tree) == leaves}
        expected["stuck"] = max(0.0, 1 - math.fsum(expected.values()))
        if expected["stuck"] < 1e-12:
            del expected["stuck"]
        if len(expected) > 1 and sum(observed.values()) > 20:
            num_tests += 1
            assert ep.g_test(observed, expected) > ep.FALSE_ALARM / 100
    assert 3 <= num_tests <= 100


def check_balance(case, start, number, proposal, found):
    """Detailed balance, with the kernel's ratio and the reference's probabilities."""
    problem, seen = case.problem, 0
    q = {tree: proposal_probability(problem, tree) for tree in start.trees}
    steps = {}
    for i, new in enumerate(found):
        old = start.trees[number[i]]
        if np.isfinite(proposal.log_ratio[i]):
            accepted = case.probabilities[new] / case.probabilities[old]
            accepted *= math.exp(proposal.log_ratio[i])
            steps[old, new] = case.probabilities[old] * q[new] * min(1.0, accepted)
    for (old, new), forth in steps.items():
        if old != new and (new, old) in steps:
            assert abs(forth - steps[new, old]) < 1e-10
            seen += 1
    assert seen >= 4


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(model, marks=() if model == "pinball" else pytest.mark.slow)
        for model in [*CASES, *lp.PRIORS]
    ],
)
def test_proposals_are_those_of_the_reference(model):
    case = the_case(model)
    with jax.enable_x64(True):
        start = chains_of(case)
        made = proposals(start)
        check_proposals(case, start, *made)
        check_balance(case, start, *made)
        number, proposal, found = made
        broken = proposal._replace(log_ratio=0 * proposal.log_ratio)
        for check in (check_proposals, check_balance):
            with pytest.raises((AssertionError, ZeroDivisionError)):
                check(case, start, number, broken, found)


# ------------------------------------------------------------------------- from exact draws


@pytree_dataclass
class WithoutRatio(Restructure):
    """Forgets the ratio of the proposals."""

    def propose(self, rng_keys, number, model, state):
        proposal = super().propose(rng_keys, number, model, state)
        lost = jax.numpy.where(proposal.log_ratio > -jax.numpy.inf, 0.0, -jax.numpy.inf)
        return proposal._replace(log_ratio=lost)


def check_invariance(case, restructure, num_steps):
    kernel = Alternate(LocalMoves.of(CHIPMAN), restructure, period=2)
    with jax.enable_x64(True):
        found = Counter(chains_of(case).walked(kernel, NUM_CHAINS, num_steps))
    assert ep.g_test(found, case.probabilities) > ep.FALSE_ALARM


@pytest.mark.slow
@pytest.mark.parametrize("num_steps", [2, 10])
@pytest.mark.parametrize("model", [*CASES, *lp.PRIORS])
def test_exact_draws_stay_exact(model, num_steps):
    check_invariance(the_case(model), Restructure(), num_steps)


@pytest.mark.slow
def test_a_ratio_that_is_forgotten_is_noticed():
    with pytest.raises(AssertionError):
        check_invariance(the_case("depth decay, gaps"), WithoutRatio(), 10)


def test_a_period_without_sense_is_refused():
    with pytest.raises(ValueError, match="period must be an integer"):
        Alternate(Restructure(), Restructure(), period=0)
