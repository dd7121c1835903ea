"""Trajectories drawn from a policy, a batch at a time and all trees of it step by step together."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from bdtppl.inference.gflownet.construction import (
    Construction,
    Offer,
    Partial,
    Trajectories,
    begin,
    finished,
    split_leaf,
)
from bdtppl.inference.gflownet.policy import Policy, log_choices, log_stop_and_go
from bdtppl.inference.metropolis.growth import draw

__all__ = ["roll_out"]

_NUMBERS = 5  # random numbers of a step: whether it explores, and its four choices

Pick = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


def roll_out(
    rng_key: jax.Array,
    construction: Construction,
    policy: Policy,
    epsilon: Any = 0.0,
    *,
    num_trees: int,
) -> Trajectories:
    """Draw trajectories from a policy; inside a double-precision scope.

    Parameters
    ----------
    rng_key
        Key.
    construction
        What trees are made of.
    policy
        The policy.
    epsilon
        Probability with which a step makes each of its choices uniformly instead: whether to stop,
        the leaf, the feature and the cut.
    num_trees
        Number of trajectories b.
    """
    uniform = jax.random.uniform(rng_key, (construction.num_splits, _NUMBERS, num_trees))
    partial = begin(construction, num_trees)
    codes = jax.tree.map(
        lambda a: jnp.zeros((num_trees, construction.capacity, *a.shape[1:]), a.dtype),
        jax.eval_shape(policy.encode, partial.paths[:, 0]),
    )
    codes = _encoded(policy, codes, partial, jnp.int32(0), 1)

    def step(i, numbers, partial, codes, is_going):
        explores, *numbers = numbers
        pick = _picker(explores < epsilon)
        go, slot, pick_rule = _choose(construction, policy, partial, codes, numbers, pick)
        is_going &= go
        partial, offer = split_leaf(construction, partial, is_going, slot, pick_rule)
        return (partial, _encoded(policy, codes, partial, 2 * i + 1, 2), is_going), offer

    nothing = Offer(
        jnp.zeros((num_trees, construction.num_features), bool),
        jnp.zeros((num_trees, construction.num_cuts), bool),
    )

    def step_if_any(carry, each):
        return lax.cond(carry[2].any(), lambda: step(*each, *carry), lambda: (carry, nothing))

    start = partial, codes, jnp.ones(num_trees, bool)
    steps = jnp.arange(construction.num_splits, dtype=jnp.int32), uniform
    (partial, _, _), offers = lax.scan(step_if_any, start, steps)
    return finished(partial, offers)


def _picker(explores: jax.Array) -> Pick:
    """Draw one item of each row by log probabilities [b, items], or uniformly among those there."""

    def pick(log_probabilities, is_available, number):
        flat = jnp.where(is_available, 0.0, -jnp.inf).astype(log_probabilities.dtype)
        return draw(jnp.where(explores[:, None], flat, log_probabilities), number)

    return pick


def _choose(construction, policy: Policy, partial: Partial, codes, numbers, pick: Pick):
    """Choose whether to go on, a leaf, and (once its rules are known) its feature and cut."""
    tree, is_open = jnp.arange(len(numbers[0])), partial.shape.is_leaf
    growable = is_open & (partial.terms.has_rule > 0)
    context = policy.context(codes, is_open[:, None])
    stop_and_go = jnp.stack(log_stop_and_go(policy, context, growable[:, None]), axis=-1)[:, 0]
    can_go = growable.any(axis=1)
    go = pick(stop_and_go, jnp.stack([jnp.ones_like(can_go), can_go], axis=1), numbers[0]) == 1
    log_leaves = log_choices(policy.leaves(codes, context)[:, 0], growable)
    slot = pick(log_leaves, growable, numbers[1])
    code = jax.tree.map(lambda a: a[tree, slot][:, None], codes)

    def pick_rule(available):
        features = available.any(axis=2)
        log_features = log_choices(policy.features(code, context)[:, 0], features)
        feature = pick(log_features, features, numbers[2])
        cuts = available[tree, feature]
        log_cuts = log_choices(policy.cuts(code, context, feature[:, None])[:, 0], cuts)
        return jnp.maximum(construction.rule[feature, pick(log_cuts, cuts, numbers[3])], 0)

    return go, slot, pick_rule


def _encoded(policy: Policy, codes, partial: Partial, first: jax.Array, number: int):
    """Write the codes of a few new slots of all trees into those of the others."""
    paths = lax.dynamic_slice_in_dim(partial.paths, first, number, axis=1)
    new = policy.encode(paths.reshape(-1, paths.shape[-1]))
    return jax.tree.map(
        lambda known, own: lax.dynamic_update_slice_in_dim(
            known, own.reshape(*paths.shape[:2], *own.shape[1:]), first, axis=1
        ),
        codes,
        new,
    )
