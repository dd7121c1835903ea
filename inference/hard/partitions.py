"""Groups of trees that split the training rows alike, in every node or in the leaves alone.

A cut can move within the gap between two values of a node's rows without changing the likelihood. A
grid may have many such trees, each with a small part of their total probability. Trees with another
order of splits may have the same leaves: they are one partition.
"""

from hashlib import blake2b
from typing import Literal

import numpy as np

from bdtppl.models.hard.tree import Tree, route

Grouping = Literal["tree", "partition"]
"""What is one: a tree, or all trees whose leaves hold the same training rows."""

_PAIRS = 1 << 22  # pairs of a tree and a row that are compared together


def group(trees: Tree, threshold: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Group trees that differ only in the order of their slots.

    Parameters
    ----------
    trees
        Batch [t].
    threshold
        float64 [t, k]; representatives of the thresholds; NaN if there is none.

    Returns
    -------
    first
        int [g]; the first tree of each group.
    index
        int [t]; the group of each tree.
    """
    splits = trees.splits._replace(threshold=np.nan_to_num(threshold))
    keys = [np.take_along_axis(array, trees.preorder, axis=1) for array in splits]
    _, first, index = np.unique(
        np.concatenate(keys, axis=1), axis=0, return_index=True, return_inverse=True
    )
    return first, index.reshape(-1)


def group_by_rows(trees: Tree, matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Group trees that split rows alike, in every node and by the same features.

    Parameters
    ----------
    trees
        Batch [t].
    matrix
        The rows, float64 [n, d]; NaN is missing.

    Returns
    -------
    first, index
        As in `group`.

    Examples
    --------
    >>> trees = Tree.concatenate(
    ...     [
    ...         Tree.from_nested({"feature": 0, "threshold": t, "left": {}, "right": {}}).reshape(1)
    ...         for t in (0.1, 0.9, 1.5)
    ...     ]
    ... )
    >>> group_by_rows(trees, np.array([[0.0], [1.0], [2.0]]))[1]
    array([0, 0, 1])
    """
    matrix = np.asarray(matrix, np.float64)
    greatest = trees.threshold.copy()  # of a tree that resembles no other
    _, kind = group(trees, np.zeros_like(greatest))
    (shared,) = np.nonzero(np.bincount(kind)[kind] > 1)
    chunk = max(1, _PAIRS // max(1, len(matrix)))
    for start in range(0, len(shared), chunk):
        part = shared[start : start + chunk]
        greatest[part] = _greatest_on_the_left(trees[part], matrix)
    return group(trees, greatest)


def group_by_leaves(trees: Tree, matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Group trees whose leaves contain the same sets of rows, in any order of splits.

    Parameters
    ----------
    trees
        Batch [t].
    matrix
        The rows, float64 [n, d]; NaN is missing.

    Returns
    -------
    first, index
        As in `group`.

    Examples
    --------
    >>> def stump(feature):
    ...     return Tree.from_nested({"feature": feature, "threshold": 1, "left": {}, "right": {}})
    >>> trees = Tree.concatenate([stump(0).reshape(1), stump(1).reshape(1)])
    >>> group_by_leaves(trees, np.array([[0.0, 5.0], [2.0, 0.0]]))[1]
    array([0, 0])
    """
    num_trees, num_rows = len(trees.num_nodes), len(matrix)
    row, keys = np.arange(num_rows), []
    chunk = max(1, _PAIRS // max(num_rows, trees.capacity))
    for start in range(0, num_trees, chunk):
        slots = route(trees[start : start + chunk], matrix)
        # Leaves are named by their first rows, whatever their slots are.
        named = np.full((len(slots), trees.capacity), num_rows)
        np.minimum.at(named, (np.arange(len(slots))[:, None], slots), row)
        keys += [
            blake2b(each.tobytes(), digest_size=16).hexdigest()
            for each in np.take_along_axis(named, slots, axis=1)
        ]
    _, first, index = np.unique(keys, return_index=True, return_inverse=True)
    return first, index.reshape(-1)


def _greatest_on_the_left(trees: Tree, matrix: np.ndarray) -> np.ndarray:
    """Return the greatest value of the node's rows that goes left at each split, float64 [t, k]."""
    num_trees, capacity = trees.feature.shape
    greatest = np.full((num_trees, capacity), -np.inf)
    tree, row = np.divmod(np.arange(num_trees * len(matrix)), max(1, len(matrix)))
    slot = np.zeros_like(tree)
    while len(tree):
        goes_on = trees.feature[tree, slot] >= 0
        tree, row, slot = (a[goes_on] for a in (tree, row, slot))
        split = trees.split(tree, slot)
        value = matrix[row, split.feature]
        is_left = split.goes_left(value)
        known = is_left & ~np.isnan(value)
        np.maximum.at(greatest, (tree[known], slot[known]), value[known])
        slot = np.where(is_left, trees.left[tree, slot], trees.right[tree, slot])
    return np.where(trees.feature >= 0, greatest, np.nan)
