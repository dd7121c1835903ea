"""The results that a fitted estimator provides to reports, plots, comparisons, ArviZ and files.

An inference overrides the attributes that it has. Its cautions are sentences for the reader of a
report, written where the inference is defined; the functions below write those that several
inferences share.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from bdtppl.models.wording import counted
from bdtppl.summary import quantity_in_words, why_no_r_hat

LARGEST_R_HAT = 1.05
FEWEST_DRAWS = 100  # effective draws, of chains or of weights
_LARGEST_ERROR = 0.5  # nats, of the log evidence


class Results:
    """Results of a fit, with their types.

    Attributes
    ----------
    task
        "classification" or "regression".
    trees_are
        "hard", "soft", or "sums" of many hard trees.
    draws_are
        Origin of the draws of ``posterior_``: "exact" for independent draws of an exact posterior,
        whose probabilities are known without them; "chains"; independent "runs" of weighted draws;
        "independent" draws, weighted or not; or trees "found" by a search.
    has_importance_weights
        Whether the draws' weights are importance weights.
    unknown
        Quantities of `bdtppl.compare` that the inference cannot compute, and why.
    counts_rows
        Whether the statistics of hard trees are those of the training rows alone.
    exact_
        The exact posterior, or None.
    trajectory_
        float64 [chain, record]; log probabilities along chains, or None.
    diagnostics_
        Diagnostics of draws by quantity or topology; empty if there are none.
    log_partition_
        Log of the sum over trees of prior weight times likelihood, or None.
    log_evidence_bounds_
        Certified bounds of the log evidence, or None if it is known or estimated without bounds.
    map_gap_
        Nats by which a tree may be better than the best one found, or None if no bound is known.
    total_variation_
        Bound on the total variation distance between the distribution of the draws and the
        posterior, or None.
    partition_log_probabilities
        Method that scores the partitions of a node, or None.
    chosen
        Parameters that the fit chose by itself; they are used to repeat it on other rows.
    other_noise
        Settings to try where predictive intervals do not hold, as code, and what each means.
    """

    task: ClassVar[str]
    trees_are: ClassVar[Literal["hard", "soft", "sums"]] = "hard"
    draws_are: Any = "independent"
    unknown: ClassVar[Mapping[str, str]] = MappingProxyType({})
    classes_: np.ndarray
    if TYPE_CHECKING:
        design_: Any  # of hard trees and sums of them; absent for soft trees
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
    other_noise: Mapping[str, str] = MappingProxyType({})

    @property
    def judged(self) -> Mapping[str, Any]:
        """The part of ``diagnostics_`` by which the fit is judged."""
        return self.diagnostics_

    @property
    def certificates(self) -> dict[str, Any]:
        """Known bounds: ``log_evidence_bounds_`` and the next attributes, by name."""
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
        """Names of the features without a cut; empty if trees do not use the cuts of a design."""
        return self.design_.no_cut if hasattr(self, "design_") else ()

    @property
    def evidence_error(self) -> tuple[str, float]:
        """Name of the estimate of the evidence, and its standard error; 0 if none is made."""
        return "log evidence", 0.0

    @property
    def thrown_away(self) -> tuple[str, int]:
        """Name and number of the first steps of ``trajectory_``, which give no draws."""
        return "", 0

    def cautions(self) -> Iterator[str]:
        """List cautions for the reader of the fit, as sentences."""
        yield from of_evidence(self)


def of_chains(model: Any) -> Iterator[str]:
    """Report chains that disagree or may have missed modes."""
    quantities: dict[str, list] = {}
    for name, each in model.judged.items():
        is_prediction = name.startswith("prediction_")  # there are several predictions
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
                f"The effective sample size of the {quantity} is only {size:.0f}: run the chains "
                "longer."
            )


def unjudged(why: str) -> str:
    """Report that convergence cannot be assessed, and why."""
    return (
        f"Convergence cannot be assessed: {why}. R-hat compares at least two chains of at least 4 "
        "draws each; until there are more chains or draws, do not rely on probabilities of trees."
    )


def of_room(overflows: np.ndarray, capacity: int) -> Iterator[str]:
    """Report trees that outgrew the capacity."""
    if number := int(np.sum(overflows)):
        yield (
            f"Trees outgrew the capacity of {capacity} nodes {counted(number, 'time', 'times')}: "
            "larger trees were not considered. Raise capacity."
        )


def of_weights(effective_size: float) -> Iterator[str]:
    """Report that few of the weighted trees carry the weight."""
    if effective_size < FEWEST_DRAWS:
        yield (
            f"The effective sample size of the weighted trees is only {effective_size:.0f}: "
            "probabilities and predictions are imprecise."
        )


def of_evidence(model: Any) -> Iterator[str]:
    """Report that the evidence is imprecise."""
    what, error = model.evidence_error
    if np.isnan(error):
        why = {
            "runs": "it needs the spread of several runs, and there was one (raise runs)",
            "chains": "it needs at least 4 draws a chain (raise draws)",
        }.get(model.draws_are, "there are too few draws (raise draws)")
        yield (
            f"The error of the {what} and of the probabilities of trees is unknown, because there "
            f"is no standard error: {why}."
        )
    elif error > _LARGEST_ERROR:
        yield (
            f"The {what} has a standard error of {error:.2f}: differences of that size from other "
            "models are not meaningful."
        )
