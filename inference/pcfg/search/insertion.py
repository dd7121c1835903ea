"""Expansion of nodes of the graph: choose the rules to store, and add the nodes below them.

Rules of a node are ranked by upper bounds. For the best tree, comparing the cells on both sides
lowers these bounds; only rules that could be chosen are compared.
"""

from typing import NamedTuple

import numba
import numpy as np

from bdtppl.inference.pcfg.search.bounds import bound_set
from bdtppl.inference.pcfg.search.counting import compare_cells, hash_of, scattered

GREEDY_RULES = 4  # rules of a node that are stored because they are best if trees end below them


class _ChosenRules(NamedTuple):
    """Rules of a batch with intermediate results; p rules, m nodes.

    Attributes
    ----------
    high
        float64 [k, p]; upper bounds.
    is_kept, is_compared
        bool [p]; whether a rule is out of the bound of those that are not stored, and whether the
        cells on both of its sides have been compared.
    apart, is_mixed
        int64 and bool [2, p]; see `compare_cells`.
    ranked
        int64 [p]; the rules to add, from each node's first place on.
    num_ranked
        int64 [m]; their number.
    """

    high: np.ndarray
    is_kept: np.ndarray
    is_compared: np.ndarray
    apart: np.ndarray
    is_mixed: np.ndarray
    ranked: np.ndarray
    num_ranked: np.ndarray


@numba.njit(inline="always")
def write_side(own, cells, code, missing_left, is_right, side):
    """Write the cells [W] on one side of a rule."""
    for word in range(len(own)):
        left = cells.at_or_below[code, word]
        if missing_left:
            left |= cells.missing[cells.feature[code], word]
        side[word] = own[word] & (~left if is_right else left)


@numba.njit(cache=True, nogil=True)
def _bound_rules(batch, goal, uses_level, nodes, rules, num_cuts, tables, chosen):
    """Bound all rules, and mark those that are stored or cannot be better than stopping."""
    number, found = nodes.low.shape[0], batch.found
    high, is_kept = chosen.high, chosen.is_kept
    one_low, one_high = np.empty(number), np.empty(number)
    two_low, two_high = np.empty(number), np.empty(number)
    rule_of_cut = np.zeros(2 * num_cuts + 2, np.int64)
    for i in range(len(batch.nodes)):
        node, start, stop = batch.nodes[i], batch.first[i], batch.first[i + 1]
        size, level = nodes.num_cells[node], nodes.level[node] + (1 if uses_level else 0)
        for rule in range(start, stop):
            rule_of_cut[2 * found.cut[rule] + found.missing_left[rule]] = rule
        for rule in range(nodes.first[node], nodes.first[node] + nodes.count[node]):
            is_kept[rule_of_cut[2 * rules.cut[rule] + rules.missing_left[rule]]] = True
        for rule in range(start, stop):
            left_cells = found.num_left[rule]
            bound_set(
                level, left_cells, 0, False, batch.score[0, 0, rule], batch.score[1, 0, rule],
                batch.score[2, 0, rule], tables, one_low, one_high,
            )  # fmt: skip
            bound_set(
                level, size - left_cells, 0, False, batch.score[0, 1, rule],
                batch.score[1, 1, rule], batch.score[2, 1, rule], tables, two_low, two_high,
            )  # fmt: skip
            for k in range(number):
                weight = batch.log_rule[rule] if k == 0 else batch.log_split[rule]
                high[k, rule] = weight + one_high[k] + two_high[k]
            if number == 1 and high[goal, rule] <= batch.stop[0, i]:
                is_kept[rule] = True  # as if it were: stopping is as good as any subtree


