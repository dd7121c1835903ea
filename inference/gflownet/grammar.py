"""Flows of subproblems: the inside algorithm, amortised.

A tree's prior weight and likelihood are products over its nodes, so the posterior factorises over
subtrees. Let Q(N) be the sum over all subtrees of a subproblem N, its rows and its depth:

    Q(N) = w_stop(N) L(N) + sum over rules r of w_r(N) Q(N left of r) Q(N right of r).     (1)

The chart of `bdtppl.inference.pcfg` solves these equations one by one. Here a network F
approximates the solution: log F(N) = log B(N) + f(N), where the base B is (1) with the children
taken as leaves, and f is learned. Let S(N) be the right side of (1) with F in place of Q. Then

- the policy at N is p(stop) = w_stop L / S, p(r) = w_r F(left) F(right) / S. It needs no further
  network: one batched evaluation computes the flows of all children, and equal children are
  computed once;
- training enforces log F(N) = log S(N) at subproblems that the policy visits: local balance. The
  order of a tree's nodes does not matter, and no noise passes from one part of a tree to another;
- B is exact, and f is 0, where no grandchild may split: at the last levels, and in nodes
  with few rows. So flows are learned from the bottom up, and the lowest targets are exact.

A tree T drawn from the policy has probability q(T) = product of its choices. All flows except those
of visited nodes cancel in its importance weight:

    w(T) L(T) / q(T) = S(root) product over nodes N of T below the root of S(N) / F(N).    (2)

So training, which reduces the squared local imbalance, makes the importance weights even. Flows
that balance everywhere give draws from the posterior itself, with log Z = log S(root).

References
----------
Sullivan et al. 2023 (BCART-PCFG), equations 9 to 16 and the outlook of section 7; Mahfoud et al.
2025 (DT-GFN), section 3; Bengio et al. 2021, Flow Network based
Generative Models, for flows and their balance.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import logsumexp

from bdtppl.inference.gflownet.grammar_network import Flow
from bdtppl.inference.summaries.distinct import distinct, map_distinct
from bdtppl.models.arrays.precision import in_float64
from bdtppl.models.constraints import Constraints
from bdtppl.models.hard.node_scores import leaf_scores, node_weights, split_scores
from bdtppl.models.hard.packed_model import PackedModel
from bdtppl.models.hard.tree_model import TreeModel
from bdtppl.models.prior_kinds import Node, require_weighs

NUM_FACTS = 7
_MOST_DEPTH = 10  # levels of splits, because arrays have room for every node
_PIECE_ENTRIES = 1 << 17  # children times rules, or rows, that are scored at once
_VISITED = 8  # nodes whose children are gathered at once

Total = Callable[..., jax.Array]


class FlowProblem(eqx.Module):
    """A model whose posterior is amortised; n rows.

    Attributes
    ----------
    model
        Rules, prior and leaf family.
    rows
        float32 [n, q]; the network's inputs for each row.
    max_depth
        Levels of splits D, at least 1.
    """

    model: PackedModel
    rows: jax.Array
    max_depth: int = eqx.field(static=True)

    @property
    def num_rules(self) -> int:
        """Number of rules R."""
        return self.model.left_rows.shape[1]


@in_float64
def pose_problem(model: TreeModel) -> FlowProblem:
    """Tabulate rules and rows.

    Parameters
    ----------
    model
        The model; its constraints must bound the depth.

    Raises
    ------
    ValueError
        If the depth is not bounded or out of range, or a constraint depends on the path or on
        leaves' means.
    """
    constraints: Constraints = model.constraints
    require_weighs(model.prior, "The grammar flow network", "nodes")
    constraints.require_free_leaves("The grammar flow network")
    depth = constraints.max_depth
    if depth is None or not 1 <= depth <= _MOST_DEPTH:
        raise ValueError(
            f"The grammar flow network needs max_depth, from 1 to {_MOST_DEPTH} levels of splits; "
            f"got {depth!r}."
        )
    if constraints.looks_at_path:
        raise ValueError(
            "The grammar flow network does not support constraints on paths (keep_together, "
            "features_at_depth, before): its subproblems are sets of rows."
        )
    design: Any = model.design
    packed = PackedModel.of(model, is_padded=False)
    statistics = np.asarray(packed.statistics)
    # Exact, and squares of large targets stay within range.
    statistics = np.ldexp(statistics, -np.frexp(np.abs(statistics).max(axis=0))[1])
    spread = statistics.std(axis=0)
    statistics = (statistics - statistics.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    codes = design.codes
    place = (codes + 0.5) / design.num_codes - 0.5
    seen = np.where(codes < 0, 0.0, 2 * place), codes[:, design.has_missing] < 0, statistics
    rows = jnp.asarray(np.concatenate(seen, axis=1), jnp.float32)
    return FlowProblem(packed, rows, int(depth))


class Amortised(NamedTuple):
    """A flow and its statistics of all rows, which are computed once for many nodes."""

    flow: Flow
    statistics: jax.Array

    @classmethod
    def of(cls, problem: FlowProblem, flow: Flow) -> "Amortised":
        """Embed the rows of a problem."""
        return cls(flow, flow.statistics(problem.rows))


def row_sums(words: jax.Array, statistics: jax.Array) -> jax.Array:
    """Sum statistics [n, k] over the rows of nodes [m, W], [m, k]."""
    row = jnp.arange(len(statistics))
    is_in = (words[:, row // 64] >> (row % 64).astype(words.dtype)[None]) & 1
    return is_in.astype(statistics.dtype) @ statistics


def _log_end(problem: FlowProblem, depth: jax.Array) -> jax.Array:
    """Return the log weight of stopping without a rule, which never depends on the rows."""
    unknown = jnp.full(len(problem.model.num_codes), jnp.nan)
    node = Node(
        depth.astype(float), jnp.bool_(False), jnp.float64(1), jnp.float64(0), unknown, unknown
    )
    return jnp.asarray(problem.model.prior.log_stop(node), float)


def _stumps(
    problem: FlowProblem, words: jax.Array, depth: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return log weights of all choices, alone and with children as leaves, [m, R + 1] each."""
    model = problem.model
    weights = node_weights(model, words, jnp.full(len(words), depth))
    stop = (weights.log_stop + leaf_scores(model, words))[:, None]
    as_leaves = split_scores(model, words) + 2 * _log_end(problem, depth + 1)
    splits = jnp.where(jnp.isfinite(weights.log_rules), weights.log_rules + as_leaves, -jnp.inf)
    log_weight = jnp.concatenate([weights.log_rules, stop], axis=1)
    return log_weight, jnp.concatenate([splits, stop], axis=1)


