"""Figures say what the posterior says: what is drawn is compared with trees and predictions.

Artists carry identifiers (`gid`), so that the tests find a leaf or a label wherever it is drawn.
"""

import subprocess
import sys
from itertools import combinations, product

import matplotlib.pyplot as plt
import numpy as np
import pytest
from drawn import by_gid, edges, legend_labels
from handmade import batch, node_statistics, split
from matplotlib.colors import to_rgba
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Text
from scipy import stats
from sklearn.exceptions import NotFittedError

from bdtppl import (
    ExactTreeClassifier,
    ExactTreeRegressor,
    plot_predictive,
    plot_structures,
    plot_tree,
)
from bdtppl.estimators.hard import TreeEstimator
from bdtppl.estimators.results import Results
from bdtppl.inference.hard.posterior import RankedTrees
from bdtppl.models.data.design import Design
from bdtppl.models.data.schema import Column, Schema
from bdtppl.models.hard.tree import Tree
from bdtppl.models.leaves import DirichletCategorical, NormalInverseGamma
from bdtppl.plotting.colours import class_style
from bdtppl.plotting.layout import Layout, text_width, wrap


class GivenTrees(Results):
    """A fitted estimator whose most probable trees are given."""

    _rows_of_slots = TreeEstimator._rows_of_slots
    probability_name = "posterior probability"
    grouping = "tree"

    def __init__(
        self, nested, X, y, *, probability=None, classes=None, names=None, is_indicator=None
    ):
        X = np.asarray(X, float)
        self.design_ = Design.from_matrix(X, names=names, is_indicator=is_indicator)
        self.schema_ = Schema(tuple(map(Column, self.design_.names)))
        if classes is None:
            self.leaf_ = NormalInverseGamma.from_targets(np.asarray(y))
        else:
            self.classes_ = np.asarray(classes)
            self.leaf_ = DirichletCategorical.symmetric(len(classes))
        self.trees = batch(nested, (len(nested),))
        own = np.asarray(self.leaf_.statistics(y, np.ones(len(y))))
        self.statistics = node_statistics(self.trees, X, own)
        self.probability = np.full(len(nested), 0.25) if probability is None else probability

    @property
    def task(self):
        return "classification" if "classes_" in vars(self) else "regression"

    def k_best(self, k, *, by):
        kept = slice(0, k)
        return RankedTrees(
            self.trees[kept],
            self.statistics[kept],
            np.log(self.probability[kept]),
            np.asarray(self.probability[kept]),
        )


def comb(thresholds, feature=0):
    """Build a tree that cuts one feature at each threshold, as evenly as may be."""
    if not len(thresholds):
        return {}
    middle = len(thresholds) // 2
    below, above = thresholds[:middle], thresholds[middle + 1 :]
    return split(feature, thresholds[middle], comb(below, feature), comb(above, feature))


STUMP_X = [[0.0]] * 3 + [[1.0]] * 5


@pytest.fixture
def stump():
    """Three rows of class "apple" below 0.5 and five of class "pear" above."""
    return GivenTrees([split(0, 0.5)], STUMP_X, [0] * 3 + [1] * 5, classes=["apple", "pear"])


def texts(ax):
    return {gid: text.get_text() for gid, text in by_gid(ax, Text).items()}


def centre(patch):
    return patch.get_x() + patch.get_width() / 2


# Trees


def test_yes_leads_left_to_the_rows_that_meet_the_rule(stump):
    ax = plot_tree(stump)
    shown, artists = texts(ax), by_gid(ax)
    left, right = 1, 2
    assert shown["split-0"] == "x0 < 0.5"
    assert (shown["answer-1"], shown["answer-2"]) == ("yes", "no")
    assert (shown["leaf-1-line-0"], shown["leaf-1-line-1"]) == ("apple", "n = 3")
    assert (shown["leaf-2-line-0"], shown["leaf-2-line-1"]) == ("pear", "n = 5")
    for leaf in (left, right):
        x = centre(artists[f"leaf-{leaf}"])
        assert artists[f"answer-{leaf}"].get_position()[0] == pytest.approx(x)
        assert artists[f"leaf-{leaf}-line-0"].get_position()[0] == pytest.approx(x)
        assert artists[f"branch-0-{leaf}"].get_xdata()[-1] == pytest.approx(x)
    assert centre(artists["leaf-1"]) < centre(artists["leaf-2"])


