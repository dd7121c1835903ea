"""Soft trees as NumPyro models: rows go to both sides of every split, with probabilities.

A split j has a direction Delta_j on the simplex over the d inputs (HMC-DFI) or one chosen input
(HMC-DF), and a threshold tau_j. Inputs are scaled to [0, 1]. A row x goes left with probability

    psi_j(x) = logistic((tau_j - x Delta_j) / h),

so that left is x < tau as in hard trees; equation 4 of the paper is the mirror image. The row
reaches a leaf with the product of the probabilities along the path (equation 5). The sharpness h is
fixed.

Shapes of arrays depend on the number of splits n alone: the topology is given as the matrix of
paths (`Topology.paths`), so code is compiled once for all topologies of a size.

References
----------
Cochrane, Wills and Johnson 2024, Divide, Conquer, Combine Bayesian Decision Tree Sampling, section
2.3; Linero and Yang 2018, Bayesian regression tree ensembles that adapt to smoothness and sparsity.
"""

from dataclasses import replace
from typing import Any, ClassVar, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import lax
from jax.scipy.special import gammaln

from bdtppl.models.arguments import require_choice
from bdtppl.models.pytrees import Number, pytree_dataclass, require, setting

LikelihoodName = Literal["compound", "mixture"]


def leaf_probabilities(
    paths: Any, x: jax.Array, direction: jax.Array, threshold: jax.Array, sharpness: Any
) -> jax.Array:
    """Return the probability that each row reaches each leaf.

    Parameters
    ----------
    paths
        int [n + 1, n]; see `bdtppl.models.soft.topology.Topology.paths`.
    x
        float [N, d]; rows of inputs.
    direction
        float [n, d] on the simplex; or int [n], the inputs of the splits.
    threshold
        float [n].
    sharpness
        h, above 0; smaller values give harder splits.

    Returns
    -------
    jax.Array
        float [n + 1, N]; columns sum to 1.
    """
    if jnp.issubdtype(direction.dtype, jnp.integer):
        looked_at = jnp.asarray(x).T[direction]
    else:
        # Otherwise XLA moves the transposition into the product, and then reads x by columns.
        looked_at = _along(direction, lax.optimization_barrier(jnp.asarray(x).T))
    return _products(paths, (threshold[:, None] - looked_at) / sharpness)


@jax.custom_vjp
def _over_rows(one: jax.Array, other: jax.Array) -> jax.Array:
    """Multiply [k, N] by [m, N] row by row, and sum; float [k, m].

    CPUs use matrix-vector products, which XLA vectorises; it does not vectorise matrix products
    with long sums.
    """

    def one_by_one(one, other):
        return lax.map(lambda column: one @ column, other).T

    def at_once(one, other):
        return one @ other.T

    return lax.platform_dependent(one, other, cpu=one_by_one, default=at_once)


def _keep_over_rows(one: jax.Array, other: jax.Array) -> tuple[jax.Array, tuple]:
    return _over_rows(one, other), (one, other)


def _pull_back_over_rows(kept: tuple, cotangent: jax.Array) -> tuple[jax.Array, jax.Array]:
    one, other = kept
    return cotangent @ other, cotangent.T @ one


_over_rows.defvjp(_keep_over_rows, _pull_back_over_rows)


@jax.custom_vjp
def _along(direction: jax.Array, columns: jax.Array) -> jax.Array:
    """Multiply directions [n, d] by the inputs' columns [d, N]."""
    return direction @ columns


def _keep_along(direction: jax.Array, columns: jax.Array) -> tuple[jax.Array, tuple]:
    return _along(direction, columns), (direction, columns)


def _pull_back_along(kept: tuple, cotangent: jax.Array) -> tuple[jax.Array, jax.Array]:
    direction, columns = kept
    return _over_rows(cotangent, columns), direction.T @ cotangent


_along.defvjp(_keep_along, _pull_back_along)


@jax.custom_vjp
def _products(paths: Any, distance: jax.Array) -> jax.Array:
    """Multiply the probabilities of the branches [n, N] to each leaf; float [n + 1, N]."""
    return _reach(paths, jax.nn.sigmoid(distance))


def _reach(paths: Any, left: jax.Array) -> jax.Array:
    way = jnp.asarray(paths, left.dtype)[..., None]
    reached = jnp.ones((len(paths), left.shape[1]), left.dtype)
    for j in range(paths.shape[1]):  # products of few factors need no logarithm
        # This is left, 1 - left or 1, four times as fast (with its gradient) as a selection.
        reached *= (way[:, j] <= 0) + way[:, j] * left[j][None]
    return reached


def _keep_products(paths: Any, distance: jax.Array) -> tuple[jax.Array, tuple]:
    left = jax.nn.sigmoid(distance)
    reached = _reach(paths, left)
    return reached, (paths, left, reached)


