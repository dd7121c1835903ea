"""Kinds of targets: class labels and real numbers.

They turn a posterior predictive mixture, which every inference provides, into the outputs that
scikit-learn expects.
"""

import warnings
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets

from bdtppl.anomalies import FindsAnomalies
from bdtppl.estimators.parameters import declared, parameter, require_level
from bdtppl.models.arguments import require_choice
from bdtppl.models.data.schema import TableWarning
from bdtppl.models.data.tables import are_identifiers, is_missing, refuse_times, require_storable


@declared
class ClassParameters:
    """Parameters of all classifiers."""

    classes: Any = parameter(
        None,
        "All labels, if some may be absent from training. Concentrations of a leaf family or model "
        "are in this order; otherwise in that of the sorted labels.",
        option=False,
    )


class ClassTargets(ClassParameters, FindsAnomalies, ClassifierMixin):
    """Targets that are class labels."""

    task: ClassVar[str] = "classification"
    classes_: np.ndarray
    _mixture: Any

    @staticmethod
    def _check_targets(y: np.ndarray) -> np.ndarray:
        """Reject targets [n] that are not labels."""
        refuse_times("y", y)
        if y.dtype.kind == "O":
            missing = np.flatnonzero([is_missing(label) for label in y.tolist()])
        else:
            missing = np.flatnonzero(y != y)
        if missing.size:
            raise ValueError(f"y, row {missing[0]}: the label is missing (NaN or None).")
        if y.dtype.kind == "f" and np.isinf(y).any():
            row = np.flatnonzero(np.isinf(y))[0]
            raise ValueError(f"y, row {row}: the label is infinite (inf).")
        if y.dtype.kind == "O":
            _require_one_kind(y)
        check_classification_targets(y)
        return y

    def _read_targets(self, y: np.ndarray, kept: np.ndarray) -> np.ndarray:
        """Return class indices of the rows that are kept; sets ``classes_``."""
        y = self._check_targets(y)
        labels = np.unique(y[kept])
        if self.classes is None and are_identifiers(len(labels), int(kept.sum())):
            warnings.warn(
                f"y has {len(labels)} classes in {int(kept.sum())} rows, like row identifiers or "
                "quantities: pass another target, use the regressor, or declare the labels with "
                "classes=[...].",
                TableWarning,
                stacklevel=4,
            )
        self._set_classes(labels, int(kept.sum()))
        return np.searchsorted(self.classes_, y[kept])

    def _set_classes(self, labels: np.ndarray, num_rows: int | None = None) -> None:
        """Set ``classes_`` from the labels of some rows, sorted."""
        if self.classes is not None:
            if isinstance(self.classes, str) or np.ndim(self.classes) != 1:
                raise TypeError(f"classes must be a list of labels; got {self.classes!r}.")
            declared, count = np.unique(np.asarray(self.classes), return_counts=True)
            if (count > 1).any():
                raise ValueError(f"classes repeats {_plain(declared[count.argmax()])!r}.")
            unknown = np.setdiff1d(labels, declared)
            if unknown.size:
                raise ValueError(
                    f"y has the label {_plain(unknown[0])!r}, which classes does not declare."
                )
            labels = declared
        if len(labels) < 2 and num_rows == 1:
            raise ValueError(
                "There is only one row (n_samples=1); two or more classes are needed. Declare "
                "absent ones with classes=[...]."
            )
        if len(labels) < 2:
            raise ValueError(
                f"y has only one class ({_plain(labels[0])!r}); at least two are needed. Declare "
                "absent ones with classes=[...]."
            )
        for label in labels.tolist():
            require_storable("y", label)
        self.classes_ = labels

    def _by_class(self, concentration: Any) -> np.ndarray:
        """Reorder concentrations [c] from the order of ``classes`` to that of ``classes_``."""
        order = slice(None) if self.classes is None else np.argsort(np.asarray(self.classes))
        return np.asarray(concentration)[order]

    def _as_targets(self, indices: np.ndarray) -> np.ndarray:
        return self.classes_[np.asarray(indices)]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the posterior predictive probability of each class, float64 [m, classes]."""
        return self._mixture(X).mean()

    def predict_proba_interval(self, X: Any, level: float = 0.9) -> np.ndarray:
        """Return the central credible interval of each class's probability at each row.

        The probability of a class differs by tree and by leaf: its posterior is a mixture over
        trees of the leaves' beta distributions, with the mean of `predict_proba`. For soft trees it
        is the distribution over the draws.

        Parameters
        ----------
        X
            Rows [m].
        level
            Probability of the interval, in (0, 1).

        Returns
        -------
        numpy.ndarray
            float64 [m, classes, 2]; lower and upper end, in the order of ``classes_``.

        Raises
        ------
        ValueError
            If the level is not a probability, or the leaves have no distribution of class
            probabilities: those of a custom leaf family without ``mean_law``, and of soft trees
            that integrate them out.
        """
        return self._mixture(X).mean_quantiles(_central(level))

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable class of each row, [m]."""
        return self._as_targets(self.predict_proba(X).argmax(axis=1))


