"""What is unlike a class: the rule of the paper, on every classifier."""

import numpy as np
import pandas as pd
import pytest

import bdtppl
from bdtppl import ExactTreeClassifier
from bdtppl.anomalies import FindsAnomalies, PermutedColumns, find_anomalies, num_permutations

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3))
LABELS = np.where(X[:, 1] > 0.3, "ill", "well")
OPTIONS = {"bins": 4, "max_depth": 2, "random_state": 0}


def check_rule(find):
    """An anomalous row lies at least two standard deviations below the mean."""
    for size in (5, 20, 80):
        p = np.append(RNG.uniform(0.85, 0.9, size), 0.2)
        found = find(p)
        expected = [q <= p.mean() - 2 * np.sqrt(((p - p.mean()) ** 2).mean()) for q in p]
        np.testing.assert_array_equal(found.is_anomalous, expected)
        np.testing.assert_array_equal(found.probability, p)


def test_the_rule_is_the_papers():
    check_rule(find_anomalies)


def test_another_rule_is_noticed():
    with pytest.raises(AssertionError):
        check_rule(lambda p: find_anomalies(p, deviations=0.1))


def test_nothing_stands_out_where_all_are_alike():
    assert not find_anomalies(np.full(7, 0.1 + 0.2)).is_anomalous.any()


@pytest.mark.parametrize(("rows", "features", "expected"), [(1840, 6, 2), (103, 9, 2), (50, 97, 1)])
def test_orders_are_counted(rows, features, expected):
    """min(floor(100 / (log n + d)) + 1, 2), by hand."""
    assert num_permutations(rows, features) == expected


@pytest.mark.parametrize("name", [n for n in dir(bdtppl) if n.endswith("Classifier")])
def test_every_classifier_finds_anomalies(name):
    assert issubclass(getattr(bdtppl, name), FindsAnomalies)


def test_a_classifier_uses_the_probability_of_the_class():
    model = ExactTreeClassifier(**OPTIONS).fit(X, LABELS)
    found = model.anomalies(X, normal="well", deviations=1.0)
    np.testing.assert_array_equal(found.probability, model.predict_proba(X)[:, 1])
    assert set(LABELS[found.is_anomalous]) == {"ill"}
    with pytest.raises(ValueError, match="normal must be one of the classes 'ill', 'well'"):
        model.anomalies(X, normal="healthy")
    with pytest.raises(ValueError, match="deviations must be a positive number"):
        model.anomalies(X, normal="well", deviations=0)


@pytest.mark.parametrize(
    "table",
    [
        np.asarray,
        lambda a: pd.DataFrame(a, columns=list("abc")),
        lambda a: dict(zip("abc", a.T, strict=True)),
    ],
    ids=["array", "frame", "mapping"],
)
def test_the_posterior_does_not_depend_on_the_order_of_columns(table):
    expected = ExactTreeClassifier(**OPTIONS).fit(table(X), LABELS).predict_proba(table(X))
    many = PermutedColumns(ExactTreeClassifier(**OPTIONS), permutations=3, random_state=0)
    many.fit(table(X), LABELS)
    assert len({tuple(order) for order in many.orders_}) > 1
    np.testing.assert_allclose(many.predict_proba(table(X)), expected, atol=1e-9)
    assert many.anomalies(table(X), "well", deviations=1).is_anomalous.shape == (60,)
    many.orders_ = [np.roll(order, 1) for order in many.orders_]  # the twin mixes columns up
    if table is np.asarray:
        assert np.abs(many.predict_proba(X) - expected).max() > 0.1


def test_a_rule_that_nothing_can_meet_is_told():
    with pytest.warns(
        UserWarning, match=r"No row can be anomalous: .* 2 standard deviations is -0\.5"
    ):
        assert not find_anomalies([0.0, 1.0]).is_anomalous.any()
