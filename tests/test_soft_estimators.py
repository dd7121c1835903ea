"""Estimators of soft trees: from tables to predictions, files, figures and ArviZ."""

import json
import warnings
from functools import partial

import arviz
import every_estimator
import matplotlib.pyplot as plt
import numpy as np
import pytest
from joblib import parallel_config
from scipy.integrate import cumulative_trapezoid
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.tree import DecisionTreeRegressor
from tiers import slow_but

from bdtppl import (
    DCCTreeClassifier,
    DCCTreeRegressor,
    MetropolisTreeRegressor,
    RJHMCTreeClassifier,
    RJHMCTreeRegressor,
    load,
    plot_density,
    plot_predictive,
    plot_structures,
    plot_topologies,
    plot_trajectories,
    plot_tree,
)
from bdtppl.inference.dcc import local
from bdtppl.inference.evidence.estimates import Evidence
from bdtppl.inference.rjhmc import _Moves
from bdtppl.models.soft.topology import DEFAULT_MOVES, Topology, TopologyPrior
from bdtppl.models.soft.tree import SoftClassification, SoftRegression
from bdtppl.presets import dcc_tree, dcc_tree_rival

pytestmark = [  # they are short
    pytest.mark.filterwarnings("ignore:Chains disagree"),
    pytest.mark.filterwarnings("ignore:In burn-in all chains"),
]

DCC, RJHMC = every_estimator.DCC | {"random_state": 0}, every_estimator.RJHMC | {"random_state": 0}
X = np.random.default_rng(0).uniform(10, 20, (40, 2))
IS_HIGH = X[:, 1] > 15
Y = np.where(IS_HIGH, 3.0, -2.0) + np.random.default_rng(1).normal(0, 0.3, 40)
LABELS = np.where(IS_HIGH, "high", "low")
NEW = np.array([[12.0, 11.0], [12.0, 19.0]])


@pytest.fixture(scope="module")
def regressor():
    return DCCTreeRegressor(**DCC).fit(X, Y)


@pytest.fixture(scope="module")
def classifier():
    model = SoftClassification(concentration=(1.0, 1.0), likelihood="mixture")
    return RJHMCTreeClassifier(model=model, **RJHMC).fit(
        {"width": X[:, 0], "height": X[:, 1]}, LABELS
    )


@pytest.mark.slow
def test_warnings_of_evidence_are_of_the_targets_as_they_are(monkeypatch):
    monkeypatch.setattr(Evidence, "is_reliable", False)
    with pytest.warns(UserWarning, match="is not reliable") as caught:
        model = DCCTreeRegressor(**DCC).fit(X, 1000 * Y)
    best = model.components_[0]
    said = f"log evidence of topology {best.topology.code}, {best.evidence.log_evidence:.2f} ("
    assert any(said in str(warning.message) for warning in caught)
    assert abs(best.evidence.log_evidence - model.posterior_.log_evidences[0]) < 1e-6


@pytest.mark.slow
def test_chains_of_one_ancestor_are_warned_of(monkeypatch):
    monkeypatch.setattr(_Moves, "sources", lambda self, rngs, path: np.ones(len(rngs), int))
    monkeypatch.setattr("bdtppl.estimators.chains.LARGEST_R_HAT", 0.0)
    given = RJHMC | {"burn_in": 40}
    with pytest.warns(ConvergenceWarning) as caught:
        model = RJHMCTreeRegressor(**given).fit(X, Y)
    said = " ".join(str(warning.message) for warning in caught)
    assert "all chains moved to the state of chain 1" in said
    assert "Chains disagree" in said
    monkeypatch.setattr("bdtppl.estimators.chains.LARGEST_R_HAT", np.inf)  # they are short
    assert model.ancestors_.tolist() == [1, 1]
    assert "2 chains that descend from 1" in " ".join(str(model.summary()).split())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = RJHMCTreeRegressor(**given, restarts=0).fit(X, Y)
    assert model.ancestors_.tolist() == [0, 1]


