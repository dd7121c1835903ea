"""Trajectories of a policy: trees that it draws, or given trees that it rebuilds.

Trees of a batch are made together, one split a step, until all have stopped. The policy's
probabilities are then looked up for all steps at once (`judged`). Training differentiates this
lookup, which takes a fraction of the time of differentiating the construction.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from bdtppl.inference.gflownet.backward import log_backward, steps_of_splits
from bdtppl.inference.gflownet.construction import (
    Construction,
    Partial,
    begin_trees,
    offered,
    split_leaf,
)
from bdtppl.inference.gflownet.policy import Policy, log_choices, log_stop_and_go
from bdtppl.inference.gflownet.trajectories import Trajectories, log_joints, open_slots
from bdtppl.inference.hard.shapes import Shape
from bdtppl.inference.metropolis.growth import draw_choice

_GO, _SLOT, _FEATURE, _CUT = range(4)  # the choices of a step
_ANY = -1

_FEW = 4  # share of the trees, the last ones, that are finished separately
_MANY_SPLITS = 8  # splits of a tree from which this is worthwhile

Pick = Callable[[int, jax.Array, jax.Array], tuple[jax.Array, jax.Array]]


class _RolloutSteps(NamedTuple):
    """Records of each step; arrays [b, T, ...]."""

    features: jax.Array
    cuts: jax.Array
    log_forward: jax.Array
    log_stop: jax.Array


class _Making(NamedTuple):
    """Trees under construction; all arrays [b, ...]."""

    trees: Partial
    codes: Any  # [b, k, ...]
    is_going: jax.Array  # bool [b]
    wanted: jax.Array  # int32 [b, T, 4]
    uniform: jax.Array  # float64 [b, T, 5]
    noted: _RolloutSteps


def roll_out(
    rng_key: jax.Array,
    construction: Construction,
    policy: Policy,
    epsilon: Any = 0.0,
    *,
    temperature: float = 1.0,
    num_drawn: int = 0,
    given: Shape | None = None,
) -> Trajectories:
    """Make trees from the root; inside a double-precision scope.

    Parameters
    ----------
    rng_key
        Key.
    construction
        The rules.
    policy
        The policy.
    epsilon
        Probability of a uniform choice instead, for each choice in a step of a drawn trajectory:
        whether to stop, the leaf, the feature and the cut.
    temperature
        Choices are drawn with the policy's probabilities to the power of one over this temperature.
    num_drawn
        Number of trajectories to draw.
    given
        Given trees to rebuild, with slots in the order of their creation; they follow the drawn
        ones. The log joint of one with an unavailable rule is -inf.
    """
    wanted = _wanted(construction, num_drawn, given)
    num_trees, most, num_choices = wanted.shape
    trees = begin_trees(construction, num_trees)
    made = _Making(
        trees,
        jax.tree.map(
            lambda a: jnp.broadcast_to(a[:, None], (*trees.shape.rule.shape, *a.shape[1:])),
            policy.encode(trees.paths[:1, 0]),
        ),
        jnp.ones(num_trees, bool),
        wanted,
        jax.random.uniform(rng_key, (num_trees, most, 1 + num_choices)),
        _RolloutSteps(
            jnp.zeros((num_trees, most, construction.num_features), bool),
            jnp.zeros((num_trees, most, construction.num_cuts), bool),
            *jnp.zeros((2, num_trees, most)),
        ),
    )

    def make(start, made: _Making, num_left: int):
        """Continue until few trees are left."""

        def step(carry):
            i, made = carry
            return i + 1, _roll_step(construction, policy, epsilon, temperature, i, made)

        def goes_on(carry):
            i, made = carry
            return (i < most) & (made.is_going.sum() > num_left)

        return lax.while_loop(goes_on, step, (start, made))

    few = num_trees // _FEW
    if most < _MANY_SPLITS or few == 0:
        _, made = make(jnp.int32(0), made, 0)
    else:  # most trees are small: the few large ones are finished separately
        step, made = make(jnp.int32(0), made, few)
        (own,) = jnp.nonzero(made.is_going, size=few, fill_value=num_trees)
        rest = jax.tree.map(lambda a: a[own], made)
        rest = rest._replace(is_going=rest.is_going & (own < num_trees))
        _, rest = make(step, rest, 0)
        made = jax.tree.map(lambda a, new: a.at[own].set(new, mode="drop"), made, rest)
    trees, noted = made.trees, made.noted
    return Trajectories(
        trees,
        noted.features,
        noted.cuts,
        noted.log_forward,
        log_backward(trees.shape, _undo_logits(policy, trees.shape, made.codes)),
        jnp.pad(noted.log_stop, ((0, 0), (0, 1))),  # a tree without room stops
        log_joints(trees, trees.terms.leaf_score),
    )


def _roll_step(construction, policy: Policy, epsilon, temperature, i: jax.Array, made: _Making):
    """Stop, or split a leaf of each unfinished tree."""
    trees, tree = made.trees, jnp.arange(len(made.is_going))
    is_open = trees.shape.is_leaf
    growable = is_open & (trees.terms.has_rule > 0)
    pooled = _pooled(made.codes, is_open[:, None], lambda a: a[:, 0])
    found_of: list[Any] = []

    def offer(slot):
        available, rules = offered(construction, trees, slot)
        found_of.append(available)
        return rules.any(axis=2), lambda feature: rules[tree, feature]

    uniform = made.uniform[:, i]
    explores = uniform[:, -1] < epsilon
    pick = _picker(made.wanted[:, i], uniform, explores, temperature)
    chosen, own = _decide(policy, made.codes, tree, pooled, growable, offer, pick)
    go, slot, feature, cut = chosen
    is_going = made.is_going & (go == 1)
    rule = jnp.maximum(construction.rule[feature, cut], 0)
    trees = split_leaf(construction, trees, is_going, slot, found_of[0], rule)
    own = own._replace(log_forward=jnp.where(is_going, own.log_forward, 0.0))
    return made._replace(
        trees=trees,
        codes=_with_children(policy, made.codes, trees, 2 * i + 1),
        is_going=is_going,
        noted=jax.tree.map(lambda steps, new: steps.at[:, i].set(new), made.noted, own),
    )


def judged(
    construction: Construction, policy: Policy, made: Trajectories, num_decisions: int
) -> Trajectories:
    """Return the probabilities of a policy on trajectories, differentiably.

    Only decisions that were made are looked up, side by side, because most trajectories have few.

    Parameters
    ----------
    construction
        The rules.
    policy
        The policy.
    made
        The trajectories.
    num_decisions
        Room for all their decisions (`Trajectories.decides`).
    """
    shape, beyond = made.trees.shape, len(made.log_stop)
    tree, step = jnp.nonzero(made.decides, size=num_decisions, fill_value=beyond)
    # A decision makes two nodes or none; roots exist before any decision.
    own, slot = jnp.nonzero(shape.is_used, size=2 * num_decisions + beyond, fill_value=beyond)
    codes = jax.tree.map(
        lambda a: (
            jnp.zeros((*shape.rule.shape, *a.shape[1:]), a.dtype).at[own, slot].set(a, mode="drop")
        ),
        policy.encode(made.trees.paths[own, slot]),
    )
    is_open = open_slots(shape)[:, :-1]
    pooled = _pooled(codes, is_open, lambda a: a[tree, step])
    growable = is_open[tree, step] & (made.trees.terms.has_rule[tree] > 0)
    wanted = _wanted(construction, 0, shape)[tree, step]
    _, noted = _decide(
        policy,
        codes,
        tree,
        pooled,
        growable,
        lambda slot: (made.features[tree, step], lambda feature: made.cuts[tree, step]),
        lambda choice, log_p, is_available: (wanted[:, choice], _at(wanted[:, choice], log_p)),
    )
    is_split = step < made.num_splits[tree]
    log_forward = jnp.where(is_split, noted.log_forward, 0.0)
    return made._replace(
        log_backward=log_backward(shape, _undo_logits(policy, shape, codes)),
        log_forward=jnp.zeros_like(made.log_forward).at[tree, step].set(log_forward, mode="drop"),
        log_stop=jnp.zeros_like(made.log_stop).at[tree, step].set(noted.log_stop, mode="drop"),
    )


def _decide(policy: Policy, codes, tree, pooled, growable, offer, pick: Pick):
    """Return m decisions: whether to continue, the leaf, the feature and the cut, int32 [m] each.

    Codes [b, k, ...] are those of all trees, and ``tree`` [m] is the tree of each decision.
    ``offer`` returns the available features of leaves, and a function from features to cuts.
    """
    context = policy.context(pooled)
    log_stop, log_go = log_stop_and_go(policy, context, growable)
    can = jnp.stack([jnp.ones_like(tree, bool), growable.any(axis=1)], axis=1)
    go, log_go = pick(_GO, jnp.stack([log_stop, log_go], axis=1), can)
    logits = policy.leaves(jax.tree.map(lambda a: a[tree], codes), context)
    slot, log_slot = pick(_SLOT, log_choices(logits, growable), growable)
    features, cuts_of = offer(slot)
    code = jax.tree.map(lambda a: a[tree, slot], codes)
    log_features = log_choices(policy.features(code, context), features)
    feature, log_feature = pick(_FEATURE, log_features, features)
    cuts = cuts_of(feature)
    cut, log_cut = pick(_CUT, log_choices(policy.cuts(code, context, feature), cuts), cuts)
    log_forward = (log_go + log_slot + log_feature + log_cut).astype(float)
    return (go, slot, feature, cut), _RolloutSteps(
        features, cuts, log_forward, log_stop.astype(float)
    )


def _pooled(codes, is_open: jax.Array, some: Callable[[jax.Array], jax.Array]):
    """Sum codes [b, k, ...] over the leaves, bool [b, s, k], of some of the trees there."""
    return jax.tree.map(
        lambda a: some(jnp.einsum("bsk,bk...->bs...", is_open.astype(a.dtype), a)), codes
    )


def _at(place: jax.Array, values: jax.Array) -> jax.Array:
    """Return one entry of each row [b, items]; its derivative is faster than that of indexing."""
    is_there = jnp.arange(values.shape[1])[None] == place[:, None]
    return jnp.where(is_there, values, 0.0).sum(axis=1)


def undo_logits(policy: Policy, trees: Partial) -> jax.Array | None:
    """Return logits of undoing the split in each slot, [b, k]; None if all are equal."""
    paths = trees.paths
    codes = jax.tree.map(
        lambda a: a.reshape(*paths.shape[:2], *a.shape[1:]),
        policy.encode(paths.reshape(-1, paths.shape[2])),
    )
    return _undo_logits(policy, trees.shape, codes)


def _undo_logits(policy: Policy, shape: Shape, codes) -> jax.Array | None:
    logits = policy.undo(codes)  # of left children
    return None if logits is None else jnp.take_along_axis(logits, shape.left, axis=1)


def _picker(wanted: jax.Array, uniform: jax.Array, explores: jax.Array, temperature: float) -> Pick:
    """Make a function that returns a given choice, int32 [b, 4], or draws one.

    Its arguments are the number of the choice, the log probabilities [b, items] and the available
    items; it returns the item and its log probability.
    """

    def pick(choice, log_probabilities, is_available):
        flat = jnp.where(is_available, 0.0, -jnp.inf).astype(log_probabilities.dtype)
        law = jnp.where(explores[:, None], flat, log_probabilities / temperature)
        drawn = draw_choice(law, uniform[:, choice])
        item = jnp.where(wanted[:, choice] == _ANY, drawn, wanted[:, choice])
        return item, _at(item, log_probabilities)

    return pick


def _wanted(construction: Construction, num_drawn: int, given: Shape | None) -> jax.Array:
    """List the choices of each step, int32 [b, T, 4]; `_ANY` for choices to draw."""
    most = construction.num_splits
    drawn = jnp.full((num_drawn, most, 4), _ANY, jnp.int32)
    if given is None:
        return drawn
    is_own = steps_of_splits(given)[:, None] == jnp.arange(most)[None, :, None]
    slot = jnp.argmax(is_own, axis=2)
    rule = jnp.maximum(jnp.take_along_axis(given.rule, slot, axis=1), 0)
    go, feature, cut = is_own.any(axis=2), construction.feature[rule], construction.cut[rule]
    chosen = jnp.stack([jnp.int32(each) for each in (go, slot, feature, cut)], axis=2)
    return jnp.concatenate([drawn, chosen])


def _with_children(policy: Policy, codes, trees: Partial, first: jax.Array):
    """Insert the codes of two new slots of all trees."""
    paths = lax.dynamic_slice_in_dim(trees.paths, first, 2, axis=1)
    new = policy.encode(paths.reshape(-1, paths.shape[-1]))
    return jax.tree.map(
        lambda known, own: lax.dynamic_update_slice_in_dim(
            known, own.reshape(*paths.shape[:2], *own.shape[1:]), first, axis=1
        ),
        codes,
        new,
    )
