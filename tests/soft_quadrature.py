"""Evidence of soft regression trees with one input by quadrature, sharing no code with the models.

Given the thresholds and the noise variance the targets are jointly normal, so leaf means are
integrated out by linear algebra, and the rest by Gauss-Legendre and the trapezium rule.
"""

import itertools

import numpy as np
from scipy import stats
from scipy.special import expit, logsumexp


def reached(code, threshold, x, sharpness):
    """Probabilities of leaves [N, leaves] by recursion; thresholds of the splits in preorder."""
    numbers = itertools.count()

    def walk(place, probability):
        if code[place] == "0":
            return place + 1, [probability]
        left = expit((threshold[next(numbers)] - x) / sharpness)
        middle, on_left = walk(place + 1, probability * left)
        end, on_right = walk(middle, probability * (1 - left))
        return end, on_left + on_right

    return np.stack(walk(0, np.ones(len(x)))[1], axis=1)


def log_evidence(code, model, x, y, sharpness, nodes=40):
    """Log evidence of a `SoftRegression` with one variance; inputs [N], targets [N]."""
    num_splits = len(code) // 2
    point, weight = np.polynomial.legendre.leggauss(nodes)
    point, weight = (point + 1) / 2, weight / 2
    grid, share = (
        np.array(list(itertools.product(a, repeat=num_splits))).reshape(
            nodes**num_splits, num_splits
        )
        for a in (point, weight)
    )
    basis = np.stack([reached(code, threshold, x, sharpness) for threshold in grid])
    means = model.mean_scale**2 * basis @ np.swapaxes(basis, 1, 2)
    eigenvalues, vectors = np.linalg.eigh(means)
    square = (np.swapaxes(vectors, 1, 2) @ (y - model.mean_loc)) ** 2
    log_variance = np.linspace(-9, 7, 400)
    variance = np.exp(log_variance)[:, None, None]
    spread = eigenvalues[None] + variance
    log_normal = -0.5 * (np.log(2 * np.pi * spread) + square[None] / spread).sum(axis=2)
    prior = stats.invgamma(model.noise_shape, scale=model.noise_scale)
    log_prior = prior.logpdf(np.exp(log_variance)) + log_variance + np.log(np.diff(log_variance)[0])
    return logsumexp(log_normal + log_prior[:, None] + np.log(share).sum(axis=1)[None])
