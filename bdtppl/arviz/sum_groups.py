"""Draws of sums of trees as groups of labelled arrays.

The groups are those of `bdtppl.arviz.groups`: ``posterior``, ``sample_stats`` and ``trees``, whose
arrays are those of `SumPosterior`.
"""

from typing import Any

import xarray as xr

from bdtppl.arviz.groups import DRAW_AXES, label_sample_stats
from bdtppl.inference.additive.posterior import SumPosterior

_SUM_ARRAYS = {"rule": "node", "value": "slot"}
_NOISE_ARRAYS = {"noise_rule": "node", "noise_value": "slot"}


def label_sum_draws(posterior: SumPosterior, *, classes: Any = None) -> dict[str, xr.Dataset]:
    """Label the arrays that depend on the draws alone.

    Parameters
    ----------
    posterior
        Draws of sums of trees.
    classes
        Class labels; the trees do not use them.

    Returns
    -------
    dict
        The groups ``posterior`` (``sigma`` of real targets on the scale of the sum, ``num_leaves``
        of all trees, ``max_leaf_depth``, ``splits_on`` each feature, ``average_effect`` of a
        treatment, and ``feature_weight`` under a sparse prior), ``sample_stats`` and ``trees``.
    """
    (chains, draws), weights = posterior.variance.shape, posterior.row_weights
    coordinates = {"chain": range(chains), "draw": range(draws)}
    described: dict[str, tuple] = {
        "num_leaves": (DRAW_AXES, posterior.num_leaves),
        "max_leaf_depth": (DRAW_AXES, posterior.depth),
        "splits_on": ((*DRAW_AXES, "feature"), posterior.splits_on),
    }
    if posterior.prior.link == "identity":
        described["sigma"] = (DRAW_AXES, posterior.sigma)
    if posterior.effect is not None:
        effects = posterior.effect.of_one_unit(posterior.matrix)
        described["average_effect"] = (DRAW_AXES, effects @ weights / weights.sum())
    if posterior.prior.sparsity is not None:
        described["feature_weight"] = ((*DRAW_AXES, "feature"), posterior.feature_weight)
    trees: dict[str, tuple] = {
        name: ((*DRAW_AXES, "sum", "tree", axis), getattr(posterior, name))
        for name, axis in _SUM_ARRAYS.items()
    }
    if posterior.noise_rule is not None:
        for name, axis in _NOISE_ARRAYS.items():
            trees[name] = ((*DRAW_AXES, "noise_tree", axis), getattr(posterior, name))
    by_feature: dict[str, Any] = coordinates | {"feature": list(posterior.names)}
    if posterior.linear is not None:
        by_feature["linear_column"] = posterior.linear_columns.names(posterior.names)
        described["linear"] = ((*DRAW_AXES, "sum", "linear_column"), posterior.linear)
        deviation = (*DRAW_AXES, "sum", "linear_block"), posterior.linear_deviation
        described["linear_deviation"] = deviation
    if posterior.leaf_scale is not None:
        described["leaf_scale"] = ((*DRAW_AXES, "sum"), posterior.leaf_scale)
    trees["variance"] = (DRAW_AXES, posterior.variance)
    trees["weight"] = ((*DRAW_AXES, "feature"), posterior.feature_weight)
    return {
        "posterior": xr.Dataset(described, by_feature),
        "sample_stats": label_sample_stats(posterior.sample_stats, coordinates),
        "trees": xr.Dataset(trees, by_feature),
    }
