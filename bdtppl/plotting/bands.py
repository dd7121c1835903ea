"""Bands of predictions along a column of a table, or along ranks of rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from bdtppl.models.data.design import midpoint
from bdtppl.plotting.axes import name_axis, room_of, shortened
from bdtppl.plotting.colours import ACCENT, INK, tint
from bdtppl.plotting.rows import Rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_DRAW_STYLES = {"ranks": "steps-mid", "steps": "steps-post"}
LEVELS_SHOWN = 20
"""Levels of a category that a figure shows."""

_MOST_LETTERS = 80  # letters of level names side by side
_LEVEL_WIDTH = 0.6  # of a level of a category, whose neighbours are 1 apart


@dataclass(frozen=True, eq=False)
class Places:
    """Places of predictions, g of them along the horizontal axis.

    Attributes
    ----------
    kind
        Kind of places: points of a "line", intervals that are the "steps" of hard trees, "ranks" or
        "levels" of a category.
    x
        [g]; for steps the ends of the intervals, [g + 1].
    values
        Values of the column there, [g]; None for ranks.
    ticks
        Names of the places if these are levels.
    """

    kind: Literal["line", "steps", "ranks", "levels"]
    x: np.ndarray
    values: np.ndarray | None = None
    ticks: Sequence[str] = ()

    @classmethod
    def along(
        cls, model: Any, rows: Rows, position: int, num_points: int, *, of_draws: bool = False
    ) -> "Places":
        """Return the levels of a column, or places over the range of its rows.

        The places are the intervals between the thresholds of hard trees if these are few and
        known, otherwise the given number of points. Curves show draws of the posterior, or all of
        it.
        """
        levels = model.schema_.columns[position].levels
        if levels is not None:
            return cls("levels", np.arange(len(levels)), np.array(levels, object), levels)
        values = _grid(rows.columns[position], num_points)
        thresholds = _thresholds(model, position, of_draws) if model.trees_are == "hard" else None
        if thresholds is not None:
            inside = (values[0] < thresholds) & (thresholds < values[-1])
            ends = np.array([values[0], *thresholds[inside], values[-1]])
            if len(ends) <= num_points:
                return cls("steps", ends, midpoint(ends[:-1], ends[1:]))
        return cls("line", values, values)

    @property
    def are_upright(self) -> bool:
        """Whether levels are listed vertically."""
        return are_named_upright(self.ticks)

    def laid(self, places: Any, heights: Any) -> tuple[Any, Any]:
        """Order coordinates, or functions of an axis, as x and y."""
        return (heights, places) if self.are_upright else (places, heights)

    def name_axes(self, ax: "Axes", place: str, height: str) -> None:
        """Label the axes; the second line of the places' label is below it."""
        place, *held = place.split("\n")
        x, y = self.laid(place, height)
        name_axis(ax.xaxis, "\n".join([x, *held]))
        name_axis(ax.yaxis, y, 45)

    def extreme(self, mean: np.ndarray, most: int) -> np.ndarray:
        """Order the given number of levels by their means [g], those farthest from the median."""
        order = np.argsort(mean, kind="stable")
        distance = np.abs(mean - np.median(mean))[order]
        return order[np.sort(np.argsort(distance, kind="stable")[-most:])]

    def drawn(self, heights: np.ndarray) -> np.ndarray:
        """Repeat the last height [g] if it is drawn from end to end of an interval."""
        return np.append(heights, heights[-1:]) if self.kind == "steps" else heights

    def of_rows(self, values: np.ndarray) -> np.ndarray:
        """Return the places of rows [m] by their values; those of one level are side by side."""
        if self.kind in ("line", "steps"):
            return values
        index = {level: place for place, level in enumerate(self.ticks)} | {None: np.nan}
        # Multiples of the golden ratio fill an interval evenly and reproducibly.
        offset = np.arange(len(values)) * 0.618034 % 1 - 0.5
        places = np.array([index.get(value, np.nan) for value in values])
        return places + 0.5 * _LEVEL_WIDTH * offset


def are_named_upright(levels: Sequence[str]) -> bool:
    """Return whether levels are listed vertically: many, or with wide names."""
    return len(levels) > LEVELS_SHOWN or _letters(levels) > _MOST_LETTERS


def _letters(levels: Sequence[str]) -> int:
    """Count the letters of names side by side."""
    return sum(len(shortened(level)) + 2 for level in levels)


