"""Draws of soft trees as groups of labelled arrays.

The groups are those of `bdtppl.arviz.groups`: ``posterior``, ``sample_stats`` and ``trees``; and
``topologies``, the results for each topology.
"""

from typing import Any

import numpy as np
import xarray as xr

from bdtppl.arviz.groups import DRAW_AXES, class_labels, label_sample_stats
from bdtppl.inference.soft.posterior import SoftPosterior

_TREE_ARRAYS = {
    "paths": (*DRAW_AXES, "leaf", "split"),
    "is_leaf": (*DRAW_AXES, "leaf"),
    "direction": (*DRAW_AXES, "split", "feature"),
    "threshold": (*DRAW_AXES, "split"),
}
_TOPOLOGIES = ("probability", "log_evidences", "log_evidence_ses")


def label_soft_draws(posterior: SoftPosterior, *, classes: Any = None) -> dict[str, xr.Dataset]:
    """Label the arrays that depend on the draws alone.

    Parameters
    ----------
    posterior
        Draws of soft trees.
    classes
        Class labels [c], for classification.

    Returns
    -------
    dict
        The groups ``posterior``, ``sample_stats``, ``trees`` and ``topologies``. Parameters of
        splits and leaves that a tree lacks are 0.
    """
    trees = posterior.trees
    chains, draws = posterior.topology.shape
    coordinates = {"chain": range(chains), "draw": range(draws)}
    by_feature = coordinates | {"feature": list(posterior.names)}
    by_class = {} if classes is None else {"class": class_labels(classes)}
    leaves = {name: ((*DRAW_AXES, *_leaf_axes(name, a)), a) for name, a in trees.leaves.items()}
    shared = {name: leaves[name] for name, a in trees.leaves.items() if a.ndim == 2}
    return {
        "posterior": xr.Dataset(
            {
                "num_leaves": (DRAW_AXES, posterior.num_leaves),
                "max_leaf_depth": (DRAW_AXES, posterior.depth),
                "topology": (DRAW_AXES, posterior.topology),
                "input_weight": ((*DRAW_AXES, "feature"), posterior.input_weights),
                **shared,
            },
            by_feature,
        ),
        "sample_stats": label_sample_stats(posterior.sample_stats, coordinates),
        "trees": xr.Dataset(
            {name: (axes, getattr(trees, name)) for name, axes in _TREE_ARRAYS.items()}
            | {f"leaf_{name}": variable for name, variable in leaves.items()},
            by_feature | (by_class if "classes" in leaves else {}),
        ),
        "topologies": xr.Dataset(
            {name: ("topology", getattr(posterior, name)) for name in _TOPOLOGIES},
            {"topology": [shape.code for shape in posterior.topologies]},
        ),
    }


def _leaf_axes(name: str, values: np.ndarray) -> tuple[str, ...]:
    """Return the axes of a leaf parameter after those of draws."""
    return () if values.ndim == 2 else ("leaf", "class")[: values.ndim - 2]
