"""Figures of results: error against the exact posterior, and all systems by score and time."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.ticker import NullFormatter

from bdtppl import GreedyModalTreeClassifier
from bdtppl.plotting.colours import FAINT, INK, LINE, class_style
from benchmarks.greedy_modal_tables import problem
from benchmarks.reproduce.dcc_tree_figures import GRID, PLACES, SAMPLERS, curve_of
from benchmarks.reproduce.defaults import CLASSES, DEFAULTS, LARGE, NUMBERS, score_of
from benchmarks.reproduce.error_against_exact import BUDGETS, QUANTITIES, TABLES
from benchmarks.reproduce.experiments import key_of, summed_up
from benchmarks.reproduce.gmt_figures import chance_at, fit_smoothed, gaussians
from benchmarks.reproduce.overview import ranked
from benchmarks.reproduce.peers import PEERS
from benchmarks.reproduce.results import read_results

__all__ = ["draw_figures"]

_LEAST_ERROR = 1e-3  # drawn
_LEAST_SECONDS = 1e-3
_PEER = class_style(5)["facecolor"]
_NAMES = {"Metropolis": "Markov chains", "particle": "particle filter"}


def draw_figures(folder: Path, images: Path) -> list[Path]:
    """Draw what the results of a folder have; returns the files written."""
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "bdtppl"  # the same file from the same numbers
    images.mkdir(parents=True, exist_ok=True)
    written = []
    for name, experiment, draw in (
        ("error_against_exact", "error_against_exact", _error_against_exact),
        ("defaults", "defaults", _score_against_seconds),
        ("ranks", "defaults", _ranks),
        ("partitions_and_smoothing", "gmt_figures", _partitions_and_smoothing),
        ("predictive_densities", "dcc_tree_figures", _predictive_densities),
    ):
        tasks = read_results(folder, experiment)["tasks"]
        figure = draw(tasks) if tasks else None
        if figure is not None:
            path = images / f"{name}.svg"
            figure.savefig(path, metadata={"Date": None}, bbox_inches="tight")
            written.append(path)
    return written


def _error_against_exact(tasks: Mapping[str, Any]) -> Any:
    """Total variation, and error of the log evidence, as the budget of each inference grows."""
    import matplotlib.pyplot as plt

    cells = summed_up(tasks)
    figure, panels = plt.subplots(
        2, len(TABLES), figsize=(9.5, 6.4), sharex=True, sharey="row", layout="constrained"
    )
    for (row, column), panel in np.ndenumerate(panels):
        table, quantity = TABLES[column], QUANTITIES[row]
        ends = []
        for number, (inference, budgets) in enumerate(BUDGETS.items()):
            keys = {own: key_of(table, f"{inference}, {own:,}", quantity) for own in budgets}
            points = [(own, cells[key].value) for own, key in keys.items() if key in cells]
            if points:
                x, y = np.array(points).T
                y = np.maximum(y, _LEAST_ERROR)
                colour = class_style(number)["facecolor"]
                panel.plot(x, y, "o-" if number else "o--", markersize=4, color=colour)
                ends.append((x[-1], y[-1], _NAMES.get(inference, inference), colour))
        panel.set(xscale="log", yscale="log", xlim=(0.6, 2e5))
        panel.set_xticks([1, 100, 10_000], ["1", "100", "10,000"])
        panel.yaxis.set_major_formatter("{x:g}")
        for axis in (panel.xaxis, panel.yaxis):
            axis.set_minor_formatter(NullFormatter())
        panel.grid(color=FAINT, linewidth=0.6)
        panel.spines[["top", "right"]].set_visible(False)
        _label_ends(panel, ends)
    for panel, table in zip(panels[0], TABLES, strict=True):
        panel.set_title(table, color=INK)
    for panel in panels[1]:
        panel.set_ylim(bottom=_LEAST_ERROR / 4)
        panel.axhspan(0, _LEAST_ERROR, color=FAINT, zorder=0)
        floor = f"{_LEAST_ERROR:g} nats or less"
        panel.text(0.8, _LEAST_ERROR / 2, floor, va="center", fontsize=8.5, color=INK)
    panels[0, 0].set_ylabel("total variation over trees\n(0: exact, 1: nothing in common)")
    panels[1, 0].set_ylabel("error of the log evidence, nats")
    figure.supxlabel(
        "budget: draws (independent, Markov chains), particles, training steps (GFlowNet),\n"
        "milliseconds (search) or roots (greedy)",
        fontsize=10,
    )
    return figure


def _label_ends(panel: Any, ends: list[tuple[float, float, str, str]]) -> None:
    """Write the names of lines beside their last points, moved apart where they would overlap."""
    low, high = np.log10(panel.get_ylim())
    step, last = 0.065 * (high - low), -np.inf
    for x, y, name, colour in sorted(ends, key=lambda end: end[1]):
        last = max(np.log10(y), last + step)
        panel.annotate(
            name, (x, y), (4e5, 10**last), color=colour, fontsize=9, va="center",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.6, "linestyle": ":"},
        )  # fmt: skip


def _score_against_seconds(tasks: Mapping[str, Any]) -> Any:
    """Score of held-out rows against CPU seconds, a panel for each table; peers are hollow."""
    import matplotlib.pyplot as plt

    cells = summed_up(tasks)
    tables = [
        table
        for table in (*CLASSES, *NUMBERS, *LARGE)
        if any(key.startswith(f"{table} |") for key in cells)
    ]
    rows = -(-len(tables) // 3)
    figure, panels = plt.subplots(
        rows, 3, figsize=(10.5, 3.1 * rows), squeeze=False, layout="constrained"
    )
    for panel, table in zip(panels.ravel(), tables, strict=False):
        for number, name in enumerate(DEFAULTS.tables[0].rows):
            seconds, score = (
                cells.get(key_of(table, name, of)) for of in ("CPU s", score_of(table))
            )
            if seconds is None or score is None:
                continue
            x = max(seconds.value, _LEAST_SECONDS)
            colour = class_style(number % 7)["facecolor"]
            panel.errorbar(
                x,
                score.value,
                yerr=np.nan_to_num(score.error),
                fmt="os^Dv"[number % 5],
                color=colour,
                markerfacecolor="white" if name in PEERS else colour,
                markersize=5,
                linewidth=0.8,
                label=name,
            )
        panel.set_xscale("log")
        panel.xaxis.set_minor_formatter(NullFormatter())
        panel.set_title(table)
        panel.set_ylabel(score_of(table))
        panel.set_xlabel("CPU seconds")
        panel.grid(color=FAINT, linewidth=0.6)
        panel.spines[["top", "right"]].set_visible(False)
    for panel in panels.ravel()[len(tables) :]:
        panel.set_axis_off()
    found = {}
    for panel in panels.ravel()[: len(tables)]:
        found |= dict(zip(*reversed(panel.get_legend_handles_labels()), strict=True))
    figure.legend(found.values(), found, loc="outside upper center", ncols=6, frameon=False)
    return figure


def _ranks(tasks: Mapping[str, Any]) -> Any:
    """Rank of each system on each table by its score, 1 the best; names of peers are in italics."""
    import matplotlib.pyplot as plt

    groups = {
        "classification: log loss": CLASSES,
        "regression: CRPS": NUMBERS,
        "large tables: log loss": LARGE,
    }
    tables = tuple(table for group in groups.values() for table in group)
    names = DEFAULTS.tables[0].rows
    rank = ranked(summed_up(tasks), tables)
    is_run = ~np.isnan(rank)
    shown = np.flatnonzero(is_run.any(axis=1))
    if not len(shown):
        return None
    few = is_run[shown].mean(axis=1) < 0.5
    shown = shown[np.lexsort((np.nanmean(rank[shown], axis=1), few))]
    rank = rank[shown]
    figure, ax = plt.subplots(figsize=(10.0, 1.9 + 0.33 * len(shown)), layout="constrained")
    ax.imshow(rank, cmap="Blues_r", aspect="auto", vmin=1, vmax=len(shown) + 4)
    for (row, column), value in np.ndenumerate(rank):
        is_dark = value < (len(shown) + 4) / 2
        colour, text = ("white" if is_dark else INK), f"{value:.0f}"
        if np.isnan(value):
            ax.add_patch(plt.Rectangle((column - 0.5, row - 0.5), 1, 1, color=FAINT, linewidth=0))
            colour, text = LINE, "not run"
        size = 8 if np.isnan(value) else 10
        ax.text(column, row, text, ha="center", va="center", color=colour, fontsize=size)
    start = 0
    for title, group in groups.items():
        middle = start + (len(group) - 1) / 2
        ax.text(middle, -0.75, title, ha="center", va="bottom", fontsize=10, color=INK)
        start += len(group)
        ax.axvline(start - 0.5, color="white", linewidth=5)
    heads = [table.replace("_", "\n", 1).replace("_", " ") for table in tables]
    ax.set_xticks(range(len(tables)), heads)
    ax.set_yticks(range(len(shown)), [names[row] for row in shown])
    for label in ax.get_yticklabels():
        if label.get_text() in PEERS:
            label.set(style="italic", color=_PEER)
    ax.tick_params(length=0)
    ax.tick_params(axis="x", labelsize=9)
    ax.spines[:].set_visible(False)
    figure.supxlabel(
        "Rank by the score of held-out rows; 1 is the best. Other packages are in orange italics. "
        "Rows are sorted by\nmean rank, systems with few tables last. Not run: slow systems on "
        "large tables, GFlowNet on regression,\nand pymc-bart, which takes 20 minutes a table.",
        fontsize=9.5,
    )
    return figure


def _partitions_and_smoothing(_: Mapping[str, Any]) -> Any:
    """Figures 2 and 5 of Nuti et al., fitted anew; None where Ripley's set is missing."""
    import matplotlib.pyplot as plt

    try:
        held_out = problem("ripley").matrix
    except FileNotFoundError:
        return None
    figure, panels = plt.subplots(2, 2, figsize=(9.0, 7.2), layout="constrained")
    X, y, _ = gaussians(500)
    found = GreedyModalTreeClassifier().fit(X, y).partition_log_probabilities()
    for feature, name in enumerate(("x1", "x2")):
        of = found.feature == feature
        at = np.argsort(found.threshold[of])
        panels[0, 0].plot(found.threshold[of][at], found.log_rule[of][at], label=f"cuts of {name}")
    panels[0, 0].set(title="log probability of each cut", xlabel="cut", ylabel="nats")
    panels[0, 0].legend(frameon=False)
    grid = _grid(X)
    shown = _map(panels[0, 1], grid, chance_at(_points(grid)), "true chance, and the best cuts")
    figure.colorbar(shown, ax=panels, shrink=0.6, label="chance of the outcome 1")
    for feature, draw in enumerate((panels[0, 1].axvline, panels[0, 1].axhline)):
        draw(found.threshold[found.feature == feature][0], color=INK, linestyle="--")
    panels[0, 1].scatter(*X.T, c=np.where(y, INK, "white"), s=8, edgecolors=INK, linewidths=0.4)
    grid = _grid(held_out)
    for panel, smoothing in zip(panels[1], (0.0, 0.5), strict=True):
        model = fit_smoothed(smoothing, 0.999)
        chance = model.predict_proba(_points(grid))[:, 1]
        _map(panel, grid, chance, f"Ripley's set, smoothing {smoothing:g}")
    return figure


