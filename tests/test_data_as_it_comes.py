"""Every estimator takes tables as they come, or says in one sentence what it cannot take."""

import datetime

import numpy as np
import pandas as pd
import polars as pl
import pytest
from tiers import in_turn, slow_but

import bdtppl
from bdtppl.models.data.schema import Schema, TableWarning

SETTINGS = {
    "BART": {"trees": 5, "chains": 2, "warmup": 20, "draws": 10},
    "DCCTree": {"iterations": 1, "initial_trees": 4, "chains": 2, "warmup": 20, "draws": 10},
    "ExactTree": {"bins": 3, "max_depth": 2, "draws": 20},
    "GFlowNetTree": {"grid": 3, "max_depth": 2, "steps": 20, "draws": 20},
    "GreedyModalTree": {},
    "MAPTree": {"bins": 3, "time_limit": 60},
    "MetropolisTree": {"chains": 2, "temperatures": 2, "warmup": 100, "draws": 20, "thin": 5},
    "ParticleTree": {"particles": 20, "runs": 2},
    "RJHMCTree": {"chains": 2, "burn_in": 20, "warmup": 20, "draws": 20},
}
SOFT = ("DCCTree", "RJHMCTree")
NAMES = {name for name in bdtppl.__all__ if name.endswith(("Classifier", "Regressor"))}
ESTIMATORS = sorted(NAMES - {"BCFRegressor"})  # which needs a treatment: see test_causal.py
FITTED = in_turn(SETTINGS)
FAST = ("ExactTreeRegressor",)
LIBRARIES = {"pandas": pd.DataFrame, "polars": pl.DataFrame}
NUM_ROWS = 48

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # of chains that are too short


def make(name):
    stem = name.removesuffix("Classifier").removesuffix("Regressor")
    few = {"max_splits": 1} if stem in SOFT else {}
    return getattr(bdtppl, name)(**SETTINGS[stem], **few, random_state=0)


def columns(library, *, missing):
    """A table with a column of each kind, by a name that is no identifier."""
    rng = np.random.default_rng(0)
    size = rng.normal(size=NUM_ROWS)
    count = rng.integers(0, 9, NUM_ROWS)
    hue = rng.choice(["red", "green", "blue"], NUM_ROWS).tolist()
    grade = rng.choice(["low", "high"], NUM_ROWS).tolist()
    is_on = (rng.random(NUM_ROWS) < 0.5).tolist()
    size = size.tolist()
    if missing:
        size[3] = hue[5] = is_on[7] = None
    levels = ["low", "mid", "high"]
    if library == "pandas":
        frame = pd.DataFrame(
            {
                "size (cm)": size,
                "a count": count,
                "hue": hue,
                "grade": pd.Categorical(grade, categories=levels, ordered=True),
                "is on": pd.array(is_on, dtype="boolean"),
            }
        )
    else:
        frame = pl.DataFrame(
            {"size (cm)": size, "a count": count, "hue": hue, "grade": grade, "is on": is_on},
            schema_overrides={"grade": pl.Enum(levels)},
        )
    return frame, np.where(np.array(grade) == "high", 2.0, 0.0) + rng.normal(0, 0.3, NUM_ROWS)


FEATURES = (
    "size (cm)",
    "a count",
    "hue=blue",
    "hue=green",
    "hue=red",
    "grade",
    "is on=True",
)
MARKS = ("size (cm)=missing", "hue=missing", "is on=missing")


def target(name, y):
    return np.where(y > 1, "yes", "no") if name.endswith("Classifier") else y


def test_every_estimator_of_the_suite_is_tried():
    assert {name.removesuffix("Classifier").removesuffix("Regressor") for name in ESTIMATORS} == {
        *SETTINGS
    }


# ---------------------------------------------------------------------------- columns of all kinds


