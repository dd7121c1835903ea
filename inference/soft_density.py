"""The log density of a soft tree in coordinates without bounds, for all topologies of a size.

NumPyro's models are written in terms of simplices, positive numbers and so on. Samplers by gradient
want a function of one vector of reals: here it is, with the Jacobians of the transformations. The
topology, the sharpness and the power of the likelihood are arguments, so code that is compiled for
a number of splits serves every topology of that size at every stage of a run.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpyro.infer.util import initialize_model

__all__ = ["SoftDensity"]


class SoftDensity:
    """The unnormalised posterior of a model's parameters given n splits.

    Parameters
    ----------
    model
        A `bdtppl.models.soft_tree` model, or any NumPyro model of (paths, x, y, sharpness, power=).
    x, y
        Inputs float [N, d], scaled to [0, 1], and targets [N].
    num_splits
        Number of splits n.

    Attributes
    ----------
    size
        Number of coordinates.
    """

    def __init__(self, model: Callable[..., None], x: Any, y: Any, num_splits: int):
        self.model = model
        self.x, self.y = jnp.asarray(x), jnp.asarray(y)
        self.num_splits = num_splits
        # Which paths these are does not matter: shapes and supports depend on their number alone.
        self._any_paths = paths = np.zeros((num_splits + 1, num_splits), np.int8)
        with jax.numpy_rank_promotion("allow"):  # NumPyro's own code broadcasts
            found = initialize_model(
                jax.random.key(0),
                model,
                dynamic_args=True,
                model_args=(paths, self.x, self.y, 1.0),
                model_kwargs={"power": 1.0},
            )
        self._potential, self._postprocess = found.potential_fn, found.postprocess_fn
        flat, self._unravel = ravel_pytree(found.param_info.z)
        self.size = flat.size

    def log_density(
        self, position: jax.Array, paths: Any, sharpness: Any, power: Any = 1.0
    ) -> jax.Array:
        """Log of prior, Jacobian and likelihood.

        Parameters
        ----------
        position
            float [size].
        paths
            int [n + 1, n]; the topology.
        sharpness
            h of the splits.
        power
            Power of the likelihood.
        """
        with jax.numpy_rank_promotion("allow"):
            potential = self._potential(paths, self.x, self.y, sharpness, power=power)
            return -potential(self._unravel(position))

    def parameters(self, position: jax.Array) -> dict[str, jax.Array]:
        """Values of the model's sites at one position, within their bounds."""
        with jax.numpy_rank_promotion("allow"):
            sites = self._postprocess(self._any_paths, self.x, self.y, 1.0, power=1.0)
            return sites(self._unravel(position))
