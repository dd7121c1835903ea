"""Joint histograms of the leaf statistics over few features, and their prefix sums.

The statistics of every box are differences of prefix sums of a histogram over the features that the
box is cut on. Histograms of disjoint sets of rows add, so rows may come in chunks, from several
processes or machines; one pass fills those over all sets of as many features as trees have levels,
and those over fewer features are their sums.
"""

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import combinations

import numba
import numpy as np

from bdtppl.inference.boxes.space import BoxSpace
from bdtppl.models.arrays.threads import in_threads

_ROWS_IN_CACHE = 1 << 13  # rows whose codes stay in the cache while all histograms are filled
_SETS_AT_ONCE = 16  # histograms filled by one thread before the next ones


class CellLayout:
    """Places of the cells of all sets of few features in one flat array.

    Sets of as many features as trees have levels come first: rows are added to these. Each feature
    has a place for each code and, if values are missing, one for those.

    Parameters
    ----------
    space
        The boxes.

    Attributes
    ----------
    starts
        First cell by set of features, larger sets first.
    num_filled, num_cells
        Cells of the sets that rows are added to, and of all.
    sizes
        int64 [d]; places along each feature.
    """

    def __init__(self, space: BoxSpace):
        self.space = space
        self.most = min(space.num_levels, space.num_features)
        self.sizes = space.num_codes + space.has_missing
        self.starts: dict[tuple[int, ...], int] = {}
        self.num_cells = self.num_filled = 0
        for count in range(self.most, -1, -1):
            for features in combinations(range(space.num_features), count):
                self.starts[features] = self.num_cells
                self.num_cells += math.prod(self.shape(features))
            if count == self.most:
                self.num_filled = self.num_cells

    def shape(self, features: Sequence[int]) -> tuple[int, ...]:
        """Return places along each feature of a set."""
        return tuple(self.sizes[list(features)].tolist())

    def cells(self, features: Sequence[int]) -> slice:
        """Return cells of a set."""
        start = self.starts[tuple(features)]
        return slice(start, start + math.prod(self.shape(features)))

    def smaller_sets(self) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], int]]:
        """List the sets of fewer features, each with a set of one more and its new axis."""
        for features in self.starts:
            if len(features) < self.most:
                extra = next(f for f in range(self.space.num_features) if f not in features)
                larger = tuple(sorted((*features, extra)))
                yield features, larger, larger.index(extra)

    @cached_property
    def filled_sets(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Features [m, most], strides [m, most] and starts [m] of the sets that rows fill."""
        sets = [s for s in self.starts if len(s) == self.most]
        features = np.array(sets, np.int64).reshape(len(sets), self.most)
        sizes = self.sizes[features]
        strides = np.ones_like(features)
        for axis in range(self.most - 2, -1, -1):
            strides[:, axis] = strides[:, axis + 1] * sizes[:, axis + 1]
        return features, strides, np.array([self.starts[s] for s in sets], np.int64)

    def columns(self, codes: np.ndarray) -> np.ndarray:
        """Return places of rows along each usable feature, int16 [d, n], from codes of the design.

        A missing value in a complete feature goes right of every cut, like a large one.
        """
        columns = np.empty((self.space.num_features, len(codes)), np.int16)
        for place, feature in enumerate(self.space.features):
            column = codes[:, feature]
            columns[place] = np.where(column < 0, self.sizes[place] - 1, column)
        return columns


class BoxHistograms:
    """Sums of row values over the cells of all sets of few features; s values a row.

    Parameters
    ----------
    space
        The boxes.
    num_values
        s.
    with_keys
        Whether to sum keys of rows, too, which distinguish sets of rows.

    Attributes
    ----------
    values
        float64 [cells of all sets, s].
    keys
        uint64 [cells of all sets], empty without keys.
    """

    def __init__(self, space: BoxSpace, num_values: int, *, with_keys: bool = False):
        self.space = space
        self.layout = CellLayout(space)
        self.num_values = num_values
        self.values = np.zeros((self.layout.num_cells, num_values))
        self.keys = np.zeros(self.layout.num_cells if with_keys else 0, np.uint64)
        self._are_summed = False

    @classmethod
    def of_sums(cls, space: BoxSpace, values: np.ndarray, keys: np.ndarray) -> "BoxHistograms":
        """Make the histograms from sums (`sums`) that were filled elsewhere.

        Raises
        ------
        ValueError
            If a sum is not a number.
        """
        if not np.isfinite(values).all():
            raise ValueError("The sums of a histogram must be finite.")
        made = cls(space, values.shape[1], with_keys=len(keys) > 0)
        made.merge(values, keys)
        return made

    @property
    def nbytes(self) -> int:
        """Bytes of all histograms."""
        return self.values.nbytes + self.keys.nbytes

    def add(self, codes: np.ndarray, values: np.ndarray, keys: np.ndarray | None = None) -> None:
        """Add rows.

        Parameters
        ----------
        codes
            Integers [n, d of the design]; -1 if missing.
        values
            float64 [n, s]; statistics of the rows.
        keys
            uint64 [n], for histograms with keys.
        """
        columns = self.layout.columns(codes)
        values = np.ascontiguousarray(values, np.float64)
        keys = np.empty(0, np.uint64) if keys is None or not len(self.keys) else keys
        features, strides, starts = self.layout.filled_sets
        pieces = [slice(a, a + _SETS_AT_ONCE) for a in range(0, len(starts), _SETS_AT_ONCE)]
        in_threads(
            lambda some: _fill_histograms(
                columns,
                values,
                keys,
                features[some],
                strides[some],
                starts[some],
                self.values,
                self.keys,
            ),
            pieces,
            len(codes) * len(starts),
        )
        self._are_summed = False

    def merge(self, values: np.ndarray, keys: np.ndarray) -> None:
        """Add the sums (`sums`) that another object with the same boxes has for other rows."""
        self.values[: self.layout.num_filled] += values
        if len(self.keys):
            self.keys[: self.layout.num_filled] += keys
        self._are_summed = False

    def sums(self) -> tuple[np.ndarray, np.ndarray]:
        """Return values and keys filled so far, to be merged elsewhere."""
        return self.values[: self.layout.num_filled], self.keys[: self.layout.num_filled]

    def over(self, features: Sequence[int]) -> np.ndarray:
        """Histogram over a set of features, float64 [size of each..., s]."""
        self._sum_over_fewer()
        values = self.values[self.layout.cells(features)]
        return values.reshape(*self.layout.shape(features), self.num_values)

    @property
    def total(self) -> np.ndarray:
        """Sum over all rows, float64 [s]."""
        return self.over(())

    def _sum_over_fewer(self) -> None:
        """Fill the histograms over fewer features, each from one with a feature more."""
        if self._are_summed:
            return
        layout = self.layout
        for features, larger, axis in layout.smaller_sets():
            shape, source, target = (
                layout.shape(larger),
                layout.cells(larger),
                layout.cells(features),
            )
            summed = self.values[source].reshape(*shape, -1).sum(axis=axis)
            self.values[target] = summed.reshape(-1, self.num_values)
            if len(self.keys):
                own = self.keys[source].reshape(shape).sum(axis=axis, dtype=np.uint64)
                self.keys[target] = own.ravel()
        self._are_summed = True

    def prefix_sums(self, features: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Prefix sums over some features and any further one.

        Parameters
        ----------
        features
            Places of k features, fewer than trees have levels.

        Returns
        -------
        values
            float64 [cells, d, width, s]. Entry v along each of the k features and the further one
            sums over the codes below v; it is followed by the entry of the missing values alone
            (the last one along the further feature).
        keys
            uint64 [cells, d, width, 1] likewise; [1, 1, 1, 1] without keys.
        """
        self._sum_over_fewer()
        space, k, d = self.space, len(features), self.space.num_features
        own = np.array(features, np.int64)
        sizes, further = self.layout.sizes, np.arange(d)
        is_own = np.isin(further, own)
        joint = (tuple(sorted({*features, g})) for g in range(d))
        start = np.array([self.layout.starts[each] for each in joint], np.int64)
        # A step along a feature passes all cells of the later ones, including `g`.
        is_later = (further[:, None] > own) & ~is_own[:, None]
        steps = [math.prod(sizes[own[axis + 1 :]].tolist()) for axis in range(k)]
        strides = np.where(is_later, sizes[:, None], 1) * np.array(steps, np.int64)
        own_stride = np.where(own > further[:, None], sizes[own], 1).prod(axis=1, dtype=np.int64)
        own_stride[is_own] = 0
        lengths = space.num_codes[own] + 1 + space.has_missing[own]
        arguments = own, lengths, space.num_codes, space.has_missing, start, strides, own_stride
        shape = int(np.prod(lengths, dtype=np.int64)), d, space.width
        values = np.zeros((*shape, self.num_values))
        _sum_up(self.values, values, *arguments)
        if not len(self.keys):
            return values, np.zeros((1, 1, 1, 1), np.uint64)
        keys = np.zeros((*shape, 1), np.uint64)
        _sum_up(self.keys.reshape(-1, 1), keys, *arguments)
        return values, keys


def row_keys(codes: np.ndarray) -> np.ndarray:
    """Hash rows of codes [n, d] to keys, uint64 [n], the same on every machine.

    Sums of keys distinguish sets of rows, except with probability 2^-64 for each pair.
    """
    keys = np.full(len(codes), 0x9E3779B97F4A7C15, np.uint64)
    for column in codes.T:
        keys ^= column.astype(np.int64).view(np.uint64) + np.uint64(0x2545F4914F6CDD1D)
        # Mix bits (the finaliser of SplitMix64, Steele, Lea and Flood 2014).
        keys = keys + np.uint64(0x9E3779B97F4A7C15)
        keys = (keys ^ (keys >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        keys ^= keys >> np.uint64(31)
    return keys


@numba.njit(cache=True, nogil=True)
def _fill_histograms(columns, values, keys, features, strides, starts, all_values, all_keys):
    """Add rows to the histograms of some sets of features."""
    num_rows, num_values = values.shape
    num_sets, most = features.shape
    cell = np.empty(_ROWS_IN_CACHE, np.int64)
    for begin in range(0, num_rows, _ROWS_IN_CACHE):
        size = min(_ROWS_IN_CACHE, num_rows - begin)
        for m in range(num_sets):
            for i in range(size):
                cell[i] = starts[m]
            for axis in range(most):
                column, stride = columns[features[m, axis]], strides[m, axis]
                for i in range(size):
                    cell[i] += column[begin + i] * stride
            if num_values == 3:
                for i in range(size):
                    c = cell[i]
                    all_values[c, 0] += values[begin + i, 0]
                    all_values[c, 1] += values[begin + i, 1]
                    all_values[c, 2] += values[begin + i, 2]
            elif num_values == 2:
                for i in range(size):
                    c = cell[i]
                    all_values[c, 0] += values[begin + i, 0]
                    all_values[c, 1] += values[begin + i, 1]
            else:
                for i in range(size):
                    c = cell[i]
                    for s in range(num_values):
                        all_values[c, s] += values[begin + i, s]
            if len(keys):
                for i in range(size):
                    all_keys[cell[i]] += keys[begin + i]


@numba.njit(cache=True, nogil=True)
def _sum_up(source, target, own, lengths, num_codes, has_missing, start, strides, own_stride):
    """Spread histograms [cells, s] over a target [cells of prefix sums, d, width, s], and sum."""
    k, d = len(own), len(num_codes)
    width, num_values = target.shape[2], target.shape[3]
    place = np.zeros(k, np.int64)
    num_cells = 1
    for axis in range(k):
        num_cells *= lengths[axis] - 1
    for _ in range(num_cells):
        cell = 0
        for axis in range(k):
            cell = cell * lengths[axis] + place[axis] + 1
        for g in range(d):
            base = start[g]
            for axis in range(k):
                base += place[axis] * strides[g, axis]
            if own_stride[g]:
                for v in range(num_codes[g]):
                    for s in range(num_values):
                        target[cell, g, v + 1, s] = source[base + v * own_stride[g], s]
                if has_missing[g]:
                    at = base + num_codes[g] * own_stride[g]
                    for s in range(num_values):
                        target[cell, g, width - 1, s] = source[at, s]
            else:
                for axis in range(k):
                    if own[axis] == g:
                        code = place[axis]
                        v = code + 1 if code < num_codes[g] else width - 1
                        for s in range(num_values):
                            target[cell, g, v, s] = source[base, s]
            for v in range(1, num_codes[g]):
                for s in range(num_values):
                    target[cell, g, v + 1, s] += target[cell, g, v, s]
        for axis in range(k - 1, -1, -1):
            place[axis] += 1
            if place[axis] < lengths[axis] - 1:
                break
            place[axis] = 0
    step = 1
    for axis in range(k - 1, -1, -1):
        last = num_codes[own[axis]]
        for cell in range(len(target)):
            code = cell // step % lengths[axis]
            if 1 < code <= last:
                for g in range(d):
                    for v in range(width):
                        for s in range(num_values):
                            target[cell, g, v, s] += target[cell - step, g, v, s]
        step *= lengths[axis]
