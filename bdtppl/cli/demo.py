"""``bdtppl demo``: posteriors of four data sets that need no download."""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bdtppl.cli.console import UserError, notes_after, refusing, say_json
from bdtppl.files import require_writable, staged

if TYPE_CHECKING:
    from bdtppl.cli.results import ReadProblem

# Columns of scikit-learn's diabetes set, whose own names are abbreviations.
_DIABETES_COLUMNS = (
    "age",
    "sex",
    "body mass index",
    "blood pressure",
    "cholesterol",
    "LDL",
    "HDL",
    "cholesterol by HDL",
    "log triglycerides",
    "glucose",
)


def demo(
    out: Annotated[
        Path, typer.Option(help="Folder for tables, models and figures; created if it is missing.")
    ] = Path("bdtppl-demo"),
    as_json: Annotated[
        bool, typer.Option("--json", help="Print only the summaries, as JSON.")
    ] = False,
) -> None:
    """Fit, print, draw, save and report four posteriors; needs no data and no network."""
    from bdtppl.cli.results import report_fit

    with refusing(OSError):
        require_writable(out, "--out")
    summaries = {}
    for name, inference, problem, settings in _problems():
        folder, facts = out / name, {"table": f"{name}.csv"}
        page = folder / "report.html"
        with notes_after():
            summaries[name] = report_fit(
                problem, inference, settings, facts, out=folder, report=page, quiet=as_json
            )
        _write_table(folder, f"{name}.csv", problem)
        if not as_json:
            typer.echo()
    if as_json:
        say_json(summaries)
        return
    typer.echo(
        "Next, for instance:\n"
        f"  bdtppl fit {out}/iris/iris.csv --target species --model exact --bins 10\n"
        f"  bdtppl predict {out}/diabetes {out}/diabetes/diabetes.csv --interval 0.9\n"
        f"  python -c 'import bdtppl; print(bdtppl.load(\"{out}/cgm\").rules(rank=1))'"
    )


def _problems() -> Iterator[tuple[str, str, "ReadProblem", dict[str, Any]]]:
    """Return the name, inference, problem and settings of each fit."""
    from sklearn.datasets import load_diabetes, load_iris

    from bdtppl.cli.results import ReadProblem
    from bdtppl.cli.target import Target
    from bdtppl.datasets import make_cgm, make_wu
    from bdtppl.models.priors import DepthDecay

    iris: Any = load_iris()
    names = [name.removesuffix(" (cm)") for name in iris.feature_names]
    species = Target("species", "classification", iris.target_names[iris.target])
    yield (
        "iris",
        "exact",
        ReadProblem("Iris: the species of 150 flowers", _demo_columns(names, iris.data), species),
        {"prior": DepthDecay(0.95, 1.0), "bins": 10, "binning": "uniform", "random_state": 0},
    )
    diabetes: Any = load_diabetes(scaled=False)
    progression = Target("progression", "regression", diabetes.target)
    yield (
        "diabetes",
        "exact",
        ReadProblem(
            "Diabetes: its progression in 442 patients",
            _demo_columns(_DIABETES_COLUMNS, diabetes.data),
            progression,
        ),
        {"prior": DepthDecay(), "bins": 5, "max_depth": 3, "min_leaf": 10, "random_state": 0},
    )
    X, y = make_cgm(random_state=0)
    yield (
        "cgm",
        "exact",
        ReadProblem(
            "CGM: simulated data that two trees explain equally well",
            _demo_columns(("x1", "x2"), X),
            Target("y", "regression", y),
        ),
        {"random_state": 0},
    )
    names = ("x1", "x2", "x3")
    (X, y), (unseen, truth) = make_wu(random_state=0), make_wu(random_state=1)
    apart = [0, 150, 290]  # rows of different regions
    yield (
        "wu",
        "dcc",
        ReadProblem(
            "WU: simulated data, by soft trees of all topologies",
            _demo_columns(names, X),
            Target("y", "regression", y),
            (_demo_columns(names, unseen[apart]), truth[apart]),
        ),
        {
            "iterations": 6,
            "chains": 4,
            "warmup": 400,
            "h_init": 0.5,
            "h_final": 0.025,
            "max_splits": 2,
            "evidence": "lais",
            "random_state": 0,
        },
    )


def _demo_columns(names: Sequence[str], matrix: Any) -> dict[str, Any]:
    return dict(zip(names, matrix.T, strict=True))


def _write_table(folder: Path, name: str, problem: "ReadProblem") -> None:
    columns = [*problem.features.values(), problem.target.y]
    try:
        with staged(folder) as staging, (staging / name).open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([*problem.features, problem.target.name])
            writer.writerows(zip(*(column.tolist() for column in columns), strict=True))
    except OSError as error:
        raise UserError(f"{folder / name} cannot be written: {error.strerror or error}.") from error
