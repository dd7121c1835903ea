"""Do chains agree? Rank-normalised R-hat and effective sample sizes, and which chains dissent.

References
----------
Vehtari, Gelman, Simpson, Carpenter and Burkner 2021, Rank-normalization, folding, and localization:
an improved R-hat for assessing convergence of MCMC.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from bdtppl.inference.posterior import Posterior

__all__ = ["Diagnostics", "diagnose", "dissenting_chains", "followed"]

_ROWS = 5  # training rows whose predictions are followed
_FEWEST_DRAWS = 4  # of a chain, for its two halves to vary


class Diagnostics(NamedTuple):
    """How well chains agree on one quantity.

    Attributes
    ----------
    r_hat
        Rank-normalised R-hat: 1 where chains agree, NaN for a single chain or fewer than 4 draws.
    ess
        Bulk effective sample size of all chains together.
    """

    r_hat: float
    ess: float


def followed(posterior: Posterior) -> dict[str, np.ndarray]:
    """Name what of the draws is diagnosed, float64 [chain, draw] each.

    The log joint, the number of leaves, and at a few training rows the predictive mean, or the
    probability of the row's own class.
    """
    num_rows = posterior.design.num_rows
    rows = np.unique(np.linspace(0, num_rows - 1, _ROWS).astype(int))
    means = posterior.leaf_means(posterior.matrix[rows])
    if means.ndim > 3:
        means = np.take_along_axis(means, posterior.y[rows][None, None, :, None], axis=3)[..., 0]
    stats = posterior.sample_stats
    quantities = {name: stats[name].astype(float) for name in ("log_joint", "num_leaves")}
    return quantities | {f"prediction_{row}": means[..., i] for i, row in enumerate(rows.tolist())}


def diagnose(quantities: Mapping[str, np.ndarray]) -> dict[str, Diagnostics]:
    """Compare chains in quantities, float64 [chain, draw] each."""
    import arviz

    return {
        name: Diagnostics(_r_hat(values), _number(arviz.ess, values))
        for name, values in quantities.items()
    }


def dissenting_chains(values: np.ndarray, bound: float) -> list[int]:
    """Name the chains to leave out, until the others' R-hat is at most a bound; two remain.

    Of values [chain, draw] the chain is left out without which R-hat is least, and so on.
    """
    left = list(range(len(values)))
    while len(left) > 2 and not _r_hat(values[left]) <= bound:
        without = [_r_hat(values[[c for c in left if c != chain]]) for chain in left]
        left.pop(int(np.argmin(without)))
    return [chain for chain in range(len(values)) if chain not in left]


def _r_hat(values: np.ndarray) -> float:
    """R-hat of values [chain, draw]; infinite where chains stand still at different values."""
    import arviz

    if len(values) < 2 or values.shape[1] < _FEWEST_DRAWS:
        return float("nan")
    if (values == values[:, :1]).all():
        return 1.0 if (values == values[0, 0]).all() else float("inf")
    return _number(arviz.rhat, values)


def _number(function, values: np.ndarray) -> float:
    if values.shape[1] < _FEWEST_DRAWS:
        return float("nan")
    with np.errstate(divide="ignore", invalid="ignore"):  # constant draws have no variance
        return float(np.asarray(function(values)))
