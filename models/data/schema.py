"""Conversion of tables to matrices of numbers.

A table (NumPy array, frame of pandas, polars or pyarrow, mapping of names to columns) is read once
into a float64 matrix with NaN for missing values; a scipy sparse one stays sparse. A numeric column
is not changed. A categorical one becomes 0/1 columns, one for each level or for each split of its
levels in two (a single column for two levels). Each column with missing values gets a further 0/1
column at the end, which marks them, so that rules can use this. The schema stores the conversion,
so that new rows are read the same way. Errors name the column and row that cannot be read.
"""

import itertools
import math
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from scipy.sparse import issparse

from bdtppl.models.data.number_notation import undecorated_numbers
from bdtppl.models.data.tables import (
    are_dates,
    are_identifiers,
    as_categories,
    as_level,
    as_numbers,
    converts_to_float,
    counts_rows,
    declared_levels,
    error_of_times,
    has_names,
    is_missing,
    named_columns,
    positional_names,
    require_distinct,
    require_storable,
    sparse_numbers,
)
from bdtppl.models.wording import listed

Categories = Literal["sets", "one-hot"]

MOST_IN_SETS = 6
"""Most levels of a category that is parted in all ways; k levels have 2^(k - 1) - 1."""

_FEWEST_SETS = 63  # for a category of more levels


class TableWarning(UserWarning):
    """A column was read, but its kind is probably different."""


