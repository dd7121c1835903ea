"""The grammar of subproblems: the sets of rows that trees can meet, and their splits.

A subproblem is a distinct set of training rows in some box (Sullivan et al. 2023, section 5.2: two
bounding boxes are equivalent if they contain the same points). Its productions are the rules
available in it, each to two smaller subproblems. The grammar depends on the features alone: any
targets, leaf family and prior weights are scored on the same one. If constraints depend on the
path, a subproblem is a set of rows with the memory of its path.
"""

from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import numba
import numpy as np

from bdtppl.models.arrays.bitsets import unpack
from bdtppl.models.constraints import Constraints
from bdtppl.models.data.design import Design
from bdtppl.models.hard.path_memory import PathMemory
from bdtppl.models.prior_kinds import Rules, TreePrior, require_rules_apart, weighs_each_cut


@dataclass(frozen=True, eq=False)
class Grammar:
    """Subproblems and productions of a design.

    Subproblems are numbered by height, the root last; productions are in order of their parent. N
    subproblems, E productions, W words of 64 cells.

    Attributes
    ----------
    design
        The design it was compiled from.
    rules
        "gaps" or "cuts"; a production represents all cuts of one gap, unless `cut` is given.
    constraints
        The constraints it was compiled under.
    cell_of_row
        int32 [n]; cell of each row of the design.
    members
        uint64 [N, W]; bit c of word w is cell 64 w + c.
    height
        int16 [N]; 0 if nothing can split, else 1 + that of the tallest child.
    first_production
        int64 [N + 1]; productions of node i are ``first_production[i]:first_production[i + 1]``.
    left, right
        int32 [E]; child subproblems.
    low, high
        int32 [E]; flat code positions (see `Design`) on the two sides of the production's gap.
    missing_left
        bool [E], or None if no feature has missing values.
    cut
        int32 [E]; flat position of the code above the cut that the production represents, or None.
    memory
        uint64 [N]; memory of the path (`PathMemory`), or None if no constraint depends on it.
    num_rows
        int64 [N]; rows in the subproblem, with repetitions.
    charts
        Cached layouts for compiled passes (`bdtppl.inference.pcfg.chart`).
    normalisers
        Cached log normalisers of priors.
    leaf_scores
        Cached leaf scores of the last targets and leaf family.
    """

    design: Design
    rules: Rules
    constraints: Constraints
    cell_of_row: np.ndarray
    members: np.ndarray
    height: np.ndarray
    first_production: np.ndarray
    left: np.ndarray
    right: np.ndarray
    low: np.ndarray
    high: np.ndarray
    missing_left: np.ndarray | None
    cut: np.ndarray | None
    memory: np.ndarray | None
    num_rows: np.ndarray
    charts: dict = field(default_factory=dict, repr=False)
    normalisers: dict = field(default_factory=dict, repr=False)
    leaf_scores: dict = field(default_factory=dict, repr=False)

    @property
    def num_subproblems(self) -> int:
        """Number of subproblems N."""
        return len(self.height)

    @property
    def num_productions(self) -> int:
        """Number of productions E."""
        return len(self.left)

    @property
    def root(self) -> int:
        """Number of the subproblem with all rows."""
        return self.num_subproblems - 1

    @cached_property
    def num_cells(self) -> int:
        """Number of distinct rows."""
        return int(self.cell_of_row.max()) + 1

    @cached_property
    def depth_limit(self) -> int:
        """Most levels of splits that a tree can have."""
        limit = int(self.height[-1])
        if self.constraints.max_depth is not None:
            limit = min(limit, self.constraints.max_depth)
        return limit

    @cached_property
    def parent(self) -> np.ndarray:
        """Subproblem that each production splits, int32 [E]."""
        counts = np.diff(self.first_production)
        return np.repeat(np.arange(self.num_subproblems, dtype=np.int32), counts)

    @cached_property
    def feature(self) -> np.ndarray:
        """Feature that each production splits on, int32 [E]."""
        return self.design.feature_of_code[self.low]

    @cached_property
    def has_rule(self) -> np.ndarray:
        """Whether a subproblem has a production, bool [N]."""
        return np.diff(self.first_production) > 0

    # Facts for priors (see `bdtppl.models.priors.Node` and `Rule`).

    @cached_property
    def num_cuts(self) -> np.ndarray:
        """Rules that each production represents, int32 [E]."""
        if self.rules == "gaps" or self.cut is not None:
            return np.ones(self.num_productions, np.int32)
        return self.high - self.low

    @cached_property
    def threshold_in_gap(self) -> np.ndarray:
        """Threshold of each production, or the least of the cuts that it represents, [E]."""
        if self.rules == "gaps":
            path = self.constraints.path_memory(self.design.names)
            memory = None if self.memory is None else self.memory.take(self.parent)
            return gap_threshold(self.design, path, memory, self.low, self.high)
        return self.design.cut_threshold.take(self.low + 1 if self.cut is None else self.cut)

    @cached_property
    def _column_groups(self) -> np.ndarray:
        """Return the first production of each run with one parent and column."""
        changed = np.ones(self.num_productions, bool)
        column = self.design.column[self.feature]
        changed[1:] = column[1:] != column[:-1]
        starts = self.first_production[:-1][self.has_rule]
        changed[starts] = True
        return np.flatnonzero(changed)

    def _sum_over_column(self, values: np.ndarray) -> np.ndarray:
        """Return totals of per-production values over the production's column in its node, [E]."""
        starts = self._column_groups
        if not len(starts):
            return values
        sizes = np.diff(np.append(starts, self.num_productions))
        return np.repeat(np.add.reduceat(values, starts, dtype=values.dtype), sizes)

    @cached_property
    def num_feature_cuts(self) -> np.ndarray:
        """Available rules of the production's column in its node, int32 [E]."""
        return self._sum_over_column(self.num_cuts)

    @cached_property
    def width_share(self) -> np.ndarray:
        """Width of the production's gap over the summed width of its column, float64 [E]."""
        return self.width / self._sum_over_column(self.width)

    @cached_property
    def width(self) -> np.ndarray:
        """Width of the gap, shared among its cuts if each is a production, float64 [E]."""
        width = self.design.gap_width(self.low, self.high)
        return width if self.cut is None else width / (self.high - self.low)

    @property
    def threshold(self) -> np.ndarray:
        """Threshold of each production, float64 [E].

        Raises
        ------
        ValueError
            If a production represents several cuts.
        """
        if self.rules == "cuts" and self.cut is None:
            raise ValueError("The cuts of a gap have no single threshold: use each_cut=True.")
        return self.threshold_in_gap

    @property
    def num_left(self) -> np.ndarray:
        """Rows on the left of each production, with repetitions, float64 [E]."""
        return self.num_rows.take(self.left).astype(float)

    @property
    def num_right(self) -> np.ndarray:
        """Rows on the right of each production, with repetitions, float64 [E]."""
        return self.num_rows.take(self.right).astype(float)

    @cached_property
    def least(self) -> np.ndarray:
        """Least value of each subproblem's lowest codes, float64 [N, d]; NaN if missing."""
        return self._edges(self.design.low_edge, np.minimum, self.design.num_codes)

    @cached_property
    def greatest(self) -> np.ndarray:
        """Greatest value of each subproblem's highest codes, float64 [N, d]; NaN if missing."""
        return self._edges(self.design.high_edge, np.maximum, -np.ones_like(self.design.num_codes))

    def _edges(self, edge: np.ndarray, extreme: np.ufunc, none: np.ndarray) -> np.ndarray:
        """Return edges of the extreme codes of each subproblem; ``none`` [d] means no code."""
        codes = np.empty((self.num_cells, self.design.num_features), np.int32)
        codes[self.cell_of_row] = np.where(self.design.codes < 0, none, self.design.codes)
        extreme_codes = np.empty((self.num_subproblems, codes.shape[1]), np.int32)
        bounds = np.searchsorted(self.height, np.arange(int(self.height[-1]) + 2))
        for start in range(0, bounds[1], 1024):
            nodes = slice(start, min(start + 1024, bounds[1]))
            cells = unpack(self.members[nodes], self.num_cells).astype(bool)
            for f, absent in enumerate(none):
                extreme_codes[nodes, f] = extreme.reduce(
                    np.where(cells, codes[:, f], absent), axis=1
                )
        for start, stop in pairwise(bounds[1:]):
            production = self.first_production[start:stop]
            left, right = self.left.take(production), self.right.take(production)
            extreme_codes[start:stop] = extreme(extreme_codes[left], extreme_codes[right])
        flat = np.minimum(self.design.offset[:-1] + np.maximum(extreme_codes, 0), len(edge) - 1)
        return np.where(extreme_codes == none, np.nan, edge[flat])

    def require(self, prior: TreePrior) -> None:
        """Raise unless a prior can be scored on the grammar.

        Raises
        ------
        ValueError
            If it needs other rules or productions than the grammar has, or shares weights among
            rules that the constraints distinguish.
        """
        if prior.rules != self.rules:
            raise ValueError(
                f"The prior needs rules={prior.rules!r}, but the grammar was compiled with "
                f"rules={self.rules!r}."
            )
        require_rules_apart(prior, self.constraints)
        if weighs_each_cut(prior) and self.rules == "cuts" and self.cut is None:
            raise ValueError(
                "The prior distinguishes the cuts of a gap: compile the grammar with each_cut=True."
            )

    @cached_property
    def num_features(self) -> np.ndarray:
        """Columns with an available rule, int32 [N]."""
        counts = np.bincount(self.parent[self._column_groups], minlength=self.num_subproblems)
        return counts.astype(np.int32)

    @cached_property
    def _group_partitions(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the number of equivalent rules, and whether a production is the first of them."""
        return _group_partitions(self.first_production, self.left, self.right, self.num_cuts)

    @property
    def num_equivalent(self) -> np.ndarray:
        """Rules of the same node that make the same two-way partition, int32 [E]."""
        return self._group_partitions[0]

    @property
    def is_first_of_partition(self) -> np.ndarray:
        """Whether a production is the first of those that make its partition, bool [E]."""
        return self._group_partitions[1]

    def membership(self, nodes: np.ndarray) -> np.ndarray:
        """Return the cells of some subproblems, bool [len(nodes), cells]."""
        return unpack(self.members[nodes], self.num_cells).astype(bool)

    def cell_sums(self, values: np.ndarray) -> np.ndarray:
        """Sum per-row values [n, s] over equal rows, float64 [cells, s]."""
        values = np.asarray(values, np.float64)
        return np.stack(
            [
                np.bincount(self.cell_of_row, column, minlength=self.num_cells)
                for column in values.T
            ],
            axis=1,
        )

    def node_sums(self, cell_values: np.ndarray) -> np.ndarray:
        """Sum values of cells [cells, s] over each subproblem, float64 [N, s].

        Only nodes without a production are summed over their members; every other node is the sum
        of its two children.
        """
        sums = np.empty((self.num_subproblems, cell_values.shape[1]))
        bounds = np.searchsorted(self.height, np.arange(int(self.height[-1]) + 2))
        for start in range(0, bounds[1], 8192):
            stop = min(start + 8192, bounds[1])
            cells = unpack(self.members[start:stop], self.num_cells)
            sums[start:stop] = cells.astype(np.float64) @ cell_values
        for start, stop in pairwise(bounds[1:]):
            production = self.first_production[start:stop]
            sums[start:stop] = sums.take(self.left.take(production), axis=0)
            sums[start:stop] += sums.take(self.right.take(production), axis=0)
        return sums


def gap_threshold(
    design: Design,
    path: PathMemory | None,
    memory: np.ndarray | None,
    low: np.ndarray,
    high: np.ndarray,
) -> np.ndarray:
    """Return thresholds of gaps between flat codes, in nodes with these memories of the path."""
    if path is None:
        return design.gap_threshold(low, high)
    edges = design.high_edge.take(low), design.low_edge.take(high)
    return path.gap_threshold(memory, design.feature_of_code.take(low), *edges)


@numba.njit(cache=True, nogil=True)
def _group_partitions(first, left, right, num_cuts):
    """Count the rules of each production's partition, and find the first production of each."""
    num_equivalent, is_first = np.empty(len(left), np.int32), np.empty(len(left), np.bool_)
    # The lesser child identifies a partition of a parent, because the other one is its complement.
    parent_of = np.full(len(first) - 1, -1, np.int32)
    num_rules = np.empty(len(first) - 1, np.int32)
    for node in range(len(first) - 1):
        productions = range(first[node], first[node + 1])
        for production in productions:
            lesser = min(left[production], right[production])
            is_first[production] = parent_of[lesser] != node
            if is_first[production]:
                parent_of[lesser], num_rules[lesser] = node, 0
            num_rules[lesser] += num_cuts[production]
        for production in productions:
            num_equivalent[production] = num_rules[min(left[production], right[production])]
    return num_equivalent, is_first
