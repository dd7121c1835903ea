"""The posterior over the partitions of one node of a greedy modal tree."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bdtppl.plotting.colours import ACCENT, FAINT, INK, LINE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_PANELS = 4
_PANEL = (2.6, 3.0)  # inches
_RING = {"color": INK, "marker": "o", "markersize": 8, "fillstyle": "none", "linestyle": "none"}


def plot_partitions(
    model: Any, node: int = 0, *, axes: "Sequence[Axes] | None" = None
) -> np.ndarray:
    """Draw the log probabilities of all partitions of a node, feature by feature.

    Each panel is a feature, the most probable ones first: a point for every rule, at its threshold,
    and the dashed line for the trivial partition, which makes the node a leaf. A ring marks the
    tree's rule, which may not be the highest point after lookahead; if the tree splits by a
    hyperplane, the legend states this. The title gives the probability of all rules of the feature
    together (Nuti et al. 2021, section 3 and Figure 2(a)).

    Parameters
    ----------
    model
        A fitted greedy modal classifier or regressor.
    node
        Slot of the node in ``map_tree_``; 0 is the root.
    axes
        Axes to draw on, one for each feature to show. Default: those of a new figure, for the four
        most probable features. The last one shows the tree's feature, if no other does.

    Returns
    -------
    numpy.ndarray
        The axes that were drawn on.

    Raises
    ------
    TypeError
        If the model is not a greedy modal tree.
    ValueError
        If the tree has no such node.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from bdtppl import GreedyModalTreeClassifier, plot_partitions
    >>> X, y = load_iris(return_X_y=True)
    >>> axes = plot_partitions(GreedyModalTreeClassifier().fit(X, y))
    >>> len(axes), axes[0].get_title()
    (4, 'x3: probability 0.66')
    """
    if model.partition_log_probabilities is None:
        raise TypeError(f"plot_partitions needs a greedy modal tree; got {type(model).__name__}.")
    partitions = model.partition_log_probabilities(node)
    order = np.argsort(-partitions.log_feature, kind="stable")
    order = order[np.isfinite(partitions.log_feature[order])]
    num_axes = _MOST_PANELS if axes is None else np.array(axes, object).size
    tree = model.map_tree_
    split = tree.split(node)
    taken = split.feature
    if taken in order[num_axes:]:
        order[num_axes - 1] = taken
    drawn = _panels(axes, max(1, len(order)))
    names = model.design_.names
    for ax in drawn:
        ax.grid(axis="y", color=FAINT, linewidth=0.8)
        ax.set_axisbelow(True)
        ax.spines[["top", "right"]].set_visible(False)
        ax.axhline(partitions.log_stop, color=LINE, linestyle="--", linewidth=1, label="no split")
    for feature, ax in zip(order, drawn, strict=False):
        own = partitions.feature == feature
        _draw_rules(ax, partitions, own)
        if feature == taken:
            at = split.is_at(partitions)
            ax.plot(partitions.threshold[at], partitions.log_rule[at], **_RING)
        share = np.exp(partitions.log_feature[feature])
        ax.set_title(f"{names[feature]}: probability {share:.3g}", fontsize="medium", color=INK)
        ax.set_xlabel("threshold")
    drawn[0].set_ylabel("log probability")
    if taken >= len(partitions.log_feature):
        drawn[0].plot([], [], linestyle="none", label="the tree uses a hyperplane")
    elif taken >= 0:
        drawn[0].plot([], [], label="the tree's rule", **_RING)
    drawn[0].legend(frameon=False, fontsize="small", labelcolor=INK)
    return drawn


def _panels(axes: "Sequence[Axes] | None", most: int) -> np.ndarray:
    """Make axes side by side, or use the given ones; at most the given number."""
    if axes is not None:
        return np.array(axes, object).ravel()[:most]
    import matplotlib.pyplot as plt

    num_panels = min(most, _MOST_PANELS)
    width, height = _PANEL
    _, made = plt.subplots(
        1,
        num_panels,
        figsize=(1 + num_panels * width, height),
        layout="constrained",
        sharey=True,
        squeeze=False,
    )
    return made[0]


def _draw_rules(ax: "Axes", partitions: Any, own: np.ndarray) -> None:
    """Draw the log probabilities of a feature's rules, by their thresholds."""
    place = np.argsort(partitions.threshold[own], kind="stable")
    ax.plot(
        partitions.threshold[own][place],
        partitions.log_rule[own][place],
        color=ACCENT,
        marker="o",
        markersize=2.5,
        linewidth=0.6,
        label="split",
    )
