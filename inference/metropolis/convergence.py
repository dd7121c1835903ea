"""How fast chains converge that propose from the prior, whatever tree they are at.

References
----------
Angelopoulos and Cussens 2005, Exploiting Informative Priors for Bayesian Classification and
Regression Trees, equation 3 (from Doob 1953 and Rosenthal 1995).
"""

import numpy as np

__all__ = ["independence_bound"]


def independence_bound(
    log_evidence: float, log_likelihood: float, num_steps: int | np.ndarray
) -> np.ndarray:
    """Bound how far such chains are from the posterior after some steps, in total variation.

    The bound is (1 - P(t) / P(t | y))^i for the tree t of the greatest likelihood, whose prior over
    its posterior probability is the evidence over its likelihood. These are the chains of
    ``MetropolisTreeClassifier(proposal=Regrow("root"))``.

    Parameters
    ----------
    log_evidence
        Log evidence under the normalised prior.
    log_likelihood
        Greatest log likelihood of any tree.
    num_steps
        Numbers i of steps, [...].

    Returns
    -------
    numpy.ndarray
        float64 [...].

    Raises
    ------
    ValueError
        If the evidence is larger than the likelihood, or a number of steps negative.

    Examples
    --------
    >>> independence_bound(-10.0, -3.0, np.array([0, 1000, 5000])).round(3).tolist()
    [1.0, 0.402, 0.01]
    """
    if not log_evidence <= log_likelihood:
        raise ValueError(
            f"log_likelihood must be the greatest of any tree, and so at least log_evidence="
            f"{log_evidence}; got {log_likelihood}."
        )
    if np.any(np.asarray(num_steps) < 0):
        raise ValueError(f"num_steps must be at least 0; got {num_steps!r}.")
    share = np.exp(log_evidence - log_likelihood)
    return (1 - share) ** np.asarray(num_steps, np.float64)
