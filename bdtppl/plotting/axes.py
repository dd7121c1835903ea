"""Axes in the style of this package: little ink, a faint grid, no frame."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from bdtppl.plotting.colours import FAINT, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LETTERS = {"x": 12, "y": 15}  # letters of a label per inch of axes, which includes margins
_LARGE = 1e4  # number from which tick labels need much room
_TICKS_OF_THEM = 1.3  # an inch


def prepared(
    ax: "Axes | None",
    *,
    size: tuple[float, float] = (6.4, 4.0),
    grid: Literal["x", "y", "both"] = "y",
) -> "Axes":
    """Prepare the axes that a user gives, or those of a new figure.

    Parameters
    ----------
    ax
        Axes, or None for new ones.
    size
        Width and height of a new figure in inches.
    grid
        Axis whose ticks have faint lines.

    Examples
    --------
    >>> prepared(None, size=(3.0, 2.0)).figure.get_size_inches().tolist()
    [3.0, 2.0]
    """
    if ax is None:
        import matplotlib.pyplot as plt

        _, ax = plt.subplots(figsize=size, layout="constrained")
    write_out_ticks(ax)
    ax.grid(axis=grid, color=FAINT, linewidth=0.8)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def write_out_ticks(ax: "Axes") -> None:
    """Write ticks such as 1,200,000 in full, not as multiples of a separate power."""
    from matplotlib.ticker import AutoLocator, ScalarFormatter

    class Written(ScalarFormatter):
        def format_ticks(self, values: Any) -> list[str]:
            largest = max(map(abs, values), default=0)
            if not _LARGE <= largest < 1e9 or any(round(value, 3) % 1 for value in values):
                return super().format_ticks(values)
            self.set_locs([])  # no power, and no offset
            return [f"{value:,.0f}".replace("-", "\N{MINUS SIGN}") for value in values]

    class Spaced(AutoLocator):
        def tick_values(self, vmin: float, vmax: float) -> Any:
            is_wide = max(abs(vmin), abs(vmax)) >= _LARGE
            bins: Any = max(2, int(_TICKS_OF_THEM * _inches(self.axis))) if is_wide else "auto"
            self.set_params(nbins=bins)
            return super().tick_values(vmin, vmax)

    for axis in (ax.xaxis, ax.yaxis):
        if type(axis.get_major_formatter()) is ScalarFormatter:
            axis.set_major_formatter(Written())
    if type(ax.xaxis.get_major_locator()) is AutoLocator:
        ax.xaxis.set_major_locator(Spaced())


def _inches(axis: Any) -> float:
    box = axis.axes.bbox
    return (box.width if axis.axis_name == "x" else box.height) / axis.axes.figure.dpi


def name_axis(axis: Any, text: str, most: int = 50) -> None:
    """Label an axis, truncated to the available room; further lines are not truncated."""
    text, *below = text.split("\n")
    text = shortened(text, min(most, room_of(axis)))
    axis.set_label_text("\n".join([text, *below]), parse_math=False)


def room_of(axis: Any) -> int:
    """Return the number of letters that fit along an axis."""
    return int(_LETTERS[axis.axis_name] * _inches(axis))


def name_entries(ax: "Axes", handles: Sequence[Any], names: Sequence[str], **options: Any) -> None:
    """Draw a legend with all names, and without markup."""
    # A legend omits names that begin with "_", so they are set afterwards.
    places = [str(place) for place in range(len(names))]
    legend = ax.legend(handles, places, frameon=False, **options)
    for text, name in zip(legend.get_texts(), names, strict=True):
        text.set(text=shortened(name), parse_math=False, color=INK)


def shortened(text: Any, most: int = 25) -> str:
    """Truncate a name that would crowd the figure.

    Examples
    --------
    >>> shortened("age"), shortened("age of the mother", 8)
    ('age', 'age of …')
    """
    text = str(text)
    return text if len(text) <= most else f"{text[: most - 1]}…"
