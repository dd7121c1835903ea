"""Choose the method, cut points, depth and hyperparameters of an exact posterior.

Boxes (`bdtppl.inference.boxes`) sum over trees of few levels at any number of rows; a chart
(`bdtppl.inference.pcfg`) sums over trees of any depth, if there are few cut points and rows. More
buckets and more levels cost more, and their benefit depends on the table. The log evidence decides
among settings within a budget.

There is nothing to choose if a small chart has all cuts and any depth. Otherwise the search climbs
ladders: one for each number of buckets, whose rungs are levels. All start at the deepest cheap
level. In each round, the better half by evidence of the ladders with an affordable next rung climbs
one rung (successive halving). A ladder is abandoned if a rung did not gain, or if another ladder
has more evidence with fewer levels. The chart of few buckets is tried, too, if it is small.
Finally, the hyperparameters of the chosen model are optimised. Costs are estimates
(`bdtppl.inference.exact_cost`), so that the choice does not depend on the machine or its load. A
clock, which excludes compilation, ends the choice only if the work takes so much longer than
estimated that it would exceed the budget.
"""

import hashlib
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions.constraints import real
from scipy.optimize import minimize_scalar
from scipy.sparse import issparse

from bdtppl.inference.boxes.exact import BoxPosterior, why_no_boxes
from bdtppl.inference.compiling import WorkClock
from bdtppl.inference.empirical_bayes import EmpiricalBayes, empirical_bayes
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
from bdtppl.inference.pcfg.compiler import TooManySubproblems
from bdtppl.inference.pcfg.exact import ExactPosterior
from bdtppl.models.arrays.precision import in_float64
from bdtppl.models.constraints import FUNCTIONS
from bdtppl.models.data.design import Design
from bdtppl.models.hard.tree_model import TreeModel
from bdtppl.models.leaf import Leaf
from bdtppl.models.priors import DepthDecay

_BUCKETS_TRIED = (3, 5, 10, 20, 50)  # few: among many, evidence would pick lucky cuts
_FIRST_RUNGS = 0.04  # share of the budget, for each
_CLIMBED = 0.6  # largest share of the budget; the rest is for the final hyperparameters
_LARGEST_STEP = 0.6  # share of that, for one rung, so that others have a chance
_SHARE_FOR_FITS = 0.15  # share of the rest, for an intermediate fit of hyperparameters
_TIMED = 0.03  # share of the budget, for a setting that measures the machine's speed
_FITS_BY_CLOCK = 0.5  # the same by the clock, which ends only those that take far longer
_FIT_STEPS = 8
_FEWEST_STEPS = 3
_LAST_STEPS = 5  # least steps of the last fit
_STRENGTHS = (0.0, 6.0)  # range of a penalty, beyond which trees hardly change
_FIT_COST = 1.2  # a step's value and gradient, in sums over trees
_SECONDS_A_PRODUCTION = 2e-6
_SMALL_CHART = 50_000  # subproblems
_FIT_REACH = 9.0  # range of fitted numbers: a factor of 8,000, or as many standard deviations
_LEAF_BUCKETS, _LEAF_LEVELS = 10, 3  # of the trees that leaf hyperparameters are fitted with
_LEAF_FEATURES = 200  # more of them cost too much, like many rows of a sparse table
_LEAF_BUDGET = Budget(seconds=0.1, num_bytes=2e8)  # for one sum over trees
_LEAF_ROUNDS, _LEAF_STEPS = 3, 12  # at most
_LEAF_GAIN = 0.1  # nats that are worth another round
_LEAST_LEAF = 1e-4  # expected number of a node, below which rounds omit it


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
        Log evidence; NaN if it was not computed.
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


def _remembering(keep: Any) -> Numbers:
    """Make a function that returns numbers in the order in which they are requested.

    Each request depends on earlier results alone, so a resumed search repeats the requests of the
    one that was interrupted.
    """
    known: list[np.ndarray] = []
    asked = itertools.count()

    def read(arrays: Mapping[str, np.ndarray]) -> None:
        known.extend(arrays[str(number)].astype(float) for number in range(len(arrays)))

    def numbers(compute: Callable[[], Sequence[float]]) -> np.ndarray:
        number = next(asked)
        if number == len(known):
            known.append(np.array(compute(), float))
            if keep is not None:
                keep.offer(lambda: {str(number): array for number, array in enumerate(known)})
        return known[number]

    if keep is not None:
        keep.resumed(read)
    return numbers


