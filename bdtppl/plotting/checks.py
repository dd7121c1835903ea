"""Posterior predictive checks: data that the model would produce, beside the observed data."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from scipy import stats
from sklearn.utils.validation import check_is_fitted

from bdtppl.inference.predictive.replicates import replicate
from bdtppl.models.arguments import require_integer
from bdtppl.plotting.axes import prepared, shortened
from bdtppl.plotting.colours import INK, tint
from bdtppl.plotting.forecasts import observed_targets
from bdtppl.plotting.rows import training_targets

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_CURVES = 50  # replicates whose density is drawn
_CHECK_POINTS = 200
_TAIL_LEFT_OUT = 0.005  # share of all replicated targets omitted at each end
_BANDS = ((0.9, 0.3, 6), (0.5, 0.7, 6))  # level, tint and width of the bars of class counts

_STATISTICS: dict[str, Callable[[np.ndarray], Any]] = {
    "mean": np.mean,
    "sd": np.std,
    "min": np.min,
    "max": np.max,
    "median": np.median,
}


def plot_predictive_check(
    model: Any,
    X: Any = None,
    y: Any = None,
    *,
    statistic: str | Callable[[np.ndarray], float] | None = None,
    draws: int = 200,
    ax: "Axes | None" = None,
) -> "Axes":
    """Draw replicated targets of all rows beside the observed ones (Gelman, Meng and Stern 1996).

    A replicate is a simulated data set: tree and leaf parameters are drawn from the posterior once
    for all of its rows (`bdtppl.inference.predictive.replicates`). The model misses features of the
    observed data that no replicate shows.

    Without a statistic, the figure shows the densities of the observed real targets and of 50
    replicates, with one kernel width, or the observed class counts with intervals of the replicated
    ones. With a statistic, it shows the histogram of its values, the observed value, and the share
    of replicates whose value is at least as large (the posterior predictive p-value).

    Parameters
    ----------
    model
        A fitted classifier or regressor of bdtppl.
    X, y
        Rows and their targets. Default: the training rows.
    statistic
        "mean", "sd", "min", "max" or "median" of real targets; or a function from targets (labels,
        for classification) [m] to a number.
    draws
        Number of replicates.
    ax
        Axes to draw on. Default: those of a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The axes.

    Raises
    ------
    ValueError
        If an argument does not fit the model.

    Examples
    --------
    >>> from bdtppl import ExactTreeRegressor, plot_predictive_check
    >>> from bdtppl.datasets import make_cgm
    >>> X, y = make_cgm(60, random_state=0)
    >>> model = ExactTreeRegressor(random_state=0).fit(X, y)
    >>> plot_predictive_check(model, statistic="max", draws=50).get_xlabel()
    'max of the targets'
    """
    check_is_fitted(model)
    if (X is None) != (y is None):
        raise ValueError("X and y must be given together: pass both, or neither for training rows.")
    require_integer("draws", draws, 2)
    posterior, is_classifier = model.posterior_, model.is_classifier
    summarise = None if statistic is None else _read_statistic(statistic, is_classifier)
    if X is None:
        matrix, observed = model._training_rows()[0], training_targets(model)
    else:
        matrix = model._matrix(X)
        observed = observed_targets(model, y, len(matrix))
    replicates = replicate(jax.random.key(model._seed), posterior, matrix, int(draws))
    if summarise is None and is_classifier:
        ax = prepared(ax, size=(6.4, 1.3 + 0.4 * len(model.classes_)), grid="x")
    else:
        ax = prepared(ax)
    if summarise is not None:
        name = statistic if isinstance(statistic, str) else getattr(statistic, "__name__", "")
        labels = (model._as_targets(each) for each in (observed, *replicates))
        value, *values = (float(summarise(each)) for each in labels)
        _draw_statistic(ax, value, np.array(values), name or "statistic")
    elif is_classifier:
        _draw_counts(ax, observed, replicates, [str(name) for name in model.classes_])
    else:
        _draw_densities(ax, observed, replicates)
    return ax


def _read_statistic(statistic: Any, is_classifier: bool) -> Callable[[np.ndarray], Any]:
    if callable(statistic):
        return statistic
    if is_classifier:
        raise ValueError("statistic must be a function of labels for a classifier.")
    if statistic not in _STATISTICS:
        known = ", ".join(map(repr, _STATISTICS))
        raise ValueError(f"statistic must be a function or one of {known}; got {statistic!r}.")
    return _STATISTICS[statistic]


def _draw_densities(ax: "Axes", observed: np.ndarray, replicates: np.ndarray) -> None:
    shown = replicates[np.linspace(0, len(replicates) - 1, _CURVES).astype(int)]
    ends = np.quantile(shown, [_TAIL_LEFT_OUT, 1 - _TAIL_LEFT_OUT])
    low, high = min(ends[0], observed.min()), max(ends[1], observed.max())
    room = 0.05 * (high - low) or 0.5
    grid = np.linspace(low - room, high + room, _CHECK_POINTS)
    # Silverman's rule for the observed targets; with one width, curves differ by the data alone.
    spread = min(np.std(observed), np.subtract(*np.quantile(observed, [0.75, 0.25])) / 1.34)
    width = 0.9 * (spread or np.std(observed) or 1.0) * len(observed) ** -0.2
    for number, targets in enumerate(shown):
        ax.plot(
            grid,
            _kernel_density(targets, grid, width),
            color=tint(0.45),
            linewidth=0.7,
            label=None if number else "replicated",
            gid=f"replicate-{number}",
        )
    density = _kernel_density(observed, grid, width)
    ax.plot(grid, density, color=INK, linewidth=1.8, label="observed", gid="observed")
    ax.set_xlabel("target")
    ax.set_ylabel("density")
    ax.set_ylim(bottom=0)
    ax.margins(x=0)
    ax.legend(loc="upper right", fontsize="small", labelcolor=INK, frameon=False)


def _kernel_density(targets: np.ndarray, grid: np.ndarray, width: float) -> np.ndarray:
    """Estimate a density by normal kernels, [points]."""
    return stats.norm.pdf(grid[:, None], targets, width).mean(axis=1)


def _draw_counts(
    ax: "Axes", observed: np.ndarray, replicates: np.ndarray, names: list[str]
) -> None:
    from matplotlib.ticker import MaxNLocator

    places = np.arange(len(names))
    counts = np.array([np.bincount(each, minlength=len(names)) for each in replicates])
    for level, share, width in _BANDS:
        low, high = np.quantile(counts, [(1 - level) / 2, (1 + level) / 2], axis=0)
        ax.hlines(
            places,
            low,
            high,
            color=tint(share),
            linewidth=width,
            label=f"replicated, {100 * level:.0f} %",
            gid=f"band-{level:g}",
        )
    own = np.bincount(observed, minlength=len(names))
    ax.plot(own, places, "D", color=INK, markersize=5, label="observed", zorder=4, gid="observed")
    ax.set_yticks(places, list(map(shortened, names)), parse_math=False)
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.set_xlabel("rows of the class")
    ax.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    legend = {"loc": "lower left", "bbox_to_anchor": (0, 1), "ncols": 3, "frameon": False}
    ax.legend(**legend, fontsize="small", labelcolor=INK)


def _draw_statistic(ax: "Axes", value: float, values: np.ndarray, name: str) -> None:
    share = float(np.mean(values >= value))
    counts, edges = np.histogram(values, bins="auto")
    ax.stairs(counts, edges, fill=True, color=tint(0.5), label="replicated", gid="replicated")
    ax.axvline(
        value,
        color=INK,
        linewidth=1.8,
        label=f"observed; {100 * share:.0f} % of replicates reach it",
        gid="observed",
    )
    ax.margins(x=0.02)
    ax.set_xlabel(f"{name} of the targets", parse_math=False)
    ax.set_ylabel("replicates")
    legend = {"loc": "lower left", "bbox_to_anchor": (0, 1), "ncols": 2, "frameon": False}
    ax.legend(**legend, fontsize="small", labelcolor=INK)