def test_bars_are_predictive_probabilities_in_the_colours_of_the_legend(stump):
    ax = plot_tree(stump)
    patches = by_gid(ax, Patch)
    for leaf, counts in ((1, (3, 0)), (2, (0, 5))):
        frame = patches[f"leaf-{leaf}"]
        bars = [patches[f"leaf-{leaf}-class-{index}"] for index in range(2)]
        shares = [bar.get_width() / frame.get_width() for bar in bars]
        # One is the concentration of each class.
        np.testing.assert_allclose(shares, (np.array(counts) + 1) / (sum(counts) + 2))
        assert bars[0].get_x() == pytest.approx(frame.get_x())
        assert bars[1].get_x() == pytest.approx(bars[0].get_x() + bars[0].get_width())
        colours = [bar.get_facecolor() for bar in bars]
        assert colours == [patch.get_facecolor() for patch in ax.get_legend().get_patches()]
    assert legend_labels(ax) == ["apple", "pear"]


def test_real_leaves_show_the_student_t_of_their_rows_on_one_scale():
    y = np.array([1.0, 1.5, 2.0, 5.0, 5.5, 7.0, 6.0, 5.0])
    model = GivenTrees([split(0, 0.5)], STUMP_X, y)
    ax = plot_tree(model)
    (scale,) = ax.child_axes
    artists, shown = by_gid(scale), texts(ax)
    for leaf, rows in ((1, y[:3]), (2, y[3:])):
        prior_mean, prior_shape, prior_scale = y.mean(), 2.0, y.var()
        n = len(rows)
        mean = (prior_mean + rows.sum()) / (1 + n)
        shape = prior_shape + n / 2
        squares = ((rows - rows.mean()) ** 2).sum() + n / (1 + n) * (rows.mean() - prior_mean) ** 2
        width = np.sqrt((prior_scale + squares / 2) * (n + 2) / (shape * (n + 1)))
        low, high = stats.t.ppf([0.05, 0.95], 2 * shape, mean, width)
        bar = artists[f"leaf-{leaf}"]
        assert bar.get_y() == pytest.approx(low)
        assert bar.get_y() + bar.get_height() == pytest.approx(high)
        np.testing.assert_allclose(artists[f"leaf-{leaf}-mean"].get_ydata(), mean)
        assert float(shown[f"leaf-{leaf}-line-0"]) == pytest.approx(mean, abs=0.05)
        assert shown[f"leaf-{leaf}-line-1"] == f"n = {n}"
        bottom, top = scale.get_ylim()
        assert bottom < low < high < top
    assert centre(artists["leaf-1"]) < centre(artists["leaf-2"])
    assert scale.get_xlim()[1] == ax.get_xlim()[1]
    assert legend_labels(ax) == ["predictive mean", "90 % predictive interval"]


@pytest.mark.slow
def test_bars_of_one_leaf_lie_under_its_branch_in_the_axes_inside():
    model = GivenTrees([comb([0.5, 1.5, 2.5])], np.arange(4.0)[:, None], np.arange(4.0))
    ax = plot_tree(model)
    ax.figure.draw_without_rendering()
    (scale,) = ax.child_axes
    bars = by_gid(scale, Patch)
    assert len(bars) == 4
    for gid, bar in bars.items():
        inside = scale.transData.transform((centre(bar), 0))[0]
        text = by_gid(ax, Text)[f"{gid}-line-0"]
        assert inside == pytest.approx(ax.transData.transform(text.get_position())[0])
    box = ax.get_window_extent()
    labels = [label.get_window_extent() for label in scale.get_yticklabels()]
    assert all(box.x0 <= label.x0 and label.x1 <= box.x1 for label in labels)


def test_repeated_rows_count_as_often_as_they_are():
    model = GivenTrees([split(0, 0.5)], STUMP_X, [0] * 3 + [1] * 5, classes=[0, 1])
    weights = np.array([2, 1, 1, 1, 1, 1, 1, 7])
    model.design_ = Design.from_matrix(model.design_.matrix, weights=weights)
    shown = texts(plot_tree(model))
    assert (shown["leaf-1-line-1"], shown["leaf-2-line-1"]) == ("n = 4", "n = 11")