@pytest.mark.parametrize("name", slow_but(FAST, FITTED, few=4))
def test_kinds_of_columns_are_read_and_keep_their_names(name):
    is_soft = name.startswith(SOFT)
    fitted = []
    for library in LIBRARIES:
        frame, y = columns(library, missing=not is_soft)
        weights = 1 + np.arange(NUM_ROWS) % 2
        model = make(name).fit(frame, target(name, y), sample_weight=weights)
        features = FEATURES if is_soft else FEATURES + MARKS
        assert model.schema_.features == features
        assert model.feature_names_in_.tolist() == list(frame.columns)
        summary = model.summary()
        assert summary["rows"] == weights.sum()
        shares = next(v for k, v in summary.items() if k in ("input_weights", *SHARES))
        assert set(shares) == set(frame.columns if model.trees_are == "sums" else features)
        predicted = model.predict(frame)
        assert predicted.shape == (NUM_ROWS,)
        fitted.append(predicted)
        if model.trees_are == "hard":
            check_rules_and_figures(model, frame)
    np.testing.assert_array_equal(*fitted)  # the libraries' tables are one


SHARES = ("split_inclusion", "feature_importance")


def check_rules_and_figures(model, frame):
    import matplotlib

    matplotlib.use("Agg")

    used = [model.schema_.features[f] for f in model.map_tree_.feature if f >= 0]
    assert used  # the grade tells the target
    text = model.rules() + "".join(model.explain(frame))
    drawn = bdtppl.plot_tree(model)
    shown = " ".join(t.get_text().replace("\n", " ") for t in drawn.texts)
    assert all(each in text for each in used)
    assert all(each in shown for each in used)
    if not hasattr(model, "classes_"):
        ax = bdtppl.plot_predictive(model, feature="grade")
        assert [label.get_text() for label in ax.get_xticklabels()] == ["low", "mid", "high"]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("name", ESTIMATORS)
def test_what_is_missing_is_read_or_refused(name, library):
    """Soft trees refuse at once; hard ones are fitted in the test above."""
    if not name.startswith(SOFT):
        assert make(name).__sklearn_tags__().input_tags.allow_nan
        return
    frame, y = columns(library, missing=True)
    message = (
        r"Column 'size \(cm\)', row 3: the value is missing \(NaN\); soft trees have no rule for "
        r"missing values\. Impute them, or use a hard tree\."
    )
    with pytest.raises(ValueError, match=message):
        make(name).fit(frame, target(name, y))


@pytest.mark.slow
def test_a_value_that_was_never_missing_is_read_as_the_usual_one():
    frame, y = columns("pandas", missing=False)
    model = make("GreedyModalTreeRegressor").fit(frame, y)
    gap, filled = frame.copy(), frame.copy()
    gap.loc[2, ["hue", "size (cm)"]] = None
    filled.loc[2, "hue"] = frame["hue"].mode()[0]
    filled.loc[2, "size (cm)"] = frame["size (cm)"].quantile(0.5, "lower")
    with pytest.warns(TableWarning, match=r"missing \(NaN\) in 'size \(cm\)' and 'hue'"):
        found = model.predict(gap)
    np.testing.assert_array_equal(found, model.predict(filled))


# Soft trees are compared by their densities (`tests/test_weights.py`): chains in single precision
# go apart by rounding.
@pytest.mark.parametrize("name", slow_but(FAST, [n for n in FITTED if not n.startswith(SOFT)]))
def test_a_row_that_counts_twice_is_two_rows(name):
    frame, y = columns("pandas", missing=False)
    count, goal = 1 + np.arange(NUM_ROWS) % 3, target(name, y)
    weighted = make(name).fit(frame, goal, sample_weight=count)
    rows = np.repeat(np.arange(NUM_ROWS), count)
    repeated = make(name).fit(frame.iloc[rows], goal[rows])
    kind = "predict_proba" if name.endswith("Classifier") else "predict"
    ours, theirs = (getattr(model, kind)(frame) for model in (weighted, repeated))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


# ----------------------------------------------------------------------------- dates and the like

