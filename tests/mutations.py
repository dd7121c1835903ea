"""Files that somebody has damaged: mutated bytes, and mutated values of JSON and TOML.

Everything follows from the generator: the same seed gives the same mutations.
"""

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

__all__ = ["EXTREMES", "mutated_bytes", "mutated_value", "to_toml"]

EXTREMES: list[Any] = [
    *(0, -1, 1, 2**31, 2**63, -(2**63) - 1, 10**400, 0.5, -0.0, 1e-320, 1e300, -1e308),
    *(float("nan"), float("inf"), float("-inf")),
    *("", "x", "\x00", "é\u200b", "x" * 5000, "../../../etc/passwd", "1e999", "nan"),
    *(True, False, None, [], {}, [[]], [None], {"": {}}, [1] * 1000),
]
"""Values that are rarely meant."""

_NUMBERS = [b"0", b"-1", b"1e999", b"-1e308", b"nan", b"inf", b"9" * 400, b"1e-400", b"0x7f"]
_BRACKETS = [(b"[", b"]"), (b"{", b"}"), (b"{a=", b"}"), (b'{"a":', b"}"), (b"(", b")")]
_ODD = [b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\r", b"\n\n", b'"', b"'", b",", b"\t", b"\xe2\x80"]


def mutated_bytes(rng: np.random.Generator, data: bytes) -> bytes:
    """Damage the bytes of a file in one to three ways."""
    for _ in range(int(rng.integers(1, 4))):
        data = _BYTE_MUTATIONS[int(rng.integers(len(_BYTE_MUTATIONS)))](rng, data)
    return data


def _span(rng: np.random.Generator, data: bytes, most: int = 64) -> tuple[int, int]:
    begin = int(rng.integers(len(data) + 1))
    return begin, min(begin + int(rng.integers(1, most + 1)), len(data))


def _flip(rng: np.random.Generator, data: bytes) -> bytes:
    changed = bytearray(data)
    for place in rng.integers(max(len(data), 1), size=int(rng.integers(1, 9))) if data else ():
        changed[place] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def _truncate(rng: np.random.Generator, data: bytes) -> bytes:
    return data[: int(rng.integers(len(data) + 1))]


def _delete(rng: np.random.Generator, data: bytes) -> bytes:
    begin, end = _span(rng, data)
    return data[:begin] + data[end:]


def _duplicate(rng: np.random.Generator, data: bytes) -> bytes:
    begin, end = _span(rng, data)
    return data[:end] + data[begin:end] * int(rng.integers(1, 4)) + data[end:]


def _swap(rng: np.random.Generator, data: bytes) -> bytes:
    begin, end = _span(rng, data)
    other, stop = _span(rng, data[end:])
    other, stop = other + end, stop + end
    return data[:begin] + data[other:stop] + data[end:other] + data[begin:end] + data[stop:]


def _insert(choices: Callable[[np.random.Generator], bytes]) -> Callable[..., bytes]:
    def insert(rng: np.random.Generator, data: bytes) -> bytes:
        place = int(rng.integers(len(data) + 1))
        return data[:place] + choices(rng) + data[place:]

    return insert


def _any_of(options: list[bytes]) -> Callable[[np.random.Generator], bytes]:
    return lambda rng: options[int(rng.integers(len(options)))]


def _nested(rng: np.random.Generator) -> bytes:
    opening, closing = _BRACKETS[int(rng.integers(len(_BRACKETS)))]
    depth = int(rng.choice([10, 500, 5000]))
    return opening * depth + closing * int(rng.choice([0, depth]))


def _replace_number(rng: np.random.Generator, data: bytes) -> bytes:
    digits = [place for place, byte in enumerate(data) if 48 <= byte < 58]
    if not digits:
        return data
    end = place = digits[int(rng.integers(len(digits)))]
    while end < len(data) and (48 <= data[end] < 58 or data[end] in b"."):
        end += 1
    return data[:place] + _NUMBERS[int(rng.integers(len(_NUMBERS)))] + data[end:]


_BYTE_MUTATIONS = [
    _flip,
    _truncate,
    _delete,
    _duplicate,
    _swap,
    _replace_number,
    _replace_number,
    _insert(lambda rng: rng.bytes(int(rng.integers(1, 17)))),
    _insert(_any_of(_ODD)),
    _insert(_nested),
    _insert(lambda rng: b"x" * int(rng.choice([1000, 140_000]))),
]


def mutated_value(rng: np.random.Generator, value: Any) -> Any:
    """Change one to three places of a value of JSON or TOML, and return it; the given one stays.

    A place gets an extreme or another type, goes away, or is there twice.
    """
    value = copy.deepcopy(value)
    for _ in range(int(rng.integers(1, 4))):
        places = list(_places(value))
        if not places:
            return EXTREMES[int(rng.integers(len(EXTREMES)))]
        parent, key = places[int(rng.integers(len(places)))]
        _mutate_at(rng, parent, key)
    return value


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in list(items):
        yield value, key
        if isinstance(inner, dict | list):
            yield from _places(inner)


def _mutate_at(rng: np.random.Generator, parent: Any, key: Any) -> None:
    kind, old = int(rng.integers(6)), parent[key]
    if kind == 0:
        del parent[key]
    elif kind == 1 and isinstance(parent, list):
        parent.insert(key, copy.deepcopy(old))
    elif kind == 1:
        parent[f"{key}x"] = parent.pop(key)
    elif kind == 2:
        parent[key] = [old] if rng.random() < 0.5 else {"a": old}
    elif kind == 3 and isinstance(old, int | float) and not isinstance(old, bool):
        parent[key] = [old + 1, -old, old * 10**9, int(old) if abs(old) < 1e9 else 0, str(old)][
            int(rng.integers(5))
        ]
    elif kind == 3 and isinstance(old, str):
        parent[key] = old[::-1] if rng.random() < 0.5 else old + " "
    else:
        parent[key] = copy.deepcopy(EXTREMES[int(rng.integers(len(EXTREMES)))])


def to_toml(tables: dict[str, Any]) -> str:
    """Write a mapping as TOML, of which tables stand inline; None becomes an empty text."""
    return "".join(f"{json.dumps(str(key))} = {_inline(value)}\n" for key, value in tables.items())


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return (
            "{" + ", ".join(f"{json.dumps(str(k))} = {_inline(v)}" for k, v in value.items()) + "}"
        )
    if isinstance(value, list):
        return "[" + ", ".join(map(_inline, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | None):
        return json.dumps(value or "")
    return repr(value)
