"""Sums of trees of targets on another scale: what is said of the targets themselves."""

import warnings
from itertools import pairwise

import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad
from test_cli import run, write_table

from bdtppl import BARTRegressor, ChoiceWarning, load
from bdtppl.arviz import psis_loo
from bdtppl.estimators import scale_choice
from bdtppl.inference.predictive.leave_one_out import leave_one_out
from bdtppl.models.data.target_scale import TargetScale

pytestmark = pytest.mark.filterwarnings("ignore:Chains disagree")

SHORT = {"trees": 10, "chains": 2, "warmup": 20, "draws": 10, "extensions": 0, "random_state": 0}
RNG = np.random.default_rng(0)
X = RNG.uniform(size=(120, 3))
Y = np.exp(2 * X[:, 0] + 0.5 * RNG.normal(size=120))
SCALES = [
    TargetScale("log"),
    TargetScale("log1p"),
    *(TargetScale("yeo-johnson", power) for power in (0.0, 0.4, 1.0, 1.7, 2.0)),
]


@pytest.fixture(scope="module")
def models():
    return {
        kind: BARTRegressor(target_scale=kind, **SHORT).fit(X, Y)
        for kind in ("identity", "log", "log1p", "yeo-johnson")
    }


@pytest.mark.parametrize("scale", SCALES, ids=str)
def test_a_scale_has_an_inverse_a_slope_and_means(scale):
    y = np.array([0.01, 0.5, 3.0, 40.0])
    if scale.kind == "yeo-johnson":
        y = np.append(-y, y)
        expected = stats.yeojohnson(y, scale.power)
        np.testing.assert_allclose(scale.forward(y), expected, rtol=1e-12)
    np.testing.assert_allclose(scale.inverse(scale.forward(y)), y, rtol=1e-10)
    step = 1e-6 * np.abs(y)
    slope = (scale.forward(y + step) - scale.forward(y - step)) / (2 * step)
    np.testing.assert_allclose(np.exp(scale.log_slope(y)), slope, rtol=1e-7)
    for mean, deviation in ((0.3, 0.2), (-0.5, 1.0), (2.0, 0.7)):

        def weighed(z, mean=mean, deviation=deviation):
            return scale.inverse(np.array(z)) * stats.norm.pdf(z, mean, deviation)

        exact, _ = quad(weighed, mean - 12 * deviation, mean + 14 * deviation, points=[0.0])
        found = scale.mean_of_normal(np.array(mean), np.array(deviation))
        bend = 2e-4 * deviation if scale.kind == "yeo-johnson" and scale.power != 1 else 1e-9
        np.testing.assert_allclose(found, exact, rtol=1e-8, atol=bend)


def test_the_power_has_the_largest_likelihood():
    y = (3 + RNG.normal(size=300)) ** 2 - 2
    weights = RNG.integers(1, 4, size=300)
    power = TargetScale.fitted("yeo-johnson", y, np.ones(300)).power
    assert power == pytest.approx(stats.yeojohnson(y)[1], abs=1e-3)
    weighted = TargetScale.fitted("yeo-johnson", y, weights).power
    assert weighted == pytest.approx(stats.yeojohnson(np.repeat(y, weights))[1], abs=1e-3)
    assert abs(weighted - power) > 2e-3
    assert TargetScale.fitted("yeo-johnson", np.ones(3), np.ones(3)).power == 1


