"""Trajectories: a batch of trees made step by step together, with what a policy says on the way.

Some are drawn from the policy, others are given. Each leaf is encoded once, when it is made. Log
probabilities can be differentiated, so that one pass both draws and judges.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from bdtppl.inference.gflownet.backward import log_parents, steps_of_splits
from bdtppl.inference.gflownet.construction import (
    Construction,
    Partial,
    begin,
    offered,
    split_leaf,
)
from bdtppl.inference.gflownet.policy import Policy, log_choices, log_stop_and_go
from bdtppl.inference.metropolis.growth import draw
from bdtppl.inference.shapes import Shape

__all__ = ["Trajectories", "roll_out"]

_GO, _SLOT, _FEATURE, _CUT = range(4)  # the choices of a step
_ANY = -1

Pick = Callable[[int, jax.Array, jax.Array], tuple[jax.Array, jax.Array]]


class Trajectories(NamedTuple):
    """Trees of b trajectories of at most T splits, and what is known along the way.

    Attributes
    ----------
    trees
        The trees, their slots in the order of their making.
    log_forward, log_backward
        float64 [b, T]; log probabilities of each split, and of undoing it first; 0 beyond the last
        one.
    log_stop
        float64 [b, T + 1]; log probability of stopping before each split and after the last one.
    log_joint
        float64 [b, T + 1]; log prior weight plus log likelihood of the tree there.
    """

    trees: Partial
    log_forward: jax.Array
    log_backward: jax.Array
    log_stop: jax.Array
    log_joint: jax.Array

    @property
    def num_splits(self) -> jax.Array:
        """Splits of each trajectory, int32 [b]."""
        return self.trees.shape.size // 2

    @property
    def is_reached(self) -> jax.Array:
        """Whether a trajectory has a tree of that many splits, bool [b, T + 1]."""
        return jnp.arange(self.log_stop.shape[1])[None] <= self.num_splits[:, None]

    @property
    def log_potentials(self) -> jax.Array:
        """Log of Z according to each tree on the way, float64 [b, T + 1]."""
        so_far = jnp.cumsum(self.log_backward - self.log_forward, axis=1)
        return self.log_joint - self.log_stop + jnp.pad(so_far, ((0, 0), (1, 0)))

    @property
    def log_weights(self) -> jax.Array:
        """Log importance weights of the trajectories, float64 [b]: their weights' mean is Z."""
        return jnp.take_along_axis(self.log_potentials, self.num_splits[:, None], axis=1)[:, 0]


def roll_out(
    rng_key: jax.Array,
    construction: Construction,
    policy: Policy,
    epsilon: Any = 0.0,
    *,
    num_drawn: int = 0,
    given: Shape | None = None,
) -> Trajectories:
    """Make trees from the root on; inside a double-precision scope.

    Parameters
    ----------
    rng_key
        Key.
    construction
        What trees are made of.
    policy
        The policy.
    epsilon
        Probability with which a step of a drawn trajectory makes each of its choices uniformly
        instead: whether to stop, the leaf, the feature and the cut.
    num_drawn
        Trajectories to draw.
    given
        Trees to make as well, whose slots lie in the order of their making; they come after those
        drawn. The log joint of one with a rule that is not available is -inf.
    """
    wanted = _wanted(construction, num_drawn, given)
    most, num_choices, num_trees = wanted.shape
    uniform = jax.random.uniform(rng_key, (most, 1 + num_choices, num_trees))
    trees = begin(construction, num_trees)
    root = policy.encode(trees.paths[:1, 0])
    codes = jax.tree.map(
        lambda a: jnp.broadcast_to(a[:, None], (num_trees, construction.capacity, *a.shape[1:])),
        root,
    )

    def step(i, wanted, uniform, trees, codes, is_going):
        pick = _picker(wanted, uniform[:-1], uniform[-1] < epsilon)
        trees, is_going, *log_probabilities = _step(
            construction, policy, trees, codes, is_going, pick
        )
        codes = _with_children(policy, codes, trees, 2 * i + 1)
        return (trees, codes, is_going), tuple(log_probabilities)

    def step_if_any(carry, each):
        nothing = jnp.zeros(num_trees), jnp.zeros(num_trees)
        return lax.cond(carry[2].any(), lambda: step(*each, *carry), lambda: (carry, nothing))

    carry = trees, codes, jnp.ones(num_trees, bool)
    steps = jnp.arange(most, dtype=jnp.int32), wanted, uniform
    (trees, _, _), (log_forward, log_stop) = lax.scan(step_if_any, carry, steps)
    return Trajectories(
        trees,
        log_forward.T,
        -log_parents(trees.shape),
        jnp.pad(log_stop.T, ((0, 0), (0, 1))),  # a tree without room stops
        _log_joints(trees),
    )


