"""A run of DCC-Tree as named arrays, from which it resumes with the same draws.

Arrays of a topology are named after its code: ``"100/log_weight"``. Nested ones, where chains are,
are named by their place among the leaves of the nest.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bdtppl.inference.dcc.explore import WalkState
from bdtppl.inference.dcc.local import Explored
from bdtppl.inference.dcc.settings import DCC
from bdtppl.inference.nuts.kernel import NutsDraws
from bdtppl.models.soft.topology import Topology

__all__ = ["walk_from_arrays", "walk_to_arrays"]

_NUMBERS = ("since", "visits", "num_restarts")


def walk_to_arrays(state: WalkState) -> dict[str, np.ndarray]:
    """Write a state as arrays of numbers and of text."""
    arrays = {
        "rng_key": np.asarray(jax.random.key_data(state.rng_key)),
        "rng_impl": np.array(str(jax.random.key_impl(state.rng_key))),
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


def walk_from_arrays(dcc: DCC, arrays: Mapping[str, np.ndarray]) -> WalkState:
    """Read a state that `walk_to_arrays` has written.

    Parameters
    ----------
    dcc
        The settings of the run.
    arrays
        The arrays.
    """
    structures = {"chains": _structure_of_chains(dcc), "draws": _STRUCTURE_OF_DRAWS}
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
        explored[shape] = Explored(
            topology=shape,
            position=own["position"],
            log_weight=own["log_weight"],
            **numbers,
            **nests,
        )
    return WalkState(
        jax.random.wrap_key_data(jnp.asarray(arrays["rng_key"]), impl=str(arrays["rng_impl"])),
        dict(zip(_topologies(arrays["proposed"]), arrays["count"].tolist(), strict=True)),
        explored,
        tuple(_topologies(arrays["visited"])),
    )


_STRUCTURE_OF_DRAWS = jax.tree.structure(NutsDraws(*range(7))._replace(inputs=None))


def _structure_of_chains(dcc: DCC) -> Any:
    """Structure of the state of a chain; it is the same for all topologies."""
    any_key, shape = jax.random.key(0), Topology()
    return jax.tree.structure(dcc.nuts.start(any_key, dcc.density(0), shape.paths, 1))


def _topologies(codes: np.ndarray) -> list[Topology]:
    return [Topology(str(code)) for code in codes]
