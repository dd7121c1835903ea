"""The simulated sets follow their laws, and tables are read as their files have them.

Each statistical check has a false-alarm rate of 1e-4 at a fixed seed, and a twin in which the law
is wrong and the check must fail.
"""

import hashlib
import os

import numpy as np
import pytest
from scipy import stats

from bdtppl import datasets
from bdtppl.dataset_sources import SOURCES, Source

FALSE_ALARM_RATE = 1e-4

needs_data = pytest.mark.skipif(
    not os.environ.get("BDTPPL_DATA"), reason="BDTPPL_DATA names no folder of data sets"
)


def wu_mean(row):
    x1, x2, _ = row
    if x1 > 0.5:
        return 5.0
    return 3.0 if x2 > 0.5 else 1.0


def cgm_mean(row):
    x1, x2 = row
    if x2 <= 4:
        if x1 <= 3:
            return 1.0
        return 5.0 if x1 <= 7 else 8.0
    return 8.0 if x1 <= 5 else 2.0


def cgm_mean_of_another_tree(row):
    """Part the inputs as `cgm_mean` does, with x1 at the root."""
    x1, x2 = row
    if x1 <= 5:
        if x2 > 4:
            return 8.0
        return 1.0 if x1 <= 3 else 5.0
    if x2 > 4:
        return 2.0
    return 5.0 if x1 <= 7 else 8.0


def noise_p_value(X, y, mean, standard_deviation):
    residuals = y - np.array([mean(row) for row in X])
    return stats.kstest(residuals / standard_deviation, "norm").pvalue


def test_wu_lies_in_its_boxes_a_third_each():
    X, y = datasets.make_wu(300, random_state=1)
    assert X.shape == (300, 3)
    assert X.dtype == y.dtype == np.float64
    boxes = [
        ([0.1, 0.1, 0.6], [0.4, 0.4, 0.9]),
        ([0.1, 0.6, 0.6], [0.4, 0.9, 0.9]),
        ([0.6, 0.1, 0.1], [0.9, 0.9, 0.4]),
    ]
    for group, (low, high) in zip(np.split(X, 3), boxes, strict=True):
        assert np.all((np.array(low) <= group) & (group <= np.array(high)))


def uniformity_p_value(groups, boxes):
    """Give the smallest of the p-values of all columns, corrected for their number."""
    p_values = [
        stats.kstest(group[:, i], stats.uniform(low[i], width[i]).cdf).pvalue
        for group, (low, width) in zip(groups, boxes, strict=True)
        for i in range(3)
    ]
    return min(p_values) * len(p_values)


def test_wu_inputs_are_uniform():
    groups = np.split(datasets.make_wu(3000, random_state=2)[0], 3)
    boxes = [
        ([0.1, 0.1, 0.6], [0.3, 0.3, 0.3]),
        ([0.1, 0.6, 0.6], [0.3, 0.3, 0.3]),
        ([0.6, 0.1, 0.1], [0.3, 0.8, 0.3]),
    ]
    assert uniformity_p_value(groups, boxes) > FALSE_ALARM_RATE
    assert uniformity_p_value([group**1.2 for group in groups], boxes) < FALSE_ALARM_RATE


def test_wu_groups_of_unequal_size_stay_in_order():
    X, _ = datasets.make_wu(5, random_state=0)
    assert [wu_mean(row) for row in X] == [1.0, 1.0, 3.0, 3.0, 5.0]


@pytest.mark.parametrize(
    ("make", "mean", "standard_deviation", "wrong_standard_deviation"),
    [
        (datasets.make_wu, wu_mean, 0.25, 0.5),
        (datasets.make_cgm, cgm_mean, 0.2, np.sqrt(0.2)),
        (datasets.make_cgm, cgm_mean_of_another_tree, 0.2, 0.25),
    ],
)
def test_noise_is_normal_about_the_mean(make, mean, standard_deviation, wrong_standard_deviation):
    X, y = make(3000, random_state=3)
    assert noise_p_value(X, y, mean, standard_deviation) > FALSE_ALARM_RATE
    assert noise_p_value(X, y, mean, wrong_standard_deviation) < FALSE_ALARM_RATE


def test_cgm_inputs_are_uniform_on_the_grid():
    X, y = datasets.make_cgm(20_000, random_state=4)
    assert X.dtype == y.dtype == np.float64
    cells, counts = np.unique(X, axis=0, return_counts=True)
    assert np.array_equal(np.unique(cells), np.arange(1, 11))
    assert len(cells) == 100
    assert stats.chisquare(counts).pvalue > FALSE_ALARM_RATE
    # The twin: a grid whose first column is drawn half as often
    thinned = X[(X[:, 0] > 1) | (np.arange(len(X)) % 2 == 0)]
    _, counts = np.unique(thinned, axis=0, return_counts=True)
    assert stats.chisquare(counts).pvalue < FALSE_ALARM_RATE


def test_hidden_xor_is_the_parity_of_fair_bits():
    X, y = datasets.make_hidden_xor(4000, 7, 3, random_state=5)
    assert X.shape == (4000, 7)
    assert np.array_equal(y, X[:, 0] ^ X[:, 1] ^ X[:, 2])
    assert not np.array_equal(y, X[:, 0] ^ X[:, 1] ^ X[:, 2] ^ X[:, 3])
    counts = np.bincount(X @ (2 ** np.arange(7)), minlength=128)
    assert stats.chisquare(counts).pvalue > FALSE_ALARM_RATE
    biased = np.random.RandomState(5).random_sample(X.shape) < 0.55
    counts = np.bincount(biased @ (2 ** np.arange(7)), minlength=128)
    assert stats.chisquare(counts).pvalue < FALSE_ALARM_RATE


