"""Costs of an exact posterior by boxes and by a chart, and which of them fits a budget.

Costs are estimated from counts of boxes and rules at fixed rates, so choices based on them do not
depend on the machine or its load.
"""

import itertools
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from math import comb
from typing import Literal

import numpy as np

from bdtppl.inference.boxes.exact import BoxPosterior, why_no_boxes
from bdtppl.inference.boxes.histograms import BoxHistograms
from bdtppl.inference.boxes.space import BoxSpace
from bdtppl.inference.boxes.weights import num_weights
from bdtppl.inference.pcfg.compiler import TooManySubproblems, compile_grammar, count_subproblems
from bdtppl.inference.pcfg.exact import ExactPosterior
from bdtppl.inference.pcfg.leaf_count_posterior import exact_posterior
from bdtppl.models.hard.tree_model import TreeModel
from bdtppl.models.leaf import Leaf
from bdtppl.models.leaf_kernels import has_kernel
from bdtppl.models.prior_kinds import TreePrior, weighs_each_cut

ExactMethod = Literal["auto", "boxes", "chart", "search"]

AUTO_BINS = (None, 10, 5, 3, 2)
MOST_DEPTH_SUGGESTED = 8
_SECONDS_A_SCORE = 1.3e-8  # and a statistic
_SECONDS_A_GROUP = 2.5e-4
_SECONDS_A_ROW = 4e-9  # and a set of features
_SECONDS_A_WEIGHT = 3e-8  # for the table of the prior's weights
_BYTES_A_WEIGHT = 100.0  # mostly while it is made
_FEW_ROWS = 2_000  # rows above which boxes cost less than a chart
_TIMES_THE_BUDGET = 10  # multiple of a search's budget, for boxes that were requested


@dataclass(frozen=True)
class Budget:
    """Limits on a choice.

    Attributes
    ----------
    seconds
        CPU seconds of all trials, at nominal rates.
    num_bytes
        Most memory of one sum over trees.
    subproblems
        Most subproblems of a chart.
    """

    seconds: float = 8.0
    num_bytes: float = 1e9
    subproblems: int = 500_000

    def pays_for(self, cost: "Budget") -> bool:
        """Return whether it suffices for the seconds and bytes of one sum over trees."""
        return cost.seconds <= self.seconds and cost.num_bytes <= self.num_bytes

    def levels_of(self, model: TreeModel, most: int) -> int:
        """Count the affordable levels of boxes, up to ``most``."""
        costs = (box_cost_of(model, levels) for levels in range(1, 1 + most))
        return sum(1 for _ in itertools.takewhile(self.pays_for, costs))


DEFAULT_BUDGET = Budget()


def box_cost(space: BoxSpace, prior: TreePrior, leaf: Leaf, num_rows: int) -> Budget:
    """Estimate the cost of one log evidence by boxes in seconds and bytes."""
    num_values = 2 if leaf.task == "classification" else 3
    concentration = getattr(leaf, "concentration", None)
    if concentration is not None:
        num_values = len(concentration)
    per_sum = _SECONDS_A_SCORE * (1 + num_values) * (1 if has_kernel(leaf) else 8)
    num_groups = sum(space.num_groups(level) for level in range(space.num_levels))
    seconds = per_sum * space.num_scores + _SECONDS_A_GROUP * num_groups
    if "log_num_equivalent" in prior.rule_facts:  # partitions are distinguished
        seconds *= 1.5
    if not prior.is_normalised:  # the prior alone is summed, too
        seconds *= 1.7
    d = space.num_features
    seconds += _SECONDS_A_ROW * num_rows * comb(d, min(space.num_levels, d))
    cells, weights = num_cells(space) * (num_values + 1), num_weights(space, prior)
    seconds += _SECONDS_A_WEIGHT * weights
    boxes = space.num_boxes(space.num_levels - 1)
    return Budget(seconds, 8.0 * (2 * cells + 3 * boxes) + _BYTES_A_WEIGHT * weights)


def num_cells(space: BoxSpace) -> float:
    """Count the cells of all histograms (`CellLayout`) without listing them."""
    products = np.zeros(1 + min(space.num_levels, space.num_features))  # summed, by features
    products[0] = 1.0
    for size in space.num_codes + space.has_missing:
        products[1:] += size * products[:-1].copy()
    return float(products.sum())


def box_cost_of(model: TreeModel, levels: int) -> Budget:
    """Estimate the cost of boxes of a number of levels."""
    space = BoxSpace.of(model.design, model.constraints, max(levels, 1))
    return box_cost(space, model.prior, model.leaf, model.design.num_observations)


