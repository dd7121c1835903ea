"""The network of log flows: learned statistics that add over rows, and a head on them.

A subproblem is a set of rows, so its representation must not depend on their order. Each row is
embedded, and the embeddings of a node's rows are summed: learned statistics that add like those of
a leaf family (Zaheer et al. 2017, Deep Sets). A second network reads the sums and a few facts of
the node that are computed exactly.
"""

from collections.abc import Sequence
from typing import Protocol

import equinox as eqx
import jax
import jax.numpy as jnp


class Flow(Protocol):
    """A learner of log flows: a pytree of arrays with these methods."""

    def statistics(self, rows: jax.Array) -> jax.Array:
        """Additive statistics [n, k] of rows, from their inputs, float32 [n, q]."""
        ...

    def __call__(self, statistics: jax.Array, facts: jax.Array) -> jax.Array:
        """Return the differences of nodes' log flows from their bases, [m].

        From sums of statistics over their rows [m, k] and facts [m, f] (see
        `bdtppl.inference.gflownet.grammar.Seen`).
        """
        ...


class _Layers(eqx.Module):
    """Dense layers with SiLU between them."""

    layers: tuple[eqx.nn.Linear, ...]

    def __init__(self, rng_key: jax.Array, sizes: Sequence[int]):
        keys = jax.random.split(rng_key, len(sizes) - 1)
        self.layers = tuple(
            eqx.nn.Linear(size, next_size, dtype=jnp.float32, key=key)
            for key, size, next_size in zip(keys, sizes[:-1], sizes[1:], strict=True)
        )

    def __call__(self, inputs: jax.Array) -> jax.Array:
        for layer in self.layers[:-1]:
            inputs = jax.nn.silu(jax.vmap(layer)(inputs))
        return jax.vmap(self.layers[-1])(inputs)


class FlowNetwork(eqx.Module):
    """Rows embedded and summed, then a head; at first every flow is its base.

    Parameters
    ----------
    rng_key
        Key of the first weights.
    num_inputs, num_facts
        Sizes of the description of a row, and of a node.
    width
        Units of the hidden layers.
    num_statistics
        Learned statistics of a row.
    """

    embedding: _Layers
    head: _Layers

    def __init__(
        self,
        rng_key: jax.Array,
        num_inputs: int,
        num_facts: int,
        *,
        width: int = 128,
        num_statistics: int = 32,
    ):
        key_embedding, key_head = jax.random.split(rng_key)
        self.embedding = _Layers(key_embedding, (num_inputs, width, num_statistics))
        head = _Layers(key_head, (2 * num_statistics + num_facts, width, width, 1))
        last = jax.tree.map(jnp.zeros_like, head.layers[-1])
        self.head = eqx.tree_at(lambda layers: layers.layers[-1], head, last)

    def statistics(self, rows: jax.Array) -> jax.Array:
        """Embed rows [n, q]; the last statistic of each is 1 and counts them, [n, k + 1]."""
        return jnp.pad(self.embedding(rows), ((0, 0), (0, 1)), constant_values=1.0)

    def __call__(self, statistics: jax.Array, facts: jax.Array) -> jax.Array:
        """Return log flows [m] relative to their bases."""
        sums, count = statistics[:, :-1], jnp.maximum(statistics[:, -1:], 1.0)
        return self.head(jnp.concatenate([sums / count, sums / jnp.sqrt(count), facts], axis=1))[
            :, 0
        ]
