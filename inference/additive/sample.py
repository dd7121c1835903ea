"""Chains of sums of trees, side by side in threads or on workers."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np

from bdtppl.inference.additive.posterior import SumPosterior
from bdtppl.inference.parallel import fan_out, num_workers
from bdtppl.inference.run import MOST_EXTENSIONS, Inference

_SWEEPS_AT_ONCE = 10
_SWEEPS_OF_A_WORKER = 100  # per task, to which the state is sent
_GROWING_SWEEPS = 10


class SumsUnderWay(NamedTuple):
    """State of running chains.

    Attributes
    ----------
    seed
        Seed of the run.
    chains
        State of the kernel, of arrays [chain, ...].
    extensions
        Number of extensions of the chains.
    agree
        Whether they agreed when they last finished.
    sweep
        int [draw]; sweep of each draw.
    drawn
        Draws, arrays [chain, draw, ...] by name.
    log_likelihood
        float64 [chain, sweep]; of all sweeps so far.
    """

    seed: int
    chains: Any
    extensions: int
    agree: bool
    sweep: np.ndarray
    drawn: dict[str, Any]
    log_likelihood: np.ndarray

    @property
    def reached(self) -> int:
        """Sweeps that every chain has made."""
        return self.log_likelihood.shape[1]


@dataclass(frozen=True)
class SumChains(Inference[SumsUnderWay, SumPosterior]):
    """Chains of sums of trees, which start from a seed (see `bdtppl.inference.run`).

    The random numbers of a sweep depend on the seed, the chain and the number of the sweep alone.
    If a time limit ends a run in warm-up, the draws are from the second half of its sweeps.

    Attributes
    ----------
    kernel
        The transition kernel: an `AdditiveKernel` or a `CausalKernel`.
    chains, warmup, draws, thin
        Chains, warm-up sweeps of each, and draws that are kept, one every ``thin`` sweeps.
    extensions, agree
        Most extensions of chains that do not agree: their draws become warm-up, and ``thin``
        doubles.
    done
        Current state of the chains.
    """

    counts: ClassVar[str] = "sweeps"

    kernel: Any
    chains: int
    warmup: int
    draws: int
    thin: int = 1
    extensions: int = 0
    agree: Callable[[SumPosterior], bool] = lambda posterior: True
    done: SumsUnderWay | None = None

    def going_on(self, before: "SumChains", state: SumsUnderWay) -> "SumChains":
        """Return chains that continue finished ones, with as many draws or more.

        Discarded sweeps remain discarded, and the spacing of draws does not change.

        Raises
        ------
        ValueError
            If the chains differ.
        """
        own, other = (
            (design.matrix, design.weights, design.cut_threshold, y)
            for design, y in ((each.kernel.design, each.kernel.y) for each in (self, before))
        )
        if repr(self.kernel.prior) != repr(before.kernel.prior) or not all(
            np.array_equal(a, b, equal_nan=True) for a, b in zip(own, other, strict=True)
        ):
            raise ValueError("rows, their order, buckets or the prior have changed")
        if self.chains != before.chains or self.draws < before.draws:
            raise ValueError("chains cannot change in number, and draws cannot become fewer")
        return replace(
            self,
            warmup=before._warmup(state.extensions),
            thin=before.thin * 2**state.extensions,
            extensions=0,
            done=state._replace(extensions=0),
        )

    def start(self, rng_key: int) -> SumsUnderWay:
        """Start at trees of one leaf, or from the end of other chains."""
        if self.done is not None:
            return self.done
        first = self.kernel.init()
        drawn = {
            name: np.zeros((self.chains, 0, *part.shape), part.dtype)
            for name, part in self.kernel.drawn(first).items()
        }
        chains = jax.tree.map(lambda a: np.stack([np.asarray(a)] * self.chains), first)
        nothing = np.zeros(0, int), drawn, np.zeros((self.chains, 0))
        return SumsUnderWay(rng_key, chains, 0, False, *nothing)

    def from_arrays(self, rng_key: int, arrays: Any) -> SumsUnderWay:
        """Read a stored state, and check that its lengths are consistent."""
        state = super().from_arrays(rng_key, arrays)
        if not 0 <= state.extensions <= MOST_EXTENSIONS:
            raise ValueError(f"chains cannot have been extended {state.extensions} times")
        sweep = self._kept(state.extensions, state.reached, np.arange(state.reached))
        lengths = {record.shape[1] for record in state.drawn.values()}
        least = self._num_sweeps(state.extensions - 1) if state.extensions else 0
        is_due = least <= state.reached <= self._num_sweeps(state.extensions)
        if not is_due or lengths != {len(sweep)} or not np.array_equal(sweep, state.sweep):
            raise ValueError("the lengths of its arrays are inconsistent")
        return state

    def lengths(self, state: SumsUnderWay) -> dict[str, tuple[int, int]]:
        """List the extensions made and allowed."""
        return {"extensions": (state.extensions, self.extensions)}

    def _warmup(self, extensions: int) -> int:
        """Return the number of warm-up sweeps after some extensions."""
        return self.warmup + self.draws * self.thin * (2**extensions - 1)

    def _num_sweeps(self, extensions: int) -> int:
        return self._warmup(extensions) + self.draws * self.thin * 2**extensions

    def _thrown_away(self, extensions: int, reached: int) -> int:
        """Return the number of sweeps before the draws: until the end the first half, or fewer."""
        warmup = self._warmup(extensions)
        if reached >= self._num_sweeps(extensions):
            return warmup
        least = self._warmup(extensions - 1) if extensions else 0  # the others are discarded
        return min(warmup, max(reached // 2, least))

    def _kept(self, extensions: int, reached: int, sweeps: np.ndarray) -> np.ndarray:
        """Select the sweeps whose draws are kept."""
        is_due = (sweeps + 1 - self._warmup(extensions)) % (self.thin * 2**extensions) == 0
        return sweeps[is_due & (sweeps >= self._thrown_away(extensions, reached))]

    def num_thrown_away(self, state: SumsUnderWay) -> int:
        """Count the sweeps before the draws."""
        return self._thrown_away(state.extensions, state.reached)

    def num_steps(self, state: SumsUnderWay) -> tuple[int, int]:
        """Count the sweeps of each chain."""
        return state.reached, self._num_sweeps(state.extensions)

    def is_done(self, state: SumsUnderWay) -> bool:
        """Return whether the chains agree, or may not be extended."""
        is_whole = state.reached >= self._num_sweeps(state.extensions)
        return is_whole and (state.agree or state.extensions >= self.extensions)

    def in_words(self, state: SumsUnderWay) -> str:
        """Report chains that disagree."""
        return "chains disagree and continue" if state.extensions else ""

    def advance(self, state: SumsUnderWay) -> SumsUnderWay:
        """Run some sweeps of each chain."""
        extensions = state.extensions + (state.reached >= self._num_sweeps(state.extensions))
        at_once = _SWEEPS_OF_A_WORKER if num_workers() > 1 else _SWEEPS_AT_ONCE
        # The second half of the first chunk has a draw.
        end = max(state.reached + at_once, 2 * self.thin)
        end = min(end, self._num_sweeps(extensions))
        sweeps = range(state.reached, end)
        new = self._kept(extensions, end, np.array(sweeps))
        grows = min(_GROWING_SWEEPS, self._warmup(extensions))
        tasks = [
            (chain, jax.tree.map(lambda a, c=chain: a[c], state.chains))
            for chain in range(self.chains)
        ]
        shared = self.kernel, state.seed, grows, sweeps, new
        made = fan_out(_advance_chain, tasks, shared=shared)
        chains, drawn, log_likelihood = jax.tree.map(lambda *a: np.stack(a), *made)
        old = np.isin(state.sweep, self._kept(extensions, end, state.sweep))
        drawn = {
            name: np.concatenate([record[:, old], drawn[name]], axis=1)
            for name, record in state.drawn.items()
        }
        log_likelihood = np.concatenate([state.log_likelihood, log_likelihood], axis=1)
        sweep = np.concatenate([state.sweep[old], new])
        state = SumsUnderWay(state.seed, chains, extensions, False, sweep, drawn, log_likelihood)
        is_whole = end == self._num_sweeps(extensions)
        return state._replace(agree=is_whole and bool(self.agree(self.result(state))))

    def result(self, state: SumsUnderWay) -> SumPosterior:
        """Return the draws."""
        log_likelihood = state.log_likelihood[:, state.sweep]
        return self.kernel.posterior(state.drawn, sample_stats={"log_likelihood": log_likelihood})


def _advance_chain(
    kernel: Any,
    seed: int,
    growing_sweeps: int,
    sweeps: range,
    kept: np.ndarray,
    chain: int,
    state: Any,
) -> tuple[Any, dict[str, np.ndarray], np.ndarray]:
    """Advance a copy of one chain; return its state, the draws to keep and log likelihoods."""
    room, log_likelihood = kernel.make_room(), np.empty(len(sweeps))
    state = jax.tree.map(lambda part: part.copy(), state)
    drawn = {
        name: np.empty((len(kept), *part.shape), part.dtype)
        for name, part in kernel.drawn(state).items()
    }
    places = {sweep: place for place, sweep in enumerate(kept.tolist())}
    for number, sweep in enumerate(sweeps):
        stream = np.random.Philox(key=[seed, chain], counter=[0, 0, 0, sweep])
        generator = np.random.Generator(stream)
        if sweep == 0:
            state = kernel.begin(generator, state)
        state = kernel.advance(generator, state, room, grows=sweep < growing_sweeps)
        log_likelihood[number] = kernel.log_likelihood(state)
        if sweep in places:
            for name, part in kernel.drawn(state).items():
                drawn[name][places[sweep]] = part
    return jax.tree.map(np.asarray, state), drawn, log_likelihood
