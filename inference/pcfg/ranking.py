"""The most probable trees, by lazy enumeration over the max-scored chart.

The best tree follows the best choice at every node (Sullivan et al. 2023, section 5.4 and Algorithm
2). The next ones are found lazily: every node has a heap of candidates, each a production with the
ranks of its children's trees. Only heaps on the way to the k best trees are built (Huang and Chiang
2005, algorithm 3).
"""

import heapq
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from bdtppl.inference.pcfg.chart import Chart, node_at, rule_at
from bdtppl.inference.pcfg.grammar import Grammar
from bdtppl.inference.pcfg.passes import log_stops
from bdtppl.inference.pcfg.sampling import Derivations
from bdtppl.models.arrays.padding import padded_size

__all__ = ["rank_derivations"]

_STOP = -1


@dataclass(frozen=True)
class _Candidate:
    """A tree below a node: its choice, and which of its children's trees it takes."""

    log_joint: float
    production: int
    left_rank: int = 0
    right_rank: int = 0

    def __lt__(self, other: "_Candidate") -> bool:
        return (-self.log_joint, self.production, self.left_rank, self.right_rank) < (
            -other.log_joint,
            other.production,
            other.left_rank,
            other.right_rank,
        )


class _Ranked:
    """Trees below a node, as far as they are known.

    Attributes
    ----------
    heap
        Candidates, the best first.
    found
        Trees in order.
    num_expanded
        How many of them have handed their successors to the heap.
    """

    def __init__(self, heap: list[_Candidate]):
        self.heap = heap
        self.found: list[_Candidate] = []
        self.num_expanded = 0

    def settles(self, rank: int) -> bool:
        """Whether the tree of a rank is found, or known not to exist."""
        is_exhausted = not self.heap and self.num_expanded == len(self.found)
        return rank < len(self.found) or is_exhausted


_Key = tuple[int, int]  # subproblem and depth


