"""Soft trees against plain recursion, closed formulas and hard trees."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.distributions import biject_to, constraints
from numpyro.infer.util import log_density
from scipy import stats
from soft_problems import leaf_shares
from tiers import slow_but

from bdtppl.models.leaves import DirichletCategorical
from bdtppl.models.soft.topology import Topology, topologies
from bdtppl.models.soft.tree import SoftClassification, SoftRegression, leaf_probabilities

SHAPES = [shape for n in range(4) for shape in topologies(n)]
RNG = np.random.default_rng(0)
X = RNG.random((12, 3))
CLASSES = RNG.integers(0, 3, 12)
TARGETS = RNG.normal(size=12)


@pytest.fixture(autouse=True)
def float64():
    # NumPyro's own code broadcasts.
    with jax.enable_x64(True), jax.numpy_rank_promotion("allow"):
        yield


def splits(shape, seed=0):
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.ones(3), shape.num_splits), rng.random(shape.num_splits)


@pytest.mark.parametrize("shape", slow_but(SHAPES[-1:], SHAPES), ids=lambda shape: shape.code)
def test_probabilities_of_leaves(shape):
    direction, threshold = splits(shape)
    found = leaf_probabilities(shape.paths, X, jnp.asarray(direction), jnp.asarray(threshold), 0.3)
    expected = [leaf_shares(shape.code, (threshold - direction @ x) / 0.3) for x in X]
    np.testing.assert_allclose(found.T, expected, rtol=1e-12)
    np.testing.assert_allclose(found.sum(axis=0), 1, rtol=1e-12)
    inputs = np.arange(shape.num_splits) % 3
    chosen = leaf_probabilities(shape.paths, X, jnp.asarray(inputs), jnp.asarray(threshold), 0.3)
    simplex = leaf_probabilities(shape.paths, X, jnp.eye(3)[inputs], jnp.asarray(threshold), 0.3)
    np.testing.assert_allclose(chosen, simplex, rtol=1e-12)


def test_a_mirror_image_with_its_sides_exchanged_reaches_the_same_leaves():
    shape = Topology("1101000")
    direction, threshold = map(jnp.asarray, splits(shape))
    found = leaf_probabilities(shape.paths, X, direction, threshold, 0.2)
    mirror = shape.mirrored
    # The splits of the mirror image in its own preorder, each looked at from the other side.
    order = np.argsort([_mirror_place(shape, j) for j in range(shape.num_splits)])
    other = leaf_probabilities(mirror.paths, X, -direction[order], -threshold[order], 0.2)
    np.testing.assert_allclose(found, other[::-1], rtol=1e-12)
    # The twin: sides are not exchanged.
    same = leaf_probabilities(mirror.paths, X, direction[order], threshold[order], 0.2)
    assert np.abs(found - same[::-1]).max() > 0.1


def _mirror_place(shape, split):
    """Preorder number of a split once left and right are exchanged everywhere."""
    below = set(shape.num_leaves - 1 - np.flatnonzero(shape.paths[:, split]))
    return [set(np.flatnonzero(column)) for column in shape.mirrored.paths.T].index(below)


def test_sharp_splits_are_hard_ones():
    shape = Topology("11000")
    inputs, threshold = jnp.array([0, 2]), jnp.array([0.6, 0.4])
    found = leaf_probabilities(shape.paths, X, inputs, threshold, 1e-7)
    first, second = X[:, 0] < 0.6, X[:, 2] < 0.4
    np.testing.assert_allclose(found, [first & second, first & ~second, ~first], atol=1e-12)


def density(model, shape, values, y, **options):
    given = shape.paths, X, y, 0.1
    return log_density(model, given, options, values)[0]


def regression_values(shape, by_leaf=False):
    direction, threshold = splits(shape)
    rng = np.random.default_rng(1)
    noise = rng.uniform(0.5, 1, shape.num_leaves) if by_leaf else 0.7
    return {
        "direction": direction,
        "threshold": threshold,
        "mean": rng.normal(size=shape.num_leaves),
        "noise": noise,
    }


@pytest.mark.parametrize(
    "options",
    slow_but(
        [{}, {"by_leaf": True}],
        [{}, {"noise_on": "sd"}, {"by_leaf": True}, {"degrees_of_freedom": 4.0}],
    ),
    ids=["variance", "sd", "by leaf", "student"],
)
def test_regression_is_equation_9_with_its_priors(options):
    model = SoftRegression(2.0, (2.0, 3.0), 0.5, 2.0, 3.0, 1.5, **options)
    shape = Topology("10100")
    values = regression_values(shape, model.by_leaf)
    reached = np.array(
        [leaf_shares(shape.code, (values["threshold"] - values["direction"] @ x) / 0.1) for x in X]
    )
    noise = np.broadcast_to(values["noise"], 3)
    variance = reached @ (noise**2 if model.noise_on == "sd" else noise)
    law = stats.norm if model.degrees_of_freedom is None else stats.t(4.0)
    located = reached @ values["mean"]
    likelihood = law.logpdf((TARGETS - located) / np.sqrt(variance)) - np.log(variance) / 2
    noises = np.atleast_1d(values["noise"])
    expected = (
        sum(stats.dirichlet.logpdf(row, 2 * np.ones(3)) for row in values["direction"])
        + stats.beta(2, 3).logpdf(values["threshold"]).sum()
        + stats.norm(0.5, 2).logpdf(values["mean"]).sum()
        + stats.invgamma(3, scale=1.5).logpdf(noises).sum()
    )
    assert density(model, shape, values, TARGETS) == pytest.approx(expected + likelihood.sum())
    half = density(model, shape, values, TARGETS, power=0.5)
    assert half == pytest.approx(expected + likelihood.sum() / 2)


class WithoutNormaliser(SoftClassification):
    """Leaves out Gamma(A) / prod Gamma(alpha), as the authors' program does."""

    def log_compound(self, reached, y, weights=1.0):
        nothing = super().log_compound(jnp.zeros_like(reached), y, weights)
        alpha = jnp.asarray(self.concentration)
        constant = jax.scipy.special.gammaln(alpha.sum()) - jax.scipy.special.gammaln(alpha).sum()
        return super().log_compound(reached, y, weights) - nothing - len(reached) * constant


