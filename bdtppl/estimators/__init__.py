"""Estimators in the manner of scikit-learn, one module for each inference."""

from functools import cache
from importlib import import_module
from typing import Any

from bdtppl import DEFINED_IN

__all__ = ["INFERENCES", "all_inferences", "estimator_class"]

INFERENCES: dict[str, dict[str, type]] = {}
"""Estimators by the name of their inference and the task, which the decorator `estimator` enters.

They are here, below all estimators, so that a module which looks one up does not import them all.
"""


def all_inferences() -> dict[str, dict[str, Any]]:
    """Return estimators by inference name and task, including those registered by users.

    Examples
    --------
    >>> all_inferences()["exact"]["regression"].__name__
    'ExactTreeRegressor'
    """
    _import_all()
    return dict(sorted(INFERENCES.items()))


@cache
def _import_all() -> None:
    """Import all estimator modules, so that they register their names."""
    modules = {module for module in DEFINED_IN.values() if module.startswith(f"{__name__}.")}
    for module in sorted(modules):
        import_module(module)


def estimator_class(name: str) -> Any:
    """Return the estimator class of a name, or None if there is none."""
    if DEFINED_IN.get(name, "").startswith(f"{__name__}."):
        import_module(DEFINED_IN[name])
    classes = [cls for of_tasks in INFERENCES.values() for cls in of_tasks.values()]
    return next((cls for cls in classes if cls.__name__ == name), None)
