"""Figures 2 to 4 of Cochrane et al. 2024 in one run of each synthetic set."""

import warnings
from typing import Any

import numpy as np
from sklearn.tree import DecisionTreeRegressor

from bdtppl.inference.soft.posterior import SoftPosterior
from benchmarks.reproduce.dcc_tree import PAPER, TRUE_TOPOLOGIES, length_of
from benchmarks.reproduce.experiments import Experiment, Printed, Table, Task, cells_of, key_of
from benchmarks.soft.rivals import jumping
from benchmarks.soft.sets import REGRESSION, Runs, dcc_tree, split

__all__ = ["DCC_TREE_FIGURES", "GRID", "PLACES", "SAMPLERS", "curve_of"]

PLACES = {"wu": ("wu (a)", "wu (b)"), "cgm": ("cgm (c)", "cgm (d)")}
SAMPLERS = ("DCC-Tree", "HMC-DF", "HMC-DFI")
GRID = {"wu": np.linspace(-0.5, 6.5, 281), "cgm": np.linspace(-1.0, 10.0, 441)}  # of the target
_QUANTILES = (0.05, 0.5, 0.95)
_COLUMNS = (*(f"{level:.0%}" for level in _QUANTILES), "truth", "CART", "from DCC-Tree")
_SPLITS = ("feature", "its weight", "cut", "s.d. of the cut", "probability")
_SEED = 0


def curve_of(place: str, sampler: str) -> str:
    """Name the density of a test row among the values of a task."""
    return key_of("Densities", f"{place}, {sampler}", "on the grid")


def _posteriors(name: str, seed: int) -> dict[str, SoftPosterior]:
    data = split(name)
    models: dict[str, Any] = {
        "DCC-Tree": dcc_tree(
            name, Runs((seed,), *length_of(name, is_short=True)), random_state=seed
        ),
        "HMC-DF": jumping(name, inputs="hard", random_state=seed),
        "HMC-DFI": jumping(name, inputs="soft", random_state=seed),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that jumping chains do not agree is known
        return {sampler: model.fit(data.X, data.y).posterior_ for sampler, model in models.items()}


def _figures(name: str, seed: int) -> dict[str, Any]:
    """Fit three samplers; densities at two test rows, and the splits of the true topologies."""
    found = _posteriors(name, seed)
    return _figure_2(name, seed, found) | _figures_3_4(name, found["DCC-Tree"])


def _figure_2(name: str, seed: int, found: dict[str, SoftPosterior]) -> dict[str, Any]:
    data, grid = split(name), GRID[name]
    cart = DecisionTreeRegressor(random_state=seed).fit(data.X, data.y)
    rows = np.random.default_rng(seed).choice(len(data.X_test), len(PLACES[name]), replace=False)
    cells: dict[str, Any] = {}
    for place, row in zip(PLACES[name], rows, strict=True):
        at = data.X_test[[row]]
        laws = {
            sampler: each.predictive(np.tile(at, (len(grid), 1))) for sampler, each in found.items()
        }
        cdf = {sampler: law.cdf(grid) for sampler, law in laws.items()}
        for sampler, law in laws.items():
            apart = np.abs(cdf[sampler] - cdf["DCC-Tree"]).max()
            numbers = (
                *found[sampler].predictive(at).quantiles(_QUANTILES)[0],
                data.y_test[row],
                cart.predict(at)[0],
                apart,
            )
            values = dict(zip(_COLUMNS, numbers, strict=True))
            cells |= cells_of("Figure 2", f"{place}, {sampler}", values)
            cells[curve_of(place, sampler)] = np.exp(law.log_density(grid)).round(5).tolist()
    return cells


def _split_name(name: str, code: str, number: int) -> str:
    return f"{name}, {code}, split {number}"


def _figures_3_4(name: str, posterior: SoftPosterior) -> dict[str, float]:
    """Mean direction and cut of each split, over draws of a topology, in units of its feature."""
    cells: dict[str, float] = {}
    for topology, probability in zip(posterior.topologies, posterior.probability, strict=True):
        code = topology.code
        of = posterior.topology == posterior.topologies.index(topology)
        if code not in TRUE_TOPOLOGIES[name] or not of.any():
            continue
        for number in range(topology.num_leaves - 1):
            direction = np.asarray(posterior.trees.direction)[of][:, number]
            feature = int(direction.mean(axis=0).argmax())
            low, span = posterior.scaling[:, feature]
            cut = np.asarray(posterior.trees.threshold)[of][:, number] * span + low
            numbers = feature + 1, direction[:, feature].mean(), cut.mean(), cut.std(), probability
            values = dict(zip(_SPLITS, numbers, strict=True))
            cells |= cells_of("Figures 3 and 4", _split_name(name, code, number + 1), values)
    return cells


def _tasks() -> list[Task]:
    for name in REGRESSION:
        split(name)  # raises where it is missing
    return [Task(f"{name}, seed {_SEED}", _figures, (name, _SEED)) for name in REGRESSION]


def _num_splits(code: str) -> int:
    return code.count("1")


# Features and cuts of Wu et al.'s trees; those of the other set are in a drawing.
_PRINTED_SPLITS = {
    (_split_name("wu", code, number), column): Printed(value)
    for code, features in (("11000", (1, 2)), ("10100", (3, 2)))
    for number, feature in enumerate(features, 1)
    for column, value in (("feature", feature), ("cut", 0.5))
}

DCC_TREE_FIGURES = Experiment(
    name="dcc_tree_figures",
    paper=PAPER,
    protocol=(
        "One run of each synthetic set (T = 20; 1,000 initial trees on cgm), and one of each "
        "sampler that jumps between topologies, with the settings of the tables of other samplers; "
        "two test rows chosen at random. The distance is the largest difference between "
        "distribution functions. Splits are numbered from the root, the yes side first. A split "
        "compares a weighted sum of all features with a threshold. The printed cut is that "
        "threshold in units of the feature with the largest weight, so it is the feature's own cut "
        "only if its weight is 1."
    ),
    tasks=_tasks,
    tables=[
        Table(
            "Figure 2",
            "Figure 2: posterior predictive distributions of test rows",
            [
                f"{place}, {sampler}"
                for places in PLACES.values()
                for place in places
                for sampler in SAMPLERS
            ],
            _COLUMNS,
        ),
        Table(
            "Figures 3 and 4",
            "Figures 3 and 4: the trees that generated the data, as found by the run",
            [
                _split_name(name, code, number + 1)
                for name in REGRESSION
                for code in TRUE_TOPOLOGIES[name]
                for number in range(_num_splits(code))
            ],
            _SPLITS,
            _PRINTED_SPLITS,
            is_compared=False,
        ),
    ],
    seconds=400.0,
    tolerance=0.05,
    curves=[
        curve_of(place, of) for places in PLACES.values() for place in places for of in SAMPLERS
    ],
)
