"""Run chains and collect a posterior.

Chains are split into groups that run side by side; how they are split depends on their number
alone, so the same key gives the same draws on any machine.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bdtppl.inference.hard_model import pose
from bdtppl.inference.metropolis.kernel import Kernel, Tally, walk
from bdtppl.inference.metropolis.moves import CHIPMAN, LocalMoves
from bdtppl.inference.metropolis.state import initial, state_of
from bdtppl.inference.posterior import Posterior
from bdtppl.inference.precision import in_float64
from bdtppl.inference.written_trees import as_shape, write_out
from bdtppl.models.constraints import Constraints
from bdtppl.models.data import Design
from bdtppl.models.hard_tree import log_joint
from bdtppl.models.leaves import Leaf
from bdtppl.models.priors import TreePrior
from bdtppl.models.tree import Tree

__all__ = ["Sampled", "sample"]

_GROUPS = 4
_ROUNDS = 20  # parts of a run, after each of which its progress is told


class Sampled(NamedTuple):
    """What chains have drawn.

    Attributes
    ----------
    posterior
        The draws; the log evidence is unknown, NaN.
    acceptance
        Share of each move's proposals that were accepted after warm-up, by chain, float64 [chain];
        NaN for moves that were never proposed.
    num_overflows
        int [chain]; proposals after warm-up that were rejected because the tree had no room.
    """

    posterior: Posterior
    acceptance: dict[str, np.ndarray]
    num_overflows: np.ndarray


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
    capacity: int = 63,
    start: Tree | None = None,
    tell: Callable[[float], None] = lambda share: None,
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
        How trees are proposed; default the moves of Chipman et al.
    capacity
        Most nodes of a tree. What does not fit is rejected, and counted.
    start
        Trees [chain] to start from, or one tree; default the tree of one leaf.
    tell
        Called with the share of the run that is done.

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
    model = pose(design, y, prior, leaf, constraints)
    proposing = LocalMoves.of(CHIPMAN) if kernel is None else kernel
    keys = jax.random.split(rng_key, chains)
    if start is None:
        states = initial(model, chains, capacity)
    else:
        trees = Tree.concatenate([start.reshape(1)] * chains) if not start.batch_shape else start
        if trees.batch_shape != (chains,):
            raise ValueError(f"start must be one tree or one a chain, {chains}.")
        states = state_of(model, as_shape(model, design, trees, capacity))
        if not np.isfinite(np.asarray(states.log_prior)).all():
            raise ValueError("A tree to start from has a leaf or a rule that the model rules out.")

    size = -(-chains // _GROUPS)
    groups = [slice(first, first + size) for first in range(0, chains, size)]
    parts = [
        (keys[group], jax.tree.map(lambda a, group=group: a[group], states)) for group in groups
    ]

    @in_float64
    def advance(part, first: int, num_draws: int, thinned: int):
        own_keys, state = part
        power = jnp.ones(len(own_keys))
        state, kept, tally = walk(
            own_keys,
            jnp.int32(first),
            state,
            model,
            proposing,
            power,
            num_draws=num_draws,
            thin=thinned,
        )
        return (own_keys, jax.block_until_ready(state)), jax.tree.map(np.asarray, (kept, tally))

    total, step, rounds = warmup + draws * thin, 0, []
    with ThreadPoolExecutor(min(len(parts), os.cpu_count() or 1)) as workers:
        for num_draws, thinned, is_kept in _schedule(warmup, draws, thin):
            results = workers.map(lambda part: advance(part, step, num_draws, thinned), parts)  # noqa: B023
            parts, kept = zip(*results, strict=True)
            step += num_draws * thinned
            if is_kept:
                rounds.append(kept)
            tell(step / total)

    # [round][group] of (walk, tally) with arrays [draw, chain, ...] and [chain, ...].
    walks = [
        jax.tree.map(lambda *a: np.concatenate(a, axis=1), *(walk for walk, _ in kept))
        for kept in rounds
    ]
    walked = jax.tree.map(lambda *a: np.concatenate(a), *walks)
    tallies = [
        jax.tree.map(lambda *a: np.concatenate(a), *(tally for _, tally in kept)) for kept in rounds
    ]
    tally: Tally = jax.tree.map(lambda *a: sum(a), *tallies)
    shape = jax.tree.map(lambda a: np.swapaxes(a, 0, 1).reshape(-1, *a.shape[2:]), walked.shape)
    written = write_out(model, design, shape)
    trees = written.trees.reshape(chains, draws)
    scores = (walked.log_prior + walked.log_likelihood).T
    if prior.counts_partitions:  # chains share a partition's weight among its rules
        scores = log_joint(trees, design, y, prior, leaf, constraints).log_joint
    posterior = Posterior(
        trees=trees,
        statistics=written.statistics.reshape(chains, draws, *written.statistics.shape[1:]),
        sample_stats={
            "log_joint": scores,
            "log_likelihood": walked.log_likelihood.T,
            "num_leaves": trees.num_leaves,
            "max_leaf_depth": trees.depth,
        },
        leaf=leaf,
        prior=prior.resolve(design),
        design=design,
        y=y,
        log_evidence=float("nan"),
        log_evidence_se=float("nan"),
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        rates = np.asarray(tally.accepted / tally.proposed)
    acceptance = {name: rates[:, place] for place, name in enumerate(proposing.names)}
    return Sampled(posterior, acceptance, np.asarray(tally.overflows))


def _schedule(warmup: int, draws: int, thin: int) -> list[tuple[int, int, bool]]:
    """Cut a run into rounds of few sizes: (draws, steps to each, whether they are kept)."""
    rounds = []
    if warmup:
        piece = max(1, warmup // _ROUNDS)
        rounds += [(1, piece, False)] * (warmup // piece)
        if warmup % piece:
            rounds.append((1, warmup % piece, False))
    piece = max(1, draws // _ROUNDS)
    rounds += [(piece, thin, True)] * (draws // piece)
    if draws % piece:
        rounds.append((draws % piece, thin, True))
    return rounds