@dataclass
class _BudgetedSearch:
    """Settings of one model and table.

    Attributes
    ----------
    make_model
        Builds the model for a number of buckets.
    fitted
        Names of hyperparameters of prior and leaf family to fit.
    parts
        The prior and the leaf family, once their hyperparameters are fitted.
    left
        Estimated seconds left in the budget.
    spent
        Seconds of work at the last reading of the clock.
    ratios
        Seconds of work per estimated second, at least 1, for settings that took long.
    too_costly
        Settings that a larger budget would try.
    """

    make_model: Callable[[int | None], TreeModel]
    fitted: Collection[str]
    budget: Budget
    on_step: Callable[[int], None] | None
    numbers: Numbers
    left: float
    clock: WorkClock = field(default_factory=lambda: WorkClock())
    earlier: float = 0.0  # seconds of the search that this one resumes
    spent: float = 0.0
    ratios: list[float] = field(default_factory=list)
    parts: dict[str, Any] = field(default_factory=dict)
    tried: list[Setting] = field(default_factory=list)
    best: tuple[Setting, Any] | None = None
    too_costly: list[Setting] = field(default_factory=list)

    def model(self, bins: int | None) -> TreeModel:
        return replace(self.make_model(bins), **self.parts)

    def ladder(self, bins: int | None) -> list[Setting]:
        """List rungs that are affordable on their own; the first one beyond is recorded."""
        model = self.model(bins)
        limit = model.constraints.max_depth
        most = MOST_DEPTH_SUGGESTED if limit is None else min(limit, MOST_DEPTH_SUGGESTED)
        rungs: list[Setting] = []
        for levels in range(min(1, most), 1 + most):  # without a split there is one rung, 0
            cost = box_cost_of(model, levels)
            rung = Setting("boxes", bins, levels, cost.seconds)
            if not self.budget.pays_for(cost):
                self.too_costly.append(rung)
                break
            rungs.append(rung)
        return rungs

    def look_at_clock(self) -> float:
        """Record the seconds of work so far; return those since the last reading.

        A resumed search starts with the seconds spent before, so it has no more to spend.
        """
        before, self.spent = self.spent, self.numbers(lambda: [self.now]).item()
        self.earlier = self.spent - self.clock.seconds
        return self.spent - before

    @property
    def now(self) -> float:
        """Return the seconds of work so far."""
        return self.earlier + self.clock.seconds

    @property
    def slowness(self) -> float:
        """Least seconds of work per estimated second, because first settings may compile."""
        return min(self.ratios, default=1.0)

    @property
    def until(self) -> float:
        """Seconds of work at which the clock ends: the budget plus a second or a tenth."""
        return self.budget.seconds + max(1.0, 0.1 * self.budget.seconds)

    def is_in_time(self, setting: Setting) -> bool:
        """Return whether the clock, too, leaves time for a setting."""
        return self.slowness * setting.seconds <= self.until - self.spent

    def steps(self, names: Collection[str], setting: Setting, left: float) -> int:
        """Count the affordable steps of a fit; 0 if the clock leaves no time."""
        by_clock = (self.until - self.spent) / self.slowness
        in_time = _affordable_steps(names, setting.seconds, by_clock)
        return _affordable_steps(names, setting.seconds, left) if in_time >= _FEWEST_STEPS else 0

    def boxes(self, setting: Setting) -> ExactPosterior | BoxPosterior:
        model = self.model(setting.bins)
        limits = replace(model.constraints, max_depth=setting.max_depth)
        return exact_of(replace(model, constraints=limits), "boxes")

    def score(self, exact: Any, setting: Setting) -> float:
        """Compute the log evidence of a setting and keep the best one."""
        scored = replace(setting, log_evidence=self.log_evidence(exact))
        self.left -= setting.seconds
        seconds = self.look_at_clock()
        if setting.seconds > _TIMED * self.budget.seconds:
            self.ratios.append(max(1.0, seconds / setting.seconds))
        self.tried.append(scored)
        if self.on_step is not None:
            self.on_step(len(self.tried))
        if self.best is None or not scored.log_evidence <= self.best[0].log_evidence:
            self.best = scored, exact
        return scored.log_evidence

    def log_evidence(self, exact: Any) -> float:
        return self.numbers(lambda: [exact.log_evidence]).item()

    def fit_numbers(self, names: Collection[str], setting: Setting) -> None:
        """Fit hyperparameters with a setting, if a share of the remaining budget suffices."""
        steps = self.steps(names, setting, _SHARE_FOR_FITS * self.left)
        if names and steps >= _FEWEST_STEPS:
            self.fit(names, self.boxes(setting), setting, steps, _FITS_BY_CLOCK)

    def fit(
        self,
        names: Collection[str],
        exact: Any,
        setting: Setting,
        steps: int,
        share: float = 1.0,
    ) -> Any:
        """Fit hyperparameters in some steps, within a share of the clock's remaining seconds."""
        end = self.spent + share * (self.until - self.spent)

        def is_over() -> bool:
            return self.now > end

        better, spent = _fitted(exact, names, setting.seconds, steps, self.numbers, is_over)
        self.left -= spent
        self.look_at_clock()
        self.parts = {"prior": better.prior, "leaf": better.leaf}
        return better

    def finish(self) -> None:
        """Fit the hyperparameters of the best setting; if that costs too much, with fewer levels.

        More levels need sharper leaves, but one level less shows most of that.
        """
        names = self.fitted
        if self.best is None or not names or not np.isfinite(self.best[0].log_evidence):
            return
        chosen, exact = self.best
        steps = self.steps(names, chosen, self.left)
        if steps >= _LAST_STEPS or chosen.method == "chart":
            better = self.fit(names, exact, chosen, steps) if steps >= _FEWEST_STEPS else exact
        else:
            left = self.left - chosen.seconds
            rungs = [rung for rung in self.ladder(chosen.bins) if rung.max_depth]
            paid = {rung: self.steps(names, rung, left) for rung in rungs}
            cheap = [rung for rung, number in paid.items() if number >= _LAST_STEPS]
            if not cheap:
                return
            self.fit(names, self.boxes(cheap[-1]), cheap[-1], paid[cheap[-1]])
            better = exact.with_model(**self.parts)
        if (log_evidence := self.log_evidence(better)) > chosen.log_evidence:
            self.best = replace(chosen, log_evidence=log_evidence), better
            self.tried[self.tried.index(chosen)] = self.best[0]

    def try_chart(self, bins: int | None, limit: int) -> bool:
        """Score the chart of a design, if it has few enough subproblems; return whether it has."""
        model = self.model(bins)
        if estimate_subproblems(model, limit) > limit:
            return False
        try:
            exact = exact_of(model, "chart", limit)
        except TooManySubproblems:
            return False
        self.score(exact, Setting("chart", bins, model.constraints.max_depth, _seconds_of(exact)))
        return True


