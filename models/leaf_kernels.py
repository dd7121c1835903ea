"""Compiled scores of leaf families, called by address from inferences compiled for CPUs.

A function argument would recompile the caller for each family, in each process. An address is a
number, so the caller is compiled once and cached on disk. Addresses belong to a process, so they
are looked up when used and are never stored in files.
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from bdtppl.models.leaf import Leaf

_MATRIX, _VECTOR = types.float64[:, ::1], types.float64[::1]
_ARGUMENTS = _MATRIX, _MATRIX, _VECTOR, _VECTOR
_MOST_TABULATED = 1 << 16  # counts
_SCORES = {"compiled_score", "log_marginal"}


@numba.njit(cache=True, nogil=True)
def log_gamma_ratio(start, count):
    """Return the log of gamma(start + count) / gamma(start); see `bdtppl.models.leaves`."""
    if start < 100:
        return math.lgamma(start + count) - math.lgamma(start)
    end = start + count
    rest = (1 - (1 - 2 / (7 * end * end)) / (30 * end * end)) / (12 * end)
    rest -= (1 - (1 - 2 / (7 * start * start)) / (30 * start * start)) / (12 * start)
    return (start - 0.5) * math.log1p(count / start) + count * (math.log(end) - 1) + rest


@intrinsic
def score_leaves(typing_context, address, statistics, tables, numbers, scores):
    """Call the compiled score at an address (`bdtppl.models.leaf.Leaf.compiled_score`)."""

    def generate(context, builder, signature, values):
        parts = [context.get_value_type(each) for each in signature.args[1:]]
        kind = ir.FunctionType(context.get_value_type(signature.return_type), parts)
        return builder.call(builder.inttoptr(values[0], kind.as_pointer()), values[1:])

    return types.int64(types.int64, *_ARGUMENTS), generate


@numba.njit(cache=True, nogil=True)
def _score_all(address, statistics, tables, numbers, scores):
    score_leaves(address, statistics, tables, numbers, scores)  # pyright: ignore[reportCallIssue]


def own_score(family: type) -> Any:
    """Return a family's own score; an inherited one may not match its own log marginal."""
    owner = next(each for each in family.__mro__ if not _SCORES.isdisjoint(vars(each)))
    return owner.compiled_score if "compiled_score" in vars(owner) else None


def has_kernel(leaf: Leaf) -> bool:
    """Return whether a leaf has a compiled score."""
    return own_score(type(leaf)) is not None


@cache
def _compile_score(score: Any) -> Any:
    signature = types.int64(*_ARGUMENTS)
    try:
        return numba.cfunc(signature, cache=True, nogil=True)(score)
    except RuntimeError:  # defined in no file
        return numba.cfunc(signature, nogil=True)(score)


class LeafKernel(NamedTuple):
    """A family's compiled score and its inputs.

    Attributes
    ----------
    address
        Address of the score; 0 if the family has none.
    tables, numbers
        float64 [k, counts] and [p]; see `bdtppl.models.leaf.Leaf.score_tables`.
    """

    address: int
    tables: np.ndarray
    numbers: np.ndarray

    @classmethod
    def of(cls, leaf: Leaf, num_rows: int) -> "LeafKernel":
        """Tabulate for sets of up to some rows; larger sets are scored, too, but more slowly."""
        score = own_score(type(leaf))
        if score is None:
            return cls(0, np.zeros((1, 1)), np.zeros(1))
        given = leaf.score_tables(np.arange(min(num_rows + 1, _MOST_TABULATED)))
        arrays = (np.ascontiguousarray(each, np.float64) for each in given)
        return cls(_compile_score(score).address, *arrays)

    def __call__(self, statistics: Sequence[np.ndarray]) -> np.ndarray:
        """Score sets of whole rows, one array [m] for each statistic."""
        stacked = np.stack(statistics, axis=-1).astype(np.float64)
        scores = np.empty(len(stacked))
        _score_all(self.address, stacked, self.tables, self.numbers, scores)
        return scores
