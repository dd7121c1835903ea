"""Draws of sums of trees from their prior."""

from dataclasses import replace

import numpy as np

from bdtppl.inference.additive.kernels import grow_prior
from bdtppl.inference.additive.posterior import SumPosterior
from bdtppl.inference.additive.tables import prior_tables, row_tables

__all__ = ["draw_sum_prior"]


def draw_sum_prior(
    rng: np.random.Generator, posterior: SumPosterior, num_draws: int
) -> SumPosterior:
    """Draw sums of trees from the prior of a posterior, as draws [1, num_draws].

    Parameters
    ----------
    rng
        Generator.
    posterior
        Posterior with the prior and the rows.
    num_draws
        Number of draws.

    Raises
    ------
    ValueError
        If features have weights of their own, whose law is known up to a factor alone.
    """
    prior, design = posterior.prior, posterior.design
    if prior.sparsity is not None:
        raise ValueError(
            "Sums of trees under a sparse prior are not drawn: min_leaf excludes trees, and how "
            "many depends on the features' weights."
        )
    rows = row_tables(design)
    has_rule = design.has_cut.astype(float)
    weight = has_rule / has_rule.sum()
    shape = num_draws * prior.num_sums * prior.num_trees
    rule = np.empty((shape, posterior.rule.shape[-1]), np.int32)
    grow_prior(rows, prior_tables(prior, rows, weight), rule, rng)
    leaves = np.zeros((shape, 2 * rule.shape[1] + 1), bool)
    leaves[:, 0] = rule[:, 0] < 0
    below = np.repeat(rule >= 0, 2, axis=1)
    leaves[:, 1:] = below
    leaves[:, : rule.shape[1]] &= rule < 0
    value = np.where(leaves, float(prior.leaf_scale) * rng.standard_normal(leaves.shape), 0.0)
    sums = 1, num_draws, prior.num_sums, prior.num_trees
    variance = np.ones((1, num_draws))
    if prior.link == "identity":
        degrees = float(prior.noise_degrees)
        variance = degrees * float(prior.noise_scale) / rng.chisquare(degrees, (1, num_draws))
    return replace(
        posterior,
        rule=rule.reshape(*sums, -1),
        value=value.reshape(*sums, -1),
        variance=variance,
        feature_weight=np.broadcast_to(weight, (1, num_draws, len(weight))),
        sample_stats={},
    )
