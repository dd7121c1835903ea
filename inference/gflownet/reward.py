"""Weights of trees in training: prior times likelihood, tempered, or on some of the rows.

The likelihood of a random part of the rows, raised to the power that compensates for the rest,
costs less if there are many rows (DT-GFN, appendix D.3). A leaf's marginal likelihood is not a
product over its rows, so the mean of its log is not the log for all rows, and a policy trained by
it does not draw from the posterior.
"""

from typing import Any

import jax
import jax.numpy as jnp

from bdtppl.inference.gflownet.construction import Construction
from bdtppl.inference.gflownet.trajectories import Trajectories, log_joints
from bdtppl.models.hard.node_scores import leaf_scores


def rewards(
    rng_key: jax.Array,
    construction: Construction,
    made: Trajectories,
    temperature: Any = 1.0,
    *,
    batch_rows: int | None = None,
) -> jax.Array:
    """Return log weights of intermediate trees, float64 [b, T + 1].

    Parameters
    ----------
    rng_key
        Key of the choice of rows.
    construction, made
        Trajectories and their construction.
    temperature
        Divisor of log weights.
    batch_rows
        Rows of the batch; None for all.
    """
    log_joint = made.log_joint
    if batch_rows is not None:
        log_joint = log_joints(made.trees, _batch_scores(rng_key, construction, made, batch_rows))
    return log_joint / temperature


def _batch_scores(rng_key, construction: Construction, made: Trajectories, batch_rows: int):
    """Return log marginals of a random batch of rows in each slot, scaled to all rows, [b, k]."""
    model, rows = construction.model, made.trees.rows
    num_rows, num_words = len(model.statistics), len(model.left_rows)
    is_in = jax.random.permutation(rng_key, num_rows) < batch_rows
    bits = jnp.pad(is_in, (0, 64 * num_words - num_rows)).reshape(num_words, 64)
    words = (bits.astype(rows.dtype) << jnp.arange(64, dtype=rows.dtype)[None]).sum(axis=1)
    # Words after those of rows do not contain rows.
    batch = jnp.pad(words, (0, rows.shape[2] - num_words), constant_values=~rows.dtype.type(0))
    scores = leaf_scores(model, (rows & batch[None, None]).reshape(-1, rows.shape[2]))
    return scores.reshape(rows.shape[:2]) * (num_rows / min(batch_rows, num_rows))
