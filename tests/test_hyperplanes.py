"""Hyperplane splits of greedy modal trees: exact scores, the search, and the estimators."""

import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from scipy.special import gammaln
from sklearn.base import clone
from sklearn.utils import estimator_checks as checks
from tiers import slow_but
from typer.testing import CliRunner

import bdtppl
from bdtppl import (
    GreedyModalTreeClassifier,
    GreedyModalTreeRegressor,
    plot_boundaries,
    plot_tree,
)
from bdtppl.cli import app
from bdtppl.inference.greedy_modal import hyperplane_search, hyperplanes
from bdtppl.inference.greedy_modal.choices import choose
from bdtppl.inference.greedy_modal.columns import root_level
from bdtppl.inference.greedy_modal.partitions import best_rules
from bdtppl.inference.greedy_modal.problem import pose
from bdtppl.models.data.design import Design
from bdtppl.models.hard.tree_model import TreeModel
from bdtppl.models.leaves import DirichletCategorical, NormalInverseGamma
from bdtppl.models.priors import DepthDecay, DescriptionLength, GreedyPartition, LeafPenalty

TIGHT = 1e-9
LOG_2_PI = np.log(2 * np.pi)
STARTS = 4  # the same everywhere, so that few searches are compiled


def oblique(num_rows=60, num_features=2, seed=0):
    """Rows, labels and targets that a diagonal parts."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(num_rows, num_features))
    side = X[:, 0] + X[:, 1] > 0.2
    return X, side.astype(int), 3.0 * side + rng.normal(0, 0.3, num_rows)


def classifier(**options):
    return GreedyModalTreeClassifier(**{"hyperplanes": STARTS, "random_state": 0} | options)


def regressor(**options):
    return GreedyModalTreeRegressor(**{"hyperplanes": STARTS, "random_state": 0} | options)


# ----------------------------------------------------------------------------------- the search


@pytest.mark.slow
def test_a_rotated_boundary_is_found_with_few_leaves():
    X, labels, targets = oblique(200, num_features=4)
    for model, y in ((classifier(), labels), (regressor(), targets)):
        single = clone(model).set_params(hyperplanes=0).fit(X, y)
        model.fit(X, y)
        assert model.map_log_joint_ > single.map_log_joint_ + 30
        assert model.map_tree_.num_leaves <= 4 < single.map_tree_.num_leaves
        assert model.map_tree_.feature[0] == 4
        share = model.feature_importances_
        assert share.shape == (4,)
        assert abs(share.sum() - 1) < 1e-12
        assert share[:2].min() > 0.3


def log_marginal_of_classes(counts):
    """Of two classes under Beta(1, 1), [...]."""
    return gammaln(counts + 1).sum(axis=-1) - gammaln(counts.sum(axis=-1) + 2)


def log_marginal_of_numbers(sums):
    """Of counts, sums and squares under mean 0, pseudo-count 1, shape 2 and scale 1, [...]."""
    count, first, second = np.moveaxis(sums, -1, 0)
    scale = 1 + (second - first**2 / (1 + count)) / 2
    constant = gammaln(2 + count / 2) - gammaln(2) - (np.log1p(count) + count * LOG_2_PI) / 2
    return constant - (2 + count / 2) * np.log(scale)


def best_dichotomy(X, rows, log_marginal) -> float:
    """Best summed leaf scores of two sides that a line parts, in the plane, by enumeration."""
    i, j = np.triu_indices(len(X), 1)
    across = X[i] - X[j]
    turns = np.sort(np.arctan2(across[:, 0], -across[:, 1]) % np.pi)  # where two rows change places
    angles = (turns + np.append(turns[1:], turns[0] + np.pi)) / 2
    order = np.argsort(np.stack([np.cos(angles), np.sin(angles)], axis=1) @ X.T, axis=1)
    left = np.cumsum(rows[order], axis=1)[:, :-1]
    return (log_marginal(left) + log_marginal(rows.sum(axis=0) - left)).max()


def deficits(num_starts: int) -> np.ndarray:
    """What the best split of random small tables scores less than the best line."""
    found = []
    for seed in range(30):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(int(rng.integers(6, 13)), 2))
        if seed % 2:
            y, leaf = rng.integers(0, 2, len(X)), DirichletCategorical.symmetric(2)
            rows, log_marginal = np.stack([y == 0, y == 1], axis=1), log_marginal_of_classes
        else:
            y = rng.normal(size=len(X)) + 2 * (X @ rng.normal(size=2) > 0)
            leaf = NormalInverseGamma(0.0, 1.0, 2.0, 1.0)
            rows, log_marginal = np.stack([y**0, y, y**2], axis=1), log_marginal_of_numbers
        design = Design.from_matrix(X)
        problem = pose(TreeModel(design, y, GreedyPartition(0.9), leaf), num_starts=num_starts)
        score = choose(problem, root_level(problem.columns)).best.score[0]
        log_rule = np.log(0.9 / (len(X) - 1) / 2)
        found.append(log_rule + best_dichotomy(X, rows, log_marginal) - score)
    return np.array(found)


@pytest.mark.slow
def test_the_best_of_all_lines_is_nearly_always_found():
    deficit = deficits(24)
    assert deficit.min() > -TIGHT  # nothing scores more than there is
    assert (deficit < TIGHT).sum() >= 28


def test_a_search_that_climbs_nothing_from_one_start_is_noticed(monkeypatch):
    def one_start(leaf, values, statistics, absorbed, starts, temperatures):
        return np.repeat(starts[:1, :-1], len(starts) * len(hyperplane_search._KEPT_STEPS), axis=0)

    monkeypatch.setattr(hyperplane_search, "_climb", one_start)
    deficit = deficits(24)
    assert deficit.min() > -TIGHT
    assert (deficit < TIGHT).sum() < 25


def test_any_scale_of_the_features_gives_the_same_tree_and_so_does_the_same_seed():
    X, labels, _ = oblique(50, seed=3)
    reference = classifier().fit(X, labels)
    scaled = classifier().fit(X * [1e-6, 1e8] + [3.0, -1e9], labels)
    assert abs(scaled.map_log_joint_ - reference.map_log_joint_) < TIGHT
    again = classifier().fit(X, labels)
    np.testing.assert_array_equal(again.directions_, reference.directions_)
    assert again.rules() == reference.rules()


def test_projections_that_rounding_alone_tells_apart_are_equal():
    rows = np.array([[0.1, 0.2], [0.2, 0.1], [0.3, 0.0], [0.0, 0.4]])
    normal = np.array([0.71, 0.71])
    design = hyperplanes.with_projections(Design.from_matrix(rows), normal[None])
    assert len(set(design.matrix[:, 2])) > 2
    assert design.codes[:, 2].tolist() == [0, 0, 0, 1]
    assert design.names[2] == "0.71 x0 + 0.71 x1"
    one_by_one = [hyperplanes.projected(row[None], normal)[0] for row in rows]
    np.testing.assert_array_equal(one_by_one, design.matrix[:, 2])


# ------------------------------------------------------------------------------- the tree's score


def widths_of_cuts(design, rows, feature: int, least: int) -> np.ndarray:
    """Widths of the gaps of a feature that leave at least that many rows on both sides."""
    codes, place = np.unique(design.codes[rows, feature], return_inverse=True)
    left = np.cumsum(np.bincount(place))[:-1]
    values = [design.matrix[rows][place == c, feature] for c in range(len(codes))]
    widths = [high.min() - low.max() for low, high in pairwise(values)]
    return np.array(widths)[(left >= least) & (len(rows) - left >= least)]


def log_weights(model, rows, depth: int, feature: int) -> tuple:
    """Log weight of stopping, and of a cut of a feature as a function of its gap's width."""
    prior, least = model.prior_, model.constraints_.min_leaf
    num_features, design = model.directions_.shape[1], model.design_
    if isinstance(prior, LeafPenalty):
        return 0.0, lambda width: -prior.log_phi
    has_rule = [len(widths_of_cuts(design, rows, f, least)) > 0 for f in range(num_features)]
    if isinstance(prior, GreedyPartition):
        p, choices = prior.p ** (1 + depth), num_features
    else:
        p, choices = prior.alpha * (1 + depth) ** -prior.beta, sum(has_rule)
    if not any(has_rule) or depth == model.constraints_.max_depth:
        return 0.0, None
    if feature < 0:
        return np.log1p(-p), None
    widths = widths_of_cuts(design, rows, feature, least)
    if prior.cut_weights == "gap":
        return np.log1p(-p), lambda width: np.log(p / choices * width / widths.sum())
    return np.log1p(-p), lambda width: np.log(p / choices / len(widths))


