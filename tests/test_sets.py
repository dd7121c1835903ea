"""Splits by sets of levels, and the columns that priors choose first, against enumeration."""

import itertools
import json
import sqlite3
import warnings

import exact_problems as ep
import numpy as np
import pandas as pd
import pytest
from tiers import slow_but

from bdtppl import (
    BARTRegressor,
    ExactTreeClassifier,
    ExactTreeRegressor,
    GreedyModalTreeRegressor,
    load,
)
from bdtppl.estimators import all_inferences
from bdtppl.export import to_json, to_markdown, to_python, to_sql
from bdtppl.models.data.schema import Column, Schema, TableWarning
from bdtppl.models.hard.log_joint import log_joint
from bdtppl.models.leaves import DirichletCategorical
from bdtppl.models.priors import DepthDecay, DescriptionLength

COLUMNS = {1: (0,), 2: (0, 0), 3: (0, 0, 1)}


def _log_partition(case):
    return np.logaddexp.reduce([each.log_prior + each.log_likelihood for each in case.scored])


@pytest.mark.parametrize("model", [m for m, (_, _, d) in ep.MODELS.items() if d > 1])
def test_a_prior_chooses_a_column_and_then_a_rule(model):
    case = ep.random_case(model, "classes", 0).with_columns(*COLUMNS[ep.MODELS[model][2]])
    assert case.exact.log_partition == pytest.approx(_log_partition(case), abs=1e-11)
    if case.prior.counts_partitions:  # whose rules have no column
        return
    if model == "depth decay, gaps":  # the twin: each feature by itself
        alone = case.with_columns(0, 1, 2)
        assert abs(alone.exact.log_partition - case.exact.log_partition) > 1e-3
    trees = case.exact.sample_trees(ep.key(0), 20)
    score = {each.tree: each.log_prior + each.log_likelihood for each in case.scored}
    named = [score[tree] for tree in ep.rule_trees(case, trees)]
    np.testing.assert_allclose(log_joint(trees, case.model).log_joint, named, rtol=ep.TIGHT)


@pytest.mark.parametrize(
    "law", ["features by weight", "cuts by threshold", "all rules alike", "program"]
)
def test_a_law_of_weights_chooses_a_column_first(law):
    case = ep.case_of_law(law, "cuts", "classes", 0).with_columns(0, 0, 1)
    assert case.exact.log_partition == pytest.approx(_log_partition(case), abs=1e-11)


def _splits(column, rows):
    """List what a column does with rows, each the rows that go left; sets, cuts, or neither."""
    known = {value for value in column if value is not None}
    here = {column[row] for row in rows} - {None}
    if isinstance(next(iter(known)), str):
        first, *others = sorted(known)
        sizes = range(len(others))
        lefts = [{first, *more} for k in sizes for more in itertools.combinations(others, k)]
    else:
        lefts = [{value for value in known if value <= low} for low in sorted(here)[:-1]]
    return [
        frozenset(row for row in rows if column[row] in left or (column[row] is None and missing))
        for left in lefts
        if here & left and here - left
        for missing in ((False, True) if None in column else (False,))
    ]


def _log_sum(columns, y, weights, depth, rows, log_law, level=0, *, scored=True):
    """Log of the sum over all trees below a node, whatever the package does."""
    counts = np.bincount(y[list(rows)], weights[list(rows)], minlength=2)
    leaf = DirichletCategorical((0.7, 0.7))
    score = float(leaf.log_marginal(counts[None])[0]) if scored else 0.0
    available = [own for own in (_splits(column, rows) for column in columns) if own]
    log_stop, log_split = log_law(level, len(available) if level < depth else 0)
    terms = [log_stop + score]
    if level < depth:
        for own in available:
            for left in own:
                below = (
                    _log_sum(columns, y, weights, depth, side, log_law, level + 1, scored=scored)
                    for side in (left, rows - left)
                )
                terms.append(log_split(len(own)) + sum(below))
    return np.logaddexp.reduce(terms)


def _depth_decay(level, num_columns):
    if not num_columns:
        return 0.0, None
    p = 0.9 / (1 + level)
    return np.log1p(-p), lambda num_rules: np.log(p) - np.log(num_columns) - np.log(num_rules)


def _description_length(level, num_columns):
    return 0.0, lambda num_rules: -2.5


def _table(seed):
    rng = np.random.default_rng(seed)
    city = list(rng.permutation(list("abcdef"[: 3 + seed % 4] * 3))[:9])
    size = list(rng.integers(0, 3, 9).astype(float))
    if seed % 3 == 2:
        city[int(rng.integers(9))] = None
    y = rng.permutation([0, 1] * 5)[:9]
    return {"city": city, "size": size}, y, 1 + rng.integers(0, 3, 9)


LAWS = {
    "depth decay": (DepthDecay(0.9, 1.0), _depth_decay),
    "description length": (DescriptionLength(2.5, rules="gaps"), _description_length),
}


@pytest.mark.parametrize("seed", slow_but((2, 4, 7), range(10)))
def test_evidence_is_that_of_all_trees(seed):
    X, y, weights = _table(seed)
    columns = list(X.values())
    if None in X["city"]:  # a column that says where values are missing
        columns.append([float(value is None) for value in X["city"]])
    prior, law = LAWS["description length" if seed % 5 == 4 else "depth decay"]
    given = columns, y, weights, 2, frozenset(range(len(y))), law
    expected = _log_sum(*given) - _log_sum(*given, scored=False)
    for method in ("chart", "boxes", "search"):
        model = ExactTreeClassifier(
            categories="sets", prior=prior, leaf=DirichletCategorical((0.7, 0.7)), max_depth=2,
            bins=None, method=method,
        ).fit(X, y, weights)  # fmt: skip
        assert model.log_evidence_ == pytest.approx(expected, rel=1e-12)
    one_hot = ExactTreeClassifier(
        prior=prior, leaf=DirichletCategorical((0.7, 0.7)), max_depth=2, bins=None
    ).fit(X, y, weights)
    # The twin: each level by itself, with a weight of its own.
    if len(set(X["city"]) - {None}) > 3:
        assert abs(one_hot.log_evidence_ - expected) > 1e-3


