"""The loss of an output head and its gradient, without ever holding all logits."""

from __future__ import annotations

import math
from typing import Any, NoReturn

from numpy.typing import NDArray

from llmcy import _check as check
from llmcy._kernels import for_dtype, scalars
from llmcy._kernels.memory import empty
from llmcy._threads import resolve_threads
from llmcy.errors import NonFiniteError

__all__ = ["linear_cross_entropy", "positions_of_block"]

Array = NDArray[Any]

BLOCK = 2**21
"""Logits of a block, unless one row of the batch has more."""


def linear_cross_entropy(
    x: Array,
    table: Array,
    targets: Array,
    d_loss: float = 1.0,
    n_total: int | None = None,
    *,
    d_x: Array | None = None,
    d_table: Array | None = None,
    accumulate: bool = False,
    d_logits: Array | None = None,
    row_losses: Array | None = None,
    out: Array | None = None,
    n_threads: int | None = None,
) -> float:
    """Mean over all positions of ``-log(softmax(x @ table.T)[target])``, and its gradient.

    The bits are those of :func:`~llmcy.kernels.matmul`, then :func:`~llmcy.kernels.cross_entropy`,
    then their gradients.  But logits exist for some rows of the batch at a time, in one buffer:
    product, loss and gradient of these rows come before the next ones.

    Parameters
    ----------
    x
        Shape (..., T, D), float32 or float64, C-contiguous.  The leading axes, flattened, are the
        rows.
    table
        Shape (V, D): a vector for every class.
    targets
        Shape (..., T), int64, each from 0 to V - 1.
    d_loss
        The gradient that arrives at the loss.
    n_total
        The divisor of the mean in the gradient; without it, the number of targets.
    d_x
        An array like ``x`` that receives its gradient.
    d_table
        An array like ``table`` that receives its gradient.
    accumulate
        Continue the fold over rows from the sums already in ``d_table``.
    d_logits
        An array (..., T, V) that receives the gradient at the logits; there is one block then.
    row_losses
        A float64 array (N,) that receives the loss of every target.
    out
        A float64 array () that receives the mean as well.
    n_threads
        Threads to use; no result depends on it.

    Returns
    -------
    float
        The loss in binary64, as :func:`~llmcy.kernels.cross_entropy` has it.

    Raises
    ------
    NonFiniteError
        ``NonFiniteValue`` for the first logit that is NaN or infinite, with its flat index in
        (..., T, V) and value.  ``row_losses`` and ``out`` are then unchanged; the
        gradients are incomplete.
    ShapeError
        When shapes do not fit, there is no target, or ``accumulate`` is set without ``d_table``.
    DTypeError
        For an array of another type or layout.
    RangeError
        ``TokenOutOfRange`` for a target that is no class; ``OutOfRange`` for a ``d_loss`` whose
        quotient by the divisor overflows.

    Notes
    -----
    docs/numerics.md, sections 5 and 7.  A block is made of whole rows where ``d_table`` is wanted,
    because a row's sum over its positions is a chain of its own.
    """
    carry = check.flag("accumulate", accumulate)
    check.float_array("x", x)
    check.axes("x", x, 2, "(..., T, D)")
    length, width = x.shape[-2:]
    check.float_array("table", table)
    check.axes("table", table, 2, "(V, D)")
    classes = table.shape[0]
    check.like("table", table, x.dtype, (classes, width))
    check.token_ids("targets", targets, x.shape[:-1])
    functions = for_dtype(x.dtype)
    bad = functions.embedding.first_out_of_range(targets, classes)
    if bad >= 0:
        check.token_out_of_range("targets", bad, int(targets.flat[bad]), classes)
    n = targets.size
    if n == 0:
        check.fail_shape("targets", "with at least one element", targets.shape)
    total = n if n_total is None else check.whole_number("n_total", n_total, 1)
    r = scalars.quotient(check.real_number("d_loss", d_loss), total, x.dtype.itemsize == 4)
    reads = [("x", x), ("table", table), ("targets", targets)]
    gradient = d_x is not None or d_table is not None or d_logits is not None
    if gradient and not math.isfinite(r):
        check.fail_range("d_loss", d_loss, f"finite in {x.dtype} after division by {total}")
    if d_x is not None:
        check.updated("d_x", d_x, x.dtype, x.shape, reads)
        reads.append(("d_x", d_x))
    if d_table is not None:
        check.updated("d_table", d_table, x.dtype, table.shape, reads)
    elif carry:
        check.fail_shape("d_table", f"{table.shape} when accumulate is set", ())
    if d_logits is not None:
        reads += [("d_table", d_table)] if d_table is not None else []
        check.updated("d_logits", d_logits, x.dtype, (*targets.shape, classes), reads)
    if row_losses is not None:
        check.updated("row_losses", row_losses, check.FLOAT64, (n,), reads)
    out = check.output(out, check.FLOAT64, (), reads)
    threads = resolve_threads(n_threads)

    product, block = functions.matmul.matmul, functions.cross_entropy.cross_entropy_block
    losses, parts = empty((n,), check.FLOAT64), empty((3, n), check.FLOAT64)
    if d_logits is not None:
        step, logits = n, d_logits.reshape(n, classes)
    else:  # whole rows only where the chains over a row's positions need them
        step = positions_of_block(length if d_table is not None else 1, classes)
        logits = empty((min(step, n), classes), x.dtype)
    x = x.reshape(n, width)
    if d_x is not None:
        d_x = d_x.reshape(n, width)
    for first in range(0, n, step):
        here = slice(first, min(first + step, n))
        m = here.stop - first
        there = logits[:m]
        product(x[here], table, there, 1, m, classes, width, False, True, True, threads)
        bad = block(there, targets, first, losses, parts, r, gradient, threads)
        if bad >= 0:
            _fail(first * classes + bad, float(there.flat[bad]))
        if d_x is not None:
            product(there, table, d_x[here], 1, m, width, classes, False, False, True, threads)
        if d_table is not None:
            functions.matmul.matmul_d_weight(
                there, x[here], d_table, m // length, length, classes, width,
                carry or first > 0, threads,
            )  # fmt: skip
    functions.cross_entropy.mean_loss(losses, parts, out)
    if row_losses is not None:
        for_dtype(check.FLOAT64).elementwise.copy(row_losses, losses, threads)
    return float(out)


def positions_of_block(length: int, classes: int) -> int:
    """How many positions, of rows of ``length``, make a block of logits."""
    return max(BLOCK // (length * classes), 1) * length


def _fail(index: int, value: float) -> NoReturn:
    raise NonFiniteError(
        "NonFiniteValue",
        f"logits hold {value} at flat index {index}",
        name="logits",
        index=index,
        value=value,
    )