def recomputed(model, slot: int = 0, rows=None, depth: int = 0) -> float:
    """Log joint of the subtree of a slot, from the table with projections, by definition."""
    tree, design = model.map_tree_, model.design_
    rows = np.arange(design.num_rows) if rows is None else rows
    feature = int(tree.feature[slot])
    log_stop, log_rule = log_weights(model, rows, depth, feature)
    if feature < 0:
        weight, y = design.weights[rows], model.posterior_.y[rows]
        if hasattr(model, "classes_"):
            return log_stop + log_marginal_of_classes(np.bincount(y, weight, minlength=2))
        # The leaf has pseudo-count 1 and shape 2; in units of its scale, that is 1 too.
        leaf = model.leaf_
        u = (y - leaf.mean) / np.sqrt(leaf.scale)
        sums = np.array([weight.sum(), weight @ u, weight @ u**2])
        return log_stop + log_marginal_of_numbers(sums) - weight.sum() * np.log(leaf.scale) / 2
    values, threshold = design.matrix[rows, feature], tree.threshold[slot]
    goes_left = values < threshold
    low, high = values[goes_left].max(), values[~goes_left].min()
    sides = ((tree.left[slot], rows[goes_left]), (tree.right[slot], rows[~goes_left]))
    below = sum(recomputed(model, int(child), side, depth + 1) for child, side in sides)
    return log_rule(high - low) + below


