"""Draw trees from a policy, weight them, and bound the sum over all trees.

A trajectory's importance weight is its tree's weight times the backward probability of its order of
construction, over its forward probability (see `bdtppl.inference.gflownet.drawn`).
"""

from functools import partial

import jax
import numpy as np

from bdtppl.inference.gflownet.backward import reordered
from bdtppl.inference.gflownet.construction import Construction
from bdtppl.inference.gflownet.drawn import Drawn, weighed
from bdtppl.inference.gflownet.policy import Policy
from bdtppl.inference.gflownet.rollout import roll_out, undo_logits
from bdtppl.inference.hard.shapes import Shape
from bdtppl.inference.hard.written_trees import as_shape
from bdtppl.models.arrays.padding import in_pieces, padded_size
from bdtppl.models.arrays.precision import in_float64
from bdtppl.models.data.design import Design
from bdtppl.models.hard.tree import Tree
from bdtppl.models.hard.tree_model import TreeModel

_TRAJECTORIES = 256  # trajectories that are drawn at once


@in_float64
def sample(
    rng_key: jax.Array,
    construction: Construction,
    policy: Policy,
    model: TreeModel,
    *,
    chains: int = 4,
    draws: int = 250,
) -> Drawn:
    """Draw independent trees from a policy.

    Parameters
    ----------
    rng_key
        Key.
    construction
        The rules.
    policy
        The policy.
    model
        The model of the construction.
    chains, draws
        Layout of the draws.
    """
    keys = jax.random.split(rng_key, -(-chains * draws // _TRAJECTORIES))
    parts = [
        jax.tree.map(np.asarray, _draw_trajectories(key, construction, policy)) for key in keys
    ]
    shape, log_weights, joint = jax.tree.map(lambda *a: np.concatenate(a), *parts)
    packed = construction.model
    return weighed(model, packed, shape, log_weights, joint, chains=chains, draws=draws)


@in_float64
def upper_bound(
    rng_key: jax.Array, construction: Construction, policy: Policy, design: Design, trees: Tree
) -> float:
    """Bound log Z from above by trees of the posterior (EUBO).

    Parameters
    ----------
    rng_key
        Key.
    construction, policy
        The rules, and the policy.
    design
        The design of the construction.
    trees
        Draws from the posterior [m].

    Returns
    -------
    float
        Mean log weight of the trees, each made in an order drawn from the backward policy.

    Raises
    ------
    ValueError
        If a tree needs more splits than the construction has.
    """
    shape = as_shape(construction.model, design, trees, construction.capacity)
    weigh = partial(_weigh_trajectories, rng_key, construction, policy)
    return float(in_pieces(weigh, padded_size(len(shape.size)), shape).mean())


@jax.jit
def _draw_trajectories(rng_key, construction, policy) -> tuple[Shape, jax.Array, jax.Array]:
    made = roll_out(rng_key, construction, policy, num_drawn=_TRAJECTORIES)
    # Nothing changes after the last split.
    return made.trees.shape, made.log_weights, made.log_joint[:, -1]


@jax.jit
def _weigh_trajectories(rng_key, construction, policy, shape: Shape) -> jax.Array:
    given = reordered(rng_key, shape)
    made = roll_out(rng_key, construction, policy, given=given)
    if (logits := undo_logits(policy, made.trees)) is not None:
        given = reordered(jax.random.fold_in(rng_key, 1), given, logits)
        made = roll_out(rng_key, construction, policy, given=given)
    return made.log_weights
