"""The section on the likely trees, hard or soft."""

from collections.abc import Iterator
from functools import partial

import numpy as np

from bdtppl.models.wording import counted, number
from bdtppl.plotting import (
    plot_overlap,
    plot_topologies,
    plot_treatment_effects,
    plot_tree,
)
from bdtppl.plotting.effects import draw_effects
from bdtppl.report.blocks import Block, Code, Figures, ReportTable, Text
from bdtppl.report.pictures import picture
from bdtppl.report.subject import Subject

_TREES_DRAWN = 10
_DRAWN_TREES = 5
_LEAST_PROBABILITY = 0.01  # least probability of a tree to draw, relative to the best one
_MOST_LEAVES = 24  # leaves of a tree that is drawn
_MOST_LEAVES_BESIDE = 4  # trees drawn side by side
_RULES_LISTED = 60  # lines
_COLUMNS_LISTED = 40
_EFFECTS_DRAWN = 6
_LEAST_LISTED = 5e-4  # of the variance, for an effect to be listed
_PARTITION = (
    " A partition represents all trees whose leaves contain the same training rows, in any order "
    "of splits. It is drawn as the most probable of them, with the sum of the probabilities of "
    "those that were listed."
)


def trees(subject: Subject) -> Iterator[Block]:
    """Show the most probable trees, and their common features."""
    model, summary = subject.model, subject.summary
    if model.trees_are == "soft":
        yield from _topology_blocks(subject)
        return
    if model.trees_are == "sums":
        yield from _sum_blocks(subject)
        return
    by, best = model.grouping, model.k_best(1)
    ranked = model.k_best(_TREES_DRAWN, by=by)
    probability, leaves = ranked.probability, ranked.trees.num_leaves
    name, best_leaves = model.probability_name, int(best.trees.num_leaves[0])
    yield Text(
        f"The most probable tree has {counted(best_leaves, 'leaf', 'leaves')} and a {name} of "
        f"{best.probability[0]:.3g}."
        + (
            f" The {len(probability)} most probable {by}s together have {probability.sum():.3g}; "
            "if that is little, consider their common features rather than any single tree."
            if len(probability) > 1
            else ""
        )
        + (_PARTITION if by == "partition" else "")
    )
    if best_leaves <= _MOST_LEAVES:
        yield picture(
            partial(plot_tree, model),
            "Drawing of the most probable tree; its rules follow as text.",
            "The most probable tree. Rows that satisfy a condition go to the side marked yes; "
            "below each leaf are its prediction and its number of training rows.",
        )
    yield Code("Its rules", _shortened(model.rules()))
    drawn = int(np.sum(probability[:_DRAWN_TREES] >= _LEAST_PROBABILITY * probability[0]))
    first = int(ranked.trees[0].to_nested() == best.trees[0].to_nested())  # drawn above
    if drawn > first and leaves[:drawn].max() <= _MOST_LEAVES:
        figures = [
            picture(
                partial(plot_tree, model, rank, by=by),
                f"Drawing of {by} no. {rank + 1}.",
                f"{by.capitalize()} no. {rank + 1} by probability.",
            )
            for rank in range(first, drawn)
        ]
        if leaves[:drawn].max() <= _MOST_LEAVES_BESIDE:
            yield Figures(figures)
        else:
            yield from figures
    if len(probability) > 1:
        rows = [
            [str(rank), f"{share:.3g}", str(count)]
            for rank, (share, count) in enumerate(zip(probability, leaves, strict=True), 1)
        ]
        shares = (probability / max(probability.max(), 1e-300)).tolist()
        yield ReportTable(f"The most probable {by}s.", ["", name, "leaves"], rows, shares)
    caption = (
        "Probability that a tree splits on the column at all."
        if "split_inclusion" in summary
        else "Each column's share in the gain of the tree's splits."
    )
    yield _share_table(subject, caption)


def _topology_blocks(subject: Subject) -> Iterator[Block]:
    topologies = subject.summary["topologies"]
    yield Text(
        f"{counted(subject.summary['topologies_found'], 'topology', 'topologies')} (shapes of "
        f"trees) were found. The most probable one has "
        f"{counted(topologies[0]['splits'], 'split', 'splits')} and the probability "
        f"{topologies[0]['probability']:.3g}."
    )
    yield picture(
        partial(plot_topologies, subject.model),
        "Drawings of topologies with their evidence or probability.",
        "The most probable topologies: splits are dots, leaves are squares.",
    )
    rows = [
        [each["code"], str(each["splits"]), f"{each['probability']:.3g}", _evidence_cell(each)]
        for each in topologies[:_TREES_DRAWN]
    ]
    head = ["code", "splits", "probability", "log evidence"]
    yield ReportTable("Topologies; in the code 1 is a split and 0 a leaf, in preorder.", head, rows)
    yield _share_table(subject, "Each column's mean share in the directions of splits.")


