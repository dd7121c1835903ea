"""Tables 1, 2 and 6 and Figure 1 of Cochrane et al. 2024: DCC-Tree and other samplers."""

from collections.abc import Mapping, Sequence

from benchmarks.reproduce.experiments import Experiment, Printed, Table, Task, cells_of
from benchmarks.soft.rivals import score_rival
from benchmarks.soft.scores import Weighed, score
from benchmarks.soft.sets import NAMES, REGRESSION, Runs, split

__all__ = ["DCC_TREE", "DCC_TREE_RIVALS", "PAPER", "TRUE_TOPOLOGIES", "length_of"]

PAPER = "Cochrane, Wills and Johnson 2024: DCC-Tree"
_SEEDS = range(10)  # of what takes long the first alone
_ORDER = ("iris", "wine", "wu", "bcw", "raisin", "cgm")  # cheap ones first
_OURS = "DCC-Tree"

# Mean and standard deviation over ten runs (Tables 1 and 2): training rows, test rows.
_PRINTED = {
    "wu": {
        "CGM": ((0.059, 2.3e-4), (0.112, 0.034)),
        "WU": ((0.054, 1.4e-3), (0.073, 0.038)),
        "HMC-DF": ((0.060, 7.4e-4), (0.059, 2.1e-3)),
        "HMC-DFI": ((0.060, 4.4e-4), (0.060, 2.5e-3)),
        _OURS: ((0.058, 3.3e-5), (0.059, 5.3e-4)),
    },
    "cgm": {
        "CGM": ((0.043, 1.9e-4), (0.064, 0.014)),
        "WU": ((0.042, 5.8e-5), (0.062, 0.001)),
        "HMC-DF": ((0.043, 2.0e-4), (0.041, 4.6e-4)),
        "HMC-DFI": ((0.043, 1.9e-4), (0.041, 4.5e-4)),
        _OURS: ((0.043, 5.2e-5), (0.040, 1.4e-4)),
    },
    "bcw": {
        "CGM": ((0.983, 0.004), (0.939, 0.014)),
        "SMC": ((0.987, 0.004), (0.924, 0.010)),
        "WU": ((0.978, 0.005), (0.922, 0.017)),
        "HMC-DF": ((0.973, 0.005), (0.940, 0.010)),
        "HMC-DFI": ((0.981, 0.003), (0.952, 0.007)),
        _OURS: ((0.982, 0.001), (0.952, 0.004)),
    },
    "iris": {
        "CGM": ((0.985, 0.007), (0.908, 0.022)),
        "SMC": ((0.981, 0.004), (0.909, 0.022)),
        "HMC-DF": ((0.977, 0.010), (0.906, 0.026)),
        "HMC-DFI": ((0.975, 0.009), (0.917, 0.023)),
        _OURS: ((0.981, 0.000), (0.911, 1.2e-16)),
    },
    "wine": {
        "CGM": ((0.957, 0.016), (0.916, 0.046)),
        "SMC": ((0.985, 0.011), (0.978, 0.022)),
        "HMC-DF": ((0.949, 0.021), (0.950, 0.039)),
        "HMC-DFI": ((0.952, 0.016), (0.948, 0.022)),
        _OURS: ((0.958, 0.010), (0.958, 0.020)),
    },
    "raisin": {
        "CGM": ((0.864, 0.007), (0.843, 0.010)),
        "SMC": ((0.863, 0.004), (0.842, 0.010)),
        "WU": ((0.862, 0.007), (0.843, 0.012)),
        "HMC-DF": ((0.866, 0.003), (0.847, 0.004)),
        "HMC-DFI": ((0.864, 0.005), (0.838, 0.007)),
        _OURS: ((0.867, 0.001), (0.844, 0.002)),
    },
}
# Seconds a proposal, and of DCC-Tree a proposal of non-zero weight (Table 6).
_SECONDS = {
    "wu": {"HMC-DF": 35.83, "HMC-DFI": 26.37, _OURS: 0.008576},
    "cgm": {"HMC-DF": 64.99, "HMC-DFI": 68.23, _OURS: 0.5738},
    "bcw": {"HMC-DF": 32.61, "HMC-DFI": 18.28, _OURS: 0.00626},
    "iris": {"HMC-DF": 24.03, "HMC-DFI": 15.26, _OURS: 0.00606},
    "wine": {"HMC-DF": 36.01, "HMC-DFI": 22.39, _OURS: 0.01381},
    "raisin": {"HMC-DF": 24.67, "HMC-DFI": 28.27, _OURS: 0.01313},
}
_SECONDS_WEIGHTED = {
    "wu": 0.0150,
    "cgm": 47.61,
    "bcw": 0.00981,
    "iris": 0.006369,
    "wine": 0.0392,
    "raisin": 0.0254,
}
# Topologies of Figure 1 by their splits (1) and leaves (0), from the root on, left before right.
TRUE_TOPOLOGIES = {"wu": ("11000", "10100"), "cgm": ("110100100", "111000100")}
_TOPOLOGIES = {
    "wu": (*TRUE_TOPOLOGIES["wu"], "1100100", "1110000", "1101000", "1011000", "1010100"),
    "cgm": TRUE_TOPOLOGIES["cgm"],
}
_SECONDS_COLUMN = "CPU seconds a proposal"
_WEIGHTED_COLUMN = "a proposal of non-zero weight"
_SHORT = f"{_OURS}, T = 20"


