"""The graph of a search: sets of cells, some of their rules, and bounds on their subtrees.

A node is a set of cells, at a level if levels matter. It is created with bounds that need no rules.
When it is expanded, its rules are counted, and those with the greatest upper bounds are stored with
nodes for their children; the others are covered by a bound, until the node is expanded further.
Children have fewer cells than their parent, so passes visit nodes by size.
"""

from typing import NamedTuple

import numba
import numpy as np

from bdtppl.inference.pcfg.expansion import Cells
from bdtppl.inference.pcfg.search.bounds import WeightTables
from bdtppl.inference.pcfg.search.counting import CellFacts, FoundRules
from bdtppl.inference.pcfg.search.insertion import GREEDY_RULES, insert_rules, write_side

_FIRST_SLOTS = 1 << 12


class Nodes(NamedTuple):
    """Nodes in the order of their creation; N nodes, k bounds (see `bound_set`).

    Attributes
    ----------
    key
        uint64 [N]; hash of cells, level and memory of the path.
    memory
        uint64 [N]; memory of the path, or [0] if none is needed.
    level
        int16 [N]; splits above, 0 if levels do not matter.
    num_cells
        int32 [N].
    low, high
        float64 [k, N]; bounds.
    stop
        float64 [k, N]; weight of stopping, once expanded.
    rest
        float64 [k, N]; upper bound of the rules that are not stored.
    place
        int32 [N]; row of its cells in `Graph.members`, -1 before it is expanded.
    parent, side
        int32 [N]; a parent, and the branch to the node: 4 times the place of the code below the
        gap, plus 2 for missing values on the left, plus 1 for the right side.
    first, count
        int64 and int32 [N]; its rules.
    """

    key: np.ndarray
    memory: np.ndarray
    level: np.ndarray
    num_cells: np.ndarray
    low: np.ndarray
    high: np.ndarray
    stop: np.ndarray
    rest: np.ndarray
    place: np.ndarray
    parent: np.ndarray
    side: np.ndarray
    first: np.ndarray
    count: np.ndarray


class KeptRules(NamedTuple):
    """Stored rules; E rules.

    Attributes
    ----------
    left, right
        int32 [E]; nodes.
    low, high, cut
        int32 [E]; see `FoundRules`.
    missing_left
        bool [E].
    log_rule, log_split
        float64 [E]; see `bdtppl.models.prior_kinds.TreePrior`; the latter [0] without bounds of
        sums.
    """

    left: np.ndarray
    right: np.ndarray
    low: np.ndarray
    high: np.ndarray
    cut: np.ndarray
    missing_left: np.ndarray
    log_rule: np.ndarray
    log_split: np.ndarray


class Batch(NamedTuple):
    """Nodes to expand, with all of their rules; m nodes, p rules.

    Attributes
    ----------
    nodes
        int32 [m].
    first
        int64 [m + 1]; their rules.
    stop
        float64 [k, m].
    found
        The rules.
    log_rule, log_split
        float64 [p].
    score
        float64 [3, 2, p]; log marginals of the left and the right side, and bounds of them for two
        leaves and for any number (see `bound_set`).
    memory
        uint64 [2, p], or [2, 0]; memories of the path on both sides.
    """

    nodes: np.ndarray
    first: np.ndarray
    stop: np.ndarray
    found: FoundRules
    log_rule: np.ndarray
    log_split: np.ndarray
    score: np.ndarray
    memory: np.ndarray


