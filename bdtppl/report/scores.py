"""Scores of predictions beside those of a baseline that knows only the targets' spread."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from scipy import stats
from sklearn.metrics import roc_auc_score

from bdtppl.models.wording import number
from bdtppl.plotting.forecasts import Forecasts
from bdtppl.report.blocks import ReportTable

_BAND_LEVELS = (0.5, 0.9)


def score_table(forecasts: Forecasts, which: str, *, ranks: bool = False) -> ReportTable:
    """Tabulate scores of predictions of rows that ``which`` names.

    With ``ranks`` the table also shows how well two classes are ranked, which left-out rows cannot
    show.
    """
    rows = _class_scores(forecasts, ranks) if forecasts.mean.ndim == 2 else _real_scores(forecasts)
    guess = "guessing by frequency" if forecasts.mean.ndim == 2 else "guessing by mean and spread"
    return ReportTable(f"Scores of the predictions of {which}.", ["", "this model", guess], rows)


def _class_scores(forecasts: Forecasts, ranks: bool) -> list[list[str]]:
    y, probability = forecasts.y, forecasts.mean
    num_classes = probability.shape[1]
    share = np.bincount(y, minlength=num_classes) / len(y)
    guess = np.broadcast_to(share, probability.shape)
    happened = np.eye(num_classes)[y]
    area = []
    if ranks and num_classes == 2 and len(np.unique(y)) == 2:
        found = f"{roc_auc_score(y, probability[:, 1]):.3f}"
        area = [["area under the ROC curve (higher is better)", found, "0.500"]]
    return [
        ["right class", *(f"{(p.argmax(1) == y).mean():.1%}" for p in (probability, guess))],
        [
            "log score (mean log probability of the outcomes; higher is better)",
            f"{forecasts.log_density.mean():.3f}",
            f"{np.log(share[y]).mean():.3f}",
        ],
        [
            "Brier score (squared error of probabilities; lower is better)",
            *(f"{((p - happened) ** 2).sum(1).mean():.3f}" for p in (probability, guess)),
        ],
        *area,
    ]


def _real_scores(forecasts: Forecasts) -> list[list[str]]:
    y, mean = forecasts.y, forecasts.mean
    guess, spread = y.mean(), y.std() or 1.0
    normal = cast(Any, stats.norm(guess, spread))
    errors = y - mean, y - guess
    return [
        ["root mean squared error", *(number(np.sqrt((e**2).mean())) for e in errors)],
        ["mean absolute error", *(number(np.abs(e).mean()) for e in errors)],
        [
            "share of the variance explained",
            f"{1 - (errors[0] ** 2).mean() / spread**2:.1%}",
            "0.0%",
        ],
        [
            "log score (mean log density at the outcomes; higher is better)",
            f"{forecasts.log_density.mean():.3f}",
            f"{normal.logpdf(y).mean():.3f}",
        ],
        *(
            [
                f"targets inside the {level:.0%} interval",
                f"{coverage(cdf, level).mean():.1%}",
                f"{coverage(normal.cdf(y), level).mean():.1%}",
            ]
            for level in _BAND_LEVELS
            for cdf in [forecasts.cdf]
            if cdf is not None
        ),
    ]


def coverage(cdf: np.ndarray, level: float) -> np.ndarray:
    """Return whether targets are in the central interval of a probability, by their CDF; bool [m].

    Examples
    --------
    >>> coverage(np.array([0.04, 0.5, 0.97]), 0.9).tolist()
    [False, True, False]
    """
    return np.abs(cdf - 0.5) <= level / 2


def confusion_table(forecasts: Forecasts, classes: Sequence[object]) -> ReportTable:
    """Count rows by their class and by the predicted class."""
    num_classes = len(classes)
    cells = forecasts.y * num_classes + forecasts.mean.argmax(axis=1)
    counts = np.bincount(cells, minlength=num_classes**2).reshape(num_classes, num_classes)
    rows = [[str(name), *map(str, row)] for name, row in zip(classes, counts, strict=True)]
    caption = "Rows by their class (down) and by the most probable class (across)."
    return ReportTable(caption, ["", *map(str, classes)], rows)
