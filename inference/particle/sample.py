"""Run particle filters and collect a posterior with its evidence.

Runs are made in groups, side by side in threads or over workers. How they are grouped depends on
the problem alone, so the same key gives the same trees on any machine, and whether or not the
groups are made in one go.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

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
from bdtppl.inference.pytree_arrays import from_arrays, to_arrays
from bdtppl.models.arguments import require_integer
from bdtppl.models.arrays.padding import padded_size
from bdtppl.models.arrays.precision import in_float64
from bdtppl.models.hard.log_joint import log_joint
from bdtppl.models.hard.node_scores import require_defined
from bdtppl.models.hard.packed_model import PackedModel
from bdtppl.models.hard.tree_model import TreeModel
from bdtppl.models.prior_kinds import require_weighs

__all__ = ["Filtered", "GrowthName", "ProposalName", "ResamplingName", "sample_particles"]

ProposalName = Literal["prior", "empirical", "optimal"]
GrowthName = Literal["node", "layer"]
ResamplingName = Literal["systematic", "multinomial", "never"]


_WORK_AT_ONCE = 20_000_000  # rows times features times particles of runs: ten seconds


class _Runs(NamedTuple):
    """Particles [m] of some finished runs, and how these went."""

    shape: Shape
    log_prior: Any
    log_likelihood: Any
    log_weight: Any
    stages: Any


class Filtered(NamedTuple):
    """The draws of particle filters.

    Attributes
    ----------
    posterior
        The particles, runs as chains, with their weights. Its ``log_evidence`` is the log of the
        mean of the runs' estimates, its standard error that of their spread; both NaN where the
        prior is not normalised, and the error also where there is one run.
    log_partition, log_partition_se
        Log of the sum over trees of prior weight times likelihood, estimated, and its standard
        error: the largest of the delta method's, that of log-normal runs, and how far the estimate
        lies below the sum over the trees that were found. The estimate is unbiased on the scale of
        the sum itself.
    log_found
        Log of the sum over the distinct trees that were found: the whole sum is no less.
    log_partition_of_run
        float64 [runs]; each run's own estimate.
    effective_size
        float64 [stages, runs]; effective sample size after each stage of growth, NaN in stages that
        a run no longer had.
    num_resampled
        int [runs]; how often the particles were resampled.
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


@in_float64
def sample_particles(
    rng_key: jax.Array,
    model: TreeModel,
    *,
    particles: int = 100,
    runs: int = 10,
    proposal: ProposalName = "optimal",
    growth: GrowthName = "node",
    resampling: ResamplingName = "systematic",
    ess_threshold: float = 0.1,
    capacity: int = 127,
    resumed: Callable[[Callable], Any] = lambda read: None,
    keep: Callable[[Callable[[], Mapping[str, np.ndarray]]], None] = lambda arrays: None,
) -> Filtered:
    """Grow weighted trees by independent particle filters.

    Parameters
    ----------
    rng_key
        Key.
    model
        The model.
    particles, runs
        Particles of each run, and the runs.
    proposal
        Law of the next node: "prior"; "empirical", the prior with cuts uniform among the
        available ones of the feature; or "optimal", in proportion to the prior times the change in
        likelihood.
    growth
        Particles are weighed after each "node", breadth first, or each "layer".
    resampling
        Law by which particles are drawn anew, or "never".
    ess_threshold
        Particles are drawn anew where their effective sample size is below this share of their
        number; the authors' code uses a tenth.
    capacity
        Most nodes of a tree, a bound of the model: trees that need more have no weight, so the
        estimates are of the sum over those that fit. Where no node has overflowed, no particle has
        met the bound.
    resumed, keep
        To go on with what was interrupted: the first is called with a function that reads the
        arrays of finished runs, and returns what it returns, or None where there are no arrays; the
        second with a function that makes them, whenever some runs are finished.

    Raises
    ------
    ValueError
        If a number is out of range, a name is not known, or a feature is monotone.

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
    require_weighs(model.prior, "The particle filter", "nodes")
    model.constraints.require_free_leaves("The particle filter")
    _check_settings(particles, runs, proposal, growth, resampling, ess_threshold, capacity)
    packed = PackedModel.of(model)
    noise = draw_particle_noise(
        rng_key, runs=int(runs), size=int(particles), capacity=int(capacity)
    )
    work = model.design.num_rows * model.design.num_features * int(particles)
    size = _runs_per_group(int(runs), work)

    tasks = [
        (noise.uniform[:, first : first + size], noise.rng_keys[:, first : first + size])
        for first in range(0, int(runs), size)
    ]
    threshold = 0.0 if resampling == "never" else float(ess_threshold)
    law = "systematic" if resampling == "never" else resampling
    shared = packed, growth == "layer", threshold, proposal, law

    def read(arrays: Mapping[str, np.ndarray]) -> list[_Runs]:
        like = jax.eval_shape(lambda: _run_group(*shared, *tasks[0]))
        return from_arrays([like] * int(arrays["num_groups"]), arrays)

    groups = resumed(read) or []
    while len(groups) < len(tasks):
        some = tasks[len(groups) : len(groups) + num_at_once()]
        groups = [*groups, *fan_out(_finished_runs, some, shared=shared)]
        keep(lambda done=groups: {"num_groups": np.array(len(done)), **to_arrays(done)})
    return _gathered(model, packed, groups, int(runs))


def _gathered(model: TreeModel, packed: PackedModel, groups: list[_Runs], runs: int) -> Filtered:
    """Make a posterior of the particles of all runs."""
    stages = [each.stages for each in groups]
    grown = jax.tree.map(
        lambda *a: np.concatenate(a), *(each._replace(stages=()) for each in groups)
    )
    require_defined(np.isnan(grown.log_prior))
    shape = grown.shape
    shape = shape._replace(nodes=shape.nodes[:, : padded_size(int(shape.size.max()))])
    written = write_out(packed, shape)
    trees = written.trees.reshape(runs, -1)
    log_prior, log_likelihood, log_weight = (
        a.reshape(runs, -1) for a in (grown.log_prior, grown.log_likelihood, grown.log_weight)
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
    num_stages = max(int(each.num_stages) for each in stages)
    return Filtered(
        posterior,
        log_partition,
        error,
        log_found,
        of_run,
        np.concatenate([each.effective_size for each in stages], axis=1)[:num_stages],
        np.concatenate([np.sum(each.is_resampled, axis=0) for each in stages]),
        np.concatenate([each.num_overflows for each in stages]),
    )


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


def _runs_per_group(runs: int, work: float) -> int:
    """Part runs into groups of one size, so that all run the same compiled code."""
    sizes = [size for size in range(1, runs + 1) if runs % size == 0]
    return max([size for size in sizes if size * work <= _WORK_AT_ONCE], default=1)


def _check_settings(particles, runs, proposal, growth, resampling, ess_threshold, capacity) -> None:
    for name, value, least in (
        ("particles", particles, 1),
        ("runs", runs, 1),
        ("capacity", capacity, 3),
    ):
        require_integer(name, value, least)
    for name, value, known in (
        ("proposal", proposal, tuple(PROPOSALS)),
        ("growth", growth, ("node", "layer")),
        ("resampling", resampling, (*RESAMPLING, "never")),
    ):
        if value not in known:
            raise ValueError(f"{name} must be one of {', '.join(known)}; got {value!r}.")
    if not isinstance(ess_threshold, int | float | np.number) or not 0 <= ess_threshold <= 1:
        raise ValueError(f"ess_threshold must lie between 0 and 1; got {ess_threshold!r}.")
