"""Three estimators of the evidence of soft trees against quadrature."""

from functools import partial

import jax
import numpy as np
import pytest
import soft_quadrature
from bridge_sampling import bridge_evidence
from jax.tree_util import Partial

from bdtppl.inference.evidence.estimates import summarise
from bdtppl.inference.evidence.importance import sample_layer
from bdtppl.inference.evidence.tempered import TemperedPath, tempered_evidence
from bdtppl.inference.nuts.sample import NUTS
from bdtppl.inference.soft.density import SoftDensity
from bdtppl.models.soft.topology import Topology
from bdtppl.models.soft.tree import SoftRegression

RNG = np.random.default_rng(5)
X = np.linspace(0, 1, 15)
Y = 1.5 * (X > 0.6) - 0.5 * (X < 0.2) + RNG.normal(0, 0.4, 15)
MODEL = SoftRegression()
SHARPNESS = 0.1


def draw_positions(density, rng, number):
    return jax.vmap(density.position)(density.draw_prior(rng, number)[0])


def estimates(code):
    """Estimates by importance sampling, bridge sampling and tempered SMC."""
    topology = Topology(code)
    density = SoftDensity(MODEL, X[:, None], Y, topology.num_splits)
    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(0), 6)
        sampler = NUTS(warmup=500, h_init=0.3, h_final=SHARPNESS)
        chains = sampler.start(keys[0], density, topology.paths, 8)
        chains, _ = sampler.warm_up(keys[1], density, topology.paths, chains)
        _, draws = sampler.draw(keys[2], density, topology.paths, chains, 200)
        given = {"paths": topology.paths, "sharpness": SHARPNESS}
        log_density = Partial(SoftDensity.log_density, density, **given)
        path = TemperedPath(Partial(log_density, power=0.0), log_density)
        layer = sample_layer(keys[3], log_density, draws.position)
        return [
            summarise(layer.log_weight),
            bridge_evidence(keys[4], log_density, draws.position),
            tempered_evidence(keys[5], path, partial(draw_positions, density))[0],
        ]


def check(found, truth):
    """Within 4.5 standard errors: a false alarm has 2e-5 for three, were they normal."""
    for each in found:
        assert abs(each.log_evidence - truth) < 4.5 * each.standard_error < 0.5


@pytest.mark.slow
@pytest.mark.parametrize("code", ["100", "11000"])
def test_estimates_agree_with_quadrature(code):
    found = estimates(code)
    assert [each.method for each in found] == ["lais", "bridge", "smc"]
    check(found, soft_quadrature.log_evidence(code, MODEL, X, Y, SHARPNESS))
    wide = SoftRegression(mean_scale=2.0)
    wrong = soft_quadrature.log_evidence(code, wide, X, Y, SHARPNESS)
    with pytest.raises(AssertionError):
        check(found, wrong)
