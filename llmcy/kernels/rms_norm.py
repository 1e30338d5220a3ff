"""Root-mean-square normalisation of rows, and its gradients."""

from __future__ import annotations

from typing import Any, NamedTuple

from numpy.typing import NDArray

from llmcy import _check as check
from llmcy._kernels import for_dtype
from llmcy._kernels.memory import empty
from llmcy._threads import resolve_threads

__all__ = ["RmsNorm", "rms_norm", "rms_norm_backward"]

Array = NDArray[Any]


class RmsNorm(NamedTuple):
    """Result of :func:`rms_norm` and what its backward pass reads."""

    out: Array
    """Shape (..., D)."""
    inv_rms: Array
    """Inverse root mean square of each row, shape (...)."""
    mean_square_eps: Array
    """Mean square of each row plus eps, shape (...), always float64."""


def _gain(gain: Array, x: Array) -> None:
    check.float_array("x", x)
    check.axes("x", x, 1, "(..., D)")
    if x.shape[-1] == 0:
        check.fail_shape("x", "(..., D) with D of at least 1", x.shape)
    check.like("gain", gain, x.dtype, x.shape[-1:])


def rms_norm(
    x: Array, gain: Array, eps: float, *, out: Array | None = None, n_threads: int | None = None
) -> RmsNorm:
    """``x / sqrt(mean(x**2) + eps) * gain`` along the last axis.

    Parameters
    ----------
    x
        Shape (..., D), float32 or float64, C-contiguous, D at least 1.
    gain
        Shape (D,), same dtype.
    eps
        Added to the mean square; finite and at least 0.
    out
        Where the result goes; must not share memory with ``x``.
    n_threads
        Threads to use; no result depends on it.

    Returns
    -------
    RmsNorm
        ``(out, inv_rms, mean_square_eps)``.

    Raises
    ------
    ShapeError, DTypeError, RangeError
        When an argument cannot be used.

    Notes
    -----
    Zhang and Sennrich, "Root mean square layer normalization" (2019). The order is that of the
    numerics contract, section 6: squares are added in index order, divided by D; the inverse root
    is ``exp(log(st) * -0.5)`` for float64 and ``1 / sqrt(st)`` in binary64, rounded once, for
    float32; then ``(x * inv) * gain``.
    """
    _gain(gain, x)
    eps = check.finite("eps", eps)
    if eps < 0.0:
        check.fail_range("eps", eps, "a finite number of at least 0")
    out = check.output(out, x.dtype, x.shape, (("x", x), ("gain", gain)))
    inv_rms = empty(x.shape[:-1], x.dtype)
    mean_square_eps = empty(x.shape[:-1], check.FLOAT64)
    for_dtype(x.dtype).rms_norm.rms_norm(
        x, gain, eps, out, inv_rms, mean_square_eps, resolve_threads(n_threads)
    )
    return RmsNorm(out, inv_rms, mean_square_eps)


def rms_norm_backward(
    d_out: Array,
    x: Array,
    gain: Array,
    inv_rms: Array,
    mean_square_eps: Array,
    *,
    d_x: Array,
    d_gain: Array,
    n_threads: int | None = None,
) -> None:
    """Add the gradients of :func:`rms_norm` to ``d_x`` and ``d_gain``.

    Parameters
    ----------
    d_out
        Gradient at the result, shape (..., D).
    x, gain, inv_rms, mean_square_eps
        Arguments and results of the forward call.
    d_x
        Shape (..., D); each element receives its three terms in the order of the numerics
        contract, section 8: ``((d_x + dn*inv) + dsq*x) + dsq*x``.
    d_gain
        Shape (D,); each element continues one chain over all rows in order, so rows can come in
        pieces.
    n_threads
        Threads to use; no result depends on it.
    """
    _gain(gain, x)
    dtype, shape = x.dtype, x.shape
    check.like("d_out", d_out, dtype, shape)
    check.like("inv_rms", inv_rms, dtype, shape[:-1])
    check.like("mean_square_eps", mean_square_eps, check.FLOAT64, shape[:-1])
    reads = (
        ("d_out", d_out), ("x", x), ("gain", gain),
        ("inv_rms", inv_rms), ("mean_square_eps", mean_square_eps),
    )  # fmt: skip
    check.updated("d_x", d_x, dtype, shape, reads)
    check.updated("d_gain", d_gain, dtype, gain.shape, (*reads, ("d_x", d_x)))
    for_dtype(dtype).rms_norm.rms_norm_backward(
        d_out, x, gain, inv_rms, mean_square_eps, d_x, d_gain, resolve_threads(n_threads)
    )
