"""A Gibbs step for the standard deviation of the values of leaves.

The standard deviation is a product of a normal variable and one over a chi variable, which has a
half-Cauchy distribution. The normal factor multiplies a whole sum, so all values move at once
(Gelman 2006, Prior distributions for variance parameters in hierarchical models, section 3.2).
"""

import numpy as np


def draw_leaf_factors(
    generator: np.random.Generator,
    factors: np.ndarray,
    squares: float,
    num_leaves: int,
    explained: np.ndarray,
    target: np.ndarray,
    precision: np.ndarray,
    median: float,
    keeps_sign: bool = False,
) -> float:
    """Draw the factors of one sum, in place; return the factor for all values.

    Parameters
    ----------
    generator
        Random numbers.
    factors
        float64 [2]; the normal one, and the other.
    squares, num_leaves
        Sum of the squares of all values, and their number.
    explained, target, precision
        float64 [n]; the trees' sum at each row, its targets, and their precision.
    median
        Median of the prior of the standard deviation.
    keeps_sign
        Whether the normal factor keeps its sign, so that values keep their order.
    """
    before = factors[0]
    rest = 1 + squares / before**2
    factors[1] = np.sqrt(rest / generator.chisquare(1 + num_leaves))
    unit = explained / before
    total = (precision * unit) @ unit + median**-2
    factors[0] = (precision * unit) @ target / total + generator.standard_normal() / np.sqrt(total)
    if keeps_sign and factors[0] * before < 0:
        factors[0] = before  # the draw is then a proposal, and is rejected here
    return factors[0] / before
