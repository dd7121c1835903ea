"""Choose how an exact posterior is computed: cut points, depth, numbers of the model, and the way.

Boxes (`bdtppl.inference.boxes`) sum over trees of few levels at any number of rows; a chart
(`bdtppl.inference.pcfg`) sums over trees of any depth, where few cut points and rows allow it. More
buckets and more levels cost more, and which of both pays depends on the table. So the log evidence
decides, among what a budget can pay for.

Where a small chart has all cuts and any depth, nothing is left to choose. Else the search climbs
ladders: one for each number of buckets, whose rungs are levels. All begin at the deepest level that
costs little for each. Then, in rounds, of the ladders whose next rung fits what is left of the
budget the better half by evidence goes one rung up (successive halving). A ladder is left that has
not gained by a rung, or has less evidence than another one with fewer levels. The chart of few
buckets is tried too, where it is small. At last the numbers of what was chosen are fitted.
Costs are estimates (`bdtppl.inference.exact_cost`), so that the choice does not depend on the
machine or its load.
"""

import hashlib
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from scipy.optimize import minimize_scalar

from bdtppl.inference.boxes.exact import BoxPosterior, why_no_boxes
from bdtppl.inference.empirical_bayes import empirical_bayes
from bdtppl.inference.exact_cost import (
    AUTO_BINS,
    DEFAULT_BUDGET,
    MOST_DEPTH_SUGGESTED,
    Budget,
    ExactMethod,
    box_cost,
    box_cost_of,
    estimate_subproblems,
    exact_of,
)
from bdtppl.inference.leaf_choice import REACH, units_of
from bdtppl.inference.pcfg.compiler import TooManySubproblems
from bdtppl.inference.pcfg.exact import ExactPosterior
from bdtppl.models.constraints import Constraints
from bdtppl.models.data.design import Design
from bdtppl.models.hard.tree_model import TreeModel
from bdtppl.models.leaf import Leaf
from bdtppl.models.prior_kinds import TreePrior, weighs_each_cut

__all__ = ["Setting", "choose_by_evidence", "fit_numbers", "seconds_of"]

_BUCKETS_TRIED = (3, 5, 10, 20, 50)  # few: among many, evidence would pick lucky cuts
_FIRST_RUNGS = 0.04  # of the budget, for each
_CLIMBED = 0.6  # of the budget, at most; the rest is for the numbers of what is chosen
_LARGEST_STEP = 0.6  # of that, for one rung, so that others have a chance
_SHARE_FOR_FITS = 0.15  # of what is left, for a fit of numbers on the way
_FIT_STEPS = 8
_FEWEST_STEPS = 3
_LAST_STEPS = 5  # of the last fit, at least
_STRENGTHS = (0.0, 6.0)  # of a penalty, beyond which trees hardly change
_FIT_COST = 1.2  # a step's value and gradient, in sums over trees
_SECONDS_A_PRODUCTION = 2e-6
_SMALL_CHART = 50_000  # subproblems


@dataclass(frozen=True)
class Setting:
    """One way to compute an exact posterior.

    Attributes
    ----------
    method
        "boxes" or "chart".
    bins
        Most buckets of a feature; None for all cuts.
    max_depth
        Most levels of trees; None for any.
    seconds
        Estimated CPU seconds of one sum over trees.
    log_evidence
        Log evidence; NaN where it was not computed.
    """

    method: str
    bins: int | None
    max_depth: int | None
    seconds: float
    log_evidence: float = np.nan

    def __str__(self) -> str:
        return f"bins={self.bins}, max_depth={self.max_depth}"


Numbers = Callable[[Callable[[], Sequence[float]]], np.ndarray]
"""Gives the numbers that a function computes, or those that it has computed before."""


