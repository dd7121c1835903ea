"""``bdtppl report``: one page that explains a saved model."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bdtppl.cli.console import SavedModel, UserError, notes_after, refusing, say_json
from bdtppl.files import open_ordinary

if TYPE_CHECKING:
    from bdtppl.table_files import Table

_REPORT = "report.html"


def report(
    model: SavedModel,
    table: Annotated[
        Path | None,
        typer.Option(
            help="CSV, TSV or Parquet file of new rows, with the target, to judge predictions by.",
            show_default="the training rows, each predicted from all others",
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="Column of the table that was predicted.",
            show_default="the one that the model was fitted to",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="HTML file to write.", show_default=f"{_REPORT} in the folder"),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print only the report's path, as JSON.")
    ] = False,
) -> None:
    """Write one self-contained HTML page: model, trees, predictions, diagnostics and warnings."""
    from bdtppl.progress import waiting
    from bdtppl.report import write_report
    from bdtppl.storage import load
    from bdtppl.table_files import read_table

    path = model / _REPORT if out is None else out
    with notes_after(), refusing(ValueError, OSError):
        fitted = load(model)
        name = target or _target_of(model)
        X, y = (None, None) if table is None else _judged_by(read_table(table), fitted, name)
        with waiting("writing the report", shown=True):
            write_report(fitted, path, X, y, target=name or "target")
    if as_json:
        say_json({"model": str(model), "report": str(path)})
    else:
        typer.echo(f"Wrote the report to {path}.")


def _target_of(folder: Path) -> str | None:
    """Read the target's name from the summary that a fit writes; None if there is none."""
    try:
        with open_ordinary(folder / "summary.json") as file:
            summary = json.load(file)
        return str(summary["target"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None


def _judged_by(rows: "Table", fitted: Any, target: str | None) -> tuple[Any, Any]:
    """Read the features and targets of new rows."""
    from bdtppl.cli.predict import features_of
    from bdtppl.cli.target import target_of

    if target is None:
        raise UserError("The model does not store the name of its target: pass --target COLUMN.")
    y = target_of(rows, target, fitted.task).y
    return features_of(rows.without(target), fitted), y
