"""Find the rules of sets of cells, and the statistics of their two sides.

Counts are summed by bit planes: bit k of the count of class c in every cell is a set of cells. A
set of cells that is small relative to the number of codes is processed cell by cell instead of code
by code.
"""

from typing import NamedTuple

import numba
import numpy as np

from bdtppl.models.arrays.bit_loops import leading_zeros, number_of_bits, trailing_zeros
from bdtppl.models.arrays.bitsets import pack

_CELLS_COMPARED = 8  # cells of each class, on each side of a rule


class CellFacts(NamedTuple):
    """Summands of cells; C cells, s statistics, W words, d usable features.

    Attributes
    ----------
    statistics
        float64 [C, s].
    planes
        uint64 [s, b, W]; bit planes of the statistics, or [s, 0, W] if they are not counts.
    codes
        int32 [C, d]; codes of the usable features, -1 if missing.
    thermometer
        uint64 [C, T]; bit i is set if the cell is above the i-th cut of all.
    keys
        uint64 [W, 8, 256]; random numbers for hashes of sets (see `hash_of`).
    classes
        uint64 [2, W]; cells with rows of the first and of the second of two classes; [0, W] if
        there are not two, or any two cells may lack a rule.
    apart
        Distinctions between cells that are counted: 0 none, 1 features in which they differ, 2 cuts
        between them.
    hashes_all
        Whether sets on the two sides of every rule are hashed.
    counts_one
        Whether every cell is one row, and its statistics are a one for its class, and a one for
        the row in the last column.
    """

    statistics: np.ndarray
    planes: np.ndarray
    codes: np.ndarray
    thermometer: np.ndarray
    keys: np.ndarray
    classes: np.ndarray
    apart: int
    hashes_all: bool
    counts_one: bool


class FoundRules(NamedTuple):
    """Rules of some sets of cells, in their order; p rules, s statistics.

    Attributes
    ----------
    node
        int32 [p]; place of the set.
    low, high
        int32 [p]; places of the codes (of `Cells`) on the two sides of the gap.
    cut
        int32 [p]; flat position in the design of the code above the cut, or above the first one of
        the gap.
    missing_left
        bool [p].
    left
        float64 [p, s]; statistics of the cells on the left.
    num_left
        int32 [p]; number of these cells.
    part
        uint64 [p]; equal for rules that split their set alike.
    """

    node: np.ndarray
    low: np.ndarray
    high: np.ndarray
    cut: np.ndarray
    missing_left: np.ndarray
    left: np.ndarray
    num_left: np.ndarray
    part: np.ndarray

    @classmethod
    def room(cls, num_rules: int, num_statistics: int) -> "FoundRules":
        """Make room for a number of rules."""
        node, low, high, cut, num_left = (np.empty(num_rules, np.int32) for _ in range(5))
        left, part = np.empty((num_rules, num_statistics)), np.empty(num_rules, np.uint64)
        return cls(node, low, high, cut, np.empty(num_rules, bool), left, num_left, part)

    def take(self, index: slice | np.ndarray) -> "FoundRules":
        """Select some rules."""
        return FoundRules(*(array[index] for array in self))


