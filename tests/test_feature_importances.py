"""Importances of columns: their shares of the splits of the posterior."""

from pathlib import Path

import every_estimator as every
import handmade
import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.feature_selection import SelectFromModel

import bdtppl

DATA = Path(__file__).parent / "data"


def test_draws_count_splits_by_their_weights():
    nested = [handmade.split(0, 0.5), handmade.split(1, 0.5, right=handmade.split(1, 0.7))]
    rows = np.random.default_rng(0).uniform(size=(12, 3))
    leaf = handmade.NormalInverseGamma(0.0)
    posterior = handmade.posterior_of(nested, (1, 2), matrix=rows, y=rows[:, 0], leaf=leaf)
    np.testing.assert_allclose(posterior.expected_splits, [0.5, 1.0, 0.0])


@pytest.mark.slow
@pytest.mark.parametrize("method", ["chart", "boxes"])
def test_a_category_has_the_splits_of_all_its_levels(method):
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {"size": rng.uniform(size=60), "hue": rng.choice(["red", "green", "blue"], 60)}
    )
    y = np.where(table["hue"] == "red", 5.0, np.where(table["hue"] == "blue", 2.0, 0.0))
    model = bdtppl.ExactTreeRegressor(bins=4, max_depth=2, method=method, random_state=0)
    model.fit(table, y + rng.normal(0, 0.3, 60))
    splits = model.exact_.expected_splits
    share = model.feature_importances_
    np.testing.assert_allclose(share, np.array([splits[0], splits[1:].sum()]) / splits.sum())
    assert share[1] > 0.9
    drawn = model.posterior_.expected_splits
    assert abs(drawn - splits).max() < 0.2
    assert SelectFromModel(model, prefit=True).get_support().tolist() == [False, True]


def test_greedy_gains_are_by_column():
    table = {"size": np.arange(30.0) % 7, "hue": ["red", "green", "blue"] * 10}
    y = np.where(np.array(table["hue"]) == "red", 5.0, 0.0) + np.arange(30) % 2
    share = bdtppl.GreedyModalTreeRegressor().fit(table, y).feature_importances_
    assert share.shape == (2,)
    assert share.sum() == pytest.approx(1)
    assert share.argmax() == 1


@pytest.mark.parametrize("name", ["soft-values", "chain-values", "weighted-classes", "flow-values"])
def test_models_of_draws_have_shares_of_columns(name):
    model = bdtppl.load(DATA / name, trusted=True)
    share = model.feature_importances_
    assert share.shape == (model.n_features_in_,)
    assert share.sum() == pytest.approx(1)
    assert (share >= 0).all()


def test_no_split_is_no_share_and_no_fit_is_said():
    model = bdtppl.ExactTreeRegressor(max_depth=0)
    with pytest.raises(NotFittedError):
        _ = model.feature_importances_
    assert not hasattr(model, "feature_importances_")
    assert model.fit(every.X, every.Y).feature_importances_.tolist() == [0, 0]
