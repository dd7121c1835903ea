"""``bdtppl datasets``: the public tables that are available, and sources of the others."""

import os
from typing import Annotated, Any

import typer

from bdtppl.cli.console import refusing, say, say_json

_NAMES_A_LINE = {"present": "here", "missing": "missing", "altered": "not the known file"}


def datasets(
    as_json: Annotated[bool, typer.Option("--json", help="Print only the list, as JSON.")] = False,
) -> None:
    """List the public tables of the benchmarks: those in BDTPPL_DATA, and sources of the rest."""
    from bdtppl.dataset_sources import SOURCES
    from bdtppl.datasets import state

    folder = os.environ.get("BDTPPL_DATA") or None
    with refusing(OSError):
        tables = [
            {"name": name, "task": source.task, "state": state(name), "origin": source.origin}
            for name, source in SOURCES.items()
        ]
    if as_json:
        say_json({"folder": folder, "datasets": tables})
    else:
        say(*_view(folder, tables))


def _view(folder: str | None, tables: list[dict[str, Any]]) -> list[Any]:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("set", no_wrap=True)
    table.add_column("task", no_wrap=True)
    table.add_column("state", no_wrap=True)
    for each in tables:
        table.add_row(each["name"], each["task"], _NAMES_A_LINE[each["state"]])
    held = sum(each["state"] == "present" for each in tables)
    if folder is None:
        head = "BDTPPL_DATA is not set: set it to a folder of tables, NAME.csv each."
    else:
        head = f"{folder} (BDTPPL_DATA) contains {held} of {len(tables)} tables."
    wanted = [each for each in tables if each["state"] != "present"]
    origins = [Text(f"  {each['name']}: {each['origin']}") for each in wanted]
    return [
        Text(head),
        Text(),
        table,
        *([Text("\nSources of the others", style="bold")] if origins else []),
        *origins,
        Text(
            "\nA table is a CSV file with one header line, the target in the last column, values "
            "as their source has them, and empty cells where they are missing. Read it with "
            "bdtppl.datasets.load, which also simulates sets that need no file: make_wu, make_cgm "
            "and make_hidden_xor."
        ),
    ]
