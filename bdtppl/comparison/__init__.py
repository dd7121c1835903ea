"""Which model? Evidence, leave-one-out, stacking and cross-validation, side by side."""

from bdtppl.comparison.columns import Cell
from bdtppl.comparison.side_by_side import LABELS, Comparison, compare

__all__ = ["LABELS", "Cell", "Comparison", "compare"]
