"""A node's memory of the splits above it.

Whether a box is still whole, whether a feature was used, how deep the node lies: each is a bit of
one word. A bit that is set stands for something that forbids rules, and splits clear bits, so the
same few operations serve every constraint that looks at the path.
"""

from typing import Any, NamedTuple

import numpy as np

__all__ = ["MOST_BITS", "PathMemory"]

MOST_BITS = 64


class PathMemory(NamedTuple):
    """Tables that say which rules a memory forbids and how a split changes it; B boxes, d features.

    A memory is a uint64. Its first B bits say which boxes lie in the node whole, later ones which
    features were not split on yet, and the last ones, of which at most one is set, the depth.
    Arrays of NumPy and of JAX are both understood; a table holds one kind.

    Attributes
    ----------
    low, high
        float64 [B, d]; closed intervals of the boxes.
    forbids
        uint64 [d]; bits any of which forbids all rules on the feature.
    clears
        uint64 [d]; bits that a split on the feature clears.
    levels
        uint64; the bits of depth. A split moves the one that is set on, and out at the last.
    start
        uint64; memory of the root.

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

    def allows(self, memory: Any, feature: Any, threshold: Any) -> Any:
        """Whether nodes may split on features at thresholds, bool [...]."""
        is_cut = self._boxes(feature, lambda low, high: (low < threshold) & (threshold <= high))
        return (memory & (self.forbids[feature] | is_cut)) == 0

    def children(self, memory: Any, feature: Any, threshold: Any) -> tuple[Any, Any]:
        """Memories of the left and right children, uint64 [...] each."""
        kept = memory & ~(self.clears[feature] | self.levels)
        kept = kept | (((memory & self.levels) << 1) & self.levels)
        not_left = self._boxes(feature, lambda low, high: high >= threshold)
        not_right = self._boxes(feature, lambda low, high: low < threshold)
        return kept & ~not_left, kept & ~not_right

    def _boxes(self, feature: Any, is_one: Any) -> Any:
        """Bits of the boxes whose interval of the feature passes a test."""
        bits = np.uint64(0)
        for box in range(len(self.low)):
            passes = is_one(self.low[box][feature], self.high[box][feature])
            bits = bits | (passes.astype(np.uint64) << box)
        return bits
