"""Predictions of each training row from all other rows, without refitting.

Draws of the posterior are weighted by 1 / p(own target | draw, other rows), which makes them draws
of the posterior without the row (importance sampling). If leaf parameters are integrated out, the
row is removed from the statistics of its leaf. Weights are truncated at the square root of the
number of draws times their mean, which bounds their variance.

References
----------
Gelfand, Dey and Chang 1992, Model determination using predictive distributions; Ionides 2008,
Truncated importance sampling.
"""

from typing import NamedTuple

import numpy as np

from bdtppl.inference.additive.posterior import SumPosterior
from bdtppl.inference.hard.mixture import leaf_cdf
from bdtppl.inference.hard.posterior import Posterior
from bdtppl.inference.posteriors import AnyPosterior
from bdtppl.inference.soft.mixture import ClassMixture
from bdtppl.inference.soft.posterior import SoftPosterior
from bdtppl.models.arrays.precision import in_float64
from bdtppl.models.hard.tree import route
from bdtppl.models.row_statistics import row_statistics


class LeftOut(NamedTuple):
    """Predictions of n training rows, each from all others.

    Attributes
    ----------
    mean
        float64 [n]; or class probabilities [n, c].
    log_density
        float64 [n]; log density or probability of the row's own target.
    cdf
        float64 [n]; probability of a target of at most the row's own; None for classes.
    efficiency
        float64 [n]; effective share of draws in each row's prediction: 1 if leaving the row out
        changes no weight.
    """

    mean: np.ndarray
    log_density: np.ndarray
    cdf: np.ndarray | None
    efficiency: np.ndarray


class _Draws(NamedTuple):
    """Predictions of s draws for n rows: log density of the target, mean, CDF; weights [s].

    ``log_taken`` is the log density of the row with its full weight, which is removed with it.
    """

    log_taken: np.ndarray
    log_density: np.ndarray
    mean: np.ndarray
    cdf: np.ndarray | None
    weight: np.ndarray


@in_float64
def leave_one_out(posterior: AnyPosterior, rows: np.ndarray | None = None) -> LeftOut:
    """Predict training rows, each from all others.

    Parameters
    ----------
    posterior
        Draws given all rows. A row is left out with its full weight.
    rows
        int [n]; indices of the rows. Default all.

    Raises
    ------
    ValueError
        If rows have no individual likelihood (the compound likelihood of soft classification).

    Examples
    --------
    >>> from bdtppl import ExactTreeClassifier
    >>> model = ExactTreeClassifier(random_state=0).fit([[0.0], [1.0], [2.0]], [0, 0, 1])
    >>> leave_one_out(model.posterior_).mean.shape
    (3, 2)
    """
    rows = np.arange(len(posterior.y)) if rows is None else np.asarray(rows)
    if isinstance(posterior, Posterior):
        draws = _hard_draws(posterior, rows)
    else:
        draws = _parametric_draws(posterior, rows)
    ratio = np.exp(draws.log_taken.min(axis=0) - draws.log_taken)  # at most 1
    ceiling = np.sqrt(len(ratio)) * np.average(ratio, axis=0, weights=draws.weight)
    ratio = np.minimum(ratio, ceiling)
    ratio /= np.average(ratio, axis=0, weights=draws.weight)
    weight = draws.weight[:, None] * ratio
    largest = draws.log_density.max(axis=0)
    density = (weight * np.exp(draws.log_density - largest)).sum(axis=0)
    return LeftOut(
        np.einsum("sn,sn...->n...", weight, draws.mean),
        largest + np.log(density),
        None if draws.cdf is None else (weight * draws.cdf).sum(axis=0),
        1 / (weight * ratio).sum(axis=0),
    )


def _hard_draws(posterior: Posterior, rows: np.ndarray) -> _Draws:
    """Predict by the distinct trees, each without the row in its leaf."""
    ranked, leaf, y = posterior.ranked, posterior.leaf, posterior.y[rows]
    slots = route(ranked.trees, posterior.matrix[rows])
    statistics = np.take_along_axis(ranked.statistics, slots[..., None], axis=1)
    weights = posterior.row_weights[rows]
    others = statistics - row_statistics(leaf, y, weights)
    log_density = log_taken = np.asarray(leaf.log_marginal(statistics) - leaf.log_marginal(others))
    if (weights != 1).any():
        one = others + row_statistics(leaf, y, np.ones(len(y)))
        log_density = np.asarray(leaf.log_marginal(one) - leaf.log_marginal(others))
    mean, cdf = np.asarray(leaf.posterior_mean(others)), None
    if mean.ndim == log_density.ndim:
        flat = others.reshape(-1, others.shape[-1])
        cdf = leaf_cdf(leaf, flat, np.tile(y, len(slots))).reshape(slots.shape)
    return _Draws(log_taken, log_density, mean, cdf, ranked.probability)


def _parametric_draws(posterior: SoftPosterior | SumPosterior, rows: np.ndarray) -> _Draws:
    """Predict by the draws, whose parameters make rows independent."""
    posterior.require_pointwise_likelihood()
    mixture, y = posterior.predictive(posterior.matrix[rows]), posterior.y[rows]
    log_density = mixture.each_log_density(y)
    weight = np.full(len(log_density), 1 / len(log_density))
    log_taken = log_density * posterior.row_weights[rows]
    if isinstance(mixture, ClassMixture):
        return _Draws(log_taken, log_density, mixture.probability, None, weight)
    return _Draws(log_taken, log_density, mixture.means, mixture.each_cdf(y), weight)
