"""Sparse tables: the tree, its scores and its predictions are those of the dense table."""

import tracemalloc
from dataclasses import replace
from itertools import cycle, product

import numpy as np
import pytest
from scipy import sparse
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.utils import get_tags
from tiers import slow_but

import bdtppl
from bdtppl import (
    ExactTreeClassifier,
    GreedyModalTreeClassifier,
    GreedyModalTreeRegressor,
    plot_boundaries,
    plot_predictive,
    plot_tree,
)
from bdtppl.inference.greedy_modal import sparse_partitions
from bdtppl.inference.greedy_modal.growth import grow
from bdtppl.inference.greedy_modal.problem import pose
from bdtppl.models.constraints import Constraints
from bdtppl.models.data.design import Design
from bdtppl.models.data.schema import Schema, TableWarning
from bdtppl.models.data.sparse import SparseDesign
from bdtppl.models.hard.tree_model import TreeModel
from bdtppl.models.leaves import DirichletCategorical, NormalInverseGamma
from bdtppl.models.priors import DepthDecay, DescriptionLength, GreedyPartition, LeafPenalty

NAMES = ("a", "b", "c", "d", "e")
PRIORS = {
    "leaf penalty": lambda rules: LeafPenalty(0.4, rules=rules),
    "depth decay": lambda rules: DepthDecay(0.95, 0.3, rules=rules),
    "greedy partition": lambda rules: GreedyPartition(0.99, rules=rules),
    "description length": lambda rules: DescriptionLength(rules=rules),
    "cheap description": lambda rules: DescriptionLength(0.5, rules=rules),
}
LIMITS = (
    {},
    {"stop_pure": True, "split_precision": 1.0},
    {"smoothing": 0.2, "constraints": Constraints(min_leaf=2)},
    {"constraints": Constraints(min_leaf=3, max_depth=3, features=("e", 0, "b"))},
)


def random_table(rng: np.random.Generator, num_rows: int, has_missing: bool) -> np.ndarray:
    """Small whole numbers of both signs; the columns differ in how full they are, two are equal."""
    share = rng.permutation([0.05, 0.3, 0.6, 0.9, 1.0])
    table = np.where(rng.random((num_rows, 5)) < share, rng.integers(-2, 4, (num_rows, 5)), 0.0)
    table[:, 3] = table[:, 1]
    if has_missing:
        table[rng.random(table.shape) < 0.1] = np.nan
    return table


