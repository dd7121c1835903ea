"""Frozen dataclasses that are JAX pytrees: parameters are leaves, settings are static."""

import dataclasses
import sys
from collections.abc import Callable
from typing import Any, TypeVar, dataclass_transform

import jax
import numpy as np
from jax.tree_util import Partial

Cls = TypeVar("Cls")

# A parameter: a plain number, an array, or a tracer of one.
Number = float | np.ndarray | jax.Array
Array = np.ndarray | jax.Array


def setting(**options) -> Any:
    """Declare a dataclass field that is part of the structure, not a number to trace."""
    return dataclasses.field(metadata={"static": True}, **options)


@dataclass_transform(frozen_default=True, field_specifiers=(setting,))
def pytree_dataclass(cls: type[Cls]) -> type[Cls]:
    """Make a frozen dataclass a pytree; fields made by `setting` are static.

    `jax.tree_util.register_dataclass` is unsuitable: it makes the structures of two classes equal
    if their settings are (jaxlib 0.10), and with a probability of about one in a hundred a cache
    then uses for one class the code compiled for the other.
    """
    cls = dataclasses.dataclass(frozen=True)(cls)
    fields = dataclasses.fields(cls)  # pyright: ignore[reportArgumentType]
    static = [f.name for f in fields if f.metadata.get("static")]
    numbers = [f.name for f in fields if f.name not in static]
    keys = [jax.tree_util.GetAttrKey(name) for name in numbers]

    def flatten(value: Cls) -> tuple[list, tuple]:
        return [getattr(value, name) for name in numbers], tuple(
            getattr(value, name) for name in static
        )

    def flatten_with_keys(value: Cls) -> tuple[list, tuple]:
        children, settings = flatten(value)
        return list(zip(keys, children, strict=True)), settings

    def unflatten(settings: tuple, children: Any) -> Cls:
        named = zip([*numbers, *static], [*children, *settings], strict=True)
        return cls(**dict(named))

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    return cls


def as_partial(function: Callable) -> Partial:
    """Make a function a pytree, if it is not one, so that compiled code accepts it."""
    # A nested Partial would hide the data of the inner one.
    return function if isinstance(function, Partial) else Partial(function)


def require(condition, message: str, *values) -> None:
    """Raise unless a condition on concrete numbers holds.

    Raises
    ------
    TypeError
        If a value is text or a list and not a number or an array.
    ValueError
        If the condition does not hold, with the message.

    Nothing is checked inside a trace, or when JAX rebuilds a pytree from placeholders.
    """
    for value in values:
        if isinstance(value, str | list | tuple):
            wanted = message.format(repr(value))
            raise TypeError(f"{wanted} A number or a NumPy array is needed.")
        if isinstance(value, int) and abs(value) > sys.float_info.max:
            raise ValueError(message.format(f"an integer of {value.bit_length()} bits"))
    if all(isinstance(value, int | float | np.number | np.ndarray) for value in values):
        if not np.all(condition(*values)):
            raise ValueError(message.format(*values))


def describe_kind(value: Any) -> str:
    """Name the type of a value, or the class if one was given instead of an object."""
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


def enter(registry: dict[str, Any], cls: type) -> None:
    """Register a class under its name, unless another one has that name.

    A class that is defined again, such as by a notebook cell that runs twice, replaces the former.
    """
    known = registry.get(cls.__name__, cls)
    if (known.__module__, known.__qualname__) == (cls.__module__, cls.__qualname__):
        registry[cls.__name__] = cls
