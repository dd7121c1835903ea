"""The density over free coordinates against the model's own, with Jacobians by differentiation."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.distributions import biject_to, constraints
from numpyro.infer.util import log_density
from scipy import stats
from tiers import slow_but

from bdtppl.inference.soft.density import SoftDensity
from bdtppl.models.soft.topology import Topology, topologies
from bdtppl.models.soft.tree import SoftClassification, SoftRegression

RNG = np.random.default_rng(0)
X, TARGETS, CLASSES = RNG.random((9, 3)), RNG.normal(size=9), RNG.integers(0, 2, 9)
PATHS = Topology("11000").paths
SUPPORTS = {"direction": "simplex", "threshold": "unit_interval", "noise": "positive"}


def log_jacobian(transform, z):
    """Log volume ratio of one site by its derivatives; of a simplex without its last entry."""

    def values(z):
        found = transform(z)
        return found[..., :-1] if found.shape != z.shape else found

    matrix = jax.jacobian(values)(z).reshape(z.size, z.size)
    return jnp.linalg.slogdet(matrix)[1]


def check_density(density, model, y, sharpness=0.2, power=0.7):
    with jax.enable_x64(True), jax.numpy_rank_promotion("allow"):
        for shape in topologies(density.num_splits):
            position = np.random.default_rng(1).normal(size=density.size)
            values = density.parameters(position)
            given = shape.paths, X, y, sharpness
            expected = log_density(model, given, {"power": power}, values)[0]
            for name, value in values.items():
                transform = biject_to(getattr(constraints, SUPPORTS.get(name, "real")))
                expected += log_jacobian(transform, transform.inv(value))
            found = density.log_density(position, shape.paths, sharpness, power)
            assert found == pytest.approx(float(expected))


@pytest.mark.parametrize(
    "num_splits", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))]
)
def test_density_of_regression(num_splits):
    with jax.enable_x64(True):
        model = SoftRegression(mean_scale=2.0)
        check_density(SoftDensity(model, X, TARGETS, num_splits), model, TARGETS)


def test_density_of_classification_and_a_lost_jacobian():
    with jax.enable_x64(True):
        model = SoftClassification()
        density = SoftDensity(model, X, CLASSES, 2)
        check_density(density, model, CLASSES)

        class Lost(SoftDensity):
            def log_density(self, position, *arguments):
                z = self.coordinates(position)["threshold"]
                lost = log_jacobian(biject_to(constraints.unit_interval), z)
                return super().log_density(position, *arguments) - lost

        twin = Lost(model, X, CLASSES, 2)
        with pytest.raises(AssertionError):
            check_density(twin, model, CLASSES)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [0.05, 1.0])
def test_sparse_priors_are_proper(shape):
    """A direction's, with two inputs, and a threshold's: their coordinates are logits of Beta."""
    model = SoftClassification(input_concentration=shape, threshold_shapes=(shape, 2 * shape))
    density = SoftDensity(model, X[:, :2], np.full(9, -1), 1)  # no row has a target
    at = partial(density.log_density, paths=Topology("100").paths, sharpness=0.1)
    for which in range(2):
        logits = np.linspace(-700, 700, 70_001)
        positions = np.zeros((len(logits), 2))
        positions[:, which] = logits
        with jax.enable_x64(True):
            along, at_zero = np.exp(jax.vmap(at)(positions)), float(np.exp(at(np.zeros(2))))
            values = density.parameters(np.zeros(2))
        other = stats.beta(shape, 2 * shape) if which == 0 else stats.beta(shape, shape)
        value = float(values["threshold" if which == 0 else "direction"].ravel()[0])
        of_other = other.pdf(value) * value * (1 - value)  # which stays where it is
        assert np.trapezoid(along, logits) == pytest.approx(of_other, rel=1e-5)
        assert along[35_000] == pytest.approx(at_zero)
        for end, slope in ((-1e4, shape), (1e4, -(2 * shape if which else shape))):
            far = np.zeros(2, np.float32)
            far[which] = end
            assert jax.grad(at)(far)[which] == pytest.approx(slope, rel=1e-5)


@pytest.mark.slow
def test_each_input_may_have_a_concentration_of_its_own():
    """The prior of directions against SciPy's; a false alarm of its draws is one in 10^4."""
    shapes = np.array([0.5, 1.0, 3.0])
    model = SoftRegression(input_concentration=shapes)
    density = SoftDensity(model, X, np.full(9, np.nan), 1)
    transform = biject_to(constraints.simplex)

    def log_prior(z):
        """The density of a direction, all else being fixed."""
        position = density.position(at | {"direction": transform(z)[None]})
        whole = density.log_density(position, Topology("100").paths, 0.1)
        return float(whole - log_jacobian(transform, z)), np.asarray(transform(z))

    with jax.enable_x64(True):
        at = density.parameters(np.zeros(density.size))
        (one, first), (other, second) = map(log_prior, RNG.normal(size=(2, 2)))
    law = stats.dirichlet(shapes)
    assert one - other == pytest.approx(law.logpdf(first) - law.logpdf(second))
    drawn = model.draw_prior(np.random.default_rng(0), 2000, 1, 3)["direction"][:, 0]

    def p_values(shapes):
        laws = [stats.beta(shape, shapes.sum() - shape) for shape in shapes]
        return [
            stats.kstest(*each).pvalue for each in zip(drawn.T, [a.cdf for a in laws], strict=True)
        ]

    assert min(p_values(shapes)) > 1e-4 / 3
    assert min(p_values(shapes[::-1])) < 1e-4 / 3  # the twin


