"""Checks of arguments that several modules share."""

from collections.abc import Collection
from typing import Any

import numpy as np


def require_choice(name: str, value: Any, known: Collection[str]) -> None:
    """Raise ValueError unless an argument is one of a few words.

    Examples
    --------
    >>> require_choice("rules", "cut", ("gaps", "cuts"))
    Traceback (most recent call last):
    ValueError: rules must be 'gaps' or 'cuts'; got 'cut'.
    """
    if value not in known:
        raise ValueError(f"{name} must be {' or '.join(map(repr, known))}; got {value!r}.")


def require_integer(name: str, value: Any, least: float = 1, or_none: str = "") -> None:
    """Raise ValueError unless an argument is an integer that is large enough.

    Examples
    --------
    >>> require_integer("draws", 0)
    Traceback (most recent call last):
    ValueError: draws must be an integer of at least 1; got 0.
    """
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
        at_least = f" of at least {least}" if least > -np.inf else ""
        raise ValueError(f"{name} must be an integer{at_least}{or_none}; got {value!r}.")
