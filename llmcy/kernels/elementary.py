"""Correctly rounded exp, log, log1p, sin, cos and pow of arrays.

Every element is the exact value rounded once to the array's dtype (to nearest, ties to even,
subnormal numbers kept), so its bits depend on the argument alone: not on a libm, a processor or a
compiler. How, and why it can be trusted: ``docs/elementary.md``.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from llmcy import _check as check
from llmcy._kernels import for_dtype
from llmcy._threads import resolve_threads

__all__ = ["cos", "exp", "log", "log1p", "pow", "sin"]

Array = NDArray[Any]


def _prepare(x: Array, out: Array | None) -> Array:
    check.float_array("x", x)
    return check.output(out, x.dtype, x.shape, (("x", x),), in_place=True)


def exp(x: Array, *, out: Array | None = None, n_threads: int | None = None) -> Array:
    """The exponential function, element by element.

    Parameters
    ----------
    x
        C-contiguous array of any shape, float32 or float64.
    out
        Where the values go; may be ``x`` itself.
    n_threads
        Threads to use; no result depends on it.

    Returns
    -------
    ndarray
        ``out``, or a new array, of the shape and dtype of ``x``. Values too large for the dtype
        are ``inf``, values too small round to a subnormal number or to 0.

    Raises
    ------
    ShapeError, DTypeError
        When an array cannot be used as it is.

    Notes
    -----
    Compatibility guarantee: the bits of every value that is not a NaN are those of the correctly
    rounded function, in every version of this package.
    """
    out = _prepare(x, out)
    for_dtype(x.dtype).elementary.exp(x, out, resolve_threads(n_threads))
    return out


def log(x: Array, *, out: Array | None = None, n_threads: int | None = None) -> Array:
    """The natural logarithm; ``-inf`` for either zero, NaN below. Otherwise as :func:`exp`."""
    out = _prepare(x, out)
    for_dtype(x.dtype).elementary.log(x, out, resolve_threads(n_threads))
    return out


def log1p(x: Array, *, out: Array | None = None, n_threads: int | None = None) -> Array:
    """``log(1 + x)`` without the rounding of ``1 + x``; ``-inf`` for -1, NaN below.

    Otherwise as :func:`exp`; -0 stays -0.
    """
    out = _prepare(x, out)
    for_dtype(x.dtype).elementary.log1p(x, out, resolve_threads(n_threads))
    return out


def sin(x: Array, *, out: Array | None = None, n_threads: int | None = None) -> Array:
    """The sine of angles in radians, of any size; NaN for infinities. Otherwise as :func:`exp`.

    Angles beyond 2^20 take about fifty times as long.
    """
    out = _prepare(x, out)
    for_dtype(x.dtype).elementary.sin(x, out, resolve_threads(n_threads))
    return out


def cos(x: Array, *, out: Array | None = None, n_threads: int | None = None) -> Array:
    """The cosine of angles in radians, of any size; as :func:`sin`."""
    out = _prepare(x, out)
    for_dtype(x.dtype).elementary.cos(x, out, resolve_threads(n_threads))
    return out


def pow(x: Array, y: Array, *, out: Array | None = None, n_threads: int | None = None) -> Array:
    """``x`` to the power ``y``, element by element.

    Parameters
    ----------
    x, y
        C-contiguous arrays of one shape and one dtype, float32 or float64.
    out
        Where the values go; may be ``x`` or ``y`` itself.
    n_threads
        Threads to use; no result depends on it.

    Returns
    -------
    ndarray
        ``out``, or a new array. Zeros, infinities, NaN and negative bases follow ``pow`` of
        IEEE 754-2019, section 9.2.1: ``pow(x, 0)`` and ``pow(1, y)`` are 1 even for NaN, a
        negative base with an exponent that is no integer gives NaN.

    Raises
    ------
    ShapeError, DTypeError
        When the arrays do not fit each other or cannot be used as they are.
    """
    check.float_array("x", x)
    check.like("y", y, x.dtype, x.shape)
    out = check.output(out, x.dtype, x.shape, (("x", x), ("y", y)), in_place=True)
    for_dtype(x.dtype).elementary.pow(x, y, out, resolve_threads(n_threads))
    return out