def test_rules_name_levels_and_the_side_of_missing_values():
    nested = split(0, 0.5, split(1, 2.0, missing_left=True), split(1, 3.0, missing_left=False))
    X = [[0.0, 1.0], [0.0, 4.0], [1.0, np.nan], [1.0, 2.0], [1.0, 5.0]]
    model = GivenTrees(
        [nested],
        X,
        [0, 1, 1, 0, 1],
        classes=["no", "yes"],
        names=("colour=red", "size"),
        is_indicator=np.array([True, False]),
    )
    shown = texts(plot_tree(model))
    assert shown["split-0"] == "colour=red"
    assert (shown["answer-1"], shown["answer-2"]) == ("no", "yes")
    assert shown["split-1"] == "size < 2 or missing"
    assert (shown["answer-3"], shown["answer-4"]) == ("yes", "no")
    assert shown["split-2"].split() == ["size", "<", "3", "and", "not", "missing"]


def test_leaves_stand_evenly_and_parents_above_the_middle_of_their_children():
    nested = split(0, 4.0, comb([1.0, 2.0]), split(0, 8.0, {}, comb([9.0])))
    X = np.arange(11.0)[:, None]
    model = GivenTrees([nested], X, np.arange(11) % 2, classes=[0, 1])
    ax = plot_tree(model)
    artists, tree = by_gid(ax), model.trees[0]
    x, y = np.zeros(tree.capacity), np.zeros(tree.capacity)
    for slot in range(tree.capacity):
        if tree.feature[slot] < 0:
            x[slot], y[slot] = centre(artists[f"leaf-{slot}"]), artists[f"leaf-{slot}"].get_y()
        else:
            x[slot], y[slot] = artists[f"split-{slot}"].get_position()
    leaves = np.sort(x[tree.is_leaf])
    np.testing.assert_allclose(np.diff(leaves), leaves[1] - leaves[0])
    assert len(set(y[tree.is_leaf])) == 1
    for slot in np.flatnonzero(tree.feature >= 0):
        children = [tree.left[slot], tree.right[slot]]
        assert x[slot] == pytest.approx(x[children].mean())
        assert x[children[0]] < x[slot] < x[children[1]]
        assert (y[children] < y[slot]).all()


@pytest.mark.parametrize("classes", [None, ["apple", "pear"]])
def test_single_leaf(classes):
    y = [0] * 3 + [1] * 5
    ax = plot_tree(GivenTrees([{}], STUMP_X, y, classes=classes, probability=[0.5]))
    shown = texts(ax)
    assert shown["leaf-0-line-1"] == "n = 8"
    assert not [gid for gid in shown if gid.startswith(("split", "answer"))]
    assert ax.get_title() == "Most probable tree, posterior probability 0.5"


def random_tree(num_leaves, generator):
    """Grow a lopsided tree on the rows 0, 1, ... by cutting random leaves."""

    def grow(low, high):
        if high - low == 1:
            return {}
        cut = int(generator.integers(low + 1, high))
        return split(0, cut - 0.5, grow(low, cut), grow(cut, high))

    return grow(0, num_leaves)


def overlaps(ax):
    """List pairs of texts, with their boxes, that overlap on the page."""
    ax.figure.draw_without_rendering()
    boxes = {}
    for gid, text in by_gid(ax, Text).items():
        patch = text.get_bbox_patch()
        boxes[gid] = (patch or text).get_window_extent()
    for text in ax.get_legend().get_texts():
        boxes[f"legend-{text.get_text()}"] = text.get_window_extent()
    boxes["title"] = ax.title.get_window_extent()
    return [
        (one, other)
        for (one, a), (other, b) in combinations(boxes.items(), 2)
        # A pixel is what rounding letters to the grid of the screen takes.
        if a.x0 + 1 < b.x1 and b.x0 + 1 < a.x1 and a.y0 + 1 < b.y1 and b.y0 + 1 < a.y1
    ]


def crossings(ax):
    """List rules that the line down to a leaf or split runs through, with the line."""
    ax.figure.draw_without_rendering()
    lines = {gid: line for gid, line in by_gid(ax, Line2D).items() if gid.startswith("branch")}
    found = []
    for gid, text in by_gid(ax, Text).items():
        box = text.get_bbox_patch().get_window_extent() if gid.startswith("split") else None
        for name, line in lines.items() if box else ():
            if gid.removeprefix("split-") not in name.split("-"):
                (x, top), (_, bottom) = ax.transData.transform(line.get_xydata()[-2:])
                if box.x0 < x < box.x1 and bottom < box.y1 and box.y0 < top:
                    found.append((gid, name))
    return found


