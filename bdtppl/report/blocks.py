"""Sections of a report and their blocks, which the template knows by their kinds."""

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
        What the table shows.
    head
        Names of the columns.
    rows
        Cells by row.
    shares
        For each row the length of a bar in the last column, 0 to 1; () for no bars.
    """

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    shares: Sequence[float] = ()
    kind = "table"

    @property
    def is_number(self) -> list[bool]:
        """Which columns hold numbers alone, which stand at the right."""
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
        What it shows, in words, for those who do not see it.
    caption
        What is to be seen, and how it is to be read.
    """

    source: str
    width: int
    height: int
    text: str
    caption: str
    kind = "figure"


class Figures(NamedTuple):
    """Small pictures side by side, where the page is wide enough."""

    figures: Sequence[Figure]
    kind = "figures"


class Code(NamedTuple):
    """Text in which spaces count."""

    caption: str
    text: str
    kind = "code"


class Notes(NamedTuple):
    """Cautions for the reader; none is good news."""

    warnings: Sequence[str]
    all_well: str
    kind = "notes"


Block = Text | Facts | ReportTable | Figure | Figures | Code | Notes


class Section(NamedTuple):
    """A part of the report."""

    title: str
    blocks: Sequence[Block]
