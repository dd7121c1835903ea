"""Benchmark of Metropolis-Hastings on hard trees: ``python -m benchmarks.metropolis``.

Steps a second of the moves of Chipman et al. 1998, and apart from them of proposals that regrow a
tree from a uniform point, summed over chains that run in two threads, on kyphosis and on the
complete rows of the Wisconsin breast cancer set, with at least 5 rows a leaf; what the first call
takes beyond a warm one; acceptance and effective sample size of the log joint.
The environment variable ``BDTPPL_DATA`` names the folder of data sets.
"""

import argparse
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import arviz as az
import jax
import jax.numpy as jnp
import numpy as np

from bdtppl.datasets import load
from bdtppl.inference.hard_model import pose
from bdtppl.inference.metropolis.kernel import Kernel, walk
from bdtppl.inference.metropolis.moves import CHIPMAN, LocalMoves
from bdtppl.inference.metropolis.regrow import Regrow
from bdtppl.inference.metropolis.state import initial
from bdtppl.inference.precision import in_float64
from bdtppl.models.constraints import Constraints
from bdtppl.models.data import Design
from bdtppl.models.leaves import DirichletCategorical
from bdtppl.models.priors import DepthDecay
from benchmarks.text_table import print_table

__all__ = ["Speed", "main", "measure"]

_FILES = {"kyphosis": "kyphosis", "BCW": "breast_cancer_original"}
_LEAST = {"kyphosis": 250_000, "BCW": 100_000}  # steps a second: the project's bounds
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
    model = pose(
        Design.from_matrix(matrix), y, DepthDecay(0.95, 1.0), leaf, Constraints(min_leaf=5)
    )
    own = chains // _THREADS
    keys = jax.random.split(jax.random.key(0), chains).reshape(_THREADS, own)
    states = [initial(model, own, _CAPACITY) for _ in range(_THREADS)]
    power, first = jnp.ones(own), 0

    @in_float64
    def advance(thread: int):
        state, kept, tally = walk(
            keys[thread],
            jnp.int32(first),
            states[thread],
            model,
            kernel,
            power,
            num_draws=draws,
            thin=_THIN,
        )
        states[thread] = jax.block_until_ready(state)
        return np.asarray(kept.log_prior + kept.log_likelihood), tally

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
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.metropolis", description=__doc__)
    parser.add_argument("--sets", nargs="+", choices=tuple(_FILES), default=tuple(_FILES))
    parser.add_argument("--chains", type=int, default=128)
    parser.add_argument("--draws", type=int, default=20, help="draws a walk, 100 steps each")
    parser.add_argument("--repeats", type=int, default=5, help="warm walks behind each median")
    options = parser.parse_args(arguments)
    tables = {}
    for name in options.sets:
        try:
            matrix, labels, _, _ = load(_FILES[name])
        except FileNotFoundError as missing:
            print(f"{name} is left out: {missing}\n")
            continue
        matrix = np.asarray(matrix, np.float64)
        complete = ~np.isnan(matrix).any(axis=1)
        y = np.unique(labels, return_inverse=True)[1][complete]
        tables[name] = matrix[complete], y
    counts = options.chains, options.draws, options.repeats
    for proposals, kernel, least in (
        ("Moves of Chipman et al.", LocalMoves.of(CHIPMAN), _LEAST),
        ("Regrowing from a uniform point", Regrow(), {}),
    ):
        rows = [
            _row(name, matrix, measure(matrix, y, kernel, *counts), least.get(name))
            for name, (matrix, y) in tables.items()
        ]
        title = f"{proposals}, {options.chains} chains in {_THREADS} threads"
        print_table(title, _HEADINGS, rows)


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
