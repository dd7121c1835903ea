"""A Gibbs step of the linear term of a sum of trees.

Coefficients are normal with mean 0 and one standard deviation, whose prior is half-Cauchy. It is
drawn by way of an inverse gamma variable (Makalic and Schmidt 2016, A simple sampler for the
horseshoe estimator, equations 2 and 3).
"""

import numpy as np

_LEAST_DEVIATION = 1e-10  # of the deviation in its prior's median


class LinearTerm:
    """Draws coefficients and their deviation, given what they explain; n rows, p columns.

    Parameters
    ----------
    columns
        float64 [n, p].
    weights
        float64 [n]; of the rows.
    scale
        Median of the prior of the deviation, above 0.
    """

    def __init__(self, columns: np.ndarray, weights: np.ndarray, scale: float):
        self.columns, self.scale = columns, scale
        root = np.sqrt(weights)
        # A basis in which coefficients are independent, where precisions are those of the rows.
        left, self._singular, self._basis = np.linalg.svd(
            root[:, None] * columns, full_matrices=False
        )
        self._left = left * root[:, None]

    def draw(
        self,
        generator: np.random.Generator,
        target: np.ndarray,
        precision: np.ndarray | None,
        factor: float,
        deviation: float,
    ) -> tuple[np.ndarray, float]:
        """Draw the coefficients, float64 [p], and then their deviation.

        Parameters
        ----------
        generator
            Random numbers.
        target
            float64 [n]; what the term explains.
        precision, factor
            float64 [n], or None for the weights, and a factor; their product is the precision of
            each target.
        deviation
            Standard deviation of the coefficients.
        """
        num_columns = self.columns.shape[1]
        drawn = deviation * generator.standard_normal(num_columns)
        if precision is None:
            total = factor * self._singular**2 + deviation**-2
            mean = factor * self._singular * (target @ self._left) / total
            mean += generator.standard_normal(len(total)) / np.sqrt(total)
            drawn += (mean - self._basis @ drawn) @ self._basis
        else:
            # Bhattacharya, Chakraborty and Mallick 2016, algorithm 1: a draw of the prior with its
            # noise is moved to the targets, by the smaller of two systems of equations.
            root = np.sqrt(factor * precision)
            rows = root[:, None] * self.columns
            noise = generator.standard_normal(len(target))
            rest = root * target - rows @ drawn - noise
            if num_columns <= len(target):
                inverse = rows.T @ rows + np.eye(num_columns) * deviation**-2
                drawn += np.linalg.solve(inverse, rows.T @ rest)
            else:
                inverse = rows @ rows.T + np.eye(len(target)) * deviation**-2
                drawn += rows.T @ np.linalg.solve(inverse, rest)
        auxiliary = (self.scale**-2 + deviation**-2) / generator.standard_gamma(1.0)
        shape, rate = 0.5 * (num_columns + 1), 1 / auxiliary + 0.5 * float(drawn @ drawn)
        deviation = float(np.sqrt(rate / generator.standard_gamma(shape)))
        return drawn, max(deviation, _LEAST_DEVIATION * self.scale)
