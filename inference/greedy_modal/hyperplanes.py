"""Splits by hyperplanes: a cut of a linear combination of features.

Nuti et al. 2021 (section 6) name hyperplanes as a larger space of partitions. A cut of a projection
has the weight of a cut of one feature: the prior gives one of the N admissible cuts of the
projection in a node the weight of one of N cuts of a feature. Proposed normals get their exact best
cuts, scored like all other rules; the best normal is rounded, so that the printed rule is the
applied one, and cut again. A hyperplane splits a node only if it is strictly better than the best
rule of a single feature.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bdtppl.inference.greedy_modal.columns import Columns, Level, descend
from bdtppl.inference.greedy_modal.hyperplane_search import num_normals, search
from bdtppl.inference.greedy_modal.partitions import Best, best_rules, is_less
from bdtppl.inference.greedy_modal.problem import Problem
from bdtppl.models.data.design import Design

# Significant digits of a normal, and its least component relative to the largest one, in standard
# deviations of the features. Ties use the first form, the shortest.
_FORMS = ((2, 0.1), (3, 0.0), (4, 0.0), (6, 0.0))


@dataclass(frozen=True, eq=False)
class Hyperplane:
    """Rows x with x @ normal < threshold go left; d features.

    Attributes
    ----------
    normal
        float64 [d]; in units of 1 / feature, of length 1 up to rounding.
    threshold
        Cut of the projection.
    share
        float64 [d]; squared components of the normal in standard deviations of the node's rows,
        which sum to 1.
    """

    normal: np.ndarray
    threshold: float
    share: np.ndarray


# --------------------------------------------------------------------------------- projections


def projected(matrix: np.ndarray, normal: np.ndarray) -> np.ndarray:
    """Project rows, float64 [n]; NaN if a feature with a component is missing.

    Parameters
    ----------
    matrix
        float64 [n, d].
    normal
        float64 [d], or [n, d] for a normal of each row.
    """
    # Summed in the order of the features for all shapes, so that a row always has the same
    # projection, to the last bit.
    result = np.zeros(len(matrix))
    for values, component in zip(matrix.T, normal.T, strict=True):
        if component.any():
            result += np.where(component == 0, 0.0, values * component)
    return result


def _cuts(matrix: np.ndarray, normal: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Cut points between projections that differ by more than rounding errors."""
    order = np.argsort(values, kind="stable")
    size = projected(np.abs(matrix), np.abs(normal))[order]
    noise = 4 * (normal.shape[-1] + 1) * np.finfo(float).eps
    low, high = values[order][:-1], values[order][1:]
    return high[high - low > noise * (size[:-1] + size[1:])]


def _design(matrix: np.ndarray, normals: Iterable[np.ndarray], names: tuple[str, ...]) -> Design:
    """Code the projections of rows by several normals, each [d] or [n, d]."""
    values, cuts = [], []
    for normal in normals:
        values.append(projected(matrix, normal))
        cuts.append(_cuts(matrix, normal, values[-1]))
    return Design.from_matrix(np.stack(values, axis=1), cuts=cuts, names=names)


def with_projections(design: Design, normals: np.ndarray) -> Design:
    """Append the projections of the rows by normals [h, d] to a design, as features."""
    if not len(normals):
        return design
    names = tuple(_name(normal, design.names) for normal in normals)
    return design.beside(_design(design.matrix, normals, names))


def _name(normal: np.ndarray, names: Sequence[str]) -> str:
    """Write a normal as a formula, such as ``0.6 length - 0.8 width``."""
    text = ""
    for j in np.flatnonzero(normal).tolist():
        sign = (" - " if normal[j] < 0 else " + ") if text else "-" * int(normal[j] < 0)
        text += f"{sign}{abs(normal[j]):.{_FORMS[-1][0]}g} {names[j]}"
    return text


# --------------------------------------------------------------------------------------- nodes


def split(problem: Problem, level: Level, segments: np.ndarray, best: Best) -> Level:
    """Split segments [q] by their rules [q] and collect the children (see `descend`)."""
    columns, oblique = problem.columns, np.flatnonzero(best.is_oblique)
    if len(oblique):
        # The segments of a level are disjoint, so one array holds the sides of all of them.
        side = np.zeros((1, columns.num_rows), np.int32)
        for k in oblique:
            rows = _rows(level, segments[k])
            plane = best.hyperplane[k]
            values = projected(problem.design.matrix[rows], plane.normal)
            side[0, rows] = values >= plane.threshold
        columns = replace(columns, codes=np.concatenate([columns.codes, side]))
    return descend(columns, level, segments, best.feature, best.split, problem.smoothing)


