"""Forward policies: the next action on a tree under construction (DT-GFN, section 4.3).

A policy represents a tree as the set of its leaves, and a leaf as the path of rules above it. It
encodes each leaf once, when the leaf is made; scores of a whole tree depend on the codes of its
leaves, in any order. The probability of an action is that of not stopping, times that of the leaf,
of the feature and of the cut.
"""

from typing import Any, NamedTuple, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.nn import log_sigmoid, log_softmax, relu

_KEY_SIZE = 32  # of the features of a leaf
_MOST_KNOTS = 16  # of one feature
_IMPOSSIBLE = -1e30  # log probability of masked items: probability 0, but a finite gradient


class Policy(Protocol):
    """A policy: a pytree with these methods; b trees, k slots, m nodes.

    Codes and contexts are arrays or pytrees of arrays. Features and cuts are counted as in
    `bdtppl.inference.gflownet.construction.Construction`. Logits of unavailable items are ignored.
    """

    def encode(self, paths: jax.Array) -> Any:
        """Return codes [m, ...] of nodes from their paths, int32 [m, D] (see `Partial`)."""
        ...

    def context(self, pooled: Any) -> Any:
        """Return contexts [b, ...] of trees from the sums [b, ...] of the codes of their leaves."""
        ...

    def stop(self, context: Any) -> jax.Array:
        """Return logits of stopping, [b]."""
        ...

    def leaves(self, codes: Any, context: Any) -> jax.Array:
        """Return logits of the leaf to split, [b, k]."""
        ...

    def features(self, code: Any, context: Any) -> jax.Array:
        """Return logits [b, F] of the feature to split leaves with codes [b, ...] on."""
        ...

    def cuts(self, code: Any, context: Any, feature: jax.Array) -> jax.Array:
        """Return logits [b, C] of the cut, given the feature, int [b]."""
        ...

    def undo(self, codes: Any) -> jax.Array | None:
        """Return logits [b, k] of undoing the splits above left children; None if uniform."""
        ...


def log_choices(logits: jax.Array, is_available: jax.Array) -> jax.Array:
    """Return log probabilities [..., items] of the available items."""
    return log_softmax(jnp.where(is_available, logits, _IMPOSSIBLE), axis=-1)


