"""Ask a model everything that it can predict; as a script, a saved model in a fresh process."""

import sys

import numpy as np
import pandas as pd

import bdtppl


def answers(model, rows: pd.DataFrame) -> dict[str, np.ndarray]:
    best = model.k_best(5)
    found = {
        "predict": model.predict(rows),
        "sample_predictive": model.sample_predictive(rows, draws=20),
        "map_threshold": model.map_tree_.threshold,
        "log_evidence": model.log_evidence_,
        "drawn_threshold": model.posterior_.trees.threshold,
        "drawn_log_joint": model.posterior_.sample_stats["log_joint"],
        "best_log_joint": best.log_joint,
        "best_probability": best.probability,
        "best_threshold": best.trees.threshold,
        "best_statistics": best.statistics,
    }
    for name in ("predict_proba", "predict_interval"):
        if hasattr(model, name):
            found[name] = getattr(model, name)(rows)
    return {name: np.asarray(value) for name, value in found.items()}


if __name__ == "__main__":
    folder, table, out = sys.argv[1:]
    np.savez(out, **answers(bdtppl.load(folder), pd.read_csv(table)))
