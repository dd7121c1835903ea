"""Model comparison: scores against quadrature, the Jacobian, one set of data, and honest blanks."""

import json
import re
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from scipy import integrate, optimize, stats
from sklearn.compose import TransformedTargetRegressor
from sklearn.model_selection import KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from bdtppl import (
    ExactTreeClassifier,
    ExactTreeRegressor,
    GreedyModalTreeClassifier,
    GreedyModalTreeRegressor,
    RJHMCTreeClassifier,
    compare,
    plot_comparison,
)
from bdtppl.comparison import Comparison
from bdtppl.comparison.columns import stacking_weights
from bdtppl.comparison.scoring import Scored
from bdtppl.inference.crps import crps
from bdtppl.inference.soft.mixture import NoiseMixture
from bdtppl.models.priors import DepthDecay

RNG = np.random.default_rng(0)
X = RNG.uniform(size=(24, 1)).round(1)
SIGNAL = 40.0 * (X[:, 0] > 0.5)
Y = SIGNAL + RNG.normal(0, 5, 24)
LABELS = np.where(SIGNAL + RNG.normal(0, 25, 24) > 20, "high", "low")
FOLDS = KFold(2)


@pytest.fixture(scope="module")
def regressors() -> dict:
    models = {
        "exact": ExactTreeRegressor(random_state=0),
        "stump": ExactTreeRegressor(max_depth=1, random_state=0),
        "greedy": GreedyModalTreeRegressor(),
    }
    return {name: model.fit(X, Y) for name, model in models.items()}


@pytest.fixture(scope="module")
def classifiers() -> dict:
    models = {"exact": ExactTreeClassifier(random_state=0), "greedy": GreedyModalTreeClassifier()}
    return {name: model.fit(X, LABELS) for name, model in models.items()}


@pytest.fixture(scope="module")
def found(classifiers) -> Comparison:
    return compare(classifiers, X, LABELS, cv=FOLDS)


@pytest.mark.slow
def test_the_first_fold_forecasts_the_others_without_a_terminal(classifiers, capsys, monkeypatch):
    monkeypatch.setattr("bdtppl.progress._LONG", 0.0)
    compare(classifiers, X, LABELS, cv=FOLDS)
    said = capsys.readouterr().err
    assert re.fullmatch(r"Cross-validation in 2 folds: about \d+ s more\.\n", said)


# ------------------------------------------------------------------------------------- the scores


def crps_by_quadrature(cdf, y: float) -> float:
    """Integrate (F(z) - 1{y <= z})^2, which shares nothing with the closed form."""
    below = integrate.quad(lambda z: cdf(z) ** 2, -np.inf, y, limit=500)[0]
    return below + integrate.quad(lambda z: (1 - cdf(z)) ** 2, y, np.inf, limit=500)[0]


@pytest.mark.parametrize("df", [None, np.array([3.5, 30.0])], ids=["normal", "student"])
@pytest.mark.parametrize("y", [-3.0, 0.4, 40.0])
def test_crps_of_a_mixture_is_its_integral(df, y):
    weight, loc, scale = np.array([0.3, 0.7]), np.array([-1.0, 2.0]), np.array([0.5, 1.5])
    law = stats.norm if df is None else stats.t(df)
    wanted = crps_by_quadrature(lambda z: weight @ law.cdf((z - loc) / scale), y)
    assert crps(np.array([y]), weight, loc, scale, df)[0] == pytest.approx(wanted, rel=1e-7)


def test_crps_is_in_the_units_of_y_and_infinite_without_a_mean():
    weight, loc, scale = np.array([0.3, 0.7]), np.array([-1.0, 2.0]), np.array([0.5, 1.5])
    once = crps(np.array([0.4]), weight, loc, scale, 4.0)
    np.testing.assert_allclose(
        crps(np.array([40.0]), weight, 100 * loc, 100 * scale, 4.0), 100 * once, rtol=1e-12
    )
    assert crps(np.array([0.4]), weight, loc, scale, 1.0)[0] == np.inf


@pytest.mark.slow
def test_crps_of_predictives_is_their_integral(regressors):
    """Of a mixture over leaves, and of a mixture over draws."""
    mixture = regressors["exact"].exact_.predictive(X[:1])
    leaves = mixture.weights[mixture.kind]
    law = mixture.leaf.predictive(mixture.statistics[leaves.indices])
    student = stats.t(*(np.asarray(each, float) for each in (law.df, law.loc, law.scale)))
    wanted = crps_by_quadrature(lambda z: leaves.data @ student.cdf(z), 3.0)
    assert mixture.crps(np.array([3.0])) == pytest.approx(wanted, rel=1e-5)
    loc, scale = RNG.normal(size=(5, 2)), RNG.uniform(0.5, 2, size=(5, 2))
    for row, score in enumerate(NoiseMixture(loc, scale, 5.0).crps(np.array([0.1, -2.0]))):

        def cdf(z, row=row):
            return stats.t(5.0).cdf((z - loc[:, row]) / scale[:, row]).mean()

        assert score == pytest.approx(crps_by_quadrature(cdf, [0.1, -2.0][row]), rel=1e-7)


