"""How reports spell values: six decimals, lower-case booleans, bits."""

from __future__ import annotations

import struct
from collections.abc import Iterable

__all__ = ["decimal6", "decimals", "float_bits", "hexadecimal", "listed", "record", "spelled"]

Value = bool | int | float | str


def spelled(value: Value) -> str:
    """A value as reports print it: booleans lower-case, floats with six decimals."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return decimal6(value) if isinstance(value, float) else str(value)


def decimal6(value: float) -> str:
    """A float with six decimals."""
    return f"{value:.6f}"


def decimals(values: Iterable[float], digits: int) -> str:
    """``[0.500000,1.000000]``; a negative zero is printed as 0."""
    return listed(f"{value + 0.0:.{digits}f}" for value in values)


def listed(values: Iterable[object]) -> str:
    """``[1,2,3]``."""
    return "[" + ",".join(str(value) for value in values) + "]"


def hexadecimal(value: int) -> str:
    """A 64-bit word as ``0x`` and 16 digits."""
    return f"0x{value:016x}"


def record(key: str, **fields: Value) -> str:
    """``key=field:value field:value ...``."""
    return f"{key}=" + " ".join(f"{name}:{spelled(value)}" for name, value in fields.items())


def float_bits(values: Iterable[float]) -> tuple[int, ...]:
    """The binary64 bit pattern of each value."""
    return tuple(struct.unpack("<Q", struct.pack("<d", value))[0] for value in values)
