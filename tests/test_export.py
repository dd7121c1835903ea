"""Trees written for other programs predict what the tree itself predicts."""

import ast
import json
import re
import sqlite3
import subprocess
import sys
from contextlib import closing

import jax
import numpy as np
import onnxruntime
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.tree import plot_tree as sklearn_plot_tree

from bdtppl import (
    DCCTreeRegressor,
    ExactTreeClassifier,
    ExactTreeRegressor,
    GreedyModalTreeClassifier,
    GreedyModalTreeRegressor,
    load,
)
from bdtppl.export import (
    shap_values,
    to_json,
    to_markdown,
    to_onnx,
    to_python,
    to_sklearn,
    to_sql,
)
from bdtppl.export.scikit_learn import single_threshold
from bdtppl.models.hard.tree import Tree, route
from bdtppl.models.leaves import DirichletCategorical, NormalInverseGamma
from bdtppl.models.priors import LeafPenalty

NASTY = 'he said "no" \\ it\'s; -- x'  # of names and levels: all that quoting may stumble over
LABELS = ["it's", 'a "b" \\n', "nö|`*"]


def table(num_rows=150, seed=0, *, missing=True):
    """A frame with awkward names, categories and missing values, and classes that depend on it."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            NASTY: rng.normal(size=num_rows).round(3),
            "class": rng.integers(0, 4, num_rows),
            "1/x %": rng.choice([1e-12, 0.1, 1e17], num_rows),
            "hue": pd.Categorical(
                rng.choice(["it's red", NASTY, "5"], num_rows),
                categories=["it's red", NASTY, "5", "never"],
            ),
            "is on": rng.random(num_rows) < 0.5,
        }
    )
    effect = (
        (frame[NASTY] > 0.2).astype(int)
        + (frame["hue"] == NASTY)
        + (frame["class"] > 1) * frame["is on"]
    ).to_numpy()
    if missing:
        frame.loc[rng.random(num_rows) < 0.15, NASTY] = np.nan
        frame.loc[rng.random(num_rows) < 0.15, "hue"] = None
    y = np.where(rng.random(num_rows) < 0.1, rng.integers(0, 3, num_rows), np.minimum(effect, 2))
    return frame, y


def tree_value(model, X, rank=0):
    """What the ranked tree alone predicts at rows: route, then the leaves' posterior means."""
    ranked = model.k_best(rank + 1)
    with jax.enable_x64(True):
        value = np.asarray(model.leaf_.posterior_mean(ranked.statistics[rank]))
    return value[route(ranked.trees[rank], model.schema_.transform(X))]


@pytest.fixture(scope="module", params=["classes", "numbers"])
def fitted(request):
    frame, y = table()
    if request.param == "classes":
        model = GreedyModalTreeClassifier(random_state=0).fit(frame, np.array(LABELS)[y])
    else:
        y = y + np.random.default_rng(1).normal(0, 0.2, len(y))
        model = GreedyModalTreeRegressor(random_state=0).fit(frame, y)
    assert model.map_tree_.num_leaves > 6
    used = {model.design_.names[f].split("=")[0] for f in model.map_tree_.feature if f >= 0}
    assert {NASTY, "hue"} <= used
    return model, frame


def expected(model, X, rank=0):
    value = tree_value(model, X, rank)
    return value if value.ndim == 1 else model.classes_[value.argmax(axis=1)]


# ---------------------------------------------------------------------------------------- source


def run_source(source, frame, name="predict"):
    """Run generated source in a process of its own, without site packages; predictions or errors.

    Values travel as source too, so that they are Python's own.
    """
    rows = [
        {key: None if pd.isna(value) else value for key, value in row.items()}
        for row in frame.astype(object).to_dict("records")
    ]
    program = f"""{source}
def tried(row):
    try:
        return {name}(row)
    except ValueError as error:
        return "refused: " + str(error)
print(ascii([tried(row) for row in {rows!r}]))
"""
    result = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0, result.stderr
    return ast.literal_eval(result.stdout)


@pytest.mark.slow
def test_python_source_predicts_what_the_tree_predicts(fitted):
    model, frame = fitted
    source = to_python(model)
    assert "import" not in source.replace("it imports nothing", "")
    assert run_source(source, frame) == expected(model, frame).tolist()


