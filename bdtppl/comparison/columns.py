"""The columns of a comparison: evidence, leave-one-out, cross-validation and stacking weights.

References
----------
Vehtari, Gelman and Gabry 2017, Practical Bayesian model evaluation using leave-one-out
cross-validation and WAIC; Yao, Vehtari, Simpson and Gelman 2018, Using stacking to average Bayesian
predictive distributions; Gneiting and Raftery 2007, Strictly proper scoring rules.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import KFold, StratifiedKFold, check_cv

from bdtppl.comparison.scoring import Scored, Unknown, rows_of
from bdtppl.inference.evidence.estimates import LARGEST_PARETO_K

__all__ = [
    "Cell",
    "cross_validate",
    "evidence",
    "leave_one_out",
    "read_folds",
    "stack",
    "stacking_weights",
    "summed",
]

_EM_STEPS = 2000  # of the weights' iteration


@dataclass(frozen=True)
class Cell:
    """A quantity of a model.

    Attributes
    ----------
    value
        The number; None where there is none.
    error
        Its standard error, 0 where it is exact; None where it is not known.
    reason
        Why there is no value.
    pointwise
        Terms whose sum or mean is the value, float64 [obs].
    pareto_k
        float64 [obs]; shapes of the importance ratios, for PSIS-LOO.
    warning
        A caution about the value.
    """

    value: float | None = None
    error: float | None = None
    reason: str = ""
    pointwise: np.ndarray | None = None
    pareto_k: np.ndarray | None = None
    warning: str = ""


def evidence(scored: Scored) -> Cell:
    """Log evidence, or why there is none."""
    try:
        value, error = scored.log_evidence()
    except Unknown as unknown:
        return Cell(reason=str(unknown))
    return Cell(value, None if np.isnan(error) else error)


def leave_one_out(scored: Scored) -> Cell:
    """PSIS-LOO, summed over observations, or why there is none."""
    try:
        loo = scored.leave_one_out()
    except Unknown as unknown:
        return Cell(reason=str(unknown))
    bad = int((loo.pareto_k > LARGEST_PARETO_K).sum())
    warning = (
        f"PSIS-LOO may be off, Pareto k exceeds {LARGEST_PARETO_K} in {bad} of "
        f"{len(loo.pareto_k)} rows"
    )
    return summed(loo.log_density, pareto_k=loo.pareto_k, warning=warning * bool(bad))


def summed(values: np.ndarray, *, mean: bool = False, **more: Any) -> Cell:
    """Sum or mean of independent values, with its standard error."""
    scale = 1 / len(values) if mean else 1.0
    error = None
    if len(values) > 1:
        error = float(scale * np.sqrt(len(values) * values.var(ddof=1)))
    return Cell(float(scale * values.sum()), error, pointwise=values, **more)


def stack(column: Mapping[str, Cell]) -> dict[str, Cell]:
    """Stacking weights of the models that have log densities of single observations."""
    known = {name: cell for name, cell in column.items() if cell.value is not None}
    blank = Cell(reason="without a predictive density of each row it cannot be stacked")
    if not known:
        return dict.fromkeys(column, blank)
    densities = np.stack([np.asarray(cell.pointwise) for cell in known.values()], axis=1)
    weights = dict(zip(known, stacking_weights(densities), strict=True))
    return {name: Cell(float(weights[name])) if name in known else blank for name in column}


def cross_validate(
    scored: Scored, X: Any, y: np.ndarray, weights: np.ndarray, folds: list, error: str
) -> dict[str, Cell]:
    """Score each row by a fit to the other folds; a row counts as often as it is repeated."""
    log_scores, errors = np.full(len(y), np.nan), np.full(len(y), np.nan)
    X, reason, said = scored.declared(scored.own_columns(X)), "", []
    if name := _missing_in_one_fold(scored, X, weights, folds):
        blank = Cell(
            reason=f"no fit to the other folds has a rule for the missing values of {name!r}"
        )
        return {"log_score": blank, error: blank}
    for train, test in folds:
        seen = np.repeat(train, weights[train])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ConvergenceWarning)
            fitted = Scored.of("", scored.unfitted().fit(rows_of(X, seen), y[seen]))
        said += [str(each.message) for each in caught[:1]]
        predictive = fitted.predictive(rows_of(X, test))
        log_scores[test] = fitted.log_scores(predictive, y[test])
        try:
            errors[test] = fitted.errors(predictive, y[test])
        except ValueError as found:  # a leaf family of one's own
            reason = str(found)
        if np.isinf(errors[test]).any():
            reason = "a predictive law without a mean has no finite score"
    tested = np.flatnonzero(~np.isnan(log_scores))
    tested = np.repeat(tested, weights[tested])
    warning = f"in {len(said)} of {len(folds)} folds the fit warned: {said[0]}" if said else ""
    return {
        "log_score": summed(log_scores[tested], warning=warning),
        error: Cell(reason=reason) if reason else summed(errors[tested], mean=True),
    }


def _missing_in_one_fold(scored: Scored, X: Any, weights: np.ndarray, folds: list) -> str:
    """Name a feature that misses values in the rows of one fold alone; "" where none does."""
    if not scored.reads_as_it_did:
        return ""
    is_missing = np.isnan(scored.matrix(X))
    for train, test in folds:
        seen = train[weights[train] > 0]
        alone = is_missing[test].any(axis=0) & ~is_missing[seen].any(axis=0)
        if alone.any():
            return scored.estimator.schema_.features[int(alone.argmax())]
    return ""


def read_folds(cv: Any, y: np.ndarray, is_classifier: bool, random_state: int) -> list:
    """Read folds as pairs (train, test) of row indices."""
    if isinstance(cv, int | np.integer):
        kind = KFold
        if is_classifier and np.unique(y, return_counts=True)[1].min() >= cv:
            kind = StratifiedKFold
        cv = kind(int(cv), shuffle=True, random_state=random_state)
    splitter = cast(Any, check_cv(cv, y, classifier=is_classifier))
    return list(splitter.split(np.zeros((len(y), 1)), y))


def stacking_weights(log_density: np.ndarray) -> np.ndarray:
    """Weigh models so that the mixture of their predictives has the greatest log score.

    Parameters
    ----------
    log_density
        float [obs, models]; log predictive densities of observations that a model has not seen.

    Returns
    -------
    numpy.ndarray
        float64 [models]; at least 0, they add up to 1.

    Notes
    -----
    The score is concave in the weights. Each step multiplies a weight by its model's mean share in
    the mixture's density, which never makes the score less (the EM algorithm for shares).

    Examples
    --------
    >>> stacking_weights(np.log([[0.9, 0.2], [0.8, 0.1], [0.7, 0.6]])).round(3).tolist()
    [1.0, 0.0]
    """
    highest = log_density.max(axis=1, keepdims=True)
    density = np.exp(log_density - np.where(np.isfinite(highest), highest, 0))
    weights = np.full(density.shape[1], 1 / density.shape[1])
    seen = density.sum(axis=1) > 0
    for _ in range(_EM_STEPS):
        weights = weights * (density[seen] / (density[seen] @ weights)[:, None]).mean(axis=0)
    return weights / weights.sum()
