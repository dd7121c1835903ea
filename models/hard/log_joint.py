"""The log joint of hard trees: prior weight times the marginal likelihood of the leaves.

This scores any tree on a design, whether or not an inference has met it, straight from the rows in
its nodes. It is what Monte Carlo inferences climb and what their output is compared by.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from bdtppl.models.constraints import Constraints
from bdtppl.models.data.design import Design, midpoint
from bdtppl.models.hard.monotone import expected_target, is_monotone
from bdtppl.models.hard.path_memory import PathMemory
from bdtppl.models.hard.rule_laws import DenseRules, RuleLaw
from bdtppl.models.hard.tree import Tree
from bdtppl.models.leaf_count_priors import LeafCountPrior, log_leaf_counts
from bdtppl.models.leaves import Leaf
from bdtppl.models.priors import (
    Node,
    Rule,
    Rules,
    TreePrior,
    require_rules_apart,
    rule_law,
)

__all__ = ["LogJoint", "log_joint"]


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


class _Columns(NamedTuple):
    """A design as the scorer reads it; n rows, d features, V codes of all features."""

    matrix: Any  # float64 [n, d]
    code: Any  # int32 [n, d]; flat position of each value's code, -1 where missing
    holds: Any  # float64 [n, V]; weight of the row where it has the code
    weights: Any  # float64 [n]
    feature: Any  # int32 [V]
    first: Any  # int32 [V]; first and last flat position of the code's feature
    last: Any
    low_edge: Any
    high_edge: Any
    cut_above: Any  # float64 [V]; threshold of the cut above the code, inf above the last one
    missing_sides: Any  # bool [2, V]; rules with missing rows right, left
    missing: Any  # float64 [n, d]; weight of the row where the feature is missing
    allowed: Any  # bool [d]
    num_items: Any  # int [d]; rules of each feature, whether or not a node has them
    path: PathMemory | None
    directions: Any  # int [d] of monotone features, or None


def log_joint(
    trees: Tree,
    design: Design,
    y: np.ndarray,
    prior: TreePrior,
    leaf: Leaf,
    constraints: Constraints | None = None,
) -> LogJoint:
    """Score trees on a design.

    Parameters
    ----------
    trees
        Batch of trees [...].
    design
        Training rows [n].
    y
        Targets [n].
    prior
        Tree prior.
    leaf
        Leaf family.
    constraints
        Limits of the model; trees beyond them score -inf, and so does a tree with an empty leaf or
        a split that parts nothing.

    Raises
    ------
    ValueError
        If the prior and the constraints do not go together.

    Examples
    --------
    >>> import numpy as np
    >>> from bdtppl.models.leaves import DirichletCategorical
    >>> from bdtppl.models.priors import LeafPenalty
    >>> design = Design.from_matrix(np.array([[0.0], [1.0], [2.0]]))
    >>> stump = Tree.from_nested({"feature": 0, "threshold": 0.5, "left": {}, "right": {}})
    >>> leaf = DirichletCategorical.symmetric(2)
    >>> scored = log_joint(stump, design, np.array([0, 1, 1]), LeafPenalty(2.0), leaf)
    >>> round(float(scored.log_joint - scored.log_likelihood), 12)
    -2.0
    """
    constraints = Constraints() if constraints is None else constraints
    flat = trees.reshape(-1)
    with jax.enable_x64(True):
        require_rules_apart(prior, constraints)
        model = jax.tree.map(jnp.float64, (prior.resolve(design), leaf))
        scores = _score(
            *(
                jnp.asarray(a)
                for a in (flat.feature, flat.threshold, flat.missing_left, flat.left, flat.right)
            ),
            flat.is_leaf,
            flat.node_depth,
            _columns(design, constraints),
            leaf.statistics(y, design.weights),
            *model,
            float(constraints.min_leaf),
            float("inf") if constraints.max_depth is None else float(constraints.max_depth),
        )
        return LogJoint(*(np.asarray(score).reshape(trees.batch_shape) for score in scores))


def _columns(design: Design, constraints: Constraints) -> _Columns:
    code = np.where(design.codes >= 0, design.codes + design.offset[:-1], -1)
    feature = design.feature_of_code
    last = (design.offset[1:] - 1)[feature]
    position = np.arange(len(feature))
    cut_above = design.cut_threshold[np.minimum(position + 1, len(feature) - 1)]
    holds = (code[:, feature] == np.arange(len(feature))) * design.weights[:, None]
    columns = _Columns(
        matrix=design.matrix,
        code=code,
        holds=holds.astype(float),
        weights=design.weights.astype(float),
        feature=feature,
        first=design.offset[feature],
        last=last,
        low_edge=np.nan_to_num(design.low_edge),
        high_edge=np.nan_to_num(design.high_edge),
        cut_above=np.where(position < last, cut_above, np.inf),
        missing_sides=np.stack([np.ones(len(feature), bool), design.has_missing[feature]]),
        missing=(design.codes < 0) * design.weights[:, None].astype(float),
        allowed=constraints.allows(design.names),
        num_items=(design.num_codes - 1) * (1 + design.has_missing),
        path=constraints.path_memory(design.names),
        directions=constraints.directions(design.names),
    )
    return jax.tree.map(jnp.asarray, columns)


@jax.jit
def _score(
    feature,
    threshold,
    missing_left,
    left,
    right,
    is_leaf,
    depth,
    columns,
    rows,
    prior,
    leaf,
    min_leaf,
    max_depth,
):
    def one_tree(tree):
        return _score_tree(tree, columns, rows, prior, leaf, min_leaf, max_depth)

    return lax.map(one_tree, (feature, threshold, missing_left, left, right, is_leaf, depth))


def _score_tree(tree, columns: _Columns, rows, prior, leaf, min_leaf, max_depth):
    feature, threshold, missing_left, left, right, is_leaf, depth = tree
    split_on = jnp.maximum(feature, 0)
    values = columns.matrix[:, split_on].T  # [k, n]
    goes_left = jnp.where(jnp.isnan(values), missing_left[:, None], values < threshold[:, None])

    def hand_down(slot, inside):
        splits = feature[slot] >= 0
        for child, side in ((left, goes_left[slot]), (right, ~goes_left[slot])):
            place = jnp.where(splits, child[slot], slot)
            inside = inside.at[place].set(jnp.where(splits, inside[slot] & side, inside[place]))
        return inside

    inside = jnp.zeros(values.shape, bool).at[0].set(True)
    inside = lax.fori_loop(0, len(feature), hand_down, inside)

    found = _places(inside.astype(float), columns, prior.rules)
    is_split, slot = feature >= 0, jnp.arange(len(feature))
    side, codes = missing_left.astype(int), columns.code[:, split_on].T
    if prior.rules == "gaps":  # the gap that a split cuts begins at the greatest code on its left
        low = jnp.max(jnp.where(inside & goes_left & (codes >= 0), codes, -1), axis=1)
    else:
        is_own = columns.feature[None] == split_on[:, None]
        is_below = is_own & (columns.cut_above[None] <= threshold[:, None])
        low = jnp.max(jnp.where(is_below, jnp.arange(is_below.shape[1])[None], -1), axis=1)
    at = jnp.maximum(low, 0)

    leaves_rows = (found.left_weight >= min_leaf) & (found.right_weight >= min_leaf)
    available = found.is_place[None] & columns.missing_sides[:, None, :] & leaves_rows
    if columns.path is not None:
        memory = _memories(columns.path, tree, split_on, found.threshold[slot, at])
        allowed = columns.path.allows(memory[:, None], columns.feature[None], found.threshold)
        available &= allowed[None]
    # Rows of one code stay together; a threshold that parts them is no rule of the design.
    parts_code = (inside & (codes >= 0) & (goes_left != (codes <= low[:, None]))).any(axis=1)
    allowed = available[side, slot, at] & (low >= 0) & ~parts_code & (depth < max_depth)

    to_feature = jax.nn.one_hot(columns.feature, columns.missing.shape[1], dtype=float)
    sides = available.sum(0)
    num_feature_cuts = sides.astype(float) @ to_feature
    num_features = (num_feature_cuts > 0).sum(1).astype(float)
    node = Node(
        depth.astype(float),
        (num_features > 0) & (depth < max_depth),
        found.num_rows,
        jnp.log(jnp.maximum(num_features, 1)),
        found.least,
        found.greatest,
    )
    feature_width = jnp.maximum((sides * found.width) @ to_feature, 1e-300)[slot, split_on]
    rule = Rule(
        split_on,
        jnp.zeros(len(slot)),
        jnp.log(jnp.maximum(num_feature_cuts[slot, split_on], 1)),
        jnp.log(found.width[slot, at] / feature_width),
    )
    law = rule_law(prior)
    if law is not None:
        shares = _log_shares(law, columns, found, available, node)
        rule = rule._replace(log_share=shares[slot, at, side])
    log_rule = jnp.where(allowed, prior.log_rule(node, rule), -jnp.inf)
    log_prior = jnp.where(is_split, log_rule, 0.0) + jnp.where(is_leaf, prior.log_stop(node), 0.0)
    statistics = inside.astype(float) @ rows
    log_likelihood = jnp.where(is_leaf, leaf.log_marginal(statistics), 0.0).sum()
    log_joint = log_prior.sum() + log_likelihood
    if isinstance(prior, LeafCountPrior):
        log_joint += log_leaf_counts(prior, is_leaf, is_split, left, right)
    if columns.directions is not None:
        mean, cut = expected_target(leaf, statistics), found.threshold[slot, at]
        shape = feature, cut, left, right, is_leaf
        log_joint = jnp.where(is_monotone(columns.directions, *shape, mean), log_joint, -jnp.inf)
    return log_joint, log_likelihood


def _memories(path: PathMemory, tree, split_on, threshold) -> jax.Array:
    """Work out what each node remembers of its path, uint64 [k]."""
    feature, _, _, left, right, _, _ = tree

    def hand_down(slot, memory):
        below = path.children(memory[slot], split_on[slot], threshold[slot])
        for child, own in zip((left, right), below, strict=True):
            place = jnp.where(feature[slot] >= 0, child[slot], len(memory))
            memory = memory.at[place].set(own, mode="drop")
        return memory

    start = jnp.full(len(feature), path.start)
    return lax.fori_loop(0, len(feature), hand_down, start)


class _Places(NamedTuple):
    """Where the values of nodes can be parted, above each of V codes; k nodes."""

    is_place: Any  # bool [k, V]
    left_weight: Any  # float64 [2, k, V]; rows on both sides, missing ones right and left
    right_weight: Any
    threshold: Any  # float64 [k, V]
    width: Any  # float64 [k, V]; of the gap, shared by its cuts
    num_rows: Any  # float64 [k]
    least: Any  # float64 [k, d]; NaN where all are missing
    greatest: Any


def _places(inside, columns: _Columns, rules: Rules) -> _Places:
    """Find them for nodes with rows ``inside`` [k, n]."""
    weight = inside @ columns.holds  # [k, V]
    total = inside @ columns.weights
    present = weight > 0
    num_codes = weight.shape[1]
    position = jnp.arange(num_codes)[None, :]
    # The present codes of the same feature at or below and above each place.
    before = lax.cummax(jnp.where(present, position, -1), 1)
    upcoming = jnp.where(present, position, num_codes)
    upcoming = jnp.roll(upcoming, -1, axis=1).at[:, -1].set(num_codes)
    after = lax.cummin(upcoming, 1, reverse=True)
    is_place = (before >= columns.first[None]) & (after <= columns.last[None])
    is_place &= columns.allowed[columns.feature][None]
    before, after = jnp.maximum(before, 0), jnp.minimum(after, num_codes - 1)
    low, high = columns.high_edge[before], columns.low_edge[after]
    if rules == "gaps":  # the place of a gap is the one above its lower code
        is_place &= present
        threshold, width = midpoint(low, high, jnp), high - low
    else:
        threshold = jnp.broadcast_to(columns.cut_above[None], present.shape)
        width = (high - low) / jnp.maximum(after - before, 1)

    same_feature = (columns.feature[:, None] == columns.feature[None, :]).astype(float)
    below = weight @ jnp.triu(same_feature)  # rows at this code of the feature or a lesser one
    missing = (inside @ columns.missing)[:, columns.feature]
    left_weight = jnp.stack([below, below + missing])

    def extreme(reduce, edge, none):
        values = jnp.where(present, edge[None], none).T
        found = reduce(values, columns.feature, columns.missing.shape[1]).T
        return jnp.where(jnp.isinf(found), jnp.nan, found)

    return _Places(
        is_place,
        left_weight,
        total[None, :, None] - left_weight,
        threshold,
        jnp.where(is_place, width, 0.0),
        total,
        extreme(jax.ops.segment_min, columns.low_edge, jnp.inf),
        extreme(jax.ops.segment_max, columns.high_edge, -jnp.inf),
    )


def _log_shares(law: RuleLaw, columns: _Columns, found: _Places, available, node: Node):
    """Log probability of every rule given that its node splits, [k, V, 2]."""
    num_nodes, num_codes = found.threshold.shape
    num_sides = columns.missing_sides.astype(int).sum(axis=0)
    code = jnp.arange(num_codes) - columns.first
    place = (code * num_sides)[:, None] + jnp.arange(2)[None]
    feature = jnp.repeat(columns.feature, 2)
    num_features = columns.missing.shape[1]

    def flat(values):  # [2, k, V] to [k, 2V], the sides of each cut next to each other
        return jnp.moveaxis(values, 0, 2).reshape(num_nodes, -1)

    by_feature = jax.nn.one_hot(feature, num_features, dtype=float)
    table = DenseRules(feature, place.ravel(), columns.num_items, by_feature)
    rule = Rule(
        feature[None],
        threshold=jnp.repeat(found.threshold, 2, axis=1),
        width=jnp.repeat(found.width, 2, axis=1),
        num_left=flat(found.left_weight),
        num_right=flat(found.right_weight),
    )
    each = jax.tree.map(lambda fact: fact[:, None], node)
    feature_weight = law.weigh_features(each, jnp.arange(num_features)[None])
    shares = law.log_shares(table, flat(available), feature_weight, law.weigh_cuts(each, rule))
    return shares.reshape(num_nodes, num_codes, 2)
