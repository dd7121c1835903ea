"""The exact estimators as scikit-learn sees them, and what they say to bad input."""

import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import parametrize_with_checks
from tiers import slow_but

from bdtppl import ChoiceWarning, ExactTreeClassifier, ExactTreeRegressor
from bdtppl.comparison.scoring import Scored
from bdtppl.inference.pcfg import compiler
from bdtppl.models.constraints import Constraints
from bdtppl.models.data.schema import TableWarning
from bdtppl.models.leaves import DirichletCategorical, NormalInverseGamma
from bdtppl.models.priors import DepthDecay, DescriptionLength, GreedyPartition, LeafPenalty


@parametrize_with_checks([ExactTreeClassifier(draws=25, max_seconds=0.5)])
def test_scikit_learn_contract(estimator, check):
    check(estimator)


def iris(bins=5, **options):
    X, y = load_iris(return_X_y=True)
    return ExactTreeClassifier(bins=bins, random_state=0, **options).fit(X, y), X, y


def small(n=40, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.integers(0, 5, (n, 2)).astype(float)
    return X, X[:, 0] + rng.normal(0, 0.3, n)


def test_iris_fits_and_reports():
    model, X, y = iris()
    assert model.score(X, y) > 0.94
    np.testing.assert_allclose(model.predict_proba(X).sum(axis=1), 1)
    assert model.log_evidence_ < model.map_log_joint_ - model.exact_.log_prior_normaliser + 50
    assert model.map_log_joint_ < model.log_partition_
    assert 0 < model.map_probability_ < 1
    summary = model.summary()
    assert summary["rows"] == 150
    assert set(summary["split_inclusion"]) == {"x0", "x1", "x2", "x3"}
    assert "rows)" in model.rules()
    assert model.sample_predictive(X[:3], 10).shape == (10, 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    "prior",
    slow_but(
        (LeafPenalty(1.0), DepthDecay()),
        [LeafPenalty(1.0), DescriptionLength(), DepthDecay(), GreedyPartition()],
    ),
)
def test_posterior_draws_predict_like_the_exact_mixture(prior):
    """Means over 2,000 draws within 5 standard errors at every row (rate 6e-7 a row)."""
    X, y = small()
    model = ExactTreeRegressor(prior=prior, bins=None, random_state=1, draws=500).fit(X, y)
    posterior = model.posterior_
    rows = np.unique(X, axis=0)
    means = np.asarray(model.leaf_.posterior_mean(posterior.leaf_statistics(rows)))
    draws = means.reshape(-1, len(rows))
    error = np.maximum(draws.std(axis=0) / np.sqrt(len(draws)), 1e-12)
    assert (abs(draws.mean(axis=0) - model.predict(rows)) < 5 * error).all()
    # The twin: means of half as many rows' statistics are another model's.
    halved = np.asarray(model.leaf_.posterior_mean(posterior.leaf_statistics(rows) / 2))
    halved = halved.reshape(-1, len(rows))
    assert (abs(halved.mean(axis=0) - model.predict(rows)) > 5 * error).any()


@pytest.mark.slow
def test_intervals_hold_their_level_under_the_mixture():
    X, y = small()
    model = ExactTreeRegressor(bins=None, random_state=1).fit(X, y)
    low, high = model.predict_interval(X[:6], level=0.8).T
    draws = model.sample_predictive(X[:6], 20_000)
    inside = ((draws > low) & (draws < high)).mean(axis=0)
    np.testing.assert_allclose(inside, 0.8, atol=5 * np.sqrt(0.16 / 20_000))


def test_weights_are_repeats_and_zero_is_absence():
    X, y = small()
    weights = np.random.default_rng(1).integers(0, 3, len(y))
    one = ExactTreeRegressor(bins=None).fit(X, y, sample_weight=weights)
    leaf = one.leaf_
    other = ExactTreeRegressor(bins=None, leaf=leaf).fit(
        np.repeat(X, weights, axis=0), np.repeat(y, weights)
    )
    np.testing.assert_allclose(one.log_evidence_, other.log_evidence_, rtol=1e-12)
    np.testing.assert_allclose(one.predict(X), other.predict(X), rtol=1e-9)


def test_frames_categories_and_missing_values():
    rng = np.random.default_rng(0)
    data = {
        "size": [1.0, 2.5, None, 4.0, 3.0, 1.5] * 5,
        "colour": ["red", "green", "blue", None, "red", "blue"] * 5,
        "old": [True, False] * 15,
    }
    y = np.where(np.array(data["old"]), "a", "b")
    y[rng.random(30) < 0.2] = "a"
    models = [
        ExactTreeClassifier(bins=None, random_state=0).fit(frame, y)
        for frame in (pd.DataFrame(data), pl.DataFrame(data))
    ]
    for model, frame in zip(models, (pd.DataFrame(data), pl.DataFrame(data)), strict=True):
        assert model.design_.names == (
            "size",
            "colour=blue",
            "colour=green",
            "colour=red",
            "old=True",
            "size=missing",
            "colour=missing",
        )
        assert list(model.feature_names_in_) == ["size", "colour", "old"]
        np.testing.assert_allclose(model.predict_proba(frame), models[0].predict_proba(frame))
        assert "old=True" in model.rules()
    limits = Constraints(features=["colour"])
    limited = ExactTreeClassifier(constraints=limits, bins=None).fit(pd.DataFrame(data), y)
    assert limited.constraints_.features == (
        "colour=blue",
        "colour=green",
        "colour=red",
        "colour=missing",
    )


def test_refitting_reuses_the_grammar():
    model, X, y = iris()
    again = clone(model).set_params(prior=LeafPenalty(1.0), leaf=None).fit(X, (y + 1) % 3)
    assert again.exact_.grammar is model.exact_.grammar


@pytest.mark.slow
def test_a_budget_that_ends_the_choice_is_said_once(monkeypatch):
    monkeypatch.setattr("bdtppl.estimators.exact._said", set())
    rng = np.random.default_rng(0)
    X, noise = rng.normal(size=(200, 8)), rng.integers(0, 2, 200)
    y = ((X[:, :3] > 0).sum(axis=1) >= 2).astype(int)
    model = ExactTreeClassifier(max_seconds=1)
    with pytest.warns(ChoiceWarning, match="max_seconds=1 ended the choice") as caught:
        model.fit(X, y)
    assert [each.filename for each in caught] == [__file__]
    assert "was chosen; next was" in model.summary()["choice"]
    assert len({*zip(*model.settings_.values(), strict=True)}) == len(model.settings_["bins"])
    with warnings.catch_warnings():
        warnings.simplefilter("error", ChoiceWarning)
        model.fit(X, 1 - y)
        model.fit(X, noise)  # fewer levels are as good
    assert model.bins_ in (2, 3, 5, 10, 20)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["boxes", "chart"])