@pytest.mark.slow
def test_cross_validation_is_that_of_refits(classifiers, found):
    log_score, brier = 0.0, 0.0
    for train, test in FOLDS.split(X):
        model = ExactTreeClassifier(random_state=0, **classifiers["exact"].chosen)
        model.fit(X[train], LABELS[train])
        probability = model.predict_proba(X[test])
        truth = LABELS[test][:, None] == model.classes_
        log_score += np.log(probability[truth]).sum()
        brier += ((probability - truth) ** 2).sum() / len(X)
    cells = found.cells["exact"]
    assert cells["log_score"].value == pytest.approx(log_score, rel=1e-12)
    assert cells["brier"].value == pytest.approx(brier, rel=1e-12)
    pointwise = cells["log_score"].pointwise
    assert cells["log_score"].error == pytest.approx(np.sqrt(24 * pointwise.var(ddof=1)))
    assert cells["log_evidence"].value == classifiers["exact"].log_evidence_
    assert cells["log_evidence"].error == 0


def test_stacking_weights_have_the_greatest_score():
    log_density = np.random.default_rng(1).normal(size=(50, 3))
    weights = stacking_weights(log_density)

    def loss(free):
        shares = np.exp(np.append(free, 0.0))
        return -np.log(np.exp(log_density) @ (shares / shares.sum())).sum()

    best = optimize.minimize(loss, np.zeros(2), tol=1e-10)
    shares = np.exp(np.append(best.x, 0.0))
    np.testing.assert_allclose(weights, shares / shares.sum(), atol=1e-3)
    assert stacking_weights(np.array([[0.0, -np.inf], [0.0, -1.0]])).tolist() == [1.0, 0.0]


# ----------------------------------------------------------------------------------- the Jacobian


@pytest.fixture(scope="module")
def scaled() -> TransformedTargetRegressor:
    inner = ExactTreeRegressor(random_state=0)
    return TransformedTargetRegressor(inner, transformer=StandardScaler()).fit(X, Y)


@pytest.mark.slow
def test_scaled_targets_are_compared_in_their_own_units(regressors, scaled):
    """The default leaf goes with the scale of y, so standardising changes no density of y."""
    found = compare({"plain": regressors["exact"], "scaled": scaled}, X, Y, cv=FOLDS)
    for quantity in ("log_evidence", "elpd_loo"):
        plain, other = (found.cells[name][quantity] for name in ("plain", "scaled"))
        assert other.value == pytest.approx(plain.value, rel=1e-7)
        assert other.error == pytest.approx(plain.error, rel=1e-5)
    for quantity in ("log_score", "crps"):
        plain, other = (found.cells[name][quantity] for name in ("plain", "scaled"))
        assert other.value == pytest.approx(plain.value, rel=1e-5)


@pytest.mark.slow
def test_check_of_the_jacobian_sees_one_that_is_left_out(regressors, scaled, monkeypatch):
    monkeypatch.setattr(Scored, "log_slope", 0.0)
    found = compare({"plain": regressors["exact"], "scaled": scaled}, X, Y, cv=None)
    plain, other = (found.cells[name]["log_evidence"].value for name in ("plain", "scaled"))
    assert abs(other - plain) > 10


@pytest.mark.slow
def test_a_pipeline_ends_in_a_model(regressors):
    pipeline = make_pipeline(StandardScaler(), ExactTreeRegressor(random_state=0)).fit(X, Y)
    found = compare({"plain": regressors["exact"], "in a pipeline": pipeline}, X, Y, cv=FOLDS)
    plain, other = (row["log_score"].value for row in found.cells.values())
    assert other == pytest.approx(plain)


def test_other_transformations_of_targets_are_refused():
    log = FunctionTransformer(np.log1p, np.expm1)
    model = TransformedTargetRegressor(ExactTreeRegressor(), transformer=log).fit(X, np.abs(Y))
    with pytest.raises(ValueError, match=r"^'logs' transforms y by a FunctionTransformer"):
        compare({"logs": model})


# ------------------------------------------------------------------------------ one set of data


