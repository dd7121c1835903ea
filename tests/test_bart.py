"""Estimators of sums of trees: from tables to predictions, files, figures and ArviZ."""

import copy
import json
import warnings
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import arviz
import jax
import matplotlib.pyplot as plt
import numpy as np
import pytest
from scipy import stats
from test_cli import run, write_table

from bdtppl import (
    BARTClassifier,
    BARTRegressor,
    ChoiceWarning,
    export,
    load,
    plot_partial_dependence,
    plot_topologies,
    plot_trajectories,
    plot_tree,
)
from bdtppl.array_files import read_arrays
from bdtppl.estimators import bart, chains
from bdtppl.inference.additive.latent import draw_polya_gamma, draw_truncated
from bdtppl.inference.additive.prior_draws import draw_sum_prior
from bdtppl.models.data.schema import TableWarning

pytestmark = pytest.mark.filterwarnings("ignore:Chains disagree")

SHORT = {"trees": 20, "chains": 2, "warmup": 60, "draws": 40, "random_state": 0}
RNG = np.random.default_rng(0)
X = RNG.uniform(size=(150, 3))
F = 4 * (X[:, 0] > 0.5) + 2 * X[:, 1]
Y = F + 0.3 * RNG.normal(size=150)
LABELS = np.where(Y > 3, "high", "low")


@pytest.fixture(scope="module")
def model():
    return BARTRegressor(**SHORT).fit(X, Y)


@pytest.fixture(scope="module")
def classifier():
    return BARTClassifier(**SHORT).fit(X, LABELS)


def test_the_mean_is_found_with_its_uncertainty(model):
    mean = model.predict(X)
    assert np.sqrt(np.mean((mean - F) ** 2)) < 0.25
    band = model.predict_interval(X, 0.9, kind="mean")
    assert 0.8 < np.mean((band[:, 0] < F) & (band[:, 1] > F)) <= 1
    target = model.predict_interval(X, 0.9)
    assert 0.8 < np.mean((target[:, 0] < Y) & (target[:, 1] > Y)) <= 1
    draws = model.mean_draws(X)
    assert draws.shape == (2, 40, 150)
    np.testing.assert_allclose(draws.mean(axis=(0, 1)), mean)
    importance = model.feature_importances_
    assert importance.sum() == pytest.approx(1)
    assert importance[2] < importance[:2].min()
    assert model.sample_predictive(X[:4], draws=7).shape == (7, 4)
    assert model.summary()["sigma"] == pytest.approx(0.3, abs=0.1)


@pytest.mark.slow
def test_classes_are_predicted_with_their_probabilities(classifier):
    probability = classifier.predict_proba(X)
    np.testing.assert_allclose(probability.sum(axis=1), 1)
    assert (classifier.predict(X) == LABELS).mean() > 0.9
    assert classifier.mean_draws(X[:5]).shape == (2, 40, 5, 2)
    low, high = np.moveaxis(classifier.predict_proba_interval(X), 2, 0)
    assert ((low <= probability) & (probability <= high)).mean() > 0.9
    three = np.digitize(Y, [2, 4])
    many = BARTClassifier(**SHORT).fit(X, three)
    assert many.predict_proba(X).shape == (150, 3)
    assert (many.predict(X) == three).mean() > 0.85
    probit = BARTClassifier(**SHORT, link="probit").fit(X, LABELS)
    difference = np.abs(probit.predict_proba(X) - probability)
    assert difference.mean() < 0.1


def test_what_a_sum_has_not_is_refused_in_words(model, classifier):
    with pytest.raises(TypeError, match="have no structure to list"):
        model.structures()
    with pytest.raises(TypeError, match="has sums of many: use plot_partial_dependence"):
        plot_tree(model)
    with pytest.raises(TypeError, match="has sums of hard ones"):
        plot_topologies(model)
    with pytest.raises(TypeError, match="sums of many trees, which have no rules to write"):
        export.to_markdown(model)
    with pytest.raises(ValueError, match="link='probit' requires two classes; y has 3"):
        BARTClassifier(link="probit").fit(X, np.digitize(Y, [2, 4]))
    with pytest.raises(ValueError, match=r"too few rows \(n_samples = 4\).*min_leaf=5"):
        BARTRegressor(min_leaf=5).fit(X[:4], Y[:4])
    with pytest.raises(ValueError, match="max_depth must be at most 6; got 7"):
        BARTRegressor(max_depth=7).fit(X, Y)
    with pytest.raises(ValueError, match="bins must be at most 255; got 300"):
        BARTRegressor(bins=300).fit(X, Y)


