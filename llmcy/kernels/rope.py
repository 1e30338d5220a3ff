"""Rotary position embedding of adjacent feature pairs."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from llmcy import _check as check
from llmcy._kernels import for_dtype
from llmcy._threads import resolve_threads

__all__ = ["rope", "rope_table"]

Array = NDArray[Any]


def _even_width(name: str, width: object) -> int:
    number = check.whole_number(name, width, 0)
    if number % 2:
        check.fail_range(name, width, "an even number")
    return number


def rope_table(
    max_seq_len: int,
    head_dim: int,
    theta: float,
    dtype: npt.DTypeLike = np.float64,
    *,
    n_threads: int | None = None,
) -> tuple[Array, Array]:
    """Cosines and sines of every position and feature pair.

    Parameters
    ----------
    max_seq_len
        Number of positions, C.
    head_dim
        Features of a head, w; even.
    theta
        Base of the frequencies, finite and above 0.
    dtype
        float64 or float32.
    n_threads
        Threads to use; no result depends on it.

    Returns
    -------
    cos, sin
        Arrays of shape (C, w/2). Pair j turns by ``p * f_j`` at position p, with
        ``f_j = theta ** (-2 * j / w)``.

    Raises
    ------
    RangeError, DTypeError
        When an argument cannot be used.

    Notes
    -----
    Su et al., "RoFormer" (2021), in its original pairing of features 2j and 2j + 1. All operations
    are in ``dtype``, with correctly rounded pow, cos and sin (numerics contract, section 6).
    """
    positions = check.whole_number("max_seq_len", max_seq_len)
    half = _even_width("head_dim", head_dim) // 2
    theta = check.positive("theta", theta)
    kind = check.float_dtype("dtype", dtype)
    frequency = np.empty(half, kind)
    cos, sin = np.empty((positions, half), kind), np.empty((positions, half), kind)
    for_dtype(kind).rope.rope_table(theta, frequency, cos, sin, resolve_threads(n_threads))
    return cos, sin


def rope(
    x: Array,
    cos: Array,
    sin: Array,
    *,
    position: int = 0,
    inverse: bool = False,
    out: Array | None = None,
    n_threads: int | None = None,
) -> Array:
    """Turn every feature pair of every head by the angle of its token's position.

    Parameters
    ----------
    x
        Shape (..., T, H, w): T tokens, H heads of w features; float32 or float64, C-contiguous.
    cos, sin
        Table of :func:`rope_table`, shape (C, w/2), dtype of ``x``.
    position
        Position of the first token of each row; ``position + T`` must not exceed C.
    inverse
        Turn back; this is also the gradient.
    out
        Where the result goes; may be ``x`` itself.
    n_threads
        Threads to use; no result depends on it.

    Returns
    -------
    ndarray
        ``out`` or a new array. Features (a, b) become ``(a*c - b*s, a*s + b*c)``, zeros always +0.

    Raises
    ------
    ShapeError, DTypeError, RangeError
        When an argument cannot be used.
    """
    check.float_array("x", x)
    check.axes("x", x, 3, "(..., T, H, w)")
    check.float_array("cos", cos)
    check.axes("cos", cos, 2, "(C, w/2)")
    tokens, width = x.shape[-3], x.shape[-1]
    if width % 2:
        check.fail_shape("x", "(..., T, H, w) with w even", x.shape)
    check.like("cos", cos, x.dtype, (cos.shape[0], width // 2))
    check.like("sin", sin, x.dtype, cos.shape)
    start = check.whole_number("position", position)
    if start + tokens > cos.shape[0]:
        check.fail_range(
            "position",
            position,
            f"at most {cos.shape[0] - tokens} for {tokens} tokens and a table of {cos.shape[0]}"
            " positions",
        )
    inverse = check.flag("inverse", inverse)
    check_table = (("cos", cos), ("sin", sin))
    out = check.output(out, x.dtype, x.shape, (("x", x),), in_place=True)
    if out is not x:
        check.apart("out", out, check_table)
    for_dtype(x.dtype).rope.rope(x, cos, sin, start, inverse, out, resolve_threads(n_threads))
    return out
