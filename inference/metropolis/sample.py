"""Run chains and collect a posterior.

Chains are split into groups that run side by side; how they are split depends on their number
alone, so the same key gives the same draws on any machine.
"""

import itertools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bdtppl.inference.hard.posterior import Posterior
from bdtppl.inference.hard.written_trees import as_shape, write_out
from bdtppl.inference.metropolis.evidence import stepping_stones
from bdtppl.inference.metropolis.growth import grown_trees
from bdtppl.inference.metropolis.kernel import Kernel
from bdtppl.inference.metropolis.moves import ROTATING, LocalMoves
from bdtppl.inference.metropolis.state import State, initial, state_of
from bdtppl.inference.metropolis.tempering import Exchanges, as_powers, climb, evened
from bdtppl.models.arrays.precision import in_float64
from bdtppl.models.constraints import Constraints
from bdtppl.models.data.design import Design
from bdtppl.models.hard.log_joint import log_joint
from bdtppl.models.hard.node_scores import require_defined
from bdtppl.models.hard.packed_model import PackedModel, pose
from bdtppl.models.hard.tree import Tree
from bdtppl.models.leaf_count_priors import require_node_wise
from bdtppl.models.leaves import Leaf
from bdtppl.models.priors import TreePrior

__all__ = ["Sampled", "sample"]

_GROUPS = 4  # at most
_LEAST_WALKS = 32  # of a group: fewer are hardly faster
_ROUNDS = 20  # parts of a run, after each of which progress is told

_Stage = list[tuple[int, int]]  # rounds: states to keep, and steps to each


class Sampled(NamedTuple):
    """What chains have drawn; t powers of the likelihood.

    Attributes
    ----------
    posterior
        The draws, under power 1. Its log evidence is known, up to its standard error, where powers
        begin at 0, and else NaN.
    acceptance
        Share of each move's proposals that were accepted after warm-up, by chain, float64 [chain];
        NaN for moves that were never proposed. Under power 1, as all that follows.
    num_overflows
        int [chain]; proposals after warm-up that were rejected because the tree had no room.
    powers
        float64 [t]; powers of the likelihood, ascending to 1.
    swap_rate
        float64 [t - 1]; share of the exchanges with the next higher power that were accepted after
        warm-up.
    trajectory_steps, trajectory
        int [record] and float64 [chain, record]; log likelihood of the tree after a number of
        steps, warm-up included, from the tree that the chain starts at on.
    """

    posterior: Posterior
    acceptance: dict[str, np.ndarray]
    num_overflows: np.ndarray
    powers: np.ndarray
    swap_rate: np.ndarray
    trajectory_steps: np.ndarray
    trajectory: np.ndarray


