"""Credible intervals of what a leaf holds at a row: the mean, and the probability of each class.

Against closed forms where trees have one leaf, and against draws of tree, leaf and parameters. The
statistical tests have false-alarm rates of 1e-6 a row and fixed seeds.
"""

from pathlib import Path
from types import SimpleNamespace

import every_estimator as every
import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.stats import beta, gamma, t

import bdtppl
from bdtppl.inference.hard.mixture import LeafMixture
from bdtppl.inference.soft.mixture import ClassMixture
from bdtppl.models.leaves import DirichletCategorical, NormalInverseGamma, PoissonGamma

SHARES = np.array([0.3, 0.7])
DRAWS = 40_000
REACH = 5 / np.sqrt(DRAWS)


def mixture(leaf, statistics):
    weights = csr_array(SHARES[: len(statistics)][None] / SHARES[: len(statistics)].sum())
    return LeafMixture(leaf, np.asarray(statistics, float), weights, np.zeros(1, int))


def test_a_tree_of_one_leaf_has_the_closed_form():
    y = every.Y
    model = bdtppl.ExactTreeRegressor(max_depth=0, leaf="from_targets").fit(every.X, y)
    count, centre, variance = len(y), y.mean(), y.var()
    scale = variance + count * variance / 2  # the leaf's mean is that of y, and the shape 2
    width = np.sqrt(scale / ((2 + count / 2) * (1 + count)))
    wanted = t(4 + count, centre, width).ppf([0.05, 0.95])
    found = model.predict_interval(every.NEW, 0.9, kind="mean")
    np.testing.assert_allclose(found, np.tile(wanted, (len(every.NEW), 1)), rtol=1e-9)
    np.testing.assert_array_equal(
        model.predict_interval(every.NEW), model.predict_interval(every.NEW, kind="target")
    )


def test_classes_of_a_tree_of_one_leaf_have_beta_laws():
    labels = np.array(["a"] * 5 + ["b"] * 20 + ["c"] * 5)
    model = bdtppl.ExactTreeClassifier(max_depth=0, leaf=DirichletCategorical([1.0, 2.0, 0.5]))
    found = model.fit(every.X, labels).predict_proba_interval(every.NEW, 0.8)
    wanted = [beta(a, 33.5 - a).ppf([0.1, 0.9]) for a in (6, 22, 5.5)]
    np.testing.assert_allclose(found, np.tile(wanted, (len(every.NEW), 1, 1)), rtol=1e-9)


def test_rates_of_a_tree_of_one_leaf_have_a_gamma_law():
    counts = np.arange(30) % 4
    leaf = PoissonGamma(1.5, 2.0, exposure=3.0)
    model = bdtppl.ExactTreeRegressor(max_depth=0, leaf=leaf).fit(every.X, counts)
    law = gamma(1.5 + counts.sum(), scale=3.0 / (2.0 + 3.0 * 30))
    found = model.predict_interval(every.NEW[:1], 0.5, kind="mean")
    np.testing.assert_allclose(found[0], law.ppf([0.25, 0.75]), rtol=1e-9)


def test_intervals_of_mixtures_hold_their_level():
    rng = np.random.default_rng(0)
    chosen = (rng.random(DRAWS) < SHARES[1]).astype(int)
    prior = NormalInverseGamma(1.0, 0.5, 2.0, 3.0, centre=0.0)
    statistics = np.array([[4.0, 8.0, 20.0], [9.0, -9.0, 12.0]])
    count, first, second = statistics.T
    first, second = first - count, second - 2 * first + count  # about the prior mean
    pseudo_count, shape = 0.5 + count, 2 + count / 2
    scale = 3 + (second - first**2 / pseudo_count) / 2
    variance = 1 / rng.gamma(shape[chosen], 1 / scale[chosen])
    centre = (1 + first / pseudo_count)[chosen]
    drawn = rng.normal(centre, np.sqrt(variance / pseudo_count[chosen]))
    ends = mixture(prior, statistics).mean_quantiles([0.1, 0.9])[0]
    np.testing.assert_allclose([(drawn < end).mean() for end in ends], [0.1, 0.9], atol=REACH / 2)
    # The twin: a new target is less certain than the mean.
    wider = mixture(prior, statistics).quantiles([0.1, 0.9])[0]
    assert (drawn < wider[0]).mean() < 0.1 - REACH