@pytest.mark.parametrize("likelihood", ["compound", "mixture"])
def test_sharp_classification_is_the_hard_trees(likelihood):
    model = SoftClassification(concentration=(0.5, 1.0, 2.0), likelihood=likelihood)
    shape, inputs = Topology("100"), np.array([1])
    values = {"threshold": np.array([0.5])}
    if likelihood == "mixture":
        values["classes"] = np.random.default_rng(2).dirichlet(np.ones(3), 2)
    given = shape.paths, X, CLASSES, 1e-7
    found = log_density(model, given, {"inputs": inputs}, values)[0]
    sides = [X[:, 1] < 0.5, X[:, 1] >= 0.5]
    leaf = DirichletCategorical(np.array([0.5, 1.0, 2.0]))
    if likelihood == "compound":
        counts = np.array([np.bincount(CLASSES[side], minlength=3) for side in sides], float)
        assert found == pytest.approx(float(leaf.log_marginal(counts).sum()))
        model = WithoutNormaliser(concentration=(0.5, 1.0, 2.0))
        twin = log_density(model, given, {"inputs": inputs}, values)[0]
        assert twin != pytest.approx(float(leaf.log_marginal(counts).sum()), abs=0.1)
        return
    of_leaf = np.where(sides[0], 0, 1)
    expected = np.log(values["classes"][of_leaf, CLASSES]).sum()
    expected += sum(stats.dirichlet([0.5, 1, 2]).logpdf(row) for row in values["classes"])
    assert found == pytest.approx(expected)


