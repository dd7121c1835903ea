"""Trees whose leaf means are monotone along features.

Two leaves are ordered in a feature if one is entirely below the other along it and their boxes
overlap in all other features: a row can then move from one to the other by changing that feature
alone. A tree is monotone if the posterior means of all such pairs are in order. Missing values are
ignored.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from bdtppl.models.leaf import Leaf
from bdtppl.models.prior_kinds import TreeShape


def expected_target(leaf: Leaf, statistics: Any) -> jax.Array:
    """Return the posterior mean to be compared, [...]; the mean class index in classification."""
    mean = jnp.asarray(leaf.posterior_mean(statistics))
    if mean.ndim < statistics.ndim:
        return mean
    return mean @ jnp.arange(mean.shape[-1], dtype=mean.dtype)


def _boxes(tree: TreeShape, num_features: int):
    """Return the boxes of the nodes of one tree, (low, high) float64 [k, d], by x < threshold."""

    def hand_down(slot, boxes):
        low, high = boxes
        at, cut = jnp.maximum(tree.feature[slot], 0), tree.threshold[slot]
        own_low, own_high = low[slot], high[slot]
        sides = (
            (tree.left[slot], own_low, own_high.at[at].min(cut)),
            (tree.right[slot], own_low.at[at].max(cut), own_high),
        )
        for child, child_low, child_high in sides:
            place = jnp.where(tree.is_split[slot], child, len(low))
            low = low.at[place].set(child_low, mode="drop")
            high = high.at[place].set(child_high, mode="drop")
        return low, high

    ends = jnp.full((len(tree.feature), num_features), jnp.inf)
    return lax.fori_loop(0, len(tree.feature), hand_down, (-ends, ends))


def is_monotone(direction: jax.Array, tree: TreeShape, mean: jax.Array) -> jax.Array:
    """Return whether the leaf means of one tree are in order, a boolean.

    Parameters
    ----------
    direction
        int [d]; 1 if means must not fall along the feature, -1 if they must not rise, else 0.
    tree
        The tree.
    mean
        float64 [k]; posterior mean of each leaf.
    """
    low, high = _boxes(tree, len(direction))
    overlaps = jnp.maximum(low[:, None], low[None]) < jnp.minimum(high[:, None], high[None])
    is_below = high[:, None] <= low[None]  # [k, k, d]
    elsewhere = (~overlaps).sum(axis=-1, keepdims=True) - ~overlaps == 0
    rise = mean[None, :, None] - mean[:, None, None]
    is_wrong = is_below & elsewhere & (direction[None, None] * rise < -1e-12)
    pairs = tree.is_leaf[:, None] & tree.is_leaf[None]
    return ~(is_wrong & pairs[..., None]).any()