def test_regression_finds_the_split(regressor):
    np.testing.assert_allclose(regressor.predict(NEW), [-2.0, 3.0], atol=0.3)
    assert regressor.posterior_.topologies[0].code == "100"
    assert regressor.posterior_.input_weights.mean(axis=(0, 1)).argmax() == 1
    low, high = regressor.predict_interval(NEW, 0.9).T
    assert (low < regressor.predict(NEW)).all()
    assert (regressor.predict(NEW) < high).all()
    assert regressor.predict_draws(NEW).shape == (*regressor.posterior_.topology.shape, 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("estimator", "settings"), [(DCCTreeRegressor, DCC), (RJHMCTreeRegressor, RJHMC)]
)
def test_blackjax_finds_the_split(estimator, settings, monkeypatch):
    monkeypatch.setattr("bdtppl.inference.nuts.lanes.walk", None)  # it is not called
    monkeypatch.setattr("bdtppl.estimators.chains.LARGEST_R_HAT", np.inf)  # chains are short
    model = estimator(**settings, nuts="blackjax").fit(X, Y)
    np.testing.assert_allclose(model.predict(NEW), [-2.0, 3.0], atol=0.3)
    assert model.posterior_.topologies[0].code == "100"


@pytest.mark.slow
def test_iterations_of_jumps_do_not_wait_for_workers(monkeypatch):
    monkeypatch.setattr("bdtppl.inference.parallel.Parallel", None)  # it is not called
    monkeypatch.setattr("bdtppl.estimators.chains.LARGEST_R_HAT", np.inf)  # chains are short
    with parallel_config("threading", n_jobs=2):
        RJHMCTreeRegressor(**RJHMC | {"burn_in": 1, "draws": 4}).fit(X, Y)


def test_a_walk_goes_on_from_its_checkpoint(tmp_path, monkeypatch):
    options = DCC | {"iterations": 3, "checkpoint": tmp_path / "walk"}
    whole = DCCTreeRegressor(**(DCC | {"iterations": 3})).fit(X, Y)
    visits = 0

    def interrupted(*args, visit=local.visit_topology):
        nonlocal visits
        visits += 1
        if visits == 3:
            raise KeyboardInterrupt
        return visit(*args)

    with monkeypatch.context() as patch:
        patch.setattr(local, "visit_topology", interrupted)
        with pytest.raises(KeyboardInterrupt):
            DCCTreeRegressor(**options).fit(X, Y)
        visits = 3
        resumed = DCCTreeRegressor(**options).fit(X, Y)
    assert visits == 4  # the last one alone
    np.testing.assert_array_equal(resumed.predict(NEW), whole.predict(NEW))
    with pytest.raises(ValueError, match="has 3 iterations; got iterations=2"):
        DCCTreeRegressor(**(options | {"iterations": 2})).fit(X, Y)


def test_summary_says_how_evidence_was_got(regressor):
    found = regressor.summary()
    assert found["iterations"] == 2
    assert all(each["method"] in ("lais", "smc") for each in found["topologies"])
    assert "weights are even enough" in found["topologies"][0]["reason"]
    assert 0.3 < found["topologies"][0]["e_bfmi"] < 2
    assert json.loads(json.dumps(found)) == found


def test_evidence_adds_up(regressor):
    """The evidence is the sum by the prior of what is allowed (one split at most)."""
    parts, prior = regressor.components_, regressor.topology_prior_
    allowed = np.logaddexp(prior.log_prob(Topology("0")), prior.log_prob(Topology("100")))
    joint = [part.evidence.log_evidence + prior.log_prob(part.topology) - allowed for part in parts]
    assert regressor.log_evidence_ == pytest.approx(np.logaddexp.reduce(joint))
    for part, log_joint in zip(parts, joint, strict=True):
        assert part.probability == pytest.approx(np.exp(log_joint - regressor.log_evidence_))