class Graph:
    """Nodes and rules with room for more.

    Parameters
    ----------
    root
        uint64 [W]; cells of the root.
    num_cells
        Cells of the root.
    num_bounds
        1, 2 or 3 (see `bound_set`).
    tables
        The prior's bounds.
    uses_level
        Whether levels matter.
    memory
        The root's memory of the path, or None.
    """

    def __init__(
        self,
        root: np.ndarray,
        num_cells: int,
        num_bounds: int,
        tables: WeightTables,
        uses_level: bool,
        memory: int | None,
    ):
        self.tables, self.uses_level, self.has_memory = tables, uses_level, memory is not None
        self.num_bounds = num_bounds
        self.num_nodes, self.num_rules, self.num_expanded = 1, 0, 0
        self.members = root[None].copy()
        self.nodes = self._nodes(64)
        self.rules = self._rules(64)
        self.slots = np.full(_FIRST_SLOTS, -1, np.int32)
        for name, value in (("key", 1), ("num_cells", num_cells), ("place", -1), ("parent", -1)):
            getattr(self.nodes, name)[0] = value
        for name in ("level", "side", "first", "count"):
            getattr(self.nodes, name)[0] = 0
        if memory is not None:
            self.nodes.memory[0] = memory
        for name, value in (("low", -np.inf), ("high", np.inf), ("rest", -np.inf)):
            getattr(self.nodes, name)[:, 0] = value

    def _nodes(self, size: int) -> Nodes:
        low, high, stop, rest = (np.empty((self.num_bounds, size)) for _ in range(4))
        num_cells, place, parent, side, count = (np.empty(size, np.int32) for _ in range(5))
        return Nodes(
            key=np.empty(size, np.uint64),
            memory=np.empty(size if self.has_memory else 0, np.uint64),
            level=np.empty(size, np.int16),
            num_cells=num_cells,
            low=low,
            high=high,
            stop=stop,
            rest=rest,
            place=place,
            parent=parent,
            side=side,
            first=np.empty(size, np.int64),
            count=count,
        )

    def _rules(self, size: int) -> KeptRules:
        left, right, low, high, cut = (np.empty(size, np.int32) for _ in range(5))
        return KeptRules(
            left=left,
            right=right,
            low=low,
            high=high,
            cut=cut,
            missing_left=np.empty(size, bool),
            log_rule=np.empty(size),
            log_split=np.empty(size if self.num_bounds > 1 else 0),
        )

    @property
    def num_bytes(self) -> int:
        """Memory of all arrays."""
        arrays = [*self.nodes, *self.rules, self.slots, self.members]
        return sum(array.nbytes for array in arrays)

    def make_room(self, num_nodes: int, num_rules: int, num_expanded: int) -> None:
        """Make room for a number of further nodes and rules."""
        if len(self.nodes.key) < self.num_nodes + num_nodes:
            size = (self.num_nodes + num_nodes) * 5 // 4
            arrays = list(self.nodes)
            del self.nodes
            _lengthen(arrays, self.num_nodes, size)
            self.nodes = Nodes(*arrays)
        if len(self.rules.left) < self.num_rules + num_rules:
            size = (self.num_rules + num_rules) * 5 // 4
            arrays = list(self.rules)
            del self.rules
            _lengthen(arrays, self.num_rules, size)
            self.rules = KeptRules(*arrays)
        if len(self.members) < self.num_expanded + num_expanded:
            size = (self.num_expanded + num_expanded) * 5 // 4
            members = np.empty((size, self.members.shape[1]), np.uint64)
            members[: self.num_expanded] = self.members[: self.num_expanded]
            self.members = members
        if 2 * (self.num_nodes + num_nodes) > len(self.slots):
            number = 1 << int(4 * (self.num_nodes + num_nodes) - 1).bit_length()
            del self.slots  # memory for the following steps
            self.slots = np.full(number, -1, np.int32)
            _fill_slots(self.slots, self.nodes.key, self.num_nodes)

    def insert(self, batch: Batch, cells: Cells, facts: CellFacts, most: int, goal: int) -> None:
        """Expand nodes, whose cells are already members: store rules with their children.

        Parameters
        ----------
        batch
            The nodes.
        cells, facts
            The cells.
        most
            Rules kept of a node that is expanded first, beside some that are best if trees end
            below them; three times as many as it has afterwards.
        goal
            The bound by which rules are ordered.
        """
        count = self.nodes.count[batch.nodes]
        kept = np.minimum(np.maximum(most, 3 * count).astype(np.int64), np.diff(batch.first))
        more = int(kept.sum()) + GREEDY_RULES * len(kept)
        self.make_room(2 * more, more + int(count.sum()), 0)
        self.num_nodes, self.num_rules = insert_rules(
            batch, kept, goal, self.uses_level, self.num_nodes, self.num_rules, self.nodes,
            self.rules, self.slots, self.members, cells, facts, self.tables,
        )  # fmt: skip

    def settle(self) -> np.ndarray:
        """Update the bounds of all nodes; return expanded nodes, the smallest first."""
        nodes = self.nodes
        expanded = np.flatnonzero(nodes.place[: self.num_nodes] >= 0)
        order = expanded[np.argsort(nodes.num_cells[expanded], kind="stable")]
        _update_bounds(order, nodes, self.rules)
        return order

    def reach(self, order: np.ndarray, goal: int) -> np.ndarray:
        """Return how much the root's upper bound depends on nodes, float64 [N].

        For the best tree: the greatest weight of the rest of a tree with the node. For sums: the
        log share of the upper bound that visits the node.
        """
        reach = self._reach_of_root()
        if goal == 0:
            _reach_best(order, self.nodes, self.rules, reach, self.nodes.high[0], True)
        else:
            _reach_sum(order, self.nodes, self.rules, reach, goal)
        return reach

    def reach_known(self, order: np.ndarray) -> np.ndarray:
        """Bound the weight of the rest of a tree with each node from below, float64 [N]."""
        reach = self._reach_of_root()
        _reach_best(order, self.nodes, self.rules, reach, self.nodes.low[0], False)
        return reach

    def _reach_of_root(self) -> np.ndarray:
        reach = np.full(self.num_nodes, -np.inf)
        reach[0] = 0.0
        return reach


