"""Losses that vanish where a policy draws trees in proportion to their weights.

Every tree may stop, so a policy implies the flow through each tree on the way: its weight over the
probability of stopping there. Brought back to the start along a trajectory, by the forward and
backward probabilities of its splits, all these flows are the sum over trees of their weights, Z,
where the policy is right. So there is one number for each tree on the way, its *potential*, and one
that is learned, log Z; losses differ in which of these they compare.

References
----------
Malkin, Jain, Bengio, Sun and Bengio 2022, Trajectory balance; Deleu et al. 2022, Bayesian structure
learning with generative flow networks, for flows by the probability of stopping; Madan et al. 2023,
Learning GFlowNets from partial episodes.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from bdtppl.inference.gflownet.backward import log_parents, steps_of_splits
from bdtppl.inference.gflownet.construction import Construction, Trajectories
from bdtppl.inference.gflownet.policy import Policy, log_choices, log_stop_and_go

__all__ = ["BALANCES", "Balance", "Transitions", "transitions"]

_DECAY = 0.9  # of the weight of a comparison, by each step between its two ends


class Transitions(NamedTuple):
    """What policies say along b trajectories of at most T splits, and what trees on the way weigh.

    Attributes
    ----------
    log_forward, log_backward
        [b, T]; log probabilities of each split, and of undoing it first; 0 beyond the last one.
    log_stop
        [b, T + 1]; log probability of stopping before each split, and after the last one.
    log_joint
        float64 [b, T + 1]; log prior weight plus log likelihood of the tree there.
    num_splits
        int32 [b]; splits of each trajectory.
    """

    log_forward: jax.Array
    log_backward: jax.Array
    log_stop: jax.Array
    log_joint: jax.Array
    num_splits: jax.Array

    @property
    def is_reached(self) -> jax.Array:
        """Whether the trajectory has a tree of that many splits, bool [b, T + 1]."""
        return jnp.arange(self.log_stop.shape[1])[None] <= self.num_splits[:, None]

    @property
    def log_potentials(self) -> jax.Array:
        """Log of Z according to each tree on the way, float64 [b, T + 1]."""
        steps = (self.log_backward - self.log_forward).astype(self.log_joint.dtype)
        so_far = jnp.pad(jnp.cumsum(steps, axis=1), ((0, 0), (1, 0)))
        return self.log_joint - self.log_stop + so_far

    @property
    def log_weights(self) -> jax.Array:
        """Log importance weights of the trajectories, float64 [b]: their weights' mean is Z."""
        return _at(self.log_potentials, self.num_splits)


def transitions(
    construction: Construction, policy: Policy, trajectories: Trajectories
) -> Transitions:
    """Follow trajectories through a policy, encoding each leaf once."""
    shape, most = trajectories.shape, construction.num_splits
    num_splits, terms = shape.size // 2, trajectories.terms
    split_at = steps_of_splits(shape)[:, None]
    step = jnp.arange(most + 1)[None, :, None]
    made_at = (jnp.arange(shape.capacity)[None, None] + 1) // 2
    is_open = shape.is_used[:, None] & (made_at <= step) & (step <= split_at)
    growable = is_open & (terms.has_rule > 0)[:, None] & (step < most)

    codes = policy.encode(trajectories.paths.reshape(-1, trajectories.paths.shape[-1]))
    codes = jax.tree.map(lambda a: a.reshape(*shape.rule.shape, *a.shape[1:]), codes)
    context = policy.context(codes, is_open)
    log_stop, log_go = log_stop_and_go(policy, context, growable)
    log_leaf = log_choices(policy.leaves(codes, context), growable)

    # The leaf that each step splits, and the rule that it gets.
    slot = jnp.argmax(split_at == step[:, :most], axis=2)
    tree = jnp.arange(len(slot))[:, None]
    rule = jnp.maximum(shape.rule[tree, slot], 0)
    feature, cut = construction.feature[rule], construction.cut[rule]
    code = jax.tree.map(lambda a: a[tree, slot], codes)
    context = jax.tree.map(lambda a: a[:, :most], context)
    log_feature = log_choices(policy.features(code, context), trajectories.features)
    log_cut = log_choices(policy.cuts(code, context, feature), trajectories.cuts)
    log_forward = log_go[:, :most] + sum(
        jnp.take_along_axis(log_choice, choice[..., None], axis=-1)[..., 0]
        for log_choice, choice in (
            (log_leaf[:, :most], slot),
            (log_feature, feature),
            (log_cut, cut),
        )
    )

    log_leaves = (terms.log_stop + terms.leaf_score)[:, None]
    log_joint = jnp.where(is_open, log_leaves, 0.0).sum(axis=2)
    log_joint += jnp.where(split_at < step, terms.log_rule[:, None], 0.0).sum(axis=2)
    is_made = jnp.arange(most)[None] < num_splits[:, None]
    return Transitions(
        jnp.where(is_made, log_forward, 0.0),
        jnp.where(is_made, -log_parents(shape), 0.0),
        log_stop,
        log_joint,
        num_splits,
    )


Balance = Callable[[jax.Array, Transitions], jax.Array]
"""A loss of each trajectory [b], from the learned log Z and its transitions."""


def trajectory_balance(log_z: jax.Array, made: Transitions) -> jax.Array:
    """Compare log Z with the last potential (DT-GFN, equation 6)."""
    return (log_z - made.log_weights) ** 2


def detailed_balance(log_z: jax.Array, made: Transitions) -> jax.Array:
    """Compare each potential with the next one, log Z with the first."""
    potentials = _with_start(log_z, made)
    return jnp.where(made.is_reached, jnp.diff(potentials, axis=1) ** 2, 0.0).sum(axis=1)


def sub_trajectory_balance(log_z: jax.Array, made: Transitions) -> jax.Array:
    """Compare all pairs of potentials, log Z among them, those far apart with less weight."""
    potentials = _with_start(log_z, made)
    is_there = jnp.pad(made.is_reached, ((0, 0), (1, 0)), constant_values=True)
    place = jnp.arange(potentials.shape[1])
    weight = jnp.tril(_DECAY ** (place[:, None] - place[None]), -1)[None]
    weight *= is_there[:, :, None] & is_there[:, None]
    square = (potentials[:, :, None] - potentials[:, None]) ** 2
    return (weight * square).sum(axis=(1, 2)) / weight.sum(axis=(1, 2))


BALANCES: dict[str, Balance] = {
    "trajectory": trajectory_balance,
    "detailed": detailed_balance,
    "sub-trajectory": sub_trajectory_balance,
}


def _with_start(log_z: jax.Array, made: Transitions) -> jax.Array:
    """Put log Z before the potentials [b, T + 1]; the last one is repeated where there is none."""
    potentials = jnp.where(made.is_reached, made.log_potentials, made.log_weights[:, None])
    start = jnp.broadcast_to(log_z, (len(potentials), 1))
    return jnp.concatenate([start, potentials], axis=1)


def _at(values: jax.Array, place: jax.Array) -> jax.Array:
    """Pick one entry of each row of values [b, n]."""
    return jnp.take_along_axis(values, place[:, None], axis=1)[:, 0]
