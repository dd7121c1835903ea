"""Co-membership: probabilities that two rows share a leaf, and the nearest tree.

These probabilities do not depend on the representation of a tree, so they summarise the posterior
over structures even if single trees have little probability. The consensus is the tree whose own
matrix of zeros and ones has the least squared distance from the probabilities.

References
----------
Dahl 2006, Model-based clustering for expression data via a Dirichlet process mixture model, for the
least-squares clustering.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from bdtppl.inference.soft.posterior import SoftPosterior
from bdtppl.models.arrays.precision import in_float64
from bdtppl.models.hard.tree import Tree, route

_PIECE = 256  # trees
_MOST_DRAWS = 1000  # of soft trees


def hard_co_membership(trees: Tree, weights: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Return the share of trees [t], by weights [t], in which rows [n, d] share a leaf, [n, n].

    Examples
    --------
    >>> stump = Tree.from_nested({"feature": 0, "threshold": 0.5, "left": {}, "right": {}})
    >>> rows = np.array([[0.0], [0.2], [1.0]])
    >>> hard_co_membership(stump.reshape(1), np.ones(1), rows).tolist()
    [[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    total = np.zeros((len(matrix), len(matrix)))
    for start in range(0, len(weights), _PIECE):
        some = slice(start, start + _PIECE)
        leaves, tree = _leaves(trees[some], matrix)
        total += leaves.T @ (weights[some][tree][:, None] * leaves)
    return total


def nearest_tree(trees: Tree, matrix: np.ndarray, co_membership: np.ndarray) -> tuple[int, float]:
    """Find the tree [t] whose partition of rows [n, d] is nearest to a co-membership matrix.

    Returns
    -------
    int
        Index of the tree.
    float
        Mean squared difference over pairs of rows.
    """
    distance = []
    for start in range(0, trees.batch_shape[0], _PIECE):
        leaves, tree = _leaves(trees[start : start + _PIECE], matrix)
        # A tree's own matrix has entries 0 and 1, so it equals its square.
        within = ((leaves @ (1 - 2 * co_membership)) * leaves).sum(axis=1)
        distance.append(np.bincount(tree, within))
    distances = np.concatenate(distance) + (co_membership**2).sum()
    best = int(distances.argmin())
    return best, float(distances[best] / co_membership.size)


def _leaves(trees: Tree, matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return rows in each nonempty leaf, float [l, n], and the tree of each leaf, [l]."""
    slots = route(trees, matrix)
    leaf = slots + np.arange(len(slots))[:, None] * trees.capacity
    used, place = np.unique(leaf, return_inverse=True)
    members = np.zeros((len(used), len(matrix)))
    members[place.reshape(leaf.shape), np.arange(len(matrix))[None]] = 1
    return members, used // trees.capacity


@in_float64
def soft_co_membership(posterior: SoftPosterior, rows: np.ndarray) -> np.ndarray:
    """Return the mean probability that two of the training rows [m] reach the same leaf, [m, m]."""
    size = posterior.topology.size
    chosen = np.linspace(0, size - 1, min(size, _MOST_DRAWS)).astype(int)
    flat = jax.tree.map(lambda a: a.reshape(size, *a.shape[2:])[chosen], posterior.trees)
    inputs = (posterior.matrix[rows] - posterior.scaling[0]) / posterior.scaling[1]
    return np.asarray(_overlap(flat, inputs, np.float64(posterior.sharpness))) / len(chosen)


@jax.jit
def _overlap(trees, rows: jax.Array, sharpness: jax.Array) -> jax.Array:
    def add(total, tree):
        reached = tree.reached(rows, sharpness)
        return total + reached.T @ reached, None

    return lax.scan(add, jnp.zeros((len(rows), len(rows))), trees)[0]
