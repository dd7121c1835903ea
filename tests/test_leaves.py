"""Leaf families: additive statistics, marginals against direct formulas, predictives, gradients.

The statistical test has a false-alarm rate of 1e-4 and a fixed seed. Checks are functions of a leaf
family, and each has a mutation twin: a family broken on purpose must fail.
"""

import math
from collections import Counter
from dataclasses import replace

import exact_problems as ep
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.special import gammaln

from bdtppl import GreedyModalTreeClassifier
from bdtppl.models.hard import leaf_scores
from bdtppl.models.leaf_kernels import LeafKernel, has_kernel, log_gamma_ratio
from bdtppl.models.leaves import (
    DirichletCategorical,
    Leaf,
    NormalInverseGamma,
    PoissonGamma,
    log_rising_factorial,
)

TIGHT = 1e-10
CLASSES = DirichletCategorical(np.array([0.5, 1.0, 2.0]))
VALUES = NormalInverseGamma(0.2, 0.7, 1.5, 0.9, centre=0.0)
FAMILIES = {
    "classes": CLASSES,
    "values": VALUES,
    "values about a centre": NormalInverseGamma(0.2, 0.7, 1.5, 0.9, centre=1.7),
}
rng = np.random.default_rng(0)
TARGETS = {
    "classes": rng.integers(0, 3, 9),
    "values": rng.normal(size=9),
    "values about a centre": rng.normal(size=9),
}
WEIGHTS = rng.integers(1, 4, 9)


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


def statistics_of(leaf, y, weight=None):
    """Statistics of a leaf that holds all the rows, [s]."""
    weight = np.ones(len(y)) if weight is None else np.asarray(weight)
    return np.asarray(leaf.statistics(np.asarray(y), weight)).sum(axis=0)


# ------------------------------------------------------------------------------------- checks


def check_marginal(leaf, name):
    """Log marginal of repeated targets, by a formula that knows nothing of updating."""
    y = np.repeat(TARGETS[name], WEIGHTS)
    found = leaf.log_marginal(statistics_of(leaf, TARGETS[name], WEIGHTS))
    if name == "classes":
        a, counts = CLASSES.concentration, np.bincount(y, minlength=3)
        expected = gammaln(a.sum()) - gammaln(a.sum() + len(y))
        expected += (gammaln(a + counts) - gammaln(a)).sum()
    else:
        n = len(y)
        shape = VALUES.scale / VALUES.shape * (np.eye(n) + 1 / VALUES.pseudo_count)
        law = stats.multivariate_t(np.full(n, VALUES.mean), shape, 2 * VALUES.shape)
        expected = law.logpdf(y)
    assert abs(float(found) - expected) < TIGHT


def check_chain(leaf, name):
    """The log marginal is the sum of log one-step predictives, in any order of rows."""
    for order in (np.arange(9), np.random.default_rng(1).permutation(9)):
        y = TARGETS[name][order]
        total = 0.0
        for seen in range(9):
            before = jnp.asarray(statistics_of(leaf, y[:seen]))
            total += float(leaf.predictive(before).log_prob(y[seen]))
        assert abs(float(leaf.log_marginal(statistics_of(leaf, y))) - total) < TIGHT


def check_additive(leaf, name):
    """Statistics add over rows, and a weight is a repetition."""
    y = TARGETS[name]
    each = np.asarray(leaf.statistics(y, WEIGHTS))
    assert each.shape[0] == 9
    long = np.asarray(leaf.statistics(np.repeat(y, WEIGHTS), np.ones(WEIGHTS.sum())))
    np.testing.assert_allclose(each.sum(axis=0), long.sum(axis=0), atol=TIGHT)
    np.testing.assert_allclose(statistics_of(leaf, y, 0 * WEIGHTS), 0.0)
    assert float(leaf.log_marginal(0 * each[0])) == pytest.approx(0.0, abs=TIGHT)


def check_predictive(leaf, name):
    """Mean of the predictive, and 20,000 draws from it."""
    found = jnp.asarray(statistics_of(leaf, TARGETS[name], WEIGHTS))
    predictive, mean = leaf.predictive(found), np.asarray(leaf.posterior_mean(found))
    drawn = np.asarray(leaf.sample(ep.key(1), jnp.broadcast_to(found, (20_000, len(found)))))
    if name == "classes":
        np.testing.assert_allclose(np.asarray(predictive.probs), mean, atol=TIGHT)
        p_value = ep.g_test(Counter(drawn.tolist()), dict(enumerate(mean)))
    else:
        assert abs(float(predictive.mean) - float(mean)) < TIGHT
        p_value = stats.kstest(drawn, lambda y: np.asarray(predictive.cdf(y))).pvalue
    assert p_value > ep.FALSE_ALARM