def _seconds_of(exact: ExactPosterior | BoxPosterior) -> float:
    """Estimate the CPU seconds of one sum over trees."""
    if isinstance(exact, ExactPosterior):
        return _SECONDS_A_PRODUCTION * exact.num_rules
    return box_cost(exact.space, exact.prior, exact.leaf, num_rows=0).seconds  # they are counted


def fit_numbers(exact: Any, names: Collection[str], seconds: float, keep: Any = None) -> Any:
    """Fit hyperparameters of prior and leaf family by evidence, if the seconds suffice.

    Parameters
    ----------
    exact
        The posterior to start from.
    names
        Names of the hyperparameters.
    seconds
        CPU seconds that the fit may take.
    keep
        As in `choose_by_evidence`.
    """
    of_sum = _seconds_of(exact)
    steps = _affordable_steps(names, of_sum, seconds)
    if not names or steps < _FEWEST_STEPS or not np.isfinite(exact.log_evidence):
        return exact
    clock, numbers = WorkClock(), _remembering(keep)
    return _fitted(exact, names, of_sum, steps, numbers, lambda: clock.seconds > seconds)[0]


def _is_strength(names: Collection[str]) -> bool:
    """Return whether only a leaf penalty is fitted: a single number needs no gradient."""
    return list(names) == ["log_phi"]


def _affordable_steps(names: Collection[str], seconds: float, left: float) -> int:
    """Count the steps of a fit that the remaining seconds allow."""
    step = seconds * (1.0 if _is_strength(names) else 2 * _FIT_COST)  # a step may try two points
    return min(_FIT_STEPS, int(left / max(step, 1e-9)))


