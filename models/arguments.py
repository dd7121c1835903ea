"""Checks of arguments that several modules share."""

from typing import Any

import numpy as np

__all__ = ["require_integer"]


def require_integer(name: str, value: Any, least: float = 1, or_none: str = "") -> None:
    """Raise ValueError unless an argument is an integer that is not too small.

    Examples
    --------
    >>> require_integer("draws", 0)
    Traceback (most recent call last):
    ValueError: draws must be an integer of at least 1; got 0.
    """
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}{or_none}; got {value!r}.")
