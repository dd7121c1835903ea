"""Tables become matrices of numbers.

A table (NumPy array, frame of pandas, polars or pyarrow, mapping of names to columns) is read once
into a float64 matrix with NaN where a value is missing; a scipy sparse one stays sparse. A numeric
column stays as it is; a categorical one becomes one 0/1 column per level (a single column where
there are two levels). Behind all of these, each column in which some values are missing gets one
more 0/1 column, which is 1 where they are, so that a rule can part rows by that. The schema
remembers this, so that new rows are read the same way. An error names the column and row that
cannot be read.
"""

import itertools
import re
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, time, timedelta
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
from narwhals.exceptions import DuplicateError
from scipy.sparse import csc_array, issparse

__all__ = [
    "Column",
    "Schema",
    "TableWarning",
    "are_dates",
    "are_identifiers",
    "as_level",
    "as_table",
    "column_names",
    "has_names",
    "is_missing",
    "lossless",
    "refuse_new_missing",
    "refuse_times",
    "require_distinct",
    "require_storable",
    "select",
]

_TIMES = (date, time, timedelta, np.datetime64, np.timedelta64)
_CLOCK = r"([01]?\d|2[0-3]):[0-5]\d(:[0-5]\d(\.\d+)?)?"
_MONTH = r"(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"
_DATE = re.compile(
    rf"\d{{4}}[-/.]\d{{1,2}}[-/.]\d{{1,2}}([ T]{_CLOCK}.*)?"  # 2024-02-29
    rf"|\d{{1,2}}(?P<by>[-/.])\d{{1,2}}(?P=by)\d{{4}}( {_CLOCK}.*)?"  # 29.2.2024
    rf"|\d{{1,2}}/\d{{1,2}}/\d{{2}}"  # 2/29/24
    rf"|\d{{1,2}}[-. ]+{_MONTH}[-., ]+\d{{2,4}}|{_MONTH}[. ]+\d{{1,2}},? \d{{4}}"  # 29 Feb 2024
    rf"|{_CLOCK}|-?\d+ days?(,? \+?{_CLOCK})?",  # the last: durations, as Python and pandas do
    re.IGNORECASE,
)
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
_BOOLEANS = ("False", "True")
_LEAST_VALUE = 2 * np.finfo(np.float64).tiny
_FEWEST_IDENTIFIED = 20  # rows; in fewer, words may differ by chance
_SHARE_IDENTIFIED = 0.9  # of rows that have a word of their own


class TableWarning(UserWarning):
    """A column was read, but is likely to be something else than what it was read as."""


