"""Rules that part missing from present: a feature says where the values of a column are missing."""

import json

import numpy as np
import pandas as pd
import pytest
from tiers import slow_but

import bdtppl
from bdtppl.export import to_sklearn
from bdtppl.models.constraints import Constraints
from bdtppl.models.data.schema import Column, Schema

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
    assert schema.features == ("hue=red", "hue=no value")
    np.testing.assert_array_equal(matrix, [[0, 0], [1, 0], [np.nan, 1]])


def test_scikit_learn_asks_the_column_itself():
    X, y = table()
    numbers = X[["number"]]
    model = bdtppl.GreedyModalTreeClassifier().fit(numbers, y)
    tree = to_sklearn(model)
    assert tree.n_features_in_ == 1
    np.testing.assert_array_equal(tree.predict(numbers), y)
