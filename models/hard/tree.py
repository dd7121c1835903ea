"""Hard trees as plain arrays with batch axes.

A batch of trees is a few arrays of one capacity, so routing rows through one tree or through a
hundred thousand is one compiled call. Slot 0 is the root and every child is in a later slot than
its parent. A row goes left if its value is below the threshold; if the value is missing, the rule
names the side.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numba
import numpy as np

from bdtppl.models.data.splits import Split

_SPLIT = ("feature", "threshold", "left", "right")  # keys that a split must have
_EMPTY_SLOT = {  # value of each array in an unused slot
    "feature": np.int32(-1),
    "threshold": np.float64(np.nan),
    "missing_left": np.False_,
    "left": np.int32(0),
    "right": np.int32(0),
}


@dataclass(frozen=True, eq=False)
class Tree:
    """A batch of binary trees; ``...`` are batch axes, k the capacity in slots.

    Attributes
    ----------
    feature
        int32 [..., k]; feature of the split, -1 in leaves and unused slots.
    threshold
        float64 [..., k]; value < threshold goes left; NaN in leaves and unused slots.
    missing_left
        bool [..., k]; whether a row with a missing value goes left.
    left, right
        int32 [..., k]; slots of the children, 0 in leaves and unused slots.
    num_nodes
        int32 [...]; slots in use, starting at 0.
    """

    feature: np.ndarray
    threshold: np.ndarray
    missing_left: np.ndarray
    left: np.ndarray
    right: np.ndarray
    num_nodes: np.ndarray

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape of the batch axes."""
        return self.num_nodes.shape

    @property
    def capacity(self) -> int:
        """Number of slots k."""
        return self.feature.shape[-1]

    @property
    def num_leaves(self) -> np.ndarray:
        """Number of leaves, int [...]."""
        return (self.num_nodes + 1) // 2

    @property
    def splits(self) -> Split:
        """Splits of all slots, arrays [..., k]."""
        return Split(self.feature, self.threshold, self.missing_left)

    def split(self, *at: Any) -> Split:
        """Return the splits of some slots, by their indices along each axis."""
        return Split(*(array[at] for array in self.splits))

    @property
    def is_used(self) -> np.ndarray:
        """Slots with a node, bool [..., k]."""
        return np.arange(self.capacity) < self.num_nodes[..., None]

    @property
    def is_leaf(self) -> np.ndarray:
        """Slots with a leaf, bool [..., k]."""
        return self.is_used & (self.feature < 0)

    @property
    def node_depth(self) -> np.ndarray:
        """Splits above each slot, int32 [..., k]; 0 in unused slots."""
        flat = self.reshape(-1)
        depth = np.zeros(flat.feature.shape, np.int32)
        tree = np.arange(len(depth))
        slot, level = np.zeros_like(tree), 0
        while len(slot):  # one level at a time
            depth[tree, slot] = level
            splits = flat.feature[tree, slot] >= 0
            tree, slot = tree[splits], slot[splits]
            slot = np.concatenate([flat.left[tree, slot], flat.right[tree, slot]])
            tree, level = np.tile(tree, 2), level + 1
        return depth.reshape(self.feature.shape)

    @property
    def depth(self) -> np.ndarray:
        """Levels of splits, int32 [...]."""
        return self.node_depth.max(axis=-1)

    @property
    def preorder(self) -> np.ndarray:
        """Slots in depth-first order, left before right, int [..., k]; unused slots come last.

        Two trees with different slots are the same if their arrays agree in this order.
        """
        flat = self.reshape(-1)
        size, rank = (np.where(flat.is_used, value, 0) for value in (1, 0))
        splits = [np.flatnonzero(flat.feature[:, slot] >= 0) for slot in range(self.capacity)]
        for slot in reversed(range(self.capacity)):
            own = splits[slot]
            for child in (flat.left, flat.right):
                size[own, slot] += size[own, child[own, slot]]
        for slot, own in enumerate(splits):
            left, right = flat.left[own, slot], flat.right[own, slot]
            rank[own, left] = rank[own, slot] + 1
            rank[own, right] = rank[own, slot] + 1 + size[own, left]
        order = np.argsort(np.where(flat.is_used, rank, self.capacity), axis=1, kind="stable")
        return order.reshape(self.feature.shape)

    def __repr__(self) -> str:
        if self.batch_shape:
            return f"Tree(batch_shape={self.batch_shape}, capacity={self.capacity})"
        names = [f"x{feature}" for feature in range(self.feature.max() + 1)]
        return f"Tree(num_leaves={self.num_leaves})\n{self.rules(names)}"

    def __getitem__(self, index) -> "Tree":
        """Index the batch axes."""
        if not self.batch_shape:
            raise IndexError("A single tree has no batch axis to index.")
        return Tree(**{f.name: np.asarray(getattr(self, f.name)[index]) for f in fields(self)})

    def reshape(self, *batch_shape: int) -> "Tree":
        """Rearrange the batch axes."""
        shape = *batch_shape, self.capacity
        per_slot = (getattr(self, name).reshape(shape) for name in _EMPTY_SLOT)
        return Tree(*per_slot, num_nodes=self.num_nodes.reshape(batch_shape))

    @classmethod
    def empty(cls, num_trees: int, capacity: int) -> "Tree":
        """Allocate a batch [num_trees] for `put` to fill."""
        arrays = (np.empty((num_trees, capacity), each.dtype) for each in _EMPTY_SLOT.values())
        return cls(*arrays, num_nodes=np.empty(num_trees, np.int32))

    @classmethod
    def unused(cls, num_nodes: np.ndarray, capacity: int) -> "Tree":
        """Make a batch of trees of these numbers of nodes, all of which are leaves so far."""
        arrays = (np.full((len(num_nodes), capacity), each) for each in _EMPTY_SLOT.values())
        return cls(*arrays, num_nodes=num_nodes.astype(np.int32))

    @classmethod
    def breadth_first(
        cls, feature: np.ndarray, threshold: np.ndarray, missing_left: np.ndarray
    ) -> "Tree":
        """Lay out splits [..., k]: the j-th one has its children in slots 2 j + 1 and 2 j + 2."""
        is_split = feature >= 0
        left = np.where(is_split, 2 * np.cumsum(is_split, axis=-1) - 1, 0).astype(np.int32)
        num_nodes = np.asarray(1 + 2 * is_split.sum(axis=-1), np.int32)
        return cls(feature, threshold, missing_left, left, left + is_split, num_nodes)

    def put(self, start: int, batch: "Tree") -> None:
        """Write a batch [b] of at most this capacity into the trees from ``start`` on."""
        rows = slice(start, start + len(batch.num_nodes))
        self.num_nodes[rows] = batch.num_nodes
        for name, unused in _EMPTY_SLOT.items():
            own = getattr(self, name)[rows]
            own[:, : batch.capacity] = getattr(batch, name)
            own[:, batch.capacity :] = unused

    @classmethod
    def concatenate(cls, batches: Sequence["Tree"]) -> "Tree":
        """Join batches [b] of any capacities into one."""
        sizes = [len(batch.num_nodes) for batch in batches]
        joined = cls.empty(sum(sizes), max(batch.capacity for batch in batches))
        for start, batch in zip(np.cumsum([0, *sizes]), batches, strict=False):
            joined.put(start, batch)
        return joined

    @classmethod
    def from_nested(cls, nested: dict, capacity: int | None = None) -> "Tree":
        """Build one tree from nested dictionaries.

        A split is ``{"feature": int, "threshold": float, "left": ..., "right": ...}`` and,
        optionally, ``"missing_left": bool``; ``{}`` is a leaf.

        Raises
        ------
        ValueError
            If a node is neither, or there are more nodes than the capacity.

        Examples
        --------
        >>> stump = Tree.from_nested({"feature": 0, "threshold": 0.5, "left": {}, "right": {}})
        >>> int(stump.num_leaves), int(stump.depth)
        (2, 1)
        """
        nodes = [nested]
        for node in nodes:
            _require_node(node)
            nodes += [node["left"], node["right"]] if node else []
        capacity = len(nodes) if capacity is None else capacity
        if capacity < len(nodes):
            raise ValueError(f"The tree has {len(nodes)} nodes; capacity {capacity} is too small.")
        rows = [_EMPTY_SLOT | node for node in nodes] + [_EMPTY_SLOT] * (capacity - len(nodes))
        arrays = (np.array([row[n] for row in rows], _EMPTY_SLOT[n].dtype) for n in Split._fields)
        return cls.breadth_first(*arrays)

    @classmethod
    def from_sklearn(cls, fitted: Any) -> "Tree":
        """Convert the splits of a fitted decision tree of scikit-learn.

        Its rules send value <= threshold to the left, ours value < threshold, so thresholds are
        the next larger numbers. (Its values are rounded to single precision, ours are not.)

        Parameters
        ----------
        fitted
            `DecisionTreeClassifier` or `DecisionTreeRegressor`.

        Raises
        ------
        TypeError
            If it has no tree.

        Examples
        --------
        >>> from sklearn.tree import DecisionTreeClassifier
        >>> fitted = DecisionTreeClassifier().fit([[0.0], [1.0]], [0, 1])
        >>> print(Tree.from_sklearn(fitted).rules(["x"]))
        x < 0.5000000000000001
        x >= 0.5000000000000001
        """
        nodes = getattr(fitted, "tree_", None)
        if nodes is None:
            raise TypeError(f"fitted must be a fitted decision tree; got {type(fitted).__name__}.")
        is_split = nodes.children_left >= 0
        return cls(
            feature=np.where(is_split, nodes.feature, -1).astype(np.int32),
            threshold=np.where(is_split, np.nextafter(nodes.threshold, np.inf), np.nan),
            missing_left=is_split & (nodes.missing_go_to_left > 0),
            left=np.where(is_split, nodes.children_left, 0).astype(np.int32),
            right=np.where(is_split, nodes.children_right, 0).astype(np.int32),
            num_nodes=np.asarray(nodes.node_count, np.int32),
        )

    def to_nested(self) -> dict:
        """Convert one tree to nested dictionaries of JSON types (see `from_nested`)."""
        self._require_single()

        def node(slot: int) -> dict:
            if self.feature[slot] < 0:
                return {}
            children = {"left": node(self.left[slot]), "right": node(self.right[slot])}
            split = self.split(slot)._asdict()
            return {name: value.item() for name, value in split.items()} | children

        return node(0)

    def rules(
        self,
        names: Sequence[str],
        leaf_text: Sequence[str] | None = None,
        *,
        show_missing: Any = None,
        design: Any = None,
        schema: Any = None,
    ) -> str:
        """Write one tree as indented rules.

        Parameters
        ----------
        names
            Feature names.
        leaf_text
            Text for each slot that is a leaf, [k].
        show_missing, design, schema
            See `bdtppl.models.data.splits.Split.text`.

        Examples
        --------
        >>> stump = Tree.from_nested({"feature": 0, "threshold": 0.8, "left": {}, "right": {}})
        >>> print(stump.rules(["petal width"], ["", "setosa", "other"]))
        petal width < 0.8: setosa
        petal width >= 0.8: other
        """
        self._require_single()
        lines: list[str] = []

        def text(slot: int) -> str:
            return "" if leaf_text is None else f": {leaf_text[slot]}"

        def visit(slot: int, indent: int) -> None:
            for is_left, child in ((True, self.left[slot]), (False, self.right[slot])):
                shown = {"show_missing": show_missing, "design": design, "schema": schema}
                condition = self.condition(slot, is_left, names, **shown)
                leaf = self.feature[child] < 0
                lines.append("  " * indent + condition + (text(child) if leaf else ""))
                if not leaf:
                    visit(child, indent + 1)

        if self.feature[0] < 0:
            return "always" + text(0)
        visit(0, 0)
        return "\n".join(lines)

    def condition(self, slot: int, is_left: bool, names: Sequence[str], **shown: Any) -> str:
        """Describe which rows go from a slot of one tree to its left or right child.

        Parameters
        ----------
        slot, is_left
            The slot, and which of its children.
        names
            Feature names.
        **shown
            See `bdtppl.models.data.splits.Split.text`.
        """
        return self.split(slot).text(is_left, names, **shown)

    def _require_single(self) -> None:
        if self.batch_shape:
            raise ValueError(f"One tree is needed; got a batch of shape {self.batch_shape}.")


