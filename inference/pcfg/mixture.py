"""The exact posterior predictive of new rows: a finite mixture over subproblems.

Each kind of rows, those that all trees treat alike, has its own weights on a shared list of leaves
(see `bdtppl.inference.pcfg.paths`); a leaf contributes the predictive distribution of its family.
Means and probabilities are sums; quantiles of real targets are found by bracketing on a grid and
false position.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np
import numpyro.distributions as dist
from scipy.special import stdtr

from bdtppl.inference.pcfg.chart import padded, padded_size
from bdtppl.inference.pcfg.precision import in_float64
from bdtppl.models.leaves import Leaf

__all__ = ["LeafMixture"]

_GRID = 64


@dataclass(frozen=True)
class LeafMixture:
    """Mixtures of leaf predictives; m rows of u kinds, l leaves, s statistics.

    Attributes
    ----------
    leaf
        Leaf family.
    statistics
        float64 [l, s].
    weights
        Sparse float64 [u, l]; rows sum to one.
    kind
        int [m]; kind of each row.
    """

    leaf: Leaf
    statistics: np.ndarray
    weights: Any
    kind: np.ndarray

    @cached_property
    def _entry_kind(self) -> np.ndarray:
        """Kind of each stored weight."""
        return np.repeat(np.arange(self.weights.shape[0]), np.diff(self.weights.indptr))

    def _sums(self, values: np.ndarray) -> np.ndarray:
        """Weighted sum over each kind's leaves of values given per stored weight, [u]."""
        return np.bincount(
            self._entry_kind, self.weights.data * values, minlength=self.weights.shape[0]
        )

    @in_float64
    def mean(self) -> np.ndarray:
        """Predictive mean [m], or class probabilities [m, c]."""
        return (self.weights @ _means(self.leaf, self.statistics))[self.kind]

    @in_float64
    def log_density(self, y: np.ndarray) -> np.ndarray:
        """Log predictive density or probability of one target per row, float64 [m]."""
        weights = self.weights[self.kind]
        entries, length = weights.indices, np.diff(weights.indptr)
        predictive = self.leaf.predictive(_padded(self.statistics[entries]))
        targets = padded(np.repeat(np.asarray(y), length), padded_size(len(entries)))
        each = np.log(weights.data) + np.asarray(predictive.log_prob(targets))[: len(entries)]
        # Far from all leaves densities are too small for a float, but their logs are not.
        largest = np.maximum.reduceat(each, weights.indptr[:-1])
        scaled = np.exp(each - np.repeat(largest, length))
        return largest + np.log(np.add.reduceat(scaled, weights.indptr[:-1]))

    @in_float64
    def sample(self, rng_key: jax.Array, num_draws: int) -> np.ndarray:
        """Draw new targets, [num_draws, m]."""
        key_leaf, key_target = jax.random.split(rng_key)
        uniform = np.asarray(jax.random.uniform(key_leaf, (num_draws, len(self.kind))))
        # One running sum over the weights of all kinds: those of kind i lie between i and i + 1.
        running = np.cumsum(self.weights.data)
        ends = self.weights.indptr[1:] - 1
        starts = np.concatenate([[0.0], running[ends[:-1]]])
        start, stop = starts[self.kind], running[ends][self.kind]
        chosen = np.searchsorted(running, start + uniform * (stop - start), side="right")
        chosen = np.clip(chosen, self.weights.indptr[:-1][self.kind], ends[self.kind])
        statistics = self.statistics[self.weights.indices[chosen]]
        return np.asarray(self.leaf.sample(key_target, statistics))

    @in_float64
    def quantiles(self, probabilities: Sequence[float]) -> np.ndarray:
        """Quantiles of real targets, float64 [m, probabilities].

        Bracketed on a grid, then found by the Illinois variant of false position.
        """
        mixture = self._without_specks()
        used = np.unique(mixture.weights.indices)
        weights = mixture.weights[:, used]
        shared = _Cdf(self.leaf, self.statistics[used])
        grid, cdf = _bracket(
            lambda y: weights @ shared(y[None, :]),
            _means(self.leaf, self.statistics[used]),
            shared.width,
            probabilities,
        )
        own = _Cdf(self.leaf, self.statistics[mixture.weights.indices])

        def error_at(value: np.ndarray, probability: float) -> np.ndarray:
            each = own(value[mixture._entry_kind][:, None])[:, 0]
            return mixture._sums(each) - probability

        found = [_false_position(error_at, grid, cdf, p) for p in probabilities]
        return np.stack(found, axis=1)[self.kind]

    def _without_specks(self) -> "LeafMixture":
        """Leave out leaves that together hold less than 1e-8 of a kind's probability."""
        most_leaves = int(np.diff(self.weights.indptr).max())
        weights = self.weights.copy()
        weights.data[weights.data < 1e-8 / most_leaves] = 0.0
        weights.eliminate_zeros()
        weights.data /= np.repeat(weights.sum(axis=1), np.diff(weights.indptr))
        return LeafMixture(self.leaf, self.statistics, weights, self.kind)


