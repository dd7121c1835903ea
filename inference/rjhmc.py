"""Reversible jumps between topologies, and NUTS within them.

A jump grows a leaf or prunes a split of two leaves. Growing passes the leaf's parameters to the new
left leaf and draws those of the split and of the right leaf from the prior; pruning drops them. All
priors then cancel, and a jump from topology m to m' is accepted with probability

    min(1, L(m') p(m') q(m | m') / (L(m) p(m) q(m' | m))),

L the likelihood, p the prior of topologies and q the probabilities of `topology.neighbours`.

A jump may try several draws of the new parameters and choose among them by likelihood. The mean of
their likelihoods then replaces that of the larger tree in the ratio, and the current parameters are
one of the tries in the reverse jump (Liu, Liang and Wong 2000). This also leaves the posterior
invariant.

NUTS moves the parameters within a topology. Step size and masses of a topology are adapted once, by
the warm-up of a chain that starts at the prior. They do not depend on the sampler's path, so the
posterior is exactly invariant. The published scheme re-adapts NUTS twice in every iteration, before
and after the jump, from the sampler's position: this is not exact, and hundreds of times the work.

Jumps rarely leave a poor mode. So chains start at greedy trees, each grown on different rows. In
the second half of burn-in chains are compared, and chains in modes of negligible mass move to the
states of others. All draws that are used come after that.

References
----------
Liu, Liang and Wong 2000, The multiple-try method and local optimization in Metropolis sampling;
Green 1995, Reversible jump Markov chain Monte Carlo computation; Cochrane, Wills and Johnson 2023,
RJHMC-Tree for exploration of the Bayesian decision tree posterior.
"""

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bdtppl.inference.compiling import COMPILED_LIGHTLY
from bdtppl.inference.nuts.kernel import Chains, new_chains
from bdtppl.inference.nuts.sample import NUTS, nothing_finite
from bdtppl.inference.run import Inference, run
from bdtppl.inference.soft.density import SoftDensity
from bdtppl.inference.soft.greedy_start import greedy_start
from bdtppl.inference.summaries.diagnostics import log_masses, stuck
from bdtppl.models.arrays.precision import in_float64
from bdtppl.models.settings import check_parameters, parameter
from bdtppl.models.soft.topology import Topology, TopologyPrior, neighbours, require_max_splits

# Relative probabilities of moves after warm-up in Cochrane et al.'s program.
JUMPS: Mapping[str, float] = {"grow": 0.2, "prune": 0.2, "stay": 0.6}

# Masses of modes are estimated up to some nats from the correlated draws of a chain that jumps.
_NEGLIGIBLE_MASS = 20.0
_LEAST_STAGE = 20  # iterations between two comparisons of chains
_LEAST_TRIES = 10  # draws of the prior, of which the best one is used


class JumpingWalk(NamedTuple):
    """Draws along chains; t topologies, l the most coordinates and k the most splits.

    Attributes
    ----------
    topologies
        The t topologies that chains visited.
    topology
        int [chain, draw]; index of the topology.
    position
        float64 [chain, draw, l]; NaN beyond the coordinates of the topology.
    inputs
        int [chain, draw, k], -1 beyond its splits; None if splits use directions.
    log_joint
        float64 [chain, draw]; log of prior (with that of the topology), Jacobian and likelihood.
    is_accepted
        bool [chain, draw]; whether the draw is in another topology than the one before.
    ancestors
        int [chain]; ancestor of each chain before relocations.
    """

    topologies: list[Topology]
    topology: np.ndarray
    position: np.ndarray
    inputs: np.ndarray | None
    log_joint: np.ndarray
    is_accepted: np.ndarray
    ancestors: np.ndarray


class _Place(NamedTuple):
    """State of a chain; the log density is that of prior, Jacobian and likelihood."""

    topology: Topology
    position: np.ndarray
    inputs: np.ndarray | None
    log_likelihood: float
    log_density: float


