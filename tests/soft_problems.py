"""A soft regression on one input whose evidence and moments are known by quadrature.

Means of leaves are integrated out by linear algebra, thresholds by Gauss-Legendre quadrature, the
variance on a grid of its logarithm. Nothing is shared with the package but the priors' numbers.
"""

import itertools
from functools import cache
from typing import NamedTuple

import numpy as np
from scipy import stats
from scipy.special import expit, logsumexp

SHARPNESS = 0.15
LOC, SCALE, SHAPE, RATE = 0.3, 1.2, 3.0, 0.5  # priors: N(LOC, SCALE^2), InverseGamma(SHAPE, RATE)
_RNG = np.random.default_rng(3)
X = np.sort(_RNG.random((24, 2)), axis=0)[_RNG.permutation(24)]
Y = np.where(X[:, 0] < 0.55, 0.0, 1.0) + _RNG.normal(0, 0.35, 24)


class Quadrature(NamedTuple):
    """The log evidence, and posterior means and standard deviations of parameters."""

    log_evidence: float
    mean: dict[str, np.ndarray]
    sd: dict[str, np.ndarray]


def leaf_shares(code, distance):
    """Probabilities of leaves [leaf, ...] by recursion; distance [split, ...] in preorder."""
    number = iter(range(len(distance)))

    def walk(place, probability):
        if code[place] == "0":
            return place + 1, [probability]
        left = expit(distance[next(number)])
        middle, on_left = walk(place + 1, probability * left)
        end, on_right = walk(middle, probability * (1 - left))
        return end, on_left + on_right

    return np.stack(walk(0, np.ones(distance.shape[1:]))[1])


@cache
def quadrature(
    code: str, inputs: tuple[int, ...] | None = None, num_rows: int = 24, num_points: int = 40
):
    """Integrate the model of a shape, whose splits look at given inputs (default the first)."""
    num_splits = len(code) // 2
    x, y = X[:num_rows], Y[:num_rows]
    looked_at = x[:, np.array(inputs or (0,) * num_splits, int)].T  # [split, row]
    nodes, weights = np.polynomial.legendre.leggauss(num_points)
    cuts = np.array(list(itertools.product((nodes + 1) / 2, repeat=num_splits)))
    log_weight = np.array(
        [np.log(np.prod(each)) for each in itertools.product(weights / 2, repeat=num_splits)]
    )
    distance = (cuts[:, :, None] - looked_at[None]) / SHARPNESS  # [cut, split, row]
    reached = leaf_shares(code, np.moveaxis(distance, 0, 1).reshape(num_splits, len(cuts), len(y)))
    values, vectors = np.linalg.eigh(np.einsum("ktn,ltn->tkl", reached, reached))
    away = y - LOC
    turned = np.einsum("tkl,ktn,n->tl", vectors, reached, away)

    log_variance = np.linspace(-4.5, 2.5, 200)
    variance = np.exp(log_variance)[None, :, None]
    shrunk = values[:, None] + variance / SCALE**2  # [cut, variance, leaf]
    fit = (away @ away - (turned[:, None] ** 2 / shrunk).sum(-1)) / variance[..., 0]
    log_volume = np.log1p(SCALE**2 * values[:, None] / variance).sum(-1)
    log_likelihood = -(len(y) * np.log(2 * np.pi * variance[..., 0]) + log_volume + fit) / 2
    log_prior = stats.invgamma(SHAPE, scale=RATE).logpdf(variance[..., 0]) + log_variance
    log_joint = log_likelihood + log_prior + log_weight[:, None]
    log_joint += np.log(log_variance[1] - log_variance[0])
    log_evidence = logsumexp(log_joint)
    posterior = np.exp(log_joint - log_evidence)

    centre = LOC + np.einsum("tkl,tvl->ktv", vectors, turned[:, None] / shrunk)
    spread = np.einsum("tkl,tvl->ktv", vectors**2, variance / shrunk)
    first = {"mean": centre, "noise": np.broadcast_to(variance[..., 0], posterior.shape)}
    first |= {"threshold": np.broadcast_to(cuts.T[..., None], (num_splits, *posterior.shape))}
    second = {name: value**2 for name, value in first.items()} | {"mean": centre**2 + spread}
    mean = {name: (value * posterior).sum((-2, -1)) for name, value in first.items()}
    square = {name: (value * posterior).sum((-2, -1)) for name, value in second.items()}
    return Quadrature(
        float(log_evidence), mean, {name: np.sqrt(square[name] - mean[name] ** 2) for name in mean}
    )
