"""Figures of posterior predictive distributions of real targets: mean, bands and data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from sklearn.utils.validation import check_is_fitted

from bdtppl.plotting.colours import ACCENT, FAINT, INK, tint
from bdtppl.plotting.rows import Rows, training_targets

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_predictive"]

_GRID_POINTS = 200
_LEVEL_WIDTH = 0.6  # of a level of a category, whose neighbours are 1 apart


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

    With one column in the table, or one that ``feature`` names, the horizontal axis is that column
    over its range (a category: its levels), the other columns being held. Otherwise it is the rank
    of the rows in the order of their predictive means, and the legend gives the share of observed
    targets inside each band.

    Parameters
    ----------
    model
        A fitted regressor of bdtppl.
    X
        Rows of a table like the one that the model was fitted with, [m, columns]. Default: the
        training rows.
    y
        Their targets, [m]; without them no points are drawn. Default: the training targets, where
        X is not given.
    feature
        Column that varies, by name or position.
    levels
        Probabilities of the equal-tailed bands.
    at
        Values at which the other columns are held: a mapping from names, or a row of the table.
        Default, and for columns that the mapping leaves out: the median of the training rows, or
        the most frequent level of a category.
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
    if hasattr(model, "classes_"):
        raise TypeError(
            "plot_predictive draws real targets and needs a regressor; for a classifier use "
            "plot_tree, or predict_proba."
        )
    check_is_fitted(model)
    levels = _check_levels(levels)
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
        raise ValueError("at holds the columns beside a feature: name the feature too.")
    if ax is None:
        import matplotlib.pyplot as plt

        _, ax = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
    _draw(ax, view)
    return ax


@dataclass(frozen=True, eq=False)
class _View:
    """Everything that is drawn, g places along the horizontal axis.

    Attributes
    ----------
    kind
        What the places are: points of a "line", "ranks" or "levels" of a category.
    x, mean
        [g].
    bands
        By level, ascending: [g, 2].
    band_labels
        By level.
    points
        Where the observed targets stand, and they, [2, m]; or None.
    points_label, x_label
        Text.
    ticks
        Names of the places if these are levels.
    """

    kind: Literal["line", "ranks", "levels"]
    x: np.ndarray
    mean: np.ndarray
    bands: Mapping[float, np.ndarray]
    band_labels: Mapping[float, str]
    points: np.ndarray | None
    points_label: str
    x_label: str
    ticks: Sequence[str] = ()


def _along_ranks(model: Any, rows: Rows, y: np.ndarray | None, levels: Sequence[float]) -> _View:
    """See all rows in the order of their means."""
    mean, bands = _predict(model, rows.table(), levels)
    order = np.argsort(mean, kind="stable")
    rank = np.arange(1, len(mean) + 1)
    labels = {}
    for level, band in bands.items():
        labels[level] = _percent(level) + " band"
        if y is not None:
            is_inside = (band[:, 0] <= y) & (y <= band[:, 1])
            share = float(np.average(is_inside, weights=rows.weights))
            labels[level] += f", holds {_percent(share)} of rows"
    return _View(
        "ranks",
        rank,
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
    """See one column over its range, the others being held."""
    held = Rows.of(model).typical() | rows.held(at)
    values = rows.columns[position]
    own_levels = model.schema_.columns[position].levels
    grid = _grid(values) if own_levels is None else np.array(own_levels, object)
    columns = [
        grid if column == position else np.full(len(grid), held[name], values.dtype)
        for column, (name, values) in enumerate(zip(rows.names, rows.columns, strict=True))
    ]
    mean, bands = _predict(model, Rows(rows.names, columns).table(), levels)
    place = values if own_levels is None else _spread(values, own_levels)
    x_label = rows.names[position] + rows.held_text(held, [position])
    return _View(
        "line" if own_levels is None else "levels",
        grid if own_levels is None else np.arange(len(grid)),
        mean,
        bands,
        {level: _percent(level) + " band" for level in levels},
        None if y is None else np.stack([place, y]),
        "observed (all rows)" if len(rows.names) > 1 else "observed",
        x_label,
        own_levels or (),
    )


def _predict(
    model: Any, table: Mapping[str, np.ndarray], levels: Sequence[float]
) -> tuple[np.ndarray, dict[float, np.ndarray]]:
    """Predictive means [m] and, for each level, intervals [m, 2]."""
    bands = {level: model.predict_interval(table, level) for level in levels}
    return model.predict(table), bands


def _grid(values: np.ndarray) -> np.ndarray:
    """Points over the range of a numeric column."""
    values = values[~np.isnan(values)]
    low, high = (values.min(), values.max()) if len(values) else (0.0, 0.0)
    if low == high:
        low, high = low - 0.5, high + 0.5
    return np.linspace(low, high, _GRID_POINTS)


def _spread(values: np.ndarray, levels: Sequence[str]) -> np.ndarray:
    """Places of rows beside the middle of their levels, so that few hide each other, [m]."""
    index = {level: place for place, level in enumerate(levels)} | {None: np.nan}
    # Multiples of the golden ratio fill an interval evenly, and are the same each time.
    offset = np.arange(len(values)) * 0.618034 % 1 - 0.5
    return np.array([index[value] for value in values]) + 0.5 * _LEVEL_WIDTH * offset


def _draw(ax: "Axes", view: _View) -> None:
    from matplotlib.ticker import MaxNLocator

    ax.grid(axis="y", color=FAINT, linewidth=0.8)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    _draw_bands(ax, view)
    style = {"color": ACCENT, "label": "mean", "zorder": 4, "gid": "mean"}
    if view.kind == "levels":
        half = _LEVEL_WIDTH / 2
        ax.hlines(view.mean, view.x - half, view.x + half, **style)
        ax.set_xticks(view.x, view.ticks, parse_math=False)
    else:
        step = "steps-mid" if view.kind == "ranks" else "default"
        ax.plot(view.x, view.mean, drawstyle=step, **style)
        ax.margins(x=0.01)
    if view.kind == "ranks":
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    if view.points is not None:
        ax.scatter(
            *view.points,
            s=float(np.clip(4000 / view.points.shape[1], 4, 16)),
            color=INK,
            alpha=0.6,
            linewidths=0,
            label=view.points_label,
            zorder=3.5,
            gid="observed",
        )
    ax.set_xlabel(view.x_label, parse_math=False)
    ax.set_ylabel("target")
    _draw_legend(ax)


def _draw_bands(ax: "Axes", view: _View) -> None:
    """Draw the bands, ever lighter with their level and the narrower ones on top."""
    for level, share in zip(view.bands, np.linspace(0.5, 0.2, len(view.bands)), strict=True):
        low, high = view.bands[level].T
        style = {
            "color": tint(share),
            "linewidth": 0,
            "label": view.band_labels[level],
            "zorder": 3 - level,
            "gid": f"band-{level:g}",
        }
        if view.kind == "levels":
            ax.bar(view.x, high - low, _LEVEL_WIDTH, low, **style)
        else:
            step = "mid" if view.kind == "ranks" else None
            ax.fill_between(view.x, low, high, step=step, **style)


def _draw_legend(ax: "Axes") -> None:
    """Name what is drawn, bands first, in room made for it above the data."""
    handles, labels = ax.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda index: ("band" not in labels[index], index))
    rows = -(-len(order) // 2)
    height = ax.bbox.height * 72 / ax.figure.dpi  # points
    share = min(rows * 15 / height, 0.5)
    low, high = ax.get_ylim()
    # Unlike new limits this leaves the axes free to grow with what is drawn on them later.
    ax.update_datalim([(ax.dataLim.x0, high + (high - low) * share / (1 - share))])
    ax.autoscale_view()
    ax.legend(
        [handles[index] for index in order],
        [labels[index] for index in order],
        loc="upper left",
        ncols=2,
        fontsize="small",
        labelcolor=INK,
        frameon=False,
    )


def _targets(model: Any, X: Any, y: Any) -> np.ndarray | None:
    if X is None and y is not None:
        raise ValueError("y needs the rows that it belongs to: give X too.")
    if X is None:
        return training_targets(model).astype(float)
    return None if y is None else np.asarray(y, float).ravel()


def _check_levels(levels: Sequence[float]) -> list[float]:
    levels = sorted({float(level) for level in np.atleast_1d(levels)})
    if not levels or not 0 < levels[0] <= levels[-1] < 1:
        raise ValueError(f"levels must be probabilities between 0 and 1; got {levels}.")
    return levels


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
