"""Figures of the effect of one column: partial dependence, with uncertainty, and ICE."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import jax
import numpy as np
from sklearn.utils.validation import check_is_fitted

from bdtppl.models.arguments import require_integer
from bdtppl.models.hard.tree import route
from bdtppl.models.wording import counted
from bdtppl.plotting.axes import name_entries, prepared
from bdtppl.plotting.bands import (
    LEVELS_SHOWN,
    Places,
    check_levels,
    draw_bands,
    draw_mean,
    legend_above,
    percent,
)
from bdtppl.plotting.colours import INK, LINE, NUM_COLOURS, class_style
from bdtppl.plotting.rows import Rows, class_index

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_CURVE_POINTS = 60
_ROWS_SHOWN = 200
_DRAWS_SHOWN = 100  # draws of soft trees and of sums


def plot_partial_dependence(
    model: Any,
    feature: str | int,
    X: Any = None,
    *,
    target: Any = None,
    ice: int = 0,
    levels: Sequence[float] = (0.5, 0.9),
    legend: bool = True,
    ax: "Axes | None" = None,
) -> "Axes":
    """Draw the mean prediction against one column, averaged over the rows' other columns.

    Every row gets each value in turn, with its other columns unchanged, and predictions are
    averaged over rows (Friedman 2001). Each draw of the posterior has such a curve: the line is
    their mean, the bands are their equal-tailed intervals at each value. Bands show the posterior
    uncertainty of the average; they are not predictive intervals. A model of a single tree has no
    meaningful bands.

    Parameters
    ----------
    model
        A fitted classifier or regressor of bdtppl.
    feature
        The column, by name or position.
    X
        Rows of a table like the one that the model was fitted with. Default: the training rows. At
        most 200 are used, evenly spaced, and at most 100 draws of soft trees or sums of trees.
    target
        Classification: the class whose probability is drawn. Default: the second of two classes;
        all of more classes, with the widest band alone; and of more than seven those that the
        column moves most.
    ice
        Number of rows with curves of their own (individual conditional expectation), each the mean
        over draws.
    levels
        Probabilities of the bands.
    legend
        Whether to draw a legend; needed only once for several axes side by side.
    ax
        Axes to draw on. Default: those of a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The axes.

    Raises
    ------
    ValueError
        If an argument does not fit the model, or ``ice`` is combined with all of several classes.

    Examples
    --------
    >>> from bdtppl import ExactTreeRegressor, plot_partial_dependence
    >>> from bdtppl.datasets import make_wu
    >>> X, y = make_wu(30, random_state=0)
    >>> ax = plot_partial_dependence(ExactTreeRegressor(bins=4).fit(X, y), 0, ice=5)
    >>> [text.get_text() for text in ax.get_legend().get_texts()]
    ['50 % band', '90 % band', 'mean', 'single rows']
    """
    check_is_fitted(model)
    levels = check_levels(levels)
    rows = Rows.of(model, X)
    position = rows.position(feature)
    shown = _shown_classes(model, target)
    if ice and len(shown) > 1:
        raise ValueError("ice draws curves of one class: set target to a class.")
    require_integer("ice", ice, 0)
    rows = rows.take(np.unique(np.linspace(0, len(rows) - 1, _ROWS_SHOWN).astype(int)))
    places = Places.along(model, Rows.of(model, X), position, _CURVE_POINTS, of_draws=True)
    curves = _curves(model, rows, position, places, shown)
    if len(places.ticks) > LEVELS_SHOWN:
        places, curves = _strongest_levels(places, curves)
    ax = prepared(ax, grid="x" if places.are_upright else "y")
    if len(shown) > 1:
        _draw_class_curves(ax, model, places, curves, levels[-1], legend)
    else:
        bands = {level: curves.band(level, 0) for level in levels}
        draw_bands(ax, places, bands, {level: f"{percent(level)} band" for level in levels})
        draw_mean(ax, places, curves.mean(0), label="mean", gid="mean")
        _draw_rows(ax, places, curves.of_rows, min(int(ice), len(rows)))
        if legend:
            legend_above(ax)
    if places.kind != "levels":
        _draw_rug(ax, rows.columns[position])
    is_one_class = model.is_classifier and len(shown) == 1
    name = f"probability of {model.classes_[shown[0]]}" if is_one_class else "probability"
    places.name_axes(ax, rows.names[position], name if model.is_classifier else "target")
    return ax


class _Curves(NamedTuple):
    """Predictions at g values of a column, by s draws, for c targets (1, or the classes shown).

    Attributes
    ----------
    of_draws
        Means over rows, [g, s, c].
    weight
        Weights of the draws, [s].
    of_rows
        Means over draws for each row, of the first target, [g, m].
    """

    of_draws: np.ndarray
    weight: np.ndarray
    of_rows: np.ndarray

    def mean(self, target: int) -> np.ndarray:
        """Return the mean over draws, [g]."""
        return self.of_draws[..., target] @ self.weight

    def band(self, level: float, target: int) -> np.ndarray:
        """Return the equal-tailed interval of the draws' curves at each value, [g, 2]."""
        ends = [(1 - level) / 2, (1 + level) / 2]
        weights = {"weights": self.weight, "method": "inverted_cdf"}
        return np.quantile(self.of_draws[..., target], ends, axis=1, **weights).T


def _shown_classes(model: Any, target: Any) -> list[int]:
    """Return the places of the classes to draw; [0] for regression."""
    if not model.is_classifier:
        if target is not None:
            raise ValueError(f"target must be None for a {type(model).__name__}: no classes.")
        return [0]
    if target is None:
        num_classes = len(model.classes_)
        return [1] if num_classes == 2 else list(range(num_classes))
    return [class_index(model, target)]


