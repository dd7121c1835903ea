"""Files of results: a JSON file for each experiment, with every task that was run."""

import json
import os
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import bdtppl
from benchmarks.reproduce.experiments import Experiment

__all__ = ["FOLDER", "IMAGES", "PAGES", "read_results", "write_results"]

FOLDER = Path(__file__).parents[1] / "results"
PAGES = FOLDER.parent  # of RESULTS.md and DEFAULTS.md
IMAGES = FOLDER.parents[1] / "docs" / "images"
_PACKAGES = ("jax", "numpy", "scikit-learn")


def read_results(folder: Path, experiment: str) -> dict[str, Any]:
    """Read what is kept of an experiment: its tasks by name; none where there is no file."""
    path = folder / f"{experiment}.json"
    if not path.exists():
        return {"tasks": {}}
    return json.loads(path.read_text(encoding="utf-8"))


def write_results(folder: Path, experiment: Experiment, tasks: Mapping[str, Any]) -> None:
    """Write the tasks of an experiment, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    written = {
        "experiment": experiment.name,
        "paper": experiment.paper,
        "versions": {"bdtppl": bdtppl.__version__} | {name: version(name) for name in _PACKAGES},
        "machine": f"{platform.system()}, {platform.machine()}, {os.cpu_count()} cores",
        "tasks": {name: tasks[name] for name in sorted(tasks)},
    }
    path = folder / f"{experiment.name}.json"
    aside = path.with_suffix(".partial")
    aside.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    aside.replace(path)
