"""The most probable tree of a flow: a beam search over splits.

The search keeps, level by level from the root, the splits that a tree of the policy is most likely
to use, with their child subproblems. The lowest levels are searched in full: there the best subtree
is a maximum over all rules. Maxima are then passed up as in the chart. The result is the best of
all trees made of the splits kept.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp

from bdtppl.inference.gflownet.grammar import Amortised, FlowProblem, choices
from bdtppl.inference.gflownet.grammar_draws import from_heap
from bdtppl.inference.gflownet.grammar_network import Flow
from bdtppl.inference.hard.shapes import LEAF
from bdtppl.inference.hard.written_trees import WrittenOut, write_out
from bdtppl.models.arrays.padding import in_pieces
from bdtppl.models.arrays.precision import in_float64

_TREES_TRIED = 64  # nodes that are scored in one call


@jax.jit
def _weigh_rules(
    problem: FlowProblem, flow: Flow, words: jax.Array, depth: jax.Array, is_best: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return log weights and terms of nodes' choices, float64 [m, R + 1] each; see `choices`."""

    def total(values, axis):
        return jnp.where(is_best, values.max(axis), logsumexp(values, axis))

    weighed = choices(problem, Amortised.of(problem, flow), words, depth, total)
    return weighed.log_weight, weighed.log_term


class _Depth(NamedTuple):
    """Subproblems of one depth and their kept splits; m nodes, p splits."""

    words: np.ndarray  # uint64 [m, W]
    stop: np.ndarray  # float64 [m]; log weight of stopping
    node: np.ndarray  # int [p]; node that is split
    rule: np.ndarray  # int [p]
    log_weight: np.ndarray  # float64 [p]; the prior's
    sides: np.ndarray  # int [2, p]; nodes of the next level


class _Search:
    """Scores nodes of one problem, piece by piece."""

    def __init__(self, problem: FlowProblem, flow: Flow):
        self.problem, self.flow = problem, flow
        self.left_words = np.asarray(problem.model.left_words)

    def weigh(self, words: np.ndarray, depth: int, is_best: bool) -> tuple[np.ndarray, np.ndarray]:
        """Return log weights and terms of the choices of nodes [m, W]."""
        given = jnp.int64(depth), jnp.bool_(is_best)
        return in_pieces(  # repeated nodes cost nothing
            lambda own: _weigh_rules(self.problem, self.flow, own, *given), _TREES_TRIED, words
        )

    def level(self, words: np.ndarray, reach: np.ndarray, depth: int, width: int):
        """Keep the splits reached most often, given nodes' log probabilities [m].

        Returns
        -------
        level
            The nodes and their splits.
        words, reach
            The nodes of the next level.
        """
        log_weight, log_term = self.weigh(words, depth, is_best=False)
        log_policy = log_term - np.logaddexp.reduce(log_term, axis=1)[:, None]
        use = (reach[:, None] + log_policy)[:, :-1]
        node, rule = np.nonzero(np.isfinite(use))
        order = np.argsort(-use[node, rule], kind="stable")
        node, rule = node[order], rule[order]
        left = words[node] & self.left_words[rule]
        # Of rules that make the same partition, the one of greatest weight comes first.
        keys = np.concatenate([node[:, None].astype(np.uint64), left], axis=1)
        kept = np.sort(np.unique(keys, axis=0, return_index=True)[1])[:width]
        node, rule, left = node[kept], rule[kept], left[kept]
        sides = np.concatenate([left, words[node] & ~left])
        below, place = np.unique(sides, axis=0, return_inverse=True)
        place = place.reshape(2, -1)
        reach_below = np.full(len(below), -np.inf)
        for side in place:
            np.maximum.at(reach_below, side, use[node, rule])
        stop, weight = log_weight[:, -1], log_weight[node, rule]
        return _Depth(words, stop, node, rule, weight, place), below, reach_below


@in_float64
def best_tree(problem: FlowProblem, flow: Flow, *, width: int = 512) -> WrittenOut:
    """Search for the tree of greatest posterior probability, a batch of one.

    If a prior counts partitions, their weights are shared among their rules here.

    Parameters
    ----------
    problem, flow
        The problem as posed, and a flow trained on it.
    width
        Number of splits kept at each level above those searched in full.

    Raises
    ------
    ValueError
        If the width is less than 1.
    """
    if width < 1:
        raise ValueError(f"width must be at least 1; got {width!r}.")
    search, levels = _Search(problem, flow), []
    words, reach = np.asarray(problem.model.every_row)[None], np.zeros(1)
    searched = max(0, problem.max_depth - 2)
    for depth in range(searched):
        level, words, reach = search.level(words, reach, depth, width)
        levels.append(level)

    value = search.weigh(words, searched, is_best=True)[1].max(axis=1)
    chosen = []
    for level in reversed(levels):
        split = level.log_weight + value[level.sides].sum(axis=0)
        best = np.full(len(level.words), -1)
        value = level.stop.copy()
        np.maximum.at(value, level.node, split)
        is_best = split >= value[level.node]
        best[level.node[is_best]] = np.flatnonzero(is_best)
        chosen.append(best)

    heap = np.full((1, 2**problem.max_depth - 1), LEAF, np.int32)
    open_nodes = {0: 0}  # from slots of the heap to nodes of the level
    for level, best in zip(levels, reversed(chosen), strict=True):
        below = {}
        for slot, node in open_nodes.items():
            if (pair := best[node]) >= 0:
                heap[0, slot] = level.rule[pair]
                below |= {2 * slot + 1 + side: level.sides[side, pair] for side in (0, 1)}
        open_nodes = below
    rest = {slot: words[node] for slot, node in open_nodes.items()}
    for depth in range(searched, problem.max_depth):
        below = {}
        for slot, own in rest.items():
            place = int(search.weigh(own[None], depth, is_best=True)[1][0].argmax())
            if place < problem.num_rules:
                heap[0, slot] = place
                left = own & search.left_words[place]
                below |= {2 * slot + 1: left, 2 * slot + 2: own & ~left}
        rest = below
    return write_out(problem.model, from_heap(heap))
