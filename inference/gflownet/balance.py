"""Losses that vanish where a policy draws trees in proportion to their weights.

Every tree may stop, so a policy implies the flow through each tree on the way: its weight over the
probability of stopping there. Brought back to the start along a trajectory, by the forward and
backward probabilities of its splits, all these flows are the sum over trees of their weights, Z,
where the policy is right. So each tree on the way has one number, its
*potential*, and log Z is learned; losses differ in which of these they compare.

References
----------
Malkin, Jain, Bengio, Sun and Bengio 2022, Trajectory balance; Deleu et al. 2022, Bayesian structure
learning with generative flow networks, for flows by the probability of stopping; Madan et al. 2023,
Learning GFlowNets from partial episodes.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from bdtppl.inference.gflownet.trajectories import Trajectories

__all__ = ["BALANCES", "Balance"]

_DECAY = 0.9  # factor on a comparison's weight for each step between its two ends


Balance = Callable[[jax.Array, Trajectories], jax.Array]
"""A loss of each trajectory [b], from the learned log Z and the trajectories."""


def trajectory_balance(log_z: jax.Array, made: Trajectories) -> jax.Array:
    """Compare log Z with the last potential (DT-GFN, equation 6)."""
    return (log_z - made.log_weights) ** 2


def detailed_balance(log_z: jax.Array, made: Trajectories) -> jax.Array:
    """Compare each potential with the next one, log Z with the first."""
    potentials = _with_start(log_z, made)
    return jnp.where(made.is_reached, jnp.diff(potentials, axis=1) ** 2, 0.0).sum(axis=1)


def sub_trajectory_balance(log_z: jax.Array, made: Trajectories) -> jax.Array:
    """Compare all pairs of potentials and log Z; pairs far apart have less weight."""
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


def _with_start(log_z: jax.Array, made: Trajectories) -> jax.Array:
    """Put log Z before the potentials [b, T + 1]; missing ones repeat the last."""
    potentials = jnp.where(made.is_reached, made.log_potentials, made.log_weights[:, None])
    start = jnp.broadcast_to(log_z, (len(potentials), 1))
    return jnp.concatenate([start, potentials], axis=1)