@numba.njit(cache=True, nogil=True)
def _rank_rules(batch, kept, goal, uses_level, nodes, members, cells, facts, tables, chosen):
    """Choose the rules to add to each node: by upper bounds, and some that make the best leaves."""
    number, found = nodes.low.shape[0], batch.found
    high, is_kept, ranked = chosen.high, chosen.is_kept, chosen.ranked
    side_cells = np.empty(members.shape[1], np.uint64)
    one_low, one_high = np.empty(number), np.empty(number)
    ones = np.empty((2, facts.thermometer.shape[1]), np.uint64)
    zeros = np.empty_like(ones)
    compares = goal == 0 and (facts.apart != 0 or len(facts.classes) > 0)
    for i in range(len(batch.nodes)):
        node, start, stop = batch.nodes[i], batch.first[i], batch.first[i + 1]
        own, size = members[nodes.place[node]], nodes.num_cells[node]
        level = nodes.level[node] + (1 if uses_level else 0)
        end, wanted_end = start, start + kept[i]
        listed = start + np.flatnonzero(~is_kept[start:stop])
        for rule in listed[np.argsort(-high[goal][listed])]:
            if end == wanted_end and high[goal, rule] <= high[goal, ranked[end - 1]]:
                break  # comparing cells only lowers bounds
            if compares:
                code, weight = found.low[rule], batch.log_rule[rule]
                for side in range(2):
                    write_side(own, cells, code, found.missing_left[rule], side == 1, side_cells)
                    apart, is_mixed = compare_cells(side_cells, facts, ones, zeros)
                    chosen.apart[side, rule], chosen.is_mixed[side, rule] = apart, is_mixed
                    number_here = found.num_left[rule] if side == 0 else size - found.num_left[rule]
                    bound_set(
                        level, number_here, apart, is_mixed, batch.score[0, side, rule],
                        batch.score[1, side, rule], batch.score[2, side, rule], tables, one_low,
                        one_high,
                    )  # fmt: skip
                    weight += one_high[0]
                high[0, rule], chosen.is_compared[rule] = weight, True
                if number == 1 and weight <= batch.stop[0, i]:
                    is_kept[rule] = True
                    continue
            value = high[goal, rule]
            if end < wanted_end:
                at = end
                end += 1
            elif value > high[goal, ranked[end - 1]]:
                at = end - 1
            else:
                continue
            while at > start and high[goal, ranked[at - 1]] < value:
                ranked[at] = ranked[at - 1]
                at -= 1
            ranked[at] = rule
        for at in range(start, end):
            is_kept[ranked[at]] = True
        for _ in range(GREEDY_RULES if nodes.count[node] == 0 else 0):
            best, most = -1, 0.0
            for rule in range(start, stop):
                if not is_kept[rule]:
                    gain = batch.log_rule[rule] + batch.score[0, 0, rule] + batch.score[0, 1, rule]
                    if best < 0 or gain > most:
                        best, most = rule, gain
            if best >= 0:
                ranked[end] = best
                is_kept[best] = True
                end += 1
        chosen.num_ranked[i] = end - start


