"""Numbers of leaf families that have the greatest evidence, and the estimators that take them."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.base import clone

from bdtppl import (
    ExactTreeRegressor,
    GreedyModalTreeRegressor,
    MetropolisTreeRegressor,
    ParticleTreeRegressor,
)
from bdtppl.estimators.base import ChoiceWarning
from bdtppl.inference import exact_choice
from bdtppl.inference.boxes.exact import BoxPosterior
from bdtppl.inference.boxes.recursion import Recursion
from bdtppl.inference.exact_choice import leaf_by_evidence
from bdtppl.models.constraints import Constraints, KeepTogether
from bdtppl.models.data.design import Design
from bdtppl.models.hard.tree_model import TreeModel
from bdtppl.models.leaf_count_priors import LeafCount
from bdtppl.models.leaves import NormalInverseGamma
from bdtppl.models.priors import DepthDecay, LeafPenalty

NUMBERS = ("mean", "pseudo_count", "shape", "scale")


def steps(n=60, seed=0):
    """Four levels of a target, with little noise within each."""
    rng = np.random.default_rng(seed)
    X = rng.integers(0, 8, (n, 2)).astype(float)
    return X, 3.0 * (X[:, 0] > 3) + 5.0 * (X[:, 1] > 3) + rng.normal(0, 0.2, n)


def problem(scale=1.0, **limits):
    X, y = steps()
    leaf = NormalInverseGamma.from_targets(scale * y)
    return TreeModel(
        Design.from_matrix(X), scale * y, DepthDecay(0.95, 1.0), leaf, Constraints(**limits)
    )


def evidence(model: TreeModel, leaf) -> float:
    options = {"max_depth": 3, "constraints": model.constraints}
    return BoxPosterior(model.design, model.prior, leaf, model.y, **options).log_evidence


def check_maximum(model: TreeModel) -> None:
    """No number that is moved by a fifth, or a fifth of a standard deviation, does better by 1."""
    leaf = leaf_by_evidence(model)
    best = evidence(model, leaf)
    assert best > evidence(model, model.leaf) + 20
    for name in NUMBERS:
        for factor in (0.8, 1.25):
            step = 0.2 * np.std(model.y) * np.sign(factor - 1)
            moved = leaf.mean + step if name == "mean" else factor * getattr(leaf, name)
            assert evidence(model, replace(leaf, **{name: moved})) < best + 1


@pytest.mark.slow
def test_the_evidence_is_near_its_maximum():
    check_maximum(problem())


def test_numbers_of_other_targets_are_noticed(monkeypatch):
    """The twin: a fit to the targets of other rows."""

    def broken(design, prior, leaf, y, **options):
        return BoxPosterior(design, prior, leaf, np.roll(y, 1), **options)

    monkeypatch.setattr(exact_choice, "BoxPosterior", broken)
    with pytest.raises(AssertionError):
        check_maximum(problem())


def test_numbers_go_with_the_scale_of_the_targets():
    once, scaled = (leaf_by_evidence(problem(scale)) for scale in (1.0, 1000.0))
    factors = {"mean": 1e3, "scale": 1e6}
    for name in NUMBERS:
        wanted = factors.get(name, 1.0) * getattr(once, name)
        assert getattr(scaled, name) == pytest.approx(wanted, rel=1e-4)


@pytest.mark.slow
def test_what_boxes_cannot_answer_for_is_left_out():
    """A box of rows, an order of means, and a prior of the number of leaves."""
    plain = leaf_by_evidence(problem())
    box = [KeepTogether({0: (2.0, 3.0)})]
    for model in (
        problem(keep_together=box),
        problem(monotone={0: 1}),
        replace(problem(), prior=LeafCount(np.ones(4) / 4)),
    ):
        assert leaf_by_evidence(model) == plain


def test_where_nothing_is_to_be_fitted_numbers_stay():
    model = problem(max_depth=0)
    assert leaf_by_evidence(model) is model.leaf
    X, y = np.zeros((4, 201)), np.arange(4.0)
    leaf = NormalInverseGamma.from_targets(y)
    wide = TreeModel(Design.from_matrix(X), y, LeafPenalty(2.0), leaf, Constraints())
    assert leaf_by_evidence(wide) is leaf


@pytest.mark.slow
def test_constant_targets_and_targets_without_noise_have_finite_numbers():
    X, _ = steps()
    for y in (np.full(len(X), 7.0), 3.0 * (X[:, 0] > 3)):
        model = GreedyModalTreeRegressor().fit(X, y)
        assert all(np.isfinite(getattr(model.leaf_, name)) for name in NUMBERS)
        np.testing.assert_allclose(model.predict(X), y, atol=1e-2)


@pytest.mark.slow
def test_estimators_take_them_and_the_numbers_of_the_targets_by_name():
    X, y = steps()
    short = {"warmup": 20, "draws": 10, "thin": 1, "chains": 2, "temperatures": 1}
    few = {"particles": 30, "runs": 2}
    wide = NormalInverseGamma.from_targets(y)
    for kind, options in (
        (GreedyModalTreeRegressor, {}),
        (ExactTreeRegressor, {"bins": 4, "max_depth": 2}),
        (MetropolisTreeRegressor, short),
        (ParticleTreeRegressor, few),
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("warnings.warn", lambda *_, **__: None)  # of short runs
            fitted = kind(random_state=0, **options) if options else kind()
            leaf = fitted.fit(X, y).leaf_
            assert leaf.scale / leaf.shape < 0.2 * wide.scale / wide.shape
            named = fitted.set_params(leaf="from_targets").fit(X, y)
        assert named.leaf_ == wide


def test_sparse_and_dense_tables_have_the_same_numbers():
    X, y = steps()
    dense, sparse = (GreedyModalTreeRegressor().fit(table, y).leaf_ for table in (X, csr_array(X)))
    assert dense == sparse


def test_a_word_that_is_no_leaf_family_is_refused():
    X, y = steps()
    with pytest.raises(ValueError, match="leaf must be a leaf family, 'from_targets' or None"):
        GreedyModalTreeRegressor(leaf="normal").fit(X, y)


class SlowClock:
    """Seconds of a machine on which each sum over trees takes one."""

    seconds = 0.0


def test_a_budget_holds_where_the_work_takes_longer_than_estimated(monkeypatch):
    """Nothing is begun that the clock has no time for, but the first setting."""
    rng = np.random.default_rng(0)
    X, clock = rng.normal(size=(60, 3)), SlowClock()
    y = X[:, 0] + (X[:, 1] > 0) * X[:, 2]
    inside = Recursion.inside

    def slowly(self, *args, **kwargs):
        clock.seconds += 1.0
        return inside(self, *args, **kwargs)

    model = ExactTreeRegressor(method="boxes", max_seconds=12.0, max_depth=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ChoiceWarning)
        usual = clone(model).fit(X, y)
        monkeypatch.setattr(Recursion, "inside", slowly)
        monkeypatch.setattr(exact_choice, "WorkClock", lambda: clock)
        model.fit(X, y)
    tried = np.isfinite(model.settings_["log_evidence"]).sum()
    assert 1 <= tried < np.isfinite(usual.settings_["log_evidence"]).sum()
    # A prior that is not normalised takes two sums a point, and a step of a fit tries two points.
    assert clock.seconds <= 12.0 + 2 + 4