def test_python_source_gives_the_probability_of_a_class_by_another_name():
    frame, y = table()
    model = GreedyModalTreeClassifier(random_state=0).fit(frame, np.array(LABELS)[y])
    source = to_python(model, name="chance", probability_of=LABELS[1])
    column = model.classes_.tolist().index(LABELS[1])
    found = run_source(source, frame, "chance")
    assert found == tree_value(model, frame)[:, column].tolist()


@pytest.mark.slow
@pytest.mark.parametrize(("column", "value"), [("class", None), ("hue", "unheard of")])
def test_rows_that_the_model_would_refuse_are_refused(fitted, column, value):
    """By those, and only those, whose way to the leaf asks for the column."""
    model, frame = fitted
    asked = [column in path.rpartition(":")[0] for path in model.explain(frame)]
    assert any(asked)
    odd = frame.assign(**{column: pd.Series([value] * len(frame), dtype=object)})
    answers = run_source(to_python(model), odd)
    assert [str(answer).startswith("refused: No rule says") for answer in answers] == asked
    assert [answer is None for answer in run_sql(to_sql(model), odd)] == asked


@pytest.mark.filterwarnings("ignore:No cut")
def test_a_single_leaf_is_written_too():
    model = ExactTreeRegressor().fit([[1.0], [1.0]], [1.0, 3.0])
    value = tree_value(model, [[1.0]])[0]
    assert run_source(to_python(model), pd.DataFrame({"x0": [7.0]})) == [value]
    assert to_sql(model) == repr(float(value))
    assert json.loads(to_json(model))["tree"] == {"prediction": value, "rows": 2}
    assert to_markdown(model).splitlines()[-1] == f"| always | {value:.4g} | 2 |"


@pytest.mark.parametrize("labels", [[False, True], [-3, 7], [1.0, 2.0]])
def test_labels_are_written_as_what_they_are(labels):
    y = np.array(labels)[[0, 0, 1, 1] * 5]
    model = ExactTreeClassifier().fit([[1.0], [2.0], [3.0], [4.0]] * 5, y)
    frame = pd.DataFrame({"x0": [1.0, 4.0]})
    assert run_source(to_python(model), frame) == labels
    assert [type(v) for v in run_source(to_python(model), frame)] == [type(v) for v in labels]
    assert run_sql(to_sql(model), frame) == labels
    assert to_sklearn(model).predict([[1.0], [4.0]]).tolist() == labels


# ------------------------------------------------------------------------------------------- SQL


def run_sql(expression, frame):
    """Let SQLite evaluate an expression on each row, in order."""
    names = ", ".join('"' + name.replace('"', '""') + '"' for name in frame.columns)
    rows = [
        [None if pd.isna(v) else str(v) if isinstance(v, bool) else v for v in row]
        for row in frame.astype(object).to_numpy().tolist()
    ]
    marks = ", ".join("?" * len(frame.columns))
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute(f"CREATE TABLE t ({names})")
        database.executemany(f"INSERT INTO t VALUES ({marks})", rows)
        found = database.execute(f"SELECT {expression} FROM t ORDER BY rowid").fetchall()
    return [value for (value,) in found]


def test_sql_predicts_what_the_tree_predicts(fitted):
    model, frame = fitted
    expression = to_sql(model)
    assert run_sql(expression, frame) == expected(model, frame).tolist()
    assert expression.count("WHEN") == model.map_tree_.num_leaves


def test_sql_gives_the_probability_of_a_class():
    frame, y = table()
    model = GreedyModalTreeClassifier(random_state=0).fit(frame, np.array(LABELS)[y])
    found = run_sql(to_sql(model, probability_of=model.classes_[2]), frame)
    assert found == tree_value(model, frame)[:, 2].tolist()


# ------------------------------------------------------------------------------ Markdown and JSON


def test_markdown_has_a_line_for_each_leaf(fitted):
    model, _ = fitted
    title, empty, head, rule, *lines = to_markdown(model).splitlines()
    assert title.startswith(f"**{type(model).__name__}, most probable tree (probability among")
    assert empty == ""
    assert len(lines) == model.map_tree_.num_leaves
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in [head, rule, *lines]]
    assert {len(each) for each in cells} == {4 if hasattr(model, "classes_") else 3}
    assert sum(int(each[-1]) for each in cells[2:]) == model.design_.num_rows
    assert "or missing)" in "".join(lines)


def test_markdown_joins_conditions_and_escapes_names():
    X = {"a|b": [1.0, 2.0, 3.0, 4.0] * 9}
    model = ExactTreeClassifier().fit(X, ["<i>", "no", "<i>", "no"] * 9)
    text = to_markdown(model)
    assert r"| 1.5 <= a\|b < 2.5 | no | 0.909 | 9 |" in text
    assert r"| a\|b < 1.5 | \<i\> |" in text