class Seen(NamedTuple):
    """Facts of m nodes that need no learning.

    Attributes
    ----------
    log_base
        float64 [m]; log B.
    is_exact
        bool [m]; whether log B is the log flow.
    facts
        float32 [m, f]; further inputs of the network.
    """

    log_base: jax.Array
    is_exact: jax.Array
    facts: jax.Array


def _seen(problem: FlowProblem, words: jax.Array, depth: jax.Array, log_base: jax.Array) -> Seen:
    """Describe nodes [m, W], given the sums over their stumps, which are the bases."""
    leaf_score = leaf_scores(problem.model, words)
    num_rows = lax.population_count(words).sum(axis=1).astype(float)
    # A child of n rows has at most n - min_leaf, and a rule needs twice min_leaf.
    has_few = num_rows < 3 * jnp.maximum(problem.model.min_leaf, 1)
    gain, count = log_base - leaf_score, jnp.maximum(num_rows, 1)
    facts = (
        jnp.full_like(num_rows, depth / problem.max_depth),
        jnp.log(count),
        num_rows / len(problem.rows),
        jnp.arcsinh(leaf_score) / 4,
        leaf_score / count,
        jnp.arcsinh(gain),
        gain / count,
    )
    return Seen(
        log_base,
        has_few | (depth + 1 >= problem.max_depth),
        jnp.stack(facts, axis=1).astype(jnp.float32),
    )


def log_flows(
    problem: FlowProblem,
    amortised: Amortised,
    words: jax.Array,
    depth: jax.Array,
    total: Total = logsumexp,
) -> jax.Array:
    """Return log flows of nodes [m, W] above the last level, [m]; equal ones are shared."""

    def of(words):
        seen = _seen(problem, words, depth, total(_stumps(problem, words, depth)[1], axis=1))
        above = amortised.flow(row_sums(words, amortised.statistics), seen.facts)
        return seen.log_base + jnp.where(seen.is_exact, 0.0, above.astype(float))

    piece = max(16, _PIECE_ENTRIES // problem.num_rules)
    return map_distinct(of, words, distinct(words), piece)


class FlowChoices(NamedTuple):
    """Choices of m nodes: R rules and, last, to stop.

    Attributes
    ----------
    log_weight
        float64 [m, R + 1]; the prior's log weights, with the log marginals of new leaves: that of
        the node if it stops, those of its children on the last level.
    log_term
        float64 [m, R + 1]; the prior's log weights with log flows of both children: terms of S.
    seen
        Facts for learning the node's own flow.
    is_member
        bool [m]; flags one of each group of equal nodes.
    """

    log_weight: jax.Array
    log_term: jax.Array
    seen: Seen
    is_member: jax.Array

    @property
    def log_sum(self) -> jax.Array:
        """Log S, float64 [m]."""
        return logsumexp(self.log_term, axis=1)


def joined(left: jax.Array, right: jax.Array) -> jax.Array:
    """Return the log flow of two children together."""
    return left + right


def choices(
    problem: FlowProblem,
    amortised: Amortised,
    words: jax.Array,
    depth: jax.Array,
    total: Total = logsumexp,
) -> FlowChoices:
    """Score the choices of nodes; equal nodes are scored once.

    Parameters
    ----------
    problem, amortised
        The model and its flow.
    words
        uint64 [m, W]; rows of the nodes.
    depth
        int scalar; splits above them.
    total
        `jnp.max` instead of the log of a sum uses the best stumps as bases, not all together.
    """
    left_words, num_rules = problem.model.left_words, problem.num_rules

    def of_children(words, log_weight):
        """Return terms of S: weights with the log flows of both children of every rule."""
        is_rule = jnp.isfinite(log_weight[:, :-1])
        left = words[:, None] & left_words[None]
        sides = jnp.stack([left, words[:, None] & ~left])
        sides = jnp.where(is_rule[None, :, :, None], sides, 0)  # all unavailable ones are one node
        sides = sides.reshape(-1, words.shape[1])
        flows = log_flows(problem, amortised, sides, depth + 1, total)
        flows = jnp.where(is_rule, joined(*flows.reshape(2, -1, num_rules)), 0.0)
        return log_weight + jnp.pad(flows, ((0, 0), (0, 1)))

    def of(words):
        log_weight, log_stump = _stumps(problem, words, depth)
        is_last = depth + 1 == problem.max_depth
        log_term = lax.cond(is_last, lambda: log_stump, lambda: of_children(words, log_weight))
        seen = _seen(problem, words, depth, total(log_stump, axis=1))
        return jnp.where(is_last, log_stump, log_weight), log_term, seen

    groups = distinct(words)
    return FlowChoices(*map_distinct(of, words, groups, _VISITED), groups.is_member)
