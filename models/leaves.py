"""Conjugate leaf families with additive sufficient statistics.

A custom family starts from `Leaf`, see `bdtppl.models.leaf`.

References
----------
Sullivan et al. 2023 (BCART-PCFG), Theorem 4.1, for the Dirichlet-categorical leaf; Chipman, George
and McCulloch 1998 and Nuti et al. 2021 (GMT) for the normal leaf with unknown mean and variance.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import lax
from jax.core import Tracer
from jax.scipy.special import betainc, gammaln
from numpyro.distributions import constraints
from numpyro.distributions.constraints import Constraint
from scipy.special import gammaln as _np_gammaln

from bdtppl.models.leaf import LEAF_FAMILIES as LEAF_FAMILIES
from bdtppl.models.leaf import CountTable, Leaf, require_counts
from bdtppl.models.leaf_kernels import log_gamma_ratio
from bdtppl.models.pytrees import Array, Number, pytree_dataclass, require
from bdtppl.models.wording import listed, number, rows

_FIRST_OF_STIRLING = 100.0  # from here on the series below is exact to float64
_LEAST_VARIANCE_OF_TARGETS = 1e-305  # the largest is its inverse


def namespace(*values: Any) -> tuple[ModuleType, Callable[[Any], Any]]:
    """Return the array namespace for some pytrees, and its log gamma function.

    They are NumPy's and SciPy's if no value is of JAX, so that nothing has to be compiled.
    """
    if any(isinstance(value, jax.Array) for value in jax.tree.leaves(values)):
        return jnp, gammaln
    return np, _np_gammaln


def log_rising_factorial(
    start: Any, steps: Any, xp: ModuleType = np, log_gamma: Callable[[Any], Any] = _np_gammaln
) -> Any:
    """Return the log of gamma(start + steps) / gamma(start), accurate for large start.

    For a start of at least 100 it is the difference of two Stirling series, whose large terms
    cancel analytically.

    Parameters
    ----------
    start, steps
        float64 [...]; positive, and at least 0.
    xp, log_gamma
        Array namespace, `numpy` or `jax.numpy`, and its log gamma function.

    Examples
    --------
    >>> round(float(log_rising_factorial(3.0, 2.0)), 12) == round(float(np.log(3 * 4)), 12)
    True
    >>> round(float(log_rising_factorial(1e12, 1.0) / np.log(1e12)), 12)
    1.0
    """
    exact = log_gamma(start + steps) - log_gamma(start)
    is_large = start >= _FIRST_OF_STIRLING
    start = xp.where(is_large, start, _FIRST_OF_STIRLING)  # small ones would overflow
    end = start + steps

    def rest(x: Any) -> Any:
        return (1 - (1 - 2 / (7 * x * x)) / (30 * x * x)) / (12 * x)

    large = (start - 0.5) * xp.log1p(steps / start) + steps * (xp.log(end) - 1)
    large = large + rest(end) - rest(start)
    return xp.where(is_large, large, exact)


@pytree_dataclass
class DirichletCategorical(Leaf):
    """Class labels with Dirichlet-distributed probabilities (BCART-PCFG, equations 1 and 2).

    The statistics are the class counts, [..., c]; targets are class indices 0 to c - 1. The log
    marginal is that of the labels in their order (no multinomial coefficient).

    Attributes
    ----------
    concentration
        Dirichlet concentration of each class, [c], positive; a list is converted to an array. One
        number applies to every class; an estimator, which knows the number of classes, converts it
        to an array.

    Examples
    --------
    >>> import numpy as np
    >>> leaf = DirichletCategorical.symmetric(2)
    >>> round(float(np.exp(leaf.log_marginal(np.array([1.0, 2.0])))), 4)
    0.0833
    """

    concentration: Array

    task: ClassVar = "classification"
    sums_to_rows: ClassVar[bool] = True
    parameter_support: ClassVar[dict[str, Constraint]] = {"concentration": constraints.positive}

    def __post_init__(self):
        if isinstance(self.concentration, list | tuple):
            object.__setattr__(self, "concentration", np.asarray(self.concentration, float))
        require(
            lambda a: (np.ndim(a) < 2) & np.all(np.asarray(a) > 0),
            "concentration must be positive, one number per class or one for all; got {}.",
            self.concentration,
        )

    @classmethod
    def symmetric(cls, num_classes: int, concentration: float = 1.0) -> "DirichletCategorical":
        """Give every class the same concentration."""
        return cls(np.full(num_classes, float(concentration)))

    @classmethod
    def of_targets(cls, y: np.ndarray, **numbers: float) -> "DirichletCategorical":
        """Give each class of labels [n] concentration 1, or the given one."""
        return cls.symmetric(len(np.unique(y)), **numbers)

    def in_words(self, classes: Sequence[Any] | None = None) -> str:
        """Describe the assumptions on the labels in a leaf."""
        return dirichlet_in_words(self.concentration, classes)

    def statistics(self, y: Array, weight: Array) -> jax.Array:
        """Return class counts of single rows, [n, c].

        Raises
        ------
        ValueError
            If the concentration is one number, so that the number of classes is not known.
        """
        if not np.ndim(self.concentration):
            raise ValueError(
                "concentration is one number, and the classes are not known: pass one per class, "
                "as from DirichletCategorical.symmetric(num_classes, concentration)."
            )
        xp, _ = namespace(y, weight)
        one_hot = xp.asarray(y)[:, None] == xp.arange(len(self.concentration))[None, :]
        return one_hot * xp.asarray(weight, float)[:, None]

    def log_marginal(self, statistics: Array) -> jax.Array:
        """Compute log B(counts + concentration) - log B(concentration), shape [...]."""
        of = namespace(self, statistics)
        prior = of[0].broadcast_to(self.concentration, statistics.shape)
        each = log_rising_factorial(prior, statistics, *of).sum(-1)
        return each - log_rising_factorial(prior.sum(-1), statistics.sum(-1), *of)

    def log_marginal_bound(self, statistics: np.ndarray) -> np.ndarray:
        """Bound the log marginal by giving each class its own leaf."""
        concentration = np.asarray(self.concentration, np.float64)
        each = log_rising_factorial(concentration, statistics)
        return (each - log_rising_factorial(concentration.sum(), statistics)).sum(-1)

    def log_marginal_table(self, num_rows: int) -> CountTable:
        """Tabulate for up to ``num_rows`` rows."""
        concentration = np.asarray(self.concentration, np.float64)
        counts = np.arange(num_rows + 1)
        distinct, which = np.unique(concentration, return_inverse=True)
        tables = log_rising_factorial(distinct[:, None], counts)
        total = -log_rising_factorial(concentration.sum(), counts)
        return CountTable([tables[place] for place in which], total)

    def score_tables(self, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Tabulate for the count of each class, and for the number of rows."""
        concentration = np.asarray(self.concentration, np.float64)
        starts = np.append(concentration, concentration.sum())
        return log_rising_factorial(starts[:, None], counts), concentration

    @staticmethod
    def compiled_score(statistics, tables, numbers, scores):
        """Score counts of classes."""
        classes, limit, prior = len(numbers), tables.shape[1], numbers.sum()
        for i in range(len(scores)):
            rows, score = 0.0, 0.0
            for c in range(classes):
                count = statistics[i, c]
                rows += count
                if count < limit:
                    score += tables[c, np.uint32(count)]
                else:
                    score += log_gamma_ratio(numbers[c], count)
            if rows < limit:
                score -= tables[classes, np.uint32(rows)]
            else:
                score -= log_gamma_ratio(prior, rows)
            scores[i] = score
        return 0

    def posterior_mean(self, statistics: Array) -> Array:
        """Return the predictive probability of each class, [..., c]."""
        xp, _ = namespace(self, statistics)
        posterior = xp.broadcast_to(self.concentration, statistics.shape) + statistics
        return posterior / posterior.sum(-1, keepdims=True)

    def predictive(self, statistics: Array) -> Any:
        """Return the categorical predictive distribution."""
        return dist.Categorical(probs=self.posterior_mean(statistics))

    def mean_law(self, statistics: Array, label: Any = None) -> Any:
        """Return the beta distribution of the probability of a class."""
        xp, _ = namespace(self, statistics)
        posterior = xp.broadcast_to(self.concentration, statistics.shape) + statistics
        is_own = xp.arange(posterior.shape[-1]) == label
        own, rest = (xp.where(each, posterior, 0.0).sum(-1) for each in (is_own, ~is_own))
        return dist.Beta(own, rest)


