"""Sums of whole arrays and sums over rows, as one chain each."""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmcy import _check as check
from llmcy._kernels import for_dtype, scalars
from llmcy._kernels.memory import empty
from llmcy._threads import resolve_threads

__all__ = ["mean", "mean_backward", "sum", "sum_backward", "sum_rows"]

Array = NDArray[Any]


def _total(x: Array) -> float:
    check.float_array("x", x)
    total: builtins.float = for_dtype(x.dtype).reduce.sum_all(x)
    return total


def _over(total: builtins.float, n: int, dtype: np.dtype[Any]) -> builtins.float:
    """total / n in binary64, rounded once to ``dtype``."""
    return scalars.quotient(total, n, dtype.itemsize == 4)


def sum(x: Array) -> Array:
    """The sum of all elements in row-major order, as an array of shape ``()``.

    One chain of additions from +0, in binary64 for both dtypes, rounded once to the dtype of
    ``x`` (numerics contract, section 1; contract for float32, rule 2).
    """
    return np.array(_over(_total(x), 1, x.dtype), x.dtype)


def sum_backward(d_out: Array, shape: tuple[int, ...]) -> Array:
    """Gradient of :func:`sum`: ``d_out``, of shape ``()``, at every element of ``shape``."""
    check.float_array("d_out", d_out)
    check.like("d_out", d_out, d_out.dtype, ())
    d_x = empty(shape, d_out.dtype)
    d_x.fill(d_out[()])
    return d_x


def mean(x: Array) -> Array:
    """The sum of all elements (as in :func:`sum`) divided by their number, of shape ``()``.

    Raises
    ------
    ShapeError
        For an array without elements.
    """
    total = _total(x)
    if x.size == 0:
        check.fail_shape("x", "with at least one element", x.shape)
    return np.array(_over(total, x.size, x.dtype), x.dtype)


def mean_backward(d_out: Array, shape: tuple[int, ...]) -> Array:
    """Gradient of :func:`mean`: ``0 + d_out / n`` at each of the n elements of ``shape``.

    The quotient is formed in binary64 and rounded once to the dtype of ``d_out``.
    """
    check.float_array("d_out", d_out)
    check.like("d_out", d_out, d_out.dtype, ())
    n = 1
    for length in shape:
        n *= length
    share = 0.0 + _over(float(d_out), n, d_out.dtype) if n else 0.0
    d_x = empty(shape, d_out.dtype)
    d_x.fill(share)
    return d_x


def sum_rows(x: Array, *, into: Array | None = None, n_threads: int | None = None) -> Array:
    """The sum over all axes but the last: one chain per column, rows in row-major order.

    Parameters
    ----------
    x
        Shape (..., D).
    into
        Shape (D,): the chains continue from what it holds, so rows can come in pieces. Without
        it they start at +0 in a new array.
    n_threads
        Threads to use; no result depends on it.

    Returns
    -------
    ndarray
        ``into`` or the new array, shape (D,).
    """
    check.float_array("x", x)
    check.axes("x", x, 1, "(..., D)")
    shape = x.shape[-1:]
    if into is None:
        into = np.zeros(shape, x.dtype)
    else:
        check.updated("into", into, x.dtype, shape, (("x", x),))
    for_dtype(x.dtype).reduce.sum_rows_into(x, into, resolve_threads(n_threads))
    return into
