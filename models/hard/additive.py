"""Sums of hard trees: real targets with normal noise, or class labels (BART).

A real target is the offset plus the values of the leaves that its row reaches in m trees plus
normal noise. For two classes, the sum with its offset is the probit or the logit of the second one;
for c classes there are c such sums of m trees each, and probabilities are their softmax. Trees,
leaf values and noise are independent a priori:

- A node with l splits above it is split with probability alpha (1 + l)^-beta, and never at
  ``max_depth``. A split chooses a feature by the features' weights, and one of its rules uniformly:
  each cut of the design, twice if values are missing (these go left, or right). Trees with a leaf
  of fewer than ``min_leaf`` training rows are excluded.
- Weights of columns are equal, and shared equally by the features of a column (`Design`); or
  weights of features are Dirichlet with concentrations of sparsity times these equal weights.
- Leaf values are normal with mean 0 and standard deviation ``leaf_scale``; or, with
  ``draws_leaf_scale``, each sum has a standard deviation of its own, whose prior is half-Cauchy
  with this median.
- With ``linear_scale`` each sum has a linear term as well, in columns of mean 0 and variance 1
  (`bdtppl.models.hard.linear.LinearColumns`). Its coefficients are normal with mean 0 and a
  standard deviation whose prior is half-Cauchy with the median ``linear_scale``.
- With ``groups`` each group of rows has its own effect in each sum, and a slope in some columns.
  Each kind of effect is normal with mean 0 and a standard deviation whose prior is half-Cauchy with
  the median ``group_scale``.
- With ``monotone`` all this is conditioned on every tree being monotone in these features (defined
  in `bdtppl.inference.additive.monotone`), and every coefficient having their sign.
- The noise variance is noise_degrees * noise_scale over a chi-squared variate. Labels have no
  noise.
- With ``noise_trees`` the noise variance of a row is the product of the values of the leaves that
  it reaches in as many further trees, of the same prior. These values are scaled inverse
  chi-squared, so that the prior of a product is close to that of one variance (`noise_leaf`).

References
----------
Chipman, George and McCulloch 2010, BART: Bayesian additive regression trees, sections 2 and 3;
Linero 2018, Bayesian regression trees for high-dimensional prediction and variable selection;
Pratola, Chipman, George and McCulloch 2020, Heteroscedastic BART via multiplicative regression
trees, sections 3 and 4 (``noise_trees``).
"""

import math
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jax.scipy.stats import norm as jax_norm
from scipy.optimize import brentq
from scipy.special import expit, logit, ndtr, softmax
from scipy.stats import chi2, norm

from bdtppl.models.arrays.precision import in_float64
from bdtppl.models.data.design import Design
from bdtppl.models.hard.linear import LinearColumns
from bdtppl.models.hard.tree import Tree, route
from bdtppl.models.leaves import namespace
from bdtppl.models.pytrees import Number, pytree_dataclass, require, setting
from bdtppl.models.wording import counted, number

Link = Literal["identity", "probit", "logit"]

RANGE_DEVIATIONS = 2.0  # k of Chipman et al.: see `calibrated`
NOISE_QUANTILE = 0.9  # their q

_PROBIT_REACH = 3.0  # of the sum: Chipman et al., section 3.3 of probit BART
_LOGIT_IN_PROBIT = 1.7  # a logistic distribution is nearly normal with this standard deviation
_LEAST_NOISE = 1e-10  # of the noise, relative to that of the targets


