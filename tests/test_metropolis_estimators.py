"""The Metropolis-Hastings estimators: what they say, keep and refuse, and share when compiled."""

import warnings
from functools import partial

import arviz
import jax
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from tiers import slow_but

from bdtppl import (
    ExactTreeClassifier,
    ExactTreeRegressor,
    GreedyModalTreeClassifier,
    MetropolisTreeClassifier,
    MetropolisTreeRegressor,
    ParticleTreeClassifier,
    ParticleTreeRegressor,
    load,
    plot_structures,
    plot_trajectories,
)
from bdtppl.inference.hard.written_trees import _settle_rows
from bdtppl.inference.metropolis import sample as metropolis
from bdtppl.inference.metropolis.moves import LocalMoves
from bdtppl.inference.metropolis.proposals import as_kernel
from bdtppl.inference.metropolis.state import state_of
from bdtppl.inference.metropolis.tempering import climb
from bdtppl.inference.particle import sample as particle
from bdtppl.inference.particle.filter import grow_particles
from bdtppl.inference.summaries.diagnostics import diagnose, dissenting_chains
from bdtppl.models.constraints import Constraints, KeepTogether
from bdtppl.models.data.design import Design
from bdtppl.models.hard.log_joint import log_joint
from bdtppl.models.hard.packed_model import PackedModel
from bdtppl.models.hard.tree import Tree
from bdtppl.models.hard.tree_model import TreeModel
from bdtppl.models.leaf_count_priors import Pinball
from bdtppl.models.leaves import NormalInverseGamma
from bdtppl.models.priors import DepthDecay

