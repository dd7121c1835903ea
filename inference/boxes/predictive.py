"""Exact predictions from the leaves of boxes.

Every leaf of the posterior is a box on at most as many features as trees have levels. What leaves
predict at a row, times their probabilities, is a sum over sets of features of a function of the
row's codes on these: a table for each set, to which leaves are added by their corners. A row then
costs one look-up a set. What is no mean (quantiles, densities of real targets) is a mixture of
leaves, over a list of them.
"""

from collections.abc import Callable, Iterable
from functools import cached_property

import jax
import numba
import numpy as np
from scipy.sparse import csr_array

from bdtppl.inference.boxes.histograms import CellLayout
from bdtppl.inference.boxes.recursion import Leaves
from bdtppl.inference.draws import draw_uniforms
from bdtppl.inference.hard.mixture import PiecedMixture
from bdtppl.models.arrays.threads import in_threads
from bdtppl.models.leaves import Leaf

__all__ = ["BoxMixture", "LeafList", "LeafTable"]

_ROWS_AT_ONCE = 1 << 14
_MOST_LISTED = 1 << 20  # leaves
_LOST = 1e-12  # expected number of leaves that a list leaves out, if it has room


class LeafTable:
    """Sums of leaves' values, by the codes of a row; c values.

    Parameters
    ----------
    layout
        Cells of all sets of features.
    num_values
        c.
    """

    def __init__(self, layout: CellLayout, num_values: int):
        self.layout = layout
        self.sums = np.zeros((layout.num_cells, num_values))
        self._places: dict[int, tuple[int, tuple[int, ...]]] = {}

    def add(self, leaves: Leaves, values: np.ndarray) -> None:
        """Add values [l, c] to all cells inside each of l leaves."""
        layout, d = self.layout, self.layout.space.num_features
        most = leaves.features.shape[1]
        code = (leaves.features + 1) @ (d + 1) ** np.arange(most)
        _, first, own = np.unique(code, return_index=True, return_inverse=True)
        sets = [tuple(f for f in row if f >= 0) for row in leaves.features[first].tolist()]
        starts = np.array([layout.starts[features] for features in sets], np.int64)
        sizes = np.ones((len(sets), most), np.int64)
        for row, features in zip(sizes, sets, strict=True):
            row[: len(features)] = layout.shape(features)
        _add_corners(
            self.sums,
            starts,
            sizes,
            own.ravel(),
            leaves.features,
            leaves.low,
            leaves.high,
            leaves.missing,
            layout.space.num_codes,
            values,
        )

    def finish(self) -> "LeafTable":
        """Sum corners up, and add tables of few features to larger ones; returns itself."""
        layout = self.layout
        for features in layout.starts:
            own = self.sums[layout.cells(features)].reshape(*layout.shape(features), -1)
            for axis in range(len(features)):
                np.cumsum(own, axis=axis, out=own)
        for features, larger, axis in reversed(list(layout.smaller_sets())):
            own = self.sums[layout.cells(features)].reshape(*layout.shape(features), -1)
            target = self.sums[layout.cells(larger)].reshape(*layout.shape(larger), -1)
            target += np.expand_dims(own, axis)
        self.sums = self.sums[: layout.num_filled].copy()
        return self

    def at(self, codes: np.ndarray) -> np.ndarray:
        """Look the sums of rows up by their codes [m, d of the design], float64 [m, c]."""
        result = np.zeros((len(codes), self.sums.shape[1]))
        columns = self.layout.columns(codes)
        pieces = [slice(a, a + _ROWS_AT_ONCE) for a in range(0, len(codes), _ROWS_AT_ONCE)]
        in_threads(
            lambda some: _look_up(
                columns[:, some], *self.layout.filled_sets, self.sums, result[some]
            ),
            pieces,
            len(codes) * len(self.layout.filled_sets[0]),
        )
        return result