def random_problem(family: str, prior: str, seed: int, broken=lambda design: design):
    """Pose the same random problem twice, on the dense table and on the sparse one."""
    rng = np.random.default_rng(seed)
    table = random_table(rng, num_rows=int(rng.choice([9, 60])), has_missing=seed % 3 == 0)
    weights = rng.integers(1, 4, len(table)) * (1, 0.7)[seed // 2 % 2]
    weights = weights if seed % 2 else np.ones(len(table), int)
    signal = (np.nan_to_num(table[:, 0]) > 0) | (table[:, 2] < 0)
    if family == "classes":
        y, leaf = signal + (rng.random(len(table)) < 0.2), DirichletCategorical.symmetric(3)
    else:
        y = rng.normal(size=len(table)) + 3 * signal
        leaf = NormalInverseGamma.from_targets(y, weights)
    model = y, PRIORS[prior](("gaps", "cuts")[seed // 2 % 2]), leaf
    dense = Design.from_matrix(table, weights=weights, names=NAMES)
    stored = SparseDesign.from_matrix(sparse.csc_array(table), weights=weights, names=NAMES)
    limits = LIMITS[seed % len(LIMITS)]
    options = {name: value for name, value in limits.items() if name != "constraints"}
    models = (
        TreeModel(design, *model, constraints=limits.get("constraints", Constraints()))
        for design in (dense, broken(stored))
    )
    return tuple(pose(each, **options) for each in models)


def check_trees_are_the_same(family: str, prior: str, seed: int, **broken) -> int:
    dense, stored = (grow(problem) for problem in random_problem(family, prior, seed, **broken))
    assert stored.tree.to_nested() == dense.tree.to_nested(), seed
    for name in ("log_joint", "log_weight", "log_stop", "leaf_score", "statistics", "pseudo"):
        np.testing.assert_allclose(getattr(stored, name), getattr(dense, name), atol=1e-9)
    return int(dense.tree.num_leaves)


@pytest.mark.parametrize(
    ("prior", "family"),
    slow_but(
        list(zip(PRIORS, cycle(("classes", "values")), strict=False)),
        product(PRIORS, ("classes", "values")),
    ),
)
def test_the_tree_is_that_of_the_dense_table(prior, family):
    leaves = [check_trees_are_the_same(family, prior, seed) for seed in range(12)]
    assert max(leaves) > 2


def test_booleans_are_added_up_as_booleans():
    twice = sparse.csc_array(([True, True], [0, 0], [0, 2]), shape=(2, 1))
    assert Schema.read(twice)[1].toarray().tolist() == twice.toarray().tolist()


def test_codes_are_those_of_the_dense_table():
    rng = np.random.default_rng(0)
    for seed in range(20):
        table = random_table(rng, 12, has_missing=seed % 2 == 0)
        table[:, 4] = [0.0, np.nan, 2.5][seed % 3]
        dense = Design.from_matrix(table)
        stored = SparseDesign.from_matrix(
            sparse.csc_array(table), weights=dense.weights, names=dense.names
        )
        for name in ("num_codes", "cut_threshold", "offset", "has_missing"):
            np.testing.assert_array_equal(getattr(stored, name), getattr(dense, name))
        assert len(stored.low_edge) == len(stored.cut_threshold)
        flat = np.where(dense.codes < 0, -1, dense.codes + dense.offset[:-1])
        np.testing.assert_array_equal(flat[stored.row, stored.feature], stored.code)
        rebuilt = stored.dense(np.array([1, 4]))
        np.testing.assert_array_equal(rebuilt.codes, dense.codes[:, [1, 4]])


def zeros_below_all(design: SparseDesign) -> SparseDesign:
    return replace(design, zero_code=design.offset[:-1])


def one_zero_too_many(design: SparseDesign) -> SparseDesign:
    return replace(
        design, **{name: getattr(design, name)[1:] for name in ("row", "feature", "code")}
    )


@pytest.mark.parametrize("broken", [zeros_below_all, one_zero_too_many])
def test_a_miscounted_block_of_zeros_is_noticed(broken):
    failures = 0
    for seed in range(24):
        try:
            check_trees_are_the_same("classes", "cheap description", seed, broken=broken)
        except AssertionError:
            failures += 1
    assert failures >= 4


def test_pieces_of_groups_change_nothing(monkeypatch):
    monkeypatch.setattr(sparse_partitions, "_GROUPS_A_PIECE", 3)
    for seed in range(6):
        check_trees_are_the_same("values", "depth decay", seed)


# --------------------------------------------------------------------------------- the estimators


def text_like(num_rows=80, num_columns=12, seed=0):
    rng = np.random.default_rng(seed)
    table = rng.poisson(0.3, (num_rows, num_columns)).astype(float)
    table[:, 3] *= -1
    table[:, 7] = table[:, 5]
    score = 3 * (table[:, 5] > 0) - 2 * (table[:, 3] < 0) + rng.normal(0, 0.5, num_rows)
    return table, score, np.array(["no", "yes"])[(score > 0.5).astype(int)]


def stored_badly(table: np.ndarray) -> sparse.coo_matrix:
    """Store some zeros, and every other entry in two parts."""
    row, column = np.nonzero(table)
    value = table[row, column]
    zero_row, zero_column = (place[::7] for place in np.nonzero(table == 0))
    rows = np.concatenate([row, row[::2], zero_row])
    columns = np.concatenate([column, column[::2], zero_column])
    values = np.concatenate([value, np.ones(len(row[::2])), np.zeros(len(zero_row))])
    values[: len(row) : 2] -= 1
    return sparse.coo_matrix((values, (rows, columns)), shape=table.shape)


FORMATS = {
    "csr": sparse.csr_array,
    "csc": sparse.csc_matrix,
    "keys": sparse.dok_array,
    "integers": lambda table: sparse.csr_matrix(table.astype(np.int64)),
    "stored badly": stored_badly,
}


def assert_same_predictions(ours: np.ndarray, theirs: np.ndarray) -> None:
    if ours.dtype.kind == "f":  # rows are summed in another order
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)
    else:
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.slow
@pytest.mark.parametrize("made", FORMATS.values(), ids=FORMATS)
def test_estimators_read_every_format(made):
    options = {} if made is sparse.csr_array else {"prune": True, "min_leaf": 3, "max_depth": 2}
    table, score, label = text_like()
    weights = np.arange(len(label)) % 3
    stored = made(table)
    before = stored.copy()
    is_regression = made is sparse.csr_array
    estimator = GreedyModalTreeRegressor if is_regression else GreedyModalTreeClassifier
    y = score if is_regression else label
    dense = estimator(**options).fit(table, y, weights)
    model = estimator(**options).fit(stored, y, weights)
    assert model.rules() == dense.rules()
    assert model.explain(stored) == dense.explain(table)
    assert abs(model.map_log_joint_ - dense.map_log_joint_) < 1e-9
    assert model.n_features_in_ == 12
    assert len(model.columns_) < 12
    assert dense.columns_ is None
    np.testing.assert_allclose(model.feature_importances_, dense.feature_importances_)
    for fitted in (model, dense):
        for X in (table, stored):
            assert_same_predictions(fitted.predict(X), dense.predict(table))
    assert (before != stored).nnz == 0
    assert before.nnz == stored.nnz


def test_missing_entries_are_missing():
    table, _, label = text_like(120)
    table[(label == "yes") & (np.arange(120) % 3 == 0), 5] = np.nan
    dense = GreedyModalTreeClassifier().fit(table, label)
    model = GreedyModalTreeClassifier().fit(sparse.csr_array(table), label)
    assert model.rules() == dense.rules()
    assert "missing" in model.rules()
    unseen = sparse.csr_array(np.where(table == -1, np.nan, table))
    with pytest.warns(TableWarning, match=r"missing \(NaN\) in 'x3', where no training row"):
        model.predict(unseen)


def test_tables_with_names_are_read_by_name_or_by_position():
    pandas = pytest.importorskip("pandas")
    table, _, label = text_like()
    model = GreedyModalTreeClassifier().fit(sparse.csr_array(table), label)
    expected = model.predict(table)
    own = {f"x{column}": table[:, column] for column in model.columns_}
    np.testing.assert_array_equal(model.predict(own), expected)
    others = {f"word {column}": table[:, column] for column in range(12)}
    np.testing.assert_array_equal(model.predict(others), expected)
    with pytest.warns(UserWarning, match="fitted without feature names"):
        np.testing.assert_array_equal(model.predict(pandas.DataFrame(others)), expected)
    with pytest.raises(ValueError, match="X has 2 columns, but the model was fitted with 12"):
        model.predict({"a": table[:, 0], "b": table[:, 1]})
    np.testing.assert_array_equal(model.predict(table.tolist()), expected)


@pytest.mark.filterwarnings("ignore:No cut")
def test_a_tree_without_a_split_keeps_the_first_column():
    table, score, label = text_like()
    for model, y in ((GreedyModalTreeClassifier, label), (GreedyModalTreeRegressor, score)):
        model = model(max_depth=0).fit(sparse.csr_array(table), y)
        assert model.columns_.tolist() == [0]
        assert model.map_tree_.num_leaves == 1
        np.testing.assert_array_equal(model.feature_importances_, np.zeros(12))
        assert len(set(model.predict(sparse.csr_array(table)).tolist())) == 1
    empty = GreedyModalTreeClassifier().fit(sparse.csr_array((80, 12)), label)
    assert empty.map_tree_.num_leaves == 1


def test_a_second_fit_forgets_the_first():
    table, _, label = text_like()
    model = GreedyModalTreeClassifier().fit(sparse.csr_array(table), label)
    model.fit(table, label)
    assert model.columns_ is None
    assert model.design_.num_features == 12


@pytest.mark.parametrize("max_depth", [pytest.param(None, marks=pytest.mark.slow), 0])
def test_saved_models_predict_the_same(tmp_path, max_depth):
    table, score, _ = text_like()
    stored = sparse.csr_array(table)
    model = GreedyModalTreeRegressor(max_depth=max_depth, random_state=0).fit(stored, score)
    model.save(tmp_path / "model")
    loaded = bdtppl.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(stored), model.predict(stored))
    assert loaded.summary() == model.summary()


@pytest.mark.slow
def test_summary_and_figures_show_the_columns_that_are_kept():
    table, score, label = text_like()
    stored = sparse.csr_array(table)
    classifier = GreedyModalTreeClassifier(random_state=0).fit(stored, label)
    summary = classifier.summary()
    assert summary["features"] == 12
    assert list(summary["feature_importance"]) == [f"x{column}" for column in classifier.columns_]
    assert abs(sum(summary["feature_importance"].values()) - 1) < 1e-9
    plot_tree(classifier)
    plot_boundaries(classifier, ["x3", "x5"])
    regressor = GreedyModalTreeRegressor(random_state=0).fit(stored, score)
    plot_predictive(regressor, stored[:20], y=score[:20])


def test_pipelines_end_in_a_tree_of_words_or_of_categories():
    words = ["good film", "bad film", "good play", "bad play", "a good one", "such a bad one"] * 5
    label = ["yes", "no"] * 15
    model = make_pipeline(CountVectorizer(), GreedyModalTreeClassifier()).fit(words, label)
    assert model.predict(["a good film", "a bad play"]).tolist() == ["yes", "no"]
    table = np.array([["red", "s"], ["blue", "s"], ["red", "m"], ["blue", "l"]] * 6, object)
    model = make_pipeline(OneHotEncoder(), GreedyModalTreeRegressor())
    model.fit(table, np.arange(24) % 2 * 5.0)
    assert sparse.issparse(model[0].transform(table))
    assert (np.diff(model.predict(table[:2])) > 3).all()


# ------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bins": 4}, "bins must be None for a sparse X; got 4"),
        ({"grid": 4}, "grid must be None for a sparse X; got 4"),
        ({"num_roots": 3}, "num_roots must be 1 for a sparse X; got 3"),
        ({"lookahead": 2}, "lookahead must be 1 for a sparse X; got 2"),
        ({"prior": DepthDecay(cut_weights="gap")}, "prior must not weigh cuts by their gaps"),
    ],
)
def test_what_needs_a_dense_table_says_so(options, message):
    table, _, label = text_like()
    model = GreedyModalTreeClassifier(**options)
    assert not get_tags(model).input_tags.sparse
    with pytest.raises(ValueError, match=message):
        model.fit(sparse.csr_array(table), label)
    model.fit(table, label)
    np.testing.assert_array_equal(model.predict(sparse.csr_array(table)), model.predict(table))