@pytest.mark.parametrize("settings", slow_but((DCC,), [DCC, RJHMC]))
def test_units_of_targets_do_not_matter(settings, regressor):
    """Chains see standardised targets: evidence has the Jacobian, all else is scaled."""
    kind = RJHMCTreeRegressor if "burn_in" in settings else DCCTreeRegressor
    plain = regressor if kind is DCCTreeRegressor else kind(**settings).fit(X, Y)
    loc, scale = 5e6, 1e4
    scaled = kind(**settings).fit(X, loc + scale * Y)
    np.testing.assert_allclose((scaled.predict(NEW) - loc) / scale, plain.predict(NEW), rtol=1e-5)
    ours, theirs = plain.posterior_, scaled.posterior_
    np.testing.assert_allclose(
        theirs.log_likelihood() + np.log(scale), ours.log_likelihood(), rtol=1e-4, atol=1e-4
    )
    if kind is DCCTreeRegressor:
        shift = len(Y) * np.log(scale)
        assert scaled.log_evidence_ + shift == pytest.approx(plain.log_evidence_, abs=1e-3)
        first = scaled.components_[0].evidence.log_evidence + shift
        assert first == pytest.approx(ours.log_evidences[0], abs=1e-3)
    else:
        shift = (len(Y) + ours.num_leaves) * np.log(scale)
        joint = theirs.sample_stats["log_joint"] + shift
        np.testing.assert_allclose(joint, ours.sample_stats["log_joint"], atol=1e-3)


@pytest.mark.slow
def test_classification(classifier):
    new = {"width": NEW[:, 0], "height": NEW[:, 1]}
    assert classifier.predict(new).tolist() == ["low", "high"]
    np.testing.assert_allclose(classifier.predict_proba(new).sum(axis=1), 1.0)
    assert set(classifier.sample_predictive(new, 20).ravel()) <= {"low", "high"}
    votes = RJHMCTreeClassifier(votes="all").set_params(votes="all")
    with pytest.raises(ValueError, match="votes must be"):
        votes.fit(X, LABELS)


@pytest.mark.slow
def test_files_keep_every_bit(regressor, classifier, tmp_path):
    for name, model, new in (
        ("regressor", regressor, NEW),
        ("classifier", classifier, {"width": NEW[:, 0], "height": NEW[:, 1]}),
    ):
        model.save(tmp_path / name)
        loaded = load(tmp_path / name)
        for method in ("predict", "predict_draws", "sample_predictive"):
            ours, theirs = getattr(model, method)(new), getattr(loaded, method)(new)
            np.testing.assert_array_equal(ours, theirs)
        assert json.dumps(model.summary()) == json.dumps(loaded.summary())


@pytest.mark.slow
def test_arviz(regressor, classifier):
    for model in (regressor, classifier):
        data = model.to_arviz()
        shares = arviz.summary(data, var_names=["input_weight"])["mean"]
        assert float(shares.iloc[1]) > float(shares.iloc[0])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a few draws, Pareto shapes are large
            arviz.loo(data)


@pytest.mark.slow
def test_compound_has_no_log_likelihood():
    model = RJHMCTreeClassifier(**RJHMC).fit(X, LABELS)
    data = model.to_arviz()
    groups = data.groups() if callable(data.groups) else data.groups
    assert not any("log_likelihood" in name for name in groups)


@pytest.mark.slow
def test_figures(regressor, classifier):
    ax = plot_topologies(regressor)
    (drawn,) = [line for line in ax.get_lines() if line.get_gid() == "evidence"]
    evidence = regressor.posterior_.log_evidences[:8]
    is_near = evidence > evidence.max() - 10
    np.testing.assert_allclose(drawn.get_xdata(), evidence[is_near])
    (far,) = [line for line in ax.get_lines() if line.get_gid() == "far"]
    np.testing.assert_array_equal(far.get_ydata(), np.flatnonzero(~is_near))
    assert {f"log evidence {each:.0f}" for each in evidence[~is_near]} == {
        text.get_text().split(", ")[1] for text in ax.texts if ", " in text.get_text()
    }
    bars = plot_topologies(classifier, k=2).patches
    np.testing.assert_allclose(
        [bar.get_width() for bar in bars], classifier.posterior_.probability[: len(bars)]
    )
    ax = plot_density(regressor, NEW, [-2.0, 3.0], cart=True, labels=["a", "b"])
    (truth,) = [drawn for drawn in ax.collections if drawn.get_gid() == "truth"]
    np.testing.assert_allclose(np.asarray(truth.get_offsets())[:, 0], [-2.0, 3.0])
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a", "b"]
    (cart,) = [drawn for drawn in ax.collections if drawn.get_gid() == "CART"]
    predicted = DecisionTreeRegressor(random_state=0).fit(X, Y).predict(NEW)
    np.testing.assert_allclose(np.asarray(cart.get_offsets())[:, 0], predicted)
    plot_predictive(regressor, feature=1)