def test_a_log_target_is_a_fit_of_the_logarithm(models):
    """All that is said of y follows from what a fit of log y says; twins lack the Jacobian."""
    model, of_log = models["log"], BARTRegressor(**SHORT).fit(X, np.log(Y))
    posterior, other = model.posterior_, of_log.posterior_
    np.testing.assert_array_equal(posterior.value, other.value)
    np.testing.assert_array_equal(posterior.y, Y)
    np.testing.assert_array_equal(model.noise_draws(X), of_log.noise_draws(X))
    mean = np.exp(of_log.mean_draws(X) + of_log.noise_draws(X) ** 2 / 2)
    np.testing.assert_allclose(model.mean_draws(X), mean, rtol=1e-12)
    np.testing.assert_allclose(model.predict(X), mean.mean(axis=(0, 1)), rtol=1e-12)
    band = np.quantile(mean.reshape(-1, 120), [0.05, 0.95], axis=0).T
    np.testing.assert_allclose(model.predict_interval(X, kind="mean"), band, rtol=1e-12)
    probabilities = [0.1, 0.5, 0.9]
    quantiles = np.exp(of_log.predict_quantiles(X, probabilities))
    np.testing.assert_allclose(model.predict_quantiles(X, probabilities), quantiles, rtol=1e-12)
    drawn = np.exp(of_log.sample_predictive(X, 5))
    np.testing.assert_allclose(model.sample_predictive(X, 5), drawn, rtol=1e-12)
    lost = np.log(Y)
    each = other.log_likelihood() - lost
    np.testing.assert_allclose(posterior.log_likelihood(), each, rtol=1e-9)
    for total in (posterior.sample_stats["log_likelihood"], model.trajectory_[:, -10:]):
        np.testing.assert_allclose(total, each.sum(axis=-1), rtol=1e-9)
    loo = psis_loo(other, random_state=0).log_density
    assert np.abs(psis_loo(posterior, random_state=0).log_density - loo + lost).max() < 1e-6
    assert np.abs(psis_loo(posterior, random_state=0).log_density - loo).max() > 0.1
    left, left_of_log = leave_one_out(posterior), leave_one_out(other)
    np.testing.assert_allclose(left.log_density, left_of_log.log_density - lost, rtol=1e-9)
    np.testing.assert_allclose(left.cdf, left_of_log.cdf, rtol=1e-9)
    assert (left.mean > np.exp(left_of_log.mean)).all()
    assert model.diagnostics_["sigma"] == of_log.diagnostics_["sigma"]


@pytest.mark.parametrize("kind", ["log", "log1p", "yeo-johnson"])
@pytest.mark.parametrize("options", [{}, {"noise_trees": 5, "linear": True}], ids=str)
def test_the_predictive_is_a_law_of_the_targets(kind, options):
    weights = RNG.uniform(0.5, 2, size=120)
    model = BARTRegressor(target_scale=kind, **SHORT, **options).fit(X, Y, weights)
    mixture = model._mixture(X[:1])
    assert_is_law(mixture, {"log": 0.0, "log1p": -1.0}.get(kind, -60.0), Y[0])
    quantiles = model.predict_quantiles(X[:5], [0.05, 0.5, 0.95])
    for place, probability in enumerate([0.05, 0.5, 0.95]):
        np.testing.assert_allclose(model._mixture(X[:5]).cdf(quantiles[:, place]), probability)
    drawn = model.sample_predictive(X[:1], 4000)[:, 0]  # false alarms: 1e-4
    assert stats.kstest(drawn, lambda y: cdf_of(mixture, y)).pvalue > 1e-4
    assert stats.kstest(1.2 * drawn, lambda y: cdf_of(mixture, y)).pvalue < 1e-4
    if kind != "yeo-johnson":
        outside = np.array([-1.5])
        assert mixture.log_density(outside) == -np.inf
        assert mixture.cdf(outside) == 0
        assert mixture.crps(outside) == pytest.approx(mixture.crps(np.array([-1.25])) + 0.25)


def cdf_of(mixture, y):
    return np.array([mixture.cdf(np.array([each]))[0] for each in np.atleast_1d(y)])


def assert_is_law(mixture, low, y):
    """Compare density, mean and CRPS of one row with integrals over its targets."""

    def integral(function, *ends):
        return sum(quad(function, *pair, limit=200)[0] for pair in pairwise(ends))

    def density(at):
        return np.exp(mixture.log_density(np.array([at]))[0])

    far = [10, 50, 300, 5000]
    assert integral(density, low, 0.5, 2, *far) == pytest.approx(1, abs=1e-6)
    mean = integral(lambda at: at * density(at), low, 0.5, 2, *far)
    assert mixture.mean()[0] == pytest.approx(mean, rel=1e-5)
    below = integral(lambda at: mixture.cdf(np.array([at]))[0] ** 2, low, 0.0, y)
    above = integral(lambda at: (1 - mixture.cdf(np.array([at]))[0]) ** 2, y, *far)
    assert mixture.crps(np.array([y]))[0] == pytest.approx(below + above, rel=1e-5)


