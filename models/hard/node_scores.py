"""Scores of the nodes of hard trees: prior weights of stopping and of rules, and log marginals.

The facts of a node that a prior uses follow from the number of its rows on the left of every rule
(`bdtppl.models.hard.packed_model.Available`). Facts that a prior does not use are not computed.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from bdtppl.models.data.splits import position_below
from bdtppl.models.hard.packed_model import (
    Available,
    PackedModel,
    available_rules,
    count_rows,
    every_threshold,
    next_present,
)
from bdtppl.models.hard.rule_laws import DenseRules, RuleLaw
from bdtppl.models.prior_kinds import Node, Rule, rule_law


class NodeTerms(NamedTuple):
    """Terms that m nodes add to a tree's score.

    Attributes
    ----------
    log_stop, log_rule, leaf_score
        float64 [m]; log weights of stopping and of the node's rule, and log marginal of its rows.
        The rule's weight is -inf if it is not available. Rules that make the same partition, where
        the prior counts partitions, share its weight equally.
    has_rule
        bool [m]; whether any rule is available and not excluded by the prior.
    """

    log_stop: jax.Array
    log_rule: jax.Array
    leaf_score: jax.Array
    has_rule: jax.Array


def node_terms(
    model: PackedModel,
    rows: jax.Array,
    depth: jax.Array,
    rule: jax.Array | None = None,
    *,
    shares_partitions: bool = True,
) -> NodeTerms:
    """Score nodes with rows [m, W] at depths [m], for stopping and for splitting by a rule [m].

    Leaves have no rule, so its weight is -inf. Each rule has a partition's whole weight if rules do
    not share it.
    """
    available = available_rules(model, rows, depth)
    node = _node_facts(model, available, depth)
    return NodeTerms(
        jnp.broadcast_to(model.prior.log_stop(node), depth.shape),
        jnp.full(depth.shape, -jnp.inf)
        if rule is None
        else _log_rule(model, rows, available, node, rule, shares_partitions),
        leaf_scores(model, rows),
        _may_split(model, available, node),
    )


def log_rule(
    model: PackedModel, rows: jax.Array, depth: jax.Array, available: Available, rule: jax.Array
) -> jax.Array:
    """Return the log weight of a rule of each node (see `NodeTerms`), given the available ones."""
    return _log_rule(model, rows, available, _node_facts(model, available, depth), rule)


def _log_rule(
    model: PackedModel,
    rows: jax.Array,
    available: Available,
    node: Node,
    rule: jax.Array,
    shares_partitions: bool = True,
) -> jax.Array:
    place = jnp.maximum(rule, 0)
    every = jnp.arange(len(place))
    feature = model.feature[place]
    shared_by = 1.0
    law = rule_law(model.prior)
    if law is not None:
        shares = _log_shares(model, law, rows, available, node)
        facts = Rule(feature, log_share=shares[every, place])
    else:
        cuts_of_gap, width, total_width = _gap(model, available, place)
        if model.prior.counts_partitions and shares_partitions:
            shared_by = _num_equivalent(model, available, rows, place)
        facts = Rule(
            feature,
            jnp.log(cuts_of_gap),
            jnp.log(jnp.maximum(available.num_column_rules[every, model.column[place]], 1)),
            jnp.log(width / total_width),
            jnp.log(shared_by),
        )
    log_weight = model.prior.log_rule(node, facts) - jnp.log(shared_by)
    return jnp.where(available.is_rule[every, place], log_weight, -jnp.inf)


def _node_facts(model: PackedModel, available: Available, depth: jax.Array) -> Node:
    """Return the facts of m nodes; their boxes only if they are used."""
    node = Node(
        depth.astype(float),
        available.num_columns > 0,
        available.num_rows.astype(float),
        jnp.log(jnp.maximum(available.num_columns, 1)),
    )
    num_features = len(model.num_codes)
    reads = set(model.prior.node_facts)
    law = rule_law(model.prior)
    if law is not None:
        reads |= law.reads(num_features)[0]
    if reads.isdisjoint(("least", "greatest")):
        return node
    is_present = available.is_present

    def extreme(reduce, edge, none):
        values = jnp.where(is_present, edge[None], none).T
        edges = reduce(values, model.feature, num_features, indices_are_sorted=True).T
        return jnp.where(jnp.isinf(edges), jnp.nan, edges)

    return node._replace(
        least=extreme(jax.ops.segment_min, model.low_edge, jnp.inf),
        greatest=extreme(jax.ops.segment_max, model.high_edge, -jnp.inf),
    )


def _may_split(model: PackedModel, available: Available, node: Node) -> jax.Array:
    """Return whether m nodes have a rule on a column that the prior allows."""
    features = model.first_of_column[None]
    nothing = [jnp.zeros(features.shape)] * 5  # the logs that `Rule` starts with
    each = jax.tree.map(lambda fact: fact[:, None], node)
    log_weight = model.prior.log_rule(each, Rule(features, *nothing))
    return ((available.num_column_rules > 0) & ~jnp.isneginf(log_weight)).any(axis=1)


def _log_shares(
    model: PackedModel, law: RuleLaw, rows: jax.Array, available: Available, node: Node
) -> jax.Array:
    """Return the log probability of every rule given that its node splits, float64 [m, R]."""
    cuts_of_gap, width = _every_gap(model, available)
    rule = Rule(
        model.feature[None],
        threshold=every_threshold(model, rows, available.is_present),
        width=width / cuts_of_gap,
        num_left=available.num_left.astype(float),
        num_right=(available.num_rows[:, None] - available.num_left).astype(float),
    )
    each = jax.tree.map(lambda fact: fact[:, None], node)
    features = model.first_of_column[None]
    table = DenseRules(model.column, model.place, model.num_items, model.by_column)
    return law.log_shares(
        table, available.is_rule, law.weigh_features(each, features), law.weigh_cuts(each, rule)
    )


class NodeWeights(NamedTuple):
    """The prior's weights of all actions at m nodes.

    Attributes
    ----------
    log_stop
        float64 [m]; log weight of stopping.
    log_rules
        float64 [m, R]; log weight of splitting by each rule as in `NodeTerms`, -inf if it is not
        available.
    has_rule
        bool [m]; see `NodeTerms`.
    """

    log_stop: jax.Array
    log_rules: jax.Array
    has_rule: jax.Array


def node_weights(model: PackedModel, rows: jax.Array, depth: jax.Array) -> NodeWeights:
    """Compute weights of stopping and of every rule at nodes with rows [m, W] and depths [m]."""
    prior = model.prior
    available = available_rules(model, rows, depth)
    node = _node_facts(model, available, depth)
    shared_by = _every_num_equivalent(model, available, rows) if prior.counts_partitions else 1.0
    law = rule_law(prior)
    if law is not None:
        facts = Rule(model.feature[None], log_share=_log_shares(model, law, rows, available, node))
    else:
        cuts_of_gap, width = _every_gap(model, available)
        total_width = jnp.where(available.is_rule, width / cuts_of_gap, 0.0) @ model.by_column
        facts = Rule(
            model.feature[None],
            jnp.log(cuts_of_gap),
            jnp.log(jnp.maximum(available.num_column_rules @ model.by_column.T, 1)),
            jnp.log(width / (jnp.maximum(total_width, 1e-300) @ model.by_column.T)),
            jnp.log(shared_by),
        )
    each = jax.tree.map(lambda fact: fact[:, None], node)
    log_rules = prior.log_rule(each, facts) - jnp.log(shared_by)
    return NodeWeights(
        jnp.broadcast_to(prior.log_stop(node), depth.shape),
        jnp.where(available.is_rule, log_rules, -jnp.inf),
        _may_split(model, available, node),
    )


def side_stops(model: PackedModel, rows: jax.Array, depth: jax.Array) -> jax.Array:
    """Guess the log weight of stopping on both sides of every rule of nodes, float64 [m, R].

    A side is assumed to have a rule if its rows suffice for two leaves, and to have the features
    and the box of its node. The guess is wrong only if enough rows cannot be split, or if the prior
    uses these facts.
    """
    available = available_rules(model, rows, depth)
    node = jax.tree.map(lambda fact: fact[:, None], _node_facts(model, available, depth))
    least = 2 * jnp.maximum(model.min_leaf, 1)
    total = jnp.zeros(available.num_left.shape)
    for num_rows in (available.num_left, available.num_rows[:, None] - available.num_left):
        has_rule = (num_rows >= least) & (node.depth + 1 < model.max_depth)
        side = node._replace(depth=node.depth + 1, has_rule=has_rule, num_rows=num_rows * 1.0)
        total += model.prior.log_stop(side)
    return total


def require_defined(is_undefined: Any) -> None:
    """Reject a prior that gave a node a weight which is not a number.

    Raises
    ------
    ValueError
        If any of the flags is set.
    """
    if np.any(is_undefined):
        raise ValueError(
            "The prior's weight of a tree is not a number: split_probability must be in [0, 1], "
            "and weights of features and cuts must be positive and finite, at every node."
        )


def leaf_statistics(model: PackedModel, rows: jax.Array) -> jax.Array:
    """Sum leaf statistics over nodes' rows [m, W], float64 [m, s]."""
    if model.classes is not None:
        return count_rows(rows, model.classes).astype(float)
    row = jnp.arange(len(model.statistics))
    is_in = (rows[:, row // 64] >> (row % 64).astype(rows.dtype)[None]) & 1
    return is_in.astype(float) @ model.statistics


def leaf_scores(model: PackedModel, rows: jax.Array) -> jax.Array:
    """Return log marginals of nodes' rows [m, W], float64 [m]."""
    return _log_marginals(model, leaf_statistics(model, rows))


def split_scores(model: PackedModel, rows: jax.Array) -> jax.Array:
    """Return summed log marginals of both sides of every rule in nodes with rows [m, W], [m, R]."""
    left = _left_statistics(model, rows)
    right = leaf_statistics(model, rows)[:, None] - left
    return _log_marginals(model, left) + _log_marginals(model, right)


def _log_marginals(model: PackedModel, statistics: jax.Array) -> jax.Array:
    """Return log marginals [...] of statistics [..., s]."""
    if model.table is None:
        return model.leaf.log_marginal(statistics)
    counts = statistics.astype(jnp.int32)
    scores = model.table.total[counts.sum(axis=-1)]
    for place, each in enumerate(model.table.each):
        scores += each[counts[..., place]]
    return scores


def _left_statistics(model: PackedModel, rows: jax.Array) -> jax.Array:
    """Sum leaf statistics over the left side of every rule, float64 [m, R, s]."""
    if model.classes is not None:
        own_rows = rows[:, : len(model.left_rows)]
        each = [count_rows(own_rows & own[None], model.left_rows) for own in model.classes.T]
        return jnp.stack(each, axis=-1).astype(float)
    num_words, num_rules = model.left_rows.shape
    bit = jnp.arange(64, dtype=rows.dtype)
    rest = num_words * 64 - len(model.statistics)
    statistics = jnp.pad(model.statistics, ((0, rest), (0, 0))).reshape(num_words, 64, -1)

    def add(w, total):  # the rows of one word, unpacked
        own = ((rows[:, w, None] >> bit[None]) & 1).astype(float)
        left = ((model.left_rows[w][None] >> bit[:, None]) & 1).astype(float)
        return total + jnp.einsum("mb,bs,br->mrs", own, statistics[w], left)

    total = jnp.zeros((len(rows), num_rules, statistics.shape[-1]))
    return lax.fori_loop(0, num_words, add, total)


def _gap(model: PackedModel, available: Available, place: jax.Array):
    """Return the cuts and the width of a rule's gap at each node, and its column's width.

    Facts that the prior does not use are not computed.
    """
    num_left = available.num_left
    every = jnp.arange(len(place))
    if model.path is not None:  # which may exclude some cuts of a gap
        cuts_of_gap, width = _every_gap(model, available)
        total = jnp.where(available.is_rule, width / cuts_of_gap, 0.0) @ model.by_column
        own_total = jnp.maximum(total[every, model.column[place]], 1e-300)
        return cuts_of_gap[every, place], width[every, place], own_total
    present = available.is_present
    above = next_present(model, present)
    in_gap = model.first[None] == model.first[place][:, None]
    in_gap &= num_left == num_left[every, place][:, None]
    below = jnp.argmax(in_gap & present, axis=1)
    cuts_of_gap = jnp.ones(len(place))
    if model.prior.rules == "cuts":
        cuts_of_gap = (in_gap & available.is_rule).sum(axis=1).astype(float)
    widths = model.low_edge[above] - model.high_edge[None]
    width = widths[every, below]
    total = jnp.where(available.is_rule & present, widths, 0.0) @ model.by_column
    own_total = jnp.maximum(total[every, model.column[place]], 1e-300)
    return jnp.maximum(cuts_of_gap, 1.0), width, own_total


def _every_gap(model: PackedModel, available: Available) -> tuple[jax.Array, jax.Array]:
    """Return the cuts in the gap of every rule, and its width, float64 [m, R] each; see `_gap`."""
    present = available.is_present
    above = next_present(model, present)
    place = jnp.arange(present.shape[1])[None]
    below = jnp.maximum(lax.cummax(jnp.where(present, place, 0), 1), model.first[None])
    cuts_of_gap = jnp.ones(present.shape)
    if model.prior.rules == "cuts":
        low = position_below(model.split)
        cuts_of_gap = jnp.maximum(low[above] - low[below], 1).astype(float)
    return cuts_of_gap, model.low_edge[above] - model.high_edge[below]


def _num_equivalent(
    model: PackedModel, available: Available, rows: jax.Array, place: jax.Array
) -> jax.Array:
    """Count rules that split a node's rows like one of its rules, float64 [m]."""
    left = rows & model.left_words[place]

    def compare(w, same):
        word, own = rows[:, w, None], left[:, w, None]
        side = word & model.left_rows[w][None]
        return same[0] & (side == own), same[1] & (side == (word ^ own))

    start = jnp.ones(available.is_rule.shape, bool)
    same_side, other_side = lax.fori_loop(0, len(model.left_rows), compare, (start, start))
    return jnp.maximum(((same_side | other_side) & available.is_rule).sum(axis=1), 1).astype(float)


def _every_num_equivalent(model: PackedModel, available: Available, rows: jax.Array) -> jax.Array:
    """Count rules that split a node's rows like each of its rules, float64 [m, R]."""

    def count(place):
        return _num_equivalent(model, available, rows, jnp.full(len(rows), place))

    return lax.map(count, jnp.arange(available.is_rule.shape[1])).T
