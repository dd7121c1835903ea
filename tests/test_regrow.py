"""Proposals that prune and regrow the proof of a tree, against transition matrices in plain Python.

The reference lists what pruning at each point of each tree can grow, with its probability, from the
enumeration's node weights alone.
"""

import functools
import itertools
import math
from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any, ClassVar

import enumeration as en
import exact_problems as ep
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from chains import nested, walk_chains
from test_metropolis import check_invariance, posed
from tiers import few_of, slow_but

from bdtppl.inference.hard.shapes import Shape
from bdtppl.inference.hard.written_trees import as_shape, write_out
from bdtppl.inference.metropolis.kernel import step
from bdtppl.inference.metropolis.regrow import Regrow
from bdtppl.inference.metropolis.sample import sample_chains
from bdtppl.inference.metropolis.state import initial, state_of
from bdtppl.models.data.design import Design
from bdtppl.models.hard.tree import Tree
from bdtppl.models.hard.tree_model import TreeModel
from bdtppl.models.leaves import DirichletCategorical
from bdtppl.models.priors import DepthDecay
from bdtppl.models.pytrees import pytree_dataclass

VARIANTS = [
    Regrow(*variant, last=2)
    for variant in itertools.product(
        ("root", "cycle", "uniform"), ("nodes", "choices"), ("subtree", "sequence")
    )
]
# Half of them, with every pair of choice, points and pruning among them.
IN_PAIRS = [VARIANTS[i] for i in (0, 3, 5, 6, 8, 11)]
PRIORS = ("depth decay, gaps", "depth decay, cuts", "greedy partition, cuts")
UNNORMALISED = "description length, cuts"
NUM_CHAINS = 8_000
CAPACITY = 15
FAST = VARIANTS[-1]


# ------------------------------------------------------------------- a reference in plain Python


class Reference:
    """Transition matrices of one case."""

    def __init__(self, case):
        self.case, self.problem, self.prior = case, case.problem, case.reference_prior
        self.target = case.probabilities
        self.score = {s.tree: s.log_prior + s.log_likelihood for s in case.scored}
        self.choices = functools.cache(self._choices)

    def _choices(self, rows, depth):
        """What a node does, as a rule or None, with probabilities that sum to one."""
        weights = {None: en.log_stop(self.problem, self.prior, rows, depth)}
        for rule, _, _, log_weight in en.productions(self.problem, self.prior, rows, depth):
            weights[rule] = log_weight
        total = en.logsumexp(weights.values())
        return {rule: math.exp(weight - total) for rule, weight in weights.items()}

    def split_by(self, rows, depth, rule):
        left, right = en.part(self.problem, rows, rule)
        return joined(rule, self.grown(left, depth + 1), self.grown(right, depth + 1))

    def grown(self, rows, depth, allows=lambda rule: True):
        """Law of the tree that grows from a node that does what is allowed."""
        choices = {r: p for r, p in self.choices(rows, depth).items() if allows(r)}
        total, law = sum(choices.values()), {}
        for rule, p in choices.items():
            trees = {en.Leaf(rows): 1.0} if rule is None else self.split_by(rows, depth, rule)
            law |= {tree: p / total * q for tree, q in trees.items()}
        return law

    def pruned(self, tree, kernel, depth=0):
        """Laws of the tree after pruning at each of its points, in depth-first order."""
        rows = en.tree_rows(tree)
        laws = [self.grown(rows, depth)]
        if isinstance(tree, en.Leaf):
            return laws
        if kernel.points == "choices":
            feature = tree.rule.feature
            laws.append(self.grown(rows, depth, lambda rule: rule is not None))
            laws.append(self.grown(rows, depth, lambda rule: rule and rule.feature == feature))
        right = {tree.right: 1.0}
        if kernel.prune == "sequence":
            right = self.grown(en.tree_rows(tree.right), depth + 1)
        for left in self.pruned(tree.left, kernel, depth + 1):
            laws.append(joined(tree.rule, left, right))
        for right in self.pruned(tree.right, kernel, depth + 1):
            laws.append(joined(tree.rule, {tree.left: 1.0}, right))
        return laws

    def steps(self, kernel, number=0):
        """Probability of each step between two trees, by Metropolis and Hastings at each point."""
        laws = {tree: self.pruned(tree, kernel) for tree in self.target}
        steps = defaultdict(float)
        for tree, own in laws.items():
            for point in range(len(own)):
                if kernel.choice != "uniform":
                    point = number % (kernel.last + 1) if kernel.choice == "cycle" else 0
                if point >= len(own):
                    break
                for new, forth in own[point].items():
                    ratio = math.exp(self.score[new] - self.score[tree])
                    ratio *= laws[new][point][tree] / forth
                    if kernel.choice == "uniform":
                        forth, ratio = forth / len(own), ratio * len(own) / len(laws[new])
                    steps[tree, new] += forth * min(1.0, ratio)
                if kernel.choice != "uniform":
                    break
        for tree in laws:
            steps[tree, tree] += 1 - sum(steps[tree, new] for new in laws)
        return steps


