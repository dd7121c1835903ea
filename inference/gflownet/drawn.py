"""Weighted draws of a trained policy, and estimates of log Z.

A draw's importance weight is its tree's prior weight times likelihood, over the probability of
drawing it. Weights correct the errors of the policy: their mean is an unbiased estimate of Z, the
sum over trees of prior weight times likelihood. The mean of their logs bounds log Z from below for
draws from the policy (ELBO), and from above for draws from the posterior (EUBO).
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
        The draws with their importance weights. Its log evidence is NaN if the prior is not
        normalised. If a prior shares a partition's weight among its rules, the statistic
        ``shared_log_joint`` contains the tree's share, and ``log_joint`` the whole weight.
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
    """Make a posterior of draws and summarise their weights; inside a double-precision scope.

    Parameters
    ----------
    model, packed
        The model, and the same packed.
    shape, log_weights, shared_log_joint
        Trees, the logs of their importance weights [m], and their log joints [m], shared among
        equivalent rules; those beyond the requested draws are omitted.
    chains, draws
        Layout of the draws, which are independent.
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
