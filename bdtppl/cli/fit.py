"""``bdtppl fit``: the posterior over trees of a table."""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bdtppl.cli.console import UserError, note, notes_after, refusing, say_json

if TYPE_CHECKING:
    from bdtppl.prior_files import PriorFile
    from bdtppl.table_files import Table

__all__ = ["Binning", "feature_names", "fit", "located", "parse_bins", "read_prior"]


class Model(StrEnum):
    """Inferences by name."""

    exact = "exact"
    greedy_modal = "greedy-modal"
    metropolis = "metropolis"
    particle = "particle"
    dcc = "dcc"
    rjhmc = "rjhmc"
    gflownet = "gflownet"


class Proposal(StrEnum):
    """Kernels of Markov chains by name."""

    rotating = "rotating"
    chipman = "chipman"
    denison = "denison"
    regrow = "regrow"
    cyclic = "cyclic"
    independence = "independence"


class Method(StrEnum):
    """What a generative flow network learns."""

    grammar = "grammar"
    trajectory = "trajectory"
    detailed = "detailed"
    sub_trajectory = "sub-trajectory"


class Ensemble(StrEnum):
    """How draws of a generative flow network are weighed."""

    importance = "importance"
    mean = "mean"
    distinct = "distinct"
    algorithm_1 = "algorithm-1"


class Inputs(StrEnum):
    """What soft splits look at."""

    soft = "soft"
    hard = "hard"


class EvidenceName(StrEnum):
    """Estimators of evidence by name."""

    auto = "auto"
    lais = "lais"
    smc = "smc"


