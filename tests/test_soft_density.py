"""The density over free coordinates against the model's own, with Jacobians by differentiation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.distributions import biject_to, constraints
from numpyro.infer.util import log_density

from bdtppl.inference.soft_density import SoftDensity
from bdtppl.models.soft_tree import SoftClassification, SoftRegression
from bdtppl.models.topology import Topology, topologies

RNG = np.random.default_rng(0)
X, TARGETS, CLASSES = RNG.random((9, 3)), RNG.normal(size=9), RNG.integers(0, 2, 9)
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


@pytest.mark.parametrize("num_splits", [0, 1, 2])
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


def test_topologies_of_a_size_share_their_code():
    density = SoftDensity(SoftRegression(), X, TARGETS, 3)
    function = jax.jit(density.log_density)
    position = jnp.linspace(-1, 1, density.size)
    values = [function(position, s.paths, h) for s in topologies(3) for h in (0.1, 0.3)]
    assert function._cache_size() == 1
    assert len(np.unique(values)) > 5
    prior = function(position, Topology("1010100").paths, 0.1, 0.0)
    assert prior == function(position, Topology("1110000").paths, 0.3, 0.0)