@dataclass(frozen=True)
class Column:
    """One column of the source table.

    Attributes
    ----------
    name
        Its name in the table.
    levels
        None for a numeric column, else the levels of a categorical one, as text.
    shown
        The levels that get a 0/1 column each; empty for a numeric column.
    marks_missing
        Whether a 0/1 column says where its value is missing.
    """

    name: str
    levels: tuple[str, ...] | None = None
    shown: tuple[str, ...] = ()
    marks_missing: bool = False

    @classmethod
    def of(
        cls,
        name: str,
        levels: tuple[str, ...] | None,
        *,
        drop_first: bool = False,
        marks_missing: bool = False,
    ) -> "Column":
        """Give each level a 0/1 column; of two, or with ``drop_first``, all but the first."""
        shown = () if levels is None else levels[1 if drop_first or len(levels) == 2 else 0 :]
        return cls(name, levels, shown, marks_missing and (levels is None or bool(shown)))

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the numeric features that its values become."""
        if self.levels is None:
            return (self.name,)
        return tuple(f"{self.name}={level}" for level in self.shown)

    @property
    def missing_feature(self) -> tuple[str, ...]:
        """Name of the feature that is 1 where its value is missing, if there is one."""
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
        """Refuse names that no file holds, and features called as another column or its feature."""
        owner: dict[str, Column] = {}
        for column in self.columns:
            for text in (column.name, *(column.levels or ())):
                require_storable(f"Column {column.name!r}", text)
            for name in {column.name, *column.features, *column.missing_feature}:
                other = owner.setdefault(name, column)
                if other is not column:
                    raise ValueError(
                        f"Columns {other.name!r} and {column.name!r} would both be called "
                        f"{name!r}, one of them by a level or by its missing values: rename one."
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
    def sources(self) -> tuple[tuple[int, str | None, bool], ...]:
        """Where each of the matrix's columns comes from.

        The position of a column of the table, its level for a 0/1 column of a category, and
        whether the matrix's column says where values are missing.
        """
        values = [
            (position, level, False)
            for position, column in enumerate(self.columns)
            for level in ((None,) if column.levels is None else column.shown)
        ]
        marks = [
            (position, None, True)
            for position, column in enumerate(self.columns)
            if column.marks_missing
        ]
        return (*values, *marks)

    @property
    def is_indicator(self) -> np.ndarray:
        """Say which of the matrix's columns are 0/1 columns, bool [d]."""
        return np.array(
            [level is not None or is_mark for _, level, is_mark in self.sources], dtype=bool
        )

    def features_of(self, names: Iterable[int | str]) -> tuple[int | str, ...]:
        """Replace the names of columns by those of their features, keep all else.

        Examples
        --------
        >>> schema = Schema(
        ...     (Column("size", marks_missing=True), Column("hue", ("blue", "red"), ("red",)))
        ... )
        >>> schema.features_of(["size", "hue", 1])
        ('size', 'size=missing', 'hue=red', 1)
        """
        columns: dict[Any, Any] = {
            column.name: (*column.features, *column.missing_feature) for column in self.columns
        }
        return tuple(name for given in names for name in columns.get(given, (given,)))

    def marks_of(self, features: Iterable[int | str]) -> tuple[str, ...]:
        """Name the features that say where values of columns are missing, by name or index.

        Examples
        --------
        >>> schema = Schema((Column("size", marks_missing=True), Column("hue", ("red",))))
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

    def marked(self, feature: int) -> int:
        """Index of the first feature of the column whose missing values a feature marks."""
        position = self.sources[feature][0]
        return next(j for j, source in enumerate(self.sources) if source[0] == position)

    def of_rows(self, matrix: np.ndarray) -> tuple["Schema", np.ndarray]:
        """Mark missing values by some rows [m, d] alone, such as those of positive weight."""
        columns = [replace(column, marks_missing=False) for column in self.columns]
        num_values = sum(len(column.features) for column in columns)
        return self._marking_missing(columns, matrix[:, :num_values])

    @classmethod
    def read(cls, table: Any, *, drop_first: bool = False) -> tuple["Schema", Any]:
        """Learn the schema of a table and read the table with it.

        Parameters
        ----------
        table
            Array or scipy sparse table [n, columns], pandas frame, polars frame, or mapping of
            names to columns [n].
        drop_first
            Give no 0/1 column to the first level of each category (the coding of Nuti et al. 2021).

        Returns
        -------
        schema
            The schema.
        matrix
            float64 [n, d], NaN where a value is missing; of a sparse table a ``csc_array`` without
            repeated entries and stored zeros.

        Raises
        ------
        ValueError
            If the table has no rows or no columns, two columns of one name or columns of unequal
            lengths, an infinite value, or a column that is neither numbers nor categories, such
            as one of dates, be they text (a declared category may have what levels it likes); if
            values of a column are told apart by their kind alone, as 1 and "1" are, or features
            would have one name.
        TypeError
            If a cell is a list, a dictionary or another collection.

        Warns
        -----
        TableWarning
            If a column of text holds nothing but numbers, or another text in nearly every row: it
            is read as a category.
        """
        if issparse(table):
            names = _positional_names(table.shape[1])
            return cls(tuple(map(Column, names))), _sparse_numbers(names, table)
        names, series = _named_columns(table)
        if not names:
            raise ValueError("X has no columns; at least one feature is needed.")
        require_distinct(names)
        columns = []
        for name, values in zip(names, series, strict=True):
            levels = _declared_levels(name, values)
            if levels is None:
                columns.append(Column(name))
                continue
            if getattr(values, "levels", None) is None and are_dates(levels):
                raise _of_times(f"Column {name!r}", f"as text, such as {levels[0]!r}")
            columns.append(Column.of(name, levels, drop_first=drop_first))
        _warn_of_text(columns, series)
        matrix = cls(tuple(columns))._matrix(series)
        return cls._marking_missing(columns, matrix)

    @classmethod
    def _marking_missing(cls, columns: list[Column], matrix: np.ndarray) -> tuple["Schema", Any]:
        """Let columns of which some values are missing, but not all, say where."""
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
        """Give new rows the levels of this schema, a table of which any rows are read alike.

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
                values = _categories(column.name, text, column.levels)
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
            Whether a level that the schema does not have is an error. Else its row has 0 in all 0/1
            columns of the category, and is so read as the level without a column if there is one.

        Raises
        ------
        ValueError
            If a column is missing, the number of columns differs, a value is infinite or a level
            that is unknown is refused.

        Warns
        -----
        TableWarning
            If a level is unknown and not refused.
        """
        return self._matrix(self._series(table), refuse_unknown)

    def _series(self, table: Any) -> list[np.ndarray]:
        """Find the columns in a table of new rows."""
        names, series = _named_columns(table)
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
                parts.append(_as_numbers(column.name, values)[None])
            else:
                parts.append(_indicators(column, values, refuse_unknown).T)
            if column.marks_missing:
                marks.append(np.isnan(parts[-1][:1]))
        # Columns lie together, as what reads them does.
        return np.concatenate(parts + marks).T

    def to_json(self) -> list[dict]:
        """Describe the schema with JSON types alone."""
        return [
            {
                "name": c.name,
                "levels": c.levels and list(c.levels),
                "shown": list(c.shown),
                "marks_missing": c.marks_missing,
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
            levels, shown = c["levels"], c["shown"]
            marks_missing = c.get("marks_missing", False)  # files of 2026 and before have none
            texts = [c["name"], *(levels or ()), *shown]
            if not all(isinstance(text, str) for text in texts) or type(marks_missing) is not bool:
                raise ValueError("a column has a name or a level that is no text")
            if not set(shown) <= set(levels or ()) or len(set(levels or ())) < len(levels or ()):
                raise ValueError(f"column {c['name']!r} has wrong levels")
            made.append(Column(c["name"], levels and tuple(levels), tuple(shown), marks_missing))
        return cls(tuple(made))


def _find_column(schema: Schema, feature: int | str) -> int | None:
    """Find the column of a feature or of a column's name; None where there is none."""
    names = schema.features
    if isinstance(feature, str):
        own = (p for p, column in enumerate(schema.columns) if column.name == feature)
        return next(own, schema.sources[names.index(feature)][0] if feature in names else None)
    return schema.sources[feature][0] if 0 <= feature < len(names) else None


