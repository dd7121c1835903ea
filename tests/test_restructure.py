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
from tiers import few_of

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
WALKED_LONG = ("depth decay, gaps", "leaf penalty, cuts", "pinball")


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


class Reference:
    """All trees of a case: their leaves, proposal probabilities and scores."""

    def __init__(self, case, trees):
        self.case, self.trees = case, trees
        self.leaves = [leaves_of(tree) for tree in trees]
        self.q = [proposal_probability(case.problem, tree) for tree in trees]
        scores = {each.tree: each for each in case.scored}
        self.scored = [scores[tree] for tree in trees]
        self.probability = [case.probabilities[tree] for tree in trees]


def proposals(start):
    """Propose once from every exact draw: numbers of the trees before and after, and proposals."""
    before, state = start.drawn(NUM_CHAINS)
    uniform = jax.random.uniform(ep.key(4), (NUM_CHAINS, CAPACITY))
    proposal = jax.jit(restructured)(start.model, state, uniform)
    number = {tree: i for i, tree in enumerate(start.trees)}
    found = start.read(proposal.state.shape)
    number_of = {id(tree): number[tree] for tree in {id(t): t for t in found}.values()}
    return before, [number_of[id(tree)] for tree in found], proposal


def check_proposals(reference, before, after, proposal):
    """Leaves stay, ratios and scores are right, and each tree comes up as often as it should."""
    log_ratio, log_prior, log_likelihood = (
        np.asarray(a)
        for a in (proposal.log_ratio, proposal.state.log_prior, proposal.state.log_likelihood)
    )
    groups = defaultdict(Counter)
    for i, (old, new) in enumerate(zip(before, after, strict=True)):
        leaves = reference.leaves[old]
        if log_ratio[i] == -np.inf:
            groups[leaves]["stuck"] += 1
            continue
        assert reference.leaves[new] == leaves
        assert abs(log_ratio[i] - math.log(reference.q[old] / reference.q[new])) < 1e-9
        assert abs(log_prior[i] - reference.scored[new].log_prior) < 1e-9
        assert abs(log_likelihood[i] - reference.scored[new].log_likelihood) < 1e-9
        groups[leaves][new] += 1
    num_tests = 0
    for leaves, observed in groups.items():
        expected = {i: q for i, q in enumerate(reference.q) if reference.leaves[i] == leaves}
        stuck = 1 - math.fsum(expected.values())
        if stuck > 1e-12:
            expected["stuck"] = stuck
        if len(expected) > 1 and sum(observed.values()) > 20:
            num_tests += 1
            assert ep.g_test(observed, expected) > ep.FALSE_ALARM / 100
    assert 3 <= num_tests <= 100


def check_balance(reference, before, after, proposal):
    """Detailed balance, with the kernel's ratio and the reference's probabilities."""
    steps = {}
    for old, new, log_ratio in zip(before, after, np.asarray(proposal.log_ratio), strict=True):
        if np.isfinite(log_ratio):
            p, q = reference.probability, reference.q
            accepted = min(1.0, p[new] / p[old] * math.exp(log_ratio))
            steps[old, new] = p[old] * q[new] * accepted
    pairs = [(old, new) for old, new in steps if old < new and (new, old) in steps]
    assert len(pairs) >= 2
    for old, new in pairs:
        assert abs(steps[old, new] - steps[new, old]) < 1e-10


@pytest.mark.slow
@pytest.mark.parametrize("model", few_of([*CASES, *lp.PRIORS], 2))
def test_proposals_are_those_of_the_reference(model):
    case = the_case(model)
    with jax.enable_x64(True):
        start = chains_of(case)
        reference = Reference(case, start.trees)
        before, after, proposal = proposals(start)
        broken = proposal._replace(log_ratio=0 * proposal.log_ratio)
    for check in (check_proposals, check_balance):
        check(reference, before, after, proposal)
        with pytest.raises(AssertionError):
            check(reference, before, after, broken)


# ------------------------------------------------------------------------- from exact draws


@pytree_dataclass
class WithoutRatio(Restructure):
    """Forgets the ratio of the proposals."""

    def propose(self, rng_keys, number, model, state, power):
        proposal = super().propose(rng_keys, number, model, state, power)
        lost = jax.numpy.where(proposal.log_ratio > -jax.numpy.inf, 0.0, -jax.numpy.inf)
        return proposal._replace(log_ratio=lost)


def check_invariance(case, restructure, num_steps):
    kernel = Alternate(LocalMoves.of(CHIPMAN), restructure, period=2)
    with jax.enable_x64(True):
        found = Counter(chains_of(case).walked(kernel, 8_000, num_steps))
    assert ep.g_test(found, case.probabilities) > ep.FALSE_ALARM


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "num_steps"),
    [(model, 20 if model in WALKED_LONG else 2) for model in few_of([*CASES, *lp.PRIORS], 3)],
)
def test_exact_draws_stay_exact(model, num_steps):
    check_invariance(the_case(model), Restructure(), num_steps)


@pytest.mark.slow
def test_a_ratio_that_is_forgotten_is_noticed():
    # The case whose posterior is most disturbed by one such step.
    with pytest.raises(AssertionError):
        check_invariance(the_case("greedy partition, gaps"), WithoutRatio(), 2)


def test_a_period_without_sense_is_refused():
    with pytest.raises(ValueError, match="period must be an integer"):
        Alternate(Restructure(), Restructure(), period=0)