NAMES = ("size", "mean concavity of the worst nucleus (mm)", "x" * 40)


@pytest.mark.parametrize(
    ("num_classes", "num_leaves", "is_given"),
    [
        (0, 16, True),
        *(
            pytest.param(*options, marks=pytest.mark.slow)
            for options in product([0, 25], [2, 16, 30], [False, True])
            if options != (0, 16, True)
        ),
    ],
)
def test_no_text_overlaps(num_leaves, num_classes, is_given):
    generator = np.random.default_rng(num_leaves + num_classes)
    X = np.arange(float(num_leaves))[:, None]
    y = np.arange(num_leaves) % max(num_classes, 2)
    classes = [f"class number {index}" for index in range(num_classes)] or None
    for name in NAMES:
        nested = random_tree(num_leaves, generator)
        model = GivenTrees([nested], X, y, classes=classes, names=(name,), probability=[1e-9])
        ax = plot_tree(model, ax=plt.figure().add_subplot() if is_given else None)
        patches = by_gid(ax, Patch)
        assert sum(gid.count("-") == 1 for gid in patches) == num_leaves
        assert overlaps(ax) == []
        assert crossings(ax) == []


def test_overlaps_are_seen(stump):
    ax = plot_tree(stump)
    answers = by_gid(ax, Text)
    answers["answer-1"].set_position(answers["answer-2"].get_position())
    assert overlaps(ax) == [("answer-1", "answer-2")]


def test_leaves_stand_so_far_apart_that_their_lines_pass_a_long_rule():
    tree = Tree.from_nested(split(0, 0.5, {}, split(0, 1.5, split(1, 0.5))))
    long = "a rule longer than all others"
    layout = Layout.of(tree, ["", "", "", long, "", "", ""], [""] * 7, wrap_at=100)
    np.testing.assert_array_equal(layout.x[[1, 3, 4]], [0.0, 1.5, 3.0])
    half_width = text_width(long, 9.0) / 2
    assert 1.5 * layout.pitch(9.0) > half_width
    assert layout.pitch(9.0) < half_width


def test_crossings_are_seen():
    nested = split(0, 0.5, {}, split(0, 1.5, split(0, 1.2)))
    ax = plot_tree(GivenTrees([nested], [[0.0], [1.0], [1.3], [2.0]], np.arange(4.0)))
    assert crossings(ax) == []
    by_gid(ax)["split-3"].set_text("long" * 20)
    assert ("split-3", "branch-0-1") in crossings(ax)


def test_text_of_a_large_tree_keeps_its_size_in_a_figure_of_its_own():
    generator = np.random.default_rng(0)
    X = np.arange(30.0)[:, None]
    ax = plot_tree(GivenTrees([random_tree(30, generator)], X, X[:, 0] % 2, classes=[0, 1]))
    assert by_gid(ax, Text)["split-0"].get_fontsize() == 9


def test_names_are_no_markup():
    model = GivenTrees(
        [split(0, 0.5)], STUMP_X, [0] * 3 + [1] * 5, classes=["_a", "$^$"], names=("$^_$",)
    )
    ax = plot_tree(model)
    assert texts(ax)["split-0"] == "$^_$ < 0.5"
    assert legend_labels(ax) == ["_a", "$^$"]
    assert overlaps(ax) == []


def test_title_gives_rank_and_probability(stump):
    stump.probability_name = "probability among the trees found"
    title, figure = plot_tree(stump).title, plt.gcf()
    assert figure.bbox.x0 <= title.get_window_extent().x0
    assert title.get_window_extent().x1 <= figure.bbox.x1
    model = GivenTrees(
        [split(0, 0.5), {}], STUMP_X, [0] * 3 + [1] * 5, classes=[0, 1], probability=[0.6, 0.03]
    )
    assert plot_tree(model).get_title() == "Most probable tree, posterior probability 0.6"
    ax = plot_tree(model, 1)
    assert ax.get_title() == "Tree no. 2, posterior probability 0.03"
    assert "leaf-0" in by_gid(ax, Patch)
    with pytest.raises(ValueError, match="rank must be less than the number of trees, which is 2"):
        plot_tree(model, 2)
    with pytest.raises(ValueError, match="rank must be an integer of at least 0; got -1"):
        plot_tree(model, -1)


