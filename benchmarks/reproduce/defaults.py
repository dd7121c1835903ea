"""The table that no paper has: all systems with their defaults on all tables, on the same folds."""

import time
import warnings
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
from sklearn.impute import SimpleImputer
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, KFold, StratifiedKFold

import bdtppl
from bdtppl.datasets import load
from benchmarks.processes import in_fresh_process, peak_memory
from benchmarks.reproduce.experiments import Experiment, Table, Task, key_of
from benchmarks.reproduce.peers import PEERS

__all__ = ["CLASSES", "DEFAULTS", "LARGE", "NUMBERS", "NUM_FOLDS", "score_of"]

CLASSES = (
    "heart_statlog",
    "pima",
    "breast_cancer_original",
    "raisin",
    "vertebral_2c",
    "messidor_features",
)
NUMBERS = ("auto_mpg", "energy_heating", "concrete")
LARGE = ("magic_gamma", "default_credit_card")
NUM_FOLDS, NUM_DRAWS, NUM_LEVELS = 5, 1_000, 10
_OF_CLASSES = ("log loss", "accuracy", "calibration error")
_OF_NUMBERS = ("CRPS", "RMSE", "in 50 %", "in 90 %")
_OF_FITS = ("leaves", "log evidence", "R-hat", "CPU s", "peak GB")


def _ours(kind: str) -> Callable[[bool], Any]:
    def make(is_classes: bool) -> Any:
        estimator = getattr(bdtppl, f"{kind}{'Classifier' if is_classes else 'Regressor'}")
        model = estimator()
        return model.set_params(
            **{k: v for k, v in {"random_state": 0, "progress": False}.items() if hasattr(model, k)}
        )

    return make


_MODELS: dict[str, Callable[[bool], Any]] = {
    "exact": _ours("ExactTree"),
    "greedy": _ours("GreedyModalTree"),
    "MAP": _ours("MAPTree"),
    "Metropolis": _ours("MetropolisTree"),
    "particle": _ours("ParticleTree"),
    "GFlowNet": _ours("GFlowNetTree"),
    "BART": _ours("BART"),
    "RJHMC": _ours("RJHMCTree"),
    "DCC-Tree": _ours("DCCTree"),
    **PEERS,
}
_SLOW = ("exact", "BART", "stochtree", "EBM (interpret)")
_SLOWER = ("particle", "Metropolis", "GFlowNet", "RJHMC", "DCC-Tree", "bartz")  # hours if large
_SLOWEST = ("pymc-bart",)  # twenty minutes a table
# Long runs: each fold is a task, so that a run that is stopped keeps the folds that it ended.
_BY_FOLD = {
    ("GFlowNet", "messidor_features"),
    ("DCC-Tree", "concrete"),
    *product(("EBM (interpret)",), LARGE),
}
_COMPLETE = ("RJHMC", "DCC-Tree", "stochtree", "bartz", "pymc-bart")  # refuse missing values
_QUICK = ("exact", "greedy", "CART, tuned", "random forest")
_QUICK_TABLES = ("heart_statlog", "auto_mpg")