def _remembering(resumed: Callable, keep: Callable) -> Numbers:
    """Make a function that gives numbers in the order in which they are asked for.

    What is asked for follows from the numbers before, so a search that goes on asks as the one that
    was interrupted has asked.
    """
    known: list[np.ndarray] = []
    asked = itertools.count()

    def read(arrays: Mapping[str, np.ndarray]) -> None:
        known.extend(arrays[str(number)].astype(float) for number in range(len(arrays)))

    def numbers(compute: Callable[[], Sequence[float]]) -> np.ndarray:
        number = next(asked)
        if number == len(known):
            known.append(np.array(compute(), float))
            keep(lambda: {str(number): array for number, array in enumerate(known)})
        return known[number]

    resumed(read)
    return numbers


class _BudgetedSearch:
    """Settings of one model and table."""

    def __init__(self, make_design, y, prior, leaf, constraints, fitted, budget, on_step, numbers):
        self.make_design: Callable[[int | None], Design] = make_design
        self.y, self.prior, self.leaf, self.constraints = y, prior, leaf, constraints
        self.fitted: Collection[str] = fitted
        self.budget, self.left, self.on_step = budget, _CLIMBED * budget.seconds, on_step
        self.numbers: Numbers = numbers
        self.tried: list[Setting] = []
        self.best: tuple[Setting, Any] | None = None
        self.too_costly: list[Setting] = []

    def ladder(self, design: Design, bins: int | None) -> list[Setting]:
        """List rungs that one alone could be paid for; the first beyond is noted."""
        limit = self.constraints.max_depth
        most = MOST_DEPTH_SUGGESTED if limit is None else min(limit, MOST_DEPTH_SUGGESTED)
        model = TreeModel(design, self.y, self.prior, self.leaf, self.constraints)
        rungs: list[Setting] = []
        for levels in range(min(1, most), 1 + most):  # without a split there is one rung, 0
            cost = box_cost_of(model, levels)
            rung = Setting("boxes", bins, levels, cost.seconds)
            if cost.seconds > self.budget.seconds or cost.num_bytes > self.budget.num_bytes:
                self.too_costly.append(rung)
                break
            rungs.append(rung)
        return rungs

    def boxes(self, design: Design, setting: Setting) -> ExactPosterior | BoxPosterior:
        limits = replace(self.constraints, max_depth=setting.max_depth)
        return exact_of(TreeModel(design, self.y, self.prior, self.leaf, limits), "boxes")

    def score(self, exact: Any, setting: Setting) -> Setting:
        """Compute the log evidence of a setting and keep the best one."""
        scored = replace(setting, log_evidence=self.log_evidence(exact))
        self.left -= setting.seconds
        self.tried.append(scored)
        if self.on_step is not None:
            self.on_step(len(self.tried))
        if self.best is None or not scored.log_evidence <= self.best[0].log_evidence:
            self.best = scored, exact
        return scored

    def log_evidence(self, exact: Any) -> float:
        return self.numbers(lambda: [exact.log_evidence]).item()

    def fit_numbers(self, names: Collection[str], setting: Setting) -> None:
        """Fit numbers by a setting, if a share of what is left pays for that."""
        steps = _affordable_steps(names, setting.seconds, _SHARE_FOR_FITS * self.left)
        if names and steps >= _FEWEST_STEPS:
            self.fit(names, self.boxes(self.make_design(setting.bins), setting), setting, steps)

    def fit(self, names: Collection[str], exact: Any, setting: Setting, steps: int) -> Any:
        better, spent = _fitted(exact, names, setting.seconds, steps, self.numbers)
        self.left -= spent
        self.prior, self.leaf = better.prior, better.leaf
        return better

    def finish(self, names: Collection[str]) -> None:
        """Fit the numbers of the best setting; where that costs too much, by fewer of its levels.

        More levels ask for sharper leaves, but most of that shows one level before.
        """
        if self.best is None or not names or not np.isfinite(self.best[0].log_evidence):
            return
        chosen, exact = self.best
        steps = _affordable_steps(names, chosen.seconds, self.left)
        if steps >= _LAST_STEPS or chosen.method == "chart":
            better = self.fit(names, exact, chosen, steps) if steps >= _FEWEST_STEPS else exact
        else:
            left = self.left - chosen.seconds
            design = self.make_design(chosen.bins)
            rungs = [rung for rung in self.ladder(design, chosen.bins) if rung.max_depth]
            paid = {r: _affordable_steps(names, r.seconds, left) for r in rungs}
            cheap = [rung for rung, number in paid.items() if number >= _LAST_STEPS]
            if not cheap:
                return
            self.fit(names, self.boxes(design, cheap[-1]), cheap[-1], paid[cheap[-1]])
            better = exact.with_model(self.prior, self.leaf)
        if (log_evidence := self.log_evidence(better)) > chosen.log_evidence:
            self.best = replace(chosen, log_evidence=log_evidence), better
            self.tried[self.tried.index(chosen)] = self.best[0]