def length_of(name: str, *, is_short: bool) -> tuple[int, int]:
    """Get T and T_0: the authors', or short ones with which the true tree of CGM is met."""
    return (20, 1000 if name == "cgm" else 100) if is_short else (500, 100)


def _table(name: str) -> str:
    return "Table 1" if name in REGRESSION else "Table 2"


def _row(name: str, sampler: str = _OURS) -> str:
    return f"{name}, {sampler}"


def _dcc_tree(name: str, seed: int, is_short: bool) -> dict[str, float]:
    found = score(name, seed, Runs((seed,), *length_of(name, is_short=is_short)))
    row = _row(name, _SHORT if is_short else _OURS)
    scores = {
        "train": found.train,
        "test": found.test,
        "test, hard routing": found.hard,
        "test, single draws": found.by_draw,
        "test, balanced votes": found.balanced,
    }
    seconds = found.cpu_seconds / found.proposals
    times = {
        _SECONDS_COLUMN: seconds,
        _WEIGHTED_COLUMN: seconds / found.weighted if found.weighted else None,
    }
    cells = cells_of(_table(name), row, scores) | cells_of("Table 6", row, times)
    if seed == _SEEDS[0] and name in _TOPOLOGIES:
        cells |= _figure_1(name, is_short, found.topologies)
    return cells


def _topology(name: str, code: str) -> str:
    is_true = code in TRUE_TOPOLOGIES[name]
    return f"{name}, {code}{' (true partition)' if is_true else ''}"


def _figure_1(name: str, is_short: bool, topologies: list[Weighed]) -> dict[str, float]:
    """Report one run; 0 is the probability of a topology that is not among its eight likeliest."""
    length = " (T = 20)" if is_short else ""
    rest = 1.0
    cells = {}
    for code in _TOPOLOGIES[name]:
        found = [each for each in topologies if each.code == code]
        probability = found[0].probability if found else 0.0
        rest -= probability
        values = {f"probability{length}": probability}
        if found:
            values[f"log evidence{length}"] = found[0].log_evidence
            values[f"standard error{length}"] = found[0].standard_error
        cells |= cells_of("Figure 1", _topology(name, code), values)
    others = {f"probability{length}": max(rest, 0.0)}
    return cells | cells_of("Figure 1", f"{name}, all others", others)


