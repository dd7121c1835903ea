"""Proposals that prune and regrow the proof of a tree, against transition matrices in plain Python.

The reference lists what pruning at each point of each tree can grow, with its probability, from the
enumeration's node weights alone.
"""

import functools
import itertools
import math
from collections import Counter, defaultdict

import enumeration as en
import exact_problems as ep
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_metropolis import CAPACITY, check_invariance, posed

from bdtppl.inference.metropolis.convert import as_shape, write_out
from bdtppl.inference.metropolis.kernel import step
from bdtppl.inference.metropolis.regrow import Regrow
from bdtppl.inference.metropolis.state import state_of
from bdtppl.models.pytrees import pytree_dataclass
from bdtppl.models.tree import Tree

VARIANTS = [
    Regrow(*variant, last=2)
    for variant in itertools.product(
        ("root", "cycle", "uniform"), ("nodes", "choices"), ("subtree", "sequence")
    )
]
PRIORS = ("depth decay, gaps", "depth decay, cuts", "greedy partition, gaps")
NUM_STEPS = 20_000


# ------------------------------------------------------------------- a reference in plain Python


class Reference:
    """Transition matrices of one case."""

    def __init__(self, case):
        self.case, self.problem, self.prior = case, case.problem, case.reference_prior
        self.target = case.probabilities
        self.score = {s.tree: s.log_prior + s.log_likelihood for s in case.scored}

    @functools.cache
    def choices(self, rows, depth):
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
    return ep.random_case(model, family, 0, most_trees=60, num_rows=5, missing=False)


@functools.partial(jax.jit, static_argnames="kernel")
def one_step(keys, number, state, model, kernel):
    return step(keys, number, state, model, kernel, jnp.ones(len(keys)))[0].shape


def frequencies(case, kernel, number):
    """Count the steps from every tree, equally often each; the trees of the start and the end."""
    with jax.enable_x64(True):
        tabled = posed(case)
        state = states_of_all_trees(case, tabled)
        repeats = -(-NUM_STEPS // len(state.log_prior))
        many = jax.tree.map(lambda a: jnp.repeat(a, repeats, axis=0), state)
        keys = jax.random.split(ep.key(5), len(many.log_prior))
        new = jax.tree.map(np.asarray, one_step(keys, number, many, tabled, kernel))
        start = jax.tree.map(np.asarray, many.shape)
        names = [
            ep.rule_trees(case, write_out(tabled, case.design, shape).trees)
            for shape in (start, new)
        ]
    return Counter(zip(*names, strict=True))


def states_of_all_trees(case, tabled):
    trees = Tree.concatenate(
        [Tree.from_nested(nested(case, tree)).reshape(1) for tree in case.probabilities]
    )
    return state_of(tabled, as_shape(tabled, case.design, trees, CAPACITY))


def nested(case, tree):
    if isinstance(tree, en.Leaf):
        return {}
    feature, low, high, missing_left = tree.rule
    if case.problem.rules == "cuts":
        threshold = case.cuts[feature][high - 1]
    else:
        ends = case.problem.bucket_high[feature][low], case.problem.bucket_low[feature][high]
        threshold = sum(ends) / 2
    return {
        "feature": feature,
        "threshold": threshold,
        "missing_left": missing_left,
        "left": nested(case, tree.left),
        "right": nested(case, tree.right),
    }


def check_steps(case, kernel, number=0, broken=None):
    reference = Reference(case)
    steps = reference.steps(kernel, number)
    for tree in reference.target:
        into = sum(reference.target[one] * steps[one, tree] for one in reference.target)
        assert abs(into - reference.target[tree]) < 1e-10
    expected = {pair: p / len(reference.target) for pair, p in steps.items() if p > 1e-15}
    observed = frequencies(case, broken or kernel, number)
    assert ep.g_test(observed, expected) > ep.FALSE_ALARM


@pytest.mark.parametrize("kernel", VARIANTS, ids=str)
def test_steps_have_the_law_of_the_reference(kernel):
    check_steps(small_case("depth decay, gaps", "classes"), kernel)