def test_a_saved_model_predicts_the_same_bits(model, classifier, tmp_path):
    model.save(tmp_path / "a")
    np.testing.assert_array_equal(load(tmp_path / "a").predict(X), model.predict(X))
    classifier.save(tmp_path / "b")
    again = load(tmp_path / "b")
    np.testing.assert_array_equal(again.predict_proba(X), classifier.predict_proba(X))
    assert again.summary() == classifier.summary()


@pytest.mark.filterwarnings("ignore:Estimated shape parameter")
def test_arviz_diagnoses_and_compares(model, classifier):
    data = model.to_arviz(prior_draws=0)
    summary = arviz.summary(data, var_names=["sigma", "num_leaves"])
    assert summary.loc["sigma", "mean"] == pytest.approx(0.3, abs=0.1)
    loo = arviz.loo(data)
    assert np.isfinite(loo.elpd if hasattr(loo, "elpd") else loo.elpd_loo)  # before ArviZ 1
    assert data.posterior["splits_on"].dims == ("chain", "draw", "feature")
    assert "sigma" not in classifier.to_arviz(prior_draws=0).posterior


@pytest.mark.parametrize("mistake", [1.0, 1.3], ids=["right", "twin"])
def test_draws_from_the_prior_have_its_spread(model, mistake):
    drawn_from, posterior = copy.copy(model), model.posterior_
    # Half-Cauchy scales have no mean square: one scale, and no linear term.
    fixed = {"draws_leaf_scale": False, "linear_scale": None}
    gone = {"linear": None, "linear_deviation": None, "leaf_scale": None}
    wider = replace(posterior.prior, leaf_scale=mistake * posterior.prior.leaf_scale, **fixed)
    drawn_from.posterior_ = replace(posterior, prior=wider, **gone)
    data = drawn_from.to_arviz(prior_draws=400)
    assert data.prior["num_leaves"].shape == (1, 400)
    sigma, y = data.prior["sigma"].values, data.prior_predictive["y"].values
    assert y.shape == (1, 400, 150)
    # Calibration gives each row a quarter of the range as the sum's standard deviation; the noise
    # is normal given sigma. The mean square of a draw varies most if all its rows are equal.
    squares = (y - (Y.max() + Y.min()) / 2) ** 2 / ((np.ptp(Y) / 4) ** 2 + sigma[..., None] ** 2)
    is_right = abs(squares.mean() - 1) < 4 * np.sqrt(2 / 400)  # false alarms below 2e-4
    assert is_right == (mistake == 1)


def test_repeated_rows_count_as_often_as_their_weight():
    weights = np.random.default_rng(1).integers(1, 4, 150)
    weighted = BARTRegressor(**SHORT).fit(X, Y, sample_weight=weights)
    row = np.repeat(np.arange(150), weights)
    repeated = BARTRegressor(**SHORT).fit(X[row], Y[row])
    assert weighted.summary()["rows"] == repeated.summary()["rows"] == weights.sum()
    difference = weighted.predict(X) - repeated.predict(X)
    assert np.sqrt(np.mean(difference**2)) < 0.2  # 1e-8 where rounding changes no decision


def test_missing_values_go_to_the_side_that_the_rule_names():
    rng = np.random.default_rng(3)
    matrix = X.copy()
    gone = rng.random(150) < 0.3
    matrix[gone, 2] = np.nan
    model = BARTRegressor(**SHORT).fit(matrix, np.where(gone, 5.0, 0.0) + 0.1 * Y)
    new = np.array([[0.5, 0.5, np.nan], [0.5, 0.5, 0.5]])
    missing, present = model.predict(new)
    assert missing - present == pytest.approx(5, abs=0.5)
    with pytest.warns(TableWarning, match="missing .* in 'x0'"):
        filled = model.predict([[np.nan, 0.5, 0.5]])
    middle = np.quantile(matrix[:, 0], 0.5, method="inverted_cdf")
    np.testing.assert_array_equal(filled, model.predict([[middle, 0.5, 0.5]]))


