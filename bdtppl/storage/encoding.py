"""Encode values as JSON, and decode them exactly.

The parts of a fitted model besides its large arrays (numbers, names, labels, priors, leaf families,
constraints) are written with JSON types alone. Numbers, text and lists are written as they are;
everything else is an object with a "name", and is rebuilt only if that name is in a fixed table.
Floats are written with the shortest digits that give the same float again.
"""

import math
import os
from dataclasses import fields
from importlib import import_module
from typing import Any

import numpy as np

from bdtppl.models.constraints import Constraints, KeepTogether
from bdtppl.models.data.schema import Schema
from bdtppl.models.data.target_scale import TargetScale
from bdtppl.models.hard.additive import AdditivePrior
from bdtppl.models.hard.rule_laws import CutTable
from bdtppl.models.hard.tree import Tree
from bdtppl.models.registry import LEAF_FAMILIES, TREE_PRIORS
from bdtppl.models.soft.topology import TopologyPrior
from bdtppl.models.soft.tree import SoftClassification, SoftRegression

_ENCODED_CLASSES = {
    part.__name__: part
    for part in (
        AdditivePrior,
        Constraints,
        CutTable,
        KeepTogether,
        SoftClassification,
        SoftRegression,
        TargetScale,
        TopologyPrior,
        Tree,
    )
}
# Names from modules that are slow to import, by module.
_ELSEWHERE = {
    "GrammarSettings": "bdtppl.inference.gflownet.grammar_training",
    "PolicySettings": "bdtppl.inference.gflownet.training",
}
_REGISTRIES = (LEAF_FAMILIES, TREE_PRIORS)
_MOST_BYTES = 1 << 26  # bytes of an array that is written with JSON types
_ARRAY_KINDS = "biufUO"  # booleans, integers, floats, text, and labels of mixed kinds


def encode(value: Any, what: str) -> Any:
    """Write a value with JSON types.

    Parameters
    ----------
    value
        None, a number, text, a path (which comes back as text), an array of these (or what NumPy
        makes one of), a list, tuple, range (which comes back as a list) or dictionary, a `Schema`,
        or one of bdtppl's own priors, leaf families, constraints and settings.
    what
        Name of the value in an error.

    Raises
    ------
    ValueError
        If the value, or a part of it, is of another type.

    Examples
    --------
    >>> from bdtppl.models.priors import LeafPenalty
    >>> encode(LeafPenalty(0.1), "prior")
    {'name': 'LeafPenalty', 'log_phi': 0.1, 'rules': 'gaps'}
    >>> decode(encode((1, float("inf")), "limits"))
    (1, inf)
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str | os.PathLike):
        return str(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        number = float(value)
        return number if math.isfinite(number) else {"name": "float", "value": repr(number)}
    if isinstance(value, np.bool_ | np.integer):
        return value.item()
    if hasattr(value, "__array__"):
        return _encode_array(np.asarray(value), what)
    if isinstance(value, list | range):
        return [encode(item, what) for item in value]
    if isinstance(value, tuple):
        return {"name": "tuple", "items": [encode(item, what) for item in value]}
    if isinstance(value, dict):
        pairs = [[encode(key, what), encode(item, what)] for key, item in value.items()]
        return {"name": "dict", "items": pairs}
    if isinstance(value, Schema):
        return {"name": "Schema", "columns": value.to_json()}
    name = type(value).__name__
    if _class_named(name) is type(value) or _ELSEWHERE.get(name) == type(value).__module__:
        parameters = {
            field.name: encode(getattr(value, field.name), f"{what}.{field.name}")
            for field in fields(value)
        }
        return {"name": name, **parameters}
    if callable(value):
        raise ValueError(
            f"{what} cannot be saved: it is a function, and loading a model executes nothing. To "
            "save it, fit with a prior and constraints of numbers and words alone; a function of a "
            "rule's feature and threshold alone is saved as numbers (rules='cuts')."
        )
    raise ValueError(
        f"{what} cannot be saved: it is a {type(value).__module__}.{type(value).__qualname__}, and "
        f"only numbers, text, arrays and bdtppl's own priors, leaf families and constraints can be."
    )


def decode(value: Any) -> Any:
    """Rebuild a value that `encode` wrote.

    Raises
    ------
    ValueError, TypeError, KeyError
        If `encode` cannot have written it.
    """
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    match value["name"]:
        case "float":
            return float(value["value"])
        case "array":
            return _decode_array(value)
        case "tuple":
            return tuple(decode(item) for item in value["items"])
        case "dict":
            return {decode(key): decode(item) for key, item in value["items"]}
        case "Schema":
            return Schema.from_json(value["columns"])
        case name if _class_named(name) is not None:
            part: Any = _class_named(name)
        case name if name in _ELSEWHERE:
            part = getattr(import_module(_ELSEWHERE[name]), name)
        case name:
            raise ValueError(
                f"{name!r} is not known to this version of bdtppl; if it is your own class, import "
                "the module that defines it first"
            )
    given = {k: decode(item) for k, item in value.items() if k != "name"}
    if value["name"] == "PolicySettings" and given.get("balance") == "trajectory":
        del given["balance"]  # a field of older files
    return part(**given)


def _class_named(name: str) -> type | None:
    """Return a class of bdtppl or a registered one; None if no class has that name."""
    parts = [table[name] for table in (_ENCODED_CLASSES, *_REGISTRIES) if name in table]
    return parts[0] if parts else None


def _encode_array(array: np.ndarray, what: str) -> dict:
    if array.dtype.kind not in _ARRAY_KINDS:
        raise ValueError(
            f"{what} cannot be saved: it is an array of {array.dtype}, and only arrays of numbers, "
            f"booleans and text can be."
        )
    return {
        "name": "array",
        "dtype": array.dtype.str,
        "shape": list(array.shape),
        "values": [encode(item, what) for item in array.ravel().tolist()],
    }


def _decode_array(value: dict) -> Any:
    dtype = np.dtype(value["dtype"])
    if dtype.kind not in _ARRAY_KINDS:
        raise ValueError(f"arrays of {dtype} are not supported")
    if dtype.itemsize * len(value["values"]) > _MOST_BYTES:
        raise ValueError(f"an array of {dtype} is larger than {_MOST_BYTES:,} bytes")
    flat = np.empty(len(value["values"]), dtype)
    for i, item in enumerate(value["values"]):
        flat[i] = decode(item)
    array = flat.reshape(value["shape"])
    # An integer alone is not a JSON array: such an array had no axis.
    return array if dtype.kind in "biu" else array[()]
