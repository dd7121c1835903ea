"""Which cases of a test belong to the fast run."""

from collections.abc import Container, Iterable

import pytest


def slow_but(fast: Container, cases: Iterable) -> list:
    """Return the cases of a parametrised test, all but the fast ones marked slow."""
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=() if case in fast else pytest.mark.slow,
        )
        for case in cases
    ]