def require_storable(what: str, text: Any) -> None:
    """Raise ValueError if text has characters that saved models cannot hold; all else passes."""
    if isinstance(text, str) and _UNSTORABLE.search(text):
        raise ValueError(
            f"{what}: the text {text!r} has a NUL or half of a pair of surrogates, which files "
            f"cannot hold; take it out."
        )


def are_dates(cells: Collection[str]) -> bool:
    """Whether there are cells of text and every one says a day, a time of day, both or a duration.

    Examples
    --------
    >>> [are_dates(cells) for cells in (["2024-02-29", "1.3.2024"], ["2024-02-29", "later"], [])]
    [True, False, False]
    >>> are_dates(["2/29/24", "29-Feb-2024", "February 29, 2024", "2024-02-29 12:30", "12:30"])
    True
    """
    return bool(cells) and all(map(_DATE.fullmatch, cells))


def are_identifiers(num_levels: int, num_rows: int) -> bool:
    """Whether words differ in nearly every row, as names and identifiers of rows do.

    Examples
    --------
    >>> [are_identifiers(*counts) for counts in ((48, 50), (30, 50), (10, 10))]
    [True, False, False]
    """
    return num_rows >= _FEWEST_IDENTIFIED and num_levels >= _SHARE_IDENTIFIED * num_rows


