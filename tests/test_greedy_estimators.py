"""The greedy modal estimators as scikit-learn sees them, their files and figures."""

import re
from itertools import product

import matplotlib.pyplot as plt
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.model_selection import cross_val_score
from sklearn.utils.estimator_checks import parametrize_with_checks
from tiers import slow_but

import bdtppl
from bdtppl import (
    ExactTreeClassifier,
    GreedyModalTreeClassifier,
    GreedyModalTreeRegressor,
    plot_boundaries,
    plot_partitions,
    plot_predictive,
    plot_tree,
)
from bdtppl.models.leaves import NormalInverseGamma
from bdtppl.models.priors import DepthDecay, GreedyPartition, LeafPenalty


@parametrize_with_checks([GreedyModalTreeClassifier()])
def test_scikit_learn_contract(estimator, check):
    check(estimator)


def steps(n=60):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 3))
    return X, 3.0 * (X[:, 1] > 0.2) + rng.normal(0, 0.3, n)


def test_a_greedy_tree_is_at_most_as_probable_as_the_best_one():
    X, y = load_iris(return_X_y=True)
    model = GreedyModalTreeClassifier(prior=DepthDecay(), bins=4).fit(X, y)
    exact = ExactTreeClassifier(prior=DepthDecay(), bins=4).fit(X, y)
    assert model.map_log_joint_ <= exact.map_log_joint_ + 1e-9
    assert not hasattr(model, "log_evidence_")


def test_the_tree_space_holds_the_greedy_tree_and_weighs_by_probability():
    X, y = load_iris(return_X_y=True)
    greedy = GreedyModalTreeClassifier().fit(X, y)
    space = GreedyModalTreeClassifier(num_roots=6).fit(X, y)
    ranked = space.k_best(6)
    assert len(ranked.log_joint) == 6
    assert (np.diff(ranked.log_joint) <= 0).all()
    assert np.isclose(ranked.log_joint, greedy.map_log_joint_).any()
    assert len({(int(t.feature[0]), float(t.threshold[0])) for t in ranked.trees}) == 6
    weights = np.exp(ranked.log_joint - np.logaddexp.reduce(ranked.log_joint))
    np.testing.assert_allclose(ranked.probability, weights)
    np.testing.assert_allclose(space.predict_proba(X), space.posterior_.mean(X), rtol=1e-12)


def test_the_trivial_partition_is_one_of_the_roots():
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(20, 1)), rng.integers(0, 2, 20)
    space = GreedyModalTreeClassifier(prior=GreedyPartition(0.5), num_roots=5).fit(X, y)
    assert 1 in space.posterior_.trees.num_leaves
    few = GreedyModalTreeClassifier(num_roots=50).fit([[0.0], [1.0], [1.0]], [0, 1, 1])
    assert sorted(few.posterior_.trees.num_leaves.ravel()) == [1, 2]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", slow_but([{"num_roots": 4}], [{}, {"num_roots": 4}, {"smoothing": 0.1}])
)
def test_saved_models_predict_the_same(tmp_path, options):
    X, y = steps()
    model = GreedyModalTreeRegressor(random_state=3, **options).fit(X, y)
    model.save(tmp_path / "model")
    loaded = bdtppl.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    np.testing.assert_array_equal(loaded.sample_predictive(X, 5), model.sample_predictive(X, 5))
    assert loaded.rules() == model.rules()
    assert loaded.map_log_joint_ == model.map_log_joint_


def test_columns_of_any_kind_and_a_class_that_is_absent():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 100, 80).astype(np.int8)
    table = {
        "small": x,
        "constant": np.ones(80),
        "copy": x,
        "flag": x > 50,
        "word": np.where(x > 70, "high", "low"),
    }
    y = np.where(x > 50, "b", "a")
    with pytest.warns(UserWarning, match="No cut in 'constant'"):
        model = GreedyModalTreeClassifier(classes=["a", "b", "c"], bins="auto").fit(table, y)
    assert model.score(table, y) == 1
    assert model.predict_proba(table).shape == (80, 3)
    assert model.map_tree_.feature[0] == 3  # its one cut has all of its feature's weight


