"""The state of a batch of chains: trees, the rows of their nodes, and what every node scores.

A step changes a subtree, so only the nodes of it are scored anew. These are few, differ from chain
to chain, and are scored together: nodes of all chains in pieces of one size.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from bdtppl.inference.metropolis.model import Model, NodeTerms, node_terms
from bdtppl.inference.metropolis.trees import Shape, roots

__all__ = ["State", "hand_down", "initial", "scored", "select", "state_of"]

_PIECE_ENTRIES = 1 << 15  # nodes times rules that are scored at once


class State(NamedTuple):
    """Trees of b chains, k slots, W words.

    Attributes
    ----------
    shape
        The trees.
    rows
        uint64 [b, k, W]; rows of each node.
    terms
        Scores of each node, [b, k].
    log_prior, log_likelihood
        float64 [b]; log weights of stops and rules, and log marginals of the leaves, summed.
    """

    shape: Shape
    rows: jax.Array
    terms: NodeTerms
    log_prior: jax.Array
    log_likelihood: jax.Array

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
    rows = jnp.zeros((*shape.rule.shape, len(model.every_row)), model.every_row.dtype)
    rows = rows.at[:, 0].set(model.every_row)
    nothing = jnp.zeros(shape.rule.shape)
    terms = NodeTerms(nothing, nothing, nothing, nothing > 0)
    return scored(model, shape, rows, terms, shape.is_used)


def scored(model: Model, shape: Shape, rows: jax.Array, terms: NodeTerms, changed) -> State:
    """Settle rows and scores after a change.

    Parameters
    ----------
    model
        The model.
    shape
        Trees.
    rows, terms
        Those of nodes that have not changed; the root's rows.
    changed
        bool [b, k]; nodes whose rows or rule are new. Those below them count as changed too.
    """
    rows, changed = hand_down(model, shape, rows, changed)
    terms = _score(model, shape, rows, terms, changed & shape.is_used)
    log_prior = jnp.where(shape.is_split, terms.log_rule, terms.log_stop)
    return State(
        shape,
        rows,
        terms,
        jnp.where(shape.is_used, log_prior, 0.0).sum(axis=1),
        jnp.where(shape.is_leaf, terms.leaf_score, 0.0).sum(axis=1),
    )


def hand_down(model: Model, shape: Shape, rows, changed):
    """Hand rows down from parents to children, and mark what lies below changed nodes."""
    chain = jnp.arange(len(shape.size))

    def settle(slot, carry):
        rows, changed = carry
        parent = shape.parent[:, slot]
        side = model.left_words[jnp.maximum(shape.rule[chain, parent], 0)]
        own = rows[chain, parent] & jnp.where(slot % 2 == 1, side, ~side)
        below = changed[:, slot] | changed[chain, parent]
        return rows.at[:, slot].set(own), changed.at[:, slot].set(below)

    return lax.fori_loop(1, shape.size.max(), settle, (rows, changed))


def _score(model: Model, shape: Shape, rows, terms: NodeTerms, changed) -> NodeTerms:
    num_entries = changed.size
    num_rules = model.left_rows.shape[1]
    piece = min(num_entries, max(16, _PIECE_ENTRIES // num_rules))
    (entry,) = jnp.nonzero(changed.ravel(), size=num_entries + piece, fill_value=num_entries)
    flat = (rows.reshape(num_entries, -1), shape.depth.ravel(), shape.rule.ravel())

    def score(carry):
        start, terms = carry
        at = lax.dynamic_slice_in_dim(entry, start, piece)
        found = node_terms(model, *(each.at[at].get(mode="clip") for each in flat))
        put = [old.at[at].set(new, mode="drop") for old, new in zip(terms, found, strict=True)]
        return start + piece, NodeTerms(*put)

    num_changed = changed.sum()
    start = jnp.int32(0), NodeTerms(*(each.ravel() for each in terms))
    _, terms = lax.while_loop(lambda carry: carry[0] < num_changed, score, start)
    return NodeTerms(*(each.reshape(changed.shape) for each in terms))


def select(condition: jax.Array, one, other):
    """Choose between two pytrees chain by chain, by bool [b]."""

    def choose(a, b):
        return jnp.where(condition.reshape(-1, *[1] * (a.ndim - 1)), a, b)

    return jax.tree.map(choose, one, other)
