"""Causal self-attention of all heads, forward and backward."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from llmcy import _check, _kernels
from llmcy._threads import resolve_threads

__all__ = ["attention", "attention_backward"]

Array = NDArray[Any]


def _checked_sizes(
    q: Array, k: Array, v: Array, n_heads: int, n_kv_heads: int | None
) -> tuple[int, int, int, int, int]:
    """Rows, positions, heads, key/value heads and head width, after the checks of the inputs."""
    _check.float_array("q", q)
    if q.ndim != 3:
        _check.fail_shape("q", "(B, T, D)", q.shape)
    rows, positions, width = q.shape
    if n_kv_heads is None:
        _check.like("k", k, q.dtype, q.shape)
        _check.like("v", v, q.dtype, q.shape)
    heads = _check.whole_number("n_heads", n_heads, 1)
    if width % heads:
        _check.fail_shape("q", f"(B, T, D) with D a multiple of n_heads = {heads}", q.shape)
    head_dim = width // heads
    if n_kv_heads is None:
        return rows, positions, heads, heads, head_dim
    kv_heads = _check.whole_number("n_kv_heads", n_kv_heads, 1)
    if heads % kv_heads:
        _check.fail_range("n_kv_heads", kv_heads, f"a divisor of n_heads = {heads}")
    shape = (rows, positions, kv_heads * head_dim)
    _check.like("k", k, q.dtype, shape)
    _check.like("v", v, q.dtype, shape)
    return rows, positions, heads, kv_heads, head_dim


def attention(
    q: Array,
    k: Array,
    v: Array,
    n_heads: int,
    *,
    n_kv_heads: int | None = None,
    out: Array | None = None,
    n_threads: int | None = None,
) -> Array:
    """Causal attention: every position mixes the values at its own and earlier positions.

    For head h, which owns columns ``h*w ... h*w + w - 1`` with w = D / n_heads, and keys j <= i:
    ``score = fold_e(q[i, e] * k[j, e]) * (1 / sqrt(w))``, ``p = softmax(score)`` over 0 ... i,
    ``out[i, e] = fold_j(p[i, j] * v[j, e])``.

    Parameters
    ----------
    q
        (B, T, D), float64 or float32, already rotated (:func:`rope`).
    k, v
        (B, T, K * w), ``k`` already rotated; without shared heads (B, T, D).
    n_heads
        Number of query heads, H; divides D.
    n_kv_heads
        Number of key and value heads, K, a divisor of H: query head h attends to the keys and
        values of head ``h // (H / K)`` (grouped-query attention, Ainslie et al., 2023).  None: H.
    out
        Where to write the result; must share no memory with the inputs.
    n_threads
        Threads to use; no bit depends on it.

    Returns
    -------
    numpy.ndarray
        (B, T, D), the heads side by side.

    Raises
    ------
    ShapeError
        If shapes do not fit, ``q`` has not three axes, or D is no multiple of ``n_heads``.
    DTypeError
        If an argument is not a C-contiguous array of q's dtype, or ``out`` is read-only or
        overlaps.
    RangeError
        If ``n_heads`` or ``n_kv_heads`` is not a whole number above 0, or the second does not
        divide the first.

    Notes
    -----
    docs/numerics.md, section 6, steps 5 to 8; float32, rules 1 and 2.  Masked positions
    are never computed, so a row's result depends on that row's prefix only.

    Compatibility guarantee: the bits depend on the values of ``q``, ``k`` and ``v`` alone.
    """
    sizes = _checked_sizes(q, k, v, n_heads, n_kv_heads)
    result = _check.output(out, q.dtype, q.shape, (("q", q), ("k", k), ("v", v)))
    _kernels.for_dtype(q.dtype).attention.attention(
        q, k, v, result, *sizes, resolve_threads(n_threads)
    )
    return result


def attention_backward(
    d_out: Array,
    q: Array,
    k: Array,
    v: Array,
    n_heads: int,
    *,
    n_kv_heads: int | None = None,
    n_threads: int | None = None,
) -> tuple[Array, Array, Array]:
    """Gradients of :func:`attention` for the rotated ``q``, the rotated ``k`` and ``v``.

    The probabilities are computed again, not kept from the forward pass.

    Parameters
    ----------
    d_out
        (B, T, D), the gradient of the result.
    q, k, v, n_heads, n_kv_heads
        As in the forward pass.
    n_threads
        Threads to use; no bit depends on it.

    Returns
    -------
    d_q, d_k, d_v : numpy.ndarray
        Of the shapes of q, k and v.  The gradient of a shared head is the sum of the finished
        gradients of its query heads, in ascending order.

    Raises
    ------
    ShapeError, DTypeError, RangeError
        As :func:`attention`.

    Notes
    -----
    docs/numerics.md, section 8, rules 12 to 16; float32, rules 1 and 2; shared heads: part two,
    section 6.

    Compatibility guarantee: the bits depend on the values of the four arrays alone.
    """
    sizes = _checked_sizes(q, k, v, n_heads, n_kv_heads)
    _check.like("d_out", d_out, q.dtype, q.shape)
    d_q, d_k, d_v = (_check.output(None, q.dtype, x.shape) for x in (q, k, v))
    _kernels.for_dtype(q.dtype).attention.attention_backward(
        d_out, q, k, v, d_q, d_k, d_v, *sizes, resolve_threads(n_threads)
    )
    return d_q, d_k, d_v
