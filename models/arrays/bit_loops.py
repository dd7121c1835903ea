"""What compiled loops need: bits of words, places in arrays."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

__all__ = ["trailing_zeros", "unsigned"]


def unsigned(places: np.ndarray) -> np.ndarray:
    """View places in arrays as unsigned: compiled loops do not check these for negative ones."""
    return places.view(f"u{places.itemsize}")


def _trailing_zeros(typing_context: Any, word: Any) -> Any:
    """Find the place of the lowest bit of a uint64 that is not 0: one instruction."""

    def generate(context, builder, signature, arguments):
        is_never_zero = ir.Constant(ir.IntType(1), 1)
        return builder.cttz(arguments[0], is_never_zero)

    return types.uint64(types.uint64), generate


trailing_zeros: Any = intrinsic(_trailing_zeros)
