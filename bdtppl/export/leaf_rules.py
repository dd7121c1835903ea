"""A tree as a list of leaves, each with the values of each column that lead there.

The conditions on the way to a leaf are joined by column: an interval of numbers or a set of levels.
So leaves can be written one a line, in any order, and looked up in any language.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from bdtppl.export.fitted_tree import FittedTree
from bdtppl.models.data.schema import Column
from bdtppl.models.data.splits import ColumnSplit


@dataclass(frozen=True)
class Values:
    """Some of the values of a column.

    Attributes
    ----------
    column
        The column.
    low, high
        Numbers from low on and below high.
    levels
        Levels of a category.
    missing
        Whether a missing value is among them.

    Examples
    --------
    >>> values = Values(Column("size"), low=1.0, high=2.5, missing=True)
    >>> values.is_bounded, values.given
    (True, True)
    """

    column: Column
    low: float = -np.inf
    high: float = np.inf
    levels: tuple[str, ...] = ()
    missing: bool = False

    @property
    def given(self) -> bool:
        """Whether there is a value that is not missing."""
        return bool(self.levels) if self.column.levels is not None else self.low < self.high

    @property
    def is_bounded(self) -> bool:
        """Whether some numbers or levels are not among them."""
        if self.column.levels is not None:
            return len(self.levels) < len(self.column.levels)
        return bool(np.isfinite([self.low, self.high]).any()) or not self.given

    def after(self, split: ColumnSplit, is_left: bool) -> "Values":
        """Those that a split sends to one side."""
        missing = self.missing and split.missing == ("left" if is_left else "right")
        if self.column.levels is not None:  # which are all on the left of what is missing
            levels = tuple(x for x in self.levels if (x not in split.right) == is_left)
            return replace(self, levels=levels, missing=missing)
        if is_left:
            return replace(self, high=min(self.high, split.threshold), missing=missing)
        return replace(self, low=max(self.low, split.threshold), missing=missing)


class LeafRule(NamedTuple):
    """A leaf and the values of columns that lead there; columns that are not named may be any."""

    slot: int
    values: tuple[Values, ...]


def leaf_rules(fitted: FittedTree) -> list[LeafRule]:
    """List the leaves of a tree from left to right."""
    rules: list[LeafRule] = []
    waiting: list[tuple[int, dict[str, Values]]] = [(0, {})]
    while waiting:
        slot, values = waiting.pop()
        split = fitted.split(slot)
        if split is None:
            rules.append(LeafRule(slot, tuple(values.values())))
            continue
        name = split.column.name
        column, may_miss = split.column, split.missing is not None
        own = values.get(name) or Values(column, levels=column.levels or (), missing=may_miss)
        tree = fitted.tree
        for is_left, child in ((False, tree.right[slot]), (True, tree.left[slot])):
            waiting.append((int(child), {**values, name: own.after(split, is_left)}))
    return rules


def used_columns(rules: list[LeafRule]) -> list[Column]:
    """List the columns that rules name, in the order in which they come up."""
    return list({values.column.name: values.column for r in rules for values in r.values}.values())