def _step(construction, policy: Policy, trees: Partial, codes, is_going, pick: Pick):
    """Stop, or split a leaf; trees, which of them go on, and the log probabilities of both."""
    is_open = trees.shape.is_leaf
    growable, tree = is_open & (trees.terms.has_rule > 0), jnp.arange(len(is_going))
    context = policy.context(codes, is_open)
    log_stop, log_go = log_stop_and_go(policy, context, growable)
    can = jnp.stack([jnp.ones_like(is_going), growable.any(axis=1)], axis=1)
    go, log_go = pick(_GO, jnp.stack([log_stop, log_go], axis=1), can)
    slot, log_slot = pick(_SLOT, log_choices(policy.leaves(codes, context), growable), growable)

    found, rules = offered(construction, trees, slot)
    is_own, features = _is_at(slot, is_open), rules.any(axis=2)
    code = jax.tree.map(lambda a: jnp.einsum("bk,bk...->b...", is_own.astype(a.dtype), a), codes)
    log_features = log_choices(policy.features(code, context), features)
    feature, log_feature = pick(_FEATURE, log_features, features)
    cuts = rules[tree, feature]
    cut, log_cut = pick(_CUT, log_choices(policy.cuts(code, context, feature), cuts), cuts)

    is_going &= go == 1
    rule = jnp.maximum(construction.rule[feature, cut], 0)
    trees = split_leaf(construction, trees, is_going, slot, found, rule)
    log_forward = jnp.where(is_going, log_go + log_slot + log_feature + log_cut, 0.0)
    return trees, is_going, log_forward.astype(float), log_stop.astype(float)


def _is_at(place: jax.Array, values: jax.Array) -> jax.Array:
    """Mark one entry of each row [b, items]: faster to differentiate than to look it up."""
    return jnp.arange(values.shape[1])[None] == place[:, None]


def _picker(wanted: jax.Array, uniform: jax.Array, explores: jax.Array) -> Pick:
    """Make a choice: as it is wanted, int32 [4, b], or drawn, uniformly where a tree explores.

    A choice is told by its number, the log probabilities [b, items] and what is available; the item
    and its log probability are returned.
    """

    def pick(choice, log_probabilities, is_available):
        fixed = lax.stop_gradient(log_probabilities)
        flat = jnp.where(is_available, 0.0, -jnp.inf).astype(fixed.dtype)
        drawn = draw(jnp.where(explores[:, None], flat, fixed), uniform[choice])
        item = jnp.where(wanted[choice] == _ANY, drawn, wanted[choice])
        return item, jnp.where(_is_at(item, fixed), log_probabilities, 0.0).sum(axis=1)

    return pick


def _wanted(construction: Construction, num_drawn: int, given: Shape | None) -> jax.Array:
    """Tell what each step is to choose, int32 [T, 4, b]; `_ANY` where it is drawn."""
    most = construction.num_splits
    drawn = jnp.full((most, 4, num_drawn), _ANY, jnp.int32)
    if given is None:
        return drawn
    is_own = steps_of_splits(given)[None] == jnp.arange(most)[:, None, None]
    slot = jnp.argmax(is_own, axis=2)
    rule = jnp.maximum(given.rule[jnp.arange(len(given.size))[None], slot], 0)
    go, feature, cut = is_own.any(axis=2), construction.feature[rule], construction.cut[rule]
    chosen = jnp.stack([jnp.int32(each) for each in (go, slot, feature, cut)], axis=1)
    return jnp.concatenate([drawn, chosen], axis=2)


def _with_children(policy: Policy, codes, trees: Partial, first: jax.Array):
    """Write the codes of two new slots of all trees into those of the others."""
    paths = lax.dynamic_slice_in_dim(trees.paths, first, 2, axis=1)
    new = policy.encode(paths.reshape(-1, paths.shape[-1]))
    return jax.tree.map(
        lambda known, own: lax.dynamic_update_slice_in_dim(
            known, own.reshape(*paths.shape[:2], *own.shape[1:]), first, axis=1
        ),
        codes,
        new,
    )


def _log_joints(trees: Partial) -> jax.Array:
    """Log joint of each tree on the way, float64 [b, T + 1]."""
    shape, terms = trees.shape, trees.terms
    split_at, slot = steps_of_splits(shape)[:, None], jnp.arange(shape.capacity)[None, None]
    step = jnp.arange(shape.capacity // 2 + 1)[None, :, None]
    is_open = shape.is_used[:, None] & ((slot + 1) // 2 <= step) & (step <= split_at)
    log_leaf = (terms.log_stop + terms.leaf_score)[:, None]
    is_split = shape.is_split[:, None] & (split_at < step)
    log_rule = jnp.where(is_split, terms.log_rule[:, None], 0.0)
    return jnp.where(is_open, log_leaf, log_rule).sum(axis=2)
