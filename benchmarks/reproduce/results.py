"""Files of results: a JSON file for each experiment, with every task that was run, and on what."""

import json
import os
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import bdtppl
from benchmarks.reproduce.experiments import Experiment

__all__ = ["FOLDER", "IMAGES", "PAGES", "environment", "read_results", "write_results"]

FOLDER = Path(__file__).parents[1] / "results"
PAGES = FOLDER.parent  # of RESULTS.md and DEFAULTS.md
IMAGES = FOLDER.parents[1] / "docs" / "images"
_PACKAGES = ("jax", "numpy", "scikit-learn")


def environment() -> dict[str, str]:
    """Tell what numbers and times may depend on: the kind of machine, and versions."""
    machine = f"{platform.system()}, {platform.machine()}, {os.cpu_count()} cores"
    packages = {name: version(name) for name in _PACKAGES}
    return {"machine": machine, "bdtppl": bdtppl.__version__, **packages}


def read_results(folder: Path, experiment: str) -> dict[str, Any]:
    """Read what is kept of an experiment: its tasks by name; none where there is no file.

    The file lists each environment once, and tasks have its place in that list.
    """
    path = folder / f"{experiment}.json"
    if not path.exists():
        return {"tasks": {}}
    results = json.loads(path.read_text(encoding="utf-8"))
    for task in results["tasks"].values():
        task["environment"] = results["environments"][task["environment"]]
    return results


def write_results(folder: Path, experiment: Experiment, tasks: Mapping[str, Any]) -> None:
    """Write the tasks of an experiment, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    environments: list[dict[str, str]] = []
    of_tasks = {}
    for name, task in sorted(tasks.items()):
        if task["environment"] not in environments:
            environments.append(task["environment"])
        of_tasks[name] = task | {"environment": environments.index(task["environment"])}
    written = {
        "experiment": experiment.name,
        "paper": experiment.paper,
        "environments": environments,
        "tasks": of_tasks,
    }
    path = folder / f"{experiment.name}.json"
    aside = path.with_suffix(".partial")
    aside.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    aside.replace(path)