def test_densities_are_those_of_the_quantiles(regressor):
    """Of what is drawn for a row, the share left of each of its quantiles is that quantile's."""
    curves = [line for line in plot_density(regressor, NEW).get_lines() if line.get_gid()]
    shares = np.linspace(0.1, 0.9, 5)
    quantiles = regressor.posterior_.predictive(NEW).quantiles(shares)
    for curve, base, of_row in zip(curves, (1.0, 0.0), quantiles, strict=True):
        target, height = curve.get_data()
        below = cumulative_trapezoid(height - base, target, initial=0)
        found = np.interp(of_row, target, below / below[-1])
        np.testing.assert_allclose(found, shares, atol=2e-3)  # a thousandth is cut at each end


def test_trajectories_hold_the_log_joint(classifier):
    ax = plot_trajectories(classifier)
    drawn = {line.get_gid(): line.get_data() for line in ax.get_lines()}
    kept = classifier.posterior_.sample_stats["log_joint"]
    for chain, values in enumerate(kept):
        steps, found = drawn[f"chain-{chain}"]
        np.testing.assert_array_equal(steps, 1 + np.arange(40))  # 10 of burn-in
        np.testing.assert_array_equal(found[10:], values)
    assert ax.get_ylabel() == "log joint density"
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels[-1] == "end of burn-in"


def test_figures_go_to_the_axes_that_are_given(regressor, classifier):
    figure, ax = plt.subplots()
    for draw in (
        partial(plot_topologies, regressor),
        partial(plot_density, regressor, NEW),
        partial(plot_trajectories, classifier),
    ):
        ax.clear()
        assert draw(ax=ax) is ax
        assert ax.has_data()
        assert plt.get_fignums() == [figure.number]


def test_figures_refuse_what_they_cannot_draw(regressor, classifier):
    for draw in (plot_tree, plot_structures):
        with pytest.raises(TypeError, match="has soft ones: use plot_topologies"):
            draw(regressor)
    with pytest.raises(TypeError, match="needs a regressor"):
        plot_density(classifier, NEW)
    with pytest.raises(ValueError, match="y has 1 values for 2 rows"):
        plot_density(regressor, NEW, [1.0])
    with pytest.raises(ValueError, match="k must be at least 1"):
        plot_topologies(regressor, 0)


@pytest.mark.parametrize(
    ("changes", "X", "y", "message"),
    [
        ({}, X, np.full(40, 2.0), "y must vary"),
        ({}, np.ones((40, 2)), Y, "All features are constant"),
        ({}, np.where(np.arange(80).reshape(40, 2) == 7, np.nan, X), Y, "Column 'x1', row 3"),
        ({"h_final": 0.0}, X, Y, "h_final must be a positive number"),
        ({"h_init": -1.0}, X, Y, "h_init must be a positive number"),
        ({"h_final": True}, X, Y, "h_final must be a positive number"),
        ({"h_final": 1e-40}, X, Y, "h_final must be at least 1e-30, for single precision"),
        ({"routing": "sharp"}, X, Y, "routing must be"),
        ({"chains": 0}, X, Y, "chains must be an integer of at least 1"),
        ({"max_splits": "a"}, X, Y, "max_splits must be an integer of at least 0 or None"),
        ({"draws": 1.5}, X, Y, "must be an integer of at least"),
        ({"warmup": 0}, X, Y, "warmup must be an integer of at least 1"),
        ({"model": SoftClassification()}, X, Y, "model must be a SoftRegression"),
        ({"topology_prior": 0.95}, X, Y, "topology_prior must be"),
    ],
)
@pytest.mark.parametrize(
    ("estimator", "settings"), [(DCCTreeRegressor, DCC), (RJHMCTreeRegressor, RJHMC)]
)
def test_bad_input_is_named(estimator, settings, changes, X, y, message):
    model = estimator(**(settings | changes))
    with pytest.raises((TypeError, ValueError), match=message):
        model.fit(X, y)
    with pytest.raises(NotFittedError):
        model.predict(NEW)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"evidence": "LAIS"}, "evidence must be 'auto' or 'lais' or 'smc'; got 'LAIS'"),
        ({"with_leaf": "no"}, "with_leaf must be True or False"),
        ({"draws": 1}, "draws must be an integer of at least 2"),
        ({"nuts": "stan"}, "nuts must be 'lanes' or 'blackjax'; got 'stan'"),
        ({"denominator": "all"}, "denominator must be 'basic' or 'spatial' or 'mixture'"),
        ({"delta": 1.5}, "delta must be a number"),
        ({"kappa": -2.0}, "kappa must be a number of at least -1"),
        ({"look_ahead": 0}, "look_ahead must be an integer of at least 1"),
        ({"moves": {"grow": -1.0}}, "moves must have probabilities of at least 0"),
        (
            {"model": SoftRegression(input_concentration=np.ones(3))},
            "must be one number, or one for each of the 2 inputs; got an array of shape",
        ),
        ({"activation_count": 5, "patience": 5}, "patience must be above activation_count, 5"),
    ],
)
def test_bad_input_is_named_before_the_walk(changes, message, monkeypatch):
    monkeypatch.setattr(DCCTreeRegressor, "_run_to_end", None)
    with pytest.raises(ValueError, match=message):
        DCCTreeRegressor(**DCC | changes).fit(X, Y)


