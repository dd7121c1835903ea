"""Quantities of trees that are followed along chains, to check their agreement."""

import numpy as np

from bdtppl.inference.additive.posterior import SumPosterior
from bdtppl.inference.posteriors import AnyPosterior

_ROWS = 5  # training rows whose predictions are followed
_ROWS_OF_SUMS = 50


def predicted(posterior: SumPosterior) -> np.ndarray:
    """Predict fifty training rows by each draw, [chain, draw, 50], each times its weight's root.

    Variances summed over rows then count a row by its weight. Effects of a treatment are predicted
    as well, so that the last axis is twice as long.
    """
    rows = _spread(posterior, _ROWS_OF_SUMS)
    found = _at_rows(posterior, rows) * np.sqrt(posterior.row_weights[rows])
    if posterior.effect is None:
        return found
    effects = posterior.effect.of_one_unit(posterior.matrix[rows])
    return np.concatenate([found, effects * np.sqrt(posterior.row_weights[rows])], axis=-1)


def _at_rows(posterior: AnyPosterior, rows: np.ndarray) -> np.ndarray:
    """Predict training rows: a sum of numbers, a mean, or the probability of the row's class."""
    if isinstance(posterior, SumPosterior) and posterior.prior.link == "identity":
        return posterior.sums(posterior.matrix[rows])[:, :, 0]  # on their scale, like the chains
    means = posterior.means(posterior.matrix[rows])
    if means.ndim > 3:
        means = np.take_along_axis(means, posterior.y[rows][None, None, :, None], axis=3)[..., 0]
    return means


def _spread(posterior: AnyPosterior, number: int) -> np.ndarray:
    return np.unique(np.linspace(0, len(posterior.y) - 1, number).astype(int))


def followed(posterior: AnyPosterior) -> dict[str, np.ndarray]:
    """Compute the quantities to diagnose, float64 [chain, draw] each.

    They are the log joint (or the log likelihood if draws have no log joint), the number of leaves
    of a tree, the noise of sums, and the predictive mean, or the probability of the row's own
    class, at a few training rows. Sums also have ``predictions`` of fifty rows, [chain, draw, 50].
    """
    rows = _spread(posterior, _ROWS)
    means = _at_rows(posterior, rows)
    scores = posterior.sample_stats
    score = "log_joint" if "log_joint" in scores else "log_likelihood"
    quantities = {score: np.asarray(scores[score], float)}
    if not isinstance(posterior, SumPosterior):
        quantities["num_leaves"] = posterior.num_leaves.astype(float)
    else:
        quantities["predictions"] = predicted(posterior)
        if posterior.prior.link == "identity":
            quantities["sigma"] = posterior.sigma
    return quantities | {f"prediction_{row}": means[..., i] for i, row in enumerate(rows.tolist())}
