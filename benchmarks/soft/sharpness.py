"""The sharpness of soft splits at prediction, chosen by cross-validation."""

import statistics
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.metrics import log_loss, mean_squared_error
from sklearn.model_selection import KFold

from benchmarks.soft.sets import SETTINGS, Runs, agreement, dcc_tree, split
from benchmarks.text_table import print_table

__all__ = ["print_sharpness"]

_CHOICES = (0.001, 0.005, 0.01, 0.025, 0.05)
_FOLDS = 5


def print_sharpness(name: str, runs: Runs) -> None:
    """Choose ``routing`` by the log score, or squared error, of training rows left out.

    Trees are drawn at the authors' ``h_final``, so that all choices share their fits. Folds are
    drawn anew with each seed. Test rows have no say in the choice.
    """
    data, table, of_choice, as_drawn = split(name), [], [], []
    choices = sorted({*_CHOICES, SETTINGS[name].h_final})
    drawn = choices.index(SETTINGS[name].h_final)
    for seed in runs.seeds:

        def fitted(rows, seed=seed):
            model = dcc_tree(name, runs, random_state=seed)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of chains and estimates, in fits of some rows
                return model.fit(data.X[rows], data.y[rows])

        folds = KFold(_FOLDS, shuffle=True, random_state=seed).split(data.X)
        losses = [
            _losses(fitted(rows), data.X[left_out], data.y[left_out], choices)
            for rows, left_out in folds
        ]
        loss = np.mean(losses, axis=0)
        model = fitted(slice(None))
        found = [agreement(model, _mean(model, data.X_test, h), data.y_test) for h in choices]
        best = int(loss.argmin())
        of_choice.append(found[best])
        as_drawn.append(found[drawn])
        own = [f"{left:.4f}, {test:.4f}" for left, test in zip(loss, found, strict=True)]
        table.append([f"{seed}", *own, f"{choices[best]:g}", f"{found[best]:.4f}"])
        print(f"{name}: {table[-1]}", flush=True)
    headings = ["seed", *(f"loss and test, {h:g}" for h in choices), "chosen", "test"]
    title = f"Routing of {name} by {_FOLDS}-fold cross-validation, {runs}"
    print_table(title, headings, table)
    print(
        f"mean on test rows: {statistics.mean(of_choice):.4f}, "
        f"as drawn {statistics.mean(as_drawn):.4f}\n"
    )


def _losses(model: Any, x: np.ndarray, y: np.ndarray, choices: Sequence[float]) -> list[float]:
    """Judge each sharpness by rows that were not fitted."""
    if not hasattr(model, "classes_"):
        return [mean_squared_error(y, _mean(model, x, h)) for h in choices]
    return [log_loss(y, _mean(model, x, h), labels=model.classes_) for h in choices]


def _mean(model: Any, x: np.ndarray, sharpness: float) -> np.ndarray:
    return model.posterior_.predictive(x, sharpness=sharpness).mean()
