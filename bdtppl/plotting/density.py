"""Figures of posterior predictive densities at single rows."""

from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.tree import DecisionTreeRegressor
from sklearn.utils.validation import check_is_fitted

from bdtppl.plotting.axes import prepared
from bdtppl.plotting.colours import ACCENT, INK, LINE, tint
from bdtppl.plotting.rows import training_targets

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_DENSITY_POINTS = 400
_DENSITY_TAIL = 1e-3  # share of the probability that is omitted at each end
_OVERLAP = 0.9  # share of the space between rows that the highest density fills


def plot_density(
    model: Any,
    X: Any,
    y: Any = None,
    *,
    cart: bool = False,
    labels: Any = None,
    ax: "Axes | None" = None,
) -> "Axes":
    """Draw the posterior predictive density of the target at each of a few rows.

    Rows are stacked, each with its own baseline. A density with two peaks means that trees of the
    posterior disagree about the row (Figure 2 of Cochrane et al. 2024).

    Parameters
    ----------
    model
        A fitted regressor of bdtppl.
    X
        Rows [m].
    y
        Their true targets [m], to mark.
    cart
        Whether to mark the prediction of scikit-learn's ``DecisionTreeRegressor``, fitted to the
        same training rows.
    labels
        Names of the rows [m]; default their positions.
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
        If the number of targets or labels differs from that of rows.

    Examples
    --------
    >>> from bdtppl import ExactTreeRegressor, plot_density
    >>> X, y = [[0.0], [1.0], [2.0], [3.0]] * 9, [0.0, 0.1, 4.0, 4.1] * 9
    >>> ax = plot_density(ExactTreeRegressor().fit(X, y), X[:3], y[:3], cart=True)
    >>> [text.get_text() for text in ax.get_legend().get_texts()]
    ['density', 'truth', 'CART']
    """
    check_is_fitted(model)
    if model.is_classifier:
        raise TypeError("plot_density draws real targets and needs a regressor.")
    matrix = model._matrix(X)
    labels = [f"row {i}" for i in range(len(matrix))] if labels is None else list(labels)
    for name, values in (("y", y), ("labels", labels)):
        if values is not None and len(values) != len(matrix):
            raise ValueError(f"{name} has {len(values)} values for {len(matrix)} rows of X.")
    ax = prepared(ax, size=(6.4, 1.2 + 0.7 * len(matrix)), grid="x")
    marks = {}
    if y is not None:
        marks["truth"] = np.asarray(y, float), INK, "|"
    if cart:
        marks["CART"] = _cart(model, matrix), "#d55e00", "v"
    ends = model.predict_interval(X, 1 - 2 * _DENSITY_TAIL)
    for values, _, _ in marks.values():
        ends = np.concatenate([ends, np.stack([values, values], axis=1)])
    grid = np.linspace(ends.min(), ends.max(), _DENSITY_POINTS)
    densities = [_density(model, row, grid) for row in matrix]
    height = max(density.max() for density in densities) / _OVERLAP
    for i, density in enumerate(densities):
        base = len(matrix) - 1 - i
        top = base + density / height
        label = "density" if i == 0 else None
        ax.fill_between(grid, base, top, color=tint(0.35), linewidth=0, label=label)
        ax.plot(grid, top, color=ACCENT, linewidth=1.2, gid=f"row-{i}")
        ax.axhline(base, color=LINE, linewidth=0.6)
    bases = np.arange(len(matrix))[::-1]
    for name, (values, colour, marker) in marks.items():
        style: dict[str, Any] = {"s": 260, "linewidths": 2} if marker == "|" else {"s": 36}
        ax.scatter(
            values,
            bases + 0.08,
            marker=marker,
            color=colour,
            label=name,
            zorder=3,
            gid=name,
            **style,
        )
    ax.set_yticks(bases, labels, parse_math=False)
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(-0.15, len(matrix) + 0.05)
    ax.margins(x=0.01)
    ax.spines["left"].set_visible(False)
    ax.set_xlabel("target")
    legend = {"loc": "lower left", "bbox_to_anchor": (0, 1), "ncols": 3, "frameon": False}
    ax.legend(**legend, fontsize="small", labelcolor=INK, markerscale=0.6)
    return ax


def _density(model: Any, row: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """Return the predictive density of one row [d] on a grid."""
    return np.exp(model._mixture_at(np.tile(row, (len(grid), 1))).log_density(grid))


def _cart(model: Any, matrix: np.ndarray) -> np.ndarray:
    """Predict with scikit-learn's tree."""
    training, weights = model._training_rows()
    tree = DecisionTreeRegressor(random_state=0)
    return tree.fit(training, training_targets(model), sample_weight=weights).predict(matrix)
