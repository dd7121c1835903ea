"""Fitted models for a comparison: their data, their evidence, and scores of new rows.

A model is an estimator of bdtppl, alone, as the last step of a scikit-learn pipeline, or inside a
`TransformedTargetRegressor` that shifts and scales y. A scaled target t = a y + b has the density
of y divided by |a|, so log densities of y gain log |a| a row, and distances shrink by |a|.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, cast

import numpy as np
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.pipeline import Pipeline
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import check_is_fitted

from bdtppl.arviz import PsisLoo, psis_loo
from bdtppl.estimators.base import TableEstimator
from bdtppl.models.data.tables import column_names, has_names, select

_EQUATION_8 = (
    "the compound likelihood of soft classes (equation 8) is not a distribution of labels: fit "
    "with likelihood='mixture'"
)


class Unknown(Exception):
    """A quantity that a model does not have; the text states why."""


class Estimate(NamedTuple):
    """A number with its standard error, 0 if it is exact; or the bounds of a number.

    A bounded number has the lower bound as its value, and ``high`` is the upper one.
    """

    value: float
    error: float
    high: float | None = None


class Observed(NamedTuple):
    """Training data of a model, an entry for each row: features by name, and targets."""

    features: dict[str, np.ndarray]
    y: np.ndarray


@dataclass(frozen=True)
class Scored:
    """A fitted model.

    Attributes
    ----------
    model
        The model as passed.
    estimator
        The bdtppl estimator in it.
    slope, shift
        Scaling of y, t = slope y + shift.
    steps
        Steps of a pipeline on X before the estimator.
    """

    model: Any
    estimator: Any
    slope: float = 1.0
    shift: float = 0.0
    steps: tuple = field(default=())

    @classmethod
    def of(cls, name: str, model: Any) -> "Scored":
        """Find the estimator in a model.

        Raises
        ------
        TypeError
            If it contains no bdtppl estimator.
        ValueError
            If y is transformed by more than a shift and a scale.
        sklearn.exceptions.NotFittedError
            If it has not been fitted.
        """
        check_is_fitted(model)
        if isinstance(model, TransformedTargetRegressor):
            inner = cls.of(name, model.regressor_)
            slope, shift = _affine(name, model.transformer_)
            return replace(
                inner,
                model=model,
                slope=inner.slope * slope,
                shift=inner.slope * shift + inner.shift,
            )
        if isinstance(model, Pipeline):
            inner = cls.of(name, model[-1])
            return replace(inner, model=model, steps=(model[:-1], *inner.steps))
        if isinstance(model, TableEstimator):
            return cls(model, model)
        raise TypeError(
            f"models must be fitted estimators of bdtppl, or end in one (a pipeline, a "
            f"TransformedTargetRegressor); {name!r} is a {type(model).__name__}."
        )

    @property
    def is_classifier(self) -> bool:
        """Whether targets are classes."""
        return self.estimator.is_classifier

    @property
    def log_slope(self) -> float:
        """Log Jacobian of the scaling of one target."""
        return float(np.log(abs(self.slope)))

    @cached_property
    def observed(self) -> Observed:
        """Return its training data; features before a pipeline are not known."""
        posterior = self.estimator.posterior_
        y = self.estimator._as_targets(posterior.y)
        if not self.is_classifier:
            y = (y - self.shift) / self.slope
        if self.steps:
            return Observed({}, y)
        return Observed(dict(zip(posterior.names, posterior.matrix.T, strict=True)), y)

    def own_columns(self, X: Any) -> Any:
        """Select the columns that it was fitted to from a table with named columns."""
        names = getattr(self.model, "feature_names_in_", None)
        if names is None and isinstance(X, Mapping):
            names = [column.name for column in self.estimator.schema_.columns]
        if names is None or not has_names(X):
            return X
        there = set(column_names(X))
        return select(X, [name for name in names if name in there])

    @property
    def reads_as_it_did(self) -> bool:
        """Return whether a fit to some rows reads the columns as before: all, unchanged."""
        return not self.steps and self.estimator.columns_ is None

    def declared(self, X: Any) -> Any:
        """Give categories the levels known to the model, though some rows lack one."""
        return self.estimator.schema_.declared(X) if self.reads_as_it_did else X

    def matrix(self, X: Any) -> np.ndarray:
        """Read a table as the estimator does, float64 [m, d]."""
        return self.estimator._matrix(self._before(X))

    def _before(self, X: Any) -> Any:
        for step in self.steps:
            X = step.transform(X)
        return X

    # Quantities of the posterior.

    def log_evidence(self) -> Estimate:
        """Return the log marginal likelihood of y in its given units.

        Raises
        ------
        Unknown
            If the inference does not provide it.
        """
        estimator, bound = self.estimator, None
        with suppress(AttributeError):  # it may be absent, or raise an error that states why
            bound = estimator.log_evidence_lower_bound_
        if bound is not None:
            return Estimate(bound + self._log_scale, np.nan, np.inf)
        self._require("log_evidence")
        try:
            value, error = estimator.log_evidence_, estimator.log_evidence_se_
        except AttributeError as why:
            raise Unknown(str(why)) from why
        low, high = estimator.log_evidence_bounds_ or (value, value)
        return Estimate(
            float(value) + self._log_scale,
            float(error),
            None if low == high else high + self._log_scale,
        )

    def best_log_joint(self) -> Estimate:
        """Return the log joint of y in its given units and the best tree found.

        Raises
        ------
        Unknown
            If trees have no log joint.
        """
        if self.estimator.trees_are != "hard":
            raise Unknown("individual soft trees have no posterior probability")
        value = float(self.estimator.k_best(1).log_joint[0])
        if np.isnan(value):
            raise Unknown("the prior does not weight trees")
        gap = self.estimator.map_gap_
        high = np.inf if gap is None else value + gap + self._log_scale if gap else None
        return Estimate(value + self._log_scale, 0.0, high)

    @property
    def _log_scale(self) -> float:
        """Return the change of the log density of all targets from model units to given units."""
        return float(self.estimator.posterior_.row_weights.sum()) * self.log_slope

    def leave_one_out(self) -> PsisLoo:
        """Compute PSIS-LOO of y in its given units.

        Raises
        ------
        Unknown
            If rows have no individual likelihood, or the draws are not from a posterior.
        """
        self._require("elpd_loo")
        loo = psis_loo(self.estimator.posterior_, random_state=0)
        gained = self.estimator.posterior_.row_weights * self.log_slope
        return loo._replace(log_density=loo.log_density + gained)

    def _require(self, quantity: str) -> None:
        if quantity in self.estimator.unknown:
            raise Unknown(self.estimator.unknown[quantity])
        if not self.estimator.posterior_.has_pointwise_likelihood:
            raise Unknown(_EQUATION_8)

    # Scores of rows that the model has not seen.

    def unfitted(self) -> Any:
        """Copy the model without its fit, but with its classes and chosen cuts."""
        model = inner = cast(Any, clone(self.model))
        while isinstance(inner, Pipeline | TransformedTargetRegressor):
            inner = cast(Any, inner[-1] if isinstance(inner, Pipeline) else inner.regressor)
        if self.is_classifier and inner.classes is None:  # else their order carries information
            inner.set_params(classes=self.estimator.classes_)
        inner.set_params(**self.estimator.chosen)
        return model

    def log_scores(self, mixture: Any, y: np.ndarray) -> np.ndarray:
        """Return the log predictive density, or probability, of each row's target, float64 [m]."""
        return mixture.log_density(self._own(y)) + self.log_slope

    def errors(self, mixture: Any, y: np.ndarray) -> np.ndarray:
        """Return the Brier score of each row, or the CRPS of its target in units of y."""
        if not self.is_classifier:
            return mixture.crps(self._own(y)) / abs(self.slope)
        probability = mixture.mean()
        return ((probability - np.eye(probability.shape[1])[self._own(y)]) ** 2).sum(axis=1)

    def predictive(self, X: Any) -> Any:
        """Return the posterior predictive of rows."""
        return self.estimator._mixture(self._before(X))

    def _own(self, y: np.ndarray) -> np.ndarray:
        """Return class indices, or targets as the estimator scales them."""
        if self.is_classifier:
            return np.searchsorted(self.estimator.classes_, y)
        return self.slope * np.asarray(y, np.float64) + self.shift


