"""Metropolis-Hastings where trees and targets are drawn together: two tests that need no posterior.

Geweke 2004, Getting it right: trees and targets that take turns (a few steps of the kernel given
the targets, new targets given the tree) keep the law of trees from the prior with targets from
them. Here thousands of independent chains begin at exact draws of that law, and are compared with
its exact probabilities and with fresh draws.

Simulation-based calibration (Talts et al. 2018; Modrak et al. 2023 on quantities that depend on the
data) in the form that holds for any reversible kernel, mixed or not (Gandy and Scott 2020): the
tree that made the targets stands at a random place of a walk under their posterior, so its rank
among the trees of the walk is uniform. The ECDF of the ranks must stay in binomial bands.
"""

import functools
import math
from collections import Counter, defaultdict
from itertools import cycle
from typing import NamedTuple

import enumeration as en
import exact_problems as ep
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from chains import Chains
from scipy.stats import binom, ks_2samp
from test_metropolis import KERNELS, LOCAL
from tiers import few_of

from bdtppl.inference.metropolis import moves
from bdtppl.inference.metropolis.kernel import Tally, steps
from bdtppl.inference.metropolis.regrow import Regrow
from bdtppl.inference.metropolis.state import State, state_of
from bdtppl.models.pytrees import pytree_dataclass

CAPACITY = 15
NUM_CHAINS = 1_000
ROUNDS, STEPS = 8, 5
NUM_SIMULATIONS, NUM_RANKED, THIN = 500, 9, 5


class Joint:
    """The law of trees and targets of a small problem, in chains of one tree each."""

    def __init__(self, family):
        self.case = ep.random_case(
            "depth decay, gaps",
            family,
            0,
            most_trees=200,
            num_rows=6,
            weighted=False,
            min_leaf=1,
            max_depth=None,
        )
        self.start = Chains(self.case, self.case.prior, CAPACITY)
        self.model, self.trees = self.start.model, self.start.trees
        log_prior = {each.tree: each.log_prior for each in self.case.scored}
        self.probability = np.exp([log_prior[tree] for tree in self.trees])
        # One chain a tree: arrays [tree, 1, ...].
        self.shapes = jax.tree.map(lambda a: a[:, None], self.start.state.shape)

    def prior_draws(self, num_chains, seed):
        """Draw trees of the prior, arrays [chain, 1, ...]."""
        p = self.probability / self.probability.sum()
        number = np.random.default_rng(seed).choice(len(p), num_chains, p=p)
        return jax.tree.map(lambda a: a[number], self.shapes)

    def given(self, rng_key, shape):
        """Draw targets from the leaves of one tree, and score it by them."""
        rows = state_of(self.model, shape).rows[0, :, 0]
        row = jnp.arange(len(self.model.statistics))
        is_in = ((rows[:, None] >> row[None].astype(rows.dtype)) & 1) * shape.is_leaf[0][:, None]
        y = _targets(rng_key, self.case.reference_leaf, is_in.argmax(axis=0), CAPACITY)
        statistics = self.case.leaf.statistics(y, jnp.ones(len(row)))
        classes = None
        if self.model.classes is not None:
            bit = jnp.uint64(1) << row.astype(jnp.uint64)
            classes = jnp.where(statistics > 0, bit[:, None], 0).sum(axis=0, dtype=jnp.uint64)[None]
        model = self.model._replace(statistics=statistics, classes=classes)
        return model, state_of(model, shape)


