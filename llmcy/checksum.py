"""FNV-1a fingerprints: they find accidents, not attacks (anyone can recompute them)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmcy._kernels.checksum import fnv1a64_update

__all__ = ["OFFSET_BASIS", "fingerprint", "fnv1a64", "label"]

OFFSET_BASIS = 0xCBF29CE484222325


def fnv1a64(data: bytes | bytearray | memoryview, state: int = OFFSET_BASIS) -> int:
    """FNV-1a, 64 bit, over ``data``; pass an earlier result as ``state`` to continue it."""
    return fnv1a64_update(state, data) if len(data) else state


def label(value: int) -> str:
    """The printed form: ``fnv1a64:`` and 16 lower-case hexadecimal digits."""
    return f"fnv1a64:{value:016x}"


def fingerprint(arrays: Iterable[NDArray[Any]]) -> str:
    """Label of the value bits of all arrays, row-major, little-endian, one after the other."""
    state = OFFSET_BASIS
    for array in arrays:
        little = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False)
        state = fnv1a64(little.reshape(-1).view(np.uint8).data, state)
    return label(state)
