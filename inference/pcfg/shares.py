"""Log probabilities of productions given that their node splits, for weighted rules.

The weights are computed once, by compiled passes over pieces of one size, and summed over each
node's productions. They contain no fitted parameters, so a chart caches the result.
"""

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bdtppl.inference.pcfg.grammar import Grammar
from bdtppl.models.arrays.padding import in_pieces
from bdtppl.models.arrays.precision import in_float64
from bdtppl.models.hard.rule_laws import Node, Rule, RuleLaw

_PRODUCTIONS_A_PIECE = 1 << 15


@dataclass(frozen=True, eq=False)
class _Productions:
    """The productions of a grammar as a `bdtppl.models.hard.rule_laws.RuleTable`."""

    grammar: Grammar

    xp = np

    @cached_property
    def _group(self) -> np.ndarray:
        """Return the number of each production's node and column."""
        design = self.grammar.design
        node = self.grammar.parent.astype(np.int64)
        return node * design.num_columns + design.column[self.grammar.feature]

    @cached_property
    def item(self) -> np.ndarray:
        """Place of each production in the list of its column's rules, [E]."""
        grammar, feature = self.grammar, self.grammar.feature
        low = grammar.low if grammar.cut is None else grammar.cut - 1
        place = grammar.design.place_of_rule(feature, low - grammar.design.offset[feature])
        return place if grammar.missing_left is None else place + grammar.missing_left

    @cached_property
    def num_items(self) -> np.ndarray:
        """Length of each column's list, [columns]."""
        return self.grammar.design.rules_of_columns

    def per_column(self, values: np.ndarray) -> np.ndarray:
        """Sum over the productions of each node and column, [N, columns]."""
        shape = self.grammar.num_subproblems, self.grammar.design.num_columns
        return np.bincount(self._group, values, minlength=shape[0] * shape[1]).reshape(shape)

    def spread(self, values: np.ndarray) -> np.ndarray:
        """Spread values [N, columns] to the productions, [E]."""
        return values.ravel().take(self._group)

    def before(self, values: np.ndarray) -> np.ndarray:
        """Sum over earlier productions of the same node and column, [E]."""
        if not len(values):
            return values
        is_first = np.diff(self._group, prepend=-1) != 0
        running = np.cumsum(values) - values
        return running - running[is_first][np.cumsum(is_first) - 1]


@partial(jax.jit, static_argnames="law")
def _cut_weights(law: RuleLaw, node: Node, rule: Rule) -> jax.Array:
    weight = jnp.asarray(law.weigh_cuts(node, rule), float)
    return jnp.broadcast_to(weight, rule.feature.shape)


@partial(jax.jit, static_argnames="law")
def _feature_weights(law: RuleLaw, node: Node, features: jax.Array) -> jax.Array:
    # A node's facts [k] broadcast against features [1, c]; its box keeps the last axis.
    node = jax.tree.map(lambda fact: fact[:, None], node)
    weight = jnp.asarray(law.weigh_features(node, features[None]), float)
    return jnp.broadcast_to(weight, (len(node.depth), len(features)))


@in_float64
def log_shares(grammar: Grammar, law: RuleLaw, num_levels: int) -> np.ndarray:
    """Return the log probability of every production given that its node splits.

    Parameters
    ----------
    grammar
        The grammar.
    law
        The distribution of the rule, with the design's numbers filled in.
    num_levels
        Number of depths, starting at the root's 0.

    Returns
    -------
    numpy.ndarray
        float64 [E], or [E, num_levels] if weights use the depth.

    Raises
    ------
    ValueError
        If a weight is not positive and finite.
    """
    num_productions, num_features = grammar.num_productions, grammar.design.num_features
    if not num_productions:
        return np.zeros(0)
    if law == RuleLaw(over="rules"):
        return -np.log(np.diff(grammar.first_production)[grammar.parent])
    table, available = _Productions(grammar), np.ones(num_productions, bool)
    node_reads, rule_reads = law.reads(num_features)

    def shares(depth: int) -> np.ndarray:
        def nodes(at: Any) -> Node:
            facts = {name: _node_fact(grammar, name)[at] for name in node_reads if name != "depth"}
            has_rule = grammar.has_rule[at]
            return Node(np.full(len(has_rule), float(depth)), has_rule, **facts)

        facts = {name: getattr(grammar, name) for name in rule_reads}
        rule = Rule(grammar.feature, **facts)
        cut_weight = in_pieces(
            partial(_cut_weights, law), _PRODUCTIONS_A_PIECE, nodes(grammar.parent), rule
        )
        feature_weight = in_pieces(
            lambda some: _feature_weights(law, some, grammar.design.first_of_column),
            _PRODUCTIONS_A_PIECE,
            nodes(np.arange(grammar.num_subproblems)),
        )
        is_used = table.per_column(available) > 0
        for name, weight in (
            ("cut_weights", cut_weight),
            ("feature_weights", feature_weight[is_used]),
        ):
            is_bad = ~((weight > 0) & (weight < np.inf))
            if is_bad.any():
                raise ValueError(
                    f"{name} must be positive and finite at every rule; got {weight[is_bad][0]}."
                )
        return law.log_shares(table, available, feature_weight, cut_weight)

    if "depth" not in node_reads:
        return shares(0)
    return np.stack([shares(depth) for depth in range(num_levels)], axis=1)


def _node_fact(grammar: Grammar, name: str) -> np.ndarray:
    values = getattr(grammar, name.removeprefix("log_"))
    return np.log(np.maximum(values, 1)) if name.startswith("log_") else values.astype(float)
