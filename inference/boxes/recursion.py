"""The recursion over boxes, level by level, for a table's histograms, a prior and a leaf family.

Q of a box is the weight of stopping times the marginal likelihood of its rows, plus for each rule
its weight times Q of both children: the recursion of BCART-PCFG (Sullivan et al. 2023, section 5)
with boxes in place of sets of rows. Levels are computed from the deepest one up, and the cost in
rows is that of the histograms.
"""

import math
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

import jax
import numpy as np

from bdtppl.inference.boxes.histograms import BoxHistograms
from bdtppl.inference.boxes.kernels import BEST, EXPAND, INSIDE, OUTSIDE, statistics, visit
from bdtppl.inference.boxes.space import BoxSpace, Group
from bdtppl.inference.boxes.tables import (
    BoxRules,
    BoxUsage,
    GroupTables,
    LeafEvents,
    LeafTables,
    PriorTables,
)
from bdtppl.inference.boxes.weights import PriorGrid, leaf_tables
from bdtppl.models.arrays.threads import in_threads
from bdtppl.models.data.design import Design
from bdtppl.models.hard.leaf_scores import has_whole_counts, leaf_scorer
from bdtppl.models.leaf import Leaf
from bdtppl.models.leaf_kernels import has_kernel
from bdtppl.models.prior_kinds import TreePrior

_MOST_EVENTS = 1 << 18
_MOST_SCORES = 1 << 22  # given scores of one call
_SUMS_KEPT = 8  # last used prefix sums of feature sets in look-ups of trees

_NONE = np.zeros(1)
_NO_USAGE = BoxUsage.empty(1, 1, 1)
_NO_VISITS = (_NONE, _NONE, _NO_USAGE, LeafEvents.empty(0, 1), 0.0)  # what sums do not look at


class Expansion(NamedTuple):
    """The rules of one box; r entries, s statistics.

    Attributes
    ----------
    log_stop
        Log weight of stopping, without the box's score.
    score
        Score of the box.
    statistics
        float64 [s].
    left_statistics
        float64 [r, s]; statistics of the left sides.
    rules
        `BoxRules`.
    """

    log_stop: float
    score: float
    statistics: np.ndarray
    left_statistics: np.ndarray
    rules: BoxRules


class Leaves(NamedTuple):
    """Some leaves of trees, with the sides of the cut features; l leaves.

    Attributes
    ----------
    weight
        float64 [l]; expected number of each in a tree of the posterior.
    statistics
        float64 [l, s].
    features
        int64 [l, levels]; cut features, ascending, then -1.
    low, high, missing
        int64 [l, levels]; their sides.
    """

    weight: np.ndarray
    statistics: np.ndarray
    features: np.ndarray
    low: np.ndarray
    high: np.ndarray
    missing: np.ndarray


