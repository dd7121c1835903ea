"""No-U-turn sampling of soft trees, compiled once for all topologies of a size.

Warm-up is Stan's: step size by dual averaging, a diagonal mass matrix in windows that double.
Meanwhile the sharpness of the splits changes linearly from ``h_init`` to ``h_final``, which it
reaches at the start of the last window, so that the final adaptation is to ``h_final`` alone.

The topology and the settings of a step (adaptation, sharpness) are data, and the compiled function
makes steps of one chain. So one function serves warm-up, draws, and any number of chains of any
number of topologies of a size.

References
----------
Hoffman and Gelman 2014, The no-U-turn sampler; Cochrane, Wills and Johnson 2024, Divide, Conquer,
Combine Bayesian Decision Tree Sampling, section 3.2.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.adaptation.window_adaptation import build_schedule

from bdtppl.inference.compiling import COMPILED_QUICKLY
from bdtppl.inference.nuts import blackjax_steps, lanes
from bdtppl.inference.nuts.kernel import Chains, Kind, NutsDraws, Steps, new_chains
from bdtppl.inference.parallel import in_shares
from bdtppl.models.arrays.padding import padded, padded_size
from bdtppl.models.arrays.precision import as_float32, in_float32
from bdtppl.models.settings import check_parameters, parameter

KernelName = Literal["lanes", "blackjax"]

_LEAST_ROOM = 4096  # steps of a schedule, so that few lengths are compiled
_PADDED = 8  # chains that start together


class Density(Protocol):
    """Density to sample: a pytree, so that compiled code does not depend on its numbers."""

    @property
    def log_density(self) -> Callable[..., jax.Array]:
        """Return the log density of (position [size], paths, sharpness, inputs=)."""
        ...


@dataclass(frozen=True)
class NUTS:
    """Settings of the sampler, and its methods.

    Attributes
    ----------
    warmup
        Steps of warm-up; 20 or more adapt the mass matrix.
    h_init, h_final
        Sharpness at the first step, and of draws.
    target_acceptance
        Target acceptance rate of the step size's adaptation, in (0, 1).
    max_doublings
        A trajectory has at most 2^max_doublings steps. Longer ones rarely turn back in soft trees
        with sharp splits, and give fewer effective draws for their cost.
    early_doublings
        The same before the last window of warm-up, when step sizes and masses are adapted to other
        splits and many trajectories are too long. Only our own kernel uses it.
    kernel
        "lanes" is our own, in which no chain waits for another, and "blackjax" is BlackJAX's.

    Raises
    ------
    ValueError
        If a setting is out of range.

    Examples
    --------
    >>> from bdtppl.inference.soft.density import SoftDensity
    >>> from bdtppl.models.soft.tree import SoftRegression
    >>> from bdtppl.models.soft.topology import Topology
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

    warmup: int = parameter(1_000, least=1)
    h_init: float = parameter(0.1, above=0)
    h_final: float = parameter(0.025, above=0)
    target_acceptance: float = parameter(0.8, above=0, below=1)
    max_doublings: int = parameter(7, least=1)
    early_doublings: int = parameter(6, least=1)
    kernel: KernelName = parameter("lanes")

    def __post_init__(self):
        check_parameters(self)

    @cached_property
    def _kinds(self) -> np.ndarray:
        """Kind of adaptation of each step of warm-up, int [warmup]."""
        stage, is_end = np.asarray(build_schedule(self.warmup)).T
        return np.where(
            is_end == 1, Kind.WINDOW_END, np.where(stage == 1, Kind.MASS, Kind.STEP_SIZE)
        )

    @cached_property
    def sharpness(self) -> np.ndarray:
        """Sharpness of each step of warm-up, float64 [warmup]."""
        turns = self.last_window
        progress = np.minimum(np.arange(self.warmup) / turns, 1.0) if turns else np.ones(1)
        return self.h_init * (1 - progress) + self.h_final * progress

    @cached_property
    def last_window(self) -> int:
        """First step of the last window of warm-up, or its middle step if there is no window."""
        slow = np.flatnonzero(self._kinds != Kind.STEP_SIZE)
        ends = np.flatnonzero(self._kinds == Kind.WINDOW_END)
        begins = ends[-2:-1] + 1 if len(ends) > 1 else slow[:1]
        return int(begins[0]) if len(begins) else self.warmup // 2

    @in_float32
    def start(
        self, rng_key: jax.Array, density: Any, paths: Any, num_chains: int, *, tries: int = 10
    ) -> Chains:
        """Start each chain at the best of some draws from the prior.

        Parameters
        ----------
        rng_key
            Key, or keys [...], one per topology.
        density
            The density; a `bdtppl.inference.soft.density.SoftDensity`, or a pytree with its methods
            ``log_density``, ``position`` and ``draw_prior``.
        paths
            Arrays of the topologies that the density uses, [..., n + 1, n].
        num_chains
            Chains of each topology.
        tries
            Draws from the prior; the one with the greatest finite density at ``h_init`` is used.

        Raises
        ------
        ValueError
            If no try of some chain has a finite density.
        """
        lead = *rng_key.shape, num_chains
        drawn = [
            density.draw_prior(np.random.default_rng([*words, chain]), tries)
            for words in _words(rng_key)
            for chain in range(num_chains)
        ]
        of_chains = *jax.tree.map(lambda *a: np.stack(a), *drawn), _of_chains(paths, lead)
        shared = jax.device_put(as_float32(density)), np.float32(self.h_init)

        def begin(place: slice) -> Any:
            return _best(
                tries, *shared, *jax.tree.map(lambda a: padded(a[place], _PADDED), of_chains)
            )

        pieces = [begin(slice(at, at + _PADDED)) for at in range(0, len(drawn), _PADDED)]
        position, inputs, log_density = jax.tree.map(
            lambda *a: np.concatenate(a)[: len(drawn)].reshape(*lead, *a[0].shape[1:]), *pieces
        )
        if not np.isfinite(log_density).all():
            raise nothing_finite(tries)
        return new_chains(position, inputs)

    @in_float32
    def warm_up(
        self,
        rng_key: jax.Array,
        density: Density,
        paths: Any,
        chains: Chains,
        num_steps: int | None = None,
    ) -> tuple[Chains, NutsDraws]:
        """Continue warm-up, to its end or for some steps.

        Stages with one key give the same result as one call.

        Parameters
        ----------
        rng_key, density, paths
            See `start`.
        chains
            From `start`, or from a stage before.
        num_steps
            Number of steps; default all that are left.

        Returns
        -------
        Chains, NutsDraws
            The chains, and the steps: they show the progress of warm-up, and are not draws.

        Raises
        ------
        ValueError
            If there is no step left.
        """
        first = self._warmed(chains)
        stop = self.warmup if num_steps is None else min(first + num_steps, self.warmup)
        if stop <= first:
            raise ValueError(f"There is no step left after {first} of {self.warmup}.")
        return self._walk(rng_key, density, paths, chains, first, stop)

    @in_float32
    def draw(
        self, rng_key: jax.Array, density: Density, paths: Any, chains: Chains, num_draws: int
    ) -> tuple[Chains, NutsDraws]:
        """Draw from the current states of the chains, without adapting.

        Parameters
        ----------
        rng_key, density, paths
            See `start`. Each call that continues another needs a new key.
        chains
            After warm-up.
        num_draws
            Draws of each chain.

        Raises
        ------
        ValueError
            If warm-up is not complete, or there is nothing to draw.
        """
        first = self._warmed(chains)
        if first < self.warmup:
            raise ValueError(f"chains must complete warm-up; got {first} of {self.warmup} steps.")
        if num_draws < 1:
            raise ValueError(f"num_draws must be at least 1; got {num_draws}.")
        return self._walk(rng_key, density, paths, chains, first, first + num_draws)

    def _warmed(self, chains: Chains) -> int:
        least, most = int(chains.num_warm.min()), int(chains.num_warm.max())
        if least != most:
            raise ValueError(f"chains must be at one stage; warm-up is at {least} to {most} steps.")
        return least

    def _walk(self, rng_key, density, paths, chains, first, stop):
        """Make steps from the first on."""
        lead = chains.position.shape[:-1]
        if rng_key.shape != lead[:-1]:
            raise ValueError(f"rng_key must have shape {lead[:-1]}; got {rng_key.shape}.")
        length = padded_size(max(self.warmup + 1, _LEAST_ROOM))
        early = np.full(self.last_window, min(self.early_doublings, self.max_doublings))
        shared = Steps(
            jax.device_put(as_float32(density)),
            _lengthened(self._kinds, length, Kind.DRAW),
            _lengthened(self.sharpness, length, self.h_final).astype(np.float32),
            _lengthened(early, length, self.max_doublings),
            np.float32(self.target_acceptance),
            self.max_doublings,
        )
        seeds = [
            np.random.SeedSequence([*words, chain]).generate_state(2)
            for words in _words(rng_key)
            for chain in range(lead[-1])
        ]
        flat = jax.tree.map(
            lambda a: a.reshape(math.prod(lead), *a.shape[len(lead) :]), as_float32(chains)
        )
        of_chains = as_float32(_of_chains(paths, lead))
        walk = {"lanes": lanes.walk, "blackjax": blackjax_steps.walk_by_blackjax}[self.kernel]
        walked = in_shares(walk, (np.stack(seeds), of_chains, flat), shared=(shared, first, stop))
        return jax.tree.map(lambda a: a.reshape(*lead, *a.shape[1:]), walked)


