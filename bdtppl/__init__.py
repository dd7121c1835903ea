"""Bayesian decision trees: one model, many inferences, checked against the exact posterior.

The package has three layers, and imports only go down: ``bdtppl`` (estimators, results, figures,
files) rests on ``bdtppl.inference`` (algorithms for posteriors), which rests on ``bdtppl.models``
(priors, leaves and trees). This module imports public names at their first use, so that ``import
bdtppl`` is fast.
"""

import ast
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

if find_spec("bdtppl.models") is None:
    raise ImportError(
        "bdtppl was imported from its source folder, where its parts `models` and `inference` are "
        "beside it and not inside it: start Python from another folder, or install the checkout in "
        "editable mode with `python -m pip install --editable .`."
    )

_STUB = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
DEFINED_IN = {
    alias.name: node.module or ""
    for node in _STUB.body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
}
"""Module of each public name; a submodule of the package itself stands under ``bdtppl``."""

__all__ = sorted(DEFINED_IN)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in DEFINED_IN:
        raise AttributeError(f"module 'bdtppl' has no attribute {name!r}")
    if DEFINED_IN[name] == __name__:
        return import_module(f"{__name__}.{name}")
    value = globals()[name] = getattr(import_module(DEFINED_IN[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
