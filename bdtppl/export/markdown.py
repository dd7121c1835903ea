"""Trees as Markdown: a table with one line for each leaf."""

import re
from typing import Any

from bdtppl.export.fitted_tree import FittedTree, take_tree
from bdtppl.export.leaf_rules import Values, leaf_rules
from bdtppl.models.wording import number


def to_markdown(model: Any, rank: int = 0) -> str:
    """Write a tree as a Markdown table: when, what is predicted, and for how many training rows.

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
    >>> from bdtppl import ExactTreeClassifier
    >>> model = ExactTreeClassifier().fit({"size": [1.0, 2.0, 3.0, 4.0]}, ["a", "a", "b", "b"])
    >>> print(to_markdown(model))  # doctest: +ELLIPSIS
    **ExactTreeClassifier, most probable tree (posterior probability ...)**
    <BLANKLINE>
    | when | prediction | probability | rows |
    |:--|:--|--:|--:|
    | size < 2.5 | a | 0.75 | 2 |
    | size >= 2.5 | b | 0.75 | 2 |
    """
    fitted = take_tree(model, rank)
    is_class = fitted.classes is not None
    head = ["when", "prediction", *(["probability"] if is_class else []), "rows"]
    aligned = [":--", ":--" if is_class else "--:", *(["--:"] if is_class else []), "--:"]
    lines = [head, aligned]
    for slot, conditions in leaf_rules(fitted):
        when = " and ".join(_markdown_condition(fitted, each) for each in conditions) or "always"
        lines.append([when, *_cells(fitted, slot), f"{fitted.rows[slot]:.0f}"])
    table = [f"| {' | '.join(cells)} |" for cells in lines]
    table[1] = f"|{'|'.join(aligned)}|"
    return "\n".join([f"**{fitted.title}**", "", *table])


def _cells(fitted: FittedTree, slot: int) -> list[str]:
    """Say what a leaf predicts."""
    prediction = fitted.prediction(slot)
    if fitted.classes is None:
        return [number(prediction)]
    return [_escaped(prediction), f"{fitted.value[slot].max():.3g}"]


def _markdown_condition(fitted: FittedTree, values: Values) -> str:
    name = _escaped(values.column.name)
    if not values.given:
        return f"{name} is missing"
    if not values.is_bounded:
        return f"{name} is any" if values.missing else f"{name} is given"
    if values.column.levels is not None:
        others = [level for level in values.column.levels if level not in values.levels]
        if len(others) < len(values.levels):
            said = f"{name} is not {_bullet_list(others)}"
        else:
            said = f"{name} is {_bullet_list(values.levels)}"
    else:
        low, high = (fitted.threshold_text(values.column, end) for end in (values.low, values.high))
        if values.low == -float("inf"):
            said = f"{name} < {high}"
        elif values.high == float("inf"):
            said = f"{name} >= {low}"
        else:
            said = f"{low} <= {name} < {high}"
    return f"({said} or missing)" if values.missing else said


def _bullet_list(levels: Any) -> str:
    return " or ".join(map(_escaped, levels))


def _escaped(text: Any) -> str:
    """Keep names and labels from being taken for markup."""
    return re.sub(r"([\\`*_\[\]<>|~$&#])", r"\\\1", " ".join(str(text).split()))