@pytest.mark.slow
def test_a_sparse_prior_finds_the_few_features_that_matter():
    rng = np.random.default_rng(4)
    wide = np.column_stack([X, rng.uniform(size=(150, 30))])
    settings = SHORT | {"target_scale": "identity"}
    even = BARTRegressor(**settings).fit(wide, Y)
    sparse = BARTRegressor(**settings, sparsity=1.0).fit(wide, Y)
    assert sparse.feature_importances_[3:].sum() < even.feature_importances_[3:].sum() / 2
    assert sparse.posterior_.feature_weight.sum(axis=-1) == pytest.approx(1)


def test_a_fit_that_was_stopped_ends_at_the_same_draws(tmp_path, monkeypatch):
    settings = SHORT | {"target_scale": "identity"}
    whole = BARTRegressor(**settings).fit(X, Y)
    kept = BARTRegressor(**settings, checkpoint=tmp_path / "kept")

    class Stopped(KeyboardInterrupt):
        pass

    @contextmanager
    def interrupting(*_, **__):
        def interrupt(progress):
            raise Stopped

        yield interrupt

    with monkeypatch.context() as patch:
        patch.setattr("bdtppl.estimators.long_fits.following", interrupting)
        with pytest.raises(Stopped):
            kept.fit(X, Y)
    (file,) = (tmp_path / "kept").glob("*.checkpoint")
    assert 0 < read_arrays(file, "bdtppl checkpoint")[1][".log_likelihood"].shape[1] < 100
    np.testing.assert_array_equal(kept.fit(X, Y).predict(X), whole.predict(X))


def test_figures(model, classifier):
    assert plot_partial_dependence(model, "x0", ice=3).get_xlabel() == "x0"
    assert plot_partial_dependence(classifier, "x0").has_data()
    assert plot_trajectories(model).get_ylabel() == "log likelihood"
    plt.close("all")


@pytest.mark.slow
def test_the_command_line_fits_sums_of_trees(tmp_path):
    table = write_table(tmp_path / "t.csv", {"a": X[:, 0], "b": X[:, 1], "y": Y})
    options = ["--trees", 10, "--warmup", 20, "--draws", 20, "--bins", 20]
    said = run("fit", table, "--target", "y", *options, "--json").stdout
    assert json.loads(said)["sum"] == "10 trees of at most 3 levels"
    said = run("fit", table, "--target", "y", *options, "--report", "--out", tmp_path / "o").stdout
    assert "Feature importance" in said
    page = (tmp_path / "o" / "report.html").read_text(encoding="utf-8")
    assert "Each draw is a sum of 10 trees of at most 3 levels" in page


# -------------------------------------------------------------------------- latent variables


@pytest.mark.parametrize("shape", [1.0, 3.0, 0.3, 12.5])
@pytest.mark.parametrize("tilt", [0.0, 0.7, 4.0, 30.0])
def test_polya_gamma_variables_have_their_laplace_transform(tilt, shape):
    """Polson, Scott and Windle 2013, equation 4: a false alarm is one in 10^4."""
    drawn = np.empty(20_000)
    given = np.full(20_000, tilt), np.full(20_000, shape)
    draw_polya_gamma(*given, np.random.default_rng(0), drawn)
    for t in (0.5, 3.0):
        expected = (np.cosh(tilt / 2) / np.cosh(np.sqrt(tilt**2 / 4 + t / 2))) ** shape
        values = np.exp(-t * drawn)
        error = values.std() / np.sqrt(len(values))
        assert abs(values.mean() - expected) < stats.norm.isf(1e-4 / 4) * error
        twin = (np.cosh(tilt / 2 + 0.5) / np.cosh(np.sqrt((tilt + 1) ** 2 / 4 + t / 2))) ** shape
        assert abs(values.mean() - twin) > stats.norm.isf(1e-4 / 4) * error


