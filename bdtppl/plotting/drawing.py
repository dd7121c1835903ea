"""Draw one tree on given axes: branches, rules at the splits, a row of leaves, a legend."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bdtppl.models.hard.tree import Tree
from bdtppl.plotting.colours import INK, LINE
from bdtppl.plotting.layout import FONT_SIZE, LINE_SPACING, Layout
from bdtppl.plotting.leaves import ClassPanels, PlainLeaves, RealPanels

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LEAF_WIDTH = 0.84  # share of the distance between two leaves
_WIDEST_LEAF = 72.0  # points
_LEAST_PITCH = 52.0  # points between leaves, if the figure may grow
_LEAST_WIDTH = 270.0  # points
_WIDEST_FIGURE = 30 * 72.0  # points
_LEAF_LINES = 2.6  # lines of text below a leaf, with their distance
_WRAPS = (20, 14, 10)  # characters
_OUTLINE_POINTS = 72.0  # an inch
_ROUNDING_POINTS = 1.0  # points that prevent rounding from making a figure too small for its text


@dataclass(frozen=True, eq=False)
class TreeDrawing:
    """A single tree with everything to draw of it; k slots.

    Attributes
    ----------
    tree
        The tree, without batch axes.
    rules
        Condition in each slot that is a split, [k].
    yes_is_left
        bool [k]; whether rows that satisfy it go left.
    leaf_text
        What to print below each slot that is a leaf, [k].
    leaves
        The distributions at the leaves.
    """

    tree: Tree
    rules: Sequence[str]
    yes_is_left: np.ndarray
    leaf_text: Sequence[str]
    leaves: ClassPanels | PlainLeaves | RealPanels

    def size(self) -> tuple[float, float]:
        """Return the width and height in points at which text has its usual size."""
        layout, leaves = self._layout(_WRAPS[0]), self.leaves
        pitch = max(_LEAST_PITCH, layout.pitch(FONT_SIZE))
        width = pitch * len(layout.leaves) + leaves.margin + _ROUNDING_POINTS
        width = float(np.clip(width, _LEAST_WIDTH, _WIDEST_FIGURE))
        height = layout.num_levels * layout.level_height(FONT_SIZE)
        height += self._end_height(layout, width, FONT_SIZE)
        return width, height + leaves.usual_height - leaves.height(FONT_SIZE) + _ROUNDING_POINTS

    def draw(self, ax: "Axes", *, has_legend: bool) -> None:
        """Draw the tree so that it fills the axes."""
        leaves = self.leaves
        points = _OUTLINE_POINTS / ax.figure.dpi
        width, height = ax.bbox.width * points, ax.bbox.height * points
        layout, font_size = self._fit(width, height)
        line = LINE_SPACING * font_size
        num_leaves = len(layout.leaves)

        # A few leaves are centred, no farther apart than still looks like one tree.
        room = width - leaves.margin
        pitch = min(room / num_leaves, max(2 * _WIDEST_LEAF, layout.pitch(font_size)))
        spare = room / pitch - num_leaves
        left, right = -0.5 - spare / 2, num_leaves - 0.5 + spare / 2
        ax.set(xlim=(left - leaves.margin / pitch, right), ylim=(0, height))
        ax.set_axis_off()

        bottom = leaves.legend_height(width, font_size) + _LEAF_LINES * line
        level_height = layout.level_height(font_size)
        top = height - (layout.num_lines(0) / 2 + 0.6) * line
        spare = top - bottom - layout.num_levels * level_height
        leaf_height = min(max(leaves.height(font_size), spare), leaves.usual_height)
        level_height = (top - bottom - leaf_height) / max(layout.num_levels, 1)
        y = top - layout.depth * level_height
        y[layout.leaves] = bottom + leaf_height

        _draw_branches(ax, layout, y, font_size, self.yes_is_left)
        _draw_splits(ax, layout, y, font_size)
        half_width = min(_LEAF_WIDTH, _WIDEST_LEAF / pitch) / 2
        x = layout.x[layout.leaves]
        leaves.draw(ax, layout.leaves, x, half_width, bottom, leaf_height, font_size)
        _draw_leaf_text(ax, layout, bottom, font_size)
        if has_legend:
            leaves.legend(ax, width, font_size)

    def _layout(self, wrap_at: int) -> Layout:
        return Layout.of(self.tree, self.rules, self.leaf_text, wrap_at=wrap_at)

    def _end_height(self, layout: Layout, width: float, font_size: float) -> float:
        """Return the points above the root and below the lowest level of splits."""
        lines = layout.num_lines(0) / 2 + 0.6 + _LEAF_LINES
        return (
            lines * LINE_SPACING * font_size
            + self.leaves.height(font_size)
            + self.leaves.legend_height(width, font_size)
        )

    def _fit(self, width: float, height: float) -> tuple[Layout, float]:
        """Choose the wrapping of the rules that allows the largest font, and that font."""
        best, best_size = self._layout(_WRAPS[0]), 0.0
        for wrap_at in _WRAPS:
            layout = self._layout(wrap_at)
            size = layout.font_size(
                width - self.leaves.margin,
                height,
                lambda size, layout=layout: self._end_height(layout, width, size),
            )
            if size > best_size:
                best, best_size = layout, size
        return best, best_size


def _draw_branches(
    ax: "Axes", layout: Layout, y: np.ndarray, font_size: float, yes_is_left: np.ndarray
) -> None:
    """Draw the lines from each split to its children, labelled yes and no."""
    tree, line = layout.tree, LINE_SPACING * font_size
    for slot in layout.splits:
        turn = y[slot] - (layout.num_lines(slot) / 2 + 0.9) * line
        answers = ("yes", "no") if yes_is_left[slot] else ("no", "yes")
        children = int(tree.left[slot]), int(tree.right[slot])
        for child, answer in zip(children, answers, strict=True):
            ax.plot(
                [layout.x[slot], layout.x[slot], layout.x[child], layout.x[child]],
                [y[slot], turn, turn, y[child]],
                color=LINE,
                linewidth=font_size / FONT_SIZE,
                solid_joinstyle="round",
                zorder=1,
                gid=f"branch-{slot}-{child}",
            )
            ax.text(
                layout.x[child],
                turn - 0.75 * line,
                answer,
                ha="center",
                va="center",
                fontsize=0.9 * font_size,
                color=LINE,
                bbox={"facecolor": ax.get_facecolor(), "edgecolor": "none", "pad": 0.8},
                zorder=2,
                gid=f"answer-{child}",
            )


def _draw_splits(ax: "Axes", layout: Layout, y: np.ndarray, font_size: float) -> None:
    for slot in layout.splits:
        ax.text(
            layout.x[slot],
            y[slot],
            layout.labels[slot],
            ha="center",
            va="center",
            fontsize=font_size,
            linespacing=LINE_SPACING,
            color=INK,
            parse_math=False,
            bbox={
                "boxstyle": "round,pad=0.4",
                "facecolor": "white",
                "edgecolor": LINE,
                "linewidth": 0.8 * font_size / FONT_SIZE,
            },
            zorder=3,
            gid=f"split-{slot}",
        )


def _draw_leaf_text(ax: "Axes", layout: Layout, bottom: float, font_size: float) -> None:
    for slot, text in zip(layout.leaves, layout.leaf_text, strict=True):
        # Each line separately, since a text of two lines would be aligned by its taller letters.
        for index, line in enumerate(text.split("\n")):
            ax.text(
                layout.x[slot],
                bottom - (1.2 + index * LINE_SPACING) * font_size,
                line,
                ha="center",
                va="baseline",
                fontsize=font_size,
                color=INK,
                parse_math=False,
                gid=f"leaf-{slot}-line-{index}",
            )
