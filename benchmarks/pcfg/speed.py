"""Measure time and memory of the exact posterior on one set.

*From arrays to evidence* is what a fit does: code the rows, compile the grammar (no cached one),
lay out the chart, score it for the posterior and for the prior. Warm means that XLA has compiled
already; warm times are medians.
"""

import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from bdtppl.inference.pcfg.chart import Chart
from bdtppl.inference.pcfg.compiler import compile_grammar
from bdtppl.inference.pcfg.exact import ExactPosterior
from bdtppl.inference.pcfg.grammar import Grammar
from bdtppl.inference.pcfg.passes import inside, log_partition
from bdtppl.models.arrays.precision import in_float64
from bdtppl.models.constraints import Constraints
from bdtppl.models.leaves import DirichletCategorical
from bdtppl.models.priors import DepthDecay, LeafPenalty, TreePrior
from benchmarks.compilations import Compilations
from benchmarks.pcfg.problems import Problem
from benchmarks.processes import peak_memory

__all__ = ["Measurement", "ScoringTimes", "measure", "measure_depth_decay"]

_MAX_SUBPROBLEMS = 2_000_000
_ENOUGH_SECONDS = 10.0  # of repetitions of one call
_DEPTH_LIMIT = 15  # depths 0 to 15: an axis of 16 levels


@dataclass
class ScoringTimes:
    """Times under one prior, in seconds.

    Attributes
    ----------
    log_evidence
        Log evidence.
    levels
        Depths in the chart, 1 where the prior does not depend on depth.
    total
        From arrays to evidence, warm.
    grammar
        The part of it that codes the rows and compiles the grammar.
    inside
        One inside pass, warm.
    gradient
        Value and gradient by the prior's parameters, warm.
    first_total, first_gradient
        First calls in a fresh process.
    compilations
        XLA compilations of these first calls.
    twin_compilations
        Those of the same calls for a second data set of the same padded size; None if no such set
        was found.
    peak
        Peak memory of the process after the first call, in GB.
    """

    log_evidence: float
    levels: int
    total: float
    grammar: float
    inside: float
    gradient: float
    first_total: float
    first_gradient: float
    compilations: Compilations
    twin_compilations: int | None
    peak: float

    @property
    def first_beyond_warm(self) -> float:
        """What first calls take beyond warm ones: compilation, and memory that is touched first."""
        return self.first_total - self.total + self.first_gradient - self.gradient


@dataclass
class Measurement:
    """What is measured of one set under `LeafPenalty`.

    Attributes
    ----------
    num_subproblems, num_productions, num_partitions
        Sizes of the grammar.
    times
        Times of scoring.
    num_draws, first_draws, draws
        Trees drawn, and seconds of the first call and of a warm one.
    refits
        Seconds of a warm fit that finds its grammar, by what is new in it.
    """

    num_subproblems: int
    num_productions: int
    num_partitions: int
    times: ScoringTimes
    num_draws: int
    first_draws: float
    draws: float
    refits: dict[str, float]


def _seconds(function: Callable) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def _median_seconds(function: Callable, repeats: int) -> float:
    seconds = []
    while len(seconds) < repeats and sum(seconds) < _ENOUGH_SECONDS:
        seconds.append(_seconds(function))
    return statistics.median(seconds)


class _Fit:
    """From arrays to evidence, under one prior."""

    def __init__(self, problem: Problem, prior: TreePrior, max_depth: int | None = None):
        self.problem, self.prior = problem, prior
        self.constraints = Constraints(max_depth=max_depth)

    def grammar(self, *, keep: bool = False) -> Grammar:
        # The cache of grammars stays empty, so nothing is found there, until one is kept.
        return compile_grammar(
            self.problem.design(),
            constraints=self.constraints,
            max_subproblems=_MAX_SUBPROBLEMS,
            keep=keep,
        )

    def __call__(self) -> ExactPosterior:
        leaf = DirichletCategorical.symmetric(self.problem.num_classes)
        exact = ExactPosterior(self.grammar(), self.prior, leaf, self.problem.y)
        _ = exact.log_evidence
        return exact


@in_float64
def _inside(exact: ExactPosterior) -> None:
    jax.block_until_ready(inside(exact.chart, *exact._terms, "sum"))


