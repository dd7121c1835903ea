"""Figures of the topologies of soft trees: their evidence and probabilities."""

from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from bdtppl.models.soft.topology import Topology
from bdtppl.plotting.axes import prepared
from bdtppl.plotting.colours import ACCENT, INK, LINE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ROW = 0.62  # inches
_GLYPH = 0.8  # width of the largest drawing of a topology, in inches
_BAND = 2.0  # length of error bars to each side in standard errors
_FAR = 10.0  # nats below the best one from which evidence is written instead of drawn


def plot_topologies(model: Any, k: int = 8, *, ax: "Axes | None" = None) -> "Axes":
    """Draw the log evidence and the probabilities of the most probable topologies of soft trees.

    Each row is a topology, with its shape at the left and error bars of two standard errors (Figure
    1 of Cochrane et al. 2024). The evidence of a topology excludes its prior, which its probability
    includes. Arrows at the left end mark evidence far below. Probabilities are bars if the sampler
    does not estimate the evidence.

    Parameters
    ----------
    model
        A fitted estimator of soft trees.
    k
        Most topologies to draw.
    ax
        Axes to draw on. Default: those of a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The axes.

    Raises
    ------
    TypeError
        If the model has no soft trees.
    ValueError
        If k is less than 1.

    Examples
    --------
    >>> import numpy as np
    >>> from bdtppl import RJHMCTreeRegressor, plot_topologies
    >>> X = np.linspace(0, 1, 30)[:, None]
    >>> few = {"chains": 2, "burn_in": 50, "draws": 300, "warmup": 60, "max_splits": 1}
    >>> model = RJHMCTreeRegressor(random_state=0, **few).fit(X, X[:, 0] > 0.5)
    >>> plot_topologies(model).get_xlabel()
    'probability'
    """
    check_is_fitted(model)
    posterior = model.posterior_
    if model.trees_are != "soft":
        raise TypeError(
            f"plot_topologies draws soft trees; a {type(model).__name__} has {model.trees_are} "
            f"{'ones: use plot_structures' if model.trees_are == 'hard' else 'of hard ones'}."
        )
    if k < 1:
        raise ValueError(f"k must be at least 1; got {k}.")
    shown = range(min(k, len(posterior.topologies)))
    ax = prepared(ax, size=(6.4, 1.0 + _ROW * len(shown)), grid="x")
    ax.ticklabel_format(axis="x", useOffset=False)  # an offset would cover the axis label
    probability = posterior.probability[: len(shown)]
    words = dict(enumerate(map(_percent, probability)))
    if np.isnan(posterior.log_evidences[: len(shown)]).any():
        ax.barh(shown, probability, height=0.5, color=ACCENT, gid="probability")
        ends = probability
        ax.set_xlabel("probability")
    else:
        evidence, errors = (
            posterior.log_evidences[: len(shown)],
            posterior.log_evidence_ses[: len(shown)],
        )
        floor = evidence.max() - _FAR
        near = np.flatnonzero(evidence >= floor)
        error = _BAND * errors[near]
        bars = ax.errorbar(evidence[near], near, xerr=error, fmt="o", color=ACCENT, capsize=3)
        bars.lines[0].set_gid("evidence")
        far = np.flatnonzero(evidence < floor)
        ax.plot(np.full(len(far), floor), far, "<", color=ACCENT, gid="far")
        words |= {row: f"{words[row]}, log evidence {evidence[row]:.0f}" for row in far.tolist()}
        ends = np.maximum(evidence + _BAND * errors, floor)
        ax.set_xlabel("log evidence ± two standard errors; posterior probability")
    for row, end in enumerate(ends):
        ax.annotate(
            words[row], (end, row), (6, 0), textcoords="offset points", va="center", color=INK
        )
    ax.set_ylim(len(shown) - 0.5, -0.5)
    ax.set_yticks(shown, [""] * len(shown))
    ax.margins(x=0.18)
    ax.spines["left"].set_visible(False)
    ax.tick_params(axis="y", length=0, pad=_GLYPH * 72)
    shapes = [posterior.topologies[m] for m in shown]
    scale = max(1, *(shape.num_splits for shape in shapes), *(shape.depth for shape in shapes))
    for row, shape in enumerate(shapes):
        _draw_shape(ax, shape, row, scale)
    return ax


def _draw_shape(ax: "Axes", shape: Topology, row: int, scale: int) -> None:
    """Draw a topology to the left of the axes, beside its row; splits are dots, leaves squares."""
    places, edges = _layout(shape)
    transform = ax.get_yaxis_transform()  # x is a share of the axes' width, y a row
    width = _GLYPH * ax.figure.dpi / ax.figure.bbox.width
    x = (
        -0.02
        - width
        + width
        * (places[:, 0] - places[:, 0].mean())
        / (shape.num_leaves + 1)
        * ((shape.num_leaves + 1) / (scale + 2))
    )
    y = row + 0.7 * ((places[:, 1] - places[:, 1].max() / 2) / max(scale, 2))
    for start, stop in edges:
        ax.plot(
            x[[start, stop]],
            y[[start, stop]],
            color=LINE,
            linewidth=1,
            transform=transform,
            clip_on=False,
            zorder=1,
        )
    is_split = np.array([node == "1" for node in shape.code])
    style = {"transform": transform, "clip_on": False, "zorder": 2, "s": 16}
    ax.scatter(x[is_split], y[is_split], color=INK, **style)
    ax.scatter(x[~is_split], y[~is_split], color=ACCENT, marker="s", gid=f"leaves-{row}", **style)


def _layout(shape: Topology) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """Place nodes in preorder: (x, depth) with leaves one apart; and edges from parents."""
    places, edges = np.zeros((len(shape.code), 2)), []
    nodes = iter(range(len(shape.code)))
    num_leaves = 0

    def walk(depth: int) -> int:
        nonlocal num_leaves
        node = next(nodes)
        if shape.code[node] == "0":
            places[node] = num_leaves, depth
            num_leaves += 1
            return node
        children = walk(depth + 1), walk(depth + 1)
        places[node] = places[list(children), 0].mean(), depth
        edges.extend((node, child) for child in children)
        return node

    walk(0)
    return places, edges


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share >= 1e-3 else "< 0.1 %"
