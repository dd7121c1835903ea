"""Parameters of estimators: self-describing fields (`bdtppl.models.settings`).

They generate the Parameters section of an estimator's docstring and the options of ``bdtppl fit``.
"""

import dataclasses
import inspect
import textwrap
from typing import Any, Literal, TypeVar, dataclass_transform, get_args, get_origin

import numpy as np

from bdtppl.models.settings import declared_fields, kinds_of, parameter

__all__ = [
    "declared",
    "first_sentence",
    "made_of",
    "nested_parameters",
    "parameter",
    "parameters_section",
    "require_level",
    "with_parameter",
]

AnyClass = TypeVar("AnyClass")


@dataclass_transform(kw_only_default=True, eq_default=False, field_specifiers=(parameter,))
def declared(cls: type[AnyClass]) -> type[AnyClass]:
    """Make a class of parameters a keyword-only dataclass, like scikit-learn's estimators."""
    return dataclasses.dataclass(kw_only=True, eq=False, repr=False)(cls)


def made_of(estimator: Any, cls: type[AnyClass], **more: Any) -> AnyClass:
    """Make a dataclass from the parameters of its names, and from more or other values."""
    own = {field.name for field, _ in declared_fields(estimator)}
    fields = dataclasses.fields(cls)  # pyright: ignore[reportArgumentType]
    shared = {each.name: getattr(estimator, each.name) for each in fields if each.name in own}
    return cls(**(shared | more))


def require_level(level: Any) -> None:
    """Raise ValueError unless the level of an interval or a set is a probability."""
    if not isinstance(level, float | int | np.number) or not 0 < level < 1:
        raise ValueError(f"level must be in (0, 1); got {level!r}.")


def nested_parameters(name: str, value: Any) -> dict[str, Any]:
    """List the fields of a parameter that is a dataclass, such as a prior, as ``name__field``."""
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
        has = f"has the parameters {', '.join(known)}" if known else "has no parameters: pass one"
        raise ValueError(f"{name}__{field} cannot be set: {name} is {value!r}, which {has}.")
    if rest:
        new = with_parameter(f"{name}__{field}", getattr(value, field), rest, new)
    return dataclasses.replace(value, **{field: new})


def parameters_section(cls: type) -> str:
    """Write the Parameters section of an estimator's docstring."""
    lines = ["Parameters", "----------"]
    for field, said in declared_fields(cls):
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
    """Return the first sentence of a help text, without reStructuredText markup."""
    sentence = text.split(". ")[0].rstrip(".") + "."
    return inspect.cleandoc(sentence).replace("``", "").replace("`", "")
