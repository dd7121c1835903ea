"""Soft trees of several topologies in arrays of one size."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bdtppl.models.pytrees import Array, pytree_dataclass
from bdtppl.models.soft.topology import Topology
from bdtppl.models.soft.tree import leaf_probabilities


@pytree_dataclass
class SoftTrees:
    """A batch [...] of soft trees on d inputs, of at most n splits; zeros if a tree has fewer.

    Attributes
    ----------
    paths
        int8 [..., n + 1, n]; `bdtppl.models.soft.topology.Topology.paths`.
    is_leaf
        bool [..., n + 1].
    direction
        float64 [..., n, d] on the simplex; a corner of it if a split uses one input.
    threshold
        float64 [..., n].
    leaves
        Parameters by name: float64 [..., n + 1, ...] of leaves, and [...] of whole trees.
    """

    paths: Array
    is_leaf: Array
    direction: Array
    threshold: Array
    leaves: dict[str, Any]

    @classmethod
    def of_topology(
        cls, topology: Topology, direction: Array, threshold: Array, leaves: dict[str, Array]
    ) -> "SoftTrees":
        """Make trees [s] of one topology."""
        batch = threshold.shape[:-1]
        return cls(
            np.broadcast_to(topology.paths, (*batch, *topology.paths.shape)),
            np.ones((*batch, topology.num_leaves), bool),
            np.asarray(direction),
            np.asarray(threshold),
            {name: np.asarray(values) for name, values in leaves.items()},
        )

    @classmethod
    def joined(cls, parts: Sequence["SoftTrees"]) -> "SoftTrees":
        """Join batches [s] of any topologies."""
        most = max(part.threshold.shape[-1] for part in parts)
        grown = [part._grown_to(most) for part in parts]
        return jax.tree.map(lambda *arrays: np.concatenate(arrays), *grown)

    def _grown_to(self, num_splits: int) -> "SoftTrees":
        own = self.threshold.shape[-1]
        batch = self.threshold.ndim - 1

        def grown(values: Any, axes: dict[int, int]) -> np.ndarray:
            """Pad axes after the batch's with zeros."""
            more = [(0, axes.get(axis - batch, 0)) for axis in range(values.ndim)]
            return np.pad(values, more)

        more = num_splits - own
        return SoftTrees(
            grown(self.paths, {0: more, 1: more}),
            grown(self.is_leaf, {0: more}),
            grown(self.direction, {0: more}),
            grown(self.threshold, {0: more}),
            {name: grown(values, {0: more}) for name, values in self.leaves.items()},
        )

    def __getitem__(self, index: Any) -> "SoftTrees":
        return jax.tree.map(lambda array: array[index], self)

    def reached(self, x: jax.Array, sharpness: Any) -> jax.Array:
        """Return the probability of rows [m, d] at the leaves of one tree, float [n + 1, m]."""
        direction, threshold = jnp.asarray(self.direction), jnp.asarray(self.threshold)
        reached = leaf_probabilities(self.paths, x, direction, threshold, sharpness)
        return jnp.where(self.is_leaf[:, None], reached, 0.0)