def check_joint(model) -> None:
    """Assert that the tree has hyperplanes, and that its score is that of definitions."""
    assert (model.map_tree_.feature >= model.directions_.shape[1]).any()
    assert abs(recomputed(model) - model.map_log_joint_) < TIGHT


MODELS = [
    {},
    {"prior": GreedyPartition(0.9, cut_weights="gap"), "max_depth": 2},
    {"prior": LeafPenalty(1.0), "num_roots": 3},
    {"prior": DepthDecay(), "max_depth": 2},
    {"prior": DepthDecay(cut_weights="gap"), "max_depth": 1},
    {"bins": 4, "num_roots": 2, "root_levels": 2},
    {"min_leaf": 4, "stop_pure": True},
    {"prune": True},
]


@pytest.mark.slow
@pytest.mark.parametrize("options", slow_but(MODELS[:2] + MODELS[5:6], MODELS))
def test_the_log_joint_is_that_of_the_table_with_projections(options):
    X, labels, targets = oblique(seed=1)
    labels[::9] = 1 - labels[::9]
    weights = np.random.default_rng(0).integers(1, 4, len(X))
    check_joint(classifier(**options).fit(X, labels, sample_weight=weights))
    check_joint(regressor(leaf="from_targets", **options).fit(X, targets))


def test_cuts_of_projections_that_are_not_sorted_are_noticed(monkeypatch):
    def unsorted(problem, level, num_features=None):
        if num_features is not None:
            rows = np.arange(len(level.rows[0]), dtype=np.int32)
            level = replace(level, rows=[rows] * len(level.rows))
        return best_rules(problem, level, num_features)

    monkeypatch.setattr(hyperplanes, "best_rules", unsorted)
    X, labels, _ = oblique(seed=1)
    with pytest.raises((AssertionError, ValueError)):  # such a cut may leave a side empty
        check_joint(classifier().fit(X, labels))


def test_smoothed_leaves_absorb_rows_below_hyperplanes():
    X, labels, _ = oblique()
    model = classifier(smoothing=0.5, max_depth=1).fit(X, labels)
    tree, share = model.map_tree_, 1.5
    own = np.bincount(bdtppl.models.hard.tree.route(tree.reshape(1), model.design_.matrix)[0])[1:]
    assert tree.feature[0] == 2
    np.testing.assert_allclose(model.posterior_.statistics[0, 0, 1:].sum(axis=1), share * own)
    assert (
        model.map_log_joint_ > clone(model).set_params(hyperplanes=0).fit(X, labels).map_log_joint_
    )


def test_trees_of_several_roots_are_different_and_number_their_directions_together():
    X, labels, _ = oblique()
    alone, space = classifier().fit(X, labels), classifier(num_roots=4).fit(X, labels)
    ranked = space.k_best(4)
    assert abs(ranked.log_joint[0] - alone.map_log_joint_) < TIGHT
    assert len({str(tree.to_nested()) for tree in ranked}) == 4
    used = np.unique([f for tree in ranked for f in tree.feature if f >= 2])
    np.testing.assert_array_equal(used, 2 + np.arange(len(space.directions_)))
    np.testing.assert_allclose(np.linalg.norm(space.directions_, axis=1), 1, atol=0.02)
    np.testing.assert_allclose(
        space.predict_proba(X), space.posterior_.mean(space.design_.matrix), rtol=1e-12
    )


# ----------------------------------------------------------------------------------- estimators


def test_the_printed_rules_are_those_that_predict():
    X, _, targets = oblique(seed=5)
    X = np.round(X, 2)
    model = regressor().fit(X, targets)
    text = model.rules()
    assert " x0 + " in text
    root = re.match(r"([\d.]+) x0 \+ ([\d.]+) x1 < (-?[\d.]+)", text)
    first, second, threshold = map(float, root.groups())
    goes_left = first * X[:, 0] + second * X[:, 1] < threshold
    np.testing.assert_array_equal(
        goes_left, model.design_.matrix[:, 2] < model.map_tree_.threshold[0]
    )
    explained = np.array(
        [" < " in each.split(" and ")[0].split(":")[0] for each in model.explain(X)]
    )
    np.testing.assert_array_equal(explained, goes_left)


