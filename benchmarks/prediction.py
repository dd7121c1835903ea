"""Predictions of many rows: ``python -m benchmarks.prediction``.

Each estimator is fitted to 300 simulated rows of five columns, with the draws that it has by
default, and predicts a table in a process of its own: `predict` of a regressor, `predict_proba` of
a classifier. Rows a second after a first call, and the peak memory of the process, which holds the
table and Python itself as well.
"""

import argparse
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import bdtppl
from bdtppl.models.soft.tree import SoftClassification
from benchmarks.processes import in_fresh_process, peak_memory
from benchmarks.text_table import print_table

__all__ = ["MODELS", "Predicted", "fit", "main", "measure"]

_COLUMNS = 5
_FIRST = 1000  # rows of the call that compiles
_LONGEST = 60.0  # seconds that one call for small tables is repeated for, at most

# Short fits: predictions cost what draws of the default number cost.
_SHORT: dict[str, dict[str, Any]] = {
    "ExactTree": {},
    "ExactTree, rows in parts": {"bins": 10, "max_depth": 3},
    "GreedyModalTree": {},
    "MetropolisTree": {"temperatures": 2, "warmup": 500, "extensions": 0},
    "ParticleTree": {},
    "GFlowNetTree": {"steps": 50, "time_limit": None},
    "DCCTree": {"iterations": 3, "initial_trees": 20, "warmup": 100, "max_splits": 3},
    "RJHMCTree": {"burn_in": 20, "warmup": 100, "max_splits": 3, "time_limit": None},
    "BART": {"warmup": 50, "extensions": 0},
}
MODELS = [f"{kind}: {task}" for kind in _SHORT for task in ("Classifier", "Regressor")]


class Predicted(NamedTuple):
    """Rows a second, peak memory in GB, and milliseconds of a table of 10 rows."""

    rows_a_second: float
    peak: float
    small: float


def fit(name: str) -> Any:
    """Fit a model to simulated rows."""
    kind, task = name.split(": ")
    settings = _SHORT[kind]
    if kind in ("DCCTree", "RJHMCTree") and task == "Classifier":
        model = SoftClassification(concentration=(1.0, 1.0), likelihood="mixture")
        settings = settings | {"model": model}
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(300, _COLUMNS))
    y = np.sin(6 * X[:, 0]) + X[:, 1] + 0.1 * rng.normal(size=300)
    if task == "Classifier":
        y = (y > 0.7).astype(int)
    model = getattr(bdtppl, kind.split(",")[0] + task)(**settings, random_state=0)
    parts = "parts" in kind
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(lambda: iter([(X, y)])) if parts else model.fit(X, y)


def measure(folder: Path, num_rows: int) -> Predicted:
    """Load a model in this process and let it predict."""
    model = bdtppl.load(folder)
    predict = model.predict_proba if model.is_classifier else model.predict
    X = np.random.default_rng(1).uniform(size=(num_rows, _COLUMNS))
    predict(X[:_FIRST])
    start = time.perf_counter()
    predict(X)
    seconds = time.perf_counter() - start
    peak = peak_memory()
    predict(X[:10])
    times = []
    while len(times) < 20 and sum(times) < _LONGEST:
        start = time.perf_counter()
        predict(X[:10])
        times.append(time.perf_counter() - start)
    return Predicted(num_rows / seconds, peak, 1000 * float(np.median(times)))


def main(arguments: list[str] | None = None) -> None:
    """Measure the models that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.prediction", description=__doc__)
    parser.add_argument("models", nargs="*", choices=[*MODELS, []], help="default: all")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--kept", type=Path, help="folder that keeps the fitted models")
    options = parser.parse_args(arguments)
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for name in options.models or MODELS:
            folder = (options.kept or Path(scratch)) / name
            if not folder.exists():
                folder.parent.mkdir(parents=True, exist_ok=True)
                in_fresh_process(_save, name, folder)
            found = in_fresh_process(measure, folder, options.rows)
            rows.append(
                (name, f"{found.rows_a_second:,.0f}", f"{found.peak:.2f}", f"{found.small:.1f}")
            )
            print(*rows[-1], flush=True)
    print_table(
        f"{options.rows:,} rows: rows a second; peak memory, GB; 10 rows, milliseconds",
        ("model", "rows a second", "peak", "10 rows"),
        rows,
    )


def _save(name: str, folder: Path) -> None:
    fit(name).save(folder)


if __name__ == "__main__":
    main()
