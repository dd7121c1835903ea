"""Layered adaptive importance sampling: the evidence after Markov chains have run.

Every draw of the chains is the centre of a normal proposal with the covariance of the draw's chain,
and some pseudo-samples are drawn from each proposal. The weight of a pseudo-sample is target /
proposal, where the proposal density (the denominator) is

- "basic": the density of the one proposal from which it was drawn;
- "spatial": the mean density of all proposals of its chain (equation 12 of Cochrane et al.);
- "mixture": the mean density of all proposals of all chains.

Given the draws, the mean weight is an unbiased estimate of the evidence with each denominator, even
if the chains have mixed badly. Weights are more even if the denominator contains more proposals.
The computation is on the log scale and proceeds draw by draw, to bound memory.

Chains may be visited again. Either each visit has a separate layer, and the weights of all layers
are averaged (equation 65, with the count of each visit). Or the draws of all visits form one layer;
its weights are more even, but every pseudo-sample is compared with every draw, so the cost of a
visit grows with the square of their number.

References
----------
Cochrane, Wills and Johnson 2024, Divide, Conquer, Combine Bayesian Decision Tree Sampling, sections
3.3 and B.1; Martino, Elvira, Luengo and Corander 2017, Layered adaptive importance sampling;
Llorente, Martino, Delgado and Lopez-Santiago 2023, section 5.4.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jax.tree_util import Partial
from scipy.special import ndtri

from bdtppl.inference.compiling import COMPILED_LIGHTLY
from bdtppl.inference.draws import draw_uniforms
from bdtppl.inference.parallel import in_shares
from bdtppl.models.arguments import require_choice, require_integer
from bdtppl.models.arrays.threads import in_threads, num_threads
from bdtppl.models.pytrees import as_partial

Denominator = Literal["basic", "spatial", "mixture"]


class Proposals(NamedTuple):
    """Normal distributions around the draws of C chains, N each.

    Attributes
    ----------
    mean
        float [C, N, size]; the draws.
    scale
        float [C, size, size]; lower Cholesky factor of each chain's covariance.
    """

    mean: np.ndarray
    scale: np.ndarray

    def of_chain(self, chain: int) -> "Proposals":
        """Return the proposals of one chain, C = 1."""
        return Proposals(self.mean[chain : chain + 1], self.scale[chain : chain + 1])

    def draw(self, rng: np.random.Generator, number: int) -> np.ndarray:
        """Draw a number of positions, float64 [number, size], from equal shares of all."""
        mean, scale = self
        chain, place = (rng.integers(length, size=number) for length in mean.shape[:2])
        noise = rng.normal(size=(number, mean.shape[2]))
        return mean[chain, place] + np.einsum("nij,nj->ni", scale[chain], noise)


class Mixture(NamedTuple):
    """Equal shares of normal distributions, prepared for their density.

    Coordinates are whitened, so a matrix product computes all distances. This is accurate near the
    means; far from them the density is 0.

    Attributes
    ----------
    centre
        float [C, size]; mean of each chain's draws.
    whiten
        float [C, size, size]; makes each chain's covariance the identity.
    mean
        float [C, N, size]; means from the centres, in those coordinates.
    constant
        float [C, N]; the part of a log density that does not depend on the point.
    """

    centre: Any
    whiten: Any
    mean: Any
    constant: Any

    @classmethod
    def of(cls, proposals: Proposals) -> "Mixture":
        """Make the mixture of all normal distributions with equal weights."""
        mean, scale = proposals
        whiten, centre = np.linalg.inv(scale), mean.mean(axis=1)
        white = np.einsum("kij,knj->kni", whiten, mean - centre[:, None])
        share = np.log(math.prod(mean.shape[:2]))
        log_volume = np.log(np.diagonal(scale, axis1=1, axis2=2)).sum(axis=1)
        constant = -log_volume - mean.shape[2] / 2 * np.log(2 * np.pi) - share
        return cls(centre, whiten, white, constant[:, None] - (white**2).sum(axis=-1) / 2)

    def log_density(self, point: jax.Array) -> jax.Array:
        """Return the log density at a point [size]."""
        white = jnp.einsum("kij,kj->ki", self.whiten, point[None] - self.centre)
        # These numbers are below 100 if the density is not 0, so single precision suffices.
        mean, constant, white = (a.astype(np.float32) for a in (self.mean, self.constant, white))
        inner = jnp.einsum("knj,kj->kn", mean, white)
        log_sum = logsumexp(inner + constant - (white**2).sum(axis=-1)[:, None] / 2)
        return log_sum.astype(point.dtype)


class Layer(NamedTuple):
    """Importance samples around the draws of one visit; C chains, N draws, M pseudo-samples each.

    Attributes
    ----------
    position
        float [C, N, M, size].
    log_target
        float [C, N, M]; unnormalised log density.
    log_proposal
        float [C, N, M]; log of the denominators.
    proposals
        The proposals of the pseudo-samples.
    """

    position: np.ndarray
    log_target: np.ndarray
    log_proposal: np.ndarray
    proposals: Proposals

    @property
    def log_weight(self) -> np.ndarray:
        """Return log weights, float [C, N, M]."""
        return self.log_target - self.log_proposal


def fit_proposals(draws: np.ndarray) -> Proposals:
    """Fit a normal distribution around each draw, with the covariance of its chain.

    The covariance of N draws in N or more dimensions is singular. So covariances shrink towards 0
    by the factor N / (N + size). The variance of a coordinate is at least a thousandth of the mean
    variance within chains, and 1 if the coordinate moved in no chain.

    NumPy computes this, because linear algebra that XLA calls in several threads may deadlock.

    Parameters
    ----------
    draws
        float [C, N, size].
    """
    num_draws, size = draws.shape[1:]
    centred = draws - draws.mean(axis=1, keepdims=True)
    covariance = np.einsum("cni,cnj->cij", centred, centred) / max(num_draws - 1, 1)
    variance = np.diagonal(covariance, axis1=1, axis2=2)
    usual = variance.mean(axis=0, keepdims=True)
    usual = np.where(usual > 0, usual, 1.0)
    floored = np.maximum(variance, 1e-3 * usual)
    floored = np.where(variance.max(axis=0, keepdims=True) > 0, floored, 1.0)
    shrunk = covariance * (num_draws / (num_draws + size))
    covariance = np.where(np.eye(size, dtype=bool)[None], floored[:, None], shrunk)
    return Proposals(draws, np.linalg.cholesky(covariance))


def sample_layer(
    rng_key: jax.Array,
    log_density: Callable[[jax.Array], jax.Array],
    draws: np.ndarray,
    *,
    pseudo_samples: int = 10,
    denominator: Denominator = "mixture",
) -> Layer:
    """Draw pseudo-samples around draws and weight them, in double precision.

    Parameters
    ----------
    rng_key
        Key.
    log_density
        Unnormalised log density of a position [size]. Functions that differ only in the data of a
        `jax.tree_util.Partial` are compiled once.
    draws
        float [C, N, size].
    pseudo_samples
        M, for each draw.
    denominator
        "basic", "spatial" or "mixture". The last compares every pseudo-sample with every draw.

    Raises
    ------
    ValueError
        If the denominator is not known, or there is nothing to draw.

    Examples
    --------
    >>> from bdtppl.inference.evidence.estimates import summarise
    >>> draws = jax.random.normal(jax.random.key(0), (4, 50, 2))
    >>> layer = sample_layer(jax.random.key(1), lambda x: -0.5 * x @ x, draws)
    >>> found = summarise(layer.log_weight)
    >>> bool(abs(found.log_evidence - jnp.log(2 * jnp.pi)) < 4 * found.standard_error < 0.2)
    True
    """
    require_choice("denominator", denominator, get_args(Denominator))
    require_integer("pseudo_samples", pseudo_samples)
    proposals = fit_proposals(np.asarray(draws, np.float64))
    together = Mixture.of(proposals) if denominator == "mixture" else None
    shared = rng_key, as_partial(log_density), proposals, pseudo_samples, denominator, together
    chains = np.arange(len(proposals.mean))
    position, log_target, log_proposal = in_shares(_weigh_chains, (chains,), shared=shared)
    return Layer(position, log_target, log_proposal, proposals)


def _weigh_chains(
    rng_key: jax.Array,
    density: Partial,
    proposals: Proposals,
    pseudo_samples: int,
    denominator: Denominator,
    together: Mixture | None,
    chains: np.ndarray,
) -> tuple[np.ndarray, ...]:
    """Draw and weight the pseudo-samples of some chains, given by their numbers."""
    _, num_draws, size = proposals.mean.shape
    shape = num_draws, pseudo_samples, size

    def of_chain(chain: int) -> Any:
        own = proposals.of_chain(chain)
        compared = Mixture.of(own) if denominator == "spatial" else together
        uniform = draw_uniforms(rng_key, shape, first=chain * math.prod(shape))
        noise = ndtri(uniform + 2.0**-54)  # uniform may be 0
        with jax.enable_x64(True):  # a setting of each thread
            sample = weigh_proposals(noise, density, own.mean[0], own.scale[0], compared)
            return jax.tree.map(np.asarray, sample)

    samples = in_threads(of_chain, chains.tolist(), most=num_threads())
    return tuple(np.stack(each) for each in zip(*samples, strict=True))


@partial(jax.jit, compiler_options=COMPILED_LIGHTLY)
def weigh_proposals(
    noise: jax.Array,
    log_density: Partial,
    draws: jax.Array,
    scale: jax.Array,
    compared: Mixture | None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Weight the pseudo-samples of a chain's draws, from standard normal noise [N, M, size].

    Parameters
    ----------
    noise, log_density
        Noise, and the target.
    draws, scale
        float [N, size] and [size, size]; see `Proposals`.
    compared
        The denominator; None for the single proposal of each pseudo-sample.

    Returns
    -------
    tuple
        Positions [N, M, size], log targets and log denominators [N, M].
    """
    position = draws[:, None] + jnp.einsum("ij,nmj->nmi", scale, noise)
    log_target = jax.lax.map(jax.vmap(log_density), position)
    # A density may overflow far out; such a position has weight 0.
    log_target = jnp.where(jnp.isnan(log_target), -jnp.inf, log_target)
    if compared is None:
        log_volume = jnp.log(jnp.diagonal(scale)).sum() + len(scale) / 2 * np.log(2 * np.pi)
        return position, log_target, -log_volume - (noise**2).sum(axis=-1) / 2
    return position, log_target, jax.lax.map(jax.vmap(compared.log_density), position)


def thin(rng_key: jax.Array, layer: Layer) -> np.ndarray:
    """Keep one pseudo-sample of each draw, chosen by weight.

    Its weight is the mean weight of all. Weighted means keep their expectation, and memory falls by
    a factor of M.

    Returns
    -------
    numpy.ndarray
        float [C, N, size].
    """
    log_weight = layer.log_weight
    highest = log_weight.max(axis=2, keepdims=True)
    weight = np.exp(log_weight - np.where(np.isfinite(highest), highest, 0))
    running = np.cumsum(weight, axis=2)
    point = draw_uniforms(rng_key, log_weight.shape[:2])[..., None] * running[..., -1:]
    chosen = np.minimum((running <= point).sum(axis=2), log_weight.shape[2] - 1)
    return np.take_along_axis(layer.position, chosen[..., None, None], axis=2)[:, :, 0]