def seconds_of(exact: ExactPosterior | BoxPosterior) -> float:
    """Estimate the CPU seconds of one sum over trees."""
    if isinstance(exact, ExactPosterior):
        return _SECONDS_A_PRODUCTION * exact.num_rules
    return box_cost(exact.space, exact.prior, exact.leaf, num_rows=0).seconds  # they are counted


def fit_numbers(
    exact: Any,
    names: Collection[str],
    seconds: float,
    resumed: Callable[[Callable], Any] = lambda read: None,
    keep: Callable[[Callable[[], Mapping[str, np.ndarray]]], None] = lambda arrays: None,
) -> Any:
    """Fit numbers of prior and leaf family by evidence, if some seconds pay for that.

    Parameters
    ----------
    exact
        The posterior to start from.
    names
        Names of the numbers.
    seconds
        CPU seconds that the fit may take.
    resumed, keep
        As `choose_by_evidence` has them.
    """
    of_sum = seconds_of(exact)
    steps = _affordable_steps(names, of_sum, seconds)
    if not names or steps < _FEWEST_STEPS or not np.isfinite(exact.log_evidence):
        return exact
    return _fitted(exact, names, of_sum, steps, _remembering(resumed, keep))[0]


def _is_strength(names: Collection[str]) -> bool:
    """Whether the penalty of a leaf alone is fitted: a single number needs no gradient."""
    return list(names) == ["log_phi"]


def _affordable_steps(names: Collection[str], seconds: float, left: float) -> int:
    """Count the steps of a fit that the seconds left pay for."""
    step = seconds * (1.0 if _is_strength(names) else 2 * _FIT_COST)  # a step may try two points
    return min(_FIT_STEPS, int(left / max(step, 1e-9)))


def _fitted(
    exact: Any, names: Collection[str], seconds: float, steps: int, numbers: Numbers
) -> tuple[Any, float]:
    """Fit numbers in some steps, and tell the estimated seconds of that."""
    parts = {
        name: part
        for part in ("prior", "leaf")
        for name in names
        if name in getattr(exact, part).parameter_support
    }

    def fit() -> list[float]:
        if _is_strength(names):
            better, spent = _with_best_strength(exact, steps), seconds * steps
        else:
            better = empirical_bayes(
                exact,
                parameters=names,
                max_steps=steps,
                tolerance=0.05,
                units=units_of(exact.leaf),
                reach=REACH,
            )
            spent = seconds * _FIT_COST * len(better.log_evidence)
        return [spent, *(x for name in names for x in np.ravel(_value(better, parts, name)))]

    spent, *fitted = numbers(fit).tolist()
    changes: dict[str, dict[str, Any]] = {"prior": {}, "leaf": {}}
    for name in names:
        old = _value(exact, parts, name)
        own, fitted = fitted[: np.size(old)], fitted[np.size(old) :]
        changes[parts[name]][name] = np.reshape(own, np.shape(old)) if np.ndim(old) else own[0]
    if all(
        np.array_equal(x, _value(exact, parts, n)) for p in changes.values() for n, x in p.items()
    ):
        return exact, spent  # with its sums
    changed = {part: replace(getattr(exact, part), **own) for part, own in changes.items() if own}
    return exact.with_model(**changed), spent


