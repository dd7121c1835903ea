"""Trees as standard SQL: a CASE expression with one line for each leaf; and sums as lookups."""

from math import isfinite
from typing import Any

from bdtppl.export.fitted_tree import class_place, take_tree
from bdtppl.export.leaf_rules import Values, leaf_rules
from bdtppl.export.sum_tables import are_sums, prediction_formulas, sum_tables

_TERMS_TOGETHER = 100  # for databases bound the depth of expressions


def to_sql(
    model: Any, rank: int = 0, *, probability_of: Any = None, tolerance: float = 0.01
) -> str:
    """Write a tree or a sum of trees as an SQL expression, for ``SELECT ... AS y FROM table``.

    It is NULL where the model would refuse a row: a value is missing (NULL) in a column that the
    row is asked for and that had no missing value when the model was fitted, or a level is unknown.

    A sum of trees becomes the lookups that `to_json` describes, in a scalar subquery, and a comment
    says what they leave out. Its missing values and unknown levels count as in ``predict``.

    Parameters
    ----------
    model
        A fitted estimator of hard trees, or a sum of trees.
    rank
        0 for the most probable tree.
    probability_of
        Class whose probability is to be given, in place of the most probable class.
    tolerance
        Of sums: share of the variance of the posterior mean that may be left out, in (0, 1).

    Raises
    ------
    TypeError
        If it is no estimator of hard trees or sums.
    ValueError
        If there are too few trees, the tree splits by a hyperplane, there is no such class, or the
        tolerance cannot be reached.

    Notes
    -----
    Predictions of sums need EXP, and on the scale "yeo-johnson" POWER and SIGN (of probits SIGN).
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
    if are_sums(model):
        return _sum_sql(sum_tables(model, rank, tolerance), probability_of)
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


def _sum_sql(document: dict[str, Any], probability_of: Any) -> str:
    """Write a document of tables in nested queries: entries of tables, sums, and the prediction."""
    classes, formulas, entries = document["classes"], prediction_formulas(document), []
    prediction = formulas[0 if probability_of is None else class_place(classes, probability_of)]
    if classes is not None and probability_of is None:
        sums = (
            ["0", "s0"] if document["link"] != "softmax" else [f"s{k}" for k in range(len(classes))]
        )
        tests = (" AND ".join(f"{own} >= {other}" for other in sums) for own in sums)
        cases = zip(tests, map(_literal, classes), strict=True)
        prediction = f"CASE {' '.join(f'WHEN {test} THEN {label}' for test, label in cases)} END"
    for place, column in enumerate(document["columns"]):
        name, sign = _quoted_name(column["name"]), "=" if "levels" in column else "<"
        states = column.get("levels", column.get("cuts"))
        tests = (f"{name} {sign} {_literal(state)}" for state in states)
        whens = "".join(f" WHEN {test} THEN {i}" for i, test in enumerate(tests))
        missing = f"WHEN {name} IS NULL THEN {len(states) + 1}"
        entries.append(f"CASE {missing}{whens} ELSE {len(states)} END AS b{place}")
        ends = [(sign, column.get(end)) for sign, end in (("<", "low"), (">", "high"))]
        kept = "".join(
            f" WHEN {name} {sign} {end!r} THEN {end!r}" for sign, end in ends if end is not None
        )
        if "cuts" in column:
            entries.append(f"CASE WHEN {name} IS NULL THEN 0{kept} ELSE {name} END AS x{place}")
    totals = [f"{_sum_of_lookups(each)} AS s{k}" for k, each in enumerate(document["sums"])]
    return (
        f"/* {document['model']}: effects of columns and of pairs of columns, which leave out "
        f"{100 * document['left_out']:.3g} % of the variance of the posterior mean */\n"
        f"(SELECT {prediction} FROM\n(SELECT {', '.join(totals)} FROM\n"
        f"(SELECT {', '.join(entries) or '0 AS b0'}) AS b) AS s)"
    )


def _sum_of_lookups(each: dict[str, Any]) -> str:
    terms = [repr(each["constant"])]
    for effect in each["effects"]:
        terms.append(_lookup(effect["columns"], effect["table"]))
        if slope := effect.get("slope"):
            terms.append(f"{slope!r} * x{effect['columns'][0]}")
    parts = range(0, len(terms), _TERMS_TOGETHER)
    return " + ".join(f"({' + '.join(terms[i : i + _TERMS_TOGETHER])})" for i in parts)


def _lookup(columns: list[int], table: Any) -> str:
    if not columns:
        return _literal(table)
    values = enumerate(_lookup(columns[1:], each) for each in table)
    return f"CASE b{columns[0]}{''.join(f' WHEN {i} THEN {value}' for i, value in values)} END"


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
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, int | float):
        return repr(value)
    return "'" + str(value).replace("'", "''") + "'"
