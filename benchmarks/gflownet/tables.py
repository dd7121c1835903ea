"""Tables 1, 2, 3, 4 and 10 of the DT-GFN paper beside the printed figures.

The paper counts 63 nodes at depth 5, its code 31: 5 levels of splits, or 4. Both are run.
"""

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from sklearn.metrics import f1_score

from bdtppl import ExactTreeClassifier, GFlowNetTreeClassifier
from bdtppl.anomalies import PermutedColumns, find_anomalies
from benchmarks.gflownet import published
from benchmarks.gflownet.models import (
    SINGLE_TREES,
    Runs,
    Score,
    best_tree,
    ensemble,
    fitted,
    inferences,
    model_of,
    of_package,
    packages,
    plain_mean,
)
from benchmarks.gflownet.problems import (
    ANOMALIES,
    Division,
    anomalies,
    divided,
    shifted,
    table,
)
from benchmarks.text_table import print_table

__all__ = ["available", "table_10", "table_3", "table_4", "tables_1_and_2"]

Row = dict[str, list[Score | None]]


def available(names: Iterable[str]) -> list[str]:
    """Keep the sets that are there, and say where the others can be had."""
    found = []
    for name in names:
        try:
            table(name)
            found.append(name)
        except FileNotFoundError as missing:
            print(f"{name} is left out: {missing}\n")
    return found


def _show(scores: Sequence[Score | None]) -> list[str]:
    """Means over seeds: accuracy with its standard deviation, size, and trees that weigh."""
    found = [score for score in scores if score is not None]
    if not found:
        return ["does not fit", "", ""]
    accuracy = [score.accuracy for score in found]
    spread = f" ({statistics.stdev(accuracy):.3f})" if len(found) > 1 else ""
    sizes = [score.size for score in found if score.size is not None]
    effective = [score.effective for score in found if score.effective is not None]
    return [
        f"{statistics.mean(accuracy):.3f}{spread}",
        f"{statistics.mean(sizes):.1f}" if sizes else "",
        f"{statistics.mean(effective):.0f}" if effective else "",
    ]


def _printed(row: Sequence | None, place: int) -> list[str]:
    if row is None or row[place] is None:
        return ["", ""]
    cell = row[place]
    accuracy, size = cell if isinstance(cell, tuple) else (cell, None)
    return ["" if value is None else f"{value:g}" for value in (accuracy, size)]


def _print_set(title: str, rows: Row, printed: dict[str, Sequence], place: int) -> None:
    """Print what was computed beside the figures at a place of rows, then rows that are quoted."""
    table_rows = [
        [method, *_show(scores), *_printed(printed.get(_PRINTED_AS.get(method, method)), place)]
        for method, scores in rows.items()
    ]
    shown = {_PRINTED_AS.get(method, method) for method in rows}
    for method, row in printed.items():
        if method not in shown:
            table_rows.append([f"{method} (quoted)", "", "", "", *_printed(row, place)])
    headings = ["", "accuracy (s.d.)", "nodes", "effective trees", "printed", "nodes"]
    print_table(title, headings, table_rows)


_PRINTED_AS = {
    f"{method}, {depth} levels": published_name
    for depth in (4, 5)
    for method, published_name in (
        ("DT-GFN, Table 5", "DT-GFN"),
        ("SMC", "SMC"),
        ("MCMC", "MCMC"),
    )
}


def _inferred(
    divisions: Sequence[Division],
    scores: Sequence[Callable[[Any, Division], Score | None]],
    runs: Runs,
) -> list[Row]:
    """Fit every inference at depths in levels of splits, and score each fit in several ways."""
    rows: list[Row] = [{} for _ in scores]
    for depth in runs.depths:
        for data in divisions:
            made = inferences(runs, data.X, np.unique(data.y), max_depth=depth)
            for name, model in made.items():
                found = fitted(name, model, data)
                for row, score in zip(rows, scores, strict=True):
                    own = None if found is None else score(found, data)
                    row.setdefault(f"{name}, {depth} levels", []).append(own)
    return rows


def tables_1_and_2(names: Sequence[str], seeds: Sequence[int], runs: Runs) -> None:
    """Single trees, the best log posterior of 1,000 draws, and averages of these draws.

    Both are of the same fits. Ensembles of inferences are Bayesian model averages, those of
    packages have 1,000 trees.
    """
    for name in names:
        divisions = [divided(name, seed) for seed in seeds]
        single, averages, plain = _inferred(divisions, (best_tree, ensemble, plain_mean), runs)
        averages |= {f"{name}, plain mean": row for name, row in plain.items() if any(row)}
        for cart, of in SINGLE_TREES.items():
            single[cart] = [of(data) for data in divisions]
        for package in packages():
            averages[package] = [
                of_package(package, packages(seed)[package], data)
                for seed, data in zip(seeds, divisions, strict=True)
            ]
        place = _SETS.index(name)
        _print_set(f"Table 1, single trees: {name}", single, published.TABLE_1, place)
        _print_set(f"Table 2, ensembles: {name}", averages, published.TABLE_2, place)


