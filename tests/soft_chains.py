"""Chains on the soft regression of `soft_problems`, and their moments against quadrature."""

from typing import get_args

import jax
import numpy as np
import soft_problems as sp
from scipy import stats

from bdtppl.inference.nuts.sample import NUTS, KernelName
from bdtppl.inference.summaries.diagnostics import diagnose
from bdtppl.models.soft.tree import SoftRegression

MODEL = SoftRegression(
    mean_loc=sp.LOC, mean_scale=sp.SCALE, noise_shape=sp.SHAPE, noise_scale=sp.RATE
)
SAMPLER = NUTS(warmup=500, h_init=0.3, h_final=sp.SHARPNESS)
KEY = jax.random.key(0)
KERNELS = get_args(KernelName)


def sampled(density, shape, chains=8, draws=1000, sampler=SAMPLER):
    start = sampler.start(KEY, density, shape.paths, chains)
    warm, _ = sampler.warm_up(KEY, density, shape.paths, start)
    return sampler.draw(jax.random.key(1), density, shape.paths, warm, draws)


def parameters(density, draws):
    """Values of all sites, arrays [chain, draw, ...]."""
    with jax.enable_x64(True):
        values = jax.jit(jax.vmap(jax.vmap(density.parameters)))(draws.position)
        return jax.tree.map(np.asarray, values)


def check_moments(values, expected, false_alarm=1e-4):
    """Means and second moments within their Monte Carlo error; of all together one false alarm."""
    quantities, truth = {}, {}
    for name in expected.mean:
        mean, sd = np.atleast_1d(expected.mean[name]), np.atleast_1d(expected.sd[name])
        value = np.asarray(values[name]).reshape(*values[name].shape[:2], -1)
        for j in range(len(mean)):
            quantities[f"{name} {j}"], truth[f"{name} {j}"] = value[..., j], mean[j]
            square = (value[..., j] - mean[j]) ** 2
            quantities[f"{name} {j} spread"], truth[f"{name} {j} spread"] = square, sd[j] ** 2
    found = diagnose(quantities)
    bound = -stats.norm.ppf(false_alarm / 2 / len(truth))
    for name, value in quantities.items():
        error = (value.mean() - truth[name]) / (value.std() / np.sqrt(found[name].ess))
        assert abs(error) < bound, f"{name}: {error:.1f} standard errors"
        assert found[name].r_hat < 1.05


def check_frequencies(walk, shapes, expected, false_alarm=1e-4):
    """Shares of topologies within their Monte Carlo error; a false alarm is one in 10^4."""
    bound = -stats.norm.ppf(false_alarm / 2 / len(shapes))
    number = {shape: t for t, shape in enumerate(walk.topologies)}
    for shape, probability in zip(shapes, expected, strict=True):
        found = (walk.topology == number.get(shape, -1)).astype(float)[:, 50:]
        ess = diagnose({"": found})[""].ess
        error = np.sqrt(probability * (1 - probability) / ess)
        assert abs(found.mean() - probability) < bound * error, shape
