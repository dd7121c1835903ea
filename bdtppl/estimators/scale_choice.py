"""Choose the scale of skewed targets with the best predictions of left-out rows."""

import math
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.base import clone

from bdtppl.estimators.base import ChoiceWarning
from bdtppl.models.data.target_scale import IDENTITY, ScaleName, TargetScale, skewness

FEATURES_LIKE_A_ROW = 20.0  # as many cost as much as all other work for a row
LEAST_SKEWNESS = 0.25  # of targets that another scale may help
FEWEST_ROWS, MOST_ROWS = 20, 1000
ERRORS_BETTER, LEAST_GAIN = 2.0, 0.02  # by which a scale must predict better; nats a row
_ROWS_WORTH = 5_000.0  # rows that cost as much as one of a table of few features
_LEAST_POWER_CHANGE = 0.2  # of Yeo-Johnson, for it to count as another scale
_SHORT = {"chains": 2, "warmup": 50, "draws": 50, "thin": 1, "extensions": 0}


def choose_scale(
    model: Any, matrix: np.ndarray, y: np.ndarray, weights: np.ndarray, found: Mapping[str, Any]
) -> TargetScale:
    """Return the scale that predicts best; called by the `_fit` of an estimator.

    Parameters
    ----------
    model
        The estimator.
    matrix, y, weights
        Training rows [n, d], targets [n] and weights [n].
    found
        Features found by `bdtppl.estimators.sum_features.find_features`.
    """
    # Repeated rows count as one row of their weight, and the order of rows does not matter.
    table = np.column_stack([y, matrix])
    _, first, same = np.unique(table, axis=0, return_index=True, return_inverse=True)
    too_few = len(first) < max(FEWEST_ROWS, 4 * model.min_leaf)
    if too_few or abs(skewness(y, weights)) <= LEAST_SKEWNESS:
        return IDENTITY
    names: list[ScaleName] = ["identity"]
    power = TargetScale.fitted("yeo-johnson", y, weights).power
    if abs(power - 1) >= _LEAST_POWER_CHANGE:
        names.append("yeo-johnson")
    if (least := y.min()) > -1:
        names.append("log" if least > 0 else "log1p")
    of_features = 1 + matrix.shape[1] / FEATURES_LIKE_A_ROW
    number = int(min(MOST_ROWS, max(100, _ROWS_WORTH / of_features)))
    order = np.random.default_rng(0).permutation(len(first))[:number]
    rows, weight = first[order], np.bincount(same.ravel(), weights)[order]
    named = [f"x{feature}" for feature in found["groups"]]  # named like columns of an array
    own = {
        "groups": {named[0]: named[1:]} if named else None,
        "monotone": {f"x{j}": sign for j, sign in enumerate(found["monotone"]) if sign},
    }
    scores: dict[ScaleName, np.ndarray] = {
        name: _left_out(model, matrix[rows], y[rows], weight, target_scale=name, **own)
        for name in names
    }
    best = max(scores, key=lambda name: scores[name].sum())
    gain = scores[best] - scores["identity"]
    total, error = gain.sum(), math.sqrt(len(gain)) * gain.std()
    if total <= max(ERRORS_BETTER * error, LEAST_GAIN * weight.sum()):
        return IDENTITY
    warnings.warn(
        f"target_scale='auto' chose {best!r}: the log density of {len(rows):,} rows, each half "
        f"predicted from the other, is higher by {total:.1f} (standard error {error:.1f}) than "
        f"with 'identity'.",
        ChoiceWarning,
        stacklevel=5,  # the caller of `fit`
    )
    return TargetScale.fitted(best, y, weights)


def _left_out(
    model: Any, matrix: np.ndarray, y: np.ndarray, weights: np.ndarray, **settings: Any
) -> np.ndarray:
    """Return log densities of rows [n] times their weights, each half predicted from the other."""
    own = {"time_limit": None, "checkpoint": None, "progress": False, "random_state": 0}
    tables = {"categories": "one-hot", "drop_first": False, "ordered": None}
    short: Any = clone(model)
    short.set_params(**settings, **_SHORT, **own, **tables)
    found, is_first = np.empty(len(y)), np.arange(len(y)) < len(y) // 2
    for held in (is_first, ~is_first):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            short.fit(matrix[~held], y[~held], weights[~held])
            rows = short._matrix(matrix[held])
        found[held] = short.posterior_.predictive(rows).log_density(y[held]) * weights[held]
    return found
