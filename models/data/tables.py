"""Tables and their columns as arrays, for all supported types.

Cells that no rule could use (dates, collections, values that are equal as text) raise an error that
names the column and row.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from datetime import date, time, timedelta
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
from narwhals.exceptions import DuplicateError
from scipy.sparse import csc_array, issparse

from bdtppl.models.data.number_notation import decorated, undecorated_numbers

_TIMES = (date, time, timedelta, np.datetime64, np.timedelta64)
_CLOCK = r"([01]?\d|2[0-3]):[0-5]\d(:[0-5]\d(\.\d+)?)?"
_MONTH = r"(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"
_DATE = re.compile(
    rf"\d{{4}}[-/.]\d{{1,2}}[-/.]\d{{1,2}}([ T]{_CLOCK}.*)?"  # 2024-02-29
    rf"|\d{{1,2}}(?P<by>[-/.])\d{{1,2}}(?P=by)\d{{4}}( {_CLOCK}.*)?"  # 29.2.2024
    rf"|\d{{1,2}}/\d{{1,2}}/\d{{2}}"  # 2/29/24
    rf"|\d{{1,2}}[-. ]+{_MONTH}[-., ]+\d{{2,4}}|{_MONTH}[. ]+\d{{1,2}},? \d{{4}}"  # 29 Feb 2024
    rf"|{_CLOCK}|-?\d+ days?(,? \+?{_CLOCK})?",  # the last one: durations, as in Python and pandas
    re.IGNORECASE,
)
_IDENTIFIER = re.compile(r"(.*[_ .-])?id|row([_ .-]?names?)?|index|unnamed: \d+", re.IGNORECASE)
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
_BOOLEANS = ("False", "True")
_LEAST_VALUE = 2 * np.finfo(np.float64).tiny
_FEWEST_IDENTIFIED = 20  # rows; in fewer, words may differ by chance
_SHARE_IDENTIFIED = 0.5  # levels per row


def require_storable(what: str, text: Any) -> None:
    """Raise ValueError if text has characters that saved models cannot store."""
    if isinstance(text, str) and _UNSTORABLE.search(text):
        raise ValueError(
            f"{what}: the text {text!r} has a NUL or half of a pair of surrogates, which files "
            "cannot store; remove it."
        )


def are_dates(cells: Collection[str]) -> bool:
    """Return whether there are text cells and all are days, times of day, both or durations.

    Examples
    --------
    >>> [are_dates(cells) for cells in (["2024-02-29", "1.3.2024"], ["2024-02-29", "later"], [])]
    [True, False, False]
    >>> are_dates(["2/29/24", "29-Feb-2024", "February 29, 2024", "2024-02-29 12:30", "12:30"])
    True
    """
    return bool(cells) and all(map(_DATE.fullmatch, cells))


def are_identifiers(num_levels: int, num_rows: int) -> bool:
    """Return whether every second row or more has its own word, like names and identifiers.

    Examples
    --------
    >>> [are_identifiers(*counts) for counts in ((25, 50), (24, 50), (10, 10))]
    [True, False, False]
    """
    return num_rows >= _FEWEST_IDENTIFIED and num_levels >= _SHARE_IDENTIFIED * num_rows


def counts_rows(name: str, values: np.ndarray) -> bool:
    """Return whether numbers count rows from 0 or 1, or are integers named as an identifier.

    Examples
    --------
    >>> [counts_rows(name, np.arange(20.0)[::-1]) for name in ("patient_id", "Unnamed: 0", "age")]
    [True, True, False]
    >>> counts_rows("age", np.arange(1.0, 21.0))
    True
    """
    if len(values) < _FEWEST_IDENTIFIED or not (values == np.floor(values)).all():
        return False
    is_count = values[0] in (0, 1) and (np.diff(values) == 1).all()
    return bool(is_count or (_IDENTIFIER.fullmatch(name) and len(set(values)) == len(values)))


def require_distinct(names: Iterable) -> None:
    """Raise ValueError unless all names of columns differ as text."""
    for name, count in Counter(map(str, names)).items():
        if count > 1:
            raise ValueError(f"Column names must be distinct; {name!r} is repeated.")


def _as_frame(table: Any) -> nw.DataFrame | nw.LazyFrame | None:
    """Wrap a frame of pandas, polars, pyarrow and others; return None for other types."""
    try:
        frame = nw.from_native(table, pass_through=True)
    except DuplicateError:
        require_distinct(table.columns)
        raise
    return frame if isinstance(frame, nw.DataFrame | nw.LazyFrame) else None


def has_names(table: Any) -> bool:
    """Return whether columns of a table are found by name, as in a frame or a mapping."""
    return isinstance(table, Mapping) or _as_frame(table) is not None


def as_table(table: Any) -> Any:
    """Collect a lazy frame, index a sparse table by columns, and convert lists to arrays.

    Frames in memory, mappings and arrays are not changed; see `lossless`.
    """
    if issparse(table):
        return table.tocsc()  # a table by keys (dok) is a mapping too
    if isinstance(table, Mapping):
        return table
    if isinstance(frame := _as_frame(table), nw.LazyFrame):
        return frame.collect().to_native()
    return lossless(table)


def column_names(table: Any) -> list:
    """Return names of the columns of a table in memory; positions if they have no names."""
    if isinstance(table, Mapping):
        return list(table)
    frame = _as_frame(table)
    return list(range(np.shape(table)[1])) if frame is None else list(frame.columns)


def select(table: Any, names: list) -> Any:
    """Select columns of a frame or a mapping by name, in an order."""
    if isinstance(table, Mapping):
        return {name: table[name] for name in names}
    return table.select(names) if hasattr(table, "select") else table[names]  # pandas has none


def lossless(values: Any) -> Any:
    """Convert a list or a masked array like NumPy, without losing the type of any cell.

    NumPy converts all cells of a list to text if one is, so that NaN becomes a word, and ignores
    masks. Here a mixed list becomes an array of objects, and masked cells become NaN, or None if
    other cells are not numbers. Other values are returned unchanged.

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


