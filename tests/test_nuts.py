"""NUTS against quadrature, with what is compiled counted and stuck chains found."""

from dataclasses import replace

import jax
import numpy as np
import pytest
import soft_problems as sp
from soft_chains import KERNELS, KEY, MODEL, SAMPLER, check_moments, parameters, sampled
from tiers import slow_but

from bdtppl.inference.nuts import lanes
from bdtppl.inference.nuts.kernel import advance
from bdtppl.inference.nuts.sample import NUTS
from bdtppl.inference.soft.density import SoftDensity
from bdtppl.inference.summaries.diagnostics import (
    energy_information,
    log_masses,
    stuck,
)
from bdtppl.models.pytrees import pytree_dataclass
from bdtppl.models.soft.topology import Topology
from bdtppl.models.soft.tree import SoftRegression


@pytest.fixture(scope="module", params=slow_but(["lanes"], KERNELS))
def sampler(request):
    return replace(SAMPLER, kernel=request.param)


@pytest.fixture(scope="module")
def one_split(sampler):
    density = SoftDensity(MODEL, sp.X[:, :1], sp.Y, 1)
    return density, *sampled(density, Topology("100"), sampler=sampler)


@pytest.mark.slow
def test_one_split_has_the_moments_of_quadrature(one_split):
    density, _, draws = one_split
    check_moments(parameters(density, draws), sp.quadrature("100"))
    assert not draws.is_divergent.any()
    assert (energy_information(draws.energy) > 0.3).all()
    # Dual averaging swings wide in the short last window, and its average is on the safe side.
    assert 0.75 < draws.acceptance_rate.mean() < 0.97


@pytree_dataclass
class WithoutJacobian(SoftDensity):
    """Lacks the Jacobian of the noise, whose coordinate is its logarithm."""

    def log_density(self, position, paths, sharpness, power=1.0, inputs=None):
        lost = self.coordinates(position)["noise"]
        return super().log_density(position, paths, sharpness, power, inputs) - lost


@pytest.mark.slow
def test_a_lost_jacobian_is_noticed(sampler):
    density = WithoutJacobian(MODEL, sp.X[:, :1], sp.Y, 1)
    _, draws = sampled(density, Topology("100"), sampler=sampler)
    with pytest.raises(AssertionError, match="standard errors"):
        check_moments(parameters(density, draws), sp.quadrature("100"))


@pytest.mark.slow
def test_draws_recorded_are_those_of_the_density(one_split):
    density, chains, draws = one_split
    with jax.enable_x64(True):
        log_density = jax.jit(density.log_density)
        for chain, draw in [(0, 0), (3, 99), (7, 999)]:
            position = draws.position[chain, draw]
            found = log_density(position, Topology("100").paths, SAMPLER.h_final)
            assert draws.log_density[chain, draw] == pytest.approx(float(found))
    np.testing.assert_array_equal(chains.position, draws.position[:, -1])
    assert np.unique(draws.position[:, :, 0]).size > 0.8 * draws.log_density.size


@pytest.mark.slow
def test_topologies_of_a_size_are_compiled_once_for_all_stages():
    density = SoftDensity(MODEL, sp.X[:, :1], sp.Y, 2)
    sampler = NUTS(warmup=30, h_init=0.3, h_final=sp.SHARPNESS)
    before = advance.marked._cache_size()
    _, first = sampled(density, Topology("11000"), 2, 120, sampler)
    _, other = sampled(density, Topology("10100"), 3, 5, sampler)
    wider = SoftDensity(SoftRegression(), sp.X[:, 1:], 2 * sp.Y, 2)  # other rows, other priors
    sampled(wider, Topology("10100"), 1, 7, NUTS(warmup=150, h_init=1.0, h_final=0.5))
    assert advance.marked._cache_size() == before + 1

    both = np.stack([Topology(code).paths for code in ("11000", "10100")])
    keys = jax.numpy.stack([jax.random.key(0)] * 2)
    chains, _ = sampler.warm_up(keys, density, both, sampler.start(keys, density, both, 2))
    keys = jax.numpy.stack([jax.random.key(1)] * 2)
    _, beside = sampler.draw(keys, density, both, chains, 120)
    assert beside.position.shape == (2, 2, 120, density.size)
    np.testing.assert_array_equal(beside.position[0], first.position)
    np.testing.assert_array_equal(beside.position[1, :, :5], other.position[:2])
    assert advance.marked._cache_size() == before + 1


def test_stages_and_pieces_change_nothing(one_split, sampler):
    density, _, draws = one_split
    paths = Topology("100").paths
    chains = sampler.start(KEY, density, paths, 2)
    for num_steps in (10, 240, None):
        chains, steps = sampler.warm_up(KEY, density, paths, chains, num_steps)
    assert steps.log_density.shape == (2, 250)
    _, some = sampler.draw(jax.random.key(1), density, paths, chains, 130)
    np.testing.assert_array_equal(some.position, draws.position[:2, :130])


