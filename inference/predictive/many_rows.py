"""Predictions of any number of rows in bounded memory.

Rows are independent given the posterior, so they are predicted in chunks. The size of a chunk
depends on a posterior's bytes per row, and does not affect the results.
"""

import os
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import jax
import numpy as np

from bdtppl.inference.parallel import fan_out, num_workers, workers

_BYTES_AT_ONCE = 1 << 28  # of temporary arrays
_BYTES_A_DRAW = 128  # bytes of a drawn target
_BYTES_A_QUANTILE = 64
_PIECES_A_WORKER = 4


def by_rows(
    function: Callable[[slice], np.ndarray],
    num_rows: int,
    bytes_a_row: int,
    *,
    axis: int = 0,
    n_jobs: int | None = None,
) -> np.ndarray:
    """Call a function on chunks of rows, in sequence or by workers; join its results.

    Parameters
    ----------
    function
        From a slice of the rows to their results.
    num_rows
        Number of rows.
    bytes_a_row
        Bytes per row in temporary arrays.
    axis
        Axis of rows in the results.
    n_jobs
        Number of workers; see `bdtppl.inference.parallel.workers`.

    Raises
    ------
    ValueError
        If the results need more memory than this machine has.

    Examples
    --------
    >>> by_rows(lambda rows: np.arange(10)[rows] ** 2, 10, bytes_a_row=1 << 26)
    array([ 0,  1,  4,  9, 16, 25, 36, 49, 64, 81])
    """
    # A power of two, so that arrays padded to few sizes need no padding.
    size = 1 << max(_BYTES_AT_ONCE // max(bytes_a_row, 1), 1).bit_length() - 1
    _require_memory(bytes_a_row, 1)
    results = function(slice(0, size))
    if size >= num_rows:
        return results
    _require_memory(results.nbytes / size * num_rows, num_rows)
    shape = list(results.shape)
    shape[axis] = num_rows
    result = np.empty(shape, results.dtype)
    by_row = np.moveaxis(result, axis, 0)
    by_row[:size] = np.moveaxis(results, axis, 0)
    pieces = [slice(start, start + size) for start in range(size, num_rows, size)]
    with workers(n_jobs):
        # Results of some pieces at once: those of all would be in memory twice.
        at_once = 1 if (number := num_workers()) == 1 else _PIECES_A_WORKER * number
        for first in range(0, len(pieces), at_once):
            some = pieces[first : first + at_once]
            found = fan_out(function, [(rows,) for rows in some], most_threads=1)
            for rows, values in zip(some, found, strict=True):
                by_row[rows] = np.moveaxis(values, axis, 0)
    return result


def _require_memory(num_bytes: float, num_rows: int) -> None:
    """Raise ValueError if there is too little memory."""
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not every system provides this
        return
    if num_bytes > memory:
        raise ValueError(
            f"Results of {num_rows:,} rows need {num_bytes / 1e9:,.0f} GB, but this machine has "
            f"{memory / 1e9:,.0f} GB of memory: request fewer rows or draws at a time."
        )


class InPieces:
    """A mixture at rows that are computed in chunks."""

    def _joined(
        self, function: Callable[[Any, Any], np.ndarray], more_bytes: int = 0
    ) -> np.ndarray:
        """Call a function on the mixture at some rows and on their places; join the results.

        The argument is its bytes per row beyond those of means.
        """
        raise NotImplementedError

    def mean(self) -> np.ndarray:
        """Return the predictive mean [m], or class probabilities [m, c]."""
        return self._joined(lambda piece, _: piece.mean())

    def log_density(self, y: np.ndarray) -> np.ndarray:
        """Return the log predictive density or probability of one target per row, float64 [m]."""
        return self._joined(lambda piece, rows: piece.log_density(np.asarray(y)[rows]))

    def cdf(self, y: np.ndarray) -> np.ndarray:
        """Return the probability of a real target of at most y, one for each row, float64 [m]."""
        return self._joined(lambda piece, rows: piece.cdf(np.asarray(y)[rows]))

    def crps(self, y: np.ndarray) -> np.ndarray:
        """Return the continuous ranked probability score of one real target per row, float64 [m].

        Raises
        ------
        ValueError
            If the leaves' predictives are not Student-t distributions.
        """
        return self._joined(lambda piece, rows: piece.crps(np.asarray(y)[rows]))

    def quantiles(self, probabilities: Sequence[float]) -> np.ndarray:
        """Return quantiles of real targets, float64 [m, probabilities]."""
        more_bytes = _BYTES_A_QUANTILE * len(probabilities)
        return self._joined(lambda piece, _: piece.quantiles(probabilities), more_bytes)

    def mean_quantiles(self, probabilities: Sequence[float]) -> np.ndarray:
        """Return quantiles of the mean of a row's targets, or of class probabilities."""
        more_bytes = _BYTES_A_QUANTILE * len(probabilities)
        return self._joined(lambda piece, _: piece.mean_quantiles(probabilities), more_bytes)


class ManyRows(InPieces):
    """Posterior predictive of rows.

    Parameters
    ----------
    predictive
        From rows [m, d] to their mixture.
    matrix
        Rows, float64 [m, d].
    bytes_a_row
        Bytes per row in temporary arrays.
    n_jobs
        Number of workers; see `by_rows`.
    """

    def __init__(
        self,
        predictive: Callable[[np.ndarray], Any],
        matrix: np.ndarray,
        bytes_a_row: int,
        n_jobs: int | None = None,
    ):
        self._predictive, self._matrix, self._bytes_a_row = predictive, matrix, bytes_a_row
        self._n_jobs = n_jobs

    @cached_property
    def _whole(self) -> Any:
        return self._predictive(self._matrix)

    def _at(self, rows: slice) -> Any:
        """Return the mixture at some rows; that at all of them is cached."""
        if rows.stop - rows.start >= len(self._matrix):
            return self._whole
        return self._predictive(self._matrix[rows])

    def _joined(
        self, function: Callable[[Any, Any], np.ndarray], more_bytes: int = 0
    ) -> np.ndarray:
        return by_rows(
            lambda rows: function(self._at(rows), rows),
            len(self._matrix),
            self._bytes_a_row + more_bytes,
            n_jobs=self._n_jobs,
        )

    def sample(self, rng_key: jax.Array, num_draws: int) -> np.ndarray:
        """Draw new targets, [num_draws, m]; those of a row depend on no other row."""
        return by_rows(
            lambda rows: self._at(rows).sample(rng_key, num_draws, first_row=rows.start),
            len(self._matrix),
            self._bytes_a_row + _BYTES_A_DRAW * num_draws,
            axis=1,
            n_jobs=self._n_jobs,
        )