CHECKS = [check_marginal, check_chain, check_additive, check_predictive]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("check", CHECKS)
def test_family(name, check):
    check(FAMILIES[name], name)
    assert isinstance(FAMILIES[name], Leaf)


def test_class_labels_by_hand():
    # Sullivan et al. 2023, Theorem 4.1: three labels of two classes, B(2, 3) / B(1, 1).
    leaf = DirichletCategorical.symmetric(2)
    assert float(jnp.exp(leaf.log_marginal(np.array([1.0, 2.0])))) == pytest.approx(1 / 12)
    assert np.asarray(leaf.posterior_mean(np.array([1.0, 2.0]))) == pytest.approx([0.4, 0.6])
    assert leaf.statistics(np.array([1, 0]), np.array([2, 3])).tolist() == [[0, 2], [3, 0]]


@pytest.mark.parametrize("name", FAMILIES)
def test_statistics_have_batch_axes(name):
    leaf = FAMILIES[name]
    each = leaf.statistics(TARGETS[name], WEIGHTS)
    batch = jnp.stack([each, each + each[::-1]])
    scores = leaf.log_marginal(batch)
    assert scores.shape == (2, 9)
    assert float(scores[1, 3]) == pytest.approx(float(leaf.log_marginal(batch[1, 3])), abs=TIGHT)
    assert leaf.posterior_mean(batch).shape[:2] == (2, 9)
    if name == "classes":  # draws of a Student-t take long to compile
        assert leaf.sample(ep.key(2), batch).shape == (2, 9)
    assert leaf.predictive(batch).batch_shape == (2, 9)


@pytest.mark.parametrize("name", FAMILIES)
def test_gradients_are_finite_and_right(name):
    leaf = FAMILIES[name]
    fixed = [np.zeros_like(statistics_of(leaf, TARGETS[name])), statistics_of(leaf, TARGETS[name])]

    def total(leaf, statistics):
        return leaf.log_marginal(statistics)

    for statistics in fixed:
        gradient, by_statistics = jax.grad(total, argnums=(0, 1))(leaf, jnp.asarray(statistics))
        assert np.isfinite(np.asarray(by_statistics)).all()
        for field in ("concentration", "mean", "pseudo_count", "shape", "scale"):
            if not hasattr(leaf, field):
                continue
            got = np.atleast_1d(np.asarray(getattr(gradient, field)))
            point = np.atleast_1d(np.asarray(getattr(leaf, field), float))
            for entry in range(len(point)):
                step = np.zeros_like(point)
                step[entry] = 1e-5
                values = []
                for moved in (point + step, point - step):
                    moved = moved if field == "concentration" else float(moved[0])
                    values.append(float(total(replace(leaf, **{field: moved}), statistics)))
                assert got[entry] == pytest.approx((values[0] - values[1]) / 2e-5, abs=1e-7)


def test_gradients_of_repeated_targets_are_finite():
    # No spread: the sum of squares is all rounding error.
    leaf = NormalInverseGamma(0.0, 1.0, 2.0, 1.0)
    for value in (0.0, 1e8):
        statistics = jnp.asarray(statistics_of(leaf, np.full(5, value)))
        gradients = jax.grad(lambda leaf, s: leaf.log_marginal(s), argnums=(0, 1))(leaf, statistics)
        assert all(np.isfinite(np.asarray(g)).all() for g in jax.tree.leaves(gradients))


# ----------------------------------------------------------------------------------- the centre


