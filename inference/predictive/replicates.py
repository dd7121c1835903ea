"""Replicated data sets: joint draws of the targets of all rows.

The targets of one replicate share one draw of tree and leaf parameters. So a statistic of
replicates varies as in new data, unlike with a separate draw for every row. Leaf parameters of hard
trees are integrated out, so the targets of a replicate are drawn one after the other, each given
those before it in its leaf (Polya's urn).
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from bdtppl.inference.hard.posterior import Posterior
from bdtppl.inference.posteriors import AnyPosterior
from bdtppl.models.arrays.padding import padded, padded_size
from bdtppl.models.arrays.precision import as_float64, in_float64
from bdtppl.models.hard.tree import route
from bdtppl.models.leaf import Leaf


@in_float64
def replicate(
    rng_key: jax.Array, posterior: AnyPosterior, matrix: np.ndarray, num_draws: int
) -> np.ndarray:
    """Draw replicated targets of rows.

    Parameters
    ----------
    rng_key
        JAX key.
    posterior
        Draws of trees.
    matrix
        Rows, float64 [m, d].
    num_draws
        Number of replicates; for soft trees, at most the number of draws. Rows are independent if
        leaf probabilities are integrated out (the compound likelihood).

    Returns
    -------
    numpy.ndarray
        [num_draws, m]; class indices if targets are classes.

    Examples
    --------
    >>> from bdtppl import ExactTreeClassifier
    >>> model = ExactTreeClassifier(random_state=0).fit([[0.0], [1.0], [2.0]], [0, 0, 1])
    >>> replicate(jax.random.key(0), model.posterior_, model.design_.matrix, 5).shape
    (5, 3)
    """
    if not isinstance(posterior, Posterior):
        drawn = posterior.sample_predictive(rng_key, matrix).reshape(-1, len(matrix))
        return drawn[np.linspace(0, len(drawn) - 1, min(num_draws, len(drawn))).astype(int)]
    key_tree, key_target = jax.random.split(rng_key)
    ranked = posterior.ranked
    running = np.cumsum(ranked.probability)
    places = (np.arange(num_draws) + float(jax.random.uniform(key_tree))) / num_draws * running[-1]
    chosen = np.searchsorted(running[:-1], places, side="right")
    slots = route(ranked.trees, matrix)[chosen]
    return draw_in_turn(key_target, posterior.leaf, ranked.statistics[chosen], slots)


@in_float64
def draw_in_turn(
    rng_key: jax.Array, leaf: Leaf, statistics: np.ndarray, slots: np.ndarray
) -> np.ndarray:
    """Draw targets one row after the other, each given those before it in its leaf.

    Parameters
    ----------
    rng_key
        JAX key.
    leaf
        Leaf family.
    statistics
        float64 [r, k, s]; statistics of earlier rows in each slot of r trees.
    slots
        int [r, m]; slots of the rows' leaves.

    Returns
    -------
    numpy.ndarray
        [r, m].
    """
    rows = padded(slots.T, padded_size(slots.shape[1]))  # padding comes last
    drawn = _draw_replicate(as_float64(leaf), rng_key, jnp.asarray(statistics), rows)
    return np.asarray(drawn)[: slots.shape[1]].T


@jax.jit
def _draw_replicate(
    leaf: Leaf, rng_key: jax.Array, statistics: jax.Array, slots: jax.Array
) -> jax.Array:
    """Draw targets [m, r] one row after the other, of r trees with statistics [r, k, s]."""
    tree = jnp.arange(len(statistics))

    def next_row(statistics: jax.Array, given: tuple[jax.Array, jax.Array]):
        key, slot = given
        y = leaf.sample(key, statistics[tree, slot])
        own = leaf.statistics(y, jnp.ones(len(y)))
        return statistics.at[tree, slot].add(own), y

    return lax.scan(next_row, statistics, (jax.random.split(rng_key, len(slots)), slots))[1]
