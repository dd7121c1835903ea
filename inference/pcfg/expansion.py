"""Find the rules of subproblems, and the sets of cells on their two sides.

Every cell has a random key, and a set of cells is identified by the sum of its keys. One pass over
the cells of a subproblem sums their keys at each code of each feature. Running sums over the codes
of a feature are the keys of the left children of its rules, and the remainders are those of the
right children.
"""

from typing import NamedTuple

import numba
import numpy as np

from bdtppl.models.arrays.bit_loops import trailing_zeros
from bdtppl.models.arrays.bitsets import pack
from bdtppl.models.data.design import Design


class Cells(NamedTuple):
    """Cells of a design: C cells of W words, d usable features, V codes of these in the cells.

    Attributes
    ----------
    design_feature
        int32; feature of each flat position in the design.
    code
        uint32 [V]; flat positions in the design, ascending. A sample uses few of the design's
        codes, so that its cost does not grow with the design.
    feature
        int32 [V]; place of the code's feature among the usable ones.
    position
        uint32 [C, d]; place of the cell's code of each usable feature, or V plus the place of the
        feature if its value is missing.
    at_or_below
        uint64 [V, W]; cells whose value of the feature is present and has at most this code.
    missing
        uint64 [d, W]; cells whose value is missing.
    has_missing
        bool [d].
    key, size
        uint64 and int64 [C]; random keys, and rows in each cell.
    num_cuts
        int64 [d]; most cuts of a subproblem, by feature.
    min_leaf
        Rows that each side of a rule needs.
    each_cut
        Whether every cut of a gap is a separate rule.
    """

    design_feature: np.ndarray
    code: np.ndarray
    feature: np.ndarray
    position: np.ndarray
    at_or_below: np.ndarray
    missing: np.ndarray
    has_missing: np.ndarray
    key: np.ndarray
    size: np.ndarray
    num_cuts: np.ndarray
    min_leaf: int
    each_cut: bool

    @classmethod
    def of(
        cls, design: Design, codes: np.ndarray, allowed: np.ndarray, *, each_cut: bool, **fields
    ) -> "Cells":
        """Tabulate cells by their codes [C, features], and the features that rules may use."""
        present = [np.unique(column[column >= 0]) for column in codes.T]
        usable = np.flatnonzero(allowed & [len(own) > 1 for own in present])
        present, codes = [present[j] for j in usable], codes[:, usable]
        numbers = np.array([len(own) for own in present], int)
        start, stop = np.cumsum(numbers) - numbers, numbers.sum()
        code, position = np.empty(stop, np.uint32), np.empty(codes.shape, np.uint32)
        at_or_below = np.empty((stop, -(-len(codes) // 64)), np.uint64)
        for j, (own, column) in enumerate(zip(present, codes.T, strict=True)):
            places = slice(start[j], start[j] + numbers[j])
            code[places] = design.offset[usable[j]] + own
            position[:, j] = np.where(column < 0, stop + j, start[j] + np.searchsorted(own, column))
            at_or_below[places] = pack((column >= 0) & (column <= own[:, None]))
        num_cuts = [own[-1] - own[0] if each_cut else len(own) - 1 for own in present]
        return cls(
            design_feature=design.feature_of_code,
            code=code,
            feature=np.repeat(np.arange(len(usable), dtype=np.int32), numbers),
            position=position,
            at_or_below=at_or_below,
            missing=pack((codes < 0).T),
            has_missing=design.has_missing[usable],
            num_cuts=np.array(num_cuts, int),
            each_cut=each_cut,
            **fields,
        )

    def room_for(self, num_nodes: int) -> "Found":
        """Make room for all rules of some subproblems."""
        room = num_nodes * int(self.num_cuts @ (1 + self.has_missing))
        arrays = (np.empty(room, kind) for kind in [*[np.int32] * 4, np.bool_])
        return Found(*arrays, key=np.empty((room, 2), np.uint64))


class Found(NamedTuple):
    """Rules of some subproblems, in their order, then by feature, cut and side of missing values.

    Attributes
    ----------
    parent
        int32 [p]; place of the subproblem.
    low, high
        int32 [p]; flat positions of the codes on the two sides of the gap.
    cut
        int32 [p]; flat position of the code above the cut, or above the first one of the gap.
    missing_left
        bool [p].
    key
        uint64 [p, 2]; keys of the left and the right child.
    """

    parent: np.ndarray
    low: np.ndarray
    high: np.ndarray
    cut: np.ndarray
    missing_left: np.ndarray
    key: np.ndarray

    def take(self, index: slice | np.ndarray) -> "Found":
        """Select some rules."""
        return Found(*(array[index] for array in self))


def expand(members: np.ndarray, keys: np.ndarray, cells: Cells, room: Found) -> Found:
    """Find the rules of subproblems.

    Parameters
    ----------
    members
        uint64 [k, W]; cells of each subproblem.
    keys
        uint64 [k]; sums of their keys.
    cells
        The cells.
    room
        Arrays to write to.
    """
    return room.take(slice(_expand(members, keys, cells, room)))


@numba.njit(cache=True, nogil=True)
def _expand(members, keys, cells, rules):
    """Write the rules of subproblems, and count them."""
    num_codes, num_features = len(cells.feature), len(cells.has_missing)
    key = np.zeros(num_codes + num_features, np.uint64)
    weight = np.zeros(num_codes + num_features, np.int64)
    # One byte for each code, read eight at a time: most codes of a small subproblem are absent.
    is_present = np.zeros(8 * (len(key) // 8 + 1), np.uint8)
    eight_codes = is_present.view(np.uint64)
    counts_rows = cells.min_leaf > 1
    # Places are unsigned, so compiled code skips the check for negative ones.
    one_more, found = np.uint64(1), np.uint64(0)
    for node in range(len(members)):
        total = np.int64(0)
        for word in range(members.shape[1]):
            bits = members[node, word]
            while bits != 0:
                cell = np.uint64(64 * word) + trailing_zeros(bits)
                bits &= bits - one_more
                for j in range(num_features):
                    key[cells.position[cell, j]] += cells.key[cell]
                    is_present[cells.position[cell, j]] = 1
                if counts_rows:
                    total += cells.size[cell]
                    for j in range(num_features):
                        weight[cells.position[cell, j]] += cells.size[cell]
        low, feature = np.uint64(0), -1
        left_key, left_weight = np.uint64(0), np.int64(0)
        for eight in range(len(eight_codes)):
            bits = eight_codes[eight]
            eight_codes[eight] = 0
            while bits != 0:
                high = np.uint64(8 * eight) + (trailing_zeros(bits) >> np.uint64(3))
                bits &= bits - one_more
                if high >= np.uint64(num_codes):
                    continue
                if cells.feature[high] == feature:
                    with_missing = num_codes + feature
                    first_cut = cells.code[low] + one_more
                    last_cut = cells.code[high] if cells.each_cut else first_cut
                    for cut in range(first_cut, last_cut + one_more):
                        for side in range(1 + cells.has_missing[feature]):
                            one, rows = left_key, left_weight
                            if side == 1:
                                one += key[with_missing]
                                rows += weight[with_missing]
                            if not counts_rows or min(rows, total - rows) >= cells.min_leaf:
                                rules.parent[found] = node
                                rules.low[found] = cells.code[low]
                                rules.high[found] = cells.code[high]
                                rules.cut[found] = cut
                                rules.missing_left[found] = side == 1
                                rules.key[found, 0] = one
                                rules.key[found, 1] = keys[node] - one
                                found += one_more
                else:
                    feature = cells.feature[high]
                    left_key, left_weight = np.uint64(0), np.int64(0)
                left_key += key[high]
                left_weight += weight[high]
                key[high], weight[high] = 0, 0
                low = high
        key[num_codes:] = 0
        weight[num_codes:] = 0
    return found


@numba.njit(cache=True, nogil=True)
def cells_of_children(members, cells, rules, which):
    """Return cells of some children of subproblems, uint64 [len(which), W].

    Parameters
    ----------
    members
        uint64 [k, W]; cells of the subproblems.
    cells
        The cells.
    rules
        Their rules.
    which
        int64; twice the number of a rule, plus one for its right child.
    """
    cells_of_child = np.empty((len(which), members.shape[1]), np.uint64)
    for i in range(len(which)):
        rule = which[i] >> 1
        parent, low = rules.parent[rule], np.searchsorted(cells.code, rules.low[rule])
        for word in range(members.shape[1]):
            left = cells.at_or_below[low, word]
            if rules.missing_left[rule]:
                left |= cells.missing[cells.feature[low], word]
            if which[i] & 1:
                left = ~left
            cells_of_child[i, word] = members[parent, word] & left
    return cells_of_child