def _padded(statistics: np.ndarray) -> jax.Array:
    """Lengthen [l, s]: eager operations are compiled for every shape, so they are given few."""
    return padded(statistics, padded_size(len(statistics)))


def _means(leaf: Leaf, statistics: np.ndarray) -> np.ndarray:
    return np.asarray(leaf.posterior_mean(_padded(statistics)))[: len(statistics)]


def _false_position(error_at, grid: np.ndarray, cdf: np.ndarray, probability: float) -> np.ndarray:
    rows = np.arange(len(cdf))
    place = np.clip((cdf < probability).sum(axis=1), 1, len(grid) - 1)
    low, high = grid[place - 1], grid[place]
    low_error, high_error = cdf[rows, place - 1] - probability, cdf[rows, place] - probability
    value = low
    for _ in range(100):
        value = (low * high_error - high * low_error) / (high_error - low_error)
        value = np.clip(value, low, high)
        error = error_at(value, probability)
        if (np.abs(error) < 1e-12).all() or (high - low <= 1e-14 * np.abs(value)).all():
            break
        below = error < 0
        # Halving the error of an end that stays keeps it from staying for ever.
        high_error = np.where(below, high_error / 2, error)
        low_error = np.where(below, error, low_error / 2)
        low, high = np.where(below, value, low), np.where(below, high, value)
    return value


class _Cdf:
    """CDF of l distributions at values [1, k] or [l, k], float64 [l, k]."""

    def __init__(self, leaf: Leaf, statistics: np.ndarray):
        predictive = leaf.predictive(_padded(statistics))
        self.is_student = isinstance(predictive, dist.StudentT)
        if self.is_student:
            student: Any = predictive
            self.parameters = [
                np.broadcast_to(p, predictive.batch_shape)[: len(statistics), None]
                for p in (student.df, student.loc, student.scale)
            ]
            self.width = float(self.parameters[2].max())
        else:
            self.predictive = leaf.predictive(statistics)
            self.width = 1e-9

    def __call__(self, y: np.ndarray) -> np.ndarray:
        if self.is_student:  # the incomplete beta function would be many times slower
            df, loc, scale = self.parameters
            return stdtr(df, (y - loc) / scale)
        return np.asarray(self.predictive.cdf(y.T)).T


def _bracket(
    cdf_at, means: np.ndarray, width: float, probabilities: Sequence[float]
) -> tuple[np.ndarray, np.ndarray]:
    """Widen a grid around the leaves' means until it brackets every row's quantiles.

    It reaches beyond them by ``width``, in units of y, at first.
    """
    low, high = means.min(), means.max()
    width = max((high - low) / 2, width, 1e-15 * abs(low))
    while True:
        grid = np.linspace(low - width, high + width, _GRID)
        cdf = cdf_at(grid)
        if (cdf[:, 0] < min(probabilities)).all() and (cdf[:, -1] > max(probabilities)).all():
            return grid, cdf
        width *= 4
