"""Summaries of draws."""

from typing import Any, NamedTuple

import numpy as np

from bdtppl.estimators.parameters import require_level


class PosteriorSummary(NamedTuple):
    """Posterior of numbers: their mean, and the ends of a central interval.

    Attributes
    ----------
    mean, low, high
        Numbers, or float64 [m, ...].
    """

    mean: Any
    low: Any
    high: Any

    @classmethod
    def of(cls, draws: np.ndarray, level: float) -> "PosteriorSummary":
        """Summarise draws [chain, draw, ...]."""
        require_level(level)
        ends = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2], axis=(0, 1))
        numbers = draws.mean(axis=(0, 1)), *ends
        return cls(*map(float, numbers)) if draws.ndim == 2 else cls(*numbers)
