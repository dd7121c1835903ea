"""Independent draws from the exact posterior: whole trees and single root-to-leaf paths.

Once the chart is scored, a tree is drawn from the root down: a node stops, or uses a production,
with the probabilities of Sullivan et al. 2023, equations 15 and 16. A draw's queue of nodes is the
tree's array itself; one step of the loop handles one slot of all draws at once, by binary search
over the node's cumulative production probabilities. Every draw has a key of its own and every slot
a key made from it, so neither chunks nor capacities change a draw.

Functions run inside a `jax.enable_x64` scope.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from bdtppl.inference.padding import padded_size
from bdtppl.inference.pcfg.chart import Chart, block_of, take
from bdtppl.inference.pcfg.passes import log_stops, log_terms, rule_weights
from bdtppl.inference.pcfg.sides import Sides
from bdtppl.inference.precision import in_float64

__all__ = [
    "Choices",
    "Derivations",
    "choice_probabilities",
    "sample_chunk",
    "sample_derivations",
    "sample_paths",
]

_CHUNK = 8192

T = TypeVar("T")


class Choices(NamedTuple):
    """What a node chooses from, at each depth.

    Attributes
    ----------
    stop
        float64 [N, D]; probability of stopping.
    cumulative
        float64 [E, D]; probability of this production of its parent or an earlier one.
    """

    stop: jax.Array
    cumulative: jax.Array


class Derivations(NamedTuple):
    """Trees as derivations of the grammar, drawn or ranked; b trees, k slots.

    Slots are a queue: the children of the j-th split lie in slots 2j + 1 and 2j + 2.

    Attributes
    ----------
    production
        int32 [b, k]; production used in each slot, -1 in leaves and unused slots.
    place
        float64 [b, k]; number in [0, 1) that picks a cut inside the production's gap; [b, 0] where
        every gap has one rule.
    num_nodes
        int32 [b]; slots in use.
    """

    production: Any
    place: Any
    num_nodes: Any

    @property
    def left(self) -> np.ndarray:
        """Slot of the left child (the right one follows it), int32 [b, k]; 0 in leaves."""
        splits = self.production >= 0
        return np.where(splits, 2 * np.cumsum(splits, axis=1, dtype=np.int32) - 1, 0)


@jax.jit
def _cumulative(chart: Chart, prior, feature_weight, log_q):
    def step(i, cumulative):
        block = block_of(chart, i)
        log_split = rule_weights(prior, feature_weight, block)
        terms = log_terms(chart, block, log_q, log_split)
        parents = chart.node_range[i, 0] + block.slot
        running = jnp.cumsum(jnp.exp(terms - take(log_q, parents)), axis=0)
        # Subtract what earlier nodes of the block have added.
        first = take(chart.first_production, parents) - block.production_start
        before = jnp.where(first[:, None] > 0, take(running, jnp.maximum(first - 1, 0)), 0.0)
        old = lax.dynamic_slice_in_dim(cumulative, block.production_start, len(running))
        new = jnp.where(block.is_production[:, None], running - before, old)
        return lax.dynamic_update_slice_in_dim(cumulative, new, block.production_start, 0)

    start = jnp.zeros((len(chart.left), len(chart.levels)))
    return lax.fori_loop(0, chart.num_blocks, step, start)


def choice_probabilities(chart: Chart, prior, leaf_scores, feature_weight, log_q) -> Choices:
    """Tabulate every node's choice probabilities (equations 15 and 16)."""
    return Choices(
        stop=jnp.exp(log_stops(chart, prior, leaf_scores) - log_q),
        cumulative=_cumulative(chart, prior, feature_weight, log_q),
    )


def _choose(chart: Chart, choices: Choices, node, depth, uniform):
    """Whether nodes stop, and the production they use if not; all [b]."""
    level = jnp.minimum(depth, choices.stop.shape[1] - 1)
    target = uniform - take(choices.stop, (node, level))
    first = take(chart.first_production, node)
    last = take(chart.first_production, node + 1) - 1
    # Skip as many productions as end at or before the target, in steps of falling powers of two.
    used = first
    for step in reversed(range(len(chart.search_steps))):
        skipped = used + (1 << step)
        ends_before = (
            take(choices.cumulative, (jnp.minimum(skipped, last + 1) - 1, level)) <= target
        )
        used = jnp.where((skipped <= last) & ends_before, skipped, used)
    return (target < 0) | (last < first), used