def walk(node, row, classes):
    while "column" in node:
        value = row[node["column"]]
        if value is None:
            side = node["missing"]
        elif "level" in node:
            side = "right" if str(value) == node["level"] else "left"
        elif node["below"] is None:
            side = {"left": "right", "right": "left"}[node["missing"]]
        else:
            side = "left" if value < node["below"] else "right"
        node = node[side]
    return node["prediction"]


def test_json_can_be_walked(fitted):
    model, frame = fitted
    document = json.loads(to_json(model))
    assert document["classes"] == getattr(model, "classes_", np.array(None)).tolist()
    assert [column["name"] for column in document["columns"]] == frame.columns.tolist()
    records = [
        {key: None if pd.isna(value) else value for key, value in row.items()}
        for row in frame.astype(object).to_dict("records")
    ]
    found = [walk(document["tree"], row, document["classes"]) for row in records]
    assert found == expected(model, frame).tolist()


def test_other_ranks_are_other_trees():
    X = np.arange(8.0)[:, None]
    model = ExactTreeRegressor().fit(X, np.array([0, 0, 0, 0, 1, 1, 1, 1.0]) + 0.01 * X[:, 0])
    frame = pd.DataFrame({"x0": X[:, 0]})
    sources = [to_python(model, rank) for rank in range(3)]
    assert len(set(sources)) == 3
    for rank, source in enumerate(sources):
        assert run_source(source, frame) == tree_value(model, X, rank).tolist()
    assert "tree no. 3" in sources[2]


# ---------------------------------------------------------------------------------- scikit-learn


def test_scikit_learn_predicts_what_the_tree_predicts(fitted):
    model, frame = fitted
    tree = to_sklearn(model)
    X = model.schema_.transform(frame)
    np.testing.assert_array_equal(tree.predict(X), expected(model, frame))
    if hasattr(model, "classes_"):
        np.testing.assert_array_equal(tree.predict_proba(X), tree_value(model, frame))
    assert tree.get_n_leaves() == model.map_tree_.num_leaves
    assert tree.get_depth() == model.map_tree_.depth
    assert tree.tree_.weighted_n_node_samples[0] == len(frame)
    np.testing.assert_allclose(tree.feature_importances_.sum(), 1)
    import matplotlib

    matplotlib.use("Agg")
    assert len(sklearn_plot_tree(tree)) >= tree.tree_.node_count


@pytest.mark.slow
def test_scikit_learn_knows_the_names_of_columns_of_numbers():
    frame = pd.DataFrame({"a b": [1.0, 2.0, 3.0, 4.0] * 5, "c": 2.0 * np.arange(20)})
    tree = to_sklearn(ExactTreeRegressor().fit(frame, [0.0, 0.0, 9.0, 9.0] * 5))
    assert tree.feature_names_in_.tolist() == ["a b", "c"]
    assert tree.predict(frame).shape == (20,)


def parts_alike(found, threshold, values):
    """Whether scikit-learn's rule at one threshold is ours at another, missing values apart."""
    values = values[~np.isnan(values)]
    return ((values.astype(np.float32) <= found) == (values < threshold)).all()


@given(
    st.floats(-1e6, 1e6) | st.sampled_from([np.inf, -np.inf, 0.1, 16_777_217.0]),
    st.lists(st.sampled_from([0.1, np.nan, -0.0]) | st.floats(-1e6, 1e6), min_size=2, max_size=5),
    st.lists(st.sampled_from([-1, 0, 1, 3, 10**7]), min_size=5, max_size=5),
)
def test_thresholds_part_the_training_rows_in_single_precision(threshold, values, steps):
    values = np.array(values)
    if np.isfinite(threshold):  # and values a few floats away from it
        near = threshold + np.array(steps) * np.spacing(threshold)
        values = np.concatenate([values, near])
    try:
        found = single_threshold(threshold, values, "x")
    except ValueError:
        sides = [values[values < threshold].max(), values[values >= threshold].min()]
        assert np.float32(sides[0]) == np.float32(sides[1])
        return
    assert found.dtype == np.float32
    assert parts_alike(found, threshold, values)


def test_a_threshold_taken_as_it_is_would_send_rows_astray():
    """The twin: 0.0999999999 is 0.1 in single precision."""
    values = np.array([0.0999999999, 0.3])
    assert parts_alike(single_threshold(0.1, values, "x"), 0.1, values)
    assert not parts_alike(np.nextafter(0.1, -np.inf), 0.1, values)


