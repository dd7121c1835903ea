"""The positions of a tree's nodes on the page, and the size of its text.

The horizontal unit is one leaf: leaves are evenly spaced from left to right and a parent is above
the middle of its children. The vertical unit is a typographic point. All leaves are in one row at
the foot of the figure, so that their distributions can be compared.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bdtppl.models.hard.tree import Tree

FONT_SIZE = 9.0  # points; text is smaller only if necessary
LINE_SPACING = 1.25  # of the font size
_SMALLEST_FONT = 1.0
_HINTING = 1.08  # letters on a screen are whole pixels wide, so a line may be longer there


@dataclass(frozen=True, eq=False)
class Layout:
    """A single tree laid out; k slots.

    Attributes
    ----------
    tree
        The tree, without batch axes.
    x
        float64 [k]; leaf units: leaves are at 0, 1, ... from left to right.
    depth
        int32 [k]; splits above each slot.
    leaves
        Slots of the leaves from left to right.
    labels
        What to print at each slot that is a split, wrapped into lines; empty at leaves.
    leaf_text
        What to print below each leaf, in the order of ``leaves``.
    """

    tree: Tree
    x: np.ndarray
    depth: np.ndarray
    leaves: list[int]
    labels: list[str]
    leaf_text: list[str]

    @classmethod
    def of(
        cls, tree: Tree, labels: Sequence[str], leaf_text: Sequence[str], *, wrap_at: int = 20
    ) -> "Layout":
        """Lay out a tree.

        Parameters
        ----------
        tree
            One tree.
        labels
            Text of each slot that is a split, [k].
        leaf_text
            Text of each slot that is a leaf, [k].
        wrap_at
            Characters after which the text of a split is wrapped.
        """
        leaves = _leaf_slots(tree)
        x = np.full(tree.capacity, np.nan)
        x[leaves] = np.arange(len(leaves))
        for slot in reversed(range(int(tree.num_nodes))):
            if tree.feature[slot] >= 0:
                x[slot] = (x[tree.left[slot]] + x[tree.right[slot]]) / 2
        return cls(
            tree,
            x,
            tree.node_depth,
            leaves,
            [wrap(label, wrap_at) for label in labels],
            [leaf_text[slot] for slot in leaves],
        )

    @property
    def splits(self) -> list[int]:
        """Slots of the splits."""
        return np.flatnonzero(self.tree.feature >= 0).tolist()

    @property
    def num_levels(self) -> int:
        """Levels of splits."""
        return int(self.tree.depth)

    def num_lines(self, slot: int) -> int:
        """Count the text lines at a split."""
        return self.labels[slot].count("\n") + 1

    def level_height(self, font_size: float) -> float:
        """Return points from one level of splits to the next."""
        lines = max((self.num_lines(slot) for slot in self.splits), default=0)
        return (lines + 3.2) * LINE_SPACING * font_size

    def pitch(self, font_size: float) -> float:
        """Least distance of two leaves, in points, without overlap of text or lines."""
        return font_size * self._unit_pitch

    @cached_property
    def _unit_pitch(self) -> float:
        gap = 1.0
        half = {slot: text_width(self.labels[slot], 1.0) / 2 for slot in self.splits}
        needed = [text_width(text, 1.0) + gap for text in self.leaf_text]
        for slot in self.splits:
            # Boxes stay inside the figure, which starts half a leaf before the first one.
            inside = min(self.x[slot], len(self.leaves) - 1 - self.x[slot]) + 0.5
            needed.append((half[slot] + gap) / inside)
            for other in self.splits:
                if other > slot and self.depth[other] == self.depth[slot]:
                    distance = abs(self.x[other] - self.x[slot])
                    needed.append((half[slot] + half[other] + 2 * gap) / distance)
            for leaf in self.leaves:
                if self.depth[leaf] <= self.depth[slot]:  # its line runs down past this level
                    needed.append((half[slot] + gap) / abs(self.x[leaf] - self.x[slot]))
        return max(needed)

    def font_size(
        self, width: float, height: float, foot_height: Callable[[float], float]
    ) -> float:
        """Largest font, at most the usual one, at which the tree fits.

        Parameters
        ----------
        width, height
            Available points.
        foot_height
            Points below the lowest level of splits as a function of the font size.
        """
        size = FONT_SIZE
        while size > _SMALLEST_FONT and (
            self.pitch(size) * len(self.leaves) > width
            or self.num_levels * self.level_height(size) + foot_height(size) > height
        ):
            size *= 0.97
        return size


def _leaf_slots(tree: Tree) -> list[int]:
    """List the slots of one tree's leaves from left to right."""
    slots, stack = [], [0]
    while stack:
        slot = stack.pop()
        if tree.feature[slot] < 0:
            slots.append(slot)
        else:
            stack += [int(tree.right[slot]), int(tree.left[slot])]
    return slots


def wrap(text: str, width: int) -> str:
    """Break a text into lines, after spaces, underscores and slashes if possible.

    A comparison is not separated from its number.

    Examples
    --------
    >>> print(wrap("mean_concavity_of_the_worst_nuclei >= 0.25", 20))
    mean_concavity_of_
    the_worst_nuclei
    >= 0.25
    """
    lines = [""]
    for part in re.findall(r"[<>]=? \S+ ?|[^ _/]*[ _/]?", text):
        while len(lines[-1]) + len(part.rstrip()) > width:
            if lines[-1]:
                lines.append("")
            elif " " in part.strip():  # a comparison with a long number
                break
            else:
                lines[-1:] = [part[:width], ""]
                part = part[width:]
        lines[-1] += part
    return "\n".join(line.strip() for line in lines if line.strip())


def text_width(text: str, font_size: float) -> float:
    """Return the longest line width of a text in points, in the default font."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(size=font_size)
    return _HINTING * max(
        text_to_path.get_text_width_height_descent(line or " ", font, ismath=False)[0]
        for line in text.split("\n")
    )
