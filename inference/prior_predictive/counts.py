"""Numbers of trees.

If all n observations differ in each of d features, a node of m observations has d (m - 1) rules,
with i of them on one side for each i from 1 to m - 1. So the number of trees depends on the number
of observations alone. A chart counts trees of other tables.

References
----------
Nuti, Jimenez Rugama and Cross 2021, Efficient Bayesian Decision Tree Algorithm, section 4: the
recursion after equation 7, stated here from the paper's definitions.
"""

from typing import Any

from bdtppl.inference.prior_predictive.trees import exact_prior
from bdtppl.models.arguments import require_integer
from bdtppl.models.constraints import Constraints
from bdtppl.models.data.design import Design
from bdtppl.models.hard.rule_laws import Rules
from bdtppl.models.priors import DescriptionLength


def num_trees(num_rows: int, num_features: int) -> int:
    """Count the trees, T(n) = 1 + d sum_i T(i) T(n - i).

    Parameters
    ----------
    num_rows, num_features
        Observations n, and features d in each of which they all differ.

    Raises
    ------
    ValueError
        If a number is not an integer of at least 1.

    Examples
    --------
    >>> [num_trees(n, 1) for n in range(1, 6)]
    [1, 2, 5, 15, 51]
    """
    require_integer("num_rows", num_rows)
    require_integer("num_features", num_features)
    counts = [0, 1]
    for n in range(2, num_rows + 1):
        counts.append(1 + int(num_features) * sum(counts[i] * counts[n - i] for i in range(1, n)))
    return counts[num_rows]


def log_num_trees(
    design: Design, *, rules: Rules = "gaps", constraints: Constraints | None = None
) -> float:
    """Count the trees of a table, as a log.

    Parameters
    ----------
    design
        The table.
    rules
        "gaps" or "cuts" (see `bdtppl.models.prior_kinds.TreePrior`).
    constraints
        Limits on the trees.

    Raises
    ------
    ValueError
        If the chart of the table is too large, or constraints apply to whole trees.

    Examples
    --------
    >>> import numpy as np
    >>> round(np.exp(log_num_trees(Design.from_matrix(np.arange(5.0)[:, None]))))
    51
    """
    limits = Constraints() if constraints is None else constraints
    prior: Any = DescriptionLength(0.0, rules)
    return float(exact_prior(design, prior, limits).log_prior_normaliser)