def test_settings_of_the_paper_reach_the_walk(monkeypatch):
    seen = []

    def run_to_end(self, walk, *_):
        seen.append(walk.dcc)
        raise ZeroDivisionError

    monkeypatch.setattr(DCCTreeRegressor, "_run_to_end", run_to_end)
    moves = {"grow": 0.4, "prune": 0.5, "stay": 0.1}
    given = {"delta": 0.2, "kappa": 0.5, "optimism": 3.0, "look_ahead": 7, "warmup_doublings": 2}
    given |= {"denominator": "basic", "moves": moves}
    for preset in (dcc_tree("wu"), dcc_tree("wu") | given):
        with pytest.raises(ZeroDivisionError):
            DCCTreeRegressor(**preset).fit(X, Y)
    plain, changed = seen
    assert (plain.nuts.warmup, plain.nuts.h_init, plain.nuts.h_final) == (2000, 0.5, 0.025)
    assert (plain.moves, plain.denominator) == (DEFAULT_MOVES, "mixture")
    assert {name: getattr(changed, name) for name in given} == given


def test_presets_are_those_of_the_tables():
    """Every number of Table 5, and that the estimators take those of Table 4."""
    table = {
        "bcw": (0.1, 0.025),
        "cgm": (0.01, 0.001),
        "iris": (0.01, 0.01),
        "raisin": (0.05, 0.001),
        "wine": (0.025, 0.025),
        "wu": (0.5, 0.025),
    }
    for name, sharpness in table.items():
        preset = dcc_tree(name)
        assert (preset["h_init"], preset["h_final"]) == sharpness
    for estimator, method in (
        (RJHMCTreeRegressor, "RJHMC"),
        (MetropolisTreeRegressor, "WU"),
        (MetropolisTreeRegressor, "CGM"),
    ):
        assert estimator(**dcc_tree_rival(method)).get_params(deep=False)
    for preset, wrong in ((dcc_tree, "mnist"), (dcc_tree_rival, "SMC")):
        with pytest.raises(ValueError, match=f"must be one of .*; got '{wrong}'"):
            preset(wrong)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"likelihood": "junk"}, "likelihood must be 'compound' or 'mixture'; got 'junk'"),
        (
            {"likelihood": "mixture", "model": SoftClassification(concentration=(1.0, 1.0))},
            "likelihood='mixture' conflicts with the model's likelihood 'compound'",
        ),
    ],
)
def test_a_likelihood_is_not_ignored(changes, message):
    with pytest.raises(ValueError, match=message):
        RJHMCTreeClassifier(**RJHMC, **changes).fit(X, LABELS)


def test_concentrations_are_in_the_order_of_the_classes_that_are_listed():
    model = SoftClassification(concentration=(1.0, 9.0))
    for classes, expected in ((["low", "high"], (9.0, 1.0)), (None, (1.0, 9.0))):
        estimator = RJHMCTreeClassifier(classes=classes, model=model)
        estimator._set_classes(np.array(["high", "low"]))
        assert estimator._model_of(np.array([0, 1])).concentration == expected


