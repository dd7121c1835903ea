"""Notations of numbers in text files: with a decimal comma, or with thousands set off.

A cell alone does not tell: 1,234 is a whole number to some and a fraction to others. A column is
read by a notation that fits all of its cells, and only where all notations that do so agree.
"""

import re
from collections.abc import Sequence

import numpy as np

__all__ = ["first_misfit", "is_number", "looks_like_number", "notations_of", "without_notation"]

_SPACES = " '\u2019\u00a0\u202f"
_NOTATIONS = {  # the signs that may set off thousands, and the decimal sign
    "with commas between thousands": (",", "."),
    "with spaces or apostrophes between thousands": (_SPACES, "."),
    "with a decimal comma": ("." + _SPACES, ","),
}
_CELL_FORMS = {
    notation: re.compile(
        rf"(?=[+-]?[{decimal}]?\d)"
        rf"[+-]?(\d*|[1-9]\d{{0,2}}([{groups}])\d{{3}}(\2\d{{3}})*)([{decimal}]\d*)?(e[+-]?\d+)?",
        re.IGNORECASE,
    )
    for notation, (groups, decimal) in _NOTATIONS.items()
}


def is_number(cell: str | None) -> bool:
    """Whether a cell says a number as Python does; it may be infinite.

    Examples
    --------
    >>> [is_number(cell) for cell in ("-1.5e3", "inf", "nan", "1_000", "1,5", "2024-01-31")]
    [True, True, False, False, False, False]
    """
    try:
        number = float(cell or "")
    except ValueError:
        return False
    return not np.isnan(number) and "_" not in (cell or "")


def looks_like_number(cell: str) -> bool:
    """Whether a cell says a number in some notation.

    Examples
    --------
    >>> [looks_like_number(cell) for cell in ("1,5", "1.234,50", "12 000", "1,2,3", "1.2.3")]
    [True, True, True, False, False]
    """
    return is_number(cell) or any(form.fullmatch(cell) for form in _CELL_FORMS.values())


def notations_of(cells: Sequence[str]) -> list[str]:
    """Name the notations in which all cells are numbers, of those that agree the first.

    Examples
    --------
    >>> notations_of(["1,5", "12"]), notations_of(["1,234"]), notations_of(["1,5", "2.5"])
    (['with a decimal comma'], ['with commas between thousands', 'with a decimal comma'], [])
    """
    found: dict[tuple, str] = {}
    for notation, form in _CELL_FORMS.items():
        if all(map(form.fullmatch, cells)):
            numbers = tuple(float(without_notation(cell, notation)) for cell in cells)
            found.setdefault(numbers, notation)
    return list(found.values())


def first_misfit(cells: Sequence[str]) -> str:
    """Find the first cell that no notation fits which fits all cells above it.

    Examples
    --------
    >>> first_misfit(["12", "1,5", "2.5", "x"])
    '2.5'
    """
    forms = list(_CELL_FORMS.values())
    for cell in cells:
        forms = [form for form in forms if form.fullmatch(cell)]
        if not forms:
            return cell
    raise ValueError("All cells are numbers in one notation.")


def without_notation(cell: str, notation: str) -> str:
    """Write a number as Python does.

    Examples
    --------
    >>> without_notation("-1.234,5", "with a decimal comma")
    '-1234.5'
    """
    groups, decimal = _NOTATIONS[notation]
    return re.sub(f"[{groups}]", "", cell).replace(decimal, ".")
