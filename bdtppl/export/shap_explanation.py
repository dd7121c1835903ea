"""SHAP values of the posterior mean, as the shap package plots them.

The mean over the drawn trees is an ensemble in which a tree's predictions count by its weight, and
the SHAP values of an ensemble are the sums of its trees'. So the trees, with weighted predictions,
are handed to the explainer as they are, in double precision. Those of sums of trees are found here.

References
----------
Lundberg et al. 2020, From local explanations to global understanding with explainable AI for trees.
"""

from importlib.util import find_spec
from typing import Any

import jax
import numpy as np

from bdtppl.estimators.parameters import require_level
from bdtppl.export.fitted_tree import require_axis_splits, require_hard_trees
from bdtppl.export.sum_tables import are_sums
from bdtppl.inference.predictive.many_rows import by_rows
from bdtppl.models.hard.tree import Tree, route
from bdtppl.plotting.rows import Rows

_MOST_ERROR = 1e-6  # of the largest prediction, by which the values of a row may miss their sum
_BACKGROUND_ROWS = 100


def shap_values(
    model: Any, X: Any, *, background: Any = None, label: Any = None, level: float = 0.9
) -> Any:
    """Share out what moves each row's prediction away from the average one among the features.

    The prediction is the mean over the trees of ``model.posterior_``: that of ``model.predict`` or
    ``predict_proba`` itself, except for exact estimators, which predict by all trees there are, of
    which these are draws. Dependence among features is that of the training rows in the nodes (the
    "tree_path_dependent" values).

    Of sums of trees it is the posterior mean of the sum: of two classes log odds (or probits), of
    numbers on the scale ``target_scale_``; of more classes the sum of one less the mean of all. A
    column that is not known has the values of background rows (the "interventional" values), and
    there is an interval over the draws.

    Parameters
    ----------
    model
        A fitted estimator of hard trees, or a sum of trees.
    X
        Rows [m].
    background
        Of sums of trees: rows of a table. Default: up to 100 of the training rows.
    label
        Of sums of trees for more than two classes: that whose sum it is.
    level
        Of sums of trees: probability of the intervals, in (0, 1).

    Returns
    -------
    shap.Explanation
        ``values`` float64 [m, d], or [m, d, c] for class probabilities; ``base_values`` [m] or
        [m, c]; ``data`` [m, d] and ``feature_names``, with 0/1 columns for the levels of
        categories, as ``model.schema_.features`` names them. What `shap.plots` take. Of sums of
        trees they are by column of the table, and ``lower_bounds`` and ``upper_bounds`` [m, d] are
        the intervals.

    Raises
    ------
    ImportError
        If the shap package is not installed.
    TypeError
        If it is neither an estimator of hard trees nor a sum of trees, or an argument is for sums.
    ValueError
        If a tree splits by a hyperplane, or has paths of so many features that the shap package
        loses precision.

    Examples
    --------
    >>> from bdtppl import GreedyModalTreeRegressor
    >>> X, y = [[1.0], [2.0], [3.0], [4.0]] * 5, [0.0, 0.0, 9.0, 9.0] * 5
    >>> model = GreedyModalTreeRegressor().fit(X, y)
    >>> explained = shap_values(model, X)
    >>> total = explained.base_values + explained.values.sum(axis=1)
    >>> np.allclose(total, model.predict(X))
    True
    """
    if not are_sums(model):
        require_hard_trees(model)
        if background is not None or label is not None or level != 0.9:
            raise TypeError("background, label and level are for sums of trees.")
    if find_spec("shap") is None:
        raise ImportError(
            "SHAP values are computed by the shap package, which is not installed: run `python -m "
            "pip install 'bdtppl[export]'`."
        )
    import shap  # pyright: ignore[reportMissingImports]

    if are_sums(model):
        return _explained_sums(model, X, background, label, level)
    posterior = model.posterior_
    ranked = posterior.ranked
    require_axis_splits(model, ranked.trees)
    names = model.schema_.features
    matrix = model._matrix(X)[:, : len(names)]
    rows = _rows_of_slots(ranked.trees, model.design_.matrix, model.design_.weights)
    with jax.enable_x64(True):
        means = np.asarray(model.leaf_.posterior_mean(ranked.statistics))
    trees = [
        _tree(ranked.trees[i], weight * means[i], rows[i])
        for i, weight in enumerate(ranked.probability)
    ]
    ensemble = {"trees": trees, "internal_dtype": np.float64, "input_dtype": np.float64}
    explainer = shap.TreeExplainer(ensemble, feature_names=list(names))
    # Its own check is of absolute errors, which fails where targets are large.
    explained = explainer(matrix, check_additivity=False)
    _require_sums(explained, np.asarray(explainer.model.predict(matrix)), ranked.trees)
    return explained