def test_only_the_mixture_is_a_law_of_the_labels():
    """Sum of the likelihood over all labels of three rows."""
    shape, (direction, threshold) = Topology("100"), splits(Topology("100"))
    x = X[:3]
    reached = leaf_probabilities(
        shape.paths, x, jnp.asarray(direction), jnp.asarray(threshold), 0.3
    )
    every = [np.array(labels) for labels in itertools.product(range(2), repeat=3)]
    model = SoftClassification()
    compound = sum(np.exp(model.log_compound(reached, labels)) for labels in every)
    theta = np.array([[0.2, 0.8], [0.7, 0.3]])
    mixture = dist.Categorical(probs=reached.T @ theta)
    assert sum(np.exp(mixture.log_prob(labels).sum()) for labels in every) == pytest.approx(1)
    assert compound != pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize(
    ("model", "y"),
    [(SoftRegression(), TARGETS), (SoftClassification(concentration=(1.0,) * 3), CLASSES)],
    ids=["regression", "classification"],
)
def test_gradients(model, y):
    """Against central differences, over coordinates that know no bounds."""
    shape = Topology("1100100")
    values = jax.tree.map(jnp.asarray, regression_values(shape))
    if isinstance(model, SoftClassification):
        values = {name: values[name] for name in ("direction", "threshold")}
    supports = {"direction": "simplex", "threshold": "unit_interval", "noise": "positive"}
    to = {name: biject_to(getattr(constraints, supports.get(name, "real"))) for name in values}
    start = {name: to[name].inv(value) for name, value in values.items()}
    flat, unflat = jax.flatten_util.ravel_pytree(start)

    @jax.jit
    def function(z):
        return density(model, shape, {n: to[n](each) for n, each in unflat(z).items()}, y)

    gradient = jax.grad(function)(flat)
    steps = 1e-6 * np.eye(len(flat))
    expected = [(function(flat + step) - function(flat - step)) / 2e-6 for step in steps]
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SoftRegression(mean_scale=0.0), "mean_scale must be positive"),
        (lambda: SoftRegression(noise_on="both"), "noise_on must be"),
        (lambda: SoftRegression(threshold_shapes=(1.0,)), "threshold_shapes must be two"),
        (lambda: SoftRegression(degrees_of_freedom=-1.0), "degrees_of_freedom must be"),
        (lambda: SoftClassification(concentration=(1.0,)), "two classes or more"),
        (lambda: SoftClassification(concentration=(1.0, 0.0)), "concentration must be positive"),
        (lambda: SoftClassification(likelihood="hard"), "likelihood must be"),
    ],
)
def test_bad_input_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_priors_scale_with_the_targets():
    one, other = SoftRegression.scaled_to(TARGETS), SoftRegression.scaled_to(10 * TARGETS + 3)
    assert other.mean_loc == pytest.approx(10 * one.mean_loc + 3)
    assert other.mean_scale == pytest.approx(10 * one.mean_scale)
    assert other.noise_scale == pytest.approx(100 * one.noise_scale)
    assert SoftRegression.scaled_to(np.zeros(3)).mean_scale == 1.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "kinds"),
    [
        (SoftRegression(), np.floating),
        (SoftClassification(concentration=(1.0, 1.0), likelihood="mixture"), np.integer),
    ],
)
def test_targets_are_drawn_where_none_are_given(model, kinds):
    paths, x = Topology("100").paths, np.linspace(0, 1, 7)[:, None]
    with jax.numpy_rank_promotion("allow"):
        trace = handlers.trace(handlers.seed(model, 0)).get_trace(paths, x, None, 0.1)
    assert trace["y"]["value"].shape == (7,)
    assert np.issubdtype(trace["y"]["value"].dtype, kinds)


def test_the_compound_draws_no_targets():
    paths, x = Topology("100").paths, np.linspace(0, 1, 7)[:, None]
    with pytest.raises(ValueError, match="The compound likelihood is no distribution"):
        handlers.seed(SoftClassification(), 0)(paths, x, None, 0.1)
