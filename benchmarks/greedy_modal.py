"""Speed of greedy modal trees: ``python -m benchmarks.greedy_modal``.

Printed are times of a fit on standard normal features, beside scikit-learn's decision tree in the
same run, and peak memory. Two classes; with x0 to x3 the first four features, the logit of the
second class is 2 (1.5 x0 [x1 > 0] + sin(2 x2) + 0.8 |x3| - 0.6). The tables of the paper are those
of ``python -m benchmarks.reproduce gmt``.
"""

import argparse
import statistics
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from sklearn.tree import DecisionTreeClassifier

from bdtppl import GreedyModalTreeClassifier
from benchmarks.processes import in_fresh_process, peak_memory
from benchmarks.text_table import print_table

__all__ = ["Times", "main", "measure", "simulate"]

_NUM_FEATURES = 20
_MOST_SHARE = 0.15  # of the decision tree's time: the project's bound
_MOST_GIGABYTES = 3.0


class Times(NamedTuple):
    """Seconds of fits, GB, and leaves."""

    first: float
    warm: float
    cart: float
    peak: float
    leaves: int
    cart_leaves: int


def simulate(num_rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Draw features [n, 20] and classes [n]."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((num_rows, _NUM_FEATURES))
    f = 1.5 * X[:, 0] * (X[:, 1] > 0) + np.sin(2 * X[:, 2]) + 0.8 * np.abs(X[:, 3]) - 0.6
    return X, (rng.random(num_rows) < 1 / (1 + np.exp(-2 * f))).astype(int)


def measure(num_rows: int, repeats: int) -> Times:
    """Time fits; for the first one and for memory to mean anything, in a fresh process."""
    X, y = simulate(num_rows)

    def fit(model) -> float:
        start = time.perf_counter()
        model.fit(X, y)
        return time.perf_counter() - start

    greedy = GreedyModalTreeClassifier()
    first = fit(greedy)
    peak = peak_memory()
    cart = DecisionTreeClassifier(random_state=0)
    pairs = [(fit(greedy), fit(cart)) for _ in range(repeats)]
    warm, of_cart = (statistics.median(seconds) for seconds in zip(*pairs, strict=True))
    return Times(
        first, warm, of_cart, peak, int(greedy.map_tree_.num_leaves), int(cart.get_n_leaves())
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmarks that the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.greedy_modal", description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--repeats", type=int, default=3, help="warm fits behind each median")
    options = parser.parse_args(arguments)
    _print_speed(options.rows, options.repeats)


def _print_speed(sizes: Sequence[int], repeats: int) -> None:
    table = []
    for num_rows in sizes:
        times = in_fresh_process(measure, num_rows, repeats)
        share = times.warm / times.cart
        is_met = share <= _MOST_SHARE and times.peak < _MOST_GIGABYTES
        table.append(
            [
                f"{num_rows:,}",
                f"{times.first:.2f}",
                f"{times.warm:.2f}",
                f"{1e9 * times.warm / (num_rows * np.log2(num_rows) * _NUM_FEATURES):.2f}",
                f"{times.cart:.2f}",
                f"{share:.3f}",
                f"{times.peak:.2f}",
                f"<= {_MOST_SHARE}, {_MOST_GIGABYTES:g} GB: {'met' if is_met else 'NOT MET'}",
                f"{times.leaves:,}",
                f"{times.cart_leaves:,}",
            ]
        )
    headings = ["rows", "first", "warm", "ns / (n d log2 n)", "CART", "warm/CART", "peak", "bound"]
    print_table(
        "Fit of GreedyModalTreeClassifier beside scikit-learn's DecisionTreeClassifier, seconds "
        "(warm: medians) and GB",
        [*headings, "leaves", "CART's leaves"],
        table,
    )


if __name__ == "__main__":
    main()