@pytest.mark.parametrize(
    "make",
    [datasets.make_wu, datasets.make_cgm, lambda **seed: datasets.make_hidden_xor(9, **seed)],
)
def test_a_seed_gives_the_same_set_again(make):
    X, y = make(random_state=6)
    for seed in (6, np.random.RandomState(6)):
        again_X, again_y = make(random_state=seed)
        assert np.array_equal(X, again_X)
        assert np.array_equal(y, again_y)
    assert not np.array_equal(X, make(random_state=7)[0])


@pytest.mark.parametrize("num_rows", [0, -1, 2.5, True, "300"])
@pytest.mark.parametrize("make", [datasets.make_wu, datasets.make_cgm, datasets.make_hidden_xor])
def test_number_of_rows_must_be_positive(make, num_rows):
    with pytest.raises(ValueError, match="num_rows must be an integer of at least 1"):
        make(num_rows, random_state=0)


def test_hidden_xor_has_no_more_relevant_features_than_features():
    with pytest.raises(ValueError, match=r"num_relevant must be at most num_features \(3\), got 4"):
        datasets.make_hidden_xor(10, 3, random_state=0)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Point BDTPPL_DATA to an empty folder."""
    monkeypatch.setenv("BDTPPL_DATA", str(tmp_path))
    return tmp_path


def put(folder, monkeypatch, text, task="classification"):
    """Write the text as the one known table, and return its name."""
    source = Source(task, "nowhere", hashlib.sha256(text.encode()).hexdigest())
    monkeypatch.setitem(SOURCES, "small", source)
    (folder / "small.csv").write_text(text, newline="")
    return "small"


def test_load_reads_numbers_and_labels(folder, monkeypatch):
    table = datasets.load(put(folder, monkeypatch, "a,b,kind\n1,2.,yes\n-3e1,.5,no\n"))
    assert np.array_equal(table.X, [[1.0, 2.0], [-30.0, 0.5]])
    assert table.X.dtype == np.float64
    assert table.y.tolist() == ["yes", "no"]
    assert table.feature_names == ("a", "b")
    assert table.target_name == "kind"


def test_load_gives_integer_labels_and_real_targets(folder, monkeypatch):
    text = "a,b\n1,2\n3,4\n"
    name = put(folder, monkeypatch, text)
    assert datasets.load(name).y.dtype == np.int64
    put(folder, monkeypatch, text, task="regression")
    assert datasets.load(name).y.dtype == np.float64


def test_load_keeps_words_and_marks_what_is_missing(folder, monkeypatch):
    table = datasets.load(put(folder, monkeypatch, "a,b,c\n1,x,0\n,y,1\n2,,1\n"))
    assert table.X.dtype == object
    assert table.X[0].tolist() == [1.0, "x"]
    assert np.isnan(table.X[1, 0])
    assert table.X[2].tolist() == [2.0, None]
    table = datasets.load(put(folder, monkeypatch, "a,c\n1,0\n,1\n"))
    assert table.X.dtype == np.float64
    assert np.isnan(table.X[1, 0])


def test_load_says_where_to_get_a_set_when_no_folder_is_named(monkeypatch):
    monkeypatch.delenv("BDTPPL_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match=r"BDTPPL_DATA.*doi:10.24432/C5XK51"):
        datasets.load("haberman")
    assert datasets.available() == ()


@pytest.mark.usefixtures("folder")
def test_load_says_where_to_get_a_file_that_the_folder_lacks():
    with pytest.raises(FileNotFoundError, match=r"lacks haberman.csv.*doi:10.24432/C5XK51"):
        datasets.load("haberman")
    assert datasets.available() == ()


def test_load_refuses_a_file_that_was_changed(folder):
    (folder / "haberman.csv").write_text("age,survival_status\n30,1\n")
    assert datasets.available() == ("haberman",)
    with pytest.raises(ValueError, match=r"haberman.csv is not the .* doi:10.24432/C5XK51"):
        datasets.load("haberman")


@pytest.mark.parametrize("name", ["iris", "../haberman", ""])
def test_load_refuses_an_unknown_name(name):
    with pytest.raises(ValueError, match="name must be one of haberman, "):
        datasets.load(name)


@needs_data
@pytest.mark.parametrize("name", datasets.available())
def test_every_table_there_is_reads(name):
    table = datasets.load(name)
    assert table.X.shape == (len(table.y), len(table.feature_names))
    assert len(table.y) >= 80
    if SOURCES[name].task == "classification":
        assert 2 <= len(np.unique(table.y)) <= 8
    else:
        assert np.all(np.isfinite(table.y))


@needs_data
@pytest.mark.parametrize(
    ("name", "mean", "standard_deviation"), [("wu", wu_mean, 0.25), ("cgm", cgm_mean, 0.2)]
)
def test_laws_are_those_of_the_authors_data(name, mean, standard_deviation):
    for part in ("train", "test"):
        table = datasets.load(f"{name}_{part}")
        p_value = noise_p_value(table.X, table.y, mean, standard_deviation)
        assert p_value > FALSE_ALARM_RATE
