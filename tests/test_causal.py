"""Sums of trees with the effect of a treatment: the law of the kernel, and the estimator."""

import functools
import warnings
from dataclasses import replace

import additive_problems as ap
import numpy as np
import pytest
from scipy import stats
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from tiers import slow_but

from bdtppl import (
    BARTRegressor,
    BCFRegressor,
    load,
    plot_overlap,
    plot_treatment_effects,
    write_report,
)
from bdtppl.inference.additive import causal
from bdtppl.inference.additive.causal import CausalKernel, CausalState
from bdtppl.inference.additive.kernel import AdditiveKernel
from bdtppl.models.data.design import Design
from bdtppl.models.hard.additive import AdditivePrior

NUM_ROWS = 16
CODE_DEVIATION = np.sqrt(causal.CODE_VARIANCE)


def kernels(rng, is_coded, **settings):
    """Make kernels of mu and tau on a table whose last column is the treatment."""
    matrix = rng.integers(0, 4, (NUM_ROWS, 3)).astype(float)
    matrix[:, 2] = rng.permutation(NUM_ROWS) % 2 if is_coded else rng.integers(0, 3, NUM_ROWS)
    weights = settings.pop("weights", None)
    common = {"num_trees": 2, "max_depth": 2, "min_leaf": 1}
    priors = (
        AdditivePrior(0.7, 0.5, offset=0.2, **common, **settings),
        AdditivePrior(0.6, 1.0, alpha=0.6, **common, draws_leaf_scale=not is_coded),
    )
    made = []
    for prior, hidden in zip(priors, ([2], [1, 2]), strict=True):
        coded = matrix.copy()
        coded[:, hidden] = 0.0
        design = Design.from_matrix(coded, weights=weights)
        design = replace(design, matrix=matrix)
        made.append(AdditiveKernel(prior, design, np.zeros(NUM_ROWS)))
    return CausalKernel(*made, 2, is_coded)


def prior_state(of, rng):
    states = [ap.prior_state(kernel, rng) for kernel in (of.control, of.effect)]
    coding = CODE_DEVIATION * rng.normal(size=2) if of.is_coded else of.init().coding
    return CausalState(*states, coding)


def numbers_of(of, state):
    effect = ap.numbers_of(of.effect, state.effect)[1:]  # without a variance
    tau = of.tau(state.effect)
    codes = [state.coding.sum(), np.diff(state.coding)[0] * tau[0], state.coding[0] * tau[-1]]
    own = codes if of.is_coded else [tau[0]]
    return [*ap.numbers_of(of.control, state.control), *effect, *own]


def prior_and_law_after(sweeps, replications, is_coded, **settings):
    """Draw from the prior, simulate targets, move: two samples of one law (Geweke 2004)."""
    rng = np.random.default_rng(5)
    of = kernels(rng, is_coded, **settings)
    room, before, after = of.make_room(), [], []
    for _ in range(replications):
        before.append(numbers_of(of, prior_state(of, rng)))
        state = prior_state(of, rng)
        mu = of.control.offsets[0] - state.control.left[0]
        treated = state.coding[0] + np.diff(state.coding) * of.treatment
        deviation = np.sqrt(of.control.variances(state.control) / of.control.rows.weights)
        noise = deviation * rng.normal(size=NUM_ROWS)
        y = mu + treated * of.tau(state.effect) + noise
        state.control.left[0] = noise
        observed = replace(of, control=AdditiveKernel(of.prior, of.design, y))
        for _ in range(sweeps):
            state = observed.advance(rng, state, room)
        after.append(numbers_of(observed, state))
    return np.array(before), np.array(after)


def least_p_value(before, after):
    number = before.shape[1]
    each = [stats.ks_2samp(before[:, j], after[:, j], method="asymp").pvalue for j in range(number)]
    return min(each) * number


CHECKS = {
    "coded": (True, {}),
    "dose": (False, {"linear_scale": 0.4}),
    "coded, with a leaf scale and a linear term": (
        True,
        {"draws_leaf_scale": True, "linear_scale": 0.4},
    ),
    "dose, with noise trees": (False, {"noise_trees": 2, "noise_degrees": 5.0}),
}