@pytest.mark.slow
def test_of_equal_rules_the_first_is_taken():
    X, y = steps()
    for columns in ([X[:, 1], X[:, 1]], [X[:, 1], -X[:, 1]], [X[:, 1], X[:, 1] ** 3]):
        model = GreedyModalTreeRegressor().fit(np.stack(columns, axis=1), y)
        assert set(model.map_tree_.feature) <= {-1, 0}


def test_missing_values_go_to_the_side_that_is_more_probable():
    rng = np.random.default_rng(0)
    x = rng.normal(size=200)
    y = (x > 0).astype(int)
    x[y == 1] = np.where(rng.random((y == 1).sum()) < 0.3, np.nan, x[y == 1])
    model = GreedyModalTreeClassifier().fit(x[:, None], y)
    assert model.score(x[:, None], y) == 1
    assert not model.map_tree_.missing_left[0]


def test_weights_are_repeats():
    X, y = steps()
    weights = np.random.default_rng(5).integers(0, 3, len(y))
    weighted = GreedyModalTreeRegressor().fit(X, y, sample_weight=weights)
    repeated = GreedyModalTreeRegressor().fit(np.repeat(X, weights, 0), np.repeat(y, weights))
    assert weighted.rules() == repeated.rules()
    assert abs(weighted.map_log_joint_ - repeated.map_log_joint_) < 1e-9


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"num_roots": 0}, ValueError, "num_roots must be an integer of at least 1"),
        ({"smoothing": -1}, ValueError, "smoothing must be a number of at least 0"),
        ({"split_precision": "a"}, ValueError, "split_precision must be a number of at least 0"),
        ({"prune": "yes"}, ValueError, "prune must be True or False"),
        ({"stop_pure": 1}, ValueError, "stop_pure must be True or False"),
        ({"prior": GreedyPartition}, TypeError, "prior must be a tree prior"),
    ],
)
def test_bad_parameters_get_one_sentence(options, error, message):
    X, y = steps()
    with pytest.raises(error, match=message):
        GreedyModalTreeRegressor(**options).fit(X, y)


def test_figures():
    X, y = steps()
    model = GreedyModalTreeRegressor(random_state=0, num_roots=2).fit(X, y)
    assert "among the trees found" in plot_tree(model).get_title()
    plot_predictive(model, feature=1)


def test_clone_and_cross_validation():
    X, y = load_iris(return_X_y=True)
    model = clone(GreedyModalTreeClassifier(prior=GreedyPartition(0.9)))
    assert cross_val_score(model, X, y, cv=5).mean() > 0.9


# ------------------------------------------------------- evidence, importance, nodes and figures


@pytest.mark.parametrize(
    ("num_roots", "prior"),
    slow_but([(4, DepthDecay())], product([1, 4], [DepthDecay(), GreedyPartition(0.9)])),
)
def test_the_lower_bound_lies_below_the_log_evidence(num_roots, prior):
    X, y = load_iris(return_X_y=True)
    model = GreedyModalTreeClassifier(prior=prior, bins=4, num_roots=num_roots).fit(X, y)
    exact = ExactTreeClassifier(prior=prior, bins=4).fit(X, y)
    assert model.map_log_joint_ <= model.log_evidence_lower_bound_ <= exact.log_evidence_


@pytest.mark.parametrize(
    "options",
    slow_but(
        [{"smoothing": 0.1}],
        [{"prior": LeafPenalty(2.0)}, {"smoothing": 0.1}, {"split_precision": 0.1}],
    ),
)
def test_a_bound_that_does_not_hold_is_not_given(options):
    X, y = load_iris(return_X_y=True)
    model = GreedyModalTreeClassifier(**options).fit(X, y)
    assert not hasattr(model, "log_evidence_lower_bound_")
    assert model.summary()["log_evidence_lower_bound"] is None


def test_importance_is_the_gain_of_the_splits():
    X, y = steps()
    model = GreedyModalTreeRegressor().fit(X, y)
    assert model.feature_importances_.argmax() == 1
    assert abs(model.feature_importances_.sum() - 1) < 1e-12
    stump = GreedyModalTreeRegressor(max_depth=0).fit(X, y)
    np.testing.assert_array_equal(stump.feature_importances_, [0, 0, 0])


