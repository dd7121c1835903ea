"""Leaf scores of many sets of rows at once.

A set of rows is scored by tables of counts or by the leaf family's compiled score, if it has them,
else by its log marginal under XLA. If the prior of a leaf has absorbed rows from nodes above
(smoothing, section 5.2), with statistics P, rows with statistics S score log m(P + S) - log m(P).
This holds for every conjugate family, because its update adds statistics.
"""

from collections.abc import Callable, Sequence
from functools import partial

import jax
import numpy as np

from bdtppl.models.arrays.padding import padded_size
from bdtppl.models.leaf import Leaf
from bdtppl.models.leaf_kernels import LeafKernel, has_kernel

LeafScore = Callable[[Sequence[np.ndarray]], np.ndarray]

_SETS_SCORED = 1 << 20
MOST_TABLED = 1 << 20
"""Rows that are scored by tables of counts; more could take more memory than the rows."""


@jax.jit
def _log_marginal(leaf: Leaf, statistics: jax.Array) -> jax.Array:
    return leaf.log_marginal(statistics)


def _score_compiled(leaf: Leaf, statistics: Sequence[np.ndarray]) -> np.ndarray:
    stacked = np.stack(statistics, axis=-1).astype(np.float64)
    result = np.empty(len(stacked))
    with jax.enable_x64(True):
        for start in range(0, len(stacked), _SETS_SCORED):
            piece = stacked[start : start + _SETS_SCORED]
            padding = padded_size(len(piece)) - len(piece)
            scores = _log_marginal(leaf, np.pad(piece, ((0, padding), (0, 0))))
            result[start : start + _SETS_SCORED] = np.asarray(scores)[: len(piece)]
    return result


def has_whole_counts(leaf: Leaf, statistics: np.ndarray) -> bool:
    """Return whether statistics [..., s] count whole rows, as compiled scores require."""
    counts = statistics if leaf.sums_to_rows else statistics[..., :1]
    return bool((counts == np.rint(counts)).all())


def leaf_scorer(leaf: Leaf, most: float, *, is_whole: bool) -> LeafScore:
    """Return a NumPy function from statistics [m], one array each, to log marginals [m].

    Parameters
    ----------
    leaf
        Leaf family.
    most
        Largest weight of a set of rows.
    is_whole
        Whether sets contain whole rows (`has_whole_counts`).
    """
    if is_whole and has_kernel(leaf):
        if most <= MOST_TABLED and hasattr(leaf, "log_marginal_table"):
            return leaf.log_marginal_table(int(most))  # pyright: ignore[reportAttributeAccessIssue]
        return LeafKernel.of(leaf, int(most))
    return partial(_score_compiled, jax.tree.map(np.float64, leaf))
