"""Cautions for the reader of a report: those of the inference and those of the scores.

A diagnostic that could not be computed is itself a caution: a sentence states that it is missing.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import stats

from bdtppl.plotting.forecasts import Forecasts
from bdtppl.report.scores import coverage

_LEAST_EFFICIENCY = 0.05  # effective share of draws after leaving a row out
_LEVEL = 0.9
_FALSE_ALARM = 0.001
_CDF_PARTS = 10  # cells of the unit interval, for tests of distributions


def cautions(model: Any, forecasts: Forecasts | None = None) -> list[str]:
    """List cautions for the reader of a fit; an empty list is good news.

    Parameters
    ----------
    model
        A fitted estimator.
    forecasts
        Predictions beside outcomes.

    Examples
    --------
    >>> from bdtppl import ExactTreeClassifier
    >>> cautions(ExactTreeClassifier().fit([[0.0], [1.0], [2.0]], [0, 0, 1]))
    []
    """
    said = list(model.cautions())
    if forecasts is None:
        return said
    if forecasts.efficiency is not None:
        rough = int((forecasts.efficiency < _LEAST_EFFICIENCY).sum())
        if rough:
            said.append(
                "Leaving a row out changes the posterior so much that its prediction rests on few "
                f"draws, for {rough:,} of {len(forecasts.y):,} rows: scores and calibration are "
                "imprecise."
            )
    if forecasts.cdf is not None:
        tries = f" Try {' or '.join(model.other_noise)}." if model.other_noise else ""
        said += [text + tries for text in intervals_that_fail(forecasts.cdf)]
    return said


def intervals_that_fail(cdf: np.ndarray) -> Iterator[str]:
    """Describe how targets fail to follow their predictive distributions, if a test finds that."""
    inside = coverage(cdf, _LEVEL)
    if stats.binomtest(int(inside.sum()), len(inside), _LEVEL).pvalue < _FALSE_ALARM:
        way = "wider than necessary" if inside.mean() > _LEVEL else "too narrow"
        yield (
            f"{_LEVEL:.0%} intervals contain {inside.mean():.1%} of the targets, which is not "
            f"chance: the predictive intervals are {way}."
        )
        return
    counts, _ = np.histogram(cdf, _CDF_PARTS, (0, 1))
    if len(cdf) >= 5 * _CDF_PARTS and stats.chisquare(counts).pvalue < _FALSE_ALARM:
        yield (
            "Targets do not follow their predictive distributions (see the calibration): the shape "
            "of these distributions is not that of the data."
        )
