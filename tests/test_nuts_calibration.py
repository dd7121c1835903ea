"""NUTS against NumPyro's own, and calibration on data that the model itself has simulated."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.infer
import pytest
import soft_problems as sp
from numpyro import handlers
from scipy.stats import chisquare
from soft_chains import KERNELS, MODEL, SAMPLER, check_moments, parameters, sampled
from tiers import few_of, slow_but

from bdtppl.inference.nuts.sample import NUTS
from bdtppl.inference.soft.density import SoftDensity
from bdtppl.inference.summaries.diagnostics import diagnose
from bdtppl.models.pytrees import pytree_dataclass
from bdtppl.models.soft.topology import Topology
from bdtppl.models.soft.tree import SoftClassification

SHAPE = Topology("100")


@cache
def of_numpyro(num_chains=4, num_samples=2000):
    """Draws of NumPyro's sampler, arrays [chain, draw, ...]."""
    with jax.enable_x64(True), jax.numpy_rank_promotion("allow"):
        sampler = numpyro.infer.MCMC(
            numpyro.infer.NUTS(MODEL),
            num_warmup=500,
            num_samples=num_samples,
            num_chains=num_chains,
            chain_method="sequential",
            progress_bar=False,
        )
        sampler.run(jax.random.key(7), SHAPE.paths, jnp.asarray(sp.X), jnp.asarray(sp.Y), 0.15)
        return jax.tree.map(np.asarray, sampler.get_samples(group_by_chain=True))


def check_agreement(ours, theirs):
    """Means and spreads within 4 combined standard errors."""
    for name, value in theirs.items():
        for mine, other in zip(
            np.moveaxis(np.asarray(ours[name]).reshape(*ours[name].shape[:2], -1), -1, 0),
            np.moveaxis(value.reshape(*value.shape[:2], -1), -1, 0),
            strict=True,
        ):
            for power in (1, 2):
                means, errors = [], []
                for draws in (mine, other):
                    each = (draws - other.mean()) ** power
                    means.append(each.mean())
                    errors.append(each.std() / np.sqrt(diagnose({"": each})[""].ess))
                assert abs(means[0] - means[1]) < 4 * np.hypot(*errors), (name, power)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", few_of(KERNELS, 1))
def test_moments_are_those_of_numpyros_sampler(kernel):
    theirs, sampler = of_numpyro(), replace(SAMPLER, kernel=kernel)
    density = SoftDensity(MODEL, sp.X, sp.Y, 1)
    _, draws = sampled(density, SHAPE, chains=8, sampler=sampler)
    check_agreement(parameters(density, draws), theirs)
    wider = SoftDensity(replace(MODEL, mean_scale=3.0), sp.X, sp.Y, 1)
    _, draws = sampled(wider, SHAPE, chains=8, sampler=sampler)
    with pytest.raises(AssertionError):
        check_agreement(parameters(wider, draws), theirs)


@pytree_dataclass
class OfTargets:
    """A density of which targets are data by topology, so that many are sampled side by side."""

    density: SoftDensity

    def log_density(self, position, paths, sharpness):
        paths, y = paths
        return replace(self.density, y=y).log_density(position, paths, sharpness)

    def position(self, parameters):
        return self.density.position(parameters)

    def draw_prior(self, rng, num_draws):
        return self.density.draw_prior(rng, num_draws)


MODELS = {
    "regression": (MODEL, np.zeros(24)),
    "mixture": (
        SoftClassification(concentration=(1.0, 1.0), likelihood="mixture"),
        np.zeros(24, int),
    ),
}
_REPEATS, _THIN, _KEPT = 200, 8, 31