def _fitted(
    exact: Any,
    names: Collection[str],
    seconds: float,
    steps: int,
    numbers: Numbers,
    is_over: Callable[[], bool],
) -> tuple[Any, float]:
    """Fit hyperparameters in some steps, and return the estimated seconds of that."""
    places = [
        (part, name)
        for name in names
        for part in ("prior", "leaf")
        if name in getattr(exact, part).parameter_support
    ]

    def values(of: Any) -> list[np.ndarray]:
        return [np.asarray(getattr(getattr(of, part), name), float) for part, name in places]

    def fit() -> list[float]:
        if _is_strength(names):
            better, spent = _with_best_strength(exact, steps), seconds * steps
        else:
            better = _fitted_freely(exact, names, steps, is_over)
            spent = seconds * _FIT_COST * len(better.log_evidence)
        return [spent, *np.concatenate([each.ravel() for each in values(better)])]

    old = values(exact)
    ends = np.cumsum([1, *(each.size for each in old)])
    spent, *new = np.split(numbers(fit), ends[:-1])
    if all(np.array_equal(own, each.ravel()) for own, each in zip(new, old, strict=True)):
        return exact, spent.item()  # with its sums
    changed = {"prior": exact.prior, "leaf": exact.leaf}
    for (part, name), own, each in zip(places, new, old, strict=True):
        value = own.reshape(each.shape) if each.ndim else own.item()
        changed[part] = replace(changed[part], **{name: value})
    return exact.with_model(**changed), spent.item()


def _fitted_freely(
    exact: Any, names: Collection[str], steps: int, is_over: Any = lambda: False, reach=_FIT_REACH
) -> EmpiricalBayes:
    """Maximise the evidence within a range around the initial hyperparameters."""
    units, limits = _units_of(exact.leaf), {"max_steps": steps, "tolerance": 0.05}
    limits |= {"reach": reach, "is_over": is_over}
    return empirical_bayes(exact, parameters=names, units=units, **limits)


@jax.jit
def _prior_variance(leaf: Any) -> jax.Array:
    none = jnp.zeros_like(leaf.statistics(jnp.zeros(1), jnp.ones(1)))
    return leaf.predictive(none).variance


@in_float64
def _units_of(leaf: Leaf) -> dict[str, float]:
    """Return units of a leaf family's real hyperparameters, by its expected spread of a target.

    A fit that is stopped early then does not depend on the scale of the targets.
    """
    spread = float(np.sqrt(_prior_variance(leaf)[0]))
    unit = spread if 0 < spread < np.inf else 1.0
    return {name: unit for name, each in leaf.parameter_support.items() if each is real}


def _with_best_strength(exact: Any, steps: int) -> Any:
    """Choose the leaf penalty with the greatest evidence."""

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
    make_model: Callable[[int | None], TreeModel],
    *,
    method: ExactMethod = "auto",
    fitted: Collection[str] = (),
    budget: Budget = DEFAULT_BUDGET,
    on_step: Callable[[int], None] | None = None,
    keep: Any = None,
) -> tuple[Any, Setting, list[Setting]]:
    """Choose cut points, depth and hyperparameters by evidence, within a budget.

    Parameters
    ----------
    make_model
        Builds the model for a number of buckets; None for all cuts.
    method
        "boxes", "chart" or "auto"; "chart" if boxes cannot sum over the trees.
    fitted
        Names of hyperparameters of prior and leaf family to fit by evidence.
    budget
        Limits on the whole choice.
    on_step
        Called with the number of settings tried.
    keep
        Store of the numbers so far, from which a search resumes if there are any (see
        `bdtppl.inference.run.run`). A resumed search makes the same choice.

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
        If the budget suffices for nothing.
    """
    climbed = _CLIMBED * budget.seconds
    search = _BudgetedSearch(
        cache(make_model), fitted, budget, on_step, _remembering(keep), climbed
    )
    small = min(_SMALL_CHART, budget.subproblems)
    # Buckets only save cost, so a small chart with all cuts and depths is the answer.
    if method == "boxes" or not search.try_chart(None, small):
        if method != "chart":
            _climb_ladders(search)
        if method != "boxes":
            limit = small if search.best is not None else budget.subproblems
            left = AUTO_BINS if search.best is None or search.spent < search.until else ()
            any(search.try_chart(bins, limit) for bins in left)  # the first that fits
    if search.best is None:
        raise TooManySubproblems(
            budget.subproblems, f" even with {AUTO_BINS[-1]} bins a feature", "fewer features"
        )
    search.left += (1 - _CLIMBED) * budget.seconds
    search.finish()
    chosen, exact = search.best
    tried = sorted(search.tried, key=lambda setting: -setting.log_evidence)
    beyond = dict.fromkeys(search.too_costly)  # `finish` climbs a ladder once more
    return exact, chosen, [*tried, *sorted(beyond, key=lambda s: s.seconds)]


def _different_bins(make_model: Callable[[int | None], TreeModel]) -> list[int | None]:
    """List numbers of buckets, the first of those that code the rows alike."""
    found: dict[bytes, int | None] = {}
    for bins in (*_BUCKETS_TRIED, None):
        design = make_model(bins).design
        if bins is not None or design.num_codes.max() <= 2 * _BUCKETS_TRIED[-1]:
            found.setdefault(hashlib.sha256(design.codes.tobytes()).digest(), bins)
    return [*found.values()]