def require_distinct(names: Iterable) -> None:
    """Raise ValueError unless all names of columns differ as text."""
    for name, count in Counter(map(str, names)).items():
        if count > 1:
            raise ValueError(f"Column names must be distinct; {name!r} is repeated.")


def _warn_of_text(columns: list[Column], series: list[np.ndarray]) -> None:
    """Warn of categories that were not declared, and are likely to be numbers or identifiers."""
    guessed = [
        (column.name, column.levels, sum(not is_missing(value) for value in values))
        for column, values in zip(columns, series, strict=True)
        if column.levels and getattr(values, "levels", None) is None
    ]
    numbers = [name for name, levels, _ in guessed if all(map(_is_number, levels))]
    if numbers:
        warnings.warn(
            f"Numbers given as text are read as categories, here those of "
            f"{', '.join(map(repr, numbers))}: convert them to float if they are quantities, or "
            f"declare a category (pandas: astype('category')) if they are labels.",
            TableWarning,
            stacklevel=3,
        )
    for name, levels, num_rows in guessed:
        if name not in numbers and are_identifiers(len(levels), num_rows):
            warnings.warn(
                f"Column {name!r} has {len(levels)} levels in {num_rows} rows, as names and "
                f"identifiers of rows have; new rows will bring levels that no rule knows: leave "
                f"it out, or declare a category (pandas: astype('category')) if it is one.",
                TableWarning,
                stacklevel=3,
            )


def _as_frame(table: Any) -> nw.DataFrame | nw.LazyFrame | None:
    """Wrap a frame of pandas, polars, pyarrow and others; None for what is no frame."""
    try:
        frame = nw.from_native(table, pass_through=True)
    except DuplicateError:
        require_distinct(table.columns)
        raise
    return frame if isinstance(frame, nw.DataFrame | nw.LazyFrame) else None


def has_names(table: Any) -> bool:
    """Whether columns of a table are found by name: those of a frame or a mapping."""
    return isinstance(table, Mapping) or _as_frame(table) is not None


def as_table(table: Any) -> Any:
    """Collect a lazy frame, index a sparse table by columns, and make arrays of lists.

    What is a frame in memory, a mapping or an array stays what it is; see `lossless`.
    """
    if issparse(table):
        return table.tocsc()  # a table by keys (dok) is a mapping too
    if isinstance(table, Mapping):
        return table
    if isinstance(frame := _as_frame(table), nw.LazyFrame):
        return frame.collect().to_native()
    return lossless(table)


def column_names(table: Any) -> list:
    """Names of the columns of a table in memory; positions where they have no names."""
    if isinstance(table, Mapping):
        return list(table)
    frame = _as_frame(table)
    return list(range(np.shape(table)[1])) if frame is None else list(frame.columns)


def select(table: Any, names: list) -> Any:
    """Take columns of a frame or a mapping by name, in an order."""
    if isinstance(table, Mapping):
        return {name: table[name] for name in names}
    return table.select(names) if hasattr(table, "select") else table[names]  # pandas has none


