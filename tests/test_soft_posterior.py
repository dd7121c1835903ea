"""Posteriors over soft trees: against plain recursion, and mixtures against SciPy."""

import math
from functools import cache

import jax
import numpy as np
import pytest
from scipy import stats

import bdtppl.models.soft.tree_batch as soft_trees
from bdtppl.inference.soft.density import SoftDensity
from bdtppl.inference.soft.mixture import ClassMixture, NoiseMixture
from bdtppl.inference.soft.posterior import TopologyDraws, along_chains, resample
from bdtppl.models.soft.topology import Topology
from bdtppl.models.soft.tree import SoftClassification, SoftRegression, leaf_probabilities

SHAPES = [Topology("0"), Topology("100"), Topology("11000"), Topology("10100")]
SHARPNESS = 0.1


def problem(is_regression: bool, num_inputs: int = 2):
    rng = np.random.default_rng(0)
    matrix = rng.normal(3, 2, (12, num_inputs))
    scaling = np.stack([matrix.min(0), np.ptp(matrix, axis=0)])
    y = rng.normal(0, 1, 12) if is_regression else np.arange(12) % 3
    return matrix, scaling, y


def density_of(model, num_inputs=2):
    matrix, scaling, y = problem(isinstance(model, SoftRegression), num_inputs)
    x = (matrix - scaling[0]) / scaling[1]
    return cache(lambda n: SoftDensity(model, x, y, n))


def drawn(density, seed, num_draws):
    """Positions that are as good as any."""
    return np.random.default_rng(seed).normal(size=(num_draws, density.size))


def draws_of(density, shapes=SHAPES, num_draws=5):
    """Draws of each shape, with uneven weights."""
    found = []
    for number, shape in enumerate(shapes):
        position = drawn(density(shape.num_splits), number, num_draws)
        weight = np.arange(1, num_draws + 1) / (num_draws * (num_draws + 1) / 2)
        found.append(
            TopologyDraws(shape, (number + 1) / 10, -1.0 * number, 0.1, position, None, weight)
        )
    return found


def about(num_inputs=2, is_regression=True):
    matrix, scaling, _ = problem(is_regression, num_inputs)
    names = tuple(f"x{j}" for j in range(num_inputs))
    return {"sharpness": SHARPNESS, "matrix": matrix, "scaling": scaling, "names": names}


def plain_leaves(code: str, splits: list, row, sharpness: float) -> list[float]:
    """Probabilities of the leaves of a preorder code, by recursion."""
    nodes, waiting = iter(code), iter(splits)

    def walk(probability: float) -> list[float]:
        if next(nodes) == "0":
            return [probability]
        direction, threshold = next(waiting)
        z = (threshold - sum(d * v for d, v in zip(direction, row, strict=True))) / sharpness
        left = 1 / (1 + math.exp(-z))
        return walk(probability * left) + walk(probability * (1 - left))

    return walk(1.0)


def plain_predictions(posterior, rows):
    """Mean of a target, or class probabilities, at rows given each draw, by plain Python."""
    low, width = posterior.scaling
    model, y = posterior.model, posterior.y.tolist()
    given = []
    for chain, draw in np.ndindex(posterior.topology.shape):
        shape = posterior.topologies[posterior.topology[chain, draw]]
        tree = posterior.trees[chain, draw]
        splits = list(zip(tree.direction.tolist(), tree.threshold.tolist(), strict=True))

        def leaves(row, shape=shape, splits=splits):
            return plain_leaves(shape.code, splits, (row - low) / width, SHARPNESS)

        if isinstance(model, SoftRegression):
            mean = tree.leaves["mean"].tolist()
            given.append([sum(p * mean[k] for k, p in enumerate(leaves(row))) for row in rows])
            continue
        if model.likelihood == "mixture":
            of_leaves = tree.leaves["classes"].tolist()
        else:
            counts = [list(model.concentration) for _ in range(shape.num_leaves)]
            for row, label in zip(posterior.matrix, y, strict=True):
                for k, p in enumerate(leaves(row)):
                    counts[k][label] += p
            of_leaves = [[c / sum(leaf) for c in leaf] for leaf in counts]
        given.append(
            [
                [sum(p * of_leaves[k][c] for k, p in enumerate(leaves(row))) for c in range(3)]
                for row in rows
            ]
        )
    return np.array(given).reshape(*posterior.topology.shape, len(rows), -1)


MODELS = [
    SoftRegression(),
    SoftClassification(concentration=(1.0, 2.0, 0.5)),
    SoftClassification(concentration=(1.0, 2.0, 0.5), likelihood="mixture"),
]


