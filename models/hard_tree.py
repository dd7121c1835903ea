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
from bdtppl.models.data import Design
from bdtppl.models.leaf_count_priors import LeafCountPrior, log_leaf_counts
from bdtppl.models.leaves import Leaf
from bdtppl.models.priors import Node, Rule, Rules, TreePrior
from bdtppl.models.tree import Tree

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
    last: Any  # int32 [V]; last flat position of the code's feature
    low_edge: Any
    high_edge: Any
    missing_sides: Any  # bool [2, V]; rules with missing rows right, left
    missing: Any  # float64 [n, d]; weight of the row where the feature is missing
    allowed: Any  # bool [d]


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
    holds = (code[:, feature] == np.arange(len(feature))) * design.weights[:, None]
    columns = _Columns(
        matrix=design.matrix,
        code=code,
        holds=holds.astype(float),
        weights=design.weights.astype(float),
        feature=feature,
        last=(design.offset[1:] - 1)[feature],
        low_edge=np.nan_to_num(design.low_edge),
        high_edge=np.nan_to_num(design.high_edge),
        missing_sides=np.stack([np.ones(len(feature), bool), design.has_missing[feature]]),
        missing=(design.codes < 0) * design.weights[:, None].astype(float),
        allowed=constraints.allows(design.names),
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

    facts, available = _available_rules(inside.astype(float), columns, min_leaf, prior.rules)
    has_rule = (facts["num_features"] > 0) & (depth < max_depth)
    log_num_features = jnp.log(jnp.maximum(facts["num_features"], 1))
    node = Node(depth.astype(float), has_rule, facts["num_rows"], log_num_features)
    # The gap that a split cuts begins at the greatest code on its left.
    codes = columns.code[:, split_on].T
    on_left = inside & goes_left & (codes >= 0)
    low = jnp.max(jnp.where(on_left, codes, -1), axis=1)
    side, at = missing_left.astype(int), jnp.maximum(low, 0)
    slot = jnp.arange(len(feature))
    rule = Rule(
        feature=split_on,
        log_num_cuts=jnp.log(jnp.maximum(facts["num_cuts"][slot, at], 1)),
        log_num_feature_cuts=jnp.log(jnp.maximum(facts["num_feature_cuts"][slot, split_on], 1)),
        log_width_share=jnp.log(facts["width"][slot, at] / facts["feature_width"][slot, split_on]),
    )
    is_split = feature >= 0
    # Rows of one code stay together; a threshold that parts them is no rule of the design.
    parts_code = (inside & ~goes_left & (codes >= 0) & (codes <= low[:, None])).any(axis=1)
    allowed = available[side, slot, at] & (low >= 0) & ~parts_code & (depth < max_depth)
    log_rule = jnp.where(allowed, prior.log_rule(node, rule), -jnp.inf)
    log_prior = jnp.where(is_split, log_rule, 0.0) + jnp.where(is_leaf, prior.log_stop(node), 0.0)
    scores = leaf.log_marginal(inside.astype(float) @ rows)
    log_likelihood = jnp.where(is_leaf, scores, 0.0).sum()
    log_joint = log_prior.sum() + log_likelihood
    if isinstance(prior, LeafCountPrior):
        log_joint += log_leaf_counts(prior, is_leaf, is_split, left, right)
    return log_joint, log_likelihood


def _available_rules(inside, columns: _Columns, min_leaf, rules: Rules):
    """Facts of nodes with rows ``inside`` [k, n], and which gaps can be cut, bool [2, k, V]."""
    weight = inside @ columns.holds  # [k, V]
    total = inside @ columns.weights
    present = weight > 0
    position = jnp.arange(weight.shape[1])[None, :]
    # The next present code of the same feature, or beyond its last one.
    upcoming = jnp.where(present, position, weight.shape[1])
    after = lax.cummin(
        jnp.roll(upcoming, -1, axis=1).at[:, -1].set(weight.shape[1]), 1, reverse=True
    )
    is_gap = present & (after <= columns.last[None, :]) & columns.allowed[columns.feature][None, :]
    after = jnp.minimum(after, weight.shape[1] - 1)

    same_feature = (columns.feature[:, None] == columns.feature[None, :]).astype(float)
    below = weight @ jnp.triu(same_feature)  # rows at this code of the feature or a lesser one
    missing = (inside @ columns.missing)[:, columns.feature]
    left_weight = jnp.stack([below, below + missing])
    right_weight = total[None, :, None] - left_weight
    available = (
        is_gap[None]
        & columns.missing_sides[:, None, :]
        & (left_weight >= min_leaf)
        & (right_weight >= min_leaf)
    )
    cuts_of_gap = after - position if rules == "cuts" else jnp.ones_like(after)
    num_cuts = jnp.where(is_gap, cuts_of_gap, 0).astype(float)
    width = jnp.where(is_gap, columns.low_edge[after] - columns.high_edge[None, :], 0.0)
    to_feature = jax.nn.one_hot(columns.feature, columns.missing.shape[1], dtype=float)
    sides = available.sum(0)
    num_feature_cuts = (sides * num_cuts) @ to_feature
    facts = {
        "num_rows": total,
        "num_cuts": num_cuts,
        "num_feature_cuts": num_feature_cuts,
        "num_features": (num_feature_cuts > 0).sum(1).astype(float),
        "width": width,
        "feature_width": jnp.maximum((sides * width) @ to_feature, 1e-300),
    }
    return facts, available
