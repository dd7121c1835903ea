"""Independent draws from the exact posterior.

Once the chart is scored, a tree is drawn from the root down: a node stops, or uses a production,
with the probabilities of Sullivan et al. 2023, equations 15 and 16. A draw's queue of nodes is the
tree's array itself; one step of the loop handles one slot of all draws at once, by binary search
over the node's cumulative production probabilities. Each block of draws has a key, from which the
keys of slots are derived, so chunks and capacities do not change a draw.

Functions run inside a `jax.enable_x64` scope.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from bdtppl.inference.pcfg.chart import Chart, ChartBlock, block_of, take
from bdtppl.inference.pcfg.passes import log_stops, log_terms, rule_weights
from bdtppl.models.arrays.padding import padded_size
from bdtppl.models.arrays.precision import in_float64
from bdtppl.models.arrays.threads import in_threads, num_threads

_DRAWS_PER_KEY = 512  # draws that share a key
_MOST_BLOCKS = 16  # in a chunk

Finished = TypeVar("Finished")


class ChartChoices(NamedTuple):
    """Choices of a node at each depth.

    Attributes
    ----------
    stop
        float64 [N, D]; probability of stopping.
    cumulative
        float64 [E, D]; cumulative probability of this production and its parent's earlier ones.
    """

    stop: jax.Array
    cumulative: jax.Array


class Derivations(NamedTuple):
    """Trees as derivations of the grammar, drawn or ranked; b trees, k slots.

    Slots are a queue: the children of the j-th split are in slots 2j + 1 and 2j + 2.

    Attributes
    ----------
    production
        int32 [b, k]; production used in each slot, -1 in leaves and unused slots.
    place
        float64 [b, k]; number in [0, 1) that picks a cut inside the production's gap; [b, 0] if
        every gap has one rule.
    num_nodes
        int32 [b]; slots in use.
    """

    production: Any
    place: Any
    num_nodes: Any

    @property
    def left(self) -> np.ndarray:
        """Slot of the left child, just before the right one, int32 [b, k]; 0 in leaves."""
        splits = self.production >= 0
        left = np.cumsum(splits, axis=1, dtype=np.int32)
        left *= 2
        left -= 1
        left *= splits
        return left


def accumulate(chart: Chart, block: ChartBlock, probability, parents, cumulative) -> jax.Array:
    """Write a block's running sums of probabilities [P, D] into those of all productions."""
    running = jnp.cumsum(probability, axis=0)
    # Subtract the sums of earlier nodes of the block.
    first = take(chart.first_production, parents) - block.production_start
    before = jnp.where(first[:, None] > 0, take(running, jnp.maximum(first - 1, 0)), 0.0)
    old = lax.dynamic_slice_in_dim(cumulative, block.production_start, len(running))
    new = jnp.where(block.is_production[:, None], running - before, old)
    return lax.dynamic_update_slice_in_dim(cumulative, new, block.production_start, 0)


@jax.jit
def _cumulative(chart: Chart, prior, feature_weight, log_q):
    def step(i, cumulative):
        block = block_of(chart, i)
        log_split = rule_weights(prior, feature_weight, block)
        terms = log_terms(chart, block, log_q, log_split)
        parents = chart.node_range[i, 0] + block.slot
        return accumulate(chart, block, jnp.exp(terms - take(log_q, parents)), parents, cumulative)

    start = jnp.zeros((len(chart.left), len(chart.levels)))
    return lax.fori_loop(0, chart.num_blocks, step, start)


def choice_probabilities(chart: Chart, prior, leaf_scores, feature_weight, log_q) -> ChartChoices:
    """Tabulate every node's choice probabilities (equations 15 and 16)."""
    return ChartChoices(
        stop=jnp.exp(log_stops(chart, prior, leaf_scores) - log_q),
        cumulative=_cumulative(chart, prior, feature_weight, log_q),
    )


def draw_production(chart: Chart, choices: ChartChoices, node, depth, uniform):
    """Return whether nodes stop, and the production they use if not; all [b]."""
    level = jnp.minimum(depth, choices.stop.shape[1] - 1)
    target = uniform - take(choices.stop, (node, level))
    first = take(chart.first_production, node)
    last = take(chart.first_production, node + 1) - 1
    # Skip productions that end at or before the target, in steps of falling powers of two; most
    # draws are deep in the trees, where nodes have few.
    num_steps = 32 - lax.clz(jnp.maximum((last - first).max(), 0))

    def skip(i, used):
        skipped = used + (1 << (num_steps - 1 - i))
        ends_before = (
            take(choices.cumulative, (jnp.minimum(skipped, last + 1) - 1, level)) <= target
        )
        return jnp.where((skipped <= last) & ends_before, skipped, used)

    used = lax.fori_loop(0, num_steps, skip, first)
    return (target < 0) | (last < first), used


