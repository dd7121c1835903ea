"""Effects of columns on sums of trees, against sums over all rows of independent columns."""

from itertools import combinations, permutations, product

import numpy as np
import pytest

from bdtppl import BARTClassifier, BARTRegressor, plot_effects
from bdtppl.export import shap_values
from bdtppl.inference.additive.effects import SumEffects

RNG = np.random.default_rng(0)
SHORT = {"trees": 12, "chains": 2, "warmup": 10, "draws": 3, "extensions": 0, "random_state": 0}
COLUMN = np.array([0, 1, 2, 2, 2])  # of each column: the last three are a category


def _rows(num):
    level = RNG.integers(3, size=num)
    return np.column_stack([RNG.integers(4, size=(num, 2)), np.eye(3)[level]]).astype(float)


@pytest.fixture(scope="module", params=["numbers", "gaps", "classes"])
def effects(request):
    X = _rows(60)
    y = X[:, 0] * X[:, 1] + 3 * X[:, 2] * X[:, 0] + 0.3 * RNG.normal(size=60)
    if request.param == "gaps":
        X[RNG.random(60) < 0.2, 0] = np.nan
    kind, which = (BARTClassifier, 1) if request.param == "classes" else (BARTRegressor, 0)
    y = np.digitize(y, [3, 8]) if request.param == "classes" else y
    with pytest.warns(match="disagree|R-hat"):
        model = kind(**SHORT, max_depth=4).fit(X, y)
    source = [place for place, *_ in model.schema_.sources]  # a mark of gaps has that of its column
    reference = model.posterior_.matrix[:25]
    weights = RNG.integers(1, 4, size=25)
    return SumEffects(model.posterior_, which, COLUMN[source], reference, weights)


def _independent(effects):
    """All rows of independent columns, their probabilities, and f there."""
    law = effects.weights / effects.weights.sum()
    parts = [effects.matrix[:, effects.column == own] for own in range(3)]
    chosen = np.array(list(product(range(len(law)), repeat=3)))
    rows = np.empty((len(chosen), len(effects.column)))
    for own, part in enumerate(parts):
        rows[:, effects.column == own] = part[chosen[:, own]]
    return law, _centred(effects, rows).reshape(-1, *[len(law)] * 3)


def _centred(effects, rows):
    """The sum at rows, less the mean of several, float64 [s, m]."""
    sums = effects.posterior.sums(rows)
    mean = sums.mean(axis=2) if sums.shape[2] > 1 else 0.0
    return (sums[:, :, effects.which] - mean).reshape(-1, len(rows))


def test_effects_and_their_variances_are_those_of_all_rows(effects):
    law, f = _independent(effects)
    mean = np.einsum("sabc,a,b,c->s", f, law, law, law)
    total = np.einsum("sabc,a,b,c->s", (f - mean[:, None, None, None]) ** 2, law, law, law)
    np.testing.assert_allclose(effects.variance, total, rtol=1e-10)
    np.testing.assert_allclose(effects.mean, mean, atol=1e-10)
    rest = {0: "sabc,b,c->sa", 1: "sabc,a,c->sb", 2: "sabc,a,b->sc"}
    main = {own: np.einsum(rest[own], f, law, law) - mean[:, None] for own in range(3)}
    for own, found in effects.mains(effects.matrix):
        np.testing.assert_allclose(found, main[own], atol=1e-10)
    assert effects.used == [0, 1, 2]
    for pair in combinations(range(3), 2):
        (left_out,) = {0, 1, 2} - set(pair)
        both = np.moveaxis(f, 1 + left_out, -1) @ law
        wanted = both - mean[:, None, None] - main[pair[0]][:, :, None] - main[pair[1]][:, None]
        found, variance = effects.pair(pair, effects.matrix, effects.matrix)
        np.testing.assert_allclose(found, wanted, atol=1e-10)
        wanted_variance = np.einsum("sab,a,b->s", wanted**2, law, law)
        np.testing.assert_allclose(variance, wanted_variance, atol=1e-10)
        of_mean, _ = effects.pair(pair, effects.matrix, effects.matrix, of_mean=True)
        np.testing.assert_allclose(of_mean[0], wanted.mean(axis=0), atol=1e-10)


def test_shapley_values_are_those_of_all_orders(effects):
    rows, background = effects.matrix[:5], effects.matrix[10:17]
    wanted = 0.0
    for order in permutations(range(3)):
        known, before = background[None].repeat(5, axis=0), None
        for own in (None, *order):
            if own is not None:
                known[:, :, effects.column == own] = rows[:, None, effects.column == own]
            f = _centred(effects, known.reshape(-1, rows.shape[1])).reshape(-1, 5, 7).mean(axis=2)
            if own is not None:
                wanted = wanted + np.eye(3)[own] * (f - before)[..., None] / 6
            before = f
    found = effects.shapley(rows, background)
    np.testing.assert_allclose(found, wanted, atol=1e-10)


def test_the_strongest_pair_and_the_fewest_columns_are_found(effects):
    (best,) = effects.strongest_pairs(1)
    variance = {
        pair: effects.pair(pair, effects.matrix[:0], effects.matrix[:0], of_mean=True)[1][0]
        for pair in combinations(range(3), 2)
    }
    assert best == max(variance, key=lambda pair: variance[pair])
    kept = [share for _, share in effects.fewest_columns(3)]
    assert kept == sorted(kept)
    assert 0 < kept[0] <= kept[-1] <= 1 + 1e-12


