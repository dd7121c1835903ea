"""Distribution functions of many Student-t distributions, from tables by degrees of freedom.

The tail beyond ``|z|`` is tabulated, with two derivatives, in a variable in which it is smooth.
From 16 degrees of freedom on this is z / sqrt(1 + z^2 / df), which is nearly z; below, for long
tails, the fourth root of ``1 - |z| / sqrt(df + z^2)`` (below 2, the eighth). Quintic Hermite
interpolation between 512 points has an error below 1e-12. From 5,000 degrees of freedom on a normal
distribution in a transformed z is used.

References
----------
Johnson, Kotz and Balakrishnan 1995, Continuous univariate distributions, volume 2, equation 28.26:
Fisher's expansion of the normal deviate.
"""

from typing import Any

import numba
import numpy as np
from scipy.sparse import csr_array, eye_array
from scipy.special import gammaln, ndtr, ndtri, stdtr, stdtrit

from bdtppl.models.arrays.threads import in_threads

_POINTS = 512
_LEAST = 1e-18  # probability of the tail at the end of a table
_SHORT_TAILS = 16.0  # degrees of freedom from which z itself is nearly the variable
_NEARLY_NORMAL = 5000.0  # degrees of freedom
_MIXTURES_AT_ONCE = 64  # mixtures that one thread computes before the next ones