class LeafList:
    """The leaves of greatest weight; l leaves, u of different statistics.

    Parameters
    ----------
    parts
        Leaves, in any order.
    layout
        Cells of sets of features.

    Attributes
    ----------
    leaves
        `Leaves`.
    statistics
        float64 [u, s].
    kind
        int64 [l]; place of each leaf's statistics.
    lost
        Expected number of leaves of a tree that are left out: no row has lost more probability.
    """

    def __init__(self, parts: Iterable[Leaves], layout: CellLayout):
        self.layout = layout
        joined = Leaves(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
        order = np.argsort(-joined.weight, kind="stable")
        left_out = joined.weight.sum() - np.cumsum(joined.weight[order])
        kept = order[: min(int(np.searchsorted(-left_out, -_LOST)) + 1, _MOST_LISTED)]
        self.lost = float(max(left_out[len(kept) - 1], 0.0))
        self.leaves = Leaves(*(array[kept] for array in joined))
        self.statistics, self.kind = np.unique(self.leaves.statistics, axis=0, return_inverse=True)

    def weights(self, columns: np.ndarray) -> csr_array:
        """Weights of the statistics at rows of columns [m, d] (`kinds`), sparse float64 [m, u]."""
        entries, pointers = self._inside(columns)
        weights = csr_array(
            (self.leaves.weight[entries], self.kind.ravel()[entries], pointers),
            (len(columns), len(self.statistics)),
        )
        weights.sum_duplicates()
        weights.data /= np.repeat(weights.sum(axis=1), np.diff(weights.indptr))
        return weights

    def shared(self, codes: np.ndarray) -> np.ndarray:
        """Probability that rows of codes [m, d of the design] share a leaf, float64 [m, m]."""
        different, kind = kinds(self.layout, codes)
        entries, pointers = self._inside(different)
        shape = len(different), len(self.leaves.weight)
        inside = csr_array((np.ones(len(entries)), entries, pointers), shape)
        total = (inside.multiply(self.leaves.weight).tocsr() @ inside.T).toarray()
        return total[np.ix_(kind, kind)]

    def _inside(self, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Leaves that hold each row of columns [m, d], row by row, and where a row's begin."""
        leaves = self.leaves
        arguments = (
            columns,
            leaves.features,
            leaves.low,
            leaves.high,
            leaves.missing,
            self.layout.space.num_codes,
        )
        pointers = np.append(0, np.cumsum(_count_leaves(*arguments)))
        return _list_leaves(*arguments, pointers), pointers


def kinds(layout: CellLayout, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find the rows of codes [m, d of the design] that differ.

    Returns
    -------
    columns
        int16 [rows that differ, d]; their places (`CellLayout.columns`).
    kind
        int64 [m]; which of these each row is.
    """
    columns, kind = np.unique(layout.columns(codes).T, axis=0, return_inverse=True)
    return np.ascontiguousarray(columns), kind.ravel()


class BoxMixture(PiecedMixture):
    """Predictive of m rows: means are looked up, all else is a mixture over listed leaves.

    Parameters
    ----------
    leaf
        Leaf family.
    mean
        Predictive means [m], or class probabilities [m, c].
    codes
        Codes of the rows [m, d].
    listed
        Lists the leaves.
    """

    def __init__(
        self, leaf: Leaf, mean: np.ndarray, codes: np.ndarray, listed: Callable[[], LeafList]
    ):
        vars(self).update(leaf=leaf, _mean=mean, _codes=codes, _list=listed)

    _mean: np.ndarray
    _codes: np.ndarray
    _list: Callable[[], LeafList]

    @cached_property
    def _kinds(self) -> tuple[np.ndarray, np.ndarray]:
        return kinds(self._list().layout, self._codes)

    @property
    def kind(self) -> np.ndarray:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Kind of each row, int64 [m]."""
        return self._kinds[1]

    @property
    def num_kinds(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Number of rows that differ."""
        return len(self._kinds[0])

    @property
    def statistics(self) -> np.ndarray:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Statistics of the listed leaves, float64 [u, s]."""
        return self._list().statistics

    def _weights_of(self, some: slice) -> csr_array:
        return self._list().weights(self._kinds[0][some])

    def mean(self) -> np.ndarray:
        """Predictive mean [m], or class probabilities [m, c]."""
        return self._mean

    def log_density(self, y: np.ndarray) -> np.ndarray:
        """Log predictive density or probability of one target per row, float64 [m]."""
        if self.leaf.task == "classification":
            return np.log(self._mean[np.arange(len(self._mean)), np.asarray(y, int)])
        return super().log_density(y)

    def sample(self, rng_key: jax.Array, num_draws: int) -> np.ndarray:
        """Draw new targets, [num_draws, m]."""
        if self.leaf.task == "classification":
            uniform = draw_uniforms(rng_key, (num_draws, len(self._mean)))
            drawn = (uniform[..., None] >= np.cumsum(self._mean, axis=1)[:, :-1]).sum(axis=-1)
            return drawn
        return super().sample(rng_key, num_draws)


@numba.njit(cache=True, nogil=True)
def _add_corners(sums, starts, sizes, own, features, low, high, missing, num_codes, values):
    """Add values [l, c] to the corners of each leaf in the table of its features."""
    most = features.shape[1]
    cells, signs = np.zeros(4**most, np.int64), np.zeros(4**most)
    for leaf in range(len(own)):
        size = sizes[own[leaf]]
        cells[0], signs[0], count, stride = starts[own[leaf]], 1.0, 1, 1
        for axis in range(most - 1, -1, -1):
            f = features[leaf, axis]
            if f < 0:
                continue
            begin, end, last = low[leaf, axis], high[leaf, axis], num_codes[f]
            made = count
            # Present values from `begin` on, but not from `end` on; missing values lie at `last`.
            if end < size[axis] and not (end == last and missing[leaf, axis]):
                for i in range(count):
                    cells[made], signs[made] = cells[i] + end * stride, -signs[i]
                    made += 1
            if missing[leaf, axis] and end != last:
                for i in range(count):
                    cells[made], signs[made] = cells[i] + last * stride, signs[i]
                    made += 1
            for i in range(count):
                cells[i] += begin * stride
            count = made
            stride *= size[axis]
        for i in range(count):
            for c in range(values.shape[1]):
                sums[cells[i], c] += signs[i] * values[leaf, c]


@numba.njit(cache=True, nogil=True)
def _look_up(columns, features, strides, starts, sums, result):
    num_sets, most = features.shape
    num_values = sums.shape[1]
    for row in range(len(result)):
        for m in range(num_sets):
            cell = starts[m]
            for axis in range(most):
                cell += np.int64(columns[features[m, axis], row]) * strides[m, axis]
            for c in range(num_values):
                result[row, c] += sums[cell, c]


@numba.njit(cache=True, nogil=True, inline="always")
def _is_inside(codes, row, leaf, features, low, high, missing, num_codes):
    for axis in range(features.shape[1]):
        f = features[leaf, axis]
        if f < 0:
            return True
        code = codes[row, f]
        if code >= num_codes[f]:
            if not missing[leaf, axis]:
                return False
        elif code < low[leaf, axis] or code >= high[leaf, axis]:
            return False
    return True


@numba.njit(cache=True, nogil=True)
def _count_leaves(codes, features, low, high, missing, num_codes):
    counts = np.zeros(len(codes), np.int64)
    for row in range(len(codes)):
        for leaf in range(len(features)):
            if _is_inside(codes, row, leaf, features, low, high, missing, num_codes):
                counts[row] += 1
    return counts


@numba.njit(cache=True, nogil=True)
def _list_leaves(codes, features, low, high, missing, num_codes, pointers):
    entries = np.empty(pointers[-1], np.int64)
    for row in range(len(codes)):
        place = pointers[row]
        for leaf in range(len(features)):
            if _is_inside(codes, row, leaf, features, low, high, missing, num_codes):
                entries[place] = leaf
                place += 1
    return entries
