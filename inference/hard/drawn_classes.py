"""Class probabilities of leaves drawn from their posterior, besides those integrated out.

Given a tree, the class probabilities of a leaf are Dirichlet(counts + concentration). Averaged over
many trees, predictions by draws agree with those by means.

References
----------
Mahfoud et al. 2025, Learning Decision Trees as Amortized Structure Inference (DT-GFN), section 4.2.
"""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from bdtppl.models.arrays.precision import in_float64
from bdtppl.models.leaves import DirichletCategorical
from bdtppl.models.pytrees import pytree_dataclass


@pytree_dataclass
class DrawnClasses:
    """A leaf family that predicts with drawn probabilities.

    The statistics are the class counts and the drawn probabilities behind them, [..., 2 c].
    """

    leaf: DirichletCategorical

    task: ClassVar = "classification"

    @in_float64
    def draw(self, rng_key: jax.Array, counts: np.ndarray) -> np.ndarray:
        """Draw probabilities given counts [..., c], and return statistics of both."""
        posterior = np.asarray(counts) + np.asarray(self.leaf.concentration)
        drawn = jax.random.dirichlet(rng_key, posterior)
        return np.concatenate([counts, np.asarray(drawn)], axis=-1)

    def posterior_mean(self, statistics: Any) -> Any:
        """Return the drawn probability of each class, [..., c]."""
        return statistics[..., statistics.shape[-1] // 2 :]

    def predictive(self, statistics: Any) -> Any:
        """Return the categorical distribution of the drawn probabilities."""
        return dist.Categorical(probs=self.posterior_mean(statistics))

    def mean_law(self, statistics: Any, label: Any = None) -> Any:
        """Return the distribution from which the probability of a class was drawn."""
        return self.leaf.mean_law(statistics[..., : statistics.shape[-1] // 2], label)

    def sample(self, rng_key: jax.Array, statistics: Any) -> Any:
        """Draw one new target per leaf, [...]."""
        return jnp.asarray(self.predictive(statistics).sample(rng_key))