def test_a_loaded_model_weighs_the_partitions_of_its_nodes_as_before(tmp_path):
    X, y = load_iris(return_X_y=True)
    model = GreedyModalTreeClassifier(num_roots=3, smoothing=0.1).fit(X, y)
    model.save(tmp_path / "model")
    loaded = bdtppl.load(tmp_path / "model")
    for node in range(int(model.map_tree_.num_nodes)):
        ours, theirs = (m.partition_log_probabilities(node) for m in (model, loaded))
        np.testing.assert_array_equal(ours.log_rule, theirs.log_rule)
    np.testing.assert_array_equal(model.feature_importances_, loaded.feature_importances_)
    for node in (-1, int(model.map_tree_.num_nodes), 1.5, True):
        with pytest.raises(ValueError, match="node"):
            model.partition_log_probabilities(node)


def test_rows_are_explained_by_the_rules_on_their_path():
    X, y = load_iris(return_X_y=True)
    model = GreedyModalTreeClassifier(max_depth=2, stop_pure=True)
    model.fit(X[:, 2:], np.array(["a", "b", "c"])[y])
    assert model.explain(X[[0, 60, 120], 2:]) == [
        "x1 < 0.8: a (0.96, 50 rows)",
        "x1 >= 0.8 and x1 < 1.75: b (0.88, 54 rows)",
        "x1 >= 0.8 and x1 >= 1.75: c (0.94, 46 rows)",
    ]
    leaf = GreedyModalTreeClassifier(max_depth=0).fit(X, y)
    assert leaf.explain(X[:1]) == ["always: 0 (0.33, 150 rows)"]
    exact = ExactTreeClassifier(bins=4).fit(X, y)
    assert len(exact.explain(X)) == 150


@pytest.mark.slow
def test_looking_ahead_and_pruning_are_parameters():
    rng = np.random.default_rng(0)
    X = rng.integers(0, 2, (200, 8)).astype(float)
    y = (X[:, 1] != X[:, 5]).astype(int)
    greedy = GreedyModalTreeClassifier(prior=LeafPenalty(2.0)).fit(X, y)
    ahead = clone(greedy).set_params(lookahead=2).fit(X, y)
    assert ahead.score(X, y) == 1
    assert ahead.map_log_joint_ > greedy.map_log_joint_
    noisy = np.where(rng.random(200) < 0.3, 1 - y, y)
    model = GreedyModalTreeClassifier(prior=LeafPenalty(0.0), random_state=0)
    plain, pruned = (clone(model).set_params(prune=p).fit(X, noisy) for p in (False, True))
    assert pruned.map_tree_.num_leaves < plain.map_tree_.num_leaves
    np.testing.assert_array_equal(plain.predict(X), pruned.predict(X))
    with pytest.raises(ValueError, match="lookahead"):
        GreedyModalTreeClassifier(lookahead=0).fit(X, y)


def test_boundaries_show_classes_and_means():
    X, y = load_iris(return_X_y=True)
    ax = plot_boundaries(GreedyModalTreeClassifier().fit(X, y), ["x2", 3], at={"x0": 5.0})
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("x2\n(at x0 = 5, x1 = 3)", "x3")
    image = ax.collections[0].get_array()
    assert image.shape[-1] == 3
    assert len(ax.get_legend().get_texts()) == 3
    values = steps()
    ax = plot_boundaries(GreedyModalTreeRegressor().fit(values[0][:, :2], values[1]))
    assert ax.collections[0].get_array().size == 300 * 300
    model = ExactTreeClassifier(bins=4).fit(X, y)
    for features in (None, ["x0"], ["x0", "x0"], ["x0", "length"]):
        with pytest.raises(ValueError, match=r"features? must"):
            plot_boundaries(model, features)


def test_partitions_are_drawn_by_feature():
    X, y = load_iris(return_X_y=True)
    model = GreedyModalTreeClassifier().fit(X, y)
    found = model.partition_log_probabilities()
    axes = plot_partitions(model)
    drawn = sum(len(ax.lines[1].get_xdata()) for ax in axes)
    assert drawn == len(found.log_rule)
    assert repr(found).startswith(f"PartitionPosterior({drawn} rules, the best of 0.")
    ring = axes[int(model.map_tree_.feature[0] != 3)].lines[2]  # x3 has the first panel
    assert (ring.get_xdata(), ring.get_ydata()) == (found.threshold[:1], found.log_rule[:1])
    assert axes[0].lines[0].get_ydata()[0] == found.log_stop
    assert np.isclose(axes[0].lines[1].get_ydata().max(), found.log_rule[0])
    constant = GreedyModalTreeRegressor(max_depth=0).fit(*steps())
    assert len(plot_partitions(constant)) == 1
    with pytest.raises(TypeError, match="greedy modal tree"):
        plot_partitions(ExactTreeClassifier())