def bit_planes(statistics: np.ndarray) -> np.ndarray:
    """Make bit planes uint64 [s, b, W] of statistics [C, s]; b is 0 if they are not counts."""
    num_cells, num_statistics = statistics.shape
    is_count = ((statistics == np.rint(statistics)) & (statistics >= 0)).all()
    num_bits = int(statistics.max(initial=0)).bit_length() if is_count else 0
    if num_bits > 6:  # more planes cost more than summing over the cells
        num_bits = 0
    shape = num_statistics, num_bits, -(-num_cells // 64)
    if not num_bits:
        return np.zeros(shape, np.uint64)
    bits = statistics.astype(np.int64).T[:, None] >> np.arange(num_bits)[:, None] & 1
    return pack(bits.reshape(-1, num_cells).astype(bool)).reshape(shape)


@numba.njit(inline="always")
def hash_of(members, keys, start):
    """Hash a set of cells [W] by tables [W, 8, 256] of random numbers, one for each byte.

    Any two sets have the same hash with a probability of 2^-64 over the tables (Carter and Wegman
    1979). Multiplying each word by a number has no such bound: sets that differ in a few high bits
    of neighbouring words collide for every number.
    """
    value = start
    for word in range(len(members)):
        bits, byte = members[word], 0
        while bits != 0:  # no cell adds nothing
            value ^= keys[word, byte, bits & np.uint64(255)]
            bits >>= np.uint64(8)
            byte += 1
    return value


@numba.njit(inline="always")
def scattered(value):
    """Spread a number's bits over all others, one to one (the finaliser of SplitMix64)."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@numba.njit(inline="always")
def compare_cells(side, facts, ones, zeros):
    """Compare some cells of a set [W]: the number of distinguishing features or cuts, and purity.

    ``ones`` and ``zeros`` [2, T] are room for the common bits of the cells of both classes.
    """
    num_words, num_bits = len(side), facts.thermometer.shape[1]
    apart, is_mixed = 0, False
    if len(facts.classes):
        for c in range(2):
            for t in range(num_bits):
                ones[c, t] = ~np.uint64(0)
                zeros[c, t] = ~np.uint64(0)
        word_of_0, word_of_1 = 0, 0
        for _ in range(_CELLS_COMPARED):
            for c in range(2):
                word = word_of_0 if c == 0 else word_of_1
                while word < num_words and side[word] & facts.classes[c, word] == 0:
                    word += 1
                if c == 0:
                    word_of_0 = word + 1
                else:
                    word_of_1 = word + 1
                if word < num_words:
                    bits = side[word] & facts.classes[c, word]
                    cell = np.uint64(64 * word) + trailing_zeros(bits)
                    for t in range(num_bits):
                        ones[c, t] &= facts.thermometer[cell, t]
                        zeros[c, t] &= ~facts.thermometer[cell, t]
            parting = np.uint64(0)
            for t in range(num_bits):
                parting |= (ones[0, t] & zeros[1, t]) | (zeros[0, t] & ones[1, t])
            is_mixed = parting == 0  # an absent class has all ones and all zeros
            if is_mixed or min(word_of_0, word_of_1) > num_words:
                break
        if facts.apart == 2:
            number = np.uint64(0)
            for t in range(num_bits):
                same = (ones[0, t] & ones[1, t]) | (zeros[0, t] & zeros[1, t])
                number += number_of_bits(~same)
            apart = np.int64(number)
    if facts.apart == 1 or (facts.apart == 2 and not len(facts.classes)):
        first, last = -1, -1
        for word in range(num_words):
            if side[word] != 0:
                first = 64 * word + np.int64(trailing_zeros(side[word]))
                break
        for word in range(num_words - 1, -1, -1):
            if side[word] != 0:
                last = 64 * word + 63 - np.int64(leading_zeros(side[word]))
                break
        for j in range(facts.codes.shape[1]):
            difference = abs(facts.codes[first, j] - facts.codes[last, j])
            apart += difference if facts.apart == 2 else min(difference, 1)
    return apart, is_mixed


@numba.njit(inline="always")
def _sum_planes(side, number, facts, sums):
    """Sum the statistics of a set [W] with a number of cells by bit planes."""
    planes = facts.planes
    first = 0
    if facts.counts_one:  # one class and the rows follow from the number
        first = 1
        sums[len(sums) - 1] = number
        sums[0] = number
    for i in range(first, len(sums) - first):
        total = np.uint64(0)
        for k in range(planes.shape[1]):
            bits = np.uint64(0)
            for word in range(len(side)):
                bits += number_of_bits(side[word] & planes[i, k, word])
            total += bits << np.uint64(k)
        sums[i] = total
        if first == 1:
            sums[0] -= sums[i]


@numba.njit(inline="always")
def _emit(found, room, node, low, high, side, sums, number):
    """Write one rule."""
    room.node[found] = node
    room.low[found] = low
    room.high[found] = high
    room.missing_left[found] = side == 1
    for i in range(len(sums)):
        room.left[found, i] = sums[i]
    room.num_left[found] = number


@numba.njit(inline="always")
def _repeat(found, room, rule):
    """Copy a rule, with another cut of its gap."""
    room.node[found] = room.node[rule]
    room.low[found] = room.low[rule]
    room.high[found] = room.high[rule]
    room.missing_left[found] = room.missing_left[rule]
    room.left[found] = room.left[rule]
    room.num_left[found] = room.num_left[rule]
    room.part[found] = room.part[rule]


@numba.njit(inline="always")
def _sum_cells(own, cells, facts, sums_total, total, sums, number):
    """Sum the cells of a set by their codes, and all together if requested."""
    num_statistics = facts.statistics.shape[1]
    sums[:] = 0.0
    number[:] = 0
    if sums_total:
        total[:] = 0.0
    for word in range(len(own)):
        bits = own[word]
        while bits != 0:
            cell = 64 * word + np.int64(trailing_zeros(bits))
            bits &= bits - np.uint64(1)
            if sums_total:
                for i in range(num_statistics):
                    total[i] += facts.statistics[cell, i]
            for j in range(len(cells.has_missing)):
                place = cells.position[cell, j]
                number[place] += 1
                for i in range(num_statistics):
                    sums[place, i] += facts.statistics[cell, i]


@numba.njit(inline="always")
def _split_cells(own, cells, code, feature, missing_left, left, right):
    """Write the cells of a set at or below a code, and all others."""
    for word in range(len(own)):
        mask = cells.at_or_below[code, word]
        if missing_left:
            mask |= cells.missing[feature, word]
        left[word] = own[word] & mask
        right[word] = own[word] & ~mask


@numba.njit(cache=True, nogil=True)
def find_rules(members, cells, facts, room, totals):
    """Find the rules of sets of cells uint64 [m, W], and their statistics.

    The fewest rows of a leaf and excluded cuts are ignored.

    Parameters
    ----------
    members
        uint64 [m, W].
    cells, facts
        The cells.
    room
        `FoundRules` for the output.
    totals
        float64 [m, s]; statistics of the sets, an output.

    Returns
    -------
    int
        The number of rules.
    """
    num_words, num_statistics = members.shape[1], facts.statistics.shape[1]
    num_codes, num_features = len(cells.feature), len(cells.has_missing)
    has_planes = facts.planes.shape[1] > 0
    sums = np.zeros((num_codes + num_features, num_statistics))
    number = np.zeros(num_codes + num_features, np.int64)
    running, with_missing = np.zeros(num_statistics), np.zeros(num_statistics)
    left, right = np.empty(num_words, np.uint64), np.empty(num_words, np.uint64)
    start_of = np.zeros(num_features + 1, np.int64)
    for code in range(num_codes):
        start_of[cells.feature[code] + 1] = code + 1
    found = 0
    for node in range(len(members)):
        own, total = members[node], totals[node]
        num_cells = 0
        for word in range(num_words):
            num_cells += number_of_bits(own[word])
        by_cells = (
            not has_planes
            or num_cells * num_features * (2 + num_statistics) < 2 * num_codes * num_words
        )
        if has_planes:
            _sum_planes(own, num_cells, facts, total)
        if by_cells:
            _sum_cells(own, cells, facts, not has_planes, total, sums, number)
        for j in range(num_features):
            num_missing = 0
            if cells.has_missing[j]:
                for word in range(num_words):
                    num_missing += number_of_bits(own[word] & cells.missing[j, word])
            num_present, last, so_far = num_cells - num_missing, -1, 0
            running[:] = 0.0
            last_code = start_of[j + 1] - 1
            for code in range(start_of[j], start_of[j + 1]):
                if so_far == num_present:
                    break
                up_to = num_present
                if by_cells:
                    up_to = so_far + number[code]
                elif code < last_code:
                    up_to = 0
                    for word in range(num_words):
                        up_to += number_of_bits(own[word] & cells.at_or_below[code, word])
                if up_to == so_far:
                    continue
                if last >= 0:
                    first = found
                    cut = np.int32(cells.code[last]) + 1
                    for side in range(1 + cells.has_missing[j]):
                        if not by_cells or facts.hashes_all:
                            _split_cells(own, cells, last, j, side == 1, left, right)
                        num_left = so_far + num_missing * side
                        if by_cells:
                            for i in range(num_statistics):
                                with_missing[i] = running[i]
                                if side == 1:
                                    with_missing[i] += sums[num_codes + j, i]
                        else:
                            _sum_planes(left, num_left, facts, with_missing)
                        _emit(found, room, node, last, code, side, with_missing, num_left)
                        if facts.hashes_all:
                            one = hash_of(left, facts.keys, np.uint64(1))
                            other = hash_of(right, facts.keys, np.uint64(1))
                            room.part[found] = min(one, other)
                        room.cut[found] = cut
                        found += 1
                    if cells.each_cut:  # in the order of the list that a rule law may walk along
                        number_of_sides = found - first
                        for other_cut in range(cut + 1, np.int32(cells.code[code]) + 1):
                            for side in range(number_of_sides):
                                _repeat(found, room, first + side)
                                room.cut[found] = other_cut
                                found += 1
                if by_cells:
                    for i in range(num_statistics):
                        running[i] += sums[code, i]
                last, so_far = code, up_to
    return found


@numba.njit(cache=True, nogil=True)
def least_apart(facts):
    """Return the fewest cuts between cells of different classes."""
    least = np.uint64(facts.thermometer.shape[1] * 64)
    number = len(facts.codes)
    for one in range(number):
        for other in range(one):
            crosses = False
            for c in range(2):
                word, bit = one >> 6, np.uint64(one & 63)
                has_one = (facts.classes[c, word] >> bit) & np.uint64(1)
                word, bit = other >> 6, np.uint64(other & 63)
                has_other = (facts.classes[1 - c, word] >> bit) & np.uint64(1)
                crosses |= (has_one & has_other) != 0
            if crosses:
                bits = np.uint64(0)
                for t in range(facts.thermometer.shape[1]):
                    bits += number_of_bits(facts.thermometer[one, t] ^ facts.thermometer[other, t])
                least = min(least, bits)
    return np.int64(least)
