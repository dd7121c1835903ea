"""What a model shows of itself when it is printed or ends a notebook's cell."""

import copy
from pathlib import Path

import every_estimator as every
import numpy as np
import pytest
from sklearn import config_context
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import bdtppl
from bdtppl.estimators.hard import TreeEstimator
from bdtppl.inference.boxes.exact import BoxPosterior

DATA = Path(__file__).parent / "data"


def exact() -> bdtppl.ExactTreeRegressor:
    model = bdtppl.ExactTreeRegressor(bins=4, max_depth=2, method="boxes", random_state=0)
    return model.fit(every.X, every.Y)


def test_a_fitted_model_shows_its_parameters_facts_and_rules():
    model = exact()
    first, *rest = str(model).splitlines()
    assert first.startswith("ExactTreeRegressor(bins=4")
    assert [line for line in rest if line.startswith("  rows             30, with 2 features")]
    assert [line for line in rest if line.startswith("  log evidence ")]
    assert str(model).endswith(model.rules().splitlines()[-1])
    assert repr(model) == "\n".join(str(model).splitlines()[: repr(model).count("\n") + 1])
    bundle = model._repr_mimebundle_()
    assert bundle["text/plain"] == str(model)
    assert "log evidence" in bundle["text/html"]
    assert "Most probable tree" in model._repr_html_()
    with config_context(display="text"):
        assert list(model._repr_mimebundle_()) == ["text/plain"]


def test_long_rules_are_cut():
    X = np.arange(64.0)[:, None]
    model = bdtppl.GreedyModalTreeRegressor().fit(X, 100.0 * X[:, 0] % 1600)
    assert len(model.rules().splitlines()) > 8
    assert str(model).splitlines()[-1].startswith("  ... and ")


def test_an_unfitted_model_shows_what_scikit_learn_does():
    model = bdtppl.ExactTreeRegressor(bins=4)
    assert str(model) == repr(model) == "ExactTreeRegressor(bins=4)"
    assert str(clone(exact())) == repr(exact())
    assert "prior   " not in model._repr_html_()


@pytest.mark.parametrize(
    "name", ["soft-values", "chain-values", "weighted-classes", "hard-classes"]
)
def test_nothing_costly_is_computed(name, monkeypatch):
    model = bdtppl.load(DATA / name, trusted=True)
    monkeypatch.setattr("bdtppl.estimators.exact.exact_of", lambda *_: pytest.fail("computed"))
    assert "rows  " in str(model)
    assert ("Most probable tree" in str(model)) == (name in ("chain-values", "weighted-classes"))
    assert ("Topologies" in str(model)) == (name == "soft-values")
    assert "rows  " in model._repr_html_()
    make_pipeline(FunctionTransformer(), model)._repr_html_()


def test_the_best_of_very_many_boxes_is_not_searched_for(monkeypatch):
    model = exact()
    monkeypatch.setattr(BoxPosterior, "size", {"boxes": 10**7})
    assert "Most probable tree" not in str(model)
    _ = model.map_tree_
    assert "Most probable tree" in str(model)


def test_errors_do_not_hide_a_model(monkeypatch):
    model = copy.copy(exact())
    del model.design_
    assert str(model) == repr(model)
    monkeypatch.setattr(TreeEstimator, "_at_hand", lambda self: 1 / 0)
    assert str(model) == repr(model)
    assert "text/html" in model._repr_mimebundle_()
