"""The interface of leaf families: their methods, their registry, and checks of a family.

A leaf family maps the targets of the rows in a leaf to a vector of sufficient statistics that adds
over rows. Everything else, in particular the log marginal likelihood of the leaf, is a function of
that vector. Inferences use nothing else of a leaf, so a new family needs no change elsewhere.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions.constraints import Constraint

from bdtppl.models.arrays.precision import in_float64
from bdtppl.models.pytrees import Array, describe_kind, enter
from bdtppl.models.wording import listed, number


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


LEAF_FAMILIES: dict[str, type["Leaf"]] = {}
"""Leaf families by name; a subclass of `Leaf` enters itself."""

_NEEDED = ("statistics", "log_marginal", "predictive")


class Leaf:
    """A leaf family: an immutable pytree of hyperparameters with these methods.

    Statistics have shape [..., s]; they are sums over rows, so the statistics of two disjoint sets
    of rows add to those of their union. They are all 0 for no rows, and fractional if greedy trees
    smooth. JAX traces the methods in float64, and differentiates `log_marginal` in reverse mode for
    empirical Bayes and hyperplanes. A subclass, decorated with
    `bdtppl.models.pytrees.pytree_dataclass`, works in every inference; saved models, prior files
    and the command line know its name and the numbers in ``parameter_support``.

    Attributes
    ----------
    parameter_support
        Support of each hyperparameter that can be fitted.
    task
        "classification" for targets that are classes, else "regression".
    is_discrete
        Whether real targets are whole numbers.
    sums_to_rows
        Whether statistics are counts whose sum is the number of rows. Otherwise, if there is a
        compiled score, the first statistic is that number.
    """

    parameter_support: ClassVar[dict[str, Constraint]] = {}
    task: ClassVar[Literal["classification", "regression"]] = "regression"
    is_discrete: ClassVar[bool] = False
    sums_to_rows: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        enter(LEAF_FAMILIES, cls)

    @classmethod
    def of_targets(cls, y: np.ndarray, **numbers: float) -> "Leaf":
        """Make the family from targets [n] with default hyperparameters, except the given ones.

        Raises
        ------
        ValueError
            If the targets or the hyperparameters are invalid for the family.
        """
        return cls(**numbers)

    def require_targets(self, y: np.ndarray) -> None:
        """Raise ValueError, naming the row, unless the family supports targets [n]."""

    def in_words(self, classes: Sequence[Any] | None = None) -> str:
        """Describe in a sentence or two the assumptions on the targets in a leaf."""
        numbers = [f"{name} {number(getattr(self, name))}" for name in self.parameter_support]
        with_numbers = f" with {listed(numbers)}" if numbers else ""
        return f"The leaf family is {type(self).__name__}{with_numbers}."

    def statistics(self, y: Array, weight: Array) -> jax.Array:
        """Return statistics of single rows, [n, s], from targets and weights [n]."""
        raise NotImplementedError

    def log_marginal(self, statistics: Array) -> jax.Array:
        """Return the log marginal likelihood of the rows behind statistics [..., s], [...]."""
        raise NotImplementedError

    @staticmethod
    def compiled_score(statistics, tables, numbers, scores):
        """Write the log marginals of statistics [m, s] to scores [m], and return 0.

        The statistics are sums over whole rows; ``tables`` and ``numbers`` come from
        `score_tables`. numba compiles the function for inferences that score very many sets of
        rows. A family without it is scored by `log_marginal`, many sets at once.
        """
        raise NotImplementedError

    def score_tables(self, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Tabulate float64 [k, counts] the terms of counts 0, 1, ..., and list numbers [p]."""
        raise NotImplementedError

    def log_marginal_bound(self, statistics: np.ndarray) -> np.ndarray:
        """Bound the log marginals of the rows behind statistics [..., s], however they are split.

        An upper bound of the sum of `log_marginal` over the parts of any partition; a search
        (`bdtppl.inference.pcfg.search`) excludes trees by it. Default 0 if targets have
        probabilities, which are at most 1.

        Raises
        ------
        TypeError
            If targets have densities, and the family does not define a bound.
        """
        if self.task == "classification" or self.is_discrete:
            return np.zeros(np.shape(statistics)[:-1])
        raise TypeError(
            f"{type(self).__name__} has no method log_marginal_bound, which a search needs to "
            "exclude trees."
        )

    def posterior_mean(self, statistics: Array) -> Array:
        """Return the mean of a new target, [...], or [..., c] for classification."""
        return self.predictive(statistics).mean

    def predictive(self, statistics: Array) -> Any:
        """Return the posterior predictive distribution of a new target, batch shape [...].

        A numpyro distribution. Predictions need its ``mean``, scores ``log_prob``, draws ``sample``
        and, for real targets, quantiles and intervals ``cdf``, at a value [...] for each. If
        `is_discrete`, quantiles are whole numbers. JAX traces it, like all methods, for thousands
        of leaves at once.
        """
        raise NotImplementedError

    def mean_law(self, statistics: Array, label: Any = None) -> Any:
        """Return the posterior distribution of a leaf's mean of new targets, batch shape [...].

        A numpyro distribution with ``cdf``, in units of the targets, whose mean is the posterior
        mean. For classes it is the distribution of the probability of the class ``label``. A family
        without it has no intervals of means.
        """
        raise NotImplementedError

    def sample(self, rng_key: jax.Array, statistics: Array) -> Any:
        """Draw one new target per leaf, [...]."""
        return self.predictive(statistics).sample(rng_key)


