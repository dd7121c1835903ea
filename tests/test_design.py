"""Designs: cut points, codes, weights and thresholds."""

import itertools

import exact_problems as ep
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_iris

from bdtppl.models.data.design import Design, _nearest_gaps

# Beyond half the largest float the range of a column overflows.
FINITE = st.floats(-8e307, 8e307)
COLUMNS = st.lists(FINITE, min_size=1, max_size=12)


def column(values, **options):
    return Design.from_matrix(np.array(values, float)[:, None], **options)


# --------------------------------------------------------------------------- codes, thresholds


def check_codes(design):
    """A row has code < v exactly where its value is below the cut of v."""
    for j in range(design.num_features):
        cuts = design.cut_threshold[design.offset[j] : design.offset[j + 1]]
        assert cuts[0] == -np.inf
        assert len(cuts) == design.num_codes[j]
        assert np.all(np.diff(cuts[1:]) > 0)
        for value, code in zip(design.matrix[:, j], design.codes[:, j], strict=True):
            if np.isnan(value):
                assert code == -1
            else:
                assert 0 <= code < len(cuts)
                for v, cut in enumerate(cuts):
                    assert (code < v) == (value < cut)


def check_edges(design):
    for j, v in itertools.product(range(design.num_features), range(design.num_codes.max())):
        if v < design.num_codes[j]:
            held = design.matrix[design.codes[:, j] == v, j]
            low, high = (e[design.offset[j] + v] for e in (design.low_edge, design.high_edge))
            if len(held):
                assert (low, high) == (held.min(), held.max())
            else:
                assert np.isnan([low, high]).all()


