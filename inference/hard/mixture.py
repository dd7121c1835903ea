"""The exact posterior predictive of new rows: a finite mixture over subproblems.

Each kind of rows (rows that all trees treat alike) has its own weights on a shared list of leaves
(see `bdtppl.inference.pcfg.paths`); a leaf contributes the predictive distribution of its family.
Means and probabilities are sums; quantiles of real targets are found by bracketing on a grid and
false position.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numba
import numpy as np
import numpyro.distributions as dist
import scipy.stats
from scipy.sparse import csr_array

from bdtppl.inference.crps import mixture_crps
from bdtppl.inference.draws import draw_targets, draw_uniforms
from bdtppl.inference.predictive.many_rows import InPieces
from bdtppl.inference.quantiles import MOST_WIDENINGS, no_bracket, require_cdf, solve, solve_counts
from bdtppl.inference.student import StudentLaws
from bdtppl.models.arrays.padding import FEW_SIZES, in_pieces, padded, padded_size
from bdtppl.models.arrays.precision import in_float64
from bdtppl.models.leaf import LEAF_FAMILIES, Leaf
from bdtppl.models.pytrees import pytree_dataclass
from bdtppl.models.wording import listed

_GRID = 24
_MOST_COUNTS = 1 << 12  # counts whose cdfs are tabulated
_MANY_LEAVES = 2000  # leaves of a kind of rows
_SPECKS = 1e-5  # probability
_WEIGHT_BUCKETS = 8 * 60 + 2  # of weights
_TAIL = 1e-9  # probability of counts that scores omit
_KINDS_AT_ONCE = 512  # kinds whose weights are in memory


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

    @in_float64
    def mean(self) -> np.ndarray:
        """Return the predictive mean [m], or class probabilities [m, c]."""
        return (self.weights @ leaf_means(self.leaf, self.statistics))[self.kind]

    @in_float64
    def log_density(self, y: np.ndarray) -> np.ndarray:
        """Return the log predictive density or probability of one target per row, float64 [m]."""
        weights = self.weights[self.kind]
        entries, length = weights.indices, np.diff(weights.indptr)
        predictive = self.leaf.predictive(_padded(self.statistics[entries]))
        targets = padded(np.repeat(np.asarray(y), length), padded_size(len(entries)))
        each = np.log(weights.data) + np.asarray(predictive.log_prob(targets))[: len(entries)]
        # Densities far from all leaves underflow, but their logs do not.
        largest = np.maximum.reduceat(each, weights.indptr[:-1])
        scaled = np.exp(each - np.repeat(largest, length))
        return largest + np.log(np.add.reduceat(scaled, weights.indptr[:-1]))

    @in_float64
    def cdf(self, y: np.ndarray) -> np.ndarray:
        """Return the probability of a real target of at most y, one for each row, float64 [m]."""
        weights, leaves = self._with_laws(self.weights)
        return leaves.mixed(weights, self.kind, np.asarray(y, np.float64))[0]

    @in_float64
    def sample(self, rng_key: jax.Array, num_draws: int, *, first_row: int = 0) -> np.ndarray:
        """Draw new targets, [num_draws, m].

        Parameters
        ----------
        rng_key
            JAX key.
        num_draws
            Draws of each row.
        first_row
            Index of the first row in a larger table: draws of a row depend on its index alone.
        """
        key_leaf, key_target = jax.random.split(rng_key)
        first = first_row * num_draws
        chosen = self._chosen(draw_uniforms(key_leaf, (len(self.kind), num_draws), first))
        return draw_targets(key_target, self.leaf, self.statistics[chosen], first).T

    def _chosen(self, uniform: np.ndarray) -> np.ndarray:
        """Return the leaves that numbers in [0, 1) choose at each row, int64 [m, draws]."""
        weights = self.weights
        chosen = np.empty(uniform.shape, np.int64)
        sparse = weights.data, weights.indices, weights.indptr
        _choose_leaves(*sparse, self.kind, uniform, int(np.diff(weights.indptr).max()), chosen)
        return chosen

    @in_float64
    def quantiles(self, probabilities: Sequence[float]) -> np.ndarray:
        """Return quantiles of real targets, float64 [m, probabilities].

        They are bracketed on a grid, then found by Newton's method, with bisection as a fallback.
        """
        weights, leaves = self._with_laws(self._without_specks())
        result, is_discrete = np.empty((weights.shape[0], len(probabilities))), self._is_discrete
        for kinds, grid, cdf in _brackets(weights, leaves, self._ends, probabilities):
            own = weights[kinds]
            if is_discrete and grid[-1] - grid[0] <= _MOST_COUNTS:
                counts = np.arange(np.floor(grid[0]), np.ceil(grid[-1]) + 1)
                table = own @ leaves.cdfs(np.arange(weights.shape[1]), counts)
                solved = [counts[(table >= p).argmax(axis=1)] for p in probabilities]
            else:
                solved = [_solve(own, leaves, grid, cdf, p, is_discrete) for p in probabilities]
            result[kinds] = np.stack(solved, axis=1)
        return result[self.kind]

    @property
    def _ends(self) -> tuple[float, float]:
        """Return the initial brackets of quantiles, which do not depend on the rows."""
        means = leaf_means(self.leaf, self.statistics)
        means = means[np.isfinite(means)]
        low, high = (means.min(), means.max()) if len(means) else (0.0, 0.0)
        width = max((high - low) / 2, self._least_width, 1e-15 * abs(low))
        return low - width, high + width

    @property
    def _least_width(self) -> float:
        """Return a distribution's width, if known, because targets may have any scale."""
        if self._is_discrete:
            return 1.0
        if _FAST_CDFS.get(type(self.leaf.predictive(self.statistics[:1]))) is not StudentLaws:
            return 1e-9
        scale = _predictive_parameters(self.leaf, self.statistics)["scale"]
        return float(scale[np.isfinite(scale)].max(initial=np.finfo(float).tiny))

    @in_float64
    def mean_quantiles(self, probabilities: Sequence[float]) -> np.ndarray:
        """Return quantiles of the mean of a row's targets, float64 [m, probabilities].

        The mean has a mixture, over trees, of the leaves' distributions (`Leaf.mean_law`). For
        classes these are quantiles of each one's probability, [m, c, probabilities].

        Raises
        ------
        ValueError
            If the leaf family has no distribution of its mean.
        """
        weights, leaf = self.weights, self.leaf

        def of(label: int | None) -> np.ndarray:
            law: Any = _MeanOf(leaf, label)
            return LeafMixture(law, self.statistics, weights, self.kind).quantiles(probabilities)

        try:
            if leaf.task == "regression":
                return of(None)
            num_classes = leaf_means(leaf, self.statistics[:1]).shape[1]
            return np.stack([of(label) for label in range(num_classes)], axis=1)
        except NotImplementedError:
            able = [name for name, c in LEAF_FAMILIES.items() if c.mean_law is not Leaf.mean_law]
            raise ValueError(
                f"A {type(leaf).__name__} has no distribution of a leaf's mean (method mean_law), "
                f"which intervals of means and class probabilities need; {listed(able)} have it."
            ) from None

    @in_float64
    def crps(self, y: np.ndarray) -> np.ndarray:
        """Return the continuous ranked probability score of one real target per row, float64 [m].

        Raises
        ------
        ValueError
            If the leaves' predictives are not Student-t distributions.
        """
        weights, laws = self._with_laws(self._without_specks())
        if self._is_discrete:  # sum (F(k) - 1{y <= k})^2 over the counts k, as far as there is mass
            most = int(max(self.quantiles([1 - _TAIL]).max(), np.max(y))) + 1
            counts = np.arange(most + 1)
            mixed = weights @ laws.cdfs(np.arange(weights.shape[1]), counts)
            return ((mixed[self.kind] - (np.asarray(y)[:, None] <= counts)) ** 2).sum(axis=1)
        if not isinstance(laws, StudentLaws):
            raise ValueError(
                "The continuous ranked probability score needs Student-t predictives, which a "
                f"{type(self.leaf).__name__} does not have."
            )
        return mixture_crps(np.asarray(y), self.kind, weights, laws)

    @property
    def _is_discrete(self) -> bool:
        return bool(getattr(self.leaf, "is_discrete", False))

    def _with_laws(self, weights: Any) -> tuple[Any, Any]:
        """Return weights over the leaves that have any, and the distributions of these."""
        is_used = np.zeros(weights.shape[1], bool)
        is_used[weights.indices] = True
        place, used = (np.cumsum(is_used) - 1)[weights.indices], np.flatnonzero(is_used)
        over_used = (weights.data, place, weights.indptr), (weights.shape[0], len(used))
        return csr_array(*over_used), _leaf_cdfs(self.leaf, self.statistics[used])

    def _without_specks(self) -> csr_array:
        """Omit leaves that together have less than 1e-8 of a kind's probability.

        The limit is 1e-5 for kinds with thousands of leaves, because each leaf costs a distribution
        function at every point.
        """
        weights = self.weights.copy()
        number = np.diff(weights.indptr)
        weights.data[weights.data < np.repeat(1e-8 / np.maximum(number, 1), number)] = 0.0
        _drop_specks(weights.data, weights.indptr, _MANY_LEAVES, _SPECKS)
        weights.eliminate_zeros()
        weights.data /= np.repeat(weights.sum(axis=1), np.diff(weights.indptr))
        return weights


