"""The results that a fitted estimator offers to reports, plots, comparisons, ArviZ and files.

An inference overrides what it has. Its cautions are sentences for the reader of a report, written
where the inference is defined; the functions below make those that several inferences share.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from bdtppl.models.wording import counted
from bdtppl.summary import quantity_in_words, why_no_r_hat

LARGEST_R_HAT = 1.05
FEWEST_DRAWS = 100  # effective ones, of chains or of weights
_LARGEST_ERROR = 0.5  # nats, of the log evidence


class Results:
    """Results of a fit, and what they are.

    Attributes
    ----------
    task
        "classification" or "regression".
    trees_are
        "hard", "soft", or "sums" of many hard trees.
    draws_are
        Origin of the draws of ``posterior_``: "exact" for independent ones of the exact posterior,
        whose shares are known without them; "chains"; independent "runs" of weighted draws;
        "independent" ones, weighted or not; or trees that were "found" by a search.
    has_importance_weights
        Whether the draws' weights are importance weights.
    unknown
        Quantities of `bdtppl.compare` that the inference cannot know, and why.
    counts_rows
        Whether the statistics of hard trees are those of the training rows alone.
    exact_
        The exact posterior, or None.
    trajectory_
        float64 [chain, record]; log probabilities along chains, or None.
    diagnostics_
        Diagnostics of draws by quantity or topology; empty where there are none.
    log_partition_
        Log of the sum over trees of prior weight times likelihood, or None.
    log_evidence_bounds_
        Certified bounds of the log evidence, or None where it is known or estimated without.
    map_gap_
        Nats by which a tree may be better than the best one found, or None where no bound is known.
    total_variation_
        Bound of the total variation between the law of the draws and the posterior, or None.
    partition_log_probabilities
        Method that weighs the partitions of a node, or None.
    chosen
        Parameters that the fit has chosen by itself, with which it is repeated on other rows.
    """

    task: ClassVar[str]
    trees_are: ClassVar[Literal["hard", "soft", "sums"]] = "hard"
    draws_are: Any = "independent"
    unknown: ClassVar[Mapping[str, str]] = MappingProxyType({})
    classes_: np.ndarray
    if TYPE_CHECKING:
        design_: Any  # of hard trees and sums of them; soft trees have none
    counts_rows: bool = True
    exact_: Any = None
    trajectory_: Any = None
    diagnostics_: Mapping[str, Any] = MappingProxyType({})
    log_partition_: Any = None
    log_evidence_bounds_: Any = None
    map_gap_: Any = None
    total_variation_: Any = None
    partition_log_probabilities: Any = None
    has_importance_weights: Any = False
    chosen: Mapping[str, Any] = MappingProxyType({})

    @property
    def judged(self) -> Mapping[str, Any]:
        """The part of ``diagnostics_`` by which the fit is judged."""
        return self.diagnostics_

    @property
    def certificates(self) -> dict[str, Any]:
        """Bounds that are known: ``log_evidence_bounds_`` and the next attributes, by name."""
        names = "log_evidence_bounds", "map_gap", "total_variation"
        known = {name: getattr(self, f"{name}_") for name in names}
        return {name: value for name, value in known.items() if value is not None}

    @property
    def is_classifier(self) -> bool:
        """Whether targets are classes."""
        return self.task == "classification"

    @property
    def class_labels(self) -> np.ndarray | None:
        """Labels of a classifier, sorted; None for regression."""
        return self.classes_ if self.is_classifier else None

    @property
    def no_cut(self) -> tuple[str, ...]:
        """Names of the features without a cut; none where trees have no cuts of a design."""
        return self.design_.no_cut if hasattr(self, "design_") else ()

    @property
    def evidence_error(self) -> tuple[str, float]:
        """Name of the estimate of the evidence, and its standard error; 0 where none is made."""
        return "log evidence", 0.0

    @property
    def thrown_away(self) -> tuple[str, int]:
        """Name and number of the first steps of ``trajectory_`` that give no draws."""
        return "", 0

    def cautions(self) -> Iterator[str]:
        """Say in sentences what the reader of the fit must beware of."""
        yield from of_evidence(self)


def of_chains(model: Any) -> Iterator[str]:
    """Say where chains disagree, or may have missed modes."""
    quantities: dict[str, list] = {}
    for name, each in model.judged.items():
        is_prediction = name.startswith("prediction_")  # of which there are several
        quantity = "predictions of rows" if is_prediction else quantity_in_words(name)
        quantities.setdefault(quantity, []).append((each["r_hat"], each["ess"]))
    unknown = [quantity for quantity, each in quantities.items() if np.isnan(each).any()]
    if unknown:
        why = why_no_r_hat(*model.posterior_.num_leaves.shape)
        yield unjudged(why or f"of the {' and the '.join(unknown)} R-hat has no finite value")
    for quantity, each in quantities.items():
        r_hat = max((r for r, _ in each if not np.isnan(r)), default=1.0)
        size = min((size for _, size in each if not np.isnan(size)), default=np.inf)
        if r_hat > LARGEST_R_HAT:
            yield (
                f"The chains disagree about the {quantity}: R-hat is {r_hat:.2f}, and more than "
                f"{LARGEST_R_HAT} means that they have not run long enough. Do not rely on "
                + ("intervals." if model.trees_are == "sums" else "probabilities of trees.")
            )
        elif size < FEWEST_DRAWS:
            yield (
                f"The draws of the {quantity} are worth only {size:.0f} independent ones "
                f"(effective sample size): run the chains longer."
            )


def unjudged(why: str) -> str:
    """Say that chains cannot be judged, and why."""
    return (
        f"Whether chains have run long enough cannot be judged: {why}. R-hat compares at least two "
        f"chains of at least 4 draws each; until there are more chains or draws, do not rely on "
        f"probabilities of trees."
    )


def of_room(overflows: np.ndarray, capacity: int) -> Iterator[str]:
    """Say where trees found no room."""
    if number := int(np.sum(overflows)):
        yield (
            f"Trees outgrew the room they were given {counted(number, 'time', 'times')} "
            f"(capacity {capacity}): larger trees were not considered. Raise capacity."
        )


def of_weights(effective_size: float) -> Iterator[str]:
    """Say where few of the weighted trees carry the weight."""
    if effective_size < FEWEST_DRAWS:
        yield (
            f"The weighted trees are worth only {effective_size:.0f} equally weighted ones: "
            f"probabilities and predictions are rough."
        )


def of_evidence(model: Any) -> Iterator[str]:
    """Say where the evidence is known roughly."""
    what, error = model.evidence_error
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
            f"The {what} has a standard error of {error:.2f}: differences of that size from other "
            f"models mean nothing."
        )