def require_leaf(leaf: Any, task: str) -> None:
    """Raise unless an object is a leaf family with all methods, for these targets.

    Raises
    ------
    TypeError
        If it is not one.
    """
    if isinstance(leaf, type) or not isinstance(leaf, Leaf):
        raise TypeError(
            f"leaf must be a leaf family of bdtppl.models.leaves, or a subclass of its Leaf; got "
            f"{describe_kind(leaf)}."
        )
    if jax.tree_util.treedef_is_leaf(jax.tree.structure(leaf)):
        raise TypeError(
            f"leaf is a {type(leaf).__name__}, which is not a pytree: decorate the class with "
            "bdtppl.models.pytrees.pytree_dataclass."
        )
    for method in _NEEDED:
        if getattr(type(leaf), method) is getattr(Leaf, method):
            raise TypeError(
                f"leaf is a {type(leaf).__name__}, which lacks the method {method}; a leaf family "
                f"has {listed(_NEEDED)}."
            )
    _check_shapes(leaf)
    if leaf.task != task:
        targets = "class labels" if task == "classification" else "real targets"
        raise TypeError(f"leaf must be a family for {targets}; got {type(leaf).__name__}.")


def require_counts(leaf: Leaf, y: np.ndarray) -> None:
    """Reject targets [n] that are not counts; the error names the row and the family.

    Raises
    ------
    ValueError
        If there are none, or one is negative or not whole.
    """
    y = np.asarray(y)
    if not y.size:
        raise ValueError("y has no targets; at least one count is needed.")
    bad = np.flatnonzero(~((y >= 0) & (y == np.floor(y)) & (y < np.inf)))
    if bad.size:
        kind = "negative" if y[bad[0]] < 0 else "not a whole number"
        raise ValueError(
            f"y, row {bad[0]}: the target {number(y[bad[0]])} is {kind}; {type(leaf).__name__} "
            f"needs counts, whole numbers of at least 0."
        )


@in_float64  # as inferences compute
def _check_shapes(leaf: Leaf) -> None:
    """Raise TypeError if JAX cannot trace a family's methods, or they return other shapes."""

    def shape_of(method: str, *arguments: Any) -> Any:
        try:
            return jax.eval_shape(getattr(leaf, method), *arguments)
        except Exception as error:  # whatever the method raises
            name = f"{type(leaf).__name__}.{method}"
            raise TypeError(f"{name} cannot be traced by JAX: {error}") from error

    rows = shape_of("statistics", jnp.zeros(2), jnp.ones(2))
    if len(rows.shape) != 2 or rows.shape[0] != 2:
        raise TypeError(
            f"{type(leaf).__name__}.statistics must have shape [n, s]; for two rows it has "
            f"{rows.shape}."
        )
    scores = shape_of("log_marginal", rows)
    if scores.shape != (2,):
        raise TypeError(
            f"{type(leaf).__name__}.log_marginal must have shape [n] for statistics [n, s]; for "
            f"two rows it has {scores.shape}."
        )

    def batch_of_law(statistics: Any) -> Any:
        law = leaf.predictive(statistics)
        for name in ("mean", "log_prob", "sample"):
            if not hasattr(type(law), name):
                raise TypeError(f"it returns a {type(law).__name__}, which has no {name}")
        return jnp.zeros(law.batch_shape)

    try:
        batch = jax.eval_shape(batch_of_law, rows).shape
    except Exception as error:  # whatever the method raises
        name = f"{type(leaf).__name__}.predictive"
        raise TypeError(f"{name} cannot be used: {error!r}") from error
    if batch != (2,):
        raise TypeError(
            f"{type(leaf).__name__}.predictive must have batch shape [n] for statistics [n, s]; "
            f"for two rows it has {batch}."
        )