@pytest.mark.parametrize("mean", [-6.0, -1.0, 0.0, 2.5])
def test_truncated_normals_follow_their_law(mean):
    drawn = np.empty(20_000)
    sign = np.arange(20_000) % 2 == 0
    given = np.where(sign, mean, -mean), sign, np.ones(20_000)
    draw_truncated(*given, np.random.default_rng(1), drawn)
    law = stats.truncnorm(-mean, np.inf, loc=mean)
    assert stats.kstest(np.where(sign, drawn, -drawn), law.cdf).pvalue > 1e-4
    wrong = stats.truncnorm(-mean - 0.5, np.inf, loc=mean + 0.5)
    assert stats.kstest(np.where(sign, drawn, -drawn), wrong.cdf).pvalue < 1e-4


def test_chains_that_disagree_go_on_and_can_be_resumed(tmp_path, monkeypatch):
    settings = SHORT | {"warmup": 10, "draws": 10, "extensions": 2, "checkpoint": tmp_path / "a"}
    monkeypatch.setattr(chains, "LARGEST_R_HAT", 0.5)
    whole = BARTRegressor(**settings).fit(X, Y)
    assert len(whole.trajectory_steps_) == 10 + 10 + 20 + 40
    assert whole.thrown_away == ("warm-up", 40)
    again = BARTRegressor(**settings).fit(X, Y)  # from what was kept at the end
    np.testing.assert_array_equal(whole.posterior_.value, again.posterior_.value)
    monkeypatch.setattr(chains, "LARGEST_R_HAT", 5.0)
    short = BARTRegressor(**settings | {"checkpoint": None}).fit(X, Y)
    assert len(short.trajectory_steps_) == 20


@pytest.mark.slow
def test_noise_that_depends_on_the_row_is_found_and_kept(tmp_path):
    rng = np.random.default_rng(1)
    x = rng.uniform(size=(300, 2))
    y = 2 * x[:, 0] + np.where(x[:, 0] < 0.5, 0.2, 1.0) * rng.normal(size=300)
    settings = SHORT | {"noise_trees": 10, "warmup": 150, "draws": 80}
    model = BARTRegressor(**settings).fit(x, y)
    rows = np.array([[0.25, 0.5], [0.75, 0.5]])
    deviation = model.noise_draws(rows).mean(axis=(0, 1))
    assert 0.15 < deviation[0] < 0.3
    assert 0.8 < deviation[1] < 1.25
    narrow, wide = np.diff(model.predict_interval(rows, 0.9))[:, 0]
    assert wide > 2.5 * narrow
    drawn = model.sample_predictive(rows, draws=2000)
    np.testing.assert_allclose(drawn.std(axis=0), [narrow / 3.3, wide / 3.3], rtol=0.2)
    model.save(tmp_path / "model")
    kept = load(tmp_path / "model")
    np.testing.assert_array_equal(
        kept.posterior_.deviations(rows), model.posterior_.deviations(rows)
    )
    assert "product of 10 trees" in model.prior_.in_words()
    prior = model.to_arviz(prior_draws=20)
    assert prior.prior["sigma"].shape[-1] == 20
    with pytest.raises(ValueError, match="noise_degrees must be above 2"):
        BARTRegressor(**settings, noise_degrees=1.5).fit(x, y)


