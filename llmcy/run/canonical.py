"""One text for one value: the form of JSON that digests are taken of."""

from __future__ import annotations

import hashlib
import json
import struct
from typing import Any

__all__ = [
    "canonical_json",
    "first_difference",
    "float_bits",
    "float_from_bits",
    "sha256_hex",
    "with_float_bits",
]

FLOAT_MARK = "f64:"


def canonical_json(value: Any) -> bytes:
    """Keys sorted, no spaces, ASCII only: equal values give equal bytes."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    ).encode("ascii")


def sha256_hex(data: bytes | memoryview) -> str:
    """SHA-256 of ``data`` as 64 hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def float_bits(value: float) -> str:
    """``f64:`` and the 16 hexadecimal digits of the binary64 number, the sign bit first."""
    return FLOAT_MARK + struct.pack(">d", value).hex()


def float_from_bits(text: str) -> float:
    """The number that :func:`float_bits` wrote.

    Raises
    ------
    ValueError
        For any other text.
    """
    digits = text.removeprefix(FLOAT_MARK)
    value: float = struct.unpack(">d", bytes.fromhex(digits))[0] if len(digits) == 16 else 0.0
    if float_bits(value) != text:
        raise ValueError(f"{text!r} is not 'f64:' and 16 hexadecimal digits")
    return value


def with_float_bits(value: Any) -> Any:
    """A copy of a JSON value in which every float is written as its bits."""
    if isinstance(value, float):
        return float_bits(value)
    if isinstance(value, dict):
        return {key: with_float_bits(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [with_float_bits(item) for item in value]
    return value


def first_difference(expected: Any, actual: Any, path: str = "") -> tuple[str, Any, Any] | None:
    """Where two JSON values differ first: dotted path and both values; None when they are equal."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        for key in sorted(expected.keys() | actual.keys()):
            below = f"{path}.{key}" if path else key
            if key not in expected or key not in actual:
                return below, expected.get(key), actual.get(key)
            found = first_difference(expected[key], actual[key], below)
            if found is not None:
                return found
        return None
    if isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        for index, (a, b) in enumerate(zip(expected, actual, strict=True)):
            found = first_difference(a, b, f"{path}[{index}]")
            if found is not None:
                return found
        return None
    same = type(expected) is type(actual) and expected == actual
    return None if same else (path, expected, actual)