@pytest.fixture(scope="module")
def table():
    city = np.array(["Rome", "Oslo", "Bonn"])[RNG.integers(3, size=150)]
    school = np.array(list("abcde"))[RNG.integers(5, size=150)]
    age, dose = RNG.integers(20, 80, 150), RNG.normal(size=150)
    return {"age": age, "city": city, "school": school, "dose": dose}


@pytest.fixture(scope="module")
def model(table):
    y = 0.1 * table["age"] + 2 * (table["city"] == "Oslo") + 0.2 * RNG.normal(size=150)
    y += 0.3 * table["dose"]
    settings = SHORT | {"warmup": 40, "draws": 30}
    with pytest.warns(match="disagree|R-hat"):
        return BARTRegressor(**settings, groups="school", offset="dose").fit(table, y)


def test_effects_are_of_columns_as_the_table_has_them(model, table):
    effects = model.effects(pairs=2)
    shares = [effect.share for effect in effects]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) == pytest.approx(1, abs=0.02)
    first, second = effects[:2]
    assert first.columns == ("age",)
    slope = (first.mean[-1] - first.mean[0]) / np.ptp(first.values[0])
    assert slope == pytest.approx(0.1, abs=0.02)
    assert second.columns == ("city",)
    assert second.values[0].tolist() == ["Bonn", "Oslo", "Rome"]
    assert second.mean[1] - second.mean[0] == pytest.approx(2, abs=0.3)
    assert (second.low <= second.mean).all()
    assert (second.mean <= second.high).all()
    names = list(model.fewest_columns(2))
    assert names == ["age", "city"]
    drawn = plot_effects(model, 4)
    assert [ax.get_xlabel() for ax in drawn[:2]] == ["age", "city"]


def test_effects_are_shown_where_values_are_missing(table):
    gap = np.arange(150) % 4 == 0
    dose, city = np.where(gap, np.nan, table["dose"]), np.where(gap[::-1], None, table["city"])
    y = np.where(gap, 5 * gap[::-1], table["dose"]) + 3 * gap[::-1] + 0.1 * RNG.normal(size=150)
    table = {"dose": dose, "city": city}
    with pytest.warns(match="disagree|R-hat"):
        model = BARTRegressor(**SHORT, target_scale="identity").fit(table, y)
    effects = {effect.columns: effect for effect in model.effects(pairs=1)}
    assert np.isnan(effects["dose",].values[0]).nonzero()[0].tolist() == [60]
    assert effects["city",].values[0].tolist() == ["Bonn", "Oslo", "Rome", None]
    (pair,) = (effect for effect in effects.values() if len(effect.columns) == 2)
    assert sorted(pair.mean.shape) == [4, 31]
    # f where both are missing, where one is, and where none is: pairs are all that is beside mains.
    found = model._sum_effects(None)
    at = model._matrix({"dose": [np.nan, 0.0], "city": [None, "Oslo"]})
    mains = {own: draws.mean(axis=0)[0] for own, draws in found.mains(at)}
    assert effects["dose",].mean[-1] == pytest.approx(mains[0])
    assert effects["city",].mean[-1] == pytest.approx(mains[1])
    of_pair = found.pair((0, 1), at[:1], at[:1])[0].mean()
    assert pair.mean[-1, -1] == pytest.approx(of_pair)
    assert found.at(at)[:, 0].mean() == pytest.approx(
        found.mean.mean() + mains[0] + mains[1] + of_pair
    )
    drawn = plot_effects(model, 3)
    named = [tick.get_text().strip() for ax in drawn for tick in ax.get_xticklabels(which="both")]
    assert named.count("missing") == 3


def test_shapley_values_add_up_to_the_mean(model, table):
    pytest.importorskip("shap")
    explained = shap_values(model, table)
    total = explained.base_values + explained.values.sum(axis=1)
    np.testing.assert_allclose(total, model.predict(table), atol=1e-10)
    assert explained.feature_names == ["age", "city", "school", "dose"]
    assert (explained.lower_bounds <= explained.upper_bounds).all()


def test_what_has_no_effects_is_refused(table, model):
    with pytest.raises(ValueError, match="label names one of several sums"):
        model.effects(label="a")
    with pytest.raises(ValueError, match="pairs must be"):
        model.effects(pairs=-1)
    y = np.array(list("xyz"))[np.arange(150) % 3]
    with pytest.warns(match="disagree|R-hat"):
        classes = BARTClassifier(**SHORT).fit(table, y)
    with pytest.raises(ValueError, match="label must be one of the classes"):
        classes.effects()
    assert classes.effects(label="y", pairs=0)
    with pytest.warns(match="disagree|R-hat"):
        slopes = BARTRegressor(**SHORT, groups={"school": ["age"]}).fit(table, np.arange(150.0))
    with pytest.raises(ValueError, match="slopes"):
        slopes.effects()


def test_columns_that_never_vary_have_no_effect():
    X = np.column_stack([RNG.normal(size=60), np.ones(60)])
    with pytest.warns(match="disagree|R-hat"), pytest.warns(match="No cut in 'x1'"):
        model = BARTRegressor(**SHORT).fit(X, np.arange(60) + X[:, 0])
    assert [effect.columns for effect in model.effects()] == [("x0",)]
    assert (shap_values(model, X).values[:, 1] == 0).all()
    with pytest.warns(match="disagree|R-hat"), pytest.warns(match="No cut in 'x0'"):
        constant = BARTRegressor(**SHORT).fit(X[:, 1:], X[:, 0])
    assert constant.effects() == []
    with pytest.raises(ValueError, match="No column has an effect"):
        plot_effects(constant)
