"""Figures of predictions: what is drawn is computed again from the posterior, the plain way."""

from functools import partial
from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np
import pytest
from drawn import by_gid, edges, legend_labels
from scipy import stats
from sklearn.datasets import load_iris

from bdtppl import (
    ExactTreeClassifier,
    ExactTreeRegressor,
    GreedyModalTreeClassifier,
    GreedyModalTreeRegressor,
    plot_boundaries,
    plot_calibration,
    plot_evidence,
    plot_partial_dependence,
    plot_predictive,
    plot_predictive_check,
    plot_roc,
)
from bdtppl.inference.predictive.leave_one_out import leave_one_out
from bdtppl.models.leaves import DirichletCategorical
from bdtppl.models.priors import DepthDecay, LeafPenalty
from bdtppl.plotting.axes import prepared
from bdtppl.plotting.bands import Places, draw_bands
from bdtppl.plotting.calibration import sum_quantiles
from bdtppl.plotting.colours import class_style
from bdtppl.report import predictions
from bdtppl.report.subject import Subject


def steps(num_rows=60, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, 1, (num_rows, 2))
    return X, np.where(X[:, 0] < 0.5, 1.0, 3.0) + 0.3 * rng.standard_normal(num_rows)


@pytest.fixture(scope="module")
def regressor():
    return ExactTreeRegressor(bins=4, draws=50, random_state=0).fit(*steps())


@pytest.fixture(scope="module")
def classifier():
    X, y = steps()
    labels = np.where(y + X[:, 1] > 2.2, "high", "low")
    return ExactTreeClassifier(bins=4, draws=50, random_state=0).fit(X, labels)


@pytest.fixture(scope="module")
def three_classes():
    X, y = load_iris(return_X_y=True)
    return ExactTreeClassifier(bins=3, draws=25, random_state=0).fit(X[:, 2:], y)


@pytest.mark.slow
def test_figures_go_to_the_axes_that_are_given(regressor):
    figure, ax = plt.subplots()
    for draw in (
        partial(plot_partial_dependence, regressor, 0),
        partial(plot_predictive_check, regressor),
        partial(plot_calibration, regressor),
        partial(plot_evidence, regressor, "prior__log_phi", [1.0, 2.0]),
        partial(plot_boundaries, regressor),
    ):
        ax.clear()
        assert draw(ax=ax) is ax
        assert ax.has_data()
        assert plt.get_fignums() == [figure.number]


# Partial dependence


def curves(model, column, values):
    """Mean over rows of each draw's prediction, draw by draw, [g, draw, ...]."""
    X, posterior = model.design_.matrix, model.posterior_
    found = []
    for value in values:
        moved = X.copy()
        moved[:, column] = value
        means = posterior.means(moved)
        found.append(means.reshape(-1, *means.shape[2:]).mean(axis=1))
    return np.array(found)


