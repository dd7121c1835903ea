"""Estimates of evidence, and summaries of importance weights.

The mean of the weights target / proposal is an unbiased estimate of the evidence Z. Its logarithm
is reported, with an error by the delta method, the effective sample size of the weights, and
Pareto's k, the shape of their largest ones: above 0.7 neither the estimate nor its error is
reliable.

References
----------
Vehtari, Simpson, Gelman, Yao and Gabry 2024, Pareto smoothed importance sampling.
Zhang and Stephens 2009, A new and efficient estimation method for the generalized Pareto
distribution.
"""

import warnings
from collections.abc import Callable
from typing import Literal, NamedTuple, get_args

import numpy as np
from scipy.special import softmax

from bdtppl.inference.statistics import effective_sample_size
from bdtppl.models.arguments import require_choice

EvidenceMethod = Literal["auto", "lais", "smc"]

LARGEST_PARETO_K = 0.7  # Vehtari et al., section 3.2.4
_LEAST_EFFECTIVE_SIZE = 100.0
_FEWEST_IN_TAIL = 5  # weights from which a shape is estimated
_PRIOR_WEIGHT = 10.0  # weight of the shape 0.5
GREATEST_ERROR = 0.25  # in nats; if a few runs or weights dominate, the error is near 1


class Evidence(NamedTuple):
    """An estimate of log Z.

    Attributes
    ----------
    log_evidence, standard_error
        The estimate and its standard error.
    method
        "lais", "smc", "bridge", or "exact".
    effective_size
        Effective sample size of the weights; infinite if there are none.
    pareto_k
        Shape of the largest weights; minus infinity if there are none, or all are equal.
    reason
        Why this method was used.
    """

    log_evidence: float
    standard_error: float
    method: str
    effective_size: float = np.inf
    pareto_k: float = -np.inf
    reason: str = ""

    @property
    def is_reliable(self) -> bool:
        """Whether the weights, or runs, are even enough to trust the error."""
        return bool(
            np.isfinite(self.log_evidence)
            and self.standard_error <= GREATEST_ERROR
            and self.pareto_k <= LARGEST_PARETO_K
            and self.effective_size >= _LEAST_EFFECTIVE_SIZE
        )

    def describe_weights(self) -> str:
        """Describe how even the weights are."""
        said = [f"standard error {self.standard_error:.2f}"]
        if np.isfinite(self.pareto_k):
            said.append(f"Pareto k {self.pareto_k:.2f}")
        return ", ".join([*said, f"effective sample size {self.effective_size:.0f}"])

    def warn(self, of: str = "", stacklevel: int = 1) -> "Evidence":
        """Warn if the weights are too uneven, ``stacklevel`` calls above; return the estimate.

        The warning names ``of``, the model of the evidence.
        """
        if not self.is_reliable:
            what = f"log evidence of {of}" if of else "log evidence"
            warnings.warn(
                f"{what}, {self.log_evidence:.2f} ({self.method}), is not reliable: "
                f"{self.describe_weights()}; required are an error of at most {GREATEST_ERROR}, k "
                f"of at most {LARGEST_PARETO_K}, and a size of at least "
                f"{_LEAST_EFFECTIVE_SIZE:.0f}.",
                stacklevel=1 + stacklevel,
            )
        return self


def summarise(log_weight: np.ndarray) -> Evidence:
    """Estimate log Z from stratified importance weights.

    A stratum is one proposal of a mixture. Its weights have independent errors around its own mean,
    and the mean of the strata's means is Z. So only the variance within strata counts. This
    variance is unknown if strata have a single weight; then all weights form one stratum, which
    overestimates the error.

    Parameters
    ----------
    log_weight
        float [..., m]; log target over proposal. The last axis is that of a stratum.

    Returns
    -------
    Evidence
        Estimate by the method "lais".
    """
    log_weight = np.asarray(log_weight, np.float64)
    strata = log_weight.reshape(-1, log_weight.shape[-1])
    if strata.shape[1] == 1:
        strata = strata.reshape(1, -1)
    highest = strata.max(initial=-np.inf)
    if not np.isfinite(highest):
        return Evidence(-np.inf, np.inf, "lais", 0.0, np.inf)
    weight = np.exp(strata - highest)
    mean = weight.mean()
    variance = weight.var(axis=1, ddof=1).mean() / weight.size
    return Evidence(
        log_evidence=float(np.log(mean) + highest),
        standard_error=float(np.sqrt(variance) / mean),
        method="lais",
        effective_size=effective_sample_size(weight),
        pareto_k=pareto_k(log_weight),
    )


class Moments(NamedTuple):
    """Moments of weights and of their logs.

    Attributes
    ----------
    log_mean, log_variance
        Logs of the mean and of the variance of the weights.
    highest, mean, deviation
        Greatest, mean and standard deviation of the finite logs.
    """

    log_mean: float
    log_variance: float
    highest: float
    mean: float
    deviation: float