def _explained_sums(model: Any, X: Any, background: Any, label: Any, level: float) -> Any:
    import shap  # pyright: ignore[reportMissingImports]

    require_level(level)
    effects, rows, matrix = model._sum_effects(label), Rows.of(model, X), model._matrix(X)
    if background is None:
        some = np.unique(np.linspace(0, len(effects.matrix) - 1, _BACKGROUND_ROWS).astype(int))
        others = effects.matrix[some]
    else:
        others = model._matrix(background)

    def summed(piece: slice) -> np.ndarray:
        draws = effects.shapley(matrix[piece], others)
        ends = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2], axis=0)
        return np.stack([draws.mean(axis=0), *ends], axis=1)

    bytes_a_row = 32 * model.posterior_.variance.size * len(rows.names)
    values, low, high = np.moveaxis(by_rows(summed, len(matrix), bytes_a_row), 1, 0)
    base = effects.at(others).mean()
    return shap.Explanation(
        values,
        base_values=np.full(len(matrix), base),
        data=np.column_stack([column.astype(object) for column in rows.columns]),
        feature_names=list(rows.names),
        lower_bounds=low,
        upper_bounds=high,
    )


def _require_sums(explained: Any, predicted: np.ndarray, trees: Tree) -> None:
    """Raise ValueError unless values and base values [m] or [m, c] add up to predictions."""
    total = explained.base_values + explained.values.sum(axis=1)
    error = np.abs(total - predicted.reshape(total.shape)).reshape(len(total), -1).max(axis=1)
    if error.max() > _MOST_ERROR * np.abs(predicted).max():
        raise ValueError(
            f"The SHAP values of row {error.argmax()} miss its prediction by {error.max():.2g}: "
            f"the trees have up to {np.max(trees.depth)} levels, and the shap package loses all "
            f"digits on paths of more than some 45 features. Fit with a max_depth below that."
        )


def _tree(tree: Tree, value: np.ndarray, rows: np.ndarray) -> dict[str, np.ndarray]:
    """Write a tree as the explainer reads it: values that are at most a threshold go left."""
    num_nodes = int(tree.num_nodes)
    splits = tree.feature[:num_nodes] >= 0
    left = np.where(splits, tree.left[:num_nodes], -1)
    right = np.where(splits, tree.right[:num_nodes], -1)
    below = np.nextafter(tree.threshold[:num_nodes], -np.inf)
    return {
        "children_left": left,
        "children_right": right,
        "children_default": np.where(tree.splits.goes_left(np.nan)[:num_nodes], left, right),
        "features": np.where(splits, tree.feature[:num_nodes], -2),
        "thresholds": np.where(splits, below, -2.0),
        "values": value[:num_nodes].reshape(num_nodes, -1),
        "node_sample_weight": rows[:num_nodes],
    }


def _rows_of_slots(trees: Tree, matrix: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Count the rows that pass each slot of trees [t], by their weights, float64 [t, k]."""
    num_trees, capacity = trees.feature.shape
    slots = route(trees, matrix) + capacity * np.arange(num_trees)[:, None]
    repeats = np.tile(weights, num_trees)
    rows = np.bincount(slots.ravel(), repeats, minlength=num_trees * capacity)
    rows = rows.reshape(num_trees, capacity)
    every = np.arange(num_trees)
    for slot in reversed(range(capacity)):  # children have greater slots
        own = every[trees.feature[:, slot] >= 0]
        rows[own, slot] = rows[own, trees.left[own, slot]] + rows[own, trees.right[own, slot]]
    return rows
