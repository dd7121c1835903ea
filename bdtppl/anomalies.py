"""Rows unlike a class: out-of-distribution detection with any classifier.

The score of a row is the predictive probability of the normal class. Section 5.3.2 of DT-GFN calls
a row anomalous if its score is at least two standard deviations below the mean score, so the number
of anomalous rows need not be known.

References
----------
Mahfoud et al. 2025 (DT-GFN), section 5.3.2 and appendix H.2; Shenkar and Wolf 2022,
Anomaly detection for tabular data with internal contrastive learning.
"""

import warnings
from typing import Any, NamedTuple, cast

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from bdtppl.models.data.tables import as_table, column_names, has_names, lossless, select


class Anomalies(NamedTuple):
    """Anomalies among m rows.

    Attributes
    ----------
    probability
        float64 [m]; predictive probability that the row is normal.
    threshold
        Largest probability that counts as anomalous.
    is_anomalous
        bool [m].
    """

    probability: np.ndarray
    threshold: float
    is_anomalous: np.ndarray


def find_anomalies(probability: np.ndarray, deviations: float = 2.0) -> Anomalies:
    """Apply the rule of section 5.3.2.

    Parameters
    ----------
    probability
        Probabilities [m] that rows are normal.
    deviations
        Least number of standard deviations by which an anomalous probability is below the mean.

    Raises
    ------
    ValueError
        If ``deviations`` is not a positive number.

    Warns
    -----
    UserWarning
        If the threshold is below 0, so no row can be anomalous.

    Examples
    --------
    >>> found = find_anomalies([0.9] * 19 + [0.1])
    >>> round(found.threshold, 3), np.flatnonzero(found.is_anomalous)
    (0.511, array([19]))
    """
    if not isinstance(deviations, float | int | np.number) or not 0 < deviations < np.inf:
        raise ValueError(f"deviations must be a positive number; got {deviations!r}.")
    probability = np.asarray(probability, np.float64)
    threshold = float(probability.mean() - deviations * probability.std())
    if threshold < 0:
        warnings.warn(
            f"No row can be anomalous: the mean probability less {deviations:g} standard "
            f"deviations is {threshold:.3f}. Probabilities differ too much for this rule; read "
            "them as they are, or pass fewer deviations.",
            stacklevel=2,
        )
    # If all probabilities are equal up to rounding, no row is anomalous.
    is_anomalous = (probability <= threshold) & (np.ptp(probability) > 1e-12)
    return Anomalies(probability, threshold, is_anomalous)


class FindsAnomalies:
    """Mixin for classifiers that find rows unlike a class."""

    classes_: np.ndarray
    predict_proba: Any

    def anomalies(self, X: Any, normal: Any, *, deviations: float = 2.0) -> Anomalies:
        """Find rows that are unlike a class (DT-GFN, section 5.3.2).

        Parameters
        ----------
        X
            Rows [m], judged together.
        normal
            Label of the class.
        deviations
            Least number of standard deviations by which the class's predictive probability at an
            anomalous row is below the mean of all rows.

        Returns
        -------
        Anomalies
            Predictive probabilities, the threshold, and whether each row is anomalous.

        Raises
        ------
        ValueError
            If the label is not in ``classes_``, or ``deviations`` is not positive.
        """
        check_is_fitted(self)
        (place,) = np.nonzero(self.classes_ == normal)
        if len(place) != 1:
            known = ", ".join(map(repr, self.classes_.tolist()))
            raise ValueError(f"normal must be one of the classes {known}; got {normal!r}.")
        return find_anomalies(self.predict_proba(X)[:, place[0]], deviations)


def num_permutations(num_rows: int, num_features: int) -> int:
    """Return the number of feature orders that scores are averaged over (DT-GFN, appendix H.2).

    Examples
    --------
    >>> num_permutations(106, 6), num_permutations(100, 120)
    (2, 1)
    """
    return min(int(100 / (np.log(num_rows) + num_features)) + 1, 2)


class PermutedColumns(FindsAnomalies, ClassifierMixin, BaseEstimator):
    """Average a classifier over fits on permuted columns (DT-GFN, appendix H.2).

    A posterior does not depend on the order of columns, but its approximations do: differences
    between the fits are errors of the inference.

    Parameters
    ----------
    model
        A classifier.
    permutations
        Number of fits; default `num_permutations`.
    random_state
        Seed of the orders (scikit-learn's meaning).

    Attributes
    ----------
    fits_ : list
        Fitted models.
    orders_ : list of numpy.ndarray
        Order of the columns in each model.
    classes_ : numpy.ndarray
        Labels, sorted.

    Examples
    --------
    >>> from bdtppl import ExactTreeClassifier
    >>> X, y = [[1, 5], [2, 4], [3, 5], [4, 4]] * 5, [0, 0, 1, 1] * 5
    >>> model = PermutedColumns(ExactTreeClassifier(), random_state=0).fit(X, y)
    >>> len(model.fits_), int(model.predict([[4, 5]])[0])
    (2, 1)
    """

    def __init__(self, model: Any, *, permutations: int | None = None, random_state: Any = None):
        self.model = model
        self.permutations = permutations
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> "PermutedColumns":
        """Fit the model on each order of the columns.

        Parameters
        ----------
        X
            Table [n, columns]: array, frame, or mapping of names to columns.
        y
            Class labels [n].
        """
        names = column_names(as_table(X))
        number = num_permutations(len(y), len(names))
        number = number if self.permutations is None else self.permutations
        generator = check_random_state(self.random_state)
        self.orders_ = [generator.permutation(len(names)) for _ in range(number)]
        self.fits_ = [
            cast(Any, clone(self.model)).fit(_taken(X, order), y) for order in self.orders_
        ]
        self.classes_ = self.fits_[0].classes_
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the mean probability of each class, float64 [m, classes]."""
        check_is_fitted(self)
        fits = zip(self.fits_, self.orders_, strict=True)
        return np.mean([fit.predict_proba(_taken(X, order)) for fit, order in fits], axis=0)

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable class of each row, [m]."""
        return self.classes_[self.predict_proba(X).argmax(axis=1)]


def _taken(X: Any, order: np.ndarray) -> Any:
    """Reorder the columns of a table."""
    if not has_names(X):
        return np.asarray(lossless(X))[:, order]
    X = as_table(X)
    names = column_names(X)
    return select(X, [names[place] for place in order])
