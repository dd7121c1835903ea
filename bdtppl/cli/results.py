"""Results of a fit: the printed summary, and a folder with the model and figures."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Group
from rich.text import Text

from bdtppl.cli.console import UserError, readable_json, refusing, say
from bdtppl.cli.target import Target
from bdtppl.estimators import all_inferences
from bdtppl.files import staged
from bdtppl.plotting import (
    plot_predictive,
    plot_structures,
    plot_topologies,
    plot_trajectories,
    plot_tree,
)
from bdtppl.plotting.axes import name_axis
from bdtppl.progress import waiting
from bdtppl.summary import facts_view, summary_view

_STRUCTURES = 4  # most probable trees to draw
_LEAST_PRINTED = 1e-3  # least probability of other trees to draw, relative to the first one
_RESOLUTION = 150  # pixels an inch
_WIDEST = 20_000  # pixels of a figure
_SHOWN_CLASSES = 8
_OBSOLETE = (
    "tree.png",
    "structures.png",
    "topologies.png",
    "predictive.png",
    "trajectories.png",
    "report.html",
)


class ReadProblem(NamedTuple):
    """The rows to fit, and their weights.

    ``command`` is the command line that read the rows, if there is one.
    """

    title: str
    features: Any
    target: Target
    weights: np.ndarray | str | None = None
    command: str | None = None

    @property
    def is_in_parts(self) -> bool:
        """Return whether X is a dask DataFrame, and targets and weights are names of columns."""
        return isinstance(self.target.y, str)


def report_fit(
    problem: ReadProblem,
    inference: str,
    settings: Mapping[str, Any],
    facts: Mapping[str, Any],
    *,
    out: Path | None = None,
    report: Path | None = None,
    quiet: bool = False,
) -> dict[str, Any]:
    """Fit an estimator, print its summary, and write all results into a folder.

    Parameters
    ----------
    problem
        Features and target.
    inference
        Name of the inference.
    settings
        Parameters of the estimator.
    facts
        Entries that the summary gets in addition to the model's own.
    out
        The folder; None to write nothing.
    report
        Where to write the report; None to write none.
    quiet
        Whether to print nothing.

    Returns
    -------
    dict
        The summary, of JSON types alone.
    """
    target = problem.target
    if not quiet:
        say(_opening(problem))
    model = all_inferences()[inference][target.task](**settings)
    shows_progress = "progress" in model.get_params()
    if shows_progress:
        model.set_params(progress=True)
    with refusing(ValueError, TypeError, OSError):
        model.fit(problem.features, target.y, sample_weight=problem.weights)
    if shows_progress:
        model.set_params(progress=False)
    with waiting("summing up", shown=True):
        summary = {
            **facts,
            "target": target.name,
            "task": target.task,
            "task_was_guessed": target.reason is not None,
            **({"classes": model.classes_.tolist()} if target.task == "classification" else {}),
            **{name: v for name, v in model.get_params().items() if name in ("grid", "binning")},
            **model.summary(),
        }
    if report is not None:
        summary["report"] = str(report)
    if not quiet:
        say(summary_view(summary))
    names = [] if out is None else _write(model, summary, problem, out)
    if report is not None:
        _write_report(model, problem, report)
    if quiet:
        return summary
    if model.trees_are == "sums":
        say("\nA sum of trees has no readable tree: --model exact gives one.")
    saved = {"folder": str(out), "files": ", ".join(names)} if names else {}
    if report is not None:
        saved["report"] = str(report)
    if saved:
        say("\nSaved")
        say(facts_view(saved))
    else:
        say("\nNothing was saved; --out FOLDER saves the model, figures and the summary.")
    return summary


def _opening(problem: ReadProblem) -> Group:
    """Describe the fit."""
    name, task, y, reason = problem.target
    guessed = "" if reason is None else f" (guessed: {reason}; see --task)"
    if problem.is_in_parts:
        facts = {"target": name, "task": task + guessed}
        return Group(Text(problem.title, style="bold"), facts_view(facts))
    if task == "classification":
        classes = [str(label) for label in np.unique(y)]
        shown = ", ".join(classes[:_SHOWN_CLASSES])
        if len(classes) > _SHOWN_CLASSES:
            shown += f" and {len(classes) - _SHOWN_CLASSES} more"
    else:
        shown = f"from {y.min():.6g} to {y.max():.6g}, mean {y.mean():.6g}"
    facts = {"target": f"{name}: {shown}", "task": task + guessed}
    return Group(Text(problem.title, style="bold"), facts_view(facts))


def _write(model: Any, summary: Mapping[str, Any], problem: ReadProblem, folder: Path) -> list[str]:
    """Write model, figures and summary, all or none; return the names of the files."""
    try:
        with (
            staged(folder, obsolete=_OBSOLETE) as staging,
            waiting("drawing and saving", shown=True),
        ):
            _draw_results(model, problem, staging)
            model.save(staging)
            (staging / "summary.json").write_text(readable_json(summary) + "\n", encoding="utf-8")
            return sorted(path.name for path in staging.iterdir())
    except OSError as error:
        cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
        reason = cause.strerror or cause
        raise UserError(f"--out {folder} cannot be written: {reason}.") from error


def _write_report(model: Any, problem: ReadProblem, path: Path) -> None:
    from bdtppl.report import write_report

    with waiting("writing the report", shown=True), refusing(OSError):
        write_report(
            model, path, target=problem.target.name, title=problem.title, command=problem.command
        )


def _draw_results(model: Any, problem: ReadProblem, folder: Path) -> None:
    from matplotlib import pyplot

    axes: dict[str, Any]
    if model.trees_are == "soft":
        axes = {"topologies.png": plot_topologies(model)}
    elif model.trees_are == "sums":
        axes = {}
    else:
        probability = model.k_best(_STRUCTURES, by=model.grouping).probability
        num_structures = int(np.sum(probability >= _LEAST_PRINTED * probability[0]))
        axes = {
            "tree.png": plot_tree(model),
            "structures.png": plot_structures(model, k=num_structures)[0],
        }
    if not (model.is_classifier or problem.is_in_parts):
        axes["predictive.png"] = plot_predictive(model)
        name_axis(axes["predictive.png"].yaxis, problem.target.name)
    if model.trajectory_ is not None:
        axes["trajectories.png"] = plot_trajectories(model)
    for name, ax in axes.items():
        resolution = min(_RESOLUTION, _WIDEST / max(ax.figure.get_size_inches()))
        ax.figure.savefig(folder / name, dpi=resolution)
        pyplot.close(ax.figure)