def test_a_bare_tree_shows_its_rules_and_slots():
    tree = Tree.from_nested(split(0, 0.5, {}, split(1, 1.5, missing_left=True)))
    ax = plot_tree(tree, names=("age", "start"))
    texts = {text.get_gid(): text.get_text() for text in ax.texts}
    assert texts["split-0"] == "age < 0.5"
    assert texts["split-2"].replace("\n", " ") == "start < 1.5 or missing"
    assert [texts[f"leaf-{slot}-line-0"] for slot in (1, 3, 4)] == ["leaf 1", "leaf 3", "leaf 4"]
    assert ax.get_legend() is None
    root = plot_tree(Tree.from_nested({}))
    assert {"leaf-0"} == {patch.get_gid() for patch in root.patches}
    with pytest.raises(ValueError, match="names has 1 names for 2 features"):
        plot_tree(tree, names=("age",))
    with pytest.raises(ValueError, match="rank must be 0 for a bare tree; got 1"):
        plot_tree(tree, 1)
    with pytest.raises(ValueError, match="tree must be a single tree"):
        plot_tree(tree.reshape(1))
    with pytest.raises(ValueError, match="names requires a bare tree"):
        plot_tree(GivenTrees([{}], STUMP_X, [0] * 4 + [1] * 4, classes=[0, 1]), names=("a",))
    with pytest.raises(TypeError, match="got a Tree, which plot_tree draws"):
        plot_structures(tree)


def test_structures_are_ranked_with_one_legend_and_one_scale():
    y = np.array([1.0, 1.5, 2.0, 5.0, 5.5, 7.0, 6.0, 5.0])
    model = GivenTrees([split(0, 0.5), {}], STUMP_X, y, probability=[0.6, 0.03])
    axes = plot_structures(model, k=4)
    assert [ax.get_title() for ax in axes] == [
        "no. 1, posterior probability 0.6",
        "no. 2, posterior probability 0.03",
    ]
    assert [len(by_gid(ax.child_axes[0], Patch)) for ax in axes] == [2, 1]
    assert [ax.get_legend() is not None for ax in axes] == [True, False]
    assert axes[0].child_axes[0].get_ylim() == axes[1].child_axes[0].get_ylim()


def test_structures_fill_the_axes_that_are_given(stump):
    _, given = plt.subplots(1, 1)
    (ax,) = plot_structures(stump, k=1, axes=given)
    assert ax is given
    _, given = plt.subplots(2, 2)
    with pytest.raises(ValueError, match="axes must contain k = 3 axes; got 4"):
        plot_structures(stump, k=3, axes=given)
    with pytest.raises(ValueError, match="k must be an integer of at least 1; got 0"):
        plot_structures(stump, k=0)


def test_many_structures_take_several_rows():
    X = np.arange(16.0)[:, None]
    generator = np.random.default_rng(0)
    nested = [random_tree(16, generator) for _ in range(5)]
    axes = plot_structures(GivenTrees(nested, X, X[:, 0] % 2, classes=[0, 1]), k=5)
    assert axes[0].figure.get_figwidth() <= 20
    tops = [ax.get_position().y1 for ax in axes]
    assert tops == sorted(tops, reverse=True)
    boxes = [ax.get_tightbbox() for ax in axes]
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))


def test_given_axes_leave_pyplot_alone(stump):
    current = plt.figure()
    given = plt.Figure().add_subplot()
    assert plot_tree(stump, ax=given) is given
    assert plt.get_fignums() == [current.number]
    assert plt.gcf() is current


def test_classes_beyond_the_colours_differ_by_hatching():
    styles = [(class_style(index)["facecolor"], class_style(index)["hatch"]) for index in range(40)]
    assert len(set(styles)) == 40


def test_wrapping_breaks_what_has_no_space():
    assert wrap("x" * 25 + " >= 12.3456", 10) == "\n".join(
        ["x" * 10, "x" * 10, "x" * 5, ">= 12.3456"]
    )
    assert wrap("a >= 12.3456", 5) == "a\n>= 12.3456"


def test_wrapping_loses_nothing_and_keeps_comparisons_whole():
    text = "capital_gain/loss in the year before < 7298.5 or missing"
    assert wrap(text, 100) == text
    lines = wrap(text, 14).split("\n")
    assert "< 7298.5 or" in lines
    assert lines == ["capital_gain/", "loss in the", "year before", "< 7298.5 or", "missing"]
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert all(len(line) <= 14 for line in lines)


