"""Draws of trees from the policy of the flows, and their probabilities.

Trees are heaps: the children of slot j are 2j + 1 and 2j + 2. So one level of all trees is one
array, whose subproblems are scored together, and equal ones once.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from bdtppl.inference.gflownet.grammar import Amortised, FlowChoices, FlowProblem, choices
from bdtppl.inference.gflownet.grammar_network import Flow
from bdtppl.inference.hard.shapes import LEAF, Shape, heap_order
from bdtppl.models.hard.packed_model import children

FREE = -2  # slots of given trees whose rules are drawn


class HeapDraws(NamedTuple):
    """Trees; b trees, D levels of splits.

    Attributes
    ----------
    rule
        int32 [b, 2^D - 1]; rule of each slot, `LEAF` in leaves and unused slots.
    log_joint
        float64 [b]; log of the choices' weights and the leaves' marginals. If a prior counts
        partitions, their weight is shared among their rules.
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
    """Subproblems of draws, including the root; v visits.

    Attributes
    ----------
    words
        uint64 [v, W]; their rows.
    facts
        float32 [v, f]; further inputs of the network.
    imbalance
        float64 [v]; log S minus the base: the target of the network.
    is_learned
        bool [v]; whether the node's flow is learned, and the node is the first of equal ones.
    log_partition
        float64 scalar; log S of the root.
    """

    words: jax.Array
    facts: jax.Array
    imbalance: jax.Array
    is_learned: jax.Array
    log_partition: jax.Array


def log_policy(weighed: FlowChoices, epsilon: jax.Array | float = 0.0) -> jax.Array:
    """Return the log probability of each choice, float64 [m, R + 1].

    A node chooses uniformly with probability epsilon.
    """
    own = weighed.log_term - weighed.log_sum[:, None]
    is_choice = jnp.isfinite(weighed.log_term)
    even = jnp.where(is_choice, -jnp.log(is_choice.sum(axis=1, keepdims=True)), -jnp.inf)
    return jnp.logaddexp(own + jnp.log1p(-epsilon), even + jnp.log(epsilon))


@jax.jit
def go_down(
    rng_key: jax.Array,
    problem: FlowProblem,
    flow: Flow,
    rule: jax.Array,
    epsilon: jax.Array | float = 0.0,
) -> tuple[HeapDraws, Visits]:
    """Follow trees level by level, and draw the choices that are not given from the policy.

    Parameters
    ----------
    rng_key
        Key.
    problem, flow
        The model and its flow.
    rule
        int32 [b, 2^D - 1]; heaps of given rules, `FREE` for rules to be drawn.
    epsilon
        Probability of a uniform choice (see `log_policy`).
    """
    model, num_rules, max_depth = problem.model, problem.num_rules, problem.max_depth
    amortised = Amortised.of(problem, flow)
    num_trees, width = len(rule), 2 ** (max_depth - 1)
    every = jnp.arange(num_trees * width)

    def below(values):
        """Return nodes of the next level, from pairs of children [b 2^(D-1), 2, ...]."""
        kept = values.reshape(num_trees, 2 * width, *values.shape[2:])[:, :width]
        return kept.reshape(num_trees * width, *values.shape[2:])

    def level(carry, given):
        words, is_open, log_joint, log_probability = carry
        depth, own, uniform = given

        def total(values):
            return jnp.where(is_open, values, 0.0).reshape(num_trees, width).sum(axis=1)

        weighed = choices(problem, amortised, words, depth)
        log_chance = log_policy(weighed, epsilon)
        cumulative = jnp.cumsum(jnp.exp(log_chance), axis=1)
        drawn = (cumulative <= (uniform * cumulative[:, -1])[:, None]).sum(axis=1)
        place = jnp.where(own == FREE, drawn, jnp.where(own == LEAF, num_rules, own))
        log_joint += total(weighed.log_weight[every, place])
        log_probability += total(log_chance[every, place])
        visits = Visits(
            words,
            weighed.seen.facts,
            weighed.log_sum - weighed.seen.log_base,
            is_open & weighed.is_member & ~weighed.seen.is_exact & (depth > 0),
            weighed.log_sum[0],
        )
        is_split = is_open & (place < num_rules)
        sides = jnp.stack(children(model, words, jnp.minimum(place, num_rules - 1)), axis=1)
        words = below(jnp.where(is_split[:, None, None], sides, 0))
        chosen = jnp.where(is_split, place, LEAF).astype(jnp.int32)
        is_open = below(jnp.stack([is_split, is_split], axis=1))
        return (words, is_open, log_joint, log_probability), (chosen, visits)

    is_root = every % width == 0
    words = jnp.where(is_root[:, None], model.every_row[None], 0)
    levels = [slice(2**depth - 1, 2 ** (depth + 1) - 1) for depth in range(max_depth)]
    own = [jnp.pad(rule[:, slots], ((0, 0), (0, width)))[:, :width].ravel() for slots in levels]
    uniform = jax.random.uniform(rng_key, (max_depth, num_trees * width))
    end, (chosen, visits) = lax.scan(
        level,
        (words, is_root, jnp.zeros(num_trees), jnp.zeros(num_trees)),
        (jnp.arange(max_depth), jnp.stack(own), uniform),
    )
    chosen = chosen.reshape(max_depth, num_trees, width)
    heap = jnp.concatenate([chosen[depth, :, : 2**depth] for depth in range(max_depth)], axis=1)
    visits = jax.tree.map(lambda array: array.reshape(-1, *array.shape[2:]), visits)
    return HeapDraws(heap, *end[2:]), visits._replace(log_partition=visits.log_partition[0])


def draw(
    rng_key: jax.Array, problem: FlowProblem, flow: Flow, epsilon: float = 0.0, *, num_trees: int
) -> tuple[HeapDraws, Visits]:
    """Draw trees from the policy (see `go_down`)."""
    free = np.full((num_trees, 2**problem.max_depth - 1), FREE, np.int32)
    return go_down(rng_key, problem, flow, free, jnp.float64(epsilon))


def follow_trees(problem: FlowProblem, flow: Flow, rule: np.ndarray) -> tuple[HeapDraws, Visits]:
    """Follow given trees, heaps of rules int32 [b, 2^D - 1] (see `go_down`)."""
    return go_down(jax.random.key(0), problem, flow, rule, jnp.float64(0.0))


def from_heap(rule: np.ndarray) -> Shape:
    """Convert heaps of rules [b, 2^D - 1] to structures; slots in use come first."""
    leaves = np.full((len(rule), rule.shape[1] + 1), LEAF)
    every = np.concatenate([rule, leaves], axis=1)
    return Shape.breadth_first(np.take_along_axis(every, heap_order(rule != LEAF), axis=1))


def as_heap(shape: Shape, max_depth: int) -> np.ndarray:
    """Convert structures to heaps of rules [b, 2^D - 1].

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
