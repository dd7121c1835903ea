"""Sums of trees as sums of terms over boxes, which are quick to evaluate and to read.

A tree is the value of its rightmost leaf plus one term for each split: where r(v) is the value of
the rightmost leaf below node v, the split at v adds r(left) - r(right) in the rows that come to v
and go left. These rows are a box: an interval of bins of each feature on the path. Bin 0 of a
feature holds its missing values, and bin 1 + c its code c, so that "at most c, or missing" is an
interval, too.

Terms of one feature add up to a table of its bins, terms of two to a table of pairs of bins where
there are many. Of all others the bytes of a block of rows are compared, and eight terms make a byte
whose sum is looked up. No decision depends on the rows, nor does the order of the sums.
"""

from typing import NamedTuple

import numpy as np

from bdtppl.inference.additive.complete_trees import vectorised
from bdtppl.inference.additive.tables import RowTables
from bdtppl.models.arrays.threads import in_threads
from bdtppl.models.data.design import Design

_BLOCK = 4096  # rows that are evaluated at once
_SUMS_AT_ONCE = 16  # by one thread
_FEWEST_TABLED = 4  # terms of a feature, for a table to be quicker
_CELLS_A_TERM = 256  # of a pair of features, for a table to be quicker


class BoxTerms(NamedTuple):
    """Terms of sums s, sorted by sum, number of features, and features.

    Attributes
    ----------
    constant
        float64 [s]; of each sum.
    which
        int32 [t]; sum that a term is of.
    order
        int8 [t]; number of its features.
    feature
        int32 [t, most]; the features, in order, and then -1.
    low, high
        uint8 [t, most]; a row is in the box if its bin of each feature is from low to high.
    value
        float64 [t].
    """

    constant: np.ndarray
    which: np.ndarray
    order: np.ndarray
    feature: np.ndarray
    low: np.ndarray
    high: np.ndarray
    value: np.ndarray

    @classmethod
    def of(cls, design: Design, rows: RowTables, rule: np.ndarray, value: np.ndarray) -> "BoxTerms":
        """Write sums as terms.

        Parameters
        ----------
        design, rows
            Training rows, and the rules.
        rule, value
            Complete trees [s, trees, nodes] and the values of their leaves.
        """
        levels = (rule.shape[-1] + 1).bit_length() - 1
        size = int((rule >= 0).sum()) * (2 ** (levels // 2) if (rows.missing >= 0).any() else 1)
        terms = cls(
            constant=np.zeros(len(rule)),
            which=np.empty(size, np.int32),
            order=np.empty(size, np.int8),
            feature=np.full((size, levels), -1, np.int32),
            low=np.zeros((size, levels), np.uint8),
            high=np.zeros((size, levels), np.uint8),
            value=np.empty(size),
        )
        num = _write_terms(rule, value, rows, design.num_codes, design.has_missing, terms)
        terms = cls(terms.constant, *(each[:num] for each in terms[1:]))
        key = np.where(terms.feature < 0, np.iinfo(np.int32).max, terms.feature)
        place = np.argsort(key, axis=1, kind="stable")
        of_box = {
            name: np.take_along_axis(getattr(terms, name), place, axis=1)
            for name in ("feature", "low", "high")
        }
        return terms._replace(**of_box)._sorted()

    def mean(self) -> "BoxTerms":
        """Return the terms of the mean of all sums."""
        return self.added(np.full(len(self.constant), 1 / len(self.constant)))

    def added(self, weight: np.ndarray) -> "BoxTerms":
        """Return the terms of weighted totals, each of the next k sums; the weights are [k]."""
        number = len(weight)
        totals = self._replace(
            constant=self.constant.reshape(-1, number) @ weight,
            which=self.which // number,
            value=self.value * weight[self.which % number],
        )
        return totals._sorted()

    def restricted(self, kept: np.ndarray, factor: np.ndarray) -> "BoxTerms":
        """Leave out features [t, most], and multiply terms by factors of theirs, [t, most]."""
        place = np.argsort(~kept, axis=1, kind="stable")
        of_box = {
            name: np.take_along_axis(np.where(kept, getattr(self, name), none), place, axis=1)
            for name, none in (
                ("feature", np.int32(-1)),
                ("low", np.uint8(0)),
                ("high", np.uint8(255)),
            )
        }
        order = kept.sum(axis=1).astype(np.int8)
        return self._replace(
            **of_box, order=order, value=self.value * factor.prod(axis=1)
        )._sorted()

    def _sorted(self) -> "BoxTerms":
        place = np.lexsort((*self.feature.T[::-1], self.order, self.which))
        return BoxTerms(self.constant, *(each[place] for each in self[1:]))

    def groups(self) -> tuple[np.ndarray, np.ndarray]:
        """Find runs of terms of one sum and the same features: their first terms, and counts."""
        keys = np.column_stack([self.which, self.feature])
        is_first = np.ones(len(keys), bool)
        is_first[1:] = (keys[1:] != keys[:-1]).any(axis=1)
        first = np.flatnonzero(is_first)
        return first, np.diff(np.append(first, len(keys)))


class Evaluation:
    """Evaluates terms at rows.

    Parameters
    ----------
    terms
        Terms of sums s.
    num_codes
        int [d]; of the features.
    """

    def __init__(self, terms: BoxTerms, num_codes: np.ndarray):
        first, count = terms.groups()
        sizes = np.append(num_codes, 0).astype(np.int64)[terms.feature[first]] + 1  # 1 of none
        order = terms.order[first]
        tabled = (order == 1) & (count >= _FEWEST_TABLED)
        if terms.feature.shape[1] > 1:
            tabled |= (order == 2) & (count * _CELLS_A_TERM >= sizes[:, :2].prod(axis=1))
        self.constant, own = terms.constant, np.flatnonzero(tabled)
        cells = sizes[own, :2].prod(axis=1)
        self.start = np.cumsum(cells) - cells
        self.table = np.zeros(cells.sum())
        self.pair = np.full((len(own), 2), -1, np.int32)
        self.pair[:, : terms.feature.shape[1]] = terms.feature[first[own], :2]
        self.second = sizes[own, 1] if terms.feature.shape[1] > 1 else np.ones(len(own), np.int64)
        _fill_tables(terms, first[own], count[own], self.start, self.second, self.table)
        sums = np.arange(len(self.constant) + 1)
        self.first_table = np.searchsorted(terms.which[first[own]], sums)
        left = ~np.repeat(tabled, count)
        self.terms = BoxTerms(terms.constant, *(each[left] for each in terms[1:]))
        self.first_term = np.searchsorted(self.terms.which, sums)

    def __call__(self, bins: np.ndarray) -> np.ndarray:
        """Add all terms of each sum up at rows, float64 [s, m]; bins are uint8 [d, m]."""
        total = np.empty((len(self.constant), bins.shape[1]))

        def add(first: int) -> None:
            last = min(first + _SUMS_AT_ONCE, len(total))
            tables = self.first_table, self.start, self.second, self.pair, self.table
            _evaluate_terms(bins, *tables, self.first_term, self.terms, first, last, total)

        work = _SUMS_AT_ONCE * (1 + len(self.terms.value) // len(total)) * bins.shape[1]
        in_threads(add, range(0, len(total), _SUMS_AT_ONCE), work)
        return total


def bins_of(design: Design, matrix: np.ndarray) -> np.ndarray:
    """Find the bins of rows [m, d], uint8 [d, m].

    Missing values go right, as the last code does, where no training value is missing.
    """
    codes = design.encode(np.asarray(matrix, np.float64))
    last = np.where(design.has_missing, -1, design.num_codes - 1)
    return np.ascontiguousarray((1 + np.where(codes < 0, last, codes)).T, np.uint8)


@vectorised
def _write_terms(rule, value, rows, num_codes, has_missing, terms):
    """Write the terms of trees [s, trees, nodes]; returns their number."""
    num_sums, num_trees, internal = rule.shape
    levels = terms.feature.shape[1]
    right_most = np.empty(2 * internal + 1)
    feature, low, high = np.empty((3, levels), np.int64)
    missing, divided = np.empty((2, levels), np.bool_)
    num = 0
    for s in range(num_sums):
        for t in range(num_trees):
            own = rule[s, t]
            for v in range(2 * internal, -1, -1):
                right_most[v] = value[s, t, v]
                if v < internal and own[v] >= 0:
                    right_most[v] = right_most[2 * v + 2]
            terms.constant[s] += right_most[0]
            for v in range(internal):
                if own[v] < 0:
                    continue
                # From the split's left side up to the root: the codes from low to high, beside the
                # missing values, are in the box.
                count, goes_left, node = 0, True, v
                while True:
                    q = own[node]
                    j = rows.feature[q]
                    c = 0
                    while c < count and feature[c] != j:
                        c += 1
                    if c == count:
                        feature[c], low[c], high[c], missing[c] = j, 1, num_codes[j], has_missing[j]
                        count += 1
                    if goes_left:
                        high[c] = min(high[c], rows.last[q] + 1)
                    else:
                        low[c] = max(low[c], rows.last[q] + 2)
                    missing[c] &= goes_left == (rows.missing[q] >= 0)
                    if node == 0:
                        break
                    goes_left = node % 2 == 1
                    node = (node - 1) // 2
                # A feature with the missing values and codes that do not begin at the first one
                # divides the box in two.
                boxes = 1
                for c in range(count):
                    divided[c] = False
                    if low[c] > high[c]:
                        boxes *= missing[c]
                        low[c], high[c] = 0, 0
                    elif missing[c] and low[c] == 1:
                        low[c] = 0
                    elif missing[c]:
                        divided[c] = True
                        boxes *= 2
                for box in range(boxes):
                    place = box
                    for c in range(count):
                        only_missing = divided[c] and place % 2 == 1
                        if divided[c]:
                            place //= 2
                        terms.feature[num, c] = feature[c]
                        terms.low[num, c] = 0 if only_missing else low[c]
                        terms.high[num, c] = 0 if only_missing else high[c]
                    terms.which[num], terms.order[num] = s, count
                    terms.value[num] = right_most[2 * v + 1] - right_most[2 * v + 2]
                    num += 1
    return num


@vectorised
def _fill_tables(terms, first, count, start, second, table):
    """Add terms up in tables of bins, or of pairs of bins, each from its ``start``."""
    for k in range(len(first)):
        for t in range(first[k], first[k] + count[k]):
            is_pair = terms.order[t] == 2
            low, high = (terms.low[t, 1], terms.high[t, 1]) if is_pair else (0, 0)
            for a in range(terms.low[t, 0], terms.high[t, 0] + 1):
                for b in range(low, high + 1):
                    table[start[k] + a * second[k] + b] += terms.value[t]


@vectorised
def _mark(bins, begin, end, terms, t, bit, inside, code):
    """Set a bit of the codes of the rows that are in the box of a term."""
    for c in range(terms.order[t]):
        a, low = bins[terms.feature[t, c], begin:end], terms.low[t, c]
        width = np.uint8(terms.high[t, c] - low)
        if c == 0:
            for i in range(len(a)):
                inside[i] = bit if np.uint8(a[i] - low) <= width else np.uint8(0)
        else:
            for i in range(len(a)):
                inside[i] = inside[i] if np.uint8(a[i] - low) <= width else np.uint8(0)
    for i in range(end - begin):
        code[i] |= inside[i]


@vectorised
def _evaluate_terms(
    bins, first_table, start, second, pair, table, first_term, terms, low, high, total
):
    """Evaluate the sums from ``low`` to ``high``; ``total`` [s, m] is changed."""
    num_rows = bins.shape[1]
    code, inside = np.empty(_BLOCK, np.uint8), np.empty(_BLOCK, np.uint8)
    sums = np.empty(256)
    for s in range(low, high):
        for begin in range(0, num_rows, _BLOCK):
            end = min(begin + _BLOCK, num_rows)
            own = total[s, begin:end]
            own[:] = terms.constant[s]
            for k in range(first_table[s], first_table[s + 1]):
                values, a = table[start[k] :], bins[pair[k, 0], begin:end]
                if pair[k, 1] < 0:
                    for i in range(len(own)):
                        own[i] += values[a[i]]
                else:
                    b = bins[pair[k, 1], begin:end]
                    for i in range(len(own)):
                        own[i] += values[a[i] * second[k] + b[i]]
            t = first_term[s]
            while t < first_term[s + 1]:
                many = min(8, first_term[s + 1] - t)
                code[:] = 0
                sums[0] = 0.0
                for k in range(many):
                    _mark(bins, begin, end, terms, t + k, np.uint8(1 << k), inside, code)
                    for less in range(1 << k):
                        sums[(1 << k) + less] = sums[less] + terms.value[t + k]
                for i in range(len(own)):
                    own[i] += sums[code[i]]
                t += 8
