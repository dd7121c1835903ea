"""Log weights of a prior for many nodes and rules at once."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bdtppl.models.arrays.padding import FEW_SIZES, in_pieces
from bdtppl.models.arrays.precision import as_float64, in_float64
from bdtppl.models.prior_kinds import Node, Rule


@partial(jax.jit, static_argnames="wanted")
def log_weights(prior: Any, node: Node, rule: Any, *, wanted: tuple[str, ...]) -> tuple:
    """Compute weights of nodes, or of rules in them; differentiable in the hyperparameters.

    Parameters
    ----------
    prior
        A prior that weights nodes.
    node, rule
        Facts, arrays of shapes that broadcast; no rule if only stopping is weighted.
    wanted
        A subset of "stop", "split" and "rule".
    """

    def weight(name: str) -> jax.Array:
        if name == "stop":
            return jnp.broadcast_to(prior.log_stop(node), jnp.shape(node.depth))
        own = prior.log_split(node, rule) if name == "split" else prior.log_rule(node, rule)
        return jnp.broadcast_to(own, jnp.shape(rule.feature))

    return tuple(weight(name) for name in wanted)


@in_float64
def weigh(
    prior: Any,
    node: Node,
    rule: Rule | None,
    *,
    wanted: tuple[str, ...],
    sizes: tuple[int, ...] = FEW_SIZES,
) -> tuple[np.ndarray, ...]:
    """Compute weights of any number of nodes or rules, in pieces, so that few shapes are compiled.

    Parameters
    ----------
    prior, node, rule, wanted
        See `log_weights`; the first axis of facts counts nodes or rules.
    sizes
        Lengths of pieces, ascending.

    Returns
    -------
    tuple of numpy.ndarray
        float64, one array for each requested weight.
    """
    return in_pieces(partial(log_weights, as_float64(prior), wanted=wanted), sizes, node, rule)
