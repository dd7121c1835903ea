"""Figures of the evidence as a function of one hyperparameter."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from bdtppl.models.wording import number
from bdtppl.plotting.axes import prepared
from bdtppl.plotting.colours import ACCENT, INK, LINE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDE = 50.0  # ratio of values from which a log scale is used


def plot_evidence(
    model: Any, parameter: str, values: Sequence[float] | np.ndarray, *, ax: "Axes | None" = None
) -> "Axes":
    """Draw the exact log evidence against a hyperparameter of the prior or of the leaves.

    All other settings are those of the fit. The chart of subproblems does not depend on the
    hyperparameters and is rescored, so a value costs little. A tenth of a nat is negligible; a few
    nats are evidence.

    Parameters
    ----------
    model
        A fitted `ExactTreeClassifier` or `ExactTreeRegressor`.
    parameter
        "prior__NAME" or "leaf__NAME", such as ``"prior__alpha"``, ``"prior__log_phi"``,
        ``"leaf__concentration"`` (the same for each class) or ``"leaf__scale"``.
    values
        Values of the parameter.
    ax
        Axes to draw on. Default: those of a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The axes.

    Raises
    ------
    TypeError
        If the model's posterior is not exact.
    ValueError
        If the model has no such hyperparameter, or it cannot have one of the values.

    Examples
    --------
    >>> from bdtppl import ExactTreeClassifier, plot_evidence
    >>> X, y = [[0.0], [1.0], [2.0], [3.0]] * 9, [0, 0, 1, 1] * 9
    >>> ax = plot_evidence(ExactTreeClassifier().fit(X, y), "prior__log_phi", [0.0, 1.0, 2.0, 4.0])
    >>> [text.get_text() for text in ax.get_legend().get_texts()]
    ['log evidence', 'as fitted, 0.7666', 'best of these, 1']
    """
    check_is_fitted(model)
    if model.exact_ is None:
        raise TypeError(
            f"plot_evidence needs the exact posterior; a {type(model).__name__} would have to be "
            "refitted for each value."
        )
    part, name, current = _find(model, parameter)
    values = np.unique(np.asarray(values, float))
    if not len(values) or not np.isfinite(values).all():
        raise ValueError(f"values must be finite numbers; got {values.tolist()}.")
    evidence = np.array([_log_evidence(model, part, name, current, value) for value in values])
    ax = prepared(ax)
    ax.plot(
        values,
        evidence,
        color=ACCENT,
        marker="o",
        markersize=3.5,
        label="log evidence",
        gid="evidence",
    )
    own, best = float(np.mean(current)), float(values[evidence.argmax()])
    if np.ptp(current) == 0:
        label = f"as fitted, {number(own)}"
        ax.axvline(own, color=LINE, linestyle="--", linewidth=1, label=label, gid="fitted")
    ax.plot(
        [best],
        [evidence.max()],
        "o",
        color=INK,
        markersize=9,
        fillstyle="none",
        label=f"best of these, {number(best)}",
        gid="best",
    )
    if values[0] > 0 and values[-1] / values[0] >= _WIDE:
        ax.set_xscale("log")
    ax.set_xlabel(f"{name} of the {part}", parse_math=False)
    ax.set_ylabel("log evidence")
    ax.legend(loc="best", fontsize="small", labelcolor=INK, frameon=False)
    return ax


def _find(model: Any, parameter: str) -> tuple[str, str, np.ndarray]:
    """Split a parameter's name into part and field, and return its current value."""
    part, _, name = parameter.partition("__")
    known = {
        each: sorted(getattr(model, f"{each}_").parameter_support) for each in ("prior", "leaf")
    }
    if name not in known.get(part, ()):
        listed = ", ".join(f"{each}__{field}" for each, own in known.items() for field in own)
        raise ValueError(f"parameter must be one of {listed}; got {parameter!r}.")
    return part, name, np.asarray(getattr(getattr(model, f"{part}_"), name), float)


def _log_evidence(model: Any, part: str, name: str, current: np.ndarray, value: float) -> float:
    """Compute the log evidence with another value."""
    chosen = np.full(current.shape, value) if current.ndim else value
    changed = replace(getattr(model, f"{part}_"), **{name: chosen})
    return model.exact_.with_model(**{part: changed}).log_evidence
