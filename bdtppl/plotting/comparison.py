"""A figure of models side by side."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from bdtppl.comparison import LABELS, Comparison
from bdtppl.plotting.colours import ACCENT, FAINT, INK, LINE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.ticker import MaxNLocator

_ERROR_BAND = 2.0  # length of error bars to each side in standard errors
_BETTER = {"brier": "← better", "crps": "← better"}


def plot_comparison(
    comparison: Comparison,
    quantities: str | Sequence[str] | None = None,
    *,
    ax: "Axes | Sequence[Axes] | None" = None,
) -> np.ndarray:
    """Draw the results of `bdtppl.compare`: models as rows, a panel for each quantity.

    Dots are the numbers and lines two standard errors to each side; stacking weights are bars. A
    bounded number is a bar between its bounds; an arrow starts at a lower bound without an upper
    one. If a model has no number, its row is marked and `Comparison.notes` states why.

    Parameters
    ----------
    comparison
        Result of `bdtppl.compare`.
    quantities
        Names of the quantities, see `bdtppl.comparison.Comparison`; default those that at least one
        model has.
    ax
        Axes to draw on, as many as there are quantities. Default: those of a new figure.

    Returns
    -------
    numpy.ndarray
        The axes, one for each quantity.

    Raises
    ------
    TypeError
        If this is not a comparison.
    ValueError
        If there is no such quantity, no model has any, or the number of axes is wrong.

    Examples
    --------
    >>> from bdtppl import ExactTreeRegressor, compare, plot_comparison
    >>> X, y = [[1.0], [2.0], [3.0], [4.0]] * 3, [0.1, 0.0, 9.2, 9.0] * 3
    >>> models = {f"{bins} bins": ExactTreeRegressor(bins=bins, random_state=0) for bins in (2, 4)}
    >>> found = compare({name: model.fit(X, y) for name, model in models.items()}, X, y, cv=2)
    >>> [axes.get_xlabel().splitlines()[0] for axes in plot_comparison(found)]
    ['log evidence', 'best tree', 'PSIS-LOO', 'log score (CV)', 'CRPS (CV)', 'weight']
    """
    if not isinstance(comparison, Comparison):
        raise TypeError(
            f"plot_comparison draws what bdtppl.compare returns; got a {type(comparison).__name__}."
        )
    if quantities is None:
        quantities = [each for each in comparison.quantities if comparison.known(each)]
    quantities = [quantities] if isinstance(quantities, str) else list(quantities)
    if not quantities:
        raise ValueError(
            "There is nothing to draw: no model has an evidence or leave-one-out scores. Pass the "
            "table and the target for scores of held-out rows."
        )
    for quantity in quantities:
        comparison.known(quantity)  # raises if there is no such quantity
    names = list(comparison.cells)
    given: Any = ax
    if ax is None:
        import matplotlib.pyplot as plt

        size = 1.4 + 2.1 * len(quantities), 1.2 + 0.42 * len(names)
        _, given = plt.subplots(
            1, len(quantities), figsize=size, sharey=True, squeeze=False, layout="constrained"
        )
    panels = np.atleast_1d(np.asarray(given, object)).ravel()
    if len(panels) != len(quantities):
        raise ValueError(f"ax must be {len(quantities)} axes, one a quantity; got {len(panels)}.")
    for place, (panel, quantity) in enumerate(zip(panels, quantities, strict=True)):
        _draw_panel(panel, comparison, quantity)
        panel.set_yticks(range(len(names)), names, parse_math=False)
        panel.tick_params(axis="y", length=0, labelleft=place == 0)
        panel.set_ylim(len(names) - 0.5, -0.5)
    return panels


def _draw_panel(ax: "Axes", comparison: Comparison, quantity: str) -> None:
    best = comparison.best(quantity)
    for row, (name, cells) in enumerate(comparison.cells.items()):
        cell = cells[quantity]
        if cell.value is None:
            ax.annotate(
                "none",
                (0.5, row),
                xycoords=ax.get_yaxis_transform(),
                ha="center",
                va="center",
                color=LINE,
                fontsize="small",
                style="italic",
            )
            continue
        colour = ACCENT if name == best else INK
        if quantity == "weight":
            ax.barh(row, cell.value, height=0.5, color=colour, gid=f"{quantity}-{row}")
            continue
        if cell.high is not None:
            _draw_bounds(ax, row, cell.value, cell.high, colour, gid=f"{quantity}-{row}")
            continue
        error = 0.0 if cell.error is None or np.isnan(cell.error) else _ERROR_BAND * cell.error
        bars = ax.errorbar(cell.value, row, xerr=error, fmt="o", color=colour, capsize=3)
        bars.lines[0].set_gid(f"{quantity}-{row}")
    if quantity == "weight":
        ax.set_xlim(0, 1)
    else:
        ax.margins(x=0.15)
    ax.set_xlabel(f"{LABELS[quantity]}\n{_hint(comparison, quantity)}")
    ax.ticklabel_format(axis="x", useOffset=False)  # an offset would cover the axis label
    cast("MaxNLocator", ax.xaxis.get_major_locator()).set_params(nbins=4)
    ax.grid(axis="x", color=FAINT, linewidth=0.8)
    ax.set_axisbelow(True)
    ax.spines[["top", "right", "left"]].set_visible(False)


def _draw_bounds(ax: "Axes", row: int, low: float, high: float, colour: str, gid: str) -> None:
    """Draw two bounds as a bar, and a single lower bound as an arrow."""
    if np.isinf(high):
        ax.plot(low, row, marker=9, markersize=9, color=colour, gid=gid)  # a caret to the right
    else:
        ax.barh(row, high - low, left=low, height=0.25, color=colour, alpha=0.6, gid=gid)


def _hint(comparison: Comparison, quantity: str) -> str:
    if quantity == "weight":
        return f"by {LABELS[comparison.weights_from]}"
    return _BETTER.get(quantity, "better →")
