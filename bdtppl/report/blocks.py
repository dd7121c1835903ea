"""Sections of a report and their blocks, whose kinds the template knows."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

_NUMERIC = re.compile(r"[-+\N{EN DASH}]?[\d.,]*(e[-+]\d+)?%?( ± .*)?$")


class Text(NamedTuple):
    """A paragraph."""

    text: str
    kind = "text"


class Facts(NamedTuple):
    """Facts by name."""

    facts: Mapping[str, str]
    kind = "facts"


class ReportTable(NamedTuple):
    """Rows of text below a head.

    Attributes
    ----------
    caption
        Caption of the table.
    head
        Names of the columns.
    rows
        Cells by row.
    shares
        Length of a bar in the last column for each row, 0 to 1; () for no bars.
    """

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    shares: Sequence[float] = ()
    kind = "table"

    @property
    def is_number(self) -> list[bool]:
        """Return which columns contain only numbers, which are aligned right."""
        return [all(map(_NUMERIC.match, column)) for column in zip(*self.rows, strict=True)]


class Figure(NamedTuple):
    """A picture.

    Attributes
    ----------
    source
        Address of the picture: a data URI.
    width, height
        In points of CSS.
    text
        Alternative text for readers who do not see it.
    caption
        Content of the figure, and how to read it.
    """

    source: str
    width: int
    height: int
    text: str
    caption: str
    kind = "figure"


class Figures(NamedTuple):
    """Small pictures side by side, if the page is wide enough."""

    figures: Sequence[Figure]
    kind = "figures"


class Code(NamedTuple):
    """Text with significant spaces."""

    caption: str
    text: str
    kind = "code"


class Notes(NamedTuple):
    """Cautions for the reader; there are none for a good fit."""

    warnings: Sequence[str]
    all_well: str
    kind = "notes"


Block = Text | Facts | ReportTable | Figure | Figures | Code | Notes


class Section(NamedTuple):
    """A part of the report."""

    title: str
    blocks: Sequence[Block]
