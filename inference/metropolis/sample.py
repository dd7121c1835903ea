"""Run chains and collect a posterior.

Chains are split into groups that run side by side; how they are split depends on their number
alone, so the same key gives the same draws on any machine.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bdtppl.inference.hard.posterior import Posterior
from bdtppl.inference.hard.shapes import select_trees
from bdtppl.inference.hard.written_trees import as_shape, write_out
from bdtppl.inference.metropolis.edits import EditState, RegrowEdits, edited, initial_edits
from bdtppl.inference.metropolis.evidence import stepping_stones
from bdtppl.inference.metropolis.growth import grown_trees
from bdtppl.inference.metropolis.kernel import Kernel
from bdtppl.inference.metropolis.moves import ROTATING, LocalMoves
from bdtppl.inference.metropolis.state import State, initial, state_of
from bdtppl.inference.metropolis.tempering import Exchanges, as_powers, climb, evened
from bdtppl.inference.parallel import fan_out
from bdtppl.inference.pytree_arrays import from_arrays, to_arrays
from bdtppl.models.arguments import require_integer
from bdtppl.models.arrays.precision import in_float64
from bdtppl.models.edit_tree import EditTree
from bdtppl.models.hard.log_joint import log_joint
from bdtppl.models.hard.node_scores import require_defined
from bdtppl.models.hard.packed_model import PackedModel
from bdtppl.models.hard.tree import Tree
from bdtppl.models.hard.tree_model import TreeModel
from bdtppl.models.prior_kinds import require_weighs, weighs

__all__ = ["Sampled", "sample_chains"]

_GROUPS = 4  # at most
_LEAST_WALKS = 32  # of a group: fewer are hardly faster
_REPORTS = 20  # parts of a run, after each of which progress is told
_FIRST_CAPACITY, _MOST_CAPACITY = 63, 1023  # where none is given
_MOST_STARTS = 100  # draws of a tree to start at, if constraints forbid some
_LONGER_EDITS = 1e-6  # share of the prior's sequences of edits that find no room

_Stage = list[tuple[int, int]]  # rounds: states to keep, and steps to each


class Sampled(NamedTuple):
    """Draws of chains; t powers of the likelihood.

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
def sample_chains(
    rng_key: jax.Array,
    model: TreeModel,
    *,
    chains: int = 4,
    warmup: int = 2_000,
    draws: int = 250,
    thin: int = 20,
    kernel: Kernel | None = None,
    temperatures: int | Sequence[float] = 1,
    capacity: int | None = None,
    start: Tree | Literal["prior"] | None = None,
    extensions: int = 0,
    agree: Callable[[Posterior], bool] = lambda posterior: True,
    on_progress: Callable[[int], None] = lambda num_steps: None,
    resumed: Callable[[Callable], Any] = lambda read: None,
    keep: Callable[[Callable[[], Mapping[str, np.ndarray]]], None] = lambda arrays: None,
) -> Sampled:
    """Draw trees by Metropolis-Hastings.

    Parameters
    ----------
    rng_key
        Key.
    model
        The model.
    chains, warmup, draws, thin
        Chains, the steps of each that are thrown away, and the draws that are kept of each, one
        every ``thin`` steps.
    kernel
        Proposes trees; default the moves of Chipman et al. and rotations. None under an `EditTree`,
        whose chains propose sequences of edits (`bdtppl.inference.metropolis.edits`).
    temperatures
        Powers of the likelihood in each chain, or their number; see `as_powers`. Where it is their
        number, they are tuned in warm-up, so that all neighbours exchange equally often.
    capacity
        Most nodes of a tree; larger ones are rejected, and counted. None for 63 at first (or those
        of the start), doubled in warm-up where trees found no room, up to 1,023. Sequences of edits
        have room for as many edits, and for all but one in a million of those that the prior draws.
    start
        Trees [chain] to start from, or one tree; "prior" for trees grown from the prior (each node
        by the weights of what it may do, over their sum; nodes that find no room are leaves), or
        edited by it; default the tree of one leaf, or the one that the prior edits.
    extensions, agree
        As long as chains do not agree, they go on, at most so many times: their draws become
        warm-up, and the steps to each draw double.
    on_progress
        Called with the number of steps that every chain has made.
    resumed, keep
        To go on with a run: the first is called with a function that takes up the arrays of a
        state, if there are any; the second after each round with a function that makes them. A run
        that goes on comes to the same draws.

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
        ("extensions", extensions, 0),
        ("capacity", _FIRST_CAPACITY if capacity is None else capacity, 3),
    ):
        require_integer(name, value, least)
    powers = as_powers(temperatures)
    key_start, key_walk = jax.random.split(rng_key)
    keys = jax.random.split(key_walk, chains)
    packed, proposing, states = _begin(key_start, model, chains, kernel, capacity, start)
    stages = _stages(warmup, draws, thin)
    room = max(num_draws for stage in stages for num_draws, _ in stage)
    *warming, keeping = stages
    run = _Run(packed, proposing, keys, states, powers, room, on_progress, keep)
    resumed(run.resume)
    if (extended := run.stage - len(warming)) > extensions:
        raise ValueError(
            f"The run that was kept has {extended} extensions: raise extensions={extensions}."
        )
    for stage in warming[run.stage :]:
        _, tallies, exchanges = run.walk(stage)
        if np.ndim(temperatures) == 0:
            run.powers = _tuned(run.powers, exchanges)
        if capacity is None and any(
            _under_power_1(each.overflows, powers).any() for each in tallies
        ):
            run.enlarge()
        run.end_stage()
    while True:
        extended = run.stage - len(warming)
        stage = [(num_draws, thin << extended) for num_draws, _ in keeping]
        sampled = _collected(model, run, *run.walk(stage))
        if extended >= extensions or agree(sampled.posterior):
            return sampled
        run.end_stage()


def _begin(rng_key, model: TreeModel, chains: int, kernel, capacity: int | None, start) -> Any:
    """Make the compiled model, the proposal and the first states of all chains."""
    if not isinstance(model.prior, EditTree):
        packed = PackedModel.of(model)
        room = _room_at_first(start) if capacity is None else capacity
        states = _start(rng_key, packed, model, chains, room, start)
        return packed, LocalMoves.of(ROTATING) if kernel is None else kernel, states
    if kernel is not None:
        raise ValueError("proposal has no use under an EditTree, whose edits are regrown.")
    prior: Any = model.prior.resolve(model.design)
    packed = PackedModel.of(replace(model, prior=prior.base))
    room = _room_at_first(prior.tree) if capacity is None else capacity
    return packed, *_start_edits(rng_key, packed, model.design, prior, chains, room, start)


class _Run:
    """Chains on their way; groups of chains walk side by side, in threads or over workers.

    ``rounds`` and ``counts`` are those of the stage that the chains are in, number ``stage``.
    """

    def __init__(self, packed, kernel, keys, states, powers, room: int, on_progress, keep):
        self.packed, self.kernel, self.powers = packed, kernel, powers
        self.room, self.on_progress, self.keep = room, on_progress, keep
        self.steps, self.trajectory = [0], [np.asarray(states.log_likelihood)[None]]
        size = _chains_per_group(len(keys), len(powers))
        ladders = jax.tree.map(lambda a: jnp.repeat(a, len(powers), axis=0), states)
        self.parts = []
        for first in range(0, len(keys), size):
            own = slice(first * len(powers), (first + size) * len(powers))
            state = jax.tree.map(lambda a, own=own: a[own], ladders)
            self.parts.append((keys[first : first + size], state))
        self.stage, self.rounds, self.counts = 0, [], []

    def enlarge(self, capacity: int | None = None) -> None:
        """Give all trees more slots: twice as many, up to a limit, or a number of them."""
        own = self.parts[0][1].shape.capacity
        if capacity is None:
            capacity = max(own, min(2 * own + 1, _MOST_CAPACITY))
        self.parts = [(keys, state.with_capacity(capacity)) for keys, state in self.parts]

    def walk(self, stage: _Stage) -> tuple[Any, list, list[Exchanges]]:
        """Walk the rounds of a stage that are left.

        Returns
        -------
        kept
            The states of all its rounds, arrays [draw, chain, ...].
        tallies, exchanges
            Their counts, arrays [chain, ...], one for each round.
        """
        shared = self.packed, self.kernel, self.room
        for num_draws, thin in stage[len(self.rounds) :]:
            step = self.steps[-1], self.powers, num_draws, thin
            tasks = [(*part, *step) for part in self.parts]
            self.parts, made = zip(*fan_out(_advance_group, tasks, shared=shared), strict=True)
            self.steps.extend(self.steps[-1] + thin * np.arange(1, num_draws + 1))
            kept, counted = zip(*made, strict=True)
            self.rounds.append(jax.tree.map(lambda *a: np.concatenate(a, axis=1), *kept))
            self.counts.append(jax.tree.map(lambda *a: np.concatenate(a), *counted))
            require_defined(self.counts[-1][0].undefined)
            self.trajectory.append(self.rounds[-1].log_likelihood[..., -1])
            arrays = self._arrays()
            self.keep(lambda arrays=arrays: arrays)
            self.on_progress(int(self.steps[-1]))
        tallies, exchanges = zip(*self.counts, strict=True) if self.counts else ((), ())
        kept = jax.tree.map(lambda *a: np.concatenate(a), *self.rounds) if self.rounds else None
        return kept, list(tallies), list(exchanges)

    def end_stage(self) -> None:
        """Come to the next stage."""
        self.stage, self.rounds, self.counts = self.stage + 1, [], []

    def _arrays(self) -> dict[str, np.ndarray]:
        """Name what a run goes on from; the arrays are not copied."""
        progress = {
            "stage": np.int64(self.stage),
            "powers": self.powers,
            "num_draws": np.array([len(kept.log_prior) for kept in self.rounds], int),
            "capacity": np.int64(self.parts[0][1].shape.capacity),
            "steps": np.array(self.steps),
            "trajectory": np.concatenate(self.trajectory),
        }
        nests = [state for _, state in self.parts], self.rounds, self.counts
        return progress | to_arrays(nests)

    @in_float64
    def resume(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Go on from what a run of the same settings has kept.

        Raises
        ------
        KeyError, ValueError
            If the arrays are not those of such a run.
        """
        own, capacity = self.parts[0][1].shape.capacity, int(arrays["capacity"])
        if not own <= capacity <= max(own, _MOST_CAPACITY):
            raise ValueError(f"trees cannot have {capacity} nodes")
        if arrays["powers"].shape != self.powers.shape:
            raise ValueError("there are other powers")
        self.enlarge(capacity)
        states = [state for _, state in self.parts]
        keys, num_parts = self.parts[0][0], len(self.parts)
        _, kept, *counts = jax.eval_shape(
            lambda: _walk_on(
                self.packed, self.kernel, self.room, keys, states[0], 0, self.powers, 1, 1
            )
        )

        def of_all(a: Any, *shape: int) -> Any:
            return jax.ShapeDtypeStruct(shape, a.dtype)

        def drawn(number: int) -> Any:
            return jax.tree.map(
                lambda a: of_all(a, number, a.shape[1] * num_parts, *a.shape[2:]), kept
            )

        numbers = arrays["num_draws"].tolist()
        counted = jax.tree.map(lambda a: of_all(a, len(a) * num_parts, *a.shape[1:]), counts)
        nests = states, [*map(drawn, numbers)], [counted] * len(numbers)
        states, *of_rounds = from_arrays(nests, arrays)
        self.parts = [(keys, state) for (keys, _), state in zip(self.parts, states, strict=True)]
        self.rounds, self.counts = jax.tree.map(np.asarray, of_rounds)
        self.stage, self.powers = int(arrays["stage"]), arrays["powers"]
        self.steps, self.trajectory = arrays["steps"].tolist(), [arrays["trajectory"]]


