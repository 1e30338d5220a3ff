"""Look-up of table rows by token id, and the gradient of the table."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from llmcy import _check as check
from llmcy._kernels import for_dtype
from llmcy._threads import resolve_threads

__all__ = ["embedding", "embedding_backward"]

Array = NDArray[Any]


def _table(name: str, table: Array, token_ids: Array) -> None:
    check.float_array(name, table)
    check.axes(name, table, 2, "(V, D)")
    if table.ndim != 2:
        check.fail_shape(name, "(V, D)", table.shape)
    check.token_ids("token_ids", token_ids)
    bad: int = for_dtype(table.dtype).embedding.first_out_of_range(token_ids, table.shape[0])
    if bad >= 0:
        check.token_out_of_range("token_ids", bad, int(token_ids.flat[bad]), table.shape[0])


def embedding(
    weight: Array, token_ids: Array, *, out: Array | None = None, n_threads: int | None = None
) -> Array:
    """Rows of ``weight``, one for each token id.

    Parameters
    ----------
    weight
        Shape (V, D), float32 or float64, C-contiguous.
    token_ids
        Any shape (...), int64, each from 0 to V - 1.
    out
        Where the rows go; must not share memory with ``weight``.
    n_threads
        Threads to use; no result depends on it.

    Returns
    -------
    ndarray
        ``out`` or a new array, shape (..., D).

    Raises
    ------
    RangeError
        ``TokenOutOfRange`` with the flat index of the first id that is no row.
    ShapeError, DTypeError
        When the arrays do not fit each other or cannot be used as they are.
    """
    _table("weight", weight, token_ids)
    shape = (*token_ids.shape, weight.shape[1])
    out = check.output(out, weight.dtype, shape, (("weight", weight), ("token_ids", token_ids)))
    for_dtype(weight.dtype).embedding.embedding(weight, token_ids, out, resolve_threads(n_threads))
    return out


def embedding_backward(
    d_out: Array, token_ids: Array, d_weight: Array, *, n_threads: int | None = None
) -> None:
    """Add each token's gradient to its row of ``d_weight``, tokens in row-major order.

    Parameters
    ----------
    d_out
        Gradient at the looked-up rows, shape (..., D).
    token_ids
        Shape (...), int64.
    d_weight
        Shape (V, D); continues from what it holds, so tokens can come in pieces.
    n_threads
        Threads to use; no result depends on it.
    """
    _table("d_weight", d_weight, token_ids)
    check.like("d_out", d_out, d_weight.dtype, (*token_ids.shape, d_weight.shape[1]))
    reads = (("d_out", d_out), ("token_ids", token_ids))
    check.updated("d_weight", d_weight, d_weight.dtype, d_weight.shape, reads)
    for_dtype(d_weight.dtype).embedding.embedding_backward(
        d_out, token_ids, d_weight, resolve_threads(n_threads)
    )
