"""The chart: a grammar laid out for compiled passes.

Subproblems are in order of height, so those of one height depend on lower ones alone. A height is
cut into blocks of fixed size for a loop over blocks, and arrays are padded to a few sizes: compiled
code depends on the sizes, not on the data.

Functions here run inside a `jax.enable_x64` scope (see `bdtppl.models.arrays.precision`).
"""

from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from bdtppl.inference.pcfg.grammar import Grammar
from bdtppl.inference.pcfg.shares import log_shares
from bdtppl.models.arrays.padding import padded, padded_size
from bdtppl.models.arrays.threads import in_threads
from bdtppl.models.prior_kinds import Node, Rule, TreePrior, rule_law

BLOCK_NODES = 512
_BLOCK_PRODUCTIONS = 4096  # so that the arrays of a block stay in the cache
_FEW_PRODUCTIONS = 256  # charts with fewer have smaller blocks, with less padding


class Chart(NamedTuple):
    """A grammar as padded device arrays: N nodes, E productions, B blocks, all padded.

    Attributes
    ----------
    left, right, parent, feature
        int32 [E]; productions in order of their parent.
    first_production
        int32 [N + 1].
    has_rule
        bool [N].
    node_facts, rule_facts
        Further fields of `Node` [N, ...] and `Rule` [E], or [E, D] if they depend on the depth,
        that the prior uses; logs of counts are stored as counts, int32.
    log_count
        float64; logs of the counts 0, 1, 2, ...; the entry of 0 is 0, and never used.
    node_range, production_range
        int32 [B, 2]; start and stop of each block.
    num_blocks, root, depth_limit
        int32 scalars.
    levels
        int32 [D]; the depths 0 to D - 1, or one 0 if depth does not matter.
    block_productions
        An array whose length is the most productions of a block (lengths are static under jit).
    """

    left: jax.Array
    right: jax.Array
    parent: jax.Array
    feature: jax.Array
    first_production: jax.Array
    has_rule: jax.Array
    node_facts: dict[str, jax.Array]
    rule_facts: dict[str, jax.Array]
    log_count: jax.Array
    node_range: jax.Array
    production_range: jax.Array
    num_blocks: jax.Array
    root: jax.Array
    depth_limit: jax.Array
    levels: jax.Array
    block_productions: jax.Array

    @property
    def uses_depth(self) -> bool:
        """Whether there is an axis of depths."""
        return len(self.levels) > 1


def _build_chart(grammar: Grammar, prior: TreePrior) -> Chart:
    widest = int(np.diff(grammar.first_production).max())
    is_small = grammar.num_productions <= _FEW_PRODUCTIONS
    usual = 2 * _FEW_PRODUCTIONS if is_small else _BLOCK_PRODUCTIONS
    block_productions = max(usual, padded_size(widest))
    node_range, production_range = _blocks(grammar, block_productions)
    # Dynamic slices clamp at the end, so the arrays extend one whole block beyond it.
    num_nodes = padded_size(grammar.num_subproblems + BLOCK_NODES)
    num_productions = padded_size(grammar.num_productions + block_productions)
    num_blocks = padded_size(max(len(node_range), 16))

    needs_depth = prior.depends_on_depth or grammar.depth_limit < grammar.height[-1]
    num_levels = max(8, padded_size(grammar.depth_limit + 1)) if needs_depth else 1
    first = np.full(num_nodes + 1, grammar.num_productions, np.int32)
    first[: grammar.num_subproblems + 1] = grammar.first_production
    node_facts, rule_facts = facts_of(grammar, prior)
    law = rule_law(prior)
    if law is not None:
        rule_facts["log_share"] = log_shares(grammar, law, num_levels)
    facts = [*node_facts.values(), *rule_facts.values()]
    most = max((int(f.max(initial=0)) for f in facts if f.dtype == np.int32), default=0)
    left, right, parent, feature = in_threads(
        lambda array: padded(array, num_productions),
        (grammar.left, grammar.right, grammar.parent, grammar.feature),
        num_productions,
    )
    # Padding always stops: a prior may always split if there is a rule.
    has_rule = np.zeros(num_nodes, bool)
    has_rule[: len(grammar.has_rule)] = grammar.has_rule
    return Chart(
        left=left,
        right=right,
        parent=parent,
        feature=feature,
        first_production=jax.device_put(first),
        has_rule=padded(has_rule, num_nodes),
        node_facts={name: padded(fact, num_nodes) for name, fact in node_facts.items()},
        rule_facts={name: padded(fact, num_productions) for name, fact in rule_facts.items()},
        log_count=jax.device_put(
            np.log(np.maximum(np.arange(padded_size(max(64, most + 1))), 1.0))
        ),
        node_range=padded(node_range, num_blocks),
        production_range=padded(production_range, num_blocks),
        num_blocks=jnp.int32(len(node_range)),
        root=jnp.int32(grammar.root),
        depth_limit=jnp.int32(grammar.depth_limit),
        levels=jax.device_put(np.arange(num_levels, dtype=np.int32)),
        block_productions=jax.device_put(np.zeros(block_productions, np.int8)),
    )