@pytest.mark.filterwarnings("ignore:.*:sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("options", [{}, {"noise_trees": 3}, {"sparsity": 1.0}])
def test_constant_targets_and_columns_have_an_answer(options):
    """A mean near the targets', as those of exact trees are, whose priors count one row."""
    few = {"trees": 10, "chains": 2, "warmup": 30, "draws": 50, "extensions": 0, "random_state": 0}
    model = BARTRegressor(**few, **options)
    np.testing.assert_allclose(model.fit(X, np.full(150, 7.0)).predict(X), 7.0, atol=0.05)
    low, high = model.predict_interval(X[:1])[0]
    assert low < 7 < high < low + 1
    with pytest.warns(UserWarning, match="No cut in"):
        mean = model.fit(np.ones((150, 2)), Y).predict(np.ones((1, 2)))
    np.testing.assert_allclose(mean, Y.mean(), atol=3 * Y.std() / 150**0.5)


@pytest.mark.parametrize("estimator", [BARTRegressor, BARTClassifier])
def test_a_linear_term_answers_where_truth_is_linear(estimator, tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(160, 12))
    f = X @ rng.normal(size=12)
    y = f + 0.3 * rng.normal(size=160) if estimator is BARTRegressor else 1 * (f > 0)
    options = {"trees": 20, "warmup": 60, "draws": 60, "extensions": 0, "random_state": 0}
    plain, linear = (
        estimator(linear=linear, **options).fit(X[:80], y[:80]) for linear in (False, True)
    )
    score = [np.mean((model.predict(X[80:]) - y[80:]) ** 2) for model in (plain, linear)]
    assert score[1] < 0.8 * score[0]
    linear.save(tmp_path / "kept")
    kept = load(tmp_path / "kept")
    np.testing.assert_array_equal(kept.predict(X), linear.predict(X))
    assert kept.posterior_.linear.shape == (4, 60, 1, 12)
    assert set(linear.to_arviz().posterior) >= {"linear", "linear_deviation"}
    assert ("leaf_scale" in linear.to_arviz().posterior) == (estimator is BARTRegressor)
    with pytest.raises(AttributeError, match="no linear term"):
        plain.linear_effects_  # noqa: B018


def test_linear_effects_are_slopes():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(100, 2)) * [1, 10]
    slopes = np.array([3.0, -0.5])
    effects = BARTRegressor(**SHORT).fit(rows, rows @ slopes + 0.1 * rng.normal(size=100))
    found = [tuple(each.values()) for each in effects.linear_effects_.values()]
    for (mean, low, high), slope in zip(found, slopes, strict=True):
        assert low < mean < high < low + 0.2 * abs(slope)
        assert mean == pytest.approx(slope, rel=0.05)
    of_classes = BARTClassifier(**SHORT | {"trees": 5}).fit(rows, rng.integers(0, 3, 100))
    assert set(of_classes.linear_effects_) == {0, 1, 2}


def test_chains_go_on_where_predictions_disagree(monkeypatch):
    """By default the noise may mix slowly; a number of extensions asks for it, too."""
    asked: list[str] = []
    for name in ("agree", "predictions_agree"):
        monkeypatch.setattr(bart, name, lambda posterior, name=name: asked.append(name))
    few = SHORT | {"trees": 5, "warmup": 10, "draws": 10, "target_scale": "identity"}
    assert BARTRegressor(**few).fit(X, Y).trajectory_.shape == (2, 20 * 2**4 - 10 + 10)
    assert set(asked) == {"predictions_agree"}
    asked.clear()
    model = BARTRegressor(**few, extensions=1).fit(X, Y)
    assert model.trajectory_.shape == (2, 40)
    assert set(asked) == {"agree"}
    assert set(model.judged) == set(model.diagnostics_) > {"sigma", "predictions"}
    assert set(BARTRegressor(**few).fit(X, Y).judged) == {"predictions"}


