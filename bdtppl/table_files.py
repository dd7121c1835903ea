"""Tables in files, as the command line reads and writes them: CSV, TSV and Parquet.

A column is numeric if every cell that is not missing is a number, possibly with the same currency
or unit in all. Otherwise, or if a Parquet file declares it as text, it is a category. Cells of text
files are missing if they are empty or NA, N/A, NaN, null or ?; in Parquet files only nulls and NaN
are. Cells are stored as text, because the kind of a column may depend on another table: the one
that a model was fitted with.
"""

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from bdtppl.models.data.number_notation import (
    decorated,
    first_misfit,
    is_number,
    looks_like_number,
    notations_of,
    undecorated,
    without_notation,
)
from bdtppl.models.data.schema import Column
from bdtppl.models.data.tables import are_dates, is_missing

_MISSING = frozenset({"", "?", "na", "n/a", "nan", "+nan", "-nan", "null"})
_MOST_LEVELS = 100  # a category of more is probably a mistake: names, dates, an error
_SEPARATORS = ",;\t"
_TABS = (".tsv", ".tab")
PARQUET = (".parquet", ".pq")
"""Endings of Parquet files."""

_ROWS_NAMED = 10  # column names in an error
_INDEX_LEFT_OUT = "is the index of a pandas frame and was left out; reset_index() makes it a column"
_UNNAMED = re.compile(r"Unnamed: \d+")  # pandas's name for an index that is read as a column
_PANDAS_INDEX = re.compile(r"__index_level_\d+__")  # for an index without a name


