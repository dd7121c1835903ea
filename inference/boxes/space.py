"""The boxes that nodes of trees of few levels can be.

A node below l splits is a box: on each feature it contains an interval of codes bounded by at most
l splits, and perhaps the rows with missing values. A *side* is the part of one feature that splits
leave: one split leaves an interval that ends at the feature's first or last code, two leave any
other. Boxes with the same features cut, by the same kinds of sides, form a *group*, an array with
one axis for each of these features.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, product
from typing import NamedTuple

import numpy as np

from bdtppl.models.constraints import Constraints
from bdtppl.models.data.design import Design


class FeatureSides(NamedTuple):
    """Sides of one feature, of one kind; m sides.

    Attributes
    ----------
    low, high
        int64 [m]; the codes from ``low`` to ``high`` - 1 are inside.
    missing
        int64 [m]; 1 if missing values are inside.
    """

    low: np.ndarray
    high: np.ndarray
    missing: np.ndarray


class Group(NamedTuple):
    """Boxes of one level with the same features cut.

    Attributes
    ----------
    features
        Cut features, ascending places among the usable ones.
    kinds
        1 or 2 for each: number of splits that its sides need.
    offset
        Number of the group's first box in its level.
    shape
        Number of sides of each feature.
    """

    features: tuple[int, ...]
    kinds: tuple[int, ...]
    offset: int
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of boxes."""
        return int(np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True, eq=False)
class BoxSpace:
    """Boxes of trees of at most some levels; d usable features.

    Attributes
    ----------
    num_levels
        Most levels of splits, at least 1.
    features
        int64 [d]; the design's features that a rule may use.
    num_codes
        int64 [d].
    has_missing
        bool [d].
    column
        int32 [d]; the design's columns that they belong to.
    rules_below
        Pairs of places (first, then): rules on the second are allowed only below a split on the
        first.
    allowed_at
        bool [num_levels, d]; features that rules of nodes of a level may use.
    """

    num_levels: int
    features: np.ndarray
    num_codes: np.ndarray
    has_missing: np.ndarray
    column: np.ndarray
    rules_below: tuple[tuple[int, int], ...]
    allowed_at: np.ndarray

    @classmethod
    def of(cls, design: Design, constraints: Constraints, num_levels: int) -> "BoxSpace":
        """Select the features that rules may use.

        Raises
        ------
        ValueError
            If levels are not at least 1.
        """
        if num_levels < 1:
            raise ValueError(f"num_levels must be at least 1; got {num_levels}.")
        limit = constraints.max_depth
        usable = constraints.allows(design.names) & design.has_cut
        has_rule = limit != 0 and usable.any()
        usable[0] |= not usable.any()  # some feature spans the boxes, even if no rule may use it
        features = np.flatnonzero(usable)
        place = {name: j for j, name in enumerate(design.names)}

        def local(feature: int | str) -> int:
            own = place[feature] if isinstance(feature, str) else int(feature)
            return int(np.searchsorted(features, own)) if usable[own] else -1

        levels = num_levels if limit is None else max(1, min(num_levels, limit))
        allowed_at = np.ones((levels, len(features)), bool)
        for depth, some in constraints.features_at_depth:
            if depth < levels:
                allowed_at[depth] = np.isin(np.arange(len(features)), [local(f) for f in some])
        pairs = [(local(first), local(then)) for first, then in constraints.before]
        return cls(
            levels,
            features,
            design.num_codes[features].astype(np.int64),
            design.has_missing[features],
            design.column[features],
            tuple((first, then) for first, then in pairs if then >= 0),
            allowed_at if has_rule else np.zeros_like(allowed_at),
        )

    @property
    def num_features(self) -> int:
        """Number of usable features d."""
        return len(self.features)

    @property
    def width(self) -> int:
        """Length of prefix sums along a feature: one for each code, 0 before and missing after."""
        return int(self.num_codes.max(initial=1)) + 2

    @cached_property
    def sides(self) -> list[tuple[FeatureSides, FeatureSides]]:
        """Return sides of each feature after one split, and after two."""
        return [
            (_sides(size, is_outer=True, missing=m), _sides(size, is_outer=False, missing=m))
            for size, m in zip(self.num_codes.tolist(), self.has_missing.tolist(), strict=True)
        ]

    @cached_property
    def side_place(self) -> np.ndarray:
        """Return the place of a side among those of its kind, int64 [d, missing, low, high]."""
        place = np.full((self.num_features, 2, self.width, self.width), -1, np.int64)
        for f, kinds in enumerate(self.sides):
            for sides in kinds:
                place[f, sides.missing, sides.low, sides.high] = np.arange(len(sides.low))
        return place

    def groups(self, level: int) -> Iterator[Group]:
        """List the groups of boxes that nodes of a level can be."""
        offset = 0
        for count in range(min(level, self.num_features) + 1):
            for features in combinations(range(self.num_features), count):
                for kinds in product((1, 2), repeat=count):
                    if sum(kinds) <= level:
                        shape = tuple(
                            len(self.sides[f][kind - 1].low)
                            for f, kind in zip(features, kinds, strict=True)
                        )
                        group = Group(features, kinds, offset, shape)
                        offset += group.size
                        if group.size:
                            yield group

    def num_boxes(self, level: int) -> int:
        """Count the boxes of a level, without listing the groups."""
        return self._count(level, lambda sides: len(sides.low))

    def num_groups(self, level: int) -> int:
        """Count the groups of a level, without listing them: many features have millions."""
        return self._count(level, lambda sides: len(sides.low) > 0)

    def _count(self, level: int, number: Callable[[FeatureSides], int]) -> int:
        """Sum over the groups of a level the products of a number for each side."""
        # Coefficients by number of splits; one feature adds one, two or no splits.
        counts = np.zeros(level + 1)
        counts[0] = 1
        for outer, inner in self.sides:
            new = counts.copy()
            new[1:] += counts[:-1] * number(outer)
            new[2:] += counts[:-2] * number(inner)
            counts = new
        return int(min(counts.sum(), 2**62))

    @cached_property
    def num_scores(self) -> float:
        """Return the most pairs of a box and a rule that the inside pass visits."""
        rules = float(((self.num_codes - 1) * (1 + self.has_missing)).sum())
        return sum(self.num_boxes(level) for level in range(self.num_levels)) * rules

    def allowed(self, level: int, features: tuple[int, ...]) -> np.ndarray:
        """Return the features that rules may use in boxes with some cut features, bool [d]."""
        allowed = self.allowed_at[level].copy()
        for first, then in self.rules_below:
            allowed[then] &= first in features
        return allowed


def _sides(size: int, *, is_outer: bool, missing: bool) -> FeatureSides:
    if is_outer:
        pairs = [(0, v) for v in range(1, size)] + [(v, size) for v in range(1, size)]
    else:
        pairs = [(u, v) for u in range(1, size) for v in range(u + 1, size)]
    low, high = np.array(pairs, np.int64).reshape(-1, 2).T
    if missing:
        low, high = np.tile(low, 2), np.tile(high, 2)
    kept = np.repeat([0, 1], len(pairs)) if missing else np.zeros(len(pairs), np.int64)
    return FeatureSides(low.copy(), high.copy(), kept.astype(np.int64))