def test_topologies_of_a_size_share_their_code():
    density = SoftDensity(SoftRegression(), X, TARGETS, 3)
    function = jax.jit(density.log_density)
    position = jnp.linspace(-1, 1, density.size)
    values = [function(position, s.paths, h) for s in topologies(3) for h in (0.1, 0.3)]
    assert function._cache_size() == 1
    assert len(np.unique(values)) > 5
    prior = function(position, Topology("1010100").paths, 0.1, 0.0)
    assert prior == function(position, Topology("1110000").paths, 0.3, 0.0)


@pytest.mark.slow
def test_priors_and_rows_are_data_too():
    function = jax.jit(lambda density, position: density.log_density(position, PATHS, 0.2))
    density = SoftDensity(SoftClassification(concentration=(1.0, 2.0)), X, CLASSES, 2)
    other = SoftDensity(SoftClassification(concentration=(3.0, 1.0)), 1 - X, 1 - CLASSES, 2)
    position = np.linspace(-1, 1, density.size)
    values = [function(each, position) for each in (density, other)]
    assert function._cache_size() == 1
    for each, value in zip((density, other), values, strict=True):
        assert value == pytest.approx(float(each.log_density(position, PATHS, 0.2)), rel=1e-5)


def test_hard_inputs_have_a_uniform_prior():
    with jax.enable_x64(True):
        model = SoftRegression(mean_scale=2.0)
        density = SoftDensity(model, X, TARGETS, 2, hard_inputs=True)
        assert density.size == SoftDensity(model, X, TARGETS, 2).size - 2 * (X.shape[1] - 1)
        position, inputs = np.linspace(-1, 1, density.size), np.array([2, 0])
        values = density.parameters(position)
        given = PATHS, X, TARGETS, 0.2
        with jax.numpy_rank_promotion("allow"):
            expected = log_density(model, given, {"inputs": inputs}, values)[0]
            for name in ("threshold", "noise"):
                transform = biject_to(getattr(constraints, SUPPORTS[name]))
                expected += log_jacobian(transform, transform.inv(values[name]))
        found = density.log_density(position, PATHS, 0.2, inputs=inputs)
        assert found == pytest.approx(float(expected) - 2 * np.log(3))


GRADIENTS = {
    "regression": (SoftRegression(), TARGETS, False),
    "noise by leaf": (SoftRegression(noise_on="sd", by_leaf=True), TARGETS, True),
    "hard inputs": (SoftClassification(), CLASSES, True),
    "mixture": (SoftClassification(likelihood="mixture"), CLASSES, False),
}


def check_filled_up(density, whole):
    position = np.random.default_rng(0).normal(size=density.size)
    inputs = np.array([2, 0]) if density.hard_inputs else None
    found, expected = (
        jax.value_and_grad(lambda z, d=d: d.log_density(z, PATHS, 0.2, 0.7, inputs))(position)
        for d in (density, whole)
    )
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-10), found, expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but(["noise by leaf"], GRADIENTS))
def test_rows_without_a_target_say_nothing(name):
    model, y, hard = GRADIENTS[name]
    with jax.enable_x64(True):
        given = model, np.tile(X, (4, 1))[:33], np.tile(y, 4)[:33], 2, hard
        filled = SoftDensity.filled_up(*given)
        assert len(filled.x) == len(filled.y) > 33
        check_filled_up(filled, SoftDensity(*given))
        seen = replace(filled, y=jnp.nan_to_num(filled.y).clip(0))
        with pytest.raises(AssertionError):
            check_filled_up(seen, SoftDensity(*given))


@pytest.mark.parametrize(
    ("model", "y", "unknown"),
    [(SoftRegression(), np.arange(33), np.nan), (SoftClassification(), np.ones(33, np.uint8), -1)],
)
def test_targets_of_any_type_are_filled_up(model, y, unknown):
    filled = SoftDensity.filled_up(model, np.zeros((33, 2)), y, 1)
    np.testing.assert_array_equal(filled.y[:33], y)
    np.testing.assert_array_equal(filled.y[33:], unknown)


@pytest.mark.parametrize("name", slow_but(["regression"], GRADIENTS))
def test_gradients(name):
    """Against central differences."""
    model, y, hard = GRADIENTS[name]
    with jax.enable_x64(True):
        density = SoftDensity(model, X, y, 2, hard)
        position = np.random.default_rng(0).normal(size=density.size)
        inputs = np.array([2, 0]) if hard else None
        function = jax.jit(lambda z: density.log_density(z, PATHS, 0.2, 0.7, inputs))
        gradient = jax.jit(jax.grad(function))(position)
        steps = 1e-6 * np.eye(len(position))
        expected = [(function(position + s) - function(position - s)) / 2e-6 for s in steps]
        np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-6)


def test_draws_of_the_prior():
    """Each parameter has its prior's law; of all together one false alarm in 10^4."""
    model = SoftRegression(2.0, (2.0, 3.0), 0.5, 2.0, 3.0, 1.5)
    density = SoftDensity(model, X, TARGETS, 2)
    values, _ = density.draw_prior(np.random.default_rng(0), 2000)
    with jax.enable_x64(True):
        there = jax.jit(jax.vmap(lambda each: density.parameters(density.position(each))))(values)
    for name, value in values.items():
        np.testing.assert_allclose(there[name], value, rtol=1e-9)
    laws = {"threshold": stats.beta(2, 3), "mean": stats.norm(0.5, 2)}
    laws |= {"noise": stats.invgamma(3, scale=1.5), "direction": stats.beta(2, 4)}
    for name, law in laws.items():
        for column in np.asarray(values[name]).reshape(2000, -1).T:
            assert stats.kstest(column, law.cdf).pvalue > 1e-5
    np.testing.assert_allclose(values["direction"].sum(-1), 1)
    assert stats.kstest(values["mean"][:, 0], stats.norm(0.5, 2.6).cdf).pvalue < 1e-5