def weight_argument(model: Any) -> str:
    """Name the argument of `fit` that passes weights to the estimator in a model."""
    if isinstance(model, Pipeline):
        name, last = model.steps[-1]
        return f"{name}__{weight_argument(last)}"
    if isinstance(model, TransformedTargetRegressor):
        return weight_argument(model.regressor)
    return "sample_weight"


def rows_of(X: Any, rows: np.ndarray) -> Any:
    """Select rows of a table of any kind."""
    if isinstance(X, Mapping):
        return {name: np.asanyarray(column)[rows] for name, column in X.items()}
    return _safe_indexing(X, rows)


def _affine(name: str, transformer: Any) -> tuple[float, float]:
    """Return the slope and shift of a transformer of targets."""
    at = np.linspace(-2.0, 3.0, 6)
    with np.errstate(all="ignore"):  # a logarithm, for example, is rejected below
        values = np.asarray(transformer.transform(at[:, None])).ravel()
    slope = float(values[-1] - values[0]) / 5
    shift = float(values[0] + 2 * slope)
    if slope == 0 or not np.allclose(values, slope * at + shift, rtol=1e-8, atol=1e-12):
        raise ValueError(
            f"{name!r} transforms y by a {type(transformer).__name__}, which is not a shift and "
            "scale: its densities cannot be compared."
        )
    return slope, shift
