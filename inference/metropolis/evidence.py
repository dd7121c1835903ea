"""The log evidence from tempered chains, by stepping stones.

The evidence under the normalised prior is the product, over neighbouring powers p < q of the
likelihood, of the mean of L^(q - p) under the tempered posterior of p (Xie, Lewis, Fan, Kuo and
Chen 2011, Improving marginal likelihood estimation for Bayesian phylogenetic model selection,
equation 6). The powers run from 0, where chains draw from the prior, to 1.
"""

import numpy as np

from bdtppl.inference.summaries.diagnostics import error_of_mean


def stepping_stones(log_likelihood: np.ndarray, powers: np.ndarray) -> tuple[float, float]:
    """Estimate the log evidence and its standard error.

    Parameters
    ----------
    log_likelihood
        float64 [chain, draw, t]; log likelihoods of the trees under each power.
    powers
        float64 [t]; from 0 to 1.

    Returns
    -------
    log_evidence, standard_error
        The error is that of the sum of all stones, by the delta method. It includes autocorrelation
        along a chain and correlation between powers, which exchange their trees. NaN for fewer than
        4 draws.
    """
    log_weights = np.diff(powers) * log_likelihood[..., :-1]
    highest = log_weights.max(axis=(0, 1))
    weights = np.exp(log_weights - highest)
    means = weights.mean(axis=(0, 1))
    log_evidence = float((np.log(means) + highest).sum())
    influence = (weights / means).sum(axis=-1)  # of each draw on the sum of the stones' logs
    return log_evidence, error_of_mean(influence)
