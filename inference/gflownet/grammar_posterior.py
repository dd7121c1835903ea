"""The posterior that a trained flow stands for: draws, evidence and bounds.

Draws are independent, with probabilities that are known, so their importance weights (equation 2 of
`bdtppl.inference.gflownet.grammar`) correct what the flow has not learned: the mean weight
estimates Z without bias, and weighted draws are consistent for the posterior.
"""

from typing import NamedTuple

import jax
import numpy as np

from bdtppl.inference.evidence import log_mean
from bdtppl.inference.gflownet.grammar import Problem
from bdtppl.inference.gflownet.grammar_draws import as_heap, draw, follow, from_heap
from bdtppl.inference.gflownet.grammar_network import Flow
from bdtppl.inference.posterior import Posterior
from bdtppl.inference.precision import in_float64
from bdtppl.inference.written_trees import as_shape, write_out
from bdtppl.models.constraints import Constraints
from bdtppl.models.data import Design
from bdtppl.models.hard_tree import log_joint
from bdtppl.models.leaves import Leaf
from bdtppl.models.priors import TreePrior
from bdtppl.models.tree import Tree

__all__ = ["Sampled", "Scores", "sample", "score"]

_PIECE = 16  # trees that are drawn at once, as many as in training: they share what is compiled


class Sampled(NamedTuple):
    """What a flow has drawn.

    Attributes
    ----------
    posterior
        Draws with their importance weights. Its ``log_evidence`` and standard error are those of
        the log partition where the prior is normalised, and NaN elsewhere.
    log_partition, log_partition_se
        Log of the mean importance weight, and its standard error (delta method). The estimate is
        unbiased on the scale of the sum itself.
    log_flow
        Log flow out of the root: the learned log Z.
    lower_bound
        Mean log importance weight, a lower bound of log Z on average.
    effective_size
        Effective sample size of the weights.
    """

    posterior: Posterior
    log_partition: float
    log_partition_se: float
    log_flow: float
    lower_bound: float
    effective_size: float


class Scores(NamedTuple):
    """Given trees under the model and the policy.

    Attributes
    ----------
    log_joint
        float64 [...]; log prior weight, shared among equivalent rules where the prior counts
        partitions, plus log likelihood.
    log_probability
        float64 [...]; log probability that the policy draws the tree.
    """

    log_joint: np.ndarray
    log_probability: np.ndarray

    @property
    def log_weight(self) -> np.ndarray:
        """Log importance weights; their mean over draws from the posterior is the EUBO."""
        return self.log_joint - self.log_probability


@in_float64
def sample(
    rng_key: jax.Array,
    problem: Problem,
    flow: Flow,
    design: Design,
    y: np.ndarray,
    prior: TreePrior,
    leaf: Leaf,
    constraints: Constraints,
    *,
    chains: int = 4,
    draws: int = 250,
) -> Sampled:
    """Draw trees from the policy and weigh them.

    Parameters
    ----------
    rng_key
        Key.
    problem, flow
        The problem as posed, and a flow trained on it.
    design, y, prior, leaf, constraints
        The model that the problem was made of.
    chains, draws
        How the draws, which are independent, are laid out.

    Raises
    ------
    ValueError
        If there are no draws.
    """
    size = chains * draws
    if size < 1:
        raise ValueError(f"At least one draw is needed; got {chains} chains of {draws}.")
    parts, log_flow = [], 0.0
    for start in range(0, size, _PIECE):
        key = jax.random.fold_in(rng_key, start)
        drawn, visits = draw(key, problem, flow, num_trees=_PIECE)
        parts.append(jax.tree.map(np.asarray, drawn))
        log_flow = float(visits.log_partition)
    drawn = jax.tree.map(lambda *some: np.concatenate(some)[:size], *parts)
    written = write_out(problem.model, design, from_heap(drawn.rule))
    trees = written.trees.reshape(chains, draws)
    scored = log_joint(trees, design, y, prior, leaf, constraints)
    log_weight = drawn.log_weight
    log_partition, error = log_mean(log_weight)
    relative = np.exp(log_weight - log_weight.max())
    is_normalised = prior.is_normalised
    posterior = Posterior(
        trees=trees,
        statistics=written.statistics.reshape(chains, draws, *written.statistics.shape[1:]),
        sample_stats={
            "log_joint": scored.log_joint,
            "log_likelihood": scored.log_likelihood,
            "log_probability": drawn.log_probability.reshape(chains, draws),
            "num_leaves": trees.num_leaves,
            "max_leaf_depth": trees.depth,
        },
        leaf=leaf,
        prior=prior.resolve(design),
        design=design,
        y=y,
        log_evidence=log_partition if is_normalised else float("nan"),
        log_evidence_se=error if is_normalised else float("nan"),
        log_weights=log_weight.reshape(chains, draws),
    )
    return Sampled(
        posterior,
        log_partition,
        error,
        log_flow,
        float(log_weight.mean()),
        float(relative.sum() ** 2 / (relative**2).sum()),
    )


@in_float64
def score(problem: Problem, flow: Flow, design: Design, trees: Tree) -> Scores:
    """Score trees [...] as the policy would draw them.

    Where the trees are drawn from the posterior, the mean of their log weights is an upper bound of
    log Z on average (EUBO).

    Raises
    ------
    ValueError
        If a tree is deeper than the problem's trees.
    """
    flat = trees.reshape(-1)
    shape = as_shape(problem.model, design, flat, flat.capacity)
    heap, parts = as_heap(shape, problem.max_depth), []
    for start in range(0, len(heap), _PIECE):
        own = np.resize(heap[start : start + _PIECE], (_PIECE, heap.shape[1]))
        drawn, _ = follow(problem, flow, own)
        parts.append(np.stack([drawn.log_joint, drawn.log_probability])[:, : len(heap) - start])
    return Scores(*np.concatenate(parts, axis=1).reshape(2, *trees.batch_shape))
