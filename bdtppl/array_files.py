"""A file of a header and named arrays, with a checksum over its whole content.

The first line contains the format, its version, the SHA-256 of the rest and the length of the
header. The header is JSON: the writer's values, and the name, dtype and shape of each array. The
little-endian arrays follow, one after the other. There are no links, references or programs, and
declared sizes are checked against the file, so reading needs time and memory in proportion to the
file's size.
"""

import hashlib
import io
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import bdtppl
from bdtppl.files import open_ordinary, reason_of, write_whole

_FORMAT_VERSION = 2  # the first version stored arrays in an HDF5 file
_FIRST_LINE = re.compile(
    rb"(?P<kind>[a-z ]{1,40}), format (?P<version>\d{1,9}), "
    rb"sha256 (?P<sha256>[0-9a-f]{64}), header (?P<length>\d{1,12})\n"
)
_LONGEST_FIRST_LINE = 200
_LONGEST_HEADER = 1 << 27
_BLOCK_BYTES = 1 << 20
_LAST_CHARACTER = 0x10FFFF  # of Unicode
_DTYPES = re.compile(r"\|b1|\|[iu]1|<[iu][248]|<f[248]|<U[1-9]\d{0,8}")

DAMAGED = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What reading something of the wrong form can raise."""


def write_arrays(
    path: Path, kind: str, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> None:
    """Write a file, or replace it: a killed process leaves the old or the new file.

    Parameters
    ----------
    path
        The file; its folder must exist.
    kind
        Kind of the file, in lower-case words.
    header
        Values of JSON types.
    arrays
        Arrays of numbers, booleans or text by name.

    Raises
    ------
    OSError
        If it cannot be written; the old file is then unchanged.
    """
    stored = {name: _little_endian(array) for name, array in arrays.items()}
    described = {name: [a.dtype.str, list(a.shape)] for name, a in stored.items()}
    document = {"bdtppl_version": bdtppl.__version__, **header, "arrays": described}
    text = json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False).encode() + b"\n"
    if len(text) > _LONGEST_HEADER:
        raise ValueError(f"The description is longer than {_LONGEST_HEADER:,} bytes.")
    pieces = [text, *(_byte_view(a).data for a in stored.values() if a.size)]
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    first = f"{kind}, format {_FORMAT_VERSION}, sha256 {digest.hexdigest()}, header {len(text)}\n"
    write_whole(path, [first.encode(), *pieces])


def read_arrays(path: Path, kind: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Read the header, and arrays by name, that `write_arrays` wrote.

    Raises
    ------
    OSError
        If the file cannot be read.
    ValueError
        If it is damaged, was not written by `write_arrays`, or has a format newer than this version
        of bdtppl.
    """
    with open_ordinary(path) as file:
        first = file.readline(_LONGEST_FIRST_LINE)
        line = _FIRST_LINE.fullmatch(first)
        if line is None or line["kind"] != kind.encode():
            raise ValueError(f"{path} is damaged or no {kind}: its first line is different.")
        if (version := int(line["version"])) != _FORMAT_VERSION:
            raise ValueError(
                f"{path} has format version {version}; bdtppl {bdtppl.__version__} reads version "
                f"{_FORMAT_VERSION}: install a newer bdtppl."
            )
        digest = hashlib.sha256()
        for block in _read_blocks(file):
            digest.update(block)
        if digest.hexdigest() != line["sha256"].decode():
            raise ValueError(f"{path} is damaged or was altered: its checksum does not match.")
        size = os.fstat(file.fileno()).st_size
        file.seek(len(first))
        try:
            length = int(line["length"])
            if length > min(_LONGEST_HEADER, size):
                raise ValueError("its header exceeds the longest one allowed")
            header = json.loads(file.read(length), parse_constant=_refuse_constant)
            arrays = dict(_stored(file, header.pop("arrays"), size - len(first) - length))
        except DAMAGED as error:
            raise ValueError(f"{path} was not written by bdtppl: {reason_of(error)}.") from error
    return header, arrays


def _read_blocks(file: io.BufferedReader) -> Iterator[bytes]:
    while block := file.read(_BLOCK_BYTES):
        yield block


def _little_endian(array: np.ndarray) -> np.ndarray:
    array = np.asarray(array)
    array = np.asarray(array.astype(array.dtype.newbyteorder("<"), copy=False), order="C")
    if not _DTYPES.fullmatch(array.dtype.str):
        raise ValueError(f"Arrays of {array.dtype} cannot be stored.")
    return array


def _byte_view(array: np.ndarray) -> np.ndarray:
    """View an array in C order as its bytes, uint8 [bytes]."""
    return array.reshape(-1).view(np.uint8)


def _stored(file: io.BufferedReader, described: Any, size: int) -> Iterator[tuple[str, np.ndarray]]:
    """Read the arrays one after the other, with no more memory than the file's bytes."""
    for name, (code, shape) in described.items():
        if not _DTYPES.fullmatch(code):
            raise ValueError(f"arrays of {code} are not supported")
        if not all(type(length) is int and length >= 0 for length in shape):
            raise ValueError(f"an array has the shape {shape}")
        dtype, count = np.dtype(code), math.prod(shape)
        size -= count * dtype.itemsize
        if size < 0 or len(shape) > 8:
            raise ValueError(f"the array {name} is larger than the file")
        array = np.empty(shape, dtype)
        if array.size:
            file.readinto(_byte_view(array).data)
        if dtype.kind == "b" and (_byte_view(array) > 1).any():
            raise ValueError(f"the array {name} has booleans that are neither true nor false")
        if dtype.kind == "U" and (_byte_view(array).view("<u4") > _LAST_CHARACTER).any():
            raise ValueError(f"the array {name} has invalid text")
        yield name, array
    if size:
        raise ValueError(f"{size} bytes after its arrays belong to none")


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")
