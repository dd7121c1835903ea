"""Other samplers on the sets of Cochrane et al. 2024: further rows of its Tables 1, 2 and 6.

CGM, WU and SMC sample hard trees. Regression has the hyperparameters of the paper's Table 4, found
on WU; for CGM the paper refers to another one. Chipman et al.'s sampler has their moves, Wu et
al.'s also restructures at every tenth step. Wu et al.'s division of leaves is binomial with p = .7;
ours is even, from a beta-binomial law. Classification has uniform class probabilities and priors
alpha = .95, beta = 1, or the pinball prior's rate 10, except for the particle filter, which has the
suite's defaults.

HMC-DF and HMC-DFI sample soft trees whose topology jumps, by the published scheme, which adapts the
sampler anew in 50 steps around each jump. Only for WU does the paper print their hyperparameters;
elsewhere they have those of DCC-Tree. Lengths of chains are ours, and so is that in burn-in chains
in poor modes go where others are.

What the paper prints for these rows are scores of single draws, which their mean tends to beat.
"""

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
from benchmarks.soft.sets import AUTHORS, REGRESSION, SETTINGS, agreement, split

__all__ = ["RivalScore", "jumping", "score_rival"]


class RivalScore(NamedTuple):
    """One run; scores are mean squared errors or accuracies.

    Attributes
    ----------
    train, test
        Mean over single draws: training rows and test rows.
    of_mean
        By the posterior mean, test rows.
    per_proposal
        CPU seconds, compilation included; None where the sampler is none of jumps.
    """

    train: float
    test: float
    of_mean: float
    per_proposal: float | None


_LENGTH: dict[str, Any] = {"chains": 4, "warmup": 5_000, "draws": 250, "thin": 20}
_OF_JUMPS: dict[str, Any] = {
    "published": True,
    "start": "prior",
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


def score_rival(name: str, row: str, seed: int) -> RivalScore:
    """Run the sampler of a row ("CGM", "WU", "SMC", "HMC-DF" or "HMC-DFI") on a set."""
    data, model = split(name), _rival(row, name, seed)
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that chains do not agree is what is known of them
        model.fit(data.X, data.y)
    seconds = time.process_time() - start
    train, test = (
        float(np.mean([agreement(model, each, y) for each in _single_trees(model, matrix)]))
        for matrix, y in ((data.X, data.y), (data.X_test, data.y_test))
    )
    predict = model.predict if name in REGRESSION else model.predict_proba
    per_proposal = None
    if row.startswith("HMC"):
        per_proposal = seconds / (model.chains * (model.burn_in + model.draws))
    return RivalScore(
        train, test, agreement(model, predict(data.X_test), data.y_test), per_proposal
    )


def _single_trees(model: Any, matrix: np.ndarray) -> np.ndarray:
    """Predict by each of some equally weighted draws, [draw, m] or [draw, m, class]."""
    if hasattr(model, "predict_draws"):
        found = model.predict_draws(matrix)
    else:
        found = model.posterior_.resampled(0, chains=1).means(matrix)
    return found.reshape(-1, *found.shape[2:])
