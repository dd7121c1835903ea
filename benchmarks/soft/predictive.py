"""Posterior predictive distributions at test rows: Figure 2 of Cochrane et al. 2024."""

import warnings
from typing import Any

import numpy as np
from sklearn.tree import DecisionTreeRegressor

from benchmarks.soft.rivals import jumping
from benchmarks.soft.sets import Runs, dcc_tree, split
from benchmarks.text_table import print_table

__all__ = ["print_predictive"]

_ROWS = 2
_QUANTILES = (0.05, 0.5, 0.95)
_POINTS = 201


def print_predictive(name: str, runs: Runs) -> None:
    """Print what three samplers say of random test rows, beside CART and the truth.

    In the paper the distributions "line up nearly exactly". How far they are from that of DCC-Tree
    is the greatest difference of distribution functions.
    """
    data = split(name)
    cart = DecisionTreeRegressor(random_state=0).fit(data.X, data.y)
    table = []
    for seed in runs.seeds:
        rows = np.random.default_rng(seed).choice(len(data.X_test), _ROWS, replace=False)
        models: dict[str, Any] = {
            "DCC-Tree": dcc_tree(name, runs, random_state=seed),
            "HMC-DF": jumping(name, inputs="hard", random_state=seed),
            "HMC-DFI": jumping(name, inputs="soft", random_state=seed),
        }
        found = {}
        for sampler, model in models.items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that jumping chains do not agree is known
                model.fit(data.X, data.y)
            found[sampler] = model.posterior_.predictive(data.X_test[rows])
        quantiles = {sampler: each.quantiles(_QUANTILES) for sampler, each in found.items()}
        low, *_, high = quantiles["DCC-Tree"].T
        points = np.linspace(low - 1, high + 1, _POINTS)
        cdf = {
            sampler: np.stack([each.cdf(point) for point in points])
            for sampler, each in found.items()
        }
        of_cart = cart.predict(data.X_test[rows])
        for place, row in enumerate(rows):
            for sampler in models:
                apart = np.abs(cdf[sampler] - cdf["DCC-Tree"])[:, place].max()
                numbers = *quantiles[sampler][place], data.y_test[row], of_cart[place]
                table.append(
                    [f"{row}", sampler, *(f"{value:.2f}" for value in numbers), f"{apart:.3f}"]
                )
    headings = ["row", "sampler", *(f"{level:.0%}" for level in _QUANTILES)]
    title = f"Posterior predictive distributions on {name} (Figure 2), {runs}"
    print_table(title, [*headings, "truth", "CART", "from DCC-Tree"], table)
