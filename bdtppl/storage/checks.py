"""Checks that a posterior read from a file is one that a fit could have made.

A checksum shows that a file was not altered, not that bdtppl wrote it. These checks reject indices
outside arrays and contradictory numbers: invalid trees, features and rules that do not exist,
statistics that are not those of the training rows.
"""

from typing import Any

import jax
import numpy as np

from bdtppl.inference.additive.posterior import SumPosterior
from bdtppl.inference.additive.tables import row_tables
from bdtppl.inference.hard.posterior import Posterior
from bdtppl.inference.posteriors import AnyPosterior
from bdtppl.inference.soft.posterior import SoftPosterior
from bdtppl.models.data.design import RowlessDesign
from bdtppl.models.data.target_scale import TargetScale
from bdtppl.models.hard.tree import Tree, route
from bdtppl.models.leaf import Leaf
from bdtppl.models.soft.tree import SoftRegression

_CLOSE = 1e-6  # tolerance relative to the largest value: sums are added in other orders
_ENTRIES_AT_ONCE = 1 << 22  # of trees by rows
_MOST_ROWS_COUNTED = 1 << 26  # trees times rows whose statistics are counted again


def require_posterior(posterior: AnyPosterior, *, counts_rows: bool = True) -> None:
    """Raise ValueError unless a fit could have made a posterior.

    Parameters
    ----------
    posterior
        The posterior.
    counts_rows
        Whether the statistics of hard trees are those of the training rows alone.
    """
    if isinstance(posterior, SoftPosterior):
        _require_soft(posterior)
    elif isinstance(posterior, SumPosterior):
        _require_sum_posterior(posterior)
    else:
        _require_hard_posterior(posterior, counts_rows)