def better_hyperplanes(problem: Problem, level: Level, best: Best, is_searched: np.ndarray) -> Best:
    """Replace the rules of nodes by hyperplanes if these are strictly better.

    Parameters
    ----------
    problem
        Rows and model, with the number of starts of a search.
    level
        The nodes.
    best
        Best rule of a single feature in each node.
    is_searched
        bool [K]; nodes to search; nodes without such a rule are skipped.
    """
    design = problem.design
    usable = problem.columns.features
    features = usable[~design.has_missing[usable] & ~design.is_indicator[usable]]
    # There is only one partition of two rows.
    is_searched = is_searched & np.isfinite(best.score) & (np.diff(level.start) > 2)
    if len(features) < 2 or not is_searched.any():
        return best
    nodes = np.arange(level.num_segments)
    shape = num_normals(problem), level.num_segments, design.num_features
    normals, scales = np.zeros(shape), np.zeros(shape[1:])
    for k in nodes[is_searched]:
        normals[:, k, features], scales[k, features] = search(problem, level, best, k, features)
    exact_cuts, _ = _cut_exactly(problem, level, normals, best.num_features)
    normals = _written(normals[exact_cuts.feature, nodes], scales)
    exact_cuts, thresholds = _cut_exactly(problem, level, normals, best.num_features)
    is_better = is_less(best.score, exact_cuts.score)
    planes = np.full(level.num_segments, None)
    for k in nodes[is_better]:
        normal = normals[exact_cuts.feature[k], k]
        share = (normal * scales[k] / np.abs(normal * scales[k]).max()) ** 2
        planes[k] = Hyperplane(normal, float(thresholds[k]), share / share.sum())
    oblique = exact_cuts._replace(
        feature=np.full(level.num_segments, len(problem.columns.features)),
        split=np.zeros_like(best.split),
        high=np.ones_like(best.high),
        hyperplane=planes,
    )
    return Best(*(np.where(is_better, *pair) for pair in zip(oblique, best, strict=True)))


def _rows(level: Level, k: int) -> np.ndarray:
    return level.rows[0][level.start[k] : level.start[k + 1]]


def _cut_exactly(
    problem: Problem, level: Level, normals: np.ndarray, num_features: np.ndarray
) -> tuple[Best, np.ndarray]:
    """Find the best of several normals [m, K, d] in each node, its best cut, and the place of that.

    Each normal becomes a separate column, beside the columns of the others.
    """
    rows, columns = level.rows[0], problem.columns
    per_row = (normal[level.segment] for normal in normals)
    design = _design(problem.design.matrix[rows], per_row, ("",) * len(normals))
    projections = Columns(
        features=np.arange(len(normals)),
        codes=np.ascontiguousarray(design.codes.T),
        statistics=columns.statistics[:, rows],
        weights=None if columns.weights is None else columns.weights[rows],
        has_missing=np.zeros(len(normals), bool),
        is_distinct=np.zeros(len(normals), bool),
    )
    order = [np.lexsort((codes, level.segment)).astype(np.int32) for codes in projections.codes]
    problem = replace(problem, design=design, columns=projections)
    best = best_rules(problem, replace(level, rows=order), num_features)
    return best, problem.splits(best).threshold


def _written(normals: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Write normals [K, d] with few digits in each of the forms [f, K, d].

    A normal of a single feature, which is not a hyperplane, becomes 0.
    """
    written = np.zeros((len(_FORMS), *normals.shape))
    for (digits, least), form in zip(_FORMS, written, strict=True):
        for normal, scale, result in zip(normals, scales, np.asarray(form), strict=True):
            size = np.abs(normal * scale)
            kept = np.flatnonzero(size > least * size.max())
            if len(kept) > 1:
                unit = normal[kept] / np.linalg.norm(normal[kept]) * np.sign(normal[kept[0]])
                result[kept] = [float(f"{each:.{digits}g}") for each in unit]
    return written
