"""Samplers of hard trees on the sets of Cochrane et al. 2024: rows CGM, WU and SMC of its tables.

Regression has the hyperparameters of its Table 4, found on WU; for CGM the paper refers to another
one. Chipman et al.'s sampler has their moves, Wu et al.'s also restructures at every tenth step.
Wu et al.'s division of leaves is binomial with p = .7; ours is even, from a beta-binomial law.
Classification has uniform class probabilities and priors alpha = .95, beta = 1, or the pinball
prior's rate 10, except for the particle filter, whose defaults are its authors'.
"""

import statistics
import warnings
from typing import Any

from bdtppl import (
    MetropolisTreeClassifier,
    MetropolisTreeRegressor,
    ParticleTreeClassifier,
)
from bdtppl.inference.metropolis.alternate import Alternate
from bdtppl.inference.metropolis.proposals import as_kernel
from bdtppl.inference.metropolis.restructure import Restructure
from bdtppl.models.leaf_count_priors import Pinball
from bdtppl.models.leaves import NormalInverseGamma
from bdtppl.models.priors import DepthDecay
from benchmarks.soft_sets import REGRESSION, agreement, split
from benchmarks.text_table import print_table

__all__ = ["print_rivals"]

# Train and test of Tables 1 and 2.
_PUBLISHED = {
    "wu": {"CGM": (0.059, 0.112), "WU": (0.054, 0.073)},
    "cgm": {"CGM": (0.043, 0.064), "WU": (0.042, 0.062)},
    "bcw": {"CGM": (0.983, 0.939), "SMC": (0.987, 0.924), "WU": (0.978, 0.922)},
    "iris": {"CGM": (0.985, 0.908), "SMC": (0.981, 0.909)},
    "wine": {"CGM": (0.957, 0.916), "SMC": (0.985, 0.978)},
    "raisin": {"CGM": (0.864, 0.843), "SMC": (0.863, 0.842), "WU": (0.862, 0.843)},
}
_DECAY = DepthDecay(0.95, 1.0)
_PINBALL = Pinball(10.0)
_LENGTH: dict[str, Any] = {"chains": 4, "warmup": 5_000, "draws": 250, "thin": 20}


def _rival(row: str, name: str, seed: int) -> Any:
    """Make the estimator of a row."""
    if row == "SMC":
        return ParticleTreeClassifier(random_state=seed)
    options: dict[str, Any] = {"random_state": seed, **_LENGTH}
    chipman = as_kernel("chipman")
    if row == "CGM":
        options |= {"prior": _DECAY, "proposal": chipman}
    else:
        options |= {"prior": _PINBALL, "proposal": Alternate(chipman, Restructure())}
    if name not in REGRESSION:
        return MetropolisTreeClassifier(**options)
    leaf = {"CGM": NormalInverseGamma(1.0, 0.5, 3.5, 0.5), "WU": NormalInverseGamma(1.0, 1.0, 4, 4)}
    return MetropolisTreeRegressor(leaf=leaf[row], **options)


def print_rivals(name: str, seeds: int, _: int) -> None:
    """Print each row's mean and standard deviation over runs beside the printed figures."""
    data, table = split(name), []
    for row, (train, test) in _PUBLISHED[name].items():
        scores = []
        for seed in range(seeds):
            model = _rival(row, name, seed)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that chains do not agree is what is known of them
                model.fit(data.X, data.y)
            predict = model.predict if name in REGRESSION else model.predict_proba
            of_train = agreement(model, predict(data.X), data.y)
            scores.append((of_train, agreement(model, predict(data.X_test), data.y_test)))
        means = [
            f"{statistics.mean(each):.4f} ({statistics.stdev(each) if seeds > 1 else 0:.2g})"
            for each in zip(*scores, strict=True)
        ]
        table.append([row, means[0], f"{train:g}", means[1], f"{test:g}"])
    headings = ["sampler", "train", "published", "test", "published"]
    print_table(f"Hard trees on {name}: mean (standard deviation), {seeds} seeds", headings, table)
