"""Monte Carlo errors of posterior shares.

The error of a share depends on the sampler: draws along chains are correlated; weighted runs are
independent of each other; draws with importance weights are all independent.

References
----------
Flegal and Jones 2010, Batch means and spectral variance estimators in Markov chain Monte Carlo;
Owen 2013, Monte Carlo theory, methods and examples, section 9.2, for ratios of weighted means.
"""

from typing import Literal

import numpy as np

Draws = Literal["chains", "runs", "independent"]


def share_errors(member: np.ndarray, weights: np.ndarray, draws: Draws) -> np.ndarray:
    """Estimate the standard errors of weighted shares of draws.

    Parameters
    ----------
    member
        [chain, draw, k]; whether, or how much, each draw belongs to each of k kinds. The shares are
        its weighted means.
    weights
        float [chain, draw]; weights that sum to 1.
    draws
        "chains" for Markov chains, whose draws are averaged in batches of about the square root of
        their number; "runs" if chains are independent runs of weighted draws; "independent" if all
        draws are independent.

    Returns
    -------
    numpy.ndarray
        float64 [k]; NaN if there is only one run or batch.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> member = rng.random((4, 2500, 1)) < 0.5
    >>> weights = np.full((4, 2500), 1 / 10_000)
    >>> for kind in ("chains", "independent"):
    ...     print(share_errors(member, weights, kind).round(3).item())  # sqrt(.25 / 10,000)
    0.005
    0.005
    """
    if draws == "chains":
        groups = _batches(weights.shape)
    elif draws == "runs":
        groups = np.broadcast_to(np.arange(len(weights))[:, None], weights.shape)
    else:
        groups = np.arange(weights.size).reshape(weights.shape)
    shares = np.tensordot(weights, member, axes=2)
    away = weights[..., None] * (member - shares)
    number = int(groups.max()) + 1
    if number < 2:
        return np.full(len(shares), np.nan)
    sums = np.zeros((number, member.shape[-1]))
    np.add.at(sums, groups, away)
    return np.sqrt(number / (number - 1) * (sums**2).sum(axis=0))


def _batches(shape: tuple[int, ...]) -> np.ndarray:
    """Return batch numbers of successive draws within chains, int [chain, draw]."""
    chains, draws = shape
    each = max(draws // max(int(np.sqrt(draws)), 1), 1)  # batches a chain
    batch = np.minimum(np.arange(draws) * each // draws, each - 1)
    return np.arange(chains)[:, None] * each + batch[None]
