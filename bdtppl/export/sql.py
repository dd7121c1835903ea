"""Trees as standard SQL: a CASE expression with one line for each leaf."""

from math import isfinite
from typing import Any

from bdtppl.export.fitted_tree import take_tree
from bdtppl.export.leaf_rules import Values, leaf_rules


def to_sql(model: Any, rank: int = 0, *, probability_of: Any = None) -> str:
    """Write a tree as an SQL expression, for ``SELECT ... AS prediction FROM table``.

    It is NULL where the model would refuse a row: a value is missing (NULL) in a column that the
    row is asked for and that had no missing value when the model was fitted, or a level is unknown.

    Parameters
    ----------
    model
        A fitted estimator of hard trees.
    rank
        0 for the most probable tree.
    probability_of
        Class whose probability is to be given, in place of the most probable class.

    Raises
    ------
    TypeError
        If it is no estimator of hard trees.
    ValueError
        If there are too few trees, the tree splits by a hyperplane, or there is no such class.

    Notes
    -----
    Names stand in double quotes and text in single ones, as the standard has it (MySQL: set
    ANSI_QUOTES and NO_BACKSLASH_ESCAPES). Levels are text; those of a boolean column are 'False'
    and 'True', so cast a column that holds 0 and 1.

    Examples
    --------
    >>> from bdtppl import ExactTreeClassifier
    >>> X, y = {"body mass": [1.0, 2.0, 3.0, 4.0] * 5}, ["seal", "seal", "whale", "whale"] * 5
    >>> print(to_sql(ExactTreeClassifier().fit(X, y)))
    CASE
      WHEN "body mass" < 2.5 THEN 'seal'
      WHEN "body mass" >= 2.5 THEN 'whale'
    END
    """
    fitted = take_tree(model, rank, probability_of)
    rules = leaf_rules(fitted)
    predictions = [_literal(fitted.prediction(rule.slot, probability_of)) for rule in rules]
    if len(rules) == 1:
        return predictions[0]
    lines = [
        f"  WHEN {' AND '.join(map(_sql_condition, rule.values))} THEN {prediction}"
        for rule, prediction in zip(rules, predictions, strict=True)
    ]
    return "\n".join(["CASE", *lines, "END"])


def _sql_condition(values: Values) -> str:
    name = _quoted_name(values.column.name)
    if not values.given:
        return f"{name} IS NULL"
    if not values.is_bounded:
        return "1 = 1" if values.missing else f"{name} IS NOT NULL"
    if values.column.levels is not None:
        said = f"{name} IN ({', '.join(map(_literal, values.levels))})"
    else:
        ends = ((">=", values.low), ("<", values.high))
        said = " AND ".join(f"{name} {sign} {end!r}" for sign, end in ends if isfinite(end))
    if not values.missing:
        return said
    said = f"({said})" if " AND " in said else said
    return f"({said} OR {name} IS NULL)"


def _quoted_name(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, int | float):
        return repr(value)
    return "'" + str(value).replace("'", "''") + "'"
