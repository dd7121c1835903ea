"""The columns of a comparison: evidence, leave-one-out, cross-validation and stacking weights.

References
----------
Vehtari, Gelman and Gabry 2017, Practical Bayesian model evaluation using leave-one-out
cross-validation and WAIC; Yao, Vehtari, Simpson and Gelman 2018, Using stacking to average Bayesian
predictive distributions; Gneiting and Raftery 2007, Strictly proper scoring rules.
"""

import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import numpy as np
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import KFold, StratifiedKFold, check_cv

from bdtppl.comparison.scoring import Scored, Unknown, rows_of, weight_argument
from bdtppl.estimators.hard import describe_constraints
from bdtppl.inference.evidence.estimates import LARGEST_PARETO_K
from bdtppl.inference.parallel import fan_out, num_workers
from bdtppl.models.wording import describe_model
from bdtppl.progress import forecast

_EM_STEPS = 2000  # most steps of the iteration for the weights


@dataclass(frozen=True)
class Cell:
    """A quantity of a model.

    Attributes
    ----------
    value
        The number; None if there is none.
    error
        Its standard error, 0 if it is exact; None if it is not known.
    reason
        Why there is no value.
    pointwise
        Terms whose sum or mean is the value, float64 [obs].
    weights
        Weights of the terms [obs]; None if all are 1.
    pareto_k
        float64 [obs]; shapes of the importance ratios, for PSIS-LOO.
    warning
        A caution about the value.
    high
        Upper bound of the number if ``value`` is a lower bound; infinite if none is known.
    """

    value: float | None = None
    error: float | None = None
    reason: str = ""
    pointwise: np.ndarray | None = None
    weights: np.ndarray | None = None
    pareto_k: np.ndarray | None = None
    warning: str = ""
    high: float | None = None


def evidence_cell(scored: Scored) -> Cell:
    """Return the log evidence, or its bounds, or why there is none."""
    try:
        value, error, high = scored.log_evidence()
    except Unknown as unknown:
        return Cell(reason=str(unknown))
    return Cell(value, None if np.isnan(error) else error, high=high)


def best_trees(scored: Mapping[str, Scored]) -> dict[str, Cell]:
    """Return the log joints of the best trees found, or why there are none, by model."""
    hard = [each.estimator for each in scored.values() if each.estimator.trees_are == "hard"]
    cuts = {(each.design_.names, each.design_.cut_threshold.tobytes()) for each in hard}
    models = {
        (*map(describe_model, (each.prior_, each.leaf_)), describe_constraints(each.constraints_))
        for each in hard
    }
    warning = ""
    if len(cuts) > 1 or len(models) > 1:
        what = "cuts" if len(cuts) > 1 else "priors, leaf families or limits"
        warning = f"best trees cannot be compared, because the models have different {what}"
    cells = {}
    for name, each in scored.items():
        try:
            value, _, high = each.best_log_joint()
        except Unknown as unknown:
            cells[name] = Cell(reason=str(unknown))
        else:
            cells[name] = Cell(value, 0.0, high=high, warning=warning)
    return cells


def leave_one_out_cell(scored: Scored) -> Cell:
    """Return PSIS-LOO, summed over observations, or why there is none."""
    try:
        loo = scored.leave_one_out()
    except Unknown as unknown:
        return Cell(reason=str(unknown))
    bad = int((loo.pareto_k > LARGEST_PARETO_K).sum())
    warning = (
        f"PSIS-LOO may be inaccurate, Pareto k exceeds {LARGEST_PARETO_K} in {bad} of "
        f"{len(loo.pareto_k)} rows"
    )
    return summed_cell(loo.log_density, pareto_k=loo.pareto_k, warning=warning * bool(bad))


def summed_cell(
    values: np.ndarray, weights: np.ndarray | None = None, *, mean: bool = False, **more: Any
) -> Cell:
    """Return the sum or mean of independent values with weights, and its standard error."""
    each = np.ones(len(values)) if weights is None else weights
    scale = 1 / each.sum() if mean else 1.0
    error = None
    if len(values) > 1:
        error = float(scale * np.sqrt((each**2).sum() * values.var(ddof=1)))
    total = float(scale * (each * values).sum())
    return Cell(total, error, pointwise=values, weights=weights, **more)


def stack(column: Mapping[str, Cell]) -> dict[str, Cell]:
    """Compute stacking weights of the models that have log densities of single observations."""
    known = {name: cell for name, cell in column.items() if cell.value is not None}
    blank = Cell(reason="without a predictive density of each row it cannot be stacked")
    if not known:
        return dict.fromkeys(column, blank)
    densities = np.stack([np.asarray(cell.pointwise) for cell in known.values()], axis=1)
    of_rows = next(iter(known.values())).weights
    weights = dict(zip(known, stacking_weights(densities, of_rows), strict=True))
    return {name: Cell(float(weights[name])) if name in known else blank for name in column}


