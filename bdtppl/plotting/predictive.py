"""Figures of posterior predictive distributions of real targets: mean, bands and data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from sklearn.utils.validation import check_is_fitted

from bdtppl.plotting.axes import prepared
from bdtppl.plotting.bands import (
    LEVELS_SHOWN,
    Places,
    check_levels,
    draw_bands,
    draw_mean,
    legend_above,
    percent,
)
from bdtppl.plotting.colours import INK
from bdtppl.plotting.rows import Rows, training_targets

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BAND_POINTS = 200


def plot_predictive(
    model: Any,
    X: Any = None,
    y: Any = None,
    *,
    feature: str | int | None = None,
    levels: Sequence[float] = (0.5, 0.9),
    at: Mapping[str, Any] | Sequence[Any] | None = None,
    ax: "Axes | None" = None,
) -> "Axes":
    """Draw the posterior predictive mean and bands of a fitted regressor, and data.

    If the table has one column, or ``feature`` names one, the horizontal axis is that column over
    its range (a category: its levels), with the other columns fixed. Otherwise it is the rank of
    the rows in the order of their predictive means, and the legend gives the share of observed
    targets inside each band.

    Parameters
    ----------
    model
        A fitted regressor of bdtppl.
    X
        Rows of a table like the one that the model was fitted with, [m, columns]. Default: the
        training rows.
    y
        Their targets, [m]; without them no points are drawn. Default: the training targets, if X is
        not given.
    feature
        Column that varies, by name or position.
    levels
        Probabilities of the equal-tailed bands.
    at
        Values of the fixed columns: a mapping from names, or a row of the table. Default, also for
        columns missing from the mapping: the median of the training rows, or the most frequent
        level of a category.
    ax
        Axes to draw on. Default: those of a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The axes.

    Raises
    ------
    TypeError
        If the model is a classifier.
    ValueError
        If an argument does not fit the model, or levels are not between 0 and 1.

    Examples
    --------
    >>> from bdtppl import ExactTreeRegressor, plot_predictive
    >>> from bdtppl.datasets import make_wu
    >>> X, y = make_wu(30, random_state=0)
    >>> ax = plot_predictive(ExactTreeRegressor(bins=4).fit(X, y), feature=0)
    >>> [text.get_text() for text in ax.get_legend().get_texts()]
    ['50 % band', '90 % band', 'mean', 'observed (all rows)']
    """
    if model.is_classifier:
        raise TypeError(
            "plot_predictive draws real targets and needs a regressor; for a classifier use "
            "plot_tree, or predict_proba."
        )
    check_is_fitted(model)
    levels = check_levels(levels)
    rows, y = Rows.of(model, X), _targets(model, X, y)
    if y is not None and len(y) != len(rows):
        raise ValueError(f"y has {len(y)} values for {len(rows)} rows of X.")
    if feature is None and len(rows.names) == 1:
        feature = 0
    if feature is not None:
        view = _along_column(model, rows, y, rows.position(feature), at, levels)
    elif at is None:
        view = _along_ranks(model, rows, y, levels)
    else:
        raise ValueError("at fixes the columns other than a feature: set feature too.")
    ax = prepared(ax)
    _draw_bands(ax, view)
    return ax


@dataclass(frozen=True, eq=False)
class _View:
    """Everything that is drawn at g places.

    Attributes
    ----------
    places
        Where.
    mean
        [g].
    bands, band_labels
        By level, ascending: [g, 2], and text.
    points
        Positions of the observed targets and their values, [2, m]; or None.
    points_label, x_label
        Text.
    """

    places: Places
    mean: np.ndarray
    bands: Mapping[float, np.ndarray]
    band_labels: Mapping[float, str]
    points: np.ndarray | None
    points_label: str
    x_label: str


def _along_ranks(model: Any, rows: Rows, y: np.ndarray | None, levels: Sequence[float]) -> _View:
    """Return the view of all rows in the order of their means."""
    mean, bands = _predict(model, rows.table(), levels)
    order = np.argsort(mean, kind="stable")
    rank = np.arange(1, len(mean) + 1)
    labels = {}
    for level, band in bands.items():
        labels[level] = percent(level) + " band"
        if y is not None:
            is_inside = (band[:, 0] <= y) & (y <= band[:, 1])
            share = float(np.average(is_inside, weights=rows.weights))
            labels[level] += f", holds {percent(share)} of rows"
    return _View(
        Places("ranks", rank),
        mean[order],
        {level: band[order] for level, band in bands.items()},
        labels,
        None if y is None else np.stack([rank, y[order]]),
        "observed",
        "rows in the order of their predictive mean",
    )


def _along_column(
    model: Any,
    rows: Rows,
    y: np.ndarray | None,
    position: int,
    at: Mapping[str, Any] | Sequence[Any] | None,
    levels: Sequence[float],
) -> _View:
    """Return the view of one column over its range, with the others fixed."""
    held = Rows.of(model).typical() | rows.held(at)
    places = Places.along(model, rows, position, _BAND_POINTS)
    grid = cast(np.ndarray, places.values)  # places along a column have values
    columns = [
        grid if column == position else np.full(len(grid), held[name], values.dtype)
        for column, (name, values) in enumerate(zip(rows.names, rows.columns, strict=True))
    ]
    mean, bands = _predict(model, Rows(rows.names, columns).table(), levels)
    name = rows.names[position]
    if (num_levels := len(places.ticks)) > LEVELS_SHOWN:
        kept = places.extreme(mean, LEVELS_SHOWN)
        mean, bands = mean[kept], {level: band[kept] for level, band in bands.items()}
        places = Places(
            "levels", np.arange(LEVELS_SHOWN), None, [str(places.ticks[k]) for k in kept]
        )
        name += f" ({LEVELS_SHOWN} of {num_levels} levels)"
    return _View(
        places,
        mean,
        bands,
        {level: percent(level) + " band" for level in levels},
        None if y is None else np.stack([places.of_rows(rows.columns[position]), y]),
        "observed (all rows)" if len(rows.names) > 1 else "observed",
        name + rows.held_text(held, [position]),
    )


def _predict(
    model: Any, table: Mapping[str, np.ndarray], levels: Sequence[float]
) -> tuple[np.ndarray, dict[float, np.ndarray]]:
    """Return predictive means [m] and, for each level, intervals [m, 2]."""
    ends = [end for level in levels for end in ((1 - level) / 2, (1 + level) / 2)]
    bands = np.split(model.predict_quantiles(table, ends), len(levels), axis=1)
    return model.predict(table), dict(zip(levels, bands, strict=True))


def _draw_bands(ax: "Axes", view: _View) -> None:
    draw_bands(ax, view.places, view.bands, view.band_labels)
    draw_mean(ax, view.places, view.mean, label="mean", gid="mean")
    if view.points is not None:
        ax.scatter(
            *view.places.laid(*view.points),
            s=float(np.clip(4000 / view.points.shape[1], 4, 16)),
            color=INK,
            alpha=0.6,
            linewidths=0,
            label=view.points_label,
            zorder=3.5,
            gid="observed",
        )
    view.places.name_axes(ax, view.x_label, "target")
    legend_above(ax)


def _targets(model: Any, X: Any, y: Any) -> np.ndarray | None:
    if X is None and y is not None:
        raise ValueError("y requires the rows that it belongs to: pass X too.")
    if X is None:
        return training_targets(model).astype(float)
    return None if y is None else np.asarray(y, float).ravel()
