"""Figures of survival curves."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bdtppl.models.wording import counted
from bdtppl.plotting.axes import prepared
from bdtppl.plotting.bands import percent
from bdtppl.plotting.colours import INK, NUM_COLOURS, class_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NUM_TIMES = 200


def plot_survival(
    model: Any,
    X: Any,
    labels: Sequence[str] = (),
    *,
    level: float = 0.9,
    ax: "Axes | None" = None,
) -> "Axes":
    """Draw the survival curves of a few rows, with bands.

    Parameters
    ----------
    model
        A fitted `bdtppl.BARTSurvival`.
    X
        Rows, at most seven.
    labels
        Their names. Default: their numbers.
    level
        Probability of the bands.
    ax
        Axes to draw on. Default: those of a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The axes.

    Raises
    ------
    TypeError
        If the model has no survival curves.
    ValueError
        If there are too many rows.
    """
    if not hasattr(model, "survival"):
        raise TypeError(f"plot_survival needs a BARTSurvival; got a {type(model).__name__}.")
    times = np.linspace(0, model.times_[-1], _NUM_TIMES)
    curves, ax = model.survival(X, times, level), prepared(ax)
    if (number := len(curves.mean)) > NUM_COLOURS or len(labels) not in (0, number):
        raise ValueError(
            f"X must have at most {NUM_COLOURS} rows, with a label each if there are labels; got "
            f"{number} and {counted(len(labels), 'label', 'labels')}."
        )
    for row, (mean, low, high) in enumerate(zip(*curves, strict=True)):
        colour = class_style(row)["facecolor"]
        name = labels[row] if len(labels) else f"row {row}"
        ax.fill_between(times, low, high, color=colour, alpha=0.2, linewidth=0)
        ax.plot(times, mean, color=colour, label=name, gid=f"row-{row}")
    ax.set(xlim=(0, times[-1]), ylim=(0, 1.02), xlabel="time")
    ax.set_ylabel(f"probability of no event, {percent(level)} bands")
    ax.legend(loc="best", fontsize="small", labelcolor=INK, frameon=False)
    return ax