def test_values_that_are_one_in_single_precision_are_refused():
    X = np.repeat([1e9, 1e9 + 1], 20)[:, None]
    model = ExactTreeRegressor(bins=None).fit(X, np.repeat([0.0, 9.0], 20))
    with pytest.raises(ValueError, match=r"Column 'x0': .*one number in single precision.*offset"):
        to_sklearn(model)


@pytest.mark.filterwarnings("ignore:No cut")
def test_rows_of_a_sparse_table_keep_their_columns():
    from scipy.sparse import csr_array

    X = np.zeros((40, 6))
    X[:20, 4] = 2.0
    model = GreedyModalTreeClassifier().fit(csr_array(X), np.repeat([0, 1], 20))
    tree = to_sklearn(model)
    assert tree.n_features_in_ == 6
    np.testing.assert_array_equal(tree.predict(X), np.repeat([0, 1], 20))


# ------------------------------------------------------------------------------- ONNX and SHAP


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_onnx_predicts_what_the_tree_predicts(fitted):
    model, frame = fitted
    X = model.schema_.transform(frame).astype(np.float32)
    content = to_onnx(model).SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    found = session.run(None, {"X": X})
    if hasattr(model, "classes_"):
        assert found[0].tolist() == expected(model, frame).tolist()
        np.testing.assert_allclose(found[1], tree_value(model, frame), rtol=1e-6)
    else:
        np.testing.assert_allclose(found[0][:, 0], tree_value(model, frame), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_shap_values_add_up_to_the_posterior_mean(fitted):
    fitted_model, frame = fitted
    kind = type(fitted_model)
    y = fitted_model._as_targets(fitted_model.posterior_.y)
    model = kind(num_roots=4, random_state=0).fit(frame, y)  # several trees, weighted
    assert len(model.posterior_.ranked.probability) > 1
    explained = shap_values(model, frame[:20])
    total = explained.base_values + explained.values.sum(axis=1)
    predicted = model.predict_proba if hasattr(model, "classes_") else model.predict
    np.testing.assert_allclose(total, predicted(frame[:20]), atol=1e-9)
    assert list(explained.feature_names) == list(model.design_.names)
    unused = ~np.isin(np.arange(len(model.design_.names)), model.posterior_.trees.feature)
    assert (explained.values[:, unused] == 0).all()
    # The twin: trees counted alike give another mean.
    heavier = model.posterior_.ranked.probability
    assert np.ptp(heavier) > 0.01


@pytest.mark.filterwarnings("ignore")
def test_one_feature_has_all_that_moves_the_prediction():
    X = np.array([[1.0], [2.0], [3.0], [4.0]] * 5)
    model = GreedyModalTreeRegressor().fit(X, [0.0, 0.0, 9.0, 9.0] * 5)
    explained = shap_values(model, X)
    mean = model.predict(X).mean()
    np.testing.assert_allclose(explained.base_values, mean, atol=1e-9)
    np.testing.assert_allclose(explained.values[:, 0], model.predict(X) - mean, atol=1e-9)


@pytest.mark.filterwarnings("ignore")
def test_shap_values_of_targets_of_many_magnitudes_add_up():
    X = np.arange(51.0)[:, None]
    leaf = NormalInverseGamma(0.0, 1e-3, 1.0, 1e-6)
    model = GreedyModalTreeRegressor(leaf=leaf).fit(X, np.exp(X[:, 0]))
    explained = shap_values(model, X)
    total = explained.base_values + explained.values.sum(axis=1)
    np.testing.assert_allclose(total, model.predict(X), atol=1e-9 * total.max())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_shap_values_without_precision_are_refused():
    X, y = np.repeat(np.eye(124), 8, axis=0), np.repeat(np.arange(124) % 2, 8)
    leaf = DirichletCategorical.symmetric(2, 0.01)
    model = GreedyModalTreeClassifier(prior=LeafPenalty(0.0), leaf=leaf).fit(X, y)
    assert model.posterior_.ranked.trees.depth.max() > 55
    with pytest.raises(ValueError, match=r"SHAP values of row \d+ miss .* levels, .* max_depth"):
        shap_values(model, X)


# -------------------------------------------------------------------------------- what is refused


def test_means_beyond_single_precision_are_refused():
    X, y = [[1.0], [2.0]] * 10, [0.0, -2e39] * 10
    model = GreedyModalTreeRegressor().fit(X, y)
    with pytest.raises(ValueError, match=r"A leaf predicts .*e\+39 .* single precision"):
        to_onnx(model)


WRITERS = [to_json, to_markdown, to_onnx, to_python, to_sklearn, to_sql]


@pytest.mark.parametrize("write", [*WRITERS, lambda model: shap_values(model, [[1.0]])])
def test_what_is_no_hard_tree_is_refused(write):
    for model, message in (
        (DCCTreeRegressor(), "DCCTreeRegressor has soft trees, .*cannot be written as rules"),
        ("tree", "estimator of hard trees is needed; got str"),
        (ExactTreeRegressor, "estimator of hard trees is needed; got the class"),
    ):
        with pytest.raises(TypeError, match=message):
            write(model)


@pytest.mark.parametrize("write", WRITERS[3:])
def test_hyperplanes_are_refused(write):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 2))
    y = (X[:, 0] + X[:, 1] > 0).astype(int)
    model = GreedyModalTreeClassifier(hyperplanes=4, random_state=0).fit(X, y)
    with pytest.raises(ValueError, match=r"splits by a hyperplane.*fit with hyperplanes=0"):
        write(model)