def _tasks() -> list[Task]:
    for name in NAMES:
        split(name)  # raises where it is missing
    return [
        Task(
            f"{name}, {'T = 20' if is_short else 'T = 500'}, seed {seed}",
            _dcc_tree,
            (name, seed, is_short),
            is_quick=is_short and name == "iris" and seed == 0,
        )
        for seed in _SEEDS
        for is_short in (True, False)
        for name in _ORDER
        if (is_short and name != "cgm") or seed == _SEEDS[0]
    ]


def _rival(name: str, sampler: str, seed: int) -> dict[str, float]:
    found, row = score_rival(name, sampler, seed), _row(name, sampler)
    scores = {"train": found.train, "test": found.test, "test, posterior mean": found.of_mean}
    times = {_SECONDS_COLUMN: found.per_proposal}
    return cells_of(_table(name), row, scores) | cells_of("Table 6", row, times)


def _rival_tasks() -> list[Task]:
    for name in NAMES:
        split(name)  # raises where it is missing
    return [
        Task(
            f"{name}, {sampler}, seed {seed}",
            _rival,
            (name, sampler, seed),
            is_quick=name == "iris" and sampler == "SMC" and seed == 0,
        )
        for seed in _SEEDS
        for name in _ORDER
        for sampler in _PRINTED[name]
        if sampler != _OURS and (sampler not in _OF_JUMPS or seed == _SEEDS[0])
    ]


def _scores(name: str, samplers: Mapping[str, Sequence[str]], columns: Sequence[str]) -> Table:
    """Lay out Table 1 or 2: for each sampler that is printed, the rows of ours."""
    rows, printed = [], {}
    for each in NAMES:
        for sampler, of in samplers.items():
            if _table(each) != name or sampler not in _PRINTED[each]:
                continue
            for row in of:
                rows.append(_row(each, row))
                for column, (value, spread) in zip(
                    ("train", "test"), _PRINTED[each][sampler], strict=True
                ):
                    printed[_row(each, row), column] = Printed(value, spread, len(_SEEDS), 3)
    what = "mean squared error" if name == "Table 1" else "accuracy"
    digits = 4 if name == "Table 1" else 3
    return Table(name, f"{name}: {what}", rows, columns, printed, digits=digits)


def _seconds(samplers: Mapping[str, Sequence[str]]) -> Table:
    """Lay out Table 6."""
    printed = {
        (_row(name, row), _SECONDS_COLUMN): Printed(_SECONDS[name][sampler])
        for name in NAMES
        for sampler, of in samplers.items()
        for row in of
    }
    if _OURS in samplers:
        printed |= {
            (_row(name, row), _WEIGHTED_COLUMN): Printed(_SECONDS_WEIGHTED[name])
            for name in NAMES
            for row in samplers[_OURS]
        }
    return Table(
        "Table 6",
        "Table 6: seconds a proposal (the paper's on another machine)",
        list(dict.fromkeys(row for row, _ in printed)),
        (_SECONDS_COLUMN, _WEIGHTED_COLUMN) if _OURS in samplers else (_SECONDS_COLUMN,),
        printed,
        digits=5,
        is_compared=False,
    )


_FIGURE_1 = Table(
    "Figure 1",
    "Figure 1: topologies of one run, by their splits (1) and leaves (0) from the root on",
    [
        row
        for name, codes in _TOPOLOGIES.items()
        for row in (*(_topology(name, code) for code in codes), f"{name}, all others")
    ],
    [
        f"{column}{length}"
        for length in ("", " (T = 20)")
        for column in ("log evidence", "standard error", "probability")
    ],
)
_OF_OURS = {_OURS: (_OURS, _SHORT)}
_OF_RIVALS = {name: (name,) for name in ("CGM", "SMC", "WU", "HMC-DF", "HMC-DFI")}
_OF_JUMPS = {name: (name,) for name in ("HMC-DF", "HMC-DFI")}