def facts_of(grammar: Grammar, prior: TreePrior) -> tuple[dict[str, np.ndarray], ...]:
    """Return facts of nodes and of rules that a prior uses; logs of counts are left as counts."""

    def values(name: str) -> np.ndarray:
        own = getattr(grammar, name.removeprefix("log_"))
        return np.log(own) if name.startswith("log_") and own.dtype == np.float64 else own

    cuts = {"log_num_cuts"} if prior.rules == "cuts" else set()
    names = prior.node_facts, cuts.union(prior.rule_facts) - {"log_share"}
    node_facts, rule_facts = ({name: values(name) for name in sorted(each)} for each in names)
    return node_facts, rule_facts


def chart_for(grammar: Grammar, prior: TreePrior) -> Chart:
    """Lay out a grammar with the facts that a prior uses, once for all such priors."""
    facts = tuple(prior.node_facts), tuple(prior.rule_facts)
    key = (prior.depends_on_depth, *facts, rule_law(prior))
    if key not in grammar.charts:
        # Arrays of the chart are constants, even if it is built inside a trace.
        with jax.enable_x64(True), jax.ensure_compile_time_eval():
            grammar.charts[key] = _build_chart(grammar, prior)
    return grammar.charts[key]


def _blocks(grammar: Grammar, block_productions: int) -> tuple[np.ndarray, np.ndarray]:
    """Divide every height above 0 into blocks, [blocks, 2] node ranges and production ranges."""
    first = grammar.first_production
    bounds = np.searchsorted(grammar.height, np.arange(1, int(grammar.height[-1]) + 2))
    ranges = [(0, 0)]
    for begin, end in pairwise(bounds):
        start = begin
        while start < end:
            fits = np.searchsorted(first, first[start] + block_productions, side="right") - 1
            stop = min(start + BLOCK_NODES, end, int(fits))
            ranges.append((start, stop))
            start = stop
    nodes = np.array(ranges[1:] or ranges, np.int32).reshape(-1, 2)
    return nodes, first[nodes].astype(np.int32)


class ChartBlock(NamedTuple):
    """One block of the chart; K nodes, P productions."""

    nodes: jax.Array  # int32 [K]
    is_node: jax.Array  # bool [K], False after the block's end
    is_production: jax.Array  # bool [P]
    production_start: jax.Array
    left: jax.Array
    right: jax.Array
    slot: jax.Array  # int32 [P]; place of the parent among the block's nodes
    node: Node  # facts of the parents, [P, 1] against depths [1, D]
    rule: Rule  # [P, 1]


def take(array: jax.Array, index: Any) -> jax.Array:
    """Return entries whose indices are known to be in bounds."""
    return array.at[index].get(mode="promise_in_bounds")


def _read(chart: Chart, name: str, values: jax.Array) -> jax.Array:
    """Return the entries of a fact in the form that priors use."""
    is_count = jnp.issubdtype(values.dtype, jnp.integer)
    if name.startswith("log_") and is_count:
        return take(chart.log_count, values)
    return values.astype(float)


def node_at(chart: Chart, index: jax.Array, depth: jax.Array) -> Node:
    """Return facts of some nodes at some depths, which broadcast against each other."""
    has_rule = chart.has_rule[index]
    if chart.uses_depth:
        has_rule = has_rule & (depth < chart.depth_limit)
    facts = {name: _read(chart, name, values[index]) for name, values in chart.node_facts.items()}
    return Node(depth=depth.astype(float), has_rule=has_rule, **facts)


def rule_at(chart: Chart, index: jax.Array, depth: jax.Array) -> Rule:
    """Return facts of some productions at some depths."""
    facts = {
        name: _read(chart, name, values[index] if values.ndim == 1 else values[index, depth])
        for name, values in chart.rule_facts.items()
    }
    return Rule(feature=chart.feature[index], **facts)


def nodes_at_all_depths(chart: Chart, index: jax.Array) -> Node:
    """Return facts of some nodes [k, 1] against all depths [1, D]."""
    return node_at(chart, index[:, None], chart.levels[None, :])


def block_of(chart: Chart, i: jax.Array) -> ChartBlock:
    """Return the i-th block."""
    node_start, node_stop = chart.node_range[i]
    start, stop = chart.production_range[i]
    size = len(chart.block_productions)

    def piece(array):
        return lax.dynamic_slice_in_dim(array, start, size)

    is_production = jnp.arange(size) < stop - start
    parent = jnp.where(is_production, piece(chart.parent), node_start)
    place = jnp.arange(BLOCK_NODES)
    return ChartBlock(
        nodes=node_start + place,
        is_node=place < node_stop - node_start,
        is_production=is_production,
        production_start=start,
        left=jnp.where(is_production, piece(chart.left), 0),
        right=jnp.where(is_production, piece(chart.right), 0),
        slot=jnp.where(is_production, parent - node_start, BLOCK_NODES - 1),
        node=nodes_at_all_depths(chart, parent),
        rule=Rule(
            feature=piece(chart.feature)[:, None],
            **{
                name: _read(chart, name, piece(values).reshape(size, -1))
                for name, values in chart.rule_facts.items()
            },
        ),
    )
