"""A posterior over soft trees of many topologies, as equally weighted draws.

Inferences return weighted draws of each topology. These are resampled to equally weighted ones, so
that all tools for chains can use them; the topologies keep their own probabilities and evidence.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from bdtppl.inference.soft.density import SoftDensity
from bdtppl.inference.soft.mixture import ClassMixture, NoiseMixture
from bdtppl.inference.statistics import effective_sample_size, systematic_resampling
from bdtppl.models.arrays.padding import padded, padded_size
from bdtppl.models.arrays.precision import in_float64
from bdtppl.models.soft.topology import Topology
from bdtppl.models.soft.tree import SoftClassification, SoftRegression
from bdtppl.models.soft.tree_batch import SoftTrees

Votes = Literal["probability", "balanced"]

_BATCH = 64  # draws that predict at once
_HARD = 1e-12  # sharpness of splits that are hard in float64
_LEAST_ROWS = 8  # a product of fewer adds in another order


class TopologyDraws(NamedTuple):
    """Weighted draws of the trees of one topology.

    Attributes
    ----------
    topology
        The topology.
    probability
        Probability of the topology given the data.
    log_evidence, log_evidence_se
        Log Z_m, without the topology's prior, and its standard error; NaN if unknown.
    position
        float [s, size]; coordinates of `bdtppl.inference.soft.density.SoftDensity`.
    inputs
        int [s, n]; inputs of splits, None if they use directions.
    weight
        float64 [s]; sums to 1.
    """

    topology: Topology
    probability: float
    log_evidence: float
    log_evidence_se: float
    position: np.ndarray
    inputs: np.ndarray | None
    weight: np.ndarray


@dataclass(frozen=True, eq=False)
class SoftPosterior:
    """Equally weighted draws of soft trees on d inputs; N training rows.

    Attributes
    ----------
    model
        The model of leaves and splits, with its priors.
    sharpness
        h of the splits.
    matrix, y
        Training rows, float64 [N, d], and targets [N]; class indices for classification.
    scaling
        float64 [2, d]; lowest value and range of each input, by which it is scaled to [0, 1].
    names
        Names of the inputs, [d].
    topologies
        Distinct topologies, the most probable first.
    probability
        float64 [topology]; their posterior probabilities.
    log_evidences, log_evidence_ses
        float64 [topology]; log Z_m, without the topology's prior, and standard errors; NaN if
        unknown.
    trees
        Batch [chain, draw].
    topology
        int [chain, draw]; index of each draw's topology in ``topologies``.
    log_evidence, log_evidence_se
        Evidence over all topologies, with their prior; NaN if unknown.
    effective_size
        Effective sample size of the weighted draws before resampling; NaN if there were none.
    sample_stats
        Further numbers of each draw, [chain, draw], by shared names (``log_joint``).
    weights
        Weights of the training rows, [N]; None if all are 1.
    """

    model: SoftRegression | SoftClassification
    sharpness: float
    matrix: np.ndarray
    y: np.ndarray
    scaling: np.ndarray
    names: tuple[str, ...]
    topologies: tuple[Topology, ...]
    probability: np.ndarray
    log_evidences: np.ndarray
    log_evidence_ses: np.ndarray
    trees: SoftTrees
    topology: np.ndarray
    log_evidence: float = np.nan
    log_evidence_se: float = np.nan
    effective_size: float = np.nan
    sample_stats: Mapping[str, np.ndarray] = field(default_factory=dict)
    weights: np.ndarray | None = None

    @property
    def num_leaves(self) -> np.ndarray:
        """Leaves of each draw, int [chain, draw]."""
        return np.array([shape.num_leaves for shape in self.topologies])[self.topology]

    @property
    def depth(self) -> np.ndarray:
        """Levels of splits of each draw, int [chain, draw]."""
        return np.array([shape.depth for shape in self.topologies])[self.topology]

    @property
    def input_weights(self) -> np.ndarray:
        """Mean direction of each draw's splits, float64 [chain, draw, d]; 0 without splits."""
        splits = np.maximum(self.num_leaves - 1, 1)
        return np.asarray(self.trees.direction).sum(axis=-2) / splits[..., None]

    @property
    def expected_splits(self) -> np.ndarray:
        """Expected number of splits on each feature, by weights in directions, float64 [d]."""
        return np.asarray(self.trees.direction).sum(axis=-2).mean(axis=(0, 1))

    @property
    def bytes_a_row(self) -> int:
        """Bytes per row in temporary arrays of predictions."""
        # Means need two or three arrays of parameters, quantiles about six.
        if isinstance(self.model, SoftRegression):
            return 12 * 8 * self.topology.size
        return 4 * 8 * self.topology.size * len(self.model.concentration)

    @property
    def has_pointwise_likelihood(self) -> bool:
        """Whether each row has its own likelihood; false for equation 8."""
        return getattr(self.model, "likelihood", None) != "compound"

    def require_pointwise_likelihood(self) -> None:
        """Raise ValueError if rows have no individual likelihood."""
        if not self.has_pointwise_likelihood:
            raise ValueError(
                "The compound likelihood (equation 8) has no density of single rows; fit with "
                "likelihood='mixture'."
            )

    @property
    def row_weights(self) -> np.ndarray:
        """Weights of the training rows, [N]."""
        return np.ones(len(self.y)) if self.weights is None else self.weights

    @property
    def pseudo_weight(self) -> float | None:
        """Sum of weights that are not counts; None for counts."""
        if self.weights is None or self.weights.dtype.kind == "i":
            return None
        return float(self.weights.sum())

    def in_units(
        self, model: SoftRegression, y: np.ndarray, loc: float, scale: float
    ) -> "SoftPosterior":
        """Convert a posterior of targets (y - loc) / scale to one of targets y, under a model.

        Means and noise are rescaled, and the evidence is multiplied by scale to the power of minus
        the sum of the weights. ``sample_stats`` are unchanged.
        """
        trees, jacobian = self.trees, self.row_weights.sum() * np.log(scale)
        mean = np.where(trees.is_leaf, trees.leaves["mean"] * scale + loc, 0.0)
        noise = trees.leaves["noise"] * scale**model.noise_power
        return replace(
            self,
            model=model,
            y=y,
            trees=replace(trees, leaves={"mean": mean, "noise": noise}),
            log_evidences=self.log_evidences - jacobian,
            log_evidence=self.log_evidence - jacobian,
        )

    def predictive(
        self, matrix: np.ndarray, *, sharpness: float | None = None, votes: Votes = "probability"
    ) -> ClassMixture | NoiseMixture:
        """Return the mixture of the draws' predictives.

        Parameters
        ----------
        matrix
            Rows [m, d].
        sharpness
            h of the splits; default that of the draws; 0 for hard splits.
        votes
            "probability" for the leaves' probabilities of classes; "balanced" for the score of the
            authors' code: a leaf's vote for a class is its share of the class's training rows, and
            votes are scaled to sum to 1.
        """
        laws = self._laws(matrix, sharpness, votes)
        return self._mixture([law.reshape(-1, *law.shape[2:]) for law in laws])

    def _mixture(self, laws: Sequence[np.ndarray]) -> ClassMixture | NoiseMixture:
        """Return the mixture of distributions along their first axis."""
        if isinstance(self.model, SoftRegression):
            loc, scale = laws
            degrees: Any = self.model.degrees_of_freedom
            return NoiseMixture(loc, scale, degrees)
        (probability,) = laws
        return ClassMixture(probability)

    def means(
        self, matrix: np.ndarray, *, sharpness: float | None = None, votes: Votes = "probability"
    ) -> np.ndarray:
        """Return the mean of a new target given each draw, [chain, draw, m, ...].

        Parameters
        ----------
        matrix, sharpness, votes
            See `predictive`.
        """
        return self._laws(matrix, sharpness, votes)[0]

    def sample_predictive(self, rng_key: jax.Array, matrix: np.ndarray) -> np.ndarray:
        """Draw one new target per draw and row, [chain, draw, m]."""
        size, shape = self.topology.size, self.topology.shape
        laws = self._laws(matrix)
        # Each draw is a mixture of one distribution, with all its rows side by side.
        flat = [law.reshape(1, size * len(matrix), *law.shape[3:]) for law in laws]
        return self._mixture(flat).sample(rng_key, 1).reshape(*shape, len(matrix))

    def log_likelihood(self) -> np.ndarray:
        """Return the pointwise log likelihood of the training rows, float64 [chain, draw, N].

        Raises
        ------
        ValueError
            If rows have no individual likelihood.
        """
        self.require_pointwise_likelihood()
        each = self._mixture(self._laws(self.matrix)).each_log_density(self.y)
        return each * self.row_weights

    @in_float64
    def _laws(
        self, matrix: np.ndarray, sharpness: float | None = None, votes: Votes = "probability"
    ) -> list[np.ndarray]:
        """Centre and scale, [chain, draw, m] each; or class probabilities [chain, draw, m, c]."""
        h = self.sharpness if sharpness is None else max(sharpness, _HARD)
        rows = padded(self._scaled(matrix), padded_size(max(len(matrix), _LEAST_ROWS)))
        flat = jax.tree.map(lambda a: a.reshape(self.topology.size, *a.shape[2:]), self.trees)
        x = self._scaled(self.matrix)
        observed = x, self.y, 1.0 if self.weights is None else self.weights
        laws = _laws(self.model, flat, rows, np.float64(h), observed, votes)
        shape = *self.topology.shape, len(matrix)
        return [np.asarray(law)[:, : len(matrix)].reshape(*shape, *law.shape[2:]) for law in laws]

    def _scaled(self, matrix: np.ndarray) -> np.ndarray:
        low, width = self.scaling
        return (np.asarray(matrix, np.float64) - low) / width


