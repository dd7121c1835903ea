"""The state of a batch of chains: trees, the rows of their nodes, and what every node scores.

A step changes a subtree, so only the nodes of it are scored anew. These are few, differ from chain
to chain, and are scored together: nodes of all chains in pieces of one size.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from bdtppl.inference.hard_model import Model, NodeTerms, node_terms
from bdtppl.inference.metropolis.trees import Shape, roots

__all__ = ["State", "hand_down", "initial", "root_rows", "scored", "select", "state_of"]

_PIECE_ENTRIES = 1 << 15  # nodes times rules that are scored at once, at most
_FEWEST_NODES = 16  # that are


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
    scores = _score(model, shape, rows, scores, changed & shape.is_used)
    state = State(shape, rows, scores, shape.size, shape.size)
    terms = state.terms
    log_prior = jnp.where(shape.is_split, terms.log_rule, terms.log_stop)
    return state._replace(
        log_prior=jnp.where(shape.is_used, log_prior, 0.0).sum(axis=1),
        log_likelihood=jnp.where(shape.is_leaf, terms.leaf_score, 0.0).sum(axis=1),
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


def _score(model: Model, shape: Shape, rows, scores, changed) -> jax.Array:
    num_entries = changed.size
    # A step changes about two nodes a chain.
    most = max(_FEWEST_NODES, _PIECE_ENTRIES // model.left_rows.shape[1])
    piece = min(num_entries, max(_FEWEST_NODES, 2 * len(changed)), most)
    # Numbers of the changed entries, side by side.
    running = jnp.cumsum(changed.ravel(), dtype=jnp.int32)
    nowhere = jnp.full(num_entries + piece, num_entries, jnp.int32)
    target = jnp.where(changed.ravel(), running - 1, num_entries + piece)
    entry = nowhere.at[target].set(jnp.arange(num_entries, dtype=jnp.int32), mode="drop")
    nodes, words = shape.nodes.reshape(num_entries, 4), rows.reshape(num_entries, -1)

    def score(carry):
        start, scores = carry
        at = lax.dynamic_slice_in_dim(entry, start, piece)
        some = Shape(nodes.at[at].get(mode="clip"), at)
        terms = node_terms(model, words.at[at].get(mode="clip"), some.depth, some.rule)
        found = jnp.stack([jnp.asarray(term, float) for term in terms], axis=1)
        return start + piece, scores.at[at].set(found, mode="drop")

    start = jnp.int32(0), scores.reshape(num_entries, 4)
    _, scores = lax.while_loop(lambda carry: carry[0] < running[-1], score, start)
    return scores.reshape(*changed.shape, 4)


def select(condition: jax.Array, one, other):
    """Choose between two pytrees chain by chain, by bool [b]."""

    def choose(a, b):
        return jnp.where(condition.reshape(-1, *[1] * (a.ndim - 1)), a, b)

    return jax.tree.map(choose, one, other)
