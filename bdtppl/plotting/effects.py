"""Figures of the effects of columns on sums of trees."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bdtppl.models.arguments import require_integer
from bdtppl.plotting.axes import name_axis, prepared, shortened, write_out_ticks
from bdtppl.plotting.bands import Places, draw_bands, draw_mean, percent
from bdtppl.plotting.colours import ACCENT, INK, tint
from bdtppl.plotting.rows import Rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ACROSS = 3  # panels side by side
_GAP = 0.1  # of the range, from its end to missing values
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
    line with a band, on one scale in all panels; that of a pair beside these is a map. A missing
    value stands beside the others where training rows have gaps.

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
    if not hasattr(model, "fewest_columns"):
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
            is_named, values = effect.columns[0] in rows.levels, effect.values[0]
            x, num_given = _laid_out(values, is_named)
            names = ["missing" if each is None else each for each in values] if is_named else []
            places = Places("levels" if is_named else "line", x[:num_given], None, names)
            prepared(ax, grid="x" if places.are_upright else "y")
            bands = {level: np.column_stack([effect.low, effect.high])[:num_given]}
            draw_bands(ax, places, bands, {level: f"{percent(level)} band"})
            draw_mean(ax, places, effect.mean[:num_given], label="mean", gid="mean")
            if num_given < len(x):
                ax.vlines(x[-1], effect.low[-1], effect.high[-1], tint(0.5, ACCENT), linewidth=5)
                ax.plot(x[-1], effect.mean[-1], "o", color=ACCENT, gid="missing")
                ax.margins(x=0.03)
                _name_missing(ax.xaxis, x)
            set_limits, _ = places.laid(ax.set_ylim, ax.set_xlim)
            low, high = min(end for end, _ in ends), max(end for _, end in ends)
            set_limits(low - 0.05 * (high - low), high + 0.05 * (high - low))
            places.name_axes(ax, effect.columns[0], "effect")
        ax.set_title(share, fontsize="small", color=INK, parse_math=False)
    return drawn


def _draw_map(ax: "Axes", rows: Rows, effect: Any) -> None:
    """Colour the values of two columns by the effect of the pair."""
    most = np.abs(effect.mean).max()
    mean, places = effect.mean, []
    for side, (name, values) in enumerate(zip(effect.columns, effect.values, strict=True)):
        x, num_given = _laid_out(values, name in rows.levels)
        if num_given < len(x):  # nothing is between
            x = np.insert(x, num_given, x[-2:].mean())
            mean = np.insert(mean, num_given, np.nan, axis=side)
        places.append(x)
    write_out_ticks(ax)
    mesh = ax.pcolormesh(*places, mean.T, shading="nearest", cmap="RdBu_r", vmin=-most, vmax=most)
    ax.figure.colorbar(mesh, ax=ax)
    sides = zip((ax.xaxis, ax.yaxis), places, effect.columns, effect.values, strict=True)
    for axis, x, name, values in sides:
        if name in rows.levels:
            slant = {"rotation": 30, "ha": "right"} if axis is ax.xaxis else {}
            names = ["missing" if each is None else shortened(each, 12) for each in values]
            axis.set_ticks(x, names, parse_math=False, **slant)
        elif len(values) < len(x):
            _name_missing(axis, x)
        name_axis(axis, name)


def _name_missing(axis: Any, x: np.ndarray) -> None:
    """Name the last place of an axis, and number none of those between it and the others."""
    ticks = axis.get_majorticklocs()
    axis.set_ticks(ticks[(x[0] <= ticks) & (ticks <= x[-1] - _GAP / (1 + _GAP) * (x[-1] - x[0]))])
    axis.set_ticks(x[-1:], ["\nmissing" if axis.axis_name == "x" else "missing"], minor=True)


def _laid_out(values: np.ndarray, are_levels: bool) -> tuple[np.ndarray, int]:
    """Lay values out along an axis, a missing number beside the others; and count these."""
    if are_levels:
        return np.arange(len(values)), len(values)
    num_given = len(values) - int(np.isnan(values[-1]))
    last = values[num_given - 1]
    return np.nan_to_num(values, nan=last + _GAP * (last - values[0])), num_given
