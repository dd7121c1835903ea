"""Sums of trees as tables: a constant, an effect of each column, and effects of pairs of columns.

They are the effects of `model.effects` in the posterior mean of the sum, in all buckets that splits
may tell apart, so they are exact. Effects of three columns or more are left out, and so are pairs
with weak ones.
"""

import warnings
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from bdtppl.export.fitted_tree import class_list, plain
from bdtppl.inference.additive.effects import MOST_PAIRS, SumEffects
from bdtppl.models.data.schema import TableWarning
from bdtppl.models.pytrees import describe_kind
from bdtppl.plotting.rows import Rows


def are_sums(model: Any) -> bool:
    """Whether a model is an estimator of sums of trees."""
    return getattr(model, "trees_are", None) == "sums"


def sum_tables(model: Any, rank: int, tolerance: float) -> dict[str, Any]:
    """Write a fitted sum of trees as the document that `bdtppl.export.to_json` describes.

    Raises
    ------
    TypeError
        If it is no sum of trees.
    ValueError
        If rank is not 0, tolerance not in (0, 1) or out of reach, or ``groups`` have slopes.
    """
    if not are_sums(model):
        raise TypeError(f"A fitted sum of trees is needed; got {describe_kind(model)}.")
    check_is_fitted(model)
    if rank != 0 or not 0 < tolerance < 1:
        raise ValueError(
            f"rank must be 0 for sums and tolerance in (0, 1); got {rank!r} and {tolerance!r}."
        )
    classes: Any = class_list(model)
    labels = classes if model.prior_.num_sums > 1 else [None]
    each, rows = [model._sum_effects(label) for label in labels], Rows.of(model)
    sides = {own: _side(model, each[0], rows, own) for own in each[0].used}
    states = [np.array([value]) for value in rows.typical().values()]
    for own, (values, _) in sides.items():
        states[own] = values
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TableWarning)  # unknown and missing values are meant
        matrix = model._rows_of(rows.names, states)
    sums = [_tables(effects, sides, matrix, tolerance) for effects in each]
    scale, link = model.posterior_.scale, "softmax" if len(sums) > 1 else model.prior_.link
    return {
        "format": "bdtppl sum of effects",
        "version": 1,
        "model": type(model).__name__,
        "link": scale.kind if classes is None else link,
        "power": scale.power,
        "classes": classes,
        "left_out": max(each["left_out"] for each in sums),
        "columns": [document for _, document in sides.values()],
        "sums": sums,
    }


def prediction_formulas(document: dict[str, Any]) -> list[str]:
    """Write what is predicted, a number or class probabilities, as SQL of the sums s0, s1, ...

    That of probits is formula 26.2.17 of Abramowitz and Stegun 1964, Handbook of mathematical
    functions, which is off by less than 7.5e-8.
    """
    link = document["link"]
    if link == "softmax":
        every = range(len(document["classes"]))
        return [f"1 / ({' + '.join(f'EXP(s{j} - s{k})' for j in every)})" for k in every]
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


def _side(model: Any, effects: SumEffects, rows: Rows, own: int) -> tuple[np.ndarray, dict]:
    """Find the values of a column for the entries of tables, and what the document says of it."""
    feature = [source[0] for source in model.schema_.sources].index(own)
    name, values, levels = rows.names[own], rows.columns[own], model.schema_.columns[own].levels
    document = {"name": name, "typical": plain(rows.typical()[name])}
    missing = None if values.dtype.kind == "O" else np.nan
    if feature in model.prior_.groups and levels is None:
        levels = np.unique(values)
    if levels is not None:  # an unknown one is longer than any, or larger
        unknown = "".join(levels) + "?" if missing is None else levels[-1] + 1
        states = np.array([*levels, unknown, missing], values.dtype)
        return states, document | {"levels": list(map(plain, levels))}
    (_, low, high), design = effects.slope(feature), model.design_
    cuts = design.cut_threshold[design.offset[feature] + 1 : design.offset[feature + 1]]
    first = np.nextafter(cuts[0], -np.inf) if len(cuts) else np.nanmedian(values)
    last = [] if feature == model.prior_.offset_feature else [missing]  # no row lacks an offset
    document |= {"cuts": cuts.tolist(), "low": low, "high": high}
    return np.array([first, *cuts, *last]), document


def _tables(effects: SumEffects, sides: dict, matrix: np.ndarray, tolerance: float) -> dict:
    """Tabulate a sum by its effects; the first rows of the matrix have the states of each side."""
    rows = np.vstack([matrix, effects.matrix])
    found = {own: draws.mean(axis=0) for own, draws in effects.mains(rows)}
    f, constant = effects.at(effects.matrix).mean(axis=0), float(effects.mean.mean())
    left = f - constant - sum(each[len(matrix) :] for each in found.values())
    index, tables = {own: place for place, own in enumerate(sides)}, []
    for own, (states, document) in sides.items():
        table, slope, none = found[own][: len(states)], 0.0, []
        if "cuts" in document:
            feature = effects.column.tolist().index(own)
            slope, *ends = effects.slope(feature)
            low, high = np.array(ends, float)  # NaN of no end
            x = np.fmin(np.fmax(matrix[: len(table), feature], low), high)
            table = table - slope * np.where(np.isnan(states), 0.0, x)
            none = [None] * (len(document["cuts"]) + 2 - len(states))
        tables.append({"columns": [index[own]], "table": [*table.tolist(), *none], "slope": slope})
    law = effects.weights / effects.weights.sum()
    variance = law @ (f - law @ f) ** 2 or 1.0
    waiting = effects.strongest_pairs(MOST_PAIRS)
    while (share := float(law @ left**2 / variance)) > tolerance and waiting:
        pair = waiting.pop(0)
        first, second = (matrix[: len(sides[own][0])] for own in pair)
        table = effects.pair(pair, first, second, of_mean=True)[0][0]
        places = (effects.alike(own, matrix[: len(sides[own][0])]) for own in pair)
        left = left - table[tuple(places)]
        tables.append({"columns": [index[own] for own in pair], "table": table.tolist()})
    if share > tolerance:
        raise ValueError(
            f"tolerance={tolerance} cannot be reached: the effects of columns and of their "
            f"{len(tables) - len(sides)} strongest pairs leave out {share:.3g} of the variance of "
            f"the posterior mean. Raise tolerance, or fit with a smaller max_depth."
        )
    return {"constant": constant, "left_out": share, "effects": tables}
