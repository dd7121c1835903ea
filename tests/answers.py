"""Ask a model everything that it can predict; as a script, saved models in a fresh process."""

import sys
from pathlib import Path

import numpy as np
import pandas as pd

import bdtppl
from bdtppl.inference.hard.posterior import Posterior


def answers(model, rows) -> dict[str, np.ndarray]:
    """Answer by name: what `model` predicts for rows, and the trees that it has."""
    found = {
        "predict": model.predict(rows),
        "sample_predictive": model.sample_predictive(rows, draws=20),
        "log_evidence": getattr(model, "log_evidence_", np.nan),
        "leaves": model.posterior_.num_leaves,
    }
    found |= {f"drawn_{name}": values for name, values in model.posterior_.sample_stats.items()}
    found["drawn_threshold"] = model.posterior_.trees.threshold
    if isinstance(model.posterior_, Posterior):
        best = model.k_best(5)
        found |= {
            "map_threshold": model.map_tree_.threshold,
            "best_log_joint": best.log_joint,
            "best_probability": best.probability,
            "best_threshold": best.trees.threshold,
            "best_statistics": best.statistics,
        }
    for name in ("predict_proba", "predict_interval", "predict_draws"):
        if hasattr(model, name):
            found[name] = getattr(model, name)(rows)
    return {name: np.asarray(value) for name, value in found.items()}


if __name__ == "__main__":
    *folders, table, out = map(Path, sys.argv[1:])
    for folder in folders:
        read = pd.read_csv(table)
        unnamed = read.columns[0] == "0"  # columns of an array
        np.savez(
            out / f"{folder.name}.npz",
            **answers(bdtppl.load(folder), read.to_numpy() if unnamed else read),
        )