@dataclass(frozen=True, eq=False)
class Table:
    """Cells of a table as text.

    Attributes
    ----------
    path
        Path that it was read from.
    cells
        Cells by column name [n]; None if one is missing.
    lines
        Line of the file that each row starts on, [n]; None if the file has no lines.
    left_out
        Reason by column that was left out. A column without a name is called by its position.
    is_headless
        Whether most cells of the first line look like values and not like names.
    words
        Columns that the file declares as text, though they may look like numbers.

    Examples
    --------
    >>> table = Table(Path("t.csv"), {"size": ["1.5", None], "hue": ["red", "7"]}, [2, 3])
    >>> table.numbers("size").tolist(), table.is_numeric("hue")
    ([1.5, nan], False)
    """

    path: Path
    cells: Mapping[str, Sequence[str | None]]
    lines: Sequence[int] | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)
    is_headless: bool = False
    words: frozenset[str] = frozenset()

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self.cells)

    @property
    def num_rows(self) -> int:
        """Number of rows n."""
        return len(next(iter(self.cells.values())))

    def without(self, name: str) -> "Table":
        """Leave a column out."""
        return replace(self, cells={each: c for each, c in self.cells.items() if each != name})

    def place(self, row: int) -> str:
        """Name the place of a row, counted from 0: its line if the file has lines."""
        return f"row {row}" if self.lines is None else f"line {self.lines[row]}"

    @contextmanager
    def naming_lines(self) -> Iterator[None]:
        """Make errors of estimators name lines of the file."""

        def line(match: re.Match) -> str:
            return f", {self.place(int(match[1]))}:"

        try:
            yield
        except ValueError as error:
            raise ValueError(re.sub(r", row (\d+):", line, str(error), count=1)) from error

    def require(self, name: str) -> None:
        """Raise ValueError unless a column exists."""
        if name in self.cells:
            return
        if name in self.left_out:
            raise ValueError(f"Column {name!r} of {self.path} {self.left_out[name]}.")
        near = get_close_matches(name, self.columns, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"its columns are {self._shown_columns()}."
        raise ValueError(f"Column {name!r} is not in {self.path}: {hint}")

    def _shown_columns(self) -> str:
        shown = ", ".join(self.columns[:_ROWS_NAMED])
        rest = len(self.columns) - _ROWS_NAMED
        return shown if rest <= 0 else f"{shown} and {rest} more"

    def is_numeric(self, name: str) -> bool:
        """Return whether every present cell is a number, and the column is not text.

        Raises
        ------
        ValueError
            If every cell alone is a number, but their notations are contradictory or ambiguous.
        """
        if name in self.words:
            return False
        cells = self.present(name)
        if all(map(is_number, cells)):
            return True
        if not all(map(looks_like_number, cells)) and undecorated(cells) is None:
            return False
        self._written(name)
        return True

    def numbers(self, name: str) -> np.ndarray:
        """Read a numeric column, float64 [n] with NaN for missing cells.

        Raises
        ------
        ValueError
            If a cell is not a number or is infinite, or `is_numeric` raises.
        """
        numbers = iter(self._written(name)[0] if self.is_numeric(name) else self.present(name))
        values = np.full(self.num_rows, np.nan)
        for row, cell in enumerate(self.cells[name]):
            if cell is None:
                continue
            number = next(numbers)
            if is_number(number):
                values[row] = float(number)
            if not np.isfinite(values[row]):
                fault = "infinite" if is_number(number) else "not a number"
                raise ValueError(
                    f"Column {name!r}, {self.place(row)}: {cell!r} is {fault}; give a finite "
                    f"number, or leave the cell empty if the value is missing."
                )
        return values

    def present(self, name: str) -> list[str]:
        """Return the cells that are not missing."""
        return [cell for cell in self.cells[name] if cell is not None]

    def _written(self, name: str) -> tuple[list[str], list[str]]:
        """Convert a numeric column to Python's notation, and describe how its numbers are read."""
        cells = given = self.present(name)
        if all(map(is_number, cells)):
            return cells, []
        how = []
        if (bare := undecorated(cells)) is not None:
            cells, how = bare[0], [bare[1]]
        if all(map(is_number, cells)):
            return cells, how
        notations = notations_of(cells)
        if len(notations) == 1:
            return [without_notation(cell, notations[0]) for cell in cells], [*how, notations[0]]
        if notations:
            other = next(cell for cell in cells if not is_number(cell))
            fault = f"is one number {notations[0]} and another {notations[-1]}"
        else:
            other, fault = first_misfit(cells), "is in no notation shared by all cells above"
        row = self.cells[name].index(given[cells.index(other)])
        raise ValueError(
            f"Column {name!r}, {self.place(row)}: the number {other!r} {fault}; write all numbers "
            f"of the column with a decimal point and without commas."
        )

    def weights(self, name: str) -> np.ndarray:
        """Read a column of weights, float64 [n].

        Raises
        ------
        ValueError
            If a cell is not a number of at least 0.
        """
        values = self.numbers(name)
        wrong = np.flatnonzero(~((values >= 0) & (values < np.inf)))
        if wrong.size:
            cell = self.cells[name][wrong[0]]
            raise ValueError(
                f"Column {name!r}, {self.place(wrong[0])}: {'nothing' if cell is None else cell} "
                f"is not a weight (a number of at least 0)."
            )
        return values

    def labels(self, name: str) -> np.ndarray:
        """Read a column as text, object [n] with None for missing cells."""
        return np.array(self.cells[name], dtype=object)

    def features(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        """Read columns for estimators, each by the kind of its own cells.

        Raises
        ------
        ValueError
            If a value is infinite, a column contains dates, or a category has too many levels to be
            one.
        """
        features = {}
        for name in names:
            if self.is_numeric(name):
                features[name] = self.numbers(name)
            else:
                self._refuse_dates(name)
                self._require_category(name)
                features[name] = self.labels(name)
        return features

    def slips(self, name: str) -> list[int]:
        """Return the rows that keep a mostly numeric column from being numeric."""
        if name in self.words or self.is_numeric(name):
            return []
        parts = [None if cell is None else decorated(cell) for cell in self.cells[name]]
        kinds = Counter(part[1:3] for part in parts if part is not None)
        usual = max(kinds, key=kinds.__getitem__, default=None)
        wrong = [
            row
            for row, (cell, part) in enumerate(zip(self.cells[name], parts, strict=True))
            if cell and (part is None or part[1:3] != usual)
        ]
        return wrong if 2 * len(wrong) < len(self.present(name)) else []

    def doubts(self, names: Iterable[str]) -> Iterator[str]:
        """Describe possible misreadings of the file and of some of its columns."""
        for name, why in self.left_out.items():
            yield f"Column {name if name.isdecimal() else repr(name)} of {self.path} {why}."
        if self.is_headless:
            yield (
                f"Most names of columns of {self.path} look like values: {self._shown_columns()}. "
                "If its first line is a row, insert a line of names before it."
            )
        for name in names:
            cells = self.cells[name]
            if wrong := self.slips(name):
                yield (
                    f"Column {name!r} is read as a category of {len(set(self.present(name)))} "
                    f"levels, though most cells are numbers: {self.place(wrong[0])} has "
                    f"{cells[wrong[0]]!r}. Correct it, or leave it empty if the value is missing."
                )
            elif self.is_numeric(name) and (read := self._written(name))[1]:
                cell, number = next(
                    each
                    for each in zip(self.present(name), read[0], strict=True)
                    if not is_number(each[0])
                )
                yield (
                    f"Column {name!r} is read as numbers {' and '.join(read[1])}: {cell!r} is "
                    f"{float(number):.10g}."
                )

    def features_like(self, columns: Iterable[Column]) -> dict[str, np.ndarray]:
        """Read the columns that a model was fitted with, each by its kind in that fit.

        Raises
        ------
        ValueError
            If a column is missing, or a cell of a numeric one is not a finite number.
        """
        features = {}
        for column in columns:
            self.require(column.name)
            read = self.numbers if column.levels is None else self.labels
            features[column.name] = read(column.name)
        return features

    def _refuse_dates(self, name: str) -> None:
        cells = self.present(name)
        if are_dates(cells):
            raise ValueError(
                f"Column {name!r} contains dates, such as {cells[0]!r}; numbers or categories are "
                "needed: replace them by a number, such as the days since the first one, the year "
                "or the month, or leave the column out with --drop."
            )

    def _require_category(self, name: str) -> None:
        cells = self.cells[name]
        num_levels = len(set(cells) - {None})
        if num_levels > _MOST_LEVELS:
            row = next((i for i, cell in enumerate(cells) if cell and not is_number(cell)), 0)
            raise ValueError(
                f"Column {name!r} has {num_levels} distinct values and is not numeric "
                f"({self.place(row)} has {cells[row]!r}): correct it, or leave it out with --drop."
            )


def read_table(path: Path) -> Table:
    """Read a table from a file.

    The suffix ``.parquet`` or ``.pq`` means Parquet, ``.tsv`` or ``.tab`` tabs. Any other file is
    UTF-8 text with one header line, after optional comments with #; its separator is the most
    frequent of comma, semicolon and tab in the header. Columns without a name and the index of a
    pandas frame are left out.

    Raises
    ------
    OSError
        If the file is missing or cannot be read.
    ValueError
        If it is not such a table, or has no rows.
    """
    if not path.exists():
        raise FileNotFoundError(f"The table {path} does not exist.")
    if path.is_dir():
        raise IsADirectoryError(f"The table {path} is a folder; name a file.")
    try:
        if path.suffix.lower() in PARQUET:
            table = _read_parquet(path)
        else:
            table = _read_text_file(path)
    except OSError as error:
        raise OSError(f"The table {path} cannot be read: {error.strerror or error}.") from error
    if not table.cells:
        raise ValueError(f"{path} has no columns.")
    if not table.num_rows:
        raise ValueError(f"{path} has no rows; at least one is needed below the header.")
    return table


def write_table(path: Path, columns: Mapping[str, Sequence]) -> None:
    """Write named columns to a file, in the format of its suffix as in `read_table`.

    Raises
    ------
    OSError
        If the file cannot be written.
    ValueError
        If the suffix means Parquet, and neither pyarrow nor polars is installed.

    Examples
    --------
    >>> write_table(Path("t.csv"), {"size": [0.5, 2.0], "hue": ["red", "blue"]})
    >>> read_table(Path("t.csv")).columns
    ['size', 'hue']
    """
    if path.suffix.lower() in PARQUET:
        _parquet_writer()(path, columns)
    else:
        separator = "\t" if path.suffix.lower() in _TABS else ","
        path.write_text(to_text(columns, separator), encoding="utf-8")


def to_text(columns: Mapping[str, Sequence], separator: str = ",") -> str:
    """Write named columns as text with one header line, floats to ten digits."""
    text = io.StringIO()
    writer = csv.writer(text, delimiter=separator, lineterminator="\n")
    writer.writerow(columns)
    for row in zip(*columns.values(), strict=True):
        writer.writerow([f"{v:.10g}" if isinstance(v, float) else v for v in row])
    return text.getvalue()


def _read_text_file(path: Path) -> Table:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not text in UTF-8; save the table as CSV in UTF-8.") from None
    lines = [line for line in text.split("\n") if line.strip()] or [""]
    header = next((line for line in lines if not line.startswith("#")), lines[0])
    separator = "\t" if path.suffix.lower() in _TABS else _separator(header)
    reader = csv.reader(io.StringIO(text), delimiter=separator, strict=True)
    rows, starts = [], []
    try:
        start = 1
        for row in reader:
            if any(cell.strip() for cell in row):
                rows.append([cell.strip() for cell in row])
                starts.append(start)
            start = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(f"{path}, line {reader.line_num}: {error}.") from None
    if not rows:
        raise ValueError(f"{path} is empty; a header line and rows are needed.")
    first = next((place for place, row in enumerate(rows) if not row[0].startswith("#")), 0)
    if first and len(rows[first - 1]) == len(rows[first]):  # a header may start like this, too
        first -= 1
    header, *rows = rows[first:]
    starts = starts[first:]
    for row, start in zip(rows, starts[1:], strict=True):
        if len(row) != len(header):
            raise ValueError(
                f"{path}, line {start}: there are {len(row)} cells, but the header has "
                f"{len(header)} columns."
            )
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(header)
    counts = list(map(str, range(len(rows))))
    header = [
        "" if _UNNAMED.fullmatch(name) and list(column) == counts else name
        for name, column in zip(header, columns, strict=True)
    ]
    cells = {name: column for name, column in zip(header, columns, strict=True) if name}
    headless = _share_of_values(header, columns)
    if headless == 1:
        raise ValueError(
            f"{path} has no header: its first line ({', '.join(header[:_ROWS_NAMED])}) contains "
            "values and not names of columns. Insert a line of names before it."
        )
    _require_distinct(path, [name for name in header if name])
    return Table(
        path,
        {name: list(map(_cell, column)) for name, column in cells.items()},
        starts[1:],
        {
            str(position): "has no name and was left out"
            for position, name in enumerate(header, 1)
            if not name
        },
        is_headless=headless >= 1 / 2,
    )


def _share_of_values(header: Sequence[str], columns: Sequence[Sequence[str]]) -> float:
    """Return the share of column names that look like values: numbers, or cells of their columns.

    Integers in a row, such as years or the positions that pandas writes, count as names.
    """
    numbers = [name for name in header if looks_like_number(name)]
    if all(name.isdecimal() for name in numbers):
        first = int(numbers[0]) if numbers else 0
        if numbers == [str(first + place) for place in range(len(numbers))]:
            numbers = []
    named = [(name, column) for name, column in zip(header, columns, strict=True) if name]
    values = [name for name, column in named if name in numbers or name in column]
    return len(values) / max(len(named), 1)


def _separator(header: str) -> str:
    try:
        return max(
            _SEPARATORS, key=lambda each: len(next(csv.reader([header], delimiter=each), ()))
        )
    except csv.Error:  # reported when it is read
        return _SEPARATORS[0]


def _require_distinct(path: Path, names: Sequence[str]) -> None:
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise ValueError(f"{path} has two columns named {repeated!r}; give each its own name.")


def _read_parquet(path: Path) -> Table:
    read = _parquet_reader()
    try:
        columns, notes = read(path)
    except OSError:
        raise
    except Exception as error:  # the readers' own error types
        reason = str(error).splitlines()[0].rstrip(".")
        raise ValueError(f"{path} cannot be read as Parquet: {reason}.") from error
    index = [name for name in columns if _PANDAS_INDEX.fullmatch(name)]
    noted = json.loads(notes or "{}").get("index_columns", ())  # names, or ranges without a column
    index += [name for name in noted if isinstance(name, str) and name in columns]
    left_out = dict.fromkeys(index, _INDEX_LEFT_OUT)
    for name, values in columns.items():
        if any(isinstance(value, list | dict) for value in values):
            left_out[name] = "contains lists or records and was left out"
    cells = {
        name: [None if is_missing(value) else str(value) for value in values]
        for name, values in columns.items()
        if name not in left_out
    }
    words = [name for name in cells if any(isinstance(v, str) for v in columns[name])]
    return Table(path, cells, left_out=left_out, words=frozenset(words))


def _parquet_reader() -> Callable[[Path], tuple[Mapping[str, list], Any]]:
    """Return a function that reads columns, and pandas's notes on them as JSON."""
    if find_spec("pyarrow"):
        from pyarrow.parquet import read_table as read_arrow  # pyright: ignore

        def read(path: Path) -> tuple[Mapping[str, list], Any]:
            table = read_arrow(path)
            return table.to_pydict(), (table.schema.metadata or {}).get(b"pandas")

        return read
    if find_spec("polars"):
        import polars

        noted = getattr(polars, "read_parquet_metadata", lambda path: {})  # old ones have none
        return lambda path: (
            polars.read_parquet(path).to_dict(as_series=False),
            noted(path).get("pandas"),
        )
    raise _no_parquet()


def _parquet_writer() -> Callable[[Path, Mapping[str, Sequence]], Any]:
    if find_spec("pyarrow"):
        import pyarrow  # pyright: ignore
        from pyarrow.parquet import write_table as write_arrow  # pyright: ignore

        return lambda path, columns: write_arrow(pyarrow.table(dict(columns)), path)
    if find_spec("polars"):
        import polars

        return lambda path, columns: polars.DataFrame(dict(columns)).write_parquet(path)
    raise _no_parquet()


def _no_parquet() -> ValueError:
    return ValueError(
        "Parquet files require pyarrow or polars, and neither is installed: run `python -m pip "
        "install 'bdtppl[parquet]'`, or use a CSV file."
    )


def _cell(text: str) -> str | None:
    """Return the text of a cell; None if it marks a missing value."""
    return None if text.lower() in _MISSING else text
