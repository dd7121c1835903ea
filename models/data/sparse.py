"""Conversion of a sparse table to a `SparseDesign`: codes of its stored entries alone.

Entries that are not stored are zero, a value like any other: all rows without an entry of a feature
share one code. Cut points and codes are those of the dense table's `Design`; memory is linear in
entries, rows and features.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from bdtppl.models.data.design import CutPoints, Design, midpoint


@dataclass(frozen=True, eq=False)
class SparseDesign(CutPoints):
    """Rows and features as stored entries and their integer codes; e entries, n rows, d features.

    Arrays of cut points are flat over all features, as in `Design`, and each code is one value.

    Attributes
    ----------
    matrix
        ``scipy.sparse.csc_array``, float64 [n, d]; NaN if missing, no entry stored twice, and no
        zero.
    row, feature
        int32 [e]; the entries by feature, then by value, missing ones first.
    code
        int32 [e]; flat code, ``offset[feature]`` and up, or -1 if the value is missing.
    zero_code
        int32 [d]; flat code of zero; meaningless if every row has an entry.
    weights
        [n], above 0; as in `Design`.
    num_codes, cut_threshold, low_edge, high_edge, names
        As in `Design`; both edges are the code's value.
    """

    matrix: Any = field(repr=False)
    row: np.ndarray = field(repr=False)
    feature: np.ndarray = field(repr=False)
    code: np.ndarray = field(repr=False)
    zero_code: np.ndarray
    weights: np.ndarray
    num_codes: np.ndarray
    cut_threshold: np.ndarray
    low_edge: np.ndarray
    high_edge: np.ndarray
    names: tuple[str, ...]

    @classmethod
    def from_matrix(
        cls, matrix: Any, *, weights: np.ndarray, names: tuple[str, ...]
    ) -> "SparseDesign":
        """Code the entries of a matrix, with a cut between any two neighbouring distinct values.

        Parameters
        ----------
        matrix
            ``scipy.sparse.csc_array``, float64 [n, d]; NaN is missing, no value is infinite or
            zero, no entry stored twice.
        weights
            Weights [n] above 0, as in `Design`.
        names
            Feature names [d].

        Examples
        --------
        >>> from scipy.sparse import csc_array
        >>> table = csc_array(np.array([[0.0, 3.0], [2.0, 0.0], [-1.0, 0.0]]))
        >>> design = SparseDesign.from_matrix(table, weights=np.ones(3, int), names=("a", "b"))
        >>> design.num_codes.tolist(), design.row.tolist(), design.code.tolist()
        ([3, 2], [2, 1, 0], [0, 2, 4])
        """
        num_rows, num_features = matrix.shape
        stored = np.diff(matrix.indptr)
        feature = np.repeat(np.arange(num_features, dtype=np.int32), stored)
        is_missing = np.isnan(matrix.data)
        # A feature whose values are all missing gets a code, too, as in a design.
        no_value = np.bincount(feature[~is_missing], minlength=num_features) == 0
        with_zero = np.flatnonzero((stored < num_rows) | no_value).astype(np.int32)
        value = np.concatenate([np.where(is_missing, -np.inf, matrix.data), 0.0 * with_zero])
        feature = np.concatenate([feature, with_zero])
        order = np.lexsort((value, feature))
        value, feature = value[order], feature[order]
        is_new = np.ones(len(value), bool)
        is_new[1:] = (value[1:] != value[:-1]) | (feature[1:] != feature[:-1])
        is_new &= value > -np.inf
        code = np.cumsum(is_new, dtype=np.int32) - np.int32(1)
        code[value == -np.inf] = -1
        is_entry = order < matrix.nnz
        zero_code = np.zeros(num_features, np.int32)
        zero_code[with_zero] = code[~is_entry]
        distinct, feature_of_code = value[is_new], feature[is_new]
        cuts = np.full(len(distinct), -np.inf)
        inner = 1 + np.flatnonzero(feature_of_code[1:] == feature_of_code[:-1])
        cuts[inner] = midpoint(distinct[inner - 1], distinct[inner])
        return cls(
            matrix=matrix,
            row=matrix.indices[order[is_entry]].astype(np.int32),
            feature=feature[is_entry],
            code=code[is_entry],
            zero_code=zero_code,
            weights=weights,
            num_codes=np.bincount(feature_of_code, minlength=num_features).astype(np.int32),
            cut_threshold=cuts,
            low_edge=distinct,
            high_edge=distinct,
            names=names,
        )

    @property
    def num_rows(self) -> int:
        """Number of rows n, whatever their weights."""
        return self.matrix.shape[0]

    @property
    def column(self) -> np.ndarray:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Each feature by itself, int32 [d]."""
        return np.arange(self.num_features, dtype=np.int32)

    @cached_property
    def has_missing(self) -> np.ndarray:
        """Features with a missing value in training, bool [d]."""
        return np.bincount(self.feature[self.code < 0], minlength=self.num_features) > 0

    def dense(self, features: np.ndarray) -> Design:
        """Make a design of some features, with their cut points and codes."""
        return Design.from_matrix(
            self.matrix[:, features].toarray(),
            weights=self.weights,
            names=tuple(self.names[f] for f in features.tolist()),
        )