def moments(log_weight: np.ndarray) -> Moments:
    """Compute moments of weights from their logs, of which some are finite."""
    finite = log_weight[np.isfinite(log_weight)].astype(np.float64)
    highest = finite.max()
    weight = np.exp(finite - highest)
    mean = weight.sum() / log_weight.size
    squares = ((weight - mean) ** 2).sum() + (log_weight.size - finite.size) * mean**2
    with np.errstate(divide="ignore"):
        log_variance = np.log(squares / log_weight.size) + 2 * highest
    return Moments(
        float(np.log(mean) + highest),
        float(log_variance),
        float(highest),
        float(finite.mean()),
        float(finite.std()),
    )


def pareto_k(log_weight: np.ndarray) -> float:
    """Estimate the shape of a generalised Pareto distribution of the largest weights.

    The method is that of Zhang and Stephens 2009, shrunk towards 0.5 as if by ten more weights
    (Vehtari et al. 2024, appendix C). Infinite if there are too few weights; minus infinity if all
    are equal.

    Examples
    --------
    >>> normal = np.random.default_rng(0).normal(size=4000)
    >>> bool(pareto_k(normal) < 0.7 < pareto_k(4 * normal))
    True
    """
    # Not ArviZ's: some of its versions take the logs of weights and some the logs of their inverse.
    log_weight = np.sort(np.asarray(log_weight, np.float64), axis=None)
    if np.ptp(log_weight) < 1e-9:
        return -np.inf
    number = int(np.ceil(min(0.2 * log_weight.size, 3 * np.sqrt(log_weight.size))))
    weight = np.exp(log_weight[-number - 1 :] - log_weight[-1])
    excess = weight - max(weight[0], np.finfo(float).tiny)
    excess = excess[excess > 0]
    if len(excess) < _FEWEST_IN_TAIL:
        return np.inf
    shape = _generalised_pareto_shape(excess)
    return float((len(excess) * shape + _PRIOR_WEIGHT * 0.5) / (len(excess) + _PRIOR_WEIGHT))


def _generalised_pareto_shape(x: np.ndarray) -> float:
    """Estimate the shape from sorted numbers above 0, by the mean of a profile likelihood."""
    number = 30 + int(np.sqrt(len(x)))
    at = np.arange(1, number + 1) - 0.5
    quartile = x[int(len(x) / 4 + 0.5) - 1]
    theta = 1 / x[-1] + (1 - np.sqrt(number / at)) / (3 * quartile)
    shape = np.log1p(-theta[:, None] * x).mean(axis=1)
    profile = len(x) * (np.log(-theta / shape) - shape - 1)
    return float(np.log1p(-(softmax(profile) @ theta) * x).mean())


def log_mean(log_estimates: np.ndarray) -> tuple[float, float]:
    """Return the log of the mean of independent estimates, from their logs [r], and its error.

    The error is by the delta method: the standard error of the mean over the mean; NaN for one
    estimate.
    """
    number = len(log_estimates)
    result = float(np.logaddexp.reduce(log_estimates) - np.log(number))
    if number == 1:
        return result, float("nan")
    return result, float(np.exp(log_estimates - result).std(ddof=1) / np.sqrt(number))


def log_normal_error(log_estimates: np.ndarray) -> float:
    """Estimate the standard error of the log mean of log-normal estimates, from their logs [r].

    Few estimates with heavy tails rarely include the large ones, and the delta method never gives
    an error above 1. This error grows with the variance of the logs; it is NaN for one estimate.

    References
    ----------
    Zhou and Gao 1997, Confidence intervals for the log-normal mean, the method of Cox.
    """
    number = len(log_estimates)
    if number == 1:
        return float("nan")
    variance = log_estimates.var(ddof=1)
    return float(np.sqrt(variance / number + variance**2 / (2 * (number - 1))))


def may_need_tempered(method: EvidenceMethod, layered: Evidence) -> bool:
    """Return whether `choose_estimate` would run tempered SMC."""
    return method == "smc" or (method == "auto" and not layered.is_reliable)


def choose_estimate(
    method: EvidenceMethod, layered: Evidence, tempered: Callable[[], Evidence]
) -> Evidence:
    """Return the estimate by importance sampling, or run tempered SMC for another one.

    Both have mean Z, so neither is often far too high: P(estimate > a Z) < 1 / a. An estimate that
    missed modes is too low. So SMC that ends clearly below importance sampling is not used.

    Parameters
    ----------
    method
        "lais", "smc", or "auto": importance sampling if its weights are even enough.
    layered
        The estimate by layered adaptive importance sampling.
    tempered
        Runs SMC.

    Returns
    -------
    Evidence
        Its ``reason`` states why it was used.

    Raises
    ------
    ValueError
        If the method is not known.
    """
    require_choice("method", method, get_args(EvidenceMethod))
    if method == "lais":
        return layered._replace(reason="asked for")
    if method == "smc":
        return tempered()._replace(reason="asked for")
    described = layered.describe_weights()
    if not may_need_tempered(method, layered):
        return layered._replace(reason=f"its weights are even enough: {described}")
    other = tempered()
    errors = 3 * np.hypot(layered.standard_error, other.standard_error)
    if other.log_evidence < layered.log_evidence - errors:
        missed = f"tempered SMC has missed modes: it found {other.log_evidence:.2f}"
        return layered._replace(reason=f"{missed}, though weights are uneven: {described}")
    return other._replace(reason=f"weights of importance sampling are too uneven: {described}")
