"""How far approximate inferences are from the exact posterior as their budget grows."""

import time
from typing import Any

import numpy as np
from sklearn.datasets import load_iris

import bdtppl
from bdtppl.datasets import load
from bdtppl.inference.hard.posterior import RankedTrees
from bdtppl.models.leaves import DirichletCategorical
from bdtppl.models.priors import DepthDecay
from benchmarks.reproduce.experiments import Experiment, Table, Task, cells_of

__all__ = ["BUDGETS", "ERROR_AGAINST_EXACT", "QUANTITIES", "TABLES"]

TABLES = ("iris", "caesarian", "haberman")
QUANTITIES = ("total variation", "error of the log evidence", "CPU s")
_BINS = {"iris": 3, "caesarian": None, "haberman": 4}
_SEEDS = 2

# Budgets by inference: draws, particles, steps of training, seconds of a search, or roots.
BUDGETS: dict[str, tuple[int, ...]] = {
    "independent draws": (100, 1_000, 10_000, 100_000),
    "Metropolis": (100, 1_000, 10_000),
    "particle": (30, 300, 3_000, 30_000),
    "GFlowNet": (10, 30, 100, 300),
    "search": (1, 10, 100, 1_000),
    "greedy": (1, 10, 100),
}


def _problem(table: str) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    if table == "iris":
        X, labels = load_iris(return_X_y=True)
    else:
        X, labels, *_ = load(table)
    y = np.unique(labels, return_inverse=True)[1]
    model = {
        "prior": DepthDecay(0.95, 1.5),
        "leaf": DirichletCategorical.symmetric(int(y.max()) + 1),
        "bins": _BINS[table],
        "max_depth": 3,
    }
    return np.asarray(X, float), y, model


def _fitted(inference: str, budget: int, seed: int, model: dict[str, Any]) -> Any:
    """Name an inference with its budget, not yet fitted."""
    shared = model | {"random_state": seed}
    match inference:
        case "independent draws":
            return bdtppl.ExactTreeClassifier(method="chart", chains=1, draws=budget, **shared)
        case "Metropolis":
            draws = max(budget // 4, 25)
            return bdtppl.MetropolisTreeClassifier(
                chains=4, warmup=draws, draws=draws, extensions=0, **shared
            )
        case "particle":
            return bdtppl.ParticleTreeClassifier(
                particles=budget // 2, runs=2, proposal="optimal", **shared
            )
        case "GFlowNet":
            return bdtppl.GFlowNetTreeClassifier(grid=None, steps=budget, **shared)
        case "search":
            return bdtppl.ExactTreeClassifier(
                method="search", max_seconds=1e-3 * budget, draws=2_500, **shared
            )
    return bdtppl.GreedyModalTreeClassifier(num_roots=budget, **model)


def _measured(table: str, inference: str, budget: int, seed: int) -> dict[str, float]:
    """Compare the second of two fits, so that nothing is compiled in its seconds."""
    X, y, model = _problem(table)
    exact = bdtppl.ExactTreeClassifier(method="chart", random_state=0, **model).fit(X, y)
    for own in (seed + 100, seed):
        found = _fitted(inference, budget, own, model)
        start = time.process_time()
        found.fit(X, y)
        posterior = found.posterior_
        seconds = time.process_time() - start
    ranked = posterior.ranked.by_rows(posterior.matrix)
    row = f"{inference}, {budget:,}"
    values = {"total variation": _total_variation(ranked, exact.log_partition_), "CPU s": seconds}
    if inference not in ("independent draws", "greedy"):
        error = abs(float(found.log_evidence_) - exact.log_evidence_)
        values["error of the log evidence"] = error
    return cells_of(table, row, values)


def _total_variation(ranked: RankedTrees, log_partition: float) -> float:
    """Total variation between shares of trees and their exact probabilities.

    It is 1 less the sum of the smaller ones of both, to which trees of no share add nothing.
    """
    exact = np.exp(ranked.log_joint - log_partition)
    return float(1.0 - np.minimum(exact, ranked.probability).sum())


def _tasks() -> list[Task]:
    for table in TABLES:
        _problem(table)  # raises where it is missing
    return [
        Task(
            f"{table}, {inference}, {budget}, seed {seed}",
            _measured,
            (table, inference, budget, seed),
            is_quick=table == "iris" and seed == 0 and inference not in ("GFlowNet", "Metropolis"),
        )
        for seed in range(_SEEDS)
        for table in TABLES
        for inference, budgets in BUDGETS.items()
        for budget in budgets
    ]


_ROWS = [f"{inference}, {budget:,}" for inference, own in BUDGETS.items() for budget in own]

ERROR_AGAINST_EXACT = Experiment(
    name="error_against_exact",
    paper="Error against the exact posterior",
    protocol=(
        "Trees of at most three levels under DepthDecay(0.95, 1.5), with uniform class "
        "probabilities in leaves; iris with 3 buckets a feature, caesarian with all cuts, haberman "
        "with 4 buckets. Budgets are independent draws of the exact posterior, retained steps of "
        "four Metropolis chains (after equally many warm-up steps), particles of two runs, steps "
        "of training, milliseconds of a search, and roots of greedy trees. Two seeds. Trees that "
        "split the rows alike count as one in total variation. The total variation of independent "
        "draws is the error of a finite number of draws. CPU seconds are those of the second of "
        "two fits; the first may compile."
    ),
    tasks=_tasks,
    tables=[Table(name, name, _ROWS, QUANTITIES) for name in TABLES],
    seconds=10.0,
    tolerance=0.1,
)
