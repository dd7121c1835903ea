"""``bdtppl fit``: the posterior over trees of a table."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from bdtppl.cli.cluster import Dask, Jobs, using_workers
from bdtppl.cli.console import UserError, note, notes_after, refusing, say_json

if TYPE_CHECKING:
    from bdtppl.cli.results import ReadProblem
    from bdtppl.prior_files import PriorFile
    from bdtppl.table_files import Table

_TableToFit = Annotated[
    Path,
    typer.Argument(
        metavar="TABLE",
        help="CSV, TSV or Parquet file with names of columns, or a folder of Parquet files that "
        "contain parts of one table. Empty cells are missing values; so are NA, N/A, NaN, "
        "null and ?, except in Parquet files. A column with other cells than numbers is a "
        "category.",
        show_default=False,
    ),
]
_Model = Annotated[
    str,
    typer.Option(
        help="Inference: bart (sums of trees) predicts best; exact gives a readable tree and its "
        "evidence.",
    ),
]
_Weight = Annotated[
    str | None,
    typer.Option(
        help="Column of the rows' weights, numbers of at least 0.",
        show_default="once",
    ),
]
_ModelFolder = Annotated[
    Path | None,
    typer.Option(
        help="Folder for the model, the figures and the summary; created if it does not exist.",
        show_default="nothing is saved",
    ),
]
_Report = Annotated[
    bool,
    typer.Option(
        "--report",
        help="Write a page that explains the fit: report.html in the folder, or TABLE-report.html "
        "here if nothing is saved.",
    ),
]


def fit() -> None:
    """Fit the posterior over trees to a table, and print, draw and save it."""
    raise NotImplementedError  # stands in for `make_fit` when commands are listed


def make_fit() -> Any:
    """Make the command, with an option for each parameter of the estimators."""
    from bdtppl.cli.fit_options import (
        ARGUMENTS,
        HARD_TREES,
        FitCommand,
        fit_options,
        prior_defaults,
        with_options,
    )
    from bdtppl.cli.specification import leaf_forms, prior_forms

    options = fit_options()

    def command(
        context: typer.Context,
        table: _TableToFit,
        target: Annotated[str, typer.Option(help="Column to predict.", show_default=False)],
        model: _Model = "bart",
        task: Annotated[
            Literal["classification", "regression"] | None,
            typer.Option(help="What the target is.", show_default="guessed from the target"),
        ] = None,
        drop: Annotated[
            list[str] | None,
            typer.Option(help="Column to leave out; may be repeated.", show_default=False),
        ] = None,
        ordered: Annotated[
            list[str] | None,
            typer.Option(
                help="Levels of a category in their order, as size=S,M,L; may be repeated.",
                show_default=False,
            ),
        ] = None,
        weight: _Weight = None,
        out: _ModelFolder = None,
        report: _Report = False,
        as_json: Annotated[
            bool, typer.Option("--json", help="Print only the summary, as JSON.")
        ] = False,
        prior: Annotated[
            str | None,
            typer.Option(
                help=f"Tree prior: {prior_forms()}.",
                show_default=prior_defaults(),
                rich_help_panel=HARD_TREES,
            ),
        ] = None,
        prior_file: Annotated[
            Path | None,
            typer.Option(
                help="TOML file with tables \\[prior], \\[leaf], \\[constraints] and "
                "\\[\\[keep_together]] instead of --prior; the README has one.",
                show_default=False,
                rich_help_panel=HARD_TREES,
            ),
        ] = None,
        leaf: Annotated[
            str | None,
            typer.Option(
                help=f"Leaf family: {leaf_forms()}.",
                show_default="the one for the task",
                rich_help_panel=HARD_TREES,
            ),
        ] = None,
        n_jobs: Jobs = None,
        dask: Dask = None,
        seed: Annotated[
            int,
            typer.Option(
                min=0, max=2**32 - 1, help="Seed of the draws.", rich_help_panel="Inference"
            ),
        ] = 0,
        **given: Any,
    ) -> None:
        line = shlex.join(["bdtppl", "fit", *context.meta[ARGUMENTS]])
        place = _ParameterPlace(
            table, target, task, drop or [], ordered or [], weight, out, report, as_json, line
        )
        given |= {"prior": prior, "prior_file": prior_file, "leaf": leaf}
        with using_workers(n_jobs, dask):
            _fit_and_save(place, model, given, seed)

    command.__doc__ = fit.__doc__
    app = typer.Typer(add_completion=False)
    app.command("fit", cls=FitCommand)(with_options(command, options))
    return typer.main.get_command(app)


class _ParameterPlace(NamedTuple):
    """The table to fit, and the place of the results."""

    table: Path
    target: str
    task: Literal["classification", "regression"] | None
    drop: list[str]
    ordered: list[str]
    weight: str | None
    out: Path | None
    report: bool
    as_json: bool
    command: str


def _fit_and_save(place: _ParameterPlace, inference: str, given: dict[str, Any], seed: int) -> None:
    """Fit a model, print the summary and save the results."""
    from bdtppl.cli.fit_options import fit_options, is_hard, own_settings
    from bdtppl.cli.results import ReadProblem, report_fit
    from bdtppl.cli.specification import make_leaf
    from bdtppl.cli.target import target_of
    from bdtppl.estimators import all_inferences
    from bdtppl.files import require_writable
    from bdtppl.table_files import read_table

    table, target, task, drop, ordered, weight, out, report, as_json, command = place
    with refusing(ValueError, OSError):
        options = fit_options()
        inferences_with = {name: option.default_of for name, option in options.items()}
        of_hard = [name for name in all_inferences() if is_hard(name)]
        hard = dict.fromkeys(("prior", "prior_file", "leaf"), of_hard)
        settings = own_settings(inference, given, inferences_with | hard)
        prior_file = settings.get("prior_file")
        file = None if prior_file is None else read_prior(prior_file)
        for option, folder in (("--out", out), ("--checkpoint", settings.get("checkpoint"))):
            if folder is not None:
                require_writable(folder, option)
        if weight == target:
            raise ValueError(f"--weight {weight} names the target.")
        doubts: list[str] = []
        if table.is_dir():
            problem = _read_parts(place, inference, settings, file)
        else:
            rows = read_table(table)
            goal = target_of(rows, target, task)
            beside = [*drop, *([] if weight is None else [weight])]
            names = feature_names(rows, target, beside)
            weights = None if weight is None else rows.weights(weight)
            problem = ReadProblem(
                f"{target} in {table.name}",
                rows.features(names),
                goal,
                weights=weights,
                command=command,
            )
            quantity = [target] if goal.task == "regression" else []
            doubts = list(rows.doubts([*names, *quantity]))
        goal = problem.target
        for name in settings:
            if name in options and goal.task not in options[name].tasks:
                other = " and ".join(options[name].tasks)
                kind = "numbers" if goal.task == "regression" else "classes"
                option = "--" + name.replace("_", "-")
                raise ValueError(f"{option} is for {other}; the target is {kind}.")
        if is_hard(inference):
            settings = _read_hard(settings, file, inference)
            settings["leaf"] = make_leaf(settings.get("leaf"), goal.task, goal.y)
            if file is not None and file.leaf is not None:
                if settings["leaf"] is not None:
                    raise ValueError(f"--leaf and the [leaf] of {prior_file} exclude each other.")
                if file.leaf[0].task != goal.task:
                    family = file.leaf[0].__name__
                    raise ValueError(f"kind {family} is not a leaf family for {goal.task}.")
                settings["leaf"] = file.make_leaf(goal.y)
        elif "bins" in settings:
            settings["bins"] = parse_bins(settings["bins"], None)
        for each in ordered:
            column, sign, levels = each.partition("=")
            if not sign:
                raise ValueError(f"--ordered must read as size=S,M,L; got {each!r}.")
            settings.setdefault("ordered", {})[column] = levels.split(",")
    settings["random_state"] = seed
    page = Path(f"{table.stem}-report.html") if out is None else out / "report.html"
    page = page if report else None
    for doubt in doubts:
        note(doubt)
    with notes_after(), located(file):
        summary = report_fit(
            problem, inference, settings, {"table": str(table)}, out=out, report=page, quiet=as_json
        )
    if as_json:
        say_json(summary)


def _read_parts(
    place: _ParameterPlace, inference: str, settings: dict[str, Any], file: "PriorFile | None"
) -> "ReadProblem":
    """Open a folder of Parquet files."""
    from bdtppl.cli.results import ReadProblem
    from bdtppl.cli.target import Target
    from bdtppl.parted import read_folder

    leaf = settings.get("leaf") is not None or (file is not None and file.leaf is not None)
    for is_so, what, instead in (
        (inference != "exact", f"--model {inference}", "use --model exact"),
        (place.report, "--report", "use a sample of the rows for it"),
        (leaf, "a leaf family", "leave it out, or set one in Python"),
    ):
        if is_so:
            raise ValueError(
                f"{place.table} is a folder, whose rows are never all in memory, but {what} needs "
                f"them there: {instead}."
            )
    table, task, reason = read_folder(place.table), place.task, None
    for name in (place.target, *place.drop, *([] if place.weight is None else [place.weight])):
        if name not in table.columns:
            raise ValueError(f"Column {name!r} is not in the files of {place.table}.")
    if task is None:
        if table[place.target].dtype.kind in "iuf":
            raise ValueError(
                f"Column {place.target!r} contains numbers: set --task to classification (classes) "
                "or regression (quantities)."
            )
        task, reason = "classification", "words are classes"
    if place.target in place.drop:
        raise ValueError(f"--drop {place.target} names the target.")
    return ReadProblem(
        f"{place.target} in {place.table.name}",
        table.drop(columns=list(place.drop)),
        Target(place.target, task, place.target, reason),
        weights=place.weight,
    )


def _read_hard(
    settings: dict[str, Any], file: "PriorFile | None", inference: str
) -> dict[str, Any]:
    """Read priors and cut points."""
    from bdtppl.cli.fit_options import default_of, takes_auto_bins
    from bdtppl.cli.specification import parse_prior

    settings = dict(settings)
    if "prior" in settings:
        if file is not None and file.prior is not None:
            raise ValueError(
                f"--prior {settings['prior']} and the [prior] of {settings['prior_file']} exclude "
                f"each other."
            )
        settings["prior"] = parse_prior(settings["prior"])
    if file is not None:
        del settings["prior_file"]
        settings["constraints"] = file.constraints
        if file.prior is not None:
            settings["prior"] = file.prior
    if "bins" in settings:
        bins = parse_bins(settings["bins"], settings.get("grid"))
        settings["bins"] = None if bins == "auto" and not takes_auto_bins(inference) else bins
        if settings["bins"] is not None and default_of("grid", inference) is not None:
            settings.setdefault("grid", None)
    return settings


def read_prior(prior_file: Path) -> "PriorFile":
    """Read a prior file; its errors refer to its keys, not to options."""
    from bdtppl.prior_files import read_prior_file

    try:
        return read_prior_file(prior_file)
    except ValueError as error:
        raise UserError(str(error)) from error


@contextmanager
def located(file: "PriorFile | None") -> Iterator[None]:
    """Add the line of the prior file to errors of the fit."""
    try:
        yield
    except UserError as error:
        raise error if file is None else UserError(file.locate(str(error))) from error


def parse_bins(text: str, grid: int | None) -> int | str | None:
    """Parse --bins, which excludes --grid unless it is auto."""
    if text == "auto":
        return "auto"
    if grid is not None:
        raise ValueError(f"--bins {text} and --grid {grid} exclude each other; pass one.")
    if text.lower() == "none":
        return None
    if not text.isdecimal() or int(text) < 2:
        raise ValueError(f"--bins must be auto, none or an integer of at least 2; got {text!r}.")
    return int(text)


def feature_names(rows: "Table", target: str | None, dropped: list[str]) -> list[str]:
    """Return the columns to predict from: all but the target and the dropped ones."""
    for name in dropped:
        rows.require(name)
        if name == target:
            raise ValueError(f"--drop {name} names the target.")
    names = [name for name in rows.columns if name != target and name not in dropped]
    if not names:
        beside = "" if target is None else f" besides the target {target!r}"
        raise ValueError(f"{rows.path} has no column{beside} to predict from.")
    return names
