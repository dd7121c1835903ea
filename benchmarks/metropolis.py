"""Benchmark of Metropolis-Hastings on hard trees: ``python -m benchmarks.metropolis``.

``speed``: steps a second of the moves of Chipman et al. 1998, of these with rotations (the
default), and apart from them of proposals that regrow a tree from a uniform point, summed over
chains that run in two threads, on kyphosis and on the complete rows of the Wisconsin breast cancer
set, with at least 5 rows a leaf; what the first call takes beyond a warm one; acceptance and
effective sample size of the log joint.
``temper``: whether chains of 200,000 steps agree, with parallel tempering and without.
The environment variable ``BDTPPL_DATA`` names the folder of data sets.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import arviz as az
import jax
import jax.numpy as jnp
import numpy as np

from bdtppl.inference.metropolis.kernel import Kernel
from bdtppl.inference.metropolis.moves import CHIPMAN, ROTATING, LocalMoves
from bdtppl.inference.metropolis.regrow import Regrow
from bdtppl.inference.metropolis.state import initial
from bdtppl.inference.metropolis.tempering import climb
from bdtppl.models.arrays.precision import in_float64
from bdtppl.models.constraints import Constraints
from bdtppl.models.data.design import Design
from bdtppl.models.hard.packed_model import PackedModel
from bdtppl.models.hard.tree_model import TreeModel
from bdtppl.models.leaves import DirichletCategorical
from bdtppl.models.priors import DepthDecay
from benchmarks.markov_chains import complete_rows, fit_chains
from benchmarks.processes import add_jobs, in_jobs
from benchmarks.text_table import print_table

__all__ = ["Speed", "main", "measure"]

_LEAST = {"kyphosis": 250_000, "BCW": 100_000}  # steps a second: the project's bounds
_MOST_R_HAT = 1.05  # of the log joint of tempered chains: the project's bound
_LADDERS = (1, 12)  # powers of the likelihood
_THREADS = 2
_THIN = 100
_CAPACITY = 63


class Speed(NamedTuple):
    """Seconds, steps a second, acceptance, and effective draws of the log joint a second."""

    compiling: float
    steps: float
    acceptance: float
    effective: float


@in_float64
def measure(
    matrix: np.ndarray, y: np.ndarray, kernel: Kernel, chains: int, draws: int, repeats: int
) -> Speed:
    """Time warm walks of ``draws`` times 100 steps in each of the chains."""
    leaf = DirichletCategorical.symmetric(int(y.max()) + 1)
    model = PackedModel.of(
        TreeModel(
            Design.from_matrix(matrix), y, DepthDecay(0.95, 1.0), leaf, Constraints(min_leaf=5)
        )
    )
    own = chains // _THREADS
    keys = jax.random.split(jax.random.key(0), chains).reshape(_THREADS, own)
    states = [initial(model, own, _CAPACITY) for _ in range(_THREADS)]
    first = 0

    @in_float64
    def advance(thread: int):
        state, kept, tally, _ = climb(
            keys[thread],
            jnp.int32(first),
            states[thread],
            model,
            kernel,
            jnp.ones(1),
            jnp.int32(draws),
            jnp.int32(_THIN),
            room=draws,
        )
        states[thread] = jax.block_until_ready(state)
        return np.asarray(kept.log_prior + kept.log_likelihood[..., 0]), tally

    def run() -> tuple[float, list]:
        nonlocal first
        start = time.perf_counter()
        with ThreadPoolExecutor(_THREADS) as workers:
            walked = list(workers.map(advance, range(_THREADS)))
        first += draws * _THIN
        return time.perf_counter() - start, walked

    compiling, _ = run()
    run()  # the chains leave the tree of one leaf
    times, walks = zip(*(run() for _ in range(repeats)), strict=True)
    seconds = statistics.median(times)
    scores = np.concatenate([np.concatenate([s for s, _ in w], axis=1) for w in walks]).T
    proposed, accepted = (
        sum(int(getattr(tally, name).sum()) for walked in walks for _, tally in walked)
        for name in ("proposed", "accepted")
    )
    return Speed(
        compiling - seconds,
        chains * draws * _THIN / seconds,
        accepted / proposed,
        float(np.asarray(az.ess(scores))) / sum(times),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmarks that the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.metropolis", description=__doc__)
    parser.add_argument("part", nargs="?", choices=("speed", "temper"), help="default: both")
    parser.add_argument("--steps", type=int, default=200_000, help="of each tempered chain")
    parser.add_argument("--seeds", type=int, default=1, help="how many runs are tempered or not")
    parser.add_argument("--sets", nargs="+", choices=tuple(_LEAST), default=tuple(_LEAST))
    parser.add_argument("--chains", type=int, default=128)
    parser.add_argument("--draws", type=int, default=20, help="draws a walk, 100 steps each")
    parser.add_argument("--repeats", type=int, default=5, help="warm walks behind each median")
    add_jobs(parser)
    options = parser.parse_args(arguments)
    tables = {}
    for name in options.sets:
        try:
            tables[name] = complete_rows(name)
        except FileNotFoundError as missing:
            print(f"{name} is left out: {missing}\n")
    if not tables:
        return
    if options.part != "temper":
        _report_speed(tables, options.chains, options.draws, options.repeats)
    if options.part != "speed":
        _report_agreement(tables, options.steps, options.seeds, options.jobs)


def _report_speed(tables: dict, chains: int, draws: int, repeats: int) -> None:
    for proposals, kernel, least in (
        ("Moves of Chipman et al.", LocalMoves.of(CHIPMAN), _LEAST),
        ("Moves of Chipman et al. and rotations", LocalMoves.of(ROTATING), _LEAST),
        ("Regrowing from a uniform point", Regrow(), {}),
    ):
        rows = [
            _row(name, matrix, measure(matrix, y, kernel, chains, draws, repeats), least.get(name))
            for name, (matrix, y) in tables.items()
        ]
        print_table(f"{proposals}, {chains} chains in {_THREADS} threads", _HEADINGS, rows)


def _report_agreement(tables: dict, steps: int, seeds: int, jobs: int) -> None:
    """Half of the steps are warm-up."""
    cases = list(itertools.product(tables, range(seeds), _LADDERS))
    tasks = [(*tables[name], steps, seed, temperatures) for name, seed, temperatures in cases]
    found = in_jobs(_agreement, tasks, jobs)
    rows = [[name, f"{seed}", *row] for (name, seed, _), row in zip(cases, found, strict=True)]
    print_table(
        f"Four chains of {steps:,} steps of the default moves from the tree of one leaf, "
        f"with and without tempering: rank R-hat of the log joint in the second half (bound for "
        f"tempered chains: below {_MOST_R_HAT})",
        [
            "set",
            "seed",
            "powers",
            "R-hat",
            "ESS",
            "mean log joint of each chain",
            "best",
            "log evidence",
            "exchanged",
            "s",
        ],
        rows,
    )


def _agreement(matrix, y, steps: int, seed: int, temperatures) -> list[str]:
    start = time.perf_counter()
    model = fit_chains(
        matrix,
        y,
        prior=DepthDecay(0.95, 1.0),
        min_leaf=5,
        warmup=steps // 2,
        draws=steps // 2 // _THIN,
        thin=_THIN,
        temperatures=temperatures,
        capacity=_CAPACITY,
        random_state=seed,
    )
    log_joint = model.posterior_.sample_stats["log_joint"]
    found = model.diagnostics_["log_joint"]
    evidence, exchanged = "none", "none"
    if model.powers_[0] == 0:
        evidence = f"{model.log_evidence_:.2f} +- {model.log_evidence_se_:.2f}"
        exchanged = f"{model.swap_rate_.min():.2f} to {model.swap_rate_.max():.2f}"
    return [
        f"{len(model.powers_)}",
        f"{found['r_hat']:.3f}",
        f"{found['ess']:,.0f}",
        ", ".join(f"{mean:.1f}" for mean in log_joint.mean(axis=1)),
        f"{log_joint.max():.1f}",
        evidence,
        exchanged,
        f"{time.perf_counter() - start:.0f}",
    ]


_HEADINGS = [
    "set",
    "rows",
    "compiling, s",
    "steps a second",
    "bound",
    "accepted",
    "ESS a second",
]


def _row(name: str, matrix: np.ndarray, speed: Speed, least: int | None) -> list[str]:
    bound = "none"
    if least is not None:
        bound = f">= {least:,}: {'met' if speed.steps >= least else 'NOT MET'}"
    return [
        name,
        f"{len(matrix)}",
        f"{speed.compiling:.1f}",
        f"{speed.steps:,.0f}",
        bound,
        f"{speed.acceptance:.2f}",
        f"{speed.effective:,.0f}",
    ]


if __name__ == "__main__":
    main()
