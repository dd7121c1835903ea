"""Predictions over the plane of two columns, with the training rows."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from bdtppl.plotting.axes import name_entries
from bdtppl.plotting.colours import INK, class_style
from bdtppl.plotting.rows import Rows, training_targets

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_GRID_POINTS = 300  # along each axis
_ROWS_PREDICTED = 4096  # rows predicted at once
_CONTOUR_LEVEL = 0.9
_STRENGTH = 0.75  # tint of a class of probability 1


def plot_boundaries(
    model: Any,
    features: Sequence[str | int] | None = None,
    *,
    at: Mapping[str, Any] | Sequence[Any] | None = None,
    uncertainty: bool = False,
    ax: "Axes | None" = None,
) -> "Axes":
    """Draw a fitted estimator's predictions over the plane of two columns, or their uncertainty.

    Classification: each place has the colour of its most probable class, paler for lower
    probabilities. Regression: the predictive mean, with a colour bar. Points are the training rows
    (Nuti et al. 2021, Figures 2(b) and 5). Uncertainty is the probability of all other classes
    together, or the width of the 90 % predictive interval.

    Parameters
    ----------
    model
        A fitted classifier or regressor of bdtppl.
    features
        The two numeric columns, by name or position. Default: the only two of the table.
    at
        Values for the other columns, as in `plot_predictive`.
    uncertainty
        Whether colours show uncertainty instead of predictions.
    ax
        Axes to draw on. Default: those of a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The axes.

    Raises
    ------
    ValueError
        If the columns are not two numeric columns of the table.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from bdtppl import GreedyModalTreeClassifier, plot_boundaries
    >>> X, y = load_iris(return_X_y=True)
    >>> ax = plot_boundaries(GreedyModalTreeClassifier().fit(X[:, 2:], y))
    >>> [text.get_text() for text in ax.get_legend().get_texts()]
    ['0', '1', '2']
    """
    check_is_fitted(model)
    rows = Rows.of(model)
    if features is None:
        if len(rows.names) != 2:
            raise ValueError(
                f"features must name two columns: the table has {len(rows.names)} of them."
            )
        features = (0, 1)
    places = [rows.position(feature) for feature in features]
    if len(places) != 2 or places[0] == places[1]:
        raise ValueError(f"features must name two different columns; got {tuple(features)}.")
    for place in places:
        if rows.columns[place].dtype.kind == "O":
            raise ValueError(f"features must be numeric; {rows.names[place]!r} is a category.")
    grids = [_grid_of_rows(rows.columns[place]) for place in places]
    plane = np.stack([axis.ravel() for axis in np.meshgrid(*grids)])
    held = rows.typical() | rows.held(at)
    table = _table(rows, dict(zip(places, plane, strict=True)), held)
    if ax is None:
        import matplotlib.pyplot as plt

        _, ax = plt.subplots(figsize=(5.6, 4.4), layout="constrained")
    classes = model.class_labels
    y = training_targets(model)
    points = [rows.columns[place] for place in places]
    if classes is not None:
        probability = _predict_pieces(model.predict_proba, table)
        _draw_classes(ax, probability, grids, uncertainty)
        _draw_rows_of_classes(ax, points, y, [str(name) for name in classes])
    elif uncertainty:
        ends = _predict_pieces(lambda part: model.predict_interval(part, _CONTOUR_LEVEL), table)
        _draw_colours(
            ax,
            ends[:, 1] - ends[:, 0],
            grids,
            f"width of the {100 * _CONTOUR_LEVEL:.0f} % interval",
        )
        ax.scatter(*points, color=INK, s=_marker_size(len(y)), edgecolors="white", linewidths=0.5)
    else:
        mean = _predict_pieces(model.predict, table)
        limits = {"vmin": min(mean.min(), y.min()), "vmax": max(mean.max(), y.max())}
        _draw_colours(ax, mean, grids, "target", **limits)
        ax.scatter(
            *points, c=y, s=_marker_size(len(y)), edgecolors="white", linewidths=0.5, **limits
        )
    for axis, place in zip("xy", places, strict=True):
        ax.set(**{f"{axis}lim": (grids["xy".index(axis)][0], grids["xy".index(axis)][-1])})
        label = rows.names[place] + (rows.held_text(held, places) if axis == "x" else "")
        getattr(ax, f"set_{axis}label")(label, parse_math=False)
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def _table(rows: Rows, varied: Mapping[int, np.ndarray], held: Mapping[str, Any]) -> dict:
    """Return rows with given values of some columns, and the others fixed."""
    size = len(next(iter(varied.values())))
    columns = [
        varied.get(place, np.full(size, held[name], rows.columns[place].dtype))
        for place, name in enumerate(rows.names)
    ]
    return Rows(rows.names, columns).table()


def _grid_of_rows(values: np.ndarray) -> np.ndarray:
    """Return places over the range of a column and a little beyond."""
    low, high = np.nanmin(values), np.nanmax(values)
    room = 0.05 * (high - low) or 0.5
    return np.linspace(low - room, high + room, _GRID_POINTS)


def _predict_pieces(predict: Callable[[dict], np.ndarray], table: dict) -> np.ndarray:
    """Predict in chunks of rows, because many draws of soft trees need much memory for each."""
    size = len(next(iter(table.values())))
    pieces = [slice(start, start + _ROWS_PREDICTED) for start in range(0, size, _ROWS_PREDICTED)]
    return np.concatenate([predict({n: v[piece] for n, v in table.items()}) for piece in pieces])


def _draw_classes(ax: "Axes", probability: np.ndarray, grids: list, uncertainty: bool) -> None:
    """Colour places by their class or its uncertainty, with lines between classes."""
    best, largest = probability.argmax(axis=1), probability.max(axis=1)
    shape = len(grids[1]), len(grids[0])
    if uncertainty:
        _draw_colours(ax, 1 - largest, grids, "probability of another class", vmin=0)
    else:
        num_classes = probability.shape[1]
        colours = np.array([_rgb(class_style(c)["facecolor"]) for c in range(num_classes)])
        beyond_chance = (largest - 1 / num_classes) / (1 - 1 / num_classes)
        strength = _STRENGTH * beyond_chance[:, None]
        image = (1 - strength) + strength * colours[best]
        ax.pcolormesh(*grids, image.reshape(*shape, 3), shading="nearest", rasterized=True)
    if len(np.unique(best)) > 1:
        for c in np.unique(best):
            inside = (best == c).astype(float).reshape(shape)
            ax.contour(*grids, inside, levels=[0.5], colors=INK, linewidths=0.6)


def _draw_colours(ax: "Axes", values: np.ndarray, grids: list, label: str, **limits: Any) -> None:
    """Colour places by a number."""
    image = values.reshape(len(grids[1]), len(grids[0]))
    mesh = ax.pcolormesh(*grids, image, shading="nearest", rasterized=True, **limits)
    ax.figure.colorbar(mesh, ax=ax, label=label)


def _draw_rows_of_classes(ax: "Axes", points: list, y: np.ndarray, names: list[str]) -> None:
    drawn = [
        ax.scatter(
            *(values[y == c] for values in points),
            s=_marker_size(len(y)),
            edgecolors="white",
            linewidths=0.5,
            color=class_style(c)["facecolor"],
        )
        for c in range(len(names))
    ]
    # A colour bar is at the right.
    place = {"loc": "lower left", "bbox_to_anchor": (0, 1), "ncols": 4}
    name_entries(ax, drawn, names, **place)


def _marker_size(num_points: int) -> float:
    return float(np.clip(6000 / num_points, 6, 24))


def _rgb(colour: str) -> list[float]:
    return [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
