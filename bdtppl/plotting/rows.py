"""Rows of the table that a model was fitted with, column by column.

A model stores its training rows as numbers, with one feature for each level of a category. A figure
needs the user's columns: one for a category, with its levels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from bdtppl.models.data.schema import Column
from bdtppl.models.data.tables import as_level
from bdtppl.models.wording import number
from bdtppl.plotting.axes import shortened

_NAMED_COLUMNS = 4  # fixed columns that are named; more are only counted


def training_targets(model: Any) -> np.ndarray:
    """Return the targets that a model was fitted with, class indices for classification, [n]."""
    # An exact posterior provides the targets without drawing trees.
    return np.asarray((model.exact_ or model.posterior_).y)


def class_index(model: Any, label: Any, argument: str = "target") -> int:
    """Return the index of a class of a classifier, named by an argument.

    Raises
    ------
    ValueError
        If there is no such class.
    """
    labels = model.classes_.tolist()
    if label in labels:
        return labels.index(label)
    shown = ", ".join(map(repr, labels[:10]))
    raise ValueError(f"{argument} must be one of the classes, {shown}; got {label!r}.")


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of a table, m of them.

    Attributes
    ----------
    names
        Names of the columns.
    columns
        For each column float64 [m], or object [m] with the levels of a category as text; missing
        values are NaN and None.
    weights
        Integers [m]: multiplicity of each row; None for 1.
    levels
        Levels of the categories by name.
    """

    names: Sequence[str]
    columns: Sequence[np.ndarray]
    weights: np.ndarray | None = None
    levels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, model: Any, X: Any = None) -> "Rows":
        """Read rows as a model reads them; its training rows if X is None."""
        columns = model.schema_.columns
        if X is None:
            matrix, weights = model._training_rows()
        else:
            matrix, weights = model.schema_.transform(model._own_columns(X)), None
        starts = np.cumsum([0] + [len(column.features) for column in columns])
        parts = np.split(matrix[:, : starts[-1]], starts[1:-1], axis=1)  # without projections
        return cls(
            [column.name for column in columns],
            [_values(column, part) for column, part in zip(columns, parts, strict=True)],
            weights,
            {column.name: column.levels for column in columns if column.levels is not None},
        )

    def __len__(self) -> int:
        return len(self.columns[0])

    def table(self) -> dict[str, np.ndarray]:
        """Return a table with named columns for a model, which may not have stored all columns."""
        return dict(zip(self.names, self.columns, strict=True))

    def take(self, chosen: np.ndarray) -> "Rows":
        """Select rows by their places."""
        weights = None if self.weights is None else self.weights[chosen]
        columns = [values[chosen] for values in self.columns]
        return replace(self, columns=columns, weights=weights)

    def position(self, feature: str | int) -> int:
        """Return the place of a column, given by name or position."""
        if isinstance(feature, str) and feature in self.names:
            return self.names.index(feature)
        if isinstance(feature, int | np.integer) and not isinstance(feature, bool):
            if 0 <= feature < len(self.names):
                return int(feature)
        shown = ", ".join(self.names[:10])
        raise ValueError(
            f"feature must name one of the {len(self.names)} columns ({shown}) or be its position "
            f"from 0 on; got {feature!r}."
        )

    def typical(self) -> dict[str, Any]:
        """Lower median of each numeric column and the mode of each categorical column.

        Missing values are ignored; a column without values gives a missing value.
        """
        return {
            name: _typical(values, self.weights)
            for name, values in zip(self.names, self.columns, strict=True)
        }

    def held(self, at: Mapping[str, Any] | Sequence[Any] | None) -> dict[str, Any]:
        """Return the names of the fixed columns with their values."""
        if at is None:
            return {}
        if not isinstance(at, Mapping):
            if len(at) != len(self.names):
                raise ValueError(
                    f"at must be a mapping from column names or a row of {len(self.names)} values; "
                    f"got {len(at)}."
                )
            at = dict(zip(self.names, at, strict=True))
        unknown = [name for name in at if name not in self.names]
        if unknown:
            raise ValueError(f"at must name columns of the table; got {unknown[0]!r}.")
        return {name: self._read(name, value) for name, value in at.items()}

    def held_text(self, held: Mapping[str, Any], shown: Sequence[int]) -> str:
        """Describe, below the name of an axis, the values of the fixed columns."""
        others = [name for place, name in enumerate(self.names) if place not in shown]
        if not others:
            return ""
        if len(others) > _NAMED_COLUMNS:
            return f"\n({len(others)} other columns fixed)"
        values = (f"{shortened(name, 20)} = {shortened(_text(held[name]), 12)}" for name in others)
        return f"\n(at {', '.join(values)})"

    def _read(self, name: str, value: Any) -> Any:
        is_category = self.columns[self.names.index(name)].dtype.kind == "O"
        if is_category:
            if value is None or value != value:
                return None
            levels = self.levels[name]
            level = as_level(value, levels)
            if level not in levels:
                raise ValueError(
                    f"at must give {name!r} one of its levels: {level!r} was not seen when the "
                    f"model was fitted; they are {', '.join(levels[:10])}."
                )
            return level
        try:
            return np.nan if value is None else float(value)
        except (TypeError, ValueError):
            raise ValueError(f"at must give {name!r} a number; got {value!r}.") from None


def _values(column: Column, matrix: np.ndarray) -> np.ndarray:
    """Undo the coding of a column, [m]."""
    if column.levels is None:
        return matrix[:, 0]
    if column.is_ordered:
        known = ~np.isnan(matrix[:, 0])
        values = np.full(len(matrix), None, object)
        values[known] = np.array(column.levels, object)[matrix[known, 0].astype(int)]
        return values
    values = np.array(column.levels, object)[column.level_of(np.nan_to_num(matrix))]
    values[np.isnan(matrix).any(axis=1)] = None
    return values


def _typical(values: np.ndarray, weights: np.ndarray | None) -> Any:
    weights = np.ones(len(values)) if weights is None else weights
    if values.dtype.kind == "O":
        is_known = np.array([value is not None for value in values])
        levels, index = np.unique(values[is_known].astype(str), return_inverse=True)
        return str(levels[np.bincount(index, weights[is_known]).argmax()]) if len(levels) else None
    is_known = ~np.isnan(values)
    if not is_known.any():
        return np.nan
    return float(
        np.quantile(values[is_known], 0.5, weights=weights[is_known], method="inverted_cdf")
    )


def _text(value: Any) -> str:
    return str(value) if value is None or isinstance(value, str) else number(value)