def _shares(model: Any, X: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Class probabilities [m, c]; those of a single tree of scikit-learn are smoothed."""
    shares = np.zeros((len(X), len(classes)))
    shares[:, np.searchsorted(classes, model.classes_)] = model.predict_proba(X)
    if isinstance(model, GridSearchCV):
        tree: Any = model.best_estimator_
        count = tree.tree_.n_node_samples[tree.apply(X)][:, None]
        shares = (shares * count + 1) / (count + len(classes))
    return np.clip(shares, 1e-9, None) / np.clip(shares, 1e-9, None).sum(axis=1, keepdims=True)


def _calibration_error(shares: np.ndarray, y: np.ndarray) -> float:
    """Mean gap between confidence and share of right labels, over ten groups of equal size."""
    sure, right = shares.max(axis=1), shares.argmax(axis=1) == y
    groups = np.array_split(np.argsort(sure, kind="stable"), NUM_LEVELS)
    gaps = [len(rows) * abs(sure[rows].mean() - right[rows].mean()) for rows in groups if len(rows)]
    return float(sum(gaps) / len(y))


def _crps(draws: np.ndarray, y: np.ndarray) -> float:
    """CRPS estimated without bias from draws [k, m], by the mean difference of sorted ones."""
    draws, k = np.sort(draws, axis=0), len(draws)
    spread = ((2 * np.arange(1, k + 1) - k - 1) @ draws) / (k * (k - 1))
    return float(np.mean(np.abs(draws - y).mean(axis=0) - spread))


def _scores(model: Any, X: np.ndarray, y: np.ndarray, classes: np.ndarray | None) -> dict:
    """Scores of held-out rows; y are indices of classes, if there are any."""
    if classes is not None:
        shares = _shares(model, X, np.arange(len(classes)))
        return {
            "log loss": float(log_loss(y, shares, labels=np.arange(len(classes)))),
            "accuracy": float((shares.argmax(axis=1) == y).mean()),
            "calibration error": _calibration_error(shares, y),
        }
    point = np.asarray(model.predict(X)).ravel()
    found = {"RMSE": float(np.sqrt(np.mean((point - y) ** 2)))}
    if not hasattr(model, "sample_predictive"):
        return found | {"CRPS": float(np.abs(point - y).mean())}
    draws = np.asarray(model.sample_predictive(X, NUM_DRAWS)).reshape(-1, len(X))
    found["CRPS"] = _crps(draws, y)
    for level, name in ((0.5, "in 50 %"), (0.9, "in 90 %")):
        low, high = model.predict_interval(X, level).T
        found[name] = float(np.mean((low <= y) & (y <= high)))
    return found


def _facts(model: Any) -> dict[str, float]:
    """Collect what a fit says of itself: leaves, evidence, R-hat."""
    found = {}
    posterior = getattr(model, "posterior_", None)
    if getattr(model, "trees_are", "") == "hard":
        found["leaves"] = float((posterior.weights * posterior.num_leaves).sum())
    elif isinstance(model, GridSearchCV):
        found["leaves"] = float(model.best_estimator_.get_n_leaves())
    evidence = getattr(model, "log_evidence_", None)
    if evidence is not None and np.isfinite(evidence):
        found["log evidence"] = float(evidence)
    worst = [each.get("r_hat") for each in getattr(model, "diagnostics_", {}).values()]
    if worst := [r for r in worst if r is not None and np.isfinite(r)]:
        found["R-hat"] = float(max(worst))
    return found


def _measured(name: str, table: str, only: int | None = None) -> dict[str, list[float]]:
    """Five folds of a table, or one: scores, facts, CPU seconds of all but the first of five."""
    X, labels, *_ = load(table)
    X = np.asarray(X, float)
    classes, y = None, np.asarray(labels)
    if table not in NUMBERS:
        classes, y = np.unique(labels, return_inverse=True)
    split: Any = (KFold if classes is None else StratifiedKFold)(
        NUM_FOLDS, shuffle=True, random_state=0
    )
    found: dict[str, list[float]] = {}
    for fold, (train, held) in enumerate(split.split(X, y)):
        if only not in (None, fold):
            continue
        start = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rows = X
            if name in _COMPLETE:
                rows = SimpleImputer(strategy="median").fit(X[train]).transform(X)
            model = _MODELS[name](classes is not None).fit(rows[train], y[train])
            own = _scores(model, rows[held], y[held], classes) | _facts(model)
        if fold:  # the first of five compiles for the others
            own["CPU s"] = time.process_time() - start
        for quantity, value in own.items():
            found.setdefault(key_of(table, name, quantity), []).append(value)
    if not only:  # once for each table
        found[key_of(table, name, "peak GB")] = [peak_memory()]
    return found


def _in_own_process(name: str, table: str, *only: int) -> dict[str, list[float]]:
    if name in PEERS:
        PEERS[name](True)  # raises where it is not installed
    return in_fresh_process(_measured, name, table, *only)


def _order() -> Iterator[tuple[str, str]]:
    """Pair systems and tables in the order of runs: quick systems first, slow ones by table."""
    slow = (*_SLOW, *_SLOWER, *_SLOWEST)
    swift = [name for name in _MODELS if name not in slow] + list(_SLOW)
    small = sorted((*CLASSES, *NUMBERS), key=lambda table: table not in _QUICK_TABLES)
    yield from product(swift, small)
    yield from ((name, table) for table in small for name in _SLOWER)
    yield from product(swift, LARGE)
    yield from product(_SLOWEST, _QUICK_TABLES)


def _tasks() -> list[Task]:
    for table in (*CLASSES, *NUMBERS, *LARGE):
        load(table)  # raises where it is missing
    whole = [pair for pair in _order() if pair not in _BY_FOLD]
    return [
        Task(
            f"{table}, {name}",
            _in_own_process,
            (name, table),
            is_quick=name in _QUICK and table in _QUICK_TABLES,
        )
        for name, table in whole
        if not (name == "GFlowNet" and table in NUMBERS)
    ] + [
        Task(f"{table}, {name}, fold {fold + 1}", _in_own_process, (name, table, fold))
        for fold, (name, table) in product(range(NUM_FOLDS), sorted(_BY_FOLD))
    ]


def score_of(table: str) -> str:
    """Name the score by which systems are ranked on a table."""
    return "CRPS" if table in NUMBERS else "log loss"


def _table(name: str) -> Table:
    columns = (_OF_NUMBERS if name in NUMBERS else _OF_CLASSES) + _OF_FITS
    return Table(name, name, list(_MODELS), columns)


DEFAULTS = Experiment(
    name="defaults",
    paper="All systems with their defaults",
    protocol=(
        "Five folds of each table, shuffled with seed 0, the same for all. Every system runs with "
        "its default settings and a fixed seed, except that CART's leaf count is tuned by five "
        "folds. CART's class shares are smoothed by one row per class. Missing values are replaced "
        "by medians of the training rows for systems that do not accept them. Values are means "
        "over folds with their standard errors. The CRPS of a model that predicts a single number "
        "is its absolute error. *In 50 %* and *in 90 %* are shares of targets inside central "
        "intervals. Calibration error is the mean gap between confidence and accuracy over ten "
        "groups of equal size; it is above 0 for a calibrated model, too. CPU seconds are those of "
        "a fit and its predictions, without the first fold, which compiles; memory is that of a "
        "separate process. Evidence and leaves are those of the training folds, and evidence is "
        "under each system's own prior. R-hat is the largest of a fit's diagnostics. Slow systems "
        "were not run on the two large tables. pymc-bart, with twenty minutes a table, has two "
        "tables. Four long runs have a task for each fold, whose seconds include compilation: "
        "GFlowNet on messidor_features, DCC-Tree on concrete, EBM on the two large tables. RJHMC's "
        "chains start at draws from the prior with 500 steps of warm-up on classification tables, "
        "and at greedy trees with 200 steps, the present default, on regression tables. They end "
        "after two minutes, so their results depend on the machine."
    ),
    tasks=_tasks,
    tables=[_table(name) for name in (*CLASSES, *NUMBERS, *LARGE)],
    seconds=90.0,
    tolerance=0.05,
)
