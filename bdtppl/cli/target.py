"""The column to predict: classes or real numbers."""

from typing import Any, Literal, NamedTuple

import numpy as np

from bdtppl.models.data.tables import are_dates, are_identifiers
from bdtppl.table_files import Table

Task = Literal["classification", "regression"]

_MOST_CODES = 10  # most distinct whole numbers that still count as classes


class Target(NamedTuple):
    """Targets of the rows of a table."""

    name: str
    """Name of the column."""
    task: Task
    """Task that the targets call for."""
    y: Any
    """[n]: int64 or text for classes, float64 for regression; the name where rows come in parts."""
    reason: str | None = None
    """Why the task was guessed; None where it was given."""


def target_of(table: Table, name: str, task: Task | None) -> Target:
    """Read the column to predict, guessing the task if it is not given.

    Words are classes, and so are whole numbers of few distinct values.

    Raises
    ------
    ValueError
        If the column or a value of it is missing, a value does not fit the task, or there is one
        class only.
    """
    table.require(name)
    cells = table.cells[name]
    if None in cells:
        place = table.place(cells.index(None))
        raise ValueError(
            f"Column {name!r}, {place}: the target is missing; fill it in or remove the row."
        )
    reason = None
    if task is None:
        task, reason = _guess(table, name)
    y = _as_classes(table, name) if task == "classification" else table.numbers(name)
    if task == "classification" and len(set(y.tolist())) < 2:
        if len(y) == 1:
            raise ValueError(
                f"The table has only one row; two or more classes are needed in column {name!r}."
            )
        raise ValueError(
            f"Column {name!r}: the target has only one class, {cells[0]!r}; two or more are needed."
        )
    return Target(name, task, y, reason)


def _guess(table: Table, name: str) -> tuple[Task, str]:
    cells = table.cells[name]
    if not table.is_numeric(name):
        if wrong := table.slips(name):
            raise ValueError(
                f"Column {name!r}, {table.place(wrong[0])}: {cells[wrong[0]]!r} is not a number "
                "but most targets are; correct it, or set --task classification."
            )
        if are_dates(table.present(name)):
            raise ValueError(
                f"Column {name!r} contains dates, such as {cells[0]!r}: replace them by a number, "
                "such as the days since the first one, or set --task classification."
            )
        if are_identifiers(len(set(cells)), len(cells)):
            raise ValueError(
                f"Column {name!r} has {len(set(cells))} classes in {len(cells)} rows, like row "
                "identifiers: name another target, or set --task classification."
            )
        return "classification", "words are classes"
    numbers = np.unique(table.numbers(name))
    if len(numbers) <= _MOST_CODES and _are_whole(numbers):
        return "classification", f"whole numbers of {len(numbers)} values are classes"
    return "regression", "numbers are quantities"


def _as_classes(table: Table, name: str) -> np.ndarray:
    """Return labels as whole numbers if all are, else as text."""
    if table.is_numeric(name):
        numbers = table.numbers(name)
        if _are_whole(numbers):
            return numbers.astype(np.int64)
    return np.array(table.cells[name])


def _are_whole(numbers: np.ndarray) -> bool:
    return bool(np.all((numbers == np.floor(numbers)) & (np.abs(numbers) < 2**53)))
