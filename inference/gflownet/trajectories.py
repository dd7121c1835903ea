"""Intermediate trees up to their last split, and their probabilities.

References
----------
Malkin, Jain, Bengio, Sun and Bengio 2022, Trajectory balance: improved credit assignment in
GFlowNets.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from bdtppl.inference.gflownet.backward import steps_of_splits
from bdtppl.inference.gflownet.construction import Partial
from bdtppl.inference.hard.shapes import Shape


class Trajectories(NamedTuple):
    """Trees of b trajectories of at most T splits, and probabilities along their construction.

    Attributes
    ----------
    trees
        The trees, with slots in the order of their creation.
    features, cuts
        bool [b, T, F] and [b, T, C]; features available to the leaf that was split, and cuts of its
        feature.
    log_forward, log_backward
        float64 [b, T]; log probabilities of each split, and of undoing it first; 0 beyond the last
        one.
    log_stop
        float64 [b, T + 1]; log probability of stopping before each split and after the last one.
    log_joint
        float64 [b, T + 1]; log prior weight plus log likelihood of the tree there.
    """

    trees: Partial
    features: jax.Array
    cuts: jax.Array
    log_forward: jax.Array
    log_backward: jax.Array
    log_stop: jax.Array
    log_joint: jax.Array

    @property
    def num_splits(self) -> jax.Array:
        """Splits of each trajectory, int32 [b]."""
        return self.trees.shape.size // 2

    @property
    def is_reached(self) -> jax.Array:
        """Return whether a trajectory has a tree of that many splits, bool [b, T + 1]."""
        return jnp.arange(self.log_stop.shape[1])[None] <= self.num_splits[:, None]

    @property
    def decides(self) -> jax.Array:
        """Return whether the policy had a choice at that tree, bool [b, T]."""
        return self.is_reached[:, :-1]  # a tree without room stops

    @property
    def log_potentials(self) -> jax.Array:
        """Return log Z according to each intermediate tree, float64 [b, T + 1]."""
        so_far = jnp.cumsum(self.log_backward - self.log_forward, axis=1)
        return self.log_joint - self.log_stop + jnp.pad(so_far, ((0, 0), (1, 0)))

    @property
    def log_weights(self) -> jax.Array:
        """Return log importance weights of the trajectories, float64 [b]; the mean weight is Z."""
        return jnp.take_along_axis(self.log_potentials, self.num_splits[:, None], axis=1)[:, 0]


def trajectory_balance(log_z: jax.Array, made: Trajectories) -> jax.Array:
    """Return the loss of each trajectory [b], given the learned log Z (DT-GFN, equation 6).

    It vanishes if the policy draws trees in proportion to their weights.
    """
    return (log_z - made.log_weights) ** 2


def open_slots(shape: Shape) -> jax.Array:
    """Return leaves of each intermediate tree, bool [b, T + 1, k]."""
    slot, step = jnp.arange(shape.capacity)[None, None], _steps(shape)
    is_made = shape.is_used[:, None] & ((slot + 1) // 2 <= step)
    return is_made & (step <= steps_of_splits(shape)[:, None])


def _steps(shape: Shape) -> jax.Array:
    return jnp.arange(shape.capacity // 2 + 1)[None, :, None]


def log_joints(trees: Partial, leaf_score: jax.Array) -> jax.Array:
    """Return log joints of intermediate trees, float64 [b, T + 1], from leaf scores [b, k]."""
    shape, terms = trees.shape, trees.terms
    log_leaf = (terms.log_stop + leaf_score)[:, None]
    is_split = shape.is_split[:, None] & (steps_of_splits(shape)[:, None] < _steps(shape))
    log_rule = jnp.where(is_split, terms.log_rule[:, None], 0.0)
    return jnp.where(open_slots(shape), log_leaf, log_rule).sum(axis=2)
