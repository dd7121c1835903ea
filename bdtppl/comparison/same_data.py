"""Checks that models were fitted to the same observations, in the same order."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from bdtppl.comparison.scoring import Scored


def require_same_data(scored: Mapping[str, Scored]) -> None:
    """Raise unless models have equal targets, and equal features of the same name."""
    (first, reference), *others = scored.items()
    for name, each in others:
        pair = f"{first!r} and {name!r} were fitted to different data"
        if each.is_classifier != reference.is_classifier:
            raise ValueError(f"{pair}: one predicts classes, the other numbers.")
        ours, theirs = reference.observed, each.observed
        if len(ours.y) != len(theirs.y):
            raise ValueError(f"{pair}: {len(ours.y)} and {len(theirs.y)} rows.")
        differing = _first_difference(ours.y, theirs.y)
        if differing is not None:
            raise ValueError(f"{pair}: their targets differ first in row {differing}.")
        for feature in ours.features.keys() & theirs.features.keys():
            differing = _first_difference(ours.features[feature], theirs.features[feature])
            if differing is not None:
                raise ValueError(f"{pair}: feature {feature!r} differs first in row {differing}.")


def require_fitted_to(
    name: str, scored: Scored, X: Any, y: np.ndarray, weights: np.ndarray
) -> None:
    """Raise unless a model was fitted to this table."""
    advice = "pass the rows that it was fitted to, with their weights"
    row, posterior = np.flatnonzero(weights), scored.estimator.posterior_
    pairs = (scored.observed.y, y[row]), (posterior.row_weights, weights[row])
    if any(_first_difference(*pair) is not None for pair in pairs):
        raise ValueError(f"{name!r} was not fitted to these targets y: {advice}.")
    matrix = scored.matrix(scored.own_columns(X))[row]
    if _first_difference(posterior.matrix, matrix) is not None:
        raise ValueError(f"{name!r} was not fitted to these rows X: {advice}.")


def _first_difference(ours: np.ndarray, theirs: np.ndarray) -> int | None:
    """Return the first row in which two arrays differ by more than rounding; None if they agree."""
    if ours.shape != theirs.shape:
        return 0
    if ours.dtype.kind == "f" and theirs.dtype.kind in "fiu":
        scale = np.abs(ours[np.isfinite(ours)]).max(initial=0)
        same = np.isclose(ours, theirs, rtol=1e-9, atol=1e-9 * scale, equal_nan=True)
    else:
        same = ours == theirs
    differing = np.flatnonzero(~same.reshape(len(same), -1).all(axis=1))
    return int(differing[0]) if differing.size else None
