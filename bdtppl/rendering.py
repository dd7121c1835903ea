"""Results as text for a terminal and as HTML for a notebook."""

import io
from collections.abc import Sequence
from html import escape
from typing import Any

from rich.console import Console, RenderableType

_WIDTH = 100  # characters


def as_text(view: RenderableType, width: int = _WIDTH) -> str:
    """Render an object with rich as text without colours.

    Examples
    --------
    >>> as_text("[red]is no markup here")
    '[red]is no markup here'
    """
    file = io.StringIO()
    plain: Any = {"markup": False, "highlight": False, "emoji": False, "color_system": None}
    # Notebooks would get the codes of a terminal.
    Console(file=file, width=width, force_jupyter=False, **plain).print(view)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def as_html(view: RenderableType, width: int = _WIDTH) -> str:
    """Render an object with rich as HTML, in a monospaced font."""
    style = "white-space:pre;overflow-x:auto;line-height:1.3;font-size:0.9em"
    return f'<pre style="{style}">{escape(as_text(view, width))}</pre>'


def html_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str] = ()
) -> str:
    """Write a table whose first column names its rows, with notes below.

    Examples
    --------
    >>> html_table(["", "a & b"], [["x", "1"]]).count("<td")
    1
    """
    cell = 'style="text-align:right;white-space:nowrap"'
    head = "".join(f"<th {cell}>{escape(title)}</th>" for title in header)
    body = "".join(
        f'<tr><th style="text-align:left">{escape(name)}</th>'
        + "".join(f"<td {cell}>{escape(value)}</td>" for value in values)
        + "</tr>"
        for name, *values in rows
    )
    below = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return (
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        + f"<ul>{below}</ul>" * bool(below)
    )