def test_wrong_arguments_are_refused(fitted):
    model, _ = fitted
    with pytest.raises(ValueError, match="probability_of must be a class of the model; got 'x'"):
        to_sql(model, probability_of="x")
    for name in ("no name", "class", 3):
        with pytest.raises(ValueError, match="name must be one that a function can have"):
            to_python(model, name=name)
    with pytest.raises(ValueError, match="rank must be"):
        to_json(model, rank=-1)


@pytest.mark.parametrize(("write", "package"), [(to_onnx, "skl2onnx"), (shap_values, "shap")])
def test_a_package_that_is_not_installed_is_named(monkeypatch, fitted, write, package):
    module = sys.modules[write.__module__]
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    arguments = (fitted[1],) if write is shap_values else ()
    with pytest.raises(ImportError, match=rf"{package}.* not installed: run .*bdtppl\[export\]"):
        write(fitted[0], *arguments)


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        (1_700_000_000 + np.arange(40) * 10.0, "1700000100"),
        (2000 + np.arange(40) * 1e-3, "2000.01"),
        (1e7 + np.arange(40.0), "10000010"),
        (np.arange(40) / 3, "3.16667"),
    ],
)
def test_written_thresholds_part_the_rows_as_the_tree_does(values, shown):
    model = GreedyModalTreeClassifier(max_depth=1).fit({"t": values}, np.arange(40) >= 10)
    for text in (model.rules(), model.explain({"t": values[:1]})[0], to_markdown(model)):
        threshold = re.search(r"t < ([-\d.e+]+)", text)[1]
        assert threshold == shown
        assert ((values < float(threshold)) == (np.arange(40) < 10)).all()


def test_a_tree_without_a_design_shows_the_threshold_itself():
    tree = Tree.from_nested({"feature": 0, "threshold": 2000.0095, "left": {}, "right": {}})
    assert tree.rules(["t"]).startswith("t < 2000.0095\n")


@pytest.mark.filterwarnings("ignore:.*Pareto")
def test_ordered_categories_are_written_as_sets_of_levels(tmp_path):
    sizes = ("S", "M", "L", "XL")
    place = np.arange(80) % 4
    frame = pd.DataFrame(
        {
            "size": pd.Categorical(np.array(sizes)[place], sizes, ordered=True),
            "sex": np.array(["female", "male"])[np.arange(80) // 4 % 2],
        }
    )
    y = np.where(place >= 2, 3.0, 0.0) + (frame["sex"] == "male") * (place >= 2)
    model = GreedyModalTreeRegressor().fit(frame, y)
    assert model.rules().splitlines()[0].startswith("size < L: ")
    assert "sex=female: " in model.rules()
    assert """"size" IN ('L', 'XL')""" in to_sql(model)
    assert json.loads(to_json(model))["tree"]["levels"] == ["L", "XL"]
    scope = {}
    exec(to_python(model), scope)
    for _, row in frame.head(8).iterrows():
        predicted = model.predict(pd.DataFrame([row]))[0]
        assert scope["predict"](row) == pytest.approx(predicted)
    model.save(tmp_path / "kept")
    np.testing.assert_array_equal(load(tmp_path / "kept").predict(frame), model.predict(frame))