def _lengthen(arrays: list[np.ndarray], used: int, size: int) -> None:
    """Lengthen the last axis of arrays in a list, releasing each old one at once."""
    for place, array in enumerate(arrays):
        if array.shape[-1]:
            longer = np.empty((*array.shape[:-1], size), array.dtype)
            longer[..., :used] = array[..., :used]
            arrays[place] = longer


@numba.njit(cache=True, nogil=True)
def _fill_slots(slots, keys, number):
    last = np.uint64(len(slots) - 1)
    for node in range(number):
        slot = keys[node] & last
        while slots[slot] >= 0:
            slot = (slot + np.uint64(1)) & last
        slots[slot] = node


@numba.njit(cache=True, nogil=True)
def copy_members(chosen, start, nodes, members, cells):
    """Write cells of newly expanded nodes, from row ``start`` on; return the next row."""
    for node in chosen:
        if nodes.place[node] >= 0:
            continue
        if nodes.parent[node] >= 0:
            own, side = members[nodes.place[nodes.parent[node]]], nodes.side[node]
            code = side >> 2
            write_side(own, cells, code, side & 2 != 0, side & 1 != 0, members[start])
        nodes.place[node] = start
        start += 1
    return start


@numba.njit(cache=True, nogil=True)
def _update_bounds(order, nodes, rules):
    """Update bounds, children before parents; they never widen."""
    number = nodes.low.shape[0]
    for node in order:
        for k in range(number):
            weights = rules.log_rule if k == 0 else rules.log_split
            low, high = nodes.stop[k, node], max(nodes.stop[k, node], nodes.rest[k, node])
            begin, end = nodes.first[node], nodes.first[node] + nodes.count[node]
            for rule in range(begin, end):
                left, right = rules.left[rule], rules.right[rule]
                low = max(low, weights[rule] + nodes.low[k, left] + nodes.low[k, right])
                high = max(high, weights[rule] + nodes.high[k, left] + nodes.high[k, right])
            if k > 0:
                low_scale, high_scale, low_sum, high_sum = low, high, 0.0, 0.0
                if low_scale > -np.inf:
                    low_sum = np.exp(nodes.stop[k, node] - low_scale)
                if high_scale > -np.inf:
                    high_sum = np.exp(nodes.stop[k, node] - high_scale)
                    high_sum += np.exp(nodes.rest[k, node] - high_scale)
                for rule in range(begin, end):
                    left, right = rules.left[rule], rules.right[rule]
                    if low_scale > -np.inf:
                        term = weights[rule] + nodes.low[k, left] + nodes.low[k, right]
                        low_sum += np.exp(term - low_scale)
                    if high_scale > -np.inf:
                        term = weights[rule] + nodes.high[k, left] + nodes.high[k, right]
                        high_sum += np.exp(term - high_scale)
                low = low_scale + np.log(low_sum) if low_scale > -np.inf else low_scale
                high = high_scale + np.log(high_sum) if high_scale > -np.inf else high_scale
            nodes.low[k, node] = max(nodes.low[k, node], low)
            nodes.high[k, node] = max(min(nodes.high[k, node], high), nodes.low[k, node])