def _thresholds(model: Any, position: int, of_draws: bool) -> np.ndarray | None:
    """Return thresholds of hard trees' rules on a column, in ascending order; None if unknown.

    Boxes use the cuts of the design. Rules of a chart cut between the values in a node, and
    hyperplanes have no threshold of one column.
    """
    if len(getattr(model, "directions_", ())):
        return None
    design, feature = (
        model.design_,
        model.schema_.features.index(model.schema_.columns[position].name),
    )
    if of_draws or model.exact_ is None:
        trees = model.posterior_.ranked.trees
        return np.unique(trees.threshold[trees.feature == feature])
    if getattr(model, "method_", "") != "boxes":
        return None
    start = int(design.offset[feature])
    return design.cut_threshold[start + 1 : start + int(design.num_codes[feature])]


def _grid(values: np.ndarray, num_points: int) -> np.ndarray:
    """Return points over the range of a numeric column."""
    values = values[~np.isnan(values)]
    low, high = (values.min(), values.max()) if len(values) else (0.0, 0.0)
    if low == high:
        low, high = low - 0.5, high + 0.5
    return np.linspace(low, high, num_points)


def draw_mean(
    ax: "Axes", places: Places, mean: np.ndarray, *, colour: str = ACCENT, **style: Any
) -> None:
    """Draw means [g] as a line, or as a stroke for each level."""
    from matplotlib.ticker import MaxNLocator

    style = {"color": colour, "zorder": 4, **style}
    if places.kind == "levels":
        half = _LEVEL_WIDTH / 2
        draw, _ = places.laid(ax.hlines, ax.vlines)
        draw(mean, places.x - half, places.x + half, **style)
        set_ticks, _ = places.laid(ax.set_xticks, ax.set_yticks)
        is_slanted = not places.are_upright and _letters(places.ticks) > room_of(ax.xaxis)
        slant = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"} if is_slanted else {}
        names = [shortened(name, 15 if is_slanted else 25) for name in places.ticks]
        set_ticks(places.x, names, parse_math=False, **slant)
        return
    ax.plot(places.x, places.drawn(mean), drawstyle=_DRAW_STYLES.get(places.kind), **style)
    ax.margins(x=0.01)
    if places.kind == "ranks":
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))


def draw_bands(
    ax: "Axes",
    places: Places,
    bands: Mapping[float, np.ndarray],
    labels: Mapping[float, str],
    *,
    colour: str = ACCENT,
    gid: str = "band",
    **options: Any,
) -> None:
    """Draw bands [g, 2] by level, lighter with the level and the narrower ones on top."""
    for level, share in zip(bands, np.linspace(0.5, 0.2, len(bands)), strict=True):
        low, high = bands[level].T
        style = {
            "color": tint(share, colour),
            "linewidth": 0,
            "label": labels[level],
            "zorder": 3 - level,
            "gid": f"{gid}-{level:g}",
            **options,
        }
        if places.kind == "levels":
            draw, _ = places.laid(ax.bar, ax.barh)
            for bar in draw(places.x, high - low, _LEVEL_WIDTH, low, **style):
                bar.sticky_edges.x.clear()  # else the axis hides the lowest one
                bar.sticky_edges.y.clear()
        else:
            step: Any = _DRAW_STYLES.get(places.kind, "").removeprefix("steps-") or None
            ax.fill_between(places.x, places.drawn(low), places.drawn(high), step=step, **style)


def legend_above(ax: "Axes") -> None:
    """Add a legend, bands first, in room made for it above the data."""
    handles, labels = ax.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda index: ("band" not in labels[index], index))
    rows = -(-len(order) // 2)
    height = ax.bbox.height * 72 / ax.figure.dpi  # points
    share = min(rows * 15 / height, 0.5)
    low, high = ax.get_ylim()
    # Unlike new limits this lets the axes grow with later additions.
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


def check_levels(levels: Sequence[float]) -> list[float]:
    """Sort probabilities of bands.

    Raises
    ------
    ValueError
        If there is none, or one is not between 0 and 1.
    """
    levels = sorted({float(level) for level in np.atleast_1d(levels)})
    if not levels or not 0 < levels[0] <= levels[-1] < 1:
        raise ValueError(f"levels must be probabilities between 0 and 1; got {levels}.")
    return levels


def percent(share: float) -> str:
    """Write a share as a percentage.

    Examples
    --------
    >>> percent(0.9), percent(1 / 3)
    ('90 %', '33.3 %')
    """
    return f"{100 * share:.3g} %"
