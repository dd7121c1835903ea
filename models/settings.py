"""Declared settings: dataclass fields with their range and a sentence of help.

Settings of inferences and parameters of estimators are declared alike. The fields define the check
of a user's values and its error; for estimators, also a section of the docstring and the options of
``bdtppl fit``.
"""

import dataclasses
import types
from collections.abc import Iterator
from typing import Any, NamedTuple, Union, get_args, get_origin

import numpy as np

from bdtppl.models.arguments import require_choice, require_integer

_KEY = "bdtppl"


class Declared(NamedTuple):
    """Declared attributes of a parameter.

    Attributes
    ----------
    help
        One sentence, or several; the command line shows the first.
    least, above, below, most
        Range of a number: at least, above, below, at most.
    option
        Type of the option of ``bdtppl fit``; None for that of the field, False for no option.
    is_last
        Whether the parameter is listed after those without this mark.
    is_of_run
        Whether another value makes another run, which cannot resume a checkpoint.
    is_saved
        Whether a saved model has it.
    """

    help: str = ""
    least: float = -np.inf
    above: float = -np.inf
    below: float = np.inf
    most: float = np.inf
    option: Any = None
    is_last: bool = False
    is_of_run: bool = True
    is_saved: bool = True


def parameter(default: Any, help: str = "", **declaration: Any) -> Any:
    """Declare a parameter; see `Declared` for its attributes.

    Examples
    --------
    >>> @dataclasses.dataclass
    ... class Sampler:
    ...     draws: int = parameter(250, "Draws of each chain.", least=1)
    >>> check_parameters(Sampler(draws=0))
    Traceback (most recent call last):
    ValueError: draws must be an integer of at least 1; got 0.
    """
    return dataclasses.field(default=default, metadata={_KEY: Declared(help, **declaration)})


def declared_fields(cls: Any) -> Iterator[tuple[dataclasses.Field, Declared]]:
    """Yield the parameters of a class, in the order in which they are listed."""
    own = [field for field in dataclasses.fields(cls) if _KEY in field.metadata]
    for field in sorted(own, key=lambda field: field.metadata[_KEY].is_last):
        yield field, field.metadata[_KEY]


def check_parameters(settings: Any) -> None:
    """Reject values that the declarations exclude.

    Raises
    ------
    ValueError
        If a value is not of the declared kind or out of its range.
    """
    for field, said in declared_fields(settings):
        value = getattr(settings, field.name)
        kinds = kinds_of(field.type)
        if value is None and type(None) in kinds:
            continue
        choices = [choice for kind in kinds for choice in get_args(kind)]
        own = [kind for kind in kinds if kind is not type(None) and not get_args(kind)]
        if not own and choices:
            require_choice(field.name, value, choices)
        if value in choices if isinstance(value, str) else not own:
            continue
        others = "".join(f" or {choice!r}" for choice in choices)
        others += " or None" if type(None) in kinds else ""
        if own == [bool]:
            require_boolean(field.name, value)
        elif own == [int]:
            require_integer(field.name, value, said.least, others)
        elif own == [float]:
            _require_number(field.name, value, said, others)


def require_boolean(name: str, value: Any) -> None:
    """Raise ValueError unless a parameter is True or False."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name} must be True or False; got {value!r}.")


def _require_number(name: str, value: Any, said: Declared, or_none: str) -> None:
    is_number = isinstance(value, float | int | np.number) and not isinstance(value, bool)
    is_in = is_number and said.least <= value <= said.most and said.above < value < said.below
    if not is_in or not np.isfinite(value):
        if max(said.above, said.least) > -np.inf and min(said.below, said.most) < np.inf:
            first = f"[{said.least:g}" if said.least > said.above else f"({said.above:g}"
            last = f"{said.most:g}]" if said.most < said.below else f"{said.below:g})"
            wanted = f"a number in {first}, {last}"
        elif said.above == 0:
            wanted = "a positive number"
        else:
            wanted = f"a number of at least {said.least:g}"
        raise ValueError(f"{name} must be {wanted}{or_none}; got {value!r}.")


def kinds_of(annotation: Any) -> list[Any]:
    """Split a union type into its alternatives."""
    if get_origin(annotation) in (Union, types.UnionType):
        return [kind for part in get_args(annotation) for kind in kinds_of(part)]
    return [annotation]
