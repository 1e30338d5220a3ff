"""SiLU and SwiGLU, with their gradients."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from llmcy import _check as check
from llmcy._kernels import for_dtype
from llmcy._threads import resolve_threads

__all__ = ["silu", "silu_backward", "swiglu", "swiglu_backward"]

Array = NDArray[Any]


def silu(x: Array, *, out: Array | None = None, n_threads: int | None = None) -> Array:
    """``x * sigmoid(x)``, element by element.

    The sigmoid is ``1 / (1 + exp(-x))`` for x >= 0 and ``e / (1 + e)`` with ``e = exp(x)`` below
    (numerics contract, section 6). ``out`` may be ``x`` itself.

    Raises
    ------
    ShapeError, DTypeError
        When the arrays do not fit each other or cannot be used as they are.
    """
    check.float_array("x", x)
    out = check.output(out, x.dtype, x.shape, (("x", x),), in_place=True)
    for_dtype(x.dtype).swiglu.silu(x, out, resolve_threads(n_threads))
    return out


def silu_backward(
    d_out: Array, x: Array, *, out: Array | None = None, n_threads: int | None = None
) -> Array:
    """Gradient of :func:`silu` at ``x``.

    ``d_out * (sg * (1 + x * (1 - sg)))`` with ``sg = sigmoid(x)``: numerics contract, section 8,
    number 7. ``out`` may be ``d_out`` or ``x`` itself.
    """
    check.float_array("x", x)
    check.like("d_out", d_out, x.dtype, x.shape)
    out = check.output(out, x.dtype, x.shape, (("d_out", d_out), ("x", x)), in_place=True)
    for_dtype(x.dtype).swiglu.silu_backward(d_out, x, out, resolve_threads(n_threads))
    return out


def swiglu(
    gate: Array,
    up: Array,
    *,
    out: Array | None = None,
    sigmoid: Array | None = None,
    n_threads: int | None = None,
) -> Array:
    """``silu(gate) * up``, element by element.

    Parameters
    ----------
    gate, up
        Arrays of one shape and dtype, float32 or float64, C-contiguous.
    out
        Where the product goes; must not share memory with ``gate`` or ``up``.
    sigmoid
        An array like ``gate`` that receives ``sigmoid(gate)``, for :func:`swiglu_backward`.
    n_threads
        Threads to use; no result depends on it.

    Returns
    -------
    ndarray
        ``out`` or a new array.

    Notes
    -----
    Shazeer, "GLU variants improve transformer" (2020), without biases.
    """
    check.float_array("gate", gate)
    dtype, shape = gate.dtype, gate.shape
    check.like("up", up, dtype, shape)
    reads = (("gate", gate), ("up", up))
    out = check.output(out, dtype, shape, reads)
    if sigmoid is not None:
        check.updated("sigmoid", sigmoid, dtype, shape, (*reads, ("out", out)))
    for_dtype(dtype).swiglu.swiglu(gate, up, out, sigmoid, resolve_threads(n_threads))
    return out


def swiglu_backward(
    d_out: Array,
    gate: Array,
    up: Array,
    *,
    sigmoid: Array | None = None,
    d_gate: Array | None = None,
    d_up: Array | None = None,
    n_threads: int | None = None,
) -> tuple[Array, Array]:
    """Gradients of :func:`swiglu`: ``(d_gate, d_up)``.

    ``d_up = d_out * s`` and ``d_gate = (d_out * up) * (sg * (1 + gate * (1 - sg)))`` with
    ``sg = sigmoid(gate)``, ``s = gate * sg`` (numerics contract, section 8, numbers 6 and 7).

    Parameters
    ----------
    d_out, gate, up
        Gradient at the result and the arguments of the forward call, all of one shape.
    sigmoid
        What :func:`swiglu` stored; saves computing it again.
    d_gate, d_up
        Where the gradients go, two arrays that share no memory; new ones if not given. Each may
        be one of the arguments, ``d_out`` and ``sigmoid`` for example, whose values are then gone.
    n_threads
        Threads to use; no result depends on it.

    Raises
    ------
    ShapeError, DTypeError
        When the arrays do not fit each other or cannot be used as they are; ``Overlap`` when a
        result lies partly in an argument or in the other result.
    """
    check.float_array("gate", gate)
    dtype, shape = gate.dtype, gate.shape
    check.like("up", up, dtype, shape)
    check.like("d_out", d_out, dtype, shape)
    reads = [("gate", gate), ("up", up), ("d_out", d_out)]
    if sigmoid is not None:
        check.like("sigmoid", sigmoid, dtype, shape)
        reads.append(("sigmoid", sigmoid))
    d_gate = check.output(d_gate, dtype, shape, reads, name="d_gate", in_place=True)
    d_up = check.output(d_up, dtype, shape, reads, name="d_up", in_place=True)
    check.apart("d_up", d_up, (("d_gate", d_gate),))
    for_dtype(dtype).swiglu.swiglu_backward(
        d_out, gate, up, sigmoid, d_gate, d_up, resolve_threads(n_threads)
    )
    return d_gate, d_up
