"""Trees as Python source: a function that imports nothing."""

import keyword
import re
from collections.abc import Iterable
from typing import Any

from bdtppl.export.fitted_tree import take_tree
from bdtppl.export.leaf_rules import LeafRule, Values, leaf_rules, used_columns
from bdtppl.models.data.schema import Column

_HEAD = '''\
def {name}(row):
    """Predict {what} by one tree.

    {title}.
    ``row`` maps names of columns to values, None or NaN where one is missing.
    """
'''
_NUMBER = """\
    def number(value):
        return float("nan") if value is None else float(value)

"""
_TEXT = """\
    def text(value):
        return None if value is None or value != value else str(value)

"""
_REFUSAL = """\
    raise ValueError("No rule says where this row goes: a value is missing or unknown.")
"""
_RESERVED = {"row", "number", "text", "float", "str"}


def to_python(
    model: Any, rank: int = 0, *, name: str = "predict", probability_of: Any = None
) -> str:
    """Write a tree as the source of a Python function of one row, which imports nothing.

    The function takes a mapping from names of columns (x0, x1, ... where the table had none) to
    values, and raises ValueError where the model would refuse the row: a value is missing in a
    column that the row is asked for and that had no missing value when the model was fitted, or a
    level is unknown.

    Parameters
    ----------
    model
        A fitted estimator of hard trees.
    rank
        0 for the most probable tree.
    name
        Name of the function.
    probability_of
        Class whose probability is to be given, in place of the most probable class.

    Raises
    ------
    TypeError
        If it is no estimator of hard trees.
    ValueError
        If there are too few trees, the tree splits by a hyperplane, there is no such class, or the
        name is none that a function can have.

    Examples
    --------
    >>> from bdtppl import ExactTreeClassifier
    >>> X, y = {"body mass": [1.0, 2.0, 3.0, 4.0] * 5}, ["seal", "seal", "whale", "whale"] * 5
    >>> source = to_python(ExactTreeClassifier().fit(X, y))
    >>> print(source[source.index("body_mass") :].rstrip())
    body_mass = number(row['body mass'])
        if body_mass < 2.5:
            return 'seal'
        if body_mass >= 2.5:
            return 'whale'
        raise ValueError("No rule says where this row goes: a value is missing or unknown.")
    """
    if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
        raise ValueError(f"name must be one that a function can have; got {name!r}.")
    fitted = take_tree(model, rank, probability_of)
    rules = leaf_rules(fitted)
    columns = used_columns(rules)
    variables = _variables(columns)
    what = "the mean of the target" if fitted.classes is None else "the most probable class"
    if probability_of is not None:
        what = "the probability of a class"
    parts = [_HEAD.format(name=name, what=what, title=fitted.title)]
    kinds = {column.levels is None for column in columns}
    parts += [_NUMBER] * (True in kinds) + [_TEXT] * (False in kinds)
    for column in columns:
        reader = "number" if column.levels is None else "text"
        parts.append(f"    {variables[column.name]} = {reader}(row[{column.name!r}])\n")
    for rule in rules:
        parts.append(_branch(rule, repr(fitted.prediction(rule.slot, probability_of)), variables))
    return "".join([*parts, _REFUSAL] if len(rules) > 1 else parts)


def _branch(rule: LeafRule, prediction: str, variables: dict[str, str]) -> str:
    conditions = [_condition(values, variables[values.column.name]) for values in rule.values]
    if not conditions:
        return f"    return {prediction}\n"
    return f"    if {' and '.join(conditions)}:\n        return {prediction}\n"


def _condition(values: Values, variable: str) -> str:
    if values.column.levels is not None:
        accepted = [*map(repr, values.levels), *(["None"] if values.missing else [])]
        if len(accepted) == 1:
            sign = "is" if values.missing else "=="
            return f"{variable} {sign} {accepted[0]}"
        return f"{variable} in ({', '.join(accepted)})"
    is_missing = f"{variable} != {variable}"  # NaN
    if not values.given:
        return is_missing
    if not values.is_bounded:
        return "True" if values.missing else f"{variable} == {variable}"
    if values.low == -float("inf"):
        said = f"{variable} < {values.high!r}"
    elif values.high == float("inf"):
        said = f"{variable} >= {values.low!r}"
    else:
        said = f"{values.low!r} <= {variable} < {values.high!r}"
    return f"({said} or {is_missing})" if values.missing else said


def _variables(columns: Iterable[Column]) -> dict[str, str]:
    """Give each column a name that a variable can have, near to its own."""
    variables: dict[str, str] = {}
    taken = set(_RESERVED)
    for column in columns:
        stem = re.sub(r"\W+", "_", column.name, flags=re.ASCII).strip("_") or "column"
        if stem[0].isdigit() or keyword.iskeyword(stem):
            stem = f"column_{stem}"
        name, number = stem, 2
        while name in taken:
            name, number = f"{stem}_{number}", number + 1
        variables[column.name] = name
        taken.add(name)
    return variables
