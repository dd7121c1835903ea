"""Rows in parts: two passes find the cut points and fill the histograms.

A pass is a map and a reduction. Each part of the rows becomes a small summary, and summaries merge.
The first pass (`Survey`) infers the kinds of columns, sketches their values and summarises the
targets; cut points follow from it. The second pass (`BoxTally`) fills histograms between these
points. A pass has no more than one part in memory. Anything that can map and reduce can run it,
such as `Chunks` in this process.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from bdtppl.inference.boxes.histograms import BoxHistograms, row_keys
from bdtppl.inference.boxes.space import BoxSpace
from bdtppl.models.data.design import Binning, Design, RowlessDesign, as_weights, choose_cuts
from bdtppl.models.data.schema import Categories, Column, Schema
from bdtppl.models.leaf import Leaf
from bdtppl.models.row_statistics import row_statistics

_MOST_VALUES = 1 << 14  # entries of a sketch: 256 kB a column

Merged = TypeVar("Merged")


class Part(NamedTuple):
    """Some rows [n]: a table, targets, and weights or None."""

    X: Any
    y: Any
    weights: Any = None


class Parts(Protocol):
    """Rows in parts, which can be read several times."""

    @property
    def example(self) -> Any:
        """Return a table with the columns of every part."""
        ...

    def reduce(
        self, summarise: Callable[[Part], Merged | None], merge: Callable[[Merged, Merged], Merged]
    ) -> Merged | None:
        """Summarise each part and merge the summaries in pairs; None represents no rows."""
        ...


class Chunks:
    """Parts from an iterable, one after the other in this process.

    Parameters
    ----------
    make
        Returns the parts as tuples (X, y) or (X, y, weights), anew for each pass.
    """

    def __init__(self, make: Callable[..., Any]):
        self.make = make
        self._last = None

    def _anew(self) -> Iterable[tuple]:
        made, last = self.make(), self._last
        if made is last and isinstance(made, Iterator):
            raise TypeError(
                "The function must return a new iterator on each call; it returned the same one "
                "again."
            )
        self._last = made
        return made

    @property
    def example(self) -> Any:
        """Return the table of the first part."""
        for X, *_ in self._anew():
            return X
        raise ValueError("There must be at least one chunk.")

    def reduce(self, summarise, merge):
        """Summarise each part and merge the summaries like `in_pairs`, storing few of them."""
        kept: list[tuple[int, Any]] = []  # summaries of 2^level parts each
        for chunk in self._anew():
            level, summary = 0, summarise(Part(*chunk))
            while kept and kept[-1][0] == level:
                level, summary = level + 1, _merged(merge, kept.pop()[1], summary)
            kept.append((level, summary))
        total = kept.pop()[1] if kept else None
        while kept:
            total = _merged(merge, kept.pop()[1], total)
        return total


def in_pairs(summaries: Sequence[Any], merge: Callable[[Any, Any], Any]) -> Any:
    """Merge neighbours until one summary is left, so that rounding depends only on the parts."""
    while len(summaries) > 1:
        pairs = [summaries[i : i + 2] for i in range(0, len(summaries), 2)]
        summaries = [_merged(merge, *pair) if len(pair) == 2 else pair[0] for pair in pairs]
    return summaries[0] if summaries else None


def _merged(merge: Callable[[Any, Any], Any], one: Any, other: Any) -> Any:
    if one is None or other is None:
        return other if one is None else one
    return merge(one, other)


# Summaries of columns and targets.


@dataclass(frozen=True, eq=False)
class Sketch:
    """Values of a column, or of at most 2^14 groups of neighbours one value each.

    All distinct values are stored up to that number. Beyond it, ranks from p parts have an error of
    at most (1 + log2 p) / 16382 of the rows, log2 rounded up; both ends stay exact.

    Attributes
    ----------
    values
        float64 [m], ascending.
    counts
        [m]; weight of each, int64 if all are whole.
    error
        Largest error of a rank, in weight; 0 while all distinct values are stored.
    """

    values: np.ndarray
    counts: np.ndarray
    error: float = 0

    @classmethod
    def of(cls, values: np.ndarray, weights: np.ndarray, error: float = 0) -> "Sketch":
        """Sketch values [n] with weights [n] whose ranks already have this error."""
        if (weights == 1).all():
            distinct, counts = np.unique(values, return_counts=True)
        else:
            distinct, place = np.unique(values, return_inverse=True)
            counts = as_weights(np.bincount(place, weights))
        return cls(distinct, counts, error)._within_limit()

    def merge(self, other: "Sketch") -> "Sketch":
        """Merge two sketches."""
        values = np.concatenate([self.values, other.values])
        counts = np.concatenate([self.counts, other.counts])
        return Sketch.of(values, counts, self.error + other.error)

    def rank(self, values: np.ndarray) -> np.ndarray:
        """Estimate the weight of the rows below values [k]."""
        below = np.append(0, np.cumsum(self.counts))
        return below[np.searchsorted(self.values, values)]

    def _within_limit(self) -> "Sketch":
        """Replace each group of neighbours by its weighted median, if necessary."""
        if len(self.values) <= _MOST_VALUES:
            return self
        through = np.cumsum(self.counts)
        before = through - self.counts
        group = before * (_MOST_VALUES - 2) // through[-1]
        group[0], group[-1] = -1, _MOST_VALUES
        first = np.flatnonzero(np.diff(group, prepend=-2))
        total = np.add.reduceat(self.counts, first)
        median = np.searchsorted(through, before[first] + total / 2)
        beside = before[median] - before[first], before[first] + total - through[median]
        return Sketch(self.values[median], total, self.error + np.maximum(*beside).max().item())


@dataclass(frozen=True, eq=False)
class Labels:
    """Distinct labels of some rows, sorted."""

    values: np.ndarray

    @classmethod
    def of(cls, y: np.ndarray, weights: np.ndarray) -> "Labels":
        """List the labels of rows [n]."""
        return cls(np.unique(y))

    def merge(self, other: "Labels") -> "Labels":
        """Merge the labels of both."""
        return Labels(np.unique(np.concatenate([self.values, other.values])))


@dataclass(frozen=True, eq=False)
class TargetMoments:
    """Moments and range of the targets of some rows.

    Attributes
    ----------
    count
        Weight of the rows.
    mean
        Their mean.
    squares
        Sum of the squared distances from it.
    least, greatest
        Range of the targets.

    References
    ----------
    Chan, Golub and LeVeque 1983, for the merge.
    """

    count: float
    mean: float
    squares: float
    least: float
    greatest: float

    @classmethod
    def of(cls, y: np.ndarray, weights: np.ndarray) -> "TargetMoments":
        """Summarise targets [n] with weights [n]."""
        mean = float(np.average(y, weights=weights))
        squares = float(weights @ (y - mean) ** 2)
        return cls(float(weights.sum()), mean, squares, float(y.min()), float(y.max()))

    def merge(self, other: "TargetMoments") -> "TargetMoments":
        """Merge the moments of both."""
        count, distance = self.count + other.count, other.mean - self.mean
        return TargetMoments(
            count,
            self.mean + distance * other.count / count,
            self.squares + other.squares + distance**2 * self.count * other.count / count,
            min(self.least, other.least),
            max(self.greatest, other.greatest),
        )

    @property
    def variance(self) -> float:
        """Mean squared distance from the mean."""
        return self.squares / self.count


@dataclass(frozen=True, eq=False)
class Survey:
    """Summary of rows from the first pass.

    Attributes
    ----------
    columns
        Columns of the table, as inferred from the rows so far.
    values
        By column: a `Sketch`, or the number of rows of each level of a category; the weight of each
        level of an ordered one.
    num_missing
        int64 [columns]; rows without a value.
    count
        Number of rows, whatever their weights.
    total_weight
        Sum of the weights of the rows.
    has_weights, has_whole_weights
        Whether a row has another weight than 1; whether all weights are whole.
    targets
        `Labels` or `TargetMoments`.
    """

    columns: tuple[Column, ...]
    values: tuple[Any, ...]
    num_missing: np.ndarray
    count: int
    total_weight: float
    has_weights: bool
    has_whole_weights: bool
    targets: Any

    @classmethod
    def of(cls, X: Any, weights: np.ndarray, targets: Any) -> "Survey":
        """Survey a table [n, columns] of rows with weights [n] and summarised targets.

        Raises
        ------
        ValueError, TypeError
            If the table cannot be read (`Schema.read`).
        """
        schema, matrix = Schema.read(X, categories="one-hot")
        if len(matrix) != len(weights):
            raise ValueError(
                f"A part has {len(matrix)} rows of X and {len(weights)} of y (inconsistent "
                f"numbers)."
            )
        matrix, weights = matrix[weights > 0], weights[weights > 0]
        values, num_missing, start = [], [], 0
        for column in schema.columns:
            own = matrix[:, start : start + len(column.features)]
            start += len(column.features)
            present = ~np.isnan(own).any(axis=1) & bool(column.features)
            if column.levels is None:
                values.append(Sketch.of(own[present, 0], weights[present]))
            elif column.is_ordered:
                places = own[present, 0].astype(int)
                counts = np.bincount(places, weights[present], minlength=len(column.levels))
                values.append(dict(zip(column.levels, as_weights(counts).tolist(), strict=True)))
            else:
                sums = own[present].sum(axis=0).tolist()
                alone = dict(zip(column.sets, sums, strict=True))
                rest = present.sum() - sum(alone.values())
                values.append({level: int(alone.get((level,), rest)) for level in column.levels})
            num_missing.append(int((~present).sum()))
        of_weights = float(weights.sum()), bool((weights != 1).any()), weights.dtype.kind == "i"
        values, num_missing = tuple(values), np.array(num_missing)
        return cls(schema.columns, values, num_missing, len(weights), *of_weights, targets)

    def merge(self, other: "Survey") -> "Survey":
        """Merge two surveys.

        Raises
        ------
        ValueError
            If columns have other names, or contain numbers in one part and categories in another.
        """
        names = [[column.name for column in each.columns] for each in (self, other)]
        if names[0] != names[1]:
            raise ValueError(f"Parts have different columns: {names[0]} and {names[1]}.")
        pairs = zip(self.columns, self.values, other.columns, other.values, strict=True)
        merged = [_merged_column(*pair) for pair in pairs]
        return Survey(
            tuple(column for column, _ in merged),
            tuple(values for _, values in merged),
            self.num_missing + other.num_missing,
            self.count + other.count,
            self.total_weight + other.total_weight,
            self.has_weights or other.has_weights,
            self.has_whole_weights and other.has_whole_weights,
            self.targets.merge(other.targets),
        )

    def schema(self, *, categories: Categories, drop_first: bool = False) -> Schema:
        """Return how tables are read, as `Schema.read` would infer from all rows."""
        return Schema(
            tuple(
                Column.of(
                    each.name,
                    each.levels,
                    categories=categories,
                    drop_first=drop_first,
                    is_ordered=each.is_ordered,
                    marks_missing=0 < missing < self.count,
                )
                for each, missing in zip(self.columns, self.num_missing.tolist(), strict=True)
            )
        )

    def design(
        self, schema: Schema, *, bins: int | None, binning: Binning, grid: int | None
    ) -> RowlessDesign:
        """Choose cut points; the training values of codes are not known yet.

        Parameters
        ----------
        schema
            How tables are read.
        bins, binning, grid
            As for `Design.from_matrix`; one of ``bins`` and ``grid`` is given.
        """
        sketches, has_missing = [], []
        for column, values, missing in zip(
            schema.columns, self.values, self.num_missing, strict=True
        ):
            own = [values]
            if column.is_ordered:
                counts = np.array(list(values.values()))
                own = [Sketch(np.flatnonzero(counts).astype(float), counts[counts > 0])]
            elif column.levels is not None:
                present = sum(values.values())
                own = [
                    _of_level(sum(values[level] for level in levels), present)
                    for levels in column.sets
                ]
            sketches += own
            has_missing += [bool(missing)] * len(own)
        for column, missing in zip(schema.columns, self.num_missing, strict=True):
            if column.marks_missing:
                sketches.append(_of_level(missing, self.count))
                has_missing.append(False)
        one = 1 if self.has_whole_weights else 1.0  # sums of others may be whole
        cuts = [
            np.concatenate(
                [
                    [-np.inf],
                    choose_cuts(s.values, s.counts * one, bins=bins, binning=binning, grid=grid),
                ]
            )
            for s in sketches
        ]
        unknown = np.full(sum(map(len, cuts)), np.nan)
        return RowlessDesign(
            num_codes=np.array([len(each) for each in cuts], np.int32),
            cut_threshold=np.concatenate(cuts),
            low_edge=unknown,
            high_edge=unknown,
            names=schema.features,
            is_indicator=schema.is_indicator,
            column=schema.column,
            has_missing=np.array(has_missing),
            count=int(self.total_weight) if self.has_whole_weights else self.count,
            pseudo_weight=None if self.has_whole_weights else self.total_weight,
        )


def _of_level(count: int, present: int) -> Sketch:
    """Sketch the 0/1 column of a level that some of the present rows have."""
    counts = np.array([present - count, count])
    return Sketch(np.array([0.0, 1.0])[counts > 0], counts[counts > 0])


def _merged_column(one: Column, values: Any, other: Column, others: Any) -> tuple[Column, Any]:
    """Merge two views of a column; a view without values does not determine its kind."""
    if (one.levels is None) != (other.levels is None):
        if _is_empty(values):
            return other, others
        if _is_empty(others):
            return one, values
        raise ValueError(
            f"Column {one.name!r} contains numbers in some parts and categories in others: use one "
            "type in all of them."
        )
    if one.levels is None or other.levels is None:
        return one, values.merge(others)
    levels = one.levels
    if levels != other.levels:
        if one.is_ordered or other.is_ordered:
            raise ValueError(
                f"Column {one.name!r} has different ordered levels in some parts: use one type in "
                "all of them."
            )
        levels = tuple(sorted({*one.levels, *other.levels}))
    counts = {level: values.get(level, 0) + others.get(level, 0) for level in levels}
    return replace(one, levels=levels), counts


def _is_empty(values: Any) -> bool:
    """Return whether a column's summary contains no rows."""
    return not (values.counts.size if isinstance(values, Sketch) else any(values.values()))


