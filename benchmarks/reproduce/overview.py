"""The table of defaults in short: each system's score on each table, its rank and its time."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.reproduce.defaults import CLASSES, DEFAULTS, LARGE, NUM_FOLDS, NUMBERS, score_of
from benchmarks.reproduce.experiments import Cell, key_of, summed_up
from benchmarks.reproduce.results import read_results

__all__ = ["mean_ranks", "ranked", "render_overview"]

_MOST_NAMES = 0.5  # of the tables must have a system for its rank to be shown


def ranked(
    cells: Mapping[str, Cell], tables: Sequence[str], of: Callable[[str], str] = score_of
) -> np.ndarray:
    """Rank systems on each table by a score, 1 the best; NaN where one was not run on all folds.

    Returns
    -------
    numpy.ndarray
        float64 [systems, tables]; systems in the order of `DEFAULTS`.
    """
    keys = [
        [key_of(table, name, of(table)) for table in tables] for name in DEFAULTS.tables[0].rows
    ]
    whole = {k: cell.value for k, cell in cells.items() if cell.count == NUM_FOLDS}
    scores = np.array([[whole.get(k, np.nan) for k in row] for row in keys])
    return np.where(np.isnan(scores), np.nan, 1 + (scores[None] < scores[:, None]).sum(axis=1))


def mean_ranks(ranks: np.ndarray) -> np.ndarray:
    """Average ranks [systems] over the tables that all systems shown ran on.

    Shown are those that ran on half of the tables or more; the others have NaN.
    """
    known = ~np.isnan(ranks)
    shown = known.mean(axis=1) >= _MOST_NAMES
    common = known[shown].all(axis=0)
    means = np.full(len(ranks), np.nan)
    if common.any():
        means[shown] = ranks[np.ix_(shown, common)].mean(axis=1)
    return means


def render_overview(folder: Path) -> str:
    """Write tables as Markdown: log losses, CRPS, RMSE; the best of a column is bold."""
    cells = summed_up(read_results(folder, DEFAULTS.name)["tasks"])
    lines = [
        "Scores of held-out rows; lower is better. The best is bold; blank: not run on all folds.",
        "",
    ]
    for title, tables in (("log loss", (*CLASSES, *LARGE)), ("CRPS", NUMBERS), ("RMSE", NUMBERS)):
        lines += [*_table_lines(cells, title, tables), ""]
    return "\n".join(lines).rstrip() + "\n"


def _table_lines(cells: Mapping[str, Cell], title: str, tables: Sequence[str]) -> Iterator[str]:
    ranks = ranked(cells, tables, lambda _: title)
    means = mean_ranks(ranks)
    names = DEFAULTS.tables[0].rows
    headings = [each.replace("_", " ") for each in tables]
    yield f"| {title} | {' | '.join(headings)} | rank | CPU s |"
    yield f"|---|{'---:|' * (len(tables) + 2)}"
    for place in np.argsort(np.nan_to_num(means, nan=np.inf), kind="stable"):
        if np.isnan(ranks[place]).all():
            continue
        texts = []
        for table, rank in zip(tables, ranks[place], strict=True):
            cell = cells.get(key_of(table, names[place], title))
            text = "" if cell is None or np.isnan(rank) else f"{cell.value:.3f}"
            texts.append(f"**{text}**" if rank == 1 else text)
        run = [
            table for table, rank in zip(tables, ranks[place], strict=True) if not np.isnan(rank)
        ]
        times = [cells.get(key_of(table, names[place], "CPU s")) for table in run]
        seconds = float(np.median([each.value for each in times if each is not None]))
        mean = "" if np.isnan(means[place]) else f"{means[place]:.1f}"
        texts += [mean, f"{seconds:.1f}" if seconds < 10 else f"{seconds:.0f}"]
        yield f"| {names[place]} | {' | '.join(texts)} |"
