"""Functions that are computed in float64, whatever the precision of the caller.

Value and slopes are computed together, in a separate scope, by a custom derivative rule that is
linear in the tangents. So they work under an outer float32 trace, in forward and reverse mode, and
return no float64. JAX may batch a traced function after the scope is closed, so a separate batching
rule reopens it.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_derivatives import SymbolicZero
from jax.flatten_util import ravel_pytree


def smooth(function, with_slopes=None):
    """Make a function in double precision differentiable in all arguments but the first.

    Its derivative rule is linear in the tangents, and has a derivative of the same kind.

    Parameters
    ----------
    function
        From arrays to a list of arrays.
    with_slopes
        Returns the function's arrays and their derivatives with respect to each argument but the
        first. Default: forward mode.
    """
    if with_slopes is None:
        with_slopes = partial(_values_and_slopes, function)
    values = jax.custom_jvp(in_double_scope(function))

    @partial(values.defjvp, symbolic_zeros=True)
    def differentiate(primals, tangents):
        if not isinstance(tangents[0], SymbolicZero):
            raise TypeError("The log evidence of trees has no derivative in the targets.")
        found = smooth(with_slopes)(*primals)
        num_values = len(found) // len(primals)
        slopes = iter(found[num_values:])
        changes = [jnp.zeros_like(value) for value in found[:num_values]]
        for place in range(num_values):
            for tangent, slope in zip(tangents[1:], slopes, strict=False):
                if not isinstance(tangent, SymbolicZero):
                    changes[place] += jnp.tensordot(slope, tangent, tangent.ndim)
        return found[:num_values], changes

    return values


def _values_and_slopes(function, statistics, *parameters):
    vector, parted = ravel_pytree(parameters)

    def change(direction):
        return jax.jvp(lambda x: function(statistics, *parted(x)), (vector,), (direction,))[1]

    # One direction at a time, because JAX does not lower batches of the passes' scatters in another
    # precision.
    changes = lax.map(change, jnp.eye(len(vector), dtype=vector.dtype))
    slopes = [
        jnp.moveaxis(own, 0, -1).reshape(*each.shape[1:], *parameter.shape)
        for each in changes
        for own, parameter in zip(_split(each, parameters), parameters, strict=True)
    ]
    return [*function(statistics, *parameters), *slopes]


def _split(changes, parameters):
    """Split changes [P, ...] by the entries of each parameter."""
    return jnp.split(changes, np.cumsum([p.size for p in parameters])[:-1])


def in_double_scope(function):
    """Run a function in double precision, even if JAX batches it later.

    It maps arrays to a list of arrays. Elements of a batch are processed one after the other, so
    that memory is that of one.
    """

    @jax.custom_batching.custom_vmap
    def scoped(*arrays):
        with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
            return function(*arrays)

    @scoped.def_vmap
    def batched(axis_size, is_batched, *arrays):
        def one_by_one(*arrays):
            def call(own):
                own = iter(own)
                each = zip(arrays, is_batched, strict=True)
                return function(*(next(own) if is_own else array for array, is_own in each))

            return lax.map(call, [a for a, own in zip(arrays, is_batched, strict=True) if own])

        values = in_double_scope(one_by_one)(*arrays)
        return values, [True for _ in values]

    return scoped
