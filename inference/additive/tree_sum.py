"""A sum of trees as a site of a NumPyro model."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.core import Tracer
from numpyro.distributions import constraints

from bdtppl.inference.additive.posterior import SumPosterior
from bdtppl.inference.additive.prior_draws import draw_sum_prior
from bdtppl.inference.additive.tables import MOST_TREE_LEVELS, USUAL_BINS
from bdtppl.models.data.design import Design
from bdtppl.models.data.schema import Schema, refuse_new_missing
from bdtppl.models.data.tables import as_table, has_names
from bdtppl.models.hard.additive import AdditivePrior


class SumProblem:
    """Rows of a table and the prior of a sum of trees over them.

    Attributes
    ----------
    prior
        Prior of the sum.
    schema, matrix
        How the table is read, and its rows [n, d].
    """

    def __init__(self, table: Any, prior: AdditivePrior, bins: int):
        self.prior, self._bins = prior, bins
        self.schema, self.matrix = Schema.read(_as_table(table))

    @cached_property
    def design(self) -> Design:
        """The coded rows."""
        return Design.from_matrix(
            self.matrix,
            bins=self._bins,
            names=self.schema.features,
            is_indicator=self.schema.is_indicator,
            column=self.schema.column,
        )

    @property
    def scale(self) -> float:
        """Prior standard deviation of the sum at a row."""
        return float(self.prior.leaf_scale) * self.prior.num_trees**0.5

    def require_rules(self) -> None:
        """Raise if no tree can split the rows.

        Raises
        ------
        ValueError
            If there are too few rows, or all columns are constant.
        """
        num_rows, fewest = len(self.matrix), self.prior.min_leaf
        if num_rows < 2 * fewest:
            raise ValueError(
                f"The table of a TreeSum has {num_rows} rows, too few for two leaves of at least "
                f"{fewest} rows: lower min_leaf."
            )
        if not self.design.has_cut.any():
            raise ValueError("All columns of the table of a TreeSum are constant: no tree splits.")

    def read(self, table: Any) -> np.ndarray:
        """Read new rows, float64 [m, d].

        Raises
        ------
        ValueError
            If columns differ, or a value is missing in a complete column.
        """
        matrix = self.schema.transform(_as_table(table), refuse_unknown=False)
        refuse_new_missing(matrix, self.design.has_missing, self.schema.features)
        return matrix

    def posterior(self, rule: Any, value: Any) -> SumPosterior:
        """Make a posterior of drawn trees [chain, draw, m, nodes]."""
        rule, value = np.asarray(rule)[:, :, None], np.asarray(value, np.float64)[:, :, None]
        return SumPosterior(
            prior=self.prior,
            design=self.design,
            y=np.zeros(len(self.matrix)),
            rule=rule,
            value=value,
            variance=np.ones(rule.shape[:2]),
            feature_weight=np.zeros((*rule.shape[:2], self.design.num_features)),
        )

    def draw_prior(self, key_data: Any) -> np.ndarray:
        """Draw a sum of trees at the rows from the prior, float64 [n]."""
        words = [int(word) for word in np.ravel(key_data)]
        nodes = 2**self.prior.max_depth - 1
        shape = 1, 0, self.prior.num_trees, nodes
        none = self.posterior(np.zeros(shape, np.int32), np.zeros((*shape[:-1], 2 * nodes + 1)))
        drawn = draw_sum_prior(np.random.default_rng(words), none, 1)
        return drawn.sums(self.matrix)[0, 0, 0]


def _as_table(table: Any) -> Any:
    """Convert arrays of JAX to NumPy; leave tables with names unchanged."""
    return as_table(table) if has_names(table) or isinstance(table, Mapping) else np.asarray(table)


class TreeSum(dist.Distribution):
    """Distribution of a sum of hard trees at the rows of a table (BART), one value a row.

    `bdtppl.TreeGibbs` samples it, because the density of the values alone, without the trees, has
    no closed form.

    Parameters
    ----------
    X
        Table of n rows: array, or frame with names; NaN is missing. It must not be traced.
    trees
        Number of trees.
    scale
        Prior standard deviation of the sum at a row; the mean is 0, so add an offset or an
        intercept to the model if 0 is far off. The default suits logits, probits and logs.
    max_depth, min_leaf
        Most levels of splits of a tree, and fewest rows of a leaf.
    bins
        Most buckets of a column, at most 255.
    alpha, beta
        A node of depth l is split with the prior probability alpha (1 + l)^-beta.
    sparsity
        Concentration of a Dirichlet prior on the features' weights; None for equal weights.

    Notes
    -----
    The prior is that of `bdtppl.models.hard.additive`: leaf values are normal with standard
    deviation ``scale / sqrt(trees)``. The event is the vector of all rows, so the site must not be
    in a plate over rows.

    References
    ----------
    Chipman, George and McCulloch 2010, BART: Bayesian additive regression trees.

    Examples
    --------
    >>> import numpyro
    >>> from numpyro.infer import MCMC, NUTS
    >>> from bdtppl import TreeGibbs, TreeSum
    >>> X = np.linspace(0, 1, 50)[:, None]
    >>> def model(X, y=None):
    ...     f = numpyro.sample("f", TreeSum(X, trees=20))
    ...     numpyro.sample("y", dist.Poisson(jnp.exp(f)), obs=y)
    >>> mcmc = MCMC(TreeGibbs(NUTS(model)), num_warmup=50, num_samples=50, progress_bar=False)
    >>> mcmc.run(jax.random.key(0), X, np.where(X[:, 0] < 0.5, 0, 6))
    >>> mcmc.get_samples()["f"].shape
    (50, 50)
    """

    arg_constraints: ClassVar[dict] = {}
    support: Any = constraints.real_vector
    pytree_aux_fields = ("problem",)

    def __init__(
        self,
        X: Any,
        trees: int = AdditivePrior.num_trees,
        *,
        scale: float = 1.5,
        max_depth: int = AdditivePrior.max_depth,
        min_leaf: int = AdditivePrior.min_leaf,
        bins: int = USUAL_BINS,
        alpha: float = float(AdditivePrior.alpha),
        beta: float = float(AdditivePrior.beta),
        sparsity: float | None = None,
        validate_args: bool | None = None,
    ):
        if isinstance(X, Tracer):
            raise TypeError(
                "TreeSum needs concrete values of X, which JAX traces here: pass X as an argument "
                "of MCMC.run with jit_model_args=False (the default), and compute nothing from it."
            )
        if isinstance(scale, Tracer):
            raise TypeError("The scale of a TreeSum must be a number, and not a site of the model.")
        for name, value, most in (
            ("trees", trees, None),
            ("max_depth", max_depth, MOST_TREE_LEVELS),
            ("min_leaf", min_leaf, None),
        ):
            if not isinstance(value, int | np.integer) or value < 1 or value > (most or value):
                upto = f", and at most {most}" if most else ""
                raise ValueError(f"{name} must be an integer of at least 1{upto}; got {value!r}.")
        if not scale > 0:
            raise ValueError(f"scale must be above 0; got {scale!r}.")
        prior = AdditivePrior(
            float(scale) / trees**0.5,
            1.0,
            alpha=alpha,
            beta=beta,
            sparsity=sparsity,
            num_trees=trees,
            max_depth=max_depth,
            min_leaf=min_leaf,
        )
        self.problem: Any = SumProblem(X, prior, bins)
        super().__init__((), (len(self.problem.matrix),), validate_args=validate_args)

    def log_prob(self, value: Any) -> Any:
        """Raise: the density has no closed form.

        Raises
        ------
        NotImplementedError
            Always.
        """
        raise NotImplementedError(
            "The density of a TreeSum at the rows has no closed form. Sample the model with "
            "MCMC(TreeGibbs(NUTS(model)), ...)."
        )

    def expand(self, batch_shape: tuple[int, ...]) -> Any:
        """Raise: a sum is one event over all rows.

        Raises
        ------
        ValueError
            If the shape is not empty.
        """
        if tuple(batch_shape) == ():
            return self
        raise ValueError(
            "A TreeSum cannot be expanded or be inside a plate, because its event is the vector of "
            "all rows: put it outside of the plates, one site for each sum."
        )

    def sample(self, key: jax.Array, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        """Draw sums of trees from the prior, ``[*sample_shape, n]``.

        Raises
        ------
        ValueError
            If ``sparsity`` is given (see `bdtppl.inference.additive.prior_draws`), or no tree can
            split.
        """
        if self.problem.prior.sparsity is not None:
            raise ValueError(
                "A TreeSum with sparsity cannot be drawn from its prior: the number of trees that "
                "min_leaf excludes depends on the features' weights. Omit sparsity to draw from "
                "the prior."
            )
        self.problem.require_rules()
        shape = jax.ShapeDtypeStruct(self.event_shape, jnp.result_type(float))

        def draw(key_data: Any) -> np.ndarray:
            return self.problem.draw_prior(key_data).astype(shape.dtype)

        def one(key: jax.Array) -> jax.Array:
            data = jax.random.key_data(key)
            return jax.pure_callback(draw, shape, data, vmap_method="sequential")

        keys = jax.random.split(key, int(np.prod(sample_shape, dtype=int)))
        return jax.lax.map(one, keys).reshape(*sample_shape, *self.event_shape)
