"""Splits: conditions at nodes of trees, or numbers in the table of a design.

The only kind of split is a cut, which sends values below a threshold to the left. This module alone
defines what a cut means for values, codes, tables and texts.

Scans of a design find cuts between two codes. Such a cut has a *number*, twice the flat position of
the code below it (see `Design`), plus one if missing values go left. Further kinds may use numbers
from twice the number of flat positions.
"""

import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numba.extending import register_jitable

from bdtppl.models.data.schema import Column, Schema
from bdtppl.models.wording import threshold_text


@register_jitable
def split_number(position: Any, missing_left: Any) -> Any:
    """Return the number of the cut above a flat code position; numbers or arrays."""
    return 2 * position + missing_left


@register_jitable
def position_below(number: Any) -> Any:
    """Return the flat position of the code below a cut, given its number."""
    return number >> 1


@register_jitable
def missing_goes_left(number: Any) -> Any:
    """Return whether a split sends missing values to the left, given its number."""
    return (number & 1) == 1


def goes_left(number: Any, code: Any, xp: ModuleType = np) -> Any:
    """Return whether rows with these codes go left, given the numbers of splits.

    Codes, -1 if the value is missing, are flat positions in the design; or codes of one feature, if
    the numbers are made from those.

    Examples
    --------
    >>> goes_left(split_number(4, True), np.array([4, 5, -1])).tolist()
    [True, False, True]
    """
    return xp.where(code < 0, missing_goes_left(number), code <= position_below(number))


class Split(NamedTuple):
    """Splits of nodes of trees: numbers, or arrays of one shape.

    Attributes
    ----------
    feature
        int; -1 if a node is not a split.
    threshold
        float64; value < threshold goes left; NaN if a node is not a split.
    missing_left
        bool; whether a row with a missing value goes left.
    """

    feature: Any
    threshold: Any
    missing_left: Any

    @classmethod
    def at_nodes(cls, number: Any, feature: Any, threshold: Any) -> "Split":
        """Return splits of nodes, arrays of one shape, for numbers other than -1."""
        splits = cls(np.asarray(feature, np.int32), threshold, missing_goes_left(number))
        return splits.only(number >= 0)

    def above(self, position: Any) -> Any:
        """Return the numbers of these splits, each being the cut above a flat code position."""
        return split_number(position, self.missing_left)

    def only(self, is_split: np.ndarray) -> "Split":
        """Keep some of the splits, and remove the others."""
        pairs = zip(self, (-1, np.nan, False), strict=True)
        return Split(*(np.where(is_split, each, none) for each, none in pairs))

    def goes_left(self, value: Any, xp: ModuleType = np) -> Any:
        """Return whether rows with these values of the feature go left.

        Examples
        --------
        >>> Split(0, 0.8, True).goes_left(np.array([0.7, 0.8, np.nan])).tolist()
        [True, False, True]
        """
        return xp.where(xp.isnan(value), self.missing_left, value < self.threshold)

    def is_at(self, places: Any) -> Any:
        """Set these splits at an index of arrays of the same names."""
        return np.all([own == getattr(places, name) for name, own in self._asdict().items()], 0)

    def text(
        self,
        is_left: bool,
        names: Sequence[str],
        *,
        show_missing: Any = None,
        design: Any = None,
        schema: Schema | None = None,
    ) -> str:
        """Describe which rows a split sends to one side.

        Parameters
        ----------
        is_left
            Which side.
        names
            Feature names.
        show_missing
            Features whose splits name the side of missing values, [d]. Default: those with missing
            values in the design.
        design
            Design that the tree was made for: 0/1 columns of a category are shown as ``not
            colour=red``, and thresholds with the digits that separate its values. Default none: all
            digits.
        schema
            How the table was read: ordered levels are named, and so is the other one of two levels.
        """
        feature, threshold = int(self.feature), float(self.threshold)
        if show_missing is None and design is not None:
            show_missing = design.has_missing
        condition = None
        if schema is not None:
            condition = schema.level_condition(feature, threshold, is_left)
        if condition is not None:
            pass
        elif design is not None and design.is_indicator[feature]:
            condition = f"not {names[feature]}" if is_left else f"{names[feature]}"
        else:
            around = None if design is None else design.values_around(feature, threshold)
            sign = "<" if is_left else ">="
            condition = f"{names[feature]} {sign} {threshold_text(threshold, around)}"
        if show_missing is not None and show_missing[feature]:
            if bool(self.missing_left) == is_left:
                condition += " or missing"
        return condition

    def in_table(self, schema: Schema, has_missing: Any) -> "ColumnSplit":
        """Express a split as a condition on a table, given features [d] that had missing values."""
        position, levels, is_mark = schema.sources[self.feature]
        column, threshold = schema.columns[position], float(self.threshold)
        if is_mark:  # all values are below infinity
            return ColumnSplit(column, (), np.inf, "right")
        missing = ("right", "left")[int(self.missing_left)] if has_missing[self.feature] else None
        right = (column.levels or ())[math.ceil(threshold) :] if column.is_ordered else levels
        return ColumnSplit(column, right, threshold, missing)


class ColumnSplit(NamedTuple):
    """Condition on a row of a table at a node.

    A numeric value below the threshold goes left; so does every level except the named ones.
    """

    column: Column
    right: tuple[str, ...]
    """Levels that go right; none for a numeric column."""
    threshold: float
    missing: str | None
    """Side of missing values, "left" or "right"; None where none was missing when the model was
    fitted."""

    def to_json(self) -> dict[str, Any]:
        """Write the condition with JSON types; "below" is null if all values go left."""
        below = self.threshold if np.isfinite(self.threshold) else None
        asked: dict[str, Any] = {"below": below}
        if self.right:
            one = len(self.right) == 1 and not self.column.is_ordered
            asked = {"level": self.right[0]} if one else {"levels": list(self.right)}
        return {"column": self.column.name, **asked, "missing": self.missing}
