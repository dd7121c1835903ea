"""As splits get hard, HMC-DF for classes approaches an enumeration of hard trees.

Thresholds are uniform on [0, 1] whatever is above them, so cuts count by the gaps that they lie in,
and leaves may be empty.
"""

import itertools

import jax
import numpy as np
import pytest
from scipy.special import gammaln, logsumexp, softmax
from soft_chains import check_frequencies

from bdtppl.inference.nuts.sample import NUTS
from bdtppl.inference.rjhmc import RJHMC
from bdtppl.models.soft.topology import Topology, TopologyPrior, topologies
from bdtppl.models.soft.tree import SoftClassification, leaf_probabilities

RNG = np.random.default_rng(4)
CELLS = 20  # values of inputs are multiples of 1 / CELLS, so that midpoints tell hard cuts apart
# Far from 0 and 1, so that empty leaves have much of the weight.
X = RNG.integers(4, 13, (10, 2)) / CELLS
Y = (X[:, 0] > np.median(X[:, 0])).astype(int) ^ (RNG.random(10) < 0.15)
MODEL = SoftClassification(concentration=(1.0, 0.5))


def log_leaf(rows):
    counts = np.bincount(Y[rows], minlength=2)
    alpha = np.array(MODEL.concentration)
    each = gammaln(counts + alpha) - gammaln(alpha)
    return each.sum() + gammaln(alpha.sum()) - gammaln(counts.sum() + alpha.sum())


def by_gap(edges):
    return np.diff(edges)


def evenly(edges):
    return np.full(len(edges) - 1, 1 / (len(edges) - 1))


def without_empty_leaves(edges):
    inner = np.diff(edges) * (edges[:-1] > 0) * (edges[1:] < 1)
    return inner / max(inner.sum(), 1e-12)


def log_evidence(shape, weigh=by_gap):
    """Sum over the inputs and the gaps of all splits, by recursion."""

    def of(shape, rows):
        if not shape.num_splits:
            return log_leaf(rows)
        left, right = shape.children
        terms = []
        for j in range(X.shape[1]):
            edges = np.unique([0, *X[rows, j], 1])
            for low, high, weight in zip(edges[:-1], edges[1:], weigh(edges), strict=True):
                if weight > 0:
                    is_left = X[rows, j] < (low + high) / 2
                    below = of(left, rows[is_left]) + of(right, rows[~is_left])
                    terms.append(np.log(weight / X.shape[1]) + below)
        return logsumexp(terms)

    return of(shape, np.arange(len(Y)))


def on_a_grid(shape, sharpness):
    """The log evidence of the soft tree, thresholds at the midpoints of a grid."""
    num_splits = shape.num_splits
    points = (np.arange(2 * CELLS) + 0.5) / (2 * CELLS)
    cuts = np.array(list(itertools.product(points, repeat=num_splits)))

    @jax.jit
    @jax.vmap
    def log_likelihood(inputs, threshold):
        return MODEL.log_compound(
            leaf_probabilities(shape.paths, X, inputs, threshold, sharpness), Y
        )

    with jax.enable_x64(True), jax.numpy_rank_promotion("allow"):
        found = [
            log_likelihood(np.tile(inputs, (len(cuts), 1)).astype(int), cuts)
            for inputs in itertools.product(range(2), repeat=num_splits)
        ]
    return logsumexp(found) - np.log(np.size(found))


def check_limit(shape, weigh=by_gap):
    exact = log_evidence(shape, weigh)
    away = [abs(on_a_grid(shape, sharpness) - exact) for sharpness in (0.1, 0.02, 0.004, 1e-5)]
    assert (np.diff(away) < 0).all()
    assert away[-1] < 1e-9


@pytest.mark.parametrize("code", ["100", pytest.param("10100", marks=pytest.mark.slow)])
def test_evidence_approaches_that_of_hard_trees(code):
    check_limit(Topology(code))
    for weigh in (evenly, without_empty_leaves):
        with pytest.raises(AssertionError):
            check_limit(Topology(code), weigh)


@pytest.mark.slow
def test_frequencies_of_topologies_approach_those_of_hard_trees():
    prior = TopologyPrior(0.7, 0.5)
    sampler = NUTS(warmup=150, h_init=0.1, h_final=0.002)
    moves = {"grow": 0.4, "prune": 0.4, "stay": 0.2}
    settings = RJHMC(sampler, prior, moves=moves, max_splits=2)
    walk = settings.sample(jax.random.key(0), MODEL, X, Y, hard_inputs=True, chains=16, draws=400)
    shapes = [shape for n in range(3) for shape in topologies(n)]

    def probabilities(weigh):
        return softmax([log_evidence(shape, weigh) + prior.log_prob(shape) for shape in shapes])

    check_frequencies(walk, shapes, probabilities(by_gap))
    for weigh in (evenly, without_empty_leaves):
        with pytest.raises(AssertionError):
            check_frequencies(walk, shapes, probabilities(weigh))
