"""Figures of calibration: whether events happen as often as predicted, within chance."""

from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
from scipy import stats
from sklearn.utils.validation import check_is_fitted

from bdtppl.models.arguments import require_choice, require_integer
from bdtppl.plotting.axes import prepared, shortened
from bdtppl.plotting.bands import percent
from bdtppl.plotting.colours import INK, LINE, tint
from bdtppl.plotting.forecasts import Forecasts

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BAND_LEVEL = 0.9  # probability of the bands of chance
_COVERAGE_LEVELS = np.linspace(0, 1, 101)


def plot_calibration(
    model: Any,
    X: Any = None,
    y: Any = None,
    *,
    target: Any = None,
    bins: int = 10,
    kind: Literal["pit", "coverage"] = "pit",
    ax: "Axes | None" = None,
) -> "Axes":
    """Draw how well predicted probabilities agree with outcomes, with bands of chance.

    Classification: rows are binned by a predicted probability into equal widths, and each bin's
    observed frequency is drawn against its mean probability, with its number of rows. Bars contain
    the frequency with probability 0.9 if the predictions are right (Brocker and Smith 2007); they
    are quantiles of the sum of the bin's Bernoulli variables.

    Regression: ``kind="pit"`` is the histogram of the predictive distribution functions at the
    targets, which are uniform if the predictions are right. A valley in the middle indicates
    overconfident predictions, a hill underconfident ones (Dawid 1984). ``kind="coverage"`` is the
    share of targets inside central predictive intervals, against their probability. Bands are those
    of a binomial number of rows.

    Each training row is predicted from all others (see
    `bdtppl.inference.predictive.leave_one_out`); trees of a search, such as the greedy modal one,
    are not changed.

    Parameters
    ----------
    model
        A fitted classifier or regressor of bdtppl.
    X, y
        New rows and their targets. Default: the training rows, each left out in turn.
    target
        Classification: the class whose probability is used. Default: the second of two classes; for
        more classes, the most probable one of each row.
    bins
        Number of bins; empty bins are omitted.
    kind
        Regression: which figure.
    ax
        Axes to draw on. Default: those of a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The axes.

    Raises
    ------
    ValueError
        If an argument does not fit the model, or training rows have no likelihood of their own
        (the compound likelihood of soft classification): give X and y.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from bdtppl import ExactTreeClassifier, plot_calibration
    >>> X, y = load_iris(return_X_y=True)
    >>> ax = plot_calibration(ExactTreeClassifier(bins=4).fit(X, y), bins=5)
    >>> ax.get_xlabel()
    'predicted probability of the most probable class'
    """
    check_is_fitted(model)
    require_integer("bins", bins)
    require_choice("kind", kind, ("pit", "coverage"))
    is_classifier = model.is_classifier
    if target is not None and not is_classifier:
        raise ValueError(f"target must be None for a {type(model).__name__}, which has no classes.")
    forecasts = Forecasts.of(model, X, y)
    of_class = forecasts.of_class(model, target) if is_classifier else None
    which = "training rows, each left out" if X is None else "new rows"
    if of_class is not None:
        ax = _draw_reliability(prepared(ax, size=(4.8, 4.4), grid="both"), *of_class, bins)
    else:
        cdf = cast(np.ndarray, forecasts.cdf)  # real targets have a distribution function
        if kind == "pit":
            ax = _draw_pit(prepared(ax, size=(4.8, 4.0)), cdf, bins)
        else:
            ax = _draw_coverage(prepared(ax, size=(4.8, 4.4), grid="both"), cdf)
    ax.set_title(f"{len(forecasts.y):,} {which}", fontsize="medium", color=INK)
    ax.legend(loc="best", fontsize="small", frameon=False, labelcolor=INK)
    return ax


