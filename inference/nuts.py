"""No-U-turn sampling of soft trees, compiled once for all topologies of a size.

Warm-up is Stan's: step size by dual averaging, a diagonal mass matrix in windows that double.
Meanwhile the sharpness of the splits goes linearly from ``h_init`` to ``h_final``, which it reaches
where the last window begins, so that what draws use is adapted to ``h_final`` alone.

The topology and everything about a step (what it adapts, how sharp splits are) are data, and one
chain is what is compiled. So one function serves warm-up, draws, and any number of chains of any
number of topologies of a size.

References
----------
Hoffman and Gelman 2014, The no-U-turn sampler; Cochrane, Wills and Johnson 2024, Divide, Conquer,
Combine Bayesian Decision Tree Sampling, section 3.2.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import jax
import numpy as np
from blackjax.adaptation.window_adaptation import build_schedule

from bdtppl.inference.nuts_kernel import ROOM, Chains, Draws, Kind, Start, Steps, advance, begin
from bdtppl.inference.padding import padded
from bdtppl.inference.precision import in_float64

__all__ = ["NUTS", "Chains", "Density", "Draws"]


class Density(Protocol):
    """What is sampled: a pytree, so that its numbers are no part of what is compiled."""

    @property
    def log_density(self) -> Callable[..., jax.Array]:
        """Log density of (position [size], paths, sharpness, inputs=), up to a constant."""
        ...


@dataclass(frozen=True)
class NUTS:
    """Settings of the sampler, and its use.

    Attributes
    ----------
    warmup
        Steps of warm-up; 20 or more adapt the mass matrix.
    h_init, h_final
        Sharpness at the first step, and of draws.
    target_acceptance
        Of the step size's adaptation, in (0, 1).
    max_doublings
        A trajectory has at most 2^max_doublings steps.

    Raises
    ------
    ValueError
        If a setting is out of range.

    Examples
    --------
    >>> from bdtppl.inference.soft_density import SoftDensity
    >>> from bdtppl.models.soft_tree import SoftRegression
    >>> from bdtppl.models.topology import Topology
    >>> rng = np.random.default_rng(0)
    >>> x = rng.random((30, 1))
    >>> density = SoftDensity(SoftRegression(), x, (x[:, 0] > 0.5) + rng.normal(0, 0.2, 30), 1)
    >>> paths, key = Topology("100").paths, jax.random.key(0)
    >>> sampler = NUTS(warmup=100, h_init=0.1, h_final=0.05)
    >>> chains = sampler.start(key, density, paths, num_chains=2)
    >>> chains, _ = sampler.warm_up(key, density, paths, chains)
    >>> chains, draws = sampler.draw(key, density, paths, chains, num_draws=50)
    >>> draws.position.shape
    (2, 50, 4)
    """

    warmup: int = 1_000
    h_init: float = 0.1
    h_final: float = 0.025
    target_acceptance: float = 0.8
    max_doublings: int = 10

    def __post_init__(self):
        for name, least in (("warmup", 1), ("max_doublings", 1)):
            value = getattr(self, name)
            if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
                raise ValueError(f"{name} must be an integer of at least {least}; got {value!r}.")
        for name in ("h_init", "h_final"):
            value = getattr(self, name)
            if not (value > 0 and np.isfinite(value)):
                raise ValueError(f"{name} must be a positive number; got {value!r}.")
        if not 0 < self.target_acceptance < 1:
            raise ValueError(f"target_acceptance must lie in (0, 1); got {self.target_acceptance}.")

    @cached_property
    def _kinds(self) -> np.ndarray:
        """What each step of warm-up adapts, int [warmup]."""
        stage, is_end = np.asarray(build_schedule(self.warmup)).T
        return np.where(
            is_end == 1, Kind.WINDOW_END, np.where(stage == 1, Kind.MASS, Kind.STEP_SIZE)
        )

    @cached_property
    def sharpness(self) -> np.ndarray:
        """Sharpness of each step of warm-up, float64 [warmup]."""
        slow = np.flatnonzero(self._kinds != Kind.STEP_SIZE)
        ends = np.flatnonzero(self._kinds == Kind.WINDOW_END)
        begins = (
            ends[-2:-1] + 1 if len(ends) > 1 else slow[:1]
        )  # of the last window, if there is one
        turns = int(begins[0]) if len(begins) else self.warmup // 2
        progress = np.minimum(np.arange(self.warmup) / turns, 1.0) if turns else np.ones(1)
        return self.h_init * (1 - progress) + self.h_final * progress

    @in_float64
    def start(
        self,
        rng_key: jax.Array,
        density: Any,
        paths: Any,
        num_chains: int,
        *,
        tries: int = 10,
    ) -> Chains:
        """Begin each chain at the best of some draws from the prior.

        Parameters
        ----------
        rng_key
            Key, or keys [...], one per topology.
        density
            The density; a `bdtppl.inference.soft_density.SoftDensity`, or a pytree with its methods
            ``log_density``, ``position`` and ``draw_prior``.
        paths
            What the density knows of the topologies, arrays [..., n + 1, n].
        num_chains
            Chains of each topology.
        tries
            Draws from the prior; that of the greatest finite density at ``h_init`` is taken.

        Raises
        ------
        ValueError
            If no try of some chain has a finite density.
        """
        lead = *rng_key.shape, num_chains
        words = np.asarray(jax.random.key_data(rng_key)).reshape(rng_key.size, -1).tolist()
        drawn = [
            density.draw_prior(np.random.default_rng([*of_topology, chain]), tries)
            for of_topology in words
            for chain in range(num_chains)
        ]
        parameters, inputs = jax.tree.map(
            lambda *a: np.stack(a).reshape(*lead, *a[0].shape), *drawn
        )
        inputs = jax.tree.map(lambda a: a[..., 0, :], inputs)
        shared = Start(jax.device_put(density), np.float64(self.h_init))
        own = _numbers(lead), parameters, inputs
        chains, log_density = begin(shared, rng_key, own, paths)
        if not np.isfinite(log_density).all():
            raise ValueError(
                f"No density was finite in {tries} tries from the prior: scale inputs to [0, 1], "
                "and priors to the targets."
            )
        return chains

    @in_float64
    def warm_up(
        self,
        rng_key: jax.Array,
        density: Density,
        paths: Any,
        chains: Chains,
        num_steps: int | None = None,
        *,
        tell: Callable[[int], None] = lambda num_steps: None,
    ) -> tuple[Chains, Draws]:
        """Go on with warm-up, to its end or for some steps.

        In stages with one key it is the same as at once.

        Parameters
        ----------
        rng_key, density, paths
            See `start`.
        chains
            From `start`, or from a stage before.
        num_steps
            Steps to go on for; default all that are left.
        tell
            Called with the number of steps that every chain has made, now and then.

        Returns
        -------
        Chains, Draws
            The chains, and the steps: they show how far warm-up has got, and are no draws.

        Raises
        ------
        ValueError
            If there is no step to go on for.
        """
        first = self._warmed(chains)
        stop = self.warmup if num_steps is None else min(first + num_steps, self.warmup)
        if stop <= first:
            raise ValueError(f"There is no step to make from {first} of {self.warmup} on.")
        kinds, sharpness = self._kinds[first:stop], self.sharpness[first:stop]
        return self._walk(rng_key, density, paths, chains, kinds, sharpness, first, tell)

    @in_float64
    def draw(
        self,
        rng_key: jax.Array,
        density: Density,
        paths: Any,
        chains: Chains,
        num_draws: int,
        *,
        tell: Callable[[int], None] = lambda num_steps: None,
    ) -> tuple[Chains, Draws]:
        """Draw from where chains are, without adapting.

        Parameters
        ----------
        rng_key, density, paths
            See `start`. Each call that goes on from another needs a new key.
        chains
            After warm-up.
        num_draws
            Draws of each chain.
        tell
            See `warm_up`.

        Raises
        ------
        ValueError
            If warm-up is not over, or there is nothing to draw.
        """
        first = self._warmed(chains)
        if first < self.warmup:
            raise ValueError(f"chains have made {first} of {self.warmup} steps of warm-up.")
        if num_draws < 1:
            raise ValueError(f"num_draws must be at least 1; got {num_draws}.")
        kinds = np.full(num_draws, Kind.DRAW)
        sharpness = np.full(num_draws, self.h_final)
        return self._walk(rng_key, density, paths, chains, kinds, sharpness, first, tell)

    def _warmed(self, chains: Chains) -> int:
        least, most = int(chains.num_warm.min()), int(chains.num_warm.max())
        if least != most:
            raise ValueError(f"chains must be at one stage; warm-up is at {least} to {most} steps.")
        return least

    def _walk(self, rng_key, density, paths, chains, kinds, sharpness, first, tell):
        """Make steps of given kinds and sharpness, in pieces of one length."""
        pieces, density = [], jax.device_put(density)
        numbers = _numbers(chains.position.shape[:-1])
        for start in range(0, len(kinds), ROOM):
            piece = slice(start, start + ROOM)
            steps = Steps(
                density,
                padded(kinds[piece].astype(np.int32), ROOM),
                padded(sharpness[piece], ROOM),
                np.int64(first + start),
                np.int64(len(kinds[piece])),
                np.float64(self.target_acceptance),
                self.max_doublings,
            )
            chains, made = advance(steps, rng_key, (numbers, chains), paths)
            kept = (slice(None),) * numbers.ndim + (slice(int(steps.count)),)
            pieces.append(jax.tree.map(lambda a, kept=kept: a[kept], made))
            tell(first + start + int(steps.count))
        return chains, jax.tree.map(lambda *a: np.concatenate(a, numbers.ndim), *pieces)


def _numbers(lead: tuple[int, ...]) -> np.ndarray:
    """Return the number of each chain within its topology, int64 [..., chain]."""
    return np.broadcast_to(np.arange(lead[-1]), lead)