@in_float64
def sample(
    rng_key: jax.Array,
    design: Design,
    y: np.ndarray,
    prior: TreePrior,
    leaf: Leaf,
    constraints: Constraints | None = None,
    *,
    chains: int = 4,
    warmup: int = 2_000,
    draws: int = 250,
    thin: int = 20,
    kernel: Kernel | None = None,
    temperatures: int | Sequence[float] = 1,
    capacity: int = 63,
    start: Tree | Literal["prior"] | None = None,
    tell: Callable[[int], None] = lambda num_steps: None,
) -> Sampled:
    """Draw trees by Metropolis-Hastings.

    Parameters
    ----------
    rng_key
        Key.
    design, y, prior, leaf, constraints
        The model; targets [n].
    chains, warmup, draws, thin
        Chains, the steps of each that are thrown away, and the draws that are kept of each, one
        every ``thin`` steps.
    kernel
        How trees are proposed; default the moves of Chipman et al. and rotations.
    temperatures
        Powers of the likelihood in each chain, or their number; see `as_powers`. Where it is their
        number, they are tuned in warm-up, so that all neighbours exchange equally often.
    capacity
        Most nodes of a tree. What does not fit is rejected, and counted.
    start
        Trees [chain] to start from, or one tree; "prior" for trees grown from the prior (each node
        by the weights of what it may do, over their sum; nodes that find no room are leaves);
        default the tree of one leaf.
    tell
        Called with the number of steps that every chain has made.

    Raises
    ------
    ValueError
        If a number is out of range, or a start does not fit the model.
    """
    for name, value, least in (
        ("chains", chains, 1),
        ("warmup", warmup, 0),
        ("draws", draws, 1),
        ("thin", thin, 1),
        ("capacity", capacity, 3),
    ):
        if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
            raise ValueError(f"{name} must be an integer of at least {least}; got {value!r}.")
    powers = as_powers(temperatures)
    model = pose(design, y, prior, leaf, constraints)
    proposing = LocalMoves.of(ROTATING) if kernel is None else kernel
    key_start, key_walk = jax.random.split(rng_key)
    keys = jax.random.split(key_walk, chains)
    states = _start(key_start, model, design, constraints, chains, capacity, start)
    begin = np.asarray(states.log_likelihood)

    size = _group_size(chains, len(powers))
    groups = [slice(first, first + size) for first in range(0, chains, size)]
    ladders = jax.tree.map(lambda a: jnp.repeat(a, len(powers), axis=0), states)
    parts = []
    for group in groups:
        own = slice(group.start * len(powers), group.stop * len(powers))
        parts.append((keys[group], jax.tree.map(lambda a, own=own: a[own], ladders)))

    stages = _stages(warmup, draws, thin)
    room = max(num_draws for stage in stages for num_draws, _ in stage)

    @in_float64
    def advance(part, first: int, num_draws: int, thinned: int):
        own_keys, state = part
        state, kept, *counts = climb(
            own_keys,
            jnp.int32(first),
            state,
            model,
            proposing,
            jnp.asarray(powers),
            jnp.int32(num_draws),
            jnp.int32(thinned),
            room=room,
        )
        kept = jax.tree.map(lambda a: np.asarray(a)[:num_draws], kept)
        return (own_keys, jax.block_until_ready(state)), (kept, jax.tree.map(np.asarray, counts))

    steps, trajectory = [0], [begin[None]]

    def walk(stage: _Stage, workers: ThreadPoolExecutor) -> list:
        nonlocal parts
        results = []
        for num_draws, thinned in stage:
            advanced = workers.map(
                lambda part: advance(part, steps[-1], num_draws, thinned),  # noqa: B023
                parts,
            )
            parts, made = zip(*advanced, strict=True)
            steps.extend(steps[-1] + thinned * np.arange(1, num_draws + 1))
            # Arrays [draw, chain, ...] and [chain, ...].
            kept = jax.tree.map(lambda *a: np.concatenate(a, axis=1), *(kept for kept, _ in made))
            counts = jax.tree.map(lambda *a: np.concatenate(a), *(counts for _, counts in made))
            require_defined(counts[0].undefined)
            trajectory.append(kept.log_likelihood[..., -1])
            results.append((kept, counts))
            tell(int(steps[-1]))
        return results

    with ThreadPoolExecutor(min(len(parts), os.cpu_count() or 1)) as workers:
        *warming, keeping = stages
        for stage in warming:
            results = walk(stage, workers)
            if np.ndim(temperatures) == 0:
                powers = _tuned(powers, [exchanges for _, (_, exchanges) in results])
        results = walk(keeping, workers)

    walked = jax.tree.map(lambda *a: np.concatenate(a), *(kept for kept, _ in results))
    tally, exchanges = jax.tree.map(lambda *a: sum(a), *(counts for _, counts in results))
    tally = jax.tree.map(lambda a: a[len(powers) - 1 :: len(powers)], tally)  # under power 1
    shape = jax.tree.map(lambda a: np.swapaxes(a, 0, 1).reshape(-1, *a.shape[2:]), walked.shape)
    written = write_out(model, design, shape)
    trees = written.trees.reshape(chains, draws)
    log_likelihood = np.swapaxes(walked.log_likelihood, 0, 1)
    scores = walked.log_prior.T + log_likelihood[..., -1]
    if prior.counts_partitions:  # chains share a partition's weight among its rules
        scores = log_joint(trees, design, y, prior, leaf, constraints).log_joint
    nothing = float("nan"), float("nan")
    # Which trees are monotone depends on the targets, and so would the prior that power 0 leaves.
    is_known = powers[0] == 0 and model.directions is None
    evidence = stepping_stones(log_likelihood, powers) if is_known else nothing
    posterior = Posterior(
        trees=trees,
        statistics=written.statistics.reshape(chains, draws, *written.statistics.shape[1:]),
        sample_stats={
            "log_joint": scores,
            "log_likelihood": log_likelihood[..., -1],
            "num_leaves": trees.num_leaves,
            "max_leaf_depth": trees.depth,
        },
        leaf=leaf,
        prior=prior.resolve(design),
        design=design,
        y=y,
        log_evidence=evidence[0],
        log_evidence_se=evidence[1],
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        rates = tally.accepted / tally.proposed
        swap_rate = exchanges.accepted.sum(axis=0) / exchanges.tried.sum(axis=0)
    return Sampled(
        posterior,
        {name: rates[:, place] for place, name in enumerate(proposing.names)},
        tally.overflows,
        powers,
        swap_rate,
        np.array(steps),
        np.concatenate(trajectory).T,
    )


def _start(rng_key, model, design, constraints, chains: int, capacity: int, start) -> State:
    """Put each chain at its tree."""
    if isinstance(start, Tree):
        return _placed(model, design, chains, capacity, start)
    if start is None:
        states = initial(model, chains, capacity)
    elif start == "prior":
        require_node_wise(model.prior, "start='prior'")
        if constraints is not None:
            constraints.require_free_leaves("start='prior'")
        keys = jax.random.split(rng_key, chains)
        states = grown_trees(keys, model, capacity=capacity).state
    else:
        raise ValueError(f"start must be 'prior', trees or None; got {start!r}.")
    require_defined(np.isnan(states.log_prior))
    return states


def _placed(model: PackedModel, design: Design, chains: int, capacity: int, start: Tree) -> State:
    """Put each chain at a tree that is given."""
    trees = start if start.batch_shape else Tree.concatenate([start.reshape(1)] * chains)
    if trees.batch_shape != (chains,):
        raise ValueError(
            f"start must be one tree or one a chain, {chains}; got {trees.batch_shape}."
        )
    try:
        shape = as_shape(model, design, trees, capacity)
    except ValueError as error:
        raise ValueError(f"start: {error}") from None
    states = state_of(model, shape)
    if not np.isfinite(np.asarray(states.log_prior)).all():
        raise ValueError("start: a tree has a leaf or a rule that the model rules out.")
    return states


def _group_size(chains: int, num_powers: int) -> int:
    """Part chains into groups of one size, so that all run the same compiled code."""
    most = min(_GROUPS, -(-chains * num_powers // _LEAST_WALKS))
    return chains // max(number for number in range(1, most + 1) if chains % number == 0)


def _stages(warmup: int, draws: int, thin: int) -> list[_Stage]:
    """Cut a run into stages, those of warm-up ever longer; only draws of the last one are kept."""
    thinned = warmup // thin
    piece = -(-(thinned + draws) // _ROUNDS)
    ends = [0, thinned // 8, thinned // 4, thinned // 2, thinned, thinned + draws]
    stages = [
        [(min(piece, end - first), thin) for first in range(start, end, piece)]
        for start, end in itertools.pairwise(ends)
    ]
    if warmup % thin:
        stages[0].insert(0, (1, warmup % thin))
    return stages


def _tuned(powers: np.ndarray, exchanges: Sequence[Exchanges]) -> np.ndarray:
    """Even powers out by the exchanges of a stage [chain, t - 1], if all were tried."""
    if len(powers) < 3 or not exchanges:
        return powers
    tried, accepted = (
        np.sum([each.sum(axis=0) for each in made], axis=0) for made in zip(*exchanges, strict=True)
    )
    return evened(powers, tried, accepted) if tried.min() > 0 else powers