@pytest.mark.slow
def test_a_class_may_be_absent():
    with pytest.raises(ValueError, match="only one class"):
        DCCTreeClassifier(**DCC).fit(X, np.full(40, "low"))
    model = RJHMCTreeClassifier(classes=["low", "high", "none"], **RJHMC).fit(X, LABELS)
    assert model.predict_proba(NEW).shape == (2, 3)


@pytest.mark.slow
def test_what_a_constant_column_holds_does_not_matter():
    weights = np.where(np.arange(40) < 3, 2.5, 1)
    predicted = []
    for value in (0.0, 7.0):
        constant = np.column_stack([X[:, 1], np.full(40, value)])
        model = RJHMCTreeRegressor(**RJHMC).fit(constant, Y, sample_weight=weights)
        predicted.append(model.predict(constant))
    np.testing.assert_array_equal(*predicted)


def test_routing(regressor):
    soft = regressor.predict(X)
    regressor.routing = "hard"
    hard = regressor.predict(X)
    regressor.routing = regressor.h_final
    np.testing.assert_array_equal(regressor.predict(X), soft)
    regressor.routing = "soft"
    assert not np.allclose(hard, soft)


@pytest.mark.slow
def test_votes_of_leaves_and_classes_without_rows():
    """A class that is absent has no vote; where no leaf has rows, the prior has it."""
    given = np.array([[10.0, 10.0], [11.0, 11.0], [19.0, 19.0], [20.0, 20.0]])
    model = RJHMCTreeClassifier(
        votes="balanced", routing="hard", classes=["a", "b", "c"], likelihood="mixture", **RJHMC
    ).fit(given, ["a", "a", "b", "b"])
    assert model.model_.likelihood == "mixture"
    grid = np.stack(np.meshgrid(*[np.linspace(10, 20, 30)] * 2), axis=-1).reshape(-1, 2)
    probability = model.predict_proba(grid)
    np.testing.assert_allclose(probability.sum(axis=1), 1.0)
    by_draw = model.predict_draws(grid)
    np.testing.assert_allclose(by_draw.mean(axis=(0, 1)), probability, atol=1e-12)
    assert probability[0].argmax() == 0
    assert probability[-1].argmax() == 1


def test_a_prior_of_ones_own_has_no_checkpoint(tmp_path):
    """Two of these may be written alike, and one may be written otherwise in another process."""

    class Own(TopologyPrior):
        pass

    model = DCCTreeRegressor(**DCC, topology_prior=Own(), checkpoint=tmp_path / "kept")
    with pytest.raises(ValueError, match="not available: topology_prior cannot be saved"):
        model.fit(X, Y)


def test_what_was_not_looked_at_is_said(regressor):
    summary = regressor.summary()
    assert summary["prior_mass"] == pytest.approx(1.0)  # both topologies of one split at most
    assert summary["topologies_proposed"] == 2
    assert "sampled 2 of 2 topologies" in str(summary)


@pytest.mark.slow
def test_own_priors():
    model = SoftRegression(mean_loc=0.5, mean_scale=3.0, degrees_of_freedom=4.0, by_leaf=True)
    # Some chains look at the other input for some tens of iterations at first.
    longer = RJHMC | {"burn_in": 50}
    fitted = RJHMCTreeRegressor(model=model, inputs="hard", **longer).fit(X, Y)
    corners = fitted.posterior_.trees.direction
    assert set(np.unique(corners)) <= {0.0, 1.0}
    np.testing.assert_allclose(fitted.predict(NEW), [-2.0, 3.0], atol=0.5)


@pytest.mark.slow
def test_little_prior_mass_is_warned_of():
    """The walk has looked at one topology of two splits, and at neither of fewer."""
    few = {"max_splits": 2, "with_leaf": False, "initial_trees": 1, "iterations": 1}
    with pytest.warns(ConvergenceWarning, match="have 0.* of the prior probability, less than 0.9"):
        model = DCCTreeRegressor(**DCC | few).fit(X, Y)
    missing = 1 - model.prior_mass_
    assert missing > 0.1
    best = max(part.evidence.log_evidence for part in model.components_)
    upper = np.logaddexp(model.log_evidence_, best + np.log(missing))
    assert model.log_evidence_upper_ == pytest.approx(upper)
    assert any("counts the others as zero" in caution for caution in model.cautions())