def _targets(rng_key, leaf, leaf_of_row, num_slots):
    """Draw targets [n] from parameters of each slot's leaf, as the definition of the family has it.

    The numbers are those of the reference.
    """
    keys = jax.random.split(rng_key, 3)
    if isinstance(leaf, en.DirichletCategorical):
        weight = jax.random.gamma(keys[0], jnp.array(leaf.concentration)[None], (num_slots, 3))
        return jax.random.categorical(keys[1], jnp.log(weight)[leaf_of_row])
    variance = leaf.scale / jax.random.gamma(keys[0], leaf.shape, (num_slots,))
    mean = leaf.mean + jnp.sqrt(variance / leaf.pseudo_count) * jax.random.normal(
        keys[1], (num_slots,)
    )
    noise = jax.random.normal(keys[2], leaf_of_row.shape)
    return mean[leaf_of_row] + jnp.sqrt(variance)[leaf_of_row] * noise


@functools.cache
def joint(family):
    with jax.enable_x64(True):
        return Joint(family)


def moved(rng_key, model, state, kernel, num_steps, power=1.0):
    """Make some steps in one chain."""
    tally = Tally.zero(1, len(kernel.names))
    first, end = jnp.int32(0), jnp.int32(num_steps)
    power = jnp.full(1, power)
    return steps(rng_key[None], first, end, state, tally, model, kernel, power)[0]


def compiled(of_one_chain):
    """Run a function of one chain on many; compiling it well would take longer than it saves."""
    options = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
    return jax.jit(jax.vmap(of_one_chain), compiler_options=options)


@pytree_dataclass
class WithoutRatio(moves.LocalMoves):
    """Forgets the ratio of the proposals."""

    def propose(self, rng_keys, number, model, state, power):
        proposal = super().propose(rng_keys, number, model, state, power)
        lost = jnp.where(proposal.log_ratio > -jnp.inf, 0.0, -jnp.inf)
        return proposal._replace(log_ratio=lost)


BROKEN = WithoutRatio(LOCAL.log_probability)


# ------------------------------------------------------------------------- Geweke's joint test


def taken_in_turns(law, kernel, num_rounds, seed):
    """Trees and log likelihoods after turns of steps and new targets."""

    def chain(rng_key, shape):
        def turn(shape, key):
            key_targets, key_steps = jax.random.split(key)
            model, state = law.given(key_targets, shape)
            return moved(key_steps, model, state, kernel, STEPS).shape, None

        key_turns, key_last = jax.random.split(rng_key)
        shape, _ = jax.lax.scan(turn, shape, jax.random.split(key_turns, num_rounds))
        return shape, law.given(key_last, shape)[1].log_likelihood[0]

    keys = jax.random.split(ep.key(seed), NUM_CHAINS)
    shape, log_likelihood = compiled(chain)(keys, law.prior_draws(NUM_CHAINS, seed))
    return jax.tree.map(lambda a: np.asarray(a)[:, 0], shape), np.asarray(log_likelihood)


def root_rule(tree):
    return tree.rule if isinstance(tree, en.Split) else None


def check_jointly(family, kernel):
    """Leaves, depth and root rule by G-tests, the log likelihood by Kolmogorov and Smirnov's."""
    with jax.enable_x64(True):
        law = joint(family)
        shape, log_likelihood = taken_in_turns(law, kernel, ROUNDS, 1)
        _, fresh = taken_in_turns(law, kernel, 0, 2)
        trees = law.start.read(shape)
    for quantity in (en.num_leaves, ep.depth_of, root_rule):
        expected = defaultdict(float)
        for tree, p in zip(law.trees, law.probability, strict=True):
            expected[quantity(tree)] += p
        assert math.isclose(sum(expected.values()), 1)
        observed = Counter(quantity(tree) for tree in trees)
        assert ep.g_test(observed, expected) > ep.FALSE_ALARM
    assert ks_2samp(log_likelihood, fresh).pvalue > ep.FALSE_ALARM


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "family"), few_of(zip(KERNELS, cycle(ep.FAMILIES), strict=False), 2)
)
def test_trees_and_targets_keep_their_joint_law(kernel, family):
    check_jointly(family, KERNELS[kernel])


@pytest.mark.slow
def test_a_joint_law_that_drifts_is_noticed():
    with pytest.raises(AssertionError):
        check_jointly("values", BROKEN)


