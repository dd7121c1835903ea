"""A Gibbs step for the linear term of a sum of trees.

Coefficients are normal with mean 0 and one standard deviation, whose prior is half-Cauchy. It is
drawn with an auxiliary inverse gamma variable (Makalic and Schmidt 2016, A simple sampler for the
horseshoe estimator, equations 2 and 3).

Some coefficients may have a known sign. A draw that violates it is rejected, as a
Metropolis-Hastings proposal from the distribution without signs; then the coefficients move one
after the other, each given the others and within its bounds (`slice_within`). The rejection does
not depend on the coefficients before it, so both steps together leave the distribution invariant.
"""

from typing import Any

import numpy as np
from scipy.linalg import solve_triangular

from bdtppl.inference.additive.monotone import slice_within

_FEW_COLUMNS = 200  # columns whose equations are solved even for few rows
_LEAST_SINGULAR = 1e-12  # relative to the largest one
_LEAST_RIDGE = 1e-14  # of the trace
_LEAST_DEVIATION = 1e-10  # deviation relative to its prior's median


class LinearTerm:
    """Gibbs sampler of coefficients and their standard deviation; n rows, p columns.

    Parameters
    ----------
    columns
        float64 [n, p].
    weights
        float64 [n]; weights of the rows.
    scale
        Median of the prior of the deviation, above 0.
    sign
        int [p] or one for all; 1 if a coefficient is not below 0, -1 if not above, else 0.
    """

    def __init__(self, columns: np.ndarray, weights: np.ndarray, scale: float, sign: Any = 0):
        self.columns, self.scale, self._weights = columns, scale, weights
        self._sign = np.broadcast_to(sign, columns.shape[1])
        root = np.sqrt(weights)
        # A basis of independent coefficients if precisions are those of the rows. Repeated rows
        # give the same signs, and the same size if columns are dependent.
        left, singular, basis = np.linalg.svd(root[:, None] * columns, full_matrices=False)
        kept = singular > _LEAST_SINGULAR * singular.max(initial=0.0)
        sign = np.sign(basis[kept] @ np.cos(np.arange(columns.shape[1])))
        self._singular, self._basis = singular[kept], sign[:, None] * basis[kept]
        self._left = sign * left[:, kept] * root[:, None]

    def draw(
        self,
        generator: np.random.Generator,
        target: np.ndarray,
        precision: np.ndarray | None,
        factor: float,
        deviation: float,
        before: np.ndarray | None = None,
    ) -> tuple[np.ndarray, float]:
        """Draw the coefficients, float64 [p], and then their deviation.

        Parameters
        ----------
        generator
            Random numbers.
        target
            float64 [n]; targets of the term.
        precision, factor
            float64 [n], or None for the weights, and a factor; their product is the precision of
            each target.
        deviation
            Standard deviation of the coefficients.
        before
            float64 [p]; the current coefficients, which are needed if they have signs.
        """
        num_rows, num_columns = self.columns.shape
        normal = generator.standard_normal(num_columns)
        if precision is None:
            total = factor * self._singular**2 + deviation**-2
            mean = factor * self._singular * (target @ self._left) / total
            mean += generator.standard_normal(len(total)) / np.sqrt(total)
            drawn = deviation * normal
            drawn += (mean - self._basis @ drawn) @ self._basis
        elif num_columns <= max(num_rows, _FEW_COLUMNS):
            weighted = (factor * precision)[:, None] * self.columns
            total = weighted.T @ self.columns
            # With dependent columns, rounding must not make it indefinite.
            total.flat[:: num_columns + 1] += max(deviation**-2, _LEAST_RIDGE * np.trace(total))
            root = np.linalg.cholesky(total)
            middle = solve_triangular(root, weighted.T @ target, lower=True)
            drawn = solve_triangular(root.T, middle + normal)
        else:
            # Bhattacharya, Chakraborty and Mallick 2016, algorithm 1: a prior draw with its noise
            # is moved to the targets.
            root = np.sqrt(factor * precision)
            rows = root[:, None] * self.columns
            drawn = deviation * normal
            rest = root * target - rows @ drawn - generator.standard_normal(num_rows)
            inverse = rows @ rows.T + np.eye(num_rows) * deviation**-2
            drawn += rows.T @ np.linalg.solve(inverse, rest)
        if before is not None and (self._sign * drawn < 0).any():
            each = factor * (self._weights if precision is None else precision)
            drawn, left = before.copy(), target - self.columns @ before
            for j, sign in enumerate(self._sign.tolist()):
                column = self.columns[:, j]
                weighted = each * column
                total = weighted @ column + deviation**-2
                mean = drawn[j] + (weighted @ left - drawn[j] * deviation**-2) / total
                ends = 0.0 if sign > 0 else -np.inf, 0.0 if sign < 0 else np.inf
                drawn[j] = slice_within(drawn[j], mean, total**-0.5, *ends, generator)
                left += column * (before[j] - drawn[j])
        auxiliary = (self.scale**-2 + deviation**-2) / generator.standard_gamma(1.0)
        shape, rate = 0.5 * (num_columns + 1), 1 / auxiliary + 0.5 * float(drawn @ drawn)
        deviation = float(np.sqrt(rate / generator.standard_gamma(shape)))
        return drawn, max(deviation, _LEAST_DEVIATION * self.scale)
