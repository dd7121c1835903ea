"""The section on the inference: its work and its diagnostics."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from bdtppl.models.wording import counted
from bdtppl.plotting import plot_trajectories
from bdtppl.report.blocks import Block, Facts, ReportTable, Text
from bdtppl.report.pictures import picture
from bdtppl.report.subject import Subject
from bdtppl.summary import descent_in_words, gap_in_words, quantity_in_words

_MOST_TOPOLOGIES = 10
_UNKNOWN = "\N{EN DASH}"


def diagnostics(subject: Subject) -> Iterator[Block]:
    """Tabulate the diagnostics of the inference."""
    model, summary = subject.model, subject.summary
    facts = dict(_facts_of_inference(summary))
    if facts:
        yield Facts(facts)
    diagnosed = model.diagnostics_
    rows = [
        [quantity_in_words(name), _or_dash(each["r_hat"], ".3f"), _or_dash(each["ess"], ",.0f")]
        for name, each in diagnosed.items()
        if "pareto_k" not in each
    ]
    if rows:
        caption = (
            "Agreement of the chains. R-hat compares them and is 1 if they agree; the effective "
            "sample size is the number of independent draws that would carry the same information."
        )
        yield ReportTable(caption, ["quantity", "R-hat", "effective draws"], rows)
    rows = [
        [
            code,
            each["method"],
            _or_dash(each["pareto_k"], ".2f"),
            _or_dash(each["r_hat"], ".3f"),
            _or_dash(each["divergences"], "d"),
        ]
        for code, each in list(diagnosed.items())[:_MOST_TOPOLOGIES]
        if "pareto_k" in each
    ]
    if rows:
        caption = (
            "How the evidence of each topology was estimated. Pareto's k above 0.7 means that few "
            "samples carry the weight; R-hat near 1 means that chains agree."
        )
        head = ["topology", "method", "Pareto k", "R-hat", "divergent draws"]
        yield ReportTable(caption, head, rows)
    if model.trajectory_ is not None:
        yield picture(
            partial(plot_trajectories, model),
            "How probable each chain's tree is, step by step.",
            "The chains, step by step. They should form one band.",
        )
    if not facts and not diagnosed:
        yield Text("The inference has no sampling or search that could have failed.")


def _facts_of_inference(summary: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Report how much work the inference did."""
    if "subproblems" in summary:
        yield (
            "exact sums over",
            f"{summary['subproblems']:,} sets of rows and {summary['productions']:,} ways to "
            f"split them",
        )
    if "chains" in summary:
        chains = counted(summary["chains"], "chain", "chains")
        yield "draws", f"{summary['draws']:,} in each of {chains}"
        if "distinct_trees" in summary:
            yield "distinct trees among them", f"{summary['distinct_trees']:,}"
    if descent := descent_in_words(summary):
        yield "in burn-in", descent
    if "particles" in summary:
        yield "particles", f"{counted(summary['runs'], 'run', 'runs')} of {summary['particles']:,}"
    if "steps" in summary:
        yield "training", f"{summary['steps']:,} steps ({summary['method']})"
    if "effective_size" in summary:
        yield "effective sample size", f"{summary['effective_size']:,.0f} equally weighted ones"
    if "iterations" in summary:
        yield (
            "walk over topologies",
            f"{summary['iterations']:,} steps; sampled {summary['topologies_found']:,} of "
            f"{summary['topologies_proposed']:,} that it met",
        )
        yield "prior probability of the sampled ones", f"{summary['prior_mass']:.2g}"
    if "expansions" in summary:
        yield "sets of rows that were split", f"{summary['expansions']:,}"
        yield (
            "log joint of the best tree",
            f"{summary['map_log_joint']:.3f}, {gap_in_words(summary['map_gap'])}",
        )
    if "trees" in summary and "map_depth" in summary:
        yield "trees grown", f"{summary['trees']:,}"


def _or_dash(value: float | None, form: str) -> str:
    return _UNKNOWN if value is None or not np.isfinite(value) else format(value, form)