@numba.njit(cache=True, nogil=True)
def _drop_specks(weights, pointers, many, most_lost):
    """Set the least weights of rows with many to 0, while their sum is less than most_lost.

    Weights of a row sum to 1. They are not sorted, but grouped in buckets of similar ones.
    """
    shares = np.empty(_WEIGHT_BUCKETS)
    for row in range(len(pointers) - 1):
        own = weights[pointers[row] : pointers[row + 1]]
        if len(own) <= many:
            continue
        shares[:] = 0.0
        for weight in own:
            shares[_bucket(weight)] += weight
        bucket, lost = _WEIGHT_BUCKETS - 1, shares[_WEIGHT_BUCKETS - 1]
        while lost < most_lost:  # the first bucket is never reached: all sum to 1
            bucket -= 1
            lost += shares[bucket]
        for place in range(len(own)):
            if _bucket(own[place]) > bucket:
                own[place] = 0.0


@numba.njit(cache=True, nogil=True, inline="always")
def _bucket(weight):
    """Return the bucket of a weight in [0, 1]: eight per power of 2, the least weights last."""
    if weight < 2.0**-60:
        return _WEIGHT_BUCKETS - 1
    return max(int(-8 * np.log2(weight)), 0)


@numba.njit(cache=True, nogil=True)
def _choose_leaves(weights, leaves, pointers, kind, uniform, most_leaves, chosen):
    """Write the leaf that each number [m, draws] selects, by the weights of the row's kind."""
    running = np.empty(most_leaves)
    for row in range(len(kind)):
        begin, end = pointers[kind[row]], pointers[kind[row] + 1]
        total = 0.0
        for place in range(end - begin):
            total += weights[begin + place]
            running[place] = total
        own = running[: end - begin]
        for draw in range(uniform.shape[1]):
            place = np.searchsorted(own, uniform[row, draw] * total, side="right")
            chosen[row, draw] = leaves[begin + min(place, end - begin - 1)]


