"""Mean negative log-likelihood of target classes."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from llmcy import _check as check
from llmcy._kernels import for_dtype, scalars
from llmcy._kernels.memory import empty
from llmcy._threads import resolve_threads

__all__ = ["cross_entropy", "cross_entropy_backward", "cross_entropy_row_losses"]

Array = NDArray[Any]


def _checked(logits: Array, targets: Array) -> int:
    """Check both arguments; the number of rows."""
    check.float_array("logits", logits)
    check.axes("logits", logits, 1, "(..., V)")
    check.token_ids("targets", targets, logits.shape[:-1])
    bad: int = for_dtype(logits.dtype).embedding.first_out_of_range(targets, logits.shape[-1])
    if bad >= 0:
        check.token_out_of_range("targets", bad, int(targets.flat[bad]), logits.shape[-1])
    return targets.size


def _run(
    logits: Array,
    targets: Array,
    losses: Array,
    mean: Array,
    probabilities: Array | None,
    n_threads: int | None,
) -> None:
    parts = empty((3, losses.size), check.FLOAT64)
    for_dtype(logits.dtype).cross_entropy.cross_entropy(
        logits, targets, losses, parts, mean, probabilities, resolve_threads(n_threads)
    )


def cross_entropy(
    logits: Array,
    targets: Array,
    *,
    probabilities: Array | None = None,
    row_losses: Array | None = None,
    out: Array | None = None,
    n_threads: int | None = None,
) -> float:
    """Mean over all rows of ``-log(softmax(logits)[target])``.

    Parameters
    ----------
    logits
        Shape (..., V), float32 or float64, C-contiguous.
    targets
        Shape (...), int64, each from 0 to V - 1.
    probabilities
        An array like ``logits`` that receives the softmax, for :func:`cross_entropy_backward`.
    row_losses
        A float64 array (N,) that receives the loss of every row.
    out
        A float64 array () that receives the mean as well.
    n_threads
        Threads to use; no result depends on it.

    Returns
    -------
    float
        The loss in binary64, also for float32 logits. It is finite for finite logits, unless the
        mean itself is beyond the largest finite number.

    Raises
    ------
    ShapeError
        When shapes do not fit, or there is no row to take the mean of.
    DTypeError
        For an array of another type or layout.
    RangeError
        ``TokenOutOfRange`` for a target that is no class.

    Notes
    -----
    A row's loss is ``(M - logits[target]) + log1p(tail)``, M and ``tail`` as in
    :func:`~llmcy.kernels.softmax`; losses are added in row order and divided once (numerics
    contract, section 7, with its fallback when a sum overflows).
    """
    n = _checked(logits, targets)
    if n == 0:
        check.fail_shape("targets", "with at least one element", targets.shape)
    if probabilities is not None:
        check.updated(
            "probabilities", probabilities, logits.dtype, logits.shape,
            (("logits", logits), ("targets", targets)),
        )  # fmt: skip
    if row_losses is not None:
        check.updated(
            "row_losses", row_losses, check.FLOAT64, (n,),
            (("logits", logits), ("targets", targets)),
        )  # fmt: skip
    losses = empty((n,), check.FLOAT64) if row_losses is None else row_losses
    out = check.output(out, check.FLOAT64, (), (("logits", logits), ("targets", targets)))
    _run(logits, targets, losses, out, probabilities, n_threads)
    return float(out)


def cross_entropy_row_losses(
    logits: Array, targets: Array, *, n_threads: int | None = None
) -> Array:
    """The loss of every row, float64, shape (N,) for N rows; arguments as in :func:`cross_entropy`.

    Added in order from +0 and divided by N they give the mean.
    """
    n = _checked(logits, targets)
    losses = empty((n,), check.FLOAT64)
    _run(logits, targets, losses, empty((), check.FLOAT64), None, n_threads)
    return losses


def cross_entropy_backward(
    logits: Array,
    targets: Array,
    d_loss: float = 1.0,
    n_total: int | None = None,
    *,
    probabilities: Array | None = None,
    out: Array | None = None,
    n_threads: int | None = None,
) -> Array:
    """Gradient of :func:`cross_entropy` at the logits.

    ``(p[v] - [v = target]) * r`` with ``r = d_loss / n_total`` formed in binary64 and rounded once
    to the dtype of ``logits``.

    Parameters
    ----------
    logits, targets
        As given to :func:`cross_entropy`.
    d_loss
        The gradient that arrives at the loss.
    n_total
        The divisor of the mean. Without it, the number of rows; the number of rows of the whole
        batch when ``logits`` are only a part of it.
    probabilities
        What :func:`cross_entropy` stored; saves computing the softmax again. May also be ``out``.
    out
        Where the gradient goes.
    n_threads
        Threads to use; no result depends on it.

    Returns
    -------
    ndarray
        ``out`` or a new array, shape (..., V).
    """
    n = _checked(logits, targets)
    d_loss = check.real_number("d_loss", d_loss)
    total = n if n_total is None else check.whole_number("n_total", n_total, 1)
    reads = [("logits", logits), ("targets", targets)]
    if probabilities is not None:
        check.like("probabilities", probabilities, logits.dtype, logits.shape)
        if out is not probabilities:
            reads.append(("probabilities", probabilities))
    out = check.output(out, logits.dtype, logits.shape, reads)
    r = scalars.quotient(d_loss, total, logits.dtype.itemsize == 4) if total else 0.0
    for_dtype(logits.dtype).cross_entropy.cross_entropy_backward(
        logits, targets, r, probabilities, out, resolve_threads(n_threads)
    )
    return out