@numba.njit(cache=True, nogil=True)
def _reach_best(order, nodes, rules, reach, bound, prunes):
    """Return the greatest weight of the rest of a tree with each node, by a bound of all others.

    Nodes that cannot beat the best known tree are pruned.
    """
    known = nodes.low[0, 0] if prunes else -np.inf
    for i in range(len(order) - 1, -1, -1):
        node = order[i]
        if reach[node] + bound[node] <= known:
            continue
        for rule in range(nodes.first[node], nodes.first[node] + nodes.count[node]):
            left, right = rules.left[rule], rules.right[rule]
            above = reach[node] + rules.log_rule[rule]
            with_left, with_right = above + bound[right], above + bound[left]
            if with_left + bound[left] <= known:
                continue
            reach[left] = max(reach[left], with_left)
            reach[right] = max(reach[right], with_right)


@numba.njit(cache=True, nogil=True)
def _reach_sum(order, nodes, rules, reach, k):
    """Return the log share of the upper bound of the sum that visits each node."""
    reach[:] = 0.0
    reach[0] = 1.0
    for i in range(len(order) - 1, -1, -1):
        node = order[i]
        if reach[node] < 1e-18:
            continue
        for rule in range(nodes.first[node], nodes.first[node] + nodes.count[node]):
            left, right = rules.left[rule], rules.right[rule]
            term = rules.log_split[rule] + nodes.high[k, left] + nodes.high[k, right]
            share = reach[node] * np.exp(term - nodes.high[k, node])
            reach[left] += share
            reach[right] += share
    for node in range(len(reach)):
        reach[node] = np.log(reach[node]) if reach[node] > 0 else -np.inf


@numba.njit(cache=True, nogil=True)
def derive(nodes, rules, kind, uniform, node_of, rule_of, left_of, num_slots):
    """Write derivations: the best one known (kind 0), or draws from the sum known (kind 1).

    Parameters
    ----------
    nodes, rules
        The graph, with updated bounds.
    kind
        0 or 1.
    uniform
        float64 [m, k]; random numbers, one for each slot; not used for the best.
    node_of, rule_of, left_of
        int64 [m, k], an output; node and rule of each slot, -1 in leaves, and slot of its left
        child, just before the right one.
    num_slots
        int64 [m], an output.

    Returns
    -------
    bool
        Whether the slots sufficed.
    """
    for i in range(len(num_slots)):
        node_of[i, 0] = 0
        number, slot = 1, 0
        while slot < number:
            node = node_of[i, slot]
            begin, end = nodes.first[node], nodes.first[node] + nodes.count[node]
            weights = rules.log_rule if kind == 0 else rules.log_split
            chosen, best = -1, nodes.stop[kind, node]
            if kind == 1:
                best = np.exp(best - nodes.low[1, node])
                so_far = best
            for rule in range(begin, end):
                term = weights[rule] + nodes.low[kind, rules.left[rule]]
                term += nodes.low[kind, rules.right[rule]]
                if kind == 0:
                    if term > best:
                        best, chosen = term, rule
                elif so_far <= uniform[i, slot]:
                    share = np.exp(term - nodes.low[1, node])
                    so_far += share
                    if share > 0:
                        chosen = rule
            rule_of[i, slot], left_of[i, slot] = chosen, number
            if chosen >= 0:
                if number + 2 > node_of.shape[1]:
                    return False
                node_of[i, number], node_of[i, number + 1] = rules.left[chosen], rules.right[chosen]
                number += 2
            slot += 1
        num_slots[i] = number
    return True
