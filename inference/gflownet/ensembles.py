"""Weights of draws from a policy, for predictions by all of them together."""

from dataclasses import replace
from typing import Literal

import numpy as np

from bdtppl.inference.hard.posterior import Posterior

Ensemble = Literal["importance", "mean", "distinct", "algorithm-1"]
"""How draws are weighed.

"importance": by their importance weights, which correct what the policy has not learned. "mean":
equally, as if the policy drew from the posterior. "distinct": each distinct tree by its posterior
probability. "algorithm-1": each draw by the posterior probability of its tree, as Algorithm 1 of
DT-GFN has it; a policy that draws from the posterior then counts it twice.
"""


def reweighted(posterior: Posterior, ensemble: Ensemble) -> Posterior:
    """Reweight the draws of a policy.

    Parameters
    ----------
    posterior
        Draws with importance weights (`bdtppl.inference.gflownet.drawn.Drawn`).
    ensemble
        Kind of the weights.
    """
    stats = posterior.sample_stats
    log_joint = stats.get("shared_log_joint", stats["log_joint"])
    if ensemble == "importance":
        return posterior
    if ensemble == "mean":
        return replace(posterior, log_weights=None)
    if ensemble == "algorithm-1":
        return replace(posterior, log_weights=log_joint)
    _, tree = posterior.distinct
    count = np.bincount(tree.ravel())[tree]
    return replace(posterior, log_weights=log_joint - np.log(count))
