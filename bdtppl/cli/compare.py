"""``bdtppl compare``: saved models side by side."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bdtppl.cli.cluster import Dask, Jobs, using_workers
from bdtppl.cli.console import UserError, notes_after, refusing, say_json

if TYPE_CHECKING:
    pass


def compare(
    models: Annotated[
        list[Path],
        typer.Argument(
            metavar="FOLDER...",
            help="Two or more folders that `bdtppl fit --out` wrote; their last part names models.",
            show_default=False,
        ),
    ],
    table: Annotated[
        Path | None,
        typer.Option(
            help="CSV, TSV or Parquet file that the models were fitted to, for cross-validation.",
            show_default=False,
        ),
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="Column that the models predict.", show_default=False)
    ] = None,
    weight: Annotated[
        str | None,
        typer.Option(help="Column of the weights used in the fits.", show_default="once"),
    ] = None,
    folds: Annotated[int, typer.Option(min=2, help="Folds of the cross-validation.")] = 5,
    figure: Annotated[
        Path | None, typer.Option(help="Image file to draw the comparison to.", show_default=False)
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, max=2**32 - 1, help="Seed that assigns rows to folds.")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print only the table, as JSON.")] = False,
    n_jobs: Jobs = None,
    dask: Dask = None,
) -> None:
    """Compare saved models: evidence, leave-one-out, and held-out scores if a table is given."""
    from bdtppl.cli.predict import features_of
    from bdtppl.cli.target import target_of
    from bdtppl.comparison import compare as compare_models
    from bdtppl.progress import waiting
    from bdtppl.storage import load
    from bdtppl.table_files import read_table

    if (table is None) != (target is None):
        raise UserError("--table and --target must be used together: pass both or neither.")
    if table is None and weight is not None:
        raise UserError("--weight requires --table: pass both.")
    with notes_after(), refusing(ValueError, OSError):
        names = _names(models)
        fitted = {name: load(folder) for name, folder in zip(names, models, strict=True)}
        X = y = weights = None
        if table is not None:
            rows = read_table(table)
            is_classifier = next(iter(fitted.values())).is_classifier
            task = "classification" if is_classifier else "regression"
            y = target_of(rows, str(target), task).y
            weights = None if weight is None else rows.weights(weight)
            X = {}
            for model in fitted.values():
                X |= features_of(rows, model)  # each model selects its own columns
        with waiting("comparing", shown=True), using_workers(n_jobs, dask):
            comparison = compare_models(
                fitted, X, y, sample_weight=weights, cv=folds, random_state=seed
            )
        if figure is not None:
            from bdtppl.plotting import plot_comparison

            plot_comparison(comparison)[0].figure.savefig(figure, dpi=150)
    if as_json:
        say_json({"models": comparison.rows(), "notes": comparison.notes()})
    else:
        typer.echo(str(comparison))


def _names(folders: list[Path]) -> list[str]:
    """Name models by the last part of their folders, or by the whole path if needed."""
    short = [folder.resolve().name for folder in folders]
    return short if len(set(short)) == len(short) else [str(folder) for folder in folders]
