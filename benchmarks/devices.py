"""Benchmark of JAX's devices: ``python -m benchmarks.devices``; some minutes.

It fits the inferences that compute in JAX twice, on CPUs and on the device that JAX chooses by
itself, such as a GPU. The second fit has all compiled; the first one less the second is what was
compiled. Each part runs in a process of its own, which ends after some seconds. Where JAX has no
other device than CPUs, only these are shown. Data are simulated.
"""

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.text_table import print_table

__all__ = ["main"]

_LONGEST = 75  # seconds of a part on a device


def main(arguments: Sequence[str] | None = None) -> None:
    """Time all parts, or one of them in this process."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.devices", description=__doc__)
    parser.add_argument("--part", choices=_PARTS, help="time this one here, and print JSON")
    part = parser.parse_args(arguments).part
    if part is not None:
        print(json.dumps(_timed(part)))
        return
    rows = []
    for name in _PARTS:
        cpu = _in_process(name, os.environ | {"JAX_PLATFORMS": "cpu"})
        rows.append([name, *_shown(cpu)])
        chosen = _in_process(name, dict(os.environ))
        if chosen["device"] != "cpu":
            rows.append([name, *_shown(chosen)])
        print(*rows[-1], flush=True)
    headings = ["inference", "device", "compiling", "seconds"]
    print_table(
        "Fits by device: seconds of compilation, and of a fit once compiled", headings, rows
    )


def _in_process(part: str, environment: dict[str, str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.devices", "--part", part]
    try:
        done = subprocess.run(
            command, env=environment, timeout=_LONGEST, capture_output=True, text=True, check=True
        )
    except subprocess.TimeoutExpired:
        return {"device": "not finished"}
    except subprocess.CalledProcessError as error:
        return {"device": f"failed: {error.stderr.strip().splitlines()[-1][:60]}"}
    return json.loads(done.stdout.splitlines()[-1])


def _shown(found: dict[str, Any]) -> list[str]:
    if "second" not in found:
        return [found["device"], "", f"over {_LONGEST}"]
    return [found["device"], f"{found['first'] - found['second']:.1f}", f"{found['second']:.2f}"]


def _timed(part: str) -> dict[str, Any]:
    """Fit twice."""
    import jax

    warnings.simplefilter("ignore")
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        _PARTS[part]()
        seconds.append(time.perf_counter() - start)
    device = jax.devices()[0]
    name = "cpu" if device.platform == "cpu" else device.device_kind
    return {"device": name, "first": seconds[0], "second": seconds[1]}


def _data(num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(num_rows, 4))
    return X, 2.0 * (X[:, 0] > 0.5) + X[:, 1] * (X[:, 2] > 0.3) + rng.normal(0, 0.3, num_rows)


def _soft() -> None:
    """Draw soft trees by NUTS, on an accelerator all chains of a topology at once."""
    from bdtppl import DCCTreeRegressor

    settings = {"iterations": 2, "initial_trees": 10, "activation_count": 1, "max_splits": 2}
    lengths = {"chains": 64, "warmup": 60, "draws": 20}
    DCCTreeRegressor(**settings, **lengths, evidence="lais", random_state=0).fit(*_data(2_000))


def _chains() -> None:
    """Walk over hard trees by Metropolis chains."""
    from bdtppl import MetropolisTreeRegressor

    lengths = {"chains": 64, "warmup": 100, "draws": 20, "thin": 5}
    settings = {"temperatures": 1, "extensions": 0, "random_state": 0}
    MetropolisTreeRegressor(**lengths, **settings).fit(*_data(2_000))


def _particles() -> None:
    """Grow hard trees by particle filters."""
    from bdtppl import ParticleTreeRegressor

    ParticleTreeRegressor(particles=200, runs=4, random_state=0).fit(*_data(1_000))


def _policy() -> None:
    """Train a policy, and draw from it."""
    from bdtppl import GFlowNetTreeClassifier

    X, y = _data(500)
    settings = {"bins": 5, "grid": None, "max_depth": 2, "steps": 200, "random_state": 0}
    GFlowNetTreeClassifier(**settings, method="trajectory").fit(X, y > y.mean())


_PARTS: dict[str, Callable[[], None]] = {
    "soft trees, NUTS": _soft,
    "Metropolis chains": _chains,
    "particle filters": _particles,
    "trained policy": _policy,
}

if __name__ == "__main__":
    main()