def test_targets_without_noise_are_fitted(method):
    """The evidence grows without end as leaves get sharper, so the numbers have ends."""
    X = np.arange(40.0)[:, None]
    y = np.where(X[:, 0] < 20, 1.0, 5.0)
    model = ExactTreeRegressor(method=method).fit(X, y)
    np.testing.assert_allclose(model.predict(X), y, atol=0.05)
    assert 0 < model.leaf_.scale < np.var(y)


def test_declared_classes_may_be_absent():
    X, _ = small()
    model = ExactTreeClassifier(classes=["a", "b", "c"], bins=None).fit(
        X, np.where(X[:, 0] > 2, "a", "b")
    )
    assert model.predict_proba(X).shape == (40, 3)
    assert (model.predict_proba(X)[:, 2] > 0).all()


X0, Y0 = small()
LABELS = np.where(Y0 > 2, "yes", "no")


def test_concentrations_are_those_of_the_classes_as_they_are_listed():
    X, y = np.arange(8.0)[:, None] % 2, np.array(["a", "b"] * 4)
    model = ExactTreeClassifier(
        classes=["c", "b", "a"], leaf=DirichletCategorical([3.0, 2.0, 1.0]), max_depth=0, draws=25
    ).fit(X, y)
    assert model.classes_.tolist() == ["a", "b", "c"]
    expected = np.array([4 + 1, 4 + 2, 3]) / 14
    np.testing.assert_allclose(model.predict_proba(X[:1])[0], expected)
    assert "a 1, b 2 and c 3" in model.leaf_.in_words(model.classes_)
    again = Scored.of("", model).unfitted().fit(X, y)
    np.testing.assert_allclose(again.predict_proba(X[:1])[0], expected)
    with pytest.raises(ValueError, match="classes repeats 'a'"):
        ExactTreeClassifier(classes=["a", "b", "a"]).fit(X, y)


