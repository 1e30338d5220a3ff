"""Elementwise sums and products; the search for values that are not finite."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from llmcy import _check as check
from llmcy._kernels import for_dtype
from llmcy._threads import resolve_threads

__all__ = [
    "accumulate",
    "add",
    "copy",
    "first_non_finite",
    "multiply",
    "multiply_backward",
    "scale",
    "scale_backward",
]

Array = NDArray[Any]


def add(a: Array, b: Array, *, out: Array | None = None, n_threads: int | None = None) -> Array:
    """``a + b``, element by element.

    Parameters
    ----------
    a, b
        C-contiguous arrays of one shape and one dtype, float32 or float64.
    out
        Where the sum goes; may be ``a`` or ``b`` itself.
    n_threads
        Threads to use; no result depends on it.

    Returns
    -------
    ndarray
        ``out``, or a new array.

    Raises
    ------
    ShapeError, DTypeError
        When the arrays do not fit each other or cannot be used as they are.
    """
    check.float_array("a", a)
    check.like("b", b, a.dtype, a.shape)
    out = check.output(out, a.dtype, a.shape, (("a", a), ("b", b)), in_place=True)
    for_dtype(a.dtype).elementwise.add(a, b, out, resolve_threads(n_threads))
    return out


def accumulate(into: Array, x: Array, *, n_threads: int | None = None) -> Array:
    """``into += x``: a contribution ``x`` arrives at the buffer ``into``.

    Same requirements as :func:`add`; returns ``into``.
    """
    check.float_array("into", into)
    check.like("x", x, into.dtype, into.shape)
    check.updated("into", into, into.dtype, into.shape, (("x", x),), in_place=True)
    for_dtype(x.dtype).elementwise.accumulate(into, x, resolve_threads(n_threads))
    return into


def copy(x: Array, *, out: Array | None = None, n_threads: int | None = None) -> Array:
    """The elements of ``x`` in ``out``, or in a new array."""
    check.float_array("x", x)
    out = check.output(out, x.dtype, x.shape, (("x", x),))
    for_dtype(x.dtype).elementwise.copy(out, x, resolve_threads(n_threads))
    return out


def multiply(
    a: Array, b: Array, *, out: Array | None = None, n_threads: int | None = None
) -> Array:
    """``a * b``, element by element; parameters and errors as for :func:`add`."""
    check.float_array("a", a)
    check.like("b", b, a.dtype, a.shape)
    out = check.output(out, a.dtype, a.shape, (("a", a), ("b", b)), in_place=True)
    for_dtype(a.dtype).elementwise.multiply(a, b, out, resolve_threads(n_threads))
    return out


def multiply_backward(
    d_out: Array, a: Array, b: Array, *, n_threads: int | None = None
) -> tuple[Array, Array]:
    """Gradient of :func:`multiply`: ``(0 + d_out * b, 0 + d_out * a)``.

    All three arrays have one shape and one dtype. The ``0 +`` turns -0 into +0, as a buffer does
    that starts at +0 and receives the product.
    """
    check.float_array("a", a)
    check.like("b", b, a.dtype, a.shape)
    check.like("d_out", d_out, a.dtype, a.shape)
    d_a = check.output(None, a.dtype, a.shape)
    d_b = check.output(None, a.dtype, a.shape)
    for_dtype(a.dtype).elementwise.multiply_backward(
        d_out, a, b, d_a, d_b, resolve_threads(n_threads)
    )
    return d_a, d_b


def scale(x: Array, s: float, *, out: Array | None = None, n_threads: int | None = None) -> Array:
    """``x * s`` for one number ``s``, which is first rounded to the dtype of ``x``.

    ``out`` may be ``x`` itself.
    """
    check.float_array("x", x)
    s = check.real_number("s", s)
    out = check.output(out, x.dtype, x.shape, (("x", x),), in_place=True)
    for_dtype(x.dtype).elementwise.scale(x, s, out, resolve_threads(n_threads))
    return out


def scale_backward(
    d_out: Array, s: float, *, out: Array | None = None, n_threads: int | None = None
) -> Array:
    """Gradient of :func:`scale`: ``0 + d_out * s``."""
    check.float_array("d_out", d_out)
    s = check.real_number("s", s)
    out = check.output(out, d_out.dtype, d_out.shape, (("d_out", d_out),), in_place=True)
    for_dtype(d_out.dtype).elementwise.scale_backward(d_out, s, out, resolve_threads(n_threads))
    return out


def first_non_finite(x: Array, *, n_threads: int | None = None) -> int:
    """Flat index of the first NaN or infinity in ``x``, or -1 when all values are finite."""
    check.float_array("x", x)
    found: int = for_dtype(x.dtype).elementwise.first_non_finite(x, resolve_threads(n_threads))
    return found
