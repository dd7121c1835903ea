"""Layered adaptive importance sampling against densities whose integral is known."""

from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.special import logsumexp
from tiers import slow_but

from bdtppl.inference.evidence.estimates import summarise
from bdtppl.inference.evidence.importance import (
    Denominator,
    Mixture,
    fit_proposals,
    sample_layer,
    thin,
    weigh_proposals,
)
from bdtppl.models.pytrees import as_partial

LOG_EVIDENCE = 1.3
CENTRES = np.array([[-3.0, 0.0], [3.0, 1.0]], np.float32)
SHARES = np.array([0.8, 0.2], np.float32)


def log_density(x):
    """Two normal modes."""
    square = ((x[None] - CENTRES) ** 2).sum(axis=1)
    each = np.log(SHARES) - square / 2 - np.log(2 * np.pi)
    return LOG_EVIDENCE + jax.scipy.special.logsumexp(each)


def log_normal(x):
    """One mode."""
    return LOG_EVIDENCE - (x @ x) / 2 - np.log(2 * np.pi)


def stuck_chains(key, num_draws):
    """Draws of two chains in each mode, whatever the modes weigh."""
    noise = jax.random.normal(key, (4, num_draws, 2))
    return jnp.asarray(CENTRES)[jnp.array([0, 0, 1, 1])][:, None] + noise


def mixed_chains(key, num_draws):
    return jax.random.normal(key, (4, num_draws, 2))


def repeated(
    *,
    density=log_density,
    chains=stuck_chains,
    denominator="mixture",
    pseudo_samples=4,
    repeats=200,
):
    """Log targets and denominators of repeats with draws of their own, [repeats, C, N, M]."""

    mixtures = {
        "basic": lambda proposals, chain: None,
        "spatial": lambda proposals, chain: Mixture.of(proposals.of_chain(chain)),
        "mixture": lambda proposals, chain: Mixture.of(proposals),
    }

    def prepared(key):
        key_draws, key_layer = jax.random.split(key)
        noise = jax.random.normal(key_layer, (4, 15, pseudo_samples, 2))
        proposals = fit_proposals(np.asarray(chains(key_draws, 15)))
        compared = [mixtures[denominator](proposals, chain) for chain in range(4)]
        return noise, *proposals, jax.tree.map(lambda *a: np.stack(a), *compared)

    each = [prepared(key) for key in jax.random.split(jax.random.key(0), repeats)]
    each = jax.tree.map(lambda *a: np.stack(a), *each)

    def one(noise, mean, scale, compared):
        return weigh_proposals(noise, as_partial(density), mean, scale, compared)[1:]

    found = jax.vmap(jax.vmap(one))(*each)
    return tuple(np.asarray(a, np.float64) for a in found)


def check_unbiased(log_target, log_proposal):
    """The mean evidence of repeats lies within 4 standard errors: false alarm 6e-5."""
    ratio = np.exp(log_target - log_proposal - LOG_EVIDENCE).mean(axis=(1, 2, 3))
    assert abs(ratio.mean() - 1) < 4 * ratio.std() / np.sqrt(len(ratio))


def check_errors(log_weight, factor=1.0):
    """The standard error covers: 90 to 98 % of 1,000 repeats; at 95 % a false alarm has 1e-5."""
    found = [summarise(each) for each in log_weight]
    score = [(each.log_evidence - LOG_EVIDENCE) / each.standard_error / factor for each in found]
    assert 0.9 <= np.mean(np.abs(score) < 1.96) <= 0.98


def test_mixture_weights_are_unbiased_though_chains_are_stuck():
    log_target, log_proposal = repeated()
    check_unbiased(log_target, log_proposal)
    with pytest.raises(AssertionError):  # a mean over one proposal fewer in each chain
        check_unbiased(log_target, log_proposal + np.log(15 / 14))


@pytest.mark.slow
@pytest.mark.parametrize("denominator", ["basic", "spatial"])
def test_other_weights_are_unbiased(denominator):
    found = repeated(density=log_normal, chains=mixed_chains, denominator=denominator)
    check_unbiased(*found)


@pytest.mark.slow
def test_standard_errors_cover():
    log_target, log_proposal = repeated(repeats=1000)
    check_errors(log_target - log_proposal)
    with pytest.raises(AssertionError):
        check_errors(log_target - log_proposal, factor=0.6)


@pytest.mark.slow
def test_variance_falls_with_the_number_of_samples():
    # Given the draws pseudo-samples are independent: four times as many have a quarter of the
    # variance. The ratio's relative standard error is at most .1, so a false alarm has 1e-4.
    few, many = (
        np.exp(log_target - log_proposal - LOG_EVIDENCE).mean(axis=(1, 2, 3)).var()
        for log_target, log_proposal in (
            repeated(pseudo_samples=number, repeats=1000) for number in (2, 8)
        )
    )
    assert 2.6 < few / many < 5.9


@pytest.mark.parametrize("denominator", slow_but(["mixture"], get_args(Denominator)))
def test_denominators_are_means_of_normal_densities(denominator):
    with jax.enable_x64(True):
        draws = np.random.default_rng(0).normal(size=(3, 6, 2)) + np.arange(3.0)[:, None, None]
        options = {"pseudo_samples": 2, "denominator": denominator}
        layer = sample_layer(jax.random.key(0), lambda x: -x @ x, draws, **options)
    covariance = np.stack([np.cov(chain, rowvar=False) for chain in draws])
    covariance[:, [0, 1], [1, 0]] *= 6 / 8  # correlations shrink by N / (N + size)

    def log_means(point, chains, places):
        each = [
            stats.multivariate_normal(draws[c, n], covariance[c]).logpdf(point)
            for c in chains
            for n in places
        ]
        return logsumexp(each) - np.log(len(each))

    for c, n, m in np.ndindex(layer.log_weight.shape):
        chains = range(3) if denominator == "mixture" else [c]
        places = [n] if denominator == "basic" else range(6)
        point = np.asarray(layer.position[c, n, m])
        assert layer.log_proposal[c, n, m] == pytest.approx(log_means(point, chains, places))
        assert layer.log_target[c, n, m] == pytest.approx(-point @ point)


