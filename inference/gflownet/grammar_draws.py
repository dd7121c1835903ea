"""Trees drawn from the root down by the policy that flows imply, and their probabilities.

Trees are heaps: the children of slot j are 2j + 1 and 2j + 2, so a level of all trees is one array
whose subproblems are weighed together, equal ones once.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bdtppl.inference.gflownet.grammar import Amortised, Choices, Problem, choices, log_flows
from bdtppl.inference.gflownet.grammar_network import Flow
from bdtppl.inference.hard_model import children
from bdtppl.inference.shapes import LEAF, Shape

__all__ = ["Draws", "Visits", "as_heap", "draw", "follow", "from_heap", "log_policy"]

Choose = Callable[[int, Choices, jax.Array], tuple[jax.Array, jax.Array]]
"""From a level, choices [m] and log policy [m, R + 1] to places [m] and their log probabilities."""


class Draws(NamedTuple):
    """Trees; b trees, D levels of splits.

    Attributes
    ----------
    rule
        int32 [b, 2^D - 1]; rule of each slot, `LEAF` in leaves and unused slots.
    log_joint
        float64 [b]; log of the choices' weights and the leaves' marginals. Where a prior counts
        partitions their weight is shared among their rules.
    log_probability
        float64 [b]; log of the product of the choices' probabilities.
    """

    rule: jax.Array
    log_joint: jax.Array
    log_probability: jax.Array

    @property
    def log_weight(self) -> jax.Array:
        """Log importance weights, float64 [b]; the mean weight has Z as its expectation."""
        return self.log_joint - self.log_probability


class Visits(NamedTuple):
    """Subproblems that draws have met, the root among them; v visits.

    Attributes
    ----------
    words
        uint64 [v, W]; their rows.
    facts
        float32 [v, f]; what the network is told.
    imbalance
        float64 [v]; log S less the base, which the network has to meet.
    is_learned
        bool [v]; whether the node's flow is learned, and it is the first of equal ones.
    log_partition
        float64 scalar; log S of the root.
    """

    words: jax.Array
    facts: jax.Array
    imbalance: jax.Array
    is_learned: jax.Array
    log_partition: jax.Array


def log_policy(found: Choices, epsilon: jax.Array | float = 0.0) -> jax.Array:
    """Log probability of each choice, float64 [m, R + 1].

    With probability epsilon a node does any of what it may do, all alike.
    """
    own = found.log_term - found.log_sum[:, None]
    is_choice = jnp.isfinite(found.log_term)
    even = jnp.where(is_choice, -jnp.log(is_choice.sum(axis=1, keepdims=True)), -jnp.inf)
    return jnp.logaddexp(own + jnp.log1p(-epsilon), even + jnp.log(epsilon))


def _walk(
    problem: Problem, flow: Flow, num_trees: int, choose: Choose, epsilon: jax.Array | float
) -> tuple[Draws, Visits]:
    """Go down level by level, each node as `choose` says."""
    model, num_rules = problem.model, problem.num_rules
    amortised = Amortised.of(problem, flow)
    words = jnp.broadcast_to(model.every_row[None], (num_trees, len(model.every_row)))
    is_open = jnp.ones(num_trees, bool)
    rules, levels = [], []
    log_joint = log_probability = jnp.zeros(num_trees)

    def total(values):
        return jnp.where(is_open, values, 0.0).reshape(num_trees, -1).sum(axis=1)

    for depth in range(problem.max_depth):
        found = choices(problem, amortised, words, depth)
        place, chance = choose(depth, found, log_policy(found, epsilon))
        log_joint += total(found.log_weight[jnp.arange(len(place)), place])
        log_probability += total(chance)
        is_learned = is_open & found.is_member & ~found.is_exact & (depth > 0)
        levels.append((words, found, is_learned))
        is_split = is_open & (place < num_rules)
        rules.append(jnp.where(is_split, place, LEAF).reshape(num_trees, -1))
        sides = children(model, words, jnp.minimum(place, num_rules - 1))
        words = jnp.where(is_split[:, None, None], jnp.stack(sides, axis=1), 0)
        words, is_open = words.reshape(-1, words.shape[-1]), jnp.repeat(is_split, 2)
    log_joint += total(log_flows(problem, amortised, words, problem.max_depth))
    draws = Draws(jnp.concatenate(rules, axis=1).astype(jnp.int32), log_joint, log_probability)
    visits = Visits(
        jnp.concatenate([words for words, _, _ in levels]),
        jnp.concatenate([found.facts for _, found, _ in levels]),
        jnp.concatenate([found.log_sum - found.log_base for _, found, _ in levels]),
        jnp.concatenate([is_learned for *_, is_learned in levels]),
        levels[0][1].log_sum[0],
    )
    return draws, visits


@partial(jax.jit, static_argnames="num_trees")
def draw(
    rng_key: jax.Array,
    problem: Problem,
    flow: Flow,
    epsilon: jax.Array | float = 0.0,
    *,
    num_trees: int,
) -> tuple[Draws, Visits]:
    """Draw trees from the policy.

    Parameters
    ----------
    rng_key
        Key.
    problem, flow
        The model and its flow.
    epsilon
        How often a node does anything at all that it may do (see `log_policy`).
    num_trees
        Number of trees.
    """

    def choose(depth, found, log_probability):
        key = jax.random.fold_in(rng_key, depth)
        cumulative = jnp.cumsum(jnp.exp(log_probability), axis=1)
        target = jax.random.uniform(key, (len(cumulative), 1)) * cumulative[:, -1:]
        place = (cumulative <= target).sum(axis=1)
        return place, log_probability[jnp.arange(len(place)), place]

    return _walk(problem, flow, num_trees, choose, epsilon)


@jax.jit
def follow(problem: Problem, flow: Flow, rule: jax.Array) -> Draws:
    """Score given trees, heaps of rules int32 [b, 2^D - 1], as the policy would draw them."""

    def choose(depth, found, log_probability):
        own = rule[:, 2**depth - 1 : 2 ** (depth + 1) - 1].ravel()
        place = jnp.where(own == LEAF, problem.num_rules, own)
        return place, log_probability[jnp.arange(len(place)), place]

    return _walk(problem, flow, len(rule), choose, 0.0)[0]


def from_heap(rule: np.ndarray) -> Shape:
    """Make structures of heaps of rules [b, 2^D - 1]; slots in use come first."""
    slot = np.arange(2 * rule.shape[1] + 1)
    is_split = rule != LEAF
    is_used = np.concatenate(
        [np.ones((len(rule), 1), bool), np.repeat(is_split, 2, axis=1)], axis=1
    )
    number, size = np.cumsum(is_used, axis=1) - 1, is_used.sum(axis=1).astype(np.int32)
    order = np.argsort(~is_used, axis=1, kind="stable")[:, : size.max()]
    leaves = np.full((len(rule), len(slot) - rule.shape[1]), LEAF)
    left = np.pad(np.where(is_split, number[:, 1::2], 0), ((0, 0), (0, leaves.shape[1])))
    parent = number[:, np.maximum(slot - 1, 0) // 2]
    depth = np.broadcast_to(np.log2(slot + 1).astype(int)[None], is_used.shape)
    in_use = np.take_along_axis(is_used, order, axis=1)

    def taken(values, unused):
        return np.where(in_use, np.take_along_axis(values, order, axis=1), unused)

    rules = np.concatenate([rule, leaves], axis=1)
    return Shape.of(taken(rules, LEAF), *(taken(a, 0) for a in (left, parent, depth)), size)


def as_heap(shape: Shape, max_depth: int) -> np.ndarray:
    """Make heaps of rules [b, 2^D - 1] of structures.

    Raises
    ------
    ValueError
        If a tree is deeper.
    """
    if (depth := int(np.where(shape.is_used, shape.depth, 0).max())) > max_depth:
        raise ValueError(f"A tree has {depth} levels of splits, more than max_depth={max_depth}.")
    tree, end = np.arange(len(shape.size)), 2**max_depth - 1
    heap = np.full((len(tree), end), LEAF, np.int32)
    place = np.zeros(shape.rule.shape, int)
    for slot in range(shape.capacity):
        split = tree[shape.rule[:, slot] != LEAF]
        own = place[split, slot]
        heap[split, own] = shape.rule[split, slot]
        for side in (0, 1):
            place[split, shape.left[split, slot] + side] = 2 * own + 1 + side
    return heap