class _Ranking:
    """Ranked trees of every (subproblem, depth) asked for, found on demand."""

    def __init__(self, grammar: Grammar, chart: Chart, prior, leaf_scores, log_best):
        self.grammar, self.chart, self.prior = grammar, chart, prior
        self.log_best = np.asarray(log_best)
        self.log_stop = np.asarray(log_stops(chart, prior, leaf_scores))
        self.is_listed = grammar.is_first_of_partition if prior.counts_partitions else None
        self.ranked: dict[_Key, _Ranked] = {}
        widest = int(np.diff(grammar.first_production).max())
        self._places = jnp.zeros(padded_size(max(16, widest)), jnp.int8)

    def children(self, depth: int, production: int) -> tuple[_Key, _Key]:
        below = depth + 1 if self.chart.uses_depth else depth
        return (
            (int(self.grammar.left[production]), below),
            (int(self.grammar.right[production]), below),
        )

    def get(self, key: _Key, rank: int) -> _Candidate | None:
        """Find the tree of one rank below a node, or None where there are fewer."""
        # Trees can be deeper than Python's stack, so a list replaces recursion.
        wanted = [(key, rank)]
        while wanted:
            waits_for = self._advance(*wanted[-1])
            if waits_for:
                wanted += waits_for
            else:
                wanted.pop()
        entries = self.ranked[key].found
        return entries[rank] if rank < len(entries) else None

    def _advance(self, key: _Key, rank: int) -> list[tuple[_Key, int]]:
        """Find trees up to a rank, or return the trees below that must be found first."""
        if key not in self.ranked:
            self.ranked[key] = _Ranked(self._open(*key))
        ranked = self.ranked[key]
        while not ranked.settles(rank):
            if ranked.num_expanded < len(ranked.found):
                waits_for = self._expand(key[1], ranked)
                if waits_for:
                    return waits_for
                ranked.num_expanded += 1
            elif ranked.heap:
                ranked.found.append(heapq.heappop(ranked.heap))
        return []

    def _expand(self, depth: int, ranked: _Ranked) -> list[tuple[_Key, int]]:
        """Put a tree's successors on the heap, or return the trees that must be found first."""
        tree = ranked.found[ranked.num_expanded]
        if tree.production == _STOP:
            return []
        children = self.children(depth, tree.production)
        ranks = tree.left_rank, tree.right_rank
        steps = [(ranks[0], ranks[1] + 1)]
        if ranks[1] == 0:  # each pair of ranks is reached by one way only
            steps.append((ranks[0] + 1, 0))
        wanted = [pair for step in (ranks, *steps) for pair in zip(children, step, strict=True)]
        waits_for = [
            (key, rank)
            for key, rank in wanted
            if key not in self.ranked or not self.ranked[key].settles(rank)
        ]
        if waits_for:
            return waits_for
        below = [self.ranked[key].found for key in children]
        for step in steps:
            if all(rank < len(entries) for entries, rank in zip(below, step, strict=True)):
                change = sum(
                    entries[rank].log_joint - entries[old].log_joint
                    for entries, rank, old in zip(below, step, ranks, strict=True)
                )
                heapq.heappush(
                    ranked.heap, _Candidate(tree.log_joint + change, tree.production, *step)
                )
        return []

    def _open(self, node: int, depth: int) -> list[_Candidate]:
        heap = [_Candidate(float(self.log_stop[node, depth]), _STOP)]
        first = self.grammar.first_production[node]
        count = int(self.grammar.first_production[node + 1] - first)
        if count and (not self.chart.uses_depth or depth < self.grammar.depth_limit):
            terms = np.asarray(
                _node_terms(
                    self.chart,
                    self.prior,
                    self.log_best,
                    np.int32(node),
                    np.int32(depth),
                    np.int32(first),
                    self._places,
                )
            )
            for place in range(count):
                production = int(first) + place
                if self.is_listed is None or self.is_listed[production]:
                    heap.append(_Candidate(float(terms[place]), production))
        heap = [c for c in heap if c.log_joint > -np.inf]
        heapq.heapify(heap)
        return heap

    def derivation(self, rank: int) -> list[int]:
        """Productions of the tree of one rank, slot by slot."""
        queue = [((self.grammar.root, 0), rank)]
        productions = []
        for key, rank_below in queue:
            chosen = self.get(key, rank_below)
            if chosen is None:
                raise LookupError(f"There are fewer than {rank + 1} trees.")
            productions.append(chosen.production)
            if chosen.production != _STOP:
                left, right = self.children(key[1], chosen.production)
                queue += [(left, chosen.left_rank), (right, chosen.right_rank)]
        return productions


@jax.jit
def _node_terms(chart: Chart, prior, log_best, node, depth, first, places):
    """Best log weight through each production of one node, at one depth; [widest]."""
    index = jnp.minimum(first + jnp.arange(len(places)), len(chart.left) - 1)
    parent, rule = node_at(chart, node, depth), rule_at(chart, index, depth)
    below = jnp.minimum(depth + 1, len(chart.levels) - 1) if chart.uses_depth else depth
    children = log_best[chart.left[index], below] + log_best[chart.right[index], below]
    return prior.log_rule(parent, rule) + children


def rank_derivations(
    grammar: Grammar, chart: Chart, prior, leaf_scores, log_best, k: int
) -> tuple[Derivations, np.ndarray]:
    """List the k trees of greatest log joint.

    Under a prior that counts partitions, trees that differ by equivalent rules are one tree, shown
    by the rule that comes first. Trees that differ by the cut inside a gap are one entry, with the
    log joint of a single such tree, shown by the middle cut.

    Returns
    -------
    derivations
        At most k trees, the best first.
    log_joint
        float64 [at most k].
    """
    ranking = _Ranking(grammar, chart, prior, leaf_scores, log_best)
    log_joint, trees = [], []
    for rank in range(k):
        best = ranking.get((grammar.root, 0), rank)
        if best is None:
            break
        log_joint.append(best.log_joint)
        trees.append(ranking.derivation(rank))
    slots = max(len(tree) for tree in trees)
    production = np.full((len(trees), slots), _STOP, np.int32)
    for row, tree in zip(production, trees, strict=True):
        row[: len(tree)] = tree
    num_nodes = np.array([len(tree) for tree in trees], np.int32)
    return Derivations(production, np.full(production.shape, 0.5), num_nodes), np.array(log_joint)
