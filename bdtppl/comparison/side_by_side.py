"""Which model? Evidence, leave-one-out, stacking and cross-validation, side by side.

The evidence of a model is the probability of the targets before any was seen; leave-one-out and
cross-validation measure how well a row is predicted from others. All log densities are of y in its
given units. If a quantity does not exist for a model, its cell is blank and a note states why.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table

from bdtppl.comparison.columns import (
    Cell,
    best_trees,
    cross_validate,
    evidence_cell,
    leave_one_out_cell,
    read_folds,
    stack,
    summed_cell,
)
from bdtppl.comparison.same_data import require_fitted_to, require_same_data
from bdtppl.comparison.scoring import Scored
from bdtppl.estimators.base import read_target, read_weights
from bdtppl.inference.parallel import workers
from bdtppl.models.data.tables import as_table
from bdtppl.rendering import as_text, html_table

if TYPE_CHECKING:
    import pandas as pd

LABELS = {
    "log_evidence": "log evidence",
    "map_log_joint": "best tree",
    "elpd_loo": "PSIS-LOO",
    "log_score": "log score (CV)",
    "brier": "Brier (CV)",
    "crps": "CRPS (CV)",
    "weight": "weight",
}
_WIDEST, _WIDEST_NAME = 1_000, 30  # characters
_LESS_IS_BETTER = ("brier", "crps")
_NO_TABLE = "pass X and y to cross-validate"
_NO_FOLDS = "no cross-validation was requested (cv=None)"


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Side-by-side comparison of models, displayed as a table with notes.

    Attributes
    ----------
    cells
        By model and quantity. Quantities are "log_evidence", "map_log_joint" (log joint of the best
        tree found, for hard trees), "elpd_loo" (summed over rows), "log_score" (log predictive
        density of held-out rows, summed), "brier" or "crps" (of held-out rows, their mean), and
        "weight" (stacking).
    weights_from
        The quantity that determines stacking weights: "log_score", or "elpd_loo" without
        cross-validation.
    """

    cells: Mapping[str, Mapping[str, Cell]]
    weights_from: str

    @property
    def quantities(self) -> list[str]:
        """Names of the quantities, in the table's order."""
        return list(next(iter(self.cells.values())))

    def known(self, quantity: str) -> dict[str, Cell]:
        """Return cells of a quantity that are not blank, by model.

        Raises
        ------
        ValueError
            If there is no such quantity.
        """
        if quantity not in self.quantities:
            names = ", ".join(self.quantities)
            raise ValueError(f"quantity must be one of {names}; got {quantity!r}.")
        column = {name: row[quantity] for name, row in self.cells.items()}
        return {name: cell for name, cell in column.items() if cell.value is not None}

    def best(self, quantity: str) -> str | None:
        """Name the best model by a quantity; None if no model has it or none is best."""
        cells = self.known(quantity)
        known = {name: cell.value for name, cell in cells.items() if cell.value is not None}
        if quantity == "map_log_joint":  # the same tree may have been summed in other orders
            known = {name: round(value, 6) for name, value in known.items()}
        choose = min if quantity in _LESS_IS_BETTER else max
        best = choose(known, key=known.__getitem__) if known else None
        if quantity == "map_log_joint" and any(cell.warning for cell in cells.values()):
            return None
        if quantity == "log_evidence" and best is not None:
            others = (cell.high for name, cell in cells.items() if name != best)
            if any(high is not None and high > known[best] for high in others):
                return None
        return best

    def differences(self, quantity: str) -> dict[str, Cell]:
        """Compute how far models are behind the best one by a quantity that is summed over rows.

        The standard error is that of the sum of the rows' differences, which is less than the
        models' own errors suggest, because hard rows are hard for all models.

        Parameters
        ----------
        quantity
            One that has pointwise values: "elpd_loo", "log_score", "brier" or "crps".
        """
        known, best = self.known(quantity), self.best(quantity)
        if best is None:
            return {}
        behind = {}
        for name, cell in known.items():
            if cell.pointwise is None:
                raise ValueError(f"{quantity!r} is not a sum over rows.")
            apart = cell.pointwise - known[best].pointwise
            behind[name] = summed_cell(apart, cell.weights, mean=quantity in _LESS_IS_BETTER)
        return behind

    def rows(self) -> list[dict[str, Any]]:
        """Write the table with JSON types alone, one dictionary for each model.

        Each quantity has its number and "<quantity>_se", its standard error; if the number is None,
        "<quantity>_reason" states why. Bounded numbers have "<quantity>_low" and "<quantity>_high",
        which is None without an upper bound. The best tree may have bounds, too; its number is then
        that of the best tree found.
        """
        table = []
        for name, row in self.cells.items():
            entry: dict[str, Any] = {"model": name}
            for quantity, cell in row.items():
                entry[quantity] = cell.value
                if cell.value is None:
                    entry[f"{quantity}_reason"] = cell.reason
                elif quantity not in ("weight", "map_log_joint"):
                    entry[f"{quantity}_se"] = cell.error
                if cell.high is not None:
                    high = cell.high if np.isfinite(cell.high) else None
                    bounds = {f"{quantity}_low": cell.value, f"{quantity}_high": high}
                    entry |= bounds | ({} if quantity == "map_log_joint" else {quantity: None})
            table.append(entry)
        return table

    def to_frame(self) -> "pd.DataFrame":
        """Write the table as a pandas frame with a row for each model; blank cells are NaN."""
        import pandas as pd

        rows = [
            {key: value for key, value in row.items() if not key.endswith("_reason")}
            for row in self.rows()
        ]
        return pd.DataFrame(rows).set_index("model").astype(float)

    def notes(self) -> list[str]:
        """List why cells are blank, and which numbers are unreliable."""
        blank: dict[tuple[str, str | None], list[str]] = {}
        warned: dict[str, list[str]] = {}
        for name, row in self.cells.items():
            for quantity, cell in row.items():
                if cell.value is None:
                    blank.setdefault((LABELS[quantity], cell.reason), []).append(name)
                elif cell.warning:
                    warned.setdefault(cell.warning, []).append(name)
        labels: dict[tuple[str, str | None], list[str]] = {}
        for (label, reason), names in blank.items():
            whose = "" if len(names) == len(self.cells) > 1 else f"{', '.join(names)}: "
            labels.setdefault((whose, reason), []).append(label)
        return [
            *(f"{whose}no {', '.join(of)}: {reason}" for (whose, reason), of in labels.items()),
            *(f"{', '.join(names)}: {text}" for text, names in warned.items()),
        ]

    def _texts(self) -> tuple[list[str], list[list[str]]]:
        """Return the header and rows of the table as text, with a star at the best values."""
        shown = [quantity for quantity in self.quantities if self.known(quantity)]
        rows = [
            [name]
            + [_write_cell(of, row[of]) + ("*" if self._leads(name, of) else " ") for of in shown]
            for name, row in self.cells.items()
        ]
        return ["", *(f"{LABELS[quantity]} " for quantity in shown)], rows

    def _leads(self, name: str, quantity: str) -> bool:
        several = len(self.known(quantity)) > 1 and quantity != "weight"
        return several and self.best(quantity) == name

    def _below(self) -> list[str]:
        """Write the notes below the table."""
        behind = []
        if any(self._leads(name, of) for name, row in self.cells.items() for of in row):
            behind.append("* is the best of its column.")
        for quantity in ("elpd_loo", "log_score"):
            if len(self.known(quantity)) > 1:
                apart = self.differences(quantity)
                said = [
                    f"{name} {-cell.value:.2f} ± {cell.error or 0:.2f}"
                    for name, cell in apart.items()
                    if cell.value is not None and name != self.best(quantity)
                ]
                label = LABELS[quantity]
                behind.append(f"Behind {self.best(quantity)} by {label}: {'; '.join(said)}")
        return behind + self.notes()

    def __str__(self) -> str:
        (_, *titles), rows = self._texts()
        table = Table(box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
        table.add_column("", overflow="fold", max_width=_WIDEST_NAME)
        for title in titles:
            table.add_column(title, justify="right", no_wrap=True)
        for row in rows:
            table.add_row(*row)
        # Numbers are never truncated, whatever the width of the terminal; notes wrap.
        return f"{as_text(table, _WIDEST)}\n{as_text(Group(*self._below()))}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_table(*self._texts(), self._below())


def compare(
    models: Mapping[str, Any],
    X: Any = None,
    y: Any = None,
    *,
    sample_weight: Any = None,
    cv: Any = 5,
    random_state: int = 0,
    n_jobs: int | None = None,
) -> Comparison:
    """Compare models that were fitted to the same rows.

    Parameters
    ----------
    models
        Fitted estimators by name: of hard or soft trees, greedy or amortised ones. They may be the
        last step of a scikit-learn pipeline, or inside a `TransformedTargetRegressor` that shifts
        and scales y; densities are then of y in its given units (the Jacobian is added).
    X, y
        The rows and targets that they were fitted to, for cross-validation. Without them the
        evidence, leave-one-out and stacking by leave-one-out are compared.
    sample_weight
        Weights [n] of the rows in the fits. A pipeline passes them to its last step alone.
    cv
        Number of folds, a splitter of scikit-learn's, or a list of pairs (train, test) of row
        indices. Each model is refitted for each fold, so this takes about that many times the time
        of the fits. After the first fold a forecast is written to the standard error stream, if it
        is long. None for no cross-validation.
    random_state
        Seed that assigns rows to folds, if cv is a number.
    n_jobs
        Processes that fit models and folds, as in scikit-learn: -1 for one per core. None for this
        process, or the active ``joblib.parallel_config``.

    Returns
    -------
    Comparison
        The table, with errors, differences and reasons. `bdtppl.plot_comparison` draws it.

    Raises
    ------
    TypeError
        If a model is not a fitted estimator of bdtppl.
    ValueError
        If the models were fitted to different data, or not to X and y.

    Notes
    -----
    Evidence is under the normalised prior; it is written as bounds if a search or a greedy tree
    only bounds it. The best tree is written with its log joint, as the prior counts trees, and with
    "≥" if there may be better trees. PSIS-LOO integrates out the leaves' parameters given all other
    rows. Stacking chooses weights for which the mixture of the predictives has the greatest log
    score, by cross-validation, or else by PSIS-LOO among the models that have it. The Brier score
    sums squared errors over all classes: it is at most 2.

    Examples
    --------
    >>> from bdtppl import ExactTreeClassifier, GreedyModalTreeClassifier, compare
    >>> X, y = [[1.0], [2.0], [3.0], [4.0]] * 5, ["a", "a", "b", "b"] * 5
    >>> exact, greedy = ExactTreeClassifier(random_state=0), GreedyModalTreeClassifier()
    >>> found = compare({"exact": exact.fit(X, y), "greedy": greedy.fit(X, y)}, X, y)
    >>> found.best("log_score")
    'exact'
    >>> found.cells["greedy"]["log_evidence"].high  # the number is a lower bound
    inf
    """
    if not isinstance(models, Mapping) or not models:
        raise TypeError(f"models must be a dictionary of fitted models by name; got {models!r}.")
    if (X is None) != (y is None):
        raise ValueError("X and y must be given together.")
    scored = {str(name): Scored.of(str(name), model) for name, model in models.items()}
    require_same_data(scored)
    cells: dict[str, dict[str, Cell]] = {
        name: {"log_evidence": evidence_cell(each)} for name, each in scored.items()
    }
    if any(each.estimator.trees_are == "hard" for each in scored.values()):
        for name, cell in best_trees(scored).items():
            cells[name]["map_log_joint"] = cell
    for name, each in scored.items():
        cells[name]["elpd_loo"] = leave_one_out_cell(each)
    is_classifier = next(iter(scored.values())).is_classifier
    error = "brier" if is_classifier else "crps"
    if X is None or cv is None:
        blank = Cell(reason=_NO_TABLE if X is None else _NO_FOLDS)
        held_out = {name: {"log_score": blank, error: blank} for name in scored}
    else:
        X, y = as_table(X), read_target(y)
        weights = read_weights(sample_weight, len(y))
        for name, each in scored.items():
            require_fitted_to(name, each, X, y, weights)
        folds = read_folds(cv, y, is_classifier, random_state)
        with workers(n_jobs):
            held_out = cross_validate(scored, X, y, weights, folds, error)
    for name, scores in held_out.items():
        cells[name] |= scores
    source = "elpd_loo" if next(iter(held_out.values()))["log_score"].value is None else "log_score"
    for name, weight in stack({name: row[source] for name, row in cells.items()}).items():
        cells[name]["weight"] = weight
    return Comparison(cells, source)


def _write_cell(quantity: str, cell: Cell) -> str:
    if cell.value is None:
        return "-"
    if quantity == "weight":
        return f"{cell.value:.2f}"
    style = {"brier": ".4f", "crps": ".4g"}.get(quantity, ".2f")
    if cell.high is not None:
        if np.isinf(cell.high):
            return f"≥ {cell.value:{style}}"
        return f"{cell.value:{style}} to {cell.high:{style}}"
    error = f" ± {cell.error:{style}}" if cell.error else ""
    return f"{cell.value:{style}}{error}"
