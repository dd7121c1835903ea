"""Topologies of soft trees: full binary trees whose splits have no feature or threshold yet.

A topology is written as the codes of its nodes in preorder (a node, its left subtree, its right
subtree), 1 for a split and 0 for a leaf: ``"10100"`` splits the root and its right child. No two
topologies have the same code, and no code is a prefix of another. Splits and leaves are numbered in
this order.

References
----------
Chipman, George and McCulloch 1998 (the prior); Cochrane, Wills and Johnson 2024, Divide, Conquer,
Combine Bayesian Decision Tree Sampling, sections 2.3 and 3.2.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from bdtppl.models.pytrees import require

# Relative probabilities of the moves that Cochrane et al.'s program makes.
DEFAULT_MOVES: Mapping[str, float] = {"grow": 0.6, "prune": 0.3, "stay": 0.1}

_ENDLESS = 10_000  # splits


@dataclass(frozen=True, order=True)
class Topology:
    """A full binary shape; n splits, n + 1 leaves.

    Attributes
    ----------
    code
        Preorder code, which identifies the shape.

    Raises
    ------
    ValueError
        If the code is not that of one tree.

    Examples
    --------
    >>> chain = Topology("11000")
    >>> chain.num_splits, chain.mirrored.code, chain.depth
    (2, '10100', 2)
    >>> chain.paths.tolist()
    [[1, 1], [1, -1], [-1, 0]]
    """

    code: str = "0"

    def __post_init__(self):
        if not isinstance(self.code, str) or set(self.code) - {"0", "1"}:
            raise ValueError(f"code must be a string of 0 and 1; got {self.code!r}.")
        waiting = 1  # open nodes
        for place, node in enumerate(self.code):
            if not waiting:
                raise ValueError(f"code {self.code!r} continues after the tree's end, at {place}.")
            waiting += 1 if node == "1" else -1
        if waiting:
            raise ValueError(f"code {self.code!r} ends before the tree does.")

    @property
    def num_splits(self) -> int:
        """Number of splits n."""
        return len(self.code) // 2

    @property
    def num_leaves(self) -> int:
        """Number of leaves n + 1."""
        return self.num_splits + 1

    @cached_property
    def _spans(self) -> tuple[tuple[int, int], ...]:
        """Return the end of each node's subtree, and its depth, in preorder."""
        ends, depths = [0] * len(self.code), [0] * len(self.code)
        for start in reversed(range(len(self.code))):
            is_split = self.code[start] == "1"
            ends[start] = ends[ends[start + 1]] if is_split else start + 1
        for start, node in enumerate(self.code):
            if node == "1":
                depths[start + 1] = depths[ends[start + 1]] = depths[start] + 1
        return tuple(zip(ends, depths, strict=True))

    @property
    def children(self) -> tuple["Topology", "Topology"]:
        """Return the subtrees left and right of the root, which must be a split."""
        middle = self._spans[1][0]
        return Topology(self.code[1:middle]), Topology(self.code[middle:])

    @property
    def depth(self) -> int:
        """Levels of splits."""
        return max(depth for _, depth in self._spans)

    @cached_property
    def split_depths(self) -> np.ndarray:
        """Splits above each split, int32 [n]."""
        return self._depths("1")

    @cached_property
    def leaf_depths(self) -> np.ndarray:
        """Splits above each leaf, int32 [n + 1]."""
        return self._depths("0")

    def _depths(self, kind: str) -> np.ndarray:
        pairs = zip(self.code, self._spans, strict=True)
        return np.array([depth for node, (_, depth) in pairs if node == kind], np.int32)

    @cached_property
    def paths(self) -> np.ndarray:
        """Side of each split that each leaf is on, int8 [n + 1, n]: 1 left, -1 right, else 0."""
        paths = np.zeros((self.num_leaves, self.num_splits), np.int8)
        before = np.cumsum([0, *(node == "0" for node in self.code)])  # leaves before each node
        splits = [place for place, node in enumerate(self.code) if node == "1"]
        for split, place in enumerate(splits):
            middle, end = self._spans[place + 1][0], self._spans[place][0]
            paths[before[place] : before[middle], split] = 1
            paths[before[middle] : before[end], split] = -1
        return paths

    @property
    def mirrored(self) -> "Topology":
        """Return the shape with left and right exchanged at every split."""
        if self.code == "0":
            return self
        left, right = self.children
        return Topology("1" + right.mirrored.code + left.mirrored.code)

    @cached_property
    def unordered_code(self) -> str:
        """Return the greatest code among all shapes that differ by exchanges of sides.

        These shapes are separate models (directions of soft splits are on the simplex, so they
        cannot be reversed), but with hard splits they have the same partitions of the inputs.
        """
        if self.code == "0":
            return self.code
        return "1" + "".join(sorted((c.unordered_code for c in self.children), reverse=True))

    def grown(self) -> Iterator["Topology"]:
        """Yield the shapes with one leaf split, in the order of the leaves."""
        for place, node in enumerate(self.code):
            if node == "0":
                yield Topology(self.code[:place] + "100" + self.code[place + 1 :])

    def pruned(self) -> Iterator["Topology"]:
        """Yield the shapes with one split of two leaves made a leaf, in the splits' order."""
        place = self.code.find("100")
        while place >= 0:
            yield Topology(self.code[:place] + "0" + self.code[place + 3 :])
            place = self.code.find("100", place + 1)


