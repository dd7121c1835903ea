"""Panels with a leaf's distribution in figures of trees: one class for each kind of target.

Each class draws one row of leaves at the foot of a tree and computes the space it needs.
Coordinates are those of `bdtppl.plotting.layout`: leaves along x, points along y.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from bdtppl.models.wording import number
from bdtppl.plotting.axes import shortened, write_out_ticks
from bdtppl.plotting.colours import ACCENT, FAINT, INK, LINE, class_style
from bdtppl.plotting.layout import text_width


@dataclass(frozen=True)
class PlainLeaves:
    """Leaves without known distributions: empty boxes, without a legend."""

    margin = 0.0  # points needed left of the leaves
    usual_height = 12.0  # points that the row of leaves uses if there is room

    def height(self, font_size: float) -> float:
        """Return points that the row of leaves needs."""
        return 1.2 * font_size

    def draw(self, ax, slots, x, half_width, bottom, height, font_size) -> None:
        """Draw a box for each leaf."""
        from matplotlib.patches import Rectangle

        for slot, centre in zip(slots, x, strict=True):
            box = Rectangle(
                (centre - half_width, bottom),
                2 * half_width,
                height,
                facecolor=FAINT,
                edgecolor=INK,
                linewidth=0.08 * font_size,
                gid=f"leaf-{slot}",
            )
            ax.add_patch(box)

    def legend_height(self, width: float, font_size: float) -> float:
        """Return 0."""
        return 0.0

    def legend(self, ax, width: float, font_size: float) -> None:
        """Draw nothing."""


@dataclass(frozen=True, eq=False)
class ClassPanels:
    """Leaves of a classification tree: bars of predictive class probabilities.

    Attributes
    ----------
    probability
        float64 [k, c]; predictive probability of each class in each slot.
    names
        Names of the classes, [c].
    """

    probability: np.ndarray
    names: Sequence[str]

    margin = 0.0  # points needed left of the leaves
    usual_height = 12.0  # points that the row of leaves uses if there is room

    def text(self, slot: int) -> str:
        """Return the most probable class, shortened; the legend has the full name."""
        return shortened(self.names[int(self.probability[slot].argmax())])

    def height(self, font_size: float) -> float:
        """Return points that the row of leaves needs."""
        return 1.2 * font_size

    def draw(self, ax, slots, x, half_width, bottom, height, font_size) -> None:
        """Draw a bar of probabilities for each leaf."""
        from matplotlib.patches import Rectangle

        for slot, centre in zip(slots, x, strict=True):
            edges = np.concatenate([[0.0], np.cumsum(self.probability[slot])])
            starts = centre - half_width + 2 * half_width * edges
            for index, (start, stop) in enumerate(pairwise(starts)):
                bar = Rectangle(
                    (start, bottom),
                    stop - start,
                    height,
                    linewidth=0,
                    gid=f"leaf-{slot}-class-{index}",
                    **class_style(index),
                )
                ax.add_patch(bar)
            frame = Rectangle(
                (centre - half_width, bottom),
                2 * half_width,
                height,
                facecolor="none",
                edgecolor=INK,
                linewidth=0.08 * font_size,
                gid=f"leaf-{slot}",
            )
            ax.add_patch(frame)

    def legend_columns(self, width: float, font_size: float) -> int:
        """Return entries of the legend that fit side by side in a width in points."""
        entry = max(text_width(name, font_size) for name in self.names) + 4 * font_size
        return int(np.clip(width // entry, 1, len(self.names)))

    def legend_height(self, width: float, font_size: float) -> float:
        """Return points that the legend needs in a figure of a width in points."""
        rows = -(-len(self.names) // self.legend_columns(width, font_size))
        return (1.6 * rows + 0.8) * font_size

    def legend(self, ax, width: float, font_size: float) -> None:
        """Draw the legend of colours at the foot of the axes."""
        from matplotlib.patches import Patch

        # The names are set afterwards because a legend omits those that begin with "_".
        legend = ax.legend(
            handles=[Patch(**class_style(index)) for index in range(len(self.names))],
            labels=[str(index) for index in range(len(self.names))],
            loc="lower center",
            ncols=self.legend_columns(width, font_size),
            fontsize=font_size,
            frameon=False,
            borderaxespad=0.0,
            borderpad=0.2,
            handlelength=1.4,
            columnspacing=1.4,
        )
        for entry, name in zip(legend.get_texts(), self.names, strict=True):
            entry.set(text=name, parse_math=False, color=INK)


@dataclass(frozen=True, eq=False)
class RealPanels:
    """Leaves of a regression tree: predictive means and intervals on one scale.

    Attributes
    ----------
    mean
        float64 [k]; predictive mean in each slot, in units of y.
    interval
        float64 [k, 2]; equal-tailed predictive interval.
    level
        Probability of the interval.
    limits
        Least and greatest value of the scale.
    """

    mean: np.ndarray
    interval: np.ndarray
    level: float
    limits: tuple[float, float]

    margin = 44.0  # points needed left of the leaves
    usual_height = 90.0  # points that the row of leaves uses if there is room

    def text(self, slot: int) -> str:
        """Write the mean with decimals to suit the scale."""
        decimals = max(0, 2 - int(np.floor(np.log10(self.limits[1] - self.limits[0]))))
        mean = self.mean[slot]
        return number(mean) if decimals == 0 or decimals > 6 else f"{mean:.{decimals}f}"

    def height(self, font_size: float) -> float:
        """Return points that the row of leaves needs."""
        return 6 * font_size

    def draw(self, ax, slots, x, half_width, bottom, height, font_size) -> None:
        """Draw an interval and a mean for each leaf, in separate axes inside the given ones."""
        from matplotlib.patches import Rectangle

        start, right = -0.5, ax.get_xlim()[1]
        inset = ax.inset_axes([start, bottom, right - start, height], transform=ax.transData)
        inset.set(xlim=(start, right), ylim=self.limits, xticks=[], facecolor="none")
        inset.grid(axis="y", color=FAINT, linewidth=0.6)
        inset.set_axisbelow(True)
        inset.tick_params(axis="y", labelsize=0.9 * font_size, colors=INK, length=2, color=LINE)
        inset.locator_params(axis="y", nbins=4)
        write_out_ticks(inset)
        inset.spines[["top", "right", "bottom"]].set_visible(False)
        inset.spines["left"].set_color(LINE)
        for slot, centre in zip(slots, x, strict=True):
            low, high = self.interval[slot]
            bar = Rectangle(
                (centre - half_width / 2, low),
                half_width,
                high - low,
                facecolor=ACCENT,
                alpha=0.35,
                linewidth=0,
                gid=f"leaf-{slot}",
            )
            inset.add_patch(bar)
            inset.plot(
                [centre - half_width / 2, centre + half_width / 2],
                [self.mean[slot]] * 2,
                color=ACCENT,
                linewidth=font_size / 4.5,
                solid_capstyle="butt",
                gid=f"leaf-{slot}-mean",
            )

    def legend_height(self, width: float, font_size: float) -> float:
        """Return points that the legend needs in a figure of a width in points."""
        return 2.4 * font_size

    def legend(self, ax, width: float, font_size: float) -> None:
        """Explain the bars at the foot of the axes."""
        from matplotlib.lines import Line2D
        from matplotlib.patches import Patch

        ax.legend(
            handles=[
                Line2D([], [], color=ACCENT, linewidth=2, label="predictive mean"),
                Patch(
                    facecolor=ACCENT,
                    alpha=0.35,
                    label=f"{100 * self.level:g} % predictive interval",
                ),
            ],
            loc="lower center",
            ncols=2,
            fontsize=font_size,
            labelcolor=INK,
            frameon=False,
            borderaxespad=0.0,
            borderpad=0.2,
            handlelength=1.4,
        )
