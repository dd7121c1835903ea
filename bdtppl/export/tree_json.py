"""Trees and sums of trees as JSON, for programs that draw or walk them."""

import json
from typing import Any

from bdtppl.export.fitted_tree import FittedTree, take_tree
from bdtppl.export.sum_tables import are_sums, sum_tables


def to_json(model: Any, rank: int = 0, *, tolerance: float = 0.01) -> str:
    """Write a tree or a sum of trees as JSON.

    A split is ``{"column", "below" or "level" or "levels", "missing", "left", "right"}``: values
    below the number, and levels other than the named ones, go left; "missing" says on which side
    rows without a value are, null where none was missing when the model was fitted; where "below"
    is null, all rows with a value are on the other side. A leaf is ``{"prediction",
    "probabilities", "rows"}``, the probabilities being those of "classes" (classification only).

    A sum of trees is written as tables of the effects of columns and of pairs of columns on its
    posterior mean, which are exact; "left_out" is the share of the variance of the posterior mean
    over up to 1,000 training rows that they leave out, at most the tolerance::

        {"format": "bdtppl sum of effects", "version": 1, "model", "link", "power", "classes",
         "left_out",
         "columns": [{"name", "cuts", "low", "high", "typical"} or {"name", "levels", "typical"}],
         "sums": [{"constant", "left_out",
                   "effects": [{"columns": [place], "table": [...], "slope"} or
                               {"columns": [first, second], "table": [[...], ...]}]}]}

    The entry of a column in tables is the number of "cuts" at or below its value, or the place of
    its level; then come that of unknown levels and, last, that of missing values. A column adds its
    entry, and "slope" times its value, not below "low" and not above "high" (0 where missing); a
    pair adds the entry of both. A row without an offset has no sum. "typical" is a value for forms.
    By "link" a sum s is the target ("identity"); its log, its "log1p" or its
    "yeo-johnson" transform of that "power", the inverse of which is near the target's median, not
    its mean; or the "logit" or "probit" of the second of "classes". Of "softmax" there is a sum for
    each class, less the mean of all. Probabilities are those at the posterior mean of the sum.

    Parameters
    ----------
    model
        A fitted estimator of hard trees, or a sum of trees.
    rank
        0 for the most probable tree.
    tolerance
        Of sums: share of the variance of the posterior mean that may be left out, in (0, 1). Pairs
        are added, the strongest first, until less is.

    Raises
    ------
    TypeError
        If it is no estimator of hard trees or sums.
    ValueError
        If there are too few trees, the tree splits by a hyperplane, or the tolerance cannot be
        reached.

    Examples
    --------
    >>> from bdtppl import ExactTreeRegressor
    >>> X, y = {"size": [1.0, 2.0, 3.0, 4.0] * 5}, [0.0, 0.0, 9.0, 9.0] * 5
    >>> tree = json.loads(to_json(ExactTreeRegressor().fit(X, y)))["tree"]
    >>> tree["column"], tree["below"], tree["missing"], tree["left"]["rows"]
    ('size', 2.5, None, 10)
    """
    if are_sums(model):
        return json.dumps(sum_tables(model, rank, tolerance), ensure_ascii=False, allow_nan=False)
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
