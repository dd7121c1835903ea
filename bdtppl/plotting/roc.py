"""Receiver operating characteristic of a classifier, over thresholds of its probability."""

from typing import TYPE_CHECKING, Any

from sklearn.metrics import roc_auc_score, roc_curve
from sklearn.utils.validation import check_is_fitted

from bdtppl.plotting.axes import prepared, shortened
from bdtppl.plotting.colours import ACCENT, INK, LINE
from bdtppl.plotting.forecasts import Forecasts

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_roc(model: Any, X: Any, y: Any, *, target: Any = None, ax: "Axes | None" = None) -> "Axes":
    """Draw the true positive rate of a class against its false positive rate.

    Each point is a threshold of the class's predictive probability. The area below the curve (AUC)
    is the probability that a row of the class is scored higher than a row of the others.

    Parameters
    ----------
    model
        A fitted classifier of bdtppl.
    X, y
        New rows and their labels. Training rows are unsuitable: leaving each out lowers the
        probability of its own class, and keeping them is optimistic.
    target
        The class. Default: the second of two classes.
    ax
        Axes to draw on. Default: those of a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The axes.

    Raises
    ------
    ValueError
        If the model is not a classifier, there are no rows, there are more than two classes and
        none is named, or all rows, or none, are of the class.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from bdtppl import GreedyModalTreeClassifier, plot_roc
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> ax = plot_roc(GreedyModalTreeClassifier().fit(X[::2], y[::2]), X[1::2], y[1::2])
    >>> ax.get_ylabel()
    'share of 1 that is found'
    """
    check_is_fitted(model)
    if not model.is_classifier:
        raise ValueError(f"plot_roc needs a classifier; got a {type(model).__name__}.")
    if target is None:
        if len(model.classes_) != 2:
            raise ValueError(f"target must name one of {len(model.classes_)} classes.")
        target = model.classes_[1]
    if X is None or y is None:
        raise ValueError("plot_roc needs new rows and their labels; got none.")
    forecasts = Forecasts.of(model, X, y)
    probability, happened, _ = forecasts.of_class(model, target)
    if happened.all() or not happened.any():
        raise ValueError(f"y must have rows inside and outside the class {target}.")
    false_share, true_share, _ = roc_curve(happened, probability)
    ax = prepared(ax, size=(4.8, 4.4), grid="both")
    ax.plot([0, 1], [0, 1], color=LINE, linestyle="--", linewidth=1, label="by chance")
    area = roc_auc_score(happened, probability)
    ax.plot(false_share, true_share, color=ACCENT, label=f"area {area:.3f}", gid="roc")
    ax.set_title(f"{len(happened):,} rows", fontsize="medium", color=INK)
    ax.set_xlabel(f"share of others taken for {shortened(target)}", parse_math=False)
    ax.set_ylabel(f"share of {shortened(target)} that is found", parse_math=False)
    ax.set_xlim(-0.01, 1.01)
    ax.set_ylim(-0.01, 1.01)
    ax.legend(loc="lower right", fontsize="small", frameon=False, labelcolor=INK)
    return ax
