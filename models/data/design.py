"""Conversion of a table to a `Design`: integer codes and the cut points between them.

A hard tree uses only the side of a cut that a value is on. A design therefore stores the ordered
cut points of each feature that rules may use, and for each row and feature the code: the number of
cut points at or below the value, or -1 if the value is missing. A rule *feature f, code < v* sends
a row to the left; it is displayed as ``petal width < 0.8``.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import ModuleType
from typing import Any, ClassVar, Literal

import numpy as np

from bdtppl.models.arguments import require_choice
from bdtppl.models.arrays.threads import in_threads

MOST_GRID_CUTS = 10_000
"""Most cuts of a grid."""

Binning = Literal["quantile", "uniform"]


class CutPoints:
    """Properties derived from the cut points alone; arrays as in `Design`."""

    num_codes: np.ndarray
    low_edge: np.ndarray
    high_edge: np.ndarray
    names: tuple[str, ...]
    cut_threshold: np.ndarray
    weights: np.ndarray
    column: np.ndarray
    has_missing: Any

    @property
    def num_features(self) -> int:
        """Number of features d."""
        return len(self.num_codes)

    @property
    def num_columns(self) -> int:
        """Number of columns, among which a rule chooses first."""
        return len(self.first_of_column)

    @cached_property
    def first_of_column(self) -> np.ndarray:
        """First feature of each column, int64 [columns]."""
        return np.flatnonzero(np.diff(self.column, prepend=-1))

    @property
    def equal_weights(self) -> np.ndarray:
        """Weights of features if all columns with a cut have equal weights, float64 [d].

        Features of a column share its weight in proportion to their rules; the weights sum to 1, or
        are all 0.
        """
        rules = self.rules_of_features.astype(float)
        weights = rules / np.maximum(np.bincount(self.column, rules)[self.column], 1.0)
        return weights / max(weights.sum(), 1)

    @property
    def rules_of_features(self) -> np.ndarray:
        """Number of rules of each feature, int64 [d]; a cut has two if values are missing."""
        return (self.num_codes.astype(np.int64) - 1) * (1 + self.has_missing)

    @property
    def rules_of_columns(self) -> np.ndarray:
        """Number of rules of each column, int64 [columns]."""
        return np.add.reduceat(self.rules_of_features, self.first_of_column)

    def place_of_rule(self, feature: Any, code: Any) -> Any:
        """Return the place in its column's list of the rule above a code, missing values right."""
        before = np.cumsum(self.rules_of_features) - self.rules_of_features
        before -= before[self.first_of_column][self.column]
        return before[feature] + code * (1 + self.has_missing)[feature]

    @property
    def total_weight(self) -> float:
        """Sum of the weights of all training rows."""
        return self.weights.sum().item()

    @property
    def num_observations(self) -> int:
        """Number of training rows, repeated by whole weights; other weights repeat none."""
        return int(self.total_weight) if self.has_whole_weights else len(self.weights)

    @property
    def has_weights(self) -> bool:
        """Whether a training row has another weight than 1."""
        return bool((self.weights != 1).any())

    @property
    def has_whole_weights(self) -> bool:
        """Whether all weights are whole, so that they may represent repeated rows."""
        return self.weights.dtype.kind == "i"

    @property
    def pseudo_weight(self) -> float | None:
        """Sum of weights that are not counts, which make the likelihood a pseudo-likelihood."""
        return None if self.has_whole_weights else self.total_weight

    @property
    def has_cut(self) -> np.ndarray:
        """Features with a cut, bool [d]; rules use only these."""
        return self.num_codes > 1

    @property
    def no_cut(self) -> tuple[str, ...]:
        """Names of the features without a cut, which no tree splits on.

        Examples
        --------
        >>> table = np.array([[1.0, 5.0], [1.0, 6.0], [np.nan, 6.0]])
        >>> Design.from_matrix(table, names=("constant", "size")).no_cut
        ('constant',)
        """
        return tuple(self.names[f] for f in np.flatnonzero(~self.has_cut))

    @cached_property
    def offset(self) -> np.ndarray:
        """First flat position of each feature's codes, int32 [d + 1]."""
        return np.concatenate([[0], np.cumsum(self.num_codes)]).astype(np.int32)

    def gap_threshold(self, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """Return the midpoint of the gap between the training values of two codes of one feature.

        Parameters
        ----------
        low, high
            Flat code positions on the two sides of the gap, of any shape.

        Returns
        -------
        numpy.ndarray
            float64; always greater than every value of ``low`` and at most the least value of
            ``high``.
        """
        return midpoint(self.high_edge[low], self.low_edge[high])

    def values_around(self, feature: int, threshold: float) -> tuple[float, float] | None:
        """Find the nearest training values below a threshold, and at or above it.

        Infinite if there is none; None if rows of one code are on both sides, so that the values
        are not known.
        """
        own = slice(self.offset[feature], self.offset[feature + 1])
        low, high = self.low_edge[own], self.high_edge[own]
        if np.isnan(low).all() or ((low < threshold) & (threshold <= high)).any():
            return None
        below, above = high[high < threshold], low[low >= threshold]
        return below.max(initial=-np.inf), above.min(initial=np.inf)

    def gap_width(self, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """Return the width of the gap between the training values of two codes of one feature."""
        return self.low_edge[high] - self.high_edge[low]

    def encode(self, matrix: np.ndarray) -> np.ndarray:
        """Code new rows, int32 [m, d], by the cut points of this design."""
        codes = np.full(matrix.shape, -1, dtype=np.int32)
        for j in range(self.num_features):
            cuts = self.cut_threshold[self.offset[j] + 1 : self.offset[j + 1]]
            present = ~np.isnan(matrix[:, j])
            codes[present, j] = np.searchsorted(cuts, matrix[present, j], side="right")
        return codes


@dataclass(frozen=True, eq=False)
class Design(CutPoints):
    """Rows and features as values and integer codes.

    Per-code arrays are flat over all features: code v of feature f is at ``offset[f] + v``. V is
    the number of codes of all features together.

    Attributes
    ----------
    matrix
        float64 [n, d]; the values, NaN if missing.
    codes
        int32 [n, d]; -1 if the value is missing.
    weights
        [n], above 0: the power of each row's likelihood; int64 if all are whole, which is
        equivalent to repeated rows, else float64. Priors and constraints count each row once.
    num_codes
        int32 [d]; feature f has codes 0 to ``num_codes[f] - 1``.
    cut_threshold
        float64 [V]; a row has code < v exactly if its value < ``cut_threshold[offset[f] + v]``
        (-inf at v = 0).
    low_edge, high_edge
        float64 [V]; smallest and largest training value of the code (NaN if no row has it).
    names
        Feature names.
    is_indicator
        bool [d]; the feature is a 0/1 column of a category.
    column
        int32 [d]; column of each feature, starting at 0 and increasing by 0 or 1. Features of one
        column, such as the sets of levels of a category, count as one for a prior that chooses a
        column and then a rule.
    """

    matrix: np.ndarray = field(repr=False)
    codes: np.ndarray
    weights: np.ndarray
    num_codes: np.ndarray
    cut_threshold: np.ndarray
    low_edge: np.ndarray
    high_edge: np.ndarray
    names: tuple[str, ...]
    is_indicator: np.ndarray = field(repr=False)
    column: np.ndarray = field(repr=False)

    @classmethod
    def from_matrix(
        cls,
        matrix: np.ndarray,
        *,
        weights: np.ndarray | None = None,
        bins: int | None = None,
        binning: Binning = "quantile",
        grid: int | None = None,
        cuts: Sequence[np.ndarray] | None = None,
        names: tuple[str, ...] | None = None,
        is_indicator: np.ndarray | None = None,
        column: np.ndarray | None = None,
    ) -> "Design":
        """Choose cut points from a matrix and code its rows.

        Parameters
        ----------
        matrix
            float [n, d]; NaN is missing, infinite values are rejected.
        weights
            Numbers [n] above 0, as in `Design`. Default 1.
        bins
            None keeps a cut between any two neighbouring distinct values; k gives a feature of more
            than k distinct values at most k buckets, and at least two.
        binning
            "quantile" or "uniform" (equal width); used with ``bins``. Quantiles give exactly k
            buckets: if weights are not whole, or if repeated values make quantiles coincide, cuts
            are in the k - 1 distinct gaps between values that are nearest to the shares 1/k to
            (k-1)/k.
        grid
            t cuts at the inner points of ``linspace(0, 1, t + 2)`` after scaling each feature to
            [0, 1] by its range, compared in float64 (DT-GFN, section 5.1); excludes ``bins``.
        cuts
            Cut points of each feature, d ascending float64 arrays; excludes ``bins`` and ``grid``.
        names, is_indicator, column
            Of the features, [d] each; default x0, x1, ..., all False, and separate columns.

        Raises
        ------
        ValueError
            If arguments are invalid, the matrix is empty or a value is infinite.

        Examples
        --------
        >>> import numpy as np
        >>> design = Design.from_matrix(np.array([[1.0], [2.0], [2.0], [5.0]]))
        >>> design.codes.ravel().tolist()
        [0, 1, 1, 2]
        >>> design.cut_threshold.tolist()
        [-inf, 1.5, 3.5]
        """
        matrix, names = _check_matrix(matrix, names)
        num_rows, num_features = matrix.shape
        check_cuts(bins, binning, grid)
        is_indicator = [False] * num_features if is_indicator is None else is_indicator
        column = np.arange(num_features) if column is None else column
        if cuts is not None and (bins is not None or grid is not None or len(cuts) != num_features):
            raise ValueError("cuts must be given for every feature, without bins and grid.")
        weights = np.ones(num_rows, np.int64) if weights is None else _check_weights(weights)
        if len(weights) != num_rows:
            raise ValueError(f"weights has {len(weights)} entries for {num_rows} rows.")

        codes = np.full(matrix.shape, -1, dtype=np.int32, order="F")

        def code_column(j: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            """Fill a column of codes; return its thresholds and edges."""
            column = matrix[:, j].copy()
            missing = np.isnan(column)
            present = ~missing if missing.any() else slice(None)
            values = column[present]
            if cuts is not None:
                points = cuts[j]
            elif grid is not None or bins is not None:
                points = choose_cuts(
                    values, weights[present], bins=bins, binning=binning, grid=grid
                )
            else:
                points = None
            if points is None:
                codes[present, j], low = _rank(values)
                high, points = low, _midpoint_cuts(low)
            else:
                codes[present, j] = np.searchsorted(points, values, side="right")
                low, high = _edges(codes[present, j], values, len(points) + 1)
            return np.concatenate([[-np.inf], points]), low, high

        coded = in_threads(code_column, range(num_features), num_rows)
        thresholds, lows, highs = zip(*coded, strict=True)
        return cls(
            matrix=matrix,
            codes=codes,
            weights=weights,
            num_codes=np.array([len(t) for t in thresholds], np.int32),
            cut_threshold=np.concatenate(thresholds),
            low_edge=np.concatenate(lows),
            high_edge=np.concatenate(highs),
            names=names,
            is_indicator=np.asarray(is_indicator),
            column=np.asarray(column, np.int32),
        )

    @property
    def num_rows(self) -> int:
        """Number of rows n, whatever their weights."""
        return self.codes.shape[0]

    @cached_property
    def feature_of_code(self) -> np.ndarray:
        """Feature of each flat code position, int32 [V]."""
        return np.repeat(np.arange(self.num_features, dtype=np.int32), self.num_codes)

    @cached_property
    def has_missing(self) -> np.ndarray:
        """Features with a missing value in training, bool [d].

        Their rules exist twice: with missing rows left, or right.
        """
        return np.asarray((self.codes < 0).any(axis=0))

    def take(self, rows: np.ndarray) -> "Design":
        """Select rows, under the same cut points."""
        return replace(
            self, matrix=self.matrix[rows], codes=self.codes[rows], weights=self.weights[rows]
        )

    def beside(self, other: "Design") -> "Design":
        """Append the features of another design of the same rows."""

        def joined(name: str, axis: int) -> np.ndarray:
            return np.concatenate([getattr(self, name), getattr(other, name)], axis=axis)

        per_row, per_code = ("matrix", "codes"), ("cut_threshold", "low_edge", "high_edge")
        per_feature = "num_codes", "is_indicator"
        return Design(
            **{name: joined(name, 1) for name in per_row},
            **{name: joined(name, 0) for name in (*per_code, *per_feature)},
            column=np.append(self.column, self.num_columns + other.column),
            weights=self.weights,
            names=self.names + other.names,
        )


@dataclass(frozen=True, eq=False)
class RowlessDesign(CutPoints):
    """Cut points of rows that are not stored, such as rows that came in parts.

    Methods that need the rows raise a ValueError.

    Attributes
    ----------
    num_codes, cut_threshold, low_edge, high_edge, names, is_indicator, column
        As in `Design`.
    has_missing
        bool [d]; features with a missing value in training.
    count
        Number of training rows, repeated by whole weights.
    pseudo_weight
        Sum of weights that are not counts; None for counts.
    """

    num_codes: np.ndarray
    cut_threshold: np.ndarray
    low_edge: np.ndarray
    high_edge: np.ndarray
    names: tuple[str, ...]
    is_indicator: np.ndarray = field(repr=False)
    column: np.ndarray = field(repr=False)
    has_missing: np.ndarray
    count: int
    pseudo_weight: float | None = None  # pyright: ignore

    num_rows: ClassVar[int] = 0
    """Number of rows that are kept."""

    @property
    def num_observations(self) -> int:
        """Number of training rows."""
        return self.count

    def _lacks_rows(self) -> Any:
        raise ValueError(
            "The training rows are needed, but they came in parts and were not kept: fit a sample "
            "of the rows in memory."
        )

    matrix = codes = weights = property(_lacks_rows)  # pyright: ignore


def _is_integer(value) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _check_matrix(matrix: Any, names: Any) -> tuple[np.ndarray, tuple[str, ...]]:
    """Read a matrix, and name its columns."""
    matrix = np.asarray(matrix, dtype=np.float64)
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise ValueError(f"The matrix must be [rows, features], not empty; got {matrix.shape}.")
    names = tuple(f"x{j}" for j in range(matrix.shape[1])) if names is None else tuple(names)
    infinite = np.argwhere(np.isinf(matrix))
    if len(infinite):
        row, column = infinite[0]
        raise ValueError(f"Column {names[column]!r}, row {row}: the value is infinite (inf).")
    return matrix, names


def _check_weights(weights: np.ndarray) -> np.ndarray:
    weights = as_weights(weights)
    bad = np.flatnonzero(~((weights > 0) & (weights < np.inf)))
    if bad.size:
        raise ValueError(f"Weights must be above 0 and finite; row {bad[0]} has {weights[bad[0]]}.")
    return weights


def as_weights(values: Any) -> np.ndarray:
    """Convert numbers [n] to int64 if all are whole and their sum is exact, else to float64."""
    weights = np.asarray(values, np.float64)
    is_whole = (weights == np.floor(weights)).all() and weights.sum() < 2**53
    return weights.astype(np.int64) if is_whole else weights


def midpoint(low: Any, high: Any, xp: ModuleType = np) -> Any:
    """Return the midpoint, which rounding never puts onto ``low``, so that low < cut <= high.

    Arrays are those of a namespace, `numpy` or `jax.numpy`.
    """
    middle = low / 2 + high / 2
    return xp.where(middle > low, xp.minimum(middle, high), high)


def _midpoint_cuts(distinct: np.ndarray) -> np.ndarray:
    return midpoint(distinct[:-1], distinct[1:])


def _rank(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Replace each value by the number of its distinct value, int32, and list these in order."""
    if not len(values):
        return np.empty(0, np.int32), np.array([np.nan])
    # NumPy sorts integers many times faster than it finds an order, so each carries its place in
    # its lowest bits; if these bits distinguish values, the order is computed instead.
    place_bits = np.uint64(max(1, (len(values) - 1).bit_length()))
    places = (np.uint64(1) << place_bits) - np.uint64(1)
    words = _ordered(values).view(np.uint64) ^ np.uint64(1 << 63)
    words = (words & ~places) | np.arange(len(values), dtype=np.uint64)
    words.sort()
    order = (words & places).astype(np.int64)
    in_order = values[order]
    if (in_order[1:] < in_order[:-1]).any():
        order = np.argsort(values, kind="stable")
        in_order = values[order]
    is_new = np.empty(len(values), bool)
    is_new[0] = True
    np.not_equal(in_order[1:], in_order[:-1], out=is_new[1:])
    codes = np.empty(len(values), np.int32)
    codes[order] = np.cumsum(is_new, dtype=np.int32) - np.int32(1)
    return codes, in_order[is_new]


def check_cuts(bins: int | None, binning: str, grid: int | None) -> None:
    """Raise ValueError unless these cut points can be chosen (`Design.from_matrix`)."""
    if bins is not None and (not _is_integer(bins) or bins < 2):
        raise ValueError(f"bins must be None or an integer of at least 2; got {bins!r}.")
    if grid is not None and (not _is_integer(grid) or grid < 1):
        raise ValueError(f"grid must be None or an integer of at least 1; got {grid!r}.")
    if grid is not None and grid > MOST_GRID_CUTS:
        raise ValueError(
            f"grid must be at most {MOST_GRID_CUTS:,}; got {grid:,}. More cuts than gaps between "
            "values separate no further rows: grid=None with bins=None has a cut in each gap."
        )
    if bins is not None and grid is not None:
        raise ValueError("bins and grid cannot be combined; pass only one.")
    require_choice("binning", binning, ("quantile", "uniform"))


def choose_cuts(
    values: np.ndarray,
    weights: np.ndarray,
    *,
    bins: int | None,
    binning: Binning = "quantile",
    grid: int | None = None,
) -> np.ndarray:
    """Choose the cut points of a feature, ascending float64, as `Design.from_matrix` describes.

    Parameters
    ----------
    values
        float64 [n]; values, none missing.
    weights
        [n]; the weight of each.
    bins, binning, grid
        Buckets, or the number of cuts of a grid.
    """
    if grid is not None:
        return _grid_cuts(values, grid)
    assert bins is not None
    return _bucket_cuts(values, weights, bins, binning)


def _bucket_cuts(
    values: np.ndarray, weights: np.ndarray, bins: int, binning: Binning
) -> np.ndarray:
    """Return cuts between at most ``bins`` nonempty buckets; at least one if values differ."""
    distinct = np.unique(values)
    if len(distinct) <= bins:
        return _midpoint_cuts(distinct)
    if binning == "uniform":
        edges = np.linspace(distinct[0], distinct[-1], bins + 1)[1:-1]
    elif weights.dtype.kind == "i":
        edges = _quantiles(values, weights, np.arange(1, bins) / bins)
    else:
        edges = np.empty(0)
    # An edge is not a cut if it separates no training values, or the same ones as the previous
    # edge.
    buckets = np.searchsorted(np.unique(edges), distinct, side="right")
    gaps = np.flatnonzero(np.diff(buckets))
    if binning == "quantile" and len(gaps) < bins - 1:  # such as values that fill whole buckets
        held = np.bincount(np.searchsorted(distinct, values), weights)
        gaps = _nearest_gaps(np.cumsum(held)[:-1], held.sum(), bins)
    return midpoint(distinct[gaps], distinct[gaps + 1])


def _nearest_gaps(below: np.ndarray, total: float, bins: int) -> np.ndarray:
    """Choose ``bins - 1`` gaps that divide the rows as nearly as possible into equal buckets.

    Gap g has the share ``below[g] / total`` of the rows below it. The shares 1/bins, ..., (bins -
    1)/bins get one gap each, in order, with the least sum of distances from the shares of the gaps;
    ties choose the lowest gaps. A dynamic programme finds this alignment of two ordered lists.

    Parameters
    ----------
    below
        float64 [gaps], increasing; weight of the rows below each gap, at least ``bins - 1`` gaps.
    total
        Weight of all rows.
    bins
        Number of buckets.

    Returns
    -------
    numpy.ndarray
        int64 [bins - 1], increasing; the gaps.
    """
    # Distances times bins * total are whole if weights are, so ties are exact.
    wanted = np.arange(1.0, bins) * total
    # Other shares use at most bins - 2 of the bins - 1 gaps on either side of one: one is left.
    beside = np.searchsorted(bins * below, wanted)[:, None] + np.arange(1 - bins, bins - 1)
    windows = np.clip(beside, 0, len(below) - 1)
    sums, gaps, least = [], windows[0, :0], np.zeros(1)
    for window, share in zip(windows, wanted, strict=True):
        before = least[np.searchsorted(gaps, window)]  # of the preceding shares, by lower gaps
        sums.append(before + np.abs(bins * below[window] - share))
        gaps, least = window, np.append(np.inf, np.minimum.accumulate(sums[-1]))
    chosen, end = [], len(below)
    for window, sum_up_to in zip(windows[::-1], sums[::-1], strict=True):
        end = window[np.argmin(sum_up_to[: np.searchsorted(window, end)])]
        chosen.append(end)
    return np.array(chosen[::-1])


def _quantiles(values: np.ndarray, weights: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Return linear-interpolation quantiles of repeated values, without repeating them."""
    if (weights == 1).all():  # NumPy sorts numbers many times faster than it finds an order
        in_order, last = np.sort(values), np.arange(1, len(values) + 1)
    else:
        order = np.argsort(values, kind="stable")
        in_order, last = values[order], np.cumsum(weights[order])
    position = levels * (last[-1] - 1)
    floor = np.floor(position)
    below = in_order[np.searchsorted(last, floor, side="right")]
    above = in_order[np.searchsorted(last, np.ceil(position), side="right")]
    return below + (above - below) * (position - floor)


def _grid_cuts(values: np.ndarray, grid: int) -> np.ndarray:
    """Return raw thresholds that reproduce ``scaled < grid point`` in float64 exactly.

    Data may be on grid points (as in iris), so the raw threshold is the smallest float whose scaled
    value reaches the grid point, found by bisection over the ordered floats.
    """
    if values.size == 0 or values.min() == values.max():
        return np.empty(0)
    least, span = values.min(), values.max() - values.min()
    points = np.linspace(0, 1, grid + 2)[1:-1]
    low = np.full(grid, _ordered(least))
    high = np.full(grid, _ordered(values.max()))
    while (high > low + 1).any():
        middle = (low >> 1) + (high >> 1) + (low & high & 1)
        reached = (_unordered(middle) - least) / span >= points
        high = np.where(reached, middle, high)
        low = np.where(reached, low, middle)
    return _unordered(high)


def _ordered(values: np.ndarray) -> np.ndarray:
    """Map floats to integers in the same order."""
    bits = np.asarray(values, np.float64).view(np.int64)
    return np.where(bits < 0, np.int64(-(2**63)) - bits, bits)


def _unordered(integers: np.ndarray) -> np.ndarray:
    return np.where(integers < 0, np.int64(-(2**63)) - integers, integers).view(np.float64)


def _edges(codes: np.ndarray, values: np.ndarray, num_codes: int) -> tuple[np.ndarray, np.ndarray]:
    low = np.full(num_codes, np.inf)
    high = np.full(num_codes, -np.inf)
    np.minimum.at(low, codes, values)
    np.maximum.at(high, codes, values)
    empty = low > high
    low[empty], high[empty] = np.nan, np.nan
    return low, high