def _with(value, row=3, column=1):
    X = X0.copy()
    X[row, column] = value
    return X


@pytest.mark.parametrize(
    ("options", "X", "y", "weight", "message"),
    [
        ({}, X0, np.where(np.arange(40) == 7, np.nan, Y0), None, r"y, row 7: .*missing"),
        ({}, X0, np.where(np.arange(40) == 7, np.inf, Y0), None, r"y, row 7: .*infinite"),
        ({}, _with(np.inf), Y0, None, r"Column 'x1', row 3: .*infinite"),
        (
            {},
            _with(5e-324),
            Y0,
            None,
            r"Column 'x1', row 3: the value is 5e-324, which compiled code rounds to 0",
        ),
        (
            {},
            _with(-3e-308),
            Y0,
            None,
            r"Column 'x1', row 3: the value is -3e-308, which compiled code rounds to 0",
        ),
        ({}, X0[:0], Y0[:0], None, r"0 sample"),
        ({}, X0, Y0[:10], None, r"inconsistent|rows"),
        ({}, X0, Y0, np.full(40, np.inf), r"sample_weight, row 0: .* got inf"),
        ({}, X0, Y0, -np.ones(40), r"sample_weight, row 0: .* at least 0; got -1"),
        ({}, X0, Y0, np.zeros(40), r"sample_weight is zero"),
        ({}, X0, Y0, ["two"] * 40, r"sample_weight must contain numbers"),
        ({"bins": 1}, X0, Y0, None, r"bins must be"),
        ({"bins": "many"}, X0, Y0, None, r"bins must be"),
        ({"bins": 3, "grid": 3}, X0, Y0, None, r"bins and grid cannot be combined"),
        ({"binning": "log"}, X0, Y0, None, r"binning must be"),
        ({"max_depth": -1}, X0, Y0, None, r"max_depth must be"),
        ({"min_leaf": 0}, X0, Y0, None, r"min_leaf must be"),
        ({"draws": 0}, X0, Y0, None, r"draws must be"),
        ({"drop_first": "maybe"}, X0, Y0, None, r"drop_first must be True or False; got 'maybe'"),
        ({}, pd.DataFrame(X0, columns=["a", "a"]), Y0, None, r"distinct; 'a' is repeated"),
        ({"constraints": Constraints(features=("size",))}, X0, Y0, None, r"names 'size'"),
        (
            {"bins": None, "method": "chart", "max_subproblems": 50},
            X0,
            Y0,
            None,
            r"more than max_subproblems=50 .*levels of splits.*fewer bins",
        ),
    ],
)
def test_bad_input_to_regression(options, X, y, weight, message):
    with pytest.raises(ValueError, match=f"(?s){message}"):
        ExactTreeRegressor(**options).fit(X, y, sample_weight=weight)


