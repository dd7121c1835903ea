"""Results as Markdown: our numbers beside the printed ones, and why they differ."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.reproduce.experiments import Cell, Experiment, Printed, Table, key_of, summed_up
from benchmarks.reproduce.results import read_results

__all__ = ["agreement", "render", "table_lines"]

_CLOSE = 2.0  # standard errors
_NO_REASON = "not explained."


def render(experiments: Sequence[Experiment], folder: Path) -> str:
    """Write all tables of results as one Markdown page.

    Parameters
    ----------
    experiments
        The experiments, those of one paper together.
    folder
        Folder of the files of results.
    """
    parts, agreeing, compared, unexplained, lacking = [], 0, 0, 0, 0
    papers: dict[str, list[str]] = {}
    for experiment in experiments:
        results = read_results(folder, experiment.name)
        cells = summed_up(results["tasks"])
        lacking += sum(
            table.is_compared and row not in table.quoted
            for table in experiment.tables
            for row, column in table.printed
            if key_of(table.name, row, column) not in cells
        )
        lines = papers.setdefault(experiment.paper, [])
        if not cells:
            lines += [f"*{experiment.name}* has not been run.", ""]
            continue
        lines += [*_opening(experiment, results), ""]
        for table in experiment.tables:
            lines += [f"### {table.title}", ""]
            if any(key.startswith(f"{table.name} | ") for key in cells):
                lines += [*table_lines(table, cells), "", *_closing(experiment, table, cells)]
            else:
                lines += ["*Not run.*", ""]
            found = agreement(table, cells)
            agreeing += sum(map(bool, found.values()))
            compared += len(found)
            unexplained += sum(
                not agrees and "ot explained" in (experiment.reason(key) or _NO_REASON)
                for key, agrees in found.items()
            )
    for paper, lines in papers.items():
        parts += [f"## {paper}", "", *lines]
    top = [
        "# Results",
        "",
        "Each cell has our number, its standard error over tasks (folds, seeds or runs) and, in "
        "brackets, the paper's number. `python -m benchmarks.reproduce` runs the tasks that are "
        "missing in `benchmarks/results` and writes this page; with `--out FOLDER` it runs all of "
        "them anew.",
        "",
        f"We compare {compared} printed numbers with ours: {agreeing} agree within two standard "
        f"errors, including the paper's if it prints one. {compared - agreeing} do not; "
        f"{unexplained} of these have no explanation yet."
        + (f" For {lacking} more our experiment has not been run yet." if lacking else ""),
        "",
    ]
    return "\n".join([*top, *parts]).rstrip() + "\n"


def _opening(experiment: Experiment, results: Mapping[str, Any]) -> list[str]:
    tasks = results["tasks"]
    seconds = sum(task["cpu_seconds"] for task in tasks.values())
    took = f"{seconds:.0f} CPU seconds" if seconds < 600 else f"{seconds / 60:.0f} CPU minutes"
    return [
        f"{experiment.protocol} (`python -m benchmarks.reproduce {experiment.name}`: "
        f"{len(tasks)} tasks, {took}, {_places(tasks)}.)"
    ]


def _places(tasks: Mapping[str, Any]) -> str:
    """Say on what most tasks ran, and name those that ran elsewhere."""
    places: dict[str, list[str]] = {}
    for name, task in tasks.items():
        of = task["environment"]
        places.setdefault(f"on {of['machine']}, with jax {of['jax']}", []).append(name)
    most, *others = sorted(places, key=lambda place: -len(places[place]))
    return "; ".join([most, *(f"{place}: {', '.join(places[place])}" for place in others)])


def agreement(table: Table, cells: Mapping[str, Cell]) -> dict[str, bool]:
    """Say which of our numbers agree with the printed ones, by key; those that can be compared."""
    found = {}
    for (row, column), printed in table.printed.items():
        key = key_of(table.name, row, column)
        if table.is_compared and row not in table.quoted and key in cells:
            apart = cells[key].apart(printed, table.digits)
            found[key] = bool(abs(apart) <= _CLOSE)  # NaN is no agreement
    return found


def table_lines(table: Table, cells: Mapping[str, Cell]) -> Iterator[str]:
    """Write a table as Markdown; rows without any number are left out."""
    yield f"| | {' | '.join(table.columns)} |"
    yield f"|---|{'---|' * len(table.columns)}"
    for row in table.rows:
        is_quoted = row in table.quoted
        texts = [
            _text(
                None if is_quoted else cells.get(key_of(table.name, row, column)),
                table.printed.get((row, column)),
                table.digits,
            )
            for column in table.columns
        ]
        if any(texts):
            yield f"| {row}{' (quoted)' if is_quoted else ''} | {' | '.join(texts)} |"


def _text(cell: Cell | None, printed: Printed | None, digits: int) -> str:
    ours = ""
    if cell is not None:
        ours = f"{cell.value:,.{digits}f}"
        if np.isfinite(cell.error) and cell.error > 0:
            ours += f" ± {cell.error:.{digits}f}"
    theirs = "" if printed is None else f"[{printed.value:g}]"
    return f"{ours} {theirs}".strip()


def _closing(experiment: Experiment, table: Table, cells: Mapping[str, Cell]) -> list[str]:
    """Name the cells that differ, and why, a line for each reason."""
    why: dict[str, list[str]] = {}
    for key, agrees in agreement(table, cells).items():
        if not agrees:
            _, row, column = key.split(" | ")
            said = experiment.reason(key) or _NO_REASON
            why.setdefault(said, []).append(f"{row}, {column}")
    lines = [f"- {'; '.join(of)}: {reason}" for reason, of in why.items()]
    if few := _of_few(table, cells):
        lines.append(f"- Means of fewer runs than other rows: {'; '.join(few)}.")
    return [*lines, ""] if lines else []


def _of_few(table: Table, cells: Mapping[str, Cell]) -> list[str]:
    """Name the rows whose cells are means of fewer runs than others of their column."""
    counts = {
        (row, column): cells[key].count
        for row in table.rows
        for column in table.columns
        if (key := key_of(table.name, row, column)) in cells
    }
    most = {column: max(n for (_, c), n in counts.items() if c == column) for _, column in counts}
    few: dict[str, tuple[int, int]] = {}
    for (row, column), count in counts.items():
        if count < most[column] and count < few.get(row, (most[column], 0))[0]:
            few[row] = count, most[column]
    return [f"{row} ({count} of {number})" for row, (count, number) in few.items()]
