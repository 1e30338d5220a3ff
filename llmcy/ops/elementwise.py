"""Operations that treat every element alike, and sums over all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmcy import kernels
from llmcy._check import fail_shape
from llmcy.tape import BackwardPass, Node, Tensor, is_recording, record

__all__ = ["add", "mean", "multiply", "reshape", "scale", "silu", "sum", "swiglu"]

Array = NDArray[Any]


def add(a: Tensor, b: Tensor) -> Tensor:
    """``a + b`` for tensors of one shape and dtype.

    Both operands receive the adjoint itself, ``a`` first.
    """
    return record("add", kernels.add(a._value.array, b._value.array), (a, b), _add_backward)


def _add_backward(node: Node, d_out: Array, to: BackwardPass) -> None:
    a, b = node.inputs
    to.relay(a, d_out, last=not to.wants(b))
    to.relay(b, d_out, last=True)


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """``a * b`` for tensors of one shape and dtype; contributions ``d * b``, then ``d * a``."""
    out = kernels.multiply(a._value.array, b._value.array)
    return record("multiply", out, (a, b), _multiply_backward)


def _multiply_backward(node: Node, d_out: Array, to: BackwardPass) -> None:
    a, b = node.inputs
    d_a, d_b = kernels.multiply_backward(d_out, a._value.array, b._value.array)
    to.give(a, d_a)
    to.give(b, d_b)


def scale(x: Tensor, s: float) -> Tensor:
    """``x * s`` for one number ``s``, rounded to the dtype of ``x`` first."""
    return record("scale", kernels.scale(x._value.array, s), (x,), _scale_backward, (s,))


def _scale_backward(node: Node, d_out: Array, to: BackwardPass) -> None:
    to.give(node.inputs[0], kernels.scale_backward(d_out, node.saved[0], out=d_out))


def silu(x: Tensor) -> Tensor:
    """``x * sigmoid(x)`` (Elfwing, Uchibe and Doya, 2017; numerics contract, sections 6 and 8)."""
    return record("silu", kernels.silu(x._value.array), (x,), _silu_backward)


def _silu_backward(node: Node, d_out: Array, to: BackwardPass) -> None:
    (x,) = node.inputs
    to.give(x, kernels.silu_backward(d_out, x._value.array, out=d_out))


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """``silu(gate) * up`` (Shazeer, "GLU variants improve transformer", 2020).

    One operation for the whole product; its arithmetic is that of :func:`silu` followed by
    :func:`multiply`.

    Notes
    -----
    The gradient of ``gate`` takes the place of the adjoint.  In float64 the sigmoid is kept for the
    first backward pass, which puts the gradient of ``up`` in its place; another pass over the same
    graph computes the sigmoid again.  In float32 every pass does: about as fast as reading it.
    """
    array = gate._value.array
    wanted = (gate._requires_grad or up._requires_grad) and is_recording()
    kept = [kernels.empty_like(array)] if wanted and array.dtype == np.float64 else []
    out = kernels.swiglu(array, up._value.array, sigmoid=kept[0] if kept else None)
    return record("swiglu", out, (gate, up), _swiglu_backward, (kept,))


def _swiglu_backward(node: Node, d_out: Array, to: BackwardPass) -> None:
    gate, up = node.inputs
    (kept,) = node.saved  # the sigmoid, for the first taker
    sigmoid = kept.pop() if kept else None
    d_gate, d_up = kernels.swiglu_backward(
        d_out, gate._value.array, up._value.array, sigmoid=sigmoid, d_gate=d_out, d_up=sigmoid
    )
    to.give(up, d_up)  # the product hands on its adjoint before silu does
    to.give(gate, d_gate)


def reshape(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The same numbers in row-major order under another shape.

    Raises
    ------
    ShapeError
        When ``shape`` has another number of elements.  One entry may be -1.
    """
    array = x._value.array
    try:
        out = array.reshape(shape)
    except ValueError:
        fail_shape("shape", f"with {array.size} elements", tuple(shape))
    if not x._value.computed:
        out = out.copy()  # a leaf can be written later
    return record("reshape", out, (x,), _reshape_backward, checked=True)


def _reshape_backward(node: Node, d_out: Array, to: BackwardPass) -> None:
    (x,) = node.inputs
    to.relay(x, d_out.reshape(x.shape), last=True)


def sum(x: Tensor) -> Tensor:
    """The sum of all elements, shape ``()``: one chain in row-major order from +0."""
    return record("sum", kernels.sum(x._value.array), (x,), _sum_backward)


def _sum_backward(node: Node, d_out: Array, to: BackwardPass) -> None:
    (x,) = node.inputs
    to.give(x, kernels.sum_backward(d_out, x.shape))


def mean(x: Tensor) -> Tensor:
    """The sum of all elements divided by their number, shape ``()``.

    Raises
    ------
    ShapeError
        For a tensor without elements.
    """
    return record("mean", kernels.mean(x._value.array), (x,), _mean_backward)


def _mean_backward(node: Node, d_out: Array, to: BackwardPass) -> None:
    (x,) = node.inputs
    to.give(x, kernels.mean_backward(d_out, x.shape))
