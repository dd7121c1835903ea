"""The state of a batch of chains: trees, the rows of their nodes, and what every node scores.

A step changes a subtree, so only the nodes of it are scored anew. These are few, differ from chain
to chain, and are scored together: nodes of all chains in pieces of one size.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from bdtppl.inference.hard_model import Model, NodeTerms, node_terms
from bdtppl.inference.metropolis.trees import Shape, roots

__all__ = [
    "State",
    "at_nodes",
    "hand_down",
    "initial",
    "root_rows",
    "scored",
    "select",
    "state_of",
    "summed",
]

_PIECE_ENTRIES = 1 << 15  # nodes times rules that are scored at once


class State(NamedTuple):
    """Trees of b chains, k slots, W words.

    Attributes
    ----------
    shape
        The trees.
    rows
        uint64 [b, k, W]; rows of each node.
    scores
        float64 [b, k, 4]; the `NodeTerms` of each node.
    log_prior, log_likelihood
        float64 [b]; log weights of stops and rules, and log marginals of the leaves, summed.
    """

    shape: Shape
    rows: jax.Array
    scores: jax.Array
    log_prior: jax.Array
    log_likelihood: jax.Array

    @property
    def terms(self) -> NodeTerms:
        """Scores of each node, [b, k]."""
        log_stop, log_rule, leaf_score, has_rule = (self.scores[..., i] for i in range(4))
        return NodeTerms(log_stop, log_rule, leaf_score, has_rule > 0)

    @property
    def log_weights(self) -> jax.Array:
        """Log prior weight of what each node does, float64 [b, k]."""
        terms = self.terms
        return jnp.where(self.shape.is_split, terms.log_rule, terms.log_stop)

    @property
    def is_growable(self) -> jax.Array:
        """Leaves with an available rule, bool [b, k]."""
        return self.shape.is_leaf & self.terms.has_rule


def initial(model: Model, num_chains: int, capacity: int) -> State:
    """Start chains at the tree of one leaf."""
    return state_of(model, roots(num_chains, capacity))


@jax.jit
def state_of(model: Model, shape: Shape) -> State:
    """Score trees from the rows on."""
    scores = jnp.zeros((*shape.rule.shape, 4))
    return scored(model, shape, root_rows(model, shape), scores, shape.is_used)


def root_rows(model: Model, shape: Shape) -> jax.Array:
    """Put all rows into the roots, uint64 [b, k, W]; nothing is handed down yet."""
    rows = jnp.zeros((*shape.rule.shape, len(model.every_row)), model.every_row.dtype)
    return rows.at[:, 0].set(model.every_row)


def scored(model: Model, shape: Shape, rows: jax.Array, scores: jax.Array, changed) -> State:
    """Settle rows and scores after a change.

    Parameters
    ----------
    model
        The model.
    shape
        Trees.
    rows, scores
        Those of nodes that have not changed; the root's rows.
    changed
        bool [b, k]; nodes whose rows or rule are new. Those below them count as changed too.
    """
    rows, changed = hand_down(model, shape, rows, changed)

    def score(nodes, rows):
        some = Shape(nodes, None)
        terms = node_terms(model, rows, some.depth, some.rule)
        return jnp.stack([jnp.asarray(term, float) for term in terms], axis=1)

    changed &= shape.is_used
    return summed(shape, rows, at_nodes(score, model, changed, (shape.nodes, rows), scores))


def summed(shape: Shape, rows: jax.Array, scores: jax.Array) -> State:
    """Join trees with the rows and scores of their nodes, and sum these up."""
    state = State(shape, rows, scores, shape.size, shape.size)
    return state._replace(
        log_prior=jnp.where(shape.is_used, state.log_weights, 0.0).sum(axis=1),
        log_likelihood=jnp.where(shape.is_leaf, state.terms.leaf_score, 0.0).sum(axis=1),
    )


def hand_down(model: Model, shape: Shape, rows: jax.Array, changed: jax.Array):
    """Hand rows down from parents to children, and mark what lies below changed nodes."""
    chain = jnp.arange(len(shape.size))

    def settle(slot, carry):
        rows, changed = carry
        parent = shape.parent[:, slot]
        side = model.left_words[jnp.maximum(shape.rule[chain, parent], 0)]
        own = rows[chain, parent] & jnp.where(slot % 2 == 1, side, ~side)
        below = changed[:, slot] | changed[chain, parent]
        return (
            lax.dynamic_update_index_in_dim(rows, own, slot, 1),
            lax.dynamic_update_index_in_dim(changed, below, slot, 1),
        )

    return lax.fori_loop(1, shape.size.max(), settle, (rows, changed))


def at_nodes(
    function: Callable[..., Any], model: Model, flags: jax.Array, inputs: tuple, outputs: Any
) -> Any:
    """Compute something at some nodes of all chains, side by side in pieces of one size.

    Parameters
    ----------
    function
        Of ``inputs`` at m nodes, arrays [m, ...]; returns values like ``outputs``, [m, ...].
    model
        The model, whose number of rules decides the size of the pieces.
    flags
        bool [b, k]; where to compute.
    inputs
        Pytrees of arrays [b, k, ...].
    outputs
        Pytree of arrays [b, k, ...], returned with the new values written into it.
    """
    num_nodes = flags.size
    piece = min(num_nodes, max(16, _PIECE_ENTRIES // model.left_rows.shape[1]))
    # Numbers of the flagged nodes, side by side.
    running = jnp.cumsum(flags.ravel(), dtype=jnp.int32)
    nowhere = jnp.full(num_nodes + piece, num_nodes, jnp.int32)
    target = jnp.where(flags.ravel(), running - 1, num_nodes + piece)
    node = nowhere.at[target].set(jnp.arange(num_nodes, dtype=jnp.int32), mode="drop")

    def flat(tree):
        return jax.tree.map(lambda a: a.reshape(num_nodes, *a.shape[2:]), tree)

    given = flat(inputs)

    def compute(carry):
        start, values = carry
        at = lax.dynamic_slice_in_dim(node, start, piece)
        found = function(*jax.tree.map(lambda a: a.at[at].get(mode="clip"), given))
        written = jax.tree.map(lambda a, new: a.at[at].set(new, mode="drop"), values, found)
        return start + piece, written

    start = jnp.int32(0), flat(outputs)
    _, values = lax.while_loop(lambda carry: carry[0] < running[-1], compute, start)
    return jax.tree.map(lambda a, like: a.reshape(like.shape), values, outputs)


def select(condition: jax.Array, one, other):
    """Choose between two pytrees chain by chain, by bool [b]."""

    def choose(a, b):
        return jnp.where(condition.reshape(-1, *[1] * (a.ndim - 1)), a, b)

    return jax.tree.map(choose, one, other)