@pytest.mark.slow
def test_import_leaves_matplotlib_alone():
    script = "import sys, bdtppl.plotting; print('matplotlib' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120
    )
    assert result.stdout.strip() == "False", result.stderr


# Predictions


def step_data(num_rows=40, num_features=1):
    generator = np.random.default_rng(0)
    X = generator.uniform(0, 1, (num_rows, num_features))
    return X, np.where(X[:, 0] < 0.5, 1.0, 3.0) + 0.2 * generator.standard_normal(num_rows)


@pytest.fixture(scope="module")
def one_column():
    return ExactTreeRegressor(bins=6, max_depth=3, method="boxes").fit(*step_data())


@pytest.fixture(scope="module")
def three_columns():
    model = ExactTreeRegressor(bins=3, max_depth=2, method="boxes")
    return model.fit(*step_data(num_features=3))


def points(ax):
    return by_gid(ax)["observed"].get_offsets()


@pytest.mark.slow
def test_bands_over_one_column_are_its_predictive_intervals(one_column):
    ax = plot_predictive(one_column)
    drawn = by_gid(ax)
    grid, mean = drawn["mean"].get_data()
    X, y = step_data()
    cuts = one_column.design_.cut_threshold[1:]
    np.testing.assert_array_equal(grid, [X.min(), *cuts, X.max()])
    assert drawn["mean"].get_drawstyle() == "steps-post"  # at a threshold rows go right
    np.testing.assert_array_equal(mean, one_column.predict(grid[:, None]))
    for level in (0.5, 0.9):
        x, low, high = (each[::2] for each in edges(drawn[f"band-{level}"]))  # feet of the steps
        interval = one_column.predict_interval(grid[:, None], level)
        np.testing.assert_allclose(x, grid)
        np.testing.assert_allclose(low, interval[:, 0])
        np.testing.assert_allclose(high, interval[:, 1])
    np.testing.assert_array_equal(points(ax), np.column_stack([X[:, 0], y]))
    assert legend_labels(ax) == ["50 % band", "90 % band", "mean", "observed"]
    assert ax.get_xlabel() == "x0"


@pytest.mark.slow
def test_narrow_bands_lie_on_wide_ones_and_are_darker(one_column):
    ax = plot_predictive(one_column, levels=(0.95, 0.5, 0.8))
    bands = [by_gid(ax)[f"band-{level}"] for level in (0.5, 0.8, 0.95)]
    heights = [band.get_zorder() for band in bands]
    assert heights == sorted(heights, reverse=True)
    reds = [to_rgba(band.get_facecolor()[0])[0] for band in bands]
    assert reds == sorted(reds)
    legend = [patch.get_facecolor() for patch in ax.get_legend().get_patches()]
    np.testing.assert_allclose(legend, [band.get_facecolor()[0] for band in bands])


@pytest.mark.slow
def test_each_figure_predicts_once(one_column, three_columns, monkeypatch):
    calls = []

    def count(name):
        method = getattr(ExactTreeRegressor, name)

        def counted(self, *arguments):
            calls.append(name)
            return method(self, *arguments)

        monkeypatch.setattr(ExactTreeRegressor, name, counted)

    count("predict")
    count("predict_quantiles")
    for model, feature in ((one_column, None), (three_columns, 1), (three_columns, None)):
        calls.clear()
        plot_predictive(model, feature=feature, levels=(0.5, 0.8, 0.9))
        assert sorted(calls) == ["predict", "predict_quantiles"]


def test_one_column_of_several_varies_and_the_others_are_held(three_columns):
    X, y = step_data(num_features=3)
    ax = plot_predictive(three_columns, feature="x0", at={"x2": 0.25})
    grid, mean = by_gid(ax)["mean"].get_data()
    median = np.sort(X[:, 1])[19]
    rows = np.column_stack([grid, np.full(len(grid), median), np.full(len(grid), 0.25)])
    np.testing.assert_array_equal(mean, three_columns.predict(rows))
    _, low, high = edges(by_gid(ax)["band-0.9"])
    interval = three_columns.predict_interval(rows, 0.9)
    np.testing.assert_allclose(np.column_stack([low, high])[::2], interval)
    assert ax.get_xlabel() == f"x0\n(at x1 = {median:.4g}, x2 = 0.25)"
    np.testing.assert_array_equal(points(ax), np.column_stack([X[:, 0], y]))
    assert legend_labels(ax)[-1] == "observed (all rows)"