class Recursion:
    """Sums over all trees of at most some levels.

    Parameters
    ----------
    design
        Cut points; its rows are not used.
    space
        Boxes of the trees.
    histograms
        Statistics of the rows.
    min_leaf
        Fewest rows in a leaf.
    grid
        Counts that the prior may meet.
    leaf
        Leaf family of the histograms' statistics; others of its kind may be scored.
    """

    def __init__(
        self,
        design: Design,
        space: BoxSpace,
        histograms: BoxHistograms,
        min_leaf: int,
        grid: PriorGrid,
        leaf: Leaf,
    ):
        self.leaf = leaf
        with jax.enable_x64(True):
            of_leaf = jax.eval_shape(leaf.statistics, np.zeros(1), np.zeros(1))
        self.skipped = histograms.num_values - of_leaf.shape[1]
        """1 where the histograms begin with a count of rows, else 0."""
        self.design, self.space, self.histograms = design, space, histograms
        self.min_leaf, self.grid = float(min_leaf), grid
        self._prefix_sums = lru_cache(_SUMS_KEPT)(histograms.prefix_sums)
        self._layouts = [list(space.groups(level)) for level in range(space.num_levels)]
        self._offsets = [np.array([g.offset for g in groups]) for groups in self._layouts]
        self._by_name = [{(g.features, g.kinds): g for g in groups} for groups in self._layouts]
        width = space.width
        self.middle = np.zeros((space.num_features, width, width), np.int64)
        self._gap_width = np.ones((space.num_features, width, width))
        for place, feature in enumerate(space.features):
            start, size = design.offset[feature], int(space.num_codes[place])
            cuts = design.cut_threshold[start : start + size]
            low, high = np.triu_indices(size, 1)
            middle = design.gap_threshold(start + low, start + high)
            # The cut above `low` and up to `high` that is nearest to the middle of the gap.
            above = np.clip(np.searchsorted(cuts, middle), low + 1, high)
            under = np.maximum(above - 1, low + 1)
            is_under = np.abs(cuts[under] - middle) <= np.abs(cuts[above] - middle)
            self.middle[place, low, high] = np.where(is_under, under, above)
            gap = design.gap_width(start + low, start + high)
            self._gap_width[place, low, high] = np.where(gap > 0, gap, 1.0)

    # Tables of groups.

    def _sets(self, level: int) -> list[tuple[tuple[int, ...], list[Group]]]:
        """List the groups of a level by their cut features."""
        by_set = groupby(self._layouts[level], key=lambda group: group.features)
        return [(features, list(groups)) for features, groups in by_set]

    def _tables(self, level: int, group: Group, values: np.ndarray, keys: np.ndarray):
        space, k, d = self.space, len(group.features), self.space.num_features
        own = np.array(group.features, np.int64)
        most = max(group.shape, default=1)
        side_low, side_high, side_missing = np.zeros((3, k, most), np.int64)
        for axis, (f, kind) in enumerate(zip(group.features, group.kinds, strict=True)):
            sides = space.sides[f][kind - 1]
            side_low[axis, : len(sides.low)] = sides.low
            side_high[axis, : len(sides.low)] = sides.high
            side_missing[axis, : len(sides.low)] = sides.missing
        is_last = level == space.num_levels - 1
        child_offset, child_step = np.zeros((2, d, 3), np.int64)
        child_stride = np.zeros((d, 3, k), np.int64)
        for g in range(0 if not is_last else d, d):
            for kind in (1, 2):
                cut = dict(zip(group.features, group.kinds, strict=True)) | {g: kind}
                features = tuple(sorted(cut))
                child = self._by_name[level + 1].get((features, tuple(cut[f] for f in features)))
                if child is None:
                    continue
                steps = np.append(np.cumprod(child.shape[:0:-1])[::-1], 1)
                child_offset[g, kind] = child.offset
                child_step[g, kind] = steps[features.index(g)]
                child_stride[g, kind] = [steps[features.index(f)] for f in group.features]
        return GroupTables(
            values=values,
            keys=keys,
            own=own,
            side_low=side_low,
            side_high=side_high,
            side_missing=side_missing,
            shape=np.array(group.shape, np.int64),
            lengths=space.num_codes[own] + 1 + space.has_missing[own],
            offset=group.offset,
            is_last=is_last,
            child_offset=child_offset,
            child_step=child_step,
            child_stride=child_stride,
            allowed=space.allowed(level, group.features),
            column=space.column,
            num_codes=space.num_codes,
            has_missing=space.has_missing,
            side_place=space.side_place,
            middle=self.middle,
            gap_width=self._gap_width,
            min_leaf=self.min_leaf,
            each_cut=self.grid.each_cut,
        )

    def _make_rules(self) -> BoxRules:
        return BoxRules.empty(2 * self.space.num_features * self.space.width)

    # Leaf scores.

    def _pieces(
        self, leaf: Leaf | None, tables: LeafTables, group: GroupTables, size: int, first: int = 0
    ) -> Iterator[tuple[int, int, LeafTables]]:
        """Divide the boxes of a group so that given scores stay small, and score each piece."""
        if tables.address or tables.is_silent or leaf is None:
            yield first, first + size, tables
            return
        _, d, width, num_values = group.values.shape
        step = max(1, _MOST_SCORES // (2 * d * width * num_values)) if group.is_last else size
        for start in range(first, first + size, step):
            count = min(step, first + size - start)
            own = np.empty((count, num_values))
            left = np.empty((count if group.is_last else 0, d, 2, width, num_values))
            statistics(group, tables, own, left, start)
            right = own[: len(left), None, None, None] - left
            scores = [self._scores(leaf, each[..., self.skipped :]) for each in (own, left, right)]
            yield (
                start,
                start + count,
                tables._replace(first=start, own=scores[0], left=scores[1], right=scores[2]),
            )

    def _scores(self, leaf: Leaf, values: np.ndarray) -> np.ndarray:
        """Score statistics [..., s] by the family's own method."""
        flat = values.reshape(-1, values.shape[-1])
        if not len(flat):
            return np.empty(values.shape[:-1])
        score = leaf_scorer(leaf, 0, is_whole=False)
        return score(list(flat.T)).reshape(values.shape[:-1])

    @cached_property
    def most(self) -> int | None:
        """Weight of all rows, if a compiled score needs it and weights are whole; else None."""
        values, end = self.histograms.values, None if self.leaf.sums_to_rows else self.skipped + 1
        is_whole = has_kernel(self.leaf)
        is_whole &= not self.skipped or has_whole_counts(self.leaf, values[..., self.skipped :])
        return round(self.histograms.total[self.skipped : end].sum()) if is_whole else None

    # Passes.

    def inside(
        self,
        prior: TreePrior,
        leaf: Leaf | None,
        *,
        without: int | None = None,
        is_max: bool = False,
    ) -> list[np.ndarray]:
        """Compute log Q of all boxes, float64 [boxes] for each level.

        Parameters
        ----------
        prior
            Prior.
        leaf
            Leaf family; None for likelihoods of one.
        without
            Place of a feature whose rules get no weight.
        is_max
            Whether to use the best tree instead of the sum.
        """
        prior_tables = self.grid.tables(prior, without)
        tables = self.leaf_tables(leaf)
        task = BEST if is_max else INSIDE
        levels: list[np.ndarray] = [np.zeros(1)]
        for level in range(self.space.num_levels - 1, -1, -1):
            groups = self._layouts[level]
            target = np.full(groups[-1].offset + groups[-1].size, -np.inf)
            below = levels[-1]

            def solve(some, level=level, target=target, below=below) -> None:
                features, groups = some
                values, keys = self.histograms.prefix_sums(features)
                rules = self._make_rules()
                for group in groups:
                    own = self._tables(level, group, values, keys)
                    for first, last, scored in self._pieces(leaf, tables, own, group.size):
                        own_prior = prior_tables[level]
                        visit(
                            task, own, own_prior, scored, target, below, first, last, rules,
                            *_NO_VISITS,
                        )  # fmt: skip

            sets = self._sets(level)
            in_threads(solve, sets, len(target) * self.space.num_features * self.space.width)
            levels.append(target)
        return levels[:0:-1]

    def no_usage(self) -> list[BoxUsage]:
        """Return zero expectations for each level."""
        space, size = self.space, math.prod(self.grid.shape[1:])
        return [
            BoxUsage.empty(size, space.num_features, space.width) for _ in range(space.num_levels)
        ]

    def leaf_tables(self, leaf: Leaf | None) -> LeafTables:
        """Return tables of a family's scores, or of no scores at all."""
        if leaf is None:
            return leaf_tables(self.leaf, None, self.skipped)._replace(is_silent=True)
        return leaf_tables(leaf, self.most, self.skipped)

    def outside(
        self,
        prior: TreePrior,
        leaf: Leaf | None,
        log_q: list[np.ndarray],
        usage: list[BoxUsage],
        *,
        least: float,
    ) -> Iterator[Leaves]:
        """Walk from the root down; yield leaves.

        Parameters
        ----------
        prior, leaf
            The model.
        log_q
            Result of `inside`.
        usage
            Expectations on each level to add to (`no_usage`).
        least
            Smallest expected number of nodes that is not dropped.
        """
        prior_tables, tables = self.grid.tables(prior), self.leaf_tables(leaf)
        space = self.space
        events = LeafEvents.empty(_MOST_EVENTS, self.histograms.num_values)
        rules = self._make_rules()
        visits = np.ones(1)
        for level in range(space.num_levels):
            is_last = level == space.num_levels - 1
            below = np.zeros(1) if is_last else log_q[level + 1]
            visits_below = np.zeros(len(below))
            for features, groups in self._sets(level):
                seen = [g for g in groups if (visits[g.offset : g.offset + g.size] > least).any()]
                if not seen:
                    continue
                values, keys = self.histograms.prefix_sums(features)
                for group in seen:
                    own = self._tables(level, group, values, keys)
                    for first, last, scored in self._pieces(leaf, tables, own, group.size):
                        while first < last:
                            first, count, *_ = visit(
                                OUTSIDE, own, prior_tables[level], scored, log_q[level], below,
                                first, last, rules, visits, visits_below, usage[level], events,
                                least,
                            )  # fmt: skip
                            if count:
                                yield self._leaves(group, own, events, count)
            visits = visits_below

    def _leaves(self, group: Group, own: GroupTables, events: LeafEvents, count: int) -> Leaves:
        """Return the sides of leaves."""
        space, k = self.space, len(group.features)
        places = np.unravel_index(events.box[:count], group.shape) if k else ()
        features = np.full((count, space.num_levels), space.num_features, np.int64)
        low, high, missing = np.zeros((3, count, space.num_levels), np.int64)
        for axis, (f, place) in enumerate(zip(group.features, places, strict=True)):
            features[:, axis] = f
            low[:, axis] = own.side_low[axis, place]
            high[:, axis] = own.side_high[axis, place]
            missing[:, axis] = own.side_missing[axis, place]
        split = np.flatnonzero(events.feature[:count] >= 0)
        g, cut = events.feature[split], events.cut[split]
        is_right, goes_left = events.is_right[split] == 1, events.missing_left[split] == 1
        is_own = features[split] == g[:, None]
        axis = np.where(is_own.any(axis=1), is_own.argmax(axis=1), k)
        is_new = axis == k
        features[split, axis] = g
        low[split[is_new], k], missing[split[is_new], k] = 0, space.has_missing[g[is_new]]
        high[split[is_new], k] = space.num_codes[g[is_new]]
        low[split, axis] = np.where(is_right, cut, low[split, axis])
        high[split, axis] = np.where(is_right, high[split, axis], cut)
        missing[split, axis] *= is_right != goes_left
        order = np.argsort(features, axis=1, kind="stable")

        def ordered(array: np.ndarray) -> np.ndarray:
            return np.take_along_axis(array, order, axis=1)

        features = ordered(features)
        return Leaves(
            events.weight[:count].copy(),
            events.statistics[:count].copy(),
            np.where(features == space.num_features, -1, features),
            ordered(low),
            ordered(high),
            ordered(missing),
        )

    def expand(
        self,
        prior: PriorTables,
        leaf: Leaf,
        below: np.ndarray,
        level: int,
        numbers: Sequence[int] | np.ndarray,
    ) -> Iterator[Expansion]:
        """List the rules of some boxes of a level, in ascending order.

        Parameters
        ----------
        prior
            Weights on the level.
        leaf
            Leaf family.
        below
            Log Q of the boxes of the next level.
        level, numbers
            The boxes.
        """
        tables = self.leaf_tables(leaf)
        groups = np.searchsorted(self._offsets[level], numbers, side="right") - 1
        for place, some in groupby(zip(groups.tolist(), numbers, strict=True), itemgetter(0)):
            group = self._layouts[level][place]
            own = self._tables(level, group, *self._prefix_sums(group.features))
            for _, number in some:
                first = int(number) - group.offset
                [(_, _, scored)] = self._pieces(leaf, tables, own, 1, first=first)
                rules = self._make_rules()
                events = LeafEvents.empty(1 + len(rules.feature), self.histograms.num_values)
                _, count, stop, score = visit(
                    EXPAND,
                    own,
                    prior,
                    scored,
                    _NONE,
                    below,
                    first,
                    first + 1,
                    rules,
                    _NONE,
                    _NONE,
                    _NO_USAGE,
                    events,
                    0.0,
                )
                rules = BoxRules(*(each[:count] for each in rules))
                total, left = events.statistics[0], events.statistics[1 : 1 + count]
                yield Expansion(stop, score, total, left, rules)
