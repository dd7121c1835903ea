"""Tables of plain text."""

from collections.abc import Sequence

__all__ = ["print_table"]


def print_table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows of text under headings; the first column to the left, the others to the right."""
    lines = [headings, *rows]
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    print(title)
    for number, (first, *others) in enumerate(lines):
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        print("  ".join(["", first.ljust(widths[0]), *cells]).rstrip())
        if number == 0:
            print("  ".join(["", *("-" * width for width in widths)]))
    print(flush=True)
