"""Estimators of GFlowNets: trained, weighed, saved, and held against the exact posterior."""

import warnings

import exact_problems as ep
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from tiers import slow_but

from bdtppl import (
    ExactTreeClassifier,
    GFlowNetTreeClassifier,
    GFlowNetTreeRegressor,
    load,
)
from bdtppl.estimators import checkpoints, gflownet
from bdtppl.inference.gflownet import grammar_training, methods, training
from bdtppl.inference.run import run
from bdtppl.models.hard.tree_model import TreeModel
from bdtppl.models.leaves import DirichletCategorical
from bdtppl.models.priors import DepthDecay, DescriptionLength, LeafPenalty, Program
from bdtppl.presets import dt_gfn

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

RNG = np.random.default_rng(0)
X = RNG.uniform(size=(30, 2))
LABELS = np.where((X[:, 0] > 0.5) ^ (RNG.random(30) < 0.1), "high", "low")
TINY = {"grid": 3, "max_depth": 2, "steps": 10, "chains": 2, "draws": 50, "random_state": 0}


@pytest.fixture(scope="module")
def exact():
    leaf = DirichletCategorical.symmetric(2, 0.1)
    model = ExactTreeClassifier(prior=DescriptionLength(), leaf=leaf, grid=3, max_depth=2)
    return model.fit(X, LABELS)


@pytest.fixture(scope="module")
def fitted():
    return GFlowNetTreeClassifier(**TINY).fit(X, LABELS)


@pytest.mark.slow
def test_grammar_finds_the_posterior(fitted, exact):
    """On two levels of splits the last is exact; draws number 100, errors at most four each."""
    difference = fitted.log_partition_ - exact.log_partition_
    assert abs(difference) < max(4 * fitted.log_partition_se_, 0.01)
    assert fitted.lower_bound_ <= fitted.log_partition_ + 1e-9
    assert fitted.map_log_joint_ == pytest.approx(exact.map_log_joint_)
    np.testing.assert_allclose(fitted.predict_proba(X), exact.predict_proba(X), atol=0.08)
    assert fitted.effective_size_ > 50
    assert len(fitted.history_["loss"]) == 10


@pytest.mark.slow
@pytest.mark.parametrize("ensemble", ["distinct", "importance"])
@pytest.mark.parametrize("prior", [DepthDecay(0.9, 0.5), LeafPenalty(1.0)], ids=repr)
def test_leaves_that_must_stop_and_rules_that_part_alike(prior, ensemble):
    """Under these priors the joint depends on the limits, or on how many rules part rows alike."""
    alike = np.column_stack([X, X[:, :1], X[:, :1]])
    limits = {"grid": 3, "max_depth": 2, "min_leaf": 4, "random_state": 0}
    leaf = DirichletCategorical.symmetric(2, 0.1)
    exact = ExactTreeClassifier(prior=prior, leaf=leaf, **limits).fit(alike, LABELS)
    options = {"prior": prior, "ensemble": ensemble, "steps": 10, "draws": 500}
    model = GFlowNetTreeClassifier(**options, **limits).fit(alike, LABELS)
    assert model.map_log_joint_ == pytest.approx(exact.map_log_joint_)
    probability = model.k_best(1).probability[0]
    assert probability == pytest.approx(exact.map_probability_, rel=0.1)
    # Distinct trees lack those that were not drawn; the joint of all alike would be off by .02.
    atol = {"distinct": 0.005, "importance": 0.04}[ensemble]
    np.testing.assert_allclose(model.predict_proba(alike), exact.predict_proba(alike), atol=atol)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "steps"), slow_but([("grammar", 10)], [("grammar", 10), ("trajectory", 200)])
)
def test_the_most_probable_tree_need_not_be_drawn(method, steps, exact, tmp_path):
    options = TINY | {"chains": 1, "draws": 1, "method": method, "steps": steps}
    model = GFlowNetTreeClassifier(**options).fit(X, LABELS)
    assert model.map_log_joint_ == pytest.approx(exact.map_log_joint_)
    best = model.k_best(5)
    assert best.log_joint[0] == model.map_log_joint_
    assert best.probability[0] == pytest.approx(exact.map_probability_, rel=1)  # by one weight
    assert model.rules() == exact.rules()
    model.save(tmp_path)
    assert load(tmp_path).k_best(1).log_joint[0] == model.map_log_joint_


