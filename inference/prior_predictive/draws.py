"""Draws of trees and targets from the prior.

A tree is drawn from the prior on the design. Its leaves' parameters are integrated out, so targets
are drawn one after the other, as in replicated data, from leaves without data. Soft trees have
explicit parameters, drawn with the tree.
"""

from typing import Any

import jax
import numpy as np

from bdtppl.inference.metropolis.sample import sample_chains
from bdtppl.inference.predictive.replicates import draw_in_turn
from bdtppl.inference.prior_predictive.trees import NO_LIKELIHOOD, PriorTrees, exact_prior
from bdtppl.inference.soft.posterior import SoftPosterior
from bdtppl.models.constraints import Constraints
from bdtppl.models.data.design import Design
from bdtppl.models.edit_tree import EditTree
from bdtppl.models.hard.tree import Tree, route
from bdtppl.models.hard.tree_model import TreeModel
from bdtppl.models.leaf import Leaf
from bdtppl.models.prior_kinds import TreePrior
from bdtppl.models.row_statistics import row_statistics
from bdtppl.models.soft.topology import Topology, TopologyPrior
from bdtppl.models.soft.tree import SoftClassification, SoftRegression
from bdtppl.models.soft.tree_batch import SoftTrees


def draw_prior_trees(
    rng_key: jax.Array,
    design: Design,
    prior: TreePrior,
    constraints: Constraints,
    num_draws: int,
    *,
    max_subproblems: int = 500_000,
) -> Tree:
    """Draw trees from a prior, `Tree` batch [num_draws].

    Trees are grown if the prior's weights sum to 1 at every node, and edited under an `EditTree`;
    other priors need the exact chart.

    Raises
    ------
    ValueError
        If the prior has no distribution without targets, or its chart is too large.
    """
    if isinstance(prior, EditTree):
        constraints.require_free_leaves("A prior without targets")
        nothing = np.zeros(design.num_rows, int)
        model = TreeModel(design, nothing, prior, NO_LIKELIHOOD, constraints)
        options: dict[str, Any] = {"warmup": 0, "draws": 1, "thin": 1, "first_trees": "prior"}
        return sample_chains(rng_key, model, chains=num_draws, **options).posterior.trees[:, 0]
    if prior.is_normalised:
        return PriorTrees(design, prior, constraints).sample(rng_key, num_draws)
    exact = exact_prior(design, prior, constraints, max_subproblems=max_subproblems)
    return exact.sample_trees(rng_key, num_draws)


def draw_prior_targets(
    rng_key: jax.Array, trees: Tree, leaf: Leaf, matrix: np.ndarray
) -> np.ndarray:
    """Draw the targets of rows [n, d] given each tree [draw] and no data, [draw, n].

    Examples
    --------
    >>> from bdtppl.models.leaves import NormalInverseGamma
    >>> leaf = NormalInverseGamma(0.0, 0.01, 1e6, 1e6)  # means far apart, noise of 1
    >>> stump = Tree.from_nested({"feature": 0, "threshold": 0.5, "left": {}, "right": {}})
    >>> rows = np.array([[0.0], [0.0], [1.0]])
    >>> y = draw_prior_targets(jax.random.key(0), stump.reshape(1), leaf, rows)
    >>> bool(abs(y[0, 0] - y[0, 1]) < 6)
    True
    """
    num_statistics = row_statistics(leaf, np.zeros(1, int), np.ones(1)).shape[1]
    nothing = np.zeros((*trees.batch_shape, trees.capacity, num_statistics))
    return draw_in_turn(rng_key, leaf, nothing, route(trees, matrix))


def draw_soft_prior(
    rng: np.random.Generator,
    posterior: SoftPosterior,
    topology_prior: TopologyPrior,
    num_draws: int,
    *,
    max_splits: int | None = None,
    with_leaf: bool = True,
    hard_inputs: bool = False,
) -> SoftPosterior:
    """Draw soft trees from the prior, as draws [1, num_draws] of a `SoftPosterior`.

    Parameters
    ----------
    rng
        Generator.
    posterior
        Posterior with the model, sharpness and inputs.
    topology_prior
        Distribution of the topologies.
    num_draws
        Number of draws.
    max_splits
        Most splits; None for no limit.
    with_leaf
        Whether the tree without a split is included.
    hard_inputs
        Whether each split uses one input; inputs are equally likely.

    Raises
    ------
    ValueError
        If labels have no distribution under the model (equation 8).
    """
    posterior.require_pointwise_likelihood()
    shapes: list[Topology] = []
    while len(shapes) < num_draws:
        shape = topology_prior.sample(rng, max_splits=max_splits)
        if with_leaf or shape.num_splits:
            shapes.append(shape)
    topologies = sorted(set(shapes))
    topology = np.array([topologies.index(shape) for shape in shapes])
    counts = np.bincount(topology, minlength=len(topologies))
    parts = [
        _soft_trees(rng, posterior.model, shape, int(count), len(posterior.names), hard_inputs)
        for shape, count in zip(topologies, counts, strict=True)
    ]
    place = np.empty(num_draws, int)  # trees are grouped by topology
    place[np.argsort(topology, kind="stable")] = np.arange(num_draws)
    unknown = np.full(len(topologies), np.nan)
    return SoftPosterior(
        model=posterior.model,
        sharpness=posterior.sharpness,
        matrix=posterior.matrix,
        y=posterior.y,
        scaling=posterior.scaling,
        names=posterior.names,
        topologies=tuple(topologies),
        probability=counts / num_draws,
        log_evidences=unknown,
        log_evidence_ses=unknown,
        trees=SoftTrees.joined(parts)[place[None]],
        topology=topology[None],
        weights=posterior.weights,
    )


def _soft_trees(
    rng: np.random.Generator,
    model: SoftRegression | SoftClassification,
    shape: Topology,
    num_draws: int,
    num_inputs: int,
    hard_inputs: bool,
) -> SoftTrees:
    splits = num_draws, shape.num_splits
    sites: dict[str, Any] = model.draw_prior(rng, *splits, num_inputs, hard_inputs=hard_inputs)
    if hard_inputs:
        direction = np.eye(num_inputs)[rng.integers(num_inputs, size=splits)]
    else:
        direction = sites.pop("direction", np.ones((*splits, num_inputs)))
    threshold = sites.pop("threshold", np.zeros(splits))
    return SoftTrees.of_topology(shape, direction, threshold, sites)