def named_columns(table: Any) -> tuple[list[str], list[np.ndarray]]:
    """Return names and values of columns; categories are object arrays, None if missing."""
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
    names = positional_names(array.shape[1])
    if array.dtype.kind == "O":
        for name, values in zip(names, array.T, strict=True):
            _require_scalars(name, values)
    return names, list(array.T)


def columns_of(table: Any) -> dict[str, np.ndarray]:
    """Return columns by name; see `named_columns`."""
    return dict(zip(*named_columns(table), strict=True))


def positional_names(num_columns: int) -> list[str]:
    """Name columns by their positions."""
    return [f"x{j}" for j in range(num_columns)]


def sparse_numbers(names: list[str], table: Any) -> Any:
    """Read a sparse table, in columns, as float64; zeros are not stored."""
    if table.dtype.kind not in "iufb":
        raise ValueError(f"X must contain numbers if it is sparse; got {table.dtype}.")
    matrix: Any = csc_array(table, copy=True)  # the following code works in place
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
            values = as_categories(name, values.tolist(), _BOOLEANS)
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
    is_ordered: bool = False

    def __array_finalize__(self, other):
        self.levels = getattr(other, "levels", None)  # rows of a column have them, too
        self.is_ordered = getattr(other, "is_ordered", False)


def _require_scalars(name: str, values: Iterable) -> None:
    """Reject cells that are collections, dates or times."""
    for row, value in enumerate(values):
        if _is_time(value):
            raise error_of_times(f"Column {name!r}", type(value).__name__)
        if isinstance(value, Collection) and not isinstance(value, str | bytes):
            raise TypeError(
                f"Column {name!r}, row {row}: {value!r} is a {type(value).__name__}, but the "
                f"argument must be a string or a number."
            )


def _is_time(value: Any) -> bool:
    return isinstance(value, _TIMES) or type(value).__name__ == "Period"


def refuse_times(what: str, values: np.ndarray) -> None:
    """Raise ValueError if values are dates, times or durations, naming them ``what``."""
    if values.dtype.kind in "Mm":
        raise error_of_times(what, str(values.dtype))
    if values.dtype.kind == "O":
        for value in values:
            if _is_time(value):
                raise error_of_times(what, type(value).__name__)


def _require_told_apart(name: str, values: Collection) -> None:
    """Raise ValueError if two values are equal as text, such as 1 and "1"."""
    kinds = set(map(type, values))
    if kinds <= {str, type(None)} or not any(issubclass(kind, str) for kind in kinds):
        return
    is_text: dict[str, bool] = {}
    for value in values:
        text = isinstance(value, str)
        if not is_missing(value) and is_text.setdefault(str(value), text) != text:
            raise ValueError(
                f"Column {name!r} has {str(value)!r} both as text and as another type: convert all "
                "of its values to text, or all to numbers."
            )


def as_categories(
    name: Any, values: list, levels: tuple[str, ...] | None = None, is_ordered: bool = False
) -> _Categories:
    """Write values as text, missing ones as None, with declared levels if there are any."""
    _require_scalars(str(name), values)
    _require_told_apart(name, values)
    array = np.array([None if is_missing(v) else str(v) for v in values], dtype=object)
    array = array.view(_Categories)
    array.levels, array.is_ordered = levels, is_ordered
    return array


def is_missing(value: Any) -> bool:
    """Return whether a cell is None, NaN or pandas' NA.

    Examples
    --------
    >>> [is_missing(cell) for cell in (None, float("nan"), "nan", 0)]
    [True, True, False, False]
    """
    # pandas' NA cannot be compared.
    return value is None or type(value).__name__ == "NAType" or value != value


def _are_booleans(values: np.ndarray) -> bool:
    """Return whether all present values are true or false, and there is one."""
    if values.dtype.kind != "O" or isinstance(values, _Categories):
        return values.dtype.kind == "b"
    known = [value for value in values if not is_missing(value)]
    return bool(known) and all(isinstance(value, bool | np.bool_) for value in known)


