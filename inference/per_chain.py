"""A compiled function of one chain becomes one of all chains of all topologies.

On CPUs threads call it chain by chain, so that any number of chains is served by what is compiled
once, and no chain waits for another. On accelerators it is vectorised over all chains.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import numpy as np

from bdtppl.inference.precision import in_float64

__all__ = ["PerChain"]


class PerChain:
    """A function of one chain, called for all chains of all topologies.

    The function takes (shared, rng_key, own, paths): what all chains share, the key and the paths
    of the chain's topology, and arrays of its own, of which the first is its number. Here keys and
    paths have axes [...], and the chains' own arrays [..., chain]. What is shared has a property
    ``rehearsal``, something of the same structure with little to do.
    """

    def __init__(self, function: Callable):
        def of_chain(impl, shared, key_data, own, paths):
            return function(shared, jax.random.wrap_key_data(key_data, impl=impl), own, paths)

        def of_chains(impl, shared, key_data, own, paths):
            vectorised = jax.vmap(partial(of_chain, impl), in_axes=(None, 0, 0, 0))
            return vectorised(shared, key_data, own, paths)

        self.one, self.many = (jax.jit(f, static_argnums=0) for f in (of_chain, of_chains))
        self.__doc__ = function.__doc__

    @in_float64
    def __call__(self, shared: Any, rng_key: jax.Array, own: tuple, paths: Any) -> Any:
        """Call it for all chains; NumPy arrays [..., chain, ...]."""
        lead = own[0].shape
        if rng_key.shape != lead[:-1]:
            raise ValueError(f"rng_key must have shape {lead[:-1]}; got {rng_key.shape}.")
        topology = np.repeat(np.arange(rng_key.size), lead[-1])
        # To take single keys out of an array of keys is a computation for each.
        impl, keys = jax.random.key_impl(rng_key), np.asarray(jax.random.key_data(rng_key))
        keys = keys.reshape(rng_key.size, -1)
        own = jax.tree.map(lambda a: a.reshape(len(topology), *a.shape[len(lead) :]), own)
        paths = jax.tree.map(lambda a: a.reshape(len(keys), *a.shape[len(lead) - 1 :]), paths)
        call = self._by_threads if jax.default_backend() == "cpu" else self._vectorised
        found = call(impl, shared, keys, own, paths, topology)
        return jax.tree.map(lambda a: a.reshape(*lead, *a.shape[1:]), found)

    def _by_threads(self, impl, shared, keys, own, paths, topology):
        @in_float64
        def call(chain: int, shared: Any) -> Any:
            place = topology[chain]
            of_chain = jax.tree.map(lambda a: a[chain], own)
            of_topology = jax.tree.map(lambda a: a[place], paths)
            return jax.tree.map(
                np.asarray, self.one(impl, shared, keys[place], of_chain, of_topology)
            )

        call(0, shared.rehearsal)  # or else all threads would compile it
        with ThreadPoolExecutor(os.cpu_count()) as workers:
            found = list(workers.map(lambda chain: call(chain, shared), range(len(topology))))
        return jax.tree.map(lambda *each: np.stack(each), *found)

    def _vectorised(self, impl, shared, keys, own, paths, topology):
        paths = jax.tree.map(lambda a: a[topology], paths)
        return jax.tree.map(np.asarray, self.many(impl, shared, keys[topology], own, paths))