@pytest.mark.parametrize(
    ("options", "y", "message"),
    [
        ({}, np.full(40, "yes"), r"only one class \('yes'\)"),
        ({"classes": ["no", "maybe"]}, LABELS, r"label 'yes', which classes does not declare"),
        ({"leaf": DirichletCategorical.symmetric(3)}, LABELS, r"3 concentrations.*2 classes"),
        ({}, np.where(np.arange(40) == 2, None, LABELS), r"y, row 2: the label is missing"),
    ],
)
def test_bad_input_to_classification(options, y, message):
    with pytest.raises(ValueError, match=message):
        ExactTreeClassifier(**options).fit(X0, y)


NORMAL = NormalInverseGamma(0.0)


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (ExactTreeRegressor(prior=LeafPenalty), r"prior must .*the class LeafPenalty"),
        (ExactTreeRegressor(leaf=3), r"leaf must be a leaf family .*got int"),
        (ExactTreeRegressor(leaf=NormalInverseGamma), r"leaf must .*the class NormalInverseGamma"),
        (ExactTreeRegressor(leaf=DirichletCategorical.symmetric(2)), r"real targets; got Dirich"),
        (ExactTreeClassifier(leaf=NORMAL), r"class labels; got NormalInverseGamma"),
        (ExactTreeClassifier(classes="no"), r"classes must be a list of labels; got 'no'"),
        (ExactTreeClassifier(classes=2), r"classes must be a list of labels; got 2"),
    ],
)
def test_parameters_of_the_wrong_type(estimator, message):
    y = Y0 if isinstance(estimator, ExactTreeRegressor) else LABELS
    with pytest.raises(TypeError, match=message):
        estimator.fit(X0, y)


def test_a_fit_that_overflows_is_refused():
    model = ExactTreeRegressor(leaf=NORMAL)
    with np.errstate(all="ignore"), pytest.raises(ValueError, match="evidence is not finite"):
        model.fit(X0, Y0 * 1e200)
    with pytest.raises(NotFittedError):
        model.predict(X0)


def test_what_is_not_fitted_says_so():
    for name in ("map_tree_", "exact_", "posterior_"):
        with pytest.raises(NotFittedError, match="not fitted yet"):
            getattr(ExactTreeRegressor(), name)
        assert not hasattr(ExactTreeRegressor(), name)


def test_bad_counts_after_a_fit():
    model = ExactTreeRegressor(bins=None).fit(X0, Y0)
    for draws in (-1, 0, 2.5):
        with pytest.raises(ValueError, match="draws must be an integer of at least 1"):
            model.sample_predictive(X0, draws=draws)
    with pytest.raises(ValueError, match=r"k must be an integer of at least 1; got 1\.5"):
        model.k_best(1.5)
    with pytest.raises(ValueError, match="rank must be an integer of at least 0; got -1"):
        model.rules(-1)


def test_bad_input_to_predict():
    model = ExactTreeRegressor(bins=None).fit(X0, Y0)
    with pytest.raises(ValueError, match=r"3 features.*expecting 2"):
        model.predict(np.ones((2, 3)))
    with pytest.warns(TableWarning, match=r"missing \(NaN\) in 'x0', where no training row misses"):
        assert np.isfinite(model.predict(np.array([[1.0, 2.0], [np.nan, 1.0]]))).all()
    for level in (1.5, "high"):
        with pytest.raises(ValueError, match="level must be in"):
            model.predict_interval(X0, level=level)
    frame = pd.DataFrame({"a": X0[:, 0], "c": ["u", "v"] * 20})
    model = ExactTreeRegressor(bins=None).fit(frame, Y0)
    new = pd.DataFrame({"a": [1.0], "c": ["w"]})
    with pytest.warns(
        TableWarning, match=r"Column 'c': level 'w' was .* read as if it were 'u'"
    ) as w:
        found = model.predict(new)
    assert w[0].filename == __file__
    np.testing.assert_array_equal(found, model.predict(new.assign(c="u")))
    with pytest.raises(ValueError, match="feature names"):
        model.predict(pd.DataFrame({"b": [1.0], "c": ["u"]}))