def test_intervals_of_mixed_classes_hold_their_level():
    rng = np.random.default_rng(1)
    statistics = np.array([[4.0, 0.0, 3.0], [0.0, 12.0, 1.0]])
    chosen = rng.random(DRAWS) < SHARES[1]
    of_each = [rng.dirichlet(each + 0.5, DRAWS) for each in statistics]
    drawn = np.where(chosen[:, None], of_each[1], of_each[0])
    found = mixture(DirichletCategorical.symmetric(3, 0.5), statistics).mean_quantiles([0.2, 0.7])
    below = (drawn[..., None] < found).mean(axis=0)
    np.testing.assert_allclose(below, np.tile([0.2, 0.7], (3, 1)), atol=REACH / 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", every.FAST)
def test_hard_trees_narrow_with_the_level(name):
    model = every.fitted(name)
    if name.endswith("Classifier"):
        wide, narrow = (model.predict_proba_interval(every.NEW, level) for level in (0.9, 0.3))
        assert wide.shape == (7, 2, 2)
        assert ((wide > 0) & (wide < 1)).all()
        np.testing.assert_allclose(wide[:, 0], 1 - wide[:, 1, ::-1], atol=1e-9)  # of two classes
    else:
        wide, narrow = (model.predict_interval(every.NEW, level, "mean") for level in (0.9, 0.3))
        target = model.predict_interval(every.NEW, 0.9)
        assert (np.ptp(wide, axis=-1) < np.ptp(target, axis=-1)).all()
    assert ((wide[..., 0] < narrow[..., 0]) & (narrow[..., 1] < wide[..., 1])).all()


def test_boxes_answer_what_the_chart_answers():
    settings = {"bins": 4, "max_depth": 2, "prior": bdtppl.models.priors.DepthDecay(rules="cuts")}
    answers = [
        bdtppl.ExactTreeClassifier(method=method, **settings)
        .fit(every.X, every.LABELS)
        .predict_proba_interval(every.NEW)
        for method in ("chart", "boxes")
    ]
    np.testing.assert_allclose(*answers, rtol=1e-6)


def test_soft_trees_take_quantiles_of_their_draws():
    model = bdtppl.load(Path(__file__).parent / "data" / "soft-values", trusted=True)
    rows = model.posterior_.matrix[:4]
    drawn = model.predict_draws(rows).reshape(-1, 4)
    found = model.predict_interval(rows, 0.5, kind="mean")
    np.testing.assert_allclose(found.T, np.quantile(drawn, [0.25, 0.75], axis=0))
    probability = np.random.default_rng(0).dirichlet([1, 2, 3], (50, 4))
    found = ClassMixture(probability).mean_quantiles([0.1, 0.9])
    np.testing.assert_allclose(found, np.quantile(probability, [0.1, 0.9], axis=0).T.swapaxes(0, 1))


def test_what_has_no_such_interval_says_what_has():
    soft = bdtppl.RJHMCTreeClassifier()
    soft.posterior_ = SimpleNamespace(trees=SimpleNamespace(leaves={}))  # integrated out
    soft.model_ = SimpleNamespace(likelihood="compound")
    with pytest.raises(ValueError, match="likelihood='mixture' with votes='probability'; got"):
        soft.predict_proba_interval(every.NEW)
    model = every.fitted("GreedyModalTreeRegressor")
    with pytest.raises(ValueError, match="kind must be 'target' or 'mean'; got 'median'"):
        model.predict_interval(every.NEW, kind="median")
    with pytest.raises(ValueError, match=r"level must be in \(0, 1\); got 1"):
        every.fitted("ExactTreeClassifier").predict_proba_interval(every.NEW, 1)
