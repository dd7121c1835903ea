"""``bdtppl predict``: predictions of a saved model for the rows of a table."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bdtppl.cli.console import SavedModel, UserError, notes_after, refusing, say_json
from bdtppl.files import staged

if TYPE_CHECKING:
    import numpy as np

    from bdtppl.table_files import Table

_IS_ID = re.compile(r"(?i:(^|[\W_])id)$|[a-z](Id|ID)$")  # id, customer_id, PassengerId


def predict(
    model: SavedModel,
    table: Annotated[
        Path,
        typer.Argument(
            metavar="TABLE",
            help="CSV, TSV or Parquet file with the columns that the model was fitted with; of "
            "other columns only an id is kept.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="CSV, TSV or Parquet file to write.", show_default="print as CSV"),
    ] = None,
    id_column: Annotated[
        str | None,
        typer.Option(
            "--id",
            help="Column that is written next to the predictions.",
            show_default="a column named as an id, such as customer_id, that the model does not "
            "use; else rows are numbered from 1",
        ),
    ] = None,
    interval: Annotated[
        float | None,
        typer.Option(
            help="For regression: also write the predictive interval of a probability, as 0.9.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print only the predictions, as JSON.")
    ] = False,
) -> None:
    """Predict the target of new rows: class and probabilities, or mean and interval."""
    from bdtppl.progress import waiting
    from bdtppl.storage import load
    from bdtppl.table_files import read_table, to_text

    if interval is not None and not 0 < interval < 1:
        raise UserError(f"--interval must be between 0 and 1; got {interval:g}.")
    with notes_after(), refusing(ValueError, OSError):
        rows = read_table(table)
        if out is not None and out.exists() and out.samefile(table):
            raise ValueError(f"--out {out} is the table itself; name another file.")
        fitted = load(model)
        if interval is not None and fitted.is_classifier:
            raise ValueError(f"--interval is for regression, but {model} is a classifier.")
        features = features_of(rows, fitted)
        name, cells = _identity(rows, fitted, id_column)
        with waiting(f"predicting {rows.num_rows:,} rows", shown=True), rows.naming_lines():
            predictions = _predictions(fitted, features, interval)
        if name in predictions:
            raise ValueError(f"Column {name!r} of {table} has the name of a prediction: rename it.")
        predictions[name] = cells  # last, so that scripts find predictions in their old place
        if out is not None:
            _write_predictions(out, predictions)
    if as_json:
        records = [
            dict(zip(predictions, row, strict=True))
            for row in zip(*predictions.values(), strict=True)
        ]
        say_json({"model": str(model), "table": str(table), "predictions": records})
    elif out is None:
        typer.echo(to_text(predictions), nl=False)
    else:
        typer.echo(f"Wrote predictions for {rows.num_rows:,} rows to {out}.")


def features_of(rows: "Table", fitted: Any) -> "dict[str, np.ndarray]":
    """Select the columns that the model was fitted with, by name, or by position without names."""
    columns = fitted.schema_.columns
    if hasattr(fitted, "feature_names_in_"):
        return rows.features_like(columns)
    cells = list(rows.cells.values())
    if len(cells) != fitted.n_features_in_:
        raise ValueError(
            f"{rows.path} has {len(cells)} columns, but the model was fitted with "
            f"{fitted.n_features_in_}, which had no names."
        )
    own = range(len(cells)) if fitted.columns_ is None else fitted.columns_
    renamed = {column.name: cells[place] for column, place in zip(columns, own, strict=True)}
    return replace(rows, cells=renamed).features_like(columns)


def _identity(rows: "Table", fitted: Any, wanted: str | None) -> tuple[str, list]:
    """Return the name and cells of the column that identifies rows."""
    if wanted is not None:
        rows.require(wanted)
        return wanted, list(rows.cells[wanted])
    if hasattr(fitted, "feature_names_in_"):  # else all columns are features
        known = {column.name for column in fitted.schema_.columns}
        for name in rows.columns:
            cells = rows.present(name)
            if name not in known and _IS_ID.search(name) and len(set(cells)) == rows.num_rows:
                return name, cells
    return "row", list(range(1, rows.num_rows + 1))


def _predictions(fitted: Any, features: Mapping, interval: float | None) -> dict[str, list]:
    """Return the columns of the output by name."""
    if fitted.is_classifier:
        probability = fitted.predict_proba(features)
        predictions = {"prediction": fitted.classes_[probability.argmax(axis=1)].tolist()}
        for label, column in zip(fitted.classes_, probability.T, strict=True):
            predictions[f"probability_{label}"] = column.tolist()
        return predictions
    predictions = {"prediction": fitted.predict(features).tolist()}
    if interval is not None:
        ends = fitted.predict_interval(features, interval)
        predictions |= {"lower": ends[:, 0].tolist(), "upper": ends[:, 1].tolist()}
    return predictions


def _write_predictions(path: Path, predictions: Mapping[str, list]) -> None:
    from bdtppl.table_files import write_table

    try:
        with staged(path.parent) as staging:
            write_table(staging / path.name, predictions)
    except OSError as error:
        raise OSError(f"--out {path} cannot be written: {error.strerror or error}.") from error