DCC_TREE = Experiment(
    name="dcc_tree",
    paper=PAPER,
    protocol=(
        "The authors' splits, priors and hyperparameters (Table 5), T = 500 iterations, 100 "
        "initial trees, one run of each set. Rows with T = 20 are means of ten short runs; on cgm "
        "there is one run, which starts with 1,000 trees. We add pilots with soft splits, restarts "
        "of stuck chains, a mixture of all chains' proposals as the denominator of the importance "
        "weights, and tempered SMC where these weights are too uneven. Train and test use the "
        "posterior mean. Hard routing sends each row one way; single draws are the mean score of "
        "one tree; balanced votes are the authors' votes by class. The paper gives standard "
        "deviations of ten runs, from which we compute standard errors. Its Tables 3 to 5 contain "
        "settings and no results. Times are CPU seconds and include burn-in and compilation, which "
        "T = 20 distributes over fewer proposals; the paper's are wall-clock times. The paper does "
        "not define zero weights. We count those that vanish in single precision, which its "
        "program uses, as a share of all weighted draws. Figure 1 shows the eight most probable "
        "topologies of seed 0. Two topologies of each synthetic set produce the true partition."
    ),
    tasks=_tasks,
    tables=[
        _scores("Table 1", _OF_OURS, ("train", "test", "test, hard routing", "test, single draws")),
        _scores(
            "Table 2",
            _OF_OURS,
            (
                "train",
                "test",
                "test, hard routing",
                "test, single draws",
                "test, balanced votes",
            ),
        ),
        _FIGURE_1,
        _seconds(_OF_OURS),
    ],
    seconds=1000.0,
    reasons={
        "Table 1 | cgm": (
            "least squares in the true leaves has .04025 on the test rows; larger errors come from "
            "runs that do not find the true partition."
        ),
        "Table 2 | raisin": (
            "Table 5 sets h_final = .001 by hand. The value with the largest evidence is more "
            "accurate: see `python -m benchmarks.soft_trees sharpness`."
        ),
        "Table 2": (
            "the paper's runs agree closely, as did ten earlier ones of ours, so one row of the "
            "set exceeds two standard errors."
        ),
    },
    tolerance=0.05,
)
DCC_TREE_RIVALS = Experiment(
    name="dcc_tree_rivals",
    paper=PAPER,
    protocol=(
        "Other samplers on the same splits, with ten runs each; HMC-DF and HMC-DFI, which take "
        "longer, have one. Train and test are means over single draws, as we read the paper; the "
        "table adds the posterior mean. The paper does not print the lengths of its chains. We run "
        "four chains. CGM and WU have 5,000 steps of warm-up and 5,000 more. HMC-DF and HMC-DFI "
        "have 500 jumps of burn-in and 100 more; in burn-in, chains in poor modes move to the "
        "modes of others, which is our addition. On wu the hyperparameters are those of Table 4. "
        "For other sets the paper does not print them: HMC has the h of Table 5, CGM and WU the "
        "priors of Table 4, and the particle filter the defaults of `ParticleTreeClassifier`. "
        "Leaves have uniform class probabilities. Times include compilation."
    ),
    tasks=_rival_tasks,
    tables=[
        _scores("Table 1", _OF_RIVALS, ("train", "test", "test, posterior mean")),
        _scores("Table 2", _OF_RIVALS, ("train", "test", "test, posterior mean")),
        _seconds(_OF_JUMPS),
    ],
    seconds=190.0,
    reasons={
        "Table 1 | cgm, HMC": (
            "the one run of HMC-DFI found no good mode, while that of HMC-DF did; the paper does "
            "not print its hyperparameters and lengths for this set."
        ),
        "Table 1 | cgm": "the paper's hyperparameters for this set are in another paper.",
        "Table 1": "the paper does not print the lengths of its chains.",
        "Table 2": "the paper prints neither the hyperparameters nor the lengths of its chains.",
    },
    tolerance=0.05,
)
