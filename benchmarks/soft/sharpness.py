"""The sharpness of soft splits, chosen by cross-validation."""

import statistics
import warnings

from sklearn.model_selection import GridSearchCV, KFold

from benchmarks.soft.sets import REGRESSION, SETTINGS, Runs, agreement, dcc_tree, split
from benchmarks.text_table import print_table

__all__ = ["print_sharpness"]

_CHOICES = (0.001, 0.005, 0.025, 0.05)
_FOLDS = 5


def print_sharpness(name: str, runs: Runs) -> None:
    """Choose ``h_final`` by the log score, or squared error, of training rows left out.

    Folds are drawn anew with each seed. Test rows have no say in the choice.
    """
    data, table, on_test = split(name), [], []
    metric = "neg_mean_squared_error" if name in REGRESSION else "neg_log_loss"
    h_init = max(SETTINGS[name].h_init, *_CHOICES)
    for seed in runs.seeds:
        model = dcc_tree(name, runs, h_init=h_init, random_state=seed)
        folds = KFold(_FOLDS, shuffle=True, random_state=seed)
        search = GridSearchCV(model, {"h_final": _CHOICES}, scoring=metric, cv=folds)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of chains and estimates, in fits of some rows
            search.fit(data.X, data.y)
        best = search.best_estimator_
        predicted = best.posterior_.predictive(data.X_test).mean()
        on_test.append(agreement(best, predicted, data.y_test))
        scores = (f"{score:.4f}" for score in search.cv_results_["mean_test_score"])
        table.append([f"{seed}", *scores, f"{best.h_final:g}", f"{on_test[-1]:.4f}"])
        print(f"{name}: {table[-1]}", flush=True)
    headings = ["seed", *(f"{metric}, {h:g}" for h in _CHOICES), "chosen", "test"]
    title = f"Sharpness on {name} by {_FOLDS}-fold cross-validation, {runs}"
    print_table(title, headings, table)
    print(f"mean on test rows: {statistics.mean(on_test):.4f}\n")
