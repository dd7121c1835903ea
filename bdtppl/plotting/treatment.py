"""Figures of the effect of a treatment."""

from typing import TYPE_CHECKING, Any

import numpy as np

from bdtppl.plotting.axes import prepared
from bdtppl.plotting.bands import percent
from bdtppl.plotting.colours import ACCENT, INK, LINE, class_style, tint

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_BINS = 30


def plot_treatment_effects(
    model: Any, X: Any = None, *, level: float = 0.95, ax: "Axes | None" = None
) -> "Axes":
    """Draw the effect of a treatment on each row, from the smallest to the largest.

    Parameters
    ----------
    model
        A fitted `bdtppl.BCFRegressor`.
    X
        Rows. Default: the training rows, and their average effect.
    level
        Probability of the intervals.
    ax
        Axes to draw on. Default: those of a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The axes.

    Raises
    ------
    TypeError
        If the model has no treatment.
    """
    _require_effects("plot_treatment_effects", model)
    effects = model.effects(X, level)
    order, ax = np.argsort(effects.mean), prepared(ax)
    place = np.arange(len(order))
    band = f"{percent(level)} interval of a row"
    ax.fill_between(
        place, effects.low[order], effects.high[order], color=tint(0.3), linewidth=0, label=band
    )
    ax.plot(place, effects.mean[order], color=ACCENT, label="mean of a row", gid="mean")
    ax.axhline(0, color=LINE, linewidth=0.8)
    if X is None:
        average = model.average_effect(level=level)
        label = f"average: {average.mean:.3g} ({average.low:.3g} to {average.high:.3g})"
        ax.axhline(average.mean, color=INK, linestyle="--", linewidth=1, label=label)
    ax.margins(x=0)
    ax.set_xlabel("rows, by their effect")
    ax.set_ylabel("effect of the treatment")
    ax.legend(loc="upper left", fontsize="small", labelcolor=INK, frameon=False)
    return ax


def plot_overlap(model: Any, *, ax: "Axes | None" = None) -> "Axes":
    """Draw the propensities of the training rows of both arms.

    Where an arm has no rows, effects are extrapolated.

    Parameters
    ----------
    model
        A fitted `bdtppl.BCFRegressor` with treatments of 0 and 1.
    ax
        Axes to draw on. Default: those of a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The axes.

    Raises
    ------
    TypeError
        If the model has no treatment with two arms.
    """
    _require_effects("plot_overlap", model)
    if not model.has_arms_:
        raise TypeError("plot_overlap needs treatments of 0 and 1; these are doses.")
    propensity, ax = model.propensity_, prepared(ax, size=(6.4, 3.2))
    arm = model.posterior_.matrix[:, model.posterior_.effect.feature]
    number = min(_MOST_BINS, int(np.sqrt(len(arm))))
    counts = [np.histogram(propensity[arm == own], number, (0, 1))[0] for own in (0, 1)]
    left = np.arange(number) / number
    for own, name in enumerate(("not treated, downwards", "treated")):
        height = counts[own] * (1 if own else -1)
        ax.bar(left, height, 1 / number, align="edge", label=name, **class_style(own))
    ax.axhline(0, color=LINE, linewidth=0.8)
    most = max(map(max, counts)) * 1.05
    ax.set(xlim=(0, 1), ylim=(-most, most), xlabel="propensity", ylabel="rows")
    ax.yaxis.set_major_formatter(lambda value, _: f"{abs(value):g}")
    above = {"loc": "lower right", "bbox_to_anchor": (1, 1), "ncols": 2}
    ax.legend(**above, fontsize="small", labelcolor=INK, frameon=False)
    return ax


def _require_effects(name: str, model: Any) -> None:
    if not hasattr(model, "effect_draws"):
        raise TypeError(f"{name} needs a BCFRegressor; got a {type(model).__name__}.")
