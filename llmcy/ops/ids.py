"""Token ids as operations take them."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from llmcy.errors import DTypeError, RangeError

__all__ = ["as_ids"]


def as_ids(name: str, ids: ArrayLike) -> NDArray[np.int64]:
    """Whole numbers as a C-contiguous int64 array of the caller's shape.

    Raises
    ------
    DTypeError
        For anything but whole numbers.
    RangeError
        For a number that int64 cannot hold.
    """
    array = np.asarray(ids)
    if array.dtype == np.int64:
        return np.ascontiguousarray(array).reshape(array.shape)
    if array.size == 0 and not isinstance(ids, np.ndarray):
        return np.zeros(array.shape, np.int64)
    if array.dtype.kind not in "iu":
        raise DTypeError(
            "UnsupportedDType",
            f"{name} must hold whole numbers, got {array.dtype}",
            name=name,
            expected="int64",
            actual=array.dtype.name,
        )
    if array.size and int(array.max()) > np.iinfo(np.int64).max:
        value = int(array.max())
        raise RangeError(
            "OutOfRange",
            f"{name} holds {value}, which does not fit int64",
            name=name,
            value=value,
            expected="a 64-bit whole number",
        )
    return np.array(array, np.int64, order="C")
