"""Sections on the data, the model, and the evidence for it."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any

import numpy as np

from bdtppl.models.wording import counted, listed, number
from bdtppl.plotting import plot_evidence
from bdtppl.plotting.rows import Rows, training_targets
from bdtppl.report.blocks import Block, Code, Facts, ReportTable, Text
from bdtppl.report.pictures import picture
from bdtppl.report.subject import Subject
from bdtppl.report.words import (
    constraints_in_words,
    inference_in_words,
    prior_in_words,
    soft_model_in_words,
)
from bdtppl.summary import evidence_in_words, size_in_words

_MOST_COLUMNS = 40
_SWEPT = ("log_phi", "alpha", "p", "rate", "beta")  # hyperparameters; the first found is drawn
_LARGEST_CHART = 200_000  # productions that are cheap to rescore repeatedly


def data(subject: Subject) -> Iterator[Block]:
    """Describe the target and the columns."""
    model, summary = subject.model, subject.summary
    rows, y = Rows.of(model), training_targets(model)
    weights = np.ones(len(y), int) if rows.weights is None else np.asarray(rows.weights)
    repeats = weights if weights.dtype.kind == "i" else np.ones(len(y), int)
    used = counted(summary["rows"], "row was", "rows were")
    yield Text(f"{used} used to learn {subject.target}.")
    if "pseudo_weight" in summary:
        total = number(summary["pseudo_weight"])
        yield Text(f"Weights are not counts and sum to {total}: this is a pseudo-likelihood.")
    if subject.classes is not None:
        counts = np.bincount(y, weights, minlength=len(subject.classes))
        shares = (counts / counts.sum()).tolist()
        cells = [
            [str(name), f"{count:,.0f}", f"{share:.1%}"]
            for name, count, share in zip(subject.classes, counts, shares, strict=True)
        ]
        head = [subject.target, "rows", "share"]
        yield ReportTable("The classes and their numbers of rows.", head, cells, shares)
    else:
        quartiles = np.quantile(y, [0.25, 0.5, 0.75], weights=weights, method="inverted_cdf")
        mean = np.average(y, weights=weights)
        deviation = np.sqrt(np.average((y - mean) ** 2, weights=weights))
        yield Facts(
            {
                f"{subject.target}, range": f"{number(y.min())} to {number(y.max())}",
                "quartiles": ", ".join(map(number, quartiles)),
                "mean and standard deviation": f"{number(mean)}, {number(deviation)}",
            }
        )
    cells = [
        [str(name), *_column_in_words(values, repeats, rows.levels.get(name, ()))]
        for name, values in zip(rows.names, rows.columns, strict=True)
    ]
    caption = "The columns that the model may split on."
    if len(cells) > _MOST_COLUMNS:
        caption += f" {len(cells) - _MOST_COLUMNS} more are not listed."
    yield ReportTable(caption, ["column", "kind", "values", "missing"], cells[:_MOST_COLUMNS])


def _column_in_words(values: np.ndarray, repeats: np.ndarray, levels: Sequence[str]) -> list[str]:
    """Describe a column: its kind, its values, and how many are missing."""
    is_category = values.dtype.kind == "O"
    is_missing = np.array([v is None for v in values]) if is_category else np.isnan(values)
    known, num_missing = values[~is_missing], str(int(repeats[is_missing].sum()))
    if is_category:
        held = set(known)
        return ["category", listed([name for name in levels if name in held]), num_missing]
    held = f"{number(known.min())} to {number(known.max())}" if len(known) else ""
    return ["number", held, num_missing]


def assumptions(subject: Subject) -> Iterator[Block]:
    """Describe the assumptions, and how the posterior was computed."""
    model = subject.model
    yield Text(inference_in_words(model))
    if model.trees_are == "sums":
        of_sum = model.prior_.in_words(model.posterior_.scale.in_words())
        yield Text(" ".join([of_sum, _cuts_in_words(model)]))
    elif model.trees_are == "soft":
        prior, posterior = model.topology_prior_, model.posterior_
        said = soft_model_in_words(posterior.model, posterior.sharpness, subject.classes)
        chances = [number(prior.alpha * (1 + depth) ** -prior.beta) for depth in range(3)]
        yield Text(" ".join(said))
        yield Text(
            f"Before the data are seen a node splits with probability {chances[0]} at the root, "
            f"{chances[1]} below it, {chances[2]} below that, and so on."
        )
    else:
        said = [*prior_in_words(model.prior_), _cuts_in_words(model)]
        if names := model.no_cut:
            said.append(f"There is no cut in {listed(names)}: values are all equal or missing.")
        yield Text(" ".join(said))
        yield Text(model.leaf_.in_words(subject.classes))
        limits = constraints_in_words(model.constraints_)
        if limits:
            yield Text(" ".join(limits))
    yield Code("How to repeat the fit", subject.command or _in_python(model))


def _in_python(model: Any) -> str:
    """Write the lines that fit a model, and those that repeat a choice by evidence."""
    imports = sorted(set(_imports(model.get_params(deep=False).values())))
    lines = [f"from bdtppl import {type(model).__name__}", *imports, ""]
    lines += [f"model = {model!r}", "model.fit(X, y)"]
    chosen = getattr(model, "chosen", None)
    if chosen:
        settings = ", ".join(f"{key}={value!r}" for key, value in chosen.items())
        lines += [
            "",
            f"# Settings that the fit chose itself, for a fit without that search: {settings}",
        ]
    return "\n".join(lines)


def _imports(values: Iterable[Any]) -> Iterator[str]:
    """Write the imports that the representations of some values need."""
    for value in values:
        if is_dataclass(value):
            yield f"from {type(value).__module__} import {type(value).__name__}"
            yield from _imports(getattr(value, field.name) for field in fields(value))
        elif isinstance(value, np.ndarray):
            yield "from numpy import array"
        elif isinstance(value, float) and np.isinf(value):
            yield "from math import inf"
        elif isinstance(value, list | tuple):
            yield from _imports(value)


def _cuts_in_words(model: Any) -> str:
    if getattr(model, "grid", None) is not None:
        return f"Numbers are cut at {model.grid} evenly spaced places over each column's range."
    bins = model.summary()["bins"]
    if bins is None:
        return "Numbers are cut between any two neighbouring values."
    kind = "of equal numbers of rows" if model.binning == "quantile" else "of equal widths"
    return f"Numbers are cut into at most {bins} buckets {kind}."


def evidence(subject: Subject) -> Iterator[Block]:
    """Report how probable the data are under the model, if that is known."""
    summary, model = subject.summary, subject.model
    facts = {}
    said = evidence_in_words(summary, " ± {:.3f} (standard error)")
    if said and said != "unknown":
        facts["log evidence"] = said + ", of a pseudo-likelihood" * ("pseudo_weight" in summary)
    if "lower_bound" in summary:
        facts["log of the sum over trees"] = (
            f"{summary['log_partition']:.3f}; learned {summary['learned_log_partition']:.3f}, "
            f"lower bound {summary['lower_bound']:.3f}"
        )
    if "entropy" in summary:
        size = size_in_words(summary["entropy"])
        facts["entropy"] = f"{summary['entropy']:.2f}, as of {size}"
    if "expected_leaves" in summary and model.trees_are != "sums":
        facts["expected number of leaves"] = f"{summary['expected_leaves']:.2f}"
    if "log evidence" in facts and not model.posterior_.has_pointwise_likelihood:
        yield Text(
            "The log evidence compares topologies of this model; the compound likelihood is not a "
            "distribution of the labels, so other models cannot be compared by it."
        )
    elif "log evidence" in facts and summary.get("log_evidence") is None:
        yield Text(
            "The log evidence, the log probability of all targets under the model before any of "
            "them was seen, is not known. It is at least the sum over the trees found; the "
            "difference is unknown, so models cannot be compared by this bound."
        )
    elif said.startswith("between"):
        yield Text(
            "The log evidence, the log probability of all targets under the model before any of "
            "them was seen, is between two bounds: the sum over the trees that the search visited, "
            "and that sum plus a bound on all others. Models of the same data can be compared if "
            "their bounds do not overlap."
        )
    elif "log evidence" in facts:
        yield Text(
            "The log evidence is the log probability of all targets under the model, before any of "
            "them was seen. Of two models of the same data, the one whose log evidence is higher "
            "by 3 is 20 times as probable, if both were equally probable before."
        )
    if facts:
        yield Facts(facts)
    name = _swept(model)
    if name:
        yield picture(
            partial(plot_evidence, model, f"prior__{name}", _around(model, name)),
            f"Log evidence as a curve over values of {name}.",
            f"Log evidence for other values of the prior's {name}, all else being equal. A flat "
            "curve means that the choice matters little; a peak far from the dashed line means "
            "that the data favour another value.",
        )


def _swept(model: Any) -> str | None:
    """Name the hyperparameter of the prior whose evidence is drawn, if that is cheap."""
    if model.exact_ is None or model.exact_.num_rules > _LARGEST_CHART:
        return None
    support = model.prior_.parameter_support
    return next((name for name in _SWEPT if name in support), None)


def _around(model: Any, name: str) -> np.ndarray:
    """Return values on both sides of the model's value."""
    value = float(getattr(model.prior_, name))
    if name in ("alpha", "p"):
        return np.unique(np.append(np.linspace(0.05, 0.99, 14), value))
    if name == "rate":
        return value * np.geomspace(0.2, 5.0, 13)
    return np.unique(np.append(np.linspace(value - 3, value + 5, 13), value))
