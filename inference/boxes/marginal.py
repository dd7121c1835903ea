"""The log evidence of boxes as a function that JAX derives.

Boxes are summed in compiled loops that JAX cannot trace, so it calls them back for value and
gradient, once for each set of numbers.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from bdtppl.inference.boxes.exact import BoxPosterior
from bdtppl.models.leaves import Leaf
from bdtppl.models.priors import TreePrior

__all__ = ["box_log_evidence"]


def box_log_evidence(boxes: BoxPosterior, prior: TreePrior, leaf: Leaf, y: Any) -> jax.Array:
    """Log evidence of targets, in the caller's precision; differentiable once.

    NaN, not an error, where numbers are outside their range.

    Parameters
    ----------
    boxes
        Posterior of the same rows, for its design, depth and constraints.
    prior, leaf
        The model; its numbers may be traced.
    y
        Targets [n], which may be traced.
    """
    numbers, kind = jax.tree.flatten((prior.resolve(boxes.design), leaf))
    numbers = [jnp.asarray(number, float) for number in numbers]
    # Targets that are known keep their precision.
    traced = [y] if isinstance(y, Tracer) else []

    dtype = numbers[0].dtype

    def posterior(arguments: tuple) -> BoxPosterior | None:
        own_y = arguments[0] if traced else y
        values = [np.asarray(value, np.float64) for value in arguments[len(traced) :]]
        try:
            model: Any = jax.tree.unflatten(kind, values)
        except ValueError:  # a sampler may try numbers outside their range
            return None
        return _scored(boxes, model[0], model[1], own_y)

    def value_alone(*arguments):
        exact = posterior(arguments)
        return np.asarray(np.nan if exact is None else exact.log_evidence, dtype)

    def value_and_gradient(*arguments):
        exact = posterior(arguments)
        if exact is None:
            return np.asarray(np.nan, dtype), [np.full(n.shape, np.nan, dtype) for n in numbers]
        by_number = jax.tree.leaves((exact.gradient("prior"), exact.gradient("leaf")))
        return np.asarray(exact.log_evidence, dtype), [np.asarray(g, dtype) for g in by_number]

    scalar = jax.ShapeDtypeStruct((), dtype)
    shapes = [jax.ShapeDtypeStruct(number.shape, dtype) for number in numbers]
    call = partial(jax.pure_callback, vmap_method="sequential")

    @jax.custom_vjp
    def log_evidence(numbers):
        return call(value_alone, scalar, *traced, *numbers)

    def forward(numbers):
        return call(value_and_gradient, (scalar, shapes), *traced, *numbers)

    def backward(gradient, cotangent):
        return ([g * cotangent for g in gradient],)

    log_evidence.defvjp(forward, backward)
    return log_evidence(numbers)


def _scored(boxes: BoxPosterior, prior: TreePrior, leaf: Leaf, y: Any) -> BoxPosterior:
    """Score the rows with some targets, with the histograms of the boxes where these hold them."""
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
