"""Sums of trees as a page that looks predictions up: one HTML file, without network or library."""

import json
import re
from importlib.resources import files
from typing import Any

from bdtppl.export.sum_tables import prediction_formulas, sum_tables


def to_html(model: Any, *, tolerance: float = 0.01) -> str:
    """Write a sum of trees as a page with an input for each column and the effects that add up.

    It holds the document that `to_json` describes and looks rows up in a browser, offline.

    Parameters
    ----------
    model
        A fitted sum of trees.
    tolerance
        Share of the variance of the posterior mean that may be left out, in (0, 1).

    Raises
    ------
    TypeError
        If it is no sum of trees.
    ValueError
        If tolerance is not in (0, 1) or cannot be reached, or ``groups`` have slopes.

    Examples
    --------
    >>> import numpy as np
    >>> from bdtppl import BARTRegressor
    >>> X = np.random.default_rng(0).random((60, 2))
    >>> model = BARTRegressor(target_scale="identity", random_state=0).fit(X, 3 * X[:, 0] - X[:, 1])
    >>> to_html(model).splitlines()[0]
    '<!doctype html>'
    """
    document = sum_tables(model, 0, tolerance)
    held = json.dumps(document, allow_nan=False).replace("<", "\\u003c")  # which would end a script
    sums = ", ".join(f"s{k}" for k in range(len(document["sums"])))
    predict = f"([{sums}]) => [{', '.join(prediction_formulas(document)).replace('POWER', 'POW')}]"
    predict = re.sub("EXP|ABS|SIGN|POW", lambda name: f"Math.{name[0].lower()}", predict)
    page = files("bdtppl.export").joinpath("templates/lookup.html").read_text("utf-8")
    return page.replace("{{predict}}", predict).replace("{{document}}", held)