def _sum_blocks(subject: Subject) -> Iterator[Block]:
    """Show the effects of columns on a sum, or which columns the trees of sums split on."""
    summary = subject.summary
    said = (
        f"Each draw is a sum of {summary['sum']}, of {summary['expected_leaves']:.1f} leaves each "
        "on average: no single tree represents it."
    )
    if "sigma" in summary:
        low, high = summary["sigma_interval"]
        said += (
            f" The noise has a standard deviation of {number(summary['sigma'])} (90 % interval "
            f"{number(low)} to {number(high)})"
        )
        scale = summary["target_scale"]
        said += "." if scale == "identity" else f", {_on_scale(subject)}."
    yield Text(said)
    if hasattr(subject.model, "effect_draws"):
        yield from _treatment_blocks(subject)
    if effects := subject.effects[:_EFFECTS_DRAWN]:
        yield picture(
            partial(draw_effects, subject.model, effects, 0.9),
            "The strongest effects of columns, with bands, and of pairs of columns as maps.",
            "Effects of columns on the sum, with 90 % bands, and effects of pairs; the other "
            "columns are averaged out as if they were independent. Effects are "
            f"{_on_scale(subject)}.",
        )
        listed = [each for each in subject.effects if each.share >= _LEAST_LISTED]
        listed = listed[:_COLUMNS_LISTED]
        names = [" and ".join(each.columns) for each in listed]
        ends = [f"{each.share_low:.3f} to {each.share_high:.3f}" for each in listed]
        shares = [f"{each.share:.3f}" for each in listed]
        rows = list(map(list, zip(names, shares, ends, strict=True)))
        yield ReportTable(
            "Each effect's share of the variance of the sum, and its 90 % interval.",
            ["effect of", "share", "interval"],
            rows,
            [each.share for each in listed],
        )
        return
    shares, ends = subject.shares, summary["feature_importance_interval"]
    shown = list(shares.items())[:_COLUMNS_LISTED]
    rows = [[name, f"{share:.3f}", "{:.3f} to {:.3f}".format(*ends[name])] for name, share in shown]
    yield ReportTable(
        "Each column's share of all splits, and its 90 % interval over the draws.",
        ["column", "share", "interval"],
        rows,
        [share for _, share in shown],
    )


def _on_scale(subject: Subject) -> str:
    """Name the scale of a sum."""
    if subject.classes is not None:
        link = {"logit": "log odds", "probit": "probits"}[subject.model.link]
        return f"{link} of {subject.classes[1]}"
    scale = subject.summary["target_scale"]
    return f"in units of {subject.target}" if scale == "identity" else f"on the {scale} scale"


def _treatment_blocks(subject: Subject) -> Iterator[Block]:
    model, over = subject.model, {"sample": "training rows", "treated": "treated rows"}
    rows = [
        [f"{over.get(name, name)}", *map(number, found)]
        for name, found in model.average_effect_.items()
    ]
    yield ReportTable(
        f"Average effect of {model.treatment_name_}, and its 95 % interval.",
        ["over", "effect", "from", "to"],
        rows,
    )
    yield picture(
        partial(plot_treatment_effects, model),
        "Effects of the treatment on the training rows, in increasing order, with intervals.",
        "Effect of the treatment on each training row. It is causal only if nothing besides the "
        "columns affects both treatment and target.",
    )
    if model.has_arms_:
        yield picture(
            partial(plot_overlap, model),
            "Histograms of the propensities of treated and of other rows.",
            "Propensities of both arms. Where one has no rows, effects are extrapolated.",
        )


def _evidence_cell(topology: dict) -> str:
    if topology["log_evidence"] is None:
        return "not estimated"
    error = topology["log_evidence_se"]
    return f"{topology['log_evidence']:.2f}" + ("" if error is None else f" ± {error:.2f}")


def _share_table(subject: Subject, caption: str) -> ReportTable:
    no_cut = subject.model.no_cut
    shown = list(subject.shares.items())[:_COLUMNS_LISTED]
    rows = [[name, "no cut" if name in no_cut else f"{share:.3f}"] for name, share in shown]
    head, before = ["column", "share"], subject.summary.get("prior_inclusion")
    if before is not None:
        head.append("before the data")
        rows = [[*row, "" if row[0] in no_cut else f"{before[row[0]]:.2f}"] for row in rows]
    return ReportTable(caption, head, rows, [share for _, share in shown])


def _shortened(rules: str) -> str:
    lines = rules.splitlines()
    more = len(lines) - _RULES_LISTED
    return "\n".join(lines[:_RULES_LISTED] + ([f"... and {more} more lines"] if more > 0 else []))
