"""What a reader must beware of, in plain sentences, from the diagnostics of a fit.

A diagnostic that could not be computed is no good news: it is said that it is missing, and why.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import stats

from bdtppl.estimators.dcc import DCCTreeClassifier, DCCTreeRegressor
from bdtppl.estimators.gflownet import LARGEST_GAP
from bdtppl.estimators.weighted import WeightedTrees
from bdtppl.inference.evidence.estimates import GREATEST_ERROR, LARGEST_PARETO_K
from bdtppl.models.wording import counted
from bdtppl.plotting.forecasts import Forecasts
from bdtppl.report.scores import coverage
from bdtppl.summary import quantity_in_words, why_no_r_hat

__all__ = ["cautions"]

_LARGEST_R_HAT = 1.05
_FEWEST_DRAWS = 100  # effective ones, of chains or of weights
_LARGEST_ERROR = 0.5  # nats, of the log evidence
_PROBABLE = 0.01  # topologies of less are nothing to worry about
_FEWEST_BINS = 5
_LEAST_EFFICIENCY = 0.05  # of leaving a row out by weights
_LEVEL = 0.9
_FALSE_ALARM = 0.001
_PARTS = 10  # of the unit interval, in which laws are tested


def cautions(model: Any, forecasts: Forecasts | None = None) -> list[str]:
    """List what the reader of a fit must beware of; an empty list is good news.

    Parameters
    ----------
    model
        A fitted estimator.
    forecasts
        Predictions beside what happened.

    Examples
    --------
    >>> from bdtppl import ExactTreeClassifier
    >>> cautions(ExactTreeClassifier().fit([[0.0], [1.0], [2.0]], [0, 0, 1]))
    []
    """
    if isinstance(model, DCCTreeClassifier | DCCTreeRegressor):
        found = [*_of_topologies(model), *_of_evidence(model)]
    else:
        found = [*_of_chains(model), *_of_room(model), *_of_weights(model), *_of_evidence(model)]
    return [*found, *_of_bins(model), *_of_forecasts(forecasts)]


def _of_chains(model: Any) -> Iterator[str]:
    ancestors = getattr(model, "ancestors_", ())
    if len(ancestors) > 1 and not np.ptp(ancestors):
        yield (
            "In burn-in all chains went where one of them was, whose posterior mass was by far the "
            "largest: that they agree does not show that there are no other modes."
        )
    found: dict[str, list] = {}
    for name, each in getattr(model, "diagnostics_", {}).items():
        is_prediction = name.startswith("prediction_")  # of which there are several
        quantity = "predictions of rows" if is_prediction else quantity_in_words(name)
        found.setdefault(quantity, []).append((each["r_hat"], each["ess"]))
    unknown = [quantity for quantity, each in found.items() if np.isnan(each).any()]
    if unknown:
        why = why_no_r_hat(*model.posterior_.num_leaves.shape)
        yield _unjudged(why or f"of the {' and the '.join(unknown)} R-hat has no finite value")
    for quantity, each in found.items():
        r_hat = max((r for r, _ in each if not np.isnan(r)), default=1.0)
        size = min((size for _, size in each if not np.isnan(size)), default=np.inf)
        if r_hat > _LARGEST_R_HAT:
            yield (
                f"The chains disagree about the {quantity}: R-hat is {r_hat:.2f}, and more than "
                f"{_LARGEST_R_HAT} means that they have not run long enough. Do not rely on "
                f"probabilities of trees."
            )
        elif size < _FEWEST_DRAWS:
            yield (
                f"The draws of the {quantity} are worth only {size:.0f} independent ones "
                f"(effective sample size): run the chains longer."
            )


def _unjudged(why: str) -> str:
    return (
        f"Whether chains have run long enough cannot be judged: {why}. R-hat compares at least two "
        f"chains of at least 4 draws each; until there are more chains or draws, do not rely on "
        f"probabilities of trees."
    )


def _of_room(model: Any) -> Iterator[str]:
    overflows = int(np.sum(getattr(model, "num_overflows_", 0)))
    if overflows:
        yield (
            f"Trees outgrew the room they were given {counted(overflows, 'time', 'times')} "
            f"(capacity {model.capacity}): larger trees were not considered."
        )


def _of_weights(model: Any) -> Iterator[str]:
    if not isinstance(model, WeightedTrees):
        return
    size = model.summary()["effective_size"]
    if size < _FEWEST_DRAWS:
        yield (
            f"The weighted trees are worth only {size:.0f} equally weighted ones: probabilities "
            f"and predictions are rough."
        )
    shape = getattr(model, "pareto_k_", -np.inf)
    if shape > LARGEST_PARETO_K:
        yield (
            f"Few trees carry most of the weight (Pareto k {shape:.2f}, more than "
            f"{LARGEST_PARETO_K}): how far the estimates are off cannot be told."
        )
    learned = getattr(model, "learned_log_partition_", model.log_partition_)
    if abs(learned - model.log_partition_) > LARGEST_GAP:
        yield (
            f"The log of the sum over trees is {learned:.2f} as learned and "
            f"{model.log_partition_:.2f} by the weights of the trees drawn. The policy is not the "
            f"posterior yet, and what it never draws does not show in the weights: train longer."
        )


def _of_evidence(model: Any) -> Iterator[str]:
    what, error = "log evidence", getattr(model, "log_evidence_se_", None)
    if error is None:  # as under a prior that is not normalised
        what, error = "log of the sum over trees", getattr(model, "log_partition_se_", 0.0)
    if np.isnan(error):
        why = {
            "runs": "it comes from the spread of several runs, and there was one (raise runs)",
            "chains": "it needs at least 4 draws a chain (raise draws)",
        }.get(model.draws_are, "there are too few draws (raise draws)")
        yield (
            f"How far the {what} and the probabilities of trees are off cannot be judged, for the "
            f"standard error is not known: {why}."
        )
    elif error > _LARGEST_ERROR:
        yield (
            f"The {what} is known to {error:.2f} nats only (standard error): differences of that "
            f"size from other models mean nothing."
        )


def _of_topologies(model: Any) -> Iterator[str]:
    posterior, is_unjudged = model.posterior_, False
    errors = posterior.log_evidence_ses
    of_topologies = zip(posterior.topologies, posterior.probability, errors, strict=True)
    for shape, share, error in of_topologies:
        found = model.diagnostics_.get(shape.code)
        if found is None or share < _PROBABLE:
            continue
        name = f"In the topology {shape.code}, of probability {share:.2f},"
        if found["pareto_k"] is not None and found["pareto_k"] > LARGEST_PARETO_K:
            yield (
                f"{name} few samples carry most of the weight (Pareto k {found['pareto_k']:.2f}, "
                f"more than {LARGEST_PARETO_K}): its evidence is not to be relied on."
            )
        if error > GREATEST_ERROR:
            yield (
                f"{name} log evidence is known to {error:.2f} nats only (standard error): so "
                f"uncertain is its probability."
            )
        # Of a topology that was summed over or weighed without chains nothing is missing.
        is_unjudged |= found["r_hat"] is None and found["divergences"] is not None
        if found["r_hat"] is not None and found["r_hat"] > _LARGEST_R_HAT:
            yield (
                f"{name} chains disagree (R-hat {found['r_hat']:.2f}): they may not have found all "
                f"of its posterior."
            )
        if found["divergences"]:
            yield (
                f"{name} {counted(found['divergences'], 'draw', 'draws')} diverged: the sampler "
                f"may have missed narrow parts of the posterior."
            )
    if is_unjudged:
        yield _unjudged(why_no_r_hat(model.chains, model.draws) or "R-hat has no finite value")


def _of_bins(model: Any) -> Iterator[str]:
    bins = getattr(model, "bins_", None)
    if model.get_params().get("bins") == "auto" and bins is not None and bins < _FEWEST_BINS:
        yield (
            f"Columns were cut into at most {bins} bins so that all trees could be summed over: "
            f"finer cuts were not considered."
        )


def _of_forecasts(forecasts: Forecasts | None) -> Iterator[str]:
    if forecasts is None:
        return
    if forecasts.efficiency is not None:
        rough = int((forecasts.efficiency < _LEAST_EFFICIENCY).sum())
        if rough:
            yield (
                f"For {rough:,} of {len(forecasts.y):,} rows leaving the row out changes the "
                f"posterior so much that its prediction rests on few draws: scores and "
                f"calibration are rough."
            )
    if forecasts.cdf is not None:
        yield from _of_laws(forecasts.cdf)


def _of_laws(cdf: np.ndarray) -> Iterator[str]:
    """Test whether targets lie where their predictive laws say."""
    inside = coverage(cdf, _LEVEL)
    if stats.binomtest(int(inside.sum()), len(inside), _LEVEL).pvalue < _FALSE_ALARM:
        way = "wider than they need be" if inside.mean() > _LEVEL else "too narrow"
        yield (
            f"{_LEVEL:.0%} intervals hold {inside.mean():.1%} of the targets, which is not "
            f"chance: the predictive intervals are {way}."
        )
        return
    counts, _ = np.histogram(cdf, _PARTS, (0, 1))
    if len(cdf) >= 5 * _PARTS and stats.chisquare(counts).pvalue < _FALSE_ALARM:
        yield (
            "Targets do not lie where they were predicted as often as they should (see the "
            "calibration): the shape of the predictive distributions is not that of the data."
        )
