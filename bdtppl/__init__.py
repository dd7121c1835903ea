"""Bayesian decision trees: one model, many inferences, held against the exact posterior.

The package has three floors, and imports only go down: ``bdtppl`` (estimators, results, figures,
files) rests on ``bdtppl.inference`` (how a posterior is got), which rests on ``bdtppl.models``
(what a Bayesian tree is). This module only hands names on, at their first use, so that
``import bdtppl`` is fast.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if find_spec("bdtppl.models") is None:
    raise ImportError(
        "bdtppl was imported from its source folder, where its parts `models` and `inference` "
        "lie beside it and not inside it: start Python from another folder, or install the "
        "checkout in editable mode with `python -m pip install --editable .`."
    )

if TYPE_CHECKING:
    from bdtppl import datasets, export, inference, models
    from bdtppl.comparison import compare
    from bdtppl.estimators.dcc import DCCTreeClassifier, DCCTreeRegressor
    from bdtppl.estimators.exact import ExactTreeClassifier, ExactTreeRegressor
    from bdtppl.estimators.gflownet import GFlowNetTreeClassifier, GFlowNetTreeRegressor
    from bdtppl.estimators.greedy_modal import GreedyModalTreeClassifier, GreedyModalTreeRegressor
    from bdtppl.estimators.metropolis import MetropolisTreeClassifier, MetropolisTreeRegressor
    from bdtppl.estimators.particle import ParticleTreeClassifier, ParticleTreeRegressor
    from bdtppl.estimators.rjhmc import RJHMCTreeClassifier, RJHMCTreeRegressor
    from bdtppl.plotting import (
        plot_boundaries,
        plot_calibration,
        plot_comparison,
        plot_density,
        plot_evidence,
        plot_partial_dependence,
        plot_partitions,
        plot_predictive,
        plot_predictive_check,
        plot_structures,
        plot_topologies,
        plot_trajectories,
        plot_tree,
    )
    from bdtppl.report import write_report
    from bdtppl.storage import load

__all__ = [
    "DCCTreeClassifier",
    "DCCTreeRegressor",
    "ExactTreeClassifier",
    "ExactTreeRegressor",
    "GFlowNetTreeClassifier",
    "GFlowNetTreeRegressor",
    "GreedyModalTreeClassifier",
    "GreedyModalTreeRegressor",
    "MetropolisTreeClassifier",
    "MetropolisTreeRegressor",
    "ParticleTreeClassifier",
    "ParticleTreeRegressor",
    "RJHMCTreeClassifier",
    "RJHMCTreeRegressor",
    "compare",
    "datasets",
    "export",
    "inference",
    "load",
    "models",
    "plot_boundaries",
    "plot_comparison",
    "plot_calibration",
    "plot_density",
    "plot_evidence",
    "plot_partial_dependence",
    "plot_partitions",
    "plot_predictive",
    "plot_predictive_check",
    "plot_structures",
    "plot_topologies",
    "plot_trajectories",
    "plot_tree",
    "write_report",
]

_SUBMODULES = ("datasets", "export", "inference", "models")

DEFINED_IN = {
    "DCCTreeClassifier": "bdtppl.estimators.dcc",
    "DCCTreeRegressor": "bdtppl.estimators.dcc",
    "ExactTreeClassifier": "bdtppl.estimators.exact",
    "ExactTreeRegressor": "bdtppl.estimators.exact",
    "GFlowNetTreeClassifier": "bdtppl.estimators.gflownet",
    "GFlowNetTreeRegressor": "bdtppl.estimators.gflownet",
    "GreedyModalTreeClassifier": "bdtppl.estimators.greedy_modal",
    "GreedyModalTreeRegressor": "bdtppl.estimators.greedy_modal",
    "MetropolisTreeClassifier": "bdtppl.estimators.metropolis",
    "MetropolisTreeRegressor": "bdtppl.estimators.metropolis",
    "ParticleTreeClassifier": "bdtppl.estimators.particle",
    "ParticleTreeRegressor": "bdtppl.estimators.particle",
    "RJHMCTreeClassifier": "bdtppl.estimators.rjhmc",
    "RJHMCTreeRegressor": "bdtppl.estimators.rjhmc",
    "compare": "bdtppl.comparison",
    "load": "bdtppl.storage",
    "plot_boundaries": "bdtppl.plotting",
    "plot_comparison": "bdtppl.plotting",
    "plot_calibration": "bdtppl.plotting",
    "plot_density": "bdtppl.plotting",
    "plot_evidence": "bdtppl.plotting",
    "plot_partial_dependence": "bdtppl.plotting",
    "plot_partitions": "bdtppl.plotting",
    "plot_predictive": "bdtppl.plotting",
    "plot_predictive_check": "bdtppl.plotting",
    "plot_structures": "bdtppl.plotting",
    "plot_topologies": "bdtppl.plotting",
    "plot_trajectories": "bdtppl.plotting",
    "plot_tree": "bdtppl.plotting",
    "write_report": "bdtppl.report",
}


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return import_module(f"bdtppl.{name}")
    if name in DEFINED_IN:
        value = getattr(import_module(DEFINED_IN[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'bdtppl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