def check_predictions(model):
    density = density_of(model)
    is_regression = isinstance(model, SoftRegression)
    posterior = resample(
        draws_of(density), density, seed=0, chains=2, draws=8, **about(is_regression=is_regression)
    )
    rows = posterior.matrix[:4]
    plain = plain_predictions(posterior, rows)
    ours = posterior.means(rows)
    np.testing.assert_allclose(ours.reshape(plain.shape), plain, rtol=1e-10)
    mean = posterior.predictive(rows).mean()
    np.testing.assert_allclose(mean, plain.mean(axis=(0, 1)).reshape(mean.shape), rtol=1e-10)


@pytest.mark.parametrize("model", MODELS, ids=["regression", "compound", "mixture"])
def test_predictions_are_those_of_plain_recursion(model):
    check_predictions(model)


@pytest.mark.slow
def test_mirrored_sides_are_noticed(monkeypatch):
    """The twin of the predictions' check."""

    def mirrored(paths, *given):
        return leaf_probabilities(-paths, *given)

    monkeypatch.setattr(soft_trees, "leaf_probabilities", mirrored)
    jax.clear_caches()
    with pytest.raises(AssertionError):
        check_predictions(MODELS[0])
    monkeypatch.undo()
    jax.clear_caches()


def test_resampling_follows_the_weights():
    """Systematic resampling gives each draw its share of all places, up to one place."""
    density = density_of(SoftRegression())
    found = draws_of(density)
    posterior = resample(found, density, seed=1, chains=4, draws=250, **about())
    assert posterior.topologies == tuple(reversed(SHAPES))  # by probability
    share = np.bincount(posterior.topology.ravel()) / 1000
    np.testing.assert_allclose(share, [0.4, 0.3, 0.2, 0.1], atol=1e-3)
    first = posterior.trees.threshold[posterior.topology == 0]
    _, counts = np.unique(first[:, 0], return_counts=True)
    np.testing.assert_allclose(np.sort(counts) / 400, np.arange(1, 6) / 15, atol=3e-3)
    np.testing.assert_array_equal(posterior.num_leaves[posterior.topology == 3], 1)


def test_chains_keep_their_draws_in_place():
    density = density_of(SoftRegression())
    shapes = [Topology("100"), Topology("0")]
    found = draws_of(density, shapes, num_draws=6)
    topology = np.array([[0, 1, 0], [0, 0, 1]])
    position = np.full((2, 3, density(1).size), np.nan)
    position[topology == 0] = found[0].position[:4]
    position[topology == 1, : found[1].position.shape[1]] = found[1].position[:2]
    posterior = along_chains(shapes, topology, position, None, density, **about())
    np.testing.assert_allclose(posterior.probability, [2 / 3, 1 / 3])
    with jax.enable_x64(True):
        for chain, draw in np.ndindex(topology.shape):
            n = shapes[topology[chain, draw]].num_splits
            sites = density(n).parameters(position[chain, draw, : density(n).size])
            ours = posterior.trees.leaves["mean"][chain, draw][: n + 1]
            np.testing.assert_allclose(ours, sites["mean"])


def test_hard_inputs_are_corners():
    model = SoftRegression()
    density = cache(lambda n: SoftDensity(model, *_scaled(model), n, hard_inputs=True))
    shape = Topology("100")
    position = drawn(density(1), 7, 4)
    inputs = np.array([[1], [0], [1], [1]])
    posterior = along_chains(
        [shape], np.zeros((1, 4), int), position[None], inputs[None], density, **about()
    )
    np.testing.assert_array_equal(posterior.trees.direction[0, :, 0], np.eye(2)[inputs[:, 0]])
    np.testing.assert_allclose(posterior.input_weights.mean((0, 1)), [0.25, 0.75])


def test_hard_routing_is_that_of_hard_splits():
    density = density_of(SoftRegression())
    posterior = resample(draws_of(density), density, seed=0, chains=1, draws=20, **about())
    rows = posterior.matrix
    x = (rows - posterior.scaling[0]) / posterior.scaling[1]
    hard = posterior.means(rows, sharpness=0)
    for draw in range(20):
        tree = posterior.trees[0, draw]
        left = tree.direction @ x.T < tree.threshold[:, None]
        for i in range(len(rows)):
            fits = [
                is_leaf and all(left[j, i] == (way > 0) for j, way in enumerate(path) if way)
                for path, is_leaf in zip(tree.paths, tree.is_leaf, strict=True)
            ]
            (leaf,) = np.flatnonzero(fits)
            assert hard[0, draw, i] == pytest.approx(tree.leaves["mean"][leaf])


