"""Rows in parts give what the same rows give in memory, to the last bit."""

import os
import signal
import threading
import time
import weakref
from copy import deepcopy
from dataclasses import replace
from importlib.util import find_spec
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from tiers import slow_but
from typer.testing import CliRunner

from bdtppl import ExactTreeClassifier, ExactTreeRegressor, load
from bdtppl.cli import app
from bdtppl.inference.boxes import parts as of_parts
from bdtppl.inference.boxes.parts import BoxTally, Chunks, Sketch, Survey, TargetMoments, in_pairs
from bdtppl.models.constraints import Constraints
from bdtppl.models.leaves import NormalInverseGamma, PoissonGamma
from bdtppl.models.priors import DepthDecay, DescriptionLength, GreedyPartition, LeafPenalty

needs_dask = pytest.mark.skipif(find_spec("dask") is None, reason="dask is not installed")
SETTINGS = {"bins": 5, "max_depth": 3, "method": "boxes", "random_state": 3}
PRIORS = (
    LeafPenalty(1.5),
    DepthDecay(0.8, 0.5, cut_weights="gap"),
    DescriptionLength(),
    GreedyPartition(0.9),
)


def table(seed=0, num_rows=400):
    """Numbers with many and with few values, categories, missing cells, labels and weights."""
    rng = np.random.default_rng(seed)
    X = pd.DataFrame(
        {
            "size": rng.normal(size=num_rows).round(2),
            "rank": rng.integers(0, 4, num_rows).astype(float),
            "hue": rng.choice(["red", "green", "blue"], num_rows),
            "is_new": rng.choice(["no", "yes"], num_rows),
        }
    )
    X.loc[rng.random(num_rows) < 0.1, "size"] = np.nan
    X.loc[rng.random(num_rows) < 0.1, "hue"] = None
    noise = rng.random(num_rows) < 0.3
    y = np.where(noise, rng.choice(["a", "b", "c"], num_rows), np.where(X["size"] > 0, "a", "b"))
    return X, y, rng.integers(0, 3, num_rows)


def chunks(*columns, seed=0, num_parts=7):
    """Make parts of unequal sizes, one of them empty."""
    rng = np.random.default_rng(seed)
    num_rows = len(columns[0])
    ends = np.sort(rng.integers(1, num_rows, num_parts - 1))
    ends = [0, *ends.tolist(), num_rows, num_rows]

    def make():
        for a, b in pairwise(ends):
            yield tuple(c.iloc[a:b] if hasattr(c, "iloc") else c[a:b] for c in columns)

    return make


def require_alike(model, wanted, X):
    """Compare two fits of the same rows, bit for bit."""
    np.testing.assert_array_equal(model.design_.cut_threshold, wanted.design_.cut_threshold)
    np.testing.assert_array_equal(model.design_.low_edge, wanted.design_.low_edge)
    np.testing.assert_array_equal(model.design_.high_edge, wanted.design_.high_edge)
    assert model.schema_ == wanted.schema_
    assert model.log_evidence_ == wanted.log_evidence_
    drawn, expected = model.posterior_, wanted.posterior_
    for name in ("feature", "threshold", "missing_left"):
        np.testing.assert_array_equal(getattr(drawn.trees, name), getattr(expected.trees, name))
    np.testing.assert_array_equal(drawn.statistics, expected.statistics)
    predict = "predict_proba" if model.is_classifier else "predict"
    np.testing.assert_array_equal(getattr(model, predict)(X), getattr(wanted, predict)(X))
    assert model.explain(X[:5]) == wanted.explain(X[:5])
    assert model.summary() == wanted.summary()


@pytest.mark.parametrize("prior", slow_but(PRIORS[1:2], PRIORS))
def test_chunks_give_the_bits_of_memory(prior):
    X, y, weights = table()
    model = ExactTreeClassifier(prior=prior, **SETTINGS)
    wanted = ExactTreeClassifier(prior=prior, **SETTINGS).fit(X, y, weights)
    require_alike(model.fit(chunks(X, y, weights)), wanted, X)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"binning": "uniform"},
        {"bins": "auto", "grid": 4},
        {"drop_first": True, "min_leaf": 9},
        {"constraints": Constraints(max_depth=2, features=("size", "hue")), "max_depth": None},
    ],
    ids=lambda options: ",".join(options),
)
def test_chunks_give_the_bits_of_memory_under_other_settings(options):
    X, y, _ = table(1)
    settings = SETTINGS | options
    wanted = ExactTreeClassifier(**settings).fit(X, y)
    require_alike(ExactTreeClassifier(**settings).fit(chunks(X, y, seed=2)), wanted, X)