@pytree_dataclass
class NormalInverseGamma(Leaf):
    """Real targets, normal in each leaf with its own unknown mean and variance.

    variance ~ InverseGamma(shape, scale); mean given variance ~ Normal(mean, variance /
    pseudo_count). The statistics are (count, sum of u, sum of u^2) with u = y - centre, [..., 3]: a
    centre near the data avoids cancellation of the squares. The posterior predictive is a Student-t
    with 2 * shape' degrees of freedom.

    Attributes
    ----------
    mean
        Prior mean of a leaf's mean, in units of y.
    pseudo_count
        Number of rows that the prior mean counts as, positive.
    shape
        Shape of the variance's inverse gamma, positive.
    scale
        Its scale, in squared units of y, positive.
    centre
        Number that the statistics subtract from y; it affects results only by rounding. Default:
        the mean, or 0 if the mean is traced.

    Notes
    -----
    With rows n, sums S1 and S2 of y - mean and its square: pseudo_count' = pseudo_count + n,
    shape' = shape + n/2 and scale' = scale + (S2 - S1^2 / pseudo_count') / 2.
    """

    mean: Number
    pseudo_count: Number = 1.0
    shape: Number = 2.0
    scale: Number = 1.0
    centre: Any = None

    parameter_support: ClassVar[dict[str, Constraint]] = {
        "mean": constraints.real,
        "pseudo_count": constraints.positive,
        "shape": constraints.positive,
        "scale": constraints.positive,
    }

    def __post_init__(self):
        for name in ("pseudo_count", "shape", "scale"):
            require(lambda v: v > 0, name + " must be positive; got {}.", getattr(self, name))
        require(np.isfinite, "mean must be finite; got {}.", self.mean)
        if self.centre is None:
            centre = 0.0 if isinstance(self.mean, Tracer) else self.mean
            object.__setattr__(self, "centre", centre)

    @classmethod
    def from_targets(cls, y: np.ndarray, weight: np.ndarray | None = None) -> "NormalInverseGamma":
        """Default prior of a data set: its mean, worth one row, and variance centred on its own.

        The prior mean of the variance, scale / (shape - 1), is the variance of y (1 if y is
        constant); shape is 2.

        Raises
        ------
        ValueError
            If the variance is too large or too small for float64.
        """
        y = np.asarray(y, np.float64)
        weight = np.ones(len(y)) if weight is None else np.asarray(weight)
        y, weight = y[weight != 0], weight[weight != 0]
        with np.errstate(over="ignore", invalid="ignore"):
            mean = float(np.average(y, weights=weight))
            variance = float(np.average((y - mean) ** 2, weights=weight))
        return cls.from_moments(mean, variance, float(y.min()), float(y.max()))

    @classmethod
    def from_moments(
        cls, mean: float, variance: float, least: float, greatest: float
    ) -> "NormalInverseGamma":
        """Make the default prior from these moments and this range of the targets (`from_targets`).

        Raises
        ------
        ValueError
            If the variance is too large or too small for float64.
        """
        # The mean of equal numbers may be wrong in its last digit, so it cannot show that they are
        # equal.
        if least == greatest:
            return cls(least, 1.0, 2.0, 1.0)
        if not _LEAST_VARIANCE_OF_TARGETS < variance < 1 / _LEAST_VARIANCE_OF_TARGETS:
            raise ValueError(
                f"y has values from {least:.3g} to {greatest:.3g}, whose variance exceeds "
                "float64's range; rescale y."
            )
        return cls(mean, 1.0, 2.0, variance)

    @classmethod
    def of_targets(cls, y: np.ndarray, **numbers: float) -> "NormalInverseGamma":
        """Return the default prior for targets [n], with the given hyperparameters."""
        return replace(cls.from_targets(y), **numbers)

    def in_words(self, classes: Sequence[Any] | None = None) -> str:
        """Describe the assumptions on the targets in a leaf."""
        spread = self.scale / (self.shape - 1) if self.shape > 1 else np.nan
        variance = (
            f"a prior mean of {number(spread)} (a standard deviation of {number(np.sqrt(spread))})"
            if np.isfinite(spread)
            else "a prior of infinite mean"
        )
        return (
            "Targets in a leaf are normal with the leaf's own mean and variance. The mean is "
            f"expected near {number(self.mean)}, which counts as much as "
            f"{rows(self.pseudo_count)}; the variance has an inverse gamma prior of shape "
            f"{number(self.shape)} and scale {number(self.scale)}, {variance}. Both are integrated "
            "out, so predictions have Student-t distributions."
        )

    def statistics(self, y: Array, weight: Array) -> jax.Array:
        """Return (weight, weight u, weight u^2) of single rows, [n, 3], with u = y - centre."""
        xp, _ = namespace(self, y, weight)
        u, weight = xp.asarray(y, float) - self.centre, xp.asarray(weight, float)
        return xp.stack([weight, weight * u, weight * u * u], axis=-1)

    def _posterior(self, statistics):
        """Return (count, mean', pseudo_count', shape', scale')."""
        count, first, second = (statistics[..., i] for i in range(3))
        # The statistics contain the centre, too, so derivatives do not treat it as a parameter.
        xp, _ = namespace(self, statistics)
        shift = self.mean - (self.centre if xp is np else lax.stop_gradient(self.centre))
        second = second - 2 * shift * first + shift**2 * count
        first = first - shift * count
        pseudo_count = self.pseudo_count + count
        squares = xp.maximum(second - first**2 / pseudo_count, 0.0)
        return (
            count,
            self.mean + first / pseudo_count,
            pseudo_count,
            self.shape + count / 2,
            self.scale + squares / 2,
        )

    def log_marginal(self, statistics: Array) -> jax.Array:
        """Return the log marginal density of the targets, [...]."""
        xp, log_gamma = namespace(self, statistics)
        count, _, pseudo_count, shape, scale = self._posterior(statistics)
        return (
            log_gamma(shape)
            - log_gamma(self.shape)
            + self.shape * xp.log(self.scale)
            - shape * xp.log(scale)
            + (xp.log(self.pseudo_count) - xp.log(pseudo_count)) / 2
            - count / 2 * xp.log(2 * np.pi)
        )

    def log_marginal_bound(self, statistics: np.ndarray) -> np.ndarray:
        """Bound by one leaf for all rows, as if their targets all equalled the prior mean.

        Every further row in it is more probable than the one before, so splitting the rows makes
        them less probable.
        """
        count = np.asarray(statistics, np.float64)[..., 0]
        shape, pseudo_count = float(self.shape), float(self.pseudo_count)
        return (
            log_rising_factorial(shape, count / 2)
            - count / 2 * np.log(2 * np.pi * float(self.scale))
            - np.log1p(count / pseudo_count) / 2
        )

    def score_tables(self, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Tabulate the terms that depend on the number of rows alone."""
        names = "mean", "pseudo_count", "shape", "scale", "centre"
        mean, pseudo_count, shape, scale, centre = (float(getattr(self, name)) for name in names)
        constant = (
            log_rising_factorial(shape, counts / 2)
            + shape * np.log(scale)
            + np.log(pseudo_count / (pseudo_count + counts)) / 2
            - counts / 2 * np.log(2 * np.pi)
        )
        return constant[None], np.array([mean - centre, pseudo_count, shape, scale])

    @staticmethod
    def compiled_score(statistics, tables, numbers, scores):
        """Score numbers of rows with the sums of targets and of their squares."""
        shift, pseudo_count, shape, scale = numbers[0], numbers[1], numbers[2], numbers[3]
        limit = tables.shape[1]
        for i in range(len(scores)):
            rows, first = statistics[i, 0], statistics[i, 1]
            second = statistics[i, 2] + shift * (shift * rows - 2 * first)
            first -= shift * rows
            squares = max(second - first * first / (pseudo_count + rows), 0.0)
            if rows < limit:
                constant = tables[0, np.uint32(rows)]
            else:
                constant = log_gamma_ratio(shape, rows / 2) + shape * math.log(scale)
                constant += math.log(pseudo_count / (pseudo_count + rows)) / 2
                constant -= rows / 2 * math.log(2 * math.pi)
            scores[i] = constant - (shape + rows / 2) * math.log(scale + squares / 2)
        return 0

    def posterior_mean(self, statistics: Array) -> Array:
        """Return the posterior mean of a leaf's mean, [...]."""
        return self._posterior(statistics)[1]

    def predictive(self, statistics: Array) -> Any:
        """Return the Student-t predictive distribution."""
        _, mean, pseudo_count, shape, scale = self._posterior(statistics)
        xp, _ = namespace(scale)
        width = xp.sqrt(scale * (pseudo_count + 1) / (shape * pseudo_count))
        return dist.StudentT(2 * shape, mean, width)

    def mean_law(self, statistics: Array, label: Any = None) -> Any:
        """Return the Student-t distribution of a leaf's mean."""
        _, mean, pseudo_count, shape, scale = self._posterior(statistics)
        xp, _ = namespace(scale)
        return dist.StudentT(2 * shape, mean, xp.sqrt(scale / (shape * pseudo_count)))


class _GammaPoisson(dist.GammaPoisson):
    """NumPyro's distribution with `gammaln`: JAX's `betaln` is accurate to 1e-6 only."""

    def log_prob(self, value: Any) -> jax.Array:
        """Return the log probability of counts."""
        shape: Any = self.concentration
        rate: Any = self.rate
        choices = gammaln(shape + value) - gammaln(shape) - gammaln(value + 1.0)
        return choices + shape * jnp.log(rate) - (shape + value) * jnp.log1p(rate)

    def cdf(self, value: Any) -> jax.Array:
        """Return the probability of a count of at most a number."""
        count = jnp.floor(value)
        shape: Any = self.concentration
        rate: Any = self.rate
        share = rate / (1.0 + rate)
        cdf = betainc(shape, jnp.maximum(count, 0.0) + 1.0, share)
        return jnp.where(count < 0, 0.0, cdf)


@pytree_dataclass
class PoissonGamma(Leaf):
    """Counts, Poisson in each leaf with its own rate.

    rate ~ Gamma(shape, rate); a count given the rate ~ Poisson(exposure * rate). The statistics are
    (rows, sum of y, sum of log y!), [..., 3]. The posterior predictive is negative binomial.

    Attributes
    ----------
    shape
        Shape of the gamma prior of a leaf's rate, positive.
    rate
        Its rate, positive: the exposure that the prior counts as.
    exposure
        Exposure of every row, positive: rates are counts per unit of it.

    Notes
    -----
    With rows n and the sum S of their counts: shape' = shape + S and rate' = rate + n exposure.

    References
    ----------
    Gelman, Carlin, Stern, Dunson, Vehtari and Rubin 2013, Bayesian Data Analysis, section 2.6.

    Examples
    --------
    >>> leaf = PoissonGamma.of_targets(np.array([0, 2, 4]))
    >>> leaf.shape, leaf.rate
    (2.0, 1.0)
    >>> round(float(PoissonGamma(1.0, 1.0).posterior_mean(np.array([1.0, 2.0, 0.7]))), 2)
    1.5
    """

    shape: Number = 1.0
    rate: Number = 1.0
    exposure: Number = 1.0

    is_discrete: ClassVar[bool] = True
    parameter_support: ClassVar[dict[str, Constraint]] = {
        "shape": constraints.positive,
        "rate": constraints.positive,
        "exposure": constraints.positive,
    }

    def __post_init__(self):
        for name in self.parameter_support:
            require(lambda v: v > 0, name + " must be positive; got {}.", getattr(self, name))

    @classmethod
    def of_targets(cls, y: np.ndarray, **numbers: float) -> "PoissonGamma":
        """Centre the prior on the mean of counts [n] (0.5 if all are 0), counted as one row."""
        exposure = numbers.get("exposure", 1.0)
        if np.ndim(exposure):
            raise ValueError(
                "exposure must be one number for all rows; bdtppl.TreeSum accepts one per row."
            )
        y = np.asarray(y, np.float64)
        require_counts(cls(), y)
        defaults = {"shape": float(y.mean()) or 0.5, "rate": float(exposure)}
        return cls(**(defaults | numbers))

    def require_targets(self, y: np.ndarray) -> None:
        """Reject targets that are not counts.

        Raises
        ------
        ValueError
            If one is negative or not whole.
        """
        require_counts(self, y)

    def in_words(self, classes: Sequence[Any] | None = None) -> str:
        """Describe the assumptions on the counts in a leaf."""
        per = "" if self.exposure == 1 else f" Each row has the exposure {number(self.exposure)}."
        return (
            "Targets in a leaf are counts with a Poisson distribution and the leaf's own rate. The "
            f"rate has a gamma prior of shape {number(self.shape)} and rate {number(self.rate)}, "
            f"with mean {number(self.shape / self.rate)}. It is integrated out, so predictions "
            f"have negative binomial distributions.{per}"
        )

    def statistics(self, y: Array, weight: Array) -> jax.Array:
        """Return (weight, weight y, weight log y!) of single rows, [n, 3]."""
        xp, log_gamma = namespace(y, weight)
        y, weight = xp.asarray(y, float), xp.asarray(weight, float)
        return xp.stack([weight, weight * y, weight * log_gamma(y + 1)], axis=-1)

    def _posterior(self, statistics: Array) -> tuple[Any, Any]:
        """Return (shape', rate')."""
        return self.shape + statistics[..., 1], self.rate + self.exposure * statistics[..., 0]

    def log_marginal(self, statistics: Array) -> jax.Array:
        """Return the log marginal probability of the counts, [...]."""
        xp, log_gamma = namespace(self, statistics)
        shape, rate = self._posterior(statistics)
        return (
            log_gamma(shape)
            - log_gamma(self.shape)
            + self.shape * xp.log(self.rate)
            - shape * xp.log(rate)
            + statistics[..., 1] * xp.log(self.exposure)
            - statistics[..., 2]
        )

    def score_tables(self, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Tabulate for the sum of counts, and for the number of rows."""
        shape, rate, exposure = float(self.shape), float(self.rate), float(self.exposure)
        tables = log_rising_factorial(shape, counts), np.log(rate + exposure * counts)
        return np.stack(tables), np.array([shape, rate, exposure])

    @staticmethod
    def compiled_score(statistics, tables, numbers, scores):
        """Score numbers of rows with the sums of counts and of the logs of their factorials."""
        shape, rate, exposure = numbers[0], numbers[1], numbers[2]
        prior, log_exposure, limit = shape * math.log(rate), math.log(exposure), tables.shape[1]
        for i in range(len(scores)):
            rows, total = statistics[i, 0], statistics[i, 1]
            if total < limit:
                rising = tables[0, np.uint32(total)]
            else:
                rising = log_gamma_ratio(shape, total)
            if rows < limit:
                log_rate = tables[1, np.uint32(rows)]
            else:
                log_rate = math.log(rate + exposure * rows)
            score = prior + rising - (shape + total) * log_rate
            scores[i] = score + total * log_exposure - statistics[i, 2]
        return 0

    def posterior_mean(self, statistics: Array) -> Array:
        """Return the posterior mean of a new count, [...]."""
        shape, rate = self._posterior(statistics)
        return self.exposure * shape / rate

    def predictive(self, statistics: Array) -> Any:
        """Return the negative binomial predictive distribution."""
        shape, rate = self._posterior(statistics)
        return _GammaPoisson(shape, rate / self.exposure)

    def mean_law(self, statistics: Array, label: Any = None) -> Any:
        """Return the gamma distribution of the mean of a new count."""
        shape, rate = self._posterior(statistics)
        return dist.Gamma(shape, rate / self.exposure)


def dirichlet_in_words(concentration: Any, classes: Sequence[Any] | None) -> str:
    """Describe the assumptions of a Dirichlet prior on class probabilities."""
    values = np.ravel(concentration)
    if np.ptp(values) == 0:
        prior = f"concentration {number(values[0])} for each class"
        seen = f"{rows(values[0])} of each class"
    else:
        names = range(len(values)) if classes is None else classes
        pairs = [f"{name} {number(v)}" for name, v in zip(names, values, strict=True)]
        prior, seen = f"concentrations {listed(pairs)}", "that many rows of each class"
    return (
        f"Each leaf has its own class probabilities, with a Dirichlet prior of {prior}: as if "
        f"{seen} had been seen there before. They are integrated out."
    )
