"""Exact predictions for new rows, by the recursion itself.

The posterior predictive of a row is a mixture over the leaves that its path can end in. The weight
of a leaf is the probability that the path of a tree from the posterior reaches it and stops, and
these weights are computed from the root down: a node passes its probability to the children on the
row's side of each of its productions (Sullivan et al. 2023, section 5.5). No tree is drawn.

Rows that every rule treats alike are followed once, and sparsely: branches of negligible
probability are dropped, with at most 1e-9 of a row's probability in total.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numba
import numpy as np
from scipy.sparse import csr_array

from bdtppl.inference.hard.mixture import PiecedMixture, leaf_means
from bdtppl.inference.pcfg.grammar import Grammar
from bdtppl.inference.pcfg.sides import Sides
from bdtppl.models.arrays.precision import in_float64
from bdtppl.models.arrays.threads import in_threads
from bdtppl.models.hard.tree import Tree, route
from bdtppl.models.leaf import Leaf

DEPTH_NEGLIGIBLE = 1e-13  # rows are not followed to depths with fewer expected nodes

_MOST_LOST = 1e-9
_NEGLIGIBLE = 1e-12  # initial least probability of a node
_SLIGHT = 0.1  # multiple of that: least probability of a production
_TOGETHER = 8  # rows that one walk follows: their probabilities at a node are one cache line
_ROWS_A_THREAD = 256  # rows followed by one thread before the next ones


@dataclass(frozen=True)
class LeafWeights:
    """Finds the leaves of rows.

    A row has a place on each feature, one for all values that no rule distinguishes.

    Attributes
    ----------
    grammar
        The grammar.
    sides
        The sides of rows at its productions.
    """

    grammar: Grammar
    sides: Sides

    @cached_property
    def _features(self) -> np.ndarray:
        """Return features that some production splits on."""
        return np.unique(self.sides.feature[: self.grammar.num_productions])

    @cached_property
    def _thresholds(self) -> list[np.ndarray]:
        """Return distinct thresholds on each of these features; unused if gaps have many cuts."""
        feature, threshold = self.sides.feature[:-1], self.sides.threshold[:-1]
        return [np.unique(threshold[feature == own]) for own in self._features]

    def places(self, matrix: np.ndarray, codes: np.ndarray) -> np.ndarray:
        """Return places of rows [m, d] on the features that are split on, int32; -1 if missing."""
        if self.sides.num_cuts is not None:
            return np.ascontiguousarray(codes[:, self._features], np.int32)
        places = np.empty((len(matrix), len(self._features)), np.int32)
        for at, (feature, thresholds) in enumerate(
            zip(self._features, self._thresholds, strict=True)
        ):
            values = matrix[:, feature]
            places[:, at] = np.searchsorted(thresholds, values, side="right")
            places[np.isnan(values), at] = -1
        return places

    def leaf_weights(self, matrix: np.ndarray, places: np.ndarray) -> csr_array:
        """Return the probability that rows [m, d] end in each subproblem, sparse [m, N]."""
        raise NotImplementedError

    def means(self, matrix: np.ndarray, places: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Return the mean of leaves' values [N, c] for rows [m, d], float64 [m, c]."""
        return self.leaf_weights(matrix, places) @ values