@numba.njit(cache=True, nogil=True)
def _add_rules(
    batch, uses_level, num_nodes, num_rules, nodes, rules, slots, members, cells, facts, tables,
    chosen,
):  # fmt: skip
    """Write the rules of nodes with the chosen ones; return the numbers of nodes and rules."""
    number, found = nodes.low.shape[0], batch.found
    side_cells = np.empty(members.shape[1], np.uint64)
    one_low, one_high = np.empty(number), np.empty(number)
    ones = np.empty((2, facts.thermometer.shape[1]), np.uint64)
    zeros = np.empty_like(ones)
    last_slot = np.uint64(len(slots) - 1)
    for i in range(len(batch.nodes)):
        node, start = batch.nodes[i], batch.first[i]
        own, size = members[nodes.place[node]], nodes.num_cells[node]
        level = nodes.level[node] + (1 if uses_level else 0)
        first, old_first = num_rules, nodes.first[node]
        for rule in range(old_first, old_first + nodes.count[node]):
            rules.left[num_rules] = rules.left[rule]
            rules.right[num_rules] = rules.right[rule]
            rules.low[num_rules] = rules.low[rule]
            rules.high[num_rules] = rules.high[rule]
            rules.cut[num_rules] = rules.cut[rule]
            rules.missing_left[num_rules] = rules.missing_left[rule]
            rules.log_rule[num_rules] = rules.log_rule[rule]
            if number > 1:
                rules.log_split[num_rules] = rules.log_split[rule]
            num_rules += 1
        for rule in chosen.ranked[start : start + chosen.num_ranked[i]]:
            code = found.low[rule]
            for side in range(2):
                write_side(own, cells, code, found.missing_left[rule], side == 1, side_cells)
                apart, is_mixed = chosen.apart[side, rule], chosen.is_mixed[side, rule]
                if not chosen.is_compared[rule]:
                    apart, is_mixed = compare_cells(side_cells, facts, ones, zeros)
                begin = scattered(np.uint64(level + 1))
                if len(nodes.memory):
                    begin = scattered(begin ^ batch.memory[side, rule])
                key = hash_of(side_cells, facts.keys, begin)
                slot = key & last_slot
                while slots[slot] >= 0 and nodes.key[slots[slot]] != key:
                    slot = (slot + np.uint64(1)) & last_slot
                if slots[slot] < 0:
                    slots[slot] = num_nodes
                    nodes.key[num_nodes] = key
                    if len(nodes.memory):
                        nodes.memory[num_nodes] = batch.memory[side, rule]
                    nodes.level[num_nodes] = level
                    num_left = found.num_left[rule]
                    nodes.num_cells[num_nodes] = num_left if side == 0 else size - num_left
                    bound_set(
                        level, nodes.num_cells[num_nodes], apart, is_mixed,
                        batch.score[0, side, rule], batch.score[1, side, rule],
                        batch.score[2, side, rule], tables, one_low, one_high,
                    )  # fmt: skip
                    for k in range(number):
                        nodes.low[k, num_nodes] = one_low[k]
                        nodes.high[k, num_nodes] = one_high[k]
                        nodes.stop[k, num_nodes] = one_low[k]
                        nodes.rest[k, num_nodes] = -np.inf
                    nodes.place[num_nodes] = -1
                    nodes.parent[num_nodes] = node
                    nodes.side[num_nodes] = 4 * code + 2 * found.missing_left[rule] + side
                    nodes.first[num_nodes] = 0
                    nodes.count[num_nodes] = 0
                    num_nodes += 1
                if side == 0:
                    rules.left[num_rules] = slots[slot]
                else:
                    rules.right[num_rules] = slots[slot]
            rules.low[num_rules] = code
            rules.high[num_rules] = found.high[rule]
            rules.cut[num_rules] = found.cut[rule]
            rules.missing_left[num_rules] = found.missing_left[rule]
            rules.log_rule[num_rules] = batch.log_rule[rule]
            if number > 1:
                rules.log_split[num_rules] = batch.log_split[rule]
            num_rules += 1
        nodes.first[node], nodes.count[node] = first, num_rules - first
    return num_nodes, num_rules


@numba.njit(cache=True, nogil=True)
def _bound_rest(batch, nodes, chosen):
    """Write the weight of stopping, and bound the rules of each node that are not stored."""
    for i in range(len(batch.nodes)):
        node, start, stop = batch.nodes[i], batch.first[i], batch.first[i + 1]
        for k in range(nodes.low.shape[0]):
            most_high = -np.inf
            for rule in range(start, stop):
                if not chosen.is_kept[rule]:
                    most_high = max(most_high, chosen.high[k, rule])
            rest = most_high
            if k > 0 and most_high > -np.inf:
                total = 0.0
                for rule in range(start, stop):
                    if not chosen.is_kept[rule]:
                        total += np.exp(chosen.high[k, rule] - most_high)
                rest = most_high + np.log(total)
            nodes.stop[k, node], nodes.rest[k, node] = batch.stop[k, i], rest


@numba.njit(cache=True, nogil=True)
def insert_rules(
    batch, kept, goal, uses_level, num_nodes, num_rules, nodes, rules, slots, members, cells,
    facts, tables,
):  # fmt: skip
    """Store rules of expanded nodes; return the numbers of nodes and rules.

    Each step loops over all nodes, because a call per node would take longer than the step.
    """
    size = len(batch.log_rule)
    chosen = _ChosenRules(
        high=np.empty((nodes.low.shape[0], size)),
        is_kept=np.zeros(size, np.bool_),
        is_compared=np.zeros(size, np.bool_),
        apart=np.empty((2, size), np.int64),
        is_mixed=np.empty((2, size), np.bool_),
        ranked=np.empty(size, np.int64),
        num_ranked=np.empty(len(batch.nodes), np.int64),
    )
    num_cuts = len(cells.design_feature)
    _bound_rules(batch, goal, uses_level, nodes, rules, num_cuts, tables, chosen)
    _rank_rules(batch, kept, goal, uses_level, nodes, members, cells, facts, tables, chosen)
    _bound_rest(batch, nodes, chosen)
    return _add_rules(
        batch, uses_level, num_nodes, num_rules, nodes, rules, slots, members, cells, facts, tables,
        chosen,
    )  # fmt: skip