@pytest.mark.slow
def test_files_keep_every_bit(fitted, tmp_path):
    fitted.save(tmp_path)
    loaded = load(tmp_path)
    np.testing.assert_array_equal(loaded.predict_proba(X), fitted.predict_proba(X))
    assert loaded.summary() == fitted.summary()


@pytest.mark.slow
def test_ensembles_weigh_the_same_draws(fitted):
    """Each by its definition, from draws, importance weights and log joints."""
    posterior = fitted.posterior_
    joint = posterior.sample_stats["log_joint"]
    models = {
        name: GFlowNetTreeClassifier(ensemble=name, **TINY).fit(X, LABELS).posterior_
        for name in ("mean", "distinct", "algorithm-1")
    }
    for other in models.values():
        np.testing.assert_array_equal(other.sample_stats["log_joint"], joint)
    np.testing.assert_allclose(models["mean"].weights, 1 / joint.size)
    algorithm = models["algorithm-1"].weights
    np.testing.assert_allclose(algorithm, np.exp(joint) / np.exp(joint).sum())
    ranked = models["distinct"].ranked
    expected = np.exp(ranked.log_joint - np.logaddexp.reduce(ranked.log_joint))
    np.testing.assert_allclose(ranked.probability, expected)
    assert len(ranked.probability) < joint.size


@pytest.mark.slow
@pytest.mark.parametrize("method", ["trajectory"])
def test_construction_finds_the_posterior(method, exact):
    settings = dict(TINY) | {"steps": 300, "draws": 500}
    model = GFlowNetTreeClassifier(method=method, **settings).fit(X, LABELS)
    assert abs(model.log_partition_ - exact.log_partition_) < max(4 * model.log_partition_se_, 0.01)
    np.testing.assert_allclose(model.predict_proba(X), exact.predict_proba(X), atol=0.1)


WAYS = ("grammar", 10), ("trajectory", 10)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "steps"), slow_but(WAYS[:1], WAYS))
def test_a_fit_goes_on_from_its_checkpoint(method, steps, tmp_path, monkeypatch):
    monkeypatch.setattr(methods, "_ROUND", steps // 2)
    options = TINY | {"steps": steps, "method": method}
    whole = GFlowNetTreeClassifier(**options).fit(X, LABELS)
    folder = tmp_path / "training"

    def interrupted(run, keep=checkpoints.Run.keep):
        keep(run)
        raise KeyboardInterrupt

    broken = GFlowNetTreeClassifier(**options, checkpoint=folder)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "KEPT_EVERY", 0)
        patch.setattr(checkpoints.Run, "keep", interrupted)
        with pytest.raises(KeyboardInterrupt):
            broken.fit(X, LABELS)
    resumed = GFlowNetTreeClassifier(**options, checkpoint=folder).fit(X, LABELS)
    for name, values in whole.history_.items():
        np.testing.assert_array_equal(resumed.history_[name], values)
    np.testing.assert_array_equal(resumed.predict_proba(X), whole.predict_proba(X))
    with pytest.raises(ValueError, match=f"has {steps} steps; got steps=1"):
        GFlowNetTreeClassifier(**(options | {"steps": 1}), checkpoint=folder).fit(X, LABELS)


@pytest.mark.slow
def test_a_training_that_has_ended_is_not_gone_on_with(tmp_path, monkeypatch):
    monkeypatch.setattr(methods, "_ROUND", 5)
    options = TINY | {"steps": 20, "tolerance": 1e6, "checkpoint": tmp_path / "training"}
    for _ in range(2):
        assert len(GFlowNetTreeClassifier(**options).fit(X, LABELS).history_["loss"]) == 5