def _curves(model: Any, rows: Rows, position: int, places: Places, shown: Sequence[int]) -> _Curves:
    """Predict at each place, by each draw."""
    predict, weight = _predictor(model)
    values = cast(np.ndarray, places.values)  # places along a column have them
    columns = [np.tile(column, len(values)) for column in rows.columns]
    columns[position] = np.repeat(values, len(rows))
    of_draws, of_rows = [], []
    for matrix in np.split(model._matrix(Rows(rows.names, columns).table()), len(values)):
        means = predict(matrix)
        means = means.reshape(*means.shape[:2], -1)[..., shown]  # [s, m, c]
        of_draws.append(np.average(means, axis=1, weights=rows.weights))
        of_rows.append(weight @ means[..., 0])
    return _Curves(np.array(of_draws), weight, np.array(of_rows))


def _strongest_levels(places: Places, curves: _Curves) -> tuple[Places, _Curves]:
    """Order levels by the first target; keep the most extreme, and the mean of all others."""
    kept = places.extreme(curves.mean(0), LEVELS_SHOWN)
    others = np.setdiff1d(np.arange(len(places.ticks)), kept)

    def chosen(values: np.ndarray) -> np.ndarray:
        return np.concatenate([values[others].mean(axis=0, keepdims=True), values[kept]])

    ticks = [f"{len(others)} others (mean)", *(places.ticks[level] for level in kept)]
    found = curves._replace(of_draws=chosen(curves.of_draws), of_rows=chosen(curves.of_rows))
    return Places("levels", np.arange(len(ticks)), None, ticks), found


def _predictor(model: Any) -> tuple[Any, np.ndarray]:
    """Make a function from a matrix to the means of each draw, [s, m, ...], and weights [s]."""
    posterior = model.posterior_
    if model.trees_are != "hard":
        shape = posterior.num_leaves.shape[:2]
        chosen = np.unique(np.linspace(0, np.prod(shape) - 1, _DRAWS_SHOWN).astype(int))
        weight = np.full(len(chosen), 1 / len(chosen))
        if model.trees_are == "sums":
            some = posterior.take(chosen)  # one chain
            return lambda matrix: some.means(matrix)[0], weight
        sharpness = model._sharpness(model.routing)
        place = tuple(axis[None] for axis in np.unravel_index(chosen, shape))
        some = replace(posterior, trees=posterior.trees[place], topology=posterior.topology[place])
        return lambda matrix: some.means(matrix, sharpness=sharpness)[0], weight
    ranked = posterior.ranked
    with jax.enable_x64(True):
        leaves = np.asarray(posterior.leaf.posterior_mean(ranked.statistics))
    tree = np.arange(len(ranked))[:, None]
    return lambda matrix: leaves[tree, route(ranked.trees, matrix)], ranked.probability


def _draw_class_curves(
    ax: "Axes", model: Any, places: Places, curves: _Curves, level: float, legend: bool
) -> None:
    """Draw a line and a band for each class."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    names, places_of = [str(name) for name in model.classes_], range(len(model.classes_))
    if len(names) > NUM_COLOURS:
        effects = [np.ptp(curves.mean(place)) for place in places_of]
        places_of = sorted(np.argsort(effects, kind="stable")[-NUM_COLOURS:])
    colours = [class_style(number)["facecolor"] for number in range(len(places_of))]
    for place, colour in zip(places_of, colours, strict=True):
        band = {level: curves.band(level, place)}
        style: dict[str, Any] = {"colour": colour, "gid": f"class-{place}", "alpha": 0.35}
        draw_bands(ax, places, band, {level: ""}, **style)
        draw_mean(ax, places, curves.mean(place), colour=colour, gid=f"mean-{place}")
    if len(places_of) == len(names):
        set_limits, _ = places.laid(ax.set_ylim, ax.set_xlim)
        set_limits(-0.02, 1.02)
    if not legend:
        return
    handles: list[Line2D | Patch] = [Line2D([], [], color=colour) for colour in colours]
    handles.append(Patch(facecolor=LINE, alpha=0.3))
    said = [*(names[place] for place in places_of), f"{percent(level)} band"]
    if len(places_of) < len(names):
        handles.append(Line2D([], [], linewidth=0))
        said.append(counted(len(names) - len(places_of), "other moves less", "others move less"))
    name_entries(
        ax,
        handles,
        said,
        loc="upper left",
        bbox_to_anchor=(1.0, 1.0),
        fontsize="small",
    )


def _draw_rows(ax: "Axes", places: Places, of_rows: np.ndarray, count: int) -> None:
    """Draw the curves of some rows, evenly spaced."""
    chosen = np.linspace(0, of_rows.shape[1] - 1, count).astype(int)
    for number, row in enumerate(chosen):
        ax.plot(
            *places.laid(places.x, places.drawn(of_rows[:, row])),
            drawstyle="steps-post" if places.kind == "steps" else None,
            color=LINE,
            linewidth=0.6,
            alpha=0.7,
            marker="." if places.kind == "levels" else "",
            label=None if number else "single rows",
            zorder=3.5,
            gid=f"row-{number}",
        )


def _draw_rug(ax: "Axes", values: np.ndarray) -> None:
    """Mark the values of rows at the foot of the axes."""
    values = np.unique(values[~np.isnan(values)])
    ax.plot(
        values,
        np.zeros(len(values)),
        "|",
        color=INK,
        alpha=0.5,
        markersize=6,
        transform=ax.get_xaxis_transform(),
        clip_on=False,
        gid="rug",
    )
