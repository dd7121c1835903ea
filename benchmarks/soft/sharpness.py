"""The sharpness of soft splits, chosen by the evidence of training rows."""

import statistics
import time
import warnings

import numpy as np

from benchmarks.soft.sets import REGRESSION, SETTINGS, Runs, agreement, dcc_tree, split
from benchmarks.text_table import print_table

__all__ = ["print_sharpness"]

_CHOICES = (0.001, 0.005, 0.025, 0.05)


def print_sharpness(name: str, runs: Runs) -> None:
    """Fit with each of several ``h_final`` and choose that with the largest log evidence.

    It is a hyperparameter of the model, so that its choices can be told apart by the probability of
    the training targets; test rows have no say. Classification therefore has the likelihood that
    is a probability of the labels, "mixture". The paper chooses by hand (Table 5).
    """
    data, setting = split(name), SETTINGS[name]
    options = {} if name in REGRESSION else {"likelihood": "mixture"}
    choices = sorted({*_CHOICES, setting.h_final})
    table, chosen = [], []
    for seed in runs.seeds:
        evidence, scores = [], []
        for h in choices:
            start = time.perf_counter()
            model = dcc_tree(name, runs, random_state=seed, **options).set_params(
                h_init=max(setting.h_init, h), h_final=h
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # errors of the evidence are printed
                model.fit(data.X, data.y)
            soft, hard = (
                agreement(
                    model,
                    model.posterior_.predictive(data.X_test, sharpness=sharpness).mean(),
                    data.y_test,
                )
                for sharpness in (h, 0.0)
            )
            evidence.append(model.log_evidence_)
            scores.append((soft, hard))
            table.append(
                [
                    f"{seed}",
                    f"{h:g}",
                    f"{model.log_evidence_:.2f} ± {model.log_evidence_se_:.2f}",
                    f"{soft:.4f}",
                    f"{hard:.4f}",
                    f"{time.perf_counter() - start:.0f}",
                ]
            )
            print(f"{name}: {table[-1]}", flush=True)
        best = int(np.argmax(evidence))
        chosen.append((choices[best], *scores[best]))
    headings = ["seed", "h_final", "log evidence", "test", "hard routing", "seconds"]
    print_table(f"Sharpness of {name} by evidence, {runs}", headings, table)
    values, soft, hard = zip(*chosen, strict=True)
    print(
        f"chosen: {', '.join(f'{value:g}' for value in values)}; mean on test rows "
        f"{statistics.mean(soft):.4f}, by hard routing {statistics.mean(hard):.4f}\n"
    )