_PAIRS = [(0, 0), (0, 1), (1, 1)]


def check_draws(proposals, points):
    """Of 4,000 points, moments within 5 standard errors: five of them, a false alarm has 3e-6."""
    mean, scale = (np.asarray(a, np.float64) for a in proposals)
    within = (scale @ scale.transpose(0, 2, 1)).mean(axis=0)
    flat = mean.reshape(-1, mean.shape[-1])
    expected = [*flat.mean(axis=0), *(within + np.cov(flat.T, ddof=0))[np.triu_indices(2)]]
    centred = points - flat.mean(axis=0)
    found = np.column_stack([points, *(centred[:, i] * centred[:, j] for i, j in _PAIRS)])
    error = found.std(axis=0) / np.sqrt(len(points))
    assert (np.abs(found.mean(axis=0) - expected) < 5 * error).all()


def test_proposals_are_drawn_from_as_their_mixture_has_it():
    draws = np.asarray(stuck_chains(jax.random.key(4), 20)) @ np.array([[1.0, 0.4], [0.0, 0.3]])
    proposals = fit_proposals(draws)
    points = proposals.draw(np.random.default_rng(0), 4_000)
    check_draws(proposals, points)
    with pytest.raises(AssertionError):
        check_draws(proposals._replace(scale=1.2 * proposals.scale), points)
    found = jax.vmap(Mixture.of(proposals).log_density)(jnp.asarray(points[:50]))
    covariance = proposals.scale @ proposals.scale.transpose(0, 2, 1)
    each = [
        stats.multivariate_normal(mean, covariance[chain]).pdf(points[:50])
        for chain in range(len(covariance))
        for mean in np.asarray(proposals.mean[chain])
    ]
    np.testing.assert_allclose(found, np.log(np.mean(each, axis=0)), rtol=1e-4)


def test_covariances_are_never_singular():
    size = 12
    rng = np.random.default_rng(0)
    draws = rng.normal(size=(3, 5, size)).astype(np.float32)  # fewer draws than coordinates
    draws[0] = draws[0, 0]  # a chain that stands still
    draws[:, :, 3] = 2.0  # a coordinate that no chain moves in
    scale = fit_proposals(draws).scale
    assert np.isfinite(scale).all()
    assert (np.diagonal(scale, axis1=1, axis2=2) > 0.01).all()
    np.testing.assert_allclose((scale[:, 3] ** 2).sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(fit_proposals(draws[:1, :1]).scale[0], np.eye(size))


@pytest.mark.slow
def test_fewer_draws_than_coordinates_still_weigh():
    size = 12
    draws = np.random.default_rng(0).normal(size=(4, 8, size)).astype(np.float32)
    draws[0] = draws[0, 0]

    def density(x):
        return -(x @ x) / 2 - size / 2 * np.log(2 * np.pi)

    found = summarise(
        sample_layer(jax.random.key(0), density, draws, pseudo_samples=500).log_weight
    )
    assert abs(found.log_evidence) < 4 * found.standard_error < 1


def test_what_threads_run_calls_no_linear_algebra():
    """JAX's batched routines, called in as many threads as there are cores, may never return."""
    noise, draws, scale = np.zeros((3, 2, 2)), np.zeros((3, 2)), np.eye(2)
    compared = Mixture.of(fit_proposals(np.random.default_rng(0).normal(size=(4, 3, 2))))
    found = weigh_proposals.lower(noise, as_partial(log_normal), draws, scale, compared).as_text()
    assert "lapack" not in found
    assert "lapack" in jax.jit(jnp.linalg.inv).lower(scale[None]).as_text()


def test_a_place_without_density_has_no_weight():
    def density(x):
        return jnp.where(x[0] > 0, log_normal(x), jnp.nan)

    layer = sample_layer(jax.random.key(0), density, mixed_chains(jax.random.key(1), 100))
    found = summarise(layer.log_weight)
    assert abs(found.log_evidence - LOG_EVIDENCE - np.log(0.5)) < 4 * found.standard_error
    kept = thin(jax.random.key(2), layer)
    alive = np.isfinite(layer.log_weight).any(axis=2)
    assert (np.asarray(kept)[alive, 0] > 0).all()


def test_thinned_samples_have_the_same_means():
    layer = sample_layer(jax.random.key(0), log_density, stuck_chains(jax.random.key(1), 200))
    kept = np.asarray(thin(jax.random.key(2), layer))
    weight = np.exp(np.asarray(layer.log_weight, np.float64))
    share = weight.sum(axis=2) / weight.sum()
    mean = (share[..., None] * kept).sum(axis=(0, 1))
    expected = SHARES @ CENTRES
    # The modes' shares decide: the standard error is that of 500 effective draws or more.
    assert np.abs(mean - expected).max() < 4 * 2.4 / np.sqrt(500)
    with pytest.raises(AssertionError):  # draws of the chains, equally weighted
        assert np.abs(np.asarray(layer.proposals.mean).mean(axis=(0, 1)) - expected).max() < 0.43


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"denominator": "all"}, "denominator must be 'basic' or"),
        ({"pseudo_samples": 0}, "pseudo_samples must be an integer"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        sample_layer(jax.random.key(0), log_normal, np.zeros((1, 2, 2)), **options)
