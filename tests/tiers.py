"""Which cases a test has, and which of them belong to the fast run."""

from collections.abc import Collection, Iterable
from itertools import cycle
from random import Random

import pytest


def few_of(cases: Iterable, number: int) -> list:
    """Take some cases of all combinations of settings, the same ones each time."""
    cases = list(cases)
    return [cases[place] for place in sorted(Random(0).sample(range(len(cases)), number))]


def slow_but(fast: Collection, cases: Iterable, few: int | None = None) -> list:
    """Return the cases of a parametrised test, all but the fast ones marked slow.

    With ``few``, only so many slow ones are returned.
    """
    cases = list(cases)
    if len(list(fast)) > len(cases) and all(case in fast for case in cases):
        raise ValueError("No case is slow: the fast ones come first, then all of them.")
    if few is not None:
        slow = few_of([case for case in cases if case not in fast], few)
        cases = [case for case in cases if case in fast or case in slow]
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