def _pull_back_products(kept: tuple, cotangent: jax.Array) -> tuple[None, jax.Array]:
    """Differentiate their logarithms, without repeated products or divisions.

    The logarithm of left changes by 1 - left, that of 1 - left by -left. Leaf by leaf, with all
    splits at once, this is one pass over the rows; JAX's product rule needs several.
    """
    paths, left, reached = kept
    way = jnp.asarray(paths, left.dtype)[..., None]
    on_left, above, pulled = jnp.maximum(way, 0), jnp.abs(way), reached * cotangent
    changes = [pulled[k][None] * (on_left[k] - above[k] * left) for k in range(len(paths))]
    return None, sum(changes, jnp.zeros_like(left))


_products.defvjp(_keep_products, _pull_back_products)


def _is_positive(value: Any) -> Any:
    """Return whether a number is positive and finite."""
    return (value > 0) & (value < np.inf)


def _is_row(values: Any) -> bool:
    """Return whether these are numbers in a row; inside a trace, tuples cannot become arrays."""
    return isinstance(values, tuple | list) or np.ndim(values) == 1


def _observe(law: Any, y: Any, no_target: Any, power: Any) -> None:
    """Condition a distribution on targets [N], where known; draw them if there are none."""
    if y is None:
        numpyro.sample("y", law)
        return
    y = jnp.asarray(y)
    is_known = (y == y) & (y != no_target)  # NaN is not itself
    with numpyro.handlers.scale(scale=power), numpyro.handlers.mask(mask=is_known):
        numpyro.sample("y", law, obs=jnp.where(is_known, y, 0))  # the gradient would be NaN


@pytree_dataclass
class _Splits:
    """Priors of the splits, shared by regression and classification.

    Directions have the prior Dirichlet(``input_concentration``) over the inputs, with one number
    for all or an array; thresholds have the prior Beta(``threshold_shapes``).
    """

    input_concentration: Number = 1.0
    threshold_shapes: Any = (1.0, 1.0)

    def _check_splits(self) -> None:
        message = "input_concentration must be positive, one number or one for each input; got {}."
        require(_is_positive, message, self.input_concentration)
        if not _is_row(self.threshold_shapes) or len(self.threshold_shapes) != 2:
            raise ValueError(f"threshold_shapes must be two numbers; got {self.threshold_shapes}.")
        for shape in self.threshold_shapes:
            require(_is_positive, "threshold_shapes must be positive; got {}.", shape)

    def _draw_splits(self, rng, num_draws, num_splits, num_inputs, hard_inputs) -> dict:
        """Draw the splits' sites from the prior."""
        if num_splits == 0:
            return {}
        shape = num_draws, num_splits
        drawn = {"threshold": rng.beta(*self.threshold_shapes, shape)}
        if not hard_inputs and num_inputs > 1:
            concentration = np.full(num_inputs, self.input_concentration)
            drawn["direction"] = rng.dirichlet(concentration, shape)
        return drawn

    def _reached(self, paths, x, sharpness, inputs) -> jax.Array:
        """Sample the splits and route the rows, [n + 1, N]."""
        num_splits, num_inputs = paths.shape[1], x.shape[1]
        if num_splits == 0:
            return jnp.ones((1, len(x)))
        if inputs is None:
            concentration = self.input_concentration * jnp.ones(num_inputs)
            prior = dist.Dirichlet(concentration).expand([num_splits]).to_event(1)
            # A one-dimensional simplex has no coordinates to sample.
            inputs = (
                jnp.ones((num_splits, 1)) if num_inputs == 1 else numpyro.sample("direction", prior)
            )
        shapes = (jnp.asarray(shape) for shape in self.threshold_shapes)
        prior = dist.Beta(*shapes).expand([num_splits]).to_event(1)
        threshold = numpyro.sample("threshold", prior)
        return leaf_probabilities(paths, x, jnp.asarray(inputs), jnp.asarray(threshold), sharpness)


