"""Tables 1 to 4 and 10 of the DT-GFN paper: single trees, ensembles, shifts and anomalies."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from sklearn.metrics import f1_score

from bdtppl.anomalies import PermutedColumns, find_anomalies
from benchmarks.gflownet import published
from benchmarks.gflownet.models import (
    PACKAGES,
    SCORINGS,
    SINGLE_TREES,
    Score,
    best_tree,
    ensemble,
    inference,
    of_package,
    package,
    plain_mean,
    scorings,
)
from benchmarks.gflownet.problems import ANOMALIES, SEEDS, SETS, anomalies, divided, shifted, table
from benchmarks.reproduce.experiments import Experiment, Printed, Table, Task, cells_of, key_of

__all__ = ["DT_GFN_TABLES", "PAPER"]

PAPER = "Mahfoud, Boukachab, Koziarski et al. 2025: DT-GFN"

_RUNS = (1, 2, 3)  # where the paper has one division
_SPLIT_SEED = 123456789  # of Table 10
_SETS_10 = ("iris", "wine", "breast cancer (original)", "raisin")
_SHIFTS = {"BMI": ("BMI at most 30", "BMI above 30"), "age": ("age at most 29", "age above 29")}
_LONG = "DT-GFN, 500 steps"
# Inferences at levels of splits.
_INFERENCES = (
    *(
        (method, depth)
        for depth in (4, 5)
        for method in ("SMC", "exact posterior", "DT-GFN", "MCMC")
    ),
    (_LONG, 4),
)
_AS_CODE = SCORINGS[4]
_PRINTED_AS = ("DT-GFN", "SMC", "MCMC")


def _row(method: str, depth: int) -> str:
    return f"{method}, {depth} levels"


_ROWS = [_row(*each) for each in _INFERENCES]
_MEANS = {
    row: row.replace(" levels", " levels, plain mean") for row in _ROWS if row.startswith("DT-GFN")
}


def _is_run(method: str, name: str, *, is_first: bool) -> bool:
    """Say what is run: the exact chart fits iris alone, and long training is done once."""
    return (name == "iris" or method != "exact posterior") and (is_first or method != _LONG)


# ---- Tables 1 and 2 ----


def _cells(table: str, row: str, name: str, score: Score) -> dict[str, float]:
    values = {f"{name} accuracy": score.accuracy, f"{name} nodes": score.size}
    return cells_of(table, row, values)


def _inferred(name: str, seed: int, method: str, depth: int) -> dict[str, float]:
    """Fit once; score its best tree and its averages."""
    data, row = divided(name, seed), _row(method, depth)
    model = inference(method, data.X, np.unique(data.y), max_depth=depth).fit(data.X, data.y)
    average = ensemble(model, data)
    found = _cells("Table 1", row, name, best_tree(model, data))
    found |= _cells("Table 2", row, name, average)
    if row in _MEANS:
        found |= _cells("Table 2", _MEANS[row], name, plain_mean(model, data))
    for how, accuracy in scorings(model, data).items():
        found[key_of("Scorings", _scored_row(row, how), name)] = accuracy
    return found | {key_of("Effective trees", row, name): float(average.effective)}


def _scored_row(row: str, how: str) -> str:
    return f"{row}: {how}"


def _single_tree(name: str, seed: int, method: str) -> dict[str, float]:
    return _cells("Table 1", method, name, SINGLE_TREES[method](divided(name, seed)))


def _packaged(name: str, seed: int, method: str) -> dict[str, float]:
    model, data = package(method, seed), divided(name, seed)
    return _cells("Table 2", method, name, of_package(method, model.fit(data.X, data.y), data))


def _tasks_1_2() -> list[Task]:
    for name in SETS:
        table(name)  # raises where it is missing
    tasks = [
        Task(
            f"{name}, seed {seed}, {method}",
            function,
            (name, seed, method),
            _is_first(name, seed) and method != "MLP",
        )
        for seed in SEEDS
        for function, methods in ((_single_tree, SINGLE_TREES), (_packaged, PACKAGES))
        for method in methods
        for name in SETS
    ]
    return tasks + [
        Task(
            f"{name}, seed {seed}, {_row(method, depth)}",
            _inferred,
            (name, seed, method, depth),
            _is_first(name, seed) and (method, depth) in (("exact posterior", 4), ("SMC", 4)),
        )
        for seed in SEEDS
        for method, depth in _INFERENCES
        for name in SETS
        if _is_run(method, name, is_first=seed == SEEDS[0])
    ]


def _is_first(name: str, seed: int) -> bool:
    return name == "iris" and seed == 1


def _columns(names: Iterable[str]) -> list[str]:
    return [f"{name} {what}" for name in names for what in ("accuracy", "nodes")]


def _printed_rows(
    printed: Mapping[str, Sequence[Sequence[float]]],
    rows: Sequence[str],
    columns: Sequence[Sequence[str]],
    runs: int,
) -> dict[tuple[str, str], Printed]:
    """Place pairs of a number and its ± in rows; our rows of a method have the same.

    What follows ± is read as the standard deviation over the runs.
    """
    found = {}
    for method, cells in printed.items():
        for row in [row for row in _rows_of(method) if row in rows]:
            for names, cell in zip(columns, cells, strict=True):
                for place, name in enumerate(names[: len(cell) // 2]):
                    value, spread = cell[2 * place : 2 * place + 2]
                    found[row, name] = Printed(value, spread, runs, _digits(value))
    return found


def _digits(value: float) -> int:
    """Count the digits after the point of a printed number; two are printed at least."""
    return max(2, len(f"{value}".partition(".")[2]))


def _rows_of(method: str) -> list[str]:
    return [_row(method, depth) for depth in (4, 5)] if method in _PRINTED_AS else [method]


def _quoted(printed: Mapping[str, object], computed: Sequence[str]) -> list[str]:
    return [method for method in printed if not set(_rows_of(method)) & set(computed)]


def _of_paper(
    name: str,
    title: str,
    printed: Mapping[str, Sequence[Sequence[float]]],
    computed: Sequence[str],
    columns: Sequence[Sequence[str]],
    runs: int = len(SEEDS),
) -> Table:
    """Lay out a table: our rows, then those that are quoted."""
    quoted = _quoted(printed, computed)
    names = [name for each in columns for name in each]
    rows = [*computed, *quoted]
    values = _printed_rows(printed, rows, columns, runs)
    return Table(name, title, rows, names, values, quoted)


_BOTH = [_columns([name]) for name in SETS]
_OUR_MODEL = (
    "ours samples DT-GFN's posterior, with its prior and leaves and 99 cuts; the paper does not "
    "give the prior that its {0} has."
)
_PEERS = (
    "the paper gives no settings of the packages; ours are the defaults of their versions here."
)
_FOUR_LEVELS = (
    "ours have five levels of splits; with four, the best of 20 by Gini have 29.4 nodes on average."
)
_CART = (
    "tree sizes depend on the version of scikit-learn and on the tie-breaking among 1,000 trees of "
    "equal training accuracy, which the paper does not describe."
)
_LONGER = (
    "500 steps do not reach the posterior either: the weights concentrate on few of its draws "
    "(last table)."
)
_SCORED = (
    "100 steps leave the policy far from the posterior: the most probable of 500 draws of SMC, "
    "which samples the same posterior, comes within two errors of the printed accuracies of iris, "
    "wine and breast cancer, with leaves of training rows as by the published code's scoring."
)
_SCORED_RAISIN = (
    "not explained: the published code does not reach it here either, nor does its best draw on "
    "the test rows (table by the published code); the best of 500 draws of SMC on the test rows "
    "has .884 on average, and .90 on one division."
)
_SIZES = (
    "not explained: with 31 nodes the published code selects trees of 21 to 31 nodes, which agrees "
    "only with raisin; with the repository's limit of 7 nodes 6.2 is possible, but 8.6 is not."
)
_ENSEMBLE = (
    "100 steps do not reach the posterior: the weights concentrate on few of its draws (last "
    "table), while SMC, which samples the same posterior, is within two errors of the printed "
    "accuracy."
)
_ENSEMBLE_NODES = (
    "the paper publishes neither the code of ensembles nor the trees whose nodes it counts."
)
_MAP = (
    "its program accepts two classes and 0/1 columns, and the paper does not describe the "
    "conversion; ours has at most ten buckets a feature. On breast cancer and raisin ours stops "
    "after 20 seconds, the paper's after 300."
)
_MAP_IRIS = (
    "ours has three classes in one tree; the program of MAPTree accepts two, and the paper does "
    "not say how it obtained three."
)

TABLES_1_2 = Experiment(
    name="dt_gfn_tables_1_2",
    paper=PAPER,
    protocol=(
        "The paper names five seeds; we use them in scikit-learn's division into 80 % and 20 % of "
        "the rows. These divisions seem to be the paper's, because random forests reproduce its "
        "accuracies and nodes. The paper's text has five levels of splits and its code four; both "
        "are run. A split has 99 cuts a feature and costs log 4 + log d. Leaves have "
        "Dirichlet(0.1) and are fitted to training rows; the authors' code fits them to the test "
        "rows. DT-GFN has the settings of the paper's Table 5, and our defaults for settings that "
        "the table omits: the rate falls along a cosine, log Z has rate .05, the policy sees all "
        "leaves at once, leaves are integrated out. SMC is ten filters of 100 particles. MCMC is "
        "four chains with the moves of Chipman et al., without tempering, of 10,000 steps of "
        "warm-up and 25,000 more. MAPTree searches for 20 seconds over ten buckets a feature. MLP "
        "has two layers of 256 units, on features scaled to [0, 1]. A single tree is the most "
        "probable of 1,000 draws; for the exact posterior it is the most probable of all trees. "
        "The exact chart fits only iris. Training of 500 steps is run on one division. Ensembles "
        "of DT-GFN are weighted by Algorithm 1; those of packages have 1,000 trees. The effective "
        "number of trees is 1 over the sum of squared weights. The paper's values after ± are read "
        "as standard deviations over divisions."
    ),
    tasks=_tasks_1_2,
    tables=[
        _of_paper(
            "Table 1",
            "Table 1: accuracy and nodes of single trees",
            published.TABLE_1,
            [*SINGLE_TREES, *_ROWS],
            _BOTH,
        ),
        _of_paper(
            "Table 2",
            "Table 2: accuracy of ensembles, and nodes of their trees",
            published.TABLE_2,
            [*PACKAGES, *(each for row in _ROWS for each in (row, _MEANS.get(row)) if each)],
            _BOTH,
        ),
        Table(
            "Scorings",
            "Table 1 by other choices of the tree, and other rows for fitting its leaves",
            [_scored_row(row, how) for row in _ROWS for how in SCORINGS],
            SETS,
            {
                (_scored_row(row, _AS_CODE), name): Printed(*cell[:2], len(SEEDS), 2)
                for row in _ROWS
                for name, cell in zip(SETS, published.TABLE_1["DT-GFN"], strict=True)
                if row.startswith("DT-GFN")
            },
        ),
        Table(
            "Effective trees",
            "Effective number of the 1,000 weighted trees of Table 2",
            _ROWS,
            SETS,
            digits=0,
        ),
    ],
    seconds=60.0,
    reasons={
        "Table 1 | SMC": _OUR_MODEL.format("SMC"),
        "Table 1 | MCMC": _OUR_MODEL.format("MCMC"),
        "Table 1 | CART, Gini | raisin nodes": _FOUR_LEVELS,
        "Table 1 | CART, entropy | raisin nodes": _FOUR_LEVELS,
        "Table 1 | CART": _CART,
        "Table 1 | DT-GFN": _SCORED,
        "Table 2 | DT-GFN": _ENSEMBLE,
        **{
            key_of("Table 2", row, f"{name} nodes"): _ENSEMBLE_NODES
            for first in _MEANS
            for row in (first, _MEANS[first])
            for name in SETS
        },
        "Scorings | DT-GFN": _SCORED,
        **{
            key: reason
            for row in _ROWS
            if row.startswith("DT-GFN")
            for key, reason in (
                (key_of("Table 1", row, "raisin accuracy"), _SCORED_RAISIN),
                (key_of("Scorings", _scored_row(row, _AS_CODE), "raisin"), _SCORED_RAISIN),
                *((key_of("Table 1", row, f"{name} nodes"), _SIZES) for name in SETS),
            )
        },
        "Table 1 | MAPTree": _MAP,
        "Table 1 | MAPTree | iris": _MAP_IRIS,
    }
    | {f"Table 2 | {name}": _PEERS for name in PACKAGES}
    | {"Table 2 | MLP": "the paper gives no settings of its network."}
    | {f"{name} | {_LONG}": _LONGER for name in ("Table 1", "Table 2", "Scorings")},
    tolerance=0.05,
)


# ---- Table 3 ----


def _scored_shift(
    feature: str, row: str, score: Callable[..., Score], fit: Callable
) -> dict[str, float]:
    """Score a model, fitted below the limit, below it and above."""
    data, X_beyond, y_beyond = shifted(feature)
    model = fit(data)
    places = data, data._replace(X_test=X_beyond, y_test=y_beyond)
    return {
        key_of("Table 3", row, column): score(model, each).accuracy
        for column, each in zip(_SHIFTS[feature], places, strict=True)
    }


def _shift_inferred(feature: str, method: str, depth: int, seed: int) -> dict[str, float]:
    def fit(data):
        model = inference(method, data.X, np.unique(data.y), max_depth=depth, seed=seed)
        return model.fit(data.X, data.y)

    return _scored_shift(feature, _row(method, depth), ensemble, fit)


def _shift_packaged(feature: str, method: str, seed: int) -> dict[str, float]:
    model = package(method, seed)
    return _scored_shift(
        feature,
        method,
        lambda fitted, data: of_package(method, fitted, data),
        lambda data: model.fit(data.X, data.y),
    )


def _tasks_3() -> list[Task]:
    shifted("BMI")  # raises where it is missing
    tasks = [
        Task(
            f"{feature}, {method}, run {run}",
            _shift_packaged,
            (feature, method, run),
            run == 1 and method == "random forest",
        )
        for method in PACKAGES
        for run in _RUNS
        for feature in _SHIFTS
    ]
    return tasks + [
        Task(
            f"{feature}, {_row(method, depth)}, run {run}",
            _shift_inferred,
            (feature, method, depth, run),
        )
        for run in _RUNS
        for method, depth in _INFERENCES
        for feature in _SHIFTS
        if _is_run(method, feature, is_first=run == _RUNS[0])
    ]


_ROWS_3 = [*PACKAGES, *(row for row in _ROWS if not row.startswith("exact"))]

TABLE_3 = Experiment(
    name="dt_gfn_table_3",
    paper=PAPER,
    protocol=(
        "Training rows of Pima lie below a limit of BMI or of age. A fifth of the rows below the "
        "limit is held out (61 and 80, drawn with scikit-learn's seed 42); models are tested on "
        "these and on all rows above the limit. The paper states 60 and 80, but the accuracies of "
        "its packages are multiples of 1/61. Models are those of Table 2, with three runs each on "
        "that one division and one run of 500 steps; errors are those of the runs."
    ),
    tasks=_tasks_3,
    tables=[
        _of_paper(
            "Table 3",
            "Table 3: accuracy of ensembles under shifts",
            {name: [(v, 0.0) for v in values] for name, values in published.TABLE_3.items()},
            _ROWS_3,
            [[name] for each in _SHIFTS.values() for name in each],
        )
    ],
    seconds=60.0,
    reasons={
        f"Table 3 | {name}": (
            "the held-out rows may differ from the paper's, which prints neither errors nor "
            "settings of these models; with 61 rows one standard error is .05."
        )
        for name in PACKAGES
    }
    | {
        "Table 3 | DT-GFN": (
            "not explained: neither SMC, which samples the same posterior, nor any of the packages "
            "reaches the printed accuracy."
        )
    },
    tolerance=0.05,
)


# ---- Table 4 ----


def _anomalous(name: str, seed: int, method: str, depth: int) -> dict[str, float]:
    """F1 of the paper's rule, by the average of all trees and by single trees."""
    data = anomalies(name, seed)
    model = inference(method, data.X, np.array([0, 1]), max_depth=depth)
    fits = PermutedColumns(model, random_state=seed).fit(data.X, data.y)
    by_tree, leaves = [], []
    for fit, order in zip(fits.fits_, fits.orders_, strict=True):
        drawn = fit.posterior_.resampled(seed, chains=1, draws=50)  # by their weights
        normal = drawn.means(data.X_test[:, order])[0, ..., 0]
        by_tree += [_f1(each, data.y_test) for each in normal]
        leaves.append((drawn.trees.num_nodes == 1).mean())
    row = _row(method, depth)
    return {
        key_of("Table 4", row, name): float(np.mean(by_tree)),
        key_of("Table 4", f"{row}, average", name): _f1(
            fits.predict_proba(data.X_test)[:, 0], data.y_test
        ),
        key_of("Single leaves", row, name): float(np.mean(leaves)),
    }


