"""Experiments of papers: tasks whose numbers are kept, and tables of them beside printed values.

An experiment is a set of tasks. A task is one call, such as all models on one fold of one set; it
returns numbers by the cells of tables that they belong to. A cell is the mean of the numbers that
tasks have returned for it, with the standard error of this mean.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, SupportsFloat

import numpy as np

__all__ = ["Cell", "Experiment", "Printed", "Table", "Task", "cells_of", "key_of", "summed_up"]


def key_of(table: str, row: str, column: str) -> str:
    """Name a cell of a table."""
    return " | ".join((table, row, column))


def cells_of(table: str, row: str, values: Mapping[str, SupportsFloat | None]) -> dict[str, float]:
    """Name the cells of a row of a table by column; columns without a number are left out."""
    return {
        key_of(table, row, column): float(value)
        for column, value in values.items()
        if value is not None
    }


class Task(NamedTuple):
    """A call that is made once, and whose numbers are kept.

    Attributes
    ----------
    name
        Its name among those of the experiment.
    function
        Importable function; it returns a number, or those of several folds, by cells (`key_of`).
    arguments
        Its arguments.
    is_quick
        Whether it belongs to the quick run.
    """

    name: str
    function: Callable[..., Mapping[str, float | list[float]]]
    arguments: tuple = ()
    is_quick: bool = False


class Printed(NamedTuple):
    """A number as a paper prints it.

    Attributes
    ----------
    value
        The number.
    spread
        Standard deviation of the runs or folds that it is the mean of; 0 where the paper does not
        tell.
    runs
        How many there are.
    digits
        Its digits after the point; None: those of the table.
    """

    value: float
    spread: float = 0.0
    runs: int = 1
    digits: int | None = None

    @property
    def error(self) -> float:
        """Standard error of the mean; 0 where it is not known."""
        return float(self.spread / np.sqrt(self.runs))


@dataclass(frozen=True)
class Table:
    """A table or figure of a paper.

    Attributes
    ----------
    name
        Name in the keys of cells, such as "Table 1".
    title
        What it shows, with units.
    rows, columns
        Its rows and columns, in order.
    printed
        Values of the paper by row and column.
    quoted
        Rows that are quoted of the paper and not computed here.
    digits
        Digits after the point, here and in the paper.
    is_compared
        Whether ours and theirs measure the same, so that agreement means something; times on other
        machines do not.
    """

    name: str
    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    printed: Mapping[tuple[str, str], Printed] = field(default_factory=dict)
    quoted: Sequence[str] = ()
    digits: int = 3
    is_compared: bool = True


@dataclass(frozen=True)
class Experiment:
    """Tasks, and the tables that their numbers fill.

    Attributes
    ----------
    name
        Name on the command line, and of the file of results.
    paper
        Paper that it is of, or what else it is.
    protocol
        How it is run, and where the paper leaves that open.
    tasks
        Lists the tasks; it raises FileNotFoundError where a data set is missing.
    tables
        The tables.
    seconds
        CPU seconds that a task takes, roughly; for tasks that no kept run has timed.
    reasons
        Why ours differs from what is printed: a sentence by the beginning of cells' keys; of
        several that fit, the longest counts.
    tolerance
        Most that a number may differ by when its task is run again on another machine.
    curves
        Keys of lists of numbers that a figure draws and no table shows.
    """

    name: str
    paper: str
    protocol: str
    tasks: Callable[[], Sequence[Task]]
    tables: Sequence[Table]
    seconds: float
    reasons: Mapping[str, str] = field(default_factory=dict)
    tolerance: float = 1e-6
    curves: Sequence[str] = ()

    def reason(self, key: str) -> str | None:
        """Say why a cell differs from what is printed; None where that is not known."""
        fitting = [start for start in self.reasons if key.startswith(start)]
        return self.reasons[max(fitting, key=len)] if fitting else None


class Cell(NamedTuple):
    """Our number, its standard error (NaN where there is one task), and the number of tasks."""

    value: float
    error: float
    count: int

    def apart(self, printed: Printed, digits: int) -> float:
        """Tell how many standard errors lie between it and a printed value; NaN if none is known.

        A single run of ours is taken to be as uncertain as one of the paper's. Half a unit of the
        last printed digit is not told apart.

        Parameters
        ----------
        printed
            The printed value.
        digits
            Digits after the point, where it has none of its own.
        """
        own = printed.spread if np.isnan(self.error) else self.error
        error = float(np.hypot(own, printed.error))
        difference = self.value - printed.value
        own_digits = digits if printed.digits is None else printed.digits
        if abs(difference) <= 0.5 * 10.0**-own_digits + 1e-12:
            return 0.0
        return difference / error if error > 0 else np.nan


def summed_up(tasks: Mapping[str, Mapping[str, Any]]) -> dict[str, Cell]:
    """Average the numbers of tasks by cell.

    Parameters
    ----------
    tasks
        By name: each with its "values".
    """
    values: dict[str, list[float]] = {}
    for name in sorted(tasks):
        for key, value in tasks[name]["values"].items():
            values.setdefault(key, []).extend(np.ravel(value).tolist())
    return {
        key: Cell(
            float(np.mean(found)),
            float(np.std(found, ddof=1) / np.sqrt(len(found))) if len(found) > 1 else np.nan,
            len(found),
        )
        for key, found in values.items()
    }