def test_columns_are_held_at_a_row(three_columns):
    ax = plot_predictive(three_columns, feature=1, at=[0.9, 0.1, 0.3])
    grid, mean = by_gid(ax)["mean"].get_data()
    rows = np.column_stack([np.full(len(grid), 0.9), grid, np.full(len(grid), 0.3)])
    np.testing.assert_array_equal(mean, three_columns.predict(rows))


@pytest.mark.parametrize("has_new_rows", [False, True])
def test_rows_are_ordered_by_their_means_and_coverage_is_counted(three_columns, has_new_rows):
    X, y = step_data(num_features=3)
    if has_new_rows:
        X, y = X[:11], y[:11] + 0.3
    ax = plot_predictive(three_columns, *((X, y) if has_new_rows else ()))
    mean = three_columns.predict(X)
    order = np.argsort(mean, kind="stable")
    rank, drawn = by_gid(ax)["mean"].get_data()
    np.testing.assert_array_equal(rank, np.arange(1, len(y) + 1))
    np.testing.assert_array_equal(drawn, mean[order])
    np.testing.assert_array_equal(points(ax), np.column_stack([rank, y[order]]))
    wanted = []
    for level in (0.5, 0.9):
        low, high = three_columns.predict_interval(X, level).T
        x, drawn_low, drawn_high = edges(by_gid(ax)[f"band-{level}"])
        for row in range(len(y)):
            at_row = np.abs(x - rank[row]) < 0.5
            assert set(drawn_low[at_row]) <= {low[order][row]}
            assert set(drawn_high[at_row]) <= {high[order][row]}
        share = np.mean((low <= y) & (y <= high))
        wanted.append(f"{level:.0%} band, holds {100 * share:.3g} % of rows".replace("%", " %", 1))
    assert legend_labels(ax) == [*wanted, "mean", "observed"]


def test_without_targets_no_points_are_drawn(three_columns):
    X, _ = step_data(num_features=3)
    assert legend_labels(plot_predictive(three_columns, X)) == ["50 % band", "90 % band", "mean"]


def test_coverage_counts_repeated_rows():
    X, y = step_data(20, 2)
    y = np.append(y, 40.0)
    X = np.vstack([X, X[:1]])
    weights = np.append(np.ones(20, int), 20)
    single = ExactTreeRegressor(bins=2).fit(X, y, sample_weight=weights)
    repeated = ExactTreeRegressor(bins=2).fit(np.repeat(X, weights, 0), np.repeat(y, weights))
    assert legend_labels(plot_predictive(single)) == legend_labels(plot_predictive(repeated))


@pytest.fixture(scope="module")
def with_category():
    pandas = pytest.importorskip("pandas")
    generator = np.random.default_rng(1)
    colour = generator.choice(["blue", "green", "red"], 60, p=[0.2, 0.5, 0.3])
    smoker = generator.choice(["no", "yes"], 60, p=[0.3, 0.7])
    size = generator.uniform(0, 1, 60)
    table = pandas.DataFrame({"colour": colour, "size": size, "smoker": smoker})
    y = 2.0 * (colour == "red") + size + 0.1 * generator.standard_normal(60)
    return ExactTreeRegressor(bins=3).fit(table, y), table


@pytest.mark.slow
def test_a_category_varies_over_its_levels(with_category):
    model, table = with_category
    ax = plot_predictive(model, feature="colour", at={"size": 0.5})
    rows = table.iloc[:3].assign(colour=["blue", "green", "red"], size=0.5, smoker="yes")
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["blue", "green", "red"]
    segments = np.array(by_gid(ax)["mean"].get_segments())
    np.testing.assert_allclose(segments[:, :, 1], np.repeat(model.predict(rows)[:, None], 2, 1))
    for level in (0.5, 0.9):
        bars = [p for p in ax.patches if p.get_gid() == f"band-{level}"]
        drawn = [(bar.get_y(), bar.get_y() + bar.get_height()) for bar in bars]
        np.testing.assert_allclose(drawn, model.predict_interval(rows, level))
    np.testing.assert_array_equal(
        np.round(points(ax)[:, 0]), table["colour"].map({"blue": 0, "green": 1, "red": 2})
    )
    assert ax.get_xlabel() == "colour\n(at size = 0.5, smoker = yes)"