@pytest.mark.parametrize("name", slow_but(["coded"], CHECKS))
def test_the_kernel_and_the_model_are_of_one_law(name):
    is_coded, settings = CHECKS[name]
    assert least_p_value(*prior_and_law_after(4, 600, is_coded, **settings)) > 1e-4


def wrong_codes(monkeypatch):
    """Their prior variance is four times as large."""
    monkeypatch.setattr(causal, "CODE_VARIANCE", 4 * causal.CODE_VARIANCE)


def wrong_precisions(monkeypatch):
    """The targets of tau have twice their precision."""
    right = AdditiveKernel.advance

    def advance(self, *given, precision=None, **more):
        doubled = None if precision is None else 2 * precision
        return right(self, *given, precision=doubled, **more)

    monkeypatch.setattr(AdditiveKernel, "advance", advance)


@pytest.mark.slow
@pytest.mark.parametrize(("wrong", "name"), [(wrong_codes, "coded"), (wrong_precisions, "dose")])
def test_a_wrong_full_conditional_is_noticed(wrong, name, monkeypatch):
    is_coded, settings = CHECKS[name]
    wrong(monkeypatch)
    assert least_p_value(*prior_and_law_after(8, 1500, is_coded, **settings)) < 1e-4


# The estimator.

RNG = np.random.default_rng(2)
X = RNG.normal(size=(120, 3))
Z = (RNG.random(120) < 1 / (1 + np.exp(-X[:, 0]))).astype(int)
TAU = np.where(X[:, 1] > 0, 3.0, 1.0)
Y = X[:, 0] + TAU * Z + 0.3 * RNG.normal(size=120)
FEW = {"warmup": 60, "draws": 40, "chains": 2, "extensions": 0, "random_state": 0}


@functools.cache
def fitted():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # short chains may disagree
        return BCFRegressor(**FEW).fit(X, Y, treatment=Z)


def test_effects_are_found_and_averaged():
    model = fitted()
    effects = model.effects()
    assert np.mean((effects.low < TAU) & (effects.high > TAU)) > 0.8
    assert np.sqrt(np.mean((effects.mean - TAU) ** 2)) < 0.5
    each = model.effect_draws()
    assert each.shape == (2, 40, 120)
    np.testing.assert_allclose(model.effect_draws(X), each)
    average = model.average_effect("treated", 0.9)
    assert average.mean == pytest.approx(each[..., Z == 1].mean())
    assert abs(average.mean - TAU[Z == 1].mean()) < 0.25
    widths = {over: own.high - own.low for over, own in model.average_effect_.items()}
    assert widths["population"] > widths["sample"]
    np.testing.assert_allclose(model.to_arviz().posterior["average_effect"], each.mean(axis=-1))


def test_the_difference_of_predictions_is_the_effect():
    model = fitted()
    with_and_without = (model.predict(model.with_treatment(X[:7], own)) for own in (1, 0))
    np.testing.assert_allclose(np.subtract(*with_and_without), model.effects(X[:7]).mean)
    interval = model.predict_interval(model.with_treatment(X, Z, model.propensity_))
    assert np.mean((interval[:, 0] < Y) & (interval[:, 1] > Y)) > 0.8


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_treatment_is_a_column_or_an_array_and_gaps_and_levels_are_read():
    table = {"a": X[:, 0], "b": X[:, 1], "c": np.where(X[:, 2] > 0, "u", "v")}
    table["a"] = np.where(np.arange(120) < 5, np.nan, table["a"])
    given = BCFRegressor(**FEW).fit(table, Y, treatment=Z == 1)
    named = BCFRegressor(treatment="arm", **FEW).fit({"arm": Z == 1, **table}, Y)
    np.testing.assert_array_equal(given.effect_draws(table), named.effect_draws(table))
    assert clone(named).treatment == "arm"
    some = {name: column[:3] for name, column in table.items()}
    np.testing.assert_array_equal(
        named.predict({**some, "arm": Z[:3]}), given.predict(given.with_treatment(some, Z[:3]))
    )


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_dose_has_an_effect_of_each_unit(tmp_path):
    dose = 50.0 + RNG.integers(0, 4, 120)
    y = X[:, 0] + 2 * dose + 0.3 * RNG.normal(size=120)
    weights = 1 + RNG.integers(0, 2, 120)
    model = BCFRegressor(**FEW).fit(X, y, weights, treatment=dose, propensity=51.5)
    assert abs(model.average_effect().mean - 2) < 0.3
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    np.testing.assert_array_equal(again.effect_draws(X), model.effect_draws(X))
    table = model.with_treatment(X, dose)  # one propensity holds for all rows
    np.testing.assert_array_equal(again.predict(table), model.predict(table))