def _require_node(node: Any) -> None:
    """Raise unless a dictionary is a split or a leaf in the format of `Tree.from_nested`."""
    if not isinstance(node, Mapping):
        raise ValueError(f"A node must be a dictionary, {{}} for a leaf; got {node!r}.")
    if not node:
        return
    for key in node:
        if key not in (*_SPLIT, "missing_left"):
            raise ValueError(f"A split has keys {', '.join(_SPLIT)} and missing_left; got {key!r}.")
    for key in _SPLIT:
        if key not in node:
            raise ValueError(f"A split needs {key!r}; got only {', '.join(node)}.")
    feature, threshold = node["feature"], node["threshold"]
    if not _is_a(int | np.integer, feature) or feature < 0:
        raise ValueError(f"feature must be an integer of at least 0; got {feature!r}.")
    if not _is_a(int | float | np.number, threshold) or np.isnan(threshold):
        raise ValueError(f"threshold must be a number; got {threshold!r}.")


def _is_a(kind: Any, value: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def route(trees: Tree, matrix: np.ndarray) -> np.ndarray:
    """Find the leaf of every row in every tree.

    Parameters
    ----------
    trees
        Batch of trees [...].
    matrix
        float64 [n, d]; NaN is missing.

    Returns
    -------
    numpy.ndarray
        int32 [..., n]; slot of the leaf.
    """
    matrix = np.ascontiguousarray(matrix, np.float64)
    flat = trees.reshape(-1)
    slots = np.empty((len(flat.num_nodes), len(matrix)), np.int32)
    arrays = *flat.splits, flat.left, flat.right, matrix, slots
    _route(*map(np.ascontiguousarray, arrays))
    return slots.reshape(*trees.batch_shape, len(matrix))


@numba.njit(cache=True, nogil=True, boundscheck=True)  # trees may be a user's
def _route(feature, threshold, missing_left, left, right, matrix, slots):
    for tree in range(len(slots)):
        for row in range(len(matrix)):
            slot = 0
            while feature[tree, slot] >= 0:
                at = tree, slot
                value = matrix[row, feature[at]]
                goes_left = missing_left[at] if np.isnan(value) else value < threshold[at]
                slot = left[at] if goes_left else right[at]
            slots[tree, row] = slot