def table_3(runs: Runs) -> None:
    """Shifts of BMI and of age: accuracy below the limit, where training rows lie, and above."""
    columns: dict[str, list[str]] = {}
    for feature in ("BMI", "age"):
        data, X_beyond, y_beyond = shifted(feature)
        beyond = data._replace(X_test=X_beyond, y_test=y_beyond)
        found: dict[str, list[str]] = {}
        for depth in runs.depths:
            made = inferences(runs, data.X, np.unique(data.y), max_depth=depth)
            for name, model in made.items():
                model = fitted(name, model, data)
                own = ["does not fit", ""]
                if model is not None:
                    own = [f"{ensemble(model, each).accuracy:.3f}" for each in (data, beyond)]
                found[f"{name}, {depth} levels"] = own
        for name in packages():
            model = packages()[name]
            own = [of_package(name, model, each).accuracy for each in (data, beyond)]
            found[name] = [f"{accuracy:.3f}" for accuracy in own]
        for name, own in found.items():
            columns.setdefault(name, []).extend(own)
    rows = []
    for name, own in columns.items():
        printed = published.TABLE_3.get(_PRINTED_AS.get(name, name), ("",) * 4)
        rows.append([name, *own, *(f"{value}" for value in printed)])
    headings = [f"{feature} {place}" for feature in ("BMI", "age") for place in ("<=", ">")]
    print_table(
        "Table 3, accuracy under shifts (of BMI at 30, of age at 29; training rows below)",
        ["", *headings, *(f"printed {heading}" for heading in headings)],
        rows,
    )


def table_4(names: Sequence[str], seeds: Sequence[int], depth: int, steps: int) -> None:
    """F1 scores of anomalies, by the paper's rule; trained on normal rows alone.

    The paper takes one tree: the mean over single draws stands beside the average of all. With one
    class in training no split explains anything. The most probable tree is then a single leaf, by
    which all rows have the same probability and none is anomalous; but other trees are so many that
    few draws are single leaves.
    """
    rows = []
    for place, name in enumerate(ANOMALIES):
        if name not in names:
            continue
        found: dict[str, list[tuple[float, float, float]]] = {}
        for seed in seeds:
            data = anomalies(name, seed)
            model = model_of(data.X, np.array([0, 1]), max_depth=depth, grid=99)
            each = {
                "exact posterior": ExactTreeClassifier(**model, bins=None),
                "DT-GFN": GFlowNetTreeClassifier(
                    **model, method="trajectory", steps=steps, time_limit=None
                ),
            }
            for method, one in each.items():
                fits = PermutedColumns(one, random_state=seed)
                if fitted(method, fits, data) is None:
                    continue
                first, order = fits.fits_[0], fits.orders_[0]
                single = first.posterior_.means(data.X_test[:, order])[..., 0]
                f1, *of_single = (
                    _f1_of(probability, data.y_test)
                    for probability in (
                        fits.predict_proba(data.X_test)[:, 0],
                        *single.reshape(-1, len(data.y_test))[::10],
                    )
                )
                leaf = np.mean([(f.posterior_.trees.num_nodes == 1).mean() for f in fits.fits_])
                own = float(f1), float(np.mean(of_single)), float(leaf)
                found.setdefault(method, []).append(own)
        for method, own in found.items():
            f1, of_single, leaf = np.mean(own, axis=0)
            printed = published.TABLE_4["DT-GFN"][place] if method == "DT-GFN" else ""
            rows.append(
                [f"{name}, {method}", f"{f1:.3f}", f"{of_single:.3f}", f"{leaf:.2f}", f"{printed}"]
            )
    print_table(
        "Table 4, F1 of out-of-distribution detection",
        ["", "F1 of the average", "of single draws", "single leaves", "printed"],
        rows,
    )


def _f1_of(probability: np.ndarray, is_anomalous: np.ndarray) -> float:
    found = find_anomalies(probability).is_anomalous
    return float(f1_score(is_anomalous, found, zero_division=0.0))


def table_10(names: Sequence[str], runs: Runs) -> None:
    """Single trees on 70 % of the rows, of one division: that of the paper's Table 9.

    What is quoted of other papers has their divisions.
    """
    for name in names:
        divisions = [divided(name, _TABLE_10_SEED, 0.3)]
        (rows,) = _inferred(divisions, (best_tree,), runs)
        place = _TABLE_10_SETS.index(name)
        _print_set(f"Table 10, single trees: {name}", rows, published.TABLE_10, place)


_SETS = ("iris", "wine", "breast cancer", "raisin")
_TABLE_10_SEED = 123456789
_TABLE_10_SETS = ("iris", "wine", "breast cancer (original)", "raisin")
