"""Every model of the suite has a report and its figures, or says clearly why it has not."""

import numpy as np
import pytest
from tiers import few_of, in_turn

import bdtppl
from bdtppl import plot_calibration, plot_partial_dependence, plot_predictive_check, write_report

SOFT = {"chains": 2, "draws": 50, "warmup": 60, "max_splits": 1}
MODELS = {
    "BART": {"trees": 10, "chains": 2, "warmup": 40, "draws": 30},
    "ExactTree": {"bins": 3, "draws": 25},
    "GreedyModalTree": {},
    "MAPTree": {"bins": 3, "time_limit": 60},
    "MetropolisTree": {"chains": 2, "temperatures": 2, "warmup": 100, "draws": 50, "thin": 2},
    "ParticleTree": {"particles": 20, "runs": 2},
    "GFlowNetTree": {"grid": 3, "max_depth": 2, "steps": 5, "draws": 25},
    "DCCTree": {"iterations": 2, "initial_trees": 10, "activation_count": 0, **SOFT},
    "RJHMCTree": {"burn_in": 10, **SOFT},
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore:The evidence of:UserWarning")
@pytest.mark.parametrize("name", few_of(in_turn(MODELS), 4))
def test_every_model_has_a_report_and_figures(name, tmp_path):
    rng = np.random.default_rng(0)
    X = {"size": rng.uniform(0, 1, 40), "site": rng.choice(["north", "south"], 40)}
    y = (X["size"] > 0.5) + 0.1 * rng.standard_normal(40)
    y = np.where(y > 0.5, "large", "small") if name.endswith("Classifier") else y
    settings = MODELS[name.removesuffix("Classifier").removesuffix("Regressor")]
    model = getattr(bdtppl, name)(random_state=0, **settings).fit(X, y)
    write_report(model, tmp_path / "page.html", target="height")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count("<h2>") == 7 + ("<h2>Evidence</h2>" in page)
    assert page.count("<figure>") >= 3
    for feature in X:
        ax = plot_partial_dependence(model, feature, ice=2)
        assert ax.get_xlabel() == feature
    assert plot_predictive_check(model, draws=10).has_data()
    new = {column: values[:9] for column, values in X.items()}
    assert plot_calibration(model, new, y[:9]).get_title() == "9 new rows"


@pytest.mark.slow
def test_rows_without_a_likelihood_of_their_own_are_not_left_out():
    X = np.linspace(0, 1, 30)[:, None]
    model = bdtppl.DCCTreeClassifier(random_state=0, **MODELS["DCCTree"])
    model.fit(X, X[:, 0] > 0.5)
    with pytest.raises(ValueError, match="compound likelihood"):
        plot_calibration(model)