def _f1(probability: np.ndarray, is_anomalous: np.ndarray) -> float:
    found = find_anomalies(probability).is_anomalous
    return float(f1_score(is_anomalous, found, zero_division=0.0))


_INFERENCES_4 = (("SMC", 4), ("DT-GFN", 4))
_ROWS_4 = [_row(*each) for each in _INFERENCES_4]


def _tasks_4() -> list[Task]:
    for name in ANOMALIES:
        anomalies(name, 1)  # raises where it is missing
    return [
        Task(
            f"{name}, seed {seed}, {_row(method, depth)}",
            _anomalous,
            (name, seed, method, depth),
            (method, name, seed) == ("SMC", "glass", 1),
        )
        for method, depth in _INFERENCES_4
        for seed in SEEDS
        for name in reversed(ANOMALIES)
    ]


TABLE_4 = Experiment(
    name="dt_gfn_table_4",
    paper=PAPER,
    protocol=(
        "Models are trained on half of the normal rows, in five divisions of our own; the paper "
        "uses one division of Shenkar and Wolf. Models have two orders of the columns, and two "
        "classes, one of them without training rows. A row is anomalous if its probability of "
        "being normal is two standard deviations below the mean of the test rows. The paper uses a "
        "single tree: the first rows are means over 50 trees of each order, drawn by their "
        "weights; those of the average use all trees. With one class in training no split explains "
        "anything, and the most probable tree is a single leaf, in which all rows are alike. SMC "
        "nevertheless draws no such tree, because there are so many trees with splits; many trees "
        "of DT-GFN are single leaves. Other rows are quoted by the paper from Shenkar and Wolf. "
        "Four levels of splits."
    ),
    tasks=_tasks_4,
    tables=[
        _of_paper(
            "Table 4",
            "Table 4: F1 of anomalies",
            {
                name: [() if v is None else (v, 0.0) for v in values]
                for name, values in published.TABLE_4.items()
            },
            [each for row in _ROWS_4 for each in (row, f"{row}, average")],
            [[name] for name in ANOMALIES],
        ),
        Table("Single leaves", "Share of these trees that are one leaf", _ROWS_4, ANOMALIES),
    ],
    seconds=60.0,
    reasons={
        "Table 4 | DT-GFN": (
            "not explained: the paper does not say how a tree that learns from a single class "
            "distinguishes rows; under its prior the best such tree is one leaf."
        )
    },
    tolerance=0.05,
)


