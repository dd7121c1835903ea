"""Which cases a test has, and which of them belong to the fast run."""

from collections.abc import Collection, Iterable
from itertools import cycle

import pytest


def slow_but(fast: Collection, cases: Iterable) -> list:
    """Return the cases of a parametrised test, all but the fast ones marked slow."""
    cases = list(cases)
    if len(list(fast)) > len(cases) and all(case in fast for case in cases):
        raise ValueError("No case is slow: the fast ones come first, then all of them.")
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=() if case in fast else pytest.mark.slow,
        )
        for case in cases
    ]


def in_turn(kinds: Iterable[str]) -> list[str]:
    """Name the regressor of the first kind of tree, the classifier of the second, and so on.

    For tests of what the two share, which fit each to a table of their own.
    """
    return [kind + task for kind, task in zip(kinds, cycle(("Regressor", "Classifier")))]
