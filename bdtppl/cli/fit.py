"""``bdtppl fit``: the posterior over trees of a table."""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bdtppl.cli.console import UserError, note, notes_after, refusing

if TYPE_CHECKING:
    from bdtppl.prior_files import PriorFile
    from bdtppl.tables import Table

__all__ = ["fit"]


class Model(StrEnum):
    """Inferences by name."""

    exact = "exact"
    greedy_modal = "greedy-modal"
    metropolis = "metropolis"
    particle = "particle"


class Proposal(StrEnum):
    """Kernels of Markov chains by name."""

    rotating = "rotating"
    chipman = "chipman"
    denison = "denison"
    regrow = "regrow"
    cyclic = "cyclic"
    independence = "independence"


class Task(StrEnum):
    """What the target is."""

    classification = "classification"
    regression = "regression"


class Binning(StrEnum):
    """How buckets are cut."""

    quantile = "quantile"
    uniform = "uniform"


def fit(
    table: Annotated[
        Path,
        typer.Argument(
            metavar="TABLE",
            help="CSV, TSV or Parquet file with names of columns. Cells that are empty or say NA, "
            "N/A or NaN are missing; a column with anything but numbers is a category.",
            show_default=False,
        ),
    ],
    target: Annotated[str, typer.Option(help="Column to predict.", show_default=False)],
    model: Annotated[Model, typer.Option(help="How the posterior is got.")] = Model.exact,
    task: Annotated[
        Task | None,
        typer.Option(help="What the target is.", show_default="guessed from the target"),
    ] = None,
    drop: Annotated[
        list[str] | None,
        typer.Option(help="Column to leave out; may be repeated.", show_default=False),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the model, the figures and the summary; made if it does not exist.",
            show_default="nothing is saved",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary as JSON, and nothing else.")
    ] = False,
    prior: Annotated[
        str | None,
        typer.Option(
            help="Tree prior: leaf-penalty[:log_phi=2], depth-decay[:alpha=0.95,beta=1], "
            "description-length[:beta=...] or greedy-partition[:p=0.99].",
            show_default="leaf-penalty; greedy-partition for greedy modal trees; "
            "depth-decay for metropolis, with beta=0.5 for particle",
            rich_help_panel="Model",
        ),
    ] = None,
    prior_file: Annotated[
        Path | None,
        typer.Option(
            help="TOML file with tables \\[prior], \\[constraints] and \\[\\[keep_together]] "
            "instead of --prior; the README has one.",
            show_default=False,
            rich_help_panel="Model",
        ),
    ] = None,
    leaf: Annotated[
        str | None,
        typer.Option(
            help="Leaf family: dirichlet-categorical[:concentration=1], or "
            "normal-inverse-gamma with any of mean, pseudo_count, shape and scale.",
            show_default="the one for the task",
            rich_help_panel="Model",
        ),
    ] = None,
    bins: Annotated[
        str,
        typer.Option(
            help="Most buckets a feature, or 'none' for a cut between any two values, or 'auto' "
            "for the finest whose chart fits (none where there is no chart).",
            rich_help_panel="Model",
        ),
    ] = "auto",
    binning: Annotated[
        Binning, typer.Option(help="How buckets are cut.", rich_help_panel="Model")
    ] = Binning.quantile,
    grid: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Instead of bins: this many evenly spaced cuts over each feature's range.",
            show_default=False,
            rich_help_panel="Model",
        ),
    ] = None,
    max_depth: Annotated[
        int | None,
        typer.Option(
            min=0, help="Most levels of splits.", show_default=False, rich_help_panel="Model"
        ),
    ] = None,
    min_leaf: Annotated[
        int, typer.Option(min=1, help="Fewest rows in a leaf.", rich_help_panel="Model")
    ] = 1,
    max_subproblems: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Budget of the exact chart.",
            show_default="500000",
            rich_help_panel="Inference: exact",
        ),
    ] = None,
    draws: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Trees drawn in each chain.",
            show_default="250",
            rich_help_panel="Inference: exact, metropolis",
        ),
    ] = None,
    chains: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Chains.",
            show_default="4",
            rich_help_panel="Inference: exact, metropolis",
        ),
    ] = None,
    warmup: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Steps of each chain that are thrown away.",
            show_default="2000",
            rich_help_panel="Inference: metropolis",
        ),
    ] = None,
    thin: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Steps to each draw.",
            show_default="20",
            rich_help_panel="Inference: metropolis",
        ),
    ] = None,
    temperatures: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Powers of the likelihood that each chain walks under; 2 or more estimate the log "
            "evidence.",
            show_default="1",
            rich_help_panel="Inference: metropolis",
        ),
    ] = None,
    proposal: Annotated[
        Proposal | None,
        typer.Option(
            help="How trees are proposed: by local moves, those of a paper or with rotations, or "
            "by regrowing parts of them from the prior.",
            show_default="rotating",
            rich_help_panel="Inference: metropolis",
        ),
    ] = None,
    num_roots: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Trees to average, each grown from another partition of the root.",
            show_default="1",
            rich_help_panel="Inference: greedy-modal",
        ),
    ] = None,
    lookahead: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Levels of splits by which a rule is valued.",
            show_default="1",
            rich_help_panel="Inference: greedy-modal",
        ),
    ] = None,
    hyperplanes: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Random starts, in each node, of a search for a cut of several columns.",
            show_default="0",
            rich_help_panel="Inference: greedy-modal",
        ),
    ] = None,
    particles: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Particles of each run.",
            show_default="100",
            rich_help_panel="Inference: particle",
        ),
    ] = None,
    runs: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Independent runs, whose spread gives the standard error of the evidence.",
            show_default="10",
            rich_help_panel="Inference: particle",
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(min=0, max=2**32 - 1, help="Seed of the draws.", rich_help_panel="Inference"),
    ] = 0,
) -> None:
    """Fit the posterior over trees to a table, and print, draw and save it."""
    from bdtppl.cli.results import Problem, report_fit, require_writable
    from bdtppl.cli.specification import make_leaf, parse_prior
    from bdtppl.cli.target import read_target
    from bdtppl.tables import read_table

    with refusing(ValueError, OSError):
        own = _own_settings(
            model,
            {
                Model.exact: {
                    "max_subproblems": max_subproblems,
                    "draws": draws,
                    "chains": chains,
                },
                Model.greedy_modal: {
                    "num_roots": num_roots,
                    "lookahead": lookahead,
                    "hyperplanes": hyperplanes,
                },
                Model.metropolis: {
                    "draws": draws,
                    "chains": chains,
                    "warmup": warmup,
                    "thin": thin,
                    "temperatures": temperatures,
                    "proposal": None if proposal is None else proposal.value,
                },
                Model.particle: {"particles": particles, "runs": runs},
            },
        )
        file = None if prior_file is None else _read(prior_file)
        if prior is not None and file is not None and file.prior is not None:
            raise ValueError(f"--prior {prior} and the [prior] of {prior_file} exclude each other.")
        settings = {
            "prior": None if prior is None else parse_prior(prior),
            "bins": _parse_bins(bins, grid),
        }
        if file is not None:
            settings["prior"] = settings["prior"] if file.prior is None else file.prior
            settings["constraints"] = file.constraints
        if out is not None:
            require_writable(out)
        rows = read_table(table)
        goal = read_target(rows, target, None if task is None else task.value)
        features = rows.features(_feature_names(rows, target, drop or []))
        settings["leaf"] = make_leaf(leaf, goal.task, goal.y)
    settings |= {
        "binning": binning.value,
        "grid": grid,
        "max_depth": max_depth,
        "min_leaf": min_leaf,
        "random_state": seed,
    }
    if model != Model.exact and settings["bins"] == "auto":
        settings["bins"] = None
    settings |= own
    for position in rows.unnamed:
        note(f"Column {position} of {table} has no name and was left out.")
    with notes_after(), _located(file):
        report_fit(
            Problem(f"{target} in {table}", features, goal),
            model.value,
            settings,
            {"table": str(table)},
            out=out,
            as_json=as_json,
        )