DAY = datetime.date(2024, 2, 29)
NOON = datetime.datetime(2024, 2, 29, 12)
DATES = {
    "date": [DAY] * NUM_ROWS,
    "datetime": [NOON] * NUM_ROWS,
    "datetime, some missing": [NOON, None] * (NUM_ROWS // 2),
    "zoned": [NOON.replace(tzinfo=datetime.UTC)] * NUM_ROWS,
    "duration": [datetime.timedelta(hours=1)] * NUM_ROWS,
    "time": [NOON.time()] * NUM_ROWS,
    "text": ["2024-02-29", "01.03.2024", None] * (NUM_ROWS // 3),
}


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("kind", DATES)
@pytest.mark.parametrize("name", ESTIMATORS)
def test_dates_are_refused_with_advice(name, kind, library):
    frame = LIBRARIES[library]({"size": np.arange(48.0), "day": DATES[kind]})
    with pytest.raises(
        ValueError, match=r"Column 'day' contains dates or times .*days since the fir"
    ):
        make(name).fit(frame, target(name, np.arange(48.0) / 20))


@pytest.mark.parametrize("kind", ["Classifier", "Regressor"])
def test_dates_are_no_targets(kind):
    days = np.array([DAY, DAY + datetime.timedelta(1)] * 2, "M8[D]")
    stamps = pd.Series(days).dt.tz_localize("UTC")
    spans = days - days[0]
    for y in (days, pd.Series(days), pl.Series(days), days.astype(object), days.tolist(), stamps):
        with pytest.raises(
            ValueError, match=r"y contains dates or times .*days since the first one"
        ):
            make("GreedyModalTree" + kind).fit(np.eye(4), y)
    for y in (spans, pd.Series(spans), spans.tolist(), pd.period_range("2024", periods=4)):
        with pytest.raises(ValueError, match="y contains dates or times"):
            make("GreedyModalTree" + kind).fit(np.eye(4), y)


def test_identifiers_as_classes_are_warned_of():
    labels = [f"Ann {row}" for row in range(NUM_ROWS)]
    X = np.arange(float(NUM_ROWS))[:, None]
    with pytest.warns(TableWarning, match="y has 48 classes in 48 rows, like row identifiers"):
        make("GreedyModalTreeClassifier").fit(X, labels)


def test_dates_in_other_clothes_are_refused():
    periods = pd.period_range("2024-01", periods=4, freq="M")
    for column in (periods, np.array(periods.to_timestamp()), [DAY] * 4):
        for table in ({"day": np.asarray(column)}, pd.DataFrame({"day": column})):
            with pytest.raises(ValueError, match="Column 'day' contains dates or times"):
                Schema.read(table)


def test_what_is_no_date_is_a_category_and_a_declared_one_may_be_anything():
    days = ["2024-02-29", "2024-03-01"]
    for column in ([*days, "never"], pd.Categorical(days)):
        schema, _ = Schema.read(pd.DataFrame({"day": column}))
        assert schema.columns[0].levels == tuple(column)


# ------------------------------------------------------------------------- columns, without a fit


@pytest.mark.parametrize(
    ("column", "levels", "values"),
    [
        (pd.array([1, None, 3], dtype="Int64"), None, [[1, np.nan, 3]]),
        (pd.array([0.5, None, 3], dtype="Float32"), None, [[0.5, np.nan, 3]]),
        (pd.array(["b", None, "a"], dtype="string"), ("a", "b"), [[1, np.nan, 0]]),
        (pd.Series(["b", None, "a"], dtype=object), ("a", "b"), [[1, np.nan, 0]]),
        (pd.array([True, None, False], dtype="boolean"), ("False", "True"), [[1, np.nan, 0]]),
        (pd.Series([True, None, False], dtype=object), ("False", "True"), [[1, np.nan, 0]]),
        (pd.Categorical([7, None, 3]), ("3", "7"), [[1, np.nan, 0]]),
        (pd.Series([None, None, None], dtype=float), None, [[np.nan] * 3]),
        (pl.Series([1, None, 3]), None, [[1, np.nan, 3]]),
        (pl.Series(["b", None, "a"]), ("a", "b"), [[1, np.nan, 0]]),
        (pl.Series(["b", None, "a"], dtype=pl.Categorical), ("a", "b"), [[1, np.nan, 0]]),
        (pl.Series([True, None, False]), ("False", "True"), [[1, np.nan, 0]]),
        (pl.Series([None, None, None]), None, [[np.nan] * 3]),
    ],
    ids=str,
)
def test_a_column_is_read_by_its_kind(column, levels, values):
    frame = (pl if isinstance(column, pl.Series) else pd).DataFrame({"c": column})
    schema, matrix = Schema.read(frame)
    assert schema.columns[0].levels == levels
    np.testing.assert_array_equal(matrix.T[: len(values)], values)
    for mark in matrix.T[len(values) :]:
        np.testing.assert_array_equal(mark, np.isnan(values[0]))
    np.testing.assert_array_equal(schema.transform(frame), matrix)


@pytest.mark.parametrize("column", [[[1], [2]], [{"a": 1}, {"a": 2}], [1j, 2j]])
@pytest.mark.parametrize("library", LIBRARIES)
def test_what_is_no_column_of_values_is_named(column, library):
    if library == "polars" and column == [1j, 2j]:
        pytest.skip("polars has no complex numbers")
    with pytest.raises((ValueError, TypeError), match="Column 'c'"):
        Schema.read(LIBRARIES[library]({"c": column}))


# ------------------------------------------------------------------------------ targets and weights


@pytest.mark.parametrize(
    "y",
    [
        pd.Series(["u", "v"] * 10, dtype="string"),
        pd.Series(["u", "v"] * 10).astype("category"),
        pd.Series([True, False] * 10, dtype="boolean"),
        pl.Series(["u", "v"] * 10),
        pl.Series(["u", "v"] * 10, dtype=pl.Categorical),
        pl.Series([True, False] * 10),
    ],
    ids=lambda y: f"{type(y).__module__.split('.')[0]} {y.dtype}",
)
def test_targets_are_read_from_frames(y):
    X = np.arange(20.0)[:, None] % 2
    model = bdtppl.GreedyModalTreeClassifier().fit(X, y)
    assert model.predict(X).tolist() == y.to_list()


@pytest.mark.parametrize("library", LIBRARIES)
def test_numbers_are_targets_of_regression_in_any_frame(library):
    X = np.arange(20.0)[:, None] % 2
    frame = LIBRARIES[library]({"y": X[:, 0]})
    model = bdtppl.GreedyModalTreeRegressor().fit(X, frame["y"], sample_weight=1 + frame["y"])
    assert model.summary()["rows"] == 30


@pytest.mark.parametrize("name", slow_but(FAST, ESTIMATORS))
def test_weights_are_any_numbers_and_a_row_without_weight_is_absent(name):
    frame, y = columns("pandas", missing=False)
    weights, goal = np.arange(NUM_ROWS) % 4 / 3, target(name, y)
    weighted = make(name).fit(frame, goal, sample_weight=weights)
    kept = weights > 0
    present = make(name).fit(frame[kept], goal[kept], sample_weight=weights[kept])
    kind = "predict_proba" if name.endswith("Classifier") else "predict"
    ours, theirs = (getattr(model, kind)(frame) for model in (weighted, present))
    np.testing.assert_array_equal(ours, theirs)
    assert weighted.summary()["pseudo_weight"] == pytest.approx(weights.sum())
    assert weighted.summary()["rows"] == kept.sum()
    assert "pseudo-likelihood" in str(weighted.summary())


@pytest.mark.parametrize("name", ["GFlowNetTreeClassifier", "BARTClassifier"])
def test_work_does_not_grow_with_weights(name):
    X, y = np.arange(4.0)[:, None], [0, 0, 1, 1]
    model = make(name).fit(X, y, sample_weight=np.full(4, 10**8))
    assert len(model.posterior_.y) == 4
    assert model.predict(X).tolist() == y


def test_large_weights_leave_nothing_open():
    X, y = np.arange(4.0)[:, None], [0, 0, 1, 1]
    model = bdtppl.ExactTreeClassifier(bins=None).fit(X, y, sample_weight=np.full(4, 10**8))
    np.testing.assert_allclose(model.predict_proba(X)[:, 1], [0, 0, 1, 1], atol=1e-7)
