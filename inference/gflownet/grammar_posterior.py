"""Draws, evidence and bounds from a trained flow.

Draws are independent and their probabilities are known. So their importance weights (equation 2 of
`bdtppl.inference.gflownet.grammar`) correct the errors of the flow: the mean weight is an unbiased
estimate of Z, and weighted draws are consistent for the posterior.
"""

from typing import NamedTuple

import jax
import numpy as np

from bdtppl.inference.gflownet.drawn import Drawn, weighed
from bdtppl.inference.gflownet.grammar import FlowProblem
from bdtppl.inference.gflownet.grammar_draws import as_heap, draw, follow_trees, from_heap
from bdtppl.inference.gflownet.grammar_network import Flow
from bdtppl.inference.hard.written_trees import as_shape
from bdtppl.models.arrays.padding import in_pieces
from bdtppl.models.arrays.precision import in_float64
from bdtppl.models.data.design import Design
from bdtppl.models.hard.tree import Tree
from bdtppl.models.hard.tree_model import TreeModel

_TREES_AT_ONCE = 16  # trees drawn at once, as in training, to share its compiled code


class Scores(NamedTuple):
    """Log joints and policy probabilities of given trees.

    Attributes
    ----------
    log_joint
        float64 [...]; log prior weight, shared among equivalent rules if the prior counts
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
def sample_weighted(
    rng_key: jax.Array,
    problem: FlowProblem,
    flow: Flow,
    model: TreeModel,
    *,
    chains: int = 4,
    draws: int = 250,
) -> Drawn:
    """Draw trees from the policy and weight them.

    Parameters
    ----------
    rng_key
        Key.
    problem, flow
        The problem as posed, and a flow trained on it.
    model
        The model that the problem was made of.
    chains, draws
        Layout of the draws, which are independent.

    Raises
    ------
    ValueError
        If there are no draws.
    """
    size = chains * draws
    if size < 1:
        raise ValueError(f"At least one draw is needed; got {chains} chains of {draws}.")
    parts = []
    for start in range(0, size, _TREES_AT_ONCE):
        key = jax.random.fold_in(rng_key, start)
        drawn, _ = draw(key, problem, flow, num_trees=_TREES_AT_ONCE)
        parts.append([np.asarray(a) for a in (drawn.rule, drawn.log_weight, drawn.log_joint)])
    rule, log_weights, joint = (np.concatenate(part) for part in zip(*parts, strict=True))
    drawn = from_heap(rule), log_weights, joint
    return weighed(model, problem.model, *drawn, chains=chains, draws=draws)


@in_float64
def log_flow(problem: FlowProblem, flow: Flow) -> float:
    """Return the log flow out of the root: the learned log Z."""
    _, visits = draw(jax.random.key(0), problem, flow, num_trees=_TREES_AT_ONCE)
    return float(visits.log_partition)


@in_float64
def score(problem: FlowProblem, flow: Flow, design: Design, trees: Tree) -> Scores:
    """Score trees [...] as the policy would draw them.

    If the trees are drawn from the posterior, the mean of their log weights is an upper bound of
    log Z on average (EUBO).

    Raises
    ------
    ValueError
        If a tree is deeper than the problem's trees.
    """
    flat = trees.reshape(-1)
    shape = as_shape(problem.model, design, flat, flat.capacity)
    heap = as_heap(shape, problem.max_depth)
    drawn = in_pieces(lambda own: follow_trees(problem, flow, own)[0], _TREES_AT_ONCE, heap)
    each = drawn.log_joint, drawn.log_probability
    return Scores(*(values.reshape(trees.batch_shape) for values in each))
