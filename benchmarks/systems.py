"""All systems of hard trees on one table: ``python -m benchmarks.systems``.

Each fits iris (150 rows, ten buckets a feature, at most five levels of splits, DepthDecay(0.95, 1)
and Dirichlet leaves of concentration 1) with the settings that it has by default, Metropolis-
Hastings also with tempering, in a process of its own: seconds of a first fit, compilation included,
and of a second one under another seed, peak memory, and what each says of the log evidence.
"""

import argparse
import time
import warnings
from typing import Any, NamedTuple

from sklearn.datasets import load_iris

import bdtppl
from bdtppl.models.leaves import DirichletCategorical
from bdtppl.models.priors import DepthDecay
from benchmarks.processes import in_fresh_process, peak_memory
from benchmarks.text_table import print_table

__all__ = ["SYSTEMS", "Fitted", "main", "measure"]

SYSTEMS: dict[str, tuple[str, dict[str, Any]]] = {
    "exact": ("ExactTreeClassifier", {}),
    "greedy modal": ("GreedyModalTreeClassifier", {}),
    "Metropolis": ("MetropolisTreeClassifier", {}),
    "Metropolis, tempered": ("MetropolisTreeClassifier", {"temperatures": 8}),
    "particle filter": ("ParticleTreeClassifier", {}),
    "GFlowNet, grammar": ("GFlowNetTreeClassifier", {"grid": None}),
}


class Fitted(NamedTuple):
    """Seconds, GB, and the log evidence in words."""

    first: float
    warm: float
    peak: float
    log_evidence: str


def measure(name: str) -> Fitted:
    """Fit a system twice in this process."""
    kind, own = SYSTEMS[name]
    X, y = load_iris(return_X_y=True)
    common = {
        "prior": DepthDecay(0.95, 1.0),
        "leaf": DirichletCategorical.symmetric(3),
        "bins": 10,
        "max_depth": 5,
    }
    seconds: list[float] = []
    model: Any = None
    for seed in (0, 1):
        model = getattr(bdtppl, kind)(**common, **own, random_state=seed)
        start = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(X, y).predict_proba(X)
        seconds.append(time.perf_counter() - start)
    return Fitted(*seconds, peak_memory(), _evidence(model))


def _evidence(model: Any) -> str:
    if hasattr(model, "log_evidence_"):
        error = model.log_evidence_se_
        return f"{model.log_evidence_:.2f}" + (f" ± {error:.2f}" if error else "")
    if hasattr(model, "log_evidence_lower_bound_"):
        return f">= {model.log_evidence_lower_bound_:.2f}"
    return "none"


def main(arguments: list[str] | None = None) -> None:
    """Measure the systems that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.systems", description=__doc__)
    parser.add_argument("systems", nargs="*", choices=[*SYSTEMS, []], help="default: all")
    names = parser.parse_args(arguments).systems or list(SYSTEMS)
    found = {name: in_fresh_process(measure, name) for name in names}
    print_table(
        "Iris: fit and predict, seconds; peak memory, GB; log evidence of the second fit",
        ("system", "first", "warm", "peak", "log evidence"),
        [
            (name, f"{f.first:.1f}", f"{f.warm:.2f}", f"{f.peak:.2f}", f.log_evidence)
            for name, f in found.items()
        ],
    )


if __name__ == "__main__":
    main()