def lossless(values: Any) -> Any:
    """Make an array of a list or a masked array as NumPy does, but lose no cell's kind.

    NumPy writes all cells of a list as text if one is, so that NaN becomes a word, and forgets
    masks: here a list of text and others becomes an array of objects, and masked cells are NaN, or
    None among what are no numbers. All else is returned as it is.

    Examples
    --------
    >>> lossless(["a", float("nan"), 1]).tolist()
    ['a', nan, 1]
    >>> lossless(np.ma.array([1, 2], mask=[0, 1])).tolist()
    [1.0, nan]
    """
    if isinstance(values, list | tuple):
        if any(isinstance(row, np.ma.MaskedArray) for row in values):
            return lossless(np.ma.array(values))
        array = np.asarray(values)
        if array.dtype.kind not in "US":
            return array
        cells = np.array(values, dtype=object)
        return array if all(isinstance(cell, str | bytes) for cell in cells.flat) else cells
    if not isinstance(values, np.ma.MaskedArray):
        return values
    mask = np.ma.getmaskarray(values)
    if not mask.any():
        return values.data
    is_number = values.dtype.kind in "iuf"
    array = values.data.astype(np.float64 if is_number else object)
    array[mask] = np.nan if is_number else None
    return array


def _named_columns(table: Any) -> tuple[list[str], list[np.ndarray]]:
    """Names and values of a table's columns; categories come as object arrays with None missing."""
    table = as_table(table)
    if isinstance(table, Mapping):
        return _from_mapping(table)
    if isinstance(frame := _as_frame(table), nw.DataFrame):
        series = [_from_series(frame.get_column(name)) for name in frame.columns]
        return list(map(str, frame.columns)), series
    if isinstance(table, str):
        raise ValueError(f"X must be a table, not {table!r}.")
    array = np.asarray(table)
    if array.ndim != 2:
        raise ValueError(f"X must be a table with two axes (rows, features); it has {array.ndim}.")
    names = _positional_names(array.shape[1])
    if array.dtype.kind == "O":
        for name, values in zip(names, array.T, strict=True):
            _require_scalars(name, values)
    return names, list(array.T)


def _positional_names(num_columns: int) -> list[str]:
    return [f"x{j}" for j in range(num_columns)]


def _sparse_numbers(names: list[str], table: Any) -> Any:
    if table.dtype.kind not in "iufb":
        raise ValueError(f"X holds {table.dtype}; a sparse table must hold numbers.")
    matrix: Any = csc_array(table, copy=True)  # what follows works in place
    matrix.sum_duplicates()
    matrix = matrix.astype(np.float64)
    matrix.eliminate_zeros()
    unfit = np.flatnonzero(_is_unfit(matrix.data))
    if unfit.size:
        column = np.searchsorted(matrix.indptr, unfit[0], side="right") - 1
        raise _unfit(names[column], matrix.indices[unfit[0]], matrix.data[unfit[0]])
    return matrix


def _from_mapping(table: Mapping) -> tuple[list[str], list[np.ndarray]]:
    names, series = [str(name) for name in table], []
    for name, given in zip(names, table.values(), strict=True):
        column = nw.from_native(given, series_only=True, pass_through=True)
        if isinstance(column, nw.Series):
            values = _from_series(column.alias(name))
        else:
            values = np.asanyarray(lossless(given))
        if values.dtype.kind == "O":
            _require_scalars(name, values)
        if values.ndim == 1 and _are_booleans(values):
            values = _categories(name, values.tolist(), _BOOLEANS)
        series.append(values)
        if values.ndim != 1:
            raise ValueError(f"Column {name!r} must have one axis; it has {values.ndim}.")
        if len(values) != len(series[0]):
            raise ValueError(
                f"Columns must be equally long; {names[0]!r} has {len(series[0])} rows and "
                f"{name!r} has {len(values)}."
            )
    return names, series


class _Categories(np.ndarray):
    """Object array of a categorical column, with its declared levels if it has any."""

    levels: tuple[str, ...] | None = None

    def __array_finalize__(self, other):
        self.levels = getattr(other, "levels", None)  # rows of a column have them, too


def _require_scalars(name: str, values: Iterable) -> None:
    """Refuse cells that are collections, dates or times."""
    for row, value in enumerate(values):
        if _is_time(value):
            raise _of_times(f"Column {name!r}", type(value).__name__)
        if isinstance(value, Collection) and not isinstance(value, str | bytes):
            raise TypeError(
                f"Column {name!r}, row {row}: {value!r} is a {type(value).__name__}, but the "
                f"argument must be a string or a number."
            )