@in_float64
def _advance_group(packed, kernel, room: int, keys, state, *step: Any):
    """Let a group of chains walk on; returns it, and its kept states and counts."""
    num_draws = step[-2]
    state, kept, *counts = _walk_on(packed, kernel, room, keys, state, *step)
    kept = jax.tree.map(lambda a: np.asarray(a)[:num_draws], kept)
    return (keys, jax.block_until_ready(state)), (kept, jax.tree.map(np.asarray, counts))


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


def _collected(model: TreeModel, run: _Run, walked, tallies, exchanges) -> Sampled:
    """Write the kept states out as a posterior, with what the counts tell of the chains."""
    powers = run.powers
    tally = jax.tree.map(lambda *a: np.sum(a, axis=0), *tallies)
    tally = jax.tree.map(lambda a: _under_power_1(a, powers), tally)
    tried, accepted = (np.sum(counts, axis=(0, 1)) for counts in zip(*exchanges, strict=True))
    size = walked.log_likelihood.shape[1::-1]  # chains, draws
    shape = jax.tree.map(lambda a: np.swapaxes(a, 0, 1).reshape(-1, *a.shape[2:]), walked.shape)
    written = write_out(run.packed, shape)
    trees = written.trees.reshape(*size)
    log_likelihood = np.swapaxes(walked.log_likelihood, 0, 1)
    scores = {"log_joint": walked.log_prior.T + log_likelihood[..., -1]}
    if isinstance(model.prior, EditTree):  # which weighs ways to a tree, and not the tree
        scores = {}
    elif model.prior.counts_partitions:  # chains share a partition's weight among its rules
        scores = {"log_joint": log_joint(trees, model).log_joint}
    # The targets decide which trees are monotone, so power 0 would not leave the prior alone.
    is_known = powers[0] == 0 and run.packed.directions is None
    log_evidence, error = stepping_stones(log_likelihood, powers) if is_known else (np.nan, np.nan)
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
        {name: rates[:, place] for place, name in enumerate(run.kernel.names)},
        tally.overflows,
        powers,
        swap_rate,
        np.array(run.steps),
        np.concatenate(run.trajectory).T,
    )