# ------------------------------------------------------------------- simulation-based calibration


class Ranked(NamedTuple):
    """Quantities of trees, float64 each, of which those that depend on the targets see most."""

    num_leaves: jax.Array
    log_likelihood: jax.Array
    log_joint: jax.Array
    first_row: jax.Array  # log marginal of the leaf that the first row is in

    @classmethod
    def of(cls, state: State):
        leaf_score = jnp.where(state.shape.is_leaf, state.terms.leaf_score, 0.0)
        holds_first = (state.rows[..., 0] & 1) > 0
        return cls(
            state.shape.is_leaf.sum(axis=1)[0].astype(float),
            state.log_likelihood[0],
            (state.log_prior + state.log_likelihood)[0],
            jnp.where(holds_first, leaf_score, 0.0).sum(axis=1)[0],
        )


def ranks(law, kernel, power=1.0):
    """Ranks from 0 to `NUM_RANKED` of the trees that made the targets, int [simulation] each."""

    def simulation(rng_key, shape):
        key_targets, *both = jax.random.split(rng_key, 3)
        model, state = law.given(key_targets, shape)

        def walked(key):
            def draw(state, key):
                state = moved(key, model, state, kernel, THIN, power)
                return state, Ranked.of(state)

            return jax.lax.scan(draw, state, jax.random.split(key, NUM_RANKED))[1]

        return Ranked.of(state), walked(both[0]), walked(both[1])

    keys = jax.random.split(ep.key(3), NUM_SIMULATIONS)
    draws = law.prior_draws(NUM_SIMULATIONS, 3)
    rng = np.random.default_rng(4)
    place = rng.integers(0, NUM_RANKED + 1, NUM_SIMULATIONS)[:, None]
    is_before = np.arange(NUM_RANKED)[None] < place

    def rank(own, before, after):
        # A reversible walk is run backwards by the same kernel. Sums differ in their last digits.
        lead = np.asarray(own)[:, None] - np.where(is_before, before, after[:, ::-1])
        ties = (np.abs(lead) <= 1e-9).sum(axis=1)
        return (lead > 1e-9).sum(axis=1) + rng.integers(0, ties + 1)

    own, before, after = compiled(simulation)(keys, draws)
    return Ranked(*(rank(*each) for each in zip(own, before, after, strict=True)))


def stays_in_bands(rank):
    """Whether the ECDF of ranks stays in its bands; a false alarm in at most one of 10^4.

    At each rank the ECDF is binomial; the rate is parted among the ranks (Bonferroni).
    """
    ends = np.arange(NUM_RANKED)
    below = (rank[:, None] <= ends[None]).sum(axis=0)
    law = binom(len(rank), (ends + 1) / (NUM_RANKED + 1))
    tails = np.minimum(law.cdf(below), law.sf(below - 1))
    return bool((2 * tails * len(ends) > ep.FALSE_ALARM).all())


def check_calibration(family, kernel):
    with jax.enable_x64(True):
        found = ranks(joint(family), kernel)
    for rank in found:
        assert stays_in_bands(rank)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "family"),
    list(zip([LOCAL, Regrow()], ep.FAMILIES, strict=True)),
    ids=["local", "regrow"],
)
def test_ranks_of_the_true_tree_are_uniform(kernel, family):
    check_calibration(family, kernel)


@pytest.mark.slow
def test_ranks_under_a_kernel_without_ratio_are_noticed():
    with pytest.raises(AssertionError):
        check_calibration("values", BROKEN)


@pytest.mark.slow
def test_only_quantities_of_the_targets_notice_that_these_are_ignored():
    """A sampler of the prior is calibrated in the number of leaves, not in the likelihood."""
    with jax.enable_x64(True):
        found = ranks(joint("classes"), LOCAL, power=0.0)
    assert stays_in_bands(found.num_leaves)
    assert not stays_in_bands(found.log_likelihood)
