"""The log evidence of boxes as a function that JAX can differentiate.

Boxes are summed in compiled loops that JAX cannot trace, so it calls them back for value and
gradient, once for each set of hyperparameters.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from bdtppl.inference.boxes.exact import BoxPosterior
from bdtppl.inference.smooth import smooth
from bdtppl.models.leaf import Leaf
from bdtppl.models.prior_kinds import TreePrior


def box_log_evidence(boxes: BoxPosterior, prior: TreePrior, leaf: Leaf, y: Any) -> jax.Array:
    """Return the log evidence of targets, in the caller's precision; differentiable once.

    NaN, not an error, if hyperparameters are outside their range.

    Parameters
    ----------
    boxes
        Posterior of the same rows, for its design, depth and constraints.
    prior, leaf
        The model; its hyperparameters may be traced.
    y
        Targets [n], which may be traced.
    """
    numbers, form = jax.tree.flatten((prior.resolve(boxes.design), leaf))
    numbers = [jnp.asarray(number, float) for number in numbers]
    dtype = numbers[0].dtype
    # Known targets keep their precision, and need not be passed.
    known = None if isinstance(y, Tracer) else np.asarray(y)
    traced = y if known is None else jnp.zeros(0)

    def summed(traced, *numbers) -> BoxPosterior | None:
        values = [np.asarray(number, np.float64) for number in numbers]
        try:
            model: Any = jax.tree.unflatten(form, values)
        except ValueError:  # a sampler may try numbers outside their range
            return None
        return _scored(boxes, model[0], model[1], traced if known is None else known)

    def value(*arguments):
        exact = summed(*arguments)
        return [np.asarray(np.nan if exact is None else exact.log_evidence, dtype)]

    def value_and_slopes(*arguments):
        exact = summed(*arguments)
        if exact is None:
            return [np.full(shape.shape, np.nan, dtype) for shape in shapes]
        slopes = jax.tree.leaves((exact.gradient("prior"), exact.gradient("leaf")))
        return [np.asarray(each, dtype) for each in (exact.log_evidence, *slopes)]

    shapes = [jax.ShapeDtypeStruct(shape, dtype) for shape in ((), *(n.shape for n in numbers))]
    log_evidence = smooth(
        partial(jax.pure_callback, value, shapes[:1]),
        partial(jax.pure_callback, value_and_slopes, shapes),
    )
    return log_evidence(traced, *numbers)[0]


def _scored(boxes: BoxPosterior, prior: TreePrior, leaf: Leaf, y: Any) -> BoxPosterior:
    """Score the rows with some targets, with the boxes' histograms if these contain them."""
    y = np.asarray(y)
    one = y[:1], np.ones(1)
    kinds = [jax.tree.structure(each) for each in ((boxes.prior, boxes.leaf), (prior, leaf))]
    if kinds[0] == kinds[1] and np.array_equal(y, boxes.y):
        with jax.enable_x64(True):
            statistics = [np.asarray(each.statistics(*one)) for each in (boxes.leaf, leaf)]
        if np.array_equal(statistics[0], statistics[1]):
            return boxes.with_model(prior, leaf)
    depth, limits = boxes.space.num_levels, boxes.constraints
    return BoxPosterior(boxes.design, prior, leaf, y, max_depth=depth, constraints=limits)