@dataclass(frozen=True)
class RJHMC:
    """Settings of the sampler, and its methods.

    Attributes
    ----------
    sampler
        NUTS; it warms up once in every visited topology, in the published scheme for every move.
    topology_prior
        p(m).
    moves
        Relative probabilities of "grow", "prune" and "stay".
    max_splits
        Most splits; None for no limit.
    published
        Whether NUTS is re-adapted in every iteration; inexact.
    start
        Initial states of chains: "greedy" for greedy trees, each of rows drawn with replacement
        (see `bdtppl.inference.soft.greedy_start`); "prior" for the best of some prior draws.
    restarts
        Most relocations of chains in modes of negligible mass to states of others in the second
        half of burn-in, at least 20 iterations apart.
    tries
        Number of draws of new parameters that a jump chooses from; 1 in the published scheme.

    Examples
    --------
    >>> from bdtppl.models.soft.tree import SoftRegression
    >>> rng = np.random.default_rng(0)
    >>> x = rng.random((20, 1))
    >>> y = (x[:, 0] > 0.5) + rng.normal(0, 0.3, 20)
    >>> rjhmc = RJHMC(NUTS(warmup=30, h_init=0.1, h_final=0.1), max_splits=1)
    >>> walk = rjhmc.sample(jax.random.key(0), SoftRegression(), x, y, chains=2, draws=5)
    >>> walk.topology.shape
    (2, 5)
    """

    sampler: NUTS = field(default_factory=lambda: NUTS(warmup=500, h_init=0.1, h_final=0.005))
    topology_prior: TopologyPrior = field(default_factory=TopologyPrior)
    moves: Mapping[str, float] = field(default_factory=lambda: dict(JUMPS))
    max_splits: int | None = None
    published: bool = False
    start: Literal["greedy", "prior"] = parameter("greedy")
    restarts: int = parameter(4, least=0)
    tries: int = parameter(1, least=1)

    def __post_init__(self):
        check_parameters(self)
        neighbours(Topology("100"), moves=self.moves)  # raises if moves are wrong
        require_max_splits(self.max_splits)
        if self.published and self.tries > 1:
            raise ValueError(f"tries must be 1 in the published scheme; got {self.tries!r}.")

    def stages(self, burn_in: int) -> range:
        """List the iterations after which chains are compared, a fixed number apart."""
        length = max(burn_in // max(2 * self.restarts, 1), _LEAST_STAGE)
        return range(max(burn_in // 2, length), burn_in - length + 1, length)[: self.restarts]

    @in_float64
    def sample(
        self,
        rng_key: jax.Array,
        model: Any,
        x: np.ndarray,
        y: np.ndarray,
        *,
        hard_inputs: bool = False,
        chains: int = 4,
        burn_in: int = 0,
        draws: int = 1_000,
    ) -> JumpingWalk:
        """Walk over topologies and their parameters.

        Parameters
        ----------
        rng_key
            Key.
        model
            A `bdtppl.models.soft.tree` model.
        x, y
            Inputs float [N, d], scaled to [0, 1], and targets [N].
        hard_inputs
            Whether each split uses one input (HMC-DF); default HMC-DFI.
        chains
            Number of chains.
        burn_in, draws
            Draws of each chain, all of them kept, with burn-in first. Burn-in draws depend on the
            starts and, if chains are relocated, on each other.
        """
        given: Any = {"chains": chains, "burn_in": burn_in, "draws": draws}
        walks = JumpingChains(self, model, x, y, hard_inputs=hard_inputs, **given)
        return walks.result(run(walks, rng_key))


class JumpState(NamedTuple):
    """State of running chains.

    Attributes
    ----------
    rng_key
        Key of the whole run.
    path
        Places [iteration + 1][chain], starting with the initial ones.
    rng_states
        State of each chain's random number generator.
    ancestors
        int [chain]; see `JumpingWalk`.
    """

    rng_key: jax.Array
    path: list[list[_Place]]
    rng_states: list[Any]
    ancestors: np.ndarray


@dataclass(frozen=True, eq=False)
class JumpingChains(Inference[JumpState, JumpingWalk]):
    """Chains over topologies and their parameters; see `RJHMC.sample`."""

    counts: ClassVar[str] = "iterations"

    settings: RJHMC
    model: Any
    x: np.ndarray
    y: np.ndarray
    hard_inputs: bool = False
    chains: int = 4
    burn_in: int = 0
    draws: int = 1_000
    weights: np.ndarray | None = None

    def _moves(self, rng_key: jax.Array) -> "_Moves":
        """Return the moves of chains for a key, with NUTS tuned so far."""
        words = tuple(np.asarray(jax.random.key_data(rng_key)).tolist())
        if self.__dict__.get("_moved_by", (None,))[0] != words:
            given = self.model, self.x, self.y, self.hard_inputs, self.weights
            self.__dict__["_moved_by"] = words, _Moves(self.settings, rng_key, *given)
        return self.__dict__["_moved_by"][1]

    @in_float64
    def start(self, rng_key: jax.Array) -> JumpState:
        """Start each chain at a greedy tree, or in a topology of the prior."""
        moves = self._moves(rng_key)
        words = np.asarray(jax.random.key_data(moves.key_chains)).tolist()
        rngs = [np.random.default_rng([*words, chain]) for chain in range(self.chains)]
        path = [moves.started(rngs)]
        return JumpState(rng_key, path, _states_of(rngs), np.arange(self.chains))

    def num_steps(self, state: JumpState) -> tuple[int, int]:
        """Count the iterations."""
        return len(state.path) - 1, self.burn_in + self.draws

    def lengths(self, state: JumpState) -> dict[str, tuple[int, int]]:
        """List the draws made and requested."""
        return {"draws": (len(state.path) - 1 - self.burn_in, self.draws)}

    @in_float64
    def advance(self, state: JumpState) -> JumpState:
        """Move each chain once, and relocate stuck chains to the states of others."""
        moves, ancestors = self._moves(state.rng_key), state.ancestors
        rngs = _generators(state.rng_states)
        path = [*state.path, moves.iterate(rngs, state.path[-1])]
        stages = self.settings.stages(self.burn_in)
        if len(path) - 1 in stages:
            sources = moves.sources(rngs, path[-stages.step :])
            path[-1] = [path[-1][source] for source in sources]
            ancestors = ancestors[sources]
        return JumpState(state.rng_key, path, _states_of(rngs), ancestors)

    def result(self, state: JumpState) -> JumpingWalk:
        """Return all draws so far, including burn-in."""
        return self._moves(state.rng_key).written(state.path, state.ancestors)

    def to_arrays(self, state: JumpState) -> dict[str, np.ndarray]:
        """Return the arrays of a state by name; places have as many sizes as topologies."""
        places = [place for places in state.path for place in places]
        codes = sorted({place.topology.code for place in places})
        order = {code: number for number, code in enumerate(codes)}
        topology = [order[place.topology.code] for place in places]
        arrays = {
            "codes": np.array(codes),
            "topology": np.array(topology).reshape(len(state.path), -1),
            "position": np.concatenate([place.position for place in places]),
            "scores": np.array([[place.log_likelihood, place.log_density] for place in places]),
            "rng_states": np.array([json.dumps(each) for each in state.rng_states]),
            "ancestors": state.ancestors,
        }
        inputs = [place.inputs for place in places if place.inputs is not None]
        if inputs:
            arrays["inputs"] = np.concatenate(inputs)
        return arrays

    def from_arrays(self, rng_key: jax.Array, arrays: Mapping[str, np.ndarray]) -> JumpState:
        """Read a stored state."""
        density = self._moves(rng_key).density
        topologies = [Topology(str(code)) for code in arrays["codes"]]
        met = [topologies[number] for number in arrays["topology"].ravel().tolist()]
        position = _parted(arrays["position"], [density(m.num_splits).size for m in met])
        inputs: list[Any] = [None] * len(met)
        if "inputs" in arrays:
            inputs = _parted(arrays["inputs"], [m.num_splits for m in met])
        scores = arrays["scores"].reshape(-1, 2).tolist()
        places = [
            _Place(topology, at, own, *of_place)
            for topology, at, own, of_place in zip(met, position, inputs, scores, strict=True)
        ]
        width, ancestors = self.chains, arrays["ancestors"]
        if ancestors.shape != (width,) or arrays["topology"].shape[1:] != (width,):
            raise ValueError("it has another number of chains")
        rng_states = [json.loads(str(each)) for each in arrays["rng_states"]]
        path = [places[first : first + width] for first in range(0, len(met), width)]
        return JumpState(rng_key, path, _states_of(_generators(rng_states)), ancestors)


def _generators(rng_states: list[Any]) -> list[np.random.Generator]:
    rngs = [np.random.default_rng(0) for _ in rng_states]
    for rng, state in zip(rngs, rng_states, strict=True):
        rng.bit_generator.state = state
    return rngs


def _states_of(rngs: list[np.random.Generator]) -> list[Any]:
    return [rng.bit_generator.state for rng in rngs]


class _Moves:
    """The moves of one run, with NUTS tuned to the topologies visited so far."""

    def __init__(self, settings: RJHMC, rng_key, model, x, y, hard_inputs: bool, weights=None):
        self.settings, self.given, self.hard_inputs = settings, (model, x, y), hard_inputs
        self.density = cache(lambda n: SoftDensity.filled_up(model, x, y, n, hard_inputs, weights))
        self.weights = weights
        self.key_tuning, self.key_chains = jax.random.split(rng_key)
        self.tuned = cache(self._tuned)
        self.shared = cache(
            lambda smaller, larger: _shared(
                smaller, larger, self.density(smaller.num_splits), self.density(larger.num_splits)
            )
        )
        self.ways = cache(
            lambda topology: neighbours(
                topology, moves=settings.moves, max_splits=settings.max_splits
            )
        )

    def iterate(self, rngs, places: list[_Place]) -> list[_Place]:
        """Move each chain once."""
        return (self._published_iteration if self.settings.published else self._iteration)(
            rngs, places
        )

    def sources(self, rngs, path: list[list[_Place]]) -> np.ndarray:
        """Choose the chains to continue from: themselves, or others if they are stuck.

        A chain is stuck if its draws are in a mode of negligible mass, unless its current
        likelihood is already as high as that of the best chain.
        """
        masses = np.array([self._log_mass(places) for places in zip(*path, strict=True)])
        masses[np.isnan(masses)] = -np.inf
        best = int(masses.argmax())
        least = min(places[best].log_likelihood for places in path)
        arrives = np.array([place.log_likelihood >= least for place in path[-1]])
        is_stuck = stuck(masses, _NEGLIGIBLE_MASS) & ~arrives
        healthy, sources = np.flatnonzero(~is_stuck), np.arange(len(rngs))
        for chain in np.flatnonzero(is_stuck):
            sources[chain] = rngs[chain].choice(healthy)
        return sources

    def _log_mass(self, places: Sequence[_Place]) -> float:
        """Estimate the log posterior mass of the mode of a chain's draws.

        It is the mass of the mode's part in the most frequent topology, over the share of that
        part.
        """
        [(topology, number)] = Counter(place.topology for place in places).most_common(1)
        if number < 2:
            return -np.inf
        drawn = [place for place in places if place.topology == topology]
        position = np.stack([place.position for place in drawn])
        log_density = np.array([place.log_density for place in drawn])
        log_mass = log_masses(position[None], log_density[None])[0]
        inputs = [place.inputs for place in drawn if place.inputs is not None]
        if inputs:
            log_mass += sum(map(_entropy, np.stack(inputs).T))
        share = number / len(places)
        return log_mass + self.settings.topology_prior.log_prob(topology) - np.log(share)

    def _tuned(self, topology: Topology) -> Chains:
        """Return a chain with NUTS tuned to a topology, independently of the walk."""
        key = jax.random.fold_in(self.key_tuning, int("1" + topology.code, 2) % 2**31)
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).tolist())
        position, inputs = jax.tree.map(lambda a: a[None], self._drawn(rng, topology))
        chain = new_chains(position.astype(np.float32), inputs)
        if self.settings.published:
            return chain
        given = self.density(topology.num_splits), topology.paths
        return self.settings.sampler.warm_up(key, *given, chain)[0]

    def _drawn(self, rng, topology: Topology) -> tuple[np.ndarray, np.ndarray | None]:
        """Draw parameters from the prior repeatedly; return those of the greatest likelihood."""
        density, tries = self.density(topology.num_splits), max(self.settings.tries, _LEAST_TRIES)
        values, inputs = density.draw_prior(rng, tries)
        tried = np.array(_positions(density, values, tries)), inputs
        # Soft splits distinguish more of these draws.
        log_likelihoods = self._log_likelihoods(topology, *tried, self.settings.sampler.h_init)
        best = int(log_likelihoods.argmax())
        if log_likelihoods[best] == -np.inf:
            raise nothing_finite(tries)
        return jax.tree.map(lambda a: a[best], tried)

    def started(self, rngs) -> list[_Place]:
        """Start each chain at a greedy tree, or in a topology of the prior."""
        begin = {"greedy": self._at_greedy_tree, "prior": self._at_prior}[self.settings.start]
        return [begin(rng) for rng in rngs]

    def _at_greedy_tree(self, rng) -> _Place:
        topology, sites, inputs = greedy_start(
            rng,
            *self.given,
            self.settings.topology_prior,
            self.settings.sampler.h_final,
            max_splits=self.settings.max_splits,
            hard_inputs=self.hard_inputs,
            weights=self.weights,
        )
        position = np.asarray(self.density(topology.num_splits).position(sites))
        place = self._scored(topology, position, inputs)
        return place if np.isfinite(place.log_density) else self._at_prior(rng)

    def _at_prior(self, rng) -> _Place:
        """Start in a topology of the prior, at the best of some draws."""
        topology = self.settings.topology_prior.sample(rng, max_splits=self.settings.max_splits)
        return self._scored(topology, *self._drawn(rng, topology))

    def _iteration(self, rngs, places: list[_Place]) -> list[_Place]:
        """Jump, then move within the topology."""
        places = [self._jumped(rng, place) for rng, place in zip(rngs, places, strict=True)]
        return self._moved(rngs, places)

    def _jumped(self, rng, place: _Place) -> _Place:
        proposal, log_ratio = self._proposed(rng, place)
        return proposal if np.log(rng.random()) < log_ratio else place

    def _published_iteration(self, rngs, places: list[_Place]) -> list[_Place]:
        """Move, jump, move again, and accept or reject the sequence by the jump's ratio."""
        before = self._moved(rngs, places)
        jumps = [self._proposed(rng, place) for rng, place in zip(rngs, before, strict=True)]
        after = self._moved(rngs, [proposal for proposal, _ in jumps])
        return [
            new if np.log(rng.random()) < log_ratio else old
            for rng, new, old, (_, log_ratio) in zip(rngs, after, places, jumps, strict=True)
        ]

    def _proposed(self, rng, place: _Place) -> tuple[_Place, float]:
        """Propose a neighbour and its parameters, with the log acceptance ratio."""
        old, ways = place.topology, self.ways(place.topology)
        new = list(ways)[rng.choice(len(ways), p=list(ways.values()))]
        if new == old:
            return place, 0.0
        grows, tries = new.num_splits > old.num_splits, self.settings.tries
        smaller = place if grows else self._scored(new, *self._pruned(place, new))
        larger = new if grows else old
        if grows or tries > 1:  # the current parameters are one of the tries in the reverse jump
            tried = self._grown(rng, smaller, larger, tries)  # always as many: one compiled shape
            h = self.settings.sampler.h_final
            log_likelihoods = self._log_likelihoods(larger, *tried, h)
        else:
            log_likelihoods = np.zeros(0)
        if grows:
            chosen = 0 if tries == 1 else _draw_by_weight(rng, log_likelihoods)
            proposal = self._scored(new, *jax.tree.map(lambda a: a[chosen], tried))
        else:
            proposal = smaller
            log_likelihoods = np.append(log_likelihoods[1:], place.log_likelihood)
        gain = np.logaddexp.reduce(log_likelihoods) - np.log(tries) - smaller.log_likelihood
        prior = self.settings.topology_prior
        log_ratio = prior.log_prob(new) - prior.log_prob(old) + (gain if grows else -gain)
        with np.errstate(divide="ignore"):  # there may be no reverse jump
            log_ratio += np.log(self.ways(new).get(old, 0.0)) - np.log(ways[new])
        return proposal, log_ratio

    def _pruned(self, place: _Place, new: Topology) -> tuple[np.ndarray, np.ndarray | None]:
        """Drop the parameters that a smaller neighbour lacks."""
        in_smaller, in_larger, splits = self.shared(new, place.topology)
        position = np.empty(self.density(new.num_splits).size, place.position.dtype)
        position[in_smaller] = place.position[in_larger]
        return position, None if place.inputs is None else place.inputs[splits]

    def _grown(
        self, rng, place: _Place, new: Topology, number: int
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Extend parameters to a larger neighbour; draw new ones from the prior, some times."""
        density = self.density(new.num_splits)
        values, inputs = density.draw_prior(rng, number)
        position = np.array(_positions(density, values, number))
        in_smaller, in_larger, splits = self.shared(place.topology, new)
        position[:, in_larger] = place.position[in_smaller]
        if inputs is not None:
            inputs[:, splits] = place.inputs
        return position, inputs

    def _log_likelihoods(self, topology: Topology, position, inputs, sharpness) -> np.ndarray:
        """Return log likelihoods at some positions; -inf if float64 cannot represent them."""
        density = self.density(topology.num_splits)
        found = np.asarray(_likelihoods_of(density, position, topology.paths, sharpness, inputs))
        is_known = np.isfinite(position).all(axis=1) & ~np.isnan(found)
        return np.where(is_known, found, -np.inf)

    def _scored(self, topology: Topology, position, inputs) -> _Place:
        density, h = self.density(topology.num_splits), self.settings.sampler.h_final
        position = np.asarray(position, np.float64)  # those of NUTS are in single precision
        scores = _scores(density, position, topology.paths, h, inputs)
        return _Place(topology, position, inputs, *map(float, scores))

    def _moved(self, rngs, places: list[_Place]) -> list[_Place]:
        """Make a step of NUTS in each chain, after warm-up in the published scheme."""
        sampler, moved = self.settings.sampler, list(places)
        for num_splits in {place.topology.num_splits for place in places}:
            rows = [r for r, p in enumerate(places) if p.topology.num_splits == num_splits]
            each = [
                self.tuned(places[row].topology)._replace(
                    position=places[row].position[None],
                    inputs=jax.tree.map(lambda a: a[None], places[row].inputs),
                )
                for row in rows
            ]
            chains = jax.tree.map(lambda *arrays: np.stack(arrays), *each)
            paths = np.stack([places[row].topology.paths for row in rows])
            given = self.density(num_splits), paths
            if self.settings.published:
                keys = _keys(rngs[row] for row in rows)
                chains, _ = sampler.warm_up(keys, *given, chains)
            keys = _keys(rngs[row] for row in rows)
            chains, _ = sampler.draw(keys, *given, chains, 1)
            for place, row in enumerate(rows):
                inputs = None if chains.inputs is None else chains.inputs[place, 0]
                topology = places[row].topology
                moved[row] = self._scored(topology, chains.position[place, 0], inputs)
        return moved

    def written(self, path: list[list[_Place]], ancestors: np.ndarray) -> JumpingWalk:
        """Convert places [draw + 1][chain], starting with the initial ones, to arrays."""
        by_chain = list(zip(*path, strict=True))
        draws = [place for chain in by_chain for place in chain[1:]]
        topologies = sorted({place.topology for place in draws})
        number = {topology: t for t, topology in enumerate(topologies)}
        shape = len(by_chain), len(path) - 1

        def padded(arrays: list[np.ndarray], fill: Any) -> np.ndarray:
            width = max(map(len, arrays))
            filled = np.full((len(arrays), width), fill)
            for row, array in zip(filled, arrays, strict=True):
                row[: len(array)] = array
            return filled.reshape(*shape, width)

        prior = self.settings.topology_prior
        log_joint = [place.log_density + prior.log_prob(place.topology) for place in draws]
        accepted = [
            new.topology != old.topology
            for chain in by_chain
            for old, new in itertools.pairwise(chain)
        ]
        hard = draws[0].inputs is not None
        return JumpingWalk(
            topologies,
            np.array([number[place.topology] for place in draws]).reshape(shape),
            padded([place.position for place in draws], np.nan),
            padded([place.inputs for place in draws], -1) if hard else None,
            np.array(log_joint).reshape(shape),
            np.array(accepted).reshape(shape),
            ancestors,
        )


def _parted(array: np.ndarray, sizes: list[int]) -> list[np.ndarray]:
    """Split an array into arrays of given sizes."""
    if array.shape != (sum(sizes),):
        raise ValueError("the sizes of its arrays are inconsistent")
    return np.split(array, np.cumsum(sizes)[:-1])


def _shared(
    smaller: Topology, larger: Topology, of_smaller: SoftDensity, of_larger: SoftDensity
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Match a topology with one in which one of its leaves is split.

    Returns
    -------
    tuple
        Places of the shared coordinates in the smaller and in the larger topology's positions, and
        numbers in the larger of the smaller's splits.
    """
    leaf = list(smaller.grown()).index(larger)
    place = [place for place, node in enumerate(smaller.code) if node == "0"][leaf]
    split = smaller.code[:place].count("1")  # number of the new split
    splits, leaves = np.arange(smaller.num_splits), np.arange(smaller.num_leaves)
    splits, leaves = splits + (splits >= split), leaves + (leaves > leaf)  # left leaf: unchanged
    inside = of_smaller.coordinates(jnp.arange(of_smaller.size))
    outside = of_larger.coordinates(jnp.arange(of_larger.size))
    pairs: list[tuple[Any, Any]] = [(np.zeros(0, int), np.zeros(0, int))]
    for name, own in inside.items():
        theirs = outside[name]
        if own.shape != theirs.shape:
            theirs = theirs[splits if len(own) == smaller.num_splits else leaves]
        pairs.append((own.ravel(), theirs.ravel()))
    in_smaller, in_larger = map(np.concatenate, zip(*pairs, strict=True))
    return in_smaller, in_larger, splits


def _entropy(values: np.ndarray) -> float:
    """Return the entropy of the frequencies of values, in nats."""
    counts = np.unique(values, return_counts=True)[1]
    return float(-np.log(counts / counts.sum()) @ counts / counts.sum())


def _draw_by_weight(rng, log_weights: np.ndarray) -> int:
    """Draw a place by weights that may all be 0."""
    weights = np.exp(log_weights - max(log_weights.max(), -np.finfo(float).max))
    total = weights.sum()
    return int(rng.choice(len(weights), p=weights / total)) if total > 0 else 0


# Each number of splits recompiles these, which takes longer than they run.
_jit_lightly = partial(jax.jit, compiler_options=COMPILED_LIGHTLY)


@partial(_jit_lightly, static_argnames="number")
def _positions(density: SoftDensity, parameters: dict[str, Any], number: int) -> jax.Array:
    """Return positions [number, size]; a tree of one leaf may have no parameters at all."""
    return jax.vmap(density.position, axis_size=number)(parameters)


@_jit_lightly
def _likelihoods_of(density: SoftDensity, position, paths, sharpness, inputs) -> jax.Array:
    """Return log likelihoods at some positions."""
    return jax.vmap(lambda own, at: _both(density, own, paths, sharpness, at)[0])(position, inputs)


@_jit_lightly
def _scores(density: SoftDensity, position, paths, sharpness, inputs) -> tuple[Any, Any]:
    """Return the log likelihood and log density."""
    return _both(density, position, paths, sharpness, inputs)


def _both(density: SoftDensity, position, paths, sharpness, inputs) -> tuple[Any, Any]:
    @jax.vmap  # NumPyro accepts a power of 0 only if it is traced
    def log_density(power):
        return density.log_density(position, paths, sharpness, power, inputs)

    prior, whole = log_density(jnp.arange(2.0))
    return whole - prior, whole


def _keys(rngs: Iterable[np.random.Generator]) -> jax.Array:
    """Draw a key from each generator."""
    drawn = [rng.integers(0, 2**32, 2, np.uint32) for rng in rngs]
    return jax.random.wrap_key_data(jnp.asarray(np.stack(drawn)))
