"""Proposals that redraw subtrees of at most two levels from their posterior.

A chain picks every third level of its tree. On these levels, every node whose subtree has at most
two levels of splits gets another such subtree, drawn given the node's rows and path: a leaf, a
split, or a split with one split on either side or both. No such subtree reaches a picked level
below its own, so the reverse move would pick the same nodes, and the draw is a Gibbs step over all
these subtrees.

Their weights are those of the posterior with two exceptions: further splits of leaves two levels
below a node are guessed (`bdtppl.models.hard.node_scores.side_stops`), and terms of a prior or a
monotone constraint for the whole tree are ignored. The acceptance probability corrects for both.

The number of subtrees grows with the square of the number of rules, and so does the cost.
"""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.special import logsumexp

from bdtppl.inference.hard.shapes import LEAF, Shape, branched, cut_back, places
from bdtppl.inference.metropolis.growth import draw_choice
from bdtppl.inference.metropolis.kernel import KERNELS, NamedKernel, Proposal
from bdtppl.inference.metropolis.state import State, at_nodes, scored
from bdtppl.inference.metropolis.stump_sums import SCORES, Tables, stump_sums
from bdtppl.models.data.splits import missing_goes_left
from bdtppl.models.hard.node_scores import leaf_scores, node_weights, side_stops, split_scores
from bdtppl.models.hard.packed_model import PackedModel, children
from bdtppl.models.leaf_kernels import own_score
from bdtppl.models.prior_kinds import Node, Rule
from bdtppl.models.pytrees import pytree_dataclass

_LEVELS_REDRAWN = 3  # levels of the nodes of a subtree, including its top
_MOST_RULES = 2048
_SIDES_SCORED = 1 << 6  # sides of rules whose own rules are scored at once


@pytree_dataclass
class Redraw:
    """A kernel that redraws small subtrees on every third level of each chain's tree."""

    names: ClassVar[tuple[str, ...]] = ("redraw",)

    def propose(
        self,
        rng_keys: jax.Array,
        number: jax.Array,
        model: PackedModel,
        state: State,
        power: jax.Array,
    ) -> Proposal:
        """Propose one tree for each chain (see `Kernel`).

        Raises
        ------
        ValueError
            If there are too many rules.
        """
        if len(model.feature) > _MOST_RULES:
            raise ValueError(
                f"Redraw scores pairs of rules, and {len(model.feature)} rules have too many; at "
                f"most {_MOST_RULES} are possible: use fewer bins, or another proposal, such as "
                "'rotating'."
            )
        keys = jax.vmap(jax.random.split)(rng_keys)
        first = jax.vmap(lambda key: jax.random.randint(key, (), 0, _LEVELS_REDRAWN))(keys[:, 0])
        size = state.shape.capacity, 3
        uniform = jax.vmap(lambda key: jax.random.uniform(key, size))(keys[:, 1])
        return redrawn(model, state, first, uniform, power)


def redrawn(
    model: PackedModel, state: State, first: jax.Array, uniform: jax.Array, power: jax.Array
) -> Proposal:
    """Redraw small subtrees of each chain's tree.

    Parameters
    ----------
    model
        The model.
    state
        States of the chains.
    first
        int32 [b]; the first level, 0 to 2, on which nodes are picked.
    uniform
        float64 [b, k, 3]; random numbers: three for the node in each slot.
    power
        float64 [b]; power of the likelihood.
    """
    shape, old = state.shape, _family_rules(state.shape)
    is_top = _picked(shape, first)

    def draw(nodes, rows, old, uniform, power):
        return _drawn(model, rows, Shape(nodes, None).depth, old, uniform, power)

    each = jnp.broadcast_to(power[:, None], shape.rule.shape)
    inputs = shape.nodes, state.rows, old, uniform, each
    new, log_ratio = at_nodes(draw, model, is_top, inputs, (old, jnp.zeros(shape.rule.shape)))
    proposed, overflows = _with_subtrees(model, state, is_top, new)
    log_ratio = jnp.where(overflows, -jnp.inf, log_ratio.sum(axis=1))
    return Proposal(proposed, log_ratio, jnp.zeros_like(first), overflows)


def _picked(shape: Shape, first: jax.Array) -> jax.Array:
    """Return nodes to redraw from, bool [b, k]."""
    return _is_low(shape) & (shape.depth % _LEVELS_REDRAWN == first[:, None])


