"""Weighted draws of a trained policy, and estimates of log Z.

A draw's importance weight is its tree's prior weight times likelihood, over the probability of
drawing it. Weights correct the errors of the policy: their mean is an unbiased estimate of Z, the
sum over trees of prior weight times likelihood; the mean of their logs bounds log Z from below
where draws are the policy's (ELBO), and from above where they are the posterior's (EUBO).
"""

from typing import NamedTuple

import jax
import numpy as np

from bdtppl.inference.evidence.estimates import log_mean
from bdtppl.inference.hard.posterior import Posterior
from bdtppl.inference.hard.shapes import Shape
from bdtppl.inference.hard.written_trees import write_out
from bdtppl.inference.statistics import effective_sample_size
from bdtppl.models.hard.log_joint import log_joint
from bdtppl.models.hard.packed_model import PackedModel
from bdtppl.models.hard.tree_model import TreeModel


class Drawn(NamedTuple):
    """Draws of a policy.

    Attributes
    ----------
    posterior
        The draws with their importance weights. Its log evidence is NaN where the prior is not
        normalised. Where a prior that counts partitions shares the weight of one among its rules,
        the statistic ``shared_log_joint`` has the tree's share; ``log_joint`` has all of it.
    log_partition, log_partition_se
        Log of the sum over trees of prior weight times likelihood, estimated by importance
        sampling, and its standard error (delta method).
    lower_bound
        Mean log weight (ELBO): at most the log of that sum, on average.
    effective_size
        Effective sample size of the weights, at most the number of draws.
    """

    posterior: Posterior
    log_partition: float
    log_partition_se: float
    lower_bound: float
    effective_size: float


def weighed(
    model: TreeModel,
    packed: PackedModel,
    shape: Shape,
    log_weights: np.ndarray,
    shared_log_joint: np.ndarray,
    *,
    chains: int,
    draws: int,
) -> Drawn:
    """Write out draws and sum up their weights; inside a double-precision scope.

    Parameters
    ----------
    model, packed
        The model, and the same packed.
    shape, log_weights, shared_log_joint
        Trees, the logs of their importance weights [m], and their log joints [m], shared as said;
        those beyond the draws that are wanted are left out.
    chains, draws
        How the draws, which are independent, are laid out.
    """
    size = chains, draws
    log_weights = np.asarray(log_weights)[: chains * draws]
    written = write_out(packed, jax.tree.map(lambda a: a[: chains * draws], shape))
    trees = written.trees.reshape(*size)
    scores = log_joint(trees, model)
    log_partition, error = log_mean(log_weights)
    stats = scores._asdict()
    if model.prior.counts_partitions:
        stats["shared_log_joint"] = np.asarray(shared_log_joint)[: chains * draws]
    is_normalised = model.prior.is_normalised
    posterior = Posterior.of(
        model,
        trees,
        written.statistics,
        log_evidence=log_partition if is_normalised else np.nan,
        log_evidence_se=error if is_normalised else np.nan,
        log_weights=log_weights.reshape(size),
        **stats,
    )
    size = effective_sample_size(np.exp(log_weights - log_weights.max()))
    return Drawn(posterior, log_partition, error, float(log_weights.mean()), size)
