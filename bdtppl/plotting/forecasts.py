"""Forecasts beside outcomes: of new rows, or of training rows, each from all others."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from bdtppl.inference.predictive.leave_one_out import leave_one_out
from bdtppl.plotting.rows import class_index, training_targets


def observed_targets(model: Any, y: Any, num_rows: int) -> np.ndarray:
    """Read the targets of new rows, class indices for classification.

    Raises
    ------
    ValueError
        If the number of targets differs from that of rows, or a class is not known.
    """
    y = np.asarray(y).ravel()
    if len(y) != num_rows:
        raise ValueError(f"y has {len(y)} values for {num_rows} rows of X.")
    if not model.is_classifier:
        return y.astype(float)
    unknown = np.setdiff1d(y, model.classes_)
    if len(unknown):
        raise ValueError(f"y has the class {unknown.tolist()[0]!r}, which the model does not know.")
    return np.searchsorted(model.classes_, y)


@dataclass(frozen=True, eq=False)
class Forecasts:
    """Predictive distributions of m rows and their targets.

    Attributes
    ----------
    y
        Targets, or class indices, [m].
    mean
        Predictive means [m], or class probabilities [m, c].
    log_density
        Log predictive density or probability of the targets, [m].
    cdf
        Predictive probability of a target of at most the observed one, [m]; None for classes.
    efficiency
        Effective share of the draws behind each left-out row's prediction, [m]; None for new rows.
    """

    y: np.ndarray
    mean: np.ndarray
    log_density: np.ndarray
    cdf: np.ndarray | None
    efficiency: np.ndarray | None = None

    @classmethod
    def of(cls, model: Any, X: Any = None, y: Any = None) -> "Forecasts":
        """Predict rows, or each training row from all others if X is None.

        Raises
        ------
        ValueError
            If only one of X and y is given, they do not match, or training rows cannot be left out.
        """
        if (X is None) != (y is None):
            raise ValueError("X and y belong together: pass both, or neither for training rows.")
        if X is None:
            return cls(training_targets(model), *leave_one_out(model.posterior_))
        matrix = model._matrix(X)
        targets = observed_targets(model, y, len(matrix))
        mixture = model._mixture_at(matrix)
        cdf = None if model.is_classifier else mixture.cdf(targets)
        return cls(targets, mixture.mean(), mixture.log_density(targets), cdf)

    def of_class(self, model: Any, target: Any) -> tuple[np.ndarray, np.ndarray, str]:
        """Make forecasts of a binary outcome: probabilities [m], outcomes bool [m], and their name.

        Parameters
        ----------
        model
            The classifier.
        target
            A class; None for the second of two, or for the most probable one of more.
        """
        if target is None and len(model.classes_) > 2:
            best = self.mean.argmax(axis=1)
            return self.mean.max(axis=1), best == self.y, "the most probable class"
        place = 1 if target is None else class_index(model, target)
        return self.mean[:, place], self.y == place, str(model.classes_[place])