@pytest.mark.slow
def test_chains_side_by_side_are_the_same(monkeypatch):
    """But for rounding: sums are taken in an order that depends on how many lanes there are."""
    in_order = jax.jit(advance.__wrapped__, static_argnames="rounds")
    monkeypatch.setattr(lanes, "advance", in_order)
    monkeypatch.setattr(lanes, "_FEW_STEPS", 0)
    monkeypatch.setattr(lanes._LaneRun, "is_one_kernel", lambda self: True)  # one lane each
    density = SoftDensity(MODEL, sp.X[:, :1], sp.Y, 1)
    sampler = NUTS(warmup=60, h_init=0.3, h_final=sp.SHARPNESS)
    _, expected = sampled(density, Topology("100"), 3, 30, sampler)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    _, found = sampled(density, Topology("100"), 3, 30, sampler)
    np.testing.assert_allclose(found.position[:, :5], expected.position[:, :5], rtol=1e-6)


@pytest.mark.parametrize("warmup", [1, 10, 19, 20, 50, 100, 150, 500, 2_000])
def test_sharpness_reaches_its_end_before_the_last_window(warmup):
    sampler = NUTS(warmup=warmup, h_init=0.5, h_final=0.025)
    sharpness = sampler.sharpness
    assert len(sharpness) == warmup
    assert sharpness[0] == (0.5 if warmup > 1 else 0.025)
    assert sharpness[-1] == 0.025
    assert (np.diff(sharpness) <= 0).all()
    assert (sharpness == 0.025).mean() >= 0.4
    falling = np.diff(sharpness)[np.diff(sharpness) < 0]
    np.testing.assert_allclose(falling, falling[:1].repeat(len(falling)))


def test_masses_of_modes():
    """Two normal modes: one high and narrow, one low, wide and heavier."""
    rng = np.random.default_rng(0)
    sd = np.array([0.1, 0.1, 1.0, 0.1])[:, None, None]
    height = np.array([0.0, 0.0, -5.0, -30.0])[:, None]
    position = sd * rng.normal(size=(4, 400, 3))
    log_density = height - ((position / sd) ** 2).sum(-1) / 2
    found = log_masses(position, log_density)
    expected = height[:, 0] + 1.5 * np.log(2 * np.pi) + 3 * np.log(sd[:, 0, 0])
    np.testing.assert_allclose(found, expected, atol=0.2)
    assert stuck(found).tolist() == [False, False, False, True]
    assert stuck(found, within=1.0).tolist() == [True, True, False, True]
    assert log_masses(np.zeros((1, 5, 2)), np.zeros((1, 5)))[0] == -np.inf


def test_stuck_chains_restart_from_others(one_split):
    _, chains, _ = one_split
    is_stuck = np.arange(8) % 3 == 0
    found = chains.restarted(np.random.default_rng(0), is_stuck)
    np.testing.assert_array_equal(found.position[~is_stuck], chains.position[~is_stuck])
    for position, step_size in zip(
        found.position[is_stuck], found.step_size[is_stuck], strict=True
    ):
        source = (chains.position == position).all(-1)
        assert (source & ~is_stuck).sum() == 1
        assert chains.step_size[source] == step_size
    with pytest.raises(ValueError, match="at least one chain"):
        chains.restarted(np.random.default_rng(0), np.ones(8, bool))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"warmup": 0}, "warmup must be an integer"),
        ({"h_init": 0.0}, "h_init must be a positive number"),
        ({"h_final": np.nan}, "h_final must be a positive number"),
        ({"target_acceptance": 1.0}, r"target_acceptance must be a number in \(0, 1\)"),
        ({"max_doublings": 1.5}, "max_doublings must be an integer"),
        ({"early_doublings": 0}, "early_doublings must be an integer"),
        ({"kernel": "stan"}, "kernel must be 'lanes' or 'blackjax'; got 'stan'"),
    ],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        NUTS(**settings)


def test_misuse_is_named(one_split):
    density, warm, _ = one_split
    paths = Topology("100").paths
    chains = SAMPLER.start(KEY, density, paths, 2)
    with pytest.raises(ValueError, match="0 of 500 steps"):
        SAMPLER.draw(KEY, density, paths, chains, 5)
    with pytest.raises(ValueError, match="no step left after 500"):
        SAMPLER.warm_up(KEY, density, paths, warm)
    with pytest.raises(ValueError, match="num_draws must be at least 1"):
        SAMPLER.draw(KEY, density, paths, warm, 0)
    with pytest.raises(ValueError, match="rng_key must have shape"):
        SAMPLER.warm_up(jax.random.split(KEY), density, np.stack([paths] * 2), chains)
    broken = SoftDensity(MODEL, sp.X[:, :1] * np.nan, sp.Y, 1)
    with pytest.raises(ValueError, match="No density was finite"):
        SAMPLER.start(KEY, broken, paths, 2)