def _is_time(value: Any) -> bool:
    return isinstance(value, _TIMES) or type(value).__name__ == "Period"


def refuse_new_missing(matrix: np.ndarray, may_miss: np.ndarray, features: Sequence[str]) -> None:
    """Refuse missing values where there was none in training.

    Parameters
    ----------
    matrix
        Rows [m, d], NaN where missing.
    may_miss
        bool [d].
    features
        Names of the columns of the matrix.

    Raises
    ------
    ValueError
        If there is one; it is named.
    """
    missing = np.isnan(matrix) & ~may_miss
    if missing.any():
        row, feature = np.argwhere(missing)[0]
        raise ValueError(
            f"Column {features[feature]!r}, row {row}: the value is missing (NaN), but no value of "
            f"it was missing when the model was fitted, so no rule says where the row goes."
        )


def refuse_times(what: str, values: np.ndarray) -> None:
    """Raise ValueError if values are dates, times or durations; ``what`` says whose they are."""
    if values.dtype.kind in "Mm":
        raise _of_times(what, str(values.dtype))
    if values.dtype.kind == "O":
        for value in values:
            if _is_time(value):
                raise _of_times(what, type(value).__name__)


def _require_told_apart(name: str, values: Collection) -> None:
    """Raise ValueError if two values are one as text, such as 1 and "1"."""
    kinds = set(map(type, values))
    if kinds <= {str, type(None)} or not any(issubclass(kind, str) for kind in kinds):
        return
    is_text: dict[str, bool] = {}
    for value in values:
        text = isinstance(value, str)
        if not is_missing(value) and is_text.setdefault(str(value), text) != text:
            raise ValueError(
                f"Column {name!r} holds {str(value)!r} both as text and as another kind of value: "
                f"convert all of its values to text, or all to numbers."
            )


def _categories(name: Any, values: list, levels: tuple[str, ...] | None = None) -> _Categories:
    _require_scalars(str(name), values)
    _require_told_apart(name, values)
    array = np.array([None if is_missing(v) else str(v) for v in values], dtype=object)
    array = array.view(_Categories)
    array.levels = levels
    return array


def is_missing(value: Any) -> bool:
    """Whether a cell is None, NaN or pandas' NA.

    Examples
    --------
    >>> [is_missing(cell) for cell in (None, float("nan"), "nan", 0)]
    [True, True, False, False]
    """
    # pandas' NA is not compared.
    return value is None or type(value).__name__ == "NAType" or value != value


def _are_booleans(values: np.ndarray) -> bool:
    """Whether every value that is not missing is true or false, and there is one."""
    if values.dtype.kind != "O" or isinstance(values, _Categories):
        return values.dtype.kind == "b"
    known = [value for value in values if not is_missing(value)]
    return bool(known) and all(isinstance(value, bool | np.bool_) for value in known)


def _from_series(series: nw.Series) -> np.ndarray:
    """Read a column of a frame; categories come as object arrays with None missing."""
    name, kind = str(series.name), series.dtype
    if kind.is_numeric():
        return series.cast(nw.Float64).to_numpy()
    if kind.is_temporal():
        raise _of_times(f"Column {name!r}", str(kind))
    native = series.to_native()
    if kind in (nw.Categorical, nw.Enum) and hasattr(getattr(native, "cat", None), "codes"):
        known = native.cat.categories.tolist()  # pandas cannot list intervals of whole numbers
        _require_told_apart(name, known)
        text = np.array([*map(str, known), None], object)  # a missing cell has the code -1
        return _categories(name, text[native.cat.codes.to_numpy()].tolist(), tuple(text[:-1]))
    values, levels = series.to_list(), None
    if kind == nw.Boolean:
        levels = _BOOLEANS
    elif kind == nw.Enum:
        levels = tuple(map(str, series.cat.get_categories().to_list()))
    elif kind == nw.Categorical:  # others number levels in the order in which they come
        levels = tuple(sorted(map(str, series.drop_nulls().unique().to_list())))
    elif kind in (nw.Object, nw.Unknown):  # the cells tell
        cells = np.fromiter(values, object, len(values))
        if _are_booleans(cells):
            levels = _BOOLEANS
        elif not any(isinstance(value, str) for value in values):
            _require_scalars(name, values)
            return cells
    return _categories(name, values, levels)


