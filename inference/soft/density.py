"""The log density of a soft tree in unconstrained coordinates, for all topologies of a size.

NumPyro's models are written in terms of simplices, positive numbers and so on. Gradient-based
samplers need a function of one vector of real numbers, which this module provides, with the
Jacobians of the transformations. A density is a pytree: rows, priors, the topology, the sharpness
and the power of the likelihood are data. So code compiled for a number of splits and of rows serves
every topology of that size at every stage of a run, under any prior and on any such table.

Splits use directions on the simplex (HMC-DFI), or one input each (HMC-DF). The inputs are then
discrete parameters, uniform a priori, which are drawn from their full conditionals.

References
----------
Cochrane, Wills and Johnson 2023, RJHMC-Tree for exploration of the Bayesian decision tree
posterior.
"""

import math
from collections.abc import Callable
from functools import cached_property
from threading import RLock
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import betaln
from numpyro import distributions as dist
from numpyro import handlers
from numpyro.distributions import biject_to

from bdtppl.models.arrays.padding import padded_size
from bdtppl.models.pytrees import Array, pytree_dataclass, setting

_SIZES = 8  # sizes per doubling of the rows: each extra row costs time at every step
_TRACING = RLock()  # all threads share the stack of NumPyro's handlers


def _log_prior(law: Any, to: Any, coordinates: jax.Array, value: jax.Array) -> jax.Array:
    """Return the log density of a site's free coordinates, including its Jacobian.

    NumPyro clips values near 0, but a sparse Dirichlet or beta distribution has much of its mass
    there: the density would be flat beyond some coordinate, and improper. So these densities are
    computed from the logits: each stick-breaking fraction of a Dirichlet vector is beta
    distributed.
    """
    base: Any = law
    first: Any
    second: Any
    while isinstance(base, dist.Independent | dist.ExpandedDistribution):
        base = base.base_dist
    if isinstance(base, dist.Dirichlet):
        shape = jnp.asarray(base.concentration)
        rest = jnp.cumsum(shape[..., ::-1], axis=-1)[..., ::-1]
        first, second = shape[..., :-1], rest[..., 1:]
        logit = coordinates - jnp.log(jnp.arange(coordinates.shape[-1], 0, -1))
    elif isinstance(base, dist.Beta):
        first, second, logit = base.concentration1, base.concentration0, coordinates
    else:
        return law.log_prob(value).sum() + to.log_abs_det_jacobian(coordinates, value).sum()
    log_sides = first * jax.nn.log_sigmoid(logit) + second * jax.nn.log_sigmoid(-logit)
    return (log_sides - betaln(first, second)).sum()