@pytest.mark.parametrize("centre", [-3.0, 0.2, 50.0])
def test_centre_changes_nothing(centre):
    moved = replace(VALUES, centre=centre)
    y = TARGETS["values"]
    one, other = (statistics_of(leaf, y, WEIGHTS) for leaf in (VALUES, moved))
    assert float(VALUES.log_marginal(one)) == pytest.approx(
        float(moved.log_marginal(other)), abs=TIGHT
    )
    assert float(VALUES.posterior_mean(one)) == pytest.approx(
        float(moved.posterior_mean(other)), abs=TIGHT
    )
    assert float(VALUES.predictive(one).log_prob(0.4)) == pytest.approx(
        float(moved.predictive(other).log_prob(0.4)), abs=TIGHT
    )
    with pytest.raises(AssertionError):
        # Statistics about another centre are other statistics.
        np.testing.assert_allclose(
            np.asarray(moved.log_marginal(one)), np.asarray(VALUES.log_marginal(one)), atol=TIGHT
        )


def test_centre_saves_what_cancels():
    y = 1e6 + np.array([0.1, -0.4, 0.3, 0.2])
    far = NormalInverseGamma(1e6, 1.0, 2.0, 0.5, centre=0.0)
    near = replace(far, centre=1e6)
    at_zero = NormalInverseGamma(0.0, 1.0, 2.0, 0.5)
    exact = float(at_zero.log_marginal(statistics_of(at_zero, y - 1e6)))
    assert float(near.log_marginal(statistics_of(near, y))) == pytest.approx(exact, abs=1e-9)
    assert abs(float(far.log_marginal(statistics_of(far, y))) - exact) > 1e-6


def test_defaults_from_targets():
    y, weight = np.array([1.0, 2.0, 6.0]), np.array([2, 1, 1])
    leaf = NormalInverseGamma.from_targets(y, weight)
    repeated = np.repeat(y, weight)
    assert leaf.mean == leaf.centre == pytest.approx(repeated.mean())
    assert leaf.scale / (leaf.shape - 1) == pytest.approx(repeated.var())
    assert (leaf.pseudo_count, leaf.shape) == (1.0, 2.0)
    assert NormalInverseGamma.from_targets(np.full(3, 4.0)).scale == 1.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DirichletCategorical(np.array([1.0, 0.0])), "concentration must be positive"),
        (lambda: DirichletCategorical(np.ones((1, 2))), "concentration must be positive"),
        (lambda: NormalInverseGamma(0.0, 0.0), "pseudo_count must be positive"),
        (lambda: NormalInverseGamma(0.0, 1.0, -1.0), "shape must be positive"),
        (lambda: NormalInverseGamma(0.0, scale=0.0), "scale must be positive"),
        (lambda: NormalInverseGamma(math.nan), "mean must be finite"),
    ],
)
def test_bad_parameters_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# ----------------------------------------------------------------------------- mutation twins


class Multinomial(DirichletCategorical):
    """Counts the orders of the labels."""

    def log_marginal(self, statistics):
        orders = gammaln(np.sum(statistics) + 1) - gammaln(np.asarray(statistics) + 1).sum()
        return super().log_marginal(statistics) + orders


class HalfARow(NormalInverseGamma):
    """Adds n instead of n / 2 to the shape."""

    def _posterior(self, statistics):
        count, mean, pseudo_count, shape, scale = super()._posterior(statistics)
        return count, mean, pseudo_count, shape + count / 2, scale


class NormalPredictive(NormalInverseGamma):
    """Forgets that the leaf's mean is uncertain."""

    def predictive(self, statistics):
        law = super().predictive(statistics)
        _, _, pseudo_count, _, _ = self._posterior(statistics)
        return type(law)(law.df, law.loc, law.scale * jnp.sqrt(pseudo_count / (pseudo_count + 1)))


class SquaresOfWeights(NormalInverseGamma):
    """Squares the weights along with the targets."""

    def statistics(self, y, weight):
        found = super().statistics(y, weight)
        return found * np.stack([np.ones(len(weight))] * 2 + [weight], axis=-1)


class SlowSampler(NormalInverseGamma):
    """Draws a little less spread than it says."""

    def sample(self, rng_key, statistics):
        mean = self.posterior_mean(statistics)
        return mean + 0.95 * (super().sample(rng_key, statistics) - mean)


@pytest.mark.parametrize(
    ("mutant", "check"),
    [
        (Multinomial, check_marginal),
        (Multinomial, check_chain),
        (HalfARow, check_marginal),
        (NormalPredictive, check_chain),
        (SquaresOfWeights, check_additive),
        (SquaresOfWeights, check_marginal),
        (SlowSampler, check_predictive),
    ],
)
def test_a_broken_family_is_noticed(mutant, check):
    name = "classes" if issubclass(mutant, DirichletCategorical) else "values"
    whole = FAMILIES[name]
    parameters = {f: getattr(whole, f) for f in whole.__dataclass_fields__ if f in vars(whole)}
    check(whole, name)
    with pytest.raises(AssertionError):
        check(mutant(**parameters), name)