@pytest.mark.slow
def test_partial_dependence_averages_over_rows_and_spreads_over_draws(regressor):
    ax = plot_partial_dependence(regressor, "x1", levels=(0.9, 0.5), ice=3)
    drawn = by_gid(ax)
    grid, mean = drawn["mean"].get_data()
    X = regressor.design_.matrix
    assert (grid[0], grid[-1]) == (X[:, 1].min(), X[:, 1].max())
    own = curves(regressor, 1, grid)
    np.testing.assert_allclose(mean, own.mean(axis=1))
    for level in (0.5, 0.9):
        ends = [(1 - level) / 2, (1 + level) / 2]
        low, high = np.quantile(own, ends, axis=1, method="inverted_cdf")
        x, drawn_low, drawn_high = (each[::2] for each in edges(drawn[f"band-{level}"]))
        np.testing.assert_allclose(x, grid)
        np.testing.assert_allclose(drawn_low, low)
        np.testing.assert_allclose(drawn_high, high)
    assert drawn["band-0.5"].get_zorder() > drawn["band-0.9"].get_zorder()
    for place, row in enumerate((0, 29, 59)):
        x, curve = drawn[f"row-{place}"].get_data()
        np.testing.assert_allclose(curve[1], regressor.posterior_.mean([[X[row, 0], x[1]]])[0])
    assert legend_labels(ax) == ["50 % band", "90 % band", "mean", "single rows"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("x1", "target")
    np.testing.assert_array_equal(drawn["rug"].get_xdata(), np.unique(X[:, 1]))


def test_partial_dependence_of_classes(classifier, three_classes):
    ax = plot_partial_dependence(classifier, 0)
    grid, mean = by_gid(ax)["mean"].get_data()
    np.testing.assert_allclose(mean, curves(classifier, 0, grid)[..., 1].mean(axis=1))
    assert ax.get_ylabel() == "probability of low"
    ax = plot_partial_dependence(classifier, 0, target="high")
    np.testing.assert_allclose(by_gid(ax)["mean"].get_ydata(), 1 - mean)

    ax = plot_partial_dependence(three_classes, 1)
    total = sum(by_gid(ax)[f"mean-{place}"].get_ydata() for place in range(3))
    np.testing.assert_allclose(total, 1)
    _, low, high = edges(by_gid(ax)["class-2-0.9"])
    line = by_gid(ax)["mean-2"]
    assert (low <= high).all()
    assert line.get_color() == class_style(2)["facecolor"]
    assert legend_labels(ax) == ["0", "1", "2", "90 % band"]
    with pytest.raises(ValueError, match="ice draws curves of one class: set target to a class"):
        plot_partial_dependence(three_classes, 1, ice=2)
    with pytest.raises(ValueError, match=r"target must be one of the classes, 0, 1, 2; got 'x'"):
        plot_partial_dependence(three_classes, 1, target="x")


@pytest.mark.slow
def test_partial_dependence_on_a_category():
    rng = np.random.default_rng(1)
    colour = np.array(["blue", "green", "red"], object)[rng.integers(0, 3, 50)]
    table = {"colour": colour, "size": rng.uniform(0, 1, 50)}
    y = 2.0 * (colour == "red") + 0.1 * rng.standard_normal(50)
    model = ExactTreeRegressor(bins=2, draws=25, random_state=0).fit(table, y)
    ax = plot_partial_dependence(model, "colour", ice=2)
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["blue", "green", "red"]
    segments = np.array(by_gid(ax)["mean"].get_segments())[:, 0, 1]
    moved = [table | {"colour": np.full(50, level, object)} for level in ("blue", "green", "red")]
    means = [model.posterior_.mean(model._matrix(each)).mean() for each in moved]
    np.testing.assert_allclose(segments, means)
    assert "rug" not in by_gid(ax)


# Calibration


def test_reliability_compares_bins_of_rows(classifier):
    X, y = steps(100, seed=5)
    labels = np.where(y + X[:, 1] > 2.2, "high", "low")
    ax = plot_calibration(classifier, X, labels, bins=4, target="high")
    p = classifier.predict_proba(X)[:, 0]
    group = np.digitize(p, [0.25, 0.5, 0.75])
    x, observed = by_gid(ax)["observed"].get_data()
    groups = [group == each for each in np.unique(group)]
    np.testing.assert_allclose(x, [p[g].mean() for g in groups])
    np.testing.assert_allclose(observed, [(labels[g] == "high").mean() for g in groups])
    for segment, g in zip(by_gid(ax)["band"].get_segments(), groups, strict=True):
        low, high = segment[:, 1]
        assert low <= p[g].mean() <= high
        assert (low * g.sum(), high * g.sum()) == pytest.approx(sum_quantiles(p[g], 0.9))
    assert ax.get_xlabel() == "predicted probability of high"
    assert ax.get_title() == "100 new rows"


def test_bands_of_chance_are_binomial_where_probabilities_are_equal():
    for p, n in ((0.3, 25), (0.9, 7)):
        wanted = stats.binom.ppf([0.05, 0.95], n, p)
        assert sum_quantiles(np.full(n, p), 0.9) == tuple(wanted)
    mixed = np.array([0.0, 1.0, 1.0, 0.5])
    assert sum_quantiles(mixed, 0.9) == (2, 3)


@pytest.mark.slow
def test_training_rows_are_left_out_of_their_calibration(three_classes):
    ax = plot_calibration(three_classes, bins=3)
    found = leave_one_out(three_classes.posterior_)
    x, observed = by_gid(ax)["observed"].get_data()
    sizes = [int(text.get_text()) for text in ax.texts]
    assert sum(sizes) == 150
    right = found.mean.argmax(axis=1) == three_classes.posterior_.y
    assert np.average(observed, weights=sizes) == pytest.approx(right.mean())
    assert np.average(x, weights=sizes) == pytest.approx(found.mean.max(axis=1).mean())
    assert ax.get_title() == "150 training rows, each left out"


def test_coverage_and_pit_agree_with_intervals(regressor):
    X, y = steps(80, seed=9)
    ax = plot_calibration(regressor, X, y, kind="coverage")
    levels, share = by_gid(ax)["observed"].get_data()
    for level in (0.2, 0.5, 0.9):
        low, high = regressor.predict_interval(X, level).T
        inside = ((low <= y) & (y <= high)).mean()
        assert share[np.argmin(np.abs(levels - level))] == pytest.approx(inside)
    x, low, high = edges(by_gid(ax)["band"])
    middle = np.argmin(np.abs(x - 0.5))
    np.testing.assert_allclose(
        [low[middle], high[middle]], stats.binom.ppf([0.05, 0.95], 80, 0.5) / 80
    )

    ax = plot_calibration(regressor, X, y, bins=5)
    bars = [patch for patch in ax.patches if patch.get_gid() == "pit"]
    ends = regressor._mixture(X).quantiles([0.2, 0.4, 0.6, 0.8])
    wanted = np.bincount((y[:, None] > ends).sum(axis=1), minlength=5) * 5 / 80
    np.testing.assert_allclose([bar.get_height() for bar in bars], wanted)


def test_calibration_refuses_what_does_not_fit(regressor, classifier):
    X, y = steps(5)
    with pytest.raises(ValueError, match="X and y belong together"):
        plot_calibration(regressor, X)
    with pytest.raises(ValueError, match="y has 4 values for 5 rows of X"):
        plot_calibration(regressor, X, y[1:])
    with pytest.raises(ValueError, match="kind must be 'pit' or 'coverage'; got 'roc'"):
        plot_calibration(regressor, kind="roc")
    with pytest.raises(ValueError, match="target must be None for a ExactTreeRegressor"):
        plot_calibration(regressor, target="high")
    with pytest.raises(ValueError, match="y has the class 'tall', which the model does not know"):
        plot_calibration(classifier, X, ["tall"] * 5)
    assert plt.get_fignums() == []


# Checks


def test_densities_of_replicates_stand_beside_the_observed_one(regressor):
    ax = plot_predictive_check(regressor)
    drawn = by_gid(ax)
    assert sum(gid.startswith("replicate-") for gid in drawn) == 50
    grid, density = drawn["observed"].get_data()
    y = steps()[1]
    assert np.trapezoid(density, grid) == pytest.approx(1, abs=0.02)
    peak = grid[density.argmax()]
    assert min(abs(peak - y[y < 2].mean()), abs(peak - y[y > 2].mean())) < 0.3
    areas = [np.trapezoid(drawn[f"replicate-{i}"].get_ydata(), grid) for i in range(50)]
    assert 0.9 < np.mean(areas) <= 1.001
    assert legend_labels(ax) == ["replicated", "observed"]


def test_statistics_of_replicates_stand_beside_the_observed_one(regressor):
    seen = []

    def spread(targets):
        seen.append(np.ptp(targets))
        return seen[-1]

    ax = plot_predictive_check(regressor, statistic=spread, draws=40)
    value, *values = seen
    assert value == np.ptp(steps()[1])
    assert len(values) == 40
    assert by_gid(ax)["observed"].get_xdata()[0] == value
    counts = by_gid(ax)["replicated"].get_data().values
    np.testing.assert_array_equal(counts, np.histogram(values, bins="auto")[0])
    share = 100 * np.mean(np.array(values) >= value)
    assert legend_labels(ax)[1] == f"observed; {share:.0f} % of replicates reach it"
    assert ax.get_xlabel() == "spread of the targets"


@pytest.mark.slow
def test_numbers_of_classes_stand_beside_their_replicates(classifier):
    ax = plot_predictive_check(classifier, draws=100)
    counts = np.bincount(classifier.posterior_.y)
    np.testing.assert_array_equal(by_gid(ax)["observed"].get_xdata(), counts)
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["high", "low"]
    wide, narrow = (np.array(by_gid(ax)[f"band-{level}"].get_segments()) for level in (0.9, 0.5))
    for each, own in zip((wide[:, :, 0], narrow[:, :, 0]), (counts, counts), strict=True):
        assert each.shape == (2, 2)
        assert (each[:, 0] <= own).all()
    assert (wide[:, 0, 0] <= narrow[:, 0, 0]).all()
    assert (narrow[:, 1, 0] <= wide[:, 1, 0]).all()
    ax = plot_predictive_check(classifier, statistic=lambda y: np.mean(y == "high"), draws=5)
    assert by_gid(ax)["observed"].get_xdata()[0] == pytest.approx(counts[0] / 60)
    with pytest.raises(ValueError, match="statistic must be a function of labels"):
        plot_predictive_check(classifier, statistic="mean")


# Evidence


def test_evidence_is_that_of_other_fits():
    X, y = steps(30)
    labels = (y > 2).astype(int)
    model = ExactTreeClassifier(bins=3).fit(X, labels)
    ax = plot_evidence(model, "prior__log_phi", [3.0, 0.5, 2.0])
    values, evidence = by_gid(ax)["evidence"].get_data()
    np.testing.assert_array_equal(values, [0.5, 2.0, 3.0])
    for value, found in zip(values, evidence, strict=True):
        again = ExactTreeClassifier(bins=3, prior=LeafPenalty(value)).fit(X, labels)
        assert found == pytest.approx(again.log_evidence_, abs=1e-9)
    assert by_gid(ax)["fitted"].get_xdata()[0] == 2.0
    assert by_gid(ax)["best"].get_xdata()[0] == values[evidence.argmax()]
    ax = plot_evidence(model, "leaf__concentration", [0.1, 10.0])
    leaf = DirichletCategorical.symmetric(2, 0.1)
    again = ExactTreeClassifier(bins=3, leaf=leaf).fit(X, labels)
    assert by_gid(ax)["evidence"].get_ydata()[0] == pytest.approx(again.log_evidence_, abs=1e-9)
    assert ax.get_xscale() == "log"
    assert model.log_evidence_ == pytest.approx(model.exact_.log_evidence)
    with pytest.raises(ValueError, match="parameter must be one of prior__log_phi, leaf__conc"):
        plot_evidence(model, "prior__alpha", [0.5])
    with pytest.raises(ValueError, match=r"alpha must be in \(0, 1\]"):
        plot_evidence(
            ExactTreeClassifier(bins=3, prior=DepthDecay()).fit(X, labels), "prior__alpha", [1.5]
        )
    with pytest.raises(TypeError, match="plot_evidence needs the exact posterior"):
        plot_evidence(GreedyModalTreeClassifier().fit(X, labels), "prior__p", [0.5])


# Boundaries


@pytest.mark.slow
def test_boundaries_show_uncertainty():
    X, y = steps(30)
    model = GreedyModalTreeClassifier().fit(X, (y > 2).astype(int))
    ax = plot_boundaries(model, uncertainty=True)
    mesh = ax.collections[0]
    grid = mesh.get_coordinates()[:-1, :-1]
    inside = (grid[0, 0] + grid[-1, -1]) / 2
    shown = mesh.get_array().reshape(300, 300)[150, 150]
    assert shown == pytest.approx(1 - model.predict_proba([inside]).max(), abs=1e-6)
    assert ax.figure.axes[-1].get_ylabel() == "probability of another class"

    model = GreedyModalTreeRegressor().fit(X, y)
    ax = plot_boundaries(model, uncertainty=True)
    low, high = model.predict_interval([inside], 0.9)[0]
    shown = ax.collections[0].get_array().reshape(300, 300)[150, 150]
    assert shown == pytest.approx(high - low)
    assert ax.figure.axes[-1].get_ylabel() == "width of the 90 % interval"


def test_a_curve_between_all_values_steps_at_the_thresholds_of_its_trees():
    X = np.random.default_rng(0).normal(size=(200, 1))
    model = GreedyModalTreeRegressor().fit(X, np.where(X[:, 0] > 0.3, 2.0, 1.0))
    grid, mean = by_gid(plot_partial_dependence(model, 0))["mean"].get_data()
    assert len(grid) == 3
    assert grid[1] == model.map_tree_.threshold[0]
    np.testing.assert_allclose(mean, [1, 2, 2], atol=0.05)


# ROC


def test_a_roc_curve_is_that_of_the_probabilities(classifier, three_classes):
    X, y = classifier.design_.matrix, classifier.posterior_.y
    ax = plot_roc(classifier, X, classifier.classes_[y])
    false_share, true_share = by_gid(ax)["roc"].get_data()
    probability = classifier.predict_proba(X)[:, 1]
    for threshold in np.unique(probability):
        found = probability >= threshold
        wanted = found[y == 0].mean(), found[y == 1].mean()
        on_line = np.interp(wanted[0], false_share, true_share)
        assert np.isclose(on_line, wanted[1]) or wanted[0] in false_share
    pairs = probability[y == 1][:, None] - probability[y == 0]
    area = ((pairs > 0) + 0.5 * (pairs == 0)).mean()
    assert legend_labels(ax) == ["by chance", f"area {area:.3f}"]
    with pytest.raises(ValueError, match="target must name one of 3 classes"):
        plot_roc(three_classes, three_classes.design_.matrix, three_classes.posterior_.y)
    with pytest.raises(ValueError, match="plot_roc needs new rows"):
        plot_roc(classifier, None, None)
    with pytest.raises(ValueError, match="y must have rows inside and outside"):
        plot_roc(classifier, X[y == 0], classifier.classes_[y[y == 0]])


def many_of_all():
    """30 classes, 30 levels, and names of 80 letters."""
    rng = np.random.default_rng(0)
    level = np.arange(240) % 30
    X = {
        "a column " + "so long " * 9: rng.normal(size=240),
        "city": np.array([f"city number {i:02d} of a republic far away" for i in range(30)])[level],
    }
    return X, level, np.array([f"class {i:02d} of a list that is long" for i in range(30)])


def labels_that_are_cut(ax):
    """Labels that reach beyond the figure."""
    ax.figure.canvas.draw()
    box = ax.figure.bbox
    texts = [ax.xaxis.label, ax.yaxis.label, *ax.get_yticklabels()]
    found = [(text.get_text(), text.get_window_extent()) for text in texts if text.get_text()]
    return [text for text, at in found if at.x0 < box.x0 - 1 or at.x1 > box.x1 + 1]


def test_many_classes_are_told_apart():
    X, level, names = many_of_all()
    model = GreedyModalTreeClassifier().fit(X, names[level])
    for column in (0, "city"):
        ax = plot_partial_dependence(model, column)
        legend = [text.get_text() for text in ax.get_legend().get_texts()]
        assert len(legend) == 9
        assert legend[-1] == "23 others move less"
        assert labels_that_are_cut(ax) == []
        assert ax.get_position().width > 0.3


def test_the_most_extreme_of_many_levels_are_shown():
    X, level, _ = many_of_all()
    y = 1e6 + 1e5 * np.abs(level - 15.0)
    model = GreedyModalTreeRegressor(max_depth=5).fit(X, y)
    ax = plot_partial_dependence(model, "city")
    shown = [text.get_text() for text in ax.get_yticklabels()]
    assert shown[0] == "10 others (mean)"
    assert len(shown) == 21
    assert any("city number 00" in name for name in shown)
    assert labels_that_are_cut(ax) == []
    ax = plot_predictive(model, feature="city")
    assert len(ax.get_yticklabels()) == 20
    assert ax.get_ylabel() == "city (20 of 30 levels)"
    assert labels_that_are_cut(ax) == []


@pytest.mark.parametrize("few", [2, 30])
def test_columns_side_by_side_in_a_report_show_their_means(few, monkeypatch):
    """Levels that stand one above the other, numbers, and legends of all that is shown."""
    drawn = []
    monkeypatch.setattr(predictions, "picture", lambda draw, *_: drawn.append(draw().figure))
    X, level, names = many_of_all()
    X |= {"age": np.arange(240.0) % 11, "size": 1e5 * (np.arange(240.0) % 7)}
    model = GreedyModalTreeClassifier().fit(X, names[level % few])
    list(predictions.dependences(Subject(model, "where they live and have lived until now")))
    assert [sum(ax.axison for ax in figure.axes) for figure in drawn] == [3, 1]
    for figure in drawn:
        figure.canvas.draw()
        panels = [ax for ax in figure.axes if ax.axison]
        assert sum(ax.get_legend() is not None for ax in panels) == (len(panels) if few > 7 else 1)
        for ax in panels:
            assert labels_that_are_cut(ax) == []
            assert all(
                ax.viewLim.overlaps(each.get_datalim(ax.transData)) for each in ax.collections
            )
            assert ax.lines or ax.collections


def test_large_ticks_are_written_out():
    ax = prepared(None, size=(3.0, 2.0))
    ax.plot([0.0, 1.4e6], [-7e4, 7.045e4])
    ax.figure.canvas.draw()
    for axis, some in ((ax.xaxis, "1,000,000"), (ax.yaxis, "\N{MINUS SIGN}50,000")):
        labels = axis.get_ticklabels()
        assert some in [text.get_text() for text in labels]
        assert axis.get_offset_text().get_text() == ""
    boxes = [text.get_window_extent() for text in ax.get_xticklabels()]
    assert all(box.x1 < after.x0 for box, after in pairwise(boxes))
    ax = prepared(None)
    ax.plot([0.0, 1.0], [1e-9, 2e-9])  # small ones have a power beside
    ax.figure.canvas.draw()
    assert ax.yaxis.get_offset_text().get_text() == "1e\N{MINUS SIGN}9"


def test_the_lowest_band_of_a_level_does_not_begin_on_the_axis():
    _, (upright, flat) = plt.subplots(1, 2)
    for ax, ticks in ((upright, ["a", "b"]), (flat, ["a" * 80, "b" * 80])):
        places = Places("levels", np.arange(2), None, ticks)
        draw_bands(ax, places, {0.9: np.array([[3.0, 4.0], [5.0, 7.0]])}, {0.9: "band"})
        (low, _), _ = places.laid(ax.get_ylim(), ax.get_xlim())
        assert low < 3.0
