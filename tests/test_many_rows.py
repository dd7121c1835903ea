"""Rows are predicted some at a time, and what they get does not depend on how many."""

import json
import warnings
from pathlib import Path

import jax
import numpy as np
import pytest
from every_estimator import KINDS, NEW, X, Y, fitted
from joblib import parallel_config
from tiers import in_turn, slow_but

import bdtppl
from bdtppl.estimators import base
from bdtppl.inference.draws import draw_targets, draw_uniforms
from bdtppl.inference.predictive import many_rows
from bdtppl.inference.predictive.many_rows import by_rows
from bdtppl.models.arrays.distinct_rows import distinct_rows
from bdtppl.models.leaves import PoissonGamma

DATA = Path(__file__).parent / "data"
KEPT = ["hard-classes", "chain-values", "flow-values", "soft-values"]


def answers(model, rows) -> dict[str, np.ndarray]:
    """Everything that is predicted row by row."""
    found = {
        name: getattr(model, name)(rows)
        for name in ("predict", "predict_proba", "predict_interval", "predict_proba_interval")
        if hasattr(model, name)
    }
    found["sample_predictive"] = model.sample_predictive(rows, draws=5)
    for name in ("predict_draws", "mean_draws", "noise_draws"):
        if hasattr(model, name):
            found[name] = getattr(model, name)(rows)
    return found


def same(found, wanted, rtol: float, err_msg: str) -> None:
    np.testing.assert_array_equal(found, wanted, err_msg=err_msg)


def check_pieces(model, rows, monkeypatch, rtol: float = 0.0) -> None:
    """The same bits whether rows are predicted together, or one or two at a time."""
    whole, sizes = answers(model, rows), []

    for size in (1, 2):

        def cut(function, num_rows, bytes_a_row, size=size, **options):
            monkeypatch.setattr(many_rows, "_BYTES_AT_ONCE", size * max(bytes_a_row, 1))

            def noted(rows):
                sizes.append(rows.stop - rows.start)
                return function(rows)

            return by_rows(noted, num_rows, bytes_a_row, **options)

        for module in (many_rows, base):
            monkeypatch.setattr(module, "by_rows", cut)
        for name, values in answers(model, rows).items():
            check = np.testing.assert_allclose if values.dtype.kind == "f" else same
            check(values, whole[name], rtol=rtol, err_msg=name)
    assert set(sizes) == {1, 2}


@pytest.mark.parametrize("name", KEPT)
def test_a_row_gets_the_same_bits_in_any_piece(name, monkeypatch):
    rows = json.loads((DATA / name / "answers.json").read_text())["rows"]
    if isinstance(rows, dict):
        rows = {column: np.array(values)[[0, 1, 0, 1, 1]] for column, values in rows.items()}
    else:
        rows = np.random.default_rng(0).uniform(size=(5, len(rows[0])))
    check_pieces(bdtppl.load(DATA / name, trusted=True), rows, monkeypatch)


def test_draws_of_counts_depend_on_their_place_alone():
    """A sampler of counts that draws many at once lets one decide on another."""
    leaf, key = PoissonGamma(1.0, 0.1), jax.random.key(0)
    statistics = np.random.default_rng(0).uniform(1, 200, (6000, 2)).round()
    whole = draw_targets(key, leaf, statistics)
    for cut in (1, 1000, 4096, 5000):
        parts = (
            draw_targets(key, leaf, statistics[:cut]),
            draw_targets(key, leaf, statistics[cut:], first=cut),
        )
        np.testing.assert_array_equal(np.concatenate(parts), whole)
    mean = np.asarray(leaf.posterior_mean(statistics))
    variance = np.asarray(leaf.predictive(statistics).variance)
    assert abs((whole - mean).sum()) < 5 * np.sqrt(variance.sum())


def test_there_are_more_draws_than_fit_into_32_bits():
    far = draw_uniforms(jax.random.key(0), (3,), first=2**40 + 5)
    assert len(set(far)) == 3


def test_workers_predict_the_same_bits(monkeypatch):
    few = {"trees": 3, "warmup": 2, "draws": 4, "random_state": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = bdtppl.BARTRegressor(**few).fit(X, Y)
    rows = np.tile(NEW, (30, 1))
    whole = answers(model, rows)
    monkeypatch.setattr(many_rows, "_BYTES_AT_ONCE", 8 * model.posterior_.bytes_a_row)
    with parallel_config("threading", n_jobs=2):
        for name, values in answers(model, rows).items():
            np.testing.assert_array_equal(values, whole[name], err_msg=name)


@pytest.mark.parametrize("name", slow_but((), in_turn(KINDS)))
def test_a_row_gets_the_same_bits_of_every_estimator(name, monkeypatch):
    # A chart adds up over all rows that it is asked for at once, so its last digit may differ.
    check_pieces(fitted(name), NEW, monkeypatch, rtol=1e-13 if name.startswith("Exact") else 0.0)


def test_a_row_gets_the_same_bits_of_sums(monkeypatch):
    model = bdtppl.BARTRegressor(trees=3, warmup=2, draws=4, noise_trees=2, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_pieces(model.set_params(extensions=0).fit(X, Y), NEW, monkeypatch)


def test_so_many_rows_are_computed_at_once_as_memory_allows(monkeypatch):
    """All draws of all rows at once took gigabytes."""
    model = bdtppl.load(DATA / "soft-values", trusted=True)
    posterior, sizes = type(model.posterior_), []
    laws = posterior._laws

    def noted(self, matrix, *args):
        sizes.append(len(matrix))
        return laws(self, matrix, *args)

    monkeypatch.setattr(posterior, "_laws", noted)
    monkeypatch.setattr(many_rows, "_BYTES_AT_ONCE", 9 * model.posterior_.bytes_a_row)
    rows = np.random.default_rng(0).uniform(size=(21, 2))
    model.predict(rows)
    model.predict_draws(rows)
    assert sizes == [8, 8, 5] * 2


def test_results_beyond_the_memory_are_refused_early():
    model = bdtppl.load(DATA / "soft-values", trusted=True)
    with pytest.raises(ValueError, match=r"need .* GB, but this machine has .*fewer rows or draws"):
        model.sample_predictive(np.full((2, 2), 0.5), draws=10**12)
    calls = []

    def wide(rows):
        calls.append(rows)
        return np.broadcast_to(0.0, (1, 1 << 40))

    with pytest.raises(ValueError, match=r"Results of 10,000 rows need"):
        by_rows(wide, 10_000, many_rows._BYTES_AT_ONCE)
    assert len(calls) == 1


def test_distinct_rows_are_those_of_numpy():
    rng = np.random.default_rng(0)
    for shape, most in (((500, 3), 4), ((1, 2), 3), ((400, 1), 1000), ((200, 40), 2)):
        rows = rng.integers(-1, most, shape).astype(np.int32)
        first, kind = distinct_rows(rows)
        assert len(first) == len(np.unique(rows, axis=0))
        np.testing.assert_array_equal(rows[first][kind], rows)
        assert (kind[first] == np.arange(len(first))).all()
        assert (np.diff(first) > 0).all()