def _is_low(shape: Shape) -> jax.Array:
    """Return nodes with at most two levels of splits below, bool [b, k]."""
    is_low = shape.is_leaf
    for _ in range(_LEVELS_REDRAWN - 1):
        both = is_low & jnp.roll(is_low, -1, axis=1)  # of a left child and the slot after it
        is_low = shape.is_leaf | (shape.is_split & jnp.take_along_axis(both, shape.left, axis=1))
    return is_low


def _family_rules(shape: Shape) -> jax.Array:
    """Return rules of each node and of its left and right child, int32 [b, k, 3]."""
    sides = [
        jnp.where(shape.is_split, jnp.take_along_axis(shape.rule, shape.left + side, axis=1), LEAF)
        for side in range(2)
    ]
    return jnp.stack([shape.rule, *sides], axis=2)


def _drawn(model: PackedModel, rows, depth, old, uniform, power) -> tuple[jax.Array, jax.Array]:
    """Draw subtrees of m nodes.

    Parameters
    ----------
    model
        The model.
    rows, depth
        uint64 [m, W] and int32 [m]; the nodes.
    old
        int32 [m, 3]; rules of the current subtrees.
    uniform
        float64 [m, 3]; random numbers.
    power
        float64 [m]; power of the likelihood.

    Returns
    -------
    new, log_ratio
        int32 [m, 3] and float64 [m]; rules of the new subtrees, and log of the probability of
        drawing the current ones over that of the new ones.
    """
    node = jnp.arange(len(rows))
    top = node_weights(model, rows, depth)
    log_split = top.log_rules + _log_below(model, rows, depth, power, ~jnp.isneginf(top.log_rules))
    log_stop = top.log_stop + power * leaf_scores(model, rows)
    log_weights = jnp.concatenate([log_stop[:, None], log_split], axis=1)
    rule = draw_choice(log_weights, uniform[:, 0]) + LEAF

    def below(rule):
        """Return log weights [2, m, 1 + R] of the choices on both sides of a rule."""
        sides = jnp.concatenate(children(model, rows, jnp.maximum(rule, 0)))
        weights = _stump_weights(model, sides, jnp.tile(depth + 1, 2), jnp.tile(power, 2))
        return weights.reshape(2, len(rows), -1)

    def log_weight(rules, sides):
        place = rules - LEAF
        log_given = jnp.stack([side[node, place[:, 1 + i]] for i, side in enumerate(sides)])
        log_given -= logsumexp(sides, axis=2)
        log_top = log_weights[node, place[:, 0]]
        return log_top + jnp.where(rules[:, 0] != LEAF, log_given.sum(axis=0), 0.0)

    sides = below(rule)
    drawn = [draw_choice(side, uniform[:, 1 + i]) + LEAF for i, side in enumerate(sides)]
    new = jnp.stack([rule, *(jnp.where(rule != LEAF, own, LEAF) for own in drawn)], axis=1)
    return new, log_weight(old, below(old[:, 0])) - log_weight(new, sides)


def _log_below(model: PackedModel, rows: jax.Array, depth, power, is_wanted) -> jax.Array:
    """Return the log sum over choices on both sides of given rules [m, R]."""
    if _is_compiled(model):
        return _compiled_log_below(model, rows, depth, power, is_wanted)
    return _log_below_by_xla(model, rows, depth, power)


def _log_below_by_xla(model: PackedModel, rows: jax.Array, depth, power) -> jax.Array:
    num_rules = len(model.feature)

    def total(side):
        rows, depth, power = (own[None] for own in side)
        return logsumexp(_stump_weights(model, rows, depth, power)[0])

    rule = jnp.tile(jnp.arange(num_rules), len(rows))
    depth, power = (jnp.repeat(each, num_rules) for each in (depth + 1, power))
    left, right = (
        lax.map(total, (side, depth, power), batch_size=_SIDES_SCORED)
        for side in children(model, jnp.repeat(rows, num_rules, axis=0), rule)
    )
    return (left + right).reshape(len(rows), num_rules)


def _is_compiled(model: PackedModel) -> bool:
    """Return whether numba's sums support a model: weights depend on counts, leaves are known.

    They need a third to a fourteenth of XLA's time on a CPU.
    """
    facts = {*model.prior.node_facts, *model.prior.rule_facts}
    reads_counts = facts <= {"log_num_features", "log_num_cuts", "log_num_feature_cuts"}
    is_known = reads_counts and own_score(type(model.leaf)) in SCORES and model.path is None
    is_known &= len(model.first_of_column) == len(model.num_codes)  # sums count by feature
    is_known &= model.score_tables is not None
    return is_known and jax.default_backend() == "cpu"