def test_groups_have_effects_of_their_own(tmp_path):
    rng = np.random.default_rng(0)
    school, age = rng.integers(0, 12, 240), rng.uniform(20, 60, 240)
    effect, slope = 2 * rng.normal(size=12), 0.1 * rng.normal(size=12)
    y = effect[school] + slope[school] * (age - 40) + 0.5 * rng.normal(size=240)
    table = {"school": [f"s{i:02}" for i in school], "age": age}
    model = BARTRegressor(**SHORT, groups={"school": ["age"]}).fit(table, y)
    found = model.group_effects_
    assert list(found) == ["intercept", "age"]
    assert list(found["age"]) == [f"s{i:02}" for i in range(12)]
    for of_groups, truth in zip(found.values(), (effect, slope), strict=True):
        middle = [each["mean"] for each in of_groups.values()]
        assert np.corrcoef(middle, truth)[0, 1] > 0.95
    np.testing.assert_array_equal(model.feature_importances_, [0, 1])
    new = {"school": ["elsewhere", None, "s03"], "age": [30.0, 30.0, 30.0]}
    with pytest.warns(TableWarning, match="'elsewhere' was not seen"):
        low, high = model.predict_interval(new, 0.9).T
    assert low[0] == low[1]  # each is a new group
    assert (high - low)[0] > 1.5 * (high - low)[2]
    model.save(tmp_path / "kept")
    np.testing.assert_array_equal(load(tmp_path / "kept").predict(table), model.predict(table))
    few = SHORT | {"trees": 2, "draws": 4, "extensions": 0}
    assert BARTRegressor(**few, groups={"school": "age"}).fit(table, y).prior_.groups == (0, 1)
    labels = BARTClassifier(**SHORT, groups="school").fit(table, y > y.mean())
    middle = [each["mean"] for each in labels.group_effects_["intercept"].values()]
    assert np.corrcoef(middle, effect)[0, 1] > 0.8
    with pytest.raises(AttributeError, match="no groups"):
        BARTRegressor(**SHORT).fit(table, y).group_effects_  # noqa: B018


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ("town", "groups must name a column of X; got 'town'"),
        ({"school": ["hue"]}, "groups must name a numeric column of X; got 'hue'"),
        ({"school": ["school"]}, "groups must name a numeric column of X; got 'school'"),
        ({"school": [], "hue": []}, "groups must be the name of one column"),
        ("gone", "Column 'gone', row 1: the group is missing"),
    ],
)
def test_groups_that_cannot_be_are_named(groups, said):
    table = {"school": [1, 2] * 5, "hue": ["red", "blue"] * 5, "gone": ["a", None] * 5}
    with pytest.raises(ValueError, match=said):
        BARTRegressor(**SHORT, groups=groups).fit(table, np.arange(10.0))


OFFSETS = 3 * np.random.default_rng(1).normal(size=150)
TABLE = {"a": X[:, 0], "b": X[:, 1], "known": OFFSETS}


@pytest.mark.parametrize("unit", [1.0, 2.0**140])
def test_an_offset_is_added_as_it_is(unit, tmp_path):
    """A sum with an offset is one of the targets less it, in any unit."""
    few = SHORT | {"draws": 10, "extensions": 0}
    given = {**TABLE, "known": unit * OFFSETS}
    model = BARTRegressor(**few, offset="known").fit(given, unit * (Y + OFFSETS))
    assert model.prior_.offset_factor == 1
    without = {name: TABLE[name] for name in "ab"}
    plain = BARTRegressor(**few, target_scale="identity").fit(without, Y)
    np.testing.assert_allclose(model.predict(given) / unit - OFFSETS, plain.predict(without))
    assert model.feature_importances_[2] == 0
    assert set(model.linear_effects_) == {"a", "b"}
    new = {**TABLE, "known": unit * (OFFSETS + 1)}
    np.testing.assert_allclose(model.predict(new), model.predict(given) + unit)
    draws = model.posterior_.sample_predictive(jax.random.key(0), model.posterior_.matrix)
    assert np.corrcoef(draws.mean(axis=(0, 1)), Y + OFFSETS)[0, 1] > 0.9
    prior = draw_sum_prior(np.random.default_rng(0), model.posterior_, 20)
    spread = prior.sums(prior.matrix) - prior.sums(np.zeros_like(prior.matrix))
    assert np.corrcoef(np.median(spread, axis=(0, 1, 2)), OFFSETS)[0, 1] > 0.9
    model.save(tmp_path / "kept")
    np.testing.assert_array_equal(load(tmp_path / "kept").predict(given), model.predict(given))


@pytest.mark.parametrize("link", ["logit", "probit"])
def test_an_offset_of_classes_is_on_the_scale_of_the_link(link):
    law = {"logit": stats.logistic, "probit": stats.norm}[link]
    rng = np.random.default_rng(2)
    labels = law.cdf(OFFSETS + 2 * X[:, 0] - 1) > rng.uniform(size=150)
    model = BARTClassifier(**SHORT, offset="known", link=link).fit(TABLE, labels)
    prior = model.prior_
    share = law.cdf(prior.offset + OFFSETS).mean()
    assert share == pytest.approx((labels.sum() + 0.5) / 151)
    sums = law.ppf(model.mean_draws(TABLE)[..., 1])
    moved = law.ppf(model.mean_draws({**TABLE, "known": OFFSETS - 0.5})[..., 1])
    inside = np.abs(sums) < 5
    np.testing.assert_allclose(sums[inside] - moved[inside], 0.5, rtol=1e-6)
    with pytest.raises(ValueError, match="offset requires two classes; y has 3"):
        BARTClassifier(**SHORT, offset="known").fit(TABLE, np.arange(150) % 3)