def _read(prior_file: Path) -> "PriorFile":
    """Read a prior's file; its errors speak of its keys, not of options."""
    from bdtppl.prior_files import read_prior_file

    try:
        return read_prior_file(prior_file)
    except ValueError as error:
        raise UserError(str(error)) from error


@contextmanager
def _located(file: "PriorFile | None") -> Iterator[None]:
    """Name the line of a prior's file in errors of the fit."""
    try:
        yield
    except UserError as error:
        raise error if file is None else UserError(file.locate(str(error))) from error


def _own_settings(model: Model, of_models: dict[Model, dict[str, Any]]) -> dict[str, Any]:
    """Take the settings of one inference, and refuse those of another one."""
    given = {name: v for own in of_models.values() for name, v in own.items() if v is not None}
    for name in given:
        if name not in of_models[model]:
            kinds = " or ".join(kind.value for kind, own in of_models.items() if name in own)
            option = "--" + name.replace("_", "-")
            raise ValueError(f"{option} is for --model {kinds}, not {model.value}.")
    return given


def _parse_bins(text: str, grid: int | None) -> int | str | None:
    if text == "auto":
        return "auto"
    if grid is not None:
        raise ValueError(f"--bins {text} and --grid {grid} exclude each other; give one.")
    if text.lower() == "none":
        return None
    if not text.isdecimal() or int(text) < 2:
        raise ValueError(f"--bins must be auto, none or an integer of at least 2; got {text!r}.")
    return int(text)


def _feature_names(rows: "Table", target: str, dropped: list[str]) -> list[str]:
    for name in dropped:
        rows.require(name)
        if name == target:
            raise ValueError(f"--drop {name} names the target.")
    names = [name for name in rows.columns if name != target and name not in dropped]
    if not names:
        raise ValueError(f"{rows.path} has no column beside the target {target!r} to predict from.")
    return names