def _compiled_log_below(model: PackedModel, rows, depth, power, is_wanted) -> jax.Array:
    num_nodes, num_features = len(rows), len(model.num_codes)

    def log_split(log_num_features, log_num_rules):
        node = Node(depth[:, None] + 1.0, True, log_num_features=log_num_features)
        facts = Rule(jnp.arange(num_features)[None], 0.0, log_num_rules)
        weights = model.prior.log_rule(node, facts)
        return jnp.broadcast_to(weights, (num_nodes, num_features))

    def log_stop(level):
        can_split = depth + level < model.max_depth
        nodes = (Node(depth + level * 1.0, has, log_num_features=0.0) for has in (False, can_split))
        each = [jnp.broadcast_to(model.prior.log_stop(node), depth.shape) for node in nodes]
        return jnp.stack(each, axis=1)

    plain = log_split(0.0, 0.0)
    per_features, per_rules = (
        jnp.nan_to_num(jnp.nanmean(log_split(*one) - plain, axis=1))
        for one in ((1.0, 0.0), (0.0, 1.0))
    )
    nodes = [power, depth + 1 < model.max_depth, per_features, per_rules]
    nodes = [jnp.stack(nodes, axis=1), log_stop(1), log_stop(2), plain]
    side = missing_goes_left(model.split)
    code = jnp.arange(len(model.feature)) - model.first - side
    rules = jnp.stack([model.feature, code, side, model.can_cut])
    statistics, family = model.statistics, type(model.leaf)
    if model.ones is not None:
        statistics = jnp.concatenate([model.ones, statistics], axis=1)
    scoring: Any = model.score_tables
    least, is_gaps = jnp.maximum(model.min_leaf, 1.0), float(model.prior.rules == "gaps")
    return stump_sums(
        Tables(
            codes=model.codes.astype(jnp.int32),
            num_codes=model.num_codes[None],
            statistics=statistics,
            rules=rules.astype(jnp.int32),
            tables=scoring[0],
            numbers=scoring[1][None],
            limits=jnp.stack([least, is_gaps])[None],
            kind=jnp.array([[SCORES.index(own_score(family)), model.ones is not None]], jnp.int32),
            rows=rows,
            is_wanted=is_wanted,
            nodes=jnp.concatenate(nodes, axis=1),
        )
    )


def _stump_weights(model: PackedModel, rows: jax.Array, depth, power) -> jax.Array:
    """Return log weights of stopping and of rules for m nodes on one level, [m, 1 + R]."""
    weights = node_weights(model, rows, depth)
    log_stop = weights.log_stop + power * leaf_scores(model, rows)
    log_split = weights.log_rules + side_stops(model, rows, depth)
    log_split += power[:, None] * split_scores(model, rows)
    return jnp.concatenate([log_stop[:, None], log_split], axis=1)


def _with_subtrees(
    model: PackedModel, state: State, is_top: jax.Array, rules: jax.Array
) -> tuple[State, jax.Array]:
    """Replace the subtrees below some nodes of each tree.

    Parameters
    ----------
    model, state
        The model, and trees.
    is_top
        bool [b, k]; the nodes.
    rules
        int32 [b, k, 3]; rules of each and of its children.

    Returns
    -------
    state, overflows
        The trees, and bool [b]; whether there was no room for all of a tree's new nodes.
    """
    shape = state.shape
    is_below, is_gone = is_top, jnp.zeros_like(is_top)
    for _ in range(_LEVELS_REDRAWN - 1):
        is_below = jnp.take_along_axis(is_below, shape.parent, axis=1)
        is_below &= shape.is_used & (places(shape) > 0)
        is_gone |= is_below
    shape, moved = cut_back(shape, is_top, is_gone)
    is_changed, rules = moved(is_top) & shape.is_used, moved(rules)
    rule, below, is_open = rules[..., 0], rules[..., 1:], is_changed
    overflows = jnp.zeros(len(shape.size), bool)
    for _ in range(_LEVELS_REDRAWN - 1):
        is_split = is_open & (rule != LEAF)
        shape, is_open, above, is_full = branched(shape, is_split, rule)
        own = jnp.take_along_axis(below, above, axis=1)
        rule = jnp.where(places(shape) % 2 == 1, own[..., 0], own[..., 1])
        overflows |= is_full
    return scored(model, shape, moved(state.rows), moved(state.scores), is_changed), overflows


KERNELS["redraw"] = NamedKernel(
    Redraw, "draws subtrees of at most two levels from their posterior, given the rest of the tree"
)