@pytree_dataclass
class AdditivePrior:
    """Prior of a sum of trees, as defined in the module's text.

    Parameters
    ----------
    leaf_scale, draws_leaf_scale
        Standard deviation of a leaf's value, above 0, or the median of its half-Cauchy prior.
    noise_scale, noise_degrees
        The noise variance is their product over a chi-squared variate of ``noise_degrees`` degrees
        of freedom; both above 0.
    offset
        Offset of the trees' sum; a number, or one for each sum.
    alpha, beta
        Probability of splits by depth, alpha in (0, 1) and beta at least 0.
    sparsity
        Concentration of the Dirichlet prior of feature weights, over all features; None for equal
        weights.
    num_trees, max_depth, min_leaf
        Trees of a sum, most splits between root and leaf, and fewest training rows of a leaf.
    link
        "identity" for real targets; "probit" or "logit" for classes.
    num_sums
        1, or the number of classes if there are more than two.
    noise_trees
        Number of trees whose product is the noise variance of a row; 0 for one variance for all.
    linear_scale
        Median of the standard deviation of the coefficients of a linear term; None for no such
        term.
    groups, group_scale
        The feature of groups, and the features whose slope each group has; and the median of the
        standard deviation of their effects.
    offset_feature, offset_factor
        Feature that is added to the sums of its row, in addition to ``offset``, and its factor;
        None for no such feature.
    monotone
        Direction of each feature: 1 if no tree and no coefficient of the linear term may fall along
        it, -1 if none may rise, else 0. Empty for no such limits.
    """

    leaf_scale: Number
    noise_scale: Number
    offset: Number = 0.0
    noise_degrees: Number = 3.0
    alpha: Number = 0.95
    beta: Number = 2.0
    sparsity: Number | None = None
    num_trees: int = setting(default=200)
    max_depth: int = setting(default=3)
    min_leaf: int = setting(default=1)
    link: Link = setting(default="identity")
    num_sums: int = setting(default=1)
    noise_trees: int = setting(default=0)
    draws_leaf_scale: bool = setting(default=False)
    linear_scale: Number | None = None
    groups: tuple[int, ...] = setting(default=())
    group_scale: Number = 1.0
    offset_feature: int | None = setting(default=None)
    offset_factor: Number = 1.0
    monotone: tuple[int, ...] = setting(default=())

    def __post_init__(self):
        for name in ("leaf_scale", "noise_scale", "noise_degrees", "group_scale"):
            value = getattr(self, name)
            require(lambda v: v > 0, f"{name} must be above 0; got {{}}.", value)
        require(lambda v: (v > 0) & (v < 1), "alpha must be in (0, 1); got {}.", self.alpha)
        require(lambda v: v >= 0, "beta must be at least 0; got {}.", self.beta)
        if self.noise_trees:
            reason = "noise_degrees must be above 2 with noise_trees; got {}."
            require(lambda v: v > 2, reason, self.noise_degrees)
        for name in ("sparsity", "linear_scale"):
            if (value := getattr(self, name)) is not None:
                require(lambda v: v > 0, f"{name} must be above 0; got {{}}.", value)

    def in_words(self, target: str = "the target") -> str:
        """Describe the assumptions on the targets, one of which is called ``target``."""
        chances = [number(self.alpha * (1 + depth) ** -self.beta) for depth in range(2)]
        weights = (
            "Rules choose each column with the same probability, and any of its cuts."
            if self.sparsity is None
            else "Rules choose columns by weights of a Dirichlet prior of total concentration "
            f"{number(self.sparsity)}, which favours few columns, and any cut of the column."
        )
        trees = counted(self.num_trees, "tree", "trees")
        what = f"The mean of {target} is a sum of {trees}, and the noise is normal with one "
        what += "variance."
        reach = "range of the targets"
        if self.link != "identity":
            reach = "range of plausible probabilities"
            what = f"The {self.link} of the second class's probability is a sum of {trees}."
        if self.num_sums > 1:
            what = f"The probabilities of classes are the softmax of one sum of {trees} for each."
        if self.linear_scale is not None:
            what = what.replace(f"a sum of {trees}", f"a linear term and a sum of {trees}")
            what = what.replace(f"one sum of {trees}", f"one linear term and sum of {trees}")
        if self.noise_trees:
            product = counted(self.noise_trees, "tree", "trees")
            what = what.replace("one variance", f"a variance that is a product of {product}")
        drawn = " (the median; it is sampled itself)" * self.draws_leaf_scale
        groups = " Each group of rows has effects of its own." * bool(self.groups)
        groups += " A column is added to the sum." * (self.offset_feature is not None)
        groups += " Trees keep the known directions of some columns." * any(self.monotone)
        return (
            f"{what} Before the data are seen a tree splits with probability {chances[0]}, and a "
            f"node below its root with {chances[1]}; a tree has at most "
            f"{counted(self.max_depth, 'level', 'levels')}, and a leaf at least "
            f"{counted(self.min_leaf, 'row', 'rows')}. {weights} Values of leaves are normal with "
            f"standard deviation {number(self.leaf_scale)}{drawn}, so that a sum stays within the "
            f"{reach}.{groups}"
        )

    @property
    def offsets(self) -> np.ndarray:
        """Offset of each sum at all rows, float64 [sums]."""
        return np.broadcast_to(np.asarray(self.offset, float), (self.num_sums,))

    def offsets_at(self, matrix: np.ndarray) -> np.ndarray:
        """Compute the offset of each sum at rows [m, d], float64 [sums, m]."""
        own: Any = np.zeros(len(matrix))
        if self.offset_feature is not None:
            own = self.offset_factor * np.asarray(matrix)[:, self.offset_feature]
        return self.offsets[:, None] + own

    @property
    def term_scales(self) -> np.ndarray:
        """Medians of the standard deviations of each block of linear terms, float64 [blocks]."""
        own = [] if self.linear_scale is None else [float(self.linear_scale)]
        return np.array(own + [float(self.group_scale)] * len(self.groups))

    def linear_columns(self, design: Design) -> LinearColumns:
        """Return the columns of linear terms; empty without such terms."""
        return LinearColumns.of(design, self.linear_scale is not None, self.groups)

    @property
    def noise_leaf(self) -> tuple[Any, Any]:
        """Degrees of freedom and scale of the values of leaves in the product of variances.

        Pratola et al., section 4: the product of ``noise_trees`` values has the mean that one
        variance has.
        """
        power = 1 / max(self.noise_trees, 1)
        return 2 / (1 - (1 - 2 / self.noise_degrees) ** power), self.noise_scale**power

    @property
    def split_probability(self) -> Any:
        """Return the probability that a node splits, by its depth, float [max_depth + 1]."""
        xp, _ = namespace(self.alpha, self.beta)
        depth = xp.arange(self.max_depth + 1)
        return xp.where(depth < self.max_depth, self.alpha * (1.0 + depth) ** -self.beta, 0.0)


