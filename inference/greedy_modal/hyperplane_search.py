"""The search for the normal of a hyperplane in one node.

For a normal w and an offset t, soft memberships of the left side, sigmoid((t - x w) / temperature),
make the score of a partition differentiable. Adam (Kingma and Ba 2015) maximises it while the
temperature falls, from the best cut of one feature, from least-squares directions and from random
starts.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from bdtppl.inference.greedy_modal.columns import Level
from bdtppl.inference.greedy_modal.partitions import Best
from bdtppl.inference.greedy_modal.problem import Problem
from bdtppl.models.arrays.precision import as_float64
from bdtppl.models.leaf import Leaf

_TEMPERATURES = np.geomspace(0.5, 0.015, 60)  # standard deviations of the features in the node
_LEARNING_RATE = 0.15
_KEPT_STEPS = np.array([0, 30, 59])  # steps whose normals are tried, because there are many maxima
_FITTED_STARTS = 3  # most starts from least squares
_LEAST_LENGTH = 64  # least length of padded arrays in the compiled search


def num_normals(problem: Problem) -> int:
    """Count the normals m that a search proposes."""
    return len(_KEPT_STEPS) * _num_starts(problem)


def _num_starts(problem: Problem) -> int:
    fitted = min(_FITTED_STARTS, problem.columns.statistics.shape[0])
    return problem.num_starts + 1 + fitted


def search(
    problem: Problem, level: Level, best: Best, k: int, features: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Search a node for normals, and return the spread of its features.

    Parameters
    ----------
    problem
        Rows and model.
    level
        The nodes.
    best
        Best rule of a single feature in each node.
    k
        The node.
    features
        int [p]; features that may have a component.

    Returns
    -------
    normals
        float64 [m, p]; in units of 1 / feature, of any length; 0 if the search failed.
    scale
        float64 [p]; standard deviations, 0 for a feature that is constant or out of range.
    """
    rows, columns = level.rows[0][level.start[k] : level.start[k + 1]], problem.columns
    weights = np.ones(len(rows)) if columns.weights is None else columns.weights[rows]
    values, centre, scale = _standardised(problem.design.matrix[rows][:, features], weights)
    if np.count_nonzero(scale) < 2:
        return np.zeros((num_normals(problem), len(features))), scale
    statistics = columns.statistics[:, rows].T.astype(np.float64)
    # Every node uses the same random starts, so that nodes do not depend on each other.
    rng = np.random.default_rng(problem.seed)
    starts = rng.standard_normal((_num_starts(problem), len(features) + 1))
    fitted = _fitted_normals(values, statistics, weights)
    starts[: len(fitted)] = np.pad(fitted, ((0, 0), (0, 1)))
    feature, threshold = _cut(problem, best, k)
    for j in np.flatnonzero((features == feature) & (scale > 0)):
        starts[len(fitted)] = np.arange(len(features) + 1) == j
        starts[len(fitted), -1] = (threshold - centre[j]) / scale[j]
    length = _LEAST_LENGTH
    while length < len(rows):  # few lengths, because each is compiled
        length *= 4
    padding = ((0, length - len(rows)), (0, 0))
    absorbed = np.zeros((1, statistics.shape[1])) if level.pseudo is None else level.pseudo[[k]]
    with jax.enable_x64(True):
        climbed = _climb(
            as_float64(problem.leaf),
            np.pad(values, padding),
            np.pad(statistics, padding),
            absorbed,
            starts,
            _TEMPERATURES,
        )
    # In units of the feature of least spread, so that nothing overflows.
    unit = np.where(scale > 0, scale[scale > 0].min() / np.where(scale > 0, scale, 1.0), 0.0)
    normals = np.asarray(climbed) * unit
    return np.where(np.isfinite(normals).all(axis=1, keepdims=True), normals, 0.0), scale


def _cut(problem: Problem, best: Best, k: int) -> tuple[int, float]:
    """Return the feature and threshold of a node's best rule of a single feature."""
    split = problem.splits(best.at(k))
    return int(split.feature), float(split.threshold)


def _standardised(
    values: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Standardise values [n, p]; return means and standard deviations, too."""
    with np.errstate(over="ignore", invalid="ignore"):
        centre = np.average(values, axis=0, weights=weights)
        scale = np.sqrt(np.average((values - centre) ** 2, axis=0, weights=weights))
    # The mean of equal numbers may be wrong in its last digit; such a spread counts as 0.
    usable = np.isfinite(scale) & (scale > 1e-12 * np.abs(values).max(axis=0))
    scale = np.where(usable, scale, 0.0)
    with np.errstate(over="ignore", invalid="ignore"):
        standard = np.where(usable, (values - centre) / np.where(usable, scale, 1.0), 0.0)
    return standard, centre, scale


def _fitted_normals(values: np.ndarray, statistics: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return least-squares directions of the leaf statistics that are not parallel, float64 [m, p].

    For the counts of classes these are the linear discriminants of one class against the rest.
    """
    # Not by BLAS, whose sums depend on the number of threads.
    squares = np.einsum("nj,nk,n->jk", values, values, weights.astype(float), optimize=False)
    products = np.einsum("nj,ns->js", values, statistics, optimize=False)
    ridge = 1e-6 * np.trace(squares) * np.eye(len(squares))
    # The remainder of a constant statistic, such as the number of rows, is rounding.
    size = np.sqrt(np.trace(squares) * (statistics.astype(float) ** 2).sum(axis=0))
    products = products[:, np.linalg.norm(products, axis=0) > 1e-9 * size]
    kept: list[np.ndarray] = []
    for direction in np.linalg.solve(squares + ridge, products).T:
        length = np.linalg.norm(direction)
        if length > 0 and np.isfinite(length) and len(kept) < _FITTED_STARTS:
            direction = direction / length
            if all(abs(direction @ other) < 0.999 for other in kept):
                kept.append(direction)
    return np.array(kept).reshape(-1, values.shape[1])


@jax.jit
def _climb(
    leaf: Leaf,
    values: jax.Array,
    statistics: jax.Array,
    absorbed: jax.Array,
    starts: jax.Array,
    temperatures: jax.Array,
) -> jax.Array:
    """Maximise the softened score of a partition; rows n, features p, m starts (normal and offset).

    Returns
    -------
    jax.Array
        float64 [m, p]; normals of length 1.
    """
    total = statistics.sum(axis=0)
    optimizer = optax.adam(_LEARNING_RATE)

    def normalised(normal):
        return normal / jnp.sqrt((normal**2).sum() + 1e-30)

    def loss(start, temperature):
        distance = start[-1] - values @ normalised(start[:-1])
        left = jax.nn.sigmoid(distance / temperature) @ statistics
        return -leaf.log_marginal(absorbed + jnp.stack([left, total - left])).sum()

    def step(carry, temperature):
        start, state = carry
        updates, state = optimizer.update(jax.grad(loss)(start, temperature), state)
        start = jnp.asarray(optax.apply_updates(start, updates))
        return (start, state), normalised(start[:-1])

    def climbed(start):
        _, path = lax.scan(step, (start, optimizer.init(start)), temperatures)
        return path[_KEPT_STEPS]

    return jnp.reshape(jax.vmap(climbed, out_axes=1)(starts), (-1, values.shape[1]))
