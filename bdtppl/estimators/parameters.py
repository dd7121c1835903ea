"""Parameters of estimators, declared once.

A parameter is a dataclass field that carries its type, its default, a sentence of help and, where
it has one, a range. The fields of an estimator give the check of a user's values and its error, the
section Parameters of the docstring, and the options of ``bdtppl fit``.
"""

import dataclasses
import inspect
import textwrap
import types
from collections.abc import Iterator
from typing import (
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
)

import numpy as np

from bdtppl.models.arguments import require_integer

__all__ = [
    "Declared",
    "check_parameters",
    "declared",
    "estimator_parameters",
    "kinds_of",
    "first_sentence",
    "nested_parameters",
    "parameter",
    "parameters_section",
    "require_boolean",
    "require_level",
    "with_parameter",
]

DeclaredClass = TypeVar("DeclaredClass")

_KEY = "bdtppl"


class Declared(NamedTuple):
    """Facts of a parameter that its field declares.

    Attributes
    ----------
    help
        One sentence, or several; the command line shows the first.
    least, above, below
        Range of a number: at least, above, below.
    option
        Type of the option of ``bdtppl fit``; None for that of the field, False for no option.
    is_last
        Whether the parameter is listed after those that are not.
    is_of_run
        Whether another value makes another run, which a checkpoint does not go on with.
    is_saved
        Whether a saved model has it.
    """

    help: str
    least: float | None = None
    above: float | None = None
    below: float | None = None
    option: Any = None
    is_last: bool = False
    is_of_run: bool = True
    is_saved: bool = True


def parameter(default: Any, help: str, **declaration: Any) -> Any:
    """Declare a parameter; see `Declared` for what may be said of it.

    Examples
    --------
    >>> @declared
    ... class Sampler:
    ...     draws: int = parameter(250, "Draws of each chain.", least=1)
    >>> check_parameters(Sampler(draws=0))
    Traceback (most recent call last):
    ValueError: draws must be an integer of at least 1; got 0.
    """
    return dataclasses.field(default=default, metadata={_KEY: Declared(help, **declaration)})


@dataclass_transform(kw_only_default=True, eq_default=False, field_specifiers=(parameter,))
def declared(cls: type[DeclaredClass]) -> type[DeclaredClass]:
    """Make a class of parameters a dataclass of keywords, as scikit-learn's estimators are."""
    return dataclasses.dataclass(kw_only=True, eq=False, repr=False)(cls)


def estimator_parameters(cls: Any) -> Iterator[tuple[dataclasses.Field, Declared]]:
    """Go through the parameters of a class, in the order in which they are listed."""
    own = [field for field in dataclasses.fields(cls) if _KEY in field.metadata]
    for field in sorted(own, key=lambda field: field.metadata[_KEY].is_last):
        yield field, field.metadata[_KEY]


def check_parameters(estimator: Any) -> None:
    """Refuse values that the declarations rule out.

    Raises
    ------
    ValueError
        If a value is not of the declared kind or out of its range.
    """
    for field, said in estimator_parameters(estimator):
        value = getattr(estimator, field.name)
        kinds = kinds_of(field.type)
        if value is None and type(None) in kinds:
            continue
        choices = [choice for kind in kinds for choice in get_args(kind)]
        or_none = " or None" if type(None) in kinds else ""
        own = [kind for kind in kinds if kind is not type(None)]
        if own == [bool]:
            require_boolean(field.name, value)
        elif own == [int]:
            least = -np.inf if said.least is None else said.least
            require_integer(field.name, value, least, or_none)
        elif own == [float]:
            _require_number(field.name, value, said, or_none)
        elif choices and len(own) == 1 and not (isinstance(value, str) and value in choices):
            known = ", ".join(map(repr, choices))
            raise ValueError(f"{field.name} must be one of {known}; got {value!r}.")


def require_boolean(name: str, value: Any) -> None:
    """Raise ValueError unless a parameter is True or False."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name} must be True or False; got {value!r}.")


def require_level(level: Any) -> None:
    """Raise ValueError unless the level of an interval or a set is a probability."""
    if not isinstance(level, float | int | np.number) or not 0 < level < 1:
        raise ValueError(f"level must lie in (0, 1); got {level!r}.")


def _require_number(name: str, value: Any, said: Declared, or_none: str) -> None:
    least = -np.inf if said.least is None else said.least
    above = -np.inf if said.above is None else said.above
    below = np.inf if said.below is None else said.below
    is_number = isinstance(value, float | int | np.number) and not isinstance(value, bool)
    if not is_number or not (least <= value < np.inf and above < value < below):
        if said.below is not None:
            wanted = f"a number in ({said.above:g}, {said.below:g})"
        elif said.above == 0:
            wanted = "a positive number"
        else:
            wanted = f"a number of at least {said.least:g}"
        raise ValueError(f"{name} must be {wanted}{or_none}; got {value!r}.")


def kinds_of(annotation: Any) -> list[Any]:
    """Split a type into the alternatives that it is a union of."""
    if get_origin(annotation) in (Union, types.UnionType):
        return [kind for part in get_args(annotation) for kind in kinds_of(part)]
    return [annotation]


def nested_parameters(name: str, value: Any) -> dict[str, Any]:
    """List the fields of a parameter that is a dataclass, as a prior is, by ``name__field``."""
    if isinstance(value, type) or not dataclasses.is_dataclass(value):
        return {}
    found = {}
    for field in dataclasses.fields(value):
        inner = f"{name}__{field.name}"
        found[inner] = getattr(value, field.name)
        found |= nested_parameters(inner, found[inner])
    return found


def with_parameter(name: str, value: Any, path: str, new: Any) -> Any:
    """Copy a parameter that is a dataclass, with another value of the field at ``path``.

    Raises
    ------
    ValueError
        If it has no such field.
    """
    field, _, rest = path.partition("__")
    known = [each[len(name) + 2 :] for each in nested_parameters(name, value)]
    if field not in known:
        has = f"has the parameters {', '.join(known)}" if known else "has no parameters: give one"
        raise ValueError(f"{name}__{field} cannot be set: {name} is {value!r}, which {has}.")
    if rest:
        new = with_parameter(f"{name}__{field}", getattr(value, field), rest, new)
    return dataclasses.replace(value, **{field: new})


def parameters_section(cls: type) -> str:
    """Write the section Parameters of an estimator's docstring."""
    lines = ["Parameters", "----------"]
    for field, said in estimator_parameters(cls):
        kind = f" : {_kind_in_words(field.type)}, default {field.default!r}"
        lines += [
            f"{field.name}{kind}",
            *textwrap.wrap(
                said.help,
                92,
                initial_indent="    ",
                subsequent_indent="    ",
                break_long_words=False,
                break_on_hyphens=False,
            ),
        ]
    return "\n".join(lines)


def _kind_in_words(annotation: Any) -> str:
    names = []
    for kind in kinds_of(annotation):
        if kind is type(None):
            names.append("None")
        elif get_origin(kind) is Literal:
            names += map(repr, get_args(kind))
        elif kind is not Any:
            names.append(getattr(get_origin(kind) or kind, "__name__", str(kind)))
    if not names:
        return "object"
    return " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def first_sentence(text: str) -> str:
    """Take the first sentence of a help text, without the marks of reStructuredText."""
    sentence = text.split(". ")[0].rstrip(".") + "."
    return inspect.cleandoc(sentence).replace("``", "").replace("`", "")