def test_bad_tables_get_one_sentence():
    table, _, label = text_like()
    stored = sparse.csr_array(table)
    bad = table.copy()
    bad[[4, 9], [5, 2]] = np.inf
    with pytest.raises(ValueError, match="Column 'x2', row 9: the value is infinite"):
        GreedyModalTreeClassifier().fit(sparse.csr_array(bad), label)
    model = GreedyModalTreeClassifier().fit(stored, label)
    assert get_tags(model).input_tags.sparse
    for X in (stored[:, :5], table[:, :5]):
        with pytest.raises(ValueError, match=r"5 features, but .* expecting 12"):
            model.predict(X)
    with pytest.raises(ValueError, match="X has 80 rows and y has 79"):
        GreedyModalTreeClassifier().fit(stored, label[1:])
    with pytest.raises(ValueError, match="partition_log_probabilities needs all columns"):
        model.partition_log_probabilities()
    with pytest.raises(TypeError, match=r"[Ss]parse"):
        ExactTreeClassifier().fit(stored, label)
    with pytest.raises(TypeError, match=r"[Ss]parse"):
        ExactTreeClassifier().fit(sparse.dok_array(stored), label)


# ------------------------------------------------------------------------------------ wide tables


@pytest.mark.filterwarnings("ignore:No cut")
def test_memory_is_linear_in_entries_rows_and_columns():
    shape, num_entries = (3_000, 20_000), 100_000
    rng = np.random.default_rng(0)
    stored = sparse.random_array(shape, density=num_entries / np.prod(shape), rng=rng)
    marked = rng.random(shape[0]) < 0.5
    row = np.flatnonzero(marked)
    stored = stored + sparse.coo_array((np.ones(len(row)), (row, 17_000 + 0 * row)), shape=shape)
    label = np.where(rng.random(shape[0]) < 0.1, ~marked, marked)
    GreedyModalTreeClassifier(max_depth=1).fit(stored, label)  # what is compiled is not counted
    tracemalloc.start()
    model = GreedyModalTreeClassifier(max_depth=3).fit(stored, label)
    predicted = model.predict(stored)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < np.prod(shape) * 8 / 8  # an eighth of the dense table
    assert 17_000 in model.columns_
    assert (predicted == label).mean() > 0.85