def test_the_rule_that_looking_ahead_took_has_a_panel():
    model = GreedyModalTreeClassifier(lookahead=2, prior=LeafPenalty(2.0))
    X = np.random.default_rng(0).integers(0, 2, (60, 5)).astype(float)
    model.fit(X, X[:, 1] != X[:, 4])
    axes = plot_partitions(model, axes=plt.subplots(1, 2)[1])
    taken = int(model.map_tree_.feature[0])
    assert model.partition_log_probabilities().feature[0] != taken
    assert axes[1].get_title().startswith(f"x{taken}:")
    assert len(axes[1].lines) == 3


def test_smoothed_leaves_name_the_rows_that_are_there():
    X, y = load_iris(return_X_y=True)
    model = GreedyModalTreeClassifier(smoothing=0.5, prune=True).fit(X, y)
    counts = re.findall(r"(\d+) rows?\)", model.rules())
    assert sum(map(int, counts)) == 150


@pytest.mark.slow
def test_arviz_weighs_trees_by_probability():
    X, y = load_iris(return_X_y=True)
    model = GreedyModalTreeClassifier(num_roots=5, random_state=0).fit(X, y)
    posterior = model.posterior_
    mean = (posterior.weights * posterior.sample_stats["num_leaves"]).sum()
    found = model.to_arviz()["posterior"]["num_leaves"].values
    assert found.shape == (4, 250)
    assert abs(found.mean() - mean) < 0.05


def test_ranked_trees_are_a_sequence():
    X, y = load_iris(return_X_y=True)
    ranked = GreedyModalTreeClassifier(num_roots=3).fit(X, y).k_best(2)
    assert [int(tree.num_nodes) for tree in ranked] == ranked.trees.num_nodes.tolist()
    assert len(ranked) == 2
    assert repr(ranked).startswith("RankedTrees(2 trees, probability [0.6")


def test_trees_that_pruning_makes_equal_are_one():
    rng = np.random.default_rng(1)
    X, y = rng.integers(0, 5, (30, 2)).astype(float), (rng.random(30) < 0.15).astype(int)
    model = GreedyModalTreeClassifier(prior=LeafPenalty(0.3), num_roots=6, prune=True).fit(X, y)
    shapes = {str(tree.to_nested()) for tree in model.k_best(6)}
    assert len(shapes) == len(model.k_best(6))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy tells of overflows
@pytest.mark.parametrize("leaf", [(1e300, 1e-300, 1.0, 1.0), (-1e300, 1.0, 1e300, 1e-300)])
def test_extreme_leaves_are_refused_in_a_sentence(leaf):
    """Scores that are no numbers choose no rule."""
    rng = np.random.default_rng(0)
    X, y = rng.uniform(size=(12, 2)), rng.normal(size=12)
    for lookahead in (1, 2):
        model = GreedyModalTreeRegressor(leaf=NormalInverseGamma(*leaf), lookahead=lookahead)
        with pytest.raises(ValueError, match="The log joint of the tree is not finite"):
            model.fit(X, y)


@pytest.mark.parametrize("smoothing", [0.0, 0.5])
def test_rows_leave_the_priors_of_their_leaves_too(smoothing):
    """A row has the predictive of its leaf without it, shares in priors included."""
    X, y = load_iris(return_X_y=True)
    X, y = X[::3, 2:], y[::3]
    model = GreedyModalTreeClassifier(smoothing=smoothing, max_depth=3).fit(X, y)
    tree, found = model.map_tree_, model.posterior_.log_likelihood()[0, 0]
    for row in range(len(y)):
        slot, path = 0, [0]
        while tree.feature[slot] >= 0:
            is_left = X[row, tree.feature[slot]] < tree.threshold[slot]
            slot = int(tree.left[slot] if is_left else tree.right[slot])
            path.append(slot)
        counts = model.posterior_.statistics[0, 0, slot].copy()
        counts[y[row]] -= 1 + smoothing * (len(path) - 1)
        expected = np.log((1 + counts[y[row]]) / (3 + counts.sum()))
        assert found[row] == pytest.approx(expected)
