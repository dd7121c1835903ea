"""Chains of sums of trees, side by side over threads or workers."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from threading import Lock
from typing import Any

import jax
import numpy as np

from bdtppl.inference.additive.kernel import AdditiveKernel, AdditiveState
from bdtppl.inference.additive.posterior import SumPosterior
from bdtppl.inference.parallel import fan_out, num_workers
from bdtppl.models.arrays.threads import in_threads, num_threads

__all__ = ["SumChains"]

_SWEEPS_AT_ONCE = 10
_SWEEPS_OF_A_WORKER = 100  # to which the state travels, with the leaf of each row in each tree
_GROWING_SWEEPS = 10
_STATE = AdditiveState._fields


class SumChains:
    """Chains on their way, which can be kept and resumed to the same bits.

    The random numbers of a sweep depend on the seed, the chain and the number of the sweep alone.

    Parameters
    ----------
    kernel
        What moves the chains.
    seed
        Seed, an integer of at least 0.
    chains, warmup, draws, thin
        Chains, sweeps of each that are thrown away, and draws that are kept, one every ``thin``
        sweeps.
    """

    def __init__(
        self,
        kernel: AdditiveKernel,
        *,
        seed: int,
        chains: int,
        warmup: int,
        draws: int,
        thin: int = 1,
    ):
        self.kernel, self.seed = kernel, seed
        self.warmup, self.draws, self.thin = warmup, draws, thin
        self.extensions = 0
        self.reached = [0] * chains  # sweeps that each chain has made
        self._moving = [Lock() for _ in range(chains)]
        self.states = [kernel.init() for _ in range(chains)]
        first = self.states[0]
        num_rules = len(kernel.rows.feature)
        small = np.int16 if num_rules <= np.iinfo(np.int16).max else np.int32
        self.records: dict[str, np.ndarray] = {
            "rule": np.zeros((chains, draws, *first.rule.shape), small),
            "value": np.zeros((chains, draws, *first.value.shape)),
            "variance": np.zeros((chains, draws)),
            "feature_weight": np.zeros((chains, draws, len(first.feature_weight))),
        }
        if kernel.prior.noise_trees:
            noise = first.noise_rule.shape, first.noise_value.shape
            self.records["noise_rule"] = np.zeros((chains, draws, *noise[0]), small)
            self.records["noise_value"] = np.zeros((chains, draws, *noise[1]))
        self.log_likelihood = np.zeros((chains, self.num_sweeps))

    @property
    def num_sweeps(self) -> int:
        """Sweeps of each chain when it is done."""
        return self.warmup + self.draws * self.thin

    def extend(self) -> None:
        """Let chains that are done go on: their draws become warm-up, and ``thin`` doubles."""
        self.warmup, self.thin = self.num_sweeps, 2 * self.thin
        self.extensions += 1
        more = np.zeros((len(self.states), self.draws * self.thin))
        self.log_likelihood = np.concatenate([self.log_likelihood, more], axis=1)

    def run(self, on_progress: Callable[[int], Any] = lambda sweeps: None) -> None:
        """Sweep to the end.

        Parameters
        ----------
        on_progress
            Called with the number of sweeps that every chain has made.
        """
        has_workers = num_workers() > 1
        at_once = _SWEEPS_OF_A_WORKER if has_workers else _SWEEPS_AT_ONCE
        shared = self.kernel, self.seed, self.warmup, self.thin, tuple(self.records)
        while (done := min(self.reached)) < self.num_sweeps:
            end = min(done + at_once, self.num_sweeps)
            tasks = [
                (range(reached, end), chain, state)
                for chain, (reached, state) in enumerate(
                    zip(self.reached, self.states, strict=True)
                )
            ]
            if has_workers:
                for chain, made in enumerate(fan_out(_advance_chain, tasks, shared=shared)):
                    self._enter(chain, end, made)
            else:

                def move(chain: int, tasks=tasks, end=end) -> None:
                    self._enter(chain, end, _advance_chain(*shared, *tasks[chain]))

                in_threads(move, range(len(tasks)), most=num_threads())
            on_progress(end)

    def posterior(self) -> SumPosterior:
        """Return the draws, when all are made."""
        return SumPosterior(
            prior=self.kernel.prior,
            design=self.kernel.design,
            y=self.kernel.y,
            sample_stats={"log_likelihood": self.log_likelihood[:, self._kept_sweeps()]},
            **self.records,
        )

    def _kept_sweeps(self) -> np.ndarray:
        return self.warmup + self.thin * (1 + np.arange(self.draws)) - 1

    def _enter(self, chain: int, end: int, made: "_Advanced") -> None:
        """Enter what one chain has come to."""
        state, log_likelihood, drawn = made
        with self._moving[chain]:
            reached = self.reached[chain]
            self.log_likelihood[chain, reached : reached + len(log_likelihood)] = log_likelihood
            for draw, values in drawn:
                for name, value in values.items():
                    self.records[name][chain, draw] = value
            self.states[chain], self.reached[chain] = state, max(end, reached)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return what the chains are resumed from, also while others of them still move."""
        with ExitStack() as waiting:
            for moving in self._moving:
                waiting.enter_context(moving)
            states = {
                f"state_{name}": np.stack([np.asarray(getattr(each, name)) for each in self.states])
                for name in _STATE
            }
            done = max(self.reached)
            number = max(0, (done - self.warmup) // self.thin)
            drawn = {f"drawn_{name}": record[:, :number] for name, record in self.records.items()}
            progress = {
                "reached": np.array(self.reached),
                "extensions": np.int64(self.extensions),
                "log_likelihood": self.log_likelihood[:, :done],
            }
            return states | drawn | progress

    def resume(self, kept: Mapping[str, np.ndarray]) -> None:
        """Go on from what `arrays` returned for chains of the same numbers.

        Raises
        ------
        KeyError, ValueError
            If it was not for such chains.
        """
        reached = kept["reached"].tolist()
        for _ in range(int(kept["extensions"])):
            if min(reached) < self.num_sweeps:  # chains are done before they go on
                raise ValueError("chains were extended before they were done")
            self.extend()
        self.reached, done = reached, max(reached)
        self.log_likelihood[:, :done] = kept["log_likelihood"]
        for name, record in self.records.items():
            drawn = kept[f"drawn_{name}"]
            record[:, : drawn.shape[1]] = drawn
        for chain in range(len(self.states)):
            parts = {name: kept[f"state_{name}"][chain] for name in _STATE}
            parts["variance"] = float(parts["variance"])
            self.states[chain] = AdditiveState(**parts)


_Advanced = tuple[AdditiveState, np.ndarray, list[tuple[int, dict[str, np.ndarray]]]]


def _advance_chain(
    kernel: AdditiveKernel,
    seed: int,
    warmup: int,
    thin: int,
    names: tuple[str, ...],
    sweeps: range,
    chain: int,
    state: AdditiveState,
) -> _Advanced:
    """Move a copy of one chain on; returns its state, log likelihoods, and numbered draws."""
    room, log_likelihood, drawn = kernel.make_room(), np.empty(len(sweeps)), []
    state = jax.tree.map(lambda a: np.array(a) if isinstance(a, np.ndarray) else a, state)
    for place, sweep in enumerate(sweeps):
        stream = np.random.Philox(key=[seed, chain], counter=[0, 0, 0, sweep])
        generator = np.random.Generator(stream)
        grows = sweep < min(_GROWING_SWEEPS, warmup)
        state = kernel.advance(generator, state, room, grows=grows)
        log_likelihood[place] = kernel.log_likelihood(state)
        draw, rest = divmod(sweep + 1 - warmup, thin)
        if draw >= 1 and rest == 0:
            drawn.append((draw - 1, {name: np.array(getattr(state, name)) for name in names}))
    return state, log_likelihood, drawn