def test_saved_models_predict_the_same(tmp_path):
    X, labels, _ = oblique()
    model = classifier(num_roots=2).fit(X, labels)
    model.save(tmp_path / "model")
    loaded = bdtppl.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.directions_, model.directions_)
    np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))
    assert loaded.rules() == model.rules()
    assert loaded.summary() == model.summary()
    partitions = (m.partition_log_probabilities() for m in (model, loaded))
    np.testing.assert_array_equal(*(each.log_rule for each in partitions))


def test_the_partitions_of_a_node_are_cuts_of_single_features():
    X, labels, _ = oblique()
    model = classifier(prior=DepthDecay()).fit(X, labels)
    single = clone(model).set_params(hyperplanes=0).fit(X, labels)
    found, expected = (m.partition_log_probabilities() for m in (model, single))
    np.testing.assert_allclose(found.log_rule, expected.log_rule, atol=TIGHT)
    np.testing.assert_allclose(found.log_feature[:2], expected.log_feature, atol=TIGHT)
    assert np.isneginf(found.log_feature[2:]).all()
    assert not hasattr(model, "log_evidence_lower_bound_")
    assert hasattr(single, "log_evidence_lower_bound_")


@pytest.mark.parametrize("make", [lambda X: X[:, :1], lambda X: X[:, [0, 0]]])
def test_one_column_has_no_hyperplane_and_neither_have_its_copies(make):
    X, labels, _ = oblique()
    X = make(X)
    model = classifier().fit(X, labels)
    single = clone(model).set_params(hyperplanes=0).fit(X, labels)
    assert model.map_log_joint_ == single.map_log_joint_
    assert model.directions_.shape == (0, X.shape[1])
    assert model.rules() == single.rules()


def test_columns_that_make_no_hyperplane_are_left_out():
    X, labels, _ = oblique()
    table = {
        "length": X[:, 0],
        "constant": np.ones(len(X)),
        "gap": np.where(np.arange(len(X)) % 7, X[:, 0] + X[:, 1], np.nan),
        "word": np.where(labels, "yes", "no"),
        "width": X[:, 1],
        "copy": X[:, 1],
    }
    table["word"][::3] = "no"
    message = r"leave out .*missing values \(NaN\), here 'gap', "
    with pytest.warns(UserWarning, match=message), pytest.warns(UserWarning, match="No cut"):
        model = classifier().fit(table, labels)
    names = np.array(model.design_.names[: model.directions_.shape[1]])
    used = names[(model.directions_ != 0).any(axis=0)]
    assert set(used) <= {"length", "width", "copy"}
    assert {"length"} < set(used)
    assert len(model.feature_importances_) == len(table)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hyperplanes": -1}, "hyperplanes must be an integer of at least 0; got -1"),
        ({"hyperplanes": 1.5}, "hyperplanes must be an integer of at least 0"),
        ({"hyperplanes": True}, "hyperplanes must be an integer of at least 0"),
        ({"lookahead": 2}, "lookahead must be 1 with hyperplanes; got 2"),
        ({"split_precision": 0.1}, "hyperplanes cannot be combined with split_precision"),
        ({"prior": DescriptionLength()}, "the prior needs rules='gaps'; got a DescriptionLength"),
    ],
)
def test_bad_parameters_get_one_sentence(options, message):
    with pytest.raises(ValueError, match=message):
        classifier(**options).fit(*oblique()[:2])


@pytest.mark.slow
@pytest.mark.parametrize(
    "check",
    [
        checks.check_fit_idempotent,
        checks.check_methods_subset_invariance,
        checks.check_fit2d_1sample,
        checks.check_n_features_in_after_fitting,
    ],
)
def test_scikit_learn_contract(check):
    check("GreedyModalTreeClassifier", classifier(hyperplanes=1))


def test_figures_and_the_command_line(tmp_path):
    X, labels, _ = oblique()
    model = classifier().fit(X, labels)
    plot_tree(model)
    plot_boundaries(model)
    np.savetxt(tmp_path / "t.csv", np.c_[X, labels], delimiter=",", header="a,b,y", comments="")
    arguments = ["fit", str(tmp_path / "t.csv"), "--target", "y", "--hyperplanes", str(STARTS)]
    result = CliRunner().invoke(app, [*arguments, "--model", "greedy-modal", "--json"])
    assert result.exit_code == 0, result.output
    assert " a + " in result.output
    refused = CliRunner().invoke(app, arguments)
    assert "--hyperplanes is for --model greedy-modal" in refused.output


def test_hyperplanes_end_no_worse_than_cuts_of_single_columns():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(60, 2))
    y = (X[:, 0] > 0) ^ (X[:, 1] > 0.3)
    fitted = [classifier(hyperplanes=number, random_state=0).fit(X, y) for number in (0, 4)]
    assert fitted[1].map_log_joint_ >= fitted[0].map_log_joint_
