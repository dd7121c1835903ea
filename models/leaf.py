"""What a leaf family is: its methods, its place in the table of families, and checks of one.

A leaf family turns the targets of the rows in a leaf into a vector of statistics that adds over
rows, and everything else, the log marginal likelihood of the leaf above all, is a function of that
vector. No inference knows more about a leaf than this, so a new family needs no change elsewhere.
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
    of rows add to those of their union. They are all 0 where no row is, and fractions of whole ones
    where greedy trees smooth. JAX traces the methods in float64, and differentiates `log_marginal`
    backward for empirical Bayes and hyperplanes. A subclass, decorated with
    `bdtppl.models.pytrees.pytree_dataclass`, works in every inference; its name and the numbers in
    ``parameter_support`` are known to saved models, prior files and the command line.

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
        compiled score, the first of them is that number.
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
        """Make the family with default numbers for targets [n], but for those that are given.

        Raises
        ------
        ValueError
            If the targets or the numbers are unfit for the family.
        """
        return cls(**numbers)

    def require_targets(self, y: np.ndarray) -> None:
        """Raise ValueError, which names the row, unless the family can explain targets [n]."""

    def in_words(self, classes: Sequence[Any] | None = None) -> str:
        """Say in a sentence or two what is assumed of the targets in a leaf."""
        numbers = [f"{name} {number(getattr(self, name))}" for name in self.parameter_support]
        with_numbers = f" with {listed(numbers)}" if numbers else ""
        return f"The leaf family is {type(self).__name__}{with_numbers}."

    def statistics(self, y: Array, weight: Array) -> jax.Array:
        """Statistics of single rows, [n, s], from targets and weights [n]."""
        raise NotImplementedError

    def log_marginal(self, statistics: Array) -> jax.Array:
        """Log marginal likelihood of the rows behind statistics [..., s], shape [...]."""
        raise NotImplementedError

    @staticmethod
    def compiled_score(statistics, tables, numbers, scores):
        """Write the log marginals of statistics [m, s] to scores [m], and return 0.

        The statistics are sums over whole rows; ``tables`` and ``numbers`` are what `score_tables`
        gives. numba compiles the function for inferences that score very many sets of rows. A
        family without it is scored by `log_marginal`, many sets at once.
        """
        raise NotImplementedError

    def score_tables(self, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Tabulate float64 [k, counts] what depends on counts 0, 1, ..., and list numbers [p]."""
        raise NotImplementedError

    def log_marginal_bound(self, statistics: np.ndarray) -> np.ndarray:
        """Bound the log marginals of the rows behind statistics [..., s], parted in any way.

        An upper bound of the sum of `log_marginal` over the parts, whatever they are and however
        many; a search (`bdtppl.inference.pcfg.search`) rules trees out by it. By default 0 where
        targets have probabilities, which are at most 1.

        Raises
        ------
        TypeError
            If targets have densities, and the family gives no bound of its own.
        """
        if self.task == "classification" or self.is_discrete:
            return np.zeros(np.shape(statistics)[:-1])
        raise TypeError(
            f"{type(self).__name__} has no method log_marginal_bound, which a search needs to rule "
            f"trees out."
        )

    def posterior_mean(self, statistics: Array) -> Array:
        """Posterior mean of a new target, [...] for regression, [..., c] for classification."""
        return self.predictive(statistics).mean

    def predictive(self, statistics: Array) -> Any:
        """Posterior predictive distribution of a new target, batch shape [...].

        A numpyro distribution. Predictions need its ``mean``, scores ``log_prob``, draws
        ``sample`` and, for real targets, quantiles and intervals ``cdf``, at a value [...] for
        each. Where `is_discrete`, quantiles are whole numbers. JAX traces it, as it does all
        methods, for thousands of leaves at once.
        """
        raise NotImplementedError

    def mean_law(self, statistics: Array, label: Any = None) -> Any:
        """Posterior law of the mean that new targets of a leaf have, batch shape [...].

        A numpyro distribution with ``cdf``, in units of the targets, whose mean is the posterior
        mean. Of classes it is that of the probability of the class ``label``. A family without it
        gives no intervals of means.
        """
        raise NotImplementedError

    def sample(self, rng_key: jax.Array, statistics: Array) -> Any:
        """Draw one new target per leaf, [...]."""
        return self.predictive(statistics).sample(rng_key)


def require_leaf(leaf: Any, task: str) -> None:
    """Refuse what is no leaf family, one that lacks a method, and one for other targets.

    Raises
    ------
    TypeError
        If it is one of these.
    """
    if isinstance(leaf, type) or not isinstance(leaf, Leaf):
        raise TypeError(
            f"leaf must be a leaf family of bdtppl.models.leaves, or a subclass of its Leaf; got "
            f"{describe_kind(leaf)}."
        )
    if jax.tree_util.treedef_is_leaf(jax.tree.structure(leaf)):
        raise TypeError(
            f"leaf is a {type(leaf).__name__}, which is no pytree: decorate the class with "
            f"bdtppl.models.pytrees.pytree_dataclass."
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
    """Refuse targets [n] that are no counts; the error names the row and the family.

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
    """Raise TypeError where JAX cannot trace a family's methods, or they return other shapes."""

    def shape_of(method: str, *arguments: Any) -> Any:
        try:
            return jax.eval_shape(getattr(leaf, method), *arguments)
        except Exception as error:  # whatever the method raises
            name = f"{type(leaf).__name__}.{method}"
            raise TypeError(f"{name} cannot be traced by JAX: {error}") from error

    rows = shape_of("statistics", jnp.zeros(2), jnp.ones(2))
    if len(rows.shape) != 2 or rows.shape[0] != 2:
        raise TypeError(
            f"{type(leaf).__name__}.statistics must have shape [n, s]; of two rows it has "
            f"{rows.shape}."
        )
    scores = shape_of("log_marginal", rows)
    if scores.shape != (2,):
        raise TypeError(
            f"{type(leaf).__name__}.log_marginal must have shape [n] for statistics [n, s]; of two "
            f"rows it has {scores.shape}."
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
            f"{type(leaf).__name__}.predictive must have batch shape [n] for statistics [n, s]; of "
            f"two rows it has {batch}."
        )