class RealTargets(RegressorMixin):
    """Targets that are real numbers."""

    task: ClassVar[str] = "regression"
    _mixture: Any

    @staticmethod
    def _check_targets(y: np.ndarray) -> np.ndarray:
        """Read finite float64 targets [n]."""
        refuse_times("y", y)
        try:
            y = y.astype(np.float64)
        except (TypeError, ValueError):
            raise ValueError("y must contain numbers for regression.") from None
        bad = np.flatnonzero(~np.isfinite(y))
        if bad.size:
            kind = "missing (NaN)" if np.isnan(y[bad[0]]) else "infinite (inf)"
            raise ValueError(f"y, row {bad[0]}: the target is {kind}; finite numbers are needed.")
        return y

    def _read_targets(self, y: np.ndarray, kept: np.ndarray) -> np.ndarray:
        """Return finite float64 targets of the rows that are kept."""
        return self._check_targets(y)[kept]

    def _as_targets(self, values: np.ndarray) -> np.ndarray:
        return np.asarray(values)

    def predict(self, X: Any) -> np.ndarray:
        """Return the posterior predictive mean of each row, float64 [m]."""
        return self._mixture(X).mean()

    def predict_interval(
        self, X: Any, level: float = 0.9, kind: Literal["target", "mean"] = "target"
    ) -> np.ndarray:
        """Return the central posterior interval of a new target, or of the mean, at each row.

        Parameters
        ----------
        X
            Rows [m].
        level
            Probability of the interval, in (0, 1).
        kind
            "target" for the posterior predictive interval of a new target. "mean" for the credible
            interval of the mean of a row's targets, which differs by tree and by leaf: a mixture
            over trees of the distributions of the leaves' means. For soft trees it is over the
            draws.

        Returns
        -------
        numpy.ndarray
            float64 [m, 2]; lower and upper end, in units of y.

        Raises
        ------
        ValueError
            If the level is not a probability, the kind is unknown, or the leaf family has no
            distribution of a leaf's mean.
        """
        require_choice("kind", kind, ("target", "mean"))
        if kind == "target":
            return self.predict_quantiles(X, _central(level))
        return self._mixture(X).mean_quantiles(_central(level))

    def predict_quantiles(self, X: Any, probabilities: Sequence[float]) -> np.ndarray:
        """Return quantiles of the posterior predictive of a new target at each row.

        Parameters
        ----------
        X
            Rows [m].
        probabilities
            Probabilities [q] below the quantiles, each in (0, 1).

        Returns
        -------
        numpy.ndarray
            float64 [m, q], in units of y.

        Raises
        ------
        ValueError
            If there are no probabilities, or one is not between 0 and 1.
        """
        wanted = np.atleast_1d(np.asarray(probabilities, float))
        if wanted.ndim != 1 or not wanted.size or not ((wanted > 0) & (wanted < 1)).all():
            raise ValueError(
                f"probabilities must be numbers between 0 and 1; got {probabilities!r}."
            )
        return self._mixture(X).quantiles(wanted.tolist())


def _central(level: float) -> list[float]:
    """Return the probabilities at the ends of a central interval of a level in (0, 1)."""
    require_level(level)
    return [(1 - level) / 2, (1 + level) / 2]


def _require_one_kind(labels: np.ndarray) -> None:
    """Raise ValueError if some labels are text and others are not."""
    is_text = np.fromiter((isinstance(label, str) for label in labels), bool, len(labels))
    if is_text.any() and not is_text.all():
        text, other = labels[is_text.argmax()], labels[is_text.argmin()]
        raise ValueError(
            f"y holds text and other labels, such as {text!r} and {other!r}: write all as text, or "
            f"all as numbers."
        )


def _plain(label: Any) -> Any:
    """Convert a label from its NumPy type, for display."""
    return label.item() if isinstance(label, np.generic) else label
