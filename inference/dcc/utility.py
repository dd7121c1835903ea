"""The utility of topologies, which chooses the next: equation 10 of DCC-Tree, on the log scale.

    U_m = ((1 - delta) tau_m / max tau + delta rho_m / max rho + beta log(S) / sqrt(S_m)) / S_m

with S_m visits of topology m and S of all. Exploitation tau_m (section B.2) is the root of Z_m^2 +
(1 + kappa) sigma_m^2, where sigma_m^2 is the variance of the importance weights; exploration rho_m
(section B.3) is the probability that one of some further weights, log-normal like the observed
ones, is greater than all observed weights of any topology.

References
----------
Cochrane, Wills and Johnson 2024, Divide, Conquer, Combine Bayesian Decision Tree Sampling, sections
3.2, B.2 and B.3; Rainforth, Zhou, Lu, Teh, Wood, Yang and van de Meent 2018, Inference trees.
"""

import numpy as np
from scipy.special import log_ndtr


def exploitation(log_evidence: np.ndarray, log_variance: np.ndarray, kappa: float) -> np.ndarray:
    """Compute tau_m / max tau, float64 [m].

    Parameters
    ----------
    log_evidence, log_variance
        float [m]; log Z_m and log sigma_m^2.
    kappa
        At least -1.
    """
    with np.errstate(divide="ignore"):
        log_tau = np.logaddexp(2 * log_evidence, np.log(1 + kappa) + log_variance) / 2
    return np.exp(log_tau - log_tau.max())


def exploration(
    mean: np.ndarray, deviation: np.ndarray, log_threshold: float, look_ahead: int
) -> np.ndarray:
    """Compute rho_m / max rho, float64 [m].

    Parameters
    ----------
    mean, deviation
        float [m]; mean and deviation of each topology's log weights, the latter above 0.
    log_threshold
        The greatest log weight so far.
    look_ahead
        Number of further weights, T_a.
    """
    score = (log_threshold - mean) / deviation
    log_all_below = look_ahead * log_ndtr(score)
    # If weights above the threshold are rare, look_ahead of them multiply the probability.
    with np.errstate(divide="ignore"):
        log_rho = np.where(
            log_all_below > -1e-9,
            np.log(look_ahead) + log_ndtr(-score),
            np.log(-np.expm1(log_all_below)),
        )
    return np.exp(log_rho - log_rho.max())


def utility(
    visits: np.ndarray,
    exploitation: np.ndarray,
    exploration: np.ndarray,
    *,
    delta: float = 0.0,
    optimism: float = 1.0,
) -> np.ndarray:
    """Compute U_m, float64 [m].

    Parameters
    ----------
    visits
        int [m]; S_m, at least 1.
    exploitation, exploration
        float [m]; relative terms.
    delta
        Share of exploration, in [0, 1].
    optimism
        beta, the weight of topologies with few visits.

    Examples
    --------
    >>> utility(np.array([1, 3]), np.array([0.5, 1]), np.ones(2)).round(3)
    array([1.886, 0.6  ])
    """
    boost = optimism * np.log(visits.sum()) / np.sqrt(visits)
    return ((1 - delta) * exploitation + delta * exploration + boost) / visits