def test_auto_takes_what_predicts_best_and_says_so(monkeypatch):
    with pytest.warns(ChoiceWarning, match="chose 'log'.*higher by"):
        model = BARTRegressor(target_scale="auto", **SHORT).fit(X, Y)
    assert model.target_scale_ == "log"
    assert model.chosen == {"target_scale": "log"}
    same = BARTRegressor(target_scale="log", **SHORT).fit(X, Y)
    np.testing.assert_array_equal(model.predict(X), same.predict(X))
    with warnings.catch_warnings():
        warnings.simplefilter("error", ChoiceWarning)
        skewed = np.where(X[:, 0] > 0.9, 8.0, 0.0) + 0.1 * RNG.normal(size=120)
        model = BARTRegressor(target_scale="auto", **SHORT).fit(X, skewed)
        assert model.target_scale_ == "identity"
        monkeypatch.setattr(scale_choice, "_left_out", None)  # not called where nothing is skewed
        model = BARTRegressor(target_scale="auto", **SHORT).fit(X, np.log(Y))
    assert model.target_scale_ == "identity"
    assert same.chosen == {}


def test_targets_outside_a_scale_are_named():
    y = Y.copy()
    y[[7, 9]] = 0.0, -3.0
    weights = np.ones(120)
    with pytest.raises(ValueError, match=r"y, row 7: target_scale='log' .* above 0; got 0\."):
        BARTRegressor(target_scale="log", **SHORT).fit(X, y)
    weights[7] = 0
    with pytest.raises(ValueError, match=r"y, row 9: target_scale='log' .* above 0; got -3\."):
        BARTRegressor(target_scale="log", **SHORT).fit(X, y, weights)
    with pytest.raises(ValueError, match=r"y, row 9: target_scale='log1p' .* above -1; got -3\."):
        BARTRegressor(target_scale="log1p", **SHORT).fit(X, y)
    with pytest.raises(ValueError, match="target_scale must be 'identity' or"):
        BARTRegressor(target_scale="sqrt", **SHORT).fit(X, y)


def test_files_figures_and_arviz_know_the_scale(models, tmp_path):
    for kind, model in models.items():
        model.save(tmp_path / kind)
        kept = load(tmp_path / kind)
        assert kept.posterior_.scale == model.posterior_.scale
        np.testing.assert_array_equal(kept.predict(X), model.predict(X))
        assert ("on the scale log" in model.prior_.in_words(model.posterior_.scale.in_words())) == (
            kind.startswith("log")
        )
        assert ("target scale" in str(model)) == (kind != "identity")
        assert model.summary()["target_scale"].startswith(kind)
    data = models["log"].to_arviz(prior_draws=20)
    assert data.attrs["target_scale"] == "log"
    np.testing.assert_array_equal(data.observed_data["y"], Y)
    assert (data.posterior_predictive["y"] > 0).all()
    assert (data.prior_predictive["y"] > 0).all()
    assert "yeo-johnson of power" in models["yeo-johnson"].summary()["target_scale"]


def test_the_command_line_and_reports_know_the_scale(tmp_path):
    table = write_table(tmp_path / "rows.csv", {"a": X[:, 0], "y": Y})
    short = {"trees": 5, "chains": 2, "warmup": 10, "draws": 5, "extensions": 0}
    options = [text for name, value in short.items() for text in (f"--{name}", value)]
    options += ["--model", "bart", "--target-scale", "log", "--report", "--out", tmp_path / "kept"]
    run("fit", table, "--target", "y", *options)
    assert load(tmp_path / "kept").target_scale_ == "log"
    (page,) = tmp_path.rglob("*.html")
    assert "The mean of the target on the scale log is a linear term and a sum" in page.read_text()
    assert "on the log scale." in page.read_text()
