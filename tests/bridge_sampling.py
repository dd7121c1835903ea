"""Evidence by bridge sampling between draws of the posterior and of a normal distribution.

The normal is fitted to one half of the draws; the other half and as many draws of the normal give
the estimate, by the iteration of Meng and Wong for their optimal bridge. "warped" first makes the
posterior symmetric around the normal's mean, as a mixture with its own mirror image, which leaves
the evidence as it is. The estimate is consistent, not unbiased. It needs chains that have mixed.

References
----------
Meng and Wong 1996, Simulating ratios of normalizing constants via a simple identity; Meng and
Schilling 2002, Warp bridge sampling; Frühwirth-Schnatter 2004, Estimating marginal likelihoods for
mixture and Markov switching models using bridge sampling techniques (the error).
"""

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jax.tree_util import Partial

from bdtppl.inference.evidence.estimates import Evidence, log_mean
from bdtppl.inference.evidence.importance import fit_proposals
from bdtppl.inference.summaries.diagnostics import error_of_mean
from bdtppl.models.pytrees import as_partial

__all__ = ["Ratios", "Reference", "bridge_evidence", "log_ratios"]

Reference = Literal["normal", "warped"]

_TOLERANCE = 1e-6
_MOST_STEPS = 1000
_BLOCK = 512


class Ratios(NamedTuple):
    """Log ratios of the target to the reference.

    Attributes
    ----------
    of_draws
        float [C, N / 2]; at draws of the target.
    of_reference
        float [C, N / 2]; at draws of the reference.
    """

    of_draws: jax.Array
    of_reference: jax.Array


def log_ratios(
    rng_key: jax.Array, log_density: Partial, draws: np.ndarray, *, reference: Reference
) -> Ratios:
    """Compare target and reference at draws of both; see `bridge_evidence`."""
    chains, num_draws, size = draws.shape
    fitted, kept = draws[:, : num_draws // 2], draws[:, num_draws // 2 :]
    centre, (scale,) = fitted.mean(axis=(0, 1)), fit_proposals(np.concatenate(fitted)[None]).scale
    whitened = np.einsum("ij,cnj->cni", np.linalg.inv(scale), kept - centre)
    shape = chains, num_draws - num_draws // 2, size
    noise = jax.random.normal(rng_key, shape, draws.dtype)
    return _compare(log_density, centre, scale, whitened, noise, reference=reference)


@partial(jax.jit, static_argnames="reference")
def _compare(log_density: Partial, centre, scale, whitened, noise, *, reference) -> Ratios:
    """Compare them at centre + scale z, for z [C, N / 2, size] from both."""
    log_volume = jnp.log(jnp.diagonal(scale)).sum() + len(scale) / 2 * jnp.log(2 * jnp.pi)

    def of_noise(noise):
        """Log ratio at centre + scale noise."""
        sides = jnp.array([1.0, -1.0] if reference == "warped" else [1.0], noise.dtype)
        points = centre[None] + sides[:, None] * (scale @ noise)[None]
        log_target = jax.vmap(log_density)(points)
        log_target = jnp.where(jnp.isnan(log_target), -jnp.inf, log_target)
        log_target = logsumexp(log_target) - jnp.log(len(sides))
        return log_target + noise @ noise / 2 + log_volume

    def of_many(noise):
        found = jax.lax.map(of_noise, jnp.concatenate(noise), batch_size=_BLOCK)
        return found.reshape(noise.shape[:-1])

    return Ratios(of_many(whitened), of_many(noise))


def bridge_evidence(
    rng_key: jax.Array,
    log_density: Callable[[jax.Array], jax.Array],
    draws: np.ndarray,
    *,
    reference: Reference = "warped",
) -> Evidence:
    """Estimate the evidence from draws of chains.

    Parameters
    ----------
    rng_key
        Key.
    log_density
        Unnormalised log density of a position [size].
    draws
        float [C, N, size]; the first half of each chain fits the normal. N is at least 8.
    reference
        "normal", or "warped" where the posterior is skew.

    Returns
    -------
    Evidence
        Its standard error allows for the autocorrelation of the draws.

    Raises
    ------
    ValueError
        If there are too few draws, or the reference is not known.

    Examples
    --------
    >>> draws = jax.random.normal(jax.random.key(0), (4, 500, 2))
    >>> found = bridge_evidence(jax.random.key(1), lambda x: -0.5 * x @ x, draws)
    >>> bool(abs(found.log_evidence - np.log(2 * np.pi)) < 0.05)
    True
    """
    if reference not in get_args(Reference):
        known = ", ".join(get_args(Reference))
        raise ValueError(f"reference must be one of {known}; got {reference!r}.")
    if draws.shape[1] < 8:
        raise ValueError(f"draws must be at least 8 a chain; got {draws.shape[1]}.")
    ratios = log_ratios(rng_key, as_partial(log_density), np.asarray(draws), reference=reference)
    return solve(*(np.asarray(a, np.float64) for a in ratios))


def solve(of_draws: np.ndarray, of_reference: np.ndarray) -> Evidence:
    """Iterate Meng and Wong's equation for the evidence; see `Ratios`."""
    shift = np.median(of_draws)  # a first guess; all else is relative to it
    target, other = of_draws - shift, of_reference - shift
    share = of_draws.size / (of_draws.size + of_reference.size)
    log_share, log_rest = np.log(share), np.log1p(-share)
    log_ratio = mean_above = mean_below = 0.0
    for _ in range(_MOST_STEPS):
        before = log_ratio
        # Means of target / (share target + rest Z reference) under the reference, and of
        # reference / (...) under the target.
        above = other - np.logaddexp(log_share + other, log_rest + log_ratio)
        below = -np.logaddexp(log_share + target, log_rest + log_ratio)
        mean_above, mean_below = log_mean(above.ravel())[0], log_mean(below.ravel())[0]
        log_ratio = mean_above - mean_below
        if abs(log_ratio - before) < _TOLERANCE:
            break
    relative_above = np.exp(above - mean_above)
    relative_below = np.exp(below - mean_below)
    variance = relative_above.var(ddof=1) / relative_above.size
    error_below = error_of_mean(relative_below)
    error = float(np.sqrt(variance + error_below**2))
    return Evidence(float(log_ratio + shift), error, "bridge")
