"""Exact predictions from the leaves of boxes.

Every leaf of the posterior is a box on at most as many features as trees have levels. The
prediction at a row is a sum over sets of features of a function of the row's codes on these: a
table for each set, to which leaves are added by their corners. A row then costs one look-up per
set. Predictions that are not means (quantiles, densities of real targets) use a mixture over a list
of leaves.
"""

from collections.abc import Callable, Iterable
from functools import cached_property

import jax
import numba
import numpy as np
from scipy.sparse import csr_array

from bdtppl.inference.boxes.histograms import CellLayout
from bdtppl.inference.boxes.recursion import Leaves
from bdtppl.inference.draws import draw_classes
from bdtppl.inference.hard.mixture import PiecedMixture
from bdtppl.models.arrays.bit_loops import trailing_zeros
from bdtppl.models.arrays.threads import in_threads
from bdtppl.models.leaf import Leaf

_ROWS_AT_ONCE = 1 << 14
_MOST_LISTED = 1 << 20  # leaves
_BYTES_OF_SETS = 1 << 26
_LEAVES_LEFT_OUT = 1e-12  # expected number of leaves that a list omits, if it has room


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
        """Sum corners, and add tables of few features to larger ones; return itself."""
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
        """Look up the sums of rows by their codes [m, d of the design], float64 [m, c]."""
        result = np.zeros((len(codes), self.sums.shape[1]))
        columns = self.layout.columns(codes)
        pieces = [slice(a, a + _ROWS_AT_ONCE) for a in range(0, len(codes), _ROWS_AT_ONCE)]
        in_threads(
            lambda some: _look_up_sums(
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
        Expected number of omitted leaves of a tree: no row has lost more probability.
    """

    def __init__(self, parts: Iterable[Leaves], layout: CellLayout):
        self.layout = layout
        joined = Leaves(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
        order = np.argsort(-joined.weight, kind="stable")
        left_out = joined.weight.sum() - np.cumsum(joined.weight[order])
        kept = order[: min(int(np.searchsorted(-left_out, -_LEAVES_LEFT_OUT)) + 1, _MOST_LISTED)]
        self.lost = float(max(left_out[len(kept) - 1], 0.0))
        self.leaves = Leaves(*(array[kept] for array in joined))
        self.statistics, self.kind = _distinct(self.leaves.statistics)

    def weights(self, columns: np.ndarray) -> csr_array:
        """Weights of the statistics at rows of columns [m, d] (`kinds`), sparse float64 [m, u]."""
        entries, pointers = self._inside(columns)
        summed = _shares_of_kinds(
            entries, pointers, self.kind, self.leaves.weight, len(self.statistics)
        )
        return csr_array(summed, (len(columns), len(self.statistics)))

    def shared(self, codes: np.ndarray) -> np.ndarray:
        """Return the probability that rows of codes [m, d] share a leaf, float64 [m, m]."""
        different, kind = kinds(self.layout, codes)
        entries, pointers = self._inside(different)
        shape = len(different), len(self.leaves.weight)
        inside = csr_array((np.ones(len(entries)), entries, pointers), shape)
        total = (inside.multiply(self.leaves.weight).tocsr() @ inside.T).toarray()
        return total[np.ix_(kind, kind)]

    def _inside(self, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the leaves of each row of columns [m, d], row by row, and each row's start."""
        num_codes = self.layout.space.num_codes
        starts = np.append(0, np.cumsum(num_codes + 1))
        size = max(_BYTES_OF_SETS // int(8 * starts[-1]), 1) * 64
        places = np.minimum(columns, num_codes) + starts[:-1]
        blocks = range(0, len(self.leaves.weight), size)
        counts = np.stack(
            [_numbers_of_bits(places, self._sets(starts, block, size)) for block in blocks], axis=1
        )
        begin = np.append(0, np.cumsum(counts.ravel()))  # row by row, block by block
        entries = np.empty(begin[-1], np.int64)
        for number, block in enumerate(blocks):
            sets = self._sets(starts, block, size)
            _list_bits(places, sets, begin[number :: len(blocks)], block, entries)
        return entries, begin[:: len(blocks)]

    def _sets(self, starts: np.ndarray, block: int, size: int) -> np.ndarray:
        """Return leaves of a block that contain each code of each feature, uint64 [codes, w]."""
        some = Leaves(*(array[block : block + size] for array in self.leaves))
        return _sets_of_leaves(some.features, some.low, some.high, some.missing, starts)


def kinds(layout: CellLayout, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find the distinct rows of codes [m, d of the design].

    Returns
    -------
    columns
        int16 [distinct rows, d]; their places (`CellLayout.columns`).
    kind
        int64 [m]; index of each row among these.
    """
    columns, kind = np.unique(layout.columns(codes).T, axis=0, return_inverse=True)
    return np.ascontiguousarray(columns), kind.ravel()


class BoxMixture(PiecedMixture):
    """Predictive of m rows: means are looked up, other results use a mixture of listed leaves.

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
        """Number of distinct rows."""
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
        """Return the log predictive density or probability of one target per row, float64 [m]."""
        if self.leaf.task == "classification":
            return np.log(self._mean[np.arange(len(self._mean)), np.asarray(y, int)])
        return super().log_density(y)

    def sample(self, rng_key: jax.Array, num_draws: int, *, first_row: int = 0) -> np.ndarray:
        """Draw new targets, [num_draws, m]; see `LeafMixture.sample`."""
        if self.leaf.task == "classification":
            return draw_classes(rng_key, self._mean, num_draws, first_row)
        return super().sample(rng_key, num_draws, first_row=first_row)


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
            # Present values from `begin` to before `end`; missing values are at `last`.
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
def _look_up_sums(columns, features, strides, starts, sums, result):
    num_sets, most = features.shape
    num_values = sums.shape[1]
    for row in range(len(result)):
        for m in range(num_sets):
            cell = starts[m]
            for axis in range(most):
                cell += np.int64(columns[features[m, axis], row]) * strides[m, axis]
            for c in range(num_values):
                result[row, c] += sums[cell, c]


@numba.njit(cache=True, nogil=True)
def _sets_of_leaves(features, low, high, missing, starts):
    """Return leaves, as bits, that contain each code of each feature, and a missing value last."""
    num_leaves = len(features)
    sets = np.full((starts[-1], (num_leaves + 63) // 64), ~np.uint64(0))
    for leaf in range(num_leaves):
        word, bit = leaf // 64, np.uint64(1) << np.uint64(leaf % 64)
        for axis in range(features.shape[1]):
            f = features[leaf, axis]
            if f < 0:
                break
            last = starts[f + 1] - starts[f] - 1
            for code in range(last + 1):
                inside = (
                    missing[leaf, axis]
                    if code == last
                    else low[leaf, axis] <= code < high[leaf, axis]
                )
                if not inside:
                    sets[starts[f] + code, word] &= ~bit
    for leaf in range(num_leaves, 64 * sets.shape[1]):  # bits without a leaf
        sets[:, -1] &= ~(np.uint64(1) << np.uint64(leaf % 64))
    return sets


@numba.njit(cache=True, nogil=True)
def _numbers_of_bits(places, sets):
    """Count the bits common to all sets of a row, int64 [m]."""
    counts = np.zeros(len(places), np.int64)
    for row in range(len(places)):
        for word in range(sets.shape[1]):
            bits = sets[places[row, 0], word]
            for f in range(1, places.shape[1]):
                bits &= sets[places[row, f], word]
            while bits:
                bits &= bits - np.uint64(1)
                counts[row] += 1
    return counts


@numba.njit(cache=True, nogil=True)
def _list_bits(places, sets, begin, first, entries):
    """Write the bits common to all sets of a row, counted from the first, to its entries."""
    for row in range(len(places)):
        place = begin[row]
        for word in range(sets.shape[1]):
            bits = sets[places[row, 0], word]
            for f in range(1, places.shape[1]):
                bits &= sets[places[row, f], word]
            while bits:
                entries[place] = first + 64 * word + np.int64(trailing_zeros(bits))
                place += 1
                bits &= bits - np.uint64(1)


@numba.njit(cache=True, nogil=True)
def _shares_of_kinds(entries, pointers, kind, weight, num_kinds):
    """Sum the weights of entries of one kind row by row, as shares: data, kinds and pointers."""
    total, is_met = np.zeros(num_kinds), np.zeros(num_kinds, np.bool_)
    kinds_met, data = np.empty(len(entries), np.int64), np.empty(len(entries))
    bounds, count = np.zeros(len(pointers), np.int64), 0
    for row in range(len(pointers) - 1):
        start, whole = count, 0.0
        for entry in entries[pointers[row] : pointers[row + 1]]:
            k = kind[entry]
            if not is_met[k]:
                is_met[k], kinds_met[count] = True, k
                count += 1
            total[k] += weight[entry]
            whole += weight[entry]
        for place in range(start, count):
            k = kinds_met[place]
            data[place] = total[k] / whole
            total[k], is_met[k] = 0.0, False
        bounds[row + 1] = count
    return data[:count].copy(), kinds_met[:count].copy(), bounds


def _distinct(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find the distinct rows of numbers [l, s], and the index of each row, int64 [l]."""
    order = np.lexsort(rows.T)
    is_new = np.append(True, (np.diff(rows[order], axis=0) != 0).any(axis=1))
    kind = np.empty(len(rows), np.int64)
    kind[order] = np.cumsum(is_new) - 1
    return rows[order[is_new]], kind