def _under_power_1(values: np.ndarray, powers: np.ndarray) -> np.ndarray:
    """Of values [walk, ...], those of the last walk of each ladder."""
    return values[len(powers) - 1 :: len(powers)]


def _room_at_first(start: Any) -> int:
    return max(_FIRST_CAPACITY, start.capacity) if isinstance(start, Tree) else _FIRST_CAPACITY


def _start(
    rng_key: jax.Array,
    packed: PackedModel,
    model: TreeModel,
    chains: int,
    capacity: int,
    start: Tree | Literal["prior"] | None,
) -> State:
    """Put each chain at its tree."""
    if isinstance(start, Tree):
        return _placed(packed, model.design, chains, capacity, start)
    if start is None:
        states = initial(packed, chains, capacity)
        if np.isneginf(states.log_prior).any() and weighs(model.prior) == "nodes":
            grow = partial(grown_trees, model=packed, capacity=capacity)
            states = _allowed(jax.random.split(rng_key, chains), lambda keys: grow(keys).state)
    elif start == "prior":
        require_weighs(model.prior, "start='prior'", "nodes")
        model.constraints.require_free_leaves("start='prior'")
        keys = jax.random.split(rng_key, chains)
        states = grown_trees(keys, packed, capacity=capacity).state
    else:
        raise ValueError(f"start must be 'prior', trees or None; got {start!r}.")
    require_defined(np.isnan(states.log_prior))
    return states


