"""The most probable trees, by lazy enumeration.

The best tree makes the best choice at every node (Sullivan et al. 2023, section 5.4 and Algorithm
2). The next ones are found lazily: every node has a heap of candidates, each a choice with the
ranks of its children's trees. Only heaps needed for the k best trees are built (Huang and Chiang
2005, algorithm 3).
"""

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

STOP = -1


@dataclass(frozen=True)
class Candidate:
    """A tree below a node: its choice, and the ranks of its children's trees.

    Attributes
    ----------
    log_joint
        Log weight of the tree.
    choice
        Number of the node's rule, or `STOP`.
    left_rank, right_rank
        Ranks of the children's trees.
    """

    log_joint: float
    choice: int
    left_rank: int = 0
    right_rank: int = 0

    def __lt__(self, other: "Candidate") -> bool:
        return (-self.log_joint, self.choice, self.left_rank, self.right_rank) < (
            -other.log_joint,
            other.choice,
            other.left_rank,
            other.right_rank,
        )


class Choices(Protocol):
    """Choices of nodes, given the weight of the best tree below each."""

    def candidates(self, node: Any) -> list[Candidate]:
        """List stopping and all rules of a node, each with the best trees below."""
        ...

    def children(self, node: Any, choice: int) -> tuple[Any, Any]:
        """Return the nodes below a rule."""
        ...


class _Ranked:
    """Trees below a node found so far.

    Attributes
    ----------
    heap
        Candidates, the best first.
    found
        Trees in order.
    num_expanded
        Number of trees whose successors are in the heap.
    """

    def __init__(self, heap: list[Candidate]):
        self.heap = heap
        self.found: list[Candidate] = []
        self.num_expanded = 0

    def settles(self, rank: int) -> bool:
        """Return whether the tree of a rank is found, or known not to exist."""
        is_exhausted = not self.heap and self.num_expanded == len(self.found)
        return rank < len(self.found) or is_exhausted


class _Ranking:
    """Ranked trees below every requested node, found on demand."""

    def __init__(self, choices: Choices):
        self.choices = choices
        self.ranked: dict[Any, _Ranked] = {}

    def get(self, key: Any, rank: int) -> Candidate | None:
        """Return the tree of one rank below a node, or None if there are fewer."""
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

    def _advance(self, key: Any, rank: int) -> list[tuple[Any, int]]:
        """Find trees up to a rank, or return the trees below that must be found first."""
        if key not in self.ranked:
            opened = [c for c in self.choices.candidates(key) if c.log_joint > -math.inf]
            heapq.heapify(opened)
            self.ranked[key] = _Ranked(opened)
        ranked = self.ranked[key]
        while not ranked.settles(rank):
            if ranked.num_expanded < len(ranked.found):
                waits_for = self._expand(key, ranked)
                if waits_for:
                    return waits_for
                ranked.num_expanded += 1
            elif ranked.heap:
                ranked.found.append(heapq.heappop(ranked.heap))
        return []

    def _expand(self, node: Any, ranked: _Ranked) -> list[tuple[Any, int]]:
        """Put a tree's successors on the heap, or return the trees that must be found first."""
        tree = ranked.found[ranked.num_expanded]
        if tree.choice == STOP:
            return []
        children = self.choices.children(node, tree.choice)
        ranks = tree.left_rank, tree.right_rank
        steps = [(ranks[0], ranks[1] + 1)]
        if ranks[1] == 0:  # each pair of ranks is reached in only one way
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
                heapq.heappush(ranked.heap, Candidate(tree.log_joint + change, tree.choice, *step))
        return []


def ranked_trees(choices: Choices, root: Any) -> Iterator[tuple[float, list[tuple[Any, int]]]]:
    """Yield trees by falling log joint, each as its nodes and their choices, slot by slot.

    The children of the j-th split are in the slots 2 j + 1 and 2 j + 2.
    """
    ranking = _Ranking(choices)
    rank = 0
    while (best := ranking.get(root, rank)) is not None:
        queue, made = [(root, rank)], []
        for node, rank_below in queue:
            chosen = ranking.get(node, rank_below)
            assert chosen is not None  # the tree above uses it
            made.append((node, chosen.choice))
            if chosen.choice != STOP:
                left, right = choices.children(node, chosen.choice)
                queue += [(left, chosen.left_rank), (right, chosen.right_rank)]
        yield best.log_joint, made
        rank += 1
