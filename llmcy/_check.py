"""Checks of arrays and numbers in front of the kernels: the only place where their error texts are.

Kernels read plain memory, so everything they rely on is established here: an array of the right
scalar type, C-contiguous and aligned, of the expected shape, writable where results go, and not
sharing memory with an argument that is still to be read.  A check that passes costs some tens of
nanoseconds; the texts are built only when one fails.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from llmcy._kernels.arrays import first_overlap, has_shape, is_float, is_of
from llmcy._kernels.memory import empty
from llmcy.errors import DTypeError, RangeError, ShapeError

__all__ = [
    "FLOAT32",
    "FLOAT64",
    "apart",
    "axes",
    "fail_range",
    "fail_shape",
    "finite",
    "flag",
    "float_array",
    "float_dtype",
    "like",
    "output",
    "positive",
    "real_number",
    "size",
    "token_ids",
    "token_out_of_range",
    "updated",
    "whole_number",
]

Array = NDArray[Any]

FLOAT64 = np.dtype(np.float64)
FLOAT32 = np.dtype(np.float32)
INT64 = np.dtype(np.int64)


# ---- failures --------------------------------------------------------------------------------
def _fail_array(name: str, x: object, expected: str) -> NoReturn:
    """Say which of the properties of a usable array ``x`` lacks."""
    if not isinstance(x, np.ndarray):
        raise DTypeError(
            "NotAnArray",
            f"{name} must be a numpy array of {expected}, got {type(x).__name__}",
            name=name,
            actual=type(x).__name__,
        )
    if x.dtype.name not in expected.split(" or ") or not x.dtype.isnative:
        raise DTypeError(
            "UnsupportedDType",
            f"{name} must have dtype {expected} in native byte order, got {x.dtype.str}"
            f" ({x.dtype.name})",
            name=name,
            expected=expected,
            actual=x.dtype.name,
        )
    if not x.flags.c_contiguous:
        raise DTypeError(
            "NotContiguous",
            f"{name} must be C-contiguous (row-major, without gaps), got shape {x.shape} with"
            f" strides {x.strides}; pass np.ascontiguousarray({name})",
            name=name,
        )
    raise DTypeError(
        "Misaligned",
        f"{name} starts at an address that is no multiple of its item size; pass {name}.copy()",
        name=name,
    )


def fail_shape(name: str, expected: object, actual: tuple[int, ...]) -> NoReturn:
    """Raise the ShapeError of an argument; ``expected`` is a shape or words for one."""
    text = str(expected)
    raise ShapeError(
        "ShapeMismatch",
        f"{name} must have shape {text}, got {actual}",
        name=name,
        expected=expected,
        actual=actual,
    )


def fail_range(name: str, value: object, expected: str) -> NoReturn:
    """Raise the RangeError of an argument."""
    raise RangeError(
        "OutOfRange", f"{name} must be {expected}, got {value!r}",
        name=name, value=value, expected=expected,
    )  # fmt: skip


# ---- arrays ----------------------------------------------------------------------------------
def float_array(name: str, x: object) -> None:
    """``x`` is a contiguous float32 or float64 array."""
    if not is_float(x):
        _fail_array(name, x, "float32 or float64")


def like(name: str, x: object, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    """``x`` is a contiguous array of exactly this dtype and shape."""
    if not is_of(x, dtype):
        _fail_array(name, x, dtype.name)
    if not has_shape(x, shape):
        fail_shape(name, shape, x.shape)


def axes(name: str, x: Array, lowest: int, letters: str) -> None:
    """``x`` has at least ``lowest`` axes; ``letters`` is the documented shape."""
    if x.ndim < lowest:
        fail_shape(name, letters, x.shape)


def size(name: str, actual: int, expected: int, x: Array, letters: str) -> None:
    """One axis of ``x``, described by ``letters``, has the size that other arguments ask for."""
    if actual != expected:
        fail_shape(name, letters, x.shape)


def output(
    out: Array | None,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    reads: Sequence[tuple[str, Array]] = (),
    *,
    name: str = "out",
    in_place: bool = False,
) -> Array:
    """The array results go to: a new one, or the caller's after the checks.

    ``reads`` are the arguments that are still read while results are written.  None may share
    memory with ``out``, except, with ``in_place``, one that is exactly the same elements.
    """
    if out is None:
        return empty(shape, dtype)
    updated(name, out, dtype, shape, reads, in_place=in_place)
    return out


def updated(
    name: str,
    x: Array,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    reads: Sequence[tuple[str, Array]] = (),
    *,
    in_place: bool = False,
) -> None:
    """``x`` can be written: :func:`like`, writable, and apart from everything in ``reads``."""
    like(name, x, dtype, shape)
    if not x.flags.writeable:
        raise DTypeError("ReadOnly", f"{name} is read-only", name=name)
    apart(name, x, reads, in_place=in_place)


def apart(
    name: str, x: Array, reads: Sequence[tuple[str, Array]], *, in_place: bool = False
) -> None:
    """``x`` shares no memory with any of ``reads`` (or, with ``in_place``, is one of them).

    All arrays are contiguous, so comparing where they start and end is exact.
    """
    index = first_overlap(x, reads, in_place)
    if index >= 0:
        other = reads[index][0]
        raise DTypeError(
            "Overlap",
            f"{name} shares memory with {other}, which is still read while {name} is written",
            name=name,
            other=other,
        )


def float_dtype(name: str, dtype: object) -> np.dtype[Any]:
    """``dtype`` as a numpy dtype that is float32 or float64."""
    try:
        found = np.dtype(dtype)  # type: ignore[call-overload]
    except TypeError:
        found = None
    if found not in (FLOAT64, FLOAT32):
        raise DTypeError(
            "UnsupportedDType",
            f"{name} must be float32 or float64, got {dtype!r}",
            name=name,
            expected="float32 or float64",
            actual=str(dtype),
        )
    return FLOAT64 if found == FLOAT64 else FLOAT32


def token_ids(name: str, ids: object, shape: tuple[int, ...] | None = None) -> None:
    """``ids`` is a contiguous int64 array, of this shape if one is given."""
    if not is_of(ids, INT64):
        _fail_array(name, ids, "int64")
    if shape is not None and not has_shape(ids, shape):
        fail_shape(name, shape, ids.shape)


def token_out_of_range(name: str, index: int, value: int, vocab_size: int) -> NoReturn:
    """Raise the RangeError of a token id; ``index`` is its flat position in the array."""
    raise RangeError(
        "TokenOutOfRange",
        f"{name} holds {value} at flat index {index}; token ids must be from 0 to {vocab_size - 1}",
        name=name,
        index=index,
        value=value,
        vocab_size=vocab_size,
    )


# ---- numbers ---------------------------------------------------------------------------------
def real_number(name: str, value: object) -> float:
    """``value`` as a float; NaN and infinities pass."""
    if type(value) is float:
        return value
    if isinstance(value, bool) or not isinstance(value, (float, int, np.floating, np.integer)):
        fail_range(name, value, "a real number")
    try:
        return float(value)
    except OverflowError:
        fail_range(name, value, "a real number within the range of float64")


def finite(name: str, value: object) -> float:
    """``value`` as a float that is neither NaN nor infinite."""
    number = real_number(name, value)
    if not math.isfinite(number):
        fail_range(name, value, "a finite number")
    return number


def positive(name: str, value: object) -> float:
    """``value`` as a finite float above zero."""
    number = real_number(name, value)
    if not 0.0 < number < math.inf:
        fail_range(name, value, "a finite number above 0")
    return number


def whole_number(name: str, value: object, lowest: int = 0, highest: int = 2**63 - 1) -> int:
    """``value`` as an int from ``lowest`` to ``highest``."""
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, np.integer))
        or not lowest <= value <= highest
    ):
        fail_range(name, value, f"a whole number from {lowest} to {highest}")
    return int(value)


def flag(name: str, value: object) -> bool:
    """``value`` is True or False."""
    if not isinstance(value, (bool, np.bool_)):
        fail_range(name, value, "True or False")
    return bool(value)