def exact_of(
    model: TreeModel,
    method: str,
    max_subproblems: int = 500_000,
    histograms: BoxHistograms | None = None,
) -> ExactPosterior | BoxPosterior:
    """Make the exact posterior of a model by one method.

    Parameters
    ----------
    model
        The model; boxes need a limit of depth.
    method
        "boxes" or "chart".
    max_subproblems
        Most subproblems of a chart.
    histograms
        Histograms of boxes, if the rows were not stored.

    Raises
    ------
    ValueError
        If boxes do not support the model.
    TooManySubproblems
        If the chart is too large.
    """
    design, constraints = model.design, model.constraints
    if method == "boxes":
        if constraints.max_depth is None:
            raise ValueError("method='boxes' sums over trees of few levels: set max_depth.")
        return BoxPosterior(
            design,
            model.prior,
            model.leaf,
            model.y,
            max_depth=max(constraints.max_depth, 1),
            constraints=constraints,
            histograms=histograms,
        )
    grammar = compile_grammar(
        design,
        rules=model.prior.rules,
        constraints=constraints,
        each_cut=weighs_each_cut(model.prior),
        max_subproblems=max_subproblems,
    )
    return exact_posterior(grammar, model.prior, model.leaf, model.y)


def suggest(
    error: TooManySubproblems,
    make_model: Callable[[int | None], TreeModel],
    bins: int | None,
    budget: Budget,
) -> None:
    """Add a suggestion to an error: fewer buckets, or few levels.

    Parameters
    ----------
    error
        The error.
    make_model
        Builds the model for a number of buckets.
    bins
        The number that did not fit.
    budget
        The budget.
    """
    for number in AUTO_BINS:
        if number is not None and (bins is None or number < bins):
            size = estimate_subproblems(make_model(number), budget.subproblems)
            if size <= budget.subproblems:
                error.suggest(f"bins={number} would fit (about {size:,.0f} sets of rows).")
                break
    model = make_model(bins)
    if why_no_boxes(model.prior, model.constraints) is None:
        if cheap := budget.levels_of(model, MOST_DEPTH_SUGGESTED):
            error.suggest(f"max_depth={cheap} would fit with the current cuts.")


def exact_within_budget(
    model: TreeModel, method: ExactMethod = "auto", budget: Budget = DEFAULT_BUDGET
) -> tuple[ExactPosterior | BoxPosterior, str]:
    """Make the exact posterior of a model.

    It is the chart for few rows, if that fits; otherwise boxes, if the depth is limited and the
    budget suffices.

    Returns
    -------
    exact
        The posterior.
    method
        "boxes" or "chart".

    Raises
    ------
    TooManySubproblems
        If neither fits the budget; the message suggests a setting that would.
    """
    if method != "auto":
        return exact_of(model, method, budget.subproblems), method
    depth, no_boxes = model.constraints.max_depth, why_no_boxes(model.prior, model.constraints)
    if depth is not None and no_boxes is None:
        generous = replace(budget, seconds=_TIMES_THE_BUDGET * budget.seconds)
        if not generous.pays_for(box_cost_of(model, depth)):
            depth = None
    if depth is None or no_boxes is not None:
        return exact_of(model, "chart", budget.subproblems), "chart"
    if model.design.num_observations <= _FEW_ROWS:
        with suppress(TooManySubproblems):
            return exact_of(model, "chart", budget.subproblems), "chart"
    return exact_of(model, "boxes"), "boxes"


def estimate_subproblems(model: TreeModel, limit: int = 500_000) -> float:
    """Estimate the number of subproblems of a model.

    The estimate extrapolates the power law of the last doubling of growing samples of its rows. It
    only guides a choice: a chart that outgrows its budget is abandoned.

    Parameters
    ----------
    model
        The model.
    limit
        Counting may stop here; larger numbers need not be exact.

    Returns
    -------
    float
        An estimate; infinity if it is far above ``limit``.
    """
    design, constraints = model.design, model.constraints
    sizes = design.num_codes.astype(float)
    with np.errstate(over="ignore"):
        most = float(np.prod(sizes * (sizes + 1) / 2))  # number of boxes, including empty ones
    if most <= limit and not constraints.looks_at_path:
        return most
    order = np.random.default_rng(0).permutation(design.num_rows)
    counts: list[int] = []
    size = 16
    while True:
        size = min(size, design.num_rows)
        # If half the rows need a quarter of the budget, all rows will not fit.
        bound = limit if size == design.num_rows else limit // 4
        try:
            sample = design.take(np.sort(order[:size]))
            number = count_subproblems(
                sample,
                rules=model.prior.rules,
                constraints=constraints,
                each_cut=weighs_each_cut(model.prior),
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
            return estimate if constraints.looks_at_path else min(most, estimate)
        size *= 2
