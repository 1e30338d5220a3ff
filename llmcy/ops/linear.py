"""Matrix products and their gradients (numerics contract, section 5)."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from llmcy import kernels
from llmcy._check import axes
from llmcy.tape import BackwardPass, Node, Tensor, record

__all__ = ["linear", "matmul", "tied_linear"]

Array = NDArray[Any]


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b``.

    Parameters
    ----------
    a
        Shape (..., m, k).
    b
        Shape (k, n), or (..., k, n) with the leading axes of ``a``.

    Returns
    -------
    Tensor
        Shape (..., m, n).  Every element is one chain over k.

    Notes
    -----
    A two-dimensional ``b`` under leading axes is a weight: its gradient is a chain over m inside
    every leading index and then a chain over the finished ones.
    """
    if b.ndim == 2:
        return linear(a, b)
    out = kernels.matmul(a._value.array, b._value.array)
    return record("matmul", out, (a, b), _matmul_backward)


def _matmul_backward(node: Node, d_out: Array, to: BackwardPass) -> None:
    a, b = node.inputs
    if to.wants(a):
        to.give(a, kernels.matmul(d_out, b._value.array, transpose_b=True))
    if to.wants(b):
        to.give(b, kernels.matmul(a._value.array, d_out, transpose_a=True))


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """``x @ weight`` for x (..., T, I) and weight (I, O); result (..., T, O)."""
    return record(
        "linear", kernels.matmul(x._value.array, weight._value.array), (x, weight), _linear_backward
    )


def _linear_backward(node: Node, d_out: Array, to: BackwardPass) -> None:
    x, weight = node.inputs
    if to.wants(x):
        to.give(x, kernels.matmul(d_out, weight._value.array, transpose_b=True))
    if to.wants(weight):
        _give_weight(to, weight, x._value.array, d_out)


def tied_linear(x: Tensor, table: Tensor) -> Tensor:
    """``x @ table.T`` for x (..., T, D) and a table (V, D) of token vectors; result (..., T, V)."""
    out = kernels.matmul(x._value.array, table._value.array, transpose_b=True)
    return record("tied_linear", out, (x, table), _tied_linear_backward)


def _tied_linear_backward(node: Node, d_out: Array, to: BackwardPass) -> None:
    x, table = node.inputs
    if to.wants(x):
        to.give(x, kernels.matmul(d_out, table._value.array))
    if to.wants(table):
        _give_weight(to, table, d_out, x._value.array)


def _give_weight(to: BackwardPass, weight: Tensor, x: Array, d_y: Array) -> None:
    """Weight gradient, leading axes flattened: T-chains, then a chain over rows."""
    axes("x", x, 2, "(..., T, I)")
    fold, carried = to.fold(weight, zeros=False)
    kernels.matmul_d_weight(
        x.reshape(-1, *x.shape[-2:]),
        d_y.reshape(-1, *d_y.shape[-2:]),
        out=fold,
        accumulate=carried,
    )
    to.folded(weight, fold)
