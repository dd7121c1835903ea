"""The greedy modal estimators as scikit-learn sees them, their files and figures."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.model_selection import cross_val_score
from sklearn.utils.estimator_checks import parametrize_with_checks

import bdtppl
from bdtppl import (
    ExactTreeClassifier,
    GreedyModalTreeClassifier,
    GreedyModalTreeRegressor,
    plot_predictive,
    plot_tree,
)
from bdtppl.models.priors import DepthDecay, GreedyPartition


@parametrize_with_checks([GreedyModalTreeClassifier(), GreedyModalTreeRegressor(num_roots=3)])
def test_scikit_learn_contract(estimator, check):
    check(estimator)


def steps(n=60):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 3))
    return X, 3.0 * (X[:, 1] > 0.2) + rng.normal(0, 0.3, n)


def test_a_greedy_tree_is_at_most_as_probable_as_the_best_one():
    X, y = load_iris(return_X_y=True)
    model = GreedyModalTreeClassifier(prior=DepthDecay(), bins=5).fit(X, y)
    exact = ExactTreeClassifier(prior=DepthDecay(), bins=5).fit(X, y)
    assert model.map_log_joint_ <= exact.map_log_joint_ + 1e-9
    assert not hasattr(model, "log_evidence_")


def test_the_tree_space_holds_the_greedy_tree_and_weighs_by_probability():
    X, y = load_iris(return_X_y=True)
    greedy = GreedyModalTreeClassifier().fit(X, y)
    space = GreedyModalTreeClassifier(num_roots=6).fit(X, y)
    ranked = space.k_best(6)
    assert len(ranked.log_joint) == 6
    assert (np.diff(ranked.log_joint) <= 0).all()
    assert np.isclose(ranked.log_joint, greedy.map_log_joint_).any()
    assert len({(int(t.feature[0]), float(t.threshold[0])) for t in ranked.trees}) == 6
    weights = np.exp(ranked.log_joint - np.logaddexp.reduce(ranked.log_joint))
    np.testing.assert_allclose(ranked.probability, weights)
    np.testing.assert_allclose(space.predict_proba(X), space.posterior_.mean(X), rtol=1e-12)


def test_the_trivial_partition_is_one_of_the_roots():
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(20, 1)), rng.integers(0, 2, 20)
    space = GreedyModalTreeClassifier(prior=GreedyPartition(0.5), num_roots=5).fit(X, y)
    assert 1 in space.posterior_.trees.num_leaves
    few = GreedyModalTreeClassifier(num_roots=50).fit([[0.0], [1.0], [1.0]], [0, 1, 1])
    assert sorted(few.posterior_.trees.num_leaves.ravel()) == [1, 2]


@pytest.mark.parametrize("options", [{}, {"num_roots": 4}, {"smoothing": 0.1}])
def test_saved_models_predict_the_same(tmp_path, options):
    X, y = steps()
    model = GreedyModalTreeRegressor(random_state=3, **options).fit(X, y)
    model.save(tmp_path / "model")
    loaded = bdtppl.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    np.testing.assert_array_equal(loaded.sample_predictive(X, 5), model.sample_predictive(X, 5))
    assert loaded.rules() == model.rules()
    assert loaded.map_log_joint_ == model.map_log_joint_


def test_columns_of_any_kind_and_a_class_that_is_absent():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 100, 80).astype(np.int8)
    table = {
        "small": x,
        "constant": np.ones(80),
        "copy": x,
        "flag": x > 50,
        "word": np.where(x > 70, "high", "low"),
    }
    y = np.where(x > 50, "b", "a")
    model = GreedyModalTreeClassifier(classes=["a", "b", "c"]).fit(table, y)
    assert model.score(table, y) == 1
    assert model.predict_proba(table).shape == (80, 3)
    assert model.map_tree_.feature[0] == 3  # its one cut has all of its feature's weight


def test_of_equal_rules_the_first_is_taken():
    X, y = steps()
    for columns in ([X[:, 1], X[:, 1]], [X[:, 1], -X[:, 1]], [X[:, 1], X[:, 1] ** 3]):
        model = GreedyModalTreeRegressor().fit(np.stack(columns, axis=1), y)
        assert set(model.map_tree_.feature) <= {-1, 0}


def test_missing_values_go_to_the_side_that_is_more_probable():
    rng = np.random.default_rng(0)
    x = rng.normal(size=200)
    y = (x > 0).astype(int)
    x[y == 1] = np.where(rng.random((y == 1).sum()) < 0.3, np.nan, x[y == 1])
    model = GreedyModalTreeClassifier().fit(x[:, None], y)
    assert model.score(x[:, None], y) == 1
    assert not model.map_tree_.missing_left[0]


def test_weights_are_repeats():
    X, y = steps()
    weights = np.random.default_rng(5).integers(0, 3, len(y))
    weighted = GreedyModalTreeRegressor().fit(X, y, sample_weight=weights)
    repeated = GreedyModalTreeRegressor().fit(np.repeat(X, weights, 0), np.repeat(y, weights))
    assert weighted.rules() == repeated.rules()
    assert abs(weighted.map_log_joint_ - repeated.map_log_joint_) < 1e-9


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"num_roots": 0}, ValueError, "num_roots must be an integer of at least 1"),
        ({"smoothing": -1}, ValueError, "smoothing must be a number of at least 0"),
        ({"split_precision": "a"}, ValueError, "split_precision must be a number of at least 0"),
        ({"prior": GreedyPartition}, TypeError, "prior must be a tree prior"),
    ],
)
def test_bad_parameters_get_one_sentence(options, error, message):
    X, y = steps()
    with pytest.raises(error, match=message):
        GreedyModalTreeRegressor(**options).fit(X, y)


def test_figures_and_arviz():
    import matplotlib.pyplot as plt

    X, y = steps()
    model = GreedyModalTreeRegressor(random_state=0, num_roots=2).fit(X, y)
    assert "among the trees found" in plot_tree(model).get_title()
    plot_predictive(model, feature=1)
    data = model.to_arviz()
    assert data["posterior"]["num_leaves"].shape == (1, 2)
    plt.close("all")


def test_clone_and_cross_validation():
    X, y = load_iris(return_X_y=True)
    model = clone(GreedyModalTreeClassifier(prior=GreedyPartition(0.9)))
    assert cross_val_score(model, X, y, cv=5).mean() > 0.9