def _draw_reliability(
    ax: "Axes", probability: np.ndarray, happened: np.ndarray, name: str, bins: int
) -> "Axes":
    place = np.minimum((probability * bins).astype(int), bins - 1)
    groups = [place == each for each in np.unique(place)]
    mean = np.array([probability[group].mean() for group in groups])
    observed = np.array([happened[group].mean() for group in groups])
    size = np.array([group.sum() for group in groups])
    band = (
        np.array([sum_quantiles(probability[group], _BAND_LEVEL) for group in groups])
        / size[:, None]
    )
    ax.plot([0, 1], [0, 1], color=LINE, linestyle="--", linewidth=0.8, label="right probabilities")
    ax.vlines(
        mean,
        *band.T,
        color=tint(0.35),
        linewidth=7,
        label=f"{percent(_BAND_LEVEL)} of chance",
        zorder=2,
        gid="band",
    )
    ax.plot(
        mean, observed, "o", color=INK, markersize=5, label="observed", zorder=3, gid="observed"
    )
    for x, y, rows in zip(mean, observed, size, strict=True):
        below = y > 0.5
        ax.annotate(
            f"{rows}",
            (x, y),
            (7, -7 if below else 7),
            textcoords="offset points",
            va="center",
            fontsize="x-small",
            color=LINE,
        )
    ax.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), aspect="equal")
    ax.set_xlabel(f"predicted probability of {shortened(name)}", parse_math=False)
    ax.set_ylabel("observed frequency")
    return ax


def sum_quantiles(probability: np.ndarray, level: float) -> tuple[int, int]:
    """Return the central interval of a given probability for the sum of Bernoulli variables [m].

    Examples
    --------
    >>> sum_quantiles(np.full(20, 0.5), 0.9)
    (6, 14)
    """
    law = np.ones(1)
    for p in probability:
        law = np.convolve(law, [1 - p, p])
    low, high = np.searchsorted(np.cumsum(law), [(1 - level) / 2, (1 + level) / 2])
    return int(low), int(high)


def _draw_pit(ax: "Axes", cdf: np.ndarray, bins: int) -> "Axes":
    edges = np.linspace(0, 1, bins + 1)
    height = np.histogram(cdf, edges)[0] * bins / len(cdf)
    ends = stats.binom.ppf([(1 - _BAND_LEVEL) / 2, (1 + _BAND_LEVEL) / 2], len(cdf), 1 / bins)
    low, high = ends * bins / len(cdf)
    ax.bar(
        edges[:-1], height, 1 / bins, align="edge", color=tint(0.55), edgecolor="white", gid="pit"
    )
    band = ax.axhspan(low, high, color=INK, alpha=0.12, linewidth=0, zorder=3)
    band.set(label=f"{percent(_BAND_LEVEL)} of chance", gid="band")
    ax.axhline(1, color=INK, linestyle="--", linewidth=0.8, label="right predictions", zorder=4)
    ax.set(xlim=(0, 1), ylim=(0, 1.25 * max(high, height.max())))
    ax.set_xlabel("predictive distribution function at the target")
    ax.set_ylabel("density of rows")
    return ax


def _draw_coverage(ax: "Axes", cdf: np.ndarray) -> "Axes":
    needed = 2 * np.abs(cdf - 0.5)  # probability of the smallest interval that contains the target
    share = (needed[:, None] <= _COVERAGE_LEVELS).mean(axis=0)
    ends = np.array([(1 - _BAND_LEVEL) / 2, (1 + _BAND_LEVEL) / 2])[:, None]
    low, high = stats.binom.ppf(ends, len(cdf), _COVERAGE_LEVELS) / len(cdf)
    label = f"{percent(_BAND_LEVEL)} of chance"
    ax.fill_between(
        _COVERAGE_LEVELS, low, high, color=tint(0.3), linewidth=0, label=label, gid="band"
    )
    ax.plot([0, 1], [0, 1], color=LINE, linestyle="--", linewidth=0.8, label="right predictions")
    ax.plot(_COVERAGE_LEVELS, share, color=INK, linewidth=1.4, label="observed", gid="observed")
    ax.set(xlim=(0, 1), ylim=(0, 1.01), aspect="equal")
    ax.set_xlabel("probability of the predictive interval")
    ax.set_ylabel("share of targets inside")
    return ax