@pytree_dataclass
class SoftDensity:
    """The unnormalised posterior of a model's parameters given n splits.

    Attributes
    ----------
    model
        A `bdtppl.models.soft.tree` model, or any NumPyro model of (paths, x, y, sharpness, inputs=,
        power=) that is a pytree; to draw from the prior it needs a method ``draw_prior``.
    x, y
        Inputs float [N, d], scaled to [0, 1], and targets [N].
    num_splits
        Number of splits n.
    hard_inputs
        Whether each split uses one input, and not a direction.
    weights
        Powers of the rows' likelihoods, float [N], which the model then gets as ``weights``; None
        if all are 1.
    """

    model: Callable[..., None]
    x: Array
    y: Array
    num_splits: int = setting()
    hard_inputs: bool = setting(default=False)
    weights: Any = None

    @classmethod
    def filled_up(
        cls, model: Any, x: Array, y: Array, num_splits: int, hard_inputs=False, weights: Any = None
    ) -> "SoftDensity":
        """Add rows without a target, so that tables of about one size share compiled code.

        The model ignores targets that equal its ``no_target``.
        """
        unknown = np.asarray(model.no_target)  # pyright: ignore[reportFunctionMemberAccess]
        y = np.asarray(y).astype(np.result_type(y, unknown.dtype))
        added = padded_size(len(y), _SIZES) - len(y)
        if weights is not None:
            weights = jnp.asarray(np.pad(weights * 1.0, (0, added), constant_values=1))
        return cls(
            model,
            jnp.asarray(np.pad(x, ((0, added), (0, 0)))),
            jnp.asarray(np.pad(y, (0, added), constant_values=unknown)),
            num_splits,
            hard_inputs,
            weights,
        )

    @property
    def size(self) -> int:
        """Number of coordinates."""
        return sum(math.prod(shape) for _, shape in self._sites.values())

    def log_density(
        self, position: jax.Array, paths: Any, sharpness: Any, power: Any = 1.0, inputs: Any = None
    ) -> jax.Array:
        """Return the log of prior, Jacobian and likelihood.

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
        inputs
            int [n]; the input of each split, if inputs are hard. Their prior is part of the result.
        """
        given, options = (paths, self.x, self.y, sharpness), {"inputs": inputs, "power": power}
        if self.weights is not None:
            options["weights"] = self.weights
        prior = -self.num_splits * math.log(self.x.shape[1]) if self.hard_inputs else 0.0
        coordinates, total = self.coordinates(position), jnp.asarray(prior)
        with _TRACING, jax.numpy_rank_promotion("allow"):  # NumPyro's own code broadcasts
            values = {name: to(coordinates[name]) for name, (to, _) in self._sites.items()}
            model = handlers.trace(handlers.substitute(self.model, data=values))
            for name, site in model.get_trace(*given, **options).items():
                if site["type"] != "sample":
                    continue
                law, scale = site["fn"], 1.0 if site["scale"] is None else site["scale"]
                if name in coordinates:
                    to, _ = self._sites[name]
                    total += scale * _log_prior(law, to, coordinates[name], values[name])
                else:
                    each = law.log_prob(site["value"])
                    total += (scale * each).sum() if jnp.ndim(scale) else scale * each.sum()
        return total

    def coordinates(self, position: jax.Array) -> dict[str, jax.Array]:
        """Split a position [size] into the free coordinates of the model's sites."""
        parts, start = {}, 0
        for name, (_, shape) in self._sites.items():
            stop = start + math.prod(shape)
            parts[name] = position[start:stop].reshape(shape)
            start = stop
        return parts

    def parameters(self, position: jax.Array) -> dict[str, jax.Array]:
        """Return values of the model's sites at one position, within their bounds."""
        with jax.numpy_rank_promotion("allow"):
            parts = self.coordinates(position)
            return {name: to(parts[name]) for name, (to, _) in self._sites.items()}

    def position(self, parameters: dict[str, Any]) -> jax.Array:
        """Return the position [size] at which the model's sites have given values."""
        with jax.numpy_rank_promotion("allow"):
            parts = [jnp.ravel(to.inv(parameters[name])) for name, (to, _) in self._sites.items()]
        return jnp.concatenate(parts) if parts else jnp.zeros(0)

    def draw_prior(
        self, rng: np.random.Generator, num_draws: int
    ) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
        """Draw from the prior.

        Returns
        -------
        tuple
            Values of the model's sites, float64 [num_draws, ...]; and inputs of splits, int
            [num_draws, n], None if they use directions.
        """
        num_inputs = self.x.shape[1]
        values = self.model.draw_prior(
            rng, num_draws, self.num_splits, num_inputs, hard_inputs=self.hard_inputs
        )
        if not self.hard_inputs:
            return values, None
        return values, rng.integers(num_inputs, size=(num_draws, self.num_splits))

    @cached_property
    def _sites(self) -> dict[str, tuple[Any, tuple[int, ...]]]:
        """Return transformation and shape of each site's free coordinates, in order of names."""
        # Any paths and inputs will do, because sites depend on their number alone.
        paths = np.zeros((self.num_splits + 1, self.num_splits), np.int8)
        inputs = np.zeros(self.num_splits, int) if self.hard_inputs else None
        sites = {}

        def run(rng_key):
            trace = handlers.trace(handlers.seed(self.model, rng_key)).get_trace(
                paths, self.x, self.y, 1.0, inputs=inputs, power=1.0
            )
            for name, site in sorted(trace.items()):
                if site["type"] == "sample" and not site["is_observed"]:
                    to = biject_to(site["fn"].support)
                    sites[name] = to, to.inv(site["value"]).shape

        with _TRACING, jax.numpy_rank_promotion("allow"):
            jax.eval_shape(run, jax.random.key(0))
        return sites
