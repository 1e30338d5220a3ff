"""Operations of a decoder on token sequences: look-up, rotation by position, attention."""

from __future__ import annotations

from typing import Any

from numpy.typing import ArrayLike, NDArray

from llmcy import kernels
from llmcy._check import axes, fail_shape
from llmcy.ops.ids import as_ids
from llmcy.tape import BackwardPass, Node, Tensor, record

__all__ = ["attention", "embedding", "rope"]

Array = NDArray[Any]


def embedding(table: Tensor, token_ids: ArrayLike) -> Tensor:
    """Rows of the table (V, D) for ids (B, T); result (B, T, D).

    Notes
    -----
    The gradient is a table of its own, to which positions add their adjoint in flat order, and
    arrives as a whole (numerics contract, section 8).
    """
    ids = as_ids("token_ids", token_ids)
    out = kernels.embedding(table._value.array, ids)
    return record("embedding", out, (table,), _embedding_backward, (ids,), checked=True)


def _embedding_backward(node: Node, d_out: Array, to: BackwardPass) -> None:
    (table,) = node.inputs
    fold, _ = to.fold(table, zeros=True)
    kernels.embedding_backward(d_out, node.saved[0], fold)
    to.folded(table, fold)


def rope(x: Tensor, cos: Array, sin: Array, *, n_heads: int, position: int = 0) -> Tensor:
    """Rotate adjacent pairs of features of every head by their position (Su et al., 2021).

    Parameters
    ----------
    x
        Shape (B, T, D); head h owns columns ``h * w`` to ``(h + 1) * w - 1``, ``w = D / n_heads``.
    cos, sin
        Table from :func:`llmcy.kernels.rope_table`, shape (C, w / 2), C >= position + T.
    n_heads
        Heads side by side in D.
    position
        Position of the first token.
    """
    array = x._value.array
    heads = _split_heads(array, n_heads)
    out = kernels.rope(heads, cos, sin, position=position).reshape(array.shape)
    return record("rope", out, (x,), _rope_backward, (cos, sin, n_heads, position))


def _rope_backward(node: Node, d_out: Array, to: BackwardPass) -> None:
    cos, sin, n_heads, position = node.saved
    heads = _split_heads(d_out, n_heads)
    kernels.rope(heads, cos, sin, position=position, inverse=True, out=heads)
    to.give(node.inputs[0], d_out)


def _split_heads(x: Array, n_heads: int) -> Array:
    axes("x", x, 3, "(B, T, D)")
    if x.ndim != 3 or n_heads < 1 or x.shape[2] % n_heads:
        fail_shape("x", f"(B, T, D) with D divisible by {n_heads} heads", x.shape)
    return x.reshape(x.shape[0], x.shape[1], n_heads, x.shape[2] // n_heads)


def attention(
    q: Tensor, k: Tensor, v: Tensor, n_heads: int, *, n_kv_heads: int | None = None
) -> Tensor:
    """Causal attention of rotated queries and keys (Vaswani et al., 2017).

    Parameters
    ----------
    q, k, v
        Shape (B, T, D), heads side by side in D; with ``n_kv_heads``, keys and values are
        (B, T, n_kv_heads * w).
    n_heads
        Number of query heads; ``w = D / n_heads``.
    n_kv_heads
        Number of key and value heads, each shared by as many neighbouring query heads; a divisor
        of ``n_heads``.  None: as many as query heads.

    Returns
    -------
    Tensor
        Heads merged again, (B, T, D).

    Notes
    -----
    Probabilities are not kept: the backward pass computes them again, with equal bits.
    """
    out = kernels.attention(
        q._value.array, k._value.array, v._value.array, n_heads, n_kv_heads=n_kv_heads
    )
    return record("attention", out, (q, k, v), _attention_backward, (n_heads, n_kv_heads))


def _attention_backward(node: Node, d_out: Array, to: BackwardPass) -> None:
    q, k, v = node.inputs
    n_heads, n_kv_heads = node.saved
    d_q, d_k, d_v = kernels.attention_backward(
        d_out, q._value.array, k._value.array, v._value.array, n_heads, n_kv_heads=n_kv_heads
    )
    to.give(v, d_v)  # the value mix comes after the scores, so its gradient comes first
    to.give(q, d_q)
    to.give(k, d_k)
