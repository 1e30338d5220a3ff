"""Matrix products in the contract's order, and the weight gradient of a projection."""

from __future__ import annotations

import math
from typing import Any

from numpy.typing import NDArray

from llmcy import _check, _kernels
from llmcy._kernels import front
from llmcy._kernels.memory import empty
from llmcy._threads import resolve_threads

__all__ = ["matmul", "matmul_d_weight"]

Array = NDArray[Any]


@front.with_short_way
def matmul(
    a: Array,
    b: Array,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    out: Array | None = None,
    n_threads: int | None = None,
) -> Array:
    """Matrix product, every element one chain over the summed index in ascending order.

    ``out[..., i, j]`` is the fold over k of ``a[..., i, k] * b[..., k, j]`` from +0.  float64
    rounds each product and each sum; float32 fuses the product into the sum, rounded once.

    Parameters
    ----------
    a
        (..., m, k), or (..., k, m) with ``transpose_a``; float64 or float32.
    b
        (k, n), or (n, k) with ``transpose_b``: one matrix for all leading indices of ``a``.
        Or (..., k, n) with the leading axes of ``a``, one matrix for each.
    transpose_a, transpose_b
        Whether the last two axes of an operand are stored the other way round.
    out
        Where to write the result; must share no memory with ``a`` or ``b``.
    n_threads
        Threads to use; no bit depends on it.

    Returns
    -------
    numpy.ndarray
        (..., m, n), of the dtype of ``a``.

    Raises
    ------
    ShapeError
        If ``a`` has fewer than two axes, or ``b`` or ``out`` does not fit.
    DTypeError
        If an argument is not a C-contiguous array of a's dtype, or ``out`` is read-only or
        overlaps.

    Notes
    -----
    Order of the sum: docs/numerics.md, section 5; float32, rule 1.

    Compatibility guarantee: the bits depend on the values of ``a`` and ``b`` alone.
    """
    # what the short way declines: one step after the other, which can explain itself
    ta = transpose_a if type(transpose_a) is bool else _check.flag("transpose_a", transpose_a)
    tb = transpose_b if type(transpose_b) is bool else _check.flag("transpose_b", transpose_b)
    _check.float_array("a", a)
    shape = a.shape
    if len(shape) < 2:
        _check.axes("a", a, 2, "(..., k, m)" if ta else "(..., m, k)")
    lead = shape[:-2]
    k, m = shape[-2:] if ta else (shape[-1], shape[-2])
    _check.float_array("b", b)
    shared = b.ndim == 2
    if b.ndim < 2:
        _check.axes("b", b, 2, f"(n, {k})" if tb else f"({k}, n)")
    n = b.shape[-2] if tb else b.shape[-1]
    wanted = (n, k) if tb else (k, n)
    _check.like("b", b, a.dtype, wanted if shared else lead + wanted)
    if out is None:
        result = empty((*lead, m, n), a.dtype)
    else:
        result = _check.output(out, a.dtype, (*lead, m, n), (("a", a), ("b", b)))
    batch = math.prod(lead)
    if shared and not ta:  # the leading axes are more rows of one product
        batch, m = 1, batch * m
    _kernels.for_dtype(a.dtype).matmul.matmul(
        a, b, result, batch, m, n, k, ta, tb, shared, resolve_threads(n_threads)
    )
    return result


def matmul_d_weight(
    x: Array,
    d_y: Array,
    *,
    out: Array | None = None,
    accumulate: bool = False,
    n_threads: int | None = None,
) -> Array:
    """Gradient of the weight of ``y = x @ weight``, summed in two levels.

    ``out[i, o]`` is the fold over rows b of the finished folds over t of
    ``x[b, t, i] * d_y[b, t, o]``.  It is not one chain over all B * T tokens.

    Parameters
    ----------
    x
        (..., T, I), the input of the projection; float64 or float32.  The leading axes, flattened
        in row-major order, are the rows.
    d_y
        (..., T, O), the gradient of its output, with the leading axes of ``x``.
    out
        (I, O); where to write the result.  Must share no memory with ``x`` or ``d_y``.
    accumulate
        Continue the fold over rows from the sums already in ``out``.  Micro-batches of whole rows
        passed one after the other give the bits of the whole batch.
    n_threads
        Threads to use; no bit depends on it.

    Returns
    -------
    numpy.ndarray
        (I, O), of the dtype of ``x``; ``out`` if given.

    Raises
    ------
    ShapeError
        If ``x`` has fewer than two axes, ``d_y`` or ``out`` does not fit, or ``accumulate`` is set
        without ``out``.
    DTypeError
        If an argument is not a C-contiguous array of x's dtype, or ``out`` is read-only or
        overlaps.

    Notes
    -----
    docs/numerics.md, section 5; micro-batches: part two, section 2.

    Compatibility guarantee: the bits depend on the values of ``x``, ``d_y`` and, with
    ``accumulate``, ``out`` alone.
    """
    carry = _check.flag("accumulate", accumulate)
    _check.float_array("x", x)
    _check.axes("x", x, 2, "(..., T, I)")
    lead, n_in = x.shape[:-1], x.shape[-1]
    _check.float_array("d_y", d_y)
    _check.axes("d_y", d_y, 2, "(..., T, O)")
    n_out = d_y.shape[-1]
    _check.like("d_y", d_y, x.dtype, (*lead, n_out))
    if carry and out is None:
        _check.fail_shape("out", f"({n_in}, {n_out}) when accumulate is set", ())
    result = _check.output(out, x.dtype, (n_in, n_out), (("x", x), ("d_y", d_y)))
    _kernels.for_dtype(x.dtype).matmul.matmul_d_weight(
        x,
        d_y,
        result,
        math.prod(lead[:-1]),
        lead[-1],
        n_in,
        n_out,
        carry,
        resolve_threads(n_threads),
    )
    return result