def _value(of: Any, parts: Mapping[str, str], name: str) -> Any:
    """Look up a number of the prior or the leaf family."""
    return getattr(getattr(of, parts[name]), name)


def _with_best_strength(exact: Any, steps: int) -> Any:
    """Choose the penalty of a leaf where the evidence is greatest."""

    def at(log_phi: float) -> Any:
        return exact.with_model(prior=replace(exact.prior, log_phi=float(log_phi)))

    options = {"maxiter": steps, "xatol": 0.05}
    found = minimize_scalar(
        lambda log_phi: -at(log_phi).log_evidence,
        bounds=_STRENGTHS,
        method="bounded",
        options=options,
    )
    return at(found.x) if -found.fun > exact.log_evidence else exact


def choose_by_evidence(
    make_design: Callable[[int | None], Design],
    y: np.ndarray,
    prior: TreePrior,
    leaf: Leaf,
    constraints: Constraints,
    *,
    bins: int | None | Literal["auto"] = "auto",
    method: ExactMethod = "auto",
    fitted: Collection[str] = (),
    budget: Budget = DEFAULT_BUDGET,
    on_step: Callable[[int], None] | None = None,
    resumed: Callable[[Callable], Any] = lambda read: None,
    keep: Callable[[Callable[[], Mapping[str, np.ndarray]]], None] = lambda arrays: None,
) -> tuple[Any, Setting, list[Setting]]:
    """Choose cut points, depth and numbers of the model by evidence, within a budget.

    Parameters
    ----------
    make_design
        Builds the design for a number of buckets.
    y
        Targets [n].
    prior, leaf, constraints
        The model.
    bins
        A number of buckets, None for all cuts, or "auto" for several of both.
    method
        "boxes", "chart" or "auto".
    fitted
        Names of numbers of prior and leaf family to fit by evidence.
    budget
        What all of it may cost.
    on_step
        Called with the number of settings tried.
    resumed, keep
        To go on with a search: the first is called with a function that takes up the arrays of a
        state, if there are any; the second, whenever a setting was tried or numbers were fitted,
        with a function that makes them. A search that goes on comes to the same choice.

    Returns
    -------
    exact
        `BoxPosterior` or `bdtppl.inference.pcfg.exact.ExactPosterior`.
    chosen
        Its setting.
    settings
        All settings tried, and the cheapest ones that a larger budget would try, whose log evidence
        is NaN; the best first.

    Raises
    ------
    TooManySubproblems
        If the budget pays for nothing.
    """
    numbers = _remembering(resumed, keep)
    search = _BudgetedSearch(
        make_design, y, prior, leaf, constraints, fitted, budget, on_step, numbers
    )
    reason = why_no_boxes(prior, constraints)
    if reason is not None and method == "boxes":
        raise ValueError(reason)
    small = min(_SMALL_CHART, budget.subproblems)
    # Buckets are there to save cost: where a small chart has all cuts and depths, it is the answer.
    if method != "boxes" and bins in ("auto", None):
        _try_chart(search, make_design(None), None, small)
    if search.best is None:
        designs = _different_designs(make_design, bins)
        if method != "chart" and reason is None:
            _climb_ladders(search, designs)
        if method != "boxes":
            limit = small if search.best is not None else budget.subproblems
            for number in AUTO_BINS if bins == "auto" else (bins,):
                design = designs[number] if number in designs else make_design(number)
                if _try_chart(search, design, number, limit):
                    break
    if search.best is None:
        raise TooManySubproblems(
            budget.subproblems, f" even with {AUTO_BINS[-1]} bins a feature", "fewer features"
        )
    search.left += (1 - _CLIMBED) * budget.seconds
    search.finish(fitted)
    chosen, exact = search.best
    tried = sorted(search.tried, key=lambda setting: -setting.log_evidence)
    return exact, chosen, [*tried, *sorted(search.too_costly, key=lambda s: s.seconds)]