def _start_edits(
    rng_key: jax.Array,
    packed: PackedModel,
    design: Any,
    prior: EditTree,
    chains: int,
    capacity: int,
    start: Tree | Literal["prior"] | None,
) -> tuple[Any, EditState]:
    """Put each chain at the tree to edit, or edit that by the prior; with the kernel."""
    if start is not None and start != "prior":
        raise ValueError("start has no tree under an EditTree: chains start at the tree it edits.")
    kernel = RegrowEdits(
        as_shape(packed, design, prior.tree.reshape(1), capacity),
        jnp.float64(prior.edit_probability),
    )
    rarest = np.log(_LONGER_EDITS) / np.log(max(prior.edit_probability, _LONGER_EDITS))
    states = initial_edits(packed, kernel.start, chains, max(capacity, int(np.ceil(rarest))))
    require_defined(np.isnan(states.tree.log_prior))
    is_allowed = np.isfinite(np.asarray(states.tree.log_prior)).all()
    if not is_allowed and not packed.binds_trees:
        raise ValueError("The tree to edit has a leaf or a rule that the model rules out.")
    if start == "prior" or not is_allowed:
        edit = jax.jit(edited)
        root, keys = states, jax.random.split(rng_key, chains)
        states = _allowed(keys, lambda keys: edit(keys, packed, root, kernel.edit_probability)[0])
    return kernel, states


