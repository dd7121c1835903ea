"""Forward policies: what to do next with a tree under construction (DT-GFN, section 4.3).

A policy sees a tree as the set of its leaves, and a leaf as the path of rules above it. It encodes
each leaf once, when it is made; scores of a whole tree follow from the codes of its leaves, in any
order. The probability of an action is that of not stopping, times that of the leaf, of the feature
and of the cut.
"""

from typing import Any, NamedTuple, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.nn import log_sigmoid, log_softmax, relu

__all__ = ["PathPolicy", "Policy", "log_choices", "log_stop_and_go"]

_IMPOSSIBLE = -1e30  # log probability of what is masked: its probability is 0, its gradient finite


class Policy(Protocol):
    """What a policy is: a pytree with these methods; b trees, k slots, t states of each, m nodes.

    Codes and contexts are arrays or pytrees of arrays. Features and cuts are counted as in
    `bdtppl.inference.gflownet.construction.Construction`. Logits of what is not available are
    ignored.
    """

    def encode(self, paths: jax.Array) -> Any:
        """Codes [m, ...] of nodes by their paths, int32 [m, D] (see `Trajectories`)."""
        ...

    def context(self, codes: Any, is_open: jax.Array) -> Any:
        """Contexts [b, t, ...] of trees with the open leaves, bool [b, t, k]."""
        ...

    def stop(self, context: Any) -> jax.Array:
        """Logits of stopping, [b, t]."""
        ...

    def leaves(self, codes: Any, context: Any) -> jax.Array:
        """Logits of the leaf to split, [b, t, k]."""
        ...

    def features(self, code: Any, context: Any) -> jax.Array:
        """Logits [b, t, F] of the feature to split leaves with codes [b, t, ...] on."""
        ...

    def cuts(self, code: Any, context: Any, feature: jax.Array) -> jax.Array:
        """Logits [b, t, C] of the cut, given the feature, int [b, t]."""
        ...


def log_choices(logits: jax.Array, is_available: jax.Array) -> jax.Array:
    """Log probabilities [..., items] of the items that are available."""
    return log_softmax(jnp.where(is_available, logits, _IMPOSSIBLE), axis=-1)


def log_stop_and_go(
    policy: Policy, context: Any, is_growable: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Log probabilities [b, t] of stopping and of splitting one of the leaves, bool [b, t, k].

    Where there is none the tree stops with probability 1.
    """
    logit, can_go = policy.stop(context), is_growable.any(axis=-1)
    log_stop = jnp.where(can_go, log_sigmoid(logit), 0.0)
    return log_stop, jnp.where(can_go, log_sigmoid(-logit), _IMPOSSIBLE)


class _Context(NamedTuple):
    stop: jax.Array  # [b, t]
    action: jax.Array  # [b, t, h]; what the action network sees of all leaves


class PathPolicy(eqx.Module):
    """Two multilayer perceptrons over sets of paths; h hidden units.

    The first layer of a path sums one vector for each rule and side on it, so neither the order of
    leaves nor that of the rules above one matters. Two more layers make a leaf's code, from which
    the action network scores the leaf, its features and cuts. The termination network reads the sum
    over the leaves. With a uniform backward policy, flows couple the subtrees of a tree, which no
    score of each leaf alone represents beyond two levels of splits, so the action network reads
    that sum as well.

    Attributes
    ----------
    sees_all_leaves
        Whether it does; if not, leaves are scored independently, as in the paper.
    """

    rules: jax.Array  # [F, C, 2, h]
    path: tuple[eqx.nn.Linear, eqx.nn.Linear]
    termination: tuple[eqx.nn.Linear, eqx.nn.Linear, eqx.nn.Linear]
    pooled: eqx.nn.Linear
    query: eqx.nn.Linear
    leaf: eqx.nn.Linear
    feature: eqx.nn.Linear
    feature_code: jax.Array  # [F, h]
    cut: tuple[eqx.nn.Linear, eqx.nn.Linear]
    sees_all_leaves: bool = eqx.field(static=True)

    def __init__(
        self,
        rng_key: jax.Array,
        num_features: int,
        num_cuts: int,
        *,
        num_hidden: int = 256,
        sees_all_leaves: bool = True,
    ):
        """Draw weights.

        Parameters
        ----------
        rng_key
            Key.
        num_features, num_cuts
            Those of the `Construction`, F and C.
        num_hidden
            Hidden units h of each layer.
        sees_all_leaves
            Whether the action network reads the pooled set of leaves.
        """
        keys = iter(jax.random.split(rng_key, 13))
        hidden = num_hidden

        def linear(size_in: int, size_out: int) -> eqx.nn.Linear:
            return eqx.nn.Linear(size_in, size_out, dtype=jnp.float32, key=next(keys))

        def normal(*shape: int) -> jax.Array:
            return jax.random.normal(next(keys), shape, jnp.float32)

        self.rules = normal(num_features, num_cuts, 2, hidden)
        self.path = linear(hidden, hidden), linear(hidden, hidden)
        self.termination = linear(hidden, hidden), linear(hidden, hidden), linear(hidden, 1)
        self.pooled = linear(hidden, hidden)
        self.query = linear(hidden, hidden)
        self.leaf = linear(hidden, 1)
        self.feature = linear(hidden, num_features)
        self.feature_code = normal(num_features, hidden)
        self.cut = linear(hidden, hidden), linear(hidden, num_cuts)
        self.sees_all_leaves = sees_all_leaves

    def encode(self, paths: jax.Array) -> jax.Array:
        """Codes float32 [m, h] of nodes."""
        rules = self.rules.reshape(-1, self.rules.shape[-1])
        each = jnp.where((paths >= 0)[..., None], rules[jnp.maximum(paths, 0)], 0.0)
        first, second = self.path
        return _layer(second, relu(_layer(first, relu(each.sum(axis=-2)))))

    def context(self, codes: jax.Array, is_open: jax.Array) -> _Context:
        """Contexts of trees."""
        pooled = jnp.einsum("btk,bkh->bth", is_open.astype(codes.dtype), relu(codes))
        first, second, last = self.termination
        stop = _layer(last, relu(_layer(second, relu(_layer(first, pooled)))))[..., 0]
        action = relu(_layer(self.pooled, pooled * self.sees_all_leaves))
        return _Context(stop, action)

    def stop(self, context: _Context) -> jax.Array:
        """Logits of stopping."""
        return context.stop

    def leaves(self, codes: jax.Array, context: _Context) -> jax.Array:
        """Logits of the leaf to split."""
        hidden, query = relu(codes), _layer(self.query, context.action)
        together = jnp.einsum("bth,bkh->btk", query, hidden) / hidden.shape[-1] ** 0.5
        return together + _layer(self.leaf, hidden)[:, None, :, 0]

    def _hidden(self, code: jax.Array, context: _Context) -> jax.Array:
        return relu(code + context.action)

    def features(self, code: jax.Array, context: _Context) -> jax.Array:
        """Logits of the feature."""
        return _layer(self.feature, self._hidden(code, context))

    def cuts(self, code: jax.Array, context: _Context, feature: jax.Array) -> jax.Array:
        """Logits of the cut, given the feature."""
        first, second = self.cut
        hidden = _layer(first, self._hidden(code, context)) + self.feature_code[feature]
        return _layer(second, relu(hidden))


def _layer(linear: eqx.nn.Linear, values: jax.Array) -> jax.Array:
    """Apply a layer to values with any leading axes."""
    flat = values.reshape(-1, values.shape[-1])
    return jax.vmap(linear)(flat).reshape(*values.shape[:-1], -1)
