"""The state of a batch of chains: trees, the rows of their nodes, and the scores of nodes.

A step changes a subtree, so only its nodes are rescored. They are few, differ from chain to chain,
and are scored together: nodes of all chains in pieces of one size.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from bdtppl.inference.compiling import COMPILED_QUICKLY, compiled_plainly
from bdtppl.inference.hard.shapes import Shape, grown, roots, running_count, with_capacity
from bdtppl.inference.hard.written_trees import hand_down, root_rows
from bdtppl.models.hard.log_joint import is_possible
from bdtppl.models.hard.node_scores import NodeTerms, node_terms
from bdtppl.models.hard.packed_model import PackedModel, children
from bdtppl.models.prior_kinds import TreeShape, log_tree, weighs

_ENTRIES_SCORED = 1 << 15  # most nodes times rules that are scored at once
_FEWEST_NODES = 4  # fewest nodes; more would cost a few chains most of their time


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
        float64 [b]; sum of log weights of stops and rules (and of numbers of leaves, if the prior
        has them), and of log marginals of the leaves.
    """

    shape: Shape
    rows: jax.Array
    scores: jax.Array
    log_prior: jax.Array
    log_likelihood: jax.Array

    def with_capacity(self, capacity: int) -> "State":
        """Give trees more slots."""
        room = (0, 0), (0, capacity - self.shape.capacity), (0, 0)
        return self._replace(
            shape=with_capacity(self.shape, capacity),
            rows=jnp.pad(self.rows, room),
            scores=jnp.pad(self.scores, room),
        )

    @property
    def terms(self) -> NodeTerms:
        """Return scores of each node, [b, k]."""
        log_stop, log_rule, leaf_score, has_rule = (self.scores[..., i] for i in range(4))
        return NodeTerms(log_stop, log_rule, leaf_score, has_rule > 0)

    @property
    def log_weights(self) -> jax.Array:
        """Log prior weight of each node's choice, float64 [b, k]."""
        terms = self.terms
        return jnp.where(self.shape.is_split, terms.log_rule, terms.log_stop)

    @property
    def is_growable(self) -> jax.Array:
        """Leaves with an available rule, bool [b, k]."""
        return self.shape.is_leaf & self.terms.has_rule


def initial(model: PackedModel, num_chains: int, capacity: int) -> State:
    """Start chains at the tree of one leaf."""
    return state_of(model, roots(num_chains, capacity))


@partial(compiled_plainly, options=COMPILED_QUICKLY)
def state_of(model: PackedModel, shape: Shape) -> State:
    """Score trees, starting from the rows."""
    scores = jnp.zeros((*shape.rule.shape, 4))
    return scored(model, shape, root_rows(model, shape), scores, shape.is_used)


def scored(model: PackedModel, shape: Shape, rows: jax.Array, scores: jax.Array, changed) -> State:
    """Recompute rows and scores after a change.

    Parameters
    ----------
    model
        The model.
    shape
        Trees.
    rows, scores
        Rows and scores of unchanged nodes; the root's rows.
    changed
        bool [b, k]; nodes whose rows or rule are new. Nodes below them count as changed, too.
    """
    rows, changed = hand_down(model, shape, rows, changed)

    def score(nodes, rows):
        some = Shape(nodes, None)
        return _stacked(node_terms(model, rows, some.depth, some.rule))

    changed &= shape.is_used
    return summed(model, shape, rows, at_nodes(score, model, changed, (shape.nodes, rows), scores))


def rescored(model: PackedModel, state: State, shape: Shape, source: jax.Array, changed) -> State:
    """Recompute rows and scores after nodes moved from their previous slots, int32 [b, k]."""
    old = state.rows, state.scores
    rows, scores = (jnp.take_along_axis(values, source[..., None], axis=1) for values in old)
    return scored(model, shape, rows, scores, changed)