def test_whole_targets_give_the_bits_of_memory():
    leaf = NormalInverseGamma(2.0, 1.0, 2.0, 4.0)
    X, y, weights = table(2)
    y = np.where(y == "a", 3, 0) + np.arange(len(y)) % 4
    wanted = ExactTreeRegressor(leaf=leaf, **SETTINGS).fit(X, y, weights)
    require_alike(ExactTreeRegressor(leaf=leaf, **SETTINGS).fit(chunks(X, y, weights)), wanted, X)


@pytest.mark.slow
@pytest.mark.parametrize("leaf", [None, PoissonGamma()], ids=repr)
def test_other_targets_agree_to_rounding(leaf):
    X, _, weights = table(3)
    y = 1e3 + np.random.default_rng(3).normal(size=len(X)) + X["rank"].to_numpy()
    y = y if leaf is None else np.floor(y)
    wanted = ExactTreeRegressor(leaf=leaf, **SETTINGS).fit(X, y, weights)
    model = ExactTreeRegressor(leaf=leaf, **SETTINGS).fit(chunks(X, y, weights))
    assert model.log_evidence_ == pytest.approx(wanted.log_evidence_, rel=1e-9)
    np.testing.assert_allclose(model.predict(X), wanted.predict(X), rtol=1e-9)


def _lost(merge):
    return lambda one, other: one