@pytree_dataclass
class SoftRegression(_Splits):
    """Normal targets with means weighted by leaf probabilities (equation 9).

    Attributes
    ----------
    mean_loc, mean_scale
        Normal prior of each leaf's mean mu.
    noise_shape, noise_scale
        Inverse-gamma prior of the noise.
    noise_on
        Whether that prior is on the variance sigma^2 or on the standard deviation sigma. The
        paper's text uses the first, its program the second.
    by_leaf
        Whether each leaf has its own variance; a row's variance is their mean by leaf
        probabilities. Otherwise all leaves share one, as in the paper.
    degrees_of_freedom
        Degrees of freedom of Student-t noise, whose scale is then sigma; None for normal noise.
    """

    mean_loc: Number = 0.0
    mean_scale: Number = 1.0
    noise_shape: Number = 1.5
    noise_scale: Number = 1.5
    noise_on: Literal["variance", "sd"] = setting(default="variance")
    by_leaf: bool = setting(default=False)
    degrees_of_freedom: Number | None = None

    no_target: ClassVar[float] = np.nan  # for rows that carry no information

    def __post_init__(self):
        self._check_splits()
        require(np.isfinite, "mean_loc must be finite; got {}.", self.mean_loc)
        require(_is_positive, "mean_scale must be positive; got {}.", self.mean_scale)
        require(_is_positive, "noise_shape must be positive; got {}.", self.noise_shape)
        require(_is_positive, "noise_scale must be positive; got {}.", self.noise_scale)
        require_choice("noise_on", self.noise_on, ("variance", "sd"))
        if not isinstance(self.by_leaf, bool):
            raise TypeError(f"by_leaf must be True or False; got {self.by_leaf!r}.")
        if self.degrees_of_freedom is not None:
            message = "degrees_of_freedom must be positive and finite, or None; got {}."
            require(_is_positive, message, self.degrees_of_freedom)

    @staticmethod
    def units_of(y: np.ndarray, weights: Any = None) -> tuple[float, float]:
        """Return the mean and standard deviation of targets with weights; None for equal ones."""
        mean = np.average(y, weights=weights)
        return float(mean), float(np.sqrt(np.average((y - mean) ** 2, weights=weights)))

    @classmethod
    def scaled_to(cls, y: np.ndarray, weights: Any = None, **options: Any) -> "SoftRegression":
        """Return default priors on the scale of the targets, which may have weights.

        Means of leaves have the distribution N(mean, sd) of the targets, and the mean of the
        inverse noise variance corresponds to noise of half the targets' standard deviation.
        """
        y = np.asarray(y, np.float64)
        middle, spread = cls.units_of(y, weights)
        spread = spread or 1.0
        shape = options.get("noise_shape", 1.5)
        scale = spread / 2 if options.get("noise_on") == "sd" else spread**2 / 4
        defaults = {"mean_loc": middle, "mean_scale": spread, "noise_scale": shape * scale}
        return cls(**(defaults | options))

    @property
    def noise_power(self) -> int:
        """Return the power of the targets' unit in which the noise is measured."""
        return 2 if self.noise_on == "variance" else 1

    def standardised(self, loc: float, scale: float) -> "SoftRegression":
        """Express the same priors for targets (y - loc) / scale."""
        return replace(
            self,
            mean_loc=(self.mean_loc - loc) / scale,
            mean_scale=self.mean_scale / scale,
            noise_scale=self.noise_scale / scale**self.noise_power,
        )

    def __call__(self, paths, x, y, sharpness, *, inputs=None, power=1.0, weights=1.0) -> None:
        """Run the model as a NumPyro model.

        Sites are "direction" [n, d] (unless inputs are given or there is but one), "threshold" [n],
        "mean" [n + 1] and "noise" [] or [n + 1].

        Parameters
        ----------
        paths, x, sharpness
            See `leaf_probabilities`.
        y
            float [N]; NaN if a row has no target, which is then ignored. None to draw targets.
        inputs
            int [n]; inputs of the splits, for hard choices of inputs (HMC-DF).
        power
            Power of the likelihood.
        weights
            Powers of the likelihoods of rows, float [N].
        """
        reached = self._reached(paths, x, sharpness, inputs)
        leaves = [len(paths)]
        means = dist.Normal(self.mean_loc, self.mean_scale).expand(leaves).to_event(1)
        noises = dist.InverseGamma(self.noise_shape, self.noise_scale)
        noises = noises.expand(leaves).to_event(1) if self.by_leaf else noises
        mean, noise = numpyro.sample("mean", means), numpyro.sample("noise", noises)
        target = self.target(reached, jnp.asarray(mean), jnp.asarray(noise))
        _observe(target, y, self.no_target, power * weights)

    def draw_prior(
        self,
        rng: np.random.Generator,
        num_draws: int,
        num_splits: int,
        num_inputs: int,
        *,
        hard_inputs: bool = False,
    ) -> dict[str, np.ndarray]:
        """Draw all sites from the prior with NumPy, because compiling JAX's samplers takes seconds.

        Parameters
        ----------
        rng
            Generator.
        num_draws
            Number of draws.
        num_splits, num_inputs
            n and d.
        hard_inputs
            Whether inputs of splits are given, so that there are no directions.

        Returns
        -------
        dict
            Sites by name, float64 [num_draws, ...].
        """
        drawn = self._draw_splits(rng, num_draws, num_splits, num_inputs, hard_inputs)
        leaves = num_draws, num_splits + 1
        drawn["mean"] = rng.normal(self.mean_loc, self.mean_scale, leaves)
        shape = leaves if self.by_leaf else num_draws
        drawn["noise"] = self.noise_scale / rng.gamma(self.noise_shape, size=shape)
        return drawn

    def target(self, reached: jax.Array, mean: jax.Array, noise: jax.Array) -> dist.Distribution:
        """Return the distribution of targets [N], given leaf probabilities, means and noise."""
        variance = noise if self.noise_on == "variance" else noise**2
        variance = variance @ reached if self.by_leaf else variance
        if self.degrees_of_freedom is None:
            return dist.Normal(mean @ reached, jnp.sqrt(variance))
        return dist.StudentT(self.degrees_of_freedom, mean @ reached, jnp.sqrt(variance))