def require_trees(trees: Tree, num_features: int, batch_shape: tuple[int, ...]) -> None:
    """Raise ValueError unless arrays are trees on the given number of features."""
    capacity = trees.feature.shape[-1] if trees.feature.ndim else 0
    for name, like in vars(Tree.empty(0, 0)).items():
        shape = batch_shape if name == "num_nodes" else (*batch_shape, capacity)
        _require_array(name, getattr(trees, name), like.dtype, shape)
    flat = trees.reshape(-1)
    number = flat.num_nodes
    _require(((number >= 1) & (number <= capacity) & (number % 2 == 1)).all(), "numbers of nodes")
    used = flat.is_used
    is_split = flat.feature >= 0
    _require((flat.feature >= -1).all() and (flat.feature < num_features).all(), "features")
    _require(not (is_split & ~used).any(), "splits after a tree's nodes")
    _require((is_split.sum(axis=1) == number // 2).all(), "numbers of splits")
    _require((np.isnan(flat.threshold) != is_split).all(), "thresholds")
    tree, slot = np.nonzero(is_split)
    children = np.concatenate([flat.left[tree, slot], flat.right[tree, slot]])
    parents, of = np.tile(slot, 2), np.tile(tree, 2)
    _require(((children > parents) & (children < number[of])).all(), "children before parents")
    times = np.bincount(of * capacity + children, minlength=used.size).reshape(used.shape)
    _require((times == (used & (np.arange(capacity) > 0))).all(), "nodes of several parents")
    for side in (flat.left, flat.right):
        _require(not side[~is_split].any(), "children of leaves")


def require_statistics(posterior: Posterior, trees: Tree, statistics: np.ndarray) -> None:
    """Raise ValueError unless the statistics [t, k, s] of trees [t] are those of the rows."""
    _require_at_nodes(trees, statistics)
    close = _CLOSE * max(float(np.abs(statistics).max()), np.finfo(float).tiny)
    tree, slot = np.nonzero(trees.feature >= 0)
    below = statistics[tree, trees.left[tree, slot]] + statistics[tree, trees.right[tree, slot]]
    is_sum = np.abs(below - statistics[tree, slot]) <= close
    _require(is_sum.all(), "statistics of children that do not sum to their parent's")
    design = posterior.design
    if isinstance(design, RowlessDesign):
        _require((np.abs(np.ptp(statistics[:, 0], axis=0)) <= close).all(), "unequal roots")
        return
    own = _of_rows(posterior.leaf, posterior.y, design.weights)
    _require(own.shape[-1] == statistics.shape[-1], "statistics of another leaf family")
    step = max(1, len(trees.num_nodes) * len(own) // _MOST_ROWS_COUNTED)  # only some of huge ones
    chosen = np.arange(0, len(trees.num_nodes), step)
    size, capacity = max(1, _ENTRIES_AT_ONCE // len(own)), trees.capacity
    for first in range(0, len(chosen), size):
        some = chosen[first : first + size]
        entries = (
            route(trees[some], design.matrix) + capacity * np.arange(len(some))[:, None]
        ).ravel()
        for s, values in enumerate(own.T):
            found = np.bincount(entries, np.tile(values, len(some)), len(some) * capacity)
            wanted = np.where(trees.is_leaf[some], statistics[some, :, s], 0.0)
            is_same = np.abs(found.reshape(wanted.shape) - wanted) <= close
            _require(is_same.all(), "statistics that are not those of the rows")


def _require_at_nodes(trees: Tree, statistics: np.ndarray) -> None:
    """Reject statistics [t, k, s] of trees [t] that are not numbers, or belong to no node."""
    _require(np.isfinite(statistics).all(), "statistics that are not numbers")
    _require(not statistics[~trees.is_used].any(), "statistics without a node")


def require_classes(classes: Any, posterior: AnyPosterior) -> None:
    """Raise ValueError unless class labels are distinct, with the same number as the targets."""
    labels = np.asarray(classes)
    _require(labels.ndim == 1 and len(labels) >= 1, "class labels")
    _require(len(set(labels.tolist())) == len(labels), "repeated class labels")
    if isinstance(posterior, SumPosterior):
        number = max(2, posterior.prior.num_sums)
    elif isinstance(posterior, SoftPosterior):
        number = np.size(getattr(posterior.model, "concentration", ()))
    else:
        number = np.size(getattr(posterior.leaf, "concentration", ()))
    _require(number == len(labels), "a number of classes that is not the model's")
    y = posterior.y  # empty if rows were not stored
    is_whole = y.dtype.kind in "iu" or not len(y)
    _require(is_whole and (y >= 0).all() and (y < number).all(), "classes of rows")


def _require_hard_posterior(posterior: Posterior, counts_rows: bool) -> None:
    trees, design = posterior.trees, posterior.design
    shape = np.shape(trees.num_nodes)
    _require(len(shape) == 2 and min(shape) >= 1, "draws")
    _require_design(posterior)
    require_trees(trees, design.num_features, shape)
    given = posterior.statistics
    _require(given.ndim == 4 and given.shape[:3] == (*shape, trees.capacity), "statistics")
    _require_array("statistics", given, np.float64, given.shape)
    flat = trees.reshape(-1), given.reshape(-1, *given.shape[2:])
    if counts_rows:
        require_statistics(posterior, *flat)
    else:
        _require_at_nodes(*flat)
    _require_stats(posterior.sample_stats, shape)
    if posterior.log_weights is not None:
        _require_array("log_weights", posterior.log_weights, np.float64, shape)
        weights = posterior.log_weights
        _require((weights < np.inf).all() and (weights > -np.inf).any(), "weights")


def _require_design(posterior: Posterior | SumPosterior) -> None:
    """Reject rows that are not of the design, and contradictory cut points without rows."""
    design, y = posterior.design, posterior.y
    if isinstance(design, RowlessDesign):
        number, total = design.num_features, int(np.sum(design.num_codes))
        _require_array("num_codes", design.num_codes, np.int32, (number,))
        for name in ("is_indicator", "has_missing"):
            _require_array(name, getattr(design, name), np.bool_, (number,))
        for name in ("cut_threshold", "low_edge", "high_edge"):
            _require_array(name, getattr(design, name), np.float64, (total,))
        _require(number == len(design.names) and (design.num_codes >= 1).all(), "codes")
        _require(isinstance(design.count, int) and 0 < design.count < 1 << 62, "numbers of rows")
        weight, cuts = design.pseudo_weight, design.cut_threshold
        _require(weight is None or (isinstance(weight, float) and 0 < weight < np.inf), "weights")
        rises = (np.diff(cuts) > 0) | np.isin(np.arange(1, total), design.offset)
        _require(np.isneginf(cuts[design.offset[:-1]]).all() and rises.all(), "cut points")
        return
    number = design.num_features
    _require_array("is_indicator", design.is_indicator, np.bool_, (number,))
    _require(y.shape == (design.num_rows,) and np.isfinite(y).all(), "targets")


def _require_sum_posterior(posterior: SumPosterior) -> None:
    prior, shape = posterior.prior, posterior.variance.shape
    _require(len(shape) == 2 and min(shape) >= 1, "draws")
    _require_design(posterior)
    scale = posterior.scale
    _require(isinstance(scale, TargetScale), "scale of targets")
    _require(np.isfinite(scale.forward(posterior.y)).all(), "targets outside their scale")
    levels = prior.max_depth
    _require(1 <= levels <= 6 and min(prior.num_trees, prior.num_sums) >= 1, "trees")
    num_rules = len(row_tables(posterior.design).feature)
    each = (*shape, prior.num_sums, prior.num_trees)
    _require_complete_trees(posterior.rule, posterior.value, 0.0, each, levels, num_rules)
    rule, value = posterior.noise_rule, posterior.noise_value
    _require((rule is None) == (value is None) == (not prior.noise_trees), "noise trees")
    if rule is not None:
        noise = (*shape, prior.noise_trees)
        _require_complete_trees(rule, value, 1.0, noise, levels, num_rules)
        _require((np.asarray(value) > 0).all(), "values of noise")
    linear, deviation = posterior.linear, posterior.linear_deviation
    features = range(posterior.design.num_features)
    _require(all(j in features for j in prior.groups), "groups")
    if prior.offset_feature is not None:
        _require(prior.offset_feature in features and prior.num_sums == 1, "offset")
        _require(np.isfinite(prior.offsets_at(posterior.design.matrix)).all(), "offset")
    _require(len(prior.monotone) in (0, len(features)), "directions")
    terms, blocks = (*shape, prior.num_sums), list(posterior.linear_columns.blocks)
    is_there = [each is not None for each in (linear, deviation)]
    _require(is_there == [len(blocks) > 0] * 2, "linear terms")
    if linear is not None and deviation is not None:
        _require_array("linear", linear, np.float64, (*terms, blocks[-1].stop))
        _require_array("linear_deviation", deviation, np.float64, (*terms, len(blocks)))
        is_scale = (deviation > 0) & (deviation < np.inf)
        _require(np.isfinite(linear).all() and is_scale.all(), "linear terms")
    scale = posterior.leaf_scale
    _require((scale is not None) == prior.draws_leaf_scale, "scales of leaves")
    if scale is not None:
        _require_array("leaf_scale", scale, np.float64, (*shape, prior.num_sums))
        _require(((scale > 0) & (scale < np.inf)).all(), "scales of leaves")
    if (effect := posterior.effect) is not None:
        _require_array("coding", effect.coding, np.float64, (*shape, 2))
        _require(np.isfinite(effect.coding).all() and effect.feature in features, "treatment")
        _require(effect.sums.variance.shape == shape, "effect")
        for own in filter(None, (effect.sums, effect.propensity)):
            _require(isinstance(own, SumPosterior) and own.effect is None, "effect")
            _require(own.names == posterior.names[: len(own.names)], "effect")
            _require_sum_posterior(own)
    _require_array("variance", posterior.variance, np.float64, shape)
    _require((posterior.variance > 0).all() and np.isfinite(posterior.variance).all(), "variances")
    weight = posterior.feature_weight
    _require_array("feature_weight", weight, np.float64, (*shape, posterior.design.num_features))
    _require((weight >= 0).all() and np.allclose(weight.sum(axis=-1), 1), "weights of features")
    _require_stats(posterior.sample_stats, shape)


def _require_complete_trees(
    rule: Any, value: Any, absent: float, batch: tuple[int, ...], levels: int, num_rules: int
) -> None:
    """Reject arrays that are not complete binary trees with values in leaves alone."""
    _require_array("value", value, np.float64, (*batch, 2 ** (levels + 1) - 1))
    _require(rule.dtype.kind == "i" and rule.shape == (*batch, 2**levels - 1), "rules")
    _require((rule >= -1).all() and (rule < num_rules).all(), "rules")
    _require(np.isfinite(value).all(), "values")
    is_split = np.pad(rule >= 0, [(0, 0)] * len(batch) + [(0, 2**levels)])
    parent = (np.arange(is_split.shape[-1]) - 1) // 2
    has_parent = np.where(np.arange(len(parent)) == 0, True, is_split[..., parent])
    _require(not (is_split & ~has_parent).any(), "splits below leaves")
    _require((value[~has_parent | is_split] == absent).all(), "values without a leaf")


def _require_soft(posterior: SoftPosterior) -> None:
    trees, shape = posterior.trees, posterior.topology.shape
    _require(len(shape) == 2 and min(shape) >= 1, "draws")
    num_rows, number = np.shape(posterior.matrix)
    _require_array("matrix", posterior.matrix, np.float64, (num_rows, number))
    _require(number == len(posterior.names), "names")
    _require(np.isfinite(posterior.matrix).all(), "rows")
    _require(posterior.y.shape == (num_rows,) and np.isfinite(posterior.y).all(), "targets")
    weights = posterior.row_weights
    _require(weights.shape == (num_rows,) and ((weights > 0) & (weights < np.inf)).all(), "weights")
    _require_array("scaling", posterior.scaling, np.float64, (2, number))
    _require(np.isfinite(posterior.scaling).all() and (posterior.scaling[1] > 0).all(), "scaling")
    count = len(posterior.topologies)
    _require(len(set(posterior.topologies)) == count, "topologies")
    for name in ("probability", "log_evidences", "log_evidence_ses"):
        _require_array(name, getattr(posterior, name), np.float64, (count,))
    _require((posterior.probability >= 0).all(), "probabilities of topologies")
    _require(np.isclose(posterior.probability.sum(), 1), "probabilities of topologies")
    _require(posterior.topology.dtype.kind == "i", "topologies of draws")
    _require(0 < posterior.sharpness < np.inf, "sharpness")
    most = np.shape(trees.threshold)[-1]
    splits = np.array([each.num_splits for each in posterior.topologies])
    _require(
        (posterior.topology >= 0).all() and (splits[posterior.topology] <= most).all(), "trees"
    )
    direction, threshold = trees.direction, trees.threshold
    _require(direction.dtype.kind == threshold.dtype.kind == "f", "splits")
    _require(direction.shape == (*shape, most, number), "directions")
    _require(threshold.shape == (*shape, most), "thresholds")
    is_split = np.arange(most) < splits[posterior.topology][..., None]
    _require(np.isfinite(threshold).all() and not threshold[~is_split].any(), "thresholds")
    total = direction.sum(axis=-1)
    _require((direction >= 0).all() and np.allclose(total, is_split, atol=1e-4), "directions")
    model: Any = posterior.model
    is_real = isinstance(model, SoftRegression)
    known = {"mean", "noise"} if is_real else {"classes"}
    _require(set(trees.leaves) == known, "parameters of leaves")
    for name, values in trees.leaves.items():
        _require(values.dtype.kind == "f" and np.isfinite(values).all(), "parameters of leaves")
        behind = () if name == "noise" else (most + 1,)
        classes = () if is_real else (np.size(model.concentration),)
        _require(values.shape == (*shape, *behind, *classes), "parameters of leaves")
        _require(name == "mean" or (values >= 0).all(), "parameters of leaves")
    _require_stats(posterior.sample_stats, shape)


def _require_stats(stats: Any, shape: tuple[int, ...]) -> None:
    for name, values in stats.items():
        _require(values.shape == shape and values.dtype.kind in "biuf", f"numbers of {name}")


def _of_rows(leaf: Leaf, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the statistics of single rows, float64 [n, s]."""
    leaf.require_targets(y)
    with jax.enable_x64(True):
        return np.asarray(leaf.statistics(y, weights))


def _require_array(name: str, array: Any, dtype: Any, shape: tuple[int, ...]) -> None:
    if array.dtype != dtype or array.shape != shape:
        raise ValueError(
            f"{name} must be {np.dtype(dtype)} {shape}; it is {array.dtype} {array.shape}"
        )


def _require(is_so: Any, what: str) -> None:
    if not is_so:
        raise ValueError(f"it has wrong {what}")