def _different_designs(make_design, bins) -> dict[int | None, Design]:
    """Designs by number of buckets, the first of those that code the rows alike."""
    if bins != "auto":
        return {bins: make_design(bins)}
    designs, known = {}, set()
    for number in (*_BUCKETS_TRIED, None):
        design = make_design(number)
        if number is None and design.num_codes.max() > 2 * _BUCKETS_TRIED[-1]:
            continue
        key = hashlib.sha256(design.codes.tobytes()).digest()
        if key not in known:
            known.add(key)
            designs[number] = design
    return designs


def _climb_ladders(search: _BudgetedSearch, designs: dict[int | None, Design]) -> None:
    ladders = {number: search.ladder(design, number) for number, design in designs.items()}
    ladders = {number: rungs for number, rungs in ladders.items() if rungs}
    rung: dict[int | None, int] = {}
    value: dict[int | None, float] = {}

    def stand(number: int | None, place: int) -> None:
        setting = ladders[number][place]
        scored = search.score(search.boxes(designs[number], setting), setting)
        rung[number], value[number] = place, scored.log_evidence

    # The prior's strength matters little before the depth is chosen, but the leaves' numbers do.
    of_leaf = [name for name in search.fitted if name in search.leaf.parameter_support]
    most = _SHARE_FOR_FITS * search.budget.seconds / _FIT_STEPS / _FIT_COST
    cheap = [each for rungs in ladders.values() for each in rungs if each.seconds <= most]
    if cheap:
        search.fit_numbers(of_leaf, max(cheap, key=lambda setting: setting.seconds))
    most = _FIRST_RUNGS * search.budget.seconds
    num_cheap = [sum(each.seconds <= most for each in rungs) for rungs in ladders.values()]
    for number, rungs in ladders.items():
        if rungs[0].seconds <= most:
            stand(number, max(min(filter(None, num_cheap)) - 1, 0))
    if not rung and ladders:
        cheapest = min(ladders, key=lambda number: ladders[number][0].seconds)
        stand(cheapest, 0)
    if search.best is not None and np.isfinite(search.best[0].log_evidence):
        search.fit_numbers(of_leaf, search.best[0])
    gains = dict.fromkeys(rung, True)

    def next_rungs() -> dict[int | None, Setting]:
        return {
            number: ladders[number][place + 1]
            for number, place in rung.items()
            if gains[number]
            and place + 1 < len(ladders[number])
            # More levels with less evidence: other cut points serve better.
            and not any(rung[n] < place and value[n] > value[number] for n in rung)
        }

    def is_paid(rung: Setting) -> bool:
        return rung.seconds <= min(search.left, _LARGEST_STEP * _CLIMBED * search.budget.seconds)

    while paid := {number: each for number, each in next_rungs().items() if is_paid(each)}:
        better = sorted(paid, key=lambda number: -value[number])[: (len(paid) + 1) // 2]
        for number in sorted(better, key=lambda number: paid[number].seconds):
            if is_paid(paid[number]):
                before = value[number]
                stand(number, rung[number] + 1)
                gains[number] = not value[number] <= before
    search.too_costly += [*next_rungs().values()]


def _try_chart(search: _BudgetedSearch, design: Design, number: int | None, limit: int) -> bool:
    """Score the chart of a design, if it has so few subproblems; says whether it has."""
    limits, rules = search.constraints, search.prior.rules
    each_cut = weighs_each_cut(search.prior)
    size = estimate_subproblems(
        design, rules=rules, constraints=limits, each_cut=each_cut, limit=limit
    )
    if size > limit:
        return False
    model = TreeModel(design, search.y, search.prior, search.leaf, limits)
    try:
        exact = exact_of(model, "chart", limit)
    except TooManySubproblems:
        return False
    seconds = _SECONDS_A_PRODUCTION * exact.num_rules
    search.score(exact, Setting("chart", number, limits.max_depth, seconds))
    return True
