"""Other samplers on the sets of Cochrane et al. 2024: further rows of its Tables 1, 2 and 6.

CGM, WU and SMC sample hard trees. Regression has the hyperparameters of the paper's Table 4, found
on WU; for CGM the paper refers to another one. Chipman et al.'s sampler has their moves, Wu et
al.'s also restructures at every tenth step. Wu et al.'s division of leaves is binomial with p = .7;
ours is even, from a beta-binomial law. Classification has uniform class probabilities and priors
alpha = .95, beta = 1, or the pinball prior's rate 10, except for the particle filter, whose
defaults are its authors'.

HMC-DF and HMC-DFI sample soft trees whose topology jumps, by the published scheme, which adapts the
sampler anew in 50 steps around each jump. Only for WU does the paper print their hyperparameters;
elsewhere they have those of DCC-Tree. Lengths of chains are ours, and so is that in burn-in chains
in poor modes go where others are.

What the paper prints for these rows are scores of single draws, which their mean tends to beat.
"""

import statistics
import time
import warnings
from typing import Any, NamedTuple

import numpy as np

from bdtppl import (
    MetropolisTreeClassifier,
    MetropolisTreeRegressor,
    ParticleTreeClassifier,
    RJHMCTreeClassifier,
    RJHMCTreeRegressor,
)
from bdtppl.presets import dcc_tree_rival
from benchmarks.soft.sets import AUTHORS, REGRESSION, SETTINGS, Runs, agreement, split
from benchmarks.text_table import print_table

__all__ = ["jumping", "print_rivals"]


class _Published(NamedTuple):
    """Train and test of Tables 1 and 2, and seconds a proposal of Table 6."""

    train: float
    test: float
    seconds: float | None = None


_PUBLISHED = {
    "wu": {
        "CGM": _Published(0.059, 0.112),
        "WU": _Published(0.054, 0.073),
        "HMC-DF": _Published(0.060, 0.059, 35.83),
        "HMC-DFI": _Published(0.060, 0.060, 26.37),
    },
    "cgm": {
        "CGM": _Published(0.043, 0.064),
        "WU": _Published(0.042, 0.062),
        "HMC-DF": _Published(0.043, 0.041, 64.99),
        "HMC-DFI": _Published(0.043, 0.041, 68.23),
    },
    "bcw": {
        "CGM": _Published(0.983, 0.939),
        "SMC": _Published(0.987, 0.924),
        "WU": _Published(0.978, 0.922),
        "HMC-DF": _Published(0.973, 0.940, 32.61),
        "HMC-DFI": _Published(0.981, 0.952, 18.28),
    },
    "iris": {
        "CGM": _Published(0.985, 0.908),
        "SMC": _Published(0.981, 0.909),
        "HMC-DF": _Published(0.977, 0.906, 24.03),
        "HMC-DFI": _Published(0.975, 0.917, 15.26),
    },
    "wine": {
        "CGM": _Published(0.957, 0.916),
        "SMC": _Published(0.985, 0.978),
        "HMC-DF": _Published(0.949, 0.950, 36.01),
        "HMC-DFI": _Published(0.952, 0.948, 22.39),
    },
    "raisin": {
        "CGM": _Published(0.864, 0.843),
        "SMC": _Published(0.863, 0.842),
        "WU": _Published(0.862, 0.843),
        "HMC-DF": _Published(0.866, 0.847, 24.67),
        "HMC-DFI": _Published(0.864, 0.838, 28.27),
    },
}
_LENGTH: dict[str, Any] = {"chains": 4, "warmup": 5_000, "draws": 250, "thin": 20}
_OF_JUMPS: dict[str, Any] = {
    "published": True,
    "chains": 4,
    "warmup": 50,
    "burn_in": 500,
    "draws": 100,
}


def _rival(row: str, name: str, seed: int) -> Any:
    """Make the estimator of a row."""
    if row == "SMC":
        return ParticleTreeClassifier(random_state=seed)
    if row.startswith("HMC"):
        return jumping(name, inputs="hard" if row == "HMC-DF" else "soft", random_state=seed)
    options: dict[str, Any] = {"random_state": seed, **_LENGTH, **dcc_tree_rival(row)}
    if name in REGRESSION:
        return MetropolisTreeRegressor(**options)
    del options["leaf"]
    return MetropolisTreeClassifier(**options)


def jumping(name: str, **options: Any) -> Any:
    """Make the estimator of soft trees whose topology jumps."""
    h_init, h_final, _ = SETTINGS[name]
    options |= {"h_init": h_init, "h_final": h_final, "time_limit": None, **_OF_JUMPS}
    if name in REGRESSION:
        own = dcc_tree_rival("RJHMC") if name == "wu" else {"model": AUTHORS}
        return RJHMCTreeRegressor(**(options | own))
    return RJHMCTreeClassifier(**options)


def print_rivals(name: str, runs: Runs) -> None:
    """Print each row's mean and standard deviation over runs beside the printed figures."""
    data, table = split(name), []
    for row, published in _PUBLISHED[name].items():
        scores, seconds = [], []
        for seed in runs.seeds:
            model = _rival(row, name, seed)
            start = time.perf_counter()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that chains do not agree is what is known of them
                model.fit(data.X, data.y)
            seconds.append(time.perf_counter() - start)
            predict = model.predict if name in REGRESSION else model.predict_proba
            drawn = _single_trees(model, data.X), _single_trees(model, data.X_test)
            scores.append(
                (
                    np.mean([agreement(model, each, data.y) for each in drawn[0]]),
                    np.mean([agreement(model, each, data.y_test) for each in drawn[1]]),
                    agreement(model, predict(data.X_test), data.y_test),
                )
            )
        train, test, of_mean = (
            f"{statistics.mean(each):.4f} ({statistics.stdev(each) if len(each) > 1 else 0:.2g})"
            for each in zip(*scores, strict=True)
        )
        of_proposals = ["", ""]
        if published.seconds is not None:
            proposals = model.chains * (model.burn_in + model.draws)
            of_proposals = [f"{seconds[0] / proposals:.4f}", f"{published.seconds:g}"]
        of_draws = [train, f"{published.train:g}", test, f"{published.test:g}"]
        table.append([row, *of_draws, of_mean, f"{seconds[0]:.0f}", *of_proposals])
    headings = ["sampler", "train", "published", "test", "published", "test by the mean"]
    headings += ["seconds", "a proposal", "published"]
    title = f"Single draws on {name}: mean (standard deviation) over {len(runs.seeds)} seeds"
    print_table(title, headings, table)


def _single_trees(model: Any, matrix: np.ndarray) -> np.ndarray:
    """Predict by each of some equally weighted draws, [draw, m] or [draw, m, class]."""
    if hasattr(model, "predict_draws"):
        found = model.predict_draws(matrix)
    else:
        found = model.posterior_.resampled(0, chains=1).means(matrix)
    return found.reshape(-1, *found.shape[2:])