OPTIONS = [
    {},
    {"bins": 2},
    {"bins": 3},
    {"bins": 3, "binning": "uniform"},
    {"bins": 12},
    {"grid": 1},
    {"grid": 7},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@given(values=COLUMNS)
def test_codes_follow_thresholds(options, values):
    design = column([*values, np.nan], **options)
    check_codes(design)
    check_edges(design)
    np.testing.assert_array_equal(design.encode(design.matrix), design.codes)
    if "grid" not in options:  # every code is some row's
        assert set(design.codes[:-1, 0]) == set(range(design.num_codes[0]))
    if "bins" in options:
        assert design.num_codes[0] <= options["bins"]


@given(values=COLUMNS)
def test_thresholds_lie_strictly_above_what_is_below(values):
    design = column(values)
    distinct = np.unique(values)
    cuts = design.cut_threshold[1:]
    assert len(cuts) == len(distinct) - 1
    assert np.all(distinct[:-1] < cuts)
    assert np.all(cuts <= distinct[1:])
    positions = np.arange(len(distinct))
    for low, high in itertools.combinations(positions, 2):
        threshold = design.gap_threshold(low, high)
        assert distinct[low] < threshold <= distinct[high]
        assert design.gap_width(low, high) == distinct[high] - distinct[low]


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize(
    "pair", [(1.0, np.nextafter(1.0, 2)), (0.0, 5e-324), (-1.7e308, 1.7e308), (-5e-324, 0.0)]
)
def test_thresholds_between_neighbouring_and_huge_numbers(pair):
    design = column(pair)
    assert pair[0] < design.cut_threshold[1] <= pair[1]
    assert np.isfinite(design.cut_threshold[1])
    assert design.codes.ravel().tolist() == [0, 1]


# --------------------------------------------------------------------------------------- grid


def check_grid(design, grid, thresholds=None):
    """code < v exactly where the scaled value is below the grid's point, in float64."""
    points = np.linspace(0, 1, grid + 2)[1:-1]
    for j in range(design.num_features):
        values = design.matrix[:, j]
        scaled = (values - values.min()) / (values.max() - values.min())
        cuts = design.cut_threshold[design.offset[j] + 1 : design.offset[j + 1]]
        cuts = cuts if thresholds is None else thresholds(values, points)
        for cut, point in zip(cuts, points, strict=True):
            np.testing.assert_array_equal(values < cut, scaled < point)


def test_a_grid_of_more_cuts_than_can_matter_is_refused():
    with pytest.raises(ValueError, match=r"grid must be at most 10,000; got 1,000,000\."):
        Design.from_matrix(np.arange(40.0)[:, None], grid=1_000_000)


def test_grid_is_exact_on_iris():
    design = Design.from_matrix(load_iris().data, grid=99)
    assert design.num_codes.tolist() == [100] * 4
    check_grid(design, 99)
    check_codes(design)
    # Iris lies on the thresholds, so that thresholds scaled back, or float32, part it otherwise.
    with pytest.raises(AssertionError):
        check_grid(design, 99, lambda x, points: x.min() + points * (x.max() - x.min()))
    with pytest.raises(AssertionError):
        check_grid(design, 99, lambda x, points: np.float32(x.min() + points * np.ptp(x)))


@given(
    values=st.lists(st.floats(-1e6, 1e6, width=32), min_size=2, max_size=10),
    grid=st.integers(1, 30),
)
def test_grid_thresholds_are_the_least_floats_that_reach_a_point(values, grid):
    if min(values) == max(values):
        return
    design = column(values, grid=grid)
    check_grid(design, grid)
    least, span = min(values), max(values) - min(values)
    cuts = design.cut_threshold[1:]
    points = np.linspace(0, 1, grid + 2)[1:-1]
    assert np.all((cuts - least) / span >= points)
    assert np.all((np.nextafter(cuts, -np.inf) - least) / span < points)


# -------------------------------------------------------------------------------------- buckets


SMALL_NUMBERS = st.integers(-20, 20)
MANY_ZEROS = st.sampled_from([0] * 6 + [*range(9)])


@st.composite
def repeated(draw, of=SMALL_NUMBERS):
    """Values, their weights, and a number of bins."""
    values = draw(st.lists(of, min_size=1, max_size=15))
    weights = draw(st.lists(st.integers(1, 4), min_size=len(values), max_size=len(values)))
    return np.array(values, float), np.array(weights), draw(st.integers(2, 6))


@pytest.mark.parametrize("binning", ["quantile", "uniform"])
@pytest.mark.parametrize("of", [SMALL_NUMBERS, MANY_ZEROS], ids=["few repeats", "many repeats"])
@given(data=st.data())
def test_buckets_are_those_of_the_definition(binning, of, data):
    values, weights, bins = data.draw(repeated(of=of))
    design = column(values, weights=weights, bins=bins, binning=binning)
    expected = ep.expected_cuts(values, weights, bins=bins, binning=binning)
    np.testing.assert_allclose(design.cut_threshold[1:], expected)


@pytest.mark.parametrize("binning", ["quantile", "uniform"])
@given(values=COLUMNS, bins=st.integers(2, 6), data=st.data())
def test_a_column_of_two_values_has_a_cut(binning, values, bins, data):
    weights = data.draw(st.lists(st.integers(1, 9), min_size=len(values), max_size=len(values)))
    design = column(values, weights=weights, bins=bins, binning=binning)
    most = min(bins, len(np.unique(values)))
    least = most if binning == "quantile" else min(most, 2)
    assert least <= design.num_codes[0] <= most


def check_nearest(choose, values, weights, bins):
    """Gaps have the least distance from equal shares, and of such choices are the lowest."""
    _, place = np.unique(values, return_inverse=True)
    below = np.cumsum(np.bincount(place, weights))
    found = choose(below[:-1], below[-1], bins)
    assert tuple(found + 1) == ep.nearest_gaps(values, weights, bins)


def one_by_one(below, total, bins):
    """Give each share in turn the nearest gap that leaves one for each share after it."""
    gaps = [-1]
    for i in range(1, bins):
        free = np.arange(gaps[-1] + 1, len(below) - (bins - 1 - i))
        gaps.append(free[np.argmin(np.abs(bins * below[free] - i * total))])
    return np.array(gaps[1:])


def highest(below, total, bins):
    """Choose as the code does, from the other end: of ties the highest."""
    return len(below) - 1 - _nearest_gaps(total - below[::-1], total, bins)[::-1]


@given(case=repeated(of=MANY_ZEROS))
def test_gaps_are_the_nearest_of_all_choices(case):
    values, weights, bins = case
    if len(set(values)) > bins:
        check_nearest(_nearest_gaps, values, weights, bins)


@pytest.mark.parametrize(
    ("broken", "values", "bins"),
    [(one_by_one, [0, 1, 1, 2, 2, 2, 2, 3, 4], 4), (highest, [0, 1, 2], 2)],
)
def test_gaps_that_are_not_the_nearest_are_noticed(broken, values, bins):
    case = np.array(values, float), np.ones(len(values), int), bins
    check_nearest(_nearest_gaps, *case)
    with pytest.raises(AssertionError):
        check_nearest(broken, *case)


def check_weights(values, weights, used, **options):
    """Weights are repeated rows: the same cut points, and every repetition has its row's code."""
    design = column(values, weights=used, **options)
    long = column(np.repeat(values, weights), **options)
    np.testing.assert_array_equal(design.cut_threshold, long.cut_threshold)
    np.testing.assert_array_equal(np.repeat(design.codes, weights, axis=0), long.codes)
    np.testing.assert_array_equal(design.low_edge, long.low_edge)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@given(data=st.data())
def test_weights_are_repeated_rows(options, data):
    numbers = st.floats(-1e3, 1e3, width=32)
    values = data.draw(st.lists(numbers, min_size=1, max_size=10))
    weights = data.draw(st.lists(st.integers(1, 4), min_size=len(values), max_size=len(values)))
    check_weights(values, weights, weights, **options)


def test_forgotten_weights_are_noticed():
    values, weights = [1.0, 2.0, 4.0, 8.0, 9.0], [1, 1, 1, 1, 6]
    check_weights(values, weights, weights, bins=3)
    with pytest.raises(AssertionError):
        check_weights(values, weights, None, bins=3)


def test_buckets_by_hand():
    values = [1.0, 2.0, 3.0, 4.0, 10.0]
    assert column(values, bins=2).cut_threshold.tolist() == [-np.inf, 2.5]
    assert column(values, bins=3, binning="uniform").cut_threshold.tolist() == [-np.inf, 3.5, 7.0]
    assert column(values, bins=5).cut_threshold.tolist() == column(values).cut_threshold.tolist()
    # Both edges lie in the value that fills most rows, or in the least one.
    assert column([0, 0, 0, 1, 2], bins=2).cut_threshold.tolist() == [-np.inf, 0.5]
    assert column([0, 1, 1, 1, 1, 2, 3], bins=3).cut_threshold.tolist() == [-np.inf, 0.5, 1.5]


@pytest.mark.parametrize("cuts", [{}, {"bins": 2}, {"bins": 2, "binning": "uniform"}, {"grid": 1}])
def test_only_columns_of_one_value_have_no_cut(cuts):
    values = [[0, 0, 0, 1, 2], [7] * 5, [3, np.nan, 3, 3, np.nan], [np.nan] * 5, [1, 1, 1, 1, 9]]
    design = Design.from_matrix(np.array(values).T, **cuts)
    assert design.no_cut == ("x1", "x2", "x3")
    assert design.has_cut.tolist() == [True, False, False, False, True]


# -------------------------------------------------------------------------------------- the rest


def test_layout_of_features():
    matrix = np.array([[1.0, 5.0, np.nan], [2.0, 5.0, 0.0], [4.0, 5.0, 1.0]])
    design = Design.from_matrix(matrix, names=("a", "b", "c"), is_indicator=[False, False, True])
    assert design.num_rows == 3
    assert design.num_features == 3
    assert design.num_codes.tolist() == [3, 1, 2]
    assert design.offset.tolist() == [0, 3, 4, 6]
    assert design.feature_of_code.tolist() == [0, 0, 0, 1, 2, 2]
    assert design.has_missing.tolist() == [False, False, True]
    assert design.codes.tolist() == [[0, 0, -1], [1, 0, 0], [2, 0, 1]]
    assert design.names == ("a", "b", "c")
    assert design.is_indicator.tolist() == [False, False, True]
    assert Design.from_matrix(matrix).names == ("x0", "x1", "x2")
    kept = design.take(np.array([2, 1]))
    assert kept.codes.tolist() == [[2, 0, 1], [1, 0, 0]]
    assert kept.cut_threshold is design.cut_threshold


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_column_without_values_has_one_code(options):
    design = Design.from_matrix(np.array([[np.nan, 1.0], [np.nan, 2.0]]), **options)
    assert design.num_codes[0] == 1
    assert design.codes[:, 0].tolist() == [-1, -1]


def test_cuts_can_be_given_and_designs_of_the_same_rows_joined():
    matrix = np.array([[1.0, 5.0], [2.0, np.nan], [4.0, 7.0]])
    given = Design.from_matrix(matrix, cuts=[np.array([3.0]), np.empty(0)], names=("a", "b"))
    assert given.codes.tolist() == [[0, 0], [0, -1], [1, 0]]
    assert (given.low_edge.tolist(), given.high_edge.tolist()) == ([1, 4, 5], [2, 4, 7])
    joined = Design.from_matrix(matrix[:, :1]).beside(given)
    assert joined.names == ("x0", "a", "b")
    assert joined.codes.tolist() == [[0, 0, 0], [1, 0, -1], [2, 1, 0]]
    assert joined.offset.tolist() == [0, 3, 5, 6]


@pytest.mark.parametrize(
    ("matrix", "options", "message"),
    [
        (np.zeros(3), {}, "must be"),
        (np.zeros((0, 2)), {}, "not empty"),
        (np.zeros((2, 0)), {}, "not empty"),
        ([[1.0, np.inf]], {"names": ("a", "b")}, r"Column 'b', row 0: .*inf"),
        ([[1.0]], {"bins": 1}, "bins must be"),
        ([[1.0]], {"bins": 2.5}, "bins must be"),
        ([[1.0]], {"bins": True}, "bins must be"),
        ([[1.0]], {"grid": 0}, "grid must be"),
        ([[1.0]], {"bins": 2, "grid": 2}, "bins and grid cannot be combined"),
        (
            [[1.0]],
            {"bins": 2, "cuts": [[0.5]]},
            "cuts must be given for every feature, without bins",
        ),
        ([[1.0]], {"cuts": []}, "cuts must be given for every feature"),
        ([[1.0]], {"binning": "other"}, "binning must be"),
        ([[1.0]], {"weights": [0]}, "row 0 has 0"),
        ([[1.0], [2.0]], {"weights": [1, -1.5]}, "row 1 has -1.5"),
        ([[1.0], [2.0]], {"weights": [1, np.nan]}, "row 1 has nan"),
        ([[1.0]], {"weights": [1, 1]}, "2 entries for 1 rows"),
    ],
)
def test_bad_input_is_refused(matrix, options, message):
    with pytest.raises(ValueError, match=message):
        Design.from_matrix(np.asarray(matrix, float), **options)
