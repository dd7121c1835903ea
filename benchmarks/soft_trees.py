"""Benchmarks of soft trees: ``python -m benchmarks.soft_trees [PART]``.

``scores`` prints accuracy or mean squared error of DCC-Tree on the sets of Cochrane et al. 2024,
with the authors' splits and settings, beside Tables 1 and 2. What the first run of a set costs, all
compiled in it, is printed beside Table 6; the next ones, in the same process, compile little.
``topologies`` prints log evidence and probability of the topologies (Figure 1). ``evidence``
prints, for one seed, what importance sampling and tempered SMC find for each topology that may hold
1 % of the weight. ``rivals`` prints the other rows of Tables 1, 2 and 6. ``nuts`` prints effective
draws a second beside BlackJAX's and NumPyro's samplers, and what each takes to compile.
``dismissals`` burns in what DCC-Tree left after the pilot, and counts what should not have been
left. ``sharpness`` chooses ``h_final`` by the evidence of the training rows. ``predictive`` prints
what is predicted at single rows (Figure 2). The environment variable ``BDTPPL_DATA`` names the
folder of data sets.
"""

import argparse
import statistics
import time
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bdtppl.inference.evidence.estimates import EvidenceMethod
from benchmarks.compilations import Compilations
from benchmarks.processes import in_fresh_process, peak_memory
from benchmarks.soft.dismissals import print_dismissals
from benchmarks.soft.predictive import print_predictive
from benchmarks.soft.rivals import print_rivals
from benchmarks.soft.samplers import print_samplers
from benchmarks.soft.sets import NAMES, REGRESSION, Runs, agreement, dcc_tree, split
from benchmarks.soft.sharpness import print_sharpness
from benchmarks.text_table import print_table

__all__ = ["Score", "main", "score"]

# Published figures of DCC-Tree: train and test (Tables 1 and 2), seconds a proposal (Table 6).
_PUBLISHED = {
    "wu": (0.058, 0.059, 0.008576),
    "cgm": (0.043, 0.040, 0.5738),
    "bcw": (0.982, 0.952, 0.00626),
    "iris": (0.981, 0.911, 0.00606),
    "wine": (0.958, 0.958, 0.01381),
    "raisin": (0.867, 0.844, 0.01313),
}
# What the project asks for on test rows: soft routing at h_final, and hard routing.
_BOUNDS = {
    "wu": (0.0592, 0.0562),
    "cgm": (0.0402, 0.0402),
    "bcw": (0.952, None),
    "iris": (0.911, None),
    "wine": (0.958, None),
    "raisin": (0.844, None),
}
_OTHER_PARTS = {
    "rivals": print_rivals,
    "nuts": print_samplers,
    "dismissals": print_dismissals,
    "sharpness": print_sharpness,
    "predictive": print_predictive,
}
_LEAST_SHARE = 0.01  # of the weight, for estimators to be compared


class Score(NamedTuple):
    """One run; scores are mean squared errors or accuracies.

    Attributes
    ----------
    train, test, hard
        By the posterior mean: training rows, test rows, and test rows by hard routing.
    by_draw
        Mean over single draws, test rows.
    balanced
        By the authors' class-balanced votes, test rows; None in regression.
    seconds, per_proposal
        Of the fit, compilation included; and a draw of the chains.
    peak
        Peak memory of the process, GB.
    compilations, compile_seconds
        XLA compilations of the fit, of all kinds, and what they took; some of them side by side.
    topologies
        Code, log evidence, its standard error, estimator, effective size of its weights, and
        probability of the likeliest ones.
    """

    train: float
    test: float
    hard: float
    by_draw: float
    balanced: float | None
    seconds: float
    per_proposal: float
    peak: float
    compilations: int
    compile_seconds: float
    topologies: list[tuple[str, float, float, str, float, float]]