class AdditiveTrees(NamedTuple):
    """Trees [..., sums, m] and the other random variables of their model.

    Attributes
    ----------
    trees
        Batch of trees [..., sums, m].
    value
        float64 [..., sums, m, k]; value of each slot that is a leaf.
    variance
        float64 [...]; variance of the noise; 1 for classes.
    feature_weight
        float64 [..., d]; sums to 1, 0 for features without a rule.
    noise_trees, noise_value
        Trees of the product of variances [..., m'], and the values of their slots [..., m', k];
        None for one variance.
    linear, linear_deviation
        float64 [..., sums, p] and [..., sums, blocks]; coefficients of the linear terms, and their
        standard deviations; None without such terms.
    leaf_scale
        float64 [..., sums]; standard deviation of the values of leaves, if it is drawn.
    """

    trees: Tree
    value: np.ndarray
    variance: np.ndarray
    feature_weight: np.ndarray
    noise_trees: Tree | None = None
    noise_value: np.ndarray | None = None
    linear: np.ndarray | None = None
    linear_deviation: np.ndarray | None = None
    leaf_scale: np.ndarray | None = None


def calibrated(
    design: Design,
    y: np.ndarray,
    *,
    k: float = RANGE_DEVIATIONS,
    quantile: float = NOISE_QUANTILE,
    noise_degrees: float = float(AdditivePrior.noise_degrees),
    num_trees: int = AdditivePrior.num_trees,
    linear: bool = False,
    groups: tuple[int, ...] = (),
    **settings: Any,
) -> AdditivePrior:
    """Choose the prior from the targets as in Chipman et al. (their sections 3.2 and 3.3).

    The range of the targets (1 if they are constant) is 2 k prior standard deviations of the sum,
    around its middle. The prior puts probability ``quantile`` on noise below that of a linear
    model, or of the targets if there are too few rows for one.

    Parameters
    ----------
    design, y
        Training rows [n] and targets, minus an offset of rows.
    k, quantile, noise_degrees, num_trees
        See above; section 3.3 recommends 2, .9 and 3.
    linear, groups
        Whether there is a linear term, and the features of groups (see `AdditivePrior`). The median
        of each standard deviation is half the value at which these effects alone would explain the
        variance of the targets.
    settings
        Further parameters of `AdditivePrior`.

    Examples
    --------
    >>> design = Design.from_matrix(np.linspace(0, 1, 20)[:, None])
    >>> prior = calibrated(design, np.repeat([0.0, 8.0], 10), num_trees=4)
    >>> float(prior.offset), float(prior.leaf_scale)
    (4.0, 1.0)
    """
    y = np.asarray(y, np.float64)
    low, high = y.min(), y.max()
    variance = _noise_guess(design, y)
    scale = variance * chi2.ppf(1 - quantile, noise_degrees) / noise_degrees
    deviation = math.sqrt(np.cov(y, aweights=design.weights, ddof=0)) if len(y) > 1 else 0.0
    return AdditivePrior(
        leaf_scale=float((high - low or 1.0) / (2 * k * math.sqrt(num_trees))),
        noise_scale=float(scale),
        offset=float((low + high) / 2),
        noise_degrees=noise_degrees,
        num_trees=num_trees,
        **_term_scales(design, deviation or 1.0, linear, groups),
        **settings,
    )


