"""The continuous ranked probability score of mixtures of normal and Student-t distributions.

For a distribution F and a target y the score is E|Y - y| - E|Y - Y'| / 2, with Y and Y' independent
under F. It is the integral of (F(z) - 1{y <= z})^2, in the units of y, 0 at best. The first term
has a closed form. The second is the integral of F (1 - F), which is smooth: the trapezoidal rule
uses points that are dense about the centre and reach far into the tails. Mixtures share the points,
so a distribution costs as much in a thousand mixtures as in one. Points are doubled, up to 65,537,
until this changes the integral by less than 1e-8 of itself, which far exceeds the remaining error.
Mixtures much narrower than the whole set get their own points.

References
----------
Gneiting and Raftery 2007, Strictly proper scoring rules, prediction, and estimation, section 4.2;
Jordan, Krueger and Lerch 2019, Evaluating probabilistic forecasts with scoringRules, appendix A.
"""

from typing import Any

import numpy as np
from scipy.sparse import csr_array

from bdtppl.inference.student import StudentLaws

_TAIL_REACH = 10.0  # sinh(10): tails as far as 11,000 widths
_LEAST_POINTS = 129
_MOST_HALVINGS = 9  # of the step, to 65,537 points
_SHARED_HALVINGS = 4  # to 2,049 points
_TOLERANCE = 1e-8  # relative change of the integral
_CDFS_AT_ONCE = 1 << 21  # cdfs at once


def crps(
    y: np.ndarray,
    weight: np.ndarray,
    loc: np.ndarray,
    scale: np.ndarray,
    degrees_of_freedom: np.ndarray | float | None = None,
) -> np.ndarray:
    """Score targets predicted by one mixture of l distributions.

    Parameters
    ----------
    y
        float [m]; targets.
    weight
        float [l]; weights of the distributions, which sum to 1.
    loc, scale
        float [l].
    degrees_of_freedom
        Degrees of freedom of Student-t distributions, for each or for all; None for normal ones.
        The score is infinite if one is at most 1.

    Returns
    -------
    numpy.ndarray
        float64 [m], in units of y; lower is better.

    Examples
    --------
    >>> normal = crps(np.zeros(1), np.ones(1), np.zeros(1), np.ones(1))
    >>> exact = (np.sqrt(2) - 1) / np.sqrt(np.pi)
    >>> bool(abs(normal[0] - exact) < 1e-12)
    True
    """
    df = np.inf if degrees_of_freedom is None else degrees_of_freedom
    loc, scale, df = np.broadcast_arrays(loc, scale, df)
    weights = csr_array(np.asarray(weight, np.float64)[None])
    return mixture_crps(y, np.zeros(len(y), int), weights, StudentLaws(df, loc, scale))


def mixture_crps(y: np.ndarray, kind: np.ndarray, weights: Any, laws: StudentLaws) -> np.ndarray:
    """Score targets predicted by u mixtures of l distributions.

    Parameters
    ----------
    y, kind
        Targets, float [m], and the mixture of each, int [m].
    weights
        Sparse float64 [u, l]; weights of the distributions, which sum to 1 in each mixture.
    laws
        The distributions.

    Returns
    -------
    numpy.ndarray
        float64 [m], in units of y.
    """
    distance = laws.mean_distance(weights, kind, y)
    used, place = np.unique(kind, return_inverse=True)
    weights = weights[used]
    half, is_open = _half_differences(weights, laws, _SHARED_HALVINGS)
    for row in np.flatnonzero(is_open):
        half[row] = _half_differences(weights[[row]], laws, _MOST_HALVINGS)[0][0]
    return distance - half[place]


def _half_differences(
    weights: Any, laws: StudentLaws, most_halvings: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return E|Y - Y'| / 2 of each mixture, float64 [u], and whether it still changes, bool [u]."""
    pooled = weights.sum(axis=0) / weights.shape[0]
    centre = pooled @ laws.loc
    width = np.sqrt(pooled @ ((laws.loc - centre) ** 2 + laws.scale**2))
    active = np.arange(weights.shape[0])
    total, result = np.zeros((2, len(active)))
    points, step = np.linspace(-_TAIL_REACH, _TAIL_REACH, _LEAST_POINTS, retstep=True)
    for halving in range(most_halvings + 1):
        at = points if not halving else np.arange(-_TAIL_REACH + step, _TAIL_REACH, 2 * step)
        total[active] += _spreads(weights[active], laws, centre + width * np.sinh(at), np.cosh(at))
        before, result[active] = result[active], step * width * total[active]
        change = np.abs(result[active] - before)
        active = active[~(change < _TOLERANCE * result[active])]
        step /= 2
        if not len(active):
            break
    return result, np.isin(np.arange(len(result)), active)


def _spreads(
    weights: Any, laws: StudentLaws, points: np.ndarray, at_points: np.ndarray
) -> np.ndarray:
    """Sum F (1 - F) of each mixture over weighted points; float64 [u]."""
    used, place = np.unique(weights.indices, return_inverse=True)
    weights = csr_array((weights.data, place, weights.indptr), (weights.shape[0], len(used)))
    total, size = np.zeros(weights.shape[0]), max(1, _CDFS_AT_ONCE // max(weights.shape))
    for start in range(0, len(points), size):
        some = slice(start, start + size)
        below = np.minimum(weights @ laws.cdfs(used, points[some]), 1.0)
        total += (below * (1 - below)) @ at_points[some]
    return total
