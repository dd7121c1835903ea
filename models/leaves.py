"""Conjugate leaf families on additive sufficient statistics.

A leaf family turns the targets of the rows in a leaf into a vector of statistics that adds over
rows, and everything else, the log marginal likelihood of the leaf above all, is a function of that
vector. No inference knows more about a leaf than this, so a new family needs no change elsewhere.

References
----------
Sullivan et al. 2023 (BCART-PCFG), Theorem 4.1, for the Dirichlet-categorical leaf; Chipman, George
and McCulloch 1998 and Nuti et al. 2021 (GMT) for the normal leaf with unknown mean and variance.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import lax
from jax.core import Tracer
from jax.scipy.special import gammaln
from numpyro.distributions import constraints
from numpyro.distributions.constraints import Constraint
from scipy.special import gammaln as _np_gammaln

from bdtppl.models.pytrees import Array, Number, pytree_dataclass, require

__all__ = ["CountTable", "DirichletCategorical", "Leaf", "LogMarginalTable", "NormalInverseGamma"]

LogMarginalTable = Callable[[Sequence[np.ndarray]], np.ndarray]
"""A NumPy function from statistics, one array each, to log marginals; it looks up what depends on
integer counts. A leaf family may offer one by a method ``log_marginal_table(num_rows)``, for
inferences that score very many sets of rows."""


class CountTable(NamedTuple):
    """Log marginals of counts as a sum of one table for each count and one for their total.

    Attributes
    ----------
    each
        float64 [rows + 1] for each statistic.
    total
        float64 [rows + 1].
    """

    each: list[np.ndarray]
    total: np.ndarray

    def __call__(self, statistics: Sequence[np.ndarray]) -> np.ndarray:
        """Look up log marginals of integer counts, one array for each statistic."""
        result = self.total[sum(statistics[1:], start=statistics[0])]
        for table, count in zip(self.each, statistics, strict=True):
            result += table[count]
        return result


@runtime_checkable
class Leaf(Protocol):
    """What a leaf family is: an immutable pytree of hyperparameters with these methods.

    Statistics have shape [..., s]; they are sums over rows, so the statistics of two disjoint sets
    of rows add to those of their union.

    Attributes
    ----------
    parameter_support
        Support of each hyperparameter that can be fitted.
    """

    parameter_support: ClassVar[dict[str, Constraint]]

    def statistics(self, y: Array, weight: Array) -> jax.Array:
        """Statistics of single rows, [n, s], from targets [n] and repeat counts [n]."""
        ...

    def log_marginal(self, statistics: Array) -> jax.Array:
        """Log marginal likelihood of the rows behind statistics [..., s], shape [...]."""
        ...

    def posterior_mean(self, statistics: Array) -> Array:
        """Posterior mean of a new target, [...] for regression, [..., c] for classification."""
        ...

    def predictive(self, statistics: Array) -> Any:
        """Posterior predictive distribution of a new target, batch shape [...]."""
        ...

    def sample(self, rng_key: jax.Array, statistics: Array) -> Any:
        """Draw one new target per leaf, [...]."""
        ...


@pytree_dataclass
class DirichletCategorical:
    """Class labels with Dirichlet-distributed probabilities (BCART-PCFG, equations 1 and 2).

    The statistics are the class counts, [..., c]; targets are class indices 0 to c - 1. The log
    marginal is that of the labels in their order (no multinomial coefficient).

    Attributes
    ----------
    concentration
        Dirichlet concentration of each class, [c], positive; a list is made an array.

    Examples
    --------
    >>> import numpy as np
    >>> leaf = DirichletCategorical.symmetric(2)
    >>> round(float(np.exp(leaf.log_marginal(np.array([1.0, 2.0])))), 4)
    0.0833
    """

    concentration: Array

    parameter_support: ClassVar[dict[str, Constraint]] = {
        "concentration": constraints.positive,
    }

    def __post_init__(self):
        if isinstance(self.concentration, list | tuple):
            object.__setattr__(self, "concentration", np.asarray(self.concentration, float))
        require(
            lambda a: (np.ndim(a) == 1) & np.all(np.asarray(a) > 0),
            "concentration must be positive, one number per class; got {}.",
            self.concentration,
        )

    @classmethod
    def symmetric(cls, num_classes: int, concentration: float = 1.0) -> "DirichletCategorical":
        """Give every class the same concentration."""
        return cls(np.full(num_classes, float(concentration)))

    def statistics(self, y: Array, weight: Array) -> jax.Array:
        """Class counts of single rows, [n, c]."""
        one_hot = jnp.asarray(y)[:, None] == jnp.arange(len(self.concentration))[None, :]
        return one_hot * jnp.asarray(weight, float)[:, None]

    def log_marginal(self, statistics: Array) -> jax.Array:
        """Compute log B(counts + concentration) - log B(concentration), shape [...]."""
        prior = jnp.broadcast_to(self.concentration, statistics.shape)
        total, prior_total = (prior + statistics).sum(-1), prior.sum(-1)
        return (
            (gammaln(prior + statistics) - gammaln(prior)).sum(-1)
            - gammaln(total)
            + gammaln(prior_total)
        )

    def log_marginal_table(self, num_rows: int) -> CountTable:
        """Tabulate for up to ``num_rows`` rows."""
        concentration = np.asarray(self.concentration, np.float64)
        counts = np.arange(num_rows + 1)
        distinct, which = np.unique(concentration, return_inverse=True)
        tables = _np_gammaln(distinct[:, None] + counts) - _np_gammaln(distinct)[:, None]
        prior = concentration.sum()
        total = _np_gammaln(prior) - _np_gammaln(prior + counts)
        return CountTable([tables[place] for place in which], total)

    def posterior_mean(self, statistics: Array) -> Array:
        """Predictive probability of each class, [..., c]."""
        posterior = jnp.broadcast_to(self.concentration, statistics.shape) + statistics
        return posterior / posterior.sum(-1, keepdims=True)

    def predictive(self, statistics: Array) -> Any:
        """Categorical predictive distribution."""
        return dist.Categorical(probs=self.posterior_mean(statistics))

    def sample(self, rng_key: jax.Array, statistics: Array) -> Any:
        """Draw class indices, int32 [...]."""
        return self.predictive(statistics).sample(rng_key)


@pytree_dataclass
class NormalInverseGamma:
    """Real targets, normal in each leaf with its own unknown mean and variance.

    variance ~ InverseGamma(shape, scale); mean given variance ~ Normal(mean, variance /
    pseudo_count). The statistics are (count, sum of u, sum of u^2) with u = y - centre, [..., 3]:
    a centre near the data keeps the squares from cancelling. The posterior predictive is a
    Student-t with 2 * shape' degrees of freedom.

    Attributes
    ----------
    mean
        Prior mean of a leaf's mean, in units of y.
    pseudo_count
        Rows that the prior mean is worth, positive.
    shape
        Shape of the variance's inverse gamma, positive.
    scale
        Its scale, in squared units of y, positive.
    centre
        What is subtracted from y in the statistics; changes no result but for rounding. Default
        the mean, or 0 where the mean is traced.

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

        The prior mean of the variance, scale / (shape - 1), is the variance of y (1 where y is
        constant); shape is 2.

        Raises
        ------
        ValueError
            If the variance is too large or too small for float64.
        """
        y = np.asarray(y, np.float64)
        weight = np.ones(len(y)) if weight is None else np.asarray(weight)
        y, weight = y[weight != 0], weight[weight != 0]
        # The mean of equal numbers may be off in its last digit, so it cannot tell that they are.
        if (y == y[0]).all():
            return cls(float(y[0]), 1.0, 2.0, 1.0)
        with np.errstate(over="ignore", invalid="ignore"):
            mean = float(np.average(y, weights=weight))
            variance = float(np.average((y - mean) ** 2, weights=weight))
        if not 0 < variance < np.inf:
            raise ValueError(
                f"y has numbers from {y.min():.3g} to {y.max():.3g}, whose variance is out of "
                "float64's range; rescale y."
            )
        return cls(mean, 1.0, 2.0, variance)

    def statistics(self, y: Array, weight: Array) -> jax.Array:
        """(weight, weight u, weight u^2) of single rows, [n, 3], with u = y - centre."""
        u, weight = jnp.asarray(y, float) - self.centre, jnp.asarray(weight, float)
        return jnp.stack([weight, weight * u, weight * u * u], axis=-1)

    def _posterior(self, statistics):
        """(count, mean', pseudo_count', shape', scale')."""
        count, first, second = (statistics[..., i] for i in range(3))
        # The statistics hold the centre too, so it is no parameter to derive by.
        shift = self.mean - lax.stop_gradient(self.centre)
        second = second - 2 * shift * first + shift**2 * count
        first = first - shift * count
        pseudo_count = self.pseudo_count + count
        squares = jnp.maximum(second - first**2 / pseudo_count, 0.0)
        return (
            count,
            self.mean + first / pseudo_count,
            pseudo_count,
            self.shape + count / 2,
            self.scale + squares / 2,
        )

    def log_marginal(self, statistics: Array) -> jax.Array:
        """Log marginal density of the targets, [...]."""
        count, _, pseudo_count, shape, scale = self._posterior(statistics)
        return (
            gammaln(shape)
            - gammaln(self.shape)
            + self.shape * jnp.log(self.scale)
            - shape * jnp.log(scale)
            + (jnp.log(self.pseudo_count) - jnp.log(pseudo_count)) / 2
            - count / 2 * jnp.log(2 * jnp.pi)
        )

    def log_marginal_table(self, num_rows: int) -> LogMarginalTable:
        """Tabulate what depends on the count alone (see `LogMarginalTable`)."""
        mean, pseudo_count, prior_shape, prior_scale, centre = (
            float(v) for v in (self.mean, self.pseudo_count, self.shape, self.scale, self.centre)
        )
        counts = np.arange(num_rows + 1)
        shape = prior_shape + counts / 2
        constant = (
            _np_gammaln(shape)
            - _np_gammaln(prior_shape)
            + prior_shape * np.log(prior_scale)
            + np.log(pseudo_count / (pseudo_count + counts)) / 2
            - counts / 2 * np.log(2 * np.pi)
        )
        shift = mean - centre

        def log_marginal(statistics: Sequence[np.ndarray]) -> np.ndarray:
            # Whole numbers may come as integers, whose products would overflow.
            weight, first, second = (np.asarray(each, np.float64) for each in statistics)
            count = weight.astype(np.int64)
            if shift:
                second = second - 2 * shift * first + shift**2 * weight
                first = first - shift * weight
            squares = np.maximum(second - first * first / (pseudo_count + weight), 0.0)
            return constant[count] - shape[count] * np.log(prior_scale + squares / 2)

        return log_marginal

    def posterior_mean(self, statistics: Array) -> Array:
        """Posterior mean of a leaf's mean, [...]."""
        return self._posterior(statistics)[1]

    def predictive(self, statistics: Array) -> Any:
        """Student-t predictive distribution."""
        _, mean, pseudo_count, shape, scale = self._posterior(statistics)
        width = jnp.sqrt(scale * (pseudo_count + 1) / (shape * pseudo_count))
        return dist.StudentT(2 * shape, mean, width)

    def sample(self, rng_key: jax.Array, statistics: Array) -> Any:
        """Draw new targets, [...]."""
        return self.predictive(statistics).sample(rng_key)
