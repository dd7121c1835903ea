"""Exact predictions for new rows, by the recursion itself.

The posterior predictive of a row is a mixture over the leaves that its path can end in. The weight
of a leaf is the probability that the path of a tree from the posterior reaches it and stops, and
these weights are computed from the root down: a node passes its probability to the children on the
row's side of each of its productions (Sullivan et al. 2023, section 5.5). No tree is drawn.

A row that every rule treats like some training row needs no recursion: it ends in the leaf of that
row, so its weights are the posterior probabilities of the leaves that hold that row. Other rows are
followed sparsely. Branches of negligible probability are dropped; in sum they hold at most 1e-9 of
a row's probability.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from scipy.sparse import csr_array

from bdtppl.inference.pcfg.grammar import Grammar
from bdtppl.inference.pcfg.sides import Sides
from bdtppl.models.hard.tree import Tree, route

__all__ = ["DEPTH_NEGLIGIBLE", "LeafWeights", "PathWeights", "SampledPaths"]

DEPTH_NEGLIGIBLE = 1e-13  # rows are not followed to depths with fewer expected nodes

_MOST_LOST = 1e-9
_ROW_ENTRIES = 1 << 22  # node-by-row entries followed at once


@dataclass(frozen=True)
class LeafWeights:
    """Finds the leaves of rows; subclasses follow rows unlike any training row.

    Attributes
    ----------
    grammar
        The grammar.
    sides
        Where its productions send rows.
    leaf_probability
        float64 [N]; probability that a tree has a subproblem as a leaf.
    """

    grammar: Grammar
    sides: Sides
    leaf_probability: np.ndarray

    @cached_property
    def _split_features(self) -> np.ndarray:
        """Features that some production splits on."""
        return np.unique(self.sides.feature[: self.grammar.num_productions])

    @cached_property
    def _cell_of_codes(self) -> dict[bytes, int]:
        """Cell with given codes of the features that matter."""
        codes = self.grammar.design.codes[:, self._split_features]
        return {
            row.tobytes(): cell
            for row, cell in zip(codes, self.grammar.cell_of_row.tolist(), strict=True)
        }

    def _cells(self, matrix: np.ndarray, codes: np.ndarray) -> np.ndarray:
        """Cell of training rows that every rule treats like each new row, int [m]; -1 if none."""
        features = self._split_features
        alike = np.ones(len(matrix), bool)
        if self.grammar.rules == "gaps":
            codes = codes.copy()
            for feature in features:
                codes[:, feature], inside = self.grammar.design.nearest_code(
                    matrix[:, feature], feature
                )
                # The gap of a value between two codes depends on the node; but with a single
                # feature nodes are unbroken runs of codes.
                alike &= inside | (len(features) == 1)
        keys = np.ascontiguousarray(codes[:, features])
        cells = [self._cell_of_codes.get(key.tobytes(), -1) for key in keys]
        return np.where(alike, cells, -1)

    def leaf_weights(self, matrix: np.ndarray, codes: np.ndarray) -> tuple[csr_array, np.ndarray]:
        """Probability of ending in each subproblem, for rows [m, d].

        Returns
        -------
        weights
            Sparse float64 [u, N]; one row for each kind of rows.
        kind
            int [m]; rows that every rule treats alike are of one kind.
        """
        cells = self._cells(matrix, codes)
        known, kind = np.unique(cells, return_inverse=True)
        parts = [self._known_cells(known[known >= 0])]
        num_kinds = int((known >= 0).sum())
        kind = kind - (len(known) - num_kinds)
        new = np.flatnonzero(cells < 0)
        if len(new):
            _, first, kind_of_new = np.unique(
                matrix[new].view(np.uint64), axis=0, return_index=True, return_inverse=True
            )
            row, node, weight = self._new_rows(matrix[new[first]], codes[new[first]])
            parts.append((row + num_kinds, node, weight))
            kind[new] = num_kinds + kind_of_new.ravel()
            num_kinds += len(first)
        row, node, weight = (np.concatenate(part) for part in zip(*parts, strict=True))
        shape = num_kinds, self.grammar.num_subproblems
        return csr_array((weight, (row, node)), shape=shape), kind

    def _known_cells(self, cells: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Leaves that hold each of some training cells, as (place, node, weight) triples."""
        likely = np.flatnonzero(self.leaf_probability > _MOST_LOST / len(self.leaf_probability))
        members = self.grammar.members[likely]
        triples = [(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))]
        for place, cell in enumerate(cells):
            bit = np.uint64(1) << np.uint64(cell % 64)
            node = likely[(members[:, cell // 64] & bit) != 0]
            weight = self.leaf_probability[node]
            triples.append((np.full(len(node), place), node, weight / weight.sum()))
        place, node, weight = (np.concatenate(part) for part in zip(*triples, strict=True))
        return place, node, weight

    def _new_rows(self, matrix: np.ndarray, codes: np.ndarray) -> tuple[np.ndarray, ...]:
        """Leaves of rows unlike any training row, as (row, node, weight) triples."""
        raise NotImplementedError


@dataclass(frozen=True)
class SampledPaths(LeafWeights):
    """Follows new rows through sampled trees.

    Attributes
    ----------
    trees
        `Tree` batch [b].
    slot_nodes
        int32 [b, k]; subproblem in each slot of the trees.
    """

    trees: Tree
    slot_nodes: np.ndarray

    def _new_rows(self, matrix: np.ndarray, codes: np.ndarray):
        node = np.take_along_axis(self.slot_nodes, route(self.trees, matrix), axis=1)
        flat = np.arange(len(matrix))[None] * self.grammar.num_subproblems + node
        reached, count = np.unique(flat, return_counts=True)
        row, node = np.divmod(reached, self.grammar.num_subproblems)
        return row, node, count / len(self.slot_nodes)


@dataclass(frozen=True)
class PathWeights(LeafWeights):
    """Follows new rows through a scored grammar.

    Attributes
    ----------
    stop
        float64 [N, D]; probability that a subproblem at a depth is a leaf; at the D depths that
        are followed, or at any where D is 1 and the prior does not depend on it.
    use
        float64 [D, E]; probability that its parent at a depth uses a production.
    """

    stop: np.ndarray
    use: np.ndarray

    def _new_rows(self, matrix: np.ndarray, codes: np.ndarray):
        num_nodes = self.grammar.num_subproblems
        chunk = max(1, min(32, _ROW_ENTRIES // num_nodes))

        def follow(start: int):
            rows = slice(start, start + chunk)
            num_rows = len(matrix[rows])
            negligible, lost = 1e-12, np.inf
            while lost > _MOST_LOST:
                row, node, weight = self._follow(matrix[rows], codes[rows], negligible)
                total = np.bincount(row, weight, minlength=num_rows)
                lost = (1 - total).max()
                negligible /= 100
            return row + start, node, weight / total[row]

        with ThreadPoolExecutor(os.cpu_count()) as workers:
            parts = list(workers.map(follow, range(0, len(matrix), chunk)))
        return tuple(np.concatenate(part) for part in zip(*parts, strict=True))

    def _follow(self, matrix, codes, negligible):
        """Leaves of some rows, as (row, node, weight) triples."""
        grammar, (num_nodes, num_levels) = self.grammar, self.stop.shape
        num_rows = len(matrix)
        reached = np.zeros(num_nodes * num_rows)
        reached[grammar.root * num_rows : (grammar.root + 1) * num_rows] = 1.0
        ends = []
        if num_levels > 1:
            stages = [(0, num_nodes, level) for level in range(num_levels)]
        else:
            # From the tallest down: a subproblem's parents are all taller.
            bounds = np.searchsorted(grammar.height, np.arange(int(grammar.height[-1]) + 2))
            stages = [(a, b, 0) for a, b in pairwise(bounds)][::-1]
        for begin, end, level in stages:
            here = np.flatnonzero(reached[begin * num_rows : end * num_rows] > negligible)
            here += begin * num_rows
            weight = reached[here]
            if num_levels > 1:
                reached[:] = 0.0
            node, row = np.divmod(here, num_rows)
            ends.append((row, node, weight * self.stop[node, level]))
            if num_levels == 1 or level < num_levels - 1:
                self._hand_on(node, row, weight, level, matrix, codes, reached)
        row, node, weight = (np.concatenate(part) for part in zip(*ends, strict=True))
        kept = weight > 0
        return row[kept], node[kept], weight[kept]

    def _hand_on(self, node, row, weight, level, matrix, codes, reached) -> None:
        """Add what nodes pass to their children to ``reached``, flat [N, rows]."""
        grammar, sides = self.grammar, self.sides
        first = grammar.first_production[node]
        counts = grammar.first_production[node + 1] - first
        # Position of each production in the run of all productions of all nodes.
        shift = np.repeat(first - (np.cumsum(counts) - counts), counts)
        production = shift + np.arange(len(shift))
        at = np.repeat(row, counts)
        passed = np.repeat(weight, counts) * self.use[level].take(production)
        flat = at * matrix.shape[1] + sides.feature.take(production)
        share = sides.left_share(np, production, matrix.take(flat), codes.take(flat))
        for child, part in ((grammar.left, share), (grammar.right, 1 - share)):
            used = np.flatnonzero(part)
            target = child.take(production.take(used)) * np.int64(len(matrix)) + at.take(used)
            np.add.at(reached, target, (passed * part).take(used))