@pytest.mark.slow
def test_different_data_are_refused(regressors, classifiers):
    exact = regressors["exact"]
    other = Y + (np.arange(24) == 5)
    for X_other, y_other, said in [
        (X, other, "their targets differ first in row 5"),
        (X + 1.0, Y, "feature 'x0' differs first in row 0"),
        (X[:20], Y[:20], "24 and 20 rows"),
    ]:
        model = GreedyModalTreeRegressor().fit(X_other, y_other)
        with pytest.raises(ValueError, match=f"fitted to different data: .*{said}"):
            compare({"a": exact, "b": model})
    with pytest.raises(ValueError, match="one predicts classes, the other numbers"):
        compare({"a": exact, "b": classifiers["exact"]})
    with pytest.raises(ValueError, match="'a' was not fitted to these targets y"):
        compare({"a": exact}, X, other)
    with pytest.raises(ValueError, match="'a' was not fitted to these rows X"):
        compare({"a": exact}, X + 1.0, Y)


@pytest.mark.parametrize("models", [{}, [1], {"a": 1}, {"a": TransformedTargetRegressor()}])
def test_what_is_no_fitted_model_is_refused(models):
    with pytest.raises((TypeError, ValueError)):
        compare(models)


@pytest.mark.slow
def test_scores_are_weighted():
    weights = np.arange(24) % 3
    weighted = GreedyModalTreeRegressor().fit(X, Y, sample_weight=weights)
    folds = [(np.arange(12), np.arange(12, 24)), (np.arange(12, 24), np.arange(12))]
    found = compare({"it": weighted}, X, Y, sample_weight=weights, cv=folds).cells["it"]
    log_score = 0.0
    for train, test in folds:
        model = GreedyModalTreeRegressor().fit(X[train], Y[train], sample_weight=weights[train])
        log_score += weights[test] @ model._mixture(X[test]).log_density(Y[test])
    assert len(found["log_score"].pointwise) == (weights > 0).sum()
    assert found["log_score"].value == pytest.approx(log_score)


# ------------------------------------------------------------------------------------- the table


@pytest.mark.slow
def test_blank_cells_say_why(found):
    greedy = found.cells["greedy"]
    assert "reweighted" in greedy["elpd_loo"].reason
    assert found.weights_from == "log_score"
    text = str(found)
    assert "greedy: no PSIS-LOO: a greedy search draws no trees" in text
    assert max(map(len, text.splitlines())) <= 100
    assert found._repr_html_().count("<tr>") == 3


def test_without_a_table_there_is_no_cross_validation(classifiers):
    found = compare(classifiers)
    assert found.cells["exact"]["log_score"].reason == "pass X and y to cross-validate"
    assert found.weights_from == "elpd_loo"
    assert found.cells["exact"]["weight"].value == 1
    assert "cannot be stacked" in found.cells["greedy"]["weight"].reason


def test_rows_are_json_and_a_frame(found):
    rows = json.loads(json.dumps(found.rows(), allow_nan=False))
    assert [row["model"] for row in rows] == ["exact", "greedy"]
    frame = found.to_frame()
    assert frame.loc["exact", "log_score"] == rows[0]["log_score"]
    assert np.isnan(frame.loc["greedy", "log_evidence"])
    assert frame.loc["greedy", "log_evidence_low"] < frame.loc["exact", "log_evidence"]
    assert rows[1]["log_evidence_high"] is None
    assert frame["weight"].sum() == pytest.approx(1)


def test_differences_are_those_of_the_rows(found):
    best, apart = found.best("log_score"), found.differences("log_score")
    (worse,) = set(apart) - {best}
    pair = [found.cells[name]["log_score"].pointwise for name in (worse, best)]
    assert apart[best].value == 0
    assert apart[worse].value == pytest.approx((pair[0] - pair[1]).sum())
    assert apart[worse].error == pytest.approx(np.sqrt(24) * (pair[0] - pair[1]).std(ddof=1))


def test_names_of_models_are_no_mathematics(found):
    named = replace(found, cells={"$a_1$": found.cells["exact"], "b": found.cells["greedy"]})
    (panel,) = plot_comparison(named, "log_score")
    assert not any(label.get_parse_math() for label in panel.get_yticklabels())