@pytest.mark.slow
def test_a_policy_out_of_balance_is_told():
    """Its log Z runs away at so high a rate; the twin is exact from the start on."""
    away = training.PolicySettings(log_z_learning_rate=1.0)
    with pytest.warns(
        ConvergenceWarning, match=r"sum over trees is .* as learned and .* by the weights"
    ):
        GFlowNetTreeClassifier(**TINY, method="trajectory", settings=away).fit(X, LABELS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        GFlowNetTreeClassifier(**TINY).fit(X, LABELS)


def test_weights_of_a_few_draws_are_told(monkeypatch):
    """By Pareto's k, whatever log Z is: its standard error is large then."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = GFlowNetTreeClassifier(**TINY).fit(X, LABELS)
    assert model.pareto_k_ < 0.7
    monkeypatch.setattr(gflownet, "pareto_k", lambda log_weights: 0.8)
    with pytest.warns(
        ConvergenceWarning, match=r"effective sample size 100, Pareto k 0\.80, above 0\.7"
    ):
        GFlowNetTreeClassifier(**TINY).fit(X, LABELS)


@pytest.mark.slow
def test_there_is_no_evidence_where_trees_have_no_room():
    """Depth unbounded, trees have 15 splits at most, and the prior has more."""
    options = TINY | {"prior": DepthDecay(), "method": "trajectory", "steps": 2}
    bounded = GFlowNetTreeClassifier(**options).fit(X, LABELS)
    assert np.isfinite(bounded.log_evidence_)
    free = GFlowNetTreeClassifier(**(options | {"max_depth": None})).fit(X, LABELS)
    with pytest.raises(AttributeError, match="log_evidence_ is not known without max_depth"):
        _ = free.log_evidence_
    assert np.isnan(free.posterior_.log_evidence)
    few = GFlowNetTreeClassifier(**(options | {"max_depth": None, "min_leaf": 2}))
    assert np.isfinite(few.fit(X, LABELS).log_evidence_)


@pytest.mark.slow
def test_training_ends_where_the_policy_is_near(monkeypatch):
    """On two levels of splits flows are exact from the start on: the distance is 0."""
    monkeypatch.setattr(methods, "_ROUND", 5)
    near = GFlowNetTreeClassifier(**TINY, tolerance=1e-6).fit(X, LABELS)
    assert len(near.history_["loss"]) == 5
    far = GFlowNetTreeClassifier(**(TINY | {"max_depth": 3}), tolerance=1e-6).fit(X, LABELS)
    assert len(far.history_["loss"]) == 10


@pytest.mark.slow
@pytest.mark.parametrize("fits", [True, False])
def test_distances_fall_in_training(fits, exact, monkeypatch):
    """From the posterior's draws where they are given, else from the weights; the twin is 0."""
    model = GFlowNetTreeClassifier(**(TINY | {"method": "trajectory"})).fit(X, LABELS)
    target = TreeModel(
        model.design_,
        np.searchsorted(model.classes_, LABELS),
        model.prior_,
        model.leaf_,
        model.constraints_,
    )
    method = methods.Policies(target, training.PolicySettings(), 200)
    trees = exact.posterior_.trees.reshape(-1) if fits else None
    first, last = method.start(ep.key(0)).learner, method.result(run(method, ep.key(0)))
    start, end = (method.distance(ep.key(2), learner, trees) for learner in (first, last))
    assert start > 4 * end > 0


@pytest.mark.slow
def test_a_node_that_must_split_is_said_where_trees_are_built():
    """The leaf alone has no probability, and trajectories begin with it; subproblems do not."""
    prior = Program(lambda node: jnp.where(node.depth == 0, 1.0, 0.3))
    model = GFlowNetTreeClassifier(**TINY, prior=prior)
    assert np.isfinite(model.fit(X, LABELS).log_partition_)
    with pytest.raises(ValueError, match="The loss is not finite"):
        model.set_params(method="trajectory", steps=2).fit(X, LABELS)


@pytest.mark.slow
def test_regression():
    y = np.where(X[:, 0] > 0.5, 2.0, -1.0) + RNG.normal(0, 0.1, 30)
    model = GFlowNetTreeRegressor(**TINY).fit(X, y)
    np.testing.assert_allclose(model.predict([[0.1, 0.5], [0.9, 0.5]]), [-1.0, 2.0], atol=0.3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "flow"}, "method must be 'grammar' or"),
        ({"ensemble": "vote"}, "ensemble must be 'importance' or"),
        ({"steps": 0}, "steps must be an integer of at least 1"),
        ({"draws": 0}, "draws must be an integer of at least 1"),
        ({"settings": training.PolicySettings()}, "settings must be"),
        (
            {"settings": grammar_training.GrammarSettings(), "method": "trajectory"},
            "settings must be",
        ),
        ({"max_depth": None}, "max_depth"),
        ({"leaves": "mean"}, "leaves must be 'integrated' or 'drawn'; got 'mean'"),
        ({"tolerance": 0.0}, "tolerance must be a positive number or None"),
    ],
)
def test_bad_parameters_are_named(changes, message):
    with pytest.raises((TypeError, ValueError), match=message):
        GFlowNetTreeClassifier(**(TINY | changes)).fit(X, LABELS)


