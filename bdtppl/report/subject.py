"""The subject of a report: a fitted model, its summary, and the rows to judge it by."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from bdtppl.plotting.axes import name_axis
from bdtppl.plotting.forecasts import Forecasts


@dataclass(frozen=True, eq=False)
class Subject:
    """A fitted model and the rows to judge it by.

    Attributes
    ----------
    model
        A fitted estimator.
    target
        Name of the target.
    X, y
        New rows with their targets; None for the training rows, each left out in turn.
    command
        How to repeat the fit; None for Python.
    """

    model: Any
    target: str
    X: Any = None
    y: Any = None
    command: str | None = None

    @property
    def classes(self) -> list[Any] | None:
        """Class labels; None for regression."""
        labels = self.model.class_labels
        return None if labels is None else labels.tolist()

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Summary of the model."""
        return self.model.summary()

    @cached_property
    def forecasts(self) -> Forecasts | None:
        """Predictions beside outcomes; None if training rows cannot be left out."""
        posterior = self.model.posterior_
        if self.X is None and not posterior.has_pointwise_likelihood:
            return None
        return Forecasts.of(self.model, self.X, self.y)

    @property
    def which(self) -> str:
        """Name of the forecasts' rows."""
        if self.X is None:
            return "training rows, each from all others"
        return "rows not seen in training"

    @cached_property
    def effects(self) -> list[Any]:
        """Effects of columns on one sum of trees, if the columns have any; else empty."""
        model = self.model
        is_one = hasattr(model, "fewest_columns") and model.prior_.num_sums == 1
        return model.effects() if is_one and len(model.prior_.groups) <= 1 else []

    @cached_property
    def shares(self) -> dict[str, float]:
        """Importance of each feature, or of each column of `effects`, the most important first."""
        if self.effects:
            return {each.columns[0]: each.share for each in self.effects if len(each.columns) == 1}
        shares = self.summary.get("split_inclusion") or self.summary.get("feature_importance")
        shares = shares or self.summary["input_weights"]
        no_cut = self.model.no_cut  # come last
        return dict(sorted(shares.items(), key=lambda item: (item[0] in no_cut, -item[1])))

    def named(self, axes: Any) -> Any:
        """Name the target on axes that were drawn without it."""
        for axis in (axes.xaxis, axes.yaxis):
            if axis.get_label_text() == "target":
                name_axis(axis, self.target)
        return axes
