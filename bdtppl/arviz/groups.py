"""Hard trees and their draws as groups of labelled arrays.

ArviZ gets the groups ``posterior``, the numbers that describe each tree; ``sample_stats``, reports
of the inference on each draw; and ``trees``, the trees themselves. Axes are named chain, draw,
node, feature, and class or statistic.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from bdtppl.inference.hard.posterior import Posterior
from bdtppl.models.hard.tree import Tree
from bdtppl.models.leaves import DirichletCategorical

DRAW_AXES = ("chain", "draw")
_BATCH_AXES: dict[int, tuple[str, ...]] = {0: (), 1: ("rank",), 2: ("chain", "draw")}
_ARVIZ_NAMES = {"log_joint": "lp"}  # sample statistics for which ArviZ has another name


def label_trees(trees: Tree) -> xr.Dataset:
    """Label the arrays of a single tree, a ranking [rank] or draws [chain, draw].

    The array ``feature`` becomes ``node_feature``, and so on: ``feature`` is an axis.

    Examples
    --------
    >>> stump = Tree.from_nested({"feature": 0, "threshold": 0.5, "left": {}, "right": {}})
    >>> label_trees(stump)["node_left"].values.tolist()
    [1, 0, 0]
    """
    axes = _BATCH_AXES[len(trees.batch_shape)]
    arrays = trees.splits._asdict() | {"left": trees.left, "right": trees.right}
    variables = {f"node_{name}": ((*axes, "node"), array) for name, array in arrays.items()}
    sizes = dict(zip(axes, trees.batch_shape, strict=True)) | {"node": trees.capacity}
    return xr.Dataset(
        variables | {"num_nodes": (axes, trees.num_nodes)},
        {name: range(size) for name, size in sizes.items()},
    )


def label_draws(posterior: Posterior, *, classes: Any = None) -> dict[str, xr.Dataset]:
    """Label the arrays that depend on the draws alone.

    Parameters
    ----------
    posterior
        Draws of trees.
    classes
        Class labels [c], for classification.

    Returns
    -------
    dict
        The groups ``posterior``, ``sample_stats`` and ``trees`` of `bdtppl.arviz.to_arviz`.
    """
    trees, described = posterior.trees, describe_trees(posterior.trees, posterior.names)
    draws = {name: described.coords[name] for name in ("chain", "draw")}
    reported = dict(posterior.sample_stats)
    if posterior.log_weights is not None:
        reported["log_weight"] = posterior.log_weights
    axis, labels = "statistic", range(posterior.statistics.shape[-1])
    if isinstance(posterior.leaf, DirichletCategorical):
        axis, labels = "class", labels if classes is None else class_labels(classes)
    return {
        "posterior": described,
        "sample_stats": label_sample_stats(reported, draws),
        "trees": label_trees(trees)
        .assign({"node_statistics": (("chain", "draw", "node", axis), posterior.statistics)})
        .assign_coords({axis: labels}),
    }


def describe_trees(trees: Tree, names: Sequence[str]) -> xr.Dataset:
    """Label the numbers that describe draws of trees [chain, draw] on named features."""
    splits_on = np.stack([(trees.feature == j).sum(-1) for j in range(len(names))], axis=-1)
    chains, draws = trees.batch_shape
    return xr.Dataset(
        {
            "num_leaves": (("chain", "draw"), trees.num_leaves),
            "max_leaf_depth": (("chain", "draw"), trees.depth),
            "splits_on": (("chain", "draw", "feature"), splits_on),
        },
        {"chain": range(chains), "draw": range(draws), "feature": list(names)},
    )


def label_sample_stats(
    reported: Mapping[str, np.ndarray], coordinates: Mapping[str, Any]
) -> xr.Dataset:
    """Label numbers of each draw [chain, draw], under ArviZ's names where they exist."""
    variables = {
        _ARVIZ_NAMES.get(name, name): (("chain", "draw"), np.asarray(values))
        for name, values in reported.items()
    }
    return xr.Dataset(variables, coordinates)


def class_labels(classes: Any) -> np.ndarray:
    """Return class labels as a coordinate; labels of mixed kinds become text."""
    labels = np.asarray(classes)
    return labels.astype(str) if labels.dtype.kind == "O" else labels