@partial(jax.jit, static_argnames="votes")
def _laws(model, trees: SoftTrees, rows, sharpness, observed, votes) -> tuple[jax.Array, ...]:
    """Return parameters of a new target at rows [m] given each tree [s]; arrays [s, m, ...]."""
    x, y, weights = observed

    def of_tree(tree: SoftTrees) -> tuple[jax.Array, ...]:
        reached = tree.reached(rows, sharpness)
        if isinstance(model, SoftRegression):
            law: Any = model.target(reached, tree.leaves["mean"], tree.leaves["noise"])
            return jnp.broadcast_to(law.loc, len(rows)), jnp.broadcast_to(law.scale, len(rows))
        if votes == "balanced":
            counts = model.counts(tree.reached(x, sharpness), y, weights)
            scores = reached.T @ _shares(counts, axis=0)
            # If only leaves without training rows are reached, the prior votes.
            prior = jnp.asarray(model.concentration) / sum(model.concentration)
            votes_for = _shares(scores, axis=1)
            return (jnp.where(scores.sum(axis=1, keepdims=True) > 0, votes_for, prior[None]),)
        if "classes" in tree.leaves:
            return (reached.T @ tree.leaves["classes"],)
        counts = model.counts(tree.reached(x, sharpness), y, weights)
        counts += jnp.asarray(model.concentration)
        return (reached.T @ (counts / counts.sum(axis=1, keepdims=True)),)

    with jax.numpy_rank_promotion("allow"):  # NumPyro's own code broadcasts
        return lax.map(of_tree, trees, batch_size=_BATCH)