def _term_scales(
    design: Design, deviation: float, linear: bool, groups: tuple[int, ...]
) -> dict[str, Any]:
    number = int(design.has_cut.sum())
    own = 0.5 * deviation / math.sqrt(number) if linear and number else None
    return {"linear_scale": own, "groups": groups, "group_scale": 0.5 * deviation}


def calibrated_to_classes(
    labels: np.ndarray,
    num_classes: int,
    *,
    design: Design | None = None,
    linear: bool = False,
    groups: tuple[int, ...] = (),
    link: Link = "logit",
    k: float = RANGE_DEVIATIONS,
    num_trees: int = AdditivePrior.num_trees,
    offset_feature: int | None = None,
    **settings: Any,
) -> AdditivePrior:
    """Choose the prior of class probabilities.

    Offsets give the classes their shares among the labels (counting half a row more of each absent
    class), on average over the rows if these have their own offsets. The interval from -3 to 3 in
    probits, 1.7 times as far in logits, is 2 k prior standard deviations of the sum, as in Chipman
    et al.

    Parameters
    ----------
    labels
        int [n]; indices of classes.
    design
        Training rows, which linear terms need; default rows of weight 1.
    linear, groups
        As in `calibrated`, with the standard deviation of the sum as its reach.
    num_classes, link, k, num_trees
        See above; probits require two classes.
    offset_feature
        As in `AdditivePrior`; only for two classes, with a design.
    settings
        Further parameters of `AdditivePrior`.

    Examples
    --------
    >>> prior = calibrated_to_classes(np.array([0, 0, 0, 1]), 2, num_trees=9)
    >>> round(float(prior.offset), 2), round(float(prior.leaf_scale), 2)
    (-0.85, 0.85)
    """
    weights = None if design is None else design.weights
    count = np.bincount(labels, weights, minlength=num_classes) + 0.5
    share = count / count.sum()
    reach = _PROBIT_REACH * (1.0 if link == "probit" else _LOGIT_IN_PROBIT)
    offset: Any = np.log(share)
    if num_classes == 2:
        offset = float(norm.ppf(share[1]) if link == "probit" else logit(share[1]))
    if design is not None and offset_feature is not None:
        own, inverse = design.matrix[:, offset_feature], ndtr if link == "probit" else expit
        ends = offset - own.max() - 1, offset - own.min() + 1
        offset = brentq(lambda c: np.average(inverse(c + own), weights=weights) - share[1], *ends)
    terms = {} if design is None else _term_scales(design, reach / k, linear, groups)
    return AdditivePrior(
        leaf_scale=reach / (k * math.sqrt(num_trees)),
        noise_scale=1.0,
        offset=offset,
        num_trees=num_trees,
        link=link,
        num_sums=1 if num_classes == 2 else num_classes,
        offset_feature=offset_feature,
        **terms,
        **settings,
    )


def class_probabilities(link: Link, sums: np.ndarray) -> np.ndarray:
    """Convert sums with their offsets [..., sums, m] to class probabilities [..., m, c]."""
    if sums.shape[-2] > 1:
        return np.moveaxis(softmax(sums, axis=-2), -2, -1)
    second = ndtr(sums[..., 0, :]) if link == "probit" else expit(sums[..., 0, :])
    return np.stack([1 - second, second], axis=-1)


def _noise_guess(design: Design, y: np.ndarray) -> float:
    """Estimate the residual variance of a linear model; missing values are replaced by means.

    It is 1 if the targets are constant.
    """
    if np.ptp(y) == 0:
        return 1.0
    weights = design.weights.astype(float)
    total = weights.sum()
    mean = weights @ y / total
    around = weights @ (y - mean) ** 2
    guess = around / max(total - 1, 1)
    columns = design.matrix[:, design.has_cut]
    if total > columns.shape[1] + 1:
        columns = np.where(np.isnan(columns), np.nanmean(columns, axis=0), columns)
        # Exact, and squares stay within range.
        columns = np.ldexp(columns, -np.frexp(np.abs(columns).max(axis=0))[1])
        columns = (columns - columns.mean(axis=0)) / columns.std(axis=0)
        root = np.sqrt(weights)
        table = np.column_stack([np.ones(len(y)), columns]) * root[:, None]
        solution, _, rank, _ = np.linalg.lstsq(table, (y - mean) * root)
        left = (y - mean) * root - table @ solution
        if total > rank:
            guess = left @ left / (total - rank)
    return float(max(guess, _LEAST_NOISE * around / total, np.finfo(float).tiny))


