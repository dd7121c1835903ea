"""Choose cut points whose chart fits the budget.

The number of subproblems of a design is estimated from charts of growing samples of its rows, by
the power law of their last doubling; the estimate is cheap because samples are small, and it only
guides the choice: a chart that outgrows its budget is abandoned.
"""

import logging
from collections.abc import Callable
from typing import Literal

import numpy as np

from bdtppl.inference.pcfg.compiler import TooManySubproblems, compile_grammar
from bdtppl.inference.pcfg.grammar import Grammar
from bdtppl.models.constraints import Constraints
from bdtppl.models.data.design import Design
from bdtppl.models.priors import Rules

__all__ = ["AUTO_BINS", "compile_within_budget", "estimate_subproblems"]

AUTO_BINS = (None, 10, 5, 3, 2)

_logger = logging.getLogger("bdtppl")
_said: set[tuple] = set()


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
        As for `compile_grammar`.
    limit
        Counting may stop here; larger numbers need not be exact.

    Returns
    -------
    float
        An estimate; infinity where it is far above ``limit``.
    """
    sizes = design.num_codes.astype(float)
    most = float(np.prod(sizes * (sizes + 1) / 2))  # number of boxes, including empty ones
    if most <= limit and not (constraints and constraints.looks_at_path):
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
            grammar = compile_grammar(
                sample,
                rules=rules,
                constraints=constraints,
                each_cut=each_cut,
                max_subproblems=bound,
                keep=False,
            )
        except TooManySubproblems:
            return np.inf
        counts.append(grammar.num_subproblems)
        if size == design.num_rows:
            return float(counts[-1])
        if len(counts) > 1 and counts[-1] > limit / 30:
            power = np.log2(counts[-1] / counts[-2])
            estimate = counts[-1] * (design.num_rows / size) ** power
            return estimate if constraints and constraints.looks_at_path else min(most, estimate)
        size *= 2


def compile_within_budget(
    make_design: Callable[[int | None], Design],
    bins: int | None | Literal["auto"],
    *,
    rules: Rules = "gaps",
    constraints: Constraints | None = None,
    each_cut: bool = False,
    max_subproblems: int = 500_000,
    on_progress: Callable[[int], None] | None = None,
) -> tuple[Grammar, int | None]:
    """Compile the grammar of a table, and choose the number of bins if it is "auto".

    Parameters
    ----------
    make_design
        Builds the design for a number of bins.
    bins
        A number, None, or "auto": the first of None, 10, 5, 3 and 2 whose chart fits.
    rules, constraints, each_cut, max_subproblems, on_progress
        As for `compile_grammar`.

    Returns
    -------
    grammar
        The grammar, with its design.
    bins
        The bins in use.

    Raises
    ------
    TooManySubproblems
        If nothing fits; the message suggests bins that would fit.
    """
    options = {"rules": rules, "constraints": constraints, "each_cut": each_cut}

    def compiled(design: Design) -> Grammar:
        return compile_grammar(
            design, **options, max_subproblems=max_subproblems, on_progress=on_progress
        )

    if bins != "auto":
        try:
            return compiled(make_design(bins)), bins
        except TooManySubproblems as error:
            fewer = [b for b in AUTO_BINS if b is not None and (bins is None or b < bins)]
            for option in fewer:
                design = make_design(option)
                estimate = estimate_subproblems(design, **options, limit=max_subproblems)
                if estimate <= max_subproblems:
                    error.suggest(f"bins={option} would fit (about {estimate:,.0f} subproblems).")
                    break
            raise error from None
    tried: set[bytes] = set()
    for option in AUTO_BINS:
        design = make_design(option)
        key = design.codes.tobytes()
        if key in tried:
            continue
        tried.add(key)
        if estimate_subproblems(design, **options, limit=max_subproblems) > max_subproblems:
            continue
        try:
            grammar = compiled(design)
        except TooManySubproblems:
            continue
        if option is not None:
            _say_once(design, option)
        return grammar, option
    raise TooManySubproblems(
        max_subproblems, f" even with {AUTO_BINS[-1]} bins a feature", "fewer features"
    )


def _say_once(design: Design, bins: int) -> None:
    key = (design.matrix.shape, bins)
    if key not in _said:
        _said.add(key)
        _logger.warning(
            "bins='auto' chose bins=%d for %d rows and %d features, so that the exact chart fits "
            "max_subproblems.",
            bins,
            *design.matrix.shape,
        )
