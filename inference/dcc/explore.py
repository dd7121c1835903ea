"""DCC-Tree: a walk over topologies, with inference given those of high utility (Algorithm 1).

Topologies drawn from the prior, and proposed by the walk, are counted; one that was proposed often
enough becomes active and is burnt in. Each step visits the active topology of greatest utility: its
chains draw, its evidence is re-estimated, and a move from it proposes another topology.

References
----------
Cochrane, Wills and Johnson 2024, Divide, Conquer, Combine Bayesian Decision Tree Sampling, section
3; Zhou, Yang, Teh and Rainforth 2020, Divide, conquer, and combine.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import ClassVar

import jax
import numpy as np

from bdtppl.inference.dcc import local
from bdtppl.inference.dcc.local import Explored
from bdtppl.inference.dcc.settings import DCC
from bdtppl.inference.dcc.utility import exploitation, exploration, utility
from bdtppl.inference.nuts.kernel import NutsDraws
from bdtppl.inference.parallel import fan_out
from bdtppl.inference.run import Inference
from bdtppl.models.soft.topology import Topology, TopologyPrior, neighbours

_NUMBERS = "since", "visits", "num_restarts"
_ERRORS = 3.0  # standard errors by which an estimate may be too low
_MISSED = 5.0  # nats by which it may be too low if chains missed the main mode


@dataclass(frozen=True)
class WalkState:
    """State of the walk.

    Attributes
    ----------
    rng_key
        Key of the whole run.
    proposed
        Number of proposals of each topology, in the order of discovery.
    explored
        Results of the active topologies, in the order of activation.
    visited
        The topology visited by each step.
    """

    rng_key: jax.Array
    proposed: Mapping[Topology, int]
    explored: Mapping[Topology, Explored] = field(default_factory=dict)
    visited: tuple[Topology, ...] = ()


@dataclass(frozen=True, eq=False)
class TopologyWalk(Inference[WalkState, WalkState]):
    """The walk (see `bdtppl.inference.run`); its result is its state.

    Attributes
    ----------
    dcc
        Settings.
    iterations
        Steps of the walk.
    patience, tolerance
        Stop if the topologies activated in the last ``patience`` steps together have less than
        ``tolerance`` of the weight; None never stops early.
    """

    counts: ClassVar[str] = "iterations"

    dcc: DCC
    iterations: int
    patience: int | None = None
    tolerance: float = 1e-3

    def start(self, rng_key: jax.Array) -> WalkState:
        """Draw the first topologies from the prior."""
        dcc, rng = self.dcc, _generator(rng_key, 0)
        proposed: dict[Topology, int] = {}
        while sum(proposed.values()) < dcc.initial_trees:
            topology = dcc.prior.sample(rng, max_splits=dcc.max_splits)
            if dcc.with_leaf or topology.num_splits:
                proposed[topology] = proposed.get(topology, 0) + 1
        return WalkState(rng_key, proposed)

    def num_steps(self, state: WalkState) -> tuple[int, int]:
        """Count the steps of the walk."""
        return len(state.visited), self.iterations

    def lengths(self, state: WalkState) -> dict[str, tuple[int, int]]:
        """List the steps made and requested."""
        return {"iterations": self.num_steps(state)}

    def is_done(self, state: WalkState) -> bool:
        """Return whether all steps are made, or new topologies hardly matter."""
        if super().is_done(state):
            return True
        patience = self.patience
        return patience is not None and _is_exhausted(self.dcc, state, patience, self.tolerance)

    def advance(self, state: WalkState) -> WalkState:
        """Make a step."""
        dcc = self.dcc
        return _propose(dcc, _look_at(dcc, _activate(dcc, state)))

    def to_arrays(self, state: WalkState) -> dict[str, np.ndarray]:
        """Write a state as arrays of numbers and of text.

        Arrays of a topology are named after its code: ``"100/log_weight"``. Nested arrays, such as
        those of chains, are named by their place among the leaves of the nest.
        """
        arrays = {
            "proposed": np.array([shape.code for shape in state.proposed]),
            "count": np.array(list(state.proposed.values())),
            "visited": np.array([shape.code for shape in state.visited], str),
            "explored": np.array([shape.code for shape in state.explored], str),
        }
        for shape, explored in state.explored.items():
            own = {
                "numbers": np.array([getattr(explored, name) for name in _NUMBERS]),
                "position": explored.position,
                "log_weight": explored.log_weight,
            }
            for name, nest in (("chains", explored.chains), ("draws", explored.draws)):
                own |= {f"{name}/{i}": leaf for i, leaf in enumerate(jax.tree.leaves(nest))}
            arrays |= {f"{shape.code}/{name}": array for name, array in own.items()}
        return arrays

    def from_arrays(self, rng_key: jax.Array, arrays: Mapping[str, np.ndarray]) -> WalkState:
        """Read a stored state."""
        dcc, any_key, leaf = self.dcc, jax.random.key(0), Topology()
        structures = {
            # They are the same for all topologies.
            "chains": jax.tree.structure(dcc.nuts.start(any_key, dcc.density(0), leaf.paths, 1)),
            "draws": jax.tree.structure(NutsDraws(*range(7))._replace(inputs=None)),
        }
        explored = {}
        for shape in _topologies(arrays["explored"]):
            own = {
                name.removeprefix(f"{shape.code}/"): array
                for name, array in arrays.items()
                if name.startswith(f"{shape.code}/")
            }
            nests = {
                name: structure.unflatten(own[f"{name}/{i}"] for i in range(structure.num_leaves))
                for name, structure in structures.items()
                if f"{name}/0" in own
            }
            numbers = dict(zip(_NUMBERS, own["numbers"].tolist(), strict=True))
            given = {name: own[name] for name in ("position", "log_weight")}
            explored[shape] = Explored(topology=shape, **given, **numbers, **nests)
        counts = arrays["count"].tolist()
        proposed = dict(zip(_topologies(arrays["proposed"]), counts, strict=True))
        return WalkState(rng_key, proposed, explored, tuple(_topologies(arrays["visited"])))


def _topologies(codes: np.ndarray) -> list[Topology]:
    return [Topology(str(code)) for code in codes]


def log_topology_joint(explored: Explored, prior: TopologyPrior) -> float:
    """Return the log of Z_m p(m) by importance sampling."""
    return explored.evidence.log_evidence + prior.log_prob(explored.topology)


def _activate(dcc: DCC, state: WalkState) -> WalkState:
    """Burn in the topologies that have been proposed often enough."""
    proposed, explored = state.proposed, dict(state.explored)
    new = [m for m, count in proposed.items() if count > dcc.activation_count and m not in explored]
    if not new and not explored:  # none was proposed often enough
        new = [max(proposed, key=proposed.__getitem__)]
    since = len(state.visited)
    shared = dcc, state.rng_key
    begun = _for_each_size(partial(local.begin_topologies, since=since), shared, new)
    explored |= {each.topology: each for each in begun}
    if dcc.pilot and new:
        reached = within_reach(dcc, explored, dcc.least_share)
        left = [m for m in new if m not in reached]
        explored |= {m: replace(explored[m], chains=None, draws=None) for m in left}
        new = [m for m in new if m in reached]
    burnt_in = _for_each_size(local.burn_in, shared, [explored[m] for m in new])
    explored |= {each.topology: each for each in burnt_in}
    return replace(state, explored=explored)


def _for_each_size(function: Callable, shared: tuple, items: Sequence) -> list[Explored]:
    """Call a function on the topologies of each size, or on their results.

    Sizes compile and run side by side in threads.
    """
    groups = _by_size(items)
    # The largest take longest, so they come first.
    tasks = [(group,) for group in reversed(groups)]
    made = fan_out(function, tasks, shared=shared, most_threads=len(groups), has_shares=True)
    return [each for group in reversed(made) for each in group]


def within_reach(dcc: DCC, explored: Mapping[Topology, Explored], share: float) -> set[Topology]:
    """Return the topologies that may have a share of the weight, given errors."""
    joint = {m: log_topology_joint(each, dcc.prior) for m, each in explored.items()}
    with np.errstate(divide="ignore"):
        least = np.logaddexp.reduce(list(joint.values())) + np.log(share)

    def greatest(m: Topology) -> float:
        return joint[m] + _ERRORS * explored[m].evidence.standard_error + _MISSED

    return {m for m in explored if greatest(m) >= least}


def _look_at(dcc: DCC, state: WalkState) -> WalkState:
    """Visit the topology of greatest utility."""
    candidates = [each for each in state.explored.values() if not each.is_left]
    unseen = [each for each in candidates if not each.visits]
    if unseen:
        chosen = max(unseen, key=lambda each: state.proposed[each.topology])
    else:
        chosen = candidates[int(np.argmax(utilities(dcc, candidates)))]
    visited = local.visit_topology(dcc, state.rng_key, chosen)
    return replace(
        state,
        explored={**state.explored, chosen.topology: visited},
        visited=(*state.visited, chosen.topology),
    )


def utilities(dcc: DCC, candidates: Sequence[Explored]) -> np.ndarray:
    """Compute the utility of each topology, float64 [m]."""
    log_mean, log_variance, highest, mean, deviation = (
        np.array(each) for each in zip(*(each.moments for each in candidates), strict=True)
    )
    return utility(
        np.array([each.visits for each in candidates]),
        exploitation(log_mean, log_variance, dcc.kappa),
        exploration(mean, np.maximum(deviation, 1e-9), highest.max(), dcc.look_ahead),
        delta=dcc.delta,
        optimism=dcc.optimism,
    )


def _propose(dcc: DCC, state: WalkState) -> WalkState:
    """Propose a neighbour of the visited topology."""
    ways = neighbours(state.visited[-1], moves=dcc.moves, max_splits=dcc.max_splits)
    if not dcc.with_leaf:
        ways.pop(Topology(), None)
    share = np.array(list(ways.values()))
    rng = _generator(state.rng_key, len(state.visited))
    proposal = list(ways)[rng.choice(len(ways), p=share / share.sum())]
    count = state.proposed.get(proposal, 0) + 1
    return replace(state, proposed={**state.proposed, proposal: count})


def _is_exhausted(dcc: DCC, state: WalkState, patience: int, tolerance: float) -> bool:
    """Return whether the last activated topologies have hardly any weight."""
    since = len(state.visited) - patience
    explored = state.explored.values()
    if since < 0 or not explored or any(not (each.visits or each.is_left) for each in explored):
        return False
    joint = np.array([log_topology_joint(each, dcc.prior) for each in explored])
    # The walk starts with those of the first step.
    is_late = np.array([each.since >= max(since, 1) for each in explored])
    weight = np.exp(joint - np.logaddexp.reduce(joint))
    return bool(weight[is_late].sum() < tolerance)


def _by_size(items: Sequence) -> list[list]:
    """Group topologies, or results of them, by their number of splits."""

    def size(each: Topology | Explored) -> int:
        return (each if isinstance(each, Topology) else each.topology).num_splits

    return [list(group) for _, group in groupby(sorted(items, key=size), key=size)]


def _generator(rng_key: jax.Array, step: int) -> np.random.Generator:
    return np.random.default_rng([*np.asarray(jax.random.key_data(rng_key)).ravel(), step])
