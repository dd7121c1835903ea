"""How near amortised posteriors of iris come to the exact one, and what a step takes.

Policies are compared there too, by what they see and by how they are trained.
"""

import statistics
import time
from collections.abc import Sequence
from itertools import pairwise

import jax
import numpy as np
from sklearn.datasets import load_breast_cancer, load_iris

from bdtppl import ExactTreeClassifier, GFlowNetTreeClassifier
from bdtppl.inference.gflownet.methods import Policies
from bdtppl.inference.gflownet.training import PolicySettings
from bdtppl.inference.hard.partitions import group_by_rows
from bdtppl.inference.run import run
from bdtppl.models.hard.tree import Tree
from benchmarks.gflownet.models import model_of, target_of
from benchmarks.gflownet.problems import divided
from benchmarks.text_table import print_table

__all__ = ["agreement", "policies", "step_times"]

_STEPS = {"grammar": 60, "trajectory": 2000}
_MOST_SUBPROBLEMS = 2_000_000
_BEST = 100
_DRAWS = 4096
_WARM = 20  # steps that may compile


def agreement(seeds: Sequence[int], depths: Sequence[int]) -> None:
    """Iris, with 9 cuts a feature on two levels of splits and 99 on more.

    The total variation is that between trajectories, which bounds that between trees.
    """
    rows = []
    for depth in depths:
        for seed in seeds:
            data = divided("iris", seed)
            grid = 9 if depth == 2 else 99
            model = model_of(data.X, np.unique(data.y), max_depth=depth, grid=grid)
            exact = ExactTreeClassifier(**model, bins=None, max_subproblems=_MOST_SUBPROBLEMS)
            exact.fit(data.X, data.y)
            best, key = exact.k_best(_BEST).trees, jax.random.key(seed)
            by_exact = exact.exact_.sample_trees(key, _DRAWS)
            for method, steps in _STEPS.items():
                start = time.perf_counter()
                own = GFlowNetTreeClassifier(
                    **model,
                    method=method,
                    steps=steps,
                    time_limit=None,
                    chains=4,
                    draws=_DRAWS // 4,
                )
                own.fit(data.X, data.y)
                seconds = time.perf_counter() - start
                drawn = own.posterior_.trees.reshape(-1)
                log_ratio = np.asarray(own.posterior_.log_weights) - exact.log_partition_
                rows.append(
                    [
                        f"{depth} levels, {grid} cuts, seed {seed}, {method}",
                        f"{seconds:.0f}",
                        f"{own.log_partition_ - exact.log_partition_:+.4f}",
                        f"{own.learned_log_partition_ - exact.log_partition_:+.4f}",
                        f"{np.maximum(0.0, 1 - np.exp(log_ratio)).mean():.4f}",
                        f"{own.map_log_joint_ - exact.map_log_joint_:+.4f}",
                        f"{_num_met(best, drawn, data.X)}",
                        f"{_num_met(best, by_exact, data.X)}",
                    ]
                )
    headings = ["", "seconds", "by importance", "learned", "total variation at most"]
    print_table(
        "Iris, less the exact log Z and the exact log joint of the most probable tree",
        [*headings, "best tree", f"of the best {_BEST}, drawn", "by the exact posterior"],
        rows,
    )


def _num_met(best: Tree, drawn: Tree, matrix: np.ndarray) -> int:
    """Count the trees, each with all cuts of its gaps, that are among draws."""
    _, index = group_by_rows(Tree.concatenate([best, drawn]), matrix)
    number = len(best.num_nodes)
    return len(set(index[:number]) & set(index[number:]))


def step_times() -> None:
    """Time steps of 90 trajectories that are drawn and 10 that are made again, warm."""
    rows = []
    settings = PolicySettings(num_forward=90, num_replayed=10, buffer_size=100)
    for name, load, depth, grid in (
        ("iris", load_iris, 2, 9),
        ("iris", load_iris, 4, 99),
        ("breast cancer", load_breast_cancer, 4, 99),
    ):
        X, y = load(return_X_y=True)
        target = target_of(X, y, max_depth=depth, grid=grid)
        ends = []
        run(
            Policies(target, settings, 3 * _WARM),
            jax.random.key(0),
            on_progress=lambda how, ends=ends: ends.append((how.made, time.perf_counter())),
        )
        took = [
            (end - start) / (step - before)
            for (before, start), (step, end) in pairwise(ends)
            if before >= _WARM
        ]
        median = 1e3 * statistics.median(took)
        rows.append([f"{name}, {depth} levels, {grid} cuts", f"{median:.0f}"])
    print_table("Milliseconds a step of 90 + 10 trajectories", ["", "median"], rows)


_POLICIES = {
    "each leaf alone": {"sees_all_leaves": False},
    "all leaves pooled": {},
    "pooled, backward policy learned": {"learns_backward": True},
    "pooled, draws at temperature 1.5": {"temperature": 1.5},
    "pooled, rewards from temperature 4": {"reward_temperature": 4.0},
    "pooled, rewards of 60 rows": {"batch_rows": 60},
}


def policies(seeds: Sequence[int], depth: int, steps: int, grid: int = 9) -> None:
    """Compare what policies see and how they are trained, on iris by the exact posterior."""
    rows: dict[str, list[list[float]]] = {name: [] for name in _POLICIES}
    for seed in seeds:
        data = divided("iris", seed)
        target = target_of(data.X, data.y, max_depth=depth, grid=grid)
        model = model_of(data.X, np.unique(data.y), max_depth=depth, grid=grid)
        exact = ExactTreeClassifier(**model, bins=None).fit(data.X, data.y)
        trees = exact.posterior_.trees.reshape(-1)
        for name, options in _POLICIES.items():
            method = Policies(target, PolicySettings(**options), steps)
            learner = method.result(run(method, jax.random.key(seed)))
            drawn = method.draw(jax.random.key(1), learner, 4, 250)
            above = method.upper_bound(jax.random.key(2), learner, trees)
            log_z = exact.log_partition_
            learned = method.log_partition(learner) - log_z
            share = drawn.effective_size / 1000
            rows[name].append([learned, drawn.lower_bound - log_z, above - log_z, share])
    print_table(
        f"Policies on iris, {depth} levels, {grid} cuts, {steps} steps, less the exact log Z",
        ["", "learned", "lower bound", "upper bound", "effective share"],
        [[name, *(f"{v:+.3f}" for v in np.mean(own, axis=0))] for name, own in rows.items()],
    )
