"""Table 1 of the DT-GFN paper by its authors' own code, and by that code with one difference."""

import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.gflownet import published, run_published
from benchmarks.gflownet.problems import SEEDS, SETS, Division, divided, table
from benchmarks.reproduce.dt_gfn import PAPER
from benchmarks.reproduce.experiments import Experiment, Printed, Table, Task, cells_of, key_of

__all__ = ["DT_GFN_PUBLISHED"]

_SCRIPT = Path(run_published.__file__)
_FOLDER, _PYTHON = "DT_GFN_CODE", "DT_GFN_PYTHON"

# ``tree_acc``, the one experiment of the code, is for iris: 7 nodes, 9 cuts, room for one tree.
_OF_PAPER = ("env.max_depth=5", "env.n_thresholds=99", "env.buffer.replay_capacity=100")
_AS_PAPER = "the paper's settings"
_AS_REPOSITORY = "the repository's settings"
_VARIANTS: dict[str, tuple[str, ...]] = {
    _AS_PAPER: _OF_PAPER,
    _AS_REPOSITORY: (),
    "uniform backward policy": (*_OF_PAPER, "+policy.backward.type=uniform"),
    "rate of log Z as of weights": (*_OF_PAPER, "gflownet.optimizer.lr_z_mult=1"),
    "15 nodes": (*_OF_PAPER, "env.max_depth=4"),
    "rate halved every 25 steps": (*_OF_PAPER, "gflownet.optimizer.lr_decay_period=25"),
    "replay of one tree": (*_OF_PAPER, "env.buffer.replay_capacity=1"),
    "no cuts masked": (*_OF_PAPER, "env.mask_redundant_choices=False"),
}
_SEED = SEEDS[0]
_DIFFER_ON = "raisin"  # which the paper's settings explain least

_TABLE = "Published code"
_SCORED, _NODES = "as the code scores", "nodes"
_COLUMNS = (
    _SCORED,
    "its tree, training leaves",
    "most probable, training leaves",
    "best on test rows, test leaves",
    _NODES,
    "its tree, training rows",
    "log reward of the most probable",
    "mean log reward",
    "log Z",
    "loss",
    "distinct trees",
)


def _code() -> tuple[Path, str]:
    """Find the authors' code and the interpreter of its environment."""
    folder, python = os.environ.get(_FOLDER), os.environ.get(_PYTHON)
    if not folder or not python or not (Path(folder) / "main.py").exists():
        raise FileNotFoundError(
            "clone GFNOrg/dt-gfn at 7b83ad0, install its requirements and build its Cython part "
            f"in an environment of its own, then set {_FOLDER} to the folder that holds main.py "
            f"and {_PYTHON} to the interpreter of that environment"
        )
    return Path(folder), python


def _written(data: Division, path: Path) -> None:
    """Write a division as the code reads it: features, the class, and which part a row is of."""
    parts = ((data.X, data.y, "train"), (data.X_test, data.y_test, "test"))
    lines = [",".join([*map(str, range(data.X.shape[1])), "class", "Split"])]
    for X, y, part in parts:
        lines += [
            ",".join([*map(repr, row), str(int(label)), part])
            for row, label in zip(X.tolist(), y, strict=True)
        ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _trained(name: str, seed: int, variant: str) -> dict[str, float]:
    """Train the authors' code on a division; its seed is 0, as published."""
    (folder, python), data = _code(), divided(name, seed)
    number = len(np.unique(data.y))
    classes = (f"env.n_classes={number}", f"env.prior=[{','.join(['.1'] * number)}]")
    settings = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "data.csv"
        _written(data, path)
        # Without the assertions of the code, which take much of its time.
        command = [python, "-O", _SCRIPT, folder, path, *classes, *_VARIANTS[variant]]
        done = subprocess.run(
            [str(each) for each in command],
            env=os.environ | settings,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(done.stderr[-500:])
    found = json.loads(done.stdout.splitlines()[-1])
    return cells_of(_TABLE, _row(name, variant), {column: found[column] for column in _COLUMNS})


def _row(name: str, variant: str) -> str:
    return f"{name}, {variant}"


def _tasks() -> list[Task]:
    _code()
    for name in SETS:
        table(name)  # raises where it is missing
    return [
        Task(f"{name}, seed {_SEED}, {variant}", _trained, (name, _SEED, variant))
        for name in SETS[::-1]
        for variant in _variants_on(name)
    ]


def _variants_on(name: str) -> Sequence[str]:
    return list(_VARIANTS) if name == _DIFFER_ON else (_AS_PAPER, _AS_REPOSITORY)


def _printed() -> dict[tuple[str, str], Printed]:
    """Place the accuracies and nodes of the paper's Table 1."""
    cells = zip(SETS, published.TABLE_1["DT-GFN"], strict=True)
    return {
        (_row(name, _AS_PAPER), column): Printed(cell[place], cell[place + 1], len(SEEDS), digits)
        for name, cell in cells
        for place, column, digits in ((0, _SCORED, 2), (2, _NODES, 1))
    }


DT_GFN_PUBLISHED = Experiment(
    name="dt_gfn_published",
    paper=PAPER,
    protocol=(
        "The authors' code (GFNOrg/dt-gfn at 7b83ad0) trains and draws, on the first of the "
        "paper's five divisions. Only the divisions, those of Tables 1 and 2, and the choice of a "
        "draw and of the rows of its leaves are ours. The code has one experiment, for iris, with "
        "7 nodes, 9 cuts and a replay of one tree. The paper's settings are that experiment with "
        "31 nodes, 99 cuts and a replay of 100 trees from the paper's Table 5; other rows name "
        "their difference from it. All have 100 steps of 90 draws and up to 10 of the replay, and "
        "the code's seed. The code selects the tree of 500 draws with the best training accuracy, "
        "and fits its leaves to test rows; the bound is the most accurate draw on these. The loss "
        "is the mean of the last ten steps. The paper's values after ± are read as standard "
        "deviations over divisions."
    ),
    tasks=_tasks,
    tables=[
        Table(
            _TABLE,
            "Table 1 by the published code: the tree that it selects, and its other draws",
            [_row(name, variant) for name in SETS for variant in _variants_on(name)],
            _COLUMNS,
            _printed(),
        )
    ],
    seconds=400.0,
    reasons={
        f"{_TABLE} | raisin": (
            "not explained: no draw reaches the printed accuracy, not even the best on the test "
            "rows."
        ),
        f"{_TABLE}": (
            "one division: a row of its test set is .033 of iris, .028 of wine and .009 of breast "
            "cancer."
        ),
        **{
            key_of(_TABLE, _row(name, _AS_PAPER), _NODES): (
                "not explained: with the paper's 31 nodes the tree with the best training accuracy "
                "is large; with at most 7, as in the repository, it has 5 to 7."
            )
            for name in SETS
        },
    },
    tolerance=0.1,
)
