"""Agreement of chains: rank-normalised R-hat, effective sample sizes, and dissenting chains.

Chains of gradient samplers have more diagnostics: the Bayesian fraction of missing information, and
the posterior mass of each chain's mode, which is estimated from the log density of its draws.

References
----------
Vehtari, Gelman, Simpson, Carpenter and Burkner 2021, Rank-normalization, folding, and localization:
an improved R-hat for assessing convergence of MCMC; Betancourt 2016, Diagnosing suboptimal
cotangent disintegrations in Hamiltonian Monte Carlo.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

_FEWEST_DRAWS = 4  # draws of a chain, for its two halves to vary
_FAR_BELOW = 7.0  # nats below the best mode: less than a thousandth of its probability


class Diagnostics(NamedTuple):
    """How well chains agree on one quantity.

    Attributes
    ----------
    r_hat
        Rank-normalised R-hat: 1 if chains agree, NaN for a single chain or fewer than 4 draws.
    ess
        Bulk effective sample size of all chains together.
    """

    r_hat: float
    ess: float


def diagnose(quantities: Mapping[str, np.ndarray]) -> dict[str, Diagnostics]:
    """Compare chains in quantities, float64 [chain, draw] each, or pooled [chain, draw, many].

    The effective sample size of pooled quantities is their median.
    """
    found = {}
    for name, values in quantities.items():
        each = np.moveaxis(np.atleast_3d(values), 2, 0)
        size = np.median([_ess_of(_normal_scores(_halves(own))) for own in each])
        found[name] = Diagnostics(_r_hat(values), float(size))
    return found


def error_of_mean(values: np.ndarray) -> float:
    """Estimate the standard error of the mean of draws [chain, draw]; NaN below 4 draws."""
    return float(values.std(ddof=1) / np.sqrt(_ess_of(_halves(values))))


def dissenting_chains(values: np.ndarray, bound: float) -> list[int]:
    """Find chains to exclude, until the R-hat of the others is at most a bound; two remain.

    The chain of values [chain, draw] whose removal gives the least R-hat is excluded repeatedly.
    """
    left = list(range(len(values)))
    while len(left) > 2 and not _r_hat(values[left]) <= bound:
        without = [_r_hat(values[[c for c in left if c != chain]]) for chain in left]
        left.pop(int(np.argmin(without)))
    return [chain for chain in range(len(values)) if chain not in left]


def energy_information(energy: np.ndarray) -> np.ndarray:
    """Return each chain's Bayesian fraction of missing information; below .3 indicates trouble.

    It is the mean square of changes of energies [..., chain, draw] over their variance.
    """
    changes = np.diff(energy, axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return (changes**2).mean(axis=-1) / energy.var(axis=-1)


def log_masses(position: np.ndarray, log_density: np.ndarray) -> np.ndarray:
    """Estimate the log integral of the density over each chain's mode.

    The mean log density of draws, plus the entropy of their distribution, is the log of the
    normalising constant. The entropy is approximated by that of a normal distribution with the
    draws' covariance. This is for comparing chains, not for estimating evidence.

    Parameters
    ----------
    position
        float [..., chain, draw, size]; at least two draws.
    log_density
        float [..., chain, draw]; unnormalised.

    Returns
    -------
    numpy.ndarray
        float64 [..., chain]; -inf if a chain does not move.
    """
    num_draws, size = position.shape[-2:]
    away = position - position.mean(axis=-2, keepdims=True, dtype=np.float64)
    covariance = np.swapaxes(away, -1, -2) @ away / (num_draws - 1)
    # Few draws in many dimensions span no volume, so shrink towards independent coordinates.
    kept = num_draws / (num_draws + size)
    covariance = np.where(np.eye(size, dtype=bool), covariance, kept * covariance)
    with np.errstate(divide="ignore"):
        log_volume = np.linalg.slogdet(2 * np.pi * np.e * covariance)[1]
    return log_density.mean(axis=-1) + log_volume / 2


def stuck(log_masses: np.ndarray, within: float = _FAR_BELOW) -> np.ndarray:
    """Flag chains in modes of negligible mass, bool [..., chain].

    Parameters
    ----------
    log_masses
        float [..., chain]; see `log_masses`.
    within
        A mode is negligible this many nats below the best chain.

    Examples
    --------
    >>> stuck(np.array([-50.0, -84.0, -51.5])).tolist()
    [False, True, False]
    """
    return ~(log_masses >= log_masses.max(axis=-1, keepdims=True) - within)


def _r_hat(values: np.ndarray) -> float:
    """Return R-hat of values [chain, draw, ...]; infinite for chains stuck at other values."""
    if len(values) < 2 or values.shape[1] < _FEWEST_DRAWS:
        return float("nan")
    if (values == values[:, :1]).all():
        return 1.0 if (values == values[0, 0]).all() else float("inf")
    if values.ndim > 2:
        return _pooled_r_hat(values)
    halves = _halves(values)
    folded = np.abs(halves - np.median(halves))
    each = [_pooled_r_hat(_normal_scores(own)[:, :, None], split=False) for own in (halves, folded)]
    return max(each)


def _pooled_r_hat(values: np.ndarray, *, split: bool = True) -> float:
    """Sum the variances between and within halves of chains over quantities of one unit.

    Gelman and others 2013, Bayesian Data Analysis, section 11.4; chance moves this less than the
    largest R-hat of all.
    """
    halves = _halves(values) if split else values
    draws = halves.shape[1]
    within = halves.var(axis=1, ddof=1).mean(axis=0).sum()
    between = halves.mean(axis=1).var(axis=0, ddof=1).sum()
    with np.errstate(divide="ignore", invalid="ignore"):  # constant draws have no variance
        return float(np.sqrt((draws - 1) / draws + between / within))


def _halves(values: np.ndarray) -> np.ndarray:
    """Return the first and the second half of each chain [chain, draw, ...] as chains."""
    size = values.shape[1] // 2
    return np.concatenate([values[:, :size], values[:, values.shape[1] - size :]])


def _normal_scores(values: np.ndarray) -> np.ndarray:
    """Replace values by the normal quantiles of their ranks; ties have their mean rank."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    rank = np.cumsum(count) - (count - 1) / 2
    scores = ndtri((rank - 3 / 8) / (values.size + 1 / 4))[place].reshape(values.shape)
    return np.where(np.isfinite(values), scores, np.nan)


