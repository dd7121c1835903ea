"""Sums of trees as tables: a constant, an effect of each column, and effects of pairs of columns.

They are the effects of `model.effects` in the posterior mean of the sum, at all bins that splits
tell apart, so they are exact. Effects of three columns or more are left out, and so are weak pairs.
"""

import warnings
from typing import Any, NamedTuple

import numpy as np
from sklearn.utils.validation import check_is_fitted

from bdtppl.estimators.readable_sums import rows_read
from bdtppl.export.fitted_tree import plain
from bdtppl.inference.additive.effects import MOST_PAIRS, SumEffects
from bdtppl.models.data.schema import TableWarning
from bdtppl.models.data.tables import is_missing
from bdtppl.models.pytrees import describe_kind
from bdtppl.plotting.rows import Rows


def is_sum(model: Any) -> bool:
    """Whether a model is an estimator of sums of trees."""
    return getattr(model, "trees_are", "") == "sums" and not isinstance(model, type)


def sum_tables(model: Any, rank: int, tolerance: float) -> dict[str, Any]:
    """Write a fitted sum of trees as the document that `bdtppl.export.to_json` describes.

    Raises
    ------
    TypeError
        If it is no sum of trees.
    ValueError
        If rank is not 0, tolerance not in (0, 1) or out of reach, or ``groups`` have slopes.
    """
    if not is_sum(model):
        raise TypeError(f"A fitted sum of trees is needed; got {describe_kind(model)}.")
    check_is_fitted(model)
    if rank != 0 or not 0 < tolerance < 1:
        raise ValueError(
            f"rank must be 0 for sums and tolerance in (0, 1); got {rank!r} and {tolerance!r}."
        )
    classes = None if model.class_labels is None else [plain(x) for x in model.class_labels]
    labels = classes if model.prior_.num_sums > 1 else [None]
    each, rows = [model._sum_effects(label) for label in labels], Rows.of(model)
    sides = [_side(model, each[0], rows, own) for own in each[0].used]
    states: list[Any] = [np.array([value]) for value in rows.typical().values()]
    for side in sides:
        states[side.own] = side.states
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TableWarning)  # unknown and missing values are meant
        matrix = model._rows_of(rows.names, states)
    some = rows.take(rows_read(len(rows)))
    places = {side.own: _places(side.document, some.columns[side.own]) for side in sides}
    sums = [_tables(effects, sides, matrix, places, tolerance) for effects in each]
    scale = model.posterior_.scale
    link = scale.kind if classes is None else model.prior_.link
    return {
        "format": "bdtppl sum of effects",
        "version": 1,
        "model": type(model).__name__,
        "link": link if len(sums) == 1 else "softmax",
        "power": scale.power,
        "classes": classes,
        "left_out": max(each["left_out"] for each in sums),
        "columns": [side.document for side in sides],
        "sums": sums,
    }


def prediction_formulas(document: dict[str, Any]) -> list[str]:
    """Write what is predicted, a number or class probabilities, as SQL of the sums s0, s1, ...

    That of probits is formula 26.2.17 of Abramowitz and Stegun 1964, Handbook of mathematical
    functions, which is off by less than 7.5e-8.
    """
    link = document["link"]
    if link == "softmax":
        names = [f"s{k}" for k in range(len(document["sums"]))]
        return [f"1 / ({' + '.join(f'EXP({s} - {own})' for s in names)})" for own in names]
    power, t = f"(1 + SIGN(s0) * {document['power'] - 1!r})", "1 / (1 + 0.2316419 * ABS(s0))"
    tail = "0"
    for factor in (1.330274429, -1.821255978, 1.781477937, -0.356563782, 0.31938153):
        tail = f"{t} * ({factor} + {tail})"
    formula = {
        "identity": "s0",
        "log": "EXP(s0)",
        "log1p": "EXP(s0) - 1",
        "yeo-johnson": f"SIGN(s0) * (POWER(1 + {power} * ABS(s0), 1 / {power}) - 1)",
        "logit": "1 / (1 + EXP(-s0))",
        "probit": f"0.5 + SIGN(s0) * (0.5 - 0.3989422804014327 * EXP(-s0 * s0 / 2) * {tail})",
    }[link]
    return [formula] if document["classes"] is None else [f"1 - ({formula})", formula]


