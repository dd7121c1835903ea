"""Priors and leaf families as written on the command line, ``name`` or ``name:key=value,...``.

The text is parsed, never evaluated: names stand in fixed tables, and values are numbers or one of a
setting's words.
"""

import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from bdtppl.models.leaves import DirichletCategorical, Leaf, NormalInverseGamma
from bdtppl.models.priors import TreePrior
from bdtppl.prior_files import PRIORS, written_settings

__all__ = ["make_leaf", "parse_prior"]

_PRIORS = {re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower(): kind for name, kind in PRIORS.items()}
_LEAVES = {
    "classification": {"dirichlet-categorical": {"concentration": float}},
    "regression": {
        "normal-inverse-gamma": dict.fromkeys(("mean", "pseudo_count", "shape", "scale"), float)
    },
}


def parse_prior(text: str) -> TreePrior:
    """Read a tree prior.

    Raises
    ------
    ValueError
        If the name or a key is not known, or a value is not one that the prior takes.

    Examples
    --------
    >>> parse_prior("depth-decay:alpha=0.9,cut_weights=gap")
    DepthDecay(alpha=0.9, beta=1.0, cut_weights='gap', rules='gaps', ...)
    """
    known = {name: written_settings(prior) for name, prior in _PRIORS.items()}
    name, values = _parse(text, known, "--prior")
    return _make("--prior", _PRIORS[name], **values)


def make_leaf(text: str | None, task: str, y: np.ndarray) -> Leaf | None:
    """Read a leaf family for targets [n]; None, for the default, where no text is given.

    Raises
    ------
    ValueError
        If the name or a key is not known or not one for the task, or a value is out of range.

    Examples
    --------
    >>> make_leaf("dirichlet-categorical:concentration=0.5", "classification", np.array([0, 1]))
    DirichletCategorical(concentration=array([0.5, 0.5]))
    """
    if text is None:
        return None
    name, values = _parse(text, _LEAVES[task], f"--leaf (for {task})")
    if name == "dirichlet-categorical":
        return _make("--leaf", DirichletCategorical.symmetric, len(np.unique(y)), **values)
    return _make("--leaf", replace, NormalInverseGamma.from_targets(y), **values)


def _make(option: str, make: Callable, *arguments: Any, **values: Any) -> Any:
    try:
        return make(*arguments, **values)
    except ValueError as error:
        raise ValueError(f"{option}: {error}") from None


def _parse(
    text: str, known: Mapping[str, Mapping[str, type]], option: str
) -> tuple[str, dict[str, Any]]:
    name, _, arguments = text.partition(":")
    if name not in known:
        raise ValueError(f"{option}: {name!r} is not known; it may be {_listed(known)}.")
    values: dict[str, Any] = {}
    for argument in arguments.split(",") if arguments else ():
        key, is_given, value = (part.strip() for part in argument.partition("="))
        key = key.replace("-", "_")
        if key not in known[name]:
            raise ValueError(
                f"{option}: {name} has no {key!r}; it has {_listed(known[name])}, written "
                f"{name}:{next(iter(known[name]))}=..."
            )
        if not is_given or key in values:
            fault = "is given twice" if is_given else "lacks its value"
            raise ValueError(f"{option}: {key} {fault}; write {name}:{key}=...")
        values[key] = _read(value, known[name][key], f"{option}: {key}")
    return name, values


def _read(text: str, kind: type, what: str) -> Any:
    with suppress(ValueError):
        if kind is str or math.isfinite(kind(text)):
            return kind(text)
    raise ValueError(
        f"{what} must be a {'whole' if kind is int else 'finite'} number; got {text!r}."
    )


def _listed(names: Any) -> str:
    return ", ".join(names)
