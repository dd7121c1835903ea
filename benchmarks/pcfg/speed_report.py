"""Print time and memory of the exact posterior, beside a plain NumPy recursion in the same run.

Each set is measured in a process of its own, so that the first call has everything to compile and
peak memory is the set's. The recursion runs on the same codes, in another process of its own.
"""

import os
import statistics
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.pcfg.numpy_recursion import Recursion, numpy_recursion
from benchmarks.pcfg.problems import Problem
from benchmarks.pcfg.speed import Measurement, ScoringTimes, measure, measure_depth_decay
from benchmarks.processes import in_fresh_process, peak_memory
from benchmarks.text_table import print_table

__all__ = ["Peer", "measure_peer", "report"]


class _Bounds(NamedTuple):
    """What the project asks for on two cores; None where it asks for nothing."""

    evidence_seconds: float | None = None
    peak_gigabytes: float | None = None
    draws_seconds: float | None = None


_BOUNDS = {
    "iris": _Bounds(0.7),
    "haberman": _Bounds(0.15, draws_seconds=0.6),
    "vertebral": _Bounds(2.5),
    "hidden XOR": _Bounds(6.0, peak_gigabytes=3.0),
}
_COMPILATION_SECONDS = 2.0
_REFIT_SHARE = 0.1
_AGREEMENT = 1e-9


class Peer(NamedTuple):
    """What the NumPy recursion found, its median time and its peak memory in GB."""

    found: Recursion
    seconds: float
    peak: float


