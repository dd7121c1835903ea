"""The contract of scikit-learn, of the estimators that the fast tests leave out.

Soft trees are left out as well: each of their fits compiles NUTS, and 55 checks take ten minutes.
So is `MAPTreeRegressor`, whose answer depends on its time where it cannot certify a tree. Of chains
and policies, whose fits mostly compile, one kind of targets is checked.
"""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

import bdtppl

_SAMPLED = {"chains": 2, "warmup": 20, "draws": 10}
_TRAINED = {"grid": 3, "max_depth": 2, "steps": 2, "draws": 10}
_SETTINGS = {
    "ExactTreeRegressor": {"leaf": "from_targets", "draws": 25, "max_seconds": 0.5},
    "GreedyModalTreeRegressor": {"num_roots": 3, "leaf": "from_targets"},
    "MAPTreeClassifier": {"bins": 5, "time_limit": 60},
    "MetropolisTreeRegressor": _SAMPLED | {"thin": 1, "leaf": "from_targets"},
    "ParticleTreeClassifier": {"particles": 10, "runs": 2},
    "ParticleTreeRegressor": {"particles": 10, "runs": 2, "leaf": "from_targets"},
    "GFlowNetTreeClassifier": _TRAINED,
    "BARTClassifier": _SAMPLED | {"trees": 5, "min_leaf": 1},
    "BARTRegressor": _SAMPLED | {"trees": 5, "min_leaf": 1},
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks([getattr(bdtppl, name)(**own) for name, own in _SETTINGS.items()])
def test_scikit_learn_contract(estimator, check):
    check(estimator)