def log_stop_and_go(
    policy: Policy, context: Any, is_growable: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return log probabilities [b] of stopping and of splitting one of the leaves, bool [b, k].

    If there is no such leaf, the tree stops with probability 1.
    """
    logit, can_go = policy.stop(context), is_growable.any(axis=-1)
    log_stop = jnp.where(can_go, log_sigmoid(logit), 0.0)
    return log_stop, jnp.where(can_go, log_sigmoid(-logit), _IMPOSSIBLE)


class _Codes(NamedTuple):
    hidden: jax.Array  # [..., h]
    key: jax.Array  # [..., a]


class _Context(NamedTuple):
    stop: jax.Array  # [b]
    action: jax.Array  # [b, h]; the action network's input from all leaves


class PathPolicy(eqx.Module):
    """Two multilayer perceptrons of three hidden layers over sets of paths; h hidden units.

    The first layer sums one vector for each rule of a path and its side, times the gates of the
    rule's level. The order of rules matters: the same rules in another order give trees with a
    different number of construction orders, which stop with different probabilities under a uniform
    backward policy. The order of leaves does not matter. If a feature has many cuts, their vectors
    are interpolated between those of a few knots. A second layer computes the code of the leaf.
    From it, the third layer of the action network scores the leaf's features and, given the
    feature, its cuts; the third layer of the termination network reads the sum of the codes of all
    leaves. With a uniform backward policy, flows couple the subtrees of a tree, and scores of
    single leaves cannot represent this beyond two levels of splits. So the action network also
    reads a layer on that sum.

    Attributes
    ----------
    sees_all_leaves
        Whether the action network reads the sum; if not, leaves are scored independently, as in the
        paper.
    last
        Network from the code of a left child to the logit of undoing the split above; None if the
        backward policy is uniform, as in the paper.
    """

    rules: eqx.nn.Linear  # from 2 F K, the knots of each side of each feature
    path: eqx.nn.Linear
    key: eqx.nn.Linear
    pooled: eqx.nn.Linear
    termination: eqx.nn.Linear
    mixed: eqx.nn.Linear
    query: eqx.nn.Linear
    action: eqx.nn.Linear
    feature: eqx.nn.Linear
    feature_code: eqx.nn.Linear
    cut: eqx.nn.Linear
    last: eqx.nn.Linear | None
    num_cuts: int = eqx.field(static=True)
    num_knots: int = eqx.field(static=True)
    sees_all_leaves: bool = eqx.field(static=True)

    def __init__(
        self,
        rng_key: jax.Array,
        num_features: int,
        num_cuts: int,
        *,
        num_hidden: int = 256,
        sees_all_leaves: bool = True,
        learns_backward: bool = False,
    ):
        """Draw weights.

        Parameters
        ----------
        rng_key
            Key.
        num_features, num_cuts
            F and C of the `Construction`.
        num_hidden
            Hidden units h of each layer.
        sees_all_leaves
            Whether the action network reads the pooled set of leaves.
        learns_backward
            Whether the backward policy is learned.
        """
        keys, h = iter(jax.random.split(rng_key, 16)), num_hidden
        self.num_cuts, self.num_knots = num_cuts, min(num_cuts, _MOST_KNOTS)

        def linear(size_in: int, size_out: int) -> eqx.nn.Linear:
            return eqx.nn.Linear(size_in, size_out, dtype=jnp.float32, key=next(keys))

        # Paths have few entries, so their vectors are as large as those of one-hot units.
        rules = linear(2 * num_features * self.num_knots, h)
        weight = jax.random.normal(next(keys), rules.weight.shape, jnp.float32)
        self.rules = eqx.tree_at(lambda layer: layer.weight, rules, weight)
        self.path = linear(h, h)
        self.key = linear(h, _KEY_SIZE)
        self.pooled = linear(h, h)
        self.termination = linear(h, 1)
        self.mixed = linear(h, h)
        self.query = linear(h, _KEY_SIZE)
        self.action = linear(h, h)
        self.feature = linear(h, num_features)
        self.feature_code = linear(num_features, h)
        self.cut = linear(h, num_cuts)
        self.last = linear(h, 1) if learns_backward else None
        self.sees_all_leaves = sees_all_leaves

    def encode(self, paths: jax.Array) -> _Codes:
        """Return codes of nodes."""
        bias: Any = self.rules.bias
        summed = jnp.einsum("mdh,dh->mh", self._vectors(paths), self._gates(paths.shape[1]))
        hidden = relu(_linear(self.path, relu(summed + bias[None])))
        return _Codes(hidden, _linear(self.key, hidden))

    def _vectors(self, paths: jax.Array) -> jax.Array:
        """Return vectors of rules [m, D, h], interpolated between knots; 0 beyond the path."""
        place, side = jnp.maximum(paths, 0) // 2, paths % 2
        feature, cut = place // self.num_cuts, place % self.num_cuts
        position = cut * ((self.num_knots - 1) / max(self.num_cuts - 1, 1))
        below = jnp.minimum(position.astype(int), max(self.num_knots - 2, 0))
        above = jnp.minimum(below + 1, self.num_knots - 1)
        share = (position - below).astype(jnp.float32)[..., None]
        first, vectors = (2 * feature + side) * self.num_knots, self.rules.weight.T
        between = (1 - share) * vectors[first + below] + share * vectors[first + above]
        return jnp.where((paths >= 0)[..., None], between, 0.0)

    def _gates(self, num_levels: int) -> jax.Array:
        """Return the fixed gates of hidden units by level, float32 [D, h], around 1."""
        level = np.arange(num_levels)[:, None]
        unit = np.arange(self.rules.weight.shape[0])[None]
        golden = (np.sqrt(5) - 1) / 2  # its multiples spread the units' waves evenly
        return jnp.asarray(1 + np.cos(2 * np.pi * golden * level * (unit + 1)) / 2, jnp.float32)

    def context(self, pooled: _Codes) -> _Context:
        """Return contexts of trees."""
        together = relu(_linear(self.pooled, pooled.hidden))
        return _Context(_linear(self.termination, together)[:, 0], together * self.sees_all_leaves)

    def stop(self, context: _Context) -> jax.Array:
        """Return logits of stopping."""
        return context.stop

    def leaves(self, codes: _Codes, context: _Context) -> jax.Array:
        """Return logits of the leaf to split."""
        return jnp.einsum("ba,bka->bk", _linear(self.query, context.action), codes.key)

    def _action(self, code: _Codes, context: _Context) -> jax.Array:
        return _linear(self.action, code.hidden) + _linear(self.mixed, context.action)

    def features(self, code: _Codes, context: _Context) -> jax.Array:
        """Return logits of the feature."""
        return _linear(self.feature, relu(self._action(code, context)))

    def cuts(self, code: _Codes, context: _Context, feature: jax.Array) -> jax.Array:
        """Return logits of the cut, given the feature."""
        of_feature = jax.nn.one_hot(feature, self.feature.weight.shape[0], dtype=jnp.float32)
        hidden = self._action(code, context) + _linear(self.feature_code, of_feature)
        return _linear(self.cut, relu(hidden))

    def undo(self, codes: _Codes) -> jax.Array | None:
        """Return logits of undoing the splits above left children."""
        return None if self.last is None else _linear(self.last, codes.hidden)[..., 0]


def _linear(layer: eqx.nn.Linear, values: jax.Array) -> jax.Array:
    """Apply a layer to values [..., inputs]."""
    bias: Any = layer.bias
    return values @ layer.weight.T + bias.reshape((1,) * (values.ndim - 1) + (-1,))
