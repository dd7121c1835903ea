"""What training costs, and what it brings: Table 7 and Figure 4 of the DT-GFN paper."""

import time
from collections.abc import Sequence

import jax
import numpy as np

from bdtppl.inference.gflownet.ensembles import reweighted
from bdtppl.inference.gflownet.methods import Policies
from bdtppl.inference.gflownet.training import PolicySettings
from bdtppl.inference.run import run
from bdtppl.presets import dt_gfn
from benchmarks.gflownet.models import target_of
from benchmarks.gflownet.problems import Division

__all__ = ["accuracy_by_budget", "step_and_draw"]

_BLOCK = 20  # steps between two reports of training


def step_and_draw(data: Division, depth: int, number: int, repeats: int = 5) -> tuple[float, float]:
    """Median seconds of a training step with a number of trajectories, and of drawing as many."""
    num_steps = 2 * _BLOCK * repeats
    settings = PolicySettings(num_forward=number, num_replayed=0)
    target = target_of(data.X, data.y, max_depth=depth, grid=99)
    method, ends = Policies(target, settings, num_steps), [time.perf_counter()]
    key = jax.random.key(0)
    state = run(method, key, on_progress=lambda _: ends.append(time.perf_counter()))
    draws = []
    for _ in range(repeats):
        start = time.perf_counter()
        method.draw(jax.random.key(1), state.learner, 1, number)
        draws.append(time.perf_counter() - start)
    return float(np.median(np.diff(ends)[1:]) / _BLOCK), float(np.median(draws[1:]))


def accuracy_by_budget(
    data: Division, seed: int, sizes: Sequence[int], budgets: Sequence[float]
) -> dict[tuple[float, int], float]:
    """Test accuracy of ensembles, weighed by Algorithm 1, by seconds of training and by size."""
    preset = dt_gfn(data.X.shape[1], table=6)
    target = target_of(data.X, data.y, max_depth=preset["max_depth"], grid=preset["grid"])
    method, found = Policies(target, preset["settings"], 2000), {}
    key = jax.random.key(seed)
    for budget in budgets:
        state = run(method, key, time_limit=budget) if budget else method.start(key)
        for size in sizes:
            drawn = method.draw(key, state.learner, 1, size)
            posterior = reweighted(drawn.posterior, "algorithm-1")
            predicted = posterior.predictive(data.X_test).mean().argmax(axis=1)
            found[budget, size] = float((predicted == data.y_test).mean())
    return found