@pytest.mark.slow
def test_categories_are_held_at_their_most_frequent_level(with_category):
    model, table = with_category
    ax = plot_predictive(model, feature="size")
    grid, mean = by_gid(ax)["mean"].get_data()
    rows = table.iloc[[0] * len(grid)].assign(colour="green", size=grid, smoker="yes")
    np.testing.assert_array_equal(mean, model.predict(rows))
    with pytest.raises(ValueError, match=r"'colour'.*'pink' was not seen"):
        plot_predictive(model, feature="size", at={"colour": "pink"})


def test_rows_with_categories_are_ranked(with_category):
    model, table = with_category
    rank, mean = by_gid(plot_predictive(model))["mean"].get_data()
    np.testing.assert_array_equal(mean, np.sort(model.predict(table)))
    assert len(rank) == 60


def test_headroom_of_the_legend_is_free_of_data(three_columns):
    ax = plot_predictive(three_columns)
    ax.figure.draw_without_rendering()
    bottom = ax.get_legend().get_window_extent().y0
    high = edges(by_gid(ax)["band-0.9"])[2].max()
    assert ax.transData.transform((0, max(high, points(ax)[:, 1].max())))[1] < bottom


def test_given_axes_are_drawn_on(one_column):
    _, (ax, other) = plt.subplots(1, 2)
    assert plot_predictive(one_column, ax=ax) is ax
    assert not other.has_data()
    assert len(plt.get_fignums()) == 1


def test_a_classifier_is_refused():
    model = ExactTreeClassifier(bins=2).fit([[0.0], [1.0], [2.0]], [0, 1, 1])
    with pytest.raises(TypeError, match="plot_predictive draws real targets and needs a regressor"):
        plot_predictive(model)


def test_an_estimator_that_is_not_fitted_is_refused():
    for plot in (plot_tree, plot_structures, plot_predictive):
        with pytest.raises(NotFittedError):
            plot(ExactTreeRegressor())
    assert plt.get_fignums() == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"levels": (0.5, 1.0)}, r"levels must be probabilities between 0 and 1; got \[0.5, 1.0\]"),
        ({"levels": ()}, "levels must be"),
        ({"feature": "x9"}, r"feature must name one of the 3 columns \(x0, x1, x2\).*'x9'"),
        ({"feature": 3}, "feature must name one of the 3 columns.* got 3"),
        ({"feature": 0, "at": {"z": 1.0}}, "at must name columns of the table; got 'z'"),
        ({"feature": 0, "at": {"x1": "big"}}, "at must give 'x1' a number; got 'big'"),
        ({"feature": 0, "at": [1.0]}, "a row of 3 values; got 1"),
        ({"at": {"x1": 0.5}}, "set feature too"),
        ({"y": [1.0]}, "pass X too"),
        ({"X": "x1"}, "X must be a table, not 'x1'"),
        ({"X": [[0.0, 0.0, 0.0]], "y": [1.0, 2.0]}, "y has 2 values for 1 rows of X"),
    ],
)
def test_bad_arguments_are_refused_before_a_figure_is_made(three_columns, arguments, message):
    with pytest.raises(ValueError, match=message):
        plot_predictive(three_columns, **arguments)
    assert plt.get_fignums() == []


# From data to figure


def test_the_map_tree_of_a_classifier_is_drawn():
    X = np.arange(20.0)[:, None]
    y = np.where(X[:, 0] < 8, "low", "high")
    model = ExactTreeClassifier(bins=10).fit(X, y)
    ax = plot_tree(model)
    shown = texts(ax)
    threshold = float(model.map_tree_.threshold[0])
    assert shown["split-0"] == f"x0 < {threshold:.6g}"
    assert shown["leaf-1-line-0"] == "low"
    assert shown["leaf-2-line-0"] == "high"
    assert ax.get_title() == (
        f"Most probable tree, posterior probability {model.map_probability_:.3g}"
    )
    axes = plot_structures(model, k=3)
    assert len(axes) == 3
    assert all(isinstance(line, Line2D) for ax in axes for line in ax.lines)


def test_the_trees_of_a_regressor_are_drawn(three_columns):
    axes = plot_structures(three_columns, k=2)
    ranked = three_columns.k_best(2, by="partition")
    for rank, ax in enumerate(axes):
        bars = by_gid(ax.child_axes[0], Patch)
        assert len(bars) == ranked.trees.num_leaves[rank]
