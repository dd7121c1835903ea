"""Draw trees from a policy, weigh them, and bound the sum over all trees.

A trajectory's importance weight is its tree's weight times the backward probability of the order in
which it was made, over the forward probability. The mean of the weights is an unbiased estimate of
Z, the sum over trees of prior weight times likelihood; the mean of their logs bounds log Z from
below where trajectories are the policy's, and from above where their trees are the posterior's.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bdtppl.inference.evidence import log_mean
from bdtppl.inference.gflownet.backward import reordered
from bdtppl.inference.gflownet.construction import Construction
from bdtppl.inference.gflownet.policy import Policy
from bdtppl.inference.gflownet.rollout import Trajectories, roll_out
from bdtppl.inference.padding import padded_size
from bdtppl.inference.posterior import Posterior
from bdtppl.inference.precision import in_float64
from bdtppl.inference.shapes import Shape
from bdtppl.inference.written_trees import as_shape, write_out
from bdtppl.models.data import Design
from bdtppl.models.hard_tree import log_joint
from bdtppl.models.leaves import Leaf
from bdtppl.models.priors import TreePrior
from bdtppl.models.tree import Tree

__all__ = ["Drawn", "sample", "upper_bound"]

_PIECE = 256  # trajectories that are drawn at once


class Drawn(NamedTuple):
    """What a policy has drawn.

    Attributes
    ----------
    posterior
        The draws with their importance weights. Its log evidence is NaN where the prior is not
        normalised.
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


class _Weighed(NamedTuple):
    shape: Shape
    log_weight: jax.Array
    log_joint: jax.Array
    log_likelihood: jax.Array


@in_float64
def sample(
    rng_key: jax.Array,
    construction: Construction,
    policy: Policy,
    design: Design,
    y: np.ndarray,
    prior: TreePrior,
    leaf: Leaf,
    *,
    chains: int = 4,
    draws: int = 250,
) -> Drawn:
    """Draw independent trees from a policy.

    Parameters
    ----------
    rng_key
        Key.
    construction
        What trees are made of.
    policy
        The policy.
    design, y, prior, leaf
        The model that the construction was made of.
    chains, draws
        How the draws are laid out.
    """
    number = chains * draws
    keys = jax.random.split(rng_key, -(-number // _PIECE))
    parts = [jax.tree.map(np.asarray, _draw(key, construction, policy)) for key in keys]
    drawn = jax.tree.map(lambda *a: np.concatenate(a)[:number], *parts)
    written = write_out(construction.model, design, drawn.shape)
    trees = written.trees.reshape(chains, draws)
    scores = drawn.log_joint
    if prior.counts_partitions:  # a partition's weight is shared among its rules here
        scores = log_joint(written.trees, design, y, prior, leaf).log_joint
    log_partition, error = log_mean(drawn.log_weight)
    weights = np.exp(drawn.log_weight - drawn.log_weight.max())
    posterior = Posterior(
        trees=trees,
        statistics=written.statistics.reshape(chains, draws, *written.statistics.shape[1:]),
        sample_stats={
            "log_joint": scores.reshape(chains, draws),
            "log_likelihood": drawn.log_likelihood.reshape(chains, draws),
            "num_leaves": trees.num_leaves,
            "max_leaf_depth": trees.depth,
        },
        leaf=leaf,
        prior=prior.resolve(design),
        design=design,
        y=y,
        log_evidence=log_partition if prior.is_normalised else float("nan"),
        log_evidence_se=error if prior.is_normalised else float("nan"),
        log_weights=drawn.log_weight.reshape(chains, draws),
    )
    return Drawn(
        posterior,
        log_partition,
        error,
        float(drawn.log_weight.mean()),
        float(weights.sum() ** 2 / (weights**2).sum()),
    )


@in_float64
def upper_bound(
    rng_key: jax.Array,
    construction: Construction,
    policy: Policy,
    design: Design,
    trees: Tree,
) -> float:
    """Bound log Z from above by trees of the posterior (EUBO).

    Parameters
    ----------
    rng_key
        Key.
    construction, policy
        The policy, and what trees are made of.
    design
        The design that the construction was made of.
    trees
        Draws from the posterior [m].

    Returns
    -------
    float
        Mean log weight of the trees, each made in an order drawn from the backward policy.

    Raises
    ------
    ValueError
        If a tree needs more splits than the construction has.
    """
    shape = as_shape(construction.model, design, trees, construction.capacity)
    number, padded = len(shape.size), padded_size(len(shape.size))
    shape = jax.tree.map(lambda a: np.resize(a, (padded, *a.shape[1:])), shape)
    weighed = _weigh(rng_key, construction, policy, shape)
    return float(np.asarray(weighed.log_weight)[:number].mean())


@jax.jit
def _draw(rng_key, construction, policy) -> _Weighed:
    return _weighed(roll_out(rng_key, construction, policy, num_drawn=_PIECE))


@jax.jit
def _weigh(rng_key, construction, policy, shape: Shape) -> _Weighed:
    given = reordered(rng_key, shape)
    return _weighed(roll_out(rng_key, construction, policy, given=given))


def _weighed(made: Trajectories) -> _Weighed:
    shape, leaf_score = made.trees.shape, made.trees.terms.leaf_score
    log_likelihood = jnp.where(shape.is_leaf, leaf_score, 0.0).sum(axis=1)
    return _Weighed(shape, made.log_weights, made.log_joint[:, -1], log_likelihood)