def neighbours(
    topology: Topology, *, moves: Mapping[str, float] = DEFAULT_MOVES, max_splits: int | None = None
) -> dict[Topology, float]:
    """List the next states of the random walk over topologies, with probabilities.

    A step grows a uniform leaf, prunes a uniform split of two leaves, or stays. Impossible moves (a
    single leaf has nothing to prune) are excluded, and the others renormalised.

    Parameters
    ----------
    topology
        State of the walk.
    moves
        Relative probabilities of "grow", "prune" and "stay".
    max_splits
        Most splits; None for no limit.

    Raises
    ------
    ValueError
        If a move is unknown, a probability is negative, or no move is possible.

    Examples
    --------
    >>> shapes = neighbours(Topology("100"), moves={"grow": 1, "prune": 1})
    >>> for shape, probability in shapes.items():
    ...     print(shape.code, probability)
    11000 0.25
    10100 0.25
    0 0.5
    """
    for name, weight in moves.items():
        if name not in DEFAULT_MOVES:
            raise ValueError(f"moves must name some of {', '.join(DEFAULT_MOVES)}; got {name!r}.")
        if not weight >= 0:
            raise ValueError(f"moves must have probabilities of at least 0; got {dict(moves)!r}.")
    may_grow = max_splits is None or topology.num_splits < max_splits
    ways = {
        "grow": list(topology.grown()) if may_grow else [],
        "prune": list(topology.pruned()),
        "stay": [topology],
    }
    total = sum(moves.get(name, 0) for name, own in ways.items() if own)
    if not total > 0:
        raise ValueError(f"No move of {dict(moves)!r} can be made from {topology.code!r}.")
    shares = {  # each shape is generated once
        shape: moves.get(name, 0) / total / len(shapes)
        for name, shapes in ways.items()
        for shape in shapes
    }
    return {shape: share for shape, share in shares.items() if share > 0}


def require_max_splits(value: Any) -> None:
    """Raise ValueError unless a limit of splits is None or an integer of at least 0."""
    is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if value is not None and not (is_integer and value >= 0):
        raise ValueError(f"max_splits must be None or an integer of at least 0; got {value!r}.")


def topologies(num_splits: int) -> list[Topology]:
    """List all shapes with a number of splits, in the order of their codes.

    Examples
    --------
    >>> [len(topologies(n)) for n in range(6)]  # Catalan numbers
    [1, 1, 2, 5, 14, 42]
    """
    if num_splits == 0:
        return [Topology()]
    return sorted(
        Topology("1" + left.code + right.code)
        for on_left in range(num_splits)
        for left in topologies(on_left)
        for right in topologies(num_splits - 1 - on_left)
    )


@dataclass(frozen=True)
class TopologyPrior:
    """Split probability alpha (1 + depth)^(-beta) at each node (equation 6).

    Unlike `bdtppl.models.priors.DepthDecay` it does not depend on features, cuts or data. It is a
    distribution of shapes alone, whose probabilities sum to 1 (except for infinite trees, if beta
    is 0 and alpha above 1/2).

    Attributes
    ----------
    alpha
        Probability that the root splits, in (0, 1).
    beta
        Decay with depth, at least 0.

    Examples
    --------
    >>> prior = TopologyPrior(0.95, 1.0)
    >>> round(prior.log_prob(Topology("100")), 6)  # log(.95 x .525^2)
    -1.340007
    """

    alpha: float = 0.95
    beta: float = 1.0

    def __post_init__(self):
        require(lambda a: (a > 0) & (a < 1), "alpha must be in (0, 1); got {}.", self.alpha)
        require(lambda b: b >= 0, "beta must be at least 0; got {}.", self.beta)

    def split_probability(self, depth: np.ndarray | int) -> np.ndarray:
        """Return the probability that a node splits, float64 of the depth's shape."""
        return np.asarray(self.alpha * (1.0 + np.asarray(depth)) ** -self.beta)

    def log_prob(self, topology: Topology) -> float:
        """Return the log probability of a shape."""
        splits = self.split_probability(topology.split_depths)
        leaves = self.split_probability(topology.leaf_depths)
        return float(np.log(splits).sum() + np.log1p(-leaves).sum())

    def log_mass(self, max_splits: int | None = None, *, with_leaf: bool = True) -> float:
        """Return the log probability that a shape is allowed.

        Parameters
        ----------
        max_splits
            Most splits; None for no limit.
        with_leaf
            Whether the shape without a split is allowed.

        Examples
        --------
        >>> prior = TopologyPrior(0.95, 1.0)
        >>> at_most_one = [prior.log_prob(Topology("0")), prior.log_prob(Topology("100"))]
        >>> bool(np.isclose(prior.log_mass(1), np.logaddexp(*at_most_one)))
        True
        """
        leaf = 0.0 if with_leaf else 1.0 - float(self.split_probability(0))
        if max_splits is None:
            return float(np.log1p(-leaf))
        splits = self.split_probability(np.arange(max_splits + 1))
        # Probabilities [k] of k splits in subtrees at a depth, up to the remaining number of
        # splits.
        mass = np.ones(0)
        for left, split in enumerate(splits[::-1]):
            below = np.convolve(mass, mass)[:left] if left else mass
            mass = np.concatenate([[1 - split], split * below])
        return float(np.log(mass.sum() - leaf))

    def sample(self, rng: np.random.Generator, *, max_splits: int | None = None) -> Topology:
        """Draw a shape; reject those with more than ``max_splits`` splits.

        Raises
        ------
        ValueError
            If there is no such limit, and the tree reaches 10,000 splits.
        """
        while True:
            code, waiting, splits = "", [0], 0
            while waiting and (max_splits is None or splits <= max_splits):
                if splits > _ENDLESS:
                    raise ValueError(
                        f"Trees of {self!r} hardly end: set max_splits, or raise beta."
                    )
                depth = waiting.pop()
                is_split = bool(rng.random() < self.split_probability(depth))
                code += "1" if is_split else "0"
                splits += is_split
                waiting += [depth + 1] * (2 * is_split)
            if not waiting and (max_splits is None or splits <= max_splits):
                return Topology(code)
