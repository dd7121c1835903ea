"""Every estimator, fitted to one small table with settings that take seconds."""

import functools
import warnings
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

import bdtppl
from bdtppl.models.soft.tree import SoftClassification

__all__ = ["DCC", "RJHMC", "FITS", "FAST", "KINDS", "NEW", "X", "Y", "fitted", "new"]

_RNG = np.random.default_rng(0)
X = _RNG.uniform(size=(30, 2)).round(2)
NEW = _RNG.uniform(size=(7, 2)).round(2)
_IS_HIGH = X[:, 1] > 0.5
Y = 3.0 * _IS_HIGH + _RNG.normal(0, 0.5, 30)
LABELS = np.where(_IS_HIGH ^ (_RNG.random(30) < 0.1), "high", "low")

_MIXTURE = SoftClassification(concentration=(1.0, 1.0), likelihood="mixture")
DCC = {
    "iterations": 2,
    "initial_trees": 10,
    "activation_count": 0,
    "chains": 2,
    "warmup": 60,
    "draws": 50,
    "max_splits": 1,
}
RJHMC = {"chains": 2, "burn_in": 10, "draws": 30, "warmup": 60, "max_splits": 1}
_SETTINGS: dict[str, dict[str, Any]] = {
    "ExactTree": {"bins": 5, "draws": 50},
    "GreedyModalTree": {"num_roots": 3},
    "MAPTree": {"bins": 5, "time_limit": 60},
    "MetropolisTree": {"temperatures": 2, "warmup": 200, "draws": 50, "thin": 5},
    "ParticleTree": {"particles": 30, "runs": 4},
    "GFlowNetTree": {"grid": 5, "max_depth": 2, "steps": 5, "draws": 50},
    "DCCTree": DCC,
    "RJHMCTree": RJHMC,
}
KINDS = tuple(_SETTINGS)
FITS = [f"{kind}{task}" for kind in KINDS for task in ("Classifier", "Regressor")]
FAST = ("ExactTreeClassifier", "GreedyModalTreeRegressor")


@functools.cache
def fitted(name: str) -> Any:
    """Fit an estimator by name; do not change it."""
    with warnings.catch_warnings():  # they are short
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.filterwarnings("ignore", "log evidence", UserWarning)
        return new(name).fit(X, LABELS if name.endswith("Classifier") else Y)


def new(name: str) -> Any:
    """Make an estimator by name, not yet fitted."""
    kind = name.removesuffix("Classifier").removesuffix("Regressor")
    settings = dict(_SETTINGS[kind])
    if kind in ("DCCTree", "RJHMCTree") and name.endswith("Classifier"):
        settings["model"] = _MIXTURE
    return getattr(bdtppl, name)(random_state=0, **settings)
