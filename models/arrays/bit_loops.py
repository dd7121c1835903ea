"""Helpers of compiled loops: bits of words, unsigned indices."""

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic


def unsigned(places: np.ndarray) -> np.ndarray:
    """View array indices as unsigned, so that compiled loops skip the check for negative ones."""
    return places.view(f"u{places.itemsize}")


def _trailing_zeros(typing_context: Any, word: Any) -> Any:
    """Find the position of the lowest set bit of a nonzero uint64, in one instruction."""
    return _one_instruction(
        lambda builder, value, is_never_zero: builder.cttz(value, is_never_zero)
    )


def _leading_zeros(typing_context: Any, word: Any) -> Any:
    """Count the zeros above the highest set bit of a nonzero uint64."""
    return _one_instruction(
        lambda builder, value, is_never_zero: builder.ctlz(value, is_never_zero)
    )


def _number_of_bits(typing_context: Any, word: Any) -> Any:
    """Count the bits of a uint64."""
    return _one_instruction(lambda builder, value, _: builder.ctpop(value))


def _one_instruction(emit: Callable[[Any, Any, Any], Any]) -> Any:
    def generate(context, builder, signature, arguments):
        return emit(builder, arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), generate


leading_zeros: Any = intrinsic(_leading_zeros)
number_of_bits: Any = intrinsic(_number_of_bits)
trailing_zeros: Any = intrinsic(_trailing_zeros)