def test_one_input_needs_no_direction():
    density = density_of(SoftRegression(), num_inputs=1)
    posterior = resample(
        draws_of(density), density, seed=0, chains=1, draws=6, **about(num_inputs=1)
    )
    assert posterior.means(posterior.matrix).shape == (1, 6, 12)


def test_pointwise_log_likelihood():
    model = SoftRegression(degrees_of_freedom=4.0)
    density = density_of(model)
    posterior = resample(draws_of(density), density, seed=0, chains=1, draws=6, **about())
    scale = np.sqrt(posterior.trees.leaves["noise"])[..., None]
    expected = stats.t.logpdf(posterior.y, 4, posterior.means(posterior.matrix), scale)
    np.testing.assert_allclose(posterior.log_likelihood(), expected)
    classes = MODELS[2]
    density = density_of(classes)
    posterior = resample(draws_of(density), density, seed=0, chains=1, draws=6, **about(2, False))
    own = posterior.means(posterior.matrix)[..., np.arange(12), posterior.y]
    np.testing.assert_allclose(posterior.log_likelihood(), np.log(own))


def test_compound_has_no_pointwise_likelihood():
    density = density_of(MODELS[1])
    posterior = resample(draws_of(density), density, seed=0, chains=1, draws=3, **about(2, False))
    with pytest.raises(ValueError, match="equation 8"):
        posterior.log_likelihood()


def test_balanced_votes():
    """A tree without a split votes equally for all classes."""
    density = density_of(MODELS[1])
    (leaf,) = draws_of(density, SHAPES[:1])
    posterior = resample([leaf], density, seed=0, chains=1, draws=3, **about(2, False))
    votes = posterior.predictive(posterior.matrix, votes="balanced").mean()
    np.testing.assert_allclose(votes, 1 / 3)


@pytest.mark.parametrize("degrees_of_freedom", [None, 1.5])
def test_quantiles_invert_the_cdf(degrees_of_freedom):
    rng = np.random.default_rng(3)
    loc, scale = rng.normal(0, 50, (7, 4)), rng.gamma(0.5, 1, (7, 4))
    mixture = NoiseMixture(loc, scale, degrees_of_freedom)
    law = stats.norm if degrees_of_freedom is None else stats.t(degrees_of_freedom)
    probabilities = [0.001, 0.25, 0.5, 0.95]
    found = mixture.quantiles(probabilities)
    for column, p in enumerate(probabilities):
        cdf = law.cdf((found[:, column] - loc) / scale).mean(axis=0)
        np.testing.assert_allclose(cdf, p, atol=1e-9)
    density = (law.pdf((1.0 - loc) / scale) / scale).mean(axis=0)
    np.testing.assert_allclose(mixture.log_density(np.ones(4)), np.log(density))


def test_draws_follow_the_mixtures():
    """Kolmogorov-Smirnov and G-test of 20,000 draws; false alarms at most 1e-4 each."""
    loc, scale = np.array([[0.0], [3.0], [3.5]]), np.array([[1.0], [0.2], [2.0]])
    drawn = NoiseMixture(loc, scale).sample(jax.random.key(0), 20_000)[:, 0]

    def cdf(y):
        return stats.norm.cdf((np.asarray(y)[None] - loc) / scale).mean(axis=0)

    assert stats.kstest(drawn, cdf).pvalue > 1e-4
    assert stats.kstest(drawn, lambda y: cdf(np.asarray(y) + 0.1)).pvalue < 1e-4  # the twin
    probability = np.array([[[0.1, 0.2, 0.7]], [[0.5, 0.3, 0.2]]])
    labels = ClassMixture(probability).sample(jax.random.key(1), 20_000)[:, 0]
    counts = np.bincount(labels, minlength=3)
    expected = 20_000 * probability.mean(axis=(0, 1))
    assert stats.chisquare(counts, expected).pvalue > 1e-4
    assert stats.chisquare(counts, expected[::-1]).pvalue < 1e-4  # the twin


def _scaled(model):
    matrix, scaling, y = problem(isinstance(model, SoftRegression))
    return (matrix - scaling[0]) / scaling[1], y


def test_a_law_that_is_not_a_number_ends_in_an_error():
    """The search for quantiles ends, whatever the law is."""
    mixture = NoiseMixture(np.full((2, 3), np.nan), np.ones((2, 3)))
    with pytest.raises(ValueError, match="cdf of the noise of soft trees is not a number"):
        mixture.quantiles([0.5])
    mixture = NoiseMixture(np.zeros((2, 3)), np.ones((2, 3)), 1e-3)  # the cdf hardly rises
    with pytest.raises(ValueError, match="cannot be bracketed"):
        mixture.quantiles([1e-12])