def _shares(counts: jax.Array, axis: int) -> jax.Array:
    """Divide counts by their sums; zeros stay zeros."""
    total = counts.sum(axis=axis, keepdims=True)
    return counts / jnp.where(total > 0, total, 1)


def resample(
    of_topologies: Iterable[TopologyDraws],
    density: Callable[[int], SoftDensity],
    *,
    seed: int,
    chains: int = 4,
    draws: int = 1000,
    **about: Any,
) -> SoftPosterior:
    """Draw equally weighted trees from weighted ones, by systematic resampling.

    Parameters
    ----------
    found
        Draws of each topology, whose probabilities sum to 1.
    density
        The density by number of splits.
    seed
        Seed of the resampling.
    chains, draws
        Layout of the draws; their order is random.
    about
        ``sharpness``, ``matrix``, ``scaling``, ``names``, ``log_evidence``, ``log_evidence_se``;
        see `SoftPosterior`.
    """
    of_topologies = sorted(of_topologies, key=lambda each: -each.probability)
    weight = np.concatenate([each.probability * each.weight for each in of_topologies])
    chosen = systematic_resampling(seed, weight, chains * draws).reshape(chains, draws)
    sizes = np.array([len(each.weight) for each in of_topologies])
    topology = np.searchsorted(np.cumsum(sizes), chosen, side="right")
    draw = chosen - (np.cumsum(sizes) - sizes)[topology]
    size = effective_sample_size(weight)
    return _assembled(of_topologies, density, topology, draw, effective_size=size, **about)