def test_offsets_that_cannot_be_are_named():
    table = {
        **TABLE,
        "hue": ["red", "blue", "green"] * 50,
        "gone": np.where(X[:, 2] > 0.5, np.nan, 1),
    }
    few = SHORT | {"trees": 2, "draws": 4, "extensions": 0}
    row = int(np.isnan(table["gone"]).argmax())
    for more, said in [
        ({"offset": "town"}, "offset must name a numeric column of X; got 'town'"),
        ({"offset": "hue"}, "offset must name a numeric column of X; got 'hue'"),
        ({"offset": "gone"}, f"Column 'gone', row {row}: the offset is missing"),
        ({"offset": "a", "groups": {"hue": ["a"]}}, "Column 'a' can have one part in a sum"),
        ({"offset": "a", "target_scale": "log1p"}, "target_scale must be 'auto' or 'identity'"),
    ]:
        with pytest.raises(ValueError, match=said):
            BARTRegressor(**few, **more).fit(table, Y + 5)
    model = BARTRegressor(**few, offset="known").fit(table, Y)
    with pytest.raises(ValueError, match="Column 'known', row 1: the offset is missing"):
        model.predict({**table, "known": np.where(np.arange(150) == 1, np.nan, OFFSETS)})


def test_the_command_line_takes_an_offset(tmp_path):
    write_table(tmp_path / "rows.csv", {**TABLE, "y": Y + OFFSETS})
    few = ["--trees", "5", "--chains", "2", "--warmup", "20", "--draws", "10", "--extensions", "0"]
    out = ["--out", str(tmp_path / "model")]
    run(
        "fit",
        str(tmp_path / "rows.csv"),
        "--target",
        "y",
        "--model",
        "bart",
        "--offset",
        "known",
        *few,
        *out,
    )
    assert load(tmp_path / "model").offset == "known"


# --------------------------------------------------------------------------- monotone columns

RISING = {"trees": 20, "chains": 2, "warmup": 50, "draws": 25, "extensions": 0, "random_state": 0}


def along(name, table, number=30):
    """Repeat rows with many values of one column, [rows, values]."""
    values = np.linspace(-0.2, 1.2, number)
    rows = {key: np.repeat(np.asarray(each)[:20], number) for key, each in table.items()}
    return {**rows, name: np.tile(values, 20)}


@pytest.mark.parametrize("kind", ["numbers", "skewed", "variances", "logit", "probit"])
def test_each_draw_is_monotone(kind, tmp_path):
    rng = np.random.default_rng(3)
    missing = np.where(rng.uniform(size=150) < 0.1, np.nan, X[:, 1])
    table = {"a": X[:, 0], "b": missing, "hue": np.array(["red", "blue", "green"] * 50)}
    y = Y - 3 * X[:, 2] + (X[:, 0] > 0.7) * (table["hue"] == "red") * -4
    monotone = {"a": 1, "b": -1}  # the second is against the data
    if kind in ("logit", "probit"):
        model = BARTClassifier(**RISING, monotone=monotone, link=kind).fit(table, y > 1)
    else:
        noise_trees = 5 * (kind == "variances")
        skewed = {"y": np.exp(y)} if kind == "skewed" else {"y": y}
        catch = pytest.warns(ChoiceWarning) if kind == "skewed" else nullcontext()
        with catch:
            model = BARTRegressor(**RISING, noise_trees=noise_trees, monotone=monotone).fit(
                table, **skewed
            )
    posterior = model.posterior_
    for name, sign in monotone.items():
        rows = model._matrix(along(name, table))
        sums = posterior.sums(rows)[:, :, 0].reshape(2, 25, 20, 30)
        assert (sign * np.diff(sums) > -1e-9).all()
        assert (np.ptp(sums, axis=-1) > 0).any()
    prior = draw_sum_prior(np.random.default_rng(0), posterior, 20)
    sums = prior.sums(model._matrix(along("a", table)))[:, :, 0].reshape(20, 20, 30)
    assert (np.diff(sums) > -1e-9).all()
    free = draw_sum_prior(
        np.random.default_rng(0),
        replace(posterior, prior=replace(posterior.prior, monotone=())),
        20,
    )
    sums = free.sums(model._matrix(along("a", table)))[:, :, 0].reshape(20, 20, 30)
    assert (np.diff(sums) < -1e-9).any()  # the twin
    model.save(tmp_path / "kept")
    np.testing.assert_array_equal(
        load(tmp_path / "kept").mean_draws(table), model.mean_draws(table)
    )


