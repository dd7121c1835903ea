"""Numba functions that XLA calls on a CPU, inside compiled programs and without Python.

XLA passes a frame of pointers to such a function (XLA FFI; ``xla/ffi/api/c_api.h`` of jaxlib, whose
layout is fixed for each major version): structs of 64-bit words, among them the buffers of the
arguments and results.
"""

import ctypes
import threading
from collections.abc import Callable
from typing import Any

import jax
import numba
import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_INTERFACE_VERSION = 3 << 32  # 0.3: the minor number is the upper half of the word
_ONE_AT_A_TIME = threading.Lock()
_COMPILED: dict[str, Any] = {}
_METADATA = 1  # kind of a frame that requests only the version


@intrinsic
def _pointer(typing_context, address):
    """Read a word as a pointer."""

    def generate(context, builder, signature, values):
        return builder.inttoptr(values[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


@numba.njit(nogil=True)
def _read_words(address, count):
    return numba.carray(_pointer(address), count, np.int64)  # pyright: ignore


@numba.njit(nogil=True)
def arguments(frame):
    """Return the buffers of the arguments; none if XLA requests the version of the interface.

    Parameters
    ----------
    frame
        Address of XLA's frame, int64.
    """
    words = _read_words(frame, 15)
    if words[1] != 0:
        extension = _read_words(words[1], 4)
        if extension[1] & 0xFFFFFFFF == _METADATA:
            _read_words(extension[3], 4)[3] = _INTERFACE_VERSION
            return words[:0]
    return _read_words(words[9], words[7])


@numba.njit(nogil=True)
def results(frame):
    """Return the buffers of the results; see `arguments`."""
    words = _read_words(frame, 15)
    return _read_words(words[14], words[12])


@numba.njit(nogil=True)
def matrix(buffer, dtype):
    """View a buffer of two axes as an array."""
    words = _read_words(buffer, 6)
    shape = _read_words(words[5], 2)
    address = _pointer(words[3])  # pyright: ignore
    return numba.carray(address, (shape[0], shape[1]), dtype)


def handler_name(function: Callable[[int], int]) -> str:
    """Return the name by which XLA calls a function (`jax.ffi.ffi_call`); compile it at first use.

    Parameters
    ----------
    function
        Takes the address of a frame, int64, and returns 0.
    """
    name = f"{function.__module__}.{function.__qualname__}"
    with _ONE_AT_A_TIME:
        if name not in _COMPILED:
            compiled = numba.cfunc(types.int64(types.int64), cache=True)(function)
            capsule = ctypes.pythonapi.PyCapsule_New
            capsule.restype = ctypes.py_object
            capsule.argtypes = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p
            # XLA expects the name None of handlers' capsules.
            handler = capsule(compiled.address, None, None)
            jax.ffi.register_ffi_target(name, handler, platform="cpu")
            _COMPILED[name] = compiled
    return name