@in_float64
def sum_of_trees(trees: Tree, value: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Sum the values of the leaves that rows reach, without the offset.

    Parameters
    ----------
    trees, value
        Batch [..., m] and the values of its slots [..., m, k].
    matrix
        float64 [n, d]; NaN is missing.

    Returns
    -------
    numpy.ndarray
        float64 [..., n], without the axis of trees.
    """
    slot = route(trees, matrix)
    return np.take_along_axis(np.asarray(value), slot, axis=-1).sum(axis=-2)


@in_float64
def additive_log_joint(
    prior: AdditivePrior, design: Design, y: np.ndarray, drawn: AdditiveTrees
) -> np.ndarray:
    """Return the log joint density of trees, values, noise, weights and targets, float64 [...].

    It is not normalised if ``min_leaf`` excludes trees, whose share of the prior is not known.
    Excluded trees, and rules that the design lacks, score -inf. The directions of ``monotone`` are
    not checked.

    Parameters
    ----------
    prior
        The prior.
    design, y
        Training rows [n] and targets.
    drawn
        Trees and the other random variables of the model.

    Examples
    --------
    >>> design = Design.from_matrix(np.array([[0.0], [1.0]]))
    >>> prior = AdditivePrior(1.0, 1.0, num_trees=1, min_leaf=1)
    >>> tree = Tree.from_nested({}).reshape(1, 1)
    >>> drawn = AdditiveTrees(tree, np.zeros((1, 1, 1)), np.float64(1.0), np.ones(1))
    >>> round(float(additive_log_joint(prior, design, np.array([0.0, 1.0]), drawn)), 4)
    -7.0236
    """
    slot, is_allowed = _routed(prior, design, drawn.trees)
    noise = None
    if drawn.noise_trees is not None:
        noise_slot, has_allowed_noise = _routed(prior, design, drawn.noise_trees)
        noise = *_density_arrays(drawn.noise_trees, noise_slot), jnp.asarray(drawn.noise_value)
        is_allowed = is_allowed.all(axis=-1) & has_allowed_noise
    else:
        is_allowed = is_allowed.all(axis=-1)
    linear: Any = None
    if drawn.linear is not None:
        columns = prior.linear_columns(design)
        each = columns.each(np.asarray(drawn.linear_deviation))
        terms = drawn.linear, each, drawn.linear_deviation, prior.term_scales
        linear = drawn.linear @ columns(design.matrix).T, *terms
    log_density = _log_density(
        prior,
        _density_arrays(drawn.trees, slot),
        jnp.asarray(design.rules_of_features),
        jnp.asarray(design.equal_weights),
        jnp.asarray(y),
        jnp.asarray(prior.offsets_at(design.matrix)),
        jnp.asarray(design.weights),
        *map(jnp.asarray, (drawn.value, drawn.variance, drawn.feature_weight)),
        noise,
        *jax.tree.map(jnp.asarray, (linear, drawn.leaf_scale)),
    )
    return np.where(is_allowed, log_density, -np.inf)


def _density_arrays(trees: Tree, slot: np.ndarray) -> tuple[jax.Array, ...]:
    """Return the arrays of trees that a density uses."""
    return tuple(map(jnp.asarray, (trees.feature, trees.node_depth, trees.is_leaf, slot)))


def _routed(prior: AdditivePrior, design: Design, trees: Tree) -> tuple[np.ndarray, np.ndarray]:
    """Return the slots that rows reach [..., m, n], and whether the prior contains all m trees."""
    slot = route(trees, design.matrix)
    rows = np.zeros((*trees.batch_shape, trees.capacity))
    flat = rows.reshape(-1, trees.capacity)
    for tree, of_tree in zip(flat, slot.reshape(len(flat), -1), strict=True):
        tree += np.bincount(of_tree, minlength=trees.capacity)
    is_known = trees.feature < 0
    for j in np.flatnonzero(design.has_cut):
        cuts = design.cut_threshold[design.offset[j] + 1 : design.offset[j + 1]]
        is_known |= (trees.feature == j) & np.isin(trees.threshold, cuts)
    is_known &= (rows >= prior.min_leaf) | ~trees.is_leaf
    return slot, np.asarray(is_known.all(axis=(-1, -2)))


@jax.jit
def _log_density(
    prior,
    trees,
    num_rules,
    equal,
    y,
    offsets,
    weights,
    value,
    variance,
    feature_weight,
    noise,
    linear,
    scale,
):
    """Score drawn trees; arrays as in `AdditiveTrees`."""

    def of_trees(feature, depth, is_leaf, of_leaf):
        split = prior.split_probability[jnp.minimum(depth, prior.max_depth)]
        share = (feature_weight / num_rules).reshape(
            *feature_weight.shape[:-1], *[1] * (feature.ndim - feature_weight.ndim), -1
        )
        share = jnp.take_along_axis(share, jnp.maximum(feature, 0), axis=-1)
        of_nodes = jnp.where(feature >= 0, jnp.log(split) + jnp.log(share), 0.0)
        return of_nodes + jnp.where(is_leaf, jnp.log1p(-split) + of_leaf, 0.0)

    with jax.numpy_rank_promotion("allow"):
        feature, depth, is_leaf, slot = trees
        each_scale = prior.leaf_scale if scale is None else scale[..., None, None]
        of_nodes = of_trees(feature, depth, is_leaf, _log_normal_density(value, each_scale))
        total = of_nodes.sum(axis=(-1, -2, -3)) + _of_weights(prior, equal, feature_weight)
        if scale is not None:
            total += _of_scale(scale, prior.leaf_scale).sum(axis=-1)
        f = jnp.take_along_axis(value, slot, axis=-1).sum(axis=-2)
        if linear is not None:
            of_rows, coefficient, each, deviation, medians = linear
            f += of_rows
            total += _log_normal_density(coefficient, each).sum(axis=(-1, -2))
            total += _of_scale(deviation, medians).sum(axis=(-1, -2))
        f += offsets
        if noise is not None:
            feature, depth, is_leaf, slot, factor = noise
            of_nodes = of_trees(feature, depth, is_leaf, _of_variance(factor, *prior.noise_leaf))
            total += of_nodes.sum(axis=(-1, -2))
            variances = jnp.take_along_axis(factor, slot, axis=-1).prod(axis=-2)
            each = _log_normal_density(y - f[..., 0, :], jnp.sqrt(variances))
        elif prior.link == "identity":
            total += _of_variance(variance, prior.noise_degrees, prior.noise_scale)
            each = _log_normal_density(y - f[..., 0, :], jnp.sqrt(variance)[..., None])
        elif prior.num_sums > 1:
            logs = jax.nn.log_softmax(f, axis=-2)
            each = jnp.take_along_axis(logs, y[None], axis=-2)[..., 0, :]
        else:
            log_cdf = jax_norm.logcdf if prior.link == "probit" else jax.nn.log_sigmoid
            each = log_cdf(jnp.where(y == 1, 1, -1) * f[..., 0, :])
        return total + (weights * each).sum(axis=-1)


def _log_normal_density(x, scale):
    return -0.5 * (x / scale) ** 2 - jnp.log(scale) - 0.5 * math.log(2 * math.pi)


def _of_scale(scale, median) -> Any:
    """Return the log density of a half-Cauchy distribution."""
    return math.log(2 / math.pi) - jnp.log(median) - jnp.log1p((scale / median) ** 2)


def _of_variance(variance, degrees, scale) -> Any:
    """Return the log density of a scaled inverse chi-squared distribution."""
    shape, rate = degrees / 2, degrees * scale / 2
    log_density = shape * jnp.log(rate) - gammaln(shape) - (shape + 1) * jnp.log(variance)
    return log_density - rate / variance


def _of_weights(prior: AdditivePrior, equal, feature_weight) -> Any:
    """Return the log Dirichlet density over the features with rules; 0 for equal weights."""
    if prior.sparsity is None:
        return 0.0
    has_rule = equal > 0
    each = jnp.where(has_rule, prior.sparsity * equal, 1.0)
    logs = (each - 1) * jnp.log(jnp.where(has_rule, feature_weight, 1.0))
    return gammaln(prior.sparsity) + (logs - gammaln(each)).sum(axis=-1)