# Histograms.


@dataclass(frozen=True, eq=False)
class BoxTally:
    """Result of the second pass: histograms, and the range of the values of each code.

    Attributes
    ----------
    values, keys
        Sums of `BoxHistograms`.
    low_edge, high_edge
        float64 [V]; as in `Design`.
    count
        Number of rows, repeated by their weights if those of all parts are whole.
    """

    values: np.ndarray
    keys: np.ndarray
    low_edge: np.ndarray
    high_edge: np.ndarray
    count: int

    @classmethod
    def of(
        cls,
        matrix: np.ndarray,
        y: np.ndarray,
        weights: np.ndarray,
        *,
        cut_points: RowlessDesign,
        space: BoxSpace,
        leaf: Leaf,
        with_keys: bool,
        counts_apart: bool,
    ) -> "BoxTally":
        """Fill histograms with rows [n, d], targets [n] and weights [n], at least one row."""
        ends = cut_points.offset.tolist()
        cuts = [cut_points.cut_threshold[a + 1 : b] for a, b in pairwise(ends)]
        design = Design.from_matrix(matrix, weights=weights, cuts=cuts, names=cut_points.names)
        rows = row_statistics(leaf, y, weights)
        if counts_apart:
            rows = np.insert(rows, 0, 1.0, axis=1)
        histograms = BoxHistograms(space, rows.shape[1], with_keys=with_keys)
        histograms.add(design.codes, rows, row_keys(design.codes) if with_keys else None)
        edges = design.low_edge, design.high_edge
        is_whole = cut_points.pseudo_weight is None
        count = design.num_observations if is_whole else design.num_rows
        return cls(*histograms.sums(), *edges, count)

    def merge(self, other: "BoxTally") -> "BoxTally":
        """Merge the tallies of both."""
        return BoxTally(
            self.values + other.values,
            self.keys + other.keys,
            np.fmin(self.low_edge, other.low_edge),
            np.fmax(self.high_edge, other.high_edge),
            self.count + other.count,
        )