class StudentLaws:
    """Student-t distributions; l of them.

    Parameters
    ----------
    df, loc, scale
        float64 [l]; infinite degrees of freedom for normal distributions.

    Examples
    --------
    >>> laws = StudentLaws(np.array([3.0, np.inf]), np.zeros(2), np.ones(2))
    >>> laws.cdf(np.array([0, 1]), np.array([1.0, 1.0])).round(4)
    array([0.8045, 0.8413])
    """

    name = "Student-t leaf"

    def __init__(self, df: np.ndarray, loc: np.ndarray, scale: np.ndarray):
        self.df, self.loc, self.scale = (np.array(each, np.float64) for each in (df, loc, scale))
        own = np.where(self.df > _NEARLY_NORMAL, np.inf, self.df)
        distinct, table = np.unique(own, return_inverse=True)
        tables = [_tabulate_tail(each) for each in distinct.tolist()]
        root, start, step, values = (np.array(each) for each in zip(*tables, strict=True))
        of_each = self.df, self.loc, self.scale, table.ravel()
        self._laws = *of_each, root, start, 1 / step, values

    def cdf(self, law: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return the CDF of some distributions, int [k], at a value each; float64 [k]."""
        return self.mixed(csr_array(eye_array(len(self.df))), law, y)[0]

    def cdfs(self, which: np.ndarray, points: np.ndarray) -> np.ndarray:
        """Return CDFs of some distributions, int [k], at all points, float64 [k, points]."""
        result = np.empty((len(which), len(points)))
        _all_cdfs(which, np.asarray(points, np.float64), self._laws, result)
        return result

    def mixed(
        self, weights: csr_array, kinds: np.ndarray, values: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the CDF and density of mixtures.

        Parameters
        ----------
        weights
            Sparse float64 [u, l]; weights of the distributions.
        kinds, values
            Mixture indices, int [k], and a value for each.
        """
        return self._mixed(weights, kinds, values, wants_distance=False)

    def mean_distance(self, weights: csr_array, kinds: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return E|Y - y| of mixtures, as for `mixed`, float64 [k]; infinite without a mean."""
        return self._mixed(weights, kinds, y, wants_distance=True)[1]

    def _mixed(self, weights: csr_array, kinds: Any, values: Any, wants_distance: bool) -> Any:
        """Return the CDF and density of mixtures, or the mean distance, float64 [k] each."""
        cdf, other = np.empty((2, len(kinds)))
        sparse, values = (weights.indptr, weights.indices, weights.data), np.asarray(values, float)

        def mix(some: slice) -> None:
            own = sparse, np.asarray(kinds)[some], values[some], self._laws, wants_distance
            _mix(*own, cdf[some], other[some])

        # Distances are needed once; quantiles repeatedly, for mixtures of many distributions.
        size = max(len(kinds), 1) if wants_distance else _MIXTURES_AT_ONCE
        pieces = [slice(a, a + size) for a in range(0, len(kinds), size)]
        in_threads(mix, pieces, weights.nnz)
        return cdf, other


def _tabulate_tail(df: float) -> tuple[int, float, float, np.ndarray]:
    """Tabulate the tail of a distribution.

    Returns which root of 1 - s is the variable, or 0 if it is z / sqrt(1 + z^2 / df); its first
    point and step; and the tail and its derivatives, times the step, [points, 3].
    """
    if np.isinf(df):
        u = np.linspace(0, -ndtri(_LEAST), _POINTS)
        density = np.exp(-u * u / 2) / np.sqrt(2 * np.pi)
        return 0, 0.0, u[1], np.stack([ndtr(-u), -density * u[1], u * density * u[1] ** 2], axis=1)
    constant = np.exp(gammaln((df + 1) / 2) - gammaln(df / 2)) / np.sqrt(np.pi)
    power = df / 2 - 1
    far = -stdtrit(df, _LEAST)
    end = far / np.hypot(np.sqrt(df), far)  # s = z / sqrt(df + z^2), of density (1 - s^2)^power
    if df >= _SHORT_TAILS:
        root, s = 0, np.linspace(0, end, _POINTS)
        start, step = 0.0, s[1] * np.sqrt(df)
        inside = 1 - s * s
        first, second = -constant * inside**power, 2 * constant * power * s * inside ** (power - 1)
        first, second = first * s[1], second * s[1] ** 2
    else:
        root = 4 if df >= 2 else 8
        start = float(df / ((df + far * far) * (1 + end))) ** (1 / root)
        q = np.linspace(start, 1, _POINTS)
        step, rest = q[1] - q[0], q**root
        s, inside = 1 - rest, rest * (2 - rest)
        slope, bend = root * q ** (root - 1), root * (root - 1) * q ** (root - 2)
        density = constant * inside**power
        first = density * slope * step
        rise = 2 * constant * power * inside ** (power - 1) * s
        second = (rise * slope**2 + density * bend) * step**2
    tail = stdtr(df, -np.sqrt(df) * s / np.sqrt(inside))
    return root, start, step, np.stack([tail, first, second], axis=1)


@numba.njit(cache=True, nogil=True, inline="always")
def _law_at(y, j, laws):
    """Interpolate a distribution's cdf, and its density times its scale, at y; standardise y."""
    all_df, loc, scale, table, roots, starts, inverse_steps, tables = laws
    own, df, z = table[j], all_df[j], (y - loc[j]) / scale[j]
    root, start, per_step, values = roots[own], starts[own], inverse_steps[own], tables[own]
    size = min(abs(z), 1e90)  # whose powers are finite
    if root == 0 and df > _NEARLY_NORMAL:
        t, v = size * size, 1.0 / df
        if t > 100.0:  # the tail is negligible, and the expansion may be invalid
            return (0.0 if z < 0 else 1.0), 0.0, z
        first, second = (t + 1) / 4, ((13 * t + 8) * t + 3) / 96
        third = (((35 * t + 19) * t + 1) * t - 15) / 384
        x = size * (1.0 - v * (first - v * (second - v * third)))
        first, second = (3 * t + 1) / 4, ((65 * t + 24) * t + 3) / 96
        third = (((245 * t + 95) * t + 3) * t - 15) / 384
        slope_of_x = v * (first - v * (second - v * third)) - 1.0
    elif root == 0:
        ratio = 1.0 / np.sqrt(1.0 + size * size / df)
        x, slope_of_x = size * ratio, -ratio * ratio * ratio
    else:
        r = np.sqrt(df + size * size)
        rest = df / (r * (r + size))
        x = np.sqrt(np.sqrt(rest))
        if root == 8:
            x = np.sqrt(x)
        slope_of_x = x * df / (rest * root * r * r * r)
    at = (x - start) * per_step
    if at < 0.0 or (root == 0 and at >= len(values) - 1):
        return (0.0 if z < 0 else 1.0), 0.0, z
    i = min(int(at), len(values) - 2)
    h = at - i
    a, a1, a2 = values[i, 0], values[i, 1], values[i, 2] / 2
    b1, b2 = values[i + 1, 1] - a1 - 2 * a2, (values[i + 1, 2] - 2 * a2) / 2
    b = values[i + 1, 0] - a - a1 - a2
    c3, c4, c5 = 10 * b - 4 * b1 + b2, -15 * b + 7 * b1 - 2 * b2, 6 * b - 3 * b1 + b2
    tail = a + h * (a1 + h * (a2 + h * (c3 + h * (c4 + h * c5))))
    slope = a1 + h * (2 * a2 + h * (3 * c3 + h * (4 * c4 + h * 5 * c5)))
    return (tail if z < 0 else 1.0 - tail), slope * per_step * slope_of_x, z


@numba.njit(cache=True, nogil=True)
def _all_cdfs(which, points, laws, result):
    for k in range(len(which)):
        for i in range(len(points)):
            result[k, i], _, _ = _law_at(points[i], which[k], laws)


@numba.njit(cache=True, nogil=True)
def _mix(sparse, kinds, at, laws, wants_distance, cdf, other):
    """Jordan et al. 2019, appendix A: E|T - z| = z (2 F(z) - 1) + 2 f(z) (df + z^2) / (df - 1)."""
    (pointers, entries, weights), all_df, scale = sparse, laws[0], laws[2]
    for k in range(len(kinds)):
        total = total_other = 0.0
        for e in range(pointers[kinds[k]], pointers[kinds[k] + 1]):
            j = entries[e]
            below, slope, z = _law_at(at[k], j, laws)
            total += weights[e] * below
            if not wants_distance:
                total_other += weights[e] * slope / scale[j]
                continue
            df, distance = all_df[j], np.inf
            if df > 1.0:
                reach = 1.0 if np.isinf(df) else (df + z * z) / (df - 1.0)
                distance = z * (2 * below - 1) + 2 * slope * reach
            total_other += weights[e] * scale[j] * distance
        cdf[k], other[k] = total, total_other
