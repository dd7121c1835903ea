"""Draws of sums of trees from their prior."""

import math
from dataclasses import replace

import numpy as np

from bdtppl.inference.additive.complete_trees import grow_prior
from bdtppl.inference.additive.posterior import CODE_VARIANCE, SumPosterior
from bdtppl.inference.additive.tables import prior_tables, row_tables


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
        If feature weights are random: their distribution is known only up to a factor.
    """
    prior, design = posterior.prior, posterior.design
    if prior.sparsity is not None:
        raise ValueError(
            "Sums of trees cannot be drawn from a sparse prior: min_leaf excludes trees, and their "
            "number depends on the features' weights."
        )
    rows = row_tables(design)
    weight = design.equal_weights
    tables = prior_tables(prior, rows, weight)

    def grow(direction: tuple[int, ...], *shape: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw rules of trees [1, draws, ...], and standard normal values of their leaves."""
        number, nodes = num_draws * math.prod(shape), 2**prior.max_depth - 1
        rule, value = np.empty((number, nodes), np.int32), np.empty((number, 2 * nodes + 1))
        grow_prior(rows, tables, rule, value, np.array(direction, int), rng)
        axes = 1, num_draws, *shape, -1
        return rule.reshape(axes), value.reshape(axes)

    rule, value = grow(prior.monotone, prior.num_sums, prior.num_trees)
    drawn: dict[str, np.ndarray] = {}
    scale = np.full((1, num_draws, prior.num_sums), float(prior.leaf_scale))
    if prior.draws_leaf_scale:
        scale *= np.abs(rng.standard_cauchy(scale.shape))
        drawn = {"leaf_scale": scale}
    value = scale[..., None, None] * value
    variance = np.ones((1, num_draws))
    if prior.link == "identity":
        degrees = float(prior.noise_degrees)
        variance = degrees * float(prior.noise_scale) / rng.chisquare(degrees, (1, num_draws))
    if prior.term_scales.size:
        shape = 1, num_draws, prior.num_sums, len(prior.term_scales)
        deviation = prior.term_scales * np.abs(rng.standard_cauchy(shape))
        each = prior.linear_columns(design).each(deviation)
        coefficient = each * rng.standard_normal(each.shape)
        sign = prior.linear_columns(design).signs(prior.monotone)
        coefficient = np.where(sign, sign * np.abs(coefficient), coefficient)
        drawn |= {"linear": coefficient, "linear_deviation": deviation}
    if (effect := posterior.effect) is not None:
        coding = np.broadcast_to(effect.coding[0, 0], (1, num_draws, 2))
        if effect.is_coded:
            coding = CODE_VARIANCE**0.5 * rng.standard_normal(coding.shape)
        effect = replace(effect, sums=draw_sum_prior(rng, effect.sums, num_draws), coding=coding)
    prior_draws = replace(
        posterior,
        effect=effect,
        **drawn,
        rule=rule,
        value=value,
        variance=variance,
        feature_weight=np.broadcast_to(weight, (1, num_draws, len(weight))),
        sample_stats={},
    )
    if not prior.noise_trees:
        return prior_draws
    rule, value = grow((), prior.noise_trees)
    leaves = value != 0
    degrees, middle = map(float, prior.noise_leaf)
    value = np.where(leaves, degrees * middle / rng.chisquare(degrees, leaves.shape), 1.0)
    noisy = replace(prior_draws, noise_rule=rule, noise_value=value)
    each = (noisy.deviations(design.matrix) ** 2) @ (design.weights / design.total_weight)
    return replace(noisy, variance=each)