def _ess_of(values: np.ndarray) -> float:
    """Return the effective sample size of chains [chain, draw], halves of longer ones.

    Autocorrelations are summed in pairs until a pair's sum is negative, and no such sum may exceed
    the one before (Geyer 1992, Practical Markov chain Monte Carlo).
    """
    chains, draws = values.shape
    if 2 * draws < _FEWEST_DRAWS or not np.isfinite(values).all():
        return float("nan")
    if np.ptp(values) < np.finfo(float).resolution:
        return float(values.size)
    away = values - values.mean(axis=1, keepdims=True)
    power = np.abs(np.fft.rfft(away, 2 * draws, axis=1)) ** 2
    covariance = np.fft.irfft(power, axis=1)[:, :draws].mean(axis=0) / draws
    within = covariance[0] * draws / (draws - 1)
    variance = covariance[0] + (values.mean(axis=1).var(ddof=1) if chains > 1 else 0.0)
    correlation = 1 - (within - covariance) / variance
    correlation[0] = 1.0
    pairs = correlation[: draws // 2 * 2].reshape(-1, 2).sum(axis=1)
    last = min(int(np.append(pairs <= 0, True).argmax()), max(draws - 3, 0) // 2)
    total = 2 * np.minimum.accumulate(pairs[:last]).sum() - 1
    if (one := correlation[2 * last]) > 0 or pairs[last] >= 0:
        total += one
    return float(values.size / max(total, 1 / np.log10(values.size)))