class Likelihood(StrEnum):
    """Likelihoods of soft classification trees."""

    compound = "compound"
    mixture = "mixture"


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
            "N/A, NaN, null or ? are missing; a column with anything but numbers is a category.",
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
    weight: Annotated[
        str | None,
        typer.Option(
            help="Column that says how often each row counts, whole numbers of at least 0.",
            show_default="once",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the model, the figures and the summary; made if it does not exist.",
            show_default="nothing is saved",
        ),
    ] = None,
    report: Annotated[
        bool,
        typer.Option(
            "--report",
            help="Write a page that explains the fit: report.html in the folder, or "
            "TABLE-report.html here where nothing is saved.",
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary as JSON, and nothing else.")
    ] = False,
    prior: Annotated[
        str | None,
        typer.Option(
            help="Tree prior: leaf-penalty[:log_phi=2], depth-decay[:alpha=0.95,beta=1], "
            "description-length[:beta=...] or greedy-partition[:p=0.99]; for exact and metropolis "
            "also leaf-count[:rate=10,max_leaves=20] and pinball[:rate=5,balance=1,max_leaves=20].",
            show_default="leaf-penalty; greedy-partition for greedy modal trees; "
            "depth-decay for metropolis, with beta=0.5 for particle",
            rich_help_panel="Model: hard trees",
        ),
    ] = None,
    prior_file: Annotated[
        Path | None,
        typer.Option(
            help="TOML file with tables \\[prior], \\[constraints] and \\[\\[keep_together]] "
            "instead of --prior; the README has one.",
            show_default=False,
            rich_help_panel="Model: hard trees",
        ),
    ] = None,
    leaf: Annotated[
        str | None,
        typer.Option(
            help="Leaf family: dirichlet-categorical[:concentration=1], or "
            "normal-inverse-gamma with any of mean, pseudo_count, shape and scale.",
            show_default="the one for the task",
            rich_help_panel="Model: hard trees",
        ),
    ] = None,
    bins: Annotated[
        str | None,
        typer.Option(
            help="Most buckets a feature, or 'none' for a cut between any two values, or 'auto' "
            "for the finest whose chart fits (none where there is no chart; --model gflownet: its "
            "grid).",
            show_default="auto",
            rich_help_panel="Model: hard trees",
        ),
    ] = None,
    binning: Annotated[
        Binning | None,
        typer.Option(
            help="How buckets are cut.",
            show_default="quantile",
            rich_help_panel="Model: hard trees",
        ),
    ] = None,
    grid: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Instead of bins: this many evenly spaced cuts over each feature's range.",
            show_default="99 with --model gflownet",
            rich_help_panel="Model: hard trees",
        ),
    ] = None,
    max_depth: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Most levels of splits.",
            show_default=False,
            rich_help_panel="Model: hard trees",
        ),
    ] = None,
    min_leaf: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Fewest rows in a leaf.",
            show_default="1",
            rich_help_panel="Model: hard trees",
        ),
    ] = None,
    h_init: Annotated[
        float | None,
        typer.Option(
            help="Sharpness of soft splits when warm-up begins; inputs are scaled to [0, 1].",
            show_default="0.1",
            rich_help_panel="Model: soft trees",
        ),
    ] = None,
    h_final: Annotated[
        float | None,
        typer.Option(
            help="Sharpness of soft splits; the smaller, the harder they are.",
            show_default="0.025",
            rich_help_panel="Model: soft trees",
        ),
    ] = None,
    max_splits: Annotated[
        int | None,
        typer.Option(
            min=0, help="Most splits.", show_default=False, rich_help_panel="Model: soft trees"
        ),
    ] = None,
    likelihood: Annotated[
        Likelihood | None,
        typer.Option(
            help="Of classes: probabilities in leaves integrated out (compound), whose evidence "
            "compares no other models, or sampled (mixture).",
            show_default="compound",
            rich_help_panel="Model: soft trees",
        ),
    ] = None,
    inputs: Annotated[
        Inputs | None,
        typer.Option(
            help="Splits along directions (soft), or that look at one column each (hard).",
            show_default="soft",
            rich_help_panel="Inference: rjhmc",
        ),
    ] = None,
    iterations: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Steps of the walk over topologies.",
            show_default="50",
            rich_help_panel="Inference: dcc",
        ),
    ] = None,
    initial_trees: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Topologies drawn from the prior at first; more find topologies of little prior.",
            show_default="100",
            rich_help_panel="Inference: dcc",
        ),
    ] = None,
    patience: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Stop where so many iterations find no topology of weight.",
            show_default=False,
            rich_help_panel="Inference: dcc",
        ),
    ] = None,
    evidence: Annotated[
        EvidenceName | None,
        typer.Option(
            help="How the evidence of topologies is estimated.",
            show_default="auto",
            rich_help_panel="Inference: dcc",
        ),
    ] = None,
    method: Annotated[
        Method | None,
        typer.Option(
            help="Flows of subproblems (grammar), or a policy that builds trees, by its balance.",
            show_default="grammar",
            rich_help_panel="Inference: gflownet",
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Steps of training.",
            show_default="300 for the grammar, 2000 for the others",
            rich_help_panel="Inference: gflownet",
        ),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            help="Nats from the posterior at which training ends early.",
            show_default=False,
            rich_help_panel="Inference: gflownet",
        ),
    ] = None,
    ensemble: Annotated[
        Ensemble | None,
        typer.Option(
            help="How draws are weighed in predictions.",
            show_default="importance",
            rich_help_panel="Inference: gflownet",
        ),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            help="Folder that keeps a long fit, which goes on from there when it is run again.",
            show_default=False,
            rich_help_panel="Inference: dcc, gflownet",
        ),
    ] = None,
    burn_in: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Iterations of each chain that are thrown away.",
            show_default="500",
            rich_help_panel="Inference: rjhmc",
        ),
    ] = None,
    restarts: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="How often, at most, chains in poor modes go where others are in burn-in.",
            show_default="4",
            rich_help_panel="Inference: rjhmc",
        ),
    ] = None,
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
            help="Draws of each chain.",
            show_default="250; 100 an iteration for dcc, 500 for rjhmc",
            rich_help_panel="Inference: exact, metropolis, dcc, rjhmc, gflownet",
        ),
    ] = None,
    chains: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Chains.",
            show_default="4; 16 for dcc",
            rich_help_panel="Inference: exact, metropolis, dcc, rjhmc, gflownet",
        ),
    ] = None,
    warmup: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Steps of each chain that are thrown away; of rjhmc in each topology that is met.",
            show_default="2000; 1000 for dcc, 500 for rjhmc",
            rich_help_panel="Inference: metropolis, dcc, rjhmc",
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
    from bdtppl.cli.results import Problem, report_fit
    from bdtppl.cli.specification import make_leaf
    from bdtppl.cli.target import read_target
    from bdtppl.files import require_writable
    from bdtppl.table_files import read_table

    hard = {
        "prior": prior,
        "prior_file": prior_file,
        "leaf": leaf,
        "bins": bins,
        "binning": binning,
        "grid": grid,
        "max_depth": max_depth,
        "min_leaf": min_leaf,
    }
    chain = {"draws": draws, "chains": chains}
    soft = {
        "h_init": h_init,
        "h_final": h_final,
        "max_splits": max_splits,
        "likelihood": likelihood,
        "warmup": warmup,
    }
    with refusing(ValueError, OSError):
        settings = _own_settings(
            model,
            {
                Model.exact: {**hard, **chain, "max_subproblems": max_subproblems},
                Model.greedy_modal: {
                    **hard,
                    "num_roots": num_roots,
                    "lookahead": lookahead,
                    "hyperplanes": hyperplanes,
                },
                Model.metropolis: {
                    **hard,
                    **chain,
                    "warmup": warmup,
                    "thin": thin,
                    "temperatures": temperatures,
                    "proposal": proposal,
                },
                Model.particle: {**hard, "particles": particles, "runs": runs},
                Model.gflownet: {
                    **hard,
                    **chain,
                    "method": method,
                    "steps": steps,
                    "tolerance": tolerance,
                    "ensemble": ensemble,
                    "checkpoint": checkpoint,
                },
                Model.dcc: {
                    **soft,
                    **chain,
                    "iterations": iterations,
                    "initial_trees": initial_trees,
                    "patience": patience,
                    "evidence": evidence,
                    "checkpoint": checkpoint,
                },
                Model.rjhmc: {
                    **soft,
                    **chain,
                    "burn_in": burn_in,
                    "restarts": restarts,
                    "inputs": inputs,
                },
            },
        )
        file = None if prior_file is None else read_prior(prior_file)
        for option, folder in (("--out", out), ("--checkpoint", checkpoint)):
            if folder is not None:
                require_writable(folder, option)
        rows = read_table(table)
        goal = read_target(rows, target, None if task is None else task.value)
        if likelihood is not None and goal.task == "regression":
            raise ValueError("--likelihood is for classification; the target is numbers.")
        if weight == target:
            raise ValueError(f"--weight {weight} names the target.")
        left_out = [*(drop or []), *([] if weight is None else [weight])]
        names = feature_names(rows, target, left_out)
        features = rows.features(names)
        weights = None if weight is None else rows.repeats(weight)
        if model not in (Model.dcc, Model.rjhmc):
            settings = _read_hard(settings, file, model)
            settings["leaf"] = make_leaf(leaf, goal.task, goal.y)
    settings["random_state"] = seed
    for position in rows.unnamed:
        note(f"Column {position} of {table} has no name and was left out.")
    for doubt in rows.doubts(names):
        note(doubt)
    with notes_after(), located(file):
        summary = report_fit(
            Problem(f"{target} in {table}", features, goal, weights=weights),
            model.value,
            settings,
            {"table": str(table)},
            out=out,
            report=_report_path(report, table, out),
            quiet=as_json,
        )
    if as_json:
        say_json(summary)