def nothing_finite(tries: int) -> ValueError:
    """Make the error of a chain that cannot start."""
    return ValueError(
        f"No density was finite in {tries} tries from the prior: scale inputs to [0, 1], and "
        "priors to the targets."
    )


@partial(jax.jit, static_argnums=0, compiler_options=COMPILED_QUICKLY)
def _best(tries, density, sharpness, values, inputs, paths) -> tuple[Any, Any, Any]:
    """Return the position of the greatest finite density and that density, [chain] first."""

    def of_chain(values, inputs, paths):
        def log_density(position, inputs):
            options = {} if inputs is None else {"inputs": inputs}
            return density.log_density(position, paths, sharpness, **options)

        # A tree of one leaf may have no values at all.
        position = jax.vmap(density.position, axis_size=tries)(values)
        log_densities = jax.vmap(log_density)(position, inputs)
        best = jnp.argmax(jnp.where(jnp.isfinite(log_densities), log_densities, -jnp.inf))
        return jax.tree.map(lambda a: a[best], (position, inputs, log_densities))

    with jax.numpy_rank_promotion("allow"):
        return jax.vmap(of_chain)(values, inputs, paths)


def _words(rng_key: jax.Array) -> list[list[int]]:
    """Convert keys to numbers."""
    return np.asarray(jax.random.key_data(rng_key)).reshape(rng_key.size, -1).tolist()


def _of_chains(paths: Any, lead: tuple[int, ...]) -> Any:
    """Repeat arrays of topologies for each of their chains; one leading axis."""
    number, axes = math.prod(lead[:-1]), len(lead) - 1

    def repeated(a: np.ndarray) -> np.ndarray:
        return np.repeat(np.reshape(a, (number, *a.shape[axes:])), lead[-1], axis=0)

    return jax.tree.map(repeated, paths)


def _lengthened(values: np.ndarray, length: int, value: Any) -> np.ndarray:
    return np.concatenate([values, np.full(length - len(values), value, values.dtype)])