@pytest.mark.slow
def test_directions_that_are_true_do_no_harm():
    """Of a few trees; and false ones do."""

    def error(monotone, seed):
        rng = np.random.default_rng(seed)
        rows, new = rng.uniform(size=(2, 150, 4))
        f, f_new = (
            4 * x[:, 0] ** 2 + 3 * np.tanh(6 * x[:, 1] - 3) - 2 * x[:, 2] for x in (rows, new)
        )
        longer = RISING | {"warmup": 150, "draws": 100}
        model = BARTRegressor(**longer, monotone=monotone, target_scale="identity")
        model.fit(rows, f + 1.5 * rng.normal(size=150))
        return np.sqrt(np.mean((model.predict(new) - f_new) ** 2))

    errors = [
        np.mean([error(monotone, seed) for seed in range(5)])
        for monotone in (None, {"x0": 1, "x1": 1, "x2": -1}, {"x0": -1, "x1": 1, "x2": -1})
    ]
    assert errors[1] < errors[0] < errors[2] / 1.3


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"monotone": {"town": 1}}, "monotone must name a numeric column of X; got 'town'"),
        ({"monotone": {"hue": 1}}, "monotone must name a numeric column of X; got 'hue'"),
        ({"monotone": {"a": 2}}, "monotone must map names of columns to 1 or -1"),
        ({"monotone": ["a"]}, "monotone must map names of columns to 1 or -1"),
        ({"monotone": {"a": 1}, "offset": "a"}, "Column 'a' can have one part"),
        ({"monotone": {"a": 1}, "groups": {"b": ["a"]}}, "Column 'a' can have one part"),
    ],
)
def test_directions_that_cannot_be_are_named(more, said):
    table = {**TABLE, "hue": ["red", "blue", "green"] * 50}
    with pytest.raises(ValueError, match=said):
        BARTRegressor(**RISING, **more).fit(table, Y)


def test_directions_are_for_two_classes():
    with pytest.raises(ValueError, match="monotone requires two classes; y has 3"):
        BARTClassifier(**RISING, monotone={"a": 1}).fit(TABLE, np.arange(150) % 3)


def test_a_warm_start_adds_draws_to_those_of_the_fit_before():
    settings = {"trees": 5, "chains": 2, "warmup": 20, "extensions": 1, "random_state": 3}
    model = BARTRegressor(**settings, draws=10, warm_start=True, target_scale="identity")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, Y)
        first, thin = model.posterior_, 1 + (model.thrown_away[1] > 20)
        model.set_params(draws=25).fit(X, Y)
        whole = BARTRegressor(
            **settings | {"warmup": model.thrown_away[1], "extensions": 0, "thin": thin},
            draws=25,
            target_scale="identity",
        ).fit(X, Y)
    assert model.posterior_.rule.shape[1] == 25
    np.testing.assert_array_equal(model.posterior_.value[:, :10], first.value)
    np.testing.assert_array_equal(model.posterior_.value, whole.posterior_.value)
    with pytest.raises(ValueError, match="cannot resume: chains cannot change in number"):
        model.set_params(draws=5).fit(X, Y)
    with pytest.raises(ValueError, match="cannot resume: rows, their order, buckets or the prior"):
        model.set_params(draws=25).fit(X[:-1], Y[:-1])
    with pytest.raises(ValueError, match="buckets or the prior have changed"):
        model.set_params(bins=7).fit(X, Y)
    again = model.set_params(warm_start=False).fit(X[:-1], Y[:-1])
    assert again._last_run is None
