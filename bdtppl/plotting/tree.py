"""Figures of single trees: rules at the splits, the target's distribution at the leaves."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from scipy.sparse import csr_array, eye_array

from bdtppl.inference.hard.mixture import LeafMixture
from bdtppl.inference.hard.partitions import Grouping
from bdtppl.inference.hard.posterior import RankedTrees
from bdtppl.models.arguments import require_integer
from bdtppl.models.data.design import Design
from bdtppl.models.data.schema import Schema
from bdtppl.models.hard.tree import Tree
from bdtppl.plotting.colours import INK
from bdtppl.plotting.drawing import TreeDrawing
from bdtppl.plotting.layout import FONT_SIZE, text_width
from bdtppl.plotting.leaves import ClassPanels, PlainLeaves, RealPanels

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COVERED = 0.9  # probability of the predictive intervals at the leaves of a regression tree
_WIDEST_ROW = 20 * 72.0  # points
_TITLE_HEIGHT = 30.0  # points above the axes
_TITLE_SIZE = FONT_SIZE + 2
_TITLE_STYLE = {"fontsize": _TITLE_SIZE, "color": INK}
_TEXT_POINTS = 72.0  # an inch


def plot_tree(
    model: Any,
    rank: int = 0,
    *,
    names: Sequence[str] | None = None,
    by: Grouping = "tree",
    ax: "Axes | None" = None,
) -> "Axes":
    """Draw one of the most probable trees of a fitted estimator, or a bare tree.

    Each split shows a condition; rows that satisfy it go to the "yes" side, which is the left one
    unless the condition is a level of a category. Each leaf shows its prediction and its number of
    training rows. Classification: a bar of predictive class probabilities and the most probable
    class. Regression: the mean and the 90 % interval of the predictive distribution, on a scale
    that all leaves share.

    Parameters
    ----------
    model
        A fitted classifier or regressor of bdtppl; or a `Tree`, whose leaves have no predictions
        and show their slots (see `bdtppl.models.hard.tree.route`).
    rank
        Which tree: 0 is the most probable one.
    names
        Names of a bare tree's features; default x0, x1, ...
    by
        What is ranked, as in ``model.k_best``: "tree", or "partition" of the training rows.
    ax
        Axes to draw on; text shrinks until it fits. Default: those of a new figure that is as large
        as the tree needs.

    Returns
    -------
    matplotlib.axes.Axes
        The axes, with the tree's probability as title.

    Raises
    ------
    TypeError
        If the model has soft trees.
    ValueError
        If rank is negative or too large, or names are given for an estimator or are too few for a
        tree.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from bdtppl import ExactTreeClassifier, plot_tree
    >>> X, y = load_iris(return_X_y=True)
    >>> ax = plot_tree(ExactTreeClassifier(bins=4).fit(X, y))
    >>> [text.get_text() for text in ax.get_legend().get_texts()]
    ['0', '1', '2']
    """
    if isinstance(model, Tree):
        return _plot_bare(model, rank, names, ax)
    if names is not None:
        raise ValueError("names requires a bare tree; an estimator has its own names of features.")
    _require_hard(model)
    require_integer("rank", rank, 0)
    ranked = model.k_best(rank + 1, by=by)
    num_trees = len(ranked.probability)
    if rank >= num_trees:
        raise ValueError(
            f"rank must be less than the number of {by}s, which is {num_trees}; got {rank}."
        )
    (drawing,) = _drawings(model, ranked[rank:])
    name = f"Most probable {by}" if rank == 0 else f"{by.capitalize()} no. {rank + 1}"
    title = f"{name}, {model.probability_name} {ranked.probability[rank]:.3g}"
    drawn = _new_axes([drawing], [title])[0] if ax is None else ax
    drawing.draw(drawn, has_legend=True)
    drawn.set_title(title, **_TITLE_STYLE)
    return drawn


def plot_structures(
    model: Any,
    k: int = 4,
    *,
    by: Grouping | None = None,
    axes: "Sequence[Axes] | np.ndarray | None" = None,
) -> np.ndarray:
    """Draw the k most probable partitions of the training rows, or trees, side by side.

    Parameters
    ----------
    model
        A fitted classifier or regressor of bdtppl.
    k
        Number of trees; fewer are drawn if there are fewer.
    by
        "partition" draws one tree for all whose leaves contain the same training rows, with the
        probability from ``model.k_best(k, by="partition")``; "tree" draws each tree by itself.
        Default: "partition", or "tree" if the training rows were not stored.
    axes
        k axes to draw on. Default: those of a new figure, in as many rows as they need.

    Returns
    -------
    numpy.ndarray
        The axes, one for each tree that was drawn, the most probable one first. Titles are the
        trees' probabilities; the first axes have the legend.

    Raises
    ------
    TypeError
        If a tree is given instead of an estimator, or the model has soft trees.
    ValueError
        If k is less than 1 or the number of axes is not k.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from bdtppl import ExactTreeClassifier, plot_structures
    >>> X, y = load_iris(return_X_y=True)
    >>> axes = plot_structures(ExactTreeClassifier(bins=4).fit(X, y), k=2)
    >>> len(axes)
    2
    """
    _require_estimator(model)
    require_integer("k", k)
    given = None if axes is None else np.array(axes, object).ravel()
    if given is not None and len(given) != k:
        raise ValueError(f"axes must contain k = {k} axes; got {len(given)}.")
    ranked = model.k_best(k, by=model.grouping if by is None else by)
    drawings = _drawings(model, ranked)
    titles = [
        f"no. {i}, {model.probability_name} {probability:.3g}"
        for i, probability in enumerate(ranked.probability, 1)
    ]
    drawn = _new_axes(drawings, titles) if given is None else given[: len(drawings)]
    for index, (drawing, title, ax) in enumerate(zip(drawings, titles, drawn, strict=True)):
        drawing.draw(ax, has_legend=index == 0)
        ax.set_title(title, **_TITLE_STYLE)
    return drawn


def _plot_bare(tree: Tree, rank: int, names: Sequence[str] | None, ax: "Axes | None") -> "Axes":
    """Draw a tree of which only the rules are known."""
    if tree.batch_shape:
        raise ValueError(f"tree must be a single tree; got a batch of shape {tree.batch_shape}.")
    if rank != 0:
        raise ValueError(f"rank must be 0 for a bare tree; got {rank}.")
    num_features = int(tree.feature.max()) + 1
    names = [f"x{feature}" for feature in range(num_features)] if names is None else list(names)
    if len(names) < num_features:
        raise ValueError(f"names has {len(names)} names for {num_features} features.")
    is_split = tree.feature >= 0
    goes_left = is_split & tree.splits.goes_left(np.nan)
    show_missing = np.isin(np.arange(len(names)), tree.feature[goes_left])
    rules, leaf_text = [""] * tree.capacity, [""] * tree.capacity
    for slot in range(int(tree.num_nodes)):
        if is_split[slot]:
            rules[slot] = tree.condition(slot, True, names, show_missing=show_missing)
        else:
            leaf_text[slot] = f"leaf {slot}"
    everywhere = np.ones(tree.capacity, bool)
    drawing = TreeDrawing(tree, rules, everywhere, leaf_text, PlainLeaves())
    drawn = _new_axes([drawing], [""])[0] if ax is None else ax
    drawing.draw(drawn, has_legend=False)
    return drawn


def _drawings(model: Any, ranked: RankedTrees) -> list[TreeDrawing]:
    """Prepare trees for drawing; those of a regression share one scale."""
    design = model.design_
    make_leaves = _class_leaves if model.is_classifier else _real_leaves
    drawings = []
    for rank, leaves in enumerate(make_leaves(model, ranked)):
        tree = ranked.trees[rank]
        num_rows = model._rows_of_slots(tree)
        rules, leaf_text = [""] * tree.capacity, [""] * tree.capacity
        for slot in range(int(tree.num_nodes)):
            if tree.feature[slot] < 0:
                leaf_text[slot] = f"{leaves.text(slot)}\nn = {num_rows[slot]:.0f}"
            else:
                rules[slot] = _rule(model.schema_, design, tree, slot)
        drawings.append(TreeDrawing(tree, rules, _yes_is_left(design, tree), leaf_text, leaves))
    return drawings


def _yes_is_left(design: Design, tree: Tree) -> np.ndarray:
    """Return whether rows that satisfy the printed rule go left, bool [k]."""
    return (tree.feature < 0) | ~design.is_indicator[tree.feature]


def _rule(schema: Schema, design: Design, tree: Tree, slot: int) -> str:
    """Write the condition for the "yes" side of a split."""
    is_left = bool(_yes_is_left(design, tree)[slot])
    split = tree.split(slot)
    rule = split.text(is_left, design.names, design=design, schema=schema)
    if design.has_missing[split.feature] and split.goes_left(np.nan) != is_left:
        rule += " and not missing"
    return rule


def _class_leaves(model: Any, ranked: RankedTrees) -> list[ClassPanels]:
    with jax.enable_x64(True):
        probability = np.asarray(model.leaf_.posterior_mean(ranked.statistics))
    names = [str(name) for name in model.classes_]
    return [ClassPanels(each, names) for each in probability]


def _real_leaves(model: Any, ranked: RankedTrees) -> list[RealPanels]:
    """Return means and intervals of all trees, and a scale that contains all of them."""
    is_leaf = ranked.trees.is_leaf
    num_leaves = int(is_leaf.sum())
    alone = csr_array(eye_array(num_leaves))
    predictive = LeafMixture(model.leaf_, ranked.statistics[is_leaf], alone, np.arange(num_leaves))
    mean, interval = np.full(is_leaf.shape, np.nan), np.full((*is_leaf.shape, 2), np.nan)
    mean[is_leaf] = predictive.mean()
    interval[is_leaf] = predictive.quantiles([(1 - _COVERED) / 2, (1 + _COVERED) / 2])
    room = 0.05 * (np.nanmax(interval) - np.nanmin(interval))
    limits = (float(np.nanmin(interval) - room), float(np.nanmax(interval) + room))
    return [
        RealPanels(each, ends, _COVERED, limits) for each, ends in zip(mean, interval, strict=True)
    ]


def _new_axes(drawings: Sequence[TreeDrawing], titles: Sequence[str]) -> np.ndarray:
    """Make axes of a new figure with enough room for each tree and its title."""
    import matplotlib.pyplot as plt

    sizes = np.array([drawing.size() for drawing in drawings])
    titles_width = [text_width(title, _TITLE_SIZE) for title in titles]
    sizes[:, 0] = np.maximum(sizes[:, 0], titles_width)
    # The fewest columns for each number of rows leave no row much shorter than another.
    balanced = dict.fromkeys(-(-len(drawings) // rows) for rows in range(1, len(drawings) + 1))
    for num_columns in balanced:
        rows = -(-len(drawings) // num_columns)
        padded = np.zeros((rows * num_columns, 2))
        padded[: len(drawings)] = sizes
        widths = padded[:, 0].reshape(rows, num_columns).max(axis=0) + 2 * FONT_SIZE
        heights = padded[:, 1].reshape(rows, num_columns).max(axis=1) + _TITLE_HEIGHT
        if widths.sum() <= _WIDEST_ROW:
            break
    total_width, total_height = widths.sum(), heights.sum()
    figure = plt.figure(figsize=(total_width / _TEXT_POINTS, total_height / _TEXT_POINTS))
    lefts = np.cumsum(widths) - widths
    tops = np.cumsum(heights) - heights
    axes = np.empty(len(drawings), object)
    for index in range(len(drawings)):
        row, column = divmod(index, num_columns)
        axes[index] = figure.add_axes(
            (
                (lefts[column] + FONT_SIZE) / total_width,
                1 - (tops[row] + heights[row]) / total_height,
                (widths[column] - 2 * FONT_SIZE) / total_width,
                (heights[row] - _TITLE_HEIGHT) / total_height,
            )
        )
    return axes


def _require_estimator(model: Any) -> None:
    if isinstance(model, Tree):
        raise TypeError("model must be a fitted estimator; got a Tree, which plot_tree draws.")
    _require_hard(model)


def _require_hard(model: Any) -> None:
    if model.trees_are == "soft":
        raise TypeError(
            f"Hard trees are needed; a {type(model).__name__} has soft ones: use plot_topologies."
        )
    if model.trees_are == "sums":
        raise TypeError(
            f"Single trees are needed; a {type(model).__name__} has sums of many: use "
            "plot_partial_dependence."
        )
