"""The data sets of Sullivan et al. 2023, section 6.1, bucketed as the paper does."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from sklearn.datasets import load_iris

from bdtppl.datasets import load, make_hidden_xor
from bdtppl.models.data.design import Binning, Design

__all__ = ["NAMES", "Problem", "available_problems", "problem"]

NAMES = ("iris", "haberman", "vertebral", "caesarian", "hidden XOR")

# Sullivan et al. 2023, section 6.1: at most 10 values a feature, 5 for vertebral.
_BINS = {"iris": 10, "haberman": 10, "vertebral": 5, "caesarian": 10, "hidden XOR": None}
_FILES = {"haberman": "haberman", "vertebral": "vertebral_2c", "caesarian": "caesarian"}


class Problem(NamedTuple):
    """A classification set with its buckets.

    Attributes
    ----------
    name
        Name in the tables.
    matrix
        float64 [n, d].
    y
        int [n]; class indices.
    bins
        Most buckets a feature.
    """

    name: str
    matrix: np.ndarray
    y: np.ndarray
    bins: int | None

    @property
    def num_classes(self) -> int:
        """Number of classes c."""
        return int(self.y.max()) + 1

    def design(self, binning: Binning = "quantile") -> Design:
        """Code all rows."""
        return Design.from_matrix(self.matrix, bins=self.bins, binning=binning)


def problem(name: str, *, xor_rows: int = 200) -> Problem:
    """Get one of the five sets.

    Parameters
    ----------
    name
        One of `NAMES`.
    xor_rows
        Rows of the hidden XOR set, which the paper does not give.

    Raises
    ------
    FileNotFoundError
        If ``BDTPPL_DATA`` has no file of it; says where to get it.
    """
    if name == "iris":
        matrix, labels = load_iris(return_X_y=True)
    elif name == "hidden XOR":
        matrix, labels = make_hidden_xor(xor_rows, random_state=0)
    else:
        matrix, labels, _, _ = load(_FILES[name])
    y = np.unique(labels, return_inverse=True)[1]
    return Problem(name, np.asarray(matrix, np.float64), y, _BINS[name])


def available_problems(names: Sequence[str] = NAMES, *, xor_rows: int = 200) -> list[Problem]:
    """Get the sets that are there, and say where the others can be had."""
    found = []
    for name in names:
        try:
            found.append(problem(name, xor_rows=xor_rows))
        except FileNotFoundError as missing:
            print(f"{name} is left out: {missing}\n")
    return found
