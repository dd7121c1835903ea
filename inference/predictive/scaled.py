"""Posterior predictives of targets whose transformed values have a known predictive."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import jax
import numpy as np

from bdtppl.inference.soft.mixture import NoiseMixture
from bdtppl.models.data.target_scale import TargetScale

_TAIL_DEVIATIONS = (
    10.0  # standard deviations beyond the outermost centres, where the tails are negligible
)
_NODES_AT_FIRST = 64
_MOST_DOUBLINGS = 4
_MOST_CHANGE = 1e-7  # relative change of a score


@dataclass(frozen=True, eq=False)
class ScaledMixture:
    """Equal shares of s distributions for each of m rows: targets are normal on their scale.

    Attributes
    ----------
    inner
        Predictive of transformed targets, with normal distributions.
    scale
        The transformation.
    """

    inner: NoiseMixture
    scale: TargetScale

    @cached_property
    def means(self) -> np.ndarray:
        """Return the mean of a new target for each draw, float64 [s, m]."""
        return self.scale.mean_of_normal(self.inner.loc, self.inner.scale)

    @cached_property
    def _of_means(self) -> NoiseMixture:
        return NoiseMixture(self.means, self.inner.scale)

    def mean(self) -> np.ndarray:
        """Return the predictive mean, float64 [m]."""
        return self._of_means.mean()

    def mean_quantiles(self, probabilities: Sequence[float]) -> np.ndarray:
        """Return quantiles over the draws of the means, float64 [m, probabilities]."""
        return self._of_means.mean_quantiles(probabilities)

    def log_density(self, y: np.ndarray) -> np.ndarray:
        """Return the log density of one target per row, float64 [m]."""
        return self.inner.log_density(self.scale.forward(y)) + self.scale.log_slope(y)

    def each_log_density(self, y: np.ndarray) -> np.ndarray:
        """Return the log density under each draw, float64 [s..., m]."""
        return self.inner.each_log_density(self.scale.forward(y)) + self.scale.log_slope(y)

    def cdf(self, y: np.ndarray) -> np.ndarray:
        """Return the probability of a target of at most y, one for each row, float64 [m]."""
        return self.inner.cdf(self.scale.forward(y))

    def each_cdf(self, y: np.ndarray) -> np.ndarray:
        """Return the probability under each draw, float64 [s..., m]."""
        return self.inner.each_cdf(self.scale.forward(y))

    def quantiles(self, probabilities: Sequence[float]) -> np.ndarray:
        """Return quantiles, float64 [m, probabilities]."""
        return self.scale.inverse(self.inner.quantiles(probabilities))

    def sample(self, rng_key: jax.Array, num_draws: int, *, first_row: int = 0) -> np.ndarray:
        """Draw targets, [num_draws, m]; draws of a row depend on its index alone."""
        return self.scale.inverse(self.inner.sample(rng_key, num_draws, first_row=first_row))

    def crps(self, y: np.ndarray) -> np.ndarray:
        """Return the continuous ranked probability score of one target per row, float64 [m].

        The integral of (F(x) - 1{y <= x})^2 over x, on either side of y, is computed on the scale
        by Gauss-Legendre quadrature; nodes double until no score changes by more than 1e-7 of
        itself.
        """
        y, loc, deviation = np.asarray(y, np.float64), self.inner.loc, self.inner.scale
        # An exponential slope moves the tail by a variance.
        low = (loc - _TAIL_DEVIATIONS * deviation).min(axis=0)
        high = (loc + (_TAIL_DEVIATIONS + np.minimum(deviation, _TAIL_DEVIATIONS)) * deviation).max(
            axis=0
        )
        middle = np.clip(self.scale.forward(y), low, high)
        beyond = np.abs(y - self.scale.inverse(middle)) * ((middle == low) | (middle == high))
        score = np.full(len(y), np.inf)
        for doubling in range(_MOST_DOUBLINGS + 1):
            before, score = score, beyond.copy()
            for node, weight in _legendre(_NODES_AT_FIRST << doubling):
                for end, above in ((low, 0.0), (high, 1.0)):
                    at = middle + node * (end - middle)
                    slope = np.exp(-self.scale.log_slope(self.scale.inverse(at)))
                    error = (self.inner.cdf(at) - above) ** 2
                    score += weight * np.abs(end - middle) * slope * error
            if (np.abs(score - before) <= _MOST_CHANGE * score).all():
                break
        return score


@cache
def _legendre(number: int) -> list[tuple[float, float]]:
    """Return nodes in (0, 1) and weights of Gauss-Legendre quadrature."""
    nodes, weights = np.polynomial.legendre.leggauss(number)
    return list(zip(((nodes + 1) / 2).tolist(), (weights / 2).tolist(), strict=True))