FAULTS = {
    "rows of a part are lost": (BoxTally, "merge", _lost),
    "a range is not widened": (
        BoxTally,
        "merge",
        lambda merge: lambda one, other: replace(merge(one, other), high_edge=one.high_edge),
    ),
    "values of a part are lost": (Sketch, "merge", _lost),
    "missing values are forgotten": (
        Survey,
        "merge",
        lambda merge: (
            lambda one, other: replace(merge(one, other), num_missing=0 * one.num_missing)
        ),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_merge_is_seen(fault, monkeypatch):
    owner, name, broken = FAULTS[fault]
    X, y, _ = table()
    wanted = ExactTreeClassifier(**SETTINGS).fit(X, y)
    monkeypatch.setattr(owner, name, broken(getattr(owner, name)))
    with pytest.raises((AssertionError, ValueError)):
        require_alike(ExactTreeClassifier(**SETTINGS).fit(chunks(X, y)), wanted, X)


def test_a_column_is_what_its_parts_say_together():
    hue = np.array([None] * 10 + ["red", "blue"] * 10 + [None] * 10 + ["green"] * 10, object)
    X = pd.DataFrame({"hue": hue, "size": 2.0 * np.arange(50)})
    y = np.arange(50) % 2
    wanted = ExactTreeClassifier(**SETTINGS).fit(X, y)

    def make():
        yield from ((X[i : i + 10], y[i : i + 10]) for i in range(0, 50, 10))

    require_alike(ExactTreeClassifier(**SETTINGS).fit(make), wanted, X)
    other = X.assign(hue=1.5)
    with pytest.raises(ValueError, match="'hue' contains numbers in some parts and categories in"):
        ExactTreeClassifier(**SETTINGS).fit(lambda: iter([(X[10:], y[10:]), (other, y)]))


# Sketches.


def _columns(rng):
    size = 6000
    yield rng.normal(size=size)
    yield np.sort(rng.normal(size=size))  # parts of ranges of their own
    yield np.where(rng.random(size) < 0.7, 0.25, rng.normal(size=size))  # one heavy value
    yield rng.integers(0, 300, size).astype(float)


def _rank_error(sketch, values, weights):
    at = np.concatenate([np.unique(values), sketch.values, [np.inf]])
    order = np.argsort(values)
    below = np.append(0, np.cumsum(weights[order]))[np.searchsorted(values[order], at)]
    return np.abs(sketch.rank(at) - below).max()


def _sketched(values, weights, num_parts):
    pieces = np.array_split(np.arange(len(values)), num_parts)
    return in_pairs([Sketch.of(values[p], weights[p]) for p in pieces], Sketch.merge)


@pytest.mark.parametrize("num_parts", [1, 5, 16])
def test_ranks_of_sketches_are_off_by_what_they_say(num_parts, monkeypatch):
    monkeypatch.setattr(of_parts, "_MOST_VALUES", 128)
    rng = np.random.default_rng(num_parts)
    for values in _columns(rng):
        weights = rng.integers(1, 4, len(values))
        sketch = _sketched(values, weights, num_parts)
        assert len(sketch.values) <= 128
        assert sketch.counts.sum() == weights.sum()
        assert (sketch.values[0], sketch.values[-1]) == (values.min(), values.max())
        promised = (1 + np.ceil(np.log2(num_parts))) * weights.sum() / 126
        assert _rank_error(sketch, values, weights) <= sketch.error <= promised


def test_a_sketch_that_denies_its_error_is_seen(monkeypatch):
    monkeypatch.setattr(of_parts, "_MOST_VALUES", 128)
    values = np.random.default_rng(0).normal(size=6000)
    weights = np.ones(6000, int)
    sketch = _sketched(values, weights, 16)
    assert _rank_error(sketch, values, weights) > sketch.error / 16


def test_few_values_are_counted_exactly():
    values = np.random.default_rng(0).integers(0, 5000, 20_000).astype(float)
    sketch = _sketched(values, np.ones(20_000, int), 8)
    distinct, counts = np.unique(values, return_counts=True)
    np.testing.assert_array_equal(sketch.values, distinct)
    np.testing.assert_array_equal(sketch.counts, counts)
    assert sketch.error == 0


def test_buckets_of_sketches_are_equal_to_the_stated_error(monkeypatch):
    monkeypatch.setattr(of_parts, "_MOST_VALUES", 1000)
    rng = np.random.default_rng(5)
    X = rng.normal(size=(20_000, 2))
    y = (X[:, 0] > 0) ^ (rng.random(len(X)) < 0.2)
    model = ExactTreeClassifier(**SETTINGS).fit(chunks(X, y, num_parts=16))
    shares = [np.bincount(model.design_.encode(X)[:, f]) / len(X) for f in (0, 1)]
    np.testing.assert_allclose(shares, 0.2, atol=2 * (3 + np.log2(16)) / 998)


# What needs rows, and what does not.


@pytest.fixture(scope="module")
def fitted():
    X, y, _ = table()
    return ExactTreeClassifier(**SETTINGS).fit(chunks(X, y)), X


def test_a_saved_model_answers_alike(fitted, tmp_path):
    model, X = fitted
    model.save(tmp_path / "m")
    for again in (load(tmp_path / "m"), deepcopy(model)):
        require_alike(again, model, X)
        assert again.exact_.log_evidence == model.log_evidence_


@pytest.mark.parametrize(
    "ask",
    [
        lambda model: model.design_.matrix,
        lambda model: model.posterior_.log_likelihood(),
        lambda model: model.exact_.co_membership(np.arange(3)),
        lambda model: model.to_arviz(),
    ],
    ids=["matrix", "log likelihood", "co-membership", "arviz"],
)
def test_what_needs_the_rows_says_so(fitted, ask):
    with pytest.raises(ValueError, match="came in parts and were not kept"):
        ask(fitted[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bins": "auto"}, "bins must be an integer for rows in parts, such as 16"),
        ({"bins": None}, "bins must be an integer for rows in parts, such as 16"),
        ({"bins": 1}, "bins must be None or an integer of at least 2"),
        ({"max_depth": None}, "max_depth must be a number for rows in parts, such as max_depth=3"),
        ({"method": "chart"}, "use method='boxes'"),
        ({"max_bytes": 10}, "lower bins or max_depth, or raise max_bytes"),
        (
            {"constraints": Constraints(monotone={"size": 1})},
            "couple the leaves of a tree: use a Metropolis tree",
        ),
    ],
    ids=str,
)
def test_settings_that_parts_cannot_have_are_refused_by_name(options, message):
    X, y, _ = table()
    with pytest.raises(ValueError, match=message):
        ExactTreeClassifier(**(SETTINGS | options)).fit(chunks(X, y))


def test_arguments_that_are_no_parts_are_refused_by_name():
    X, y, _ = table()
    model = ExactTreeClassifier(**SETTINGS)
    with pytest.raises(TypeError, match="must be readable twice; got an iterator"):
        model.fit(iter([(X, y)]))
    with pytest.raises(TypeError, match="must be part of the chunks"):
        model.fit(chunks(X), y)
    with pytest.raises(ValueError, match="no rows"):
        model.fit(lambda: [(X[:0], y[:0])])
    same, lengths = iter([(X, y)] * 2), iter([50, 50, 40])
    with pytest.raises(TypeError, match="the same one again"):
        model.fit(lambda: same)
    with pytest.raises(ValueError, match="second pass over the parts found 40 rows and the first"):
        model.fit(lambda: [(X[:n], y[:n]) for n in [next(lengths)]])
    with pytest.raises(ValueError, match="different columns"):
        model.fit(lambda: [(X, y), (X[["size"]], y)])
    with pytest.raises(ValueError, match="only one class"):
        model.fit(lambda: [(X, np.zeros(len(X)))])


def test_no_more_than_two_chunks_stand_in_memory():
    alive, most = set(), 0

    def make():
        nonlocal most
        rng = np.random.default_rng(0)
        for part in range(20):
            X = rng.normal(size=(200, 2))
            alive.add(part)
            weakref.finalize(X, alive.discard, part)
            most = max(most, len(alive))
            yield X, rng.integers(0, 2, 200)
            del X

    ExactTreeClassifier(**SETTINGS).fit(make)
    assert most <= 2


def test_moments_of_parts_are_those_of_all():
    y = np.random.default_rng(0).normal(1e6, 1, 1000)
    ones = np.ones(1000)
    total = Chunks(lambda: ((None, y[i : i + 90]) for i in range(0, 1000, 90))).reduce(
        lambda part: TargetMoments.of(part.y, np.ones(len(part.y))), TargetMoments.merge
    )
    whole = TargetMoments.of(y, ones)
    assert (total.count, total.least, total.greatest) == (1000, y.min(), y.max())
    np.testing.assert_allclose([total.mean, total.variance], [whole.mean, whole.variance], 1e-10)


# dask.


@pytest.fixture(scope="module")
def cluster():
    """Start a scheduler and two worker processes."""
    distributed = pytest.importorskip("distributed", reason="dask is not installed")
    options = {"n_workers": 2, "threads_per_worker": 1, "processes": True}
    with (
        distributed.LocalCluster(**options, dashboard_address=None) as made,
        distributed.Client(made) as client,
    ):
        yield client


@pytest.mark.slow
@needs_dask
def test_dask_frames_give_the_bits_of_memory():
    from dask.dataframe import from_pandas

    X, y, weights = table(4)
    wanted = ExactTreeClassifier(**SETTINGS).fit(X, y, weights)
    whole = from_pandas(X.assign(y=y, often=weights), npartitions=5)
    model = ExactTreeClassifier(**SETTINGS)
    require_alike(model.fit(whole, "y", "often"), wanted, X)
    require_alike(model.fit(whole[list(X)], whole["y"], whole["often"]), wanted, X)
    assert model.feature_names_in_.tolist() == list(X)
    with pytest.raises(TypeError, match="y must be the name of a column or a dask Series"):
        model.fit(whole, y)
    with pytest.raises(ValueError, match="y must name the column of targets"):
        model.fit(whole)
    with pytest.raises(ValueError, match="Column 'why' is not in X"):
        model.fit(whole, "why")
    with pytest.raises(ValueError, match="same partitions"):
        model.fit(whole, whole["y"].repartition(npartitions=2))


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@needs_dask
def test_a_killed_worker_changes_no_bit(cluster, tmp_path):
    from dask.dataframe import from_map

    X, y, _ = table(5)
    wanted = ExactTreeClassifier(**SETTINGS).fit(X, y)
    ends = np.linspace(0, len(X), 17).astype(int).tolist()
    whole = X.assign(y=y)

    def part(place):  # in a worker; says that it has begun
        (tmp_path / f"{place}-{time.time_ns()}").touch()
        time.sleep(0.2)
        return whole[ends[place] : ends[place + 1]]

    before, killed = set(cluster.run(os.getpid).values()), []

    def kill():
        while len(list(tmp_path.iterdir())) < 24:  # 16 of the first pass, half of the second
            time.sleep(0.02)
        os.kill(victim := sorted(before)[0], signal.SIGKILL)
        killed.append(victim)

    watcher = threading.Thread(target=kill, daemon=True)
    watcher.start()
    rows = from_map(part, range(16), meta=whole[:0])
    model = ExactTreeClassifier(**SETTINGS).fit(rows, "y")
    watcher.join(5)
    assert killed
    assert set(cluster.run(os.getpid).values()) != before
    require_alike(model, wanted, X)


# The command line.


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    X, y, weights = table(6)
    whole, folder = X.assign(y=y, often=weights, id=np.arange(len(X))), tmp_path_factory.mktemp("p")
    for place, rows in enumerate(np.array_split(np.arange(len(X)), 3)):
        whole.iloc[rows].to_parquet(folder / f"{place}.parquet")
    return folder


def run(*arguments):
    """Run ``bdtppl fit``."""
    return CliRunner(env={"COLUMNS": "80"}).invoke(
        app, ["fit", "--model", "exact", *map(str, arguments)]
    )


@pytest.mark.slow
@needs_dask
def test_a_folder_is_fitted_and_saved(folder, tmp_path):
    options = ("--weight", "often", "--drop", "id", "--bins", 5, "--max-depth", 3)
    result = run(folder, "--target", "y", *options, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    X, y, weights = table(6)
    wanted = ExactTreeClassifier(**SETTINGS).fit(X, y, weights)
    model = load(tmp_path / "out")
    assert model.log_evidence_ == wanted.log_evidence_
    np.testing.assert_array_equal(model.predict_proba(X), wanted.predict_proba(X))
    assert (tmp_path / "out" / "tree.png").exists()


@needs_dask
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--target", "y"), "such as 16"),
        (("--target", "size"), "set --task"),
        (("--target", "why"), "Column 'why' is not in the files of"),
        (("--target", "y", "--report"), "but --report needs them"),
        (("--target", "y", "--model", "metropolis"), "use --model exact"),
        (("--target", "y", "--leaf", "dirichlet:0.5"), "but a leaf family needs them"),
    ],
    ids=str,
)
def test_what_a_folder_cannot_have_is_refused_by_name(folder, options, message):
    result = run(folder, *options)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_a_folder_without_dask_says_what_to_install(folder, monkeypatch):
    monkeypatch.setattr("bdtppl.parted.find_spec", lambda name: None)
    result = run(folder, "--target", "y")
    assert result.exit_code == 2
    assert "pip install 'bdtppl[dask]'" in " ".join(result.output.split())


@needs_dask
def test_an_empty_folder_is_refused(tmp_path):
    assert "must contain a Parquet file" in " ".join(run(tmp_path, "--target", "y").output.split())


def test_ordered_categories_in_parts_are_one_column_of_cuts():
    """A part without some of the levels, and levels that sort otherwise than by name."""
    rng = np.random.default_rng(0)
    code = np.sort(rng.integers(0, 3, 90))
    size = pd.Categorical.from_codes(code, ["S", "M", "L"], ordered=True)
    X = pd.DataFrame({"size": size, "a": rng.normal(size=90)})
    y = code + rng.normal(0, 0.3, 90)
    whole = ExactTreeRegressor(**SETTINGS).fit(X, y)
    parted = ExactTreeRegressor(**SETTINGS).fit(
        lambda: ((X[at : at + 30], y[at : at + 30]) for at in (0, 30, 60))
    )
    assert parted.schema_ == whole.schema_
    assert parted.rules() == whole.rules()
    assert "size < M" in parted.rules()
    assert parted.log_evidence_ == pytest.approx(whole.log_evidence_, abs=1e-6)
    np.testing.assert_allclose(parted.predict(X), whole.predict(X), rtol=1e-9)
