"""Columns with a separate part in sums of trees: groups, slopes, offsets and directions."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bdtppl.models.data.schema import Schema

_MOST_GROUPS = 2_000


def group_columns(groups: Any) -> tuple[str, ...]:
    """List the columns that ``groups`` of an estimator names, of which there may be one."""
    return () if groups is None else tuple(groups if isinstance(groups, Mapping) else [groups])


def find_features(
    model: Any, schema: Schema, matrix: np.ndarray
) -> tuple[dict[str, Any], np.ndarray]:
    """Find the features that a prior names, and hide those that no tree splits on.

    Parameters
    ----------
    model
        Estimator with the parameters ``groups``, ``offset`` and ``monotone``.
    schema, matrix
        The columns of the table, and training rows [n, d].

    Returns
    -------
    tuple
        Settings of `bdtppl.models.hard.additive.AdditivePrior` by name, and the rows, copied if
        features become constant because no tree may split on them.

    Raises
    ------
    ValueError
        If a column is unsuitable for its use.
    """
    groups, offset = model.groups, model.offset
    own, directions = group_columns(groups), {} if model.monotone is None else model.monotone
    signs = [str(sign) for sign in directions.values()] if isinstance(directions, Mapping) else [""]
    if not {*signs} <= {"1", "-1"}:
        raise ValueError(f"monotone must map names of columns to 1 or -1; got {directions!r}.")
    if groups is not None and len(own) != 1:
        raise ValueError(f"groups must be the name of one column; got {groups!r}.")
    slopes = groups[own[0]] if isinstance(groups, Mapping) else ()
    slopes = (slopes,) if isinstance(slopes, str) else tuple(slopes)
    ordered = [column.name for column in schema.columns if column.has_cuts]
    numeric = [column.name for column in schema.columns if column.levels is None]
    others = [name for name in ordered if name not in own]
    named = [("groups", name, ordered, "") for name in own]
    named += [("groups", name, others, "numeric ") for name in slopes]
    named += [("monotone", name, ordered, "numeric ") for name in directions]
    if offset is not None:
        named.append(("offset", offset, numeric, "numeric "))
    for parameter, name, known, kind in named:
        if name not in known:
            raise ValueError(f"{parameter} must name a {kind}column of X; got {name!r}.")
    named_once = {*own, *slopes, offset} & {*directions} | {*own, *slopes} & {offset}
    for name in named_once | {*own, *slopes, *directions, offset} & {*model._hidden}:
        raise ValueError(f"Column {name!r} can have one part in a sum: groups, offset or monotone.")
    features = [schema.features.index(name) for _, name, *_ in named]
    every = [int(directions.get(name, 0)) for name in schema.features] if directions else []
    found: dict[str, Any] = {"groups": tuple(features[: len(own + slopes)])}
    found["monotone"] = tuple(every)
    hidden = features[: len(own)] + [schema.features.index(name) for name in model._hidden]
    if own:
        _refuse_missing(matrix, features[0], own[0], "group", " Give such rows their own group.")
        number = len(np.unique(matrix[:, features[0]]))
        if number > _MOST_GROUPS:
            raise ValueError(
                f"Column {own[0]!r} has {number:,} groups; at most {_MOST_GROUPS:,} can have "
                "effects."
            )
    if offset is not None:
        require_offset(matrix, features[-1], schema.features)
        found["offset_feature"] = features[-1]
        hidden.append(features[-1])
    coded = matrix.copy() if hidden else matrix
    coded[:, hidden] = 0.0
    return found, coded


def require_offset(matrix: np.ndarray, feature: int, names: Sequence[str]) -> None:
    """Raise ValueError if rows [m, d] lack the offset."""
    _refuse_missing(matrix, feature, names[feature], "offset", " Each row needs one.")


def _refuse_missing(matrix: np.ndarray, feature: int, name: str, what: str, advice: str) -> None:
    missing = np.isnan(matrix[:, feature])
    if missing.any():
        row = int(missing.argmax())
        raise ValueError(f"Column {name!r}, row {row}: the {what} is missing.{advice}")