def test_the_figure_has_a_panel_for_each_quantity(found):
    panels = plot_comparison(found)
    assert [panel.get_xlabel().splitlines()[0] for panel in panels] == [
        "log evidence",
        "best tree",
        "PSIS-LOO",
        "log score (CV)",
        "Brier (CV)",
        "weight",
    ]
    assert [label.get_text() for label in panels[0].get_yticklabels()] == ["exact", "greedy"]
    dots = {line.get_gid(): line.get_xdata() for line in panels[3].lines if line.get_gid()}
    assert dots["log_score-1"][0] == found.cells["greedy"]["log_score"].value
    assert [text.get_text() for text in panels[2].texts] == ["none"]
    bound = next(line for line in panels[0].lines if line.get_gid() == "log_evidence-1")
    assert bound.get_xdata()[0] == found.cells["greedy"]["log_evidence"].value
    _, ax = plt.subplots()
    assert plot_comparison(found, "brier", ax=ax)[0] is ax
    with pytest.raises(ValueError, match="quantity must be one of log_evidence"):
        plot_comparison(found, "waic")
    with pytest.raises(ValueError, match="ax must be 2 axes"):
        plot_comparison(found, ["brier", "log_score"], ax=ax)
    with pytest.raises(TypeError, match=r"what bdtppl\.compare returns"):
        plot_comparison({})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_bounds_are_compared_as_bounds():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3))
    y = (X[:, 0] + 0.5 * rng.normal(size=60) > 0).astype(int)
    shared = {"prior": DepthDecay(), "bins": 6, "random_state": 0}
    exact = ExactTreeClassifier(method="chart", **shared).fit(X, y)
    stopped = ExactTreeClassifier(method="search", max_seconds=1e-6, **shared).fit(X, y)
    found = compare({"stopped": stopped, "exact": exact})
    low, high = stopped.log_evidence_bounds_
    cell = found.cells["stopped"]["log_evidence"]
    assert (cell.value, cell.high) == (low, high)
    assert low < exact.log_evidence_ < high
    assert f"{low:.2f} to {high:.2f}" in str(found)
    assert found.best("log_evidence") is None  # the bounds hold the other number
    values = [found.cells[name]["map_log_joint"].value for name in ("stopped", "exact")]
    assert values[0] <= values[1] + 1e-9
    assert found.cells["stopped"]["map_log_joint"].high > values[1]
    row = found.rows()[0]
    assert (row["log_evidence"], row["log_evidence_low"]) == (None, low)
    bars = plot_comparison(found, "log_evidence")[0].patches
    assert [bar.get_x() for bar in bars] == [low]
    narrow = {"log_evidence": replace(cell, high=exact.log_evidence_ - 1)}
    assert (
        replace(found, cells={"a": narrow, "b": found.cells["exact"]}).best("log_evidence") == "b"
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_compound_likelihoods_have_neither_evidence_nor_leave_one_out(classifiers):
    few = {"chains": 2, "burn_in": 10, "draws": 30, "warmup": 60, "max_splits": 1}
    soft = RJHMCTreeClassifier(random_state=0, **few).fit(X, LABELS)
    found = compare({"soft": soft, **classifiers}, X, LABELS, cv=2)
    assert "equation 8" in found.cells["soft"]["elpd_loo"].reason
    assert found.cells["soft"]["log_score"].value < 0


# ------------------------------------------------------------------------- data as it comes


def test_a_level_that_one_fold_alone_has_is_scored():
    hue = np.array(["red", "blue"] * 12, object)
    hue[5] = "rare"
    table = {"x": X[:, 0], "hue": hue}
    for rows in (table, pd.DataFrame(table)):
        model = GreedyModalTreeClassifier().fit(rows, LABELS)
        cell = compare({"greedy": model}, rows, LABELS, cv=FOLDS).cells["greedy"]["log_score"]
        assert np.isfinite(cell.value)


def test_a_value_that_is_missing_in_one_fold_alone_is_a_reason():
    rows = X.copy()
    rows[3] = np.nan
    model = GreedyModalTreeClassifier().fit(rows, LABELS)
    cells = compare({"greedy": model}, rows, LABELS, cv=FOLDS).cells["greedy"]
    for quantity in ("log_score", "brier"):
        assert "no fit to the other folds has a rule for the missing values of 'x0'" in (
            cells[quantity].reason
        )
    rows[20] = np.nan  # in the other fold, too
    model = GreedyModalTreeClassifier().fit(rows, LABELS)
    found = compare({"greedy": model}, rows, LABELS, cv=FOLDS)
    assert found.cells["greedy"]["log_score"].value < 0
    weights = np.ones(len(X), int)
    weights[20] = 0  # no fit sees that one
    model = GreedyModalTreeClassifier().fit(rows, LABELS, sample_weight=weights)
    found = compare({"greedy": model}, rows, LABELS, sample_weight=weights, cv=FOLDS)
    assert "missing values of 'x0'" in found.cells["greedy"]["log_score"].reason