def cross_validate(
    models: Mapping[str, Scored],
    X: Any,
    y: np.ndarray,
    weights: np.ndarray,
    folds: list,
    error: str,
) -> dict[str, dict[str, Cell]]:
    """Score each row by fits to the other folds; a score has the weight of its row.

    Workers fit models and folds side by side. Without workers all models finish a fold before any
    starts the next one, so that the first fold predicts the time of the others.
    """
    held_out = {name: _HeldOut.of(scored, X, y, weights, folds) for name, scored in models.items()}
    scorable = {name: each for name, each in held_out.items() if each.blank is None}
    shared = (
        {name: each.scored.unfitted() for name, each in scorable.items()},
        {name: each.X for name, each in scorable.items()},
        y,
        weights,
    )
    tasks = [(name, train, test) for train, test in folds for name in scorable]
    start = time.monotonic()
    first = len(scorable) if num_workers() == 1 else len(tasks)
    found = fan_out(_score_fold, tasks[:first], shared=shared, most_threads=1)
    if first < len(tasks):
        more = (len(folds) - 1) * (time.monotonic() - start)
        forecast(f"Cross-validation in {len(folds)} folds", more)
        found += fan_out(_score_fold, tasks[first:], shared=shared, most_threads=1)
    for (name, _, test), scores in zip(tasks, found, strict=True):
        scorable[name].add(test, scores)
    return {name: each.cells(weights, error) for name, each in held_out.items()}


class _Scores(NamedTuple):
    """Scores of the rows of one fold, why an error is missing, and the fit's first warning."""

    log_scores: np.ndarray
    errors: np.ndarray
    reason: str
    said: list[str]


def _score_fold(
    models: Mapping[str, Any],
    tables: Mapping[str, Any],
    y: np.ndarray,
    weights: np.ndarray,
    name: str,
    seen: np.ndarray,
    test: np.ndarray,
) -> _Scores:
    """Fit a model to some rows and score others."""
    X, given = tables[name], {}
    if (weights != 1).any():
        given = {weight_argument(models[name]): weights[seen]}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        model = cast(Any, clone(models[name])).fit(rows_of(X, seen), y[seen], **given)
    fitted = Scored.of("", model)
    predictive = fitted.predictive(rows_of(X, test))
    errors, reason = np.full(len(test), np.nan), ""
    try:
        errors = fitted.errors(predictive, y[test])
    except ValueError as found:  # a custom leaf family
        reason = str(found)
    if np.isinf(errors).any():
        reason = "a predictive distribution without a mean has no finite score"
    said = [str(each.message) for each in caught[:1]]
    return _Scores(fitted.log_scores(predictive, y[test]), errors, reason, said)


@dataclass(eq=False)
class _HeldOut:
    """Scores of the rows [n] of one model, fold by fold; NaN for rows without a score yet."""

    scored: Scored
    X: Any
    blank: Cell | None  # if no fold can be scored
    log_scores: np.ndarray
    errors: np.ndarray
    reason: str = ""  # why the error is missing
    said: list[str] = field(default_factory=list)  # the first warning of each fit that warned
    num_folds: int = 0

    @classmethod
    def of(
        cls, scored: Scored, X: Any, y: np.ndarray, weights: np.ndarray, folds: list
    ) -> "_HeldOut":
        X, blank = scored.declared(scored.own_columns(X)), None
        if name := _missing_in_one_fold(scored, X, weights, folds):
            blank = Cell(
                reason=f"no fit to the other folds has a rule for the missing values of {name!r}"
            )
        return cls(scored, X, blank, np.full(len(y), np.nan), np.full(len(y), np.nan))

    def add(self, test: np.ndarray, scores: _Scores) -> None:
        """Add the scores of one fold."""
        self.num_folds += 1
        self.log_scores[test], self.errors[test] = scores.log_scores, scores.errors
        self.reason = scores.reason or self.reason
        self.said += scores.said

    def cells(self, weights: np.ndarray, error: str) -> dict[str, Cell]:
        """Summarise the scores."""
        if self.blank is not None:
            return {"log_score": self.blank, error: self.blank}
        tested = np.flatnonzero(~np.isnan(self.log_scores) & (weights > 0))
        of_rows = weights[tested] if (weights != 1).any() else None
        warning = ""
        if self.said:
            warning = (
                f"in {len(self.said)} of {self.num_folds} folds the fit warned: {self.said[0]}"
            )
        errors = Cell(reason=self.reason)
        if not self.reason:
            errors = summed_cell(self.errors[tested], of_rows, mean=True)
        scores = summed_cell(self.log_scores[tested], of_rows, warning=warning)
        return {"log_score": scores, error: errors}


def _missing_in_one_fold(scored: Scored, X: Any, weights: np.ndarray, folds: list) -> str:
    """Return a feature with missing values in the rows of one fold alone; "" if there is none."""
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


def stacking_weights(log_density: np.ndarray, of_rows: np.ndarray | None = None) -> np.ndarray:
    """Compute model weights whose mixture of predictives has the greatest log score.

    Parameters
    ----------
    log_density
        float [obs, models]; log predictive densities of observations that a model has not seen.
    of_rows
        Weights of the observations [obs]; default 1.

    Returns
    -------
    numpy.ndarray
        float64 [models]; they are nonnegative and sum to 1.

    Notes
    -----
    The score is concave in the weights. Each step multiplies a weight by its model's mean share in
    the mixture's density, which never lowers the score (the EM algorithm for mixture weights).

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
        shares = density[seen] / (density[seen] @ weights)[:, None]
        own = None if of_rows is None else of_rows[seen]
        weights = weights * np.average(shares, axis=0, weights=own)
    return weights / weights.sum()
