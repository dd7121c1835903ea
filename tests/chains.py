"""Chains that start at trees of the enumeration, for tests of Metropolis kernels."""

from dataclasses import replace
from functools import partial
from typing import NamedTuple

import enumeration as en
import exact_problems as ep
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from bdtppl.inference.hard.shapes import Shape
from bdtppl.inference.hard.written_trees import as_shape, write_out
from bdtppl.inference.metropolis.kernel import Kernel, Tally, steps
from bdtppl.inference.metropolis.state import State, state_of
from bdtppl.models.hard import packed_model
from bdtppl.models.hard.packed_model import PackedModel
from bdtppl.models.hard.tree import Tree


def nested(problem, tree):
    """Write a rule-tree as `Tree.from_nested` reads it."""
    if isinstance(tree, en.Leaf):
        return {}
    feature, low, high, missing_left = tree.rule
    threshold = problem.cut_thresholds[feature][high - 1]
    if problem.rules == "gaps":
        edges = problem.bucket_high[feature][low], problem.bucket_low[feature][high]
        threshold = sum(edges) / 2
    return {
        "feature": feature,
        "threshold": threshold,
        "missing_left": missing_left,
        "left": nested(problem, tree.left),
        "right": nested(problem, tree.right),
    }


class Walk(NamedTuple):
    """States along chains; m draws.

    Attributes
    ----------
    shape
        Trees, arrays [m, b, ...].
    log_prior, log_likelihood
        float64 [m, b].
    """

    shape: Shape
    log_prior: jax.Array
    log_likelihood: jax.Array


@partial(jax.jit, static_argnames=("num_draws", "thin"))
def walk_chains(
    rng_keys: jax.Array,
    first_step: jax.Array,
    state: State,
    model: PackedModel,
    kernel: Kernel,
    power: jax.Array,
    *,
    num_draws: int,
    thin: int,
) -> tuple[State, Walk, Tally]:
    """Walk, and keep every ``thin``-th state.

    Parameters
    ----------
    rng_keys
        Keys [b] of the chains; a step's key is made from its chain's and its number.
    first_step
        Number of the first step.
    state, model, kernel, power
        See `step`.
    num_draws
        States to keep.
    thin
        Steps to each.
    """

    def draw(carry, number):
        start = first_step + number * thin
        state, tally = carry
        state, tally = steps(rng_keys, start, start + thin, state, tally, model, kernel, power)
        return (state, tally), Walk(state.shape, state.log_prior, state.log_likelihood)

    start = state, Tally.zero(len(rng_keys), len(kernel.names))
    (state, tally), kept = lax.scan(draw, start, jnp.arange(num_draws))
    return state, kept, tally


class Chains:
    """States at all trees of positive probability; inside a double-precision scope.

    Attributes
    ----------
    trees
        The rule-trees.
    probability
        Posterior probability of each.
    model, state
        The model, and one chain at each tree.
    """

    def __init__(self, case, prior, capacity):
        self.case = case
        self.trees = [tree for tree, p in case.probabilities.items() if p > 0]
        self.probability = np.array([case.probabilities[tree] for tree in self.trees])
        self.model = packed_model.PackedModel.of(replace(case.model, prior=prior))
        batch = Tree.concatenate(
            [Tree.from_nested(nested(case.problem, tree)).reshape(1) for tree in self.trees]
        )
        self.state = state_of(self.model, as_shape(self.model, case.design, batch, capacity))

    def read(self, shape):
        """Rule-trees of structures [b]."""
        shape = jax.tree.map(np.asarray, shape)
        return ep.rule_trees(self.case, write_out(self.model, shape).trees)

    def drawn(self, num_chains, seed=0):
        """Take trees drawn from the posterior: their numbers, and their states."""
        p = self.probability / self.probability.sum()
        number = np.random.default_rng(seed).choice(len(p), num_chains, p=p)
        return number, jax.tree.map(lambda a: a[number], self.state)

    def walked(self, kernel, num_chains, num_steps, power=1.0):
        """Rule-trees after some steps from exact draws, under a power of the likelihood."""
        _, state = self.drawn(num_chains)
        _, kept, _ = walk_chains(
            jax.random.split(ep.key(1), num_chains),
            jnp.int32(0),
            state,
            self.model,
            kernel,
            jnp.full(num_chains, power),
            num_draws=1,
            thin=num_steps,
        )
        return self.read(jax.tree.map(lambda a: np.asarray(a)[0], kept.shape))
