"""Rules that part missing from present: a feature says where the values of a column are missing."""

import json
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from tiers import slow_but

import bdtppl
from bdtppl.export import to_sklearn
from bdtppl.models.constraints import Constraints, KeepTogether
from bdtppl.models.data.schema import Column, Schema
from bdtppl.models.priors import DepthDecay

NUM_ROWS = 120
ESTIMATORS = {
    "boxes": bdtppl.ExactTreeClassifier(bins=3, max_depth=2, method="boxes"),
    "chart": bdtppl.ExactTreeClassifier(bins=3, max_depth=2, method="chart"),
    "greedy": bdtppl.GreedyModalTreeClassifier(),
    "chains": bdtppl.MetropolisTreeClassifier(temperatures=1, warmup=200, draws=50, random_state=0),
    "particles": bdtppl.ParticleTreeClassifier(particles=50, runs=4, random_state=0),
}


def table():
    """Whether a value is missing is all that tells the class; the values are noise."""
    rng = np.random.default_rng(0)
    number, word = rng.normal(size=NUM_ROWS), rng.choice(["u", "v", "w"], NUM_ROWS).astype(object)
    is_missing = rng.random(NUM_ROWS) < 0.5
    number[is_missing] = np.nan
    word[rng.random(NUM_ROWS) < 0.3] = None
    return pd.DataFrame({"number": number, "word": word}), is_missing.astype(int)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # short runs
@pytest.mark.parametrize("name", slow_but(["boxes", "chart", "greedy"], ESTIMATORS))
def test_missing_values_can_be_the_signal(name):
    X, y = table()
    model = ESTIMATORS[name].fit(X, y)
    assert model.score(X, y) == 1
    assert model.feature_importances_[0] > 0.5
    assert "number=missing" in model.rules()


def test_without_the_feature_the_classes_are_mixed():
    X, y = table()
    limits = {"bins": 3, "max_depth": 1, "method": "boxes"}
    coded = Constraints(features=[0, 1, 2, 3])
    assert bdtppl.ExactTreeClassifier(**limits).fit(X, y).score(X, y) == 1
    assert bdtppl.ExactTreeClassifier(**limits, constraints=coded).fit(X, y).score(X, y) < 0.9


def test_marks_stand_behind_all_features():
    X, _ = table()
    schema, matrix = Schema.read(X)
    coded = ("number", "word=u", "word=v", "word=w")
    assert schema.features == (*coded, "number=missing", "word=missing")
    np.testing.assert_array_equal(matrix[:, 4:], X.isna())
    np.testing.assert_array_equal(schema.transform(X), matrix)
    assert Schema.from_json(json.loads(json.dumps(schema.to_json()))) == schema
    assert schema.is_indicator.tolist() == [False, True, True, True, True, True]
    assert schema.features_of(["number"]) == ("number", "number=missing")


def test_files_without_marks_are_read_as_they_were():
    described = [{"name": "a", "levels": None, "shown": []}]
    assert Schema.from_json(described) == Schema((Column("a"),))


def test_columns_that_are_complete_or_empty_have_no_mark():
    schema, _ = Schema.read({"full": [1.0, 2.0], "empty": [np.nan, np.nan]})
    assert schema.features == ("full", "empty")


def test_a_level_called_missing_is_another_feature():
    schema, matrix = Schema.read({"hue": ["missing", "red", None]})
    assert schema.features == ("hue=red", "hue=missing, 2")
    np.testing.assert_array_equal(matrix, [[0, 0], [1, 0], [np.nan, 1]])


def test_scikit_learn_asks_the_column_itself():
    X, y = table()
    numbers = X[["number"]]
    model = bdtppl.GreedyModalTreeClassifier().fit(numbers, y)
    tree = to_sklearn(model)
    assert tree.n_features_in_ == 1
    np.testing.assert_array_equal(tree.predict(numbers), y)


def two_columns():
    """Classes by whether the start is missing; ages are noise."""
    rng = np.random.default_rng(1)
    age, start = rng.normal(size=(2, 60))
    start[:30] = np.nan
    return {"age": age, "start": start}, np.arange(60) < 30


def roots(**options):
    X, y = two_columns()
    model = {"prior": DepthDecay(), "bins": 3, "max_depth": 2, "method": "chart"} | options
    model = bdtppl.ExactTreeClassifier(**model).fit(X, y)
    names = model.schema_.features
    return {names[f] for f in model.k_best(50).trees.feature[:, 0] if f >= 0}, model


@pytest.mark.slow
def test_what_holds_for_a_column_holds_for_its_mark():
    assert "start=missing" in roots()[0]
    limited = Constraints(before=[("age", "start")])
    assert roots(constraints=limited)[0] == {"age"}
    limited = Constraints(features_at_depth={0: ("start",)})
    assert roots(constraints=limited)[0] == {"start", "start=missing"}
    limited = Constraints(features=["start"])
    assert roots(constraints=limited)[0] == {"start", "start=missing"}
    whole = KeepTogether({"start": (-9, 9), "age": (-9, 9)})
    assert roots(constraints=Constraints(keep_together=[whole]))[0] == {"start=missing"}
    open_ended = KeepTogether({"start": (None, None), "age": (None, None)})
    with pytest.warns(UserWarning, match="leave the root without a rule"):
        assert roots(constraints=Constraints(keep_together=[open_ended]))[0] == set()


def test_marks_have_the_weights_of_their_columns():
    for weights in ({"start": 7.0}, {1: 7.0}, [1.0, 7.0]):
        prior = DepthDecay(feature_weights=weights)
        _, model = roots(prior=prior)
        law = model.prior_.law.resolve(model.design_)
        assert tuple(law.feature_weights) == (1.0, 7.0, 7.0)
    prior = DepthDecay(feature_weights={"start": 7.0, "start=missing": 2.0})
    assert tuple(roots(prior=prior)[1].prior_.feature_weights) == (1.0, 7.0, 2.0)


@pytest.mark.slow
def test_rows_of_weight_0_mark_nothing():
    X = np.array([[1.0, 2.0], [2.0, np.nan], [3.0, 1.0], [4.0, 5.0]])
    model = bdtppl.GreedyModalTreeRegressor().fit(X, [0, 1, 2, 3], [1, 0, 1, 1])
    assert model.schema_.features == ("x0", "x1")


def test_parts_and_memory_mark_alike():
    hue = np.array([None, "red"] * 20, object)
    X, y = pd.DataFrame({"hue": hue, "a": np.arange(40.0)}), np.arange(40) > 13
    for drop_first in (False, True):
        limits = {"bins": 3, "max_depth": 2, "method": "boxes", "drop_first": drop_first}
        model = bdtppl.ExactTreeClassifier(**limits)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a single level has no cut
            whole = clone(model).fit(X, y)
            parts = clone(model).fit(lambda: iter([(X[:25], y[:25]), (X[25:], y[25:])]))
        assert parts.schema_ == whole.schema_
        assert parts.log_evidence_ == whole.log_evidence_


def test_a_column_of_one_value_and_none_is_not_called_without_a_cut():
    X = {"a": [1.0] * 20 + [np.nan] * 20}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = bdtppl.GreedyModalTreeClassifier().fit(X, np.arange(40) < 20)
    assert model.rules().startswith("not a=missing")
