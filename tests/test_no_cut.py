"""Columns without a cut are named: by a warning of the fit, in summaries and in reports."""

import warnings

import every_estimator
import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array
from tiers import in_turn, slow_but

from bdtppl import GreedyModalTreeRegressor
from bdtppl.models.data.design import CutPoints
from bdtppl.report.background import assumptions
from bdtppl.report.subject import Subject
from bdtppl.report.trees import trees

FITS = in_turn(kind for kind in every_estimator.KINDS if not kind.startswith(("DCC", "RJHMC")))
FAST = ("ExactTreeRegressor", "GreedyModalTreeClassifier")
SIZE = np.repeat([1.0, 2.0, 3.0, 4.0], 4)
TABLE = {
    "size": SIZE,
    "same": np.ones(16),
    "few": np.where(SIZE > 2, 5.0, np.nan),  # no cut, but a feature that tells what is missing
}
NAMES = {"same", "few"}


def fit_one(name, table):
    """Fit without other warnings; return the model and what the fit has warned of."""
    model = every_estimator.new(name)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.filterwarnings("always", "No cut")
        model.fit(table, np.where(SIZE > 2, "b", "a") if "Classifier" in name else SIZE)
    return model, caught


def check_columns_are_named(name):
    model, caught = fit_one(name, TABLE)
    assert [str(each.message) for each in caught] == [
        "No cut in 'same': no tree splits on a column whose values are all equal or missing (NaN)."
    ]
    assert caught[0].filename == __file__  # the caller of `fit`
    assert set(model.no_cut) == NAMES
    structures = model.structures()
    assert set(model.summary()["no_cut"]) == set(structures.summary()["no_cut"]) == NAMES
    for text in (str(model.summary()), str(structures)):
        lines = [line.split() for line in text.splitlines()]
        assert ["no", "cut:", "same", "and", "few"] in lines
        assert any(line[:1] == ["size"] for line in lines)
        assert not any(set(line[:1]) & NAMES for line in lines)  # no share of 0.000


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but(FAST, FITS))
def test_every_hard_tree_names_columns_without_a_cut(name):
    check_columns_are_named(name)


def test_columns_that_are_not_named_are_noticed(monkeypatch):
    monkeypatch.setattr(CutPoints, "no_cut", ())
    with pytest.raises(AssertionError):
        check_columns_are_named("GreedyModalTreeClassifier")


def test_reports_show_no_share_of_columns_without_a_cut():
    model, _ = fit_one("ExactTreeClassifier", TABLE)
    subject = Subject(model, "target")
    assert "There is no cut in same and few: values are all equal or missing." in next(
        block.text for block in assumptions(subject) if "cut" in getattr(block, "text", "")
    )
    *_, table = trees(subject)
    shares, before = model.exact_.split_inclusion, model.exact_.prior_inclusion
    for name, row in zip(("size", "few=missing"), table.rows, strict=False):
        feature = model.schema_.features.index(name)
        assert row == [name, f"{shares[feature]:.3f}", f"{before[feature]:.2f}"]
    assert table.rows[2:] == [["same", "no cut", ""], ["few", "no cut", ""]]


def test_sparse_columns_without_a_cut_are_named():
    table = csr_array(np.stack([SIZE, 0 * SIZE], axis=1))
    with pytest.warns(UserWarning, match="No cut in 'x1': "):
        GreedyModalTreeRegressor().fit(table, SIZE)


def test_a_level_without_rows_is_named_where_shares_are():
    hues = np.where(SIZE > 2, "red", "blue")
    for levels, said in ((["blue", "red", "grey"], 0), (["blue"], 1)):
        hue = pd.Categorical(np.where(np.isin(hues, levels), hues, "blue"), categories=levels)
        model, caught = fit_one("ExactTreeClassifier", pd.DataFrame({"size": SIZE, "hue": hue}))
        assert len(caught) == said
        assert all("No cut in 'hue'" in str(each.message) for each in caught)
        assert model.no_cut == (f"hue={levels[-1]}",)


def test_columns_that_all_have_cuts_are_not_spoken_of():
    model, caught = fit_one("ExactTreeClassifier", {"size": SIZE})
    assert not caught
    assert "no cut" not in str(model.summary()) + str(model.structures())