def ranks(model, y, sharpness=sp.SHARPNESS, kernel="lanes"):
    """Ranks of drawn parameters among draws given data simulated from them, [quantity, repeat]."""
    x = sp.X[:, :1]
    density = SoftDensity(model, x, y, 1)

    def simulate(key, values):
        run = handlers.substitute(handlers.seed(model, key), data=values)
        trace = handlers.trace(run).get_trace(SHAPE.paths, x, None, sp.SHARPNESS)
        return density.position(values), trace["y"]["value"]

    with jax.enable_x64(True), jax.numpy_rank_promotion("allow"):
        keys = jax.random.split(jax.random.key(3), _REPEATS)
        values, _ = density.draw_prior(np.random.default_rng(0), _REPEATS)
        truth, data = jax.tree.map(np.asarray, jax.jit(jax.vmap(simulate))(keys, values))
    sampler = NUTS(warmup=300, h_init=sharpness, h_final=sharpness, kernel=kernel)
    paths = np.broadcast_to(SHAPE.paths, (_REPEATS, *SHAPE.paths.shape)), data
    given = keys, OfTargets(density), paths
    chains, _ = sampler.warm_up(*given, sampler.start(*given, 1))
    keys = jax.random.split(jax.random.key(4), _REPEATS)
    _, draws = sampler.draw(keys, *given[1:], chains, _THIN * _KEPT)
    position = draws.position[:, 0, _THIN - 1 :: _THIN]

    @jax.jit
    @jax.vmap
    def quantities(position, y):
        each = replace(density, y=y)
        values = each.parameters(position)
        first = {name: jnp.ravel(value)[0] for name, value in values.items()}
        # NumPyro takes no power of 0 but a traced one.
        by_power = jax.vmap(lambda p: each.log_density(position, SHAPE.paths, sp.SHARPNESS, p))
        prior, whole = by_power(jnp.arange(2.0))
        return jnp.stack([*first.values(), whole - prior])

    with jax.enable_x64(True), jax.numpy_rank_promotion("allow"):
        true = np.asarray(quantities(truth, data))
        flat = position.reshape(-1, position.shape[-1])
        drawn = np.asarray(quantities(flat, data.repeat(_KEPT, axis=0)))
    return (drawn.reshape(_REPEATS, _KEPT, -1) < true[:, None]).sum(1).T


def check_uniform(found):
    """Ranks 0 to 31 in 8 bins; of all quantities together one false alarm in 10^4."""
    for each in found:
        counts = np.histogram(each, bins=8, range=(-0.5, 31.5))[0]
        assert chisquare(counts).pvalue > 1e-4 / len(found)


CASES = [("regression", "lanes"), ("mixture", "lanes"), ("mixture", "blackjax")]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kernel"), slow_but(CASES[:1], CASES))
def test_calibration(name, kernel):
    check_uniform(ranks(*MODELS[name], kernel=kernel))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kernel"), slow_but(CASES[:1], CASES))
def test_another_sharpness_is_not_calibrated(name, kernel):
    with pytest.raises(AssertionError):
        check_uniform(ranks(*MODELS[name], sharpness=0.6, kernel=kernel))


@pytest.mark.slow
@pytest.mark.parametrize("kernel", slow_but(KERNELS[:1], KERNELS))
def test_known_splits_have_conjugate_answers(kernel):
    """Means given thresholds and variance are normal."""
    reached = sp.leaf_shares("100", ((0.5 - sp.X[:, 0]) / sp.SHARPNESS)[None])

    def conjugate(noise):
        precision = reached @ reached.T / noise + np.eye(2) / sp.SCALE**2
        mean = sp.LOC + np.linalg.solve(precision, reached @ (sp.Y - sp.LOC) / noise)
        covariance = np.linalg.inv(precision)
        sd = {"mean": np.sqrt(np.diagonal(covariance)), "sum": np.sqrt(covariance.sum())}
        return sp.Quadrature(0.0, {"mean": mean, "sum": mean.sum()}, sd)

    def known(paths, x, y, sharpness, **options):
        values = {"threshold": jnp.array([0.5]), "noise": jnp.array(0.2)}
        handlers.condition(MODEL, data=values)(paths, x, y, sharpness, **options)

    @pytree_dataclass
    class Known(SoftDensity):
        def draw_prior(self, rng, num_draws):
            return {"mean": rng.normal(size=(num_draws, 2))}, None

    density = Known(jax.tree_util.Partial(known), sp.X[:, :1], sp.Y, 1)
    _, draws = sampled(density, SHAPE, sampler=replace(SAMPLER, warmup=200, kernel=kernel))
    values = {"mean": parameters(density, draws)["mean"]}
    values["sum"] = values["mean"].sum(axis=-1)  # its spread has the covariance
    check_moments(values, conjugate(0.2))
    with pytest.raises(AssertionError, match="standard errors"):
        check_moments(values, conjugate(0.25))
