"""The rows of a level of nodes, sorted by every feature at once.

Rows are sorted by each feature once, at the root. Every feature then stores the rows of the level's
nodes in its own order, with the nodes one after the other as *segments* that are the same for all
features; the next level preserves this order (SLIQ, Mehta et al. 1996). Memory is linear in rows
times features, and all nodes of a level are handled by the same few array operations.
"""

from dataclasses import dataclass
from functools import cached_property, singledispatch
from typing import Any

import numpy as np

from bdtppl.models.arrays.threads import in_threads
from bdtppl.models.data.design import Design
from bdtppl.models.data.splits import goes_left
from bdtppl.models.leaf import Leaf
from bdtppl.models.row_statistics import row_statistics


@dataclass(frozen=True, eq=False)
class RowGroups:
    """Training rows without their features; n rows, s statistics.

    Attributes
    ----------
    statistics
        [s, n]; leaf statistics of single rows, small integers if all are, else float64.
    weights
        [n], or None if all are 1.
    """

    statistics: np.ndarray
    weights: np.ndarray | None
    counts = None

    @property
    def num_rows(self) -> int:
        """Number of rows n."""
        return self.statistics.shape[1]

    def sums(self, rows: np.ndarray, start: np.ndarray) -> np.ndarray:
        """Sum the statistics of rows over runs that start at ``start`` [K], [K, s]."""
        dtype = np.int64 if self.statistics.dtype.kind == "i" else np.float64
        taken = [each.take(rows).astype(dtype) for each in self.statistics]
        return np.stack([np.add.reduceat(each, start) for each in taken], axis=1)