def test_a_saved_model_predicts_propensities_and_rows_without_weight_are_absent(tmp_path):
    weights = np.where(np.arange(120) < 110, 1, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = BCFRegressor(**FEW).fit(X, Y, weights, treatment=Z)
        without = BCFRegressor(**FEW).fit(X[:110], Y[:110], treatment=Z[:110])
    assert len(model.propensity_) == 110
    np.testing.assert_array_equal(model.effect_draws(X), without.effect_draws(X))
    model.save(tmp_path / "model")
    table = model.with_treatment(X, Z)
    again = load(tmp_path / "model").predict(table)
    np.testing.assert_array_equal(again, without.predict(table))
    np.testing.assert_allclose(model.predict(model.with_treatment(table, Z)), again)


def test_figures_show_all_rows():
    model = fitted()
    line = plot_treatment_effects(model).get_lines()[0].get_ydata()
    np.testing.assert_allclose(line, np.sort(model.effects().mean))
    heights = [abs(bar.get_height()) for bar in plot_overlap(model).patches]
    assert sum(heights) == len(Y)
    with pytest.raises(TypeError, match=r"needs a BCFRegressor; got a BARTRegressor\."):
        plot_overlap(BARTRegressor())


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_what_cannot_be_estimated_is_refused():
    model = BCFRegressor(**FEW)
    with pytest.raises(ValueError, match="The treatment is needed once: fit"):
        model.fit(X, Y)
    with pytest.raises(ValueError, match="All treatments are 1: there is no effect"):
        model.fit(X, Y, treatment=np.ones(120))
    with pytest.raises(ValueError, match="treatment must contain numbers; code arms as 0 and 1"):
        model.fit(X, Y, treatment=np.where(Z, "new", "old"))
    with pytest.raises(ValueError, match="X has a column 'propensity', a name that is needed"):
        model.fit({"a": X[:, 0], "propensity": X[:, 1]}, Y, treatment=Z)
    with pytest.raises(ValueError, match="treatment must name a column of X; got 'arm'"):
        BCFRegressor(treatment="arm").fit({"a": X[:, 0]}, Y)
    with pytest.raises(ValueError, match="can have one part in a sum"):
        BCFRegressor(treatment="z", offset="z", **FEW).fit({"a": X[:, 0], "z": Z}, Y)
    with pytest.raises(ValueError, match="X has no columns besides the treatment"):
        BCFRegressor(treatment="z").fit({"z": Z}, Y)
    with pytest.raises(ValueError, match="propensity must be probabilities"):
        model.fit(X, Y, treatment=Z, propensity=1.5)
    with pytest.raises(ValueError, match="Treatments must be 0 or 1, as at fit"):
        fitted().predict(fitted().with_treatment(X, 2))
    with pytest.raises(ValueError, match="Predictions of targets need the treatment"):
        fitted().predict(X)
    with pytest.warns(UserWarning, match=r"50% of the rows have a propensity below 0\.05"):
        model.fit(X, Y, treatment=Z, propensity=np.repeat([0.01, 0.5], 60))


def test_reports_tell_of_the_effect(tmp_path):
    write_report(fitted(), tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Average effect of treatment, and its 95 % interval." in page
    assert "Propensities of both arms." in page
