"""Quantities of trees that are followed along chains, to tell whether these agree."""

import numpy as np

from bdtppl.inference.additive.posterior import SumPosterior
from bdtppl.inference.posteriors import AnyPosterior

__all__ = ["followed"]

_ROWS = 5  # training rows whose predictions are followed


def followed(posterior: AnyPosterior) -> dict[str, np.ndarray]:
    """Compute the quantities to diagnose, float64 [chain, draw] each.

    The log joint, or the log likelihood where draws have no log joint, the number of leaves of a
    tree, the noise of sums, and at a few training rows the predictive mean, or the probability of
    the row's own class.
    """
    rows = np.unique(np.linspace(0, len(posterior.y) - 1, _ROWS).astype(int))
    means = posterior.means(posterior.matrix[rows])
    if means.ndim > 3:
        means = np.take_along_axis(means, posterior.y[rows][None, None, :, None], axis=3)[..., 0]
    scores = posterior.sample_stats
    score = "log_joint" if "log_joint" in scores else "log_likelihood"
    quantities = {score: np.asarray(scores[score], float)}
    if not isinstance(posterior, SumPosterior):
        quantities["num_leaves"] = posterior.num_leaves.astype(float)
    elif posterior.prior.link == "identity":
        quantities["sigma"] = posterior.sigma
    return quantities | {f"prediction_{row}": means[..., i] for i, row in enumerate(rows.tolist())}
