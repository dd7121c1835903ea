"""Run particle filters and collect a posterior with its evidence.

Runs are made in groups, side by side in threads or on workers. The grouping depends on the problem
alone, so the same key gives the same trees on any machine, even if the run is interrupted between
groups.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bdtppl.inference.evidence.estimates import log_mean, log_normal_error
from bdtppl.inference.hard.partitions import group
from bdtppl.inference.hard.posterior import Posterior
from bdtppl.inference.hard.shapes import Shape
from bdtppl.inference.hard.written_trees import write_out
from bdtppl.inference.parallel import fan_out, num_at_once
from bdtppl.inference.particle.filter import RESAMPLING, Noise, draw_particle_noise, grow_particles
from bdtppl.inference.particle.proposals import PROPOSALS
from bdtppl.inference.run import Inference, read_state, run
from bdtppl.models.arrays.padding import padded_size
from bdtppl.models.arrays.precision import in_float64
from bdtppl.models.hard.log_joint import log_joint
from bdtppl.models.hard.node_scores import require_defined
from bdtppl.models.hard.packed_model import PackedModel
from bdtppl.models.hard.tree_model import TreeModel
from bdtppl.models.prior_kinds import require_weighs
from bdtppl.models.settings import check_parameters, parameter

ProposalName = Literal["prior", "empirical", "optimal", "defensive"]
GrowthName = Literal["node", "layer"]
ResamplingName = Literal["systematic", "multinomial", "never"]


_WORK_AT_ONCE = 20_000_000  # rows times features times particles of runs: ten seconds


class _Runs(NamedTuple):
    """Particles [m] of a group of finished runs, and their records."""

    shape: Shape
    log_prior: Any
    log_likelihood: Any
    log_weight: Any
    stages: Any


class FilterState(NamedTuple):
    """State of running filters.

    Attributes
    ----------
    rng_key
        The key.
    num_runs
        Finished runs.
    groups
        Their groups, along the first axis of each array; None before the first.
    """

    rng_key: jax.Array
    num_runs: int
    groups: Any


class Filtered(NamedTuple):
    """The draws of particle filters.

    Attributes
    ----------
    posterior
        The particles, runs as chains, with their weights. Its ``log_evidence`` is the log of the
        mean of the runs' estimates, its standard error that of their spread; both are NaN if the
        prior is not normalised, and the error also for one run.
    log_partition, log_partition_se
        Estimate of the log of the sum over trees of prior weight times likelihood, and its standard
        error: the largest of the delta method's, that of log-normal runs, and the gap below the sum
        over the trees found. The estimate is unbiased on the scale of the sum itself.
    log_found
        Log of the sum over the distinct trees found, a lower bound of the whole sum.
    log_partition_of_run
        float64 [runs]; each run's own estimate.
    effective_size
        float64 [stages, runs]; effective sample size after each stage of growth, NaN after the
        run's end.
    num_resampled
        int [runs]; number of resampling steps.
    num_overflows
        int [runs]; nodes that had a rule and stopped because the tree had no room.
    """

    posterior: Posterior
    log_partition: float
    log_partition_se: float
    log_found: float
    log_partition_of_run: np.ndarray
    effective_size: np.ndarray
    num_resampled: np.ndarray
    num_overflows: np.ndarray


@dataclass(frozen=True, eq=False)
class ParticleFilters(Inference[FilterState, Filtered]):
    """Weighted trees, grown by independent particle filters (see `bdtppl.inference.run`).

    Attributes
    ----------
    model
        The model.
    particles, runs
        Particles of each run, and the runs.
    proposal
        Proposal for the next node: "prior"; "empirical", the prior with cuts uniform among the
        available ones of the feature; "optimal", proportional to the prior times the change in
        likelihood; or "defensive", a mixture of nine tenths optimal and one tenth prior.
    growth
        Particles are weighted after each "node", breadth first, or each "layer".
    resampling
        Resampling scheme, or "never".
    ess_threshold
        Particles are resampled if their effective sample size is below this share of their number;
        the authors' code uses a tenth.
    capacity
        Most nodes of a tree, a bound of the model: larger trees have no weight, so the estimates
        are of the sum over those that fit. If no node has overflowed, no particle has reached the
        bound.

    Raises
    ------
    ValueError
        If a number is out of range, a name is not known, or a feature is monotone.
    """

    counts: ClassVar[str] = "runs"

    model: TreeModel
    particles: int = parameter(100, least=1)
    runs: int = parameter(10, least=1)
    proposal: ProposalName = parameter("defensive")
    growth: GrowthName = parameter("node")
    resampling: ResamplingName = parameter("systematic")
    ess_threshold: float = parameter(0.1, least=0, most=1)
    capacity: int = parameter(127, least=3)

    def __post_init__(self):
        require_weighs(self.model.prior, "The particle filter", "nodes")
        self.model.constraints.require_free_leaves("The particle filter")
        check_parameters(self)

    @cached_property
    def _packed(self) -> PackedModel:
        return PackedModel.of(self.model)

    @property
    def _group_size(self) -> int:
        """Return the number of runs of a group, the same for all, to share compiled code."""
        design = self.model.design
        work = design.num_rows * design.num_features * int(self.particles)
        sizes = [size for size in range(1, self.runs + 1) if self.runs % size == 0]
        return max([size for size in sizes if size * work <= _WORK_AT_ONCE], default=1)

    @property
    def _shared(self) -> tuple:
        is_never = self.resampling == "never"
        threshold = 0.0 if is_never else float(self.ess_threshold)
        law = "systematic" if is_never else self.resampling
        return self._packed, self.growth == "layer", threshold, self.proposal, law

    def _noise(self, rng_key: jax.Array) -> list[tuple]:
        """Draw the random numbers of each group."""
        sizes = {"size": int(self.particles), "capacity": int(self.capacity)}
        noise, size = draw_particle_noise(rng_key, runs=int(self.runs), **sizes), self._group_size
        groups = [slice(first, first + size) for first in range(0, int(self.runs), size)]
        return [(noise.uniform[:, group], noise.rng_keys[:, group]) for group in groups]

    def start(self, rng_key: jax.Array) -> FilterState:
        """Start with no runs."""
        return FilterState(rng_key, 0, None)

    @in_float64
    def from_arrays(self, rng_key: jax.Array, arrays: Mapping[str, np.ndarray]) -> FilterState:
        """Read a stored state."""
        given = *self._shared, *self._noise(rng_key)[0]
        like = jax.eval_shape(lambda: _run_group(*given))
        groups = jax.tree.map(lambda a: jax.ShapeDtypeStruct((0, *a.shape), a.dtype), like)
        state = read_state(FilterState(rng_key, 0, groups), arrays)
        lengths = {len(array) * self._group_size for array in jax.tree.leaves(state.groups)}
        if lengths != {state.num_runs} or state.num_runs > self.runs:
            raise ValueError("the lengths of its arrays are inconsistent")
        return state

    def num_steps(self, state: FilterState) -> tuple[int, int]:
        """Count the runs."""
        return state.num_runs, int(self.runs)

    @in_float64
    def advance(self, state: FilterState) -> FilterState:
        """Make the runs of some groups."""
        done = state.num_runs // self._group_size
        some = self._noise(state.rng_key)[done : done + num_at_once()]
        made = fan_out(_finished_runs, some, shared=self._shared)
        groups = jax.tree.map(lambda *a: np.stack(a), *made)
        if state.groups is not None:
            groups = jax.tree.map(lambda *a: np.concatenate(a), state.groups, groups)
        return FilterState(state.rng_key, state.num_runs + len(some) * self._group_size, groups)

    @in_float64
    def result(self, state: FilterState) -> Filtered:
        """Make a posterior of the particles of all runs."""
        stages, grown = state.groups.stages, state.groups._replace(stages=())
        grown = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), grown)
        model, size = self.model, (state.num_runs, int(self.particles))
        require_defined(np.isnan(grown.log_prior))
        shape = grown.shape
        shape = shape._replace(nodes=shape.nodes[:, : padded_size(int(shape.size.max()))])
        written = write_out(self._packed, shape)
        trees = written.trees.reshape(*size)
        log_prior, log_likelihood, log_weight = (
            a.reshape(*size) for a in (grown.log_prior, grown.log_likelihood, grown.log_weight)
        )
        scores = log_prior + log_likelihood
        if model.prior.counts_partitions:  # particles share a partition's weight among its rules
            scores = log_joint(trees, model).log_joint
        of_run = np.logaddexp.reduce(log_weight, axis=1) - np.log(log_weight.shape[1])
        log_partition, error = log_mean(of_run)
        flat = trees.reshape(-1)
        first, _ = group(flat, flat.threshold)
        log_found = float(np.logaddexp.reduce((log_prior + log_likelihood).ravel()[first]))
        error = max(error, log_normal_error(of_run), log_found - log_partition)
        is_normalised = model.prior.is_normalised
        posterior = Posterior.of(
            model,
            trees,
            written.statistics,
            log_joint=scores,
            log_likelihood=log_likelihood,
            log_evidence=log_partition if is_normalised else np.nan,
            log_evidence_se=error if is_normalised else np.nan,
            log_weights=log_weight,
        )
        return Filtered(
            posterior,
            log_partition,
            error,
            log_found,
            of_run,
            np.concatenate(stages.effective_size, axis=1)[: int(stages.num_stages.max())],
            np.concatenate(stages.is_resampled.sum(axis=1)),
            np.concatenate(stages.num_overflows),
        )


def sample_particles(rng_key: jax.Array, model: TreeModel, **settings: Any) -> Filtered:
    """Run particle filters; the settings are those of `ParticleFilters`.

    Examples
    --------
    >>> import numpy as np
    >>> from bdtppl.models.data.design import Design
    >>> from bdtppl.models.leaves import DirichletCategorical
    >>> from bdtppl.models.priors import DepthDecay
    >>> design = Design.from_matrix(np.arange(6.0)[:, None])
    >>> y = np.array([0, 0, 0, 1, 1, 1])
    >>> model = TreeModel(design, y, DepthDecay(), DirichletCategorical.symmetric(2))
    >>> filtered = sample_particles(jax.random.key(0), model)
    >>> filtered.posterior.trees.batch_shape
    (10, 100)
    >>> abs(filtered.posterior.log_evidence + 3.9) < 0.1
    True
    """
    filters = ParticleFilters(model, **settings)
    return filters.result(run(filters, rng_key))


@in_float64
def _finished_runs(*arguments: Any) -> _Runs:
    """Make the runs of a group."""
    return jax.tree.map(np.asarray, _run_group(*arguments))


def _run_group(packed, by_layer: bool, ess_threshold: float, proposal, resampling, *noise) -> _Runs:
    grown, stages = grow_particles(
        Noise(*noise),
        packed,
        jnp.bool_(by_layer),
        jnp.float64(ess_threshold),
        proposal=PROPOSALS[proposal],
        resampling=RESAMPLING[resampling],
    )
    return _Runs(grown.shape, grown.log_prior, grown.log_likelihood, grown.log_weight, stages)