def test_leaves_may_be_drawn(fitted):
    """Drawn probabilities are those of each draw, and on average the mean of their law."""
    drawn = clone(fitted).set_params(leaves="drawn").fit(X, LABELS)
    means = fitted.predict_proba(X)
    found = drawn.predict_proba(X)
    assert 1e-4 < np.abs(found - means).max() < 0.1
    np.testing.assert_allclose(found.sum(axis=1), 1.0)
    np.testing.assert_array_equal(found[:3], drawn.predict_proba(X[:3]))
    low, high = drawn.predict_proba_interval(X[:3], 0.9)[:, 0].T
    expected = fitted.predict_proba_interval(X[:3], 0.9)[:, 0].T
    np.testing.assert_allclose((low, high), expected, atol=1e-6)
    assert drawn.sample_predictive(X[:3], 5).shape == (5, 3)
    assert np.isfinite(drawn.score(X, LABELS))


def test_settings_of_the_paper_are_those_of_a_table_with_features():
    preset, of_code = dt_gfn(num_features=4), dt_gfn(num_features=4, as_published_code=True)
    changed = {f for f, v in vars(preset["settings"]).items() if v != vars(of_code["settings"])[f]}
    assert changed == {
        "learns_backward",
        "decay",
        "last_epsilon",
        "log_z_optimiser",
        "log_z_learning_rate",
        "buffer_size",
    }
    assert (preset["max_depth"], of_code["max_depth"]) == (5, 4)
    assert GFlowNetTreeClassifier(**preset).ensemble == "algorithm-1"
    for wrong, said in (
        ((0,), "num_features must be an integer"),
        ((4, 7), "table must be 5 or 6"),
    ):
        with pytest.raises(ValueError, match=said):
            dt_gfn(*wrong)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*(no cut|a cut|no rule|all equal):UserWarning")
@pytest.mark.parametrize("column", [[1.0, 2.0], [1.0, 1.0], [1.0, 1.0, 2.0]])
def test_a_root_with_at_most_one_rule_has_the_exact_answer(column):
    X, y = np.array(column)[:, None], np.arange(len(column)) % 2
    model = {"prior": DescriptionLength(1.0), "leaf": DirichletCategorical.symmetric(2)}
    exact = ExactTreeClassifier(bins=None, **model).fit(X, y)
    flow = GFlowNetTreeClassifier(steps=5, grid=None, ensemble="distinct", **model).fit(X, y)
    np.testing.assert_allclose(flow.predict_proba(X), exact.predict_proba(X), atol=1e-6)


@pytest.mark.slow
def test_time_that_is_over_ends_training(tmp_path):
    model = GFlowNetTreeClassifier(**(TINY | {"steps": 30, "time_limit": 1e-9}))
    with pytest.warns(ConvergenceWarning, match="Training ended after 5 of 30 steps"):
        model.fit(X, LABELS)
    assert model.summary()["steps"] == 5
    kept = model.set_params(checkpoint=tmp_path / "kept")
    with pytest.warns(ConvergenceWarning, match="after 5 of 30"):
        kept.fit(X, LABELS)
    whole = clone(kept).set_params(time_limit=None).fit(X, LABELS)  # goes on from there
    straight = clone(whole).set_params(checkpoint=None).fit(X, LABELS)
    np.testing.assert_array_equal(whole.history_["loss"], straight.history_["loss"])
