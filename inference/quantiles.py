"""Quantiles of many distributions at once: bracketed Newton's method, or bisection."""

from collections.abc import Callable

import numpy as np

MOST_WIDENINGS = 60  # of a bracket, each at least twofold
_MOST_STEPS = 100
_PRECISION = 1e-13  # tolerance of the probability at a quantile


def require_cdf(cdf: np.ndarray, law: str) -> np.ndarray:
    """Return values of a cdf.

    Raises
    ------
    ValueError
        If one of them is not a number.
    """
    if np.isnan(cdf).any():
        raise ValueError(f"The cdf of {law} is not a number (NaN).")
    return cdf


def no_bracket(probabilities, law: str) -> ValueError:
    """Make the error for quantiles without a bracket."""
    return ValueError(
        f"The quantiles {list(probabilities)} of {law} cannot be bracketed: its cdf must rise from "
        "0 to 1."
    )


def solve(
    law: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]],
    probability: float,
    low: np.ndarray,
    high: np.ndarray,
    start: np.ndarray,
) -> np.ndarray:
    """Solve cdf(value) = probability for k distributions.

    Parameters
    ----------
    law
        Function of the numbers of some distributions, int [a], and a value for each; returns their
        cdfs and densities, float64 [a] each. The bracket is halved if a density is 0.
    probability
        In (0, 1).
    low, high
        float64 [k]; brackets of the quantiles.
    start
        float64 [k]; first guesses.

    Returns
    -------
    numpy.ndarray
        float64 [k].
    """
    low, high, value = low.copy(), high.copy(), start.copy()
    active = np.arange(len(value))
    for _ in range(_MOST_STEPS):
        if not len(active):
            break
        cdf, density = law(active, value[active])
        error = cdf - probability
        low[active] = np.where(error < 0, value[active], low[active])
        high[active] = np.where(error < 0, high[active], value[active])
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            newton = value[active] - error / density
        is_inside = (low[active] < newton) & (newton < high[active])
        is_open = (np.abs(error) > _PRECISION) & (high - low > 4e-16 * np.abs(value))[active]
        moved = np.where(is_inside, newton, (low + high)[active] / 2)
        value[active] = np.where(is_open, moved, value[active])
        active = active[is_open]
    return value


def solve_counts(
    cdf: Callable[[np.ndarray, np.ndarray], np.ndarray],
    probability: float,
    low: np.ndarray,
    high: np.ndarray,
) -> np.ndarray:
    """Find the least integer with cdf(number) >= probability for k discrete distributions.

    Parameters
    ----------
    cdf
        Function of the numbers of all distributions, int [k], and a value for each; returns their
        cdfs, float64 [k].
    probability
        In (0, 1).
    low, high
        float64 [k]; brackets of the quantiles.

    Returns
    -------
    numpy.ndarray
        float64 [k]; whole numbers.
    """
    below, above, every = np.floor(low) - 1, np.ceil(high), np.arange(len(low))
    while (above - below > 1).any():
        middle = np.floor((below + above) / 2)
        is_reached = cdf(every, middle) >= probability
        below, above = np.where(is_reached, below, middle), np.where(is_reached, middle, above)
    return above
