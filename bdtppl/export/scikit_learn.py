"""Trees as scikit-learn's: what reads those can read ours (plots, ONNX, other explainers).

scikit-learn rounds values to single precision and sends value <= threshold to the left, ours are
doubles of which value < threshold goes left. So each threshold is replaced by a single-precision
number that parts the training rows of its node alike.
"""

from typing import Any, cast

import numpy as np
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor
from sklearn.tree._tree import NODE_DTYPE
from sklearn.tree._tree import Tree as ScikitLearnTree

from bdtppl.export.fitted_tree import FittedTree, take_tree
from bdtppl.models.data.splits import Split
from bdtppl.plotting.rows import training_targets

_LEAF, _NO_FEATURE = -1, -2  # scikit-learn's marks


def to_sklearn(model: Any, rank: int = 0) -> DecisionTreeClassifier | DecisionTreeRegressor:
    """Convert a tree to a fitted decision tree of scikit-learn.

    It reads the numeric features of the model, ``model.schema_.features``: for a table of numbers
    its columns, otherwise what ``model.schema_.transform(table)`` makes of it, with a 0/1 column
    for each level of a category. Leaves predict the posterior means of the class probabilities or
    the target.

    Parameters
    ----------
    model
        A fitted estimator of hard trees.
    rank
        0 for the most probable tree.

    Returns
    -------
    sklearn.tree.DecisionTreeClassifier or sklearn.tree.DecisionTreeRegressor
        The tree, with samples and impurities of the training rows.

    Raises
    ------
    TypeError
        If it is no estimator of hard trees.
    ValueError
        If there are too few trees, the tree splits by a hyperplane, or values on both sides of a
        split are the same number in single precision.

    Notes
    -----
    A value that is missing in a feature that had no missing value is refused by the model, and
    goes right in the tree.

    Examples
    --------
    >>> from bdtppl import ExactTreeRegressor
    >>> X, y = [[1.0], [2.0], [3.0], [4.0]] * 5, [0.0, 0.0, 9.0, 9.0] * 5
    >>> tree = to_sklearn(ExactTreeRegressor().fit(X, y))
    >>> tree.predict([[1.0], [4.0]]).round(2).tolist()
    [0.0, 9.0]
    """
    fitted = take_tree(model, rank)
    schema = model.schema_
    is_coded = any(column.levels is not None for column in schema.columns)
    columns, width = np.arange(len(schema.features)), len(schema.features)
    if model.columns_ is not None:  # of a sparse table it knows those alone that it splits on
        columns, width = np.asarray(model.columns_), model.n_features_in_
    elif not is_coded:  # the tree reads the table itself
        columns = np.array([position for position, *_ in schema.sources])
        width = len(schema.columns)
    is_class = fitted.classes is not None
    values = fitted.value[: fitted.tree.num_nodes]
    values = np.ascontiguousarray(values.reshape(len(values), 1, -1))
    num_classes = np.array([values.shape[2]], np.intp)
    made = ScikitLearnTree(width, num_classes, 1)
    made.__setstate__(
        {
            "max_depth": int(fitted.tree.depth),
            "node_count": len(values),
            "nodes": _nodes(fitted, columns, is_coded),
            "values": values,
        }
    )
    converted = DecisionTreeClassifier() if is_class else DecisionTreeRegressor()
    converted.tree_ = made
    converted.n_outputs_ = 1
    converted.n_features_in_ = converted.max_features_ = width
    if is_class:
        converted.classes_ = model.classes_
        converted.n_classes_ = len(model.classes_)
    if hasattr(model, "feature_names_in_") and not is_coded:
        names = model.feature_names_in_
        converted.feature_names_in_ = names  # pyright: ignore[reportAttributeAccessIssue]
    return converted


def _nodes(fitted: FittedTree, columns: np.ndarray, is_coded: bool) -> np.ndarray:
    """Write the nodes as scikit-learn stores them.

    Where the tree reads the table itself, it asks a column whether a value is missing; else the
    0/1 column that says so.
    """
    tree, model = fitted.tree, fitted.model
    matrix, weights = model.design_.matrix, model.design_.weights
    y = training_targets(model)
    nodes = np.zeros(int(tree.num_nodes), cast("np.dtype[np.void]", NODE_DTYPE))
    rows_of = {0: np.arange(len(matrix))}
    for slot, node in enumerate(nodes):  # parents have lesser slots
        rows, feature = rows_of.pop(slot), tree.feature[slot]
        node["impurity"] = _impurity(fitted, y[rows], weights[rows])
        node["n_node_samples"] = len(rows)
        node["weighted_n_node_samples"] = weights[rows].sum()
        node["left_child"] = node["right_child"] = _LEAF
        node["feature"] = node["threshold"] = _NO_FEATURE
        if feature < 0:
            continue
        value, split = matrix[rows, feature], tree.split(slot)
        goes_left = split.goes_left(value)
        left, right = int(tree.left[slot]), int(tree.right[slot])
        rows_of[left], rows_of[right] = rows[goes_left], rows[~goes_left]
        node["left_child"], node["right_child"] = left, right
        node["feature"] = columns[feature]
        _, _, is_mark = model.schema_.sources[feature]
        if is_mark and not is_coded:
            split, value = Split(feature, np.inf, False), np.zeros(1)
        name = model.schema_.features[feature]
        node["threshold"] = single_threshold(split.threshold, value, name)
        node["missing_go_to_left"] = split.goes_left(np.nan)
    return nodes


def single_threshold(threshold: float, values: np.ndarray, name: str) -> np.float32:
    """Find t such that values below a threshold are those that are at most t in float32.

    Parameters
    ----------
    threshold
        The threshold, which may be infinite.
    values
        float64 [n]; NaN is missing.
    name
        Name of the feature, for an error.

    Raises
    ------
    ValueError
        If there is no such t.

    Examples
    --------
    >>> float(single_threshold(2.5, np.array([2.0, 3.0]), "size")) < 2.5
    True
    """
    values = values[~np.isnan(values)]
    low, high = values[values < threshold], values[values >= threshold]
    with np.errstate(over="ignore"):
        below = np.float32(low.max(initial=-np.inf))
        above = np.float32(high.min(initial=np.inf))
        single = np.float32(threshold)
    if below >= above:
        raise ValueError(
            f"Column {name!r}: {low.max()} and {high.min()} lie on both sides of a split and are "
            f"one number in single precision, which scikit-learn rounds to: subtract an offset "
            f"from the column, or fit with fewer bins."
        )
    # The largest number below the threshold is right for all that single precision has.
    if single >= threshold:
        single = np.nextafter(single, np.float32(-np.inf))
    return np.clip(single, below, np.nextafter(above, np.float32(-np.inf)))


def _impurity(fitted: FittedTree, y: np.ndarray, weights: np.ndarray) -> float:
    """Gini impurity of the classes of rows, or the variance of their targets."""
    if fitted.classes is None:
        return float(np.average((y - np.average(y, weights=weights)) ** 2, weights=weights))
    share = np.bincount(y.astype(int), weights) / weights.sum()
    return float(1 - (share**2).sum())