class _Side(NamedTuple):
    """A column as a side of tables: its values for their entries, and what the document says."""

    own: int
    feature: int
    states: np.ndarray
    document: dict[str, Any]


def _side(model: Any, effects: SumEffects, rows: Rows, own: int) -> _Side:
    feature = [source[0] for source in model.schema_.sources].index(own)
    values, levels = rows.columns[own], model.schema_.columns[own].levels
    document = {"name": rows.names[own], "typical": plain(rows.typical()[rows.names[own]])}
    missing = None if values.dtype.kind == "O" else np.nan
    if feature in model.prior_.groups and levels is None:
        levels = np.unique(values)
    if levels is not None:  # an unknown one is longer than any, or larger
        unknown = "".join(levels) + "?" if missing is None else levels[-1] + 1
        states = np.array([*levels, unknown, missing], values.dtype)
        return _Side(own, feature, states, document | {"levels": list(map(plain, levels))})
    cuts, (_, low, high) = effects.cuts(feature), effects.slope(feature)
    first = np.nextafter(cuts[0], -np.inf) if len(cuts) else np.nanmedian(values)
    last = [] if feature == model.prior_.offset_feature else [missing]  # no row lacks an offset
    document |= {"cuts": cuts.tolist(), "low": low, "high": high}
    return _Side(own, feature, np.array([first, *cuts, *last]), document)


def _places(document: dict[str, Any], values: np.ndarray) -> np.ndarray:
    """Find the entries of values [m] of a column."""
    if "levels" in document:
        index = {level: place for place, level in enumerate(document["levels"])}
        return np.array([index.get(value, len(index) + is_missing(value)) for value in values])
    cuts = document["cuts"]
    found = np.searchsorted(cuts, values, side="right")
    return np.where(np.isnan(values), len(cuts) + 1, found)


def _tables(
    effects: SumEffects,
    sides: list[_Side],
    matrix: np.ndarray,
    places: dict[int, np.ndarray],
    tolerance: float,
) -> dict[str, Any]:
    """Tabulate one sum.

    Parameters
    ----------
    effects, sides
        The effects and the columns that have any.
    matrix
        Rows whose first ones have the states of each column.
    places
        By column, the entries of the reference rows of the effects.
    tolerance
        Share of the variance that may be left out.
    """
    rows = np.vstack([matrix, effects.matrix])
    found = {own: draws.mean(axis=0) for own, draws in effects.mains(rows)}
    f, constant = effects.at(effects.matrix).mean(axis=0), float(effects.mean.mean())
    left = f - constant - sum(each[len(matrix) :] for each in found.values())
    index, mains, pairs = {side.own: place for place, side in enumerate(sides)}, [], []
    for side in sides:
        table, slope = found[side.own][: len(side.states)], 0.0
        if "cuts" in side.document:
            slope, *ends = effects.slope(side.feature)
            low, high = np.array(ends, float)  # NaN of no end
            x = np.fmin(np.fmax(matrix[: len(table), side.feature], low), high)
            table = table - slope * np.where(np.isnan(side.states), 0.0, x)
        none = [None] * (side.feature == effects.posterior.prior.offset_feature)
        mains.append({"column": index[side.own], "table": [*table.tolist(), *none], "slope": slope})
    law = effects.weights / effects.weights.sum()
    variance = law @ (f - law @ f) ** 2 or 1.0
    waiting = effects.strongest_pairs(MOST_PAIRS)
    while (share := float(law @ left**2 / variance)) > tolerance and waiting:
        pair = waiting.pop(0)
        first, second = (matrix[: len(sides[index[own]].states)] for own in pair)
        table = effects.pair(pair, first, second, of_mean=True)[0][0]
        left = left - table[places[pair[0]], places[pair[1]]]
        pairs.append({"columns": [index[own] for own in pair], "table": table.tolist()})
    if share > tolerance:
        raise ValueError(
            f"tolerance={tolerance} cannot be reached: the effects of columns and of their "
            f"{len(pairs)} strongest pairs leave out {share:.3g} of the variance of the posterior "
            f"mean. Raise tolerance, or fit with a smaller max_depth."
        )
    return {"constant": constant, "left_out": share, "effects": mains, "pairs": pairs}