class PiecedMixture(InPieces, LeafMixture):
    """Mixtures of m rows of u kinds, whose weights are computed when needed, in pieces.

    Memory grows with the rows only by their codes and the results.

    Parameters
    ----------
    leaf
        Leaf family.
    kind
        int [m]; kind of each row.
    num_kinds
        u.
    """

    def __init__(self, leaf: Leaf, kind: np.ndarray, num_kinds: int):
        vars(self).update(leaf=leaf, kind=kind, num_kinds=num_kinds)

    num_kinds: int

    def _weights_of(self, kinds: slice) -> csr_array:
        """Return weights of some kinds, sparse float64 [kinds, l]."""
        raise NotImplementedError

    @property
    def weights(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Return weights of all kinds, sparse float64 [u, l]."""
        return self._weights_of(slice(None))

    def _pieces(self) -> Iterator[tuple[np.ndarray, LeafMixture]]:
        """Yield the numbers of some rows, and the mixture at these."""
        order = np.argsort(self.kind, kind="stable")
        starts = np.arange(0, self.num_kinds, _KINDS_AT_ONCE)
        ends = np.searchsorted(self.kind[order], np.append(starts, self.num_kinds))
        for start, (first, last) in zip(starts.tolist(), itertools.pairwise(ends), strict=True):
            rows = order[first:last]
            weights = self._weights_of(slice(start, start + _KINDS_AT_ONCE))
            yield rows, LeafMixture(self.leaf, self.statistics, weights, self.kind[rows] - start)

    def _joined(
        self, function: Callable[[LeafMixture, np.ndarray], np.ndarray], more_bytes: int = 0
    ) -> np.ndarray:
        parts = [(rows, function(piece, rows)) for rows, piece in self._pieces()]
        result = np.empty((len(self.kind), *parts[0][1].shape[1:]), parts[0][1].dtype)
        for rows, part in parts:
            result[rows] = part
        return result

    def _chosen(self, uniform: np.ndarray) -> np.ndarray:
        return self._joined(lambda piece, rows: piece._chosen(uniform[rows]))


@pytree_dataclass
class _MeanOf:
    """A leaf family whose new targets are the means of leaves, or probabilities of one class."""

    leaf: Leaf
    label: int | None = None

    is_discrete: ClassVar[bool] = False

    def predictive(self, statistics: Any) -> Any:
        return self.leaf.mean_law(statistics, self.label)

    def posterior_mean(self, statistics: Any) -> Any:
        mean = self.leaf.posterior_mean(statistics)
        return mean if self.label is None else mean[..., self.label]


def _padded(statistics: np.ndarray) -> jax.Array:
    """Pad [l, ...], so that few shapes are compiled."""
    return padded(statistics, padded_size(len(statistics)))


@jax.jit
def _mean_of(leaf: Leaf, statistics: jax.Array) -> jax.Array:
    return jnp.asarray(leaf.posterior_mean(statistics))


@jax.jit
def _cdf_of(leaf: Leaf, statistics: jax.Array, y: jax.Array) -> jax.Array:
    return leaf.predictive(statistics).cdf(y)


@jax.jit
def _parameters_of(leaf: Leaf, statistics: jax.Array) -> dict[str, jax.Array]:
    law: Any = leaf.predictive(statistics)
    return {name: jnp.broadcast_to(getattr(law, name), law.shape()) for name in law.arg_constraints}


def _predictive_parameters(leaf: Leaf, statistics: np.ndarray) -> dict[str, np.ndarray]:
    """Return parameters of the leaves' predictives, [l] each, by NumPyro's names for them."""
    return in_pieces(partial(_parameters_of, leaf), FEW_SIZES, statistics)


def leaf_means(leaf: Leaf, statistics: np.ndarray) -> np.ndarray:
    """Return predictive means of leaves with statistics [l, s], [l] or [l, c]."""
    return in_pieces(partial(_mean_of, leaf), FEW_SIZES, statistics)


class _Cdfs:
    """Predictive distributions of l leaves of any family."""

    def __init__(self, leaf: Leaf, statistics: np.ndarray):
        self._leaf, self._statistics = leaf, statistics
        self.name = type(getattr(leaf, "leaf", leaf)).__name__

    def cdf(self, leaf: Any, y: np.ndarray) -> np.ndarray:
        """Return the CDF of some leaves at y, which broadcast against each other.

        Raises
        ------
        ValueError
            If the distribution has no cdf, or one that is not a number.
        """
        try:
            shape = np.broadcast_shapes(np.shape(leaf), np.shape(y))
            own = self._statistics[np.broadcast_to(leaf, shape).ravel()]
            at = np.broadcast_to(np.asarray(y, float), shape).ravel()
            cdf = np.asarray(_cdf_of(self._leaf, _padded(own), _padded(at)))[: len(at)]
        except (NotImplementedError, AttributeError):
            raise ValueError(
                f"The predictive of a {self.name} has no method cdf, which quantiles need."
            ) from None
        return require_cdf(cdf.reshape(shape), f"the predictive of a {self.name}")

    def cdfs(self, which: np.ndarray, points: np.ndarray) -> np.ndarray:
        """Return CDFs of some leaves, int [k], at all points, float64 [k, points]."""
        return self.cdf(which[:, None], points[None])

    def mixed(
        self, weights: Any, kinds: np.ndarray, values: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return CDF and density of mixtures (`StudentLaws.mixed`)."""
        some = weights[kinds]
        at = some.indices, np.repeat(values, np.diff(some.indptr))
        cdf, density = (
            np.add.reduceat(some.data * of_each(*at), some.indptr[:-1])
            for of_each in (self.cdf, self._density)
        )
        return cdf, density

    def _density(self, leaf: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return 0, so that brackets are halved: not every distribution has a density."""
        return np.zeros(len(y))


class _ScipyCdfs(_Cdfs):
    """Distributions [l] of a family of `scipy.stats`, with parameters [l] in their order there."""

    def __init__(self, family: Any, *numbers: np.ndarray):
        self._family, self._numbers = family, numbers
        self.name = f"{family.name} leaf"

    def cdf(self, leaf: Any, y: np.ndarray) -> np.ndarray:
        """Return the CDF of some distributions at y, which broadcast against each other."""
        return self._family.cdf(y, *(each[leaf] for each in self._numbers))

    def _density(self, leaf: np.ndarray, y: np.ndarray) -> np.ndarray:
        return self._family.pdf(y, *(each[leaf] for each in self._numbers))


# Made from the parameters of NumPyro's distributions, by their names there.
_FAST_CDFS: dict[type, Callable[..., StudentLaws | _ScipyCdfs]] = {
    dist.StudentT: StudentLaws,
    dist.Beta: lambda concentration1, concentration0: _ScipyCdfs(
        scipy.stats.beta, concentration1, concentration0
    ),
    dist.Gamma: lambda concentration, rate: _ScipyCdfs(
        scipy.stats.gamma, concentration, np.zeros(len(rate)), 1 / rate
    ),
}


def _leaf_cdfs(leaf: Any, statistics: np.ndarray) -> StudentLaws | _Cdfs:
    fast = _FAST_CDFS.get(type(leaf.predictive(statistics[:1])))
    if fast is None:
        return _Cdfs(leaf, statistics)
    return fast(**_predictive_parameters(leaf, statistics))


@in_float64
def leaf_cdf(leaf: Leaf, statistics: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the predictive CDF of leaves [l, s] at one target each, float64 [l]."""
    return _leaf_cdfs(leaf, statistics).cdf(np.arange(len(y)), y)


def _brackets(
    weights: Any, leaves: Any, ends: tuple[float, float], probabilities: Sequence[float]
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Widen a grid, in units of y, until it brackets every kind's quantiles.

    Yields bracketed kinds, int [a], the grid [points], and their CDFs on it, [a, points].
    """
    low, high = ends
    kinds, every = np.arange(weights.shape[0]), np.arange(weights.shape[1])
    for _ in range(MOST_WIDENINGS):
        grid = np.linspace(low, high, _GRID)
        cdf = weights[kinds] @ leaves.cdfs(every, grid)
        is_inside = (cdf[:, 0] < min(probabilities)) & (cdf[:, -1] > max(probabilities))
        if is_inside.any():
            yield kinds[is_inside], grid, cdf[is_inside]
        kinds = kinds[~is_inside]
        if not len(kinds):
            return
        low, high = low - 1.5 * (high - low), high + 1.5 * (high - low)
    raise no_bracket(probabilities, f"the predictive of a {leaves.name}")


def _solve(
    weights: Any,
    leaves: Any,
    grid: np.ndarray,
    cdf: np.ndarray,
    probability: float,
    is_discrete: bool,
) -> np.ndarray:
    """Return the quantile of each kind of rows, whose CDF on the grid is ``cdf`` [u, grid]; [u]."""
    kinds = np.arange(len(cdf))
    place = np.clip((cdf < probability).sum(axis=1), 1, len(grid) - 1)
    low, high = grid[place - 1], grid[place]
    below, above = cdf[kinds, place - 1], cdf[kinds, place]
    start = low + (high - low) * (probability - below) / (above - below)

    if is_discrete:
        return solve_counts(lambda *at: leaves.mixed(weights, *at)[0], probability, low, high)
    return solve(partial(leaves.mixed, weights), probability, low, high, start)