def test_text_is_no_number_and_a_list_is_one_for_each_class():
    with pytest.raises(TypeError, match=r"concentration must be positive.*NumPy array"):
        DirichletCategorical("x")
    with pytest.raises(TypeError, match=r"scale must be positive.*NumPy array"):
        NormalInverseGamma(0.0, scale=[1.0])
    assert DirichletCategorical([1, 2]).concentration.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("start", [0.3, 12.0, 99.9, 100.1, 1e4, 1e8, 1e12, 1e15])
@pytest.mark.parametrize("steps", [0, 1, 7, 1000])
def test_a_rising_factorial_keeps_its_digits(start, steps):
    exact = math.fsum(math.log(start) + math.log1p(k / start) for k in range(steps))
    found = [log_rising_factorial(start, steps), log_gamma_ratio(start, steps)]
    with jax.enable_x64(True):
        found.append(log_rising_factorial(start, jnp.float64(steps), jnp, jax.lax.lgamma))
    np.testing.assert_allclose(found, exact, rtol=2e-12, atol=1e-13)


@pytest.mark.parametrize("concentration", [1e8, 1e10, 1e12])
def test_a_large_concentration_gives_the_marginal_of_even_chances(concentration):
    leaf, counts = DirichletCategorical.symmetric(2, concentration), np.array([3.0, 5.0])
    with jax.enable_x64(True):
        np.testing.assert_allclose(leaf.log_marginal(counts), 8 * np.log(0.5), atol=2e-7)
    table = leaf.log_marginal_table(8)
    np.testing.assert_allclose(table(counts.astype(int)), 8 * np.log(0.5), atol=2e-7)


def test_one_number_is_the_concentration_of_every_class():
    X, y = np.arange(6.0)[:, None], np.repeat(["a", "b", "c"], 2)
    model = GreedyModalTreeClassifier(leaf=DirichletCategorical(0.5)).fit(X, y)
    np.testing.assert_array_equal(model.leaf_.concentration, np.full(3, 0.5))
    with pytest.raises(ValueError, match="symmetric"):
        DirichletCategorical(0.5).statistics(np.array([0, 1]), np.ones(2))


@pytest.mark.parametrize(
    ("leaf", "sets"),
    [
        (DirichletCategorical(np.array([0.7, 120.0])), [[0, 3, 400], [0, 2, 100]]),
        (NormalInverseGamma(0.2, 0.7, 1.5, 0.9, centre=0.5), [[0, 7, 500], [0, 3, 9], [0, 2, 80]]),
        (PoissonGamma(2.0, 0.7, 1.3), [[0, 7, 500], [0, 3, 900], [0, 1.5, 80]]),
    ],
    ids=["classes", "values", "counts"],
)
def test_compiled_scores_are_the_log_marginals_within_their_tables_and_beyond(leaf, sets):
    sets = np.array(sets, float)
    expected = leaf.log_marginal(sets.T)
    for num_rows in (4, 1000, 10**12):
        kernel = LeafKernel.of(leaf, num_rows)
        np.testing.assert_allclose(kernel(list(sets)), expected, rtol=1e-12, atol=1e-12)
        scorer = leaf_scores.leaf_scorer(leaf, max(num_rows, 1000), is_whole=True)
        scores = scorer(list(sets.astype(int)))
        whole = leaf.log_marginal(sets.astype(int).T.astype(float))
        np.testing.assert_allclose(scores, whole, rtol=1e-12, atol=1e-12)
    assert not np.isclose(kernel(list(sets + 1)), expected).any()


def test_a_log_marginal_of_its_own_leaves_an_inherited_score_unused():
    class Doubled(PoissonGamma):
        def log_marginal(self, statistics):
            return 2 * super().log_marginal(statistics)

    class Renamed(PoissonGamma):
        pass

    assert has_kernel(PoissonGamma())
    assert has_kernel(Renamed())
    assert not has_kernel(Doubled())
    assert LeafKernel.of(Doubled(), 3).address == 0
