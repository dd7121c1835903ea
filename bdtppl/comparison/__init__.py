"""Which model? Evidence, leave-one-out, stacking and cross-validation, side by side."""

from bdtppl.comparison.columns import Cell
from bdtppl.comparison.table import LABELS, Comparison, compare

__all__ = ["LABELS", "Cell", "Comparison", "compare"]
