"""Linear terms beside sums of trees: what their columns are."""

from typing import Any, NamedTuple

import numpy as np

from bdtppl.models.data.design import Design

__all__ = ["LinearColumns"]

_MOST_DEVIATIONS = 4.0  # new rows beyond this lie as far off as it


class LinearColumns(NamedTuple):
    """The p columns of a linear term: features with a cut, of mean 0 and variance 1.

    Missing values are the mean. Values are within four deviations of it.

    Attributes
    ----------
    feature
        int64 [p].
    mean, deviation
        float64 [p]; of the training rows.
    """

    feature: np.ndarray
    mean: np.ndarray
    deviation: np.ndarray

    @classmethod
    def of(cls, design: Design) -> "LinearColumns":
        """Take the features of a design.

        Examples
        --------
        >>> design = Design.from_matrix(np.array([[1.0, 5.0], [3.0, 5.0], [np.nan, 5.0]]))
        >>> LinearColumns.of(design)(design.matrix).tolist()
        [[-1.0], [1.0], [0.0]]
        """
        feature = np.flatnonzero(design.has_cut)
        columns = np.ma.masked_invalid(design.matrix[:, feature])
        mean = np.ma.average(columns, axis=0, weights=design.weights)
        variance = np.ma.average((columns - mean) ** 2, axis=0, weights=design.weights)
        return cls(feature, np.asarray(mean), np.sqrt(np.asarray(variance)))

    def __call__(self, matrix: Any) -> np.ndarray:
        """Compute the columns of rows [m, d], float64 [m, p]."""
        columns = (np.asarray(matrix, np.float64)[:, self.feature] - self.mean) / self.deviation
        return np.clip(np.nan_to_num(columns), -_MOST_DEVIATIONS, _MOST_DEVIATIONS)