@partial(jax.jit, static_argnames=("capacity", "pick_cuts"))
def sample_chunk(chart: Chart, choices: Choices, rng_key, draws, capacity, pick_cuts):
    """Draw one tree per entry of ``draws``.

    Slots 2j + 1 and 2j + 2 hold the children of the j-th split, so a queue of splits is enough:
    one step of the loop takes a split off the queue and settles both its children.
    """
    num_draws, num_splits = len(draws), capacity // 2
    columns = jnp.arange(num_draws)

    def settle(slot, node, depth, exists, state):
        production, place, queue, depths, count, overflow = state
        slot_key = jax.random.fold_in(rng_key, slot)
        uniform = jax.random.uniform(slot_key, (num_draws,))
        stops, used = _choose(chart, choices, node, depth, uniform)
        splits = exists & ~stops
        overflow = overflow | (splits & (count >= num_splits))
        splits = splits & (count < num_splits)
        production = production.at[slot].set(jnp.where(splits, used, -1))
        if pick_cuts:
            place = place.at[slot].set(
                jax.random.uniform(jax.random.fold_in(slot_key, 0), (num_draws,))
            )
        end = jnp.where(splits, count, num_splits)  # beyond the last split: overwritten at will
        queue = queue.at[end, columns].set(used, mode="promise_in_bounds", unique_indices=True)
        if chart.uses_depth:
            depths = depths.at[end, columns].set(
                depth, mode="promise_in_bounds", unique_indices=True
            )
        return production, place, queue, depths, count + splits, overflow

    def step(carry):
        j, state = carry
        queue, depths, count = state[2], state[3], state[4]
        exists = j < count
        used = jnp.where(exists, queue[j], 0)
        depth = depths[j] + 1 if chart.uses_depth else depths[0]
        state = settle(2 * j + 1, take(chart.left, used), depth, exists, state)
        state = settle(2 * j + 2, take(chart.right, used), depth, exists, state)
        return j + 1, state

    zeros = jnp.zeros(num_draws, jnp.int32)
    shape = (capacity + 1, num_draws)
    state = (
        jnp.full(shape, -1, jnp.int32),
        jnp.zeros(shape if pick_cuts else (0, num_draws)),
        jnp.zeros((num_splits + 1, num_draws), jnp.int32),
        jnp.zeros((num_splits + 1 if chart.uses_depth else 1, num_draws), jnp.int32),
        zeros,
        zeros.astype(bool),
    )
    root = zeros + chart.root
    state = settle(jnp.int32(0), root, zeros, zeros == 0, state)
    _, state = lax.while_loop(lambda c: (c[0] < c[1][4]).any(), step, (jnp.int32(0), state))
    production, place, _, _, count, overflow = state
    return Derivations(production, place, 2 * count + 1), overflow.any()


def sample_derivations(
    chart: Chart,
    choices: Choices,
    rng_key: jax.Array,
    num_draws: int,
    capacity: int,
    pick_cuts: bool,
    finish: Callable[[Derivations], T],
) -> list[T]:
    """Draw whole trees, i.i.d., in chunks.

    Parameters
    ----------
    chart, choices
        A scored chart.
    rng_key
        Key; a draw depends on the key and its own number alone.
    num_draws
        Number of trees.
    capacity
        Slots to begin with; doubled when a tree needs more.
    pick_cuts
        Whether gaps hold several rules, of which one must be picked.
    finish
        What to make of each chunk, in the worker that drew it.
    """
    capacity = padded_size(max(capacity, 16))
    draws = np.zeros(min(_CHUNK, max(64, padded_size(num_draws))), np.int8)

    @in_float64
    def draw(chunk: int):
        slots, overflow = capacity, True
        chunk_key = jax.random.fold_in(rng_key, chunk)
        while overflow:
            drawn, overflow = sample_chunk(chart, choices, chunk_key, draws, slots, pick_cuts)
            slots *= 2
        kept = min(_CHUNK, num_draws - chunk * _CHUNK)
        used = int(drawn.num_nodes[:kept].max())
        production, place = (np.asarray(a)[:used, :kept].T for a in drawn[:2])
        return finish(Derivations(production, place, np.asarray(drawn.num_nodes[:kept])))

    # A compiled call holds no interpreter lock, so chunks run side by side.
    with ThreadPoolExecutor(os.cpu_count()) as workers:
        return list(workers.map(draw, range(-(-num_draws // _CHUNK))))


@partial(jax.jit, static_argnames="num_draws")
def sample_paths(
    chart: Chart,
    choices: Choices,
    sides: Sides,
    rng_key: jax.Array,
    rows: jax.Array,
    codes: jax.Array,
    num_draws: int,
) -> jax.Array:
    """Draw root-to-leaf paths of queries without their trees (Algorithm 1).

    Parameters
    ----------
    chart, choices
        A scored chart.
    sides
        Where productions send rows.
    rng_key
        Key.
    rows, codes
        float64 and int32 [m, d]; values and codes of the queries.
    num_draws
        Paths per query.

    Returns
    -------
    jax.Array
        int32 [num_draws, m]; subproblem at the end of each path.
    """
    query = jnp.broadcast_to(jnp.arange(len(rows)), (num_draws, len(rows))).reshape(-1)

    def step(state):
        i, node, done = state
        key_choice, key_side = jax.random.split(jax.random.fold_in(rng_key, i))
        uniform = jax.random.uniform(key_choice, node.shape)
        stops, used = _choose(chart, choices, node, jnp.zeros_like(node) + i, uniform)
        feature = sides.feature[used]
        share = sides.left_share(jnp, used, rows[query, feature], codes[query, feature])
        goes_left = jax.random.uniform(key_side, node.shape) < share
        child = jnp.where(goes_left, chart.left[used], chart.right[used])
        done = done | stops
        return i + 1, jnp.where(done, node, child), done

    start = (jnp.int32(0), jnp.zeros_like(query) + chart.root, jnp.zeros_like(query, bool))
    _, node, _ = lax.while_loop(lambda state: ~state[2].all(), step, start)
    return node.reshape(num_draws, len(rows))