def _report_path(wanted: bool, table: Path, out: Path | None) -> Path | None:
    """Say where the report goes, if one is wanted."""
    if not wanted:
        return None
    return Path(f"{table.stem}-report.html") if out is None else out / "report.html"


def _read_hard(settings: dict[str, Any], file: "PriorFile | None", model: Model) -> dict[str, Any]:
    """Read priors and cut points."""
    from bdtppl.cli.specification import parse_prior

    settings = {"bins": "auto", **settings}
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
    settings["bins"] = parse_bins(settings["bins"], settings.get("grid"))
    if model != Model.exact and settings["bins"] == "auto":
        settings["bins"] = None
    if model == Model.gflownet and settings["bins"] is not None:
        settings.setdefault("grid", None)  # it has one by default
    return settings


def read_prior(prior_file: Path) -> "PriorFile":
    """Read a prior's file; its errors speak of its keys, not of options."""
    from bdtppl.prior_files import read_prior_file

    try:
        return read_prior_file(prior_file)
    except ValueError as error:
        raise UserError(str(error)) from error


@contextmanager
def located(file: "PriorFile | None") -> Iterator[None]:
    """Name the line of a prior's file in errors of the fit."""
    try:
        yield
    except UserError as error:
        raise error if file is None else UserError(file.locate(str(error))) from error


def _own_settings(model: Model, of_models: dict[Model, dict[str, Any]]) -> dict[str, Any]:
    """Take the settings of one inference, and refuse those of another one."""
    given = {
        name: value.value if isinstance(value, StrEnum) else value
        for own in of_models.values()
        for name, value in own.items()
        if value is not None
    }
    for name in given:
        if name not in of_models[model]:
            kinds = " or ".join(kind.value for kind, own in of_models.items() if name in own)
            option = "--" + name.replace("_", "-")
            raise ValueError(f"{option} is for --model {kinds}, not {model.value}.")
    return given


def parse_bins(text: str, grid: int | None) -> int | str | None:
    """Read --bins, which excludes --grid unless it is auto."""
    if text == "auto":
        return "auto"
    if grid is not None:
        raise ValueError(f"--bins {text} and --grid {grid} exclude each other; give one.")
    if text.lower() == "none":
        return None
    if not text.isdecimal() or int(text) < 2:
        raise ValueError(f"--bins must be auto, none or an integer of at least 2; got {text!r}.")
    return int(text)


def feature_names(rows: "Table", target: str | None, dropped: list[str]) -> list[str]:
    """Columns to predict from: all but the target and those that are dropped."""
    for name in dropped:
        rows.require(name)
        if name == target:
            raise ValueError(f"--drop {name} names the target.")
    names = [name for name in rows.columns if name != target and name not in dropped]
    if not names:
        beside = "" if target is None else f" beside the target {target!r}"
        raise ValueError(f"{rows.path} has no column{beside} to predict from.")
    return names
