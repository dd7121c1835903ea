"""Estimate the size of charts.

The number of subproblems of a design is estimated from those of growing samples of its rows, by
the power law of their last doubling; the estimate is cheap because samples are small, and it only
guides the choice: a chart that outgrows its budget is abandoned.
"""

import numpy as np

from bdtppl.inference.pcfg.compiler import TooManySubproblems, count_subproblems
from bdtppl.models.constraints import Constraints
from bdtppl.models.data.design import Design
from bdtppl.models.prior_kinds import Rules

__all__ = ["AUTO_BINS", "estimate_subproblems"]

AUTO_BINS = (None, 10, 5, 3, 2)


def estimate_subproblems(
    design: Design,
    *,
    rules: Rules = "gaps",
    constraints: Constraints | None = None,
    each_cut: bool = False,
    limit: int = 500_000,
) -> float:
    """Estimate how many subproblems a design has.

    Parameters
    ----------
    design
        The design.
    rules, constraints, each_cut
        As for `bdtppl.inference.pcfg.compiler.compile_grammar`.
    limit
        Counting may stop here; larger numbers need not be exact.

    Returns
    -------
    float
        An estimate; infinity where it is far above ``limit``.
    """
    sizes = design.num_codes.astype(float)
    with np.errstate(over="ignore"):
        most = float(np.prod(sizes * (sizes + 1) / 2))  # number of boxes, including empty ones
    looks_at_path = constraints is not None and constraints.looks_at_path
    if most <= limit and not looks_at_path:
        return most
    order = np.random.default_rng(0).permutation(design.num_rows)
    counts: list[int] = []
    size = 16
    while True:
        size = min(size, design.num_rows)
        # If half the rows take a quarter of the budget, all rows will not fit.
        bound = limit if size == design.num_rows else limit // 4
        try:
            sample = design.take(np.sort(order[:size]))
            number = count_subproblems(
                sample,
                rules=rules,
                constraints=constraints,
                each_cut=each_cut,
                max_subproblems=bound,
            )
        except TooManySubproblems:
            return np.inf
        counts.append(number)
        if size == design.num_rows:
            return float(counts[-1])
        if len(counts) > 1 and counts[-1] > limit / 30:
            power = np.log2(counts[-1] / counts[-2])
            estimate = counts[-1] * (design.num_rows / size) ** power
            return estimate if looks_at_path else min(most, estimate)
        size *= 2