def row_leaf_statistics(leaf: Leaf, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Compute the statistics of single rows, [s, n], as integers if sums of these are exact."""
    statistics = np.ascontiguousarray(row_statistics(leaf, y, weights).T)
    largest = np.abs(statistics).max()
    # Whole numbers whose sums are exact in float64 are summed as integers.
    if (statistics == np.rint(statistics)).all() and largest * len(y) < 2**53:
        return statistics.astype(np.int8 if largest < 128 else np.int64)
    return statistics


@dataclass(frozen=True, eq=False)
class Columns(RowGroups):
    """Training data by column; n rows, d features that rules may use.

    Attributes
    ----------
    features
        int [d]; their places in the design.
    codes
        int32 [d, n]; -1 if the value is missing.
    has_missing
        bool [d].
    is_distinct
        bool [d]; no two rows have the same value.
    counts
        int64 [n]; number of rows that each one represents, or None if it is one.
    """

    features: np.ndarray
    codes: np.ndarray
    has_missing: np.ndarray
    is_distinct: np.ndarray
    counts: np.ndarray | None = None

    @classmethod
    def of(cls, design: Design, leaf: Leaf, y: np.ndarray, allowed: np.ndarray) -> "Columns":
        """Lay out the allowed features, bool [d of the design]."""
        codes = design.codes.T
        features = np.flatnonzero(allowed & design.has_cut)
        return cls(
            row_leaf_statistics(leaf, y, design.weights),
            design.weights if design.has_weights else None,
            features,
            np.ascontiguousarray(codes if len(codes) == len(features) else codes[features]),
            design.has_missing[features],
            np.array([_is_distinct(design, f) for f in features.tolist()], bool),
        )


def _is_distinct(design: Design, feature: int) -> bool:
    """Return whether no two rows share a code; a design may have more codes than its rows."""
    if design.num_codes[feature] < design.num_rows or design.has_missing[feature]:
        return False
    return int(np.bincount(design.codes[:, feature]).max()) == 1


@dataclass(frozen=True, eq=False)
class Level:
    """Nodes of one depth; K segments with a rows in total.

    Attributes
    ----------
    depth
        Splits above the nodes.
    rows
        For each feature, int32 [a]; rows segment after segment, in order of the feature's code.
    start
        int64 [K + 1]; bounds of the segments.
    statistics
        [K, s]; leaf statistics of each segment's rows, int64 if all are integers, else float64.
    pseudo
        float64 [K, s], or None; statistics of rows absorbed by the leaf prior above the node
        (smoothing).
    """

    depth: int
    rows: list[np.ndarray]
    start: np.ndarray
    statistics: np.ndarray
    pseudo: np.ndarray | None

    @property
    def num_segments(self) -> int:
        """Number of segments K."""
        return len(self.start) - 1

    @cached_property
    def segment(self) -> np.ndarray:
        """Segment of each position, int32 [a]."""
        return np.repeat(np.arange(self.num_segments, dtype=np.int32), np.diff(self.start))

    @property
    def members(self) -> np.ndarray:
        """Rows [a], segment after segment, in the order of whichever feature comes first."""
        return self.rows[0] if self.rows else np.arange(self.start[-1])  # the root alone

    @cached_property
    def is_last(self) -> np.ndarray:
        """Positions at the end of a segment, int64 [K]."""
        return self.start[1:] - 1


@singledispatch
def root_level(columns: Columns, smoothing: float = 0.0) -> Level:
    """Sort all rows by every feature."""
    num_rows = columns.num_rows
    bits = np.uint64(max(1, (num_rows - 1).bit_length()))
    place = np.arange(num_rows, dtype=np.uint64)

    def in_order(codes: np.ndarray) -> np.ndarray:
        # NumPy sorts integers that contain their place much faster than it computes argsort.
        words = ((codes + 1).astype(np.uint64) << bits) | place
        words.sort()
        return (words & ((np.uint64(1) << bits) - np.uint64(1))).astype(np.int32)

    rows = in_threads(in_order, columns.codes, num_rows)
    total = columns.sums(np.arange(num_rows), np.zeros(1, np.int64))
    pseudo = np.zeros(total.shape) if smoothing else None
    return Level(0, rows, np.array([0, num_rows]), total, pseudo)


def only(level: Level, segment: int) -> Level:
    """Select one node of a level."""
    start, stop = level.start[segment : segment + 2]
    node = slice(segment, segment + 1)
    return Level(
        level.depth,
        [rows[start:stop] for rows in level.rows],
        np.array([0, stop - start]),
        level.statistics[node],
        None if level.pseudo is None else level.pseudo[node],
    )


@singledispatch
def descend(
    columns: Columns,
    level: Level,
    segments: np.ndarray,
    feature: np.ndarray,
    split: np.ndarray,
    smoothing: float = 0.0,
) -> Level:
    """Split segments and collect their children: all left ones, then all right ones.

    Parameters
    ----------
    columns
        The data.
    level
        The level.
    segments
        int [q]; segments to split, ascending. One may occur more than once (look-ahead).
    feature
        int [q]; index of the feature among the columns.
    split
        int [q]; number of the split among those of the column (see `Best`).
    smoothing
        Share of a child's rows that its leaf prior absorbs.
    """
    sides = _sides_of_copies(columns, level, segments, feature, split)
    first, first_is_left = sides(0)
    if len(np.unique(segments)) == len(segments):
        side = np.zeros(columns.num_rows, np.int8)
        side[first] = np.where(first_is_left, 1, 2)

        def parts_of(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            moved = side.take(rows)
            return np.compress(moved == 1, rows), np.compress(moved == 2, rows)

        parts = in_threads(parts_of, level.rows, len(first))
    else:
        parts = [(rows[left], rows[~left]) for rows, left in map(sides, range(len(level.rows)))]
    size = np.diff(level.start)[segments]
    num_left = np.add.reduceat(first_is_left, np.cumsum(size) - size, dtype=np.int64)
    start = np.concatenate([[0], np.cumsum(np.concatenate([num_left, size - num_left]))])
    rows = [np.concatenate(part) for part in parts]
    statistics = columns.sums(rows[0], start[:-1])
    pseudo = None
    if level.pseudo is not None:
        pseudo = np.tile(level.pseudo[segments], (2, 1)) + smoothing * statistics
    return Level(level.depth + 1, rows, start, statistics, pseudo)


def _sides_of_copies(columns: Columns, level: Level, segments, feature, split) -> Any:
    """Return rows of copies of segments in one feature's order, and whether they go left."""
    size = np.diff(level.start)[segments]
    ends = np.cumsum(size)
    position = np.repeat(level.start[:-1][segments] - (ends - size), size) + np.arange(ends[-1])
    flat_codes = columns.codes.ravel()
    at = np.repeat(feature.astype(np.int64) * columns.num_rows, size)
    number = np.repeat(split, size)

    def rows_of(f: int) -> tuple[np.ndarray, np.ndarray]:
        rows = level.rows[f].take(position)
        return rows, goes_left(number, flat_codes.take(at + rows))

    return rows_of