@in_float64
def _value_and_gradient(exact: ExactPosterior) -> None:
    jax.block_until_ready(jax.value_and_grad(log_partition, 1)(exact.chart, *exact._terms))


def _shapes(chart: Chart) -> list[tuple[int, ...]]:
    return [array.shape for array in jax.tree.leaves(chart)]


def _twin_compilations(fit: _Fit, chart: Chart) -> int | None:
    """Compilations for the same set without one of its rows, if that has the same padded size."""
    problem = fit.problem
    for row in range(min(3, len(problem.y))):
        kept = np.arange(len(problem.y)) != row
        twin = problem._replace(matrix=problem.matrix[kept], y=problem.y[kept])
        if twin.num_classes != problem.num_classes:
            continue
        with Compilations() as count:
            exact = _Fit(twin, fit.prior, fit.constraints.max_depth)()
            _value_and_gradient(exact)
        if _shapes(exact.chart) == _shapes(chart):
            return count.total
    return None


def _score(fit: _Fit, repeats: int) -> tuple[ExactPosterior, ScoringTimes]:
    jax.block_until_ready(jnp.zeros(1))  # starts XLA, which is no compilation
    kept = []
    with Compilations() as compilations:
        first_total = _seconds(lambda: kept.append(fit()))
        peak = peak_memory()
        exact = kept.pop()
        first_gradient = _seconds(lambda: _value_and_gradient(exact))
    inside_seconds = _median_seconds(lambda: _inside(exact), repeats)
    gradient = _median_seconds(lambda: _value_and_gradient(exact), repeats)
    return exact, ScoringTimes(
        log_evidence=exact.log_evidence,
        levels=len(exact.chart.levels),
        total=_median_seconds(fit, repeats),
        grammar=_median_seconds(fit.grammar, repeats),
        inside=inside_seconds,
        gradient=gradient,
        first_total=first_total,
        first_gradient=first_gradient,
        compilations=compilations,
        twin_compilations=_twin_compilations(fit, exact.chart),
        peak=peak,
    )


def _refit_seconds(fit: _Fit, repeats: int) -> dict[str, float]:
    """Seconds of fits on a grammar that is in the cache, by what is new."""
    problem = fit.problem
    other_y = np.random.default_rng(0).permutation(problem.y)
    leaf = DirichletCategorical.symmetric(problem.num_classes)
    other_leaf = DirichletCategorical.symmetric(problem.num_classes, 0.5)
    weights = itertools.count(3)  # of the prior: its normaliser is kept, so each is new

    def refit(y=problem.y, leaf=leaf, prior=fit.prior) -> float:
        return ExactPosterior(fit.grammar(keep=True), prior, leaf, y).log_evidence

    refit()
    refits = {
        "new y": lambda: refit(y=other_y),
        "new leaf": lambda: refit(leaf=other_leaf),
        "new weight": lambda: refit(prior=LeafPenalty(float(next(weights)))),
    }
    # They are short, so more of them.
    return {name: _median_seconds(again, 3 * repeats) for name, again in refits.items()}


def measure(problem: Problem, *, repeats: int = 5, num_draws: int = 100_000) -> Measurement:
    """Measure one set; for first calls and memory to mean anything, in a fresh process.

    Parameters
    ----------
    problem
        The set.
    repeats
        Warm calls of which medians are taken.
    num_draws
        Trees to draw.
    """
    fit = _Fit(problem, LeafPenalty(2.0))
    exact, times = _score(fit, repeats)
    grammar = exact.grammar

    def draw() -> None:
        exact.sample_trees(jax.random.key(0), num_draws)

    return Measurement(
        num_subproblems=grammar.num_subproblems,
        num_productions=grammar.num_productions,
        num_partitions=int(grammar.is_first_of_partition.sum()),
        times=times,
        num_draws=num_draws,
        first_draws=_seconds(draw),
        draws=_median_seconds(draw, repeats),
        refits=_refit_seconds(fit, repeats),
    )


def measure_depth_decay(problem: Problem, *, repeats: int = 5) -> ScoringTimes:
    """Measure one set under `DepthDecay` with 16 levels, also in a fresh process."""
    return _score(_Fit(problem, DepthDecay(), _DEPTH_LIMIT), repeats)[1]
