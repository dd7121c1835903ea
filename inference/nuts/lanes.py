"""Chains over topologies of one size, run in the lanes of one compiled function.

Each CPU thread has one lane, so that no chain waits for another. A thread has several if XLA cannot
make one kernel of a step (see `bdtppl.inference.compiling`), to share the cost of switching
kernels, or if many chains make few steps, to share the cost of a call. A lane whose chain has made
its steps gets the next one. All chains have lanes at once on accelerators.

Each chain has its own random numbers, so its draws depend neither on lanes nor on other chains.
"""

from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Any

import jax
import numpy as np

from bdtppl.inference.nuts.kernel import Chains, Lane, NutsDraws, Steps, advance, empty_lane
from bdtppl.models.arrays.precision import in_float32
from bdtppl.models.arrays.threads import in_threads, num_threads

_LANES = 8  # lanes of a thread with several
_FEW_STEPS = 4
_ROUNDS = 256  # rounds of one call of the compiled function


@in_float32
def walk(
    shared: Steps, first: int, stop: int, seeds: np.ndarray, paths: Any, chains: Chains
) -> tuple[Chains, NutsDraws]:
    """Make steps of all chains.

    Parameters
    ----------
    shared
        Settings that all steps share.
    first, stop
        Numbers of the first step, and of the one to stop before.
    seeds
        uint32 [k, 2]; seeds of the chains.
    paths, chains
        Arrays of each chain, leading axis k.
    """
    run = _LaneRun(shared, first, stop, seeds, paths, chains)
    if jax.default_backend() != "cpu":
        run.work(len(seeds))
        return run.chains, run.draws
    is_much = stop - first >= _FEW_STEPS or len(seeds) < _LANES
    width = 1 if is_much and run.is_one_kernel() else _LANES
    threads = min(num_threads(), -(-len(seeds) // width))
    if threads > 1:
        run.work(width, rehearse=True)  # otherwise all threads would compile it
    in_threads(run.work, [width] * threads, most=threads)
    return run.chains, run.draws


class _LaneRun:
    """Chains that wait for a lane, and the states of finished ones."""

    def __init__(self, shared, first, stop, seeds, paths, chains):
        self.shared, self.first, self.stop = shared, first, stop
        self.seeds, self.paths = seeds, paths
        self.chains = jax.tree.map(np.array, chains)
        self.draws: Any = None
        self.waiting: SimpleQueue[int] = SimpleQueue()
        for number in range(len(seeds)):
            self.waiting.put(number)
        self.progress = np.full(len(seeds), first)
        self.lock = Lock()

    def is_one_kernel(self) -> bool:
        """Return whether steps in a single lane are one kernel."""
        lanes, paths = self._empty(1)
        return advance.is_one(self.shared, lanes, paths, np.zeros(1, bool), rounds=_ROUNDS)

    @in_float32
    def work(self, width: int, *, rehearse: bool = False) -> None:
        """Make steps in lanes until no chain waits for one."""
        lanes, paths = self._empty(width)
        numbers = np.full(width, -1)  # of the chains in lanes
        begins = np.zeros(width, bool)
        while True:
            if not rehearse:
                lanes, begins = self._fill(lanes, paths, numbers, begins)
                if (numbers < 0).all():
                    return
            advanced = advance(self.shared, lanes, paths, begins, rounds=_ROUNDS)
            lanes, begins, made, kept = jax.tree.map(np.asarray, advanced)
            self._prepare(kept)
            if rehearse:
                return
            self._collect(lanes, numbers, made, kept)

    def _empty(self, width: int) -> tuple[Lane, Any]:
        """Make lanes without a chain, and places for their paths."""
        first = jax.tree.map(lambda a: np.repeat(a[:1], width, axis=0), self.chains)
        paths = jax.tree.map(lambda a: np.repeat(a[:1], width, axis=0), self.paths)
        return empty_lane(self.shared, first), paths

    def _fill(
        self, lanes: Lane, paths: Any, numbers: np.ndarray, begins: np.ndarray
    ) -> tuple[Lane, np.ndarray]:
        """Assign the next chains to empty lanes."""
        free = []
        for place in np.flatnonzero(numbers < 0):
            with suppress(Empty):
                numbers[place] = self.waiting.get_nowait()
                free.append(place)
        if not free:
            return lanes, begins
        lanes, begins = jax.tree.map(np.array, (lanes, begins))
        chosen = numbers[free]

        def put(whole, each):
            whole[free] = each[chosen]

        jax.tree.map(put, (lanes.chain, paths), (self.chains, self.paths))
        lanes.seed[free] = self.seeds[chosen]
        lanes.step[free], lanes.stop[free], begins[free] = self.first, self.stop, True
        return lanes, begins

    def _prepare(self, kept: NutsDraws) -> None:
        """Make room for the kept steps."""
        with self.lock:
            if self.draws is None:
                room = len(self.seeds), self.stop - self.first
                self.draws = jax.tree.map(lambda a: np.empty((*room, *a.shape[2:]), a.dtype), kept)

    def _collect(self, lanes: Lane, numbers: np.ndarray, made: np.ndarray, kept: NutsDraws) -> None:
        """Store the steps made, and remove chains that have made all."""
        for place, number in enumerate(numbers):
            if number < 0:
                continue
            rows = made[:, place]
            start, stop = self.progress[number], int(lanes.step[place])
            where = slice(start - self.first, stop - self.first)

            def put(whole, each, number=number, where=where, rows=rows, place=place):
                whole[number, where] = each[rows, place]

            jax.tree.map(put, self.draws, kept)
            self.progress[number] = stop
            if stop == self.stop:

                def take(whole, each, number=number, place=place):
                    whole[number] = each[place]

                jax.tree.map(take, self.chains, lanes.chain)
                numbers[place] = -1