def _from_series(series: nw.Series) -> np.ndarray:
    """Read a column of a frame; categories are object arrays with None for missing."""
    name, kind = str(series.name), series.dtype
    if kind.is_numeric():
        return series.cast(nw.Float64).to_numpy()
    if kind.is_temporal():
        raise error_of_times(f"Column {name!r}", str(kind))
    native = series.to_native()
    if kind in (nw.Categorical, nw.Enum) and hasattr(getattr(native, "cat", None), "codes"):
        known = native.cat.categories.tolist()  # pandas cannot list intervals of whole numbers
        _require_told_apart(name, known)
        text = np.array([*map(str, known), None], object)  # a missing cell has the code -1
        values = text[native.cat.codes.to_numpy()].tolist()
        return as_categories(name, values, tuple(text[:-1]), bool(native.cat.ordered))
    values, levels = series.to_list(), None
    if kind == nw.Boolean:
        levels = _BOOLEANS
    elif kind == nw.Enum:
        levels = tuple(map(str, series.cat.get_categories().to_list()))
    elif kind == nw.Categorical:  # others number levels in order of appearance
        levels = tuple(sorted(map(str, series.drop_nulls().unique().to_list())))
    elif kind in (nw.Object, nw.Unknown):  # the cells tell
        cells = np.fromiter(values, object, len(values))
        if _are_booleans(cells):
            levels = _BOOLEANS
        elif not any(isinstance(value, str) for value in values):
            _require_scalars(name, values)
            return cells
    return as_categories(name, values, levels, kind == nw.Enum)


def declared_levels(name: str, values: np.ndarray) -> tuple[str, ...] | None:
    """Return the levels of a categorical column, or None for a numeric one."""
    if isinstance(values, _Categories):
        seen = {value for value in values if value is not None}
        return values.levels or tuple(sorted(seen))
    if values.dtype.kind in "US":
        return tuple(sorted({str(value) for value in values}))
    if values.dtype.kind == "O" and any(isinstance(value, str) for value in values):
        _require_told_apart(name, values)
        return tuple(sorted({str(value) for value in values if not is_missing(value)}))
    return None


def as_numbers(name: str, values: np.ndarray) -> np.ndarray:
    """Read a numeric column as float64, missing values as NaN."""
    refuse_times(f"Column {name!r}", values)
    if values.dtype.kind == "U":
        values = values.astype(object)
    if values.dtype.kind not in "iufbO":
        raise ValueError(f"Column {name!r} has {values.dtype}; numbers or categories are needed.")
    if values.dtype.kind == "O":
        values = np.array([np.nan if is_missing(value) else value for value in values], object)
        is_text = np.array([isinstance(value, str) for value in values])
        if is_text.any() and (read := undecorated_numbers(values[is_text].tolist())) is not None:
            values[is_text] = read[0]
    try:
        numbers = values.astype(np.float64)
    except (TypeError, ValueError) as error:
        wrong = [row for row, value in enumerate(values) if not converts_to_float(value)]
        row = next((row for row in wrong if decorated(str(values[row])) is None), wrong[0])
        raise type(error)(
            f"Column {name!r}, row {row}: {values[row]!r} is not a number "
            f"(the argument must be a string or a number that float() reads)."
        ) from None
    unfit = np.flatnonzero(_is_unfit(numbers))
    if unfit.size:
        raise _unfit(name, unfit[0], float(numbers[unfit[0]]))
    return numbers


def error_of_times(what: str, kind: str) -> ValueError:
    """Make the error that refuses dates and times."""
    return ValueError(
        f"{what} contains dates or times ({kind}); numbers or categories are needed: replace them "
        "by a number, such as the days since the first one, the year or the month."
    )


def _is_unfit(values: np.ndarray) -> np.ndarray:
    """Return which values are infinite, or so small that XLA rounds them or half of them to 0."""
    size = np.abs(values)
    return np.isinf(values) | ((size > 0) & (size < _LEAST_VALUE))


def _unfit(name: str, row: int, value: float) -> ValueError:
    if np.isinf(value):
        said = "infinite (inf); finite numbers or missing values (NaN) are needed."
    else:
        said = f"{value}, which compiled code rounds to 0: scale the column, or replace it by 0."
    return ValueError(f"Column {name!r}, row {row}: the value is {said}")


def converts_to_float(value: Any) -> bool:
    """Return whether `float` reads a value."""
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def as_level(value: Any, levels: tuple[str, ...]) -> str:
    """Write a value as a level: as 1 if it is 1.0, as True if it is 1 or true."""
    text = str(value)
    if text in levels:
        return text
    if isinstance(value, float) and value.is_integer():
        text = str(int(value))
    if levels == _BOOLEANS:
        text = {"0": "False", "false": "False", "1": "True", "true": "True"}.get(text.lower(), text)
    return text
