"""Operations on the rows of the last axis: softmax, loss and normalisation."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from llmcy import kernels
from llmcy.ops.ids import as_ids
from llmcy.tape import BackwardPass, Node, Tensor, is_recording, record

__all__ = ["causal_softmax", "cross_entropy", "log_softmax", "rms_norm", "softmax"]

Array = NDArray[Any]


def softmax(x: Tensor) -> Tensor:
    """Softmax over the last axis (numerics contract, sections 6 and 8)."""
    p = kernels.softmax(x._value.array)
    return record("softmax", p, (x,), _softmax_backward, (p,))


def _softmax_backward(node: Node, d_out: Array, to: BackwardPass) -> None:
    to.give(node.inputs[0], kernels.softmax_backward(node.saved[0], d_out))


def causal_softmax(x: Tensor) -> Tensor:
    """Softmax of x (..., T, T) over keys j <= i in every row i; +0 above the diagonal."""
    p = kernels.causal_softmax(x._value.array)
    return record("causal_softmax", p, (x,), _causal_softmax_backward, (p,))


def _causal_softmax_backward(node: Node, d_out: Array, to: BackwardPass) -> None:
    to.give(node.inputs[0], kernels.causal_softmax_backward(node.saved[0], d_out))


def log_softmax(x: Tensor) -> Tensor:
    """Logarithm of the softmax over the last axis."""
    log_p = kernels.log_softmax(x._value.array)
    return record("log_softmax", log_p, (x,), _log_softmax_backward, (log_p,))


def _log_softmax_backward(node: Node, d_out: Array, to: BackwardPass) -> None:
    to.give(node.inputs[0], kernels.log_softmax_backward(node.saved[0], d_out))


def cross_entropy(
    logits: Tensor,
    targets: ArrayLike,
    n_total: int | None = None,
    *,
    row_losses: NDArray[np.float64] | None = None,
) -> Tensor:
    """Mean negative log-likelihood of the targets, in nats.

    Parameters
    ----------
    logits
        Shape (..., V).
    targets
        Whole numbers in [0, V), shape (...).
    n_total
        For a batch that goes through in pieces: the number of targets of the whole batch, which
        divides the gradient.  The value is the mean over this piece in any case.
    row_losses
        Receives the loss of every target, float64 of shape (N,).  ``kernels.mean`` over the row
        losses of all pieces is the mean loss of the whole batch.

    Returns
    -------
    Tensor
        Shape ``()``, always float64 (numerics contract, section 7; part two, rule 6).
    """
    ids = as_ids("targets", targets)
    array = logits._value.array
    # kept for the gradient, which would have to compute all exponentials again
    p = kernels.empty_like(array) if logits._requires_grad and is_recording() else None
    mean = kernels.empty(())
    kernels.cross_entropy(array, ids, probabilities=p, row_losses=row_losses, out=mean)
    return record("cross_entropy", mean, (logits,), _cross_entropy_backward, (ids, n_total, p))


def _cross_entropy_backward(node: Node, d_out: Array, to: BackwardPass) -> None:
    (logits,) = node.inputs
    targets, n_total, p = node.saved
    to.give(
        logits,
        kernels.cross_entropy_backward(
            logits._value.array, targets, float(d_out), n_total, probabilities=p
        ),
    )


def rms_norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """``x / sqrt(mean(x**2) + eps) * gain`` over the last axis (Zhang and Sennrich, 2019).

    Parameters
    ----------
    x
        Shape (..., D).
    gain
        Shape (D,).
    eps
        Added to the mean square.

    Notes
    -----
    The three terms of the input's gradient go into its adjoint one after the other, after
    whatever arrived there before; the gain's gradient is one chain over all rows (numerics
    contract, section 8).
    """
    out, inv_rms, mean_square_eps = kernels.rms_norm(x._value.array, gain._value.array, eps)
    return record("rms_norm", out, (x, gain), _rms_norm_backward, (inv_rms, mean_square_eps))


def _rms_norm_backward(node: Node, d_out: Array, to: BackwardPass) -> None:
    x, gain = node.inputs
    inv_rms, mean_square_eps = node.saved
    d_x = to.buffer(x)
    d_gain, _ = to.fold(gain, zeros=True)
    kernels.rms_norm_backward(
        d_out,
        x._value.array,
        gain._value.array,
        inv_rms,
        mean_square_eps,
        d_x=d_x,
        d_gain=d_gain,
    )
    to.received(x)
    to.folded(gain, d_gain)
