"""Equal nodes grouped, and computed once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bdtppl.inference.summaries.distinct import distinct, map_distinct


def drawn(size, width=2):
    rng = np.random.default_rng(size)
    return rng.integers(0, 3, (size, width)).astype(np.uint64) << np.uint64(40)


@jax.jit
def grouped_and_mapped(words):
    groups = distinct(words)
    weigh = lambda words: (words.sum(axis=1), words[:, ::-1])  # noqa: E731
    return groups, groups.is_member, map_distinct(weigh, words, groups, 4)


@pytest.mark.parametrize("size", [1, 3, 50])
def test_equal_nodes_are_one_group(size):
    words = drawn(size)
    with jax.enable_x64(True):
        groups, is_member, (sums, turned) = grouped_and_mapped(jnp.asarray(words))
    values, inverse = np.unique(words, axis=0, return_inverse=True)
    assert groups.number == len(values) == is_member.sum()
    pairs = set(zip(inverse.ravel().tolist(), np.asarray(groups.group).tolist(), strict=True))
    assert len(pairs) == len(values)
    np.testing.assert_array_equal(np.unique(words[np.asarray(is_member)], axis=0), values)
    np.testing.assert_array_equal(sums, words.sum(axis=1))
    np.testing.assert_array_equal(turned, words[:, ::-1])


def test_no_node_is_computed_twice():
    calls = []

    def counted(words):
        jax.debug.callback(lambda some: calls.append(len(some)), words)
        return words[:, 0]

    words = np.repeat(drawn(1), 64, axis=0)
    with jax.enable_x64(True):
        array = jnp.asarray(words)
        jax.block_until_ready(jax.jit(lambda w: map_distinct(counted, w, distinct(w), 4))(array))
        jax.effects_barrier()
    assert calls == [4]
