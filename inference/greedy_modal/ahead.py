"""Compilation while the table is sorted, so that a first fit hardly waits for it."""

from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np

from bdtppl.inference.greedy_modal.weights import compile_weights
from bdtppl.models.arrays.padding import padded_size
from bdtppl.models.data.design import Design
from bdtppl.models.leaf import Leaf
from bdtppl.models.prior_kinds import TreePrior
from bdtppl.models.row_statistics import row_statistics

_compiled: set = set()


def compile_ahead(prior: TreePrior, leaf: Leaf, matrix: np.ndarray, y: np.ndarray) -> None:
    """Compile the functions of a fit to rows [n, d] with targets [n], once, in a spare thread.

    Compiled code depends on shapes and types alone, so the first rows represent all.
    """
    prior = prior.resolve(Design.from_matrix(np.nan_to_num(matrix[:2])))
    key = jax.tree.structure((prior, leaf)), padded_size(len(y)), y.dtype, matrix.shape[1]
    if key in _compiled:
        return
    with ThreadPoolExecutor(2) as threads:
        threads.submit(row_statistics, leaf, y, np.ones(len(y), np.int64))
        threads.submit(compile_weights, prior, matrix.shape[1])
    _compiled.add(key)