def joined(rule, left, right):
    return {
        en.Split(rule, one, other): p * q
        for (one, p), (other, q) in itertools.product(left.items(), right.items())
    }


# --------------------------------------------------------------------------- transition matrices


@functools.cache
def small_case(model, family):
    return ep.random_case(model, family, 0, most_trees=120, num_rows=5, max_depth=None, min_leaf=1)


@pytree_dataclass
class Twisted(Regrow):
    """A kernel with a mistake: R to another power, the likelihood ratio clipped before R."""

    power_of_r: Any = 1.0
    clipped: Any = 0.0

    def propose(self, rng_keys, number, model, state, power):
        proposal = super().propose(rng_keys, number, model, state, power)
        num_points = [
            2 * s.shape.size - 1 if self.points == "choices" else s.shape.size
            for s in (state, proposal.state)
        ]
        log_r = jnp.log(num_points[0]) - jnp.log(num_points[1])
        gain = jnp.maximum(proposal.state.log_likelihood - state.log_likelihood, 0.0)
        change = (self.power_of_r - 1) * log_r - self.clipped * gain
        return proposal._replace(log_ratio=proposal.log_ratio + change)


def twisted(kernel, power_of_r=1.0, clipped=0.0):
    return Twisted(kernel.choice, kernel.points, kernel.prune, kernel.last, power_of_r, clipped)


@jax.jit
def one_step(keys, number, state, model, kernel):
    return step(keys, number, state, model, kernel, jnp.ones(len(keys)))[0].shape


def names(case, tabled, shape):
    """The trees of many states, each distinct one written out once."""
    nodes, first, inverse = np.unique(
        np.asarray(shape.nodes), axis=0, return_index=True, return_inverse=True
    )
    distinct = Shape(nodes, np.asarray(shape.size)[first])
    known = ep.rule_trees(case, write_out(tabled, distinct).trees)
    return [known[i] for i in inverse.ravel()]


def states_of_all_trees(case, tabled):
    trees = Tree.concatenate(
        [Tree.from_nested(nested(case.problem, tree)).reshape(1) for tree in case.probabilities]
    )
    return state_of(tabled, as_shape(tabled, case.design, trees, CAPACITY))


def check_steps(case, kernel, number=0, mistake=(1.0, 0.0)):
    """Compare one step from every tree, equally often each, with the reference's matrix."""
    reference = Reference(case)
    steps = reference.steps(kernel, number)
    for tree in reference.target:
        into = sum(reference.target[one] * steps[one, tree] for one in reference.target)
        assert abs(into - reference.target[tree]) < 1e-10
    repeats = -(-NUM_CHAINS // len(reference.target))
    with jax.enable_x64(True):
        tabled = posed(case)
        state = states_of_all_trees(case, tabled)
        many = jax.tree.map(lambda a: jnp.repeat(a, repeats, axis=0), state)
        keys = jax.random.split(ep.key(5), len(many.log_prior))
        new = one_step(keys, number, many, tabled, twisted(kernel, *mistake))
        ends = names(case, tabled, new)
        assert names(case, tabled, state.shape) == list(case.probabilities)
    starts = np.repeat(np.arange(len(reference.target)), repeats).tolist()
    numbered = list(case.probabilities)
    observed = Counter((numbered[i], end) for i, end in zip(starts, ends, strict=True))
    expected = {pair: p / len(numbered) for pair, p in steps.items() if p > 1e-15}
    assert ep.g_test(observed, expected) > ep.FALSE_ALARM


def text(value):
    """Name a kernel in the names of tests."""
    is_kernel = isinstance(value, Regrow)
    return f"{value.choice} {value.points} {value.prune}" if is_kernel else str(value)


STEPS = [
    *((PRIORS[1], "values", kernel) for kernel in VARIANTS[-2:]),
    *((PRIORS[2 * (i % 2)], "classes", kernel) for i, kernel in enumerate(IN_PAIRS)),
    (UNNORMALISED, "values", FAST),
]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "family", "kernel"), few_of(STEPS, 4), ids=text)
def test_steps_have_the_law_of_the_reference(model, family, kernel):
    for number in (0, 2) if kernel.choice == "cycle" else (0,):
        check_steps(small_case(model, family), kernel, number)