def score(name: str, seed: int, runs: Runs, evidence: EvidenceMethod = "auto") -> Score:
    """Run DCC-Tree with the authors' settings; for memory to mean anything, in a fresh process."""
    data, model = split(name), dcc_tree(name, runs, evidence=evidence, random_state=seed)
    start = time.perf_counter()
    with warnings.catch_warnings(), Compilations() as compilations:
        warnings.simplefilter("ignore")  # estimators of evidence are printed
        model.fit(data.X, data.y)
    seconds = time.perf_counter() - start
    draws = model.num_iterations_ * model.chains * model.draws
    soft = model.posterior_.predictive(data.X_test).mean()
    hard = model.posterior_.predictive(data.X_test, sharpness=0.0).mean()
    balanced = None
    if name not in REGRESSION:
        votes = model.posterior_.predictive(data.X_test, votes="balanced").mean()
        balanced = agreement(model, votes, data.y_test)
    single = model.predict_draws(data.X_test)
    flat = single.reshape(-1, *single.shape[2:])
    return Score(
        train=agreement(model, model.posterior_.predictive(data.X).mean(), data.y),
        test=agreement(model, soft, data.y_test),
        hard=agreement(model, hard, data.y_test),
        by_draw=float(np.mean([agreement(model, each, data.y_test) for each in flat[::10]])),
        balanced=balanced,
        seconds=seconds,
        per_proposal=seconds / draws,
        peak=peak_memory(),
        compilations=compilations.total,
        compile_seconds=compilations.seconds,
        topologies=[
            (
                part.topology.code,
                float(part.evidence.log_evidence),
                float(part.evidence.standard_error),
                part.evidence.method,
                float(part.evidence.effective_size),
                part.probability,
            )
            for part in model.components_[:8]
        ],
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmarks that the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soft_trees", description=__doc__)
    parser.add_argument(
        "part",
        nargs="?",
        choices=("scores", "topologies", "evidence", *_OTHER_PARTS),
        help="default: the first two",
    )
    parser.add_argument("--sets", nargs="+", choices=NAMES, default=NAMES, help="default: all")
    parser.add_argument("--seeds", type=int, nargs="+", default=range(10), help="default: 0 to 9")
    parser.add_argument("--iterations", type=int, default=500, help="T")
    parser.add_argument("--initial-trees", type=int, default=100, help="T_0")
    options = parser.parse_args(arguments)
    runs, scores = Runs(options.seeds, options.iterations, options.initial_trees), {}
    for name in options.sets:
        try:
            split(name)
        except FileNotFoundError as missing:
            print(f"{name} is left out: {missing}\n")
            continue
        if options.part == "evidence":
            _print_evidence(name, runs)
            continue
        if options.part in ("nuts", "dismissals", "predictive") and name not in REGRESSION:
            print(f"{name} is left out: {options.part} is for {' and '.join(REGRESSION)}\n")
            continue
        if options.part in _OTHER_PARTS:
            _OTHER_PARTS[options.part](name, runs)
            continue
        scores[name] = in_fresh_process(_scores, name, runs)
    if options.part in ("scores", None):
        _print_scores(scores, runs)
    if options.part in ("topologies", None):
        _print_topologies(scores, runs)


def _scores(name: str, runs: Runs) -> list[Score]:
    """Run all seeds of a set; the first one compiles, and is to be in a fresh process."""
    scores = []
    for seed in runs.seeds:
        scores.append(score(name, seed, runs))
        print(f"{name}, seed {seed}: {scores[-1]}", flush=True)
    return scores


def _print_scores(of_sets: dict[str, list[Score]], runs: Runs) -> None:
    table = []
    for name, scores in of_sets.items():
        train, test, per_proposal = _PUBLISHED[name]
        soft, hard = _BOUNDS[name]
        table.append(
            [
                name,
                _spread([run.train for run in scores]),
                f"{train:g}",
                _spread([run.test for run in scores]),
                f"{test:g}",
                f"{soft:g}",
                _spread([run.hard for run in scores]),
                "" if hard is None else f"{hard:g}",
                _spread([run.by_draw for run in scores]),
                "" if name in REGRESSION else _spread([run.balanced for run in scores]),
                f"{scores[0].seconds:.0f}",
                f"{scores[0].per_proposal:.5f}",
                f"{per_proposal:g}",
                f"{scores[0].peak:.2f}",
                f"{scores[0].compilations}",
                f"{scores[0].compile_seconds:.0f}",
                f"{statistics.median([run.seconds for run in scores[1:]] or [np.nan]):.0f}",
            ]
        )
    headings = ["set", "train", "published", "test", "published", "bound", "hard", "bound"]
    more = ["by draw", "balanced", "seconds", "a proposal", "published", "peak GB"]
    more += ["compilations", "compiling", "next runs"]
    print_table(
        f"DCC-Tree, {runs}: mean squared error (wu, cgm) and accuracy, mean (standard deviation) "
        f"over {len(runs.seeds)} seeds",
        headings + more,
        table,
    )


def _print_topologies(of_sets: dict[str, list[Score]], runs: Runs) -> None:
    for name, scores in of_sets.items():
        rows = [
            [code, f"{evidence:.2f} ± {error:.2f}", method, f"{size:.0f}", f"{probability:.4f}"]
            for code, evidence, error, method, size, probability in scores[0].topologies
        ]
        headings = ["topology", "log evidence", "by", "effective size", "probability"]
        title = f"Topologies of {name}, seed {runs.seeds[0]} (Figure 1)"
        print_table(title, headings, rows)


def _print_evidence(name: str, runs: Runs) -> None:
    """Compare two estimators on one walk: neither has a say in where it goes."""
    seed = runs.seeds[0]
    layered, tempered = (
        {code: found for code, *found in in_fresh_process(score, name, seed, runs, by).topologies}
        for by in ("lais", "smc")
    )
    rows = []
    for code, (evidence, error, *_, probability) in layered.items():
        other, other_error, *_, other_probability = tempered.get(code, (np.nan, np.nan, 0.0))
        if max(probability, other_probability) >= _LEAST_SHARE:
            difference = (other - evidence) / np.hypot(error, other_error)
            estimates = f"{evidence:.2f} ± {error:.2f}", f"{other:.2f} ± {other_error:.2f}"
            rows.append([code, f"{probability:.4f}", *estimates, f"{difference:+.1f}"])
    print_table(
        f"Log evidence of topologies of {name}, {runs}",
        ["topology", "probability", "importance sampling", "tempered SMC", "errors apart"],
        rows,
    )


def _spread(values: Sequence[float]) -> str:
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.4f} ({deviation:.1g})"


if __name__ == "__main__":
    main()