def _allowed(rng_keys: jax.Array, draw: Callable[[jax.Array], Any]) -> Any:
    """Draw states from the prior, one for each key [b], until the constraints allow them all."""
    states, is_allowed = None, np.zeros(len(rng_keys), bool)
    for number in range(_MOST_STARTS):
        drawn = draw(jax.vmap(jax.random.fold_in, (0, None))(rng_keys, number))
        states = drawn if states is None else select_trees(jnp.asarray(is_allowed), states, drawn)
        tree = states.tree if isinstance(states, EditState) else states
        is_allowed = ~np.isneginf(np.asarray(tree.log_prior))
        if is_allowed.all():
            return states
    raise ValueError(
        f"Of {_MOST_STARTS} trees that were drawn from the prior, the constraints allow none for "
        f"some chain to start at: give start=Tree, or constraints that allow more."
    )


def _placed(packed: PackedModel, design: Any, chains: int, capacity: int, start: Tree) -> State:
    """Put each chain at a tree that is given."""
    trees = start if start.batch_shape else Tree.concatenate([start.reshape(1)] * chains)
    if trees.batch_shape != (chains,):
        raise ValueError(
            f"start must be one tree or one a chain, {chains}; got {trees.batch_shape}."
        )
    try:
        shape = as_shape(packed, design, trees, capacity)
    except ValueError as error:
        raise ValueError(f"start: {error}") from None
    states = state_of(packed, shape)
    if not np.isfinite(np.asarray(states.log_prior)).all():
        raise ValueError("start: a tree has a leaf or a rule that the model rules out.")
    return states


def _chains_per_group(chains: int, num_powers: int) -> int:
    """Part chains into groups of one size, so that all run the same compiled code."""
    most = min(_GROUPS, -(-chains * num_powers // _LEAST_WALKS))
    return chains // max(number for number in range(1, most + 1) if chains % number == 0)


def _stages(warmup: int, draws: int, thin: int) -> list[_Stage]:
    """Cut a run into stages, those of warm-up ever longer; only draws of the last one are kept."""
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


def _tuned(powers: np.ndarray, exchanges: Sequence[Exchanges]) -> np.ndarray:
    """Even powers out by the exchanges of a stage [chain, t - 1], if all were tried."""
    if len(powers) < 3 or not exchanges:
        return powers
    tried, accepted = (np.sum(counts, axis=(0, 1)) for counts in zip(*exchanges, strict=True))
    return evened(powers, tried, accepted) if tried.min() > 0 else powers
