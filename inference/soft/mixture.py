"""Posterior predictives of rows as mixtures over draws.

Soft trees send every row down all paths, so each row has its own distribution under each draw,
unlike in `bdtppl.inference.hard.mixture`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np
from scipy.special import gammaln, logsumexp, ndtr, ndtri, stdtr, stdtrit

from bdtppl.inference.crps import crps
from bdtppl.inference.draws import draw_classes, draw_noise, draw_uniforms
from bdtppl.inference.quantiles import no_bracket, require_cdf, solve

_LAW = "the noise of soft trees"
_DEVIATION = np.sqrt(np.pi / 2)  # of a normal distribution, by its mean absolute deviation
_MARGIN = 1e-6  # relative margin of the distributions' quantiles, for brackets


@dataclass(frozen=True, eq=False)
class ClassMixture:
    """Equal shares of s categorical distributions for each of m rows, over c classes.

    Attributes
    ----------
    probability
        float64 [s, m, c].
    """

    probability: np.ndarray

    def mean(self) -> np.ndarray:
        """Return class probabilities, float64 [m, c]."""
        return _mean(self.probability)

    def log_density(self, y: np.ndarray) -> np.ndarray:
        """Return the log probability of one class index per row, float64 [m]."""
        return np.log(self.mean()[np.arange(len(y)), y])

    def each_log_density(self, y: np.ndarray) -> np.ndarray:
        """Return the log probability under each draw, float64 [s..., m]."""
        return np.log(self.probability[..., np.arange(len(y)), y])

    def mean_quantiles(self, probabilities: Sequence[float]) -> np.ndarray:
        """Return quantiles over the draws of class probabilities, [m, c, probabilities]."""
        return np.moveaxis(np.quantile(self.probability, probabilities, axis=0), 0, -1)

    def sample(self, rng_key: jax.Array, num_draws: int, *, first_row: int = 0) -> np.ndarray:
        """Draw class indices, [num_draws, m]; draws of a row depend on its index alone."""
        return draw_classes(rng_key, self.mean(), num_draws, first_row)


@dataclass(frozen=True, eq=False)
class NoiseMixture:
    """Equal shares of s normal or Student-t distributions for each of m rows.

    Attributes
    ----------
    loc, scale
        float64 [s, m].
    degrees_of_freedom
        Degrees of freedom of Student-t distributions; None for normal ones.
    """

    loc: np.ndarray
    scale: np.ndarray
    degrees_of_freedom: float | None = None

    @property
    def means(self) -> np.ndarray:
        """Return the mean of a new target for each draw, float64 [s, m]."""
        return self.loc

    def mean(self) -> np.ndarray:
        """Return the predictive mean, float64 [m]."""
        return _mean(self.loc)

    def log_density(self, y: np.ndarray) -> np.ndarray:
        """Return the log density of one target per row, float64 [m]."""
        return logsumexp(self.each_log_density(np.asarray(y)), axis=0) - np.log(len(self.loc))

    def each_log_density(self, y: np.ndarray) -> np.ndarray:
        """Return the log density under each draw, float64 [s..., m]."""
        z, df = (y - self.loc) / self.scale, self.degrees_of_freedom
        if df is None:
            return -0.5 * z * z - 0.5 * np.log(2 * np.pi) - np.log(self.scale)
        constant = gammaln((df + 1) / 2) - gammaln(df / 2) - 0.5 * np.log(df * np.pi)
        return constant - (df + 1) / 2 * np.log1p(z * z / df) - np.log(self.scale)

    def sample(self, rng_key: jax.Array, num_draws: int, *, first_row: int = 0) -> np.ndarray:
        """Draw targets, [num_draws, m]; draws of a row depend on its index alone."""
        key_draw, key_noise = jax.random.split(rng_key)
        shape, first = (self.loc.shape[1], num_draws), first_row * num_draws
        chosen = (draw_uniforms(key_draw, shape, first) * len(self.loc)).astype(int)
        noise = draw_noise(key_noise, shape, self.degrees_of_freedom, first)
        rows = np.arange(shape[0])[:, None]
        return (self.loc[chosen, rows] + self.scale[chosen, rows] * noise).T

    def quantiles(self, probabilities: Sequence[float]) -> np.ndarray:
        """Return quantiles, float64 [m, probabilities], by Newton's method inside a bracket."""
        return np.stack([self._quantile(p) for p in probabilities], axis=1)

    def mean_quantiles(self, probabilities: Sequence[float]) -> np.ndarray:
        """Return quantiles over the draws of the centres, float64 [m, probabilities]."""
        return np.quantile(self.loc, probabilities, axis=0).T

    def crps(self, y: np.ndarray) -> np.ndarray:
        """Return the continuous ranked probability score of one target per row, float64 [m]."""
        share, df = np.full(len(self.loc), 1 / len(self.loc)), self.degrees_of_freedom
        laws = zip(np.asarray(y, float), self.loc.T, self.scale.T, strict=True)
        return np.array(
            [crps(np.array([each]), share, loc, scale, df)[0] for each, loc, scale in laws]
        )

    def _quantile(self, probability: float) -> np.ndarray:
        df = self.degrees_of_freedom
        quantile = ndtri(probability) if df is None else stdtrit(df, probability)
        if df is not None and not np.isclose(stdtr(df, quantile), probability, rtol=1e-6, atol=0):
            raise no_bracket([probability], _LAW)
        # Up to rounding, the quantile of a mixture is between those of its components.
        margin, mean = _MARGIN * (1 + np.abs(quantile)), self.mean()
        low = (self.loc + (quantile - margin) * self.scale).min(axis=0)
        high = (self.loc + (quantile + margin) * self.scale).max(axis=0)
        deviation = _DEVIATION * _mean(np.abs(self.loc - mean))  # its square may be infinite
        start = mean + quantile * np.hypot(deviation, _mean(self.scale))

        def mixed(rows: np.ndarray, values: np.ndarray):
            some = NoiseMixture(self.loc[:, rows], self.scale[:, rows], df)
            cdf = require_cdf(some.cdf(values), _LAW)
            return cdf, _mean(np.exp(some.each_log_density(values)))

        return solve(mixed, probability, low, high, np.clip(start, low, high))

    def cdf(self, y: np.ndarray) -> np.ndarray:
        """Return the probability of a target of at most y, one for each row, float64 [m]."""
        return _mean(self.each_cdf(y))

    def each_cdf(self, y: np.ndarray) -> np.ndarray:
        """Return the probability under each draw, float64 [s..., m]."""
        z, df = (y - self.loc) / self.scale, self.degrees_of_freedom
        return ndtr(z) if df is None else stdtr(df, z)


def _mean(values: np.ndarray) -> np.ndarray:
    """Return the mean over the first axis, with the same bits for any number of rows."""
    # NumPy's order of addition depends on the memory layout, so the numbers are contiguous.
    return np.ascontiguousarray(np.moveaxis(values, 0, -1)).mean(axis=-1)
