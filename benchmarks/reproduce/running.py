"""Run the tasks of experiments: in several processes, each once, and what is done is kept."""

import os
import re
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from joblib import Parallel, delayed
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks.reproduce.experiments import Experiment, Task
from benchmarks.reproduce.results import FOLDER, environment, read_results, write_results

__all__ = ["run_experiments", "timed"]


def timed(task: Task) -> dict[str, Any]:
    """Run a task; returns its values, its CPU seconds, and on what it ran."""
    start = _cpu_seconds()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # results are printed with what they are worth
        values = dict(task.function(*task.arguments))
    seconds = round(_cpu_seconds() - start, 2)
    return {"values": values, "cpu_seconds": seconds, "environment": environment()}


def _cpu_seconds() -> float:
    """Seconds of the processor, with those of processes that this one has waited for."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def _named(experiment: Experiment, task: Task) -> tuple[Experiment, Task, dict[str, Any] | str]:
    try:
        return experiment, task, timed(task)
    except Exception as error:  # such as a package of a peer that is not installed
        return experiment, task, f"{type(error).__name__}: {error}"


def _expected(tasks: Sequence[Task], experiment: Experiment) -> float:
    """Estimate CPU seconds by what the project's own run took for tasks of other seeds."""
    took: dict[str, list[float]] = {}
    for name, task in read_results(FOLDER, experiment.name)["tasks"].items():
        took.setdefault(_without_seed(name), []).append(task["cpu_seconds"])
    own = (took.get(_without_seed(task.name), [experiment.seconds]) for task in tasks)
    return sum(sum(seconds) / len(seconds) for seconds in own)


def _without_seed(name: str) -> str:
    return re.sub(r"\b(seed|run|fold|trial) \d+", r"\1", name)


def run_experiments(
    experiments: Sequence[Experiment], folder: Path, *, quick: bool, jobs: int, seconds: float
) -> None:
    """Run the tasks that are not yet kept, and keep each when it is done.

    Parameters
    ----------
    experiments
        The experiments.
    folder
        Folder of the files of results.
    quick
        Whether to run the quick tasks alone.
    jobs
        Processes at a time.
    seconds
        Wall seconds after which no further task begins.
    """
    console = Console(stderr=True)
    todo, kept, left_out, expected = [], {}, 0, 0.0
    for experiment in experiments:
        kept[experiment.name] = read_results(folder, experiment.name)["tasks"]
        try:
            tasks = experiment.tasks()
        except FileNotFoundError as missing:
            console.print(f"{experiment.name} is left out: {missing}")
            continue
        left_out += sum(quick and not task.is_quick for task in tasks)
        own = [
            task
            for task in tasks
            if task.name not in kept[experiment.name] and (task.is_quick or not quick)
        ]
        todo += [(experiment, task) for task in own]
        expected += _expected(own, experiment)
    expected /= jobs
    skipped = f"; --quick leaves {left_out:,} tasks out" if quick else ""
    console.print(
        f"Tasks: {len(todo):,}. Minutes in {jobs} processes: about {expected / 60:.0f}{skipped}. "
        f"What is done is kept in {folder}."
    )
    if not todo:
        return
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # processes share the cores
    start = time.monotonic()

    def in_time() -> Any:
        for experiment, task in todo:
            if time.monotonic() - start < seconds:
                yield delayed(_named)(experiment, task)

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        bar = progress.add_task("tasks", total=len(todo))
        run = cast(Any, Parallel)(jobs, return_as="generator_unordered", pre_dispatch=jobs)
        for experiment, task, found in run(in_time()):
            if isinstance(found, str):
                console.print(f"{experiment.name}, {task.name} is left out: {found}")
            else:
                kept[experiment.name][task.name] = found
                write_results(folder, experiment, kept[experiment.name])
            progress.update(bar, advance=1, description=f"{experiment.name}, {task.name}")
    sys.stderr.flush()
