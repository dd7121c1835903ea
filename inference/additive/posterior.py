"""Draws of sums of trees, and their predictions."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import jax
import numpy as np
from scipy.stats import norm

from bdtppl.inference.additive.tables import RowTables, row_tables
from bdtppl.inference.additive.terms import BoxTerms, Evaluation, bins_of
from bdtppl.inference.predictive.scaled import ScaledMixture
from bdtppl.inference.soft.mixture import ClassMixture, NoiseMixture
from bdtppl.models.arrays.precision import in_float64
from bdtppl.models.data.design import Design
from bdtppl.models.data.splits import Split, split_number
from bdtppl.models.data.target_scale import IDENTITY, TargetScale
from bdtppl.models.hard.additive import AdditivePrior, AdditiveTrees, class_probabilities
from bdtppl.models.hard.linear import LinearColumns
from bdtppl.models.hard.tree import Tree

CODE_VARIANCE = 0.5
"""Prior variance of the codes of a treatment that is given or not."""

_SCALED = ("linear", "linear_deviation", "leaf_scale")
_ARRAYS = ("rule", "value", "variance", "feature_weight", "noise_rule", "noise_value", *_SCALED)


@dataclass(frozen=True, eq=False)
class TreatmentEffect:
    """Draws of what a treatment adds to a sum, (b_0 + (b_1 - b_0) z) tau(x) at the treatment z.

    Attributes
    ----------
    sums
        Draws of tau.
    coding
        float64 [chain, draw, 2]; b_0 and b_1.
    feature
        Feature of the treatment.
    propensity
        Draws of the treatment given the first features; None if propensities are known.
    """

    sums: "SumPosterior"
    coding: np.ndarray
    feature: int
    propensity: "SumPosterior | None" = None

    @property
    def is_coded(self) -> bool:
        """Whether codes are drawn, as of a treatment that is given or not; if not, a scale is."""
        return not self.sums.prior.draws_leaf_scale

    def of_one_unit(self, matrix: np.ndarray) -> np.ndarray:
        """Return the effect of one more unit of treatment, [chain, draw, m], at rows [m, d]."""
        return np.diff(self.coding) * self.sums.sums(matrix)[:, :, 0]

    def added(self, matrix: np.ndarray) -> np.ndarray:
        """Return what the treatment of rows [m, d] adds, [chain, draw, m]."""
        factor = self.coding[..., :1] + np.diff(self.coding) * matrix[:, self.feature]
        return factor * self.sums.sums(matrix)[:, :, 0]


@dataclass(frozen=True, eq=False)
class SumPosterior:
    """Equally weighted draws of sums of m trees of at most L levels; n training rows.

    Attributes
    ----------
    prior
        Prior of sums.
    design, y
        Training rows [n] and targets.
    rule
        int [chain, draw, sum, m, 2^L - 1]; rule of each node of complete binary trees, -1 if it is
        not a split. The rules are those of `bdtppl.inference.additive.tables.row_tables`.
    value
        float64 [chain, draw, sum, m, 2^(L + 1) - 1]; values of leaves, 0 elsewhere.
    variance
        float64 [chain, draw]; variance of the noise, averaged over the training rows if
        it differs; 1 for classes.
    feature_weight
        float64 [chain, draw, d].
    sample_stats
        Further numbers of each draw, [chain, draw], by shared names (``log_likelihood``).
    noise_rule, noise_value
        int [chain, draw, m', 2^L - 1] and float64 [chain, draw, m', 2^(L + 1) - 1]; trees of the
        product of variances and their values, 1 outside leaves; None for one variance.
    linear, linear_deviation
        float64 [chain, draw, sum, p] and [chain, draw, sum, blocks]; coefficients of the linear
        terms, in the order of `bdtppl.models.hard.linear.LinearColumns`, and their standard
        deviations; None without such terms.
    leaf_scale
        float64 [chain, draw, sum]; standard deviation of the values of leaves; None if it is the
        prior's.
    effect
        What a treatment adds to the sum, as in Bayesian causal forests; None without one.
    scale
        Scale on which real targets are the sum plus noise. The prior, the sums and the noise are on
        this scale; targets, their means, densities and draws are not.
    """

    prior: AdditivePrior
    design: Design
    y: np.ndarray
    rule: np.ndarray
    value: np.ndarray
    variance: np.ndarray
    feature_weight: np.ndarray
    sample_stats: Mapping[str, np.ndarray] = field(default_factory=dict)
    noise_rule: np.ndarray | None = None
    noise_value: np.ndarray | None = None
    linear: np.ndarray | None = None
    linear_deviation: np.ndarray | None = None
    leaf_scale: np.ndarray | None = None
    effect: TreatmentEffect | None = None
    scale: TargetScale = IDENTITY

    log_evidence = log_evidence_se = np.nan
    has_pointwise_likelihood = True

    def require_pointwise_likelihood(self) -> None:
        """Accept: given a draw, rows are independent."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the features."""
        return self.design.names

    @property
    def matrix(self) -> np.ndarray:
        """Training rows, float64 [n, d]."""
        return self.design.matrix

    @property
    def row_weights(self) -> np.ndarray:
        """Weights of the training rows, [n]."""
        return self.design.weights

    @cached_property
    def _rows(self) -> RowTables:
        return row_tables(self.design)

    @cached_property
    def linear_columns(self) -> LinearColumns:
        """Columns of the linear terms."""
        return self.prior.linear_columns(self.design)

    @property
    def num_leaves(self) -> np.ndarray:
        """Leaves of all trees of each draw, int [chain, draw]."""
        trees = self.prior.num_sums * self.prior.num_trees
        return trees + (self.rule >= 0).sum(axis=(-1, -2, -3))

    @property
    def depth(self) -> np.ndarray:
        """Levels of splits of the deepest tree of each draw, int [chain, draw]."""
        level = np.floor(np.log2(np.arange(self.rule.shape[-1]) + 1)).astype(int) + 1
        return np.where(self.rule >= 0, level, 0).max(axis=(-1, -2, -3))

    @property
    def sigma(self) -> np.ndarray:
        """Standard deviation of the noise, float64 [chain, draw]; see ``variance``."""
        return np.sqrt(self.variance)

    @cached_property
    def splits_on(self) -> np.ndarray:
        """Number of splits on each feature in each draw, int [chain, draw, d]."""
        feature = np.append(self._rows.feature, -1)[self.rule]
        counts = np.zeros((*self.variance.shape, len(self.names)), np.int64)
        for j in range(len(self.names)):
            counts[..., j] = (feature == j).sum(axis=(-1, -2, -3))
        return counts

    @property
    def expected_splits(self) -> np.ndarray:
        """Expected number of splits on each feature, float64 [d]."""
        return self.splits_on.mean(axis=(0, 1))

    @property
    def bytes_a_row(self) -> int:
        """Bytes per row in temporary arrays of predictions."""
        # Quantiles of real targets need about twelve arrays, means of classes about six.
        num_arrays = 12 if self.prior.link == "identity" else 6 * max(self.prior.num_sums, 2)
        return num_arrays * 8 * self.variance.size

    def take(self, draws: np.ndarray) -> "SumPosterior":
        """Select draws by their places among all, as one chain."""
        arrays = {
            name: getattr(self, name).reshape(-1, *getattr(self, name).shape[2:])[draws][None]
            for name in _ARRAYS
            if getattr(self, name) is not None
        }
        stats = {name: np.reshape(a, -1)[draws][None] for name, a in self.sample_stats.items()}
        if (effect := self.effect) is not None:
            coding = effect.coding.reshape(-1, 2)[draws][None]
            effect = replace(effect, sums=effect.sums.take(draws), coding=coding)
        return replace(self, **arrays, sample_stats=stats, effect=effect)

    def in_units(self, unit: float) -> "SumPosterior":
        """Return the posterior of targets multiplied by a factor."""
        if unit == 1:
            return self
        prior = replace(
            self.prior,
            offset=self.prior.offset * unit,
            leaf_scale=self.prior.leaf_scale * unit,
            noise_scale=self.prior.noise_scale * unit**2,
            offset_factor=self.prior.offset_factor * unit,
        )
        if prior.linear_scale is not None:
            prior = replace(prior, linear_scale=prior.linear_scale * unit)
        if prior.groups:
            prior = replace(prior, group_scale=prior.group_scale * unit)
        scaled = {name: getattr(self, name) for name in _SCALED}
        scaled = {name: own if own is None else own * unit for name, own in scaled.items()}
        noise = self.noise_value
        if noise is not None:
            noise = np.where(noise == 1, 1, noise * unit ** (2 / self.prior.noise_trees))
        lost = self.design.total_weight * math.log(unit)
        if (effect := self.effect) is not None:
            effect = replace(effect, sums=effect.sums.in_units(unit))
        return replace(
            self,
            effect=effect,
            prior=prior,
            y=self.y * unit,
            value=self.value * unit,
            variance=self.variance * unit**2,
            noise_value=noise,
            **scaled,
            sample_stats={name: stat - lost for name, stat in self.sample_stats.items()},
        )

    def on_scale(self, scale: TargetScale, y: np.ndarray) -> "SumPosterior":
        """Return the posterior of targets [n] that a scale transforms to those of this one."""
        if scale == IDENTITY:
            return self
        gained = self.row_weights @ scale.log_slope(y)
        stats = {name: stat + gained for name, stat in self.sample_stats.items()}
        return replace(self, scale=scale, y=y, sample_stats=stats)

    def trees(self, chain: int, draw: int) -> AdditiveTrees:
        """Write one draw as trees [sum, m] with the values of their slots."""
        tree, value = self._as_trees(self.rule[chain, draw], self.value[chain, draw])
        weight, variance = self.feature_weight[chain, draw], self.variance[chain, draw]
        scaled = (getattr(self, name) for name in _SCALED)
        drawn = (None if each is None else each[chain, draw] for each in scaled)
        noise: Any = (None, None)
        if self.noise_rule is not None and self.noise_value is not None:
            noise = self._as_trees(self.noise_rule[chain, draw], self.noise_value[chain, draw])
        return AdditiveTrees(tree, value, variance, weight, *noise, *drawn)

    def _as_trees(self, given: np.ndarray, values: np.ndarray) -> tuple[Tree, np.ndarray]:
        """Write rules [..., 2^L - 1] as trees [...], and the values of their slots."""
        rows, cuts = self._rows, self.design.cut_threshold
        internal, shape = given.shape[-1], given.shape[:-1]
        rule = np.full((math.prod(shape), 2 * internal + 1), -1)
        rule[:, :internal] = given.reshape(-1, internal)
        is_split = rule >= 0
        used = is_split.copy()
        used[:, 0] = True
        used[:, 1:] |= np.repeat(is_split[:, :internal], 2, axis=1)
        # The used slots of the complete tree, in order, become the first ones.
        order = np.argsort(~used, axis=1, kind="stable")
        place = (np.cumsum(used, axis=1) - 1).astype(np.int32)
        feature = rows.feature[rule]
        position = self.design.offset[feature] + rows.last[rule]
        number = np.where(is_split, split_number(position, rows.missing[rule] >= 0), -1)
        splits = Split.at_nodes(number, feature, cuts[np.where(is_split, position + 1, 0)])
        first = np.minimum(2 * np.arange(2 * internal + 1) + 1, 2 * internal)
        children = (
            np.where(is_split, place[:, child], 0)
            for child in (first, np.minimum(first + 1, 2 * internal))
        )
        ordered = [np.take_along_axis(a, order, axis=1) for a in (*splits, *children)]
        tree = Tree(*ordered, num_nodes=used.sum(axis=1).astype(np.int32))
        value = np.take_along_axis(values.reshape(len(rule), -1), order, axis=1)
        return tree.reshape(*shape), value.reshape(*shape, -1)

    def sums(self, matrix: np.ndarray) -> np.ndarray:
        """Compute the sums with their offsets in each draw, float64 [chain, draw, sum, m].

        Parameters
        ----------
        matrix
            Rows [m, d].
        """
        trees = self._evaluation(bins_of(self.design, matrix)).reshape(*self.rule.shape[:3], -1)
        if self.effect is not None:
            trees += self.effect.added(matrix)[:, :, None]
        return (
            trees + self.prior.offsets_at(matrix) + self._linear_terms(matrix, lambda drawn: drawn)
        )

    def mean(self, matrix: np.ndarray) -> np.ndarray:
        """Return the mean of a new target for the identity link, float64 [m]; faster than `means`.

        Parameters
        ----------
        matrix
            Rows [m, d].
        """
        if self.scale != IDENTITY or self.effect is not None:
            return self.means(matrix).mean(axis=(0, 1))
        # Contiguous, because the bits of a sum depend on the order in memory.
        linear = self._linear_terms(matrix, lambda drawn: drawn.copy("C").mean(axis=(0, 1)))
        trees = self._mean_evaluation(bins_of(self.design, matrix))
        return (trees + self.prior.offsets_at(matrix) + linear)[0]

    @cached_property
    def terms(self) -> BoxTerms:
        """Terms of the trees of all sums; those of the draws of the first chain come first."""
        return self._as_terms(self.rule, self.value)

    @cached_property
    def _evaluation(self) -> Evaluation:
        return Evaluation(self.terms, self.design.num_codes)

    @cached_property
    def _mean_evaluation(self) -> Evaluation:
        return Evaluation(self.terms.mean(), self.design.num_codes)

    @cached_property
    def _noise_evaluation(self) -> Evaluation:
        terms = self._as_terms(self.noise_rule, np.log(np.asarray(self.noise_value)))
        return Evaluation(terms, self.design.num_codes)

    def _as_terms(self, rule: Any, value: Any) -> BoxTerms:
        rule, value = (each.reshape(-1, *each.shape[-2:]) for each in (rule, value))
        return BoxTerms.of(self.design, self._rows, rule, value)

    def _linear_terms(self, matrix: np.ndarray, of: Callable[[np.ndarray], np.ndarray]) -> Any:
        """Compute the contribution of the coefficients' draws to sums, [..., sum, m]."""
        if self.linear is None:
            return 0.0
        # Not by BLAS, whose last bits depend on the number of rows.
        total = np.einsum("...p,mp->...m", of(self.linear), self.linear_columns(matrix))
        if (of_new := self.linear_columns.of_new_groups(matrix)).any():
            total += np.einsum("...b,mb->...m", of(self.new_effects), of_new)
        return total

    @cached_property
    def new_effects(self) -> np.ndarray:
        """Draw the effects of a group without training rows, float64 [chain, draw, sum, blocks].

        Their standard deviation is that of each draw; over draws they are spread evenly over their
        distribution.
        """
        deviation, rng = np.asarray(self.linear_deviation), np.random.default_rng(0)
        shape = deviation.shape
        number = shape[0] * shape[1]
        levels = rng.permuted(np.tile(np.arange(number), (*shape[2:], 1)), axis=-1)
        normal = norm.ppf((np.moveaxis(levels, -1, 0) + 0.5) / number)
        return deviation * normal.reshape(shape)

    def deviations(self, matrix: np.ndarray) -> np.ndarray:
        """Return the noise of each draw and row, [chain, draw, m], or [..., 1] if rows share it.

        Parameters
        ----------
        matrix
            Rows [m, d].
        """
        if self.noise_rule is None:
            return self.sigma[..., None]
        total = self._noise_evaluation(bins_of(self.design, matrix))
        return np.exp(0.5 * total).reshape(*self.variance.shape, -1)

    def means(self, matrix: np.ndarray) -> np.ndarray:
        """Return the mean of a new target given each draw, [chain, draw, m, ...].

        Parameters
        ----------
        matrix
            Rows [m, d].
        """
        sums = self.sums(matrix)
        if self.prior.link == "identity":
            means = sums[:, :, 0]
            if self.scale == IDENTITY:
                return means
            return self.scale.mean_of_normal(means, self.deviations(matrix))
        return class_probabilities(self.prior.link, sums)

    def predictive(self, matrix: np.ndarray) -> NoiseMixture | ScaledMixture | ClassMixture:
        """Return the mixture of the predictives of the draws at rows [m, d]."""
        if self.prior.link != "identity":
            means = self.means(matrix)
            return ClassMixture(means.reshape(-1, *means.shape[2:]))
        mixture = _SumMixture(self, matrix)
        return mixture if self.scale == IDENTITY else ScaledMixture(mixture, self.scale)

    @in_float64
    def sample_predictive(self, rng_key: jax.Array, matrix: np.ndarray) -> np.ndarray:
        """Draw one new target per draw and row, [chain, draw, m]."""
        if self.prior.link == "identity":
            sums = self.sums(matrix)[:, :, 0]
            noise = np.asarray(jax.random.normal(rng_key, sums.shape))
            return self.scale.inverse(sums + self.deviations(matrix) * noise)
        means = self.means(matrix)
        running = np.cumsum(means, axis=-1)[..., :-1]
        uniform = np.asarray(jax.random.uniform(rng_key, (*means.shape[:-1], 1)))
        return (uniform >= running).sum(axis=-1)

    def log_likelihood(self) -> np.ndarray:
        """Return each row's log density times weight given each draw, float64 [chain, draw, n]."""
        each = self.predictive(self.matrix).each_log_density(self.y) * self.row_weights
        return each.reshape(*self.variance.shape, -1)


class _SumMixture(NoiseMixture):
    """The predictives of all draws, evaluated only if more than the mean is needed."""

    posterior: SumPosterior
    matrix: np.ndarray
    degrees_of_freedom = None

    def __init__(self, posterior: SumPosterior, matrix: np.ndarray):
        object.__setattr__(self, "posterior", posterior)
        object.__setattr__(self, "matrix", matrix)

    @cached_property
    def loc(self) -> np.ndarray:
        sums = self.posterior.sums(self.matrix)
        return sums[:, :, 0].reshape(-1, sums.shape[-1])

    @cached_property
    def scale(self) -> np.ndarray:
        deviations = self.posterior.deviations(self.matrix)
        return np.broadcast_to(deviations.reshape(len(self.loc), -1), self.loc.shape)

    def mean(self) -> np.ndarray:
        return self.posterior.mean(self.matrix)
