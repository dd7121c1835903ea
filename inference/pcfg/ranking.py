"""The most probable trees, by lazy enumeration over the max-scored chart.

The best tree follows the best choice at every node (Sullivan et al. 2023, section 5.4 and Algorithm
2). The next ones are found lazily: every node keeps a heap of candidates, each a production with
the ranks of its children's trees, and only the heaps on the way to the k best are ever built
(Huang and Chiang 2005, algorithm 3).
"""

import heapq
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from bdtppl.inference.padding import padded_size
from bdtppl.inference.pcfg.chart import Chart, node_at, rule_at
from bdtppl.inference.pcfg.grammar import Grammar
from bdtppl.inference.pcfg.passes import log_stops
from bdtppl.inference.pcfg.sampling import Derivations

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


class _Ranking:
    """Ranked trees of every (subproblem, depth) asked for, found on demand."""

    def __init__(self, grammar: Grammar, chart: Chart, prior, leaf_scores, log_best):
        self.grammar, self.chart, self.prior = grammar, chart, prior
        self.log_best = np.asarray(log_best)
        self.log_stop = np.asarray(log_stops(chart, prior, leaf_scores))
        self.is_listed = grammar.is_first_of_partition if prior.counts_partitions else None
        self.found: dict[tuple[int, int], list[_Candidate]] = {}
        self.heaps: dict[tuple[int, int], list[_Candidate]] = {}
        widest = int(np.diff(grammar.first_production).max())
        self._places = jnp.zeros(padded_size(max(16, widest)), jnp.int8)

    def child_depth(self, depth: int) -> int:
        return depth + 1 if self.chart.uses_depth else depth

    def children(self, production: int) -> tuple[int, int]:
        return int(self.grammar.left[production]), int(self.grammar.right[production])

    def get(self, node: int, depth: int, rank: int) -> _Candidate | None:
        """Find the tree of one rank below a node, or None where there are fewer."""
        key = (node, depth)
        if key not in self.found:
            self.found[key], self.heaps[key] = [], self._open(node, depth)
        found, heap = self.found[key], self.heaps[key]
        while len(found) <= rank and heap:
            best = heapq.heappop(heap)
            found.append(best)
            if best.production != _STOP:
                self._push_successors(heap, best, depth)
        return found[rank] if rank < len(found) else None

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

    def _push_successors(self, heap: list[_Candidate], best: _Candidate, depth: int) -> None:
        left, right = self.children(best.production)
        below = self.child_depth(depth)
        steps = [(best.left_rank, best.right_rank + 1)]
        if best.right_rank == 0:  # each pair of ranks is reached by one way only
            steps.append((best.left_rank + 1, 0))
        for left_rank, right_rank in steps:
            new_left = self.get(left, below, left_rank)
            new_right = self.get(right, below, right_rank)
            if new_left is None or new_right is None:
                continue
            old_left = self.found[left, below][best.left_rank]
            old_right = self.found[right, below][best.right_rank]
            change = (new_left.log_joint - old_left.log_joint) + (
                new_right.log_joint - old_right.log_joint
            )
            heapq.heappush(
                heap,
                _Candidate(best.log_joint + change, best.production, left_rank, right_rank),
            )

    def derivation(self, rank: int) -> list[int]:
        """Productions of the tree of one rank, slot by slot."""
        queue = [(self.grammar.root, 0, rank)]
        productions = []
        for node, depth, rank_below in queue:
            chosen = self.get(node, depth, rank_below)
            if chosen is None:
                raise LookupError(f"There are fewer than {rank + 1} trees.")
            productions.append(chosen.production)
            if chosen.production != _STOP:
                below = self.child_depth(depth)
                left, right = self.children(chosen.production)
                queue += [(left, below, chosen.left_rank), (right, below, chosen.right_rank)]
        return productions


@jax.jit
def _node_terms(chart: Chart, prior, log_best, node, depth, first, places):
    """Best log weight through each production of one node, at one depth; [widest]."""
    index = jnp.minimum(first + jnp.arange(len(places)), len(chart.left) - 1)
    parent, rule = node_at(chart, node, depth), rule_at(chart, index)
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
        best = ranking.get(grammar.root, 0, rank)
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
