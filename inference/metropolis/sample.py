"""Run chains and collect a posterior.

Chains are split into groups that run side by side. The split depends on their number alone, so the
same key gives the same draws on any machine.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bdtppl.inference.hard.posterior import Posterior
from bdtppl.inference.hard.written_trees import write_out
from bdtppl.inference.metropolis.evidence import stepping_stones
from bdtppl.inference.metropolis.kernel import Kernel
from bdtppl.inference.metropolis.moves import ROTATING, LocalMoves
from bdtppl.inference.metropolis.starts import edits_kernel, first_edits, first_states
from bdtppl.inference.metropolis.tempering import Exchanges, as_powers, climb, evened
from bdtppl.inference.parallel import fan_out
from bdtppl.inference.run import MOST_EXTENSIONS, Inference, read_state, run
from bdtppl.models.arrays.precision import in_float64
from bdtppl.models.edit_tree import EditTree
from bdtppl.models.hard.log_joint import log_joint
from bdtppl.models.hard.node_scores import require_defined
from bdtppl.models.hard.packed_model import PackedModel
from bdtppl.models.hard.tree import Tree
from bdtppl.models.hard.tree_model import TreeModel
from bdtppl.models.settings import check_parameters, parameter

_GROUPS = 4  # at most
_LEAST_WALKS = 32  # chains of a group: fewer are hardly faster
_REPORTS = 20  # parts of a run, after each of which progress is reported
_FIRST_CAPACITY, _MOST_CAPACITY = 63, 1023  # capacity if none is given

_Stage = list[tuple[int, int]]  # rounds: states to keep, and steps to each


class Sampled(NamedTuple):
    """Draws of chains; t powers of the likelihood.

    Attributes
    ----------
    posterior
        The draws, under power 1. Its log evidence is estimated if powers start at 0, and NaN
        otherwise.
    acceptance
        Share of accepted proposals of each move after warm-up, by chain, float64 [chain]; NaN for
        moves that were never proposed. This and the following are under power 1.
    num_overflows
        int [chain]; proposals after warm-up that were rejected because the tree had no room.
    powers
        float64 [t]; powers of the likelihood, ascending to 1.
    swap_rate
        float64 [t - 1]; share of accepted exchanges with the next higher power after warm-up.
    trajectory_steps, trajectory
        int [record] and float64 [chain, record]; log likelihood of the tree after a number of
        steps, including warm-up and the initial tree.
    """

    posterior: Posterior
    acceptance: dict[str, np.ndarray]
    num_overflows: np.ndarray
    powers: np.ndarray
    swap_rate: np.ndarray
    trajectory_steps: np.ndarray
    trajectory: np.ndarray


class ChainState(NamedTuple):
    """State of running chains; c chains of t walks each.

    Attributes
    ----------
    rng_keys
        Keys [c].
    walks
        `State` or `EditState` of all walks, arrays [c * t, ...]; those of a chain are contiguous.
    capacity
        Most nodes of a tree.
    stage
        Number of the current stage: those of warm-up, then that whose draws are kept, and its
        extensions.
    agree
        Whether the chains agreed when they last finished.
    powers
        float64 [t].
    kept
        Draws of the stage so far, arrays [draw, c, ...]; None before the first.
    counts
        Their tallies and exchanges, arrays [round, c, ...]; None before the first.
    before
        Draws and counts before chains were extended; None if they were not.
    steps, trajectory
        int [record] and float64 [record, c]; log likelihood and the steps before it.
    """

    rng_keys: Any
    walks: Any
    capacity: int
    stage: int
    agree: bool
    powers: np.ndarray
    kept: Any
    counts: Any
    before: Any
    steps: np.ndarray
    trajectory: np.ndarray


@dataclass(frozen=True, eq=False)
class MetropolisChains(Inference[ChainState, Sampled]):
    """Draws of trees by Metropolis-Hastings (see `bdtppl.inference.run`).

    If a time limit ends a run in warm-up, the draws are those of its last stage; in an extension,
    those before it. The time is checked after each twentieth of the steps.

    Attributes
    ----------
    model
        The model.
    chains, warmup, draws, thin
        Chains, warm-up steps of each, and draws kept from each, one every ``thin`` steps.
    kernel
        Proposal kernel; default the moves of Chipman et al. and rotations. None under an
        `EditTree`, whose chains propose sequences of edits (`bdtppl.inference.metropolis.edits`).
    temperatures
        Powers of the likelihood in each chain, or their number; see `as_powers`. Where it is their
        number, they are tuned in warm-up, so that all neighbours exchange equally often.
    capacity
        Most nodes of a tree; larger ones are rejected, and counted. None starts with 63 (or the
        nodes of the start), doubled in warm-up if trees outgrow it, up to 1,023. Sequences have
        room for that many edits, and for all but one in a million of the prior's sequences.
    first_trees
        Trees [chain] to start from, or one tree; "prior" for trees grown from the prior (each node
        by its normalised weights; nodes without room are leaves), or edited by it; default the tree
        of one leaf, or the one that the prior edits.
    extensions, agree
        Most extensions of chains that do not agree: their draws become warm-up, and the steps per
        draw double.

    Raises
    ------
    ValueError
        If a number is out of range, or a start does not fit the model.
    """

    model: TreeModel
    chains: int = parameter(4, least=1)
    warmup: int = parameter(2_000, least=0)
    draws: int = parameter(250, least=1)
    thin: int = parameter(20, least=1)
    kernel: Kernel | None = None
    temperatures: int | Sequence[float] = 1
    capacity: int | None = parameter(None, least=3)
    first_trees: Tree | Literal["prior"] | None = None
    extensions: int = parameter(0, least=0)
    agree: Callable[[Posterior], bool] = lambda posterior: True

    def __post_init__(self):
        check_parameters(self)
        if isinstance(self.model.prior, EditTree) and self.kernel is not None:
            raise ValueError("proposal must be None under an EditTree, whose edits are regrown.")

    @cached_property
    def _edits(self) -> EditTree | None:
        """The prior over edits, resolved, if there is one."""
        prior: Any = self.model.prior
        return prior.resolve(self.model.design) if isinstance(prior, EditTree) else None

    @cached_property
    def _packed(self) -> PackedModel:
        edits = self._edits
        return PackedModel.of(
            self.model if edits is None else replace(self.model, prior=edits.base)
        )

    @cached_property
    @in_float64
    def _proposing(self) -> Any:
        if self._edits is not None:
            return edits_kernel(self._packed, self.model.design, self._edits, self._first_capacity)
        return LocalMoves.of(ROTATING) if self.kernel is None else self.kernel

    @property
    def _first_capacity(self) -> int:
        if self.capacity is not None:
            return self.capacity
        given = self.first_trees if self._edits is None else self._edits.tree
        return max(_FIRST_CAPACITY, given.capacity) if isinstance(given, Tree) else _FIRST_CAPACITY

    @cached_property
    def _stages(self) -> list[_Stage]:
        return _cut_into_stages(self.warmup, self.draws, self.thin)

    def _stage(self, number: int) -> _Stage:
        """List the rounds of a stage; the last one of the run may be extended."""
        extended = number - len(self._stages) + 1
        rounds = self._stages[min(number, len(self._stages) - 1)]
        return [(draws, thin << max(extended, 0)) for draws, thin in rounds]

    @in_float64
    def start(self, rng_key: jax.Array) -> ChainState:
        """Put each chain at its first tree."""
        powers = as_powers(self.temperatures)
        key_start, key_walk = jax.random.split(rng_key)
        keys = jax.random.split(key_walk, self.chains)
        place: Any = first_states
        of: Any = self.model
        if self._edits is not None:
            place, of = first_edits, self._proposing
        states = place(
            key_start, self._packed, of, self.chains, self._first_capacity, self.first_trees
        )
        walks = jax.tree.map(lambda a: np.repeat(np.asarray(a), len(powers), axis=0), states)
        first = np.asarray(states.log_likelihood)[None]
        capacity, steps = walks.shape.capacity, np.zeros(1, int)
        return ChainState(keys, walks, capacity, 0, False, powers, None, None, None, steps, first)

    @in_float64
    def from_arrays(self, rng_key: jax.Array, arrays: Mapping[str, np.ndarray]) -> ChainState:
        """Read a stored state; trees may have more room, and there may be draws."""
        fresh = self.start(rng_key)
        own, capacity, stage = fresh.capacity, int(arrays[".capacity"]), int(arrays[".stage"])
        if not own <= capacity <= max(own, _MOST_CAPACITY):
            raise ValueError(f"trees cannot have {capacity} nodes")
        if not 0 <= stage < len(self._stages) + MOST_EXTENSIONS:
            raise ValueError(f"there is no stage {stage}")
        walks = jax.tree.map(np.asarray, fresh.walks.with_capacity(capacity))
        fresh = fresh._replace(walks=walks, steps=fresh.steps[:0], trajectory=fresh.trajectory[:0])
        group = jax.tree.map(lambda a: a[: len(fresh.powers)], walks)
        step = 0, fresh.powers, 1, 1
        shared = self._packed, self._proposing, 1, fresh.rng_keys[:1], group
        _, kept, *counts = jax.eval_shape(lambda: _walk_on(*shared, *step))

        def of_all(a: Any) -> Any:
            return jax.ShapeDtypeStruct((0, self.chains * a.shape[0], *a.shape[1:]), a.dtype)

        kept = jax.tree.map(
            lambda a: jax.ShapeDtypeStruct((0, self.chains, *a.shape[2:]), a.dtype), kept
        )
        drawn = kept, tuple(jax.tree.map(of_all, counts))
        before = drawn if stage >= len(self._stages) else None
        state = read_state(fresh._replace(kept=kept, counts=drawn[1], before=before), arrays)
        rounds = self._stage(stage)[: self._rounds_made(state)]
        lengths = {len(array) for array in jax.tree.leaves(state.kept)}
        rounds_made = {len(array) for array in jax.tree.leaves(state.counts)}
        sizes = np.append(state.walks.shape.size, state.kept.shape.size)
        fits = (
            rounds_made == {len(rounds)},
            lengths == {sum(draws for draws, _ in rounds)},
            0 < len(state.steps) == len(state.trajectory),
            (np.diff(state.steps, prepend=-1) > 0).all(),
            ((sizes > 0) & (sizes <= capacity)).all(),
        )
        if not all(fits):
            raise ValueError("its arrays are inconsistent")
        return state

    def lengths(self, state: ChainState) -> dict[str, tuple[int, int]]:
        """List the extensions made and allowed."""
        return {"extensions": (max(0, state.stage - len(self._stages) + 1), self.extensions)}

    def num_steps(self, state: ChainState) -> tuple[int, int]:
        """Count the steps of each chain."""
        last = max(state.stage, len(self._stages) - 1)
        stages = map(self._stage, range(last + 1))
        return int(state.steps[-1]), sum(draws * thin for each in stages for draws, thin in each)

    def _rounds_made(self, state: ChainState) -> int:
        return 0 if state.counts is None else len(state.counts[0].overflows)

    def is_done(self, state: ChainState) -> bool:
        """Return whether the chains agree, or may not be extended."""
        extended = state.stage - len(self._stages) + 1
        is_whole = self._rounds_made(state) == len(self._stage(state.stage))
        return extended >= 0 and is_whole and (state.agree or extended >= self.extensions)

    def in_words(self, state: ChainState) -> str:
        """Report chains that disagree."""
        return "chains disagree and continue" if state.stage >= len(self._stages) else ""

    @in_float64
    def advance(self, state: ChainState) -> ChainState:
        """Run one round."""
        while self._rounds_made(state) == len(self._stage(state.stage)):
            state = self._next_stage(state)
        num_draws, thin = self._stage(state.stage)[self._rounds_made(state)]
        num_powers, first = len(state.powers), int(state.steps[-1])
        size = _chains_per_group(self.chains, num_powers)
        tasks = [
            (
                state.rng_keys[at : at + size],
                jax.tree.map(
                    lambda a, at=at: a[at * num_powers : (at + size) * num_powers], state.walks
                ),
                *(first, state.powers, num_draws, thin),
            )
            for at in range(0, self.chains, size)
        ]
        room = max(draws for stage in self._stages for draws, _ in stage)
        shared = self._packed, self._proposing, room
        walks, kept, counts = zip(*fan_out(_advance_group, tasks, shared=shared), strict=True)
        walks, counts = jax.tree.map(lambda *a: np.concatenate(a), *zip(walks, counts, strict=True))
        kept = jax.tree.map(lambda *a: np.concatenate(a, axis=1), *kept)
        require_defined(counts[0].undefined)
        steps = np.append(state.steps, first + thin * np.arange(1, num_draws + 1))
        trajectory = np.concatenate([state.trajectory, kept.log_likelihood[..., -1]])
        counts = jax.tree.map(lambda a: a[None], counts)
        if state.counts is not None:
            kept, counts = jax.tree.map(
                lambda *a: np.concatenate(a), (state.kept, state.counts), (kept, counts)
            )
        state = state._replace(walks=walks, kept=kept, counts=counts)
        state = state._replace(agree=False, steps=steps, trajectory=trajectory)
        is_last = state.stage >= len(self._stages) - 1
        if is_last and self._rounds_made(state) == len(self._stage(state.stage)):
            return state._replace(agree=bool(self.agree(self.result(state).posterior)))
        return state

    def _next_stage(self, state: ChainState) -> ChainState:
        """Start the next stage; after one of warm-up, tune powers and give trees room."""
        if state.stage < len(self._stages) - 1 and state.counts is not None:
            tally, exchanges = state.counts
            if np.ndim(self.temperatures) == 0:
                state = state._replace(powers=_tuned(state.powers, exchanges))
            overflows = tally.overflows[:, len(state.powers) - 1 :: len(state.powers)]
            if self.capacity is None and overflows.any():
                most = max(state.capacity, min(2 * state.capacity + 1, _MOST_CAPACITY))
                walks = jax.tree.map(np.asarray, state.walks.with_capacity(most))
                state = state._replace(walks=walks, capacity=most)
        is_kept = state.stage >= len(self._stages) - 1
        before = (state.kept, state.counts) if is_kept else None
        return state._replace(stage=state.stage + 1, kept=None, counts=None, before=before)

    @in_float64
    def result(self, state: ChainState) -> Sampled:
        """Make a posterior of the draws of the stage so far, with statistics from the counts."""
        if state.before and self._rounds_made(state) < len(self._stage(state.stage)):
            end = len(state.steps) - len(state.kept.log_prior)  # draws before the extension
            kept, counts = state.before
            parts = {"steps": state.steps[:end], "trajectory": state.trajectory[:end]}
            state = state._replace(kept=kept, counts=counts, **parts)
        model, powers, walked = self.model, state.powers, state.kept
        tally, exchanges = state.counts
        tally = jax.tree.map(lambda a: a.sum(axis=0)[len(powers) - 1 :: len(powers)], tally)
        tried, accepted = (counts.sum(axis=(0, 1)) for counts in exchanges)
        size = walked.log_likelihood.shape[1::-1]  # chains, draws
        shape = jax.tree.map(lambda a: np.swapaxes(a, 0, 1).reshape(-1, *a.shape[2:]), walked.shape)
        written = write_out(self._packed, shape)
        trees = written.trees.reshape(*size)
        log_likelihood = np.swapaxes(walked.log_likelihood, 0, 1)
        scores: dict[str, Any] = {"log_joint": walked.log_prior.T + log_likelihood[..., -1]}
        if isinstance(model.prior, EditTree):  # which weights sequences of edits, and not trees
            scores = {}
        elif model.prior.counts_partitions:  # chains share a partition's weight among its rules
            scores = {"log_joint": log_joint(trees, model).log_joint}
        # The targets decide which trees are monotone, so power 0 would not be the prior alone.
        is_known = powers[0] == 0 and self._packed.directions is None
        is_known &= state.stage >= len(self._stages) - 1  # powers are tuned in warm-up
        log_evidence, error = (
            stepping_stones(log_likelihood, powers) if is_known else (np.nan, np.nan)
        )
        posterior = Posterior.of(
            model,
            trees,
            written.statistics,
            **scores,
            log_likelihood=log_likelihood[..., -1],
            log_evidence=log_evidence,
            log_evidence_se=error,
        )
        with np.errstate(invalid="ignore", divide="ignore"):
            rates, swap_rate = tally.accepted / tally.proposed, accepted / tried
        return Sampled(
            posterior,
            {name: rates[:, place] for place, name in enumerate(self._proposing.names)},
            tally.overflows,
            powers,
            swap_rate,
            state.steps,
            state.trajectory.T,
        )


def sample_chains(rng_key: jax.Array, model: TreeModel, **settings: Any) -> Sampled:
    """Draw trees by Metropolis-Hastings; the settings are those of `MetropolisChains`."""
    chains = MetropolisChains(model, **settings)
    return chains.result(run(chains, rng_key))


@in_float64
def _advance_group(packed, kernel, room: int, keys, state, *step: Any):
    """Advance a group of chains; return it, its kept states and its counts."""
    num_draws = step[-2]
    state, kept, *counts = jax.tree.map(
        np.asarray, _walk_on(packed, kernel, room, keys, state, *step)
    )
    return state, jax.tree.map(lambda a: a[:num_draws], kept), tuple(counts)


def _walk_on(packed, kernel, room: int, keys, state, first: int, powers, num_draws: int, thin: int):
    return climb(
        keys,
        jnp.int32(first),
        state,
        packed,
        kernel,
        jnp.asarray(powers),
        jnp.int32(num_draws),
        jnp.int32(thin),
        room=room,
    )


def _chains_per_group(chains: int, num_powers: int) -> int:
    """Divide chains into groups of one size, so that all run the same compiled code."""
    most = min(_GROUPS, -(-chains * num_powers // _LEAST_WALKS))
    return chains // max(number for number in range(1, most + 1) if chains % number == 0)


def _cut_into_stages(warmup: int, draws: int, thin: int) -> list[_Stage]:
    """Divide a run into stages of increasing length; only draws of the last one are kept."""
    thinned = warmup // thin
    piece = -(-(thinned + draws) // _REPORTS)
    ends = [0, thinned // 8, thinned // 4, thinned // 2, thinned, thinned + draws]
    stages = [
        [(min(piece, end - first), thin) for first in range(start, end, piece)]
        for start, end in itertools.pairwise(ends)
    ]
    if warmup % thin:
        stages[0].insert(0, (1, warmup % thin))
    return stages


def _tuned(powers: np.ndarray, exchanges: Exchanges) -> np.ndarray:
    """Tune powers by the exchanges of a stage [round, chain, t - 1], if all were tried."""
    if len(powers) < 3:
        return powers
    tried, accepted = (np.sum(counts, axis=(0, 1)) for counts in exchanges)
    return evened(powers, tried, accepted) if tried.min() > 0 else powers
