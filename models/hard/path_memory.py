"""A node's memory of the splits above it.

Each fact of the path is a bit of one word: whether a box is still whole, whether a feature was
used, the depth of the node. A set bit forbids rules, and splits clear bits, so the same few
operations implement every constraint on paths.
"""

from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from bdtppl.models.data.design import midpoint

MOST_BITS = 64


class PathMemory(NamedTuple):
    """Tables of the rules that a memory forbids and of its changes by splits; B boxes, d features.

    A memory is a uint64. Its first B bits mark boxes that are whole in the node, later ones
    features that were not split on yet, and the last ones, of which at most one is set, the depth.
    A table contains arrays of either NumPy or JAX.

    Attributes
    ----------
    low, high
        float64 [B, d]; closed intervals of the boxes.
    forbids
        uint64 [d]; bits any of which forbids all rules on the feature.
    clears
        uint64 [d]; bits that a split on the feature clears.
    levels
        uint64; the bits of depth. A split shifts the set bit up, and out after the last.
    start
        uint64; memory of the root.
    by_low, by_high
        int [B, d]; boxes by their low ends, and from the greatest high end down.

    Examples
    --------
    >>> import numpy as np
    >>> from bdtppl.models.constraints import Constraints, KeepTogether
    >>> memory = Constraints(keep_together=(KeepTogether({"x": (2, 5)}),)).path_memory(("x", "z"))
    >>> memory.allows(memory.start, np.array([0, 0, 0, 1]), np.array([2.0, 2.5, 5.5, 0.0]))
    array([ True, False,  True, False])
    """

    low: Any
    high: Any
    forbids: Any
    clears: Any
    levels: Any
    start: Any
    by_low: Any
    by_high: Any

    def gap_threshold(
        self, memory: Any, feature: Any, low: Any, high: Any, xp: ModuleType = np
    ) -> Any:
        """Return thresholds of gaps in nodes, float64 [...], at which a cut spares every whole box.

        It is the gap's middle if that cuts no box. Otherwise it is the middle of the nearest part
        of the gap that boxes leave free, or the gap's middle again if there is none.

        Parameters
        ----------
        memory, feature
            Memories of the nodes, and features.
        low, high
            float64 [...]; the values on the two sides of the gap.
        xp
            Array namespace, `numpy` or `jax.numpy`.
        """
        middle = midpoint(low, high, xp)
        down = up = middle
        # A cut at a box's low end spares it, and so does one above its high end. In order of
        # falling high ends, no passed box is cut again on the way down; in order of rising low
        # ends, on the way up.
        for is_whole, start, end in self._each_box(memory, feature, self.by_high):
            down = xp.where(is_whole & (start < down) & (down <= end), start, down)
        is_cut = down < middle
        for is_whole, start, end in self._each_box(memory, feature, self.by_low):
            up = xp.where(is_whole & (start <= up) & (up < end), end, up)
        bottom, top = low, high
        for is_whole, start, end in self._each_box(memory, feature, self.by_low):
            bottom = xp.where(is_whole & (end < down), xp.maximum(bottom, end), bottom)
            top = xp.where(is_whole & (start > up), xp.minimum(top, start), top)
        below, above = midpoint(bottom, down, xp), midpoint(up, top, xp)
        is_below = (down > low) & ((up >= high) | (middle - down <= up - middle))
        spared = xp.where(is_below, below, xp.where(up < high, above, middle))
        return xp.where(is_cut, spared, middle)

    def allows(self, memory: Any, feature: Any, threshold: Any) -> Any:
        """Return whether nodes may split on features at thresholds, bool [...]."""
        is_cut = self._boxes(feature, lambda low, high: (low < threshold) & (threshold <= high))
        return (memory & (self.forbids[feature] | is_cut)) == 0

    def children(self, memory: Any, feature: Any, threshold: Any) -> tuple[Any, Any]:
        """Return memories of the left and right children, uint64 [...] each."""
        kept = memory & ~(self.clears[feature] | self.levels)
        kept = kept | (((memory & self.levels) << 1) & self.levels)
        not_left = self._boxes(feature, lambda low, high: high >= threshold)
        not_right = self._boxes(feature, lambda low, high: low < threshold)
        return kept & ~not_left, kept & ~not_right

    def _each_box(self, memory: Any, feature: Any, order: Any) -> Any:
        """Yield whether boxes are whole, and their intervals of the feature, in an order."""
        for place in range(len(order)):
            box = order[place][feature]
            is_whole = memory >> box.astype(np.uint64) & np.uint64(1) > 0
            yield is_whole, self.low[box, feature], self.high[box, feature]

    def _boxes(self, feature: Any, is_one: Any) -> Any:
        """Return bits of the boxes whose interval of the feature passes a test."""
        bits = np.uint64(0)
        for box in range(len(self.low)):
            passes = is_one(self.low[box][feature], self.high[box][feature])
            bits = bits | (passes.astype(np.uint64) << box)
        return bits
