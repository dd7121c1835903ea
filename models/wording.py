"""Numbers and lists for sentences."""

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from bdtppl.models.pytrees import Number

_NAMES_SHOWN = 8
_SHOWN_NUMBERS = 12  # numbers shown of a prior or a leaf family
_MOST_WRITTEN_OUT = 1e15  # thresholds from which an exponent is written


def number(value: Number) -> str:
    """Write a number with four digits, or with all digits before the point if there are more.

    Examples
    --------
    >>> number(2.0), number(1 / 3), number(123456.7), number(1e12)
    ('2', '0.3333', '123,457', '1e+12')
    """
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e9 else f"{float(value):.4g}"


def counted(count: int, one: str, many: str) -> str:
    """Write a number of things.

    Examples
    --------
    >>> counted(1, "leaf", "leaves"), counted(1200, "leaf", "leaves")
    ('1 leaf', '1,200 leaves')
    """
    return f"{count:,} {one if count == 1 else many}"


def listed(names: Sequence[Any], most: int = _NAMES_SHOWN) -> str:
    """Join names for a sentence, and count those beyond a limit.

    Examples
    --------
    >>> listed(["a", "b", "c"]), listed("abcd", 2)
    ('a, b and c', 'a, b and 2 more')
    """
    names = [str(name) for name in names]
    shown = names[:most] + ([f"{len(names) - most} more"] if len(names) > most else [])
    return " and ".join(filter(None, [", ".join(shown[:-1]), shown[-1]]))


def rows(count: Number) -> str:
    """Write a number of rows, which need not be whole."""
    return f"{number(count)} row{'' if count == 1 else 's'}"


def threshold_text(threshold: float, around: tuple[float, float] | None = None) -> str:
    """Write a threshold with the fewest digits, at least six, that separate values as it does.

    Parameters
    ----------
    threshold
        The threshold.
    around
        The greatest value below it and the least one at or above it; None if they are not known, so
        that the threshold itself is written.

    Examples
    --------
    >>> threshold_text(1 / 3, (0.3, 0.4)), threshold_text(1 / 3)
    ('0.333333', '0.3333333333333333')
    >>> threshold_text(1_700_000_095, (1_700_000_090, 1_700_000_100))
    '1700000100'
    """
    low, high = around or (np.nextafter(threshold, -np.inf), threshold)
    texts = (f"{threshold:.{digits}g}" for digits in range(6, 18))
    text = next((text for text in texts if low < float(text) <= high), str(threshold))
    is_long = "e+" in text and abs(threshold) < _MOST_WRITTEN_OUT
    return f"{float(text):.0f}" if is_long else text


def describe_model(model: Any) -> str:
    """Name a prior or leaf family with its hyperparameters, and with the chosen settings."""
    parts = []
    for f in fields(model):
        value = getattr(model, f.name)
        if not f.repr:
            continue
        if not f.metadata.get("static"):
            numbers = [f"{v:.5g}" for v in np.ravel(value)]
            parts.append(f"{f.name}={numbers[0] if np.ndim(value) == 0 else _joined(numbers)}")
        elif isinstance(value, str | int) and f.default not in (None, value):  # None: by the data
            parts.append(f"{f.name}={value!r}")
        elif isinstance(value, tuple):
            parts.append(f"{f.name}={_joined([f'{v:.5g}' for v in value])}")
        elif is_dataclass(value):
            parts.append(f"{f.name}={describe_model(value)}")
        elif callable(value):
            parts.append(f"{f.name}={function_name(value)}")
    return f"{type(model).__name__}({', '.join(parts)})"


def function_name(function: Any) -> str:
    """Name a function."""
    return getattr(function, "__name__", "function")


def _joined(numbers: list[str]) -> str:
    more = ["..."] if len(numbers) > _SHOWN_NUMBERS else []
    return f"[{', '.join(numbers[:_SHOWN_NUMBERS] + more)}]"
