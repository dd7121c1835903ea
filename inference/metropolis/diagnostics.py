"""What of trees is followed along chains, to tell whether they agree."""

import numpy as np

from bdtppl.inference.posterior import Posterior

__all__ = ["followed"]

_ROWS = 5  # training rows whose predictions are followed


def followed(posterior: Posterior) -> dict[str, np.ndarray]:
    """Name what of the draws is diagnosed, float64 [chain, draw] each.

    The log joint, the number of leaves, and at a few training rows the predictive mean, or the
    probability of the row's own class.
    """
    num_rows = posterior.design.num_rows
    rows = np.unique(np.linspace(0, num_rows - 1, _ROWS).astype(int))
    means = posterior.leaf_means(posterior.matrix[rows])
    if means.ndim > 3:
        means = np.take_along_axis(means, posterior.y[rows][None, None, :, None], axis=3)[..., 0]
    stats = posterior.sample_stats
    quantities = {name: stats[name].astype(float) for name in ("log_joint", "num_leaves")}
    return quantities | {f"prediction_{row}": means[..., i] for i, row in enumerate(rows.tolist())}