def along_chains(
    topologies: Sequence[Topology],
    topology: np.ndarray,
    position: np.ndarray,
    inputs: np.ndarray | None,
    density: Callable[[int], SoftDensity],
    **about: Any,
) -> SoftPosterior:
    """Make a posterior of equally weighted draws in the order of their chains.

    Parameters
    ----------
    topologies
        The topologies that chains visited.
    topology
        int [chain, draw]; index of the topology.
    position
        float [chain, draw, l]; coordinates, the first ones of l if a topology has fewer.
    inputs
        int [chain, draw, k], likewise; None if splits use directions.
    density, about
        See `resample`; and ``sample_stats``.
    """
    share = np.bincount(topology.ravel(), minlength=len(topologies)) / topology.size
    order = np.argsort(-share, kind="stable")
    of_topologies, draw = [], np.zeros(topology.shape, int)
    for m in order[share[order] > 0]:
        shape, here = topologies[m], topology == m
        draw[here] = np.arange(here.sum())
        own = position[here][:, : density(shape.num_splits).size]
        looked_at = None if inputs is None else inputs[here][:, : shape.num_splits]
        weight = np.full(len(own), 1 / len(own))
        of_topologies.append(
            TopologyDraws(shape, float(share[m]), np.nan, np.nan, own, looked_at, weight)
        )
    rank = np.argsort(order)
    return _assembled(of_topologies, density, rank[topology], draw, **about)


@in_float64
def _assembled(
    of_topologies: Sequence[TopologyDraws],
    density: Callable[[int], SoftDensity],
    topology: np.ndarray,
    draw: np.ndarray,
    **about: Any,
) -> SoftPosterior:
    """Build the posterior from the draw of a topology at each place [chain, draw]."""
    used = np.unique(topology)
    trees = SoftTrees.joined(
        [
            _trees_of(
                density(of_topologies[m].topology.num_splits), of_topologies[m], draw[topology == m]
            )
            for m in used
        ]
    )
    place = np.empty(topology.size, int)  # trees are grouped by topology
    place[np.argsort(topology, axis=None, kind="stable")] = np.arange(topology.size)
    any_density: Any = density(0)
    return SoftPosterior(
        model=any_density.model,
        y=np.asarray(any_density.y)[: len(about["matrix"])],  # without padding rows
        topologies=tuple(each.topology for each in of_topologies),
        probability=np.array([each.probability for each in of_topologies]),
        log_evidences=np.array([each.log_evidence for each in of_topologies]),
        log_evidence_ses=np.array([each.log_evidence_se for each in of_topologies]),
        trees=trees[place.reshape(topology.shape)],
        topology=topology,
        **about,
    )


def _trees_of(density: SoftDensity, draws: TopologyDraws, chosen: np.ndarray) -> SoftTrees:
    """Make trees of chosen draws."""
    positions, places = np.unique(chosen, return_inverse=True)
    batch = padded(draws.position[positions].astype(np.float64), padded_size(len(positions)))
    sites: dict[str, Any] = {
        name: np.asarray(values)[: len(positions)][places]
        for name, values in _parameters(density, batch).items()
    }
    num_splits, num_inputs = draws.topology.num_splits, density.x.shape[1]
    if draws.inputs is not None:
        direction = np.eye(num_inputs)[draws.inputs[chosen]]
    else:
        one_input = np.ones((len(chosen), num_splits, num_inputs))  # no direction, if there is one
        direction = sites.pop("direction", one_input)
    threshold = sites.pop("threshold", np.zeros((len(chosen), num_splits)))
    return SoftTrees.of_topology(draws.topology, direction, threshold, sites)


@jax.jit
def _parameters(density: SoftDensity, positions: jax.Array) -> dict[str, jax.Array]:
    return jax.vmap(density.parameters)(positions)
