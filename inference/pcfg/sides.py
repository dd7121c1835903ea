"""The side of a production for each row.

With ``rules="gaps"`` a production is one rule, at the middle of its gap. With ``rules="cuts"`` it
represents all cuts inside the gap, unless each cut is a separate production. Training rows are
outside the gap, but a new row may be between its cuts, and then goes left under some of them.
"""

from typing import Any, NamedTuple

import numpy as np

from bdtppl.inference.pcfg.grammar import Grammar


class Sides(NamedTuple):
    """Sides of rows at productions; arrays [E + 1].

    The last entry represents no production, -1: no feature (-1), no threshold (NaN).

    Attributes
    ----------
    feature
        int32; feature of the production.
    threshold
        float64; values below it go left. Not used if ``num_cuts`` is given.
    missing_left
        bool; side of missing values.
    low
        int32; code at the gap's lower side.
    num_cuts
        int32; cuts in the gap, or None if every production is one rule.
    """

    feature: Any
    threshold: Any
    missing_left: Any
    low: Any
    num_cuts: Any

    @classmethod
    def of(cls, grammar: Grammar) -> "Sides":
        """Tabulate the productions of a grammar, as NumPy arrays."""
        design, feature = grammar.design, grammar.feature
        no_side = np.zeros(len(feature), bool)
        is_shared = grammar.rules == "cuts" and grammar.cut is None
        return cls(
            feature=np.append(feature, np.int32(-1)),
            threshold=np.append(grammar.threshold_in_gap, np.nan),
            missing_left=np.append(
                no_side if grammar.missing_left is None else grammar.missing_left, False
            ),
            low=np.append(grammar.low - design.offset[feature], np.int32(0)),
            num_cuts=np.append(grammar.num_cuts, np.int32(1)) if is_shared else None,
        )

    @property
    def least(self) -> np.ndarray:
        """Return the least code that each production sends left, int32; -1 for missing values."""
        return -self.missing_left.astype(np.int32)

    def rule_threshold(self, design: Any, production: np.ndarray, place: np.ndarray) -> np.ndarray:
        """Return the threshold of one rule of each production, float64 [...].

        Parameters
        ----------
        design
            The design.
        production
            int [...]; productions.
        place
            float [...] in [0, 1); picks one cut of the gap. Ignored if a production is one rule.
        """
        if self.num_cuts is None:
            return self.threshold.take(production)
        cut = np.floor(place * self.num_cuts[production]).astype(np.int64)
        feature, low = self.feature[production], self.low[production]
        threshold = design.cut_threshold.take(design.offset[feature] + low + 1 + cut, mode="clip")
        return np.where(production >= 0, threshold, np.nan)
