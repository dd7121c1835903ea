"""The log joint of hard trees: prior weight times the marginal likelihood of the leaves.

The trees may have any origin: their splits are looked up among the rules of the model, and their
nodes are scored by (`bdtppl.models.hard.node_scores`).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from bdtppl.models.arrays.precision import in_float64
from bdtppl.models.data.splits import Split
from bdtppl.models.hard.asked_trees import is_allowed
from bdtppl.models.hard.monotone import expected_target, is_monotone
from bdtppl.models.hard.node_scores import leaf_statistics, node_terms
from bdtppl.models.hard.packed_model import PackedModel, children, thresholds
from bdtppl.models.hard.tree import Tree
from bdtppl.models.hard.tree_model import TreeModel
from bdtppl.models.prior_kinds import TreeShape, log_tree


class LogJoint(NamedTuple):
    """Scores of a batch of trees.

    Attributes
    ----------
    log_joint
        float64 [...]; log prior weight (not normalised), as the prior counts trees, plus log
        likelihood; -inf for a tree that the model rules out.
    log_likelihood
        float64 [...]; sum of the leaves' log marginal likelihoods.
    """

    log_joint: np.ndarray
    log_likelihood: np.ndarray


class _Table(NamedTuple):
    """Rows and rules in which splits are looked up; n rows (whole words), d features, V codes."""

    matrix: Any  # float64 [n, d]
    code: Any  # int32 [n, d]; flat position of each value's code, -1 if missing
    feature: Any  # int32 [V]
    cut_above: Any  # float64 [V]; threshold of the cut above the code, inf above the last one
    rule: Any  # int32 [2 V]; see `PackedModel.rule_numbers`


@in_float64
def log_joint(trees: Tree, model: TreeModel) -> LogJoint:
    """Score trees.

    Parameters
    ----------
    trees
        Batch of trees [...].
    model
        The model. A tree that violates its constraints scores -inf, and so does a tree with an
        empty leaf or a split with an empty side.

    Examples
    --------
    >>> import numpy as np
    >>> from bdtppl.models.data.design import Design
    >>> from bdtppl.models.leaves import DirichletCategorical
    >>> from bdtppl.models.priors import LeafPenalty
    >>> design = Design.from_matrix(np.array([[0.0], [1.0], [2.0]]))
    >>> leaf = DirichletCategorical.symmetric(2)
    >>> model = TreeModel(design, np.array([0, 1, 1]), LeafPenalty(2.0), leaf)
    >>> stump = Tree.from_nested({"feature": 0, "threshold": 0.5, "left": {}, "right": {}})
    >>> scored = log_joint(stump, model)
    >>> round(float(scored.log_joint - scored.log_likelihood), 12)
    -2.0
    """
    flat = trees.reshape(-1)
    names = "splits", "left", "right", "node_depth", "is_leaf"
    arrays = jax.device_put(tuple(getattr(flat, name) for name in names))
    packed = PackedModel.of(model)
    scores = _score(arrays, _tabulate(model, packed), packed)
    return LogJoint(*(np.asarray(score).reshape(trees.batch_shape) for score in scores))


def _tabulate(model: TreeModel, packed: PackedModel) -> _Table:
    design = model.design
    rest = 64 * len(packed.left_rows) - design.num_rows
    row = np.pad(np.arange(design.num_rows), (0, rest))  # `every_row` excludes the last ones
    codes, feature = design.codes[row], design.feature_of_code
    position, last = np.arange(len(feature)), (design.offset[1:] - 1)[feature]
    cut_above = design.cut_threshold[np.minimum(position + 1, len(feature) - 1)]
    table = _Table(
        design.matrix[row],
        np.where(codes >= 0, codes + design.offset[:-1], -1),
        feature,
        np.where(position < last, cut_above, np.inf),
        packed.rule_numbers()[: 2 * len(feature)],
    )
    return jax.device_put(table)


@jax.jit
def _score(trees, table: _Table, model: PackedModel):
    return lax.map(lambda tree: _score_tree(tree, table, model), trees)


def _score_tree(tree, table: _Table, model: PackedModel):
    splits, left, right, depth, is_leaf = tree
    feature = splits.feature
    is_split, split_on = feature >= 0, jnp.maximum(feature, 0)
    values, codes = table.matrix[:, split_on].T, table.code[:, split_on].T  # [k, n]
    goes_left = Split(*(each[:, None] for each in splits)).goes_left(values, jnp)

    def hand_down(slot, inside):
        for child, side in ((left, goes_left[slot]), (right, ~goes_left[slot])):
            place = jnp.where(is_split[slot], child[slot], slot)
            own = jnp.where(is_split[slot], inside[slot] & side, inside[place])
            inside = inside.at[place].set(own)
        return inside

    num_words = len(model.left_rows)
    bit = jnp.arange(64, dtype=jnp.uint64)
    every_row = (model.every_row[:num_words, None] >> bit[None] & 1).astype(bool).ravel()
    inside = jnp.zeros(values.shape, bool).at[0].set(every_row)
    inside = lax.fori_loop(0, len(feature), hand_down, inside)
    on_left = goes_left & (inside | (model.prior.rules != "gaps"))
    rule = _rules(splits, on_left, codes, table, model)
    rows = _rows_below(rule, is_split, left, right, model)
    # Rows of one code stay together; a threshold between them is not a rule of the design.
    bits = inside.reshape(len(feature), num_words, 64).astype(jnp.uint64) << bit[None, None]
    is_known = (~is_split | (rule >= 0)).all() & (rows[:, :num_words] == bits.sum(axis=2)).all()

    terms = node_terms(model, rows, depth, rule, shares_partitions=False)
    log_prior = jnp.where(is_split, terms.log_rule, jnp.where(is_leaf, terms.log_stop, 0.0)).sum()
    shape = TreeShape(is_leaf, is_split, left, right, feature, depth)
    log_prior += log_tree(model.prior, shape)
    log_likelihood = jnp.where(is_leaf, terms.leaf_score, 0.0).sum()
    if model.binds_trees:
        is_known &= is_possible(model, shape, rows, rule)
    return jnp.where(is_known, log_prior + log_likelihood, -jnp.inf), log_likelihood


def is_possible(model: PackedModel, tree: TreeShape, rows: jax.Array, rule: jax.Array) -> jax.Array:
    """Return whether one tree satisfies monotonicity and the user's functions.

    The tree has no thresholds, but the rows [k, W] and the rule [k] of each slot.
    """
    tree = tree._replace(threshold=thresholds(model, rows, jnp.maximum(rule, 0)))
    allowed = is_allowed(model.allows_path, model.allows_tree, tree)
    if model.directions is not None:
        mean = expected_target(model.leaf, leaf_statistics(model, rows))
        allowed &= is_monotone(model.directions, tree, mean)
    return allowed


def _rules(splits: Split, on_left, codes, table: _Table, model: PackedModel):
    """Look up the rule of each split, int32 [k]; -1 if the design has none.

    A gap starts at the greatest code of the node's rows on the left; a cut, at that of all rows.
    """
    low = jnp.max(jnp.where(on_left, codes, -1), axis=1)
    if model.prior.rules != "gaps":
        # The greatest code below the threshold; if no row has it, determined by the cut above the
        # code. Rows come first, because a threshold from another design may be just below the cut
        # that separates them.
        is_below = table.feature[None] == splits.feature[:, None]
        is_below &= table.cut_above[None] <= splits.threshold[:, None]
        below = jnp.max(jnp.where(is_below, jnp.arange(is_below.shape[1])[None], -1), axis=1)
        low = jnp.maximum(low, below)
    split = splits.above(jnp.maximum(low, 0))
    return jnp.where(low >= 0, table.rule[split], -1)


def _rows_below(rule, is_split, left, right, model: PackedModel) -> jax.Array:
    """Return rows of each slot and its memory of the path, uint64 [k, W] or [k, W + 1]."""

    def hand_down(slot, rows):
        own = children(model, rows[slot][None], jnp.maximum(rule[slot], 0)[None])
        for child, side in zip((left, right), own, strict=True):
            place = jnp.where(is_split[slot], child[slot], len(rows))
            rows = rows.at[place].set(side[0], mode="drop")
        return rows

    rows = jnp.zeros((len(rule), len(model.every_row)), model.every_row.dtype)
    return lax.fori_loop(0, len(rule), hand_down, rows.at[0].set(model.every_row))
