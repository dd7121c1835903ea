"""Weighted draws: the posterior that a trained policy stands for, and estimates of its sum.

A draw's importance weight is its tree's prior weight times likelihood over the probability of its
being drawn. Weights correct what the policy has not learned: their mean is an unbiased estimate of
Z, the sum over trees of prior weight times likelihood; the mean of their logs bounds log Z from
below where draws are the policy's (ELBO), and from above where they are the posterior's (EUBO).
"""

from typing import NamedTuple

import jax
import numpy as np

from bdtppl.inference.evidence.estimates import log_mean
from bdtppl.inference.hard.posterior import Posterior
from bdtppl.inference.hard.shapes import Shape
from bdtppl.inference.hard.written_trees import write_out
from bdtppl.models.constraints import Constraints
from bdtppl.models.data.design import Design
from bdtppl.models.hard.log_joint import log_joint
from bdtppl.models.hard.packed_model import PackedModel
from bdtppl.models.leaves import Leaf
from bdtppl.models.priors import TreePrior

__all__ = ["Drawn", "effective_size", "weighed"]


class Drawn(NamedTuple):
    """What a policy has drawn.

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


def effective_size(log_weights: np.ndarray) -> float:
    """Effective sample size of weights."""
    weights = np.exp(log_weights - log_weights.max())
    return float(weights.sum() ** 2 / (weights**2).sum())


def weighed(
    model: PackedModel,
    shape: Shape,
    log_weights: np.ndarray,
    shared_log_joint: np.ndarray,
    design: Design,
    y: np.ndarray,
    prior: TreePrior,
    leaf: Leaf,
    constraints: Constraints,
    *,
    chains: int,
    draws: int,
) -> Drawn:
    """Write out draws and sum up their weights; inside a double-precision scope.

    Parameters
    ----------
    model
        The model as it was posed.
    shape, log_weights, shared_log_joint
        Trees, the logs of their importance weights [m], and their log joints [m], shared as said;
        those beyond the draws that are wanted are left out.
    design, y, prior, leaf, constraints
        The model that was posed.
    chains, draws
        How the draws, which are independent, are laid out.
    """
    size = chains, draws
    log_weights = np.asarray(log_weights)[: chains * draws]
    written = write_out(model, design, jax.tree.map(lambda a: a[: chains * draws], shape))
    trees = written.trees.reshape(*size)
    scores = log_joint(trees, design, y, prior, leaf, constraints)
    log_partition, error = log_mean(log_weights)
    shared = np.asarray(shared_log_joint)[: chains * draws].reshape(size)
    posterior = Posterior(
        trees=trees,
        statistics=written.statistics.reshape(*size, *written.statistics.shape[1:]),
        sample_stats={
            "log_joint": scores.log_joint,
            "log_likelihood": scores.log_likelihood,
            "num_leaves": trees.num_leaves,
            "max_leaf_depth": trees.depth,
            **({"shared_log_joint": shared} if prior.counts_partitions else {}),
        },
        leaf=leaf,
        prior=prior.resolve(design),
        design=design,
        y=y,
        log_evidence=log_partition if prior.is_normalised else float("nan"),
        log_evidence_se=error if prior.is_normalised else float("nan"),
        log_weights=log_weights.reshape(size),
    )
    return Drawn(
        posterior, log_partition, error, float(log_weights.mean()), effective_size(log_weights)
    )
