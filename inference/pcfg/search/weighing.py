"""Prior weights of expanded nodes and of their rules."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np

from bdtppl.inference.pcfg.chart import facts_of
from bdtppl.inference.pcfg.grammar import Grammar
from bdtppl.inference.pcfg.shares import log_shares
from bdtppl.models.prior_kinds import Node, Rule, TreePrior, rule_law
from bdtppl.models.prior_weights import weigh


@dataclass(frozen=True, eq=False)
class Fragment(Grammar):
    """Some nodes with their rules, as a grammar without children: it provides facts for priors.

    Attributes
    ----------
    rows_left
        int64 [E]; rows on the left of each rule.
    part
        uint64 [E]; equal for rules that split their node alike.
    """

    rows_left: Any = None
    part: Any = None

    @property
    def num_left(self) -> np.ndarray:
        """Rows on the left of each production, with repetitions, float64 [E]."""
        return self.rows_left.astype(float)

    @property
    def num_right(self) -> np.ndarray:
        """Rows on the right of each production, with repetitions, float64 [E]."""
        return (self.num_rows.take(self.parent) - self.rows_left).astype(float)

    @cached_property
    def _group_partitions(self) -> tuple[np.ndarray, np.ndarray]:
        key = self.part + self.parent.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        _, first, group = np.unique(key, return_index=True, return_inverse=True)
        number = np.bincount(group, self.num_cuts).astype(np.int32)
        is_first = np.zeros(len(key), bool)
        is_first[first] = True
        return number[group], is_first


def weigh_nodes(
    grammar: Fragment, prior: TreePrior, level: np.ndarray, wants_split: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compute weights of stopping and of all rules of some nodes [m] at levels [m]; p rules.

    Returns
    -------
    log_stop
        float64 [m].
    log_rule, log_split
        float64 [p]; the latter equals the former if it is not requested.
    """
    node_facts, rule_facts = (
        {name: _as_floats(name, values) for name, values in facts.items()}
        for facts in facts_of(grammar, prior)
    )
    nodes = Node(level.astype(float), grammar.has_rule, **node_facts)
    law = rule_law(prior)
    if law is not None and grammar.num_productions:
        shares = log_shares(grammar, law, int(level.max()) + 1)
        if shares.ndim > 1:
            shares = shares[np.arange(len(shares)), level[grammar.parent]]
        rule_facts["log_share"] = shares
    (log_stop,) = weigh(prior, nodes, None, wanted=("stop",))
    if not grammar.num_productions:
        return log_stop, np.zeros(0), np.zeros(0)
    of_rules = jax.tree.map(lambda fact: fact[grammar.parent], nodes)
    rules = Rule(grammar.feature, **rule_facts)
    wanted = ("rule", "split") if wants_split else ("rule",)
    weights = weigh(prior, of_rules, rules, wanted=wanted)
    return log_stop, weights[0], weights[-1]


def _as_floats(name: str, values: np.ndarray) -> np.ndarray:
    is_log_of_count = name.startswith("log_") and values.dtype != float
    return np.log(np.maximum(values, 1)) if is_log_of_count else values.astype(float)