@pytest.mark.slow
def test_constant_columns_are_leaves_only():
    with pytest.warns(UserWarning, match="No cut in 'x0', 'x1' and 'x2'"):
        model = ExactTreeRegressor().fit(np.ones((20, 3)), Y0[:20])
    assert model.map_tree_.num_leaves == 1
    np.testing.assert_allclose(model.predict(np.ones((2, 3))), model.leaf_.mean, rtol=1e-9)
    assert model.exact_.entropy == 0


@pytest.mark.parametrize("cuts", slow_but([{"grid": 99}], [{"bins": None}, {"grid": 99}]))
def test_a_failed_fit_says_what_would_fit(cuts, monkeypatch):
    monkeypatch.setattr(compiler, "_cache", type(compiler._cache)())
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 4)), rng.normal(size=60)
    model = ExactTreeRegressor(**cuts, max_subproblems=20_000, max_seconds=0.01)
    with pytest.raises(ValueError, match=r"bins=\d+ would fit"):
        clone(model).set_params(method="chart").fit(X, y)
    with pytest.warns(ConvergenceWarning, match=r"lies between .* bins=\d+ would fit"):
        model.fit(X, y)


def test_a_grid_search_sets_numbers_of_prior_and_leaf():
    X, y = np.arange(12.0)[:, None], np.arange(12) >= 5
    prior, leaf = LeafPenalty(1.0), DirichletCategorical.symmetric(2)
    model = ExactTreeClassifier(bins=None, prior=prior, leaf=leaf, constraints=Constraints())
    grid = {"prior__log_phi": [0.5, 2.0], "leaf__concentration": [0.5, 1.0]}
    best = GridSearchCV(model, grid, cv=2).fit(X, y).best_estimator_
    assert {best.prior.log_phi, float(best.leaf_.concentration[0])} <= {0.5, 1.0, 2.0}
    changed = clone(model).set_params(prior__log_phi=3.0, constraints__min_leaf=2, bins=5)
    assert changed.get_params()["prior__log_phi"] == 3.0
    assert (changed.constraints.min_leaf, changed.bins) == (2, 5)
    assert (prior.log_phi, model.get_params()["constraints__min_leaf"]) == (1.0, 1)
    assert model.set_params(prior=LeafPenalty(4.0), prior__log_phi=5.0).prior.log_phi == 5.0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"prior__beta": 1.0}, "prior__beta cannot be set: prior is LeafPenalty.*log_phi"),
        ({"leaf__scale": 1.0}, "leaf__scale cannot be set: leaf is None.*pass one"),
        ({"nothing__scale": 1.0}, "Invalid parameter 'nothing'"),
    ],
)
def test_parameters_that_do_not_exist_are_named(given, message):
    with pytest.raises(ValueError, match=message):
        ExactTreeClassifier(prior=LeafPenalty(1.0)).set_params(**given)


def test_quantiles_are_the_ends_of_intervals():
    X = np.arange(30.0)[:, None]
    y = (X[:, 0] > 12) + np.random.default_rng(0).normal(0, 0.2, 30)
    model = ExactTreeRegressor(bins=4, max_depth=2).fit(X, y)
    quantiles = model.predict_quantiles(X, [0.05, 0.5, 0.95])
    ends = model.predict_interval(X, 0.9)
    np.testing.assert_allclose(quantiles[:, [0, 2]], ends, rtol=1e-12)
    assert (np.diff(quantiles, axis=1) > 0).all()
    for wrong in ([], [0.0], [0.5, 1.2], [[0.5]]):
        with pytest.raises(ValueError, match="probabilities must be numbers between 0 and 1"):
            model.predict_quantiles(X, wrong)


def test_one_row_is_not_called_one_class():
    with pytest.raises(ValueError, match="There is only one row"):
        ExactTreeClassifier().fit([[1.0]], ["yes"])
