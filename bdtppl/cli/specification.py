"""Priors and leaf families as written on the command line, ``name`` or ``name:key=value,...``.

The text is parsed, never evaluated: names are looked up in fixed tables, and values are numbers or
one of a setting's words.
"""

import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields
from typing import Any

import numpy as np

from bdtppl.models.edit_tree import EditTree
from bdtppl.models.leaf import LEAF_FAMILIES, Leaf
from bdtppl.models.prior_kinds import TreePrior
from bdtppl.models.registry import writable_priors
from bdtppl.prior_files import read_tree, written_settings


def kebab_case(name: str) -> str:
    """Write the name of a class in kebab case, as on the command line.

    Examples
    --------
    >>> kebab_case("DepthDecay")
    'depth-decay'
    """
    return re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower()


def _priors() -> dict[str, Any]:
    """Return priors by their names on the command line."""
    return {kebab_case(name): prior for name, prior in writable_priors().items()}


def _leaf_choices(task: str) -> dict[str, type[Leaf]]:
    """Return the leaf families of a task by their names on the command line."""
    return {kebab_case(name): f for name, f in LEAF_FAMILIES.items() if f.task == task}


def parse_prior(text: str) -> TreePrior:
    """Read a tree prior.

    Raises
    ------
    ValueError
        If the name or a key is not known, or the prior does not accept a value.

    Examples
    --------
    >>> parse_prior("depth-decay:alpha=0.9,cut_weights=gap")
    DepthDecay(alpha=0.9, beta=1.0, cut_weights='gap', rules='gaps', ...)
    """
    known = {name: written_settings(prior) for name, prior in _priors().items()}
    name, values = _parse(text, known, "--prior")
    if (prior := _priors()[name]) is EditTree:
        try:
            values |= read_tree(values.get("tree"))
        except (ValueError, OSError) as error:
            raise ValueError(f"--prior: tree: {error}") from None
    return _make_of("--prior", prior, **values)


def make_leaf(text: str | None, task: str, y: np.ndarray) -> Leaf | None:
    """Read a leaf family for targets [n]; None, for the default, if no text is given.

    Raises
    ------
    ValueError
        If the name or a key is not known or not valid for the task, or a value is out of range.

    Examples
    --------
    >>> make_leaf("dirichlet-categorical:concentration=0.5", "classification", np.array([0, 1]))
    DirichletCategorical(concentration=array([0.5, 0.5]))
    """
    if text is None:
        return None
    families = _leaf_choices(task)
    known = {name: dict.fromkeys(f.parameter_support, float) for name, f in families.items()}
    name, values = _parse(text, known, f"--leaf (for {task})")
    return _make_of("--leaf", families[name].of_targets, y, **values)


def prior_forms() -> str:
    """List the priors with their settings and defaults, for a help text."""
    forms = []
    for name, prior in _priors().items():
        defaults = {f.name: f.default for f in fields(prior)}
        numbers = [key for key, kind in written_settings(prior).items() if kind is not str]
        numbers = ", ".join(f"{key}={defaults[key]}" for key in numbers)
        forms.append(
            f"{name}:tree=PATH[, {numbers}]" if prior is EditTree else f"{name}[:{numbers}]"
        )
    return ", ".join(forms)


def leaf_forms() -> str:
    """List the leaf families with their settings, for a help text."""
    families = _leaf_choices("classification") | _leaf_choices("regression")
    return "; ".join(
        f"{name}, with {', '.join(family.parameter_support)}" for name, family in families.items()
    )


def _make_of(option: str, make: Callable, *arguments: Any, **values: Any) -> Any:
    try:
        return make(*arguments, **values)
    except ValueError as error:
        raise ValueError(f"{option}: {error}") from None


def _parse(
    text: str, known: Mapping[str, Mapping[str, type]], option: str
) -> tuple[str, dict[str, Any]]:
    name, _, arguments = text.partition(":")
    if name not in known:
        raise ValueError(f"{option}: {name!r} is not known; use one of {', '.join(known)}.")
    values: dict[str, Any] = {}
    for argument in arguments.split(",") if arguments else ():
        key, is_given, value = (part.strip() for part in argument.partition("="))
        key = key.replace("-", "_")
        if key not in known[name]:
            raise ValueError(
                f"{option}: {name} has no {key!r}; it has {', '.join(known[name])}, written "
                f"{name}:{next(iter(known[name]))}=..."
            )
        if not is_given or key in values:
            fault = "is given twice" if is_given else "lacks its value"
            raise ValueError(f"{option}: {key} {fault}; write {name}:{key}=...")
        values[key] = _read_text(value, known[name][key], f"{option}: {key}")
    return name, values


def _read_text(text: str, kind: type, what: str) -> Any:
    with suppress(ValueError):
        if kind is str or math.isfinite(kind(text)):
            return kind(text)
    raise ValueError(
        f"{what} must be a {'whole' if kind is int else 'finite'} number; got {text!r}."
    )