@dataclass(frozen=True)
class Column:
    """One column of the source table.

    Attributes
    ----------
    name
        Its name in the table.
    levels
        None for a numeric column, else the levels of a categorical one, as text.
    sets
        The sets of levels that get a 0/1 column each; empty for a column of numbers or of levels in
        an order.
    marks_missing
        Whether a 0/1 column marks its missing values.
    is_ordered
        Whether its levels are ordered, and its values become their places in the order.
    is_one
        Whether its 0/1 columns count as one column for a prior (see `Design`).
    """

    name: str
    levels: tuple[str, ...] | None = None
    sets: tuple[tuple[str, ...], ...] = ()
    marks_missing: bool = False
    is_ordered: bool = False
    is_one: bool = False

    @classmethod
    def of(
        cls,
        name: str,
        levels: tuple[str, ...] | None,
        *,
        categories: Categories = "one-hot",
        drop_first: bool = False,
        marks_missing: bool = False,
        is_ordered: bool = False,
    ) -> "Column":
        """Assign 0/1 columns to sets of levels.

        "sets" are distinct splits of the levels in two: all for up to `MOST_IN_SETS` levels. For
        more levels, they are each level alone, plus random sets up to a total of 63; the random
        sets are the same for any table. With "one-hot" each level has a column, except the first of
        two levels, or with ``drop_first``.

        Raises
        ------
        ValueError
            If ``drop_first`` is given with "sets".
        """
        if drop_first and categories == "sets":
            raise ValueError("drop_first=True needs categories='one-hot'.")
        if levels is None or is_ordered:
            return cls(name, levels, (), marks_missing, is_ordered)
        is_one, k = categories == "sets" and len(levels) > 2, len(levels)
        sets = [(level,) for level in levels[1 if drop_first or k == 2 else 0 :]]
        if is_one and k <= MOST_IN_SETS:
            sets = [own for size in range(1, k) for own in itertools.combinations(levels[1:], size)]
        elif is_one:
            rng, drawn = np.random.default_rng(k), {}  # a dictionary, whose keys are ordered
            while len(drawn) < max(_FEWEST_SETS - k, k):
                held = rng.random(k) < 0.5
                one = tuple(itertools.compress(levels, held != held[0]))  # without the first level
                if 1 < len(one) < k - 1:
                    drawn[one] = None
            sets += drawn
        return cls(name, levels, tuple(sets), marks_missing and bool(sets), is_one=is_one)

    @property
    def has_cuts(self) -> bool:
        """Whether its values are numbers or ordered levels."""
        return self.levels is None or self.is_ordered

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the numeric features that its values become."""
        if self.has_cuts:
            return (self.name,)
        return tuple(_membership(self.name, levels) for levels in self.sets)

    @cached_property
    def indicators(self) -> np.ndarray:
        """Values of the 0/1 columns for each level, float64 [levels, columns]."""
        held = [[level in levels for levels in self.sets] for level in self.levels or ()]
        return np.array(held, float).reshape(len(held), len(self.sets))

    def level_of(self, matrix: np.ndarray) -> np.ndarray:
        """Return the place of the level in each row of 0/1 columns [n, columns], int64 [n]."""
        agreeing = matrix @ self.indicators.T + (1 - matrix) @ (1 - self.indicators.T)
        return agreeing.argmax(axis=1)

    @property
    def hidden(self) -> str | None:
        """First level that has 0 in all 0/1 columns; None if there is none."""
        rows = zip(self.levels or (), self.indicators, strict=True)
        return next((level for level, row in rows if not row.any()), None)

    @property
    def missing_feature(self) -> tuple[str, ...]:
        """Name of the feature that is 1 if the value is missing; None if there is none."""
        if not self.marks_missing:
            return ()
        words = itertools.chain(["missing"], (f"missing, {n}" for n in itertools.count(2)))
        word = next(word for word in words if word not in (self.levels or ()))
        return (f"{self.name}={word}",)


@dataclass(frozen=True)
class Schema:
    """Rules for reading a table into a matrix of numbers.

    Examples
    --------
    >>> import numpy as np
    >>> schema, matrix = Schema.read(np.array([[1.0, 2.0], [3.0, np.nan]]))
    >>> schema.features
    ('x0', 'x1', 'x1=missing')
    >>> matrix[:, 2].tolist()
    [0.0, 1.0]
    """

    columns: tuple[Column, ...]

    def __post_init__(self):
        """Reject names that files cannot store, and names that occur twice."""
        owner: dict[str, Column] = {}
        for column in self.columns:
            for text in (column.name, *(column.levels or ())):
                require_storable(f"Column {column.name!r}", text)
            for name in {column.name, *column.features, *column.missing_feature}:
                other = owner.setdefault(name, column)
                if other is not column:
                    raise ValueError(
                        f"Columns {other.name!r} and {column.name!r} would both be called "
                        f"{name!r}, because of a level or of missing values: rename one."
                    )

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the matrix's columns."""
        return tuple(
            name
            for part in ("features", "missing_feature")
            for column in self.columns
            for name in getattr(column, part)
        )

    @property
    def sources(self) -> tuple[tuple[int, tuple[str, ...], bool], ...]:
        """Origin of each of the matrix's columns.

        The position of a column of the table, the levels that have 1 in a 0/1 column of a category,
        and whether the matrix's column marks missing values.
        """
        values = [
            (position, levels, False)
            for position, column in enumerate(self.columns)
            for levels in (((),) if column.has_cuts else column.sets)
        ]
        marks = [
            (position, (), True)
            for position, column in enumerate(self.columns)
            if column.marks_missing
        ]
        return (*values, *marks)

    @property
    def is_indicator(self) -> np.ndarray:
        """Return which of the matrix's columns are 0/1 columns, bool [d]."""
        return np.array(
            [bool(levels) or is_mark for _, levels, is_mark in self.sources], dtype=bool
        )

    @property
    def column(self) -> np.ndarray:
        """Column of each feature, for priors that choose a column, int32 [d] (see `Design`)."""
        owner = [
            (position, is_mark, 0 if self.columns[position].is_one else place)
            for place, (position, _, is_mark) in enumerate(self.sources)
        ]
        is_new = [own != before for own, before in zip(owner[1:], owner[:-1], strict=True)]
        return np.cumsum([False, *is_new][: len(owner)]).astype(np.int32)

    def features_of(self, names: Iterable[int | str]) -> tuple[int | str, ...]:
        """Replace the names of columns by those of their features, and keep all other names.

        Examples
        --------
        >>> schema = Schema(
        ...     (Column("size", marks_missing=True), Column.of("hue", ("blue", "red")))
        ... )
        >>> schema.features_of(["size", "hue", 1])
        ('size', 'size=missing', 'hue=red', 1)
        """
        columns: dict[Any, Any] = {
            column.name: (*column.features, *column.missing_feature) for column in self.columns
        }
        return tuple(name for given in names for name in columns.get(given, (given,)))

    def marks_of(self, features: Iterable[int | str]) -> tuple[str, ...]:
        """Name the features that mark missing values of columns, given by name or index.

        Examples
        --------
        >>> schema = Schema((Column("size", marks_missing=True), Column.of("hue", ("red",))))
        >>> schema.marks_of(["size", "hue"]), schema.marks_of([0])
        (('size=missing',), ('size=missing',))
        """
        positions = dict.fromkeys(_find_column(self, feature) for feature in features)
        return tuple(
            name
            for position in positions
            if position is not None
            for name in self.columns[position].missing_feature
        )

    def of_rows(self, matrix: np.ndarray) -> tuple["Schema", np.ndarray]:
        """Mark missing values by some rows [m, d] alone, such as those of positive weight."""
        columns = [replace(column, marks_missing=False) for column in self.columns]
        num_values = sum(len(column.features) for column in columns)
        return self._marking_missing(columns, matrix[:, :num_values])

    @classmethod
    def read(
        cls,
        table: Any,
        *,
        categories: Categories = "one-hot",
        drop_first: bool = False,
        ordered: Mapping[str, Sequence[Any]] | None = None,
        whole: Collection[str] = (),
    ) -> tuple["Schema", Any]:
        """Learn the schema of a table and read the table with it.

        Parameters
        ----------
        table
            Array or scipy sparse table [n, columns], pandas frame, polars frame, or mapping of
            names to columns [n].
        categories, drop_first
            Kind of the 0/1 columns of categories (`Column.of`). Nuti et al. 2021 give none to the
            first level.
        ordered, whole
            Ordered levels by column name. They become one column of places, like those of an
            ordered category of pandas or polars; so do the sorted levels of the columns that
            ``whole`` names.

        Returns
        -------
        schema
            The schema.
        matrix
            float64 [n, d], NaN for missing values; for a sparse table a ``csc_array`` without
            repeated entries and stored zeros.

        Raises
        ------
        ValueError
            If the table has no rows or no columns, repeated column names, columns of unequal
            lengths, an infinite value, or a column that is neither numbers nor categories, such as
            dates, even as text (a declared category may have any levels). If values of a column
            differ only by type, such as 1 and "1", or features would have the same name. If
            ``ordered`` names no column, or lacks a level.
        TypeError
            If a cell is a list, a dictionary or another collection, or ``ordered`` is not a mapping
            or the table is sparse.

        Warns
        -----
        TableWarning
            If a column of text contains only numbers, or a distinct text in every second row or
            more: it is read as a category. If all of its numbers have the same currency or unit: it
            is read as numbers. If a named column numbers the rows.
        """
        if ordered and (issparse(table) or not isinstance(ordered, Mapping)):
            wanted = "ordered must map names of columns of a table, not of a sparse one, to levels"
            raise TypeError(f"{wanted}; got {ordered!r}.")
        if issparse(table):
            names = positional_names(table.shape[1])
            return cls(tuple(map(Column, names))), sparse_numbers(names, table)
        names, series = named_columns(table)
        if not names:
            raise ValueError("X has no columns; at least one feature is needed.")
        require_distinct(names)
        if unknown := [name for name in ordered or {} if name not in names]:
            raise ValueError(f"ordered names {unknown[0]!r}, which is no column of X.")
        for place, name in enumerate(names):
            if ordered and name in ordered:
                series[place] = _in_order(name, series[place], ordered[name])
        columns, decorated = [], []
        for name, values in zip(names, series, strict=True):
            levels = declared_levels(name, values)
            is_declared = getattr(values, "levels", None) is not None
            if levels and not is_declared and (read := undecorated_numbers(levels)) is not None:
                decorated.append(f"{name!r} {read[1]}")
                levels = None
            if levels is None:
                columns.append(Column(name))
                continue
            if not is_declared and are_dates(levels):
                raise error_of_times(f"Column {name!r}", f"as text, such as {levels[0]!r}")
            is_ordered = getattr(values, "is_ordered", False) or name in whole
            coding: Any = {"categories": categories, "drop_first": drop_first}
            columns.append(Column.of(name, levels, **coding, is_ordered=is_ordered))
        if decorated:
            warnings.warn(
                f"Columns of text are read as numbers: {', '.join(decorated)}. Declare a category "
                f"(pandas: astype('category')) if they are labels.",
                TableWarning,
                stacklevel=2,
            )
        _warn_of_text(columns, series)
        matrix = cls(tuple(columns))._matrix(series)
        if has_names(table) and len(columns) > 1:
            _warn_of_counters(columns, matrix)
        return cls._marking_missing(columns, matrix)

    @classmethod
    def _marking_missing(cls, columns: list[Column], matrix: np.ndarray) -> tuple["Schema", Any]:
        """Add markers to columns of which some values are missing, but not all."""
        starts = np.cumsum([0] + [len(column.features) for column in columns])
        is_missing = np.array(
            [
                np.isnan(matrix[:, start]) if column.features else np.zeros(len(matrix), bool)
                for column, start in zip(columns, starts[:-1], strict=True)
            ]
        )
        num_missing = is_missing.sum(axis=1)
        marks = (num_missing > 0) & (num_missing < len(matrix))
        if not marks.any():
            return cls(tuple(columns)), matrix
        schema = cls(
            tuple(
                replace(column, marks_missing=bool(mark))
                for column, mark in zip(columns, marks, strict=True)
            )
        )
        return schema, np.concatenate([matrix.T, is_missing[marks]]).T

    def declared(self, table: Any) -> Any:
        """Give new rows the levels of this schema, so that any rows of a table are read alike.

        A sparse table is returned as it is.

        Raises
        ------
        ValueError
            If a column is missing, or the number of columns differs.
        """
        if issparse(table):
            return table
        series = {}
        for column, values in zip(self.columns, self._series(table), strict=True):
            if column.levels is not None:
                text = [None if is_missing(v) else as_level(v, column.levels) for v in values]
                values = as_categories(column.name, text, column.levels, column.is_ordered)
            series[column.name] = values
        return series

    def transform(self, table: Any, *, refuse_unknown: bool = True) -> np.ndarray:
        """Read new rows, float64 [n, d].

        Columns of a frame or mapping are found by name; those of an array by position.

        Parameters
        ----------
        table
            The rows; see `read`.
        refuse_unknown
            Whether an unknown level is an error. Otherwise its row has 0 in all 0/1 columns of the
            category, so it is read as the level without a column, if there is one.

        Raises
        ------
        ValueError
            If a column is missing, the number of columns differs, a value is infinite or an unknown
            level is rejected.

        Warns
        -----
        TableWarning
            If a level is unknown and not rejected.
        """
        return self._matrix(self._series(table), refuse_unknown)

    def _series(self, table: Any) -> list[np.ndarray]:
        """Find the columns in a table of new rows."""
        names, series = named_columns(table)
        wanted = [column.name for column in self.columns]
        if has_names(table) and set(wanted) <= set(names):
            series = [series[names.index(name)] for name in wanted]
        elif has_names(table) and set(wanted) & set(names):
            absent = next(name for name in wanted if name not in names)
            raise ValueError(f"Column {absent!r} is missing; the model was fitted with it.")
        elif len(series) != len(wanted):
            raise ValueError(
                f"X has {len(series)} columns, but the model was fitted with {len(wanted)}."
            )
        return series

    def _matrix(self, series: list[np.ndarray], refuse_unknown: bool = True) -> np.ndarray:
        if len(series[0]) == 0:
            raise ValueError("X has no rows (0 samples); at least one is needed.")
        parts, marks = [], []
        for column, values in zip(self.columns, series, strict=True):
            if column.levels is None:
                parts.append(as_numbers(column.name, values)[None])
            else:
                parts.append(_indicators(column, values, refuse_unknown).T)
            if column.marks_missing:
                marks.append(np.isnan(parts[-1][:1]))
        # Columns are contiguous, like the access to them.
        return np.concatenate(parts + marks).T

    def typical_row(self, matrix: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
        """Return the median of each column of a matrix [n, d], and the mode of a category.

        Examples
        --------
        >>> schema, matrix = Schema.read({"size": [1.0, 9.0, 2.0], "hue": ["red", "blue", "red"]})
        >>> schema.typical_row(matrix).tolist()
        [2.0, 1.0]
        """
        weights = np.ones(len(matrix)) if weights is None else weights
        typical = np.full(len(self.sources), np.nan)
        position = np.array([source[0] for source in self.sources])
        for place, column in enumerate(self.columns):
            own = np.flatnonzero(position == place)[: len(column.features)]
            values = matrix[:, own]
            known = ~np.isnan(values).any(axis=1)
            if not known.any() or not len(own):
                continue
            if column.has_cuts:
                options = {"weights": weights[known], "method": "inverted_cdf"}
                typical[own] = np.quantile(values[known, 0], 0.5, **options)
            else:
                share = np.bincount(column.level_of(values[known]), weights[known])
                typical[own] = column.indicators[share.argmax()]
        return typical

    def level_condition(self, feature: int, threshold: float, is_left: bool) -> str | None:
        """Describe which levels of a category a split sends to a side; None for other features.

        Features beyond the schema's, such as projections, are others.

        Examples
        --------
        >>> size = Column.of("size", ("S", "M", "L"), is_ordered=True)
        >>> schema = Schema((size, Column.of("sex", ("female", "male"))))
        >>> [schema.level_condition(0, 0.5, side) for side in (True, False)]
        ['size < M', 'size >= M']
        >>> [schema.level_condition(1, 0.5, side) for side in (True, False)]
        ['sex=female', 'sex=male']
        """
        if feature >= len(self.sources):
            return None
        position, right, is_mark = self.sources[feature]
        column = self.columns[position]
        levels = column.levels or ()
        if is_mark or not levels:
            return None
        if column.is_ordered:
            return f"{column.name} {'<' if is_left else '>='} {levels[math.ceil(threshold)]}"
        others = [each for each in levels if each not in right]
        own, rest = (others, right) if is_left else (right, others)
        if (column.is_one and len(own) <= max(len(rest), MOST_IN_SETS)) or len(own) == 1:
            return _membership(column.name, own)
        return f"not {_membership(column.name, rest)}"

    def to_json(self) -> list[dict]:
        """Describe the schema with JSON types alone."""
        return [
            {
                "name": c.name,
                "levels": c.levels and list(c.levels),
                "shown": [] if c.is_one else [level for (level,) in c.sets],
                "marks_missing": c.marks_missing,
                "is_ordered": c.is_ordered,
                "sets": [list(levels) for levels in c.sets] if c.is_one else [],
            }
            for c in self.columns
        ]

    @classmethod
    def from_json(cls, columns: list[dict]) -> "Schema":
        """Rebuild a schema from `to_json`.

        Raises
        ------
        ValueError, TypeError, KeyError
            If it cannot have written this.
        """
        made = []
        for c in columns:
            levels, sets = c["levels"], [(level,) for level in c["shown"]]
            # Files of 2026 and before lack these.
            of_one = [tuple(own) for own in c.get("sets", ())]
            marks_missing, is_ordered = c.get("marks_missing", False), c.get("is_ordered", False)
            texts = [c["name"], *(levels or ()), *itertools.chain(*sets, *of_one)]
            are_bool = type(marks_missing) is bool and type(is_ordered) is bool
            if not all(isinstance(text, str) for text in texts) or not are_bool:
                raise ValueError("a column has a name or a level that is not text")
            known = set(levels or ())
            is_known = known.issuperset(texts[1:]) and len(known) == len(levels or ())
            if not is_known or not all(of_one) or (sets and of_one):
                raise ValueError(f"column {c['name']!r} has wrong levels")
            levels = levels and tuple(levels)
            sets, is_one = tuple(sets + of_one), bool(of_one)
            made.append(Column(c["name"], levels, sets, marks_missing, is_ordered, is_one))
        return cls(tuple(made))


def _membership(name: str, levels: Sequence[str]) -> str:
    return f"{name}={levels[0]}" if len(levels) == 1 else f"{name} in {{{', '.join(levels)}}}"


def _find_column(schema: Schema, feature: int | str) -> int | None:
    """Find the column of a feature or of a column's name; return None if there is none."""
    names = schema.features
    if isinstance(feature, str):
        own = (p for p, column in enumerate(schema.columns) if column.name == feature)
        return next(own, schema.sources[names.index(feature)][0] if feature in names else None)
    return schema.sources[feature][0] if 0 <= feature < len(names) else None


def _in_order(name: str, values: np.ndarray, levels: Sequence[Any]) -> np.ndarray:
    """Make an ordered category of a column, given its levels in order."""
    is_list = isinstance(levels, Sequence | np.ndarray) and not isinstance(levels, str)
    if not is_list or len(set(map(str, levels))) < max(len(levels), 2):
        raise ValueError(f"ordered[{name!r}] must list two levels or more, each once.")
    known = tuple(map(str, levels))
    text = [None if is_missing(value) else as_level(value, known) for value in values]
    for row, level in enumerate(text):
        if level is not None and level not in known:
            raise ValueError(
                f"Column {name!r}, row {row}: ordered[{name!r}] has no level {level!r}; it lists "
                f"{listed(known)}."
            )
    return as_categories(name, text, known, is_ordered=True)


def _warn_of_text(columns: list[Column], series: list[np.ndarray]) -> None:
    """Warn of categories that were not declared and are probably numbers or identifiers."""
    guessed = [
        (column.name, column.levels, sum(not is_missing(value) for value in values))
        for column, values in zip(columns, series, strict=True)
        if column.levels and getattr(values, "levels", None) is None
    ]
    numbers = [name for name, levels, _ in guessed if all(map(converts_to_float, levels))]
    if numbers:
        warnings.warn(
            "Numbers written as text are read as categories, here those of "
            f"{', '.join(map(repr, numbers))}: convert them to float if they are quantities, or "
            "declare a category (pandas: astype('category')) if they are labels.",
            TableWarning,
            stacklevel=3,
        )
    for name, levels, num_rows in guessed:
        if name not in numbers and are_identifiers(len(levels), num_rows):
            warnings.warn(
                f"Column {name!r} has {len(levels)} levels in {num_rows} rows, like names and row "
                "identifiers; new rows will have levels that no rule knows: leave it out, or "
                "declare a category (pandas: astype('category')) if it is one.",
                TableWarning,
                stacklevel=3,
            )


def _warn_of_counters(columns: list[Column], matrix: np.ndarray) -> None:
    starts = itertools.accumulate([0, *(len(column.features) for column in columns[:-1])])
    for column, start in zip(columns, starts, strict=True):
        if column.levels is None and counts_rows(column.name, matrix[:, start]):
            warnings.warn(
                f"Column {column.name!r} numbers the rows: in a sorted table it reveals the "
                "target, and new rows have other numbers; leave it out unless it is a quantity.",
                TableWarning,
                stacklevel=3,
            )


def refuse_new_missing(matrix: np.ndarray, may_miss: np.ndarray, features: Sequence[str]) -> None:
    """Reject missing values in columns that were complete in training.

    Parameters
    ----------
    matrix
        Rows [m, d], NaN if missing.
    may_miss
        bool [d].
    features
        Names of the columns of the matrix.

    Raises
    ------
    ValueError
        If there is one; the message names it.
    """
    missing = np.isnan(matrix) & ~may_miss
    if missing.any():
        row, feature = np.argwhere(missing)[0]
        raise ValueError(
            f"Column {features[feature]!r}, row {row}: the value is missing (NaN), but no value of "
            f"it was missing when the model was fitted, so no rule says where the row goes."
        )


def _indicators(column: Column, values: np.ndarray, refuse_unknown: bool) -> np.ndarray:
    levels = column.levels or ()
    text = [None if is_missing(value) else as_level(value, levels) for value in values]
    if column.is_ordered:
        places = {level: float(place) for place, level in enumerate(levels)}
        matrix = np.array([[places.get(str(value), np.nan)] for value in text])
    else:
        table: dict[Any, np.ndarray] = dict(zip(levels, column.indicators, strict=True))
        other = np.full(len(column.sets), np.nan if column.is_one else 0.0)
        matrix = np.array([table.get(value, other) for value in text])
    matrix = matrix.reshape(len(text), len(column.features))
    for row, value in enumerate(text):
        if value is None:
            matrix[row] = np.nan
        elif value not in levels and refuse_unknown:
            raise ValueError(
                f"Column {column.name!r}, row {row}: level {value!r} was not seen when "
                f"the model was fitted; its levels are {', '.join(levels[:10])}."
            )
    unknown = [value for value in dict.fromkeys(text) if value is not None and value not in levels]
    if unknown:
        read_as = f"as if it were {column.hidden!r}" if column.hidden else "as none of these"
        if column.is_ordered or column.is_one:
            read_as = "as missing"
        warnings.warn(
            f"Column {column.name!r}: level {', '.join(map(repr, unknown[:10]))} was not seen when "
            f"the model was fitted, and is read {read_as}; its levels are "
            f"{', '.join(levels[:10])}.",
            TableWarning,
            stacklevel=7,  # the caller of `predict`
        )
    return matrix