def _cities():
    rng = np.random.default_rng(0)
    city, size = rng.choice(list("ABCDE"), 120), rng.normal(size=120)
    y = np.where(np.isin(city, ["B", "D"]), 3.0 + (size > 0), 0.0)
    return pd.DataFrame({"city": city, "size": size}), y + 0.1 * rng.normal(size=120)


@pytest.mark.parametrize("estimator", [ExactTreeRegressor, GreedyModalTreeRegressor])
def test_sets_are_written_as_what_they_are(estimator, tmp_path):
    frame, y = _cities()
    model = estimator(categories="sets", max_depth=2, random_state=0).fit(frame, y)
    text = model.rules()
    assert "city in {B, D}" in text
    assert "city in {A, C, E}" in text
    assert json.loads(to_json(model))["tree"]["levels"] == ["B", "D"]
    assert all(level in to_markdown(model) for level in ("B", "D"))
    scope = {}
    exec(to_python(model), scope)
    with sqlite3.connect(":memory:") as database:
        frame.to_sql("t", database, index=False)
        found = [value for (value,) in database.execute(f"SELECT {to_sql(model)} FROM t")]
    assert [scope["predict"](row) for row in frame.to_dict("records")] == found
    model.save(tmp_path / "kept")
    kept = load(tmp_path / "kept")
    np.testing.assert_array_equal(kept.predict(frame), model.predict(frame))
    assert kept.schema_ == model.schema_
    assert kept.design_.column.tolist() == [0] * 15 + [1]
    assert model.feature_importances_.shape == (2,)


def test_a_level_that_is_new_is_read_as_the_usual_one():
    frame, y = _cities()
    model = GreedyModalTreeRegressor(categories="sets").fit(frame, y)
    usual = frame["city"].mode()[0]
    with (
        pytest.warns(TableWarning, match="'Z' was not seen"),
        pytest.warns(TableWarning, match="most frequent level"),
    ):
        predicted = model.predict(pd.DataFrame({"city": ["Z"], "size": [0.3]}))
    assert predicted == model.predict(pd.DataFrame({"city": [usual], "size": [0.3]}))


@pytest.mark.parametrize("num_levels", [3, 6, 7, 8, 12, 40])
def test_no_set_is_taken_twice_nor_its_complement(num_levels):
    levels = tuple(f"l{place:02d}" for place in range(num_levels))
    sets = [frozenset(own) for own in Column.of("city", levels, categories="sets").sets]
    every = frozenset(levels)
    assert len({frozenset([own, every - own]) for own in sets}) == len(sets)
    assert all({level} in sets or every - {level} in sets for level in levels)
    assert len(sets) == (2 ** (num_levels - 1) - 1 if num_levels <= 7 else max(63, 2 * num_levels))


def test_of_many_levels_some_sets_are_taken():
    table = {"city": list("abcdefghij")}
    schema, matrix = Schema.read(table, categories="sets")
    assert schema.features[:10] == tuple(f"city={level}" for level in "abcdefghij")
    assert not schema.column.any()
    assert len(np.unique(matrix, axis=0)) == 10
    assert Schema.from_json(schema.to_json()) == schema
    assert schema.level_condition(0, 0.5, True) == "not city=a"
    with pytest.raises(ValueError, match="drop_first"):
        Schema.read(table, categories="sets", drop_first=True)


def test_a_category_has_the_weight_that_its_column_is_given():
    frame, y = _cities()
    prior = DepthDecay(0.9, 1.0, feature_weights={"city": 3.0, "size": 1.0})
    model = ExactTreeRegressor(categories="sets", prior=prior, max_depth=1, bins=5).fit(frame, y)
    assert model.prior_.feature_weights == (*[3.0] * 15, 1.0)


@pytest.mark.parametrize("categories", ["sets", "one-hot"])
def test_a_list_has_a_weight_for_each_column_of_the_table(categories):
    frame, y = _cities()
    frame.loc[3, "size"] = np.nan
    settings = {"categories": categories, "max_depth": 1}
    prior = DepthDecay(feature_weights=[3.0, 1.0])
    model = ExactTreeRegressor(**settings, prior=prior, bins=5, draws=10).fit(frame, y)
    in_city = model.design_.num_features - 2
    assert model.prior_.feature_weights == (*[3.0] * in_city, 1.0, 1.0)
    prior = DepthDecay(feature_weights=[3.0, 1.0, 2.0])
    said = "has 3 numbers for 2 columns: pass one for each of city and size, or names with"
    for estimators in all_inferences().values():
        if estimators["regression"].trees_are == "hard":
            with pytest.raises(ValueError, match=said):
                estimators["regression"](**settings, prior=prior).fit(frame, y)


@pytest.mark.slow
def test_sums_take_a_category_as_often_as_a_number():
    frame, y = _cities()
    noise = np.random.default_rng(1).normal(size=len(y))
    model = BARTRegressor(
        categories="sets", trees=20, warmup=50, draws=200, random_state=0, extensions=0
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # chains this short disagree
        model.fit(frame, noise)
    assert model.feature_importances_ == pytest.approx([0.5, 0.5], abs=0.08)