@partial(jax.jit, static_argnames=("capacity", "pick_cuts"))
def sample_chunk(chart: Chart, choices: ChartChoices, rng_keys, draws, capacity, pick_cuts):
    """Draw one tree per entry of ``draws``, with room for ``capacity`` slots.

    The draws are as many blocks as there are keys.

    Slots 2j + 1 and 2j + 2 are the children of the j-th split, so a queue of splits suffices: one
    step of the loop removes a split from the queue and settles both its children.

    Returns
    -------
    derivations
        The trees.
    overflow
        Whether a tree needed more slots.
    """
    num_draws, num_splits = len(draws), capacity // 2
    columns = jnp.arange(num_draws)[:, None]

    def random_numbers(*which):
        def of_block(key):
            for number in which:
                key = jax.random.fold_in(key, number)
            # Two for each draw, in one row, so that they do not depend on the number of draws.
            return jax.random.uniform(key, (num_draws // len(rng_keys), 2))

        return jax.vmap(of_block)(rng_keys).reshape(num_draws, 2)

    def settle(number, node, depth, exists, queue, depths, count):
        """Choose for one or two nodes of each draw [b, 1 or 2], and queue those that split."""
        uniform = random_numbers(number)[:, : node.shape[1]]
        stops, used = draw_production(chart, choices, node, depth, uniform)
        splits = exists & ~stops
        end = count[:, None] + jnp.pad(splits[:, :-1], ((0, 0), (1, 0)))  # the left one first
        # Nodes that do not split, or have no room, are written to extra rows beyond the queue.
        beyond = num_splits + jnp.arange(node.shape[1], dtype=jnp.int32)
        end = jnp.where(splits & (end < num_splits), end, beyond)
        put = {"mode": "promise_in_bounds", "unique_indices": True}
        queue = queue.at[end, columns].set(used, **put)
        if chart.uses_depth:
            depths = depths.at[end, columns].set(jnp.broadcast_to(depth, used.shape), **put)
        place = jnp.zeros((num_draws, 0))
        if pick_cuts:
            place = random_numbers(number, 0)[:, : node.shape[1]]
        count += splits.sum(axis=1, dtype=jnp.int32)
        return jnp.where(splits, used, -1), place, queue, depths, count

    def is_unfinished(carry):
        j, *_, count = carry
        return (j < num_splits) & (j < count).any()

    def step(carry):
        j, production, place, queue, depths, count = carry
        exists = (j < count)[:, None]
        used = jnp.where(exists[:, 0], queue[j], 0)
        children = jnp.stack([take(chart.left, used), take(chart.right, used)], axis=1)
        depth = depths[j][:, None] + 1 if chart.uses_depth else jnp.zeros((num_draws, 1), int)
        settled_rule, at, queue, depths, count = settle(
            j + 1, children, depth, exists, queue, depths, count
        )
        production = lax.dynamic_update_index_in_dim(production, settled_rule, j, 0)
        place = lax.dynamic_update_index_in_dim(place, at, j, 0)
        return j + 1, production, place, queue, depths, count

    zeros = jnp.zeros(num_draws, jnp.int32)
    queue = jnp.zeros((num_splits + 2, num_draws), jnp.int32)
    depths = jnp.zeros((num_splits + 2 if chart.uses_depth else 1, num_draws), jnp.int32)
    root = zeros[:, None] + chart.root
    at_root = settle(0, root, zeros[:, None], root >= 0, queue, depths, zeros)
    root_production, root_place, *state = at_root
    production = jnp.full((num_splits, num_draws, 2), -1, jnp.int32)
    place = jnp.zeros((num_splits, num_draws, 2 if pick_cuts else 0))
    _, production, place, _, _, count = lax.while_loop(
        is_unfinished, step, (jnp.int32(0), production, place, *state)
    )

    def slots(first, pairs):
        return jnp.concatenate([first, pairs.transpose(1, 0, 2).reshape(num_draws, -1)], axis=1)

    return Derivations(
        slots(root_production, production), slots(root_place, place), 2 * count + 1
    ), (count > num_splits).any()


def sample_derivations(
    chart: Chart,
    choices: ChartChoices,
    rng_key: jax.Array,
    num_draws: int,
    capacity: int,
    pick_cuts: bool,
    finish: Callable[[Derivations], Finished],
) -> list[Finished]:
    """Draw whole trees, i.i.d., in chunks.

    Parameters
    ----------
    chart, choices
        A scored chart.
    rng_key
        Key; a draw depends on the key and its own index alone.
    num_draws
        Number of trees.
    capacity
        Initial number of slots; doubled when a tree needs more.
    pick_cuts
        Whether gaps have several rules, of which one must be picked.
    finish
        Called on each chunk, in the worker that drew it.
    """
    capacity = padded_size(max(capacity, 16))
    workers = num_threads()
    num_blocks = -(-num_draws // _DRAWS_PER_KEY)
    rounds = -(-num_blocks // (_MOST_BLOCKS * workers))
    # Workers draw about equal numbers; few sizes are compiled.
    blocks = min(padded_size(-(-num_blocks // (rounds * workers)), 4), _MOST_BLOCKS)
    size = blocks * min(_DRAWS_PER_KEY, max(64, padded_size(num_draws)))
    draws = np.zeros(size, np.int8)

    @in_float64
    def draw(chunk: int):
        slots, overflow = capacity, True
        keys = jax.vmap(partial(jax.random.fold_in, rng_key))(chunk * blocks + np.arange(blocks))
        while overflow:
            drawn, overflow = sample_chunk(chart, choices, keys, draws, slots, pick_cuts)
            slots *= 2
        kept = min(size, num_draws - chunk * size)
        num_nodes = np.asarray(drawn.num_nodes)[:kept]
        used = int(num_nodes.max())
        production, place = (np.asarray(a)[:kept, :used] for a in drawn[:2])
        return finish(Derivations(production, place, num_nodes))

    # A compiled call releases the interpreter lock, so chunks run side by side.
    return in_threads(draw, range(-(-num_draws // size)), most=workers)