ONE_WALK = {"temperatures": 1, "extensions": 0, "warmup": 500, "draws": 50, "thin": 10}
SHORT_WALK = ONE_WALK | {"chains": 2, "warmup": 200, "draws": 20, "thin": 5}
MONOTONE = Constraints(monotone={0: 1})
FAR = Tree.from_nested({"feature": 9, "threshold": 0.5, "left": {}, "right": {}})

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def sizes_of(function):
    return [each._cache_size() for each in getattr(function, "versions", [function])]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "compiled"),
    [
        (
            MetropolisTreeRegressor(chains=2, warmup=10, draws=3, thin=5, random_state=0),
            (climb, state_of, _settle_rows),
        ),
        pytest.param(
            ParticleTreeRegressor(particles=20, runs=3, random_state=0),
            (grow_particles,),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_folds_share_compiled_code(model, compiled):
    """One size serves tables of about as many rows and cuts; what is filled up changes nothing."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(90, 2)).round(1)
    y = X[:, 0] + rng.normal(size=90)
    model.fit(X, y)
    sizes = [sizes_of(function) for function in compiled]
    for fold in np.array_split(np.arange(90), 10)[:3]:
        clone(model).fit(np.delete(X, fold, axis=0), np.delete(y, fold))
    assert [sizes_of(function) for function in compiled] == sizes


@pytest.mark.slow
@pytest.mark.parametrize("module", [metropolis, particle])
def test_what_is_filled_up_changes_no_draw(module, monkeypatch):
    design = Design.from_matrix(np.where(np.arange(90) % 7, np.arange(90) % 13, np.nan)[:, None])
    model = design, np.sin(np.arange(90)), DepthDecay(cut_weights="gap"), NormalInverseGamma(0.0)
    draw = getattr(module, "sample_chains", None) or module.sample_particles
    padded = draw(jax.random.key(0), TreeModel(*model))
    monkeypatch.setattr(PackedModel, "of", partial(PackedModel.of, is_padded=False))
    plain = draw(jax.random.key(0), TreeModel(*model))
    np.testing.assert_array_equal(padded.posterior.trees.threshold, plain.posterior.trees.threshold)
    joint = padded.posterior.sample_stats["log_joint"], plain.posterior.sample_stats["log_joint"]
    np.testing.assert_allclose(*joint, rtol=1e-10)


def steps(n=60):
    rng = np.random.default_rng(0)
    X = rng.integers(0, 5, (n, 2)).astype(float)
    return X, np.where((X[:, 0] > 2) ^ (rng.random(n) < 0.2), "high", "low")


@pytest.fixture(scope="module")
def tempered():
    X, y = steps()
    model = MetropolisTreeClassifier(
        temperatures=4, warmup=200, draws=100, min_leaf=3, random_state=0
    )
    return model.fit(X, y), X, y


@pytest.mark.slow
def test_a_fit_says_what_its_chains_did(tempered):
    model, X, y = tempered
    assert model.score(X, y) > 0.7
    assert set(model.diagnostics_) >= {"log_joint", "num_leaves", "prediction_0"}
    assert all(each["ess"] >= 1 for each in model.diagnostics_.values())
    assert model.acceptance_["grow"].shape == (4,)
    assert np.isnan(model.acceptance_["shift"]).all()
    assert model.swap_rate_.shape == (3,)
    assert model.trajectory_.shape == (4, 1 + 10 + 100)
    assert model.trajectory_steps_[[0, 1, -1]].tolist() == [0, 20, 2_200]
    assert (model.trajectory_[:, 0] == model.trajectory_[0, 0]).all()  # the tree of one leaf
    exact = ExactTreeClassifier(prior=DepthDecay(0.95, 1.0), bins=None, min_leaf=3).fit(X, y)
    assert abs(model.log_evidence_ - exact.log_evidence_) < 4 * model.log_evidence_se_
    assert model.map_log_joint_ <= exact.map_log_joint_ + 1e-9
    assert "rows)" in model.rules()
    assert len(model.explain(X[:2])) == 2
    assert set(model.summary()["split_inclusion"]) == {"x0", "x1"}


@pytest.mark.slow
def test_the_mixture_predicts_as_the_draws_do(tempered):
    model, X, _ = tempered
    np.testing.assert_allclose(model.predict_proba(X), model.posterior_.mean(X), atol=1e-12)
    assert model.sample_predictive(X[:3], 10).shape == (10, 3)


def test_no_two_chains_walk_alike(tempered):
    walks = tempered[0].posterior_.sample_stats["log_joint"]
    assert len(np.unique(walks, axis=0)) == len(walks) > 1


def test_the_best_trees_are_distinct_and_their_shares_are_of_the_draws(tempered):
    model = tempered[0]
    ranked = model.k_best(10_000)
    assert ranked.probability.sum() == pytest.approx(1)
    assert (np.diff(ranked.log_joint) <= 0).all()
    assert ranked.log_joint[0] == model.posterior_.sample_stats["log_joint"].max()
    assert len({tree.rules(("x0", "x1")) for tree in ranked}) == len(ranked)
    assert len(model.k_best(2)) == 2


@pytest.mark.slow
def test_a_model_that_starts_at_a_tree_is_saved(tmp_path):
    X, y = steps()
    stump = Tree.from_nested({"feature": 0, "threshold": 2.5, "left": {}, "right": {}})
    model = MetropolisTreeClassifier(
        start=stump, temperatures=1, warmup=20, draws=5, random_state=0
    ).fit(X, y)
    model.save(tmp_path)
    again = load(tmp_path)
    np.testing.assert_array_equal(again.start.threshold, stump.threshold)
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))


def test_saved_models_are_the_same(tempered, tmp_path):
    model, X, _ = tempered
    model.save(tmp_path)
    again = load(tmp_path)
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    np.testing.assert_array_equal(again.trajectory_, model.trajectory_)
    np.testing.assert_array_equal(again.acceptance_["shift"], model.acceptance_["shift"])
    assert again.log_evidence_ == model.log_evidence_
    assert again.diagnostics_ == model.diagnostics_


@pytest.mark.slow
def test_arviz_and_figures(tempered):
    model = tempered[0]
    assert model.to_arviz().sample_stats["lp"].shape == (4, 100)
    ax = plot_trajectories(model)
    drawn = {line.get_gid(): line for line in ax.get_lines()}
    np.testing.assert_array_equal(drawn["chain-2"].get_ydata(), model.trajectory_[2])
    np.testing.assert_array_equal(drawn["chain-2"].get_xdata(), model.trajectory_steps_)
    plot_structures(model, k=2)


def test_only_chains_have_trajectories():
    X, y = steps()
    with pytest.raises(TypeError, match="got a ExactTreeClassifier"):
        plot_trajectories(ExactTreeClassifier().fit(X, y))


@pytest.mark.slow
@pytest.mark.parametrize("proposal", ["chipman", "denison", {"grow": 1, "prune": 1, "change": 2}])
def test_regression_agrees_with_the_exact_posterior(proposal):
    """Means of 4 chains within 0.1 of the exact ones, whose targets have a deviation of 2."""
    rng = np.random.default_rng(0)
    X = rng.integers(0, 5, (40, 2)).astype(float)
    y = X[:, 0] + rng.normal(0, 0.3, 40)
    options = {"prior": DepthDecay(0.95, 1.0), "min_leaf": 3, "random_state": 0}
    options |= {"leaf": "from_targets"}  # sharper leaves trap chains without tempering
    exact = ExactTreeRegressor(bins=None, **options).fit(X, y)
    # Some chains of 20,000 steps have not left their first mode yet; these are of 80,000.
    given = {"proposal": proposal, "temperatures": 1, "draws": 4_000}
    model = MetropolisTreeRegressor(**given, **options).fit(X, y)
    assert max(each["r_hat"] for each in model.diagnostics_.values()) < 1.05
    np.testing.assert_allclose(model.predict(X), exact.predict(X), atol=0.1)
    interval = model.predict_interval(X)
    assert np.mean((interval[:, 0] < y) & (y < interval[:, 1])) > 0.8
    with pytest.raises(AttributeError, match="no power 0"):
        _ = model.log_evidence_


@pytest.mark.slow
@pytest.mark.parametrize(("proposal", "agrees"), [("rotating", True), ("chipman", False)])
def test_rotations_free_chains_that_are_trapped_below_a_poor_root(proposal, agrees):
    X, y = [[1.0], [2.0], [3.0], [4.0]] * 5, ["a", "a", "b", "b"] * 5
    given = {
        "proposal": proposal,
        "temperatures": 1,
        "extensions": 0,
        "draws": 1000,
        "random_state": 0,
    }
    model = MetropolisTreeClassifier(**given).fit(X, y)
    assert (model.diagnostics_["log_joint"]["r_hat"] < 1.05) == agrees


@pytest.mark.slow
def test_chains_start_where_they_are_told():
    X, y = steps()
    options = {"warmup": 0, "draws": 4, "thin": 1, "random_state": 0}
    stump = Tree.from_nested({"feature": 0, "threshold": 2.5, "left": {}, "right": {}})
    first = {
        name: MetropolisTreeClassifier(start=start, **options).fit(X, y).trajectory_[0, 0]
        for name, start in {"root": "root", "greedy": "greedy", "stump": stump}.items()
    }
    assert first["root"] < first["stump"] <= first["greedy"]
    drawn = MetropolisTreeClassifier(start="prior", chains=20, **options).fit(X, y)
    assert len(np.unique(drawn.trajectory_[:, 0])) > 5


@pytest.mark.slow
def test_chains_that_disagree_and_trees_without_room_are_said():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(100, 5)), rng.integers(0, 2, 100)
    model = MetropolisTreeClassifier(warmup=0, draws=10, thin=2, random_state=0)
    with pytest.warns(ConvergenceWarning, match="Chains disagree: R-hat of"):
        model.fit(X, y)
    model = MetropolisTreeClassifier(capacity=3, random_state=0)
    with pytest.warns(ConvergenceWarning, match="outgrew the capacity of 3 nodes"):
        model.fit(*steps())


@pytest.mark.slow
@pytest.mark.parametrize(("bound", "rounds"), [(np.inf, 0), (0.0, 2)])
def test_chains_that_disagree_go_on(monkeypatch, bound, rounds):
    monkeypatch.setattr("bdtppl.estimators.chains.LARGEST_R_HAT", bound)
    X, y = np.arange(20.0)[:, None], np.arange(20) % 3 % 2
    options = {"warmup": 100, "draws": 10, "thin": 5, "temperatures": 1, "random_state": 0}
    model = MetropolisTreeClassifier(**options, extensions=2).fit(X, y)
    kept = sum(10 * 5 * 2**number for number in range(rounds))  # what has become warm-up
    assert model.thrown_away == ("warm-up", 100 + kept)
    assert np.diff(model.trajectory_steps_[-10:]).tolist() == [5 * 2**rounds] * 9
    assert model.posterior_.num_leaves.shape == (4, 10)


@pytest.mark.slow
@pytest.mark.parametrize(("most", "rounds"), [(7_000, 2), (3_000, 1), (1_000, 0)])
def test_chains_go_on_less_often_on_many_rows(monkeypatch, most, rounds):
    monkeypatch.setattr("bdtppl.estimators.metropolis._MOST_ROW_STEPS", most)
    monkeypatch.setattr("bdtppl.estimators.chains.LARGEST_R_HAT", 0.0)
    X, y = np.arange(15.0)[:, None], np.arange(15) % 3 % 2
    options = {"warmup": 50, "draws": 10, "thin": 5, "temperatures": 1, "random_state": 0}
    model = MetropolisTreeClassifier(**options).fit(X, y)  # of 50 + 50, 100 and 200 steps
    assert model.thrown_away[1] == 50 + [0, 50, 150][rounds]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "num_cuts"),
    [
        ({}, 29),
        pytest.param({"bins": None}, 99, marks=pytest.mark.slow),
        pytest.param({"grid": 7}, 7, marks=pytest.mark.slow),
        (
            {"start": Tree.from_nested({"feature": 0, "threshold": 1.5, "left": {}, "right": {}})},
            99,
        ),
    ],
)
def test_cuts_are_few_where_none_are_named(options, num_cuts):
    X, y = np.arange(100.0)[:, None], np.arange(100) >= 40
    short = {"warmup": 100, "draws": 10, "temperatures": 1, "random_state": 0}
    model = MetropolisTreeClassifier(**short, **options).fit(X, y)
    assert model.design_.num_codes[0] == num_cuts + 1


@pytest.mark.slow
def test_trees_get_room_in_warm_up(monkeypatch):
    """Where no capacity is given; and the trees in the new slots have the scores of definitions."""
    monkeypatch.setattr("bdtppl.inference.metropolis.sample._FIRST_CAPACITY", 3)
    X = np.repeat(np.arange(8.0), 10)[:, None]
    y = 4.0 * X[:, 0] + np.tile(np.linspace(-0.3, 0.3, 10), 8)
    model = MetropolisTreeRegressor(warmup=400, draws=20, thin=5, random_state=0).fit(X, y)
    drawn = model.posterior_
    assert drawn.num_leaves.max() > 4
    assert 7 < drawn.trees.capacity <= 63
    scored = log_joint(drawn.trees, TreeModel(drawn.design, drawn.y, drawn.prior, drawn.leaf))
    np.testing.assert_allclose(drawn.sample_stats["log_joint"], scored.log_joint, rtol=1e-9)


@pytest.mark.slow
def test_chains_that_cannot_be_compared_are_said():
    model = MetropolisTreeClassifier(
        chains=2, temperatures=1, warmup=10, draws=3, thin=2, random_state=0
    )
    with pytest.warns(ConvergenceWarning, match="cannot be assessed: there are 3 draws") as caught:
        model.fit(*steps())
    assert len(caught) == 1
    assert caught[0].filename == __file__
    for said in (str(model.summary()), str(model.structures())):
        assert "not assessable: there are 3 draws a chain" in said


def test_the_chain_that_dissents_is_named():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(4, 200))
    assert dissenting_chains(values, 1.05) == []
    values[2] += 3
    assert dissenting_chains(values, 1.05) == [2]
    values[0] -= 3
    assert dissenting_chains(values, 1.05) == [0, 2]
    still = np.zeros((4, 200))
    assert diagnose({"one": still})["one"].r_hat == 1
    still[1] = 1
    assert diagnose({"one": still})["one"].r_hat == np.inf
    assert dissenting_chains(still, 1.05) == [1]
    in_step = np.tile(np.arange(50) >= 25, (2, 1)).astype(float)
    assert diagnose({"one": in_step})["one"].r_hat > 1e9
    assert np.isnan(diagnose({"one": values[:1]})["one"].r_hat)


def test_pooled_quantities_have_the_r_hat_of_their_variances_together():
    """Of one quantity it is R-hat without ranks; one that hardly varies counts for little."""
    values = np.random.default_rng(0).normal(size=(4, 100, 50))
    alone = diagnose({"": values[..., :1]})[""]
    plain = float(np.asarray(arviz.rhat(values[..., 0], method="split")).item())
    assert alone.r_hat == pytest.approx(plain, rel=1e-12)
    assert alone.ess == diagnose({"": values[..., 0]})[""].ess
    assert diagnose({"": values})[""].r_hat == pytest.approx(1, abs=0.01)
    values[0, :, 0] += 5
    assert diagnose({"": values * np.append(1e-3, np.ones(49))})[""].r_hat < 1.01
    assert diagnose({"": values * np.append(10, np.ones(49))})[""].r_hat > 1.5


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"proposal": "gibbs"}, ValueError, "proposal must be one of chipman, cyclic, denison"),
        ({"proposal": 3}, TypeError, "proposal must be a name"),
        ({"proposal": LocalMoves}, TypeError, "proposal must be a name"),
        ({"proposal": {"jump": 1}}, ValueError, "moves must name .*; got 'jump'"),
        ({"chains": 0}, ValueError, "chains must be an integer of at least 1"),
        ({"temperatures": 0}, ValueError, "temperatures must be at least 1"),
        ({"start": "leaf"}, ValueError, "start must be 'root', 'prior', 'greedy' or a Tree"),
        ({"start": "greedy", "constraints": MONOTONE}, ValueError, "start='greedy': Greedy modal"),
        ({"start": "prior", "constraints": MONOTONE}, ValueError, "start='prior' cannot use"),
        ({"start": "prior", "prior": Pinball()}, ValueError, "start='prior' accepts priors that"),
        ({"start": FAR}, ValueError, "start: A tree splits on feature 9, and the last one is 1"),
        ({"capacity": 2}, ValueError, "capacity must be an integer of at least 3"),
    ],
)
def test_bad_parameters_get_one_sentence(options, error, message):
    with pytest.raises(error, match=message):
        MetropolisTreeClassifier(**options).fit(*steps())


def estimators_of_stumps():
    yield MetropolisTreeClassifier(temperatures=1, warmup=10, draws=5)
    yield ExactTreeClassifier(bins=None)
    yield ParticleTreeClassifier(particles=5, runs=2)
    yield GreedyModalTreeClassifier()


@pytest.mark.parametrize(
    "estimator", slow_but([], estimators_of_stumps()), ids=lambda each: type(each).__name__
)
def test_constraints_that_leave_the_root_no_rule_are_said(estimator):
    X, y = steps()
    together = Constraints(keep_together=KeepTogether({0: (None, None)}))
    options = {"prior": DepthDecay(), "random_state": 0}
    for limits in ({"min_leaf": 40}, {"constraints": together}):
        if isinstance(estimator, GreedyModalTreeClassifier) and "constraints" in limits:
            continue  # it does not look at paths
        with pytest.warns(UserWarning, match="leave the root without a rule"):
            clone(estimator).set_params(**options, **limits).fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.simplefilter("ignore", ConvergenceWarning)
        clone(estimator).set_params(**options, max_depth=0).fit(X, y)  # it says so itself
        warnings.filterwarnings("ignore", "No cut in 'x0'")
        clone(estimator).set_params(**options).fit(np.zeros((10, 1)), y[:10])  # the table does


def test_a_kernel_is_taken_as_it_is():
    kernel = LocalMoves.of({"grow": 1, "prune": 1})
    assert as_kernel(kernel) is kernel


def test_what_is_not_fitted_says_so():
    model = MetropolisTreeClassifier()
    for name in ("log_evidence_", "map_tree_", "map_log_joint_"):
        with pytest.raises(AttributeError, match="not fitted"):
            getattr(model, name)
