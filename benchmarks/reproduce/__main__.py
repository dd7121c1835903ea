"""Run the papers' experiments again: ``python -m benchmarks.reproduce [NAME ...]``.

Without a name, all experiments are run. Each task (a fold, a seed, a model) that is done is kept in
a JSON file of the folder ``benchmarks/results``, and is not run again; then the pages
``RESULTS.md`` and ``DEFAULTS.md`` of ``benchmarks`` and the figures of ``docs/images`` are written
anew. ``--quick`` runs a
few tasks of each experiment, in a folder of their own. ``--check`` reruns the quickest kept task of
each experiment and compares. The environment variable ``BDTPPL_DATA`` names the folder of data
sets.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.reproduce.catalogue import EXPERIMENTS
from benchmarks.reproduce.experiments import Experiment
from benchmarks.reproduce.figures import draw_figures
from benchmarks.reproduce.overview import render_overview
from benchmarks.reproduce.rendering import render
from benchmarks.reproduce.results import FOLDER, IMAGES, PAGES, read_results
from benchmarks.reproduce.running import run_experiments, timed

__all__ = ["main", "rendered"]

_QUICK = Path("quick-results")
_QUICK_SECONDS = 12 * 60.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, render or check what the command line asks for; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reproduce", description=__doc__)
    names = [experiment.name for experiment in EXPERIMENTS]
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)}")
    parser.add_argument("--quick", action="store_true", help="few tasks, in at most 15 minutes")
    parser.add_argument("--check", action="store_true", help="rerun the quickest kept task of each")
    parser.add_argument("--render", action="store_true", help="write pages and figures alone")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--minutes", type=float, default=np.inf, help="begin no task after so many")
    parser.add_argument("--out", type=Path, help=f"folder of results; default {FOLDER}")
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.names) - set(names)):
        parser.error(f"there is no experiment {unknown[0]}; there are {', '.join(names)}")
    chosen = [each for each in EXPERIMENTS if not options.names or each.name in options.names]
    folder = options.out or (_QUICK if options.quick else FOLDER)
    if options.check:
        return _check(chosen, folder)
    if not options.render:
        seconds = min(60 * options.minutes, _QUICK_SECONDS if options.quick else np.inf)
        run_experiments(chosen, folder, quick=options.quick, jobs=options.jobs, seconds=seconds)
    pages, images = (PAGES, IMAGES) if folder == FOLDER else (folder, folder)
    pages.mkdir(parents=True, exist_ok=True)
    written = []
    for name, text in rendered(folder).items():
        written.append(pages / name)
        written[-1].write_text(text, encoding="utf-8")
    for path in (*written, *draw_figures(folder, images)):
        print(f"Wrote {path}.")
    return 0


def rendered(folder: Path) -> dict[str, str]:
    """Write the pages of a folder of results, by the names of their files."""
    return {"RESULTS.md": render(EXPERIMENTS, folder), "DEFAULTS.md": render_overview(folder)}


def _check(experiments: Sequence[Experiment], folder: Path) -> int:
    """Rerun the quickest kept task of each experiment; returns 1 unless numbers are the same."""
    status = num_checked = 0
    for experiment in experiments:
        kept = read_results(folder, experiment.name)["tasks"]
        try:
            tasks = [task for task in experiment.tasks() if task.name in kept]
        except FileNotFoundError as missing:
            print(f"{experiment.name} is left out: {missing}")
            continue
        if not tasks:
            continue
        task = min(tasks, key=lambda task: kept[task.name]["cpu_seconds"])
        found, wanted = timed(task)["values"], kept[task.name]["values"]
        differ = [
            key
            for key in wanted
            if not np.isclose(found[key], wanted[key], rtol=0, atol=experiment.tolerance)
            and "seconds" not in key
        ]
        said = f"differs in {', '.join(differ)}" if differ else "the same"
        print(f"{experiment.name}, {task.name}: {said}", flush=True)
        status |= bool(differ)
        num_checked += 1
    if not num_checked:
        print("Nothing was checked.")
    return status or int(not num_checked)


if __name__ == "__main__":
    sys.exit(main())
