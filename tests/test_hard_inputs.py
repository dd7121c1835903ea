"""HMC-DF: inputs of splits from their exact conditional laws, between moves of NUTS."""

import itertools

import jax
import numpy as np
import pytest
import soft_problems as sp
from scipy.special import logsumexp
from scipy.stats import chisquare
from soft_chains import KEY, MODEL, check_moments, parameters, sampled

from bdtppl.inference.nuts.kernel import new_chains
from bdtppl.inference.nuts.sample import NUTS
from bdtppl.inference.soft.density import SoftDensity
from bdtppl.models.pytrees import pytree_dataclass
from bdtppl.models.soft.topology import Topology

SHAPE = Topology("100")


def expected():
    """Posterior moments over both inputs; of the input too."""
    each = [sp.quadrature(SHAPE.code, (j,)) for j in range(2)]
    log_evidence = np.array([found.log_evidence for found in each])
    weight = np.exp(log_evidence - logsumexp(log_evidence))
    mean, sd = {}, {}
    for name in each[0].mean:
        first = [found.mean[name] for found in each]
        second = [found.sd[name] ** 2 + found.mean[name] ** 2 for found in each]
        mean[name] = np.tensordot(weight, first, 1)
        sd[name] = np.sqrt(np.tensordot(weight, second, 1) - mean[name] ** 2)
    mean["input"], sd["input"] = weight[1], np.sqrt(weight[0] * weight[1])
    return sp.Quadrature(0.0, mean, sd)


def check_draws(density):
    _, draws = sampled(density, SHAPE, draws=800)
    assert draws.inputs.shape == (8, 800, 1)
    values = parameters(density, draws) | {"input": draws.inputs[..., 0].astype(float)}
    check_moments(values, expected())


@pytest.mark.slow
def test_one_split_has_the_moments_of_quadrature():
    weight = expected().mean["input"]
    assert 0.05 < weight < 0.95  # there is something to find out
    check_draws(SoftDensity(MODEL, sp.X, sp.Y, 1, hard_inputs=True))


@pytree_dataclass
class Partial(SoftDensity):
    """Prefers the second input, in which the prior is uniform."""

    def log_density(self, position, paths, sharpness, power=1.0, inputs=None):
        found = super().log_density(position, paths, sharpness, power, inputs)
        return found + 0.7 * inputs.sum()


@pytest.mark.slow
def test_another_law_of_inputs_is_noticed():
    with pytest.raises(AssertionError, match="standard errors"):
        check_draws(Partial(MODEL, sp.X, sp.Y, 1, hard_inputs=True))


def check_pairs(sampled):
    """Drawn in turn from an exact pair, pairs of inputs keep their law; one false alarm in 10^4."""
    density = SoftDensity(MODEL, sp.X, sp.Y, 2, hard_inputs=True)
    shape = Topology("10100")
    pairs = list(itertools.product(range(2), repeat=2))
    with jax.enable_x64(True):
        values, _ = density.draw_prior(np.random.default_rng(0), 1)
        position = np.asarray(density.position({name: v[0] for name, v in values.items()}))
        log_density = jax.jit(density.log_density)
        values = [log_density(position, shape.paths, 0.15, 1.0, np.array(p)) for p in pairs]
        law = np.exp(values - logsumexp(values))
        number = np.random.default_rng(0).choice(4, 20_000, p=law)
    # Steps of no length leave the position where it is.
    sampler = NUTS(warmup=1, h_init=0.15, h_final=0.15, max_doublings=1)
    chains = new_chains(np.broadcast_to(position, (20_000, density.size)), np.array(pairs)[number])
    still = chains.averaging._replace(log_step_size_avg=np.full(20_000, -np.inf))
    chains = chains._replace(averaging=still, num_warm=np.ones(20_000, np.int32))
    _, draws = sampler.draw(KEY, sampled, shape.paths, chains, 1)
    drawn = draws.inputs[:, 0]
    np.testing.assert_array_equal(draws.position[:, 0], np.float32(chains.position))
    counts = np.bincount(drawn @ [2, 1], minlength=4)
    assert chisquare(counts, 20_000 * law).pvalue > 1e-4, "law of inputs"


@pytest.mark.slow
def test_conditional_laws_by_enumeration():
    check_pairs(SoftDensity(MODEL, sp.X, sp.Y, 2, hard_inputs=True))
    with pytest.raises(AssertionError, match="law of inputs"):
        check_pairs(Partial(MODEL, sp.X, sp.Y, 2, hard_inputs=True))
