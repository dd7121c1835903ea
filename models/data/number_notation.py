"""Notations of numbers: decimal commas, thousands separators, currencies and units.

A single cell is ambiguous: 1,234 is a whole number in some notations and a fraction in others. A
column is read by a notation that fits all of its cells, and only if all such notations agree. Text
before and after the numbers is ignored if it is the same in all cells.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_SIGNS = "+\u2212-"  # the second one is the minus of typesetters
_SPACES = " '\u2019\u00a0\u202f"
_NOTATIONS = {  # thousands separators, and the decimal sign
    "with commas between thousands": (",", "."),
    "with spaces or apostrophes between thousands": (_SPACES, "."),
    "with a decimal comma": ("." + _SPACES, ","),
}
_CELL_FORMS = {
    notation: re.compile(
        rf"(?=[{_SIGNS}]?[{decimal}]?\d)"
        rf"[{_SIGNS}]?(\d*|[1-9]\d{{0,2}}([{groups}])\d{{3}}(\2\d{{3}})*)([{decimal}]\d*)?(e[+-]?\d+)?",
        re.IGNORECASE,
    )
    for notation, (groups, decimal) in _NOTATIONS.items()
}

_CURRENCY = (
    r"(?:[A-Z]{0,3}[$\u20ac\u00a3\u00a5\u20b9]"
    r"|AUD|CAD|CHF|CNY|DKK|EUR|GBP|INR|JPY|NOK|NZD|PLN|SEK|USD)"
)
_COMMA_SETS_OFF = tuple("$\u00a3\u00a5\u20b9")  # thousands, if these stand before a number
_DECORATED = re.compile(
    rf"(?P<sign>[{_SIGNS}]?)(?P<open>\(?)(?P<before>{_CURRENCY}?)[ \u00a0]?"
    rf"(?P<number>[{_SIGNS}]?[.,]?\d(?:[\d.,{_SPACES}]*\d)?(?:[eE][+-]?\d+)?)"
    r"[ \u00a0]?(?P<after>(?:[^\W\d_]|[%\u2030\u00b0$\u20ac\u00a3\u00a5\u20b9])"
    r"(?:[^()<>+\d]|(?<=[^\W\d_])\d)*|)(?P<close>\)?)"  # a digit as in m2, none as in 10 x 20
)


class Decorated(NamedTuple):
    """A number and the text around it."""

    number: str
    """The number alone, with its sign."""
    before: str
    """A currency, or nothing."""
    after: str
    """A unit, a percent sign or a currency, or nothing."""
    is_enclosed: bool
    """Whether it is in parentheses, as accounts write what is below zero."""


def is_number(cell: str | None) -> bool:
    """Return whether a cell is a number in Python's notation; it may be infinite.

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
    """Return whether a cell is a number in some notation.

    Examples
    --------
    >>> [looks_like_number(cell) for cell in ("1,5", "1.234,50", "12 000", "1,2,3", "1.2.3")]
    [True, True, True, False, False]
    """
    return is_number(cell) or any(form.fullmatch(cell) for form in _CELL_FORMS.values())


def notations_of(cells: Sequence[str]) -> list[str]:
    """Return the notations in which all cells are numbers, and the first of those that agree.

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
    """Return the first cell that fits no notation of all cells above it.

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
    raise ValueError("cells must not all be numbers in one notation.")


def without_notation(cell: str, notation: str) -> str:
    """Convert a number to Python's notation.

    Examples
    --------
    >>> without_notation("-1.234,5", "with a decimal comma")
    '-1234.5'
    """
    groups, decimal = _NOTATIONS[notation]
    return re.sub(f"[{groups}]", "", cell).replace(decimal, ".").replace("\u2212", "-")


def decorated(cell: str) -> Decorated | None:
    """Separate a number from the text around it; return None if there is no such number.

    Examples
    --------
    >>> decorated("$1,234.50")[:3], decorated("12 cm")[:3], decorated("(1.234,5 EUR)")[:3]
    (('1,234.50', '$', ''), ('12', '', 'cm'), ('-1.234,5', '', 'EUR'))
    >>> [decorated(cell) for cell in ("A12", "12-14", "<5", "12:30")]
    [None, None, None, None]
    """
    found = _DECORATED.fullmatch(cell)
    if found is None or bool(found["open"]) != bool(found["close"]):
        return None
    signs = found["sign"] + ("-" if found["open"] else "")
    if len(signs) + (found["number"][0] in _SIGNS) > 1:
        return None
    return Decorated(
        signs + found["number"], found["before"], found["after"].strip(), bool(found["open"])
    )


def undecorated(cells: Sequence[str]) -> tuple[list[str], str] | None:
    """Remove the decoration of all cells' numbers, and describe how they are read.

    None if a cell has no number, the decorations differ, there are none, or all numbers are in
    parentheses, which are ambiguous.

    Examples
    --------
    >>> undecorated(["12.5%", "7%"]), undecorated(["$5", "-$7"]), undecorated(["(2)", "3"])
    ((['12.5', '7'], 'before "%"'), (['5', '-7'], 'after "$"'), (['-2', '3'], '(1) being -1'))
    >>> undecorated(["5 cm", "6 mm"]), undecorated(["5", "6"]), undecorated(["(5)", "(6)"])
    (None, None, None)
    """
    found: list[Decorated] = []
    for cell in cells:
        part = decorated(cell)
        if part is None or (found and part[1:3] != found[0][1:3]):
            return None
        found.append(part)
    enclosed = {part.is_enclosed for part in found}
    if enclosed == {True} or not found:
        return None
    numbers = [part.number for part in found]
    _, before, after, _ = found[0]
    said = [f'{word} "{text}"' for word, text in (("after", before), ("before", after)) if text]
    said += ["(1) being -1"] * (True in enclosed)
    if not said or not all(map(looks_like_number, numbers)):
        return None
    with_commas = next(iter(_NOTATIONS))
    if (
        before[-1:] in _COMMA_SETS_OFF
        and before != "R$"
        and all(map(_CELL_FORMS[with_commas].fullmatch, numbers))
    ):
        numbers = [without_notation(number, with_commas) for number in numbers]
    return numbers, " and ".join(said)


def undecorated_numbers(cells: Sequence[str]) -> tuple[list[float], str] | None:
    """Read decorated numbers, and describe how; return None if the cells are something else.

    Examples
    --------
    >>> undecorated_numbers(["$1,234.5", "$12"])
    ([1234.5, 12.0], 'after "$"')
    >>> undecorated_numbers(["1,234 cm"]), undecorated_numbers(["1.5"])
    (None, None)
    """
    if (found := undecorated(cells)) is None:
        return None
    numbers, how = found
    if not all(map(is_number, numbers)):
        notations = notations_of(numbers)
        if len(notations) != 1:
            return None
        numbers = [without_notation(number, notations[0]) for number in numbers]
    return list(map(float, numbers)), how
