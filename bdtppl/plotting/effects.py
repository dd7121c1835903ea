"""Figures of the effects of columns on sums of trees."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bdtppl.models.arguments import require_integer
from bdtppl.plotting.axes import name_axis, prepared, shortened
from bdtppl.plotting.bands import Places, draw_bands, draw_mean, percent
from bdtppl.plotting.colours import INK
from bdtppl.plotting.rows import Rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ACROSS = 3  # panels side by side
_WIDTH, _HEIGHT = 3.2, 2.6  # of a panel, in inches


def plot_effects(
    model: Any,
    num_panels: int = 6,
    *,
    level: float = 0.9,
    label: Any = None,
    axes: "Sequence[Axes] | None" = None,
) -> "list[Axes]":
    """Draw the strongest effects of columns, and of pairs of columns, on a sum of trees.

    Each panel says which share of the variance of the sum the effect has. That of a column is a
    line with a band, on one scale in all panels; that of a pair beside these is a map.

    Parameters
    ----------
    model
        A fitted sum of trees, `bdtppl.BARTRegressor` or `bdtppl.BARTClassifier`.
    num_panels
        Most panels.
    level
        Probability of the bands.
    label
        Of more than two classes that whose sum it is.
    axes
        Axes to draw on. Default: those of a new figure.

    Returns
    -------
    list of matplotlib.axes.Axes
        The axes, one for each panel.

    Raises
    ------
    TypeError
        If the model is no sum of trees.
    ValueError
        If an argument does not fit the model.

    Examples
    --------
    >>> import numpy as np
    >>> from bdtppl import BARTRegressor, plot_effects
    >>> X = np.random.default_rng(0).random((60, 2))
    >>> y = 3 * X[:, 0] - X[:, 1]
    >>> model = BARTRegressor(target_scale="identity", random_state=0).fit(X, y)
    >>> [ax.get_xlabel() for ax in plot_effects(model, 2)]
    ['x0', 'x1']
    """
    if not hasattr(model, "effects"):
        raise TypeError(
            f"Effects are of sums of trees; a {type(model).__name__} has none: see "
            f"plot_partial_dependence."
        )
    require_integer("num_panels", num_panels, 1)
    effects = model.effects(level=level, label=label, pairs=num_panels)[:num_panels]
    return draw_effects(model, effects, level, axes)


def draw_effects(
    model: Any, effects: Sequence[Any], level: float, axes: "Sequence[Axes] | None" = None
) -> "list[Axes]":
    """Draw effects of a model, with bands of a level, as `plot_effects` does."""
    if not effects:
        raise ValueError("No column has an effect: none of them varies in the training rows.")
    made: Any = axes
    if made is None:
        import matplotlib.pyplot as plt

        across = min(len(effects), _ACROSS)
        down = -(-len(effects) // across)
        size = _WIDTH * across, _HEIGHT * down
        figure, made = plt.subplots(down, across, figsize=size, layout="constrained", squeeze=False)
        for ax in made.flat[len(effects) :]:
            figure.delaxes(ax)
    drawn = np.ravel(made)[: len(effects)].tolist()
    rows, mains = Rows.of(model), [each for each in effects if len(each.columns) == 1]
    ends = [(each.low.min(), each.high.max()) for each in mains]
    for effect, ax in zip(effects, drawn, strict=False):
        share = f"{100 * effect.share:.1f} % of the variance"
        if len(effect.columns) == 2:
            _draw_map(ax, rows, effect)
            share = f"{' and '.join(shortened(name, 20) for name in effect.columns)}: {share}"
        else:
            values = effect.values[0]
            is_named = effect.columns[0] in rows.levels
            places = (
                Places("levels", np.arange(len(values)), values, [str(each) for each in values])
                if is_named
                else Places("line", values, values)
            )
            prepared(ax, grid="x" if places.are_upright else "y")
            bands = {level: np.column_stack([effect.low, effect.high])}
            draw_bands(ax, places, bands, {level: f"{percent(level)} band"})
            draw_mean(ax, places, effect.mean, label="mean", gid="mean")
            set_limits, _ = places.laid(ax.set_ylim, ax.set_xlim)
            low, high = min(end for end, _ in ends), max(end for _, end in ends)
            set_limits(low - 0.05 * (high - low), high + 0.05 * (high - low))
            places.name_axes(ax, effect.columns[0], "effect")
        ax.set_title(share, fontsize="small", color=INK, parse_math=False)
    return drawn


def _draw_map(ax: "Axes", rows: Rows, effect: Any) -> None:
    """Colour the values of two columns by the effect of the pair."""
    most = np.abs(effect.mean).max()
    places = [
        np.arange(len(values)) if name in rows.levels else values
        for name, values in zip(effect.columns, effect.values, strict=True)
    ]
    mesh = ax.pcolormesh(
        *places, effect.mean.T, shading="nearest", cmap="RdBu_r", vmin=-most, vmax=most
    )
    ax.figure.colorbar(mesh, ax=ax)
    for axis, place, name, values in zip(
        (ax.xaxis, ax.yaxis), places, effect.columns, effect.values, strict=True
    ):
        if name in rows.levels:
            slant = {"rotation": 30, "ha": "right"} if axis is ax.xaxis else {}
            names = [shortened(each, 12) for each in values]
            axis.set_ticks(place, names, parse_math=False, **slant)
        name_axis(axis, name)
