"""What compiled loops need: bits of words, places in arrays."""

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic


def unsigned(places: np.ndarray) -> np.ndarray:
    """View places in arrays as unsigned: compiled loops do not check these for negative ones."""
    return places.view(f"u{places.itemsize}")


def _trailing_zeros(typing_context: Any, word: Any) -> Any:
    """Find the place of the lowest bit of a uint64 that is not 0: one instruction."""
    return _one_instruction(
        lambda builder, value, is_never_zero: builder.cttz(value, is_never_zero)
    )


def _leading_zeros(typing_context: Any, word: Any) -> Any:
    """Count the zeros above the highest bit of a uint64 that is not 0."""
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
