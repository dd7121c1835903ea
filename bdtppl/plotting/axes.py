"""Axes as the figures of this package have them: little ink, a faint grid, no frame."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from bdtppl.plotting.colours import FAINT, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["name_entries", "prepared", "shortened"]


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
    ax.grid(axis=grid, color=FAINT, linewidth=0.8)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def name_entries(ax: "Axes", handles: Sequence[Any], names: Sequence[str], **options: Any) -> None:
    """Draw a legend whose names stand as they are: no markup, and none is left out."""
    # A legend leaves out names that begin with "_", so they are set afterwards.
    places = [str(place) for place in range(len(names))]
    legend = ax.legend(handles, places, frameon=False, **options)
    for text, name in zip(legend.get_texts(), names, strict=True):
        text.set(text=shortened(name), parse_math=False, color=INK)


def shortened(text: Any, most: int = 25) -> str:
    """Cut a name short that would take the room of the figure.

    Examples
    --------
    >>> shortened("age"), shortened("age of the mother", 8)
    ('age', 'age of …')
    """
    text = str(text)
    return text if len(text) <= most else f"{text[: most - 1]}…"
