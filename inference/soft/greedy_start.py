"""Greedy hard trees as initial states of chains over soft trees.

A soft tree drawn from the prior is a poor one, and chains of sharp splits hardly leave it. A greedy
modal tree under the same prior of shapes is found in milliseconds. Its splits use one input each,
which a soft tree can only do at the edge of the simplex, where a sampler moves slowly, so
directions start somewhat inside.

References
----------
Nuti, Jimenez Rugama and Cross 2021, An explainable Bayesian decision tree algorithm.
"""

from typing import Any

import numpy as np
from scipy.special import expit

from bdtppl.inference.greedy_modal.growth import grow
from bdtppl.inference.greedy_modal.problem import pose
from bdtppl.models.constraints import Constraints
from bdtppl.models.data.design import Design
from bdtppl.models.hard.tree import Tree
from bdtppl.models.hard.tree_model import TreeModel
from bdtppl.models.leaves import DirichletCategorical, NormalInverseGamma
from bdtppl.models.priors import DepthDecay
from bdtppl.models.soft.topology import Topology, TopologyPrior
from bdtppl.models.soft.tree import SoftClassification, SoftRegression

_LIMITS = Constraints(max_depth=3, min_leaf=5)  # larger trees are slow to sample
_SHARED = 0.3  # weight of a direction that all inputs share equally
_LEAST_VARIANCE = 1e-6


def greedy_start(
    rng: np.random.Generator,
    model: SoftRegression | SoftClassification,
    x: np.ndarray,
    y: np.ndarray,
    prior: TopologyPrior,
    sharpness: float,
    *,
    max_splits: int | None = None,
    hard_inputs: bool = False,
    weights: np.ndarray | None = None,
) -> tuple[Topology, dict[str, np.ndarray], np.ndarray | None]:
    """Grow a hard tree on rows that are drawn with replacement, and make its splits soft.

    Parameters
    ----------
    rng
        Generator of the rows, so that chains start apart.
    model
        The model of soft trees.
    x, y
        Inputs float [N, d], scaled to [0, 1], and targets [N].
    prior
        Prior of shapes.
    sharpness
        h of the splits.
    max_splits
        Most splits; None limits only the levels, to three.
    hard_inputs
        Whether each split uses one input, and not a direction.
    weights
        Weights of the rows [N], in proportion to which they are drawn; None for equal ones.

    Returns
    -------
    tuple
        The topology; values of the model's sites; and inputs of splits, int [n], None if they use
        directions.

    Raises
    ------
    ValueError
        If no row has a target.
    """
    x, y = np.asarray(x, np.float64), np.asarray(y)
    is_known = (y == y) & (y != model.no_target)  # NaN is not itself
    if not is_known.any():
        raise ValueError("No row has a target to grow a greedy tree by: use start='prior'.")
    x, y = x[is_known], y[is_known]
    y = y.astype(float if isinstance(model, SoftRegression) else int)
    share = None if weights is None else weights[is_known] / weights[is_known].sum()
    rows = (
        rng.integers(len(y), size=len(y)) if share is None else rng.choice(len(y), len(y), p=share)
    )
    code, feature, cut = _in_preorder(_greedy_tree(model, x[rows], y[rows], prior), max_splits)
    topology, num_inputs, split = Topology(code), x.shape[1], np.arange(len(feature))
    share = 0.0 if hard_inputs or num_inputs == 1 else _SHARED
    direction = np.full((len(feature), num_inputs), share / num_inputs)
    direction[split, feature] += 1 - share
    # A row whose other inputs are at their mean follows the hard split.
    middle = x.mean(axis=0)
    threshold = direction @ middle + direction[split, feature] * (cut - middle[feature])
    threshold = np.clip(threshold, 1e-3, 1 - 1e-3)
    sites: dict[str, Any] = {"threshold": threshold} if len(feature) else {}
    if share and len(feature):
        sites["direction"] = direction
    reached = np.ones((topology.num_leaves, len(y)))
    for j, way in enumerate(topology.paths.T[:, :, None]):  # few large arrays at once
        left = expit((threshold[j] - x @ direction[j]) / sharpness)[None]
        reached *= np.where(way > 0, left, np.where(way < 0, 1 - left, 1.0))
    sites |= _leaf_parameters(model, reached, y)
    return topology, sites, feature if hard_inputs else None


def _leaf_parameters(model: Any, reached: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    """Choose parameters of leaves that rows reach with given probabilities [n + 1, N]."""
    if isinstance(model, SoftRegression):
        mean = (reached @ y + model.mean_loc) / (reached.sum(axis=1) + 1)  # worth one row
        variance = max(np.square(y - mean @ reached).mean(), _LEAST_VARIANCE)
        noise = variance ** (model.noise_power / 2)
        return {"mean": mean, "noise": np.full(len(mean), noise) if model.by_leaf else noise}
    if model.likelihood == "compound":
        return {}
    concentration = np.asarray(model.concentration, np.float64)
    weight = reached @ np.eye(len(concentration))[y] + concentration
    return {"classes": weight / weight.sum(axis=1, keepdims=True)}


def _greedy_tree(model: Any, x: np.ndarray, y: np.ndarray, prior: TopologyPrior) -> Tree:
    """Grow the greedy modal tree of leaves like the soft model's."""
    if isinstance(model, SoftRegression):
        leaf: Any = NormalInverseGamma.from_targets(y)
    else:
        leaf = DirichletCategorical(np.asarray(model.concentration, np.float64))
    shapes: Any = DepthDecay(prior.alpha, prior.beta)
    return grow(pose(TreeModel(Design.from_matrix(x), y, shapes, leaf, _LIMITS))).tree


def _in_preorder(tree: Tree, max_splits: int | None) -> tuple[str, np.ndarray, np.ndarray]:
    """List the first splits by level: code of the topology, features [n] and thresholds [n]."""
    kept = set(np.flatnonzero(tree.feature >= 0)[:max_splits].tolist())
    code, splits, waiting = "", [], [0]
    while waiting:
        slot = waiting.pop()
        code += "1" if slot in kept else "0"
        if slot in kept:
            splits.append(slot)
            waiting += [int(tree.right[slot]), int(tree.left[slot])]
    return code, tree.feature[splits], tree.threshold[splits]