@pytest.mark.slow
@pytest.mark.parametrize("mistake", [(-1.0, 0.0), (0.0, 0.0), (1.0, 1.0)])
def test_a_wrong_ratio_is_noticed(mistake):
    """R inverted; R missing; the likelihood ratio clipped before R."""
    with pytest.raises(AssertionError):
        check_steps(small_case("depth decay, gaps", "classes"), FAST, mistake=mistake)


@pytest.mark.slow
def test_unnormalised_weights_that_are_taken_for_normalised_ones_are_noticed():
    case = small_case(UNNORMALISED, "values")

    @pytree_dataclass
    class Sloppy(type(case.prior)):
        is_normalised: ClassVar[bool] = True

    broken = replace(case, prior=Sloppy(case.prior.beta, rules=case.prior.rules))
    with pytest.raises(AssertionError):
        check_steps(broken, FAST)


# ------------------------------------------------------------------------------- whole walks


@pytest.mark.runs_long
@pytest.mark.parametrize(
    ("kernel", "num_steps"),
    slow_but((), [(IN_PAIRS[0], 5), (FAST, 20)]),
    ids=text,
)
def test_exact_draws_stay_exact(kernel, num_steps):
    model = PRIORS[VARIANTS.index(kernel) % len(PRIORS)]
    check_invariance(ep.random_case(model, "values", 8), NUM_CHAINS, num_steps, kernel)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "kernel"),
    [
        pytest.param(model, kernel, id=f"{kernel.choice}-{model}")
        for model, kernel in zip(PRIORS[1:], (FAST, VARIANTS[0]), strict=True)
    ],
)
def test_without_data_chains_draw_from_the_prior(model, kernel):
    case = small_case(model, "classes")
    total = en.log_prior_normaliser(case.scored)
    expected = {s.tree: math.exp(s.log_prior - total) for s in case.scored}
    with jax.enable_x64(True):
        tabled = posed(case)
        chains = NUM_CHAINS // 5
        keys, no_power = jax.random.split(ep.key(2), chains), jnp.zeros(chains)
        state = initial(tabled, chains, CAPACITY)
        _, kept, tally = walk_chains(
            keys, jnp.int32(0), state, tabled, kernel, no_power, num_draws=1, thin=60
        )
        drawn = Counter(names(case, tabled, jax.tree.map(lambda a: a[0], kept.shape)))
    assert ep.g_test(drawn, expected) > ep.FALSE_ALARM
    if case.prior.is_normalised and kernel.choice == "root":
        np.testing.assert_array_equal(tally.accepted, tally.proposed)


@pytest.mark.parametrize("model", PRIORS)
def test_independent_proposals_converge_as_equation_3_says(model):
    """From the tree of the greatest likelihood the distance is the bound times 1 - P(tree | y)."""
    case = small_case(model, "classes")
    reference, kernel = Reference(case), VARIANTS[0]
    trees = list(reference.target)
    steps = reference.steps(kernel)
    matrix = np.array([[steps[one, other] for other in trees] for one in trees])
    target = np.array([reference.target[tree] for tree in trees])
    grown = reference.grown(case.problem.all_rows, 0)
    ratio = np.array([grown[tree] for tree in trees]) / target
    best, rate = int(ratio.argmin()), ratio.min()
    if case.prior.is_normalised:  # else the law of the proposals is not the prior
        likelihood = {s.tree: s.log_likelihood for s in case.scored}
        assert best == max(range(len(trees)), key=lambda i: likelihood[trees[i]])
    np.testing.assert_allclose(matrix.min(axis=0).sum(), rate, rtol=1e-10)
    reached = np.eye(len(trees))
    for number in range(1, 20):
        reached = reached @ matrix
        distance = np.abs(reached - target).sum(axis=1) / 2
        assert (distance <= (1 - rate) ** number + 1e-12).all()
        np.testing.assert_allclose(
            distance[best], (1 - rate) ** number * (1 - target[best]), atol=1e-12
        )


@pytest.mark.slow
def test_what_does_not_fit_is_rejected_and_counted():
    design = Design.from_matrix(np.arange(20.0)[:, None])
    drawn = sample_chains(
        ep.key(0),
        TreeModel(
            design, np.arange(20) % 2, DepthDecay(0.95, 0.1), DirichletCategorical.symmetric(2)
        ),
        kernel=Regrow(),
        capacity=5,
        draws=20,
        warmup=100,
    )
    assert drawn.posterior.trees.num_nodes.max() == 5
    assert (drawn.num_overflows > 0).all()
    assert set(drawn.acceptance) == {"regrow"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"choice": "best"}, "choice must be 'root' or 'cycle' or 'uniform'; got 'best'"),
        ({"points": "leaves"}, "points must be"),
        ({"prune": "all"}, "prune must be"),
        ({"last": -1}, "last must be an integer of at least 0"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        Regrow(**options)
