"""Trees as JSON, for programs that draw or walk them."""

import json
from typing import Any

from bdtppl.export.fitted_tree import FittedTree, take_tree


def to_json(model: Any, rank: int = 0) -> str:
    """Write a tree as JSON.

    A split is ``{"column", "below" or "level" or "levels", "missing", "left", "right"}``: values
    below the number, and levels other than the named ones, go left; "missing" says on which side
    rows without a value are, null where none was missing when the model was fitted; where "below"
    is null, all rows with a value are on the other side. A leaf is ``{"prediction",
    "probabilities", "rows"}``, the probabilities being those of "classes" (classification only).

    Parameters
    ----------
    model
        A fitted estimator of hard trees.
    rank
        0 for the most probable tree.

    Raises
    ------
    TypeError
        If it is no estimator of hard trees.
    ValueError
        If there are too few trees, or the tree splits by a hyperplane.

    Examples
    --------
    >>> from bdtppl import ExactTreeRegressor
    >>> X, y = {"size": [1.0, 2.0, 3.0, 4.0] * 5}, [0.0, 0.0, 9.0, 9.0] * 5
    >>> tree = json.loads(to_json(ExactTreeRegressor().fit(X, y)))["tree"]
    >>> tree["column"], tree["below"], tree["missing"], tree["left"]["rows"]
    ('size', 2.5, None, 10)
    """
    fitted = take_tree(model, rank)
    document = {
        "model": type(model).__name__,
        "rank": rank,
        "probability": fitted.probability,
        "columns": model.schema_.to_json(),
        "classes": fitted.classes,
        "tree": _node_json(fitted, 0),
    }
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)


def _node_json(fitted: FittedTree, slot: int) -> dict[str, Any]:
    split = fitted.split(slot)
    if split is None:
        leaf: dict[str, Any] = {"prediction": fitted.prediction(slot)}
        if fitted.classes is not None:
            leaf["probabilities"] = fitted.value[slot].tolist()
        return {**leaf, "rows": int(fitted.rows[slot])}
    return {
        **split.to_json(),
        "left": _node_json(fitted, int(fitted.tree.left[slot])),
        "right": _node_json(fitted, int(fitted.tree.right[slot])),
    }