@pytree_dataclass
class SoftClassification(_Splits):
    """Classes by leaf: a Dirichlet-multinomial of fractional counts, or a mixture over leaves.

    Attributes
    ----------
    concentration
        float [C]; Dirichlet prior of the class probabilities in each leaf.
    likelihood
        "compound": probabilities integrated out of each leaf by equation 8, with its normaliser
        Gamma(A) / prod Gamma(alpha_c); counts are sums of probabilities of leaves. This likelihood
        does not sum to 1 over all labels, so its evidence cannot be compared with that of other
        models. "mixture": probabilities theta [n + 1, C] are sampled, and a row's class has
        probability sum_k phi_k theta_k, a distribution of the labels.
    """

    concentration: Any = (1.0, 1.0)
    likelihood: LikelihoodName = setting(default="compound")

    no_target: ClassVar[int] = -1  # for rows that carry no information

    def __post_init__(self):
        self._check_splits()
        if not _is_row(self.concentration) or len(self.concentration) < 2:
            raise ValueError(
                f"concentration must be one number for each of two classes or more; got "
                f"{self.concentration!r}."
            )
        for each in self.concentration:
            require(_is_positive, "concentration must be positive; got {}.", each)
        if self.likelihood not in get_args(LikelihoodName):
            raise ValueError(
                f"likelihood must be 'compound' or 'mixture'; got {self.likelihood!r}."
            )

    def __call__(self, paths, x, y, sharpness, *, inputs=None, power=1.0, weights=1.0) -> None:
        """Run the model as a NumPyro model; y are class indices [N], -1 if there is no target.

        Sites are "direction" and "threshold" as in `SoftRegression`, and for the mixture "classes"
        [n + 1, C]. If y is None, the mixture draws classes.

        Raises
        ------
        ValueError
            If y is None for the compound likelihood, which is not a distribution of classes.
        """
        reached = self._reached(paths, x, sharpness, inputs)
        concentration = jnp.asarray(self.concentration)
        if self.likelihood == "compound":
            if y is None:
                raise ValueError("The compound likelihood is no distribution: it cannot draw.")
            with numpyro.handlers.scale(scale=power):
                numpyro.factor("y", self.log_compound(reached, y, weights))
            return
        classes = dist.Dirichlet(concentration).expand([len(paths)]).to_event(1)
        probability = reached.T @ numpyro.sample("classes", classes)
        _observe(dist.Categorical(probs=probability), y, self.no_target, power * weights)

    def draw_prior(
        self,
        rng: np.random.Generator,
        num_draws: int,
        num_splits: int,
        num_inputs: int,
        *,
        hard_inputs: bool = False,
    ) -> dict[str, np.ndarray]:
        """Draw all sites from the prior; see `SoftRegression.draw_prior`."""
        drawn = self._draw_splits(rng, num_draws, num_splits, num_inputs, hard_inputs)
        if self.likelihood == "mixture":
            concentration = np.asarray(self.concentration)
            drawn["classes"] = rng.dirichlet(concentration, (num_draws, num_splits + 1))
        return drawn

    def counts(self, reached: jax.Array, y: jax.Array, weights: Any = 1.0) -> jax.Array:
        """Sum leaf probabilities, times the weights of rows, by class, float [n + 1, C]."""
        is_class = jax.nn.one_hot(y, len(self.concentration), dtype=reached.dtype, axis=0)
        if np.ndim(weights):
            is_class *= jnp.asarray(weights, reached.dtype)[None]
        return _over_rows(reached, is_class)

    def log_compound(self, reached: jax.Array, y: jax.Array, weights: Any = 1.0) -> jax.Array:
        """Return the log of equation 8, with rows counted by their weights."""
        alpha, counts = jnp.asarray(self.concentration), self.counts(reached, y, weights)
        of_classes = (gammaln(counts + alpha[None]) - gammaln(alpha)[None]).sum(axis=1)
        of_leaf = gammaln(alpha.sum()) - gammaln(counts.sum(axis=1) + alpha.sum())
        return (of_leaf + of_classes).sum()
