"""Units of targets and columns: predictions move with them, to the last digits."""

import numpy as np
import pytest
from every_estimator import KINDS, NEW, X, Y, new
from tiers import slow_but

from bdtppl import BARTRegressor

FEW = {"trees": 10, "chains": 2, "warmup": 20, "draws": 20, "extensions": 0, "random_state": 0}
ESTIMATORS = {
    "BARTRegressor": lambda: BARTRegressor(**FEW),
    "BARTRegressor with noise trees": lambda: BARTRegressor(**FEW, noise_trees=4),
    **{f"{kind}Regressor": lambda kind=kind: new(f"{kind}Regressor") for kind in KINDS},
}
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*:sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore:.*log evidence"),
]
EASY = ["BARTRegressor with noise trees"]


@pytest.mark.parametrize("name", slow_but(EASY, ESTIMATORS))
def test_predictions_have_the_units_of_the_targets(name):
    def predicted(scale, shift, column_scale=1.0):
        model = ESTIMATORS[name]().fit(column_scale * X, scale * Y + shift)
        return (model.predict(column_scale * NEW) - shift) / scale

    usual = predicted(1.0, 0.0)
    for units in ((1e-100, 0.0), (1e100, 0.0), (2.5, 7.0), (1.0, 0.0, 1e100)):
        np.testing.assert_allclose(predicted(*units), usual, atol=1e-9 * np.ptp(Y))
    if "DCC" not in name and "RJHMC" not in name:  # these standardise
        for scale in (1e-155, 1e155, 1e200):
            with pytest.raises(ValueError, match="rescale y"):
                predicted(scale, 0.0)


def test_draws_and_noise_of_sums_have_the_units_of_the_targets():
    usual, large = (ESTIMATORS["BARTRegressor"]().fit(X, scale * Y) for scale in (1.0, 2.0**200))
    np.testing.assert_array_equal(large.mean_draws(NEW), 2.0**200 * usual.mean_draws(NEW))
    np.testing.assert_array_equal(large.noise_draws(NEW), 2.0**200 * usual.noise_draws(NEW))
    lost = len(Y) * np.log(2.0**200)
    np.testing.assert_allclose(large.trajectory_, usual.trajectory_ - lost)
    np.testing.assert_allclose(
        large.posterior_.log_likelihood(), usual.posterior_.log_likelihood() - np.log(2.0**200)
    )