def _climb_ladders(search: _BudgetedSearch) -> None:
    ladders = {bins: search.ladder(bins) for bins in _different_bins(search.make_model)}
    ladders = {number: rungs for number, rungs in ladders.items() if rungs}
    rung: dict[int | None, int] = {}
    value: dict[int | None, float] = {}

    def stand(number: int | None, place: int) -> None:
        setting = ladders[number][place]
        rung[number], value[number] = place, search.score(search.boxes(setting), setting)

    # The prior's strength matters little before the depth is chosen, but the leaves'
    # hyperparameters do.
    of_leaf = [n for n in search.fitted if n in search.make_model(None).leaf.parameter_support]
    most = _SHARE_FOR_FITS * search.budget.seconds / _FIT_STEPS / _FIT_COST
    cheap = [each for rungs in ladders.values() for each in rungs if each.seconds <= most]
    if cheap:
        search.fit_numbers(of_leaf, max(cheap, key=lambda setting: setting.seconds))
    most = _FIRST_RUNGS * search.budget.seconds
    num_cheap = [sum(each.seconds <= most for each in rungs) for rungs in ladders.values()]
    first = max(min(filter(None, num_cheap), default=1) - 1, 0)
    for number, rungs in ladders.items():
        if rungs[0].seconds <= most and (not rung or search.is_in_time(rungs[first])):
            stand(number, first)
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
            # More levels have less evidence: other cut points are better.
            and not any(rung[n] < place and value[n] > value[number] for n in rung)
        }

    def is_paid(rung: Setting) -> bool:
        most = min(search.left, _LARGEST_STEP * _CLIMBED * search.budget.seconds)
        return rung.seconds <= most and search.is_in_time(rung)

    while paid := {number: each for number, each in next_rungs().items() if is_paid(each)}:
        better = sorted(paid, key=lambda number: -value[number])[: (len(paid) + 1) // 2]
        for number in sorted(better, key=lambda number: paid[number].seconds):
            if is_paid(paid[number]):
                before = value[number]
                stand(number, rung[number] + 1)
                gains[number] = not value[number] <= before
    search.too_costly += [*next_rungs().values()]


def leaf_by_evidence(model: TreeModel) -> Leaf:
    """Fit the hyperparameters of a leaf family, those in its ``parameter_support``.

    This is for inferences that do not compute the evidence. Boxes sum over trees of few levels and
    few buckets, which costs about a second. `DepthDecay` replaces a prior that boxes do not
    support, and unsupported constraints are omitted, because the leaves' hyperparameters hardly
    depend on them.

    Parameters
    ----------
    model
        The model, with the initial hyperparameters.

    Returns
    -------
    Leaf
        Hyperparameters within a factor of 8,000 of the given ones, of greater evidence than those
        near them; the given ones if a sum over trees of one level would already take long.
    """
    design: Any = model.design
    prior: Any = model.prior
    if model.constraints.max_depth == 0 or design.num_features > _LEAF_FEATURES:
        return model.leaf
    beyond = dict.fromkeys(FUNCTIONS) | dict.fromkeys(("keep_together", "monotone", "refused"), ())
    limits = replace(model.constraints, **beyond)
    if why_no_boxes(prior, limits):
        prior = DepthDecay(0.95, 1.0)
    matrix = design.matrix.toarray() if issparse(design.matrix) else design.matrix
    few = Design.from_matrix(matrix, weights=design.weights, bins=_LEAF_BUCKETS, names=design.names)
    coarse = TreeModel(few, model.y, prior, model.leaf, limits)
    most = _LEAF_LEVELS if limits.max_depth is None else min(_LEAF_LEVELS, limits.max_depth)
    levels = _LEAF_BUDGET.levels_of(coarse, most)
    if not levels:
        return model.leaf
    exact = BoxPosterior(few, prior, model.leaf, model.y, max_depth=levels, constraints=limits)
    if not np.isfinite(exact.log_evidence):
        return model.leaf
    names, reach = [*model.leaf.parameter_support], _FIT_REACH / _LEAF_ROUNDS
    for _ in range(_LEAF_ROUNDS):  # of EM, which needs a fifth of the sums of a direct search
        leaves = exact.weighted_leaves(_LEAST_LEAF)
        better = exact.with_model(leaf=_fitted_freely(leaves, names, _LEAF_STEPS, reach=reach).leaf)
        if not better.log_evidence > exact.log_evidence + _LEAF_GAIN:
            break
        exact = better
    return exact.leaf
