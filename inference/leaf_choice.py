"""Choose the numbers of a leaf family by evidence, for inferences that know no evidence themselves.

The evidence is that of trees of few levels and few buckets, summed over by boxes
(`bdtppl.inference.boxes`), so that it costs about a second. A prior that boxes cannot sum over is
replaced by `DepthDecay`, and constraints that they cannot answer for are left out: the numbers of
the leaves depend on them but little.
"""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpyro.distributions.constraints import real
from scipy.sparse import issparse

from bdtppl.inference.boxes.exact import BoxPosterior, why_no_boxes
from bdtppl.inference.empirical_bayes import empirical_bayes
from bdtppl.inference.exact_cost import box_cost_of
from bdtppl.models.arrays.precision import in_float64
from bdtppl.models.constraints import FUNCTIONS
from bdtppl.models.data.design import Design
from bdtppl.models.hard.tree_model import TreeModel
from bdtppl.models.leaf import Leaf
from bdtppl.models.priors import DepthDecay

__all__ = ["REACH", "leaf_by_evidence", "units_of"]

REACH = 9.0  # of fitted numbers: a factor of 8,000, or so many standard deviations
_NUM_BUCKETS = 10
_NUM_LEVELS = 3
_FEATURES = 200  # more of them cost too much, and so do many rows of a sparse table
_SECONDS = 0.1  # most of one sum over trees
_BYTES = 2e8
_MOST_FITS = 12
_ENOUGH = 0.05  # nats


@in_float64
def units_of(leaf: Leaf) -> dict[str, float]:
    """Measure real numbers of a leaf family by the spread that it expects of a target.

    A fit that is stopped early then does not depend on the scale of the targets.
    """
    none = jnp.zeros_like(leaf.statistics(jnp.zeros(1), jnp.ones(1)))
    spread = float(np.sqrt(leaf.predictive(none).variance[0]))
    unit = spread if 0 < spread < np.inf else 1.0
    return {name: unit for name, each in leaf.parameter_support.items() if each is real}


def leaf_by_evidence(model: TreeModel) -> Leaf:
    """Fit the numbers of a leaf family, those in its ``parameter_support``.

    Parameters
    ----------
    model
        The model, with the numbers to start from.

    Returns
    -------
    Leaf
        The numbers of the greatest evidence within a factor of 8,000 of those that are given; the
        latter where a sum over trees of one level would already take long.
    """
    design: Any = model.design
    prior: Any = model.prior
    if model.constraints.max_depth == 0 or design.num_features > _FEATURES:
        return model.leaf
    beyond = dict.fromkeys(FUNCTIONS) | dict.fromkeys(("keep_together", "monotone", "refused"), ())
    limits = replace(model.constraints, **beyond)
    if why_no_boxes(prior, limits):
        prior = DepthDecay(0.95, 1.0)
    matrix = design.matrix.toarray() if issparse(design.matrix) else design.matrix
    few = Design.from_matrix(matrix, weights=design.weights, bins=_NUM_BUCKETS, names=design.names)
    coarse = TreeModel(few, model.y, prior, model.leaf, limits)
    most = _NUM_LEVELS if limits.max_depth is None else min(_NUM_LEVELS, limits.max_depth)
    levels = [level for level in range(1, most + 1) if _is_cheap(coarse, level)]
    if not levels:
        return model.leaf
    exact = BoxPosterior(few, prior, model.leaf, model.y, max_depth=levels[-1], constraints=limits)
    if not np.isfinite(exact.log_evidence):
        return model.leaf
    fitted = empirical_bayes(
        exact,
        parameters=list(model.leaf.parameter_support),
        max_steps=_MOST_FITS,
        tolerance=_ENOUGH,
        units=units_of(model.leaf),
        reach=REACH,
    )
    return fitted.leaf


def _is_cheap(model: TreeModel, levels: int) -> bool:
    cost = box_cost_of(model, levels)
    return cost.seconds <= _SECONDS and cost.num_bytes <= _BYTES