@dataclass(frozen=True)
class SampledPaths(LeafWeights):
    """Follows new rows through sampled trees; rows like a training row end in its leaves.

    Attributes
    ----------
    leaf_probability
        float64 [N]; probability that a tree has a subproblem as a leaf.
    trees
        `Tree` batch [b].
    slot_nodes
        int32 [b, k]; subproblem in each slot of the trees.
    """

    leaf_probability: np.ndarray
    trees: Tree
    slot_nodes: np.ndarray

    @cached_property
    def _cell_of_place(self) -> dict[bytes, int]:
        design = self.grammar.design
        places = self.places(design.matrix, design.codes)
        cells = self.grammar.cell_of_row.tolist()
        return {place.tobytes(): cell for place, cell in zip(places, cells, strict=True)}

    def leaf_weights(self, matrix: np.ndarray, places: np.ndarray) -> csr_array:
        """Return the probability that rows [m, d] end in each subproblem, sparse [m, N]."""
        cells = np.array([self._cell_of_place.get(place.tobytes(), -1) for place in places])
        new = np.flatnonzero(cells < 0)
        parts = [self._known_row(row, cell) for row, cell in enumerate(cells.tolist()) if cell >= 0]
        if len(new):
            parts.append(self._new_rows(new, matrix[new]))
        row, node, weight = (np.concatenate(part) for part in zip(*parts, strict=True))
        return csr_array((weight, (row, node)), (len(matrix), self.grammar.num_subproblems))

    def _known_row(self, row: int, cell: int) -> tuple[np.ndarray, ...]:
        """Return leaves that contain a training cell, as (row, node, weight) triples."""
        likely = np.flatnonzero(self.leaf_probability > _MOST_LOST / len(self.leaf_probability))
        bit = np.uint64(1) << np.uint64(cell % 64)
        node = likely[(self.grammar.members[likely, cell // 64] & bit) != 0]
        weight = self.leaf_probability[node]
        return np.full(len(node), row), node, weight / weight.sum()

    def _new_rows(self, rows: np.ndarray, matrix: np.ndarray) -> tuple[np.ndarray, ...]:
        node = np.take_along_axis(self.slot_nodes, route(self.trees, matrix), axis=1)
        flat = np.arange(len(matrix))[None] * self.grammar.num_subproblems + node
        reached, count = np.unique(flat, return_counts=True)
        row, node = np.divmod(reached, self.grammar.num_subproblems)
        return rows[row], node, count / len(self.slot_nodes)


@dataclass(frozen=True)
class PathWeights(LeafWeights):
    """Follows new rows through a scored grammar.

    Attributes
    ----------
    stop
        float64 [N, D]; probability that a subproblem at a depth is a leaf, for the D followed
        depths, or for any depth if D is 1 and the prior does not depend on it.
    use
        float64 [D, E]; probability that its parent at a depth uses a production.
    """

    stop: np.ndarray
    use: np.ndarray

    @cached_property
    def _steps(self) -> "_Steps":
        """Return for each production which places go left: all of them, or a share of its cuts."""
        grammar, sides = self.grammar, self.sides
        feature = np.searchsorted(self._features, sides.feature[:-1])
        if sides.num_cuts is None:
            low, num_cuts = np.empty_like(feature), np.ones(len(feature))
            for at, thresholds in enumerate(self._thresholds):
                own = feature == at
                low[own] = np.searchsorted(thresholds, sides.threshold[:-1][own])
        else:
            low, num_cuts = sides.low[:-1], sides.num_cuts[:-1].astype(np.float64)
        return _Steps(
            grammar.first_production.astype(np.int64),
            grammar.left,
            grammar.right,
            feature.astype(np.int32),
            low.astype(np.int32),
            num_cuts,
            sides.least[:-1],
            grammar.height.astype(np.int32),
            np.ascontiguousarray(self.stop),  # one compiled version
            self.use,
        )

    def leaf_weights(self, matrix: np.ndarray, places: np.ndarray) -> csr_array:
        """Return the probability that rows [m, d] end in each subproblem, sparse [m, N]."""

        def follow(rows: slice) -> tuple[np.ndarray, ...]:
            return _list_leaves(self._steps, places[rows], _NEGLIGIBLE, _MOST_LOST)

        counts, node, weight = (
            np.concatenate(part) for part in zip(*self._in_pieces(follow, places), strict=True)
        )
        pointers = np.append(0, np.cumsum(counts))
        shape = len(places), self.grammar.num_subproblems
        weights = csr_array((weight, node, pointers), shape)
        weights.sum_duplicates()
        return weights

    def means(self, matrix: np.ndarray, places: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Return the mean of leaves' values [N, c] for rows [m, d], float64 [m, c]."""
        result = np.zeros((len(places), values.shape[1]))

        def follow(rows: slice) -> None:
            _sum_leaves(self._steps, places[rows], _NEGLIGIBLE, _MOST_LOST, values, result[rows])

        self._in_pieces(follow, places)
        return result

    def _in_pieces(self, follow: Any, places: np.ndarray) -> list:
        starts = range(0, len(places), _ROWS_A_THREAD)
        pieces = [slice(start, start + _ROWS_A_THREAD) for start in starts]
        return in_threads(follow, pieces, _ROWS_A_THREAD * self.grammar.num_subproblems)


class ChartMixture(PiecedMixture):
    """Predictive of m rows; rows that every rule treats alike are of one kind.

    Parameters
    ----------
    leaf
        Leaf family.
    statistics
        float64 [N, s]; statistics of all subproblems.
    paths
        Finds leaves.
    matrix, codes
        The rows [m, d].
    """

    def __init__(
        self,
        leaf: Leaf,
        statistics: np.ndarray,
        paths: LeafWeights,
        matrix: np.ndarray,
        codes: np.ndarray,
    ):
        places = paths.places(matrix, codes)
        # Without rules there are no places, and there is one kind of rows.
        keyed = places if places.shape[1] else np.zeros((len(places), 1), np.int32)
        _, first, kind = np.unique(keyed, axis=0, return_index=True, return_inverse=True)
        super().__init__(leaf, kind.ravel(), len(first))
        vars(self).update(
            statistics=statistics, _paths=paths, _matrix=matrix[first], _places=places[first]
        )

    _paths: LeafWeights
    _matrix: np.ndarray
    _places: np.ndarray

    def _weights_of(self, kinds: slice) -> csr_array:
        return self._paths.leaf_weights(self._matrix[kinds], self._places[kinds])

    @in_float64
    def mean(self) -> np.ndarray:
        """Return the predictive mean [m], or class probabilities [m, c]."""
        means = leaf_means(self.leaf, self.statistics)
        values = means.reshape(len(means), -1)
        found = self._paths.means(self._matrix, self._places, values)
        return found.reshape(-1, *means.shape[1:])[self.kind]


class _Steps(NamedTuple):
    """A scored grammar as input of a compiled walk; N subproblems, E productions, D depths.

    Attributes
    ----------
    first
        int64 [N + 1]; productions of each subproblem.
    left, right
        int32 [E].
    feature
        int32 [E]; feature among those that are split on.
    low, num_cuts
        int32 and float64 [E]; places up to ``low`` go left under all cuts of the production, later
        ones under one cut less for each.
    least
        int32 [E]; 0 if missing values (-1) go right, else -1.
    height
        int32 [N].
    stop, use
        float64 [N, D] and [D, E].
    """

    first: np.ndarray
    left: np.ndarray
    right: np.ndarray
    feature: np.ndarray
    low: np.ndarray
    num_cuts: np.ndarray
    least: np.ndarray
    height: np.ndarray
    stop: np.ndarray
    use: np.ndarray


@numba.njit(cache=True, nogil=True)
def _scratch(steps):
    """Make the workspace of walks, which each walk resets; B rows, S stages.

    Returns the probability at nodes, float64 [2 N, B], by the parity of the depth if depth matters;
    the next node of the same stage, int32 [2 N], -2 if a node was not reached; and the first node
    of each stage, int32 [S], -1 if there is none.
    """
    num_nodes, num_levels = steps.stop.shape
    num_stages = num_levels if num_levels > 1 else steps.height[-1] + 1
    length = num_nodes * (2 if num_levels > 1 else 1)
    return (
        np.zeros((length, _TOGETHER)),
        np.full(length, -2, np.int32),
        np.full(num_stages, -1, np.int32),
    )


@numba.njit(cache=True, nogil=True)
def _walk(steps, scratch, places, negligible, nodes, weights, lost):
    """Follow rows with places [F, B]; write the dropped probability to ``lost`` [B].

    Stages are depths, or heights from the tallest down: a subproblem's parents are all taller.
    Returns buffers of leaves and probabilities [leaves, B], and the number of leaves.
    """
    reached, after, head = scratch
    num_nodes, num_levels = steps.stop.shape
    has_levels, last = num_levels > 1, len(head) - 1
    first, left, right, height = steps.first, steps.left, steps.right, steps.height
    feature, low, num_cuts, least = steps.feature, steps.low, steps.num_cuts, steps.least
    stop, use = steps.stop, steps.use
    weight, share = np.empty(_TOGETHER), np.empty(_TOGETHER)
    count = 0
    lost[:] = 0.0
    reached[num_nodes - 1] = 1.0
    after[num_nodes - 1], head[0] = -1, num_nodes - 1
    for stage in range(last + 1):
        level = stage if has_levels else 0
        here = num_nodes if level & 1 else 0
        below = num_nodes - here if has_levels else 0
        node = head[stage]
        head[stage] = -1
        while node >= 0:
            at, place = node, here + node
            node, after[place] = after[place], -2
            most = 0.0
            for b in range(_TOGETHER):
                weight[b] = reached[place, b]
                reached[place, b] = 0.0
                most = max(most, weight[b])
            if most <= negligible:
                for b in range(_TOGETHER):
                    lost[b] += weight[b]
                continue
            if stop[at, level] > 0:
                if count == len(nodes):
                    nodes = np.concatenate((nodes, np.empty_like(nodes)))
                    weights = np.concatenate((weights, np.empty_like(weights)))
                nodes[count] = at
                for b in range(_TOGETHER):
                    weights[count, b] = weight[b] * stop[at, level]
                count += 1
            if has_levels and stage == last:
                continue
            for production in range(first[at], first[at + 1]):
                part = use[level, production]
                if most * part <= _SLIGHT * negligible:
                    for b in range(_TOGETHER):
                        lost[b] += weight[b] * part
                    continue
                f, start, none = feature[production], low[production], least[production]
                per_cut = 1.0 / num_cuts[production]
                num_left = num_right = 0
                for b in range(_TOGETHER):
                    code = places[f, b]
                    goes_left = min(max(1.0 - (code - start) * per_cut, 0.0), 1.0)
                    share[b] = 0.0 if code < none else goes_left
                    num_left += share[b] > 0.0
                    num_right += share[b] < 1.0
                if num_left > 0:
                    child = left[production]
                    target = below + child
                    if after[target] == -2:
                        its = stage + 1 if has_levels else last - height[child]
                        after[target], head[its] = head[its], child
                    for b in range(_TOGETHER):
                        reached[target, b] += weight[b] * part * share[b]
                if num_right > 0:
                    child = right[production]
                    target = below + child
                    if after[target] == -2:
                        its = stage + 1 if has_levels else last - height[child]
                        after[target], head[its] = head[its], child
                    for b in range(_TOGETHER):
                        reached[target, b] += weight[b] * part * (1.0 - share[b])
    return nodes, weights, count


@numba.njit(cache=True, nogil=True)
def _leaves_of(steps, scratch, places, start, negligible, most_lost, nodes, weights):
    """Follow rows [m, F] from ``start`` on until little is lost; probabilities sum to one."""
    own = np.empty((places.shape[1], _TOGETHER), np.int32)
    for b in range(_TOGETHER):
        own[:, b] = places[min(start + b, len(places) - 1)]
    lost, count = np.full(_TOGETHER, np.inf), 0
    while lost.max() > most_lost:
        nodes, weights, count = _walk(steps, scratch, own, negligible, nodes, weights, lost)
        negligible /= 100
    for b in range(_TOGETHER):
        weights[:count, b] /= weights[:count, b].sum()
    return nodes, weights, count


@numba.njit(cache=True, nogil=True)
def _sum_leaves(steps, places, negligible, most_lost, values, result):
    """Add the mean of leaves' values [N, c] to results [m, c]."""
    scratch = _scratch(steps)
    nodes, weights = np.empty(64, np.int64), np.empty((64, _TOGETHER))
    for start in range(0, len(places), _TOGETHER):
        nodes, weights, count = _leaves_of(
            steps, scratch, places, start, negligible, most_lost, nodes, weights
        )
        for i in range(count):
            for b in range(min(_TOGETHER, len(places) - start)):
                for c in range(values.shape[1]):
                    result[start + b, c] += weights[i, b] * values[nodes[i], c]


@numba.njit(cache=True, nogil=True)
def _list_leaves(steps, places, negligible, most_lost):
    """List the number of leaves of each row, and all leaves and their probabilities."""
    scratch = _scratch(steps)
    counts, end = np.zeros(len(places), np.int64), 0
    all_nodes, all_weights = np.empty(1024, np.int64), np.empty(1024)
    nodes, weights = np.empty(64, np.int64), np.empty((64, _TOGETHER))
    for start in range(0, len(places), _TOGETHER):
        nodes, weights, count = _leaves_of(
            steps, scratch, places, start, negligible, most_lost, nodes, weights
        )
        for b in range(min(_TOGETHER, len(places) - start)):
            if end + count > len(all_nodes):
                more = len(all_nodes) + count
                all_nodes = np.concatenate((all_nodes, np.empty(more, np.int64)))
                all_weights = np.concatenate((all_weights, np.empty(more)))
            for i in range(count):
                if weights[i, b] > 0.0:
                    all_nodes[end], all_weights[end] = nodes[i], weights[i, b]
                    counts[start + b] += 1
                    end += 1
    return counts, all_nodes[:end].copy(), all_weights[:end].copy()
