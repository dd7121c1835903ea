"""``bdtppl demo``: four pictures of two tables that need no download."""

from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bdtppl.cli.console import notes_after, refusing, say_json
from bdtppl.files import require_writable, staged

if TYPE_CHECKING:
    from bdtppl.comparison import Comparison

# Columns of scikit-learn's diabetes set, whose own names are abbreviations.
_DIABETES_COLUMNS = (
    "age, sex, body mass index, blood pressure, cholesterol, LDL, HDL, cholesterol by HDL, "
    "log triglycerides, glucose"
)
_FEW_DRAWS: dict[str, Any] = {"iterations": 1, "chains": 4, "warmup": 300, "draws": 100}
_ONE_SPLIT: dict[str, Any] = {"max_splits": 1, "with_leaf": False, "h_init": 0.5, "h_final": 0.025}


def demo(
    out: Annotated[
        Path, typer.Option(help="Folder for tables and pictures; created if it is missing.")
    ] = Path("bdtppl-demo"),
    as_json: Annotated[
        bool, typer.Option("--json", help="Print only the results, as JSON.")
    ] = False,
) -> None:
    """Draw an exact posterior, a sum of trees, a soft tree and their comparison; needs no data."""
    from bdtppl.progress import waiting

    with refusing(OSError):
        require_writable(out, "--out")
        with staged(out) as folder:
            with waiting("summing over all trees of iris", shown=True):
                text, evidence = _show_exact_posterior(folder)
            if not as_json:
                typer.echo(text)
            with notes_after(), waiting("comparing models of diabetes", shown=True):
                comparison = _compare_models(folder)
            pictures = [str(out / path.name) for path in sorted(folder.glob("*.png"))]
    if as_json:
        models = comparison.rows()
        say_json({"log_evidence": evidence, "models": models, "pictures": pictures})
        return
    typer.echo(
        "Diabetes: its progression in 442 patients, by sums of trees and a soft tree of one split\n"
        f"{comparison}"
    )
    typer.echo("\n  ".join(["\nPictures:", *pictures]))
    typer.echo(
        "\nNext, for instance:\n"
        f"  bdtppl fit {out}/iris.csv --target species --model exact --report\n"
        f"  bdtppl fit {out}/diabetes.csv --target progression --out {out}/diabetes\n"
        f"  bdtppl predict {out}/diabetes {out}/diabetes.csv --interval 0.9"
    )


def _show_exact_posterior(folder: Path) -> tuple[str, float]:
    from sklearn.datasets import load_iris

    from bdtppl import ExactTreeClassifier, plot_structures
    from bdtppl.models.priors import DepthDecay

    iris: Any = load_iris(as_frame=True)
    X = iris.data.rename(columns=lambda name: name.removesuffix(" (cm)"))
    y = iris.target_names[iris.target]
    X.assign(species=y).to_csv(folder / "iris.csv", index=False)
    settings: Any = {"prior": DepthDecay(0.95, 1.0), "bins": 10, "binning": "uniform"}
    model = ExactTreeClassifier(**settings)
    probability = model.fit(X, y).k_best(1, by="partition").probability[0]
    _save(plot_structures(model, k=4)[0], folder / "1-exact-posterior.png")
    text = (
        "Iris: the species of 150 flowers, by the exact posterior over all trees\n"
        f"The log evidence is {model.log_evidence_:.2f}. The most probable partition of the rows "
        f"has probability {probability:.3f}; its most probable tree:\n\n"
        f"{indent(model.rules(), '  ')}\n"
    )
    return text, model.log_evidence_


def _compare_models(folder: Path) -> "Comparison":
    from sklearn.datasets import load_diabetes

    from bdtppl import BARTRegressor, DCCTreeRegressor, compare, plot_comparison, plot_predictive

    diabetes: Any = load_diabetes(scaled=False, as_frame=True)
    X, y = diabetes.data.set_axis(_DIABETES_COLUMNS.split(", "), axis=1), diabetes.target
    X.assign(progression=y).to_csv(folder / "diabetes.csv", index=False)
    both: dict[str, Any] = {"target_scale": "yeo-johnson", "random_state": 0}
    few: Any = {"trees": 10}
    soft: Any = {**_FEW_DRAWS, **_ONE_SPLIT, "evidence": "lais", "random_state": 0}
    models = {
        "200 trees": BARTRegressor(**both),
        "10 trees": BARTRegressor(**few, **both),
        "soft tree": DCCTreeRegressor(**soft),
    }
    comparison = compare({name: model.fit(X, y) for name, model in models.items()}, cv=None)
    bands = plot_predictive(models["200 trees"])
    along = plot_predictive(models["soft tree"], feature="body mass index")
    for ax, name in ((bands, "2-sum-of-trees"), (along, "4-soft-tree")):
        ax.set_ylabel("progression")
        _save(ax, folder / f"{name}.png")
    _save(plot_comparison(comparison, ["elpd_loo", "weight"])[0], folder / "3-comparison.png")
    return comparison


def _save(ax: Any, path: Path) -> None:
    from matplotlib import pyplot

    ax.figure.savefig(path, dpi=150)
    pyplot.close(ax.figure)
