"""Benchmarks of soft trees: ``python -m benchmarks.soft_trees PART``.

The sets are those of Cochrane et al. 2024, with the authors' splits and settings; the tables of the
paper are among those of ``python -m benchmarks.reproduce``. ``costs`` prints what the first run of
a set costs, all compiled in it, and what the next ones in the same process take. ``evidence``
prints, for one seed, what importance sampling and tempered SMC find for each topology that may hold
1 % of the weight. ``nuts`` prints effective draws a second beside BlackJAX's and NumPyro's
samplers, and what each takes to compile. ``dismissals`` burns in what DCC-Tree left after the
pilot, and counts what should not have been left. ``sharpness`` chooses ``h_final`` by the evidence
of the training rows. The environment variable ``BDTPPL_DATA`` names the folder of data sets.
"""

import argparse
import statistics
from collections.abc import Sequence

import numpy as np

from benchmarks.processes import in_fresh_process
from benchmarks.soft.dismissals import print_dismissals
from benchmarks.soft.samplers import print_samplers
from benchmarks.soft.scores import Score, Weighed, score
from benchmarks.soft.sets import NAMES, REGRESSION, Runs, split
from benchmarks.soft.sharpness import print_sharpness
from benchmarks.text_table import print_table

__all__ = ["main"]

_LEAST_SHARE = 0.01  # of the weight, for estimators to be compared


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark that the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soft_trees", description=__doc__)
    parser.add_argument("part", nargs="?", choices=_PARTS, default="costs", help="default: costs")
    parser.add_argument("--sets", nargs="+", choices=NAMES, default=NAMES, help="default: all")
    parser.add_argument("--seeds", type=int, nargs="+", default=range(10), help="default: 0 to 9")
    parser.add_argument("--iterations", type=int, default=500, help="T")
    parser.add_argument("--initial-trees", type=int, default=100, help="T_0")
    options = parser.parse_args(arguments)
    runs = Runs(options.seeds, options.iterations, options.initial_trees)
    for name in options.sets:
        try:
            split(name)
        except FileNotFoundError as missing:
            print(f"{name} is left out: {missing}\n")
            continue
        if options.part in ("nuts", "dismissals") and name not in REGRESSION:
            print(f"{name} is left out: {options.part} is for {' and '.join(REGRESSION)}\n")
            continue
        _PARTS[options.part](name, runs)


def _print_costs(name: str, runs: Runs) -> None:
    first, *others = in_fresh_process(_scores, name, runs)
    print_table(
        f"Costs of DCC-Tree on {name}, {runs}: the first run of a process, and the median of "
        f"{len(others)} next ones",
        ["seconds", "a proposal", "peak GB", "compilations", "compiling", "next runs"],
        [
            [
                f"{first.seconds:.0f}",
                f"{first.seconds / first.proposals:.5f}",
                f"{first.peak:.2f}",
                f"{first.compilations}",
                f"{first.compile_seconds:.0f}",
                f"{statistics.median([run.seconds for run in others] or [np.nan]):.0f}",
            ]
        ],
    )


def _scores(name: str, runs: Runs) -> list[Score]:
    """Run all seeds of a set; the first one compiles, and is to be in a fresh process."""
    return [score(name, seed, runs) for seed in runs.seeds]


def _print_evidence(name: str, runs: Runs) -> None:
    """Compare two estimators on one walk: neither has a say in where it goes."""
    layered, tempered = (
        {
            each.code: each
            for each in in_fresh_process(score, name, runs.seeds[0], runs, by).topologies
        }
        for by in ("lais", "smc")
    )
    rows = []
    for code, one in layered.items():
        other = tempered.get(code, Weighed(code, np.nan, np.nan, "", 0.0))
        if max(one.probability, other.probability) >= _LEAST_SHARE:
            errors = np.hypot(one.standard_error, other.standard_error)
            difference = (other.log_evidence - one.log_evidence) / errors
            estimates = (
                f"{each.log_evidence:.2f} ± {each.standard_error:.2f}" for each in (one, other)
            )
            rows.append([code, f"{one.probability:.4f}", *estimates, f"{difference:+.1f}"])
    print_table(
        f"Log evidence of topologies of {name}, {runs}",
        ["topology", "probability", "importance sampling", "tempered SMC", "errors apart"],
        rows,
    )


_PARTS = {
    "costs": _print_costs,
    "evidence": _print_evidence,
    "nuts": print_samplers,
    "dismissals": print_dismissals,
    "sharpness": print_sharpness,
}


if __name__ == "__main__":
    main()