def _declared_levels(name: str, values: np.ndarray) -> tuple[str, ...] | None:
    """Levels of a categorical column, or None for a numeric one."""
    if isinstance(values, _Categories):
        seen = {value for value in values if value is not None}
        return values.levels or tuple(sorted(seen))
    if values.dtype.kind in "US":
        return tuple(sorted({str(value) for value in values}))
    if values.dtype.kind == "O" and any(isinstance(value, str) for value in values):
        _require_told_apart(name, values)
        return tuple(sorted({str(value) for value in values if not is_missing(value)}))
    return None


def _as_numbers(name: str, values: np.ndarray) -> np.ndarray:
    refuse_times(f"Column {name!r}", values)
    if values.dtype.kind not in "iufbO":
        raise ValueError(f"Column {name!r} holds {values.dtype}; numbers or categories are needed.")
    if values.dtype.kind == "O":
        values = np.array([np.nan if is_missing(value) else value for value in values], object)
    try:
        numbers = values.astype(np.float64)
    except (TypeError, ValueError) as error:
        row = next(i for i, value in enumerate(values) if not _is_number(value))
        raise type(error)(
            f"Column {name!r}, row {row}: {values[row]!r} is not a number "
            f"(the argument must be a string or a number that float() reads)."
        ) from None
    unfit = np.flatnonzero(_is_unfit(numbers))
    if unfit.size:
        raise _unfit(name, unfit[0], float(numbers[unfit[0]]))
    return numbers


def _of_times(what: str, kind: str) -> ValueError:
    return ValueError(
        f"{what} holds dates or times ({kind}); numbers or categories are needed: put a "
        f"number in their place, such as the days since the first one, the year or the month."
    )


def _is_unfit(values: np.ndarray) -> np.ndarray:
    """Say which values are infinite, or so small that XLA takes them or their halves for zero."""
    size = np.abs(values)
    return np.isinf(values) | ((size > 0) & (size < _LEAST_VALUE))


def _unfit(name: str, row: int, value: float) -> ValueError:
    if np.isinf(value):
        said = "infinite (inf); finite numbers or missing values (NaN) are needed."
    else:
        said = f"{value}, nearer to 0 than compiled code tells: scale the column, or put 0 there."
    return ValueError(f"Column {name!r}, row {row}: the value is {said}")


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def _indicators(column: Column, values: np.ndarray, refuse_unknown: bool) -> np.ndarray:
    levels = column.levels or ()
    text = [None if is_missing(value) else as_level(value, levels) for value in values]
    matrix = np.array([[value == level for level in column.shown] for value in text], float)
    matrix = matrix.reshape(len(text), len(column.shown))
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
        hidden = [level for level in levels if level not in column.shown]
        read_as = f"as if it were {hidden[0]!r}" if hidden else "as none of these"
        warnings.warn(
            f"Column {column.name!r}: level {', '.join(map(repr, unknown[:10]))} was not seen when "
            f"the model was fitted, and is read {read_as}; its levels are "
            f"{', '.join(levels[:10])}.",
            TableWarning,
            stacklevel=7,  # the caller of `predict`
        )
    return matrix


def as_level(value: Any, levels: tuple[str, ...]) -> str:
    """Write a value as levels are written: as 1 where it is 1.0, as True where it is 1 or true."""
    text = str(value)
    if text in levels:
        return text
    if isinstance(value, float) and value.is_integer():
        text = str(int(value))
    if levels == _BOOLEANS:
        text = {"0": "False", "false": "False", "1": "True", "true": "True"}.get(text.lower(), text)
    return text
