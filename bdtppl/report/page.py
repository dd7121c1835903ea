"""A report as one self-contained HTML page: no script, no network, no other file."""

import os
from datetime import date
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from sklearn.utils.validation import check_is_fitted

import bdtppl
from bdtppl.files import staged
from bdtppl.models.wording import counted, listed
from bdtppl.report.background import assumptions, data, evidence
from bdtppl.report.blocks import Notes, Section, Text
from bdtppl.report.cautions import cautions
from bdtppl.report.diagnostics import diagnostics
from bdtppl.report.predictions import dependences, predictions
from bdtppl.report.subject import Subject
from bdtppl.report.trees import trees

_TEMPLATE = "report.html"
_SECTIONS = {
    "The data": data,
    "The model": assumptions,
    "Evidence": evidence,
    "The likely trees": trees,
    "Predictions": predictions,
    "What the columns do": dependences,
    "Diagnostics": diagnostics,
}
_TITLES_OF_SUMS = {"The likely trees": "The sum of trees"}
_LEADING = 3  # columns that are named
_CERTAIN = 0.5  # probability of a split on a column from which it is mentioned


def write_report(
    model: Any,
    path: str | os.PathLike,
    X: Any = None,
    y: Any = None,
    *,
    target: str = "target",
    title: str | None = None,
    command: str | None = None,
) -> None:
    """Write a page of HTML that explains a fitted model to a reader new to the analysis.

    The page contains data, model and prior in words, evidence, the likely trees, predictions and
    calibration, and diagnostics with plain warnings. Figures are embedded; the page needs no script
    and no network. It is written under a temporary name and moved when complete.

    Parameters
    ----------
    model
        A fitted estimator of bdtppl.
    path
        The file to write.
    X, y
        Default: the training rows, each predicted from all others.
    target
        Name of what is predicted.
    title
        Title of the page; default names the target.
    command
        How to repeat the fit. Default: in Python.

    Raises
    ------
    sklearn.exceptions.NotFittedError
        If the model has not been fitted.
    ValueError
        If only one of X and y is given, or they do not fit the model.
    OSError
        If the file cannot be written.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from bdtppl import GreedyModalTreeClassifier, write_report
    >>> X, y = load_iris(return_X_y=True, as_frame=True)
    >>> write_report(GreedyModalTreeClassifier().fit(X, y), "iris.html", target="species")
    >>> Path("iris.html").read_text(encoding="utf-8").count("<figure")
    4
    """
    check_is_fitted(model)
    path = Path(path)
    text = _render(Subject(model, target, X, y, command), title)
    with staged(path.absolute().parent) as staging:
        (staging / path.name).write_text(text, encoding="utf-8")


def _render(subject: Subject, title: str | None) -> str:
    environment = Environment(
        loader=PackageLoader("bdtppl.report"),
        autoescape=True,  # names of columns and classes may contain anything
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    today = date.today()
    is_sum = subject.model.trees_are == "sums"
    kind = "sum of trees" if is_sum else "decision tree"
    return environment.get_template(_TEMPLATE).render(
        title=title or f"{subject.target}: a Bayesian {kind}",
        subtitle=f"{type(subject.model).__name__}, {subject.summary['rows']:,} rows",
        sections=[
            _in_short(subject),
            *(
                Section(_TITLES_OF_SUMS.get(title, title) if is_sum else title, blocks)
                for title, write in _SECTIONS.items()
                if (blocks := list(write(subject)))
            ),
        ],
        written=f"Written by bdtppl {bdtppl.__version__} on {today.day} {today:%B %Y}.",
    )


def _in_short(subject: Subject) -> Section:
    """Summarise the report."""
    warnings = cautions(subject.model, subject.forecasts)
    return Section(
        "In short",
        [
            Text(" ".join(_findings(subject))),
            Notes(warnings, "The diagnostics give no reason to doubt the results."),
        ],
    )


def _findings(subject: Subject) -> list[str]:
    forecasts, summary = subject.forecasts, subject.summary
    said = []
    leaves = counted(summary.get("map_leaves", 0), "leaf", "leaves")
    if "map_leaves" in summary and "split_inclusion" in summary:
        leading = [name for name, share in subject.shares.items() if share > _CERTAIN]
        on = f" Trees most probably split on {listed(leading)}." if leading else ""
        said.append(
            f"The most probable tree has {leaves} and a "
            f"{subject.model.probability_name} of {summary['map_probability']:.2g}.{on}"
        )
    elif "map_leaves" in summary:
        leading = [name for name, share in subject.shares.items() if share > 0]
        on = f"; it splits on {listed(leading)}" if leading else ""
        said.append(f"The tree has {leaves}{on}.")
    elif "topologies" in summary:
        best = summary["topologies"][0]
        said.append(
            f"The most probable topology has {counted(best['splits'], 'split', 'splits')} and the "
            f"probability {best['probability']:.2g}."
        )
    else:
        leading = list(subject.shares)[:_LEADING]
        verb = "varies most with" if subject.effects else "splits most often on"
        said.append(f"The sum of {summary['sum']} {verb} {listed(leading)}.")
    if forecasts is None:
        return said
    if subject.classes is not None:
        share = (forecasts.mean.argmax(axis=1) == forecasts.y).mean()
        said.append(f"The right class is predicted for {share:.1%} of the {subject.which}.")
    else:
        explained = 1 - ((forecasts.y - forecasts.mean) ** 2).mean() / (forecasts.y.var() or 1.0)
        said.append(
            f"Predictions explain {explained:.1%} of the variance of {subject.target} among the "
            f"{subject.which}."
        )
    return said