def _predictive_densities(tasks: Mapping[str, Any]) -> Any:
    """Figure 2 of Cochrane et al.: densities at test rows, by three samplers."""
    import matplotlib.pyplot as plt

    cells = summed_up(tasks)
    values = {key: value for task in tasks.values() for key, value in task["values"].items()}
    places = [
        (name, place)
        for name, of in PLACES.items()
        for place in of
        if curve_of(place, SAMPLERS[0]) in values
    ]
    figure, panels = plt.subplots(
        1, len(places), figsize=(2.9 * len(places), 2.9), squeeze=False, layout="constrained"
    )
    for panel, (name, place) in zip(panels[0], places, strict=True):
        for number, sampler in enumerate(SAMPLERS):
            density = np.array(values[curve_of(place, sampler)])
            style: dict[str, Any] = {"color": class_style(number)["facecolor"], "label": sampler}
            panel.plot(GRID[name], density, ("-", "--", ":")[number], linewidth=1.8, **style)
            if sampler == SAMPLERS[0]:
                seen = GRID[name][density > 0.002 * density.max()]
                panel.set_xlim(seen.min() - 0.2, seen.max() + 0.2)
        for what, mark, size in (("truth", "|", 16), ("CART", "v", 8)):
            x = cells[key_of("Figure 2", f"{place}, {SAMPLERS[0]}", what)].value
            style = {"color": INK, "markersize": size, "markeredgewidth": 2, "linewidth": 0}
            panel.plot(x, 0.0, mark, label=what, clip_on=False, **style)
        panel.set(title=place, xlabel="target", ylim=(0, None))
        panel.spines[["top", "right"]].set_visible(False)
    panels[0, 0].set_ylabel("density")
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)
    return figure


def _grid(X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    low, high = X.min(axis=0), X.max(axis=0)
    x, y = np.meshgrid(*(np.linspace(a, b, 200) for a, b in zip(low, high, strict=True)))
    return x, y


def _points(grid: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    return np.stack([each.ravel() for each in grid], axis=1)


def _map(panel: Any, grid: tuple[np.ndarray, np.ndarray], chance: np.ndarray, title: str) -> Any:
    panel.set(title=title, xlabel="x1", ylabel="x2")
    x, y = grid
    return panel.imshow(
        chance.reshape(x.shape), origin="lower", aspect="auto", cmap="RdBu", vmin=0, vmax=1,
        extent=(x.min(), x.max(), y.min(), y.max()),
    )  # fmt: skip
