"""Softmax, causal softmax and log-softmax of rows, with their gradients."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from llmcy import _check as check
from llmcy._kernels import for_dtype
from llmcy._threads import resolve_threads

__all__ = [
    "causal_softmax",
    "causal_softmax_backward",
    "log_softmax",
    "log_softmax_backward",
    "softmax",
    "softmax_backward",
]

Array = NDArray[Any]


def _rows(name: str, x: Array) -> None:
    check.float_array(name, x)
    check.axes(name, x, 1, "(..., n)")


def _squares(name: str, x: Array) -> None:
    check.float_array(name, x)
    check.axes(name, x, 2, "(..., T, T)")
    check.size(name, x.shape[-2], x.shape[-1], x, "(..., T, T)")


def _forward(x: Array, out: Array | None, causal: bool, n_threads: int | None) -> Array:
    out = check.output(out, x.dtype, x.shape, (("x", x),))
    for_dtype(x.dtype).softmax.softmax(x, out, causal, resolve_threads(n_threads))
    return out


def _backward(
    p: Array, d_p: Array, out: Array | None, causal: bool, n_threads: int | None
) -> Array:
    check.like("d_p", d_p, p.dtype, p.shape)
    out = check.output(out, p.dtype, p.shape, (("p", p), ("d_p", d_p)))
    for_dtype(p.dtype).softmax.softmax_backward(p, d_p, out, causal, resolve_threads(n_threads))
    return out


def softmax(x: Array, *, out: Array | None = None, n_threads: int | None = None) -> Array:
    """Softmax along the last axis.

    With M the largest value of a row, ``tail`` the sum in index order of ``exp(x[j] - M)`` without
    the first entry that equals M: ``p[j] = exp(x[j] - M) / (1 + tail)``.

    Parameters
    ----------
    x
        Shape (..., n), float32 or float64, C-contiguous.
    out
        Where the result goes; must not share memory with ``x``.
    n_threads
        Threads to use; no result depends on it.

    Returns
    -------
    ndarray
        ``out`` or a new array, shape (..., n).

    Raises
    ------
    ShapeError, DTypeError
        When the arrays do not fit each other or cannot be used as they are.

    Notes
    -----
    Numerics contract, section 6. For float32 the sum and ``1 + tail`` are binary64, rounded once.
    """
    _rows("x", x)
    return _forward(x, out, False, n_threads)


def softmax_backward(
    p: Array, d_p: Array, *, out: Array | None = None, n_threads: int | None = None
) -> Array:
    """Gradient of :func:`softmax` at its input, from the result ``p`` and its gradient ``d_p``.

    ``p[j] * (d_p[j] - W)`` with ``W`` the sum in index order of ``d_p[j] * p[j]`` (numerics
    contract, section 8, number 14); shapes (..., n).
    """
    _rows("p", p)
    return _backward(p, d_p, out, False, n_threads)


def causal_softmax(x: Array, *, out: Array | None = None, n_threads: int | None = None) -> Array:
    """Softmax of the lower triangle: row i over its entries 0 to i, zero after them.

    ``x`` has shape (..., T, T); entries above the diagonal are never read. Everything else as in
    :func:`softmax`.
    """
    _squares("x", x)
    return _forward(x, out, True, n_threads)


def causal_softmax_backward(
    p: Array, d_p: Array, *, out: Array | None = None, n_threads: int | None = None
) -> Array:
    """Gradient of :func:`causal_softmax`; zero above the diagonal. Shapes (..., T, T)."""
    _squares("p", p)
    return _backward(p, d_p, out, True, n_threads)


def log_softmax(x: Array, *, out: Array | None = None, n_threads: int | None = None) -> Array:
    """Logarithm of the softmax along the last axis: ``(x[j] - M) - log1p(tail)``.

    M and ``tail`` are those of :func:`softmax`. For float32, ``log1p(tail)`` is binary64, rounded
    once.
    """
    _rows("x", x)
    out = check.output(out, x.dtype, x.shape, (("x", x),))
    for_dtype(x.dtype).softmax.log_softmax(x, out, resolve_threads(n_threads))
    return out


def log_softmax_backward(
    log_p: Array, d_log_p: Array, *, out: Array | None = None, n_threads: int | None = None
) -> Array:
    """Gradient of :func:`log_softmax`, from its result ``log_p`` and the gradient ``d_log_p``.

    ``d_log_p[j] - exp(log_p[j]) * S`` with ``S`` the sum in index order of ``d_log_p``.
    """
    _rows("log_p", log_p)
    check.like("d_log_p", d_log_p, log_p.dtype, log_p.shape)
    reads = (("log_p", log_p), ("d_log_p", d_log_p))
    out = check.output(out, log_p.dtype, log_p.shape, reads)
    for_dtype(log_p.dtype).softmax.log_softmax_backward(
        log_p, d_log_p, out, resolve_threads(n_threads)
    )
    return out