# ---- Table 10 ----


def _inferred_10(name: str, run: int, method: str, depth: int) -> dict[str, float]:
    data, row = divided(name, _SPLIT_SEED, 0.3), _row(method, depth)
    model = inference(method, data.X, np.unique(data.y), max_depth=depth, seed=run)
    return {key_of("Table 10", row, name): best_tree(model.fit(data.X, data.y), data).accuracy}


def _tasks_10() -> list[Task]:
    for name in _SETS_10:
        table(name)  # raises where it is missing
    return [
        Task(
            f"{name}, run {run}, {_row(method, depth)}",
            _inferred_10,
            (name, run, method, depth),
            (name, run, method, depth) == ("iris", 1, "SMC", 4),
        )
        for run in _RUNS
        for method, depth in _INFERENCES
        for name in _SETS_10
        if _is_run(method, name, is_first=run == _RUNS[0])
        and (method != "exact posterior" or run == _RUNS[0])
    ]


TABLE_10 = Experiment(
    name="dt_gfn_table_10",
    paper=PAPER,
    protocol=(
        "Models are trained on seventy per cent of the rows, in one division with seed 123456789, "
        "which we assume to be scikit-learn's; missing values of breast cancer have their own "
        "rules. Single trees are as in Table 1, with three runs each and one run of 500 steps; "
        "errors are those of the runs. The other rows are quoted by the paper from Cochrane et al. "
        "2024."
    ),
    tasks=_tasks_10,
    tables=[
        _of_paper(
            "Table 10",
            "Table 10: accuracy of single trees",
            published.TABLE_10,
            _ROWS,
            [[name] for name in _SETS_10],
            runs=10,
        )
    ],
    seconds=60.0,
    reasons={
        "Table 10 | DT-GFN": (
            "not explained: the most probable trees of SMC, which samples the same posterior, are "
            "below the printed accuracies too."
        ),
        "Table 10 | DT-GFN, 4 levels | iris": "both have 44 of 45 rows; the paper truncates .9778.",
        "Table 10 | SMC": (
            "the printed figures are those of Cochrane et al., with their own prior and ten runs; "
            "ours samples DT-GFN's posterior."
        ),
    },
    tolerance=0.05,
)

DT_GFN_TABLES = (TABLES_1_2, TABLE_3, TABLE_4, TABLE_10)