def summed(model: PackedModel, shape: Shape, rows: jax.Array, scores: jax.Array) -> State:
    """Join trees with the rows and scores of their nodes, and sum the scores."""
    state = State(shape, rows, scores, shape.size, shape.size)
    log_prior = jnp.where(shape.is_used, state.log_weights, 0.0).sum(axis=1)
    if weighs(model.prior) != "nodes" or model.binds_trees:
        feature = jnp.where(shape.is_split, model.feature[jnp.maximum(shape.rule, 0)], -1)
        sides = shape.left, shape.left + 1
        trees = TreeShape(shape.is_leaf, shape.is_split, *sides, feature, shape.depth)
        log_prior += jax.vmap(lambda tree: jnp.asarray(log_tree(model.prior, tree), float))(trees)
        if model.binds_trees:
            allowed = jax.vmap(partial(is_possible, model))(trees, rows, shape.rule)
            log_prior = jnp.where(allowed, log_prior, -jnp.inf)
    return state._replace(
        log_prior=log_prior,
        log_likelihood=jnp.where(shape.is_leaf, state.terms.leaf_score, 0.0).sum(axis=1),
    )


def split_leaves(
    model: PackedModel,
    shape: Shape,
    rows: jax.Array,
    scores: jax.Array,
    slot: jax.Array,
    rule: jax.Array,
    log_rule: jax.Array,
) -> tuple[Shape, jax.Array, jax.Array]:
    """Split a leaf of each tree; return trees, and rows and scores of their nodes, as in `State`.

    The rules [b] come with their weights [b]; only the new leaves are scored.
    """
    chain = jnp.arange(len(slot))
    own, depth = rows[chain, slot], shape.depth[chain, slot]
    left, right = children(model, own, rule)
    leaves = node_terms(model, jnp.concatenate([left, right]), jnp.tile(depth + 1, 2))
    new_scores = jnp.split(_stacked(leaves), 2)
    scores = scores.at[chain, slot, NodeTerms._fields.index("log_rule")].set(log_rule)
    for place, rows_there, scores_there in zip(
        (shape.size, shape.size + 1), (left, right), new_scores, strict=True
    ):
        rows = rows.at[chain, place].set(rows_there, mode="drop")
        scores = scores.at[chain, place].set(scores_there, mode="drop")
    return grown(shape, slot, rule), rows, scores


def _stacked(terms: NodeTerms) -> jax.Array:
    """Lay out terms as `State.scores`, float64 [m, 4]."""
    return jnp.stack([jnp.asarray(term, float) for term in terms], axis=1)


def at_nodes(
    function: Callable[..., Any], model: PackedModel, flags: jax.Array, inputs: tuple, outputs: Any
) -> Any:
    """Compute values at some nodes of all chains, side by side in pieces of one size.

    Parameters
    ----------
    function
        The function takes ``inputs`` at m nodes, arrays [m, ...], and returns values like
        ``outputs``, [m, ...].
    model
        The model, whose number of rules determines the size of the pieces.
    flags
        bool [b, k]; nodes to compute.
    inputs
        Pytrees of arrays [b, k, ...].
    outputs
        Pytree of arrays [b, k, ...], returned with the new values written into it.
    """
    # A step changes about two nodes a chain.
    most = max(_FEWEST_NODES, _ENTRIES_SCORED // model.left_rows.shape[1])
    piece = min(flags.size, max(_FEWEST_NODES, 2 * len(flags)), most)
    # Flagged nodes are numbered chain after chain, and looked up by their number.
    running = running_count(flags)
    ends = jnp.cumsum(running[:, -1])

    def compute(carry):
        start, values = carry
        number = start + jnp.arange(piece, dtype=jnp.int32)
        chain = (number[:, None] >= ends[None]).sum(axis=1)  # b beyond the last one
        own = running.at[chain].get(mode="clip")
        rank = number - (ends.at[chain].get(mode="clip") - own[:, -1])
        slot = (own <= rank[:, None]).sum(axis=1)
        computed = function(*jax.tree.map(lambda a: a.at[chain, slot].get(mode="clip"), inputs))
        written = jax.tree.map(
            lambda a, new: a.at[chain, slot].set(new, mode="drop"), values, computed
        )
        return start + piece, written

    start = jnp.int32(0), outputs
    return lax.while_loop(lambda carry: carry[0] < ends[-1], compute, start)[1]
