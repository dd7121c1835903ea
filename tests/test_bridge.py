"""Bridge sampling against skew densities whose integral is known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bridge_sampling import bridge_evidence, log_ratios, solve
from tiers import slow_but

from bdtppl.models.pytrees import as_partial

LOG_EVIDENCE = 0.0


def log_density(z):
    """Logs of two exponential variables."""
    return (z - jnp.exp(z)).sum()


def estimates(reference, scale=1.0, repeats=200):
    """Estimates of repeats; draws are multiplied by a scale."""

    def ratios(key):
        key_draws, key_bridge = jax.random.split(key)
        draws = scale * np.log(jax.random.exponential(key_draws, (4, 100, 2)))
        found = log_ratios(key_bridge, as_partial(log_density), draws, reference=reference)
        return [np.asarray(a, np.float64) for a in found]

    return [solve(*ratios(key)) for key in jax.random.split(jax.random.key(0), repeats)]


def check_bias(found):
    """The mean lies within one standard error of a single estimate: false alarm below 1e-40."""
    errors = np.array([each.log_evidence for each in found]) - LOG_EVIDENCE
    assert abs(errors.mean()) < np.mean([each.standard_error for each in found])


@pytest.mark.parametrize("reference", slow_but(["warped"], ["normal", "warped"]))
def test_bias_is_below_a_standard_error(reference):
    found = estimates(reference)
    check_bias(found)
    scores = [(each.log_evidence - LOG_EVIDENCE) / each.standard_error for each in found]
    # Of 200 repeats 95 % are 190, with a standard deviation of 3.
    assert 0.88 <= np.mean(np.abs(scores) < 1.96) <= 1.0


@pytest.mark.slow
def test_draws_of_another_density_are_found_out():
    with pytest.raises(AssertionError):
        check_bias(estimates("normal", scale=1.3))


def test_bad_arguments():
    draws = np.zeros((2, 20, 2), np.float32)
    with pytest.raises(ValueError, match="reference must be one of"):
        bridge_evidence(jax.random.key(0), log_density, draws, reference="prior")
    with pytest.raises(ValueError, match="draws must be at least 8"):
        bridge_evidence(jax.random.key(0), log_density, draws[:, :7])
