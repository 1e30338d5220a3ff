"""The loss of an output head as one operation, so that no array has to hold all logits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from llmcy import kernels
from llmcy.errors import NonFiniteError
from llmcy.kernels.linear_cross_entropy import positions_of_block
from llmcy.ops.ids import as_ids
from llmcy.tape import BackwardPass, Node, Tensor, is_recording, record
from llmcy.tape.tensor import check_finite, fail_non_finite

__all__ = ["linear_cross_entropy"]

Array = NDArray[Any]


def linear_cross_entropy(
    x: Tensor,
    table: Tensor,
    targets: ArrayLike,
    n_total: int | None = None,
    *,
    row_losses: NDArray[np.float64] | None = None,
) -> Tensor:
    """``cross_entropy(tied_linear(x, table), targets)`` with the same bits and less memory.

    Parameters
    ----------
    x
        Shape (..., T, D).
    table
        A vector for every class, shape (V, D).
    targets, n_total, row_losses
        As for :func:`llmcy.ops.cross_entropy`.

    Returns
    -------
    Tensor
        Shape ``()``, float64.

    Raises
    ------
    AutodiffError
        As the two operations, under their names.

    Notes
    -----
    Logits exist for some rows at a time.  Most losses go backward with an adjoint of 1, so the
    gradients of such a pass are made at once, while a block's logits are at hand.  For a piece of a
    larger batch (``n_total``) it is the gradient at the logits, if that is one block, because the
    fold over rows has to go on from an earlier piece's.  In all other cases, and in a second
    backward pass, the logits are computed again.
    """
    ids = as_ids("targets", targets)
    ready = _Ready() if (x._requires_grad or table._requires_grad) and is_recording() else None
    array, weight = x._value.array, table._value.array
    d_x = d_table = d_logits = None
    if ready is not None and n_total is None:
        d_x = kernels.empty_like(array) if x._requires_grad else None
        d_table = kernels.empty_like(weight) if table._requires_grad else None
        ready.gradients.append((d_x, d_table))
    elif ready is not None and ids.size <= positions_of_block(array.shape[-2], len(weight)):
        d_logits = kernels.empty((*array.shape[:-1], len(weight)), array.dtype)
        ready.d_logits.append(d_logits)
    mean = kernels.empty(())
    try:
        kernels.linear_cross_entropy(
            array, weight, ids, 1.0, n_total,
            d_x=d_x, d_table=d_table, d_logits=d_logits, row_losses=row_losses, out=mean,
        )  # fmt: skip
    except NonFiniteError as error:
        fail_non_finite("tied_linear", error.index, error.value)
    return record("cross_entropy", mean, (x, table), _backward, (ids, n_total, ready))


class _Ready:
    """What the forward pass has made for a backward pass with an adjoint of 1.

    Attributes
    ----------
    gradients
        Gradients of x and table, for the first taker: it gives them away.
    d_logits
        The gradient at the logits.
    """

    __slots__ = ("d_logits", "gradients")

    def __init__(self) -> None:
        self.gradients: list[tuple[Array | None, Array | None]] = []
        self.d_logits: list[Array] = []


def _backward(node: Node, d_out: Array, to: BackwardPass) -> None:
    x, table = node.inputs
    ids, n_total, ready = node.saved
    d_loss = float(d_out)
    fold = to.carried(table)
    if d_loss == 1.0 and ready.gradients and fold is None:
        d_x, d_table = ready.gradients.pop()
    else:
        array, weight = x._value.array, table._value.array
        d_x = kernels.empty_like(array) if to.wants(x) else None
        d_table = fold
        if fold is None and to.wants(table):
            d_table = kernels.empty_like(weight)
        if d_loss == 1.0 and ready.d_logits:
            _gradients(ready.d_logits[0], array, weight, d_x, d_table, fold is not None)
        else:
            _check_scale(array, weight, ids, d_loss, n_total)
            kernels.linear_cross_entropy(
                array, weight, ids, d_loss, n_total,
                d_x=d_x, d_table=d_table, accumulate=fold is not None,
            )  # fmt: skip
    if d_x is not None:
        to.give(x, d_x, op="tied_linear")
    if d_table is not None:
        to.folded(table, d_table, op="tied_linear")


def _gradients(
    d_logits: Array, x: Array, table: Array, d_x: Array | None, d_table: Array | None, carried: bool
) -> None:
    if d_x is not None:
        kernels.matmul(d_logits, table, out=d_x)
    if d_table is not None:
        kernels.matmul_d_weight(d_logits, x, out=d_table, accumulate=carried)


def _check_scale(x: Array, table: Array, ids: Array, d_loss: float, n_total: int | None) -> None:
    """An adjoint so large that it makes every gradient at the logits NaN or infinite: say so."""
    with np.errstate(over="ignore"):
        r = x.dtype.type(d_loss / (ids.size if n_total is None else n_total))
    if not math.isfinite(r):
        first = kernels.matmul(x.reshape(-1, x.shape[-1])[:1], table, transpose_b=True)
        n = ids.size if n_total is None else n_total
        gradient = kernels.cross_entropy_backward(first, ids.reshape(-1)[:1], d_loss, n)
        check_finite("cross_entropy", gradient, "NonFiniteGradient")
