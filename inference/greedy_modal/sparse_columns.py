"""The stored entries of a level of nodes, by node, feature and value.

Entries are sorted by feature and value once. Every level stores the entries of its nodes' rows,
node after node; the next level preserves their order, as for the rows of a dense table. Rows
without an entry in a feature are not listed, so memory and time of a level are linear in entries
and rows.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bdtppl.inference.greedy_modal.columns import (
    Level,
    RowGroups,
    descend,
    root_level,
    row_leaf_statistics,
)
from bdtppl.models.data.sparse import SparseDesign
from bdtppl.models.data.splits import goes_left, split_number
from bdtppl.models.leaf import Leaf


@dataclass(frozen=True, eq=False)
class SparseColumns(RowGroups):
    """Sparse training data; n rows, d features.

    Attributes
    ----------
    features
        int [d]; their places in the design: all of them.
    is_used
        bool [d]; features that rules may use.
    design
        The table.
    """

    features: np.ndarray
    is_used: np.ndarray
    design: SparseDesign

    @classmethod
    def of(
        cls, design: SparseDesign, leaf: Leaf, y: np.ndarray, allowed: np.ndarray
    ) -> "SparseColumns":
        """Lay out the allowed features, bool [d]."""
        return cls(
            row_leaf_statistics(leaf, y, design.weights),
            design.weights if design.has_weights else None,
            np.arange(design.num_features),
            allowed & design.has_cut,
            design,
        )


@dataclass(frozen=True, eq=False)
class SparseLevel(Level):
    """Nodes of one depth; e entries of their rows.

    The only array in ``rows`` contains the rows of each segment in any order.

    Attributes
    ----------
    num_rows
        Number of rows of the whole table, n.
    row, feature, code
        int32 [e]; the entries by segment, feature and value (see `SparseDesign`).
    """

    num_rows: int
    row: np.ndarray
    feature: np.ndarray
    code: np.ndarray

    @cached_property
    def segment_of_row(self) -> np.ndarray:
        """Segment of each row of the level, int32 [n]; other rows have meaningless values."""
        segment = np.zeros(self.num_rows, np.int32)
        segment[self.members] = self.segment
        return segment


@root_level.register
def _(columns: SparseColumns, smoothing: float = 0.0) -> SparseLevel:
    design, num_rows = columns.design, columns.num_rows
    rows = np.arange(num_rows, dtype=np.int32)
    total = columns.sums(rows, np.zeros(1, np.int64))
    entries = design.row, design.feature, design.code
    if not columns.is_used.all():
        is_kept = columns.is_used.take(design.feature)
        entries = tuple(np.compress(is_kept, each) for each in entries)
    pseudo = np.zeros(total.shape) if smoothing else None
    return SparseLevel(0, [rows], np.array([0, num_rows]), total, pseudo, num_rows, *entries)


@descend.register
def _(
    columns: SparseColumns,
    level: SparseLevel,
    segments: np.ndarray,
    feature: np.ndarray,
    split: np.ndarray,
    smoothing: float = 0.0,
) -> SparseLevel:
    design = columns.design
    number = split_number(design.offset[feature], False) + split
    place = np.full(level.num_segments, -1)
    place[segments] = np.arange(len(segments))

    # 1 for left, 2 for right, 0 for rows of leaves: initially as if no row had an entry.
    zero_left = goes_left(number, design.zero_code[feature])
    side_of_zero = np.append(np.where(zero_left, 1, 2), 0).astype(np.int8)
    side = np.zeros(columns.num_rows, np.int8)
    side[level.members] = side_of_zero[place[level.segment]]
    place_of_entry = place.take(level.segment_of_row.take(level.row))
    tested = np.append(feature, -1).take(place_of_entry) == level.feature
    is_left = goes_left(number[place_of_entry[tested]], level.code[tested])
    side[level.row[tested]] = np.where(is_left, 1, 2)

    def parted(rows: np.ndarray, *arrays: np.ndarray) -> list[np.ndarray]:
        moved = side.take(rows)
        is_left, is_right = moved == 1, moved == 2
        return [
            np.concatenate([np.compress(is_left, each), np.compress(is_right, each)])
            for each in (rows, *arrays)
        ]

    (rows,) = parted(level.members)
    child = place.take(level.segment_of_row.take(rows)) + len(segments) * (side.take(rows) == 2)
    size = np.bincount(child, minlength=2 * len(segments))
    start = np.concatenate([[0], np.cumsum(size)])
    statistics = columns.sums(rows, start[:-1])
    pseudo = None
    if level.pseudo is not None:
        pseudo = np.tile(level.pseudo[segments], (2, 1)) + smoothing * statistics
    entries = parted(level.row, level.feature, level.code)
    return SparseLevel(
        level.depth + 1, [rows], start, statistics, pseudo, columns.num_rows, *entries
    )