def measure_peer(codes, y, *, repeats: int) -> Peer:
    """Run the NumPy recursion; for its memory to mean anything, in a fresh process."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        found = numpy_recursion(codes, y)
        seconds.append(time.perf_counter() - start)
    return Peer(found, statistics.median(seconds), peak_memory())


class _Row(NamedTuple):
    problem: Problem
    ours: Measurement
    by_depth: ScoringTimes
    peer: Peer

    @property
    def name(self) -> str:
        return self.problem.name

    @property
    def bounds(self) -> _Bounds:
        return _BOUNDS.get(self.name, _Bounds())


def report(problems: Sequence[Problem], *, repeats: int = 5, num_draws: int = 100_000) -> None:
    """Measure sets one after the other and print all figures, beside the project's bounds.

    Parameters
    ----------
    problems
        The sets.
    repeats
        Warm calls of which medians are taken (at most 3 for the NumPy recursion).
    num_draws
        Trees to draw.
    """
    load = os.getloadavg()[0]
    rows = []
    for problem in problems:
        ours = in_fresh_process(measure, problem, repeats=repeats, num_draws=num_draws)
        by_depth = in_fresh_process(measure_depth_decay, problem, repeats=repeats)
        codes = problem.design().codes
        peer = in_fresh_process(measure_peer, codes, problem.y, repeats=min(3, repeats))
        rows.append(_Row(problem, ours, by_depth, peer))
        print(f"measured {problem.name}", file=sys.stderr, flush=True)
    print(
        f"{os.cpu_count()} processors; load average {load:.1f} before and {os.getloadavg()[0]:.1f} "
        "after the measurements. Times in seconds, warm ones medians; memory in GB (10^9 bytes).\n"
    )
    _print_sizes(rows)
    _print_evidence(rows)
    _print_scoring(
        "Tracing, lowering and compiling under LeafPenalty(2), in first calls, gradient included",
        [(row.name, row.ours.times) for row in rows],
        is_bounded=True,
    )
    _print_scoring(
        "DepthDecay, at most 15 splits deep",
        [(row.name, row.by_depth) for row in rows],
        is_bounded=False,
    )
    _print_refits(rows)
    _print_draws(rows)


def _beside(value: float, bound: float | None) -> str:
    if bound is None:
        return ""
    return f"<= {bound:g}: {'met' if value <= bound else 'NOT MET'}"


def _print_sizes(rows: Sequence[_Row]) -> None:
    headings = [
        "set",
        "rows",
        "features",
        "bins",
        "subproblems",
        "productions",
        "partitions",
        "log evidence",
        "NumPy differs by",
    ]
    table = []
    for problem, ours, _, peer in rows:
        difference = ours.times.log_evidence - peer.found.log_evidence
        table.append(
            [
                problem.name,
                f"{len(problem.y):,}",
                f"{problem.matrix.shape[1]}",
                "all" if problem.bins is None else f"{problem.bins}",
                f"{ours.num_subproblems:,}",
                f"{ours.num_productions:,}",
                f"{ours.num_partitions:,}",
                f"{ours.times.log_evidence:.9f}",
                f"{difference:.0e} {_beside(abs(difference), _AGREEMENT)}",
            ]
        )
    print_table("Sizes, and the log evidence under LeafPenalty(2)", headings, table)


def _print_evidence(rows: Sequence[_Row]) -> None:
    headings = [
        "set",
        "grammar",
        "inside",
        "total",
        "bound",
        "NumPy",
        "NumPy/ours",
        "peak",
        "bound",
        "NumPy peak",
    ]
    table = []
    for row in rows:
        times, peer, bounds = row.ours.times, row.peer, row.bounds
        table.append(
            [
                row.name,
                f"{times.grammar:.3f}",
                f"{times.inside:.3f}",
                f"{times.total:.3f}",
                _beside(times.total, bounds.evidence_seconds),
                f"{peer.seconds:.3f}",
                f"{peer.seconds / times.total:.1f}",
                f"{times.peak:.2f}",
                _beside(times.peak, bounds.peak_gigabytes),
                f"{peer.peak:.2f}",
            ]
        )
    print_table(
        "From arrays to evidence under LeafPenalty(2), warm (total: grammar, layout of the chart "
        "and leaf scores, two inside passes); peak memory of a first fit",
        headings,
        table,
    )


def _print_scoring(
    title: str, rows: Sequence[tuple[str, ScoringTimes]], *, is_bounded: bool
) -> None:
    headings = [
        "set",
        "levels",
        "log evidence",
        "grammar",
        "inside",
        "total",
        "gradient",
        "first total",
        "first gradient",
        "first - warm",
        "compilations",
        "XLA adds",
        "bound",
        "second set",
        "peak",
    ]
    table = []
    for name, times in rows:
        bound = _COMPILATION_SECONDS if is_bounded else None
        twin = times.twin_compilations
        added = times.compilations.seconds + times.compilations.preparation
        table.append(
            [
                name,
                f"{times.levels}",
                f"{times.log_evidence:.6f}",
                f"{times.grammar:.3f}",
                f"{times.inside:.3f}",
                f"{times.total:.3f}",
                f"{times.gradient:.3f}",
                f"{times.first_total:.2f}",
                f"{times.first_gradient:.2f}",
                f"{times.first_beyond_warm:.2f}",
                f"{times.compilations.total}",
                f"{added:.2f}",
                _beside(added, bound),
                "no such set" if twin is None else f"{twin}",
                f"{times.peak:.2f}",
            ]
        )
    print_table(
        f"{title} (second_set: compilations for another set of the same padded size)",
        headings,
        table,
    )


def _print_refits(rows: Sequence[_Row]) -> None:
    names = list(rows[0].ours.refits) if rows else []
    table = []
    for row in rows:
        first, refits = row.ours.times.total, row.ours.refits
        cells = [f"{refits[name]:.3f} ({refits[name] / first:.0%})" for name in names]
        share = max(refits.values()) / first
        table.append([row.name, f"{first:.3f}", *cells, _beside(share, _REFIT_SHARE)])
    print_table(
        "A fit that finds its grammar, and its share of a warm first fit",
        ["set", "first fit", *names, "bound"],
        table,
    )


def _print_draws(rows: Sequence[_Row]) -> None:
    table = [
        [
            row.name,
            f"{row.ours.num_draws:,}",
            f"{row.ours.first_draws:.2f}",
            f"{row.ours.draws:.2f}",
            f"{row.ours.num_draws / row.ours.draws:,.0f}",
            _beside(row.ours.draws, row.bounds.draws_seconds),
        ]
        for row in rows
    ]
    print_table(
        "Independent trees from the posterior under LeafPenalty(2)",
        ["set", "trees", "first call", "warm", "trees a second", "bound"],
        table,
    )
