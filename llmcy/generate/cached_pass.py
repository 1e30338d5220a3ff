"""Tokens through a decoder's blocks, one kernel after the other, with cached keys and values.

The way for whole prompts and for many sequences at once, and the one that finds and names a value
that is not finite.  Kernels, their order and checks are those of the operations of the tape.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmcy import kernels
from llmcy.generate.layer_cache import LayerKVCache, PreparedTokens
from llmcy.model import Decoder
from llmcy.tape.tensor import check_finite

__all__ = ["final_norm", "head_logits", "through_blocks"]

Array = NDArray[Any]
Ids = NDArray[np.int64]


def through_blocks(
    model: Decoder,
    layers: Sequence[LayerKVCache],
    tokens: Ids,
    owners: Ids,
    positions: Ids,
    counts: Ids,
) -> tuple[Array, list[PreparedTokens]]:
    """Tokens through all blocks; nothing is stored yet.

    Parameters
    ----------
    model, layers
        The decoder, and the cache of each of its blocks.
    tokens, owners, positions
        Int64 (n,): the ids, the sequence each one continues, and its place there.
    counts
        Tokens of each sequence that takes part.  Either all of them are empty, or each takes one.

    Returns
    -------
    x : numpy.ndarray
        (n, D), the residual stream.
    prepared : list of PreparedTokens
        What each layer's cache will take.

    Raises
    ------
    AutodiffError
        ``NonFiniteValue`` with the operation and the place.
    """
    n = len(tokens)
    x = kernels.embedding(model.token_embedding.weight.data, tokens[None])[0]
    prepared = []
    table: tuple[Array, Array] | None = None
    for block, layer in zip(model.blocks, layers, strict=True):
        attention, ffn = block.attention, block.ffn
        if table is None:
            rotary = attention.rotary
            table = rotary.cos[positions], rotary.sin[positions]
        h = _norm(x, block.attention_norm.gain.data, block.attention_norm.eps)
        q = _rotated(_linear(h, attention.query.weight.data), layer.head_dim, table)
        k = _rotated(_linear(h, attention.key.weight.data), layer.head_dim, table)
        v = _linear(h, attention.value.weight.data)
        if len(counts) == n and positions.any():
            mixed, taken = layer.attend(q, k, v, owners)
        else:  # whole prompts into empty sequences
            mixed = _full_attention(q, k, v, counts, layer)
            taken = PreparedTokens(owners, positions, k, v)
        check_finite("attention", mixed)
        prepared.append(taken)
        x = _sum(x, _linear(mixed, attention.output.weight.data))
        h = _norm(x, block.ffn_norm.gain.data, block.ffn_norm.eps)
        hidden = kernels.swiglu(
            _linear(h, ffn.gate.weight.data), _linear(h, ffn.up.weight.data)
        )
        check_finite("swiglu", hidden)
        x = _sum(x, _linear(hidden, ffn.down.weight.data))
    return x, prepared


def final_norm(model: Decoder, x: Array) -> Array:
    """The last norm of rows (n, D)."""
    return _norm(x, model.final_norm.gain.data, model.final_norm.eps)


def head_logits(model: Decoder, x: Array) -> Array:
    """Logits (n, V) of rows (n, D) behind the last norm."""
    head = model.token_embedding if model.output_head is None else model.output_head
    logits = kernels.matmul(x, head.weight.data, transpose_b=True)
    check_finite("tied_linear", logits)
    return logits


def _norm(x: Array, gain: Array, eps: float) -> Array:
    out = kernels.rms_norm(x, gain, eps).out
    check_finite("rms_norm", out)
    return out


def _linear(x: Array, weight: Array) -> Array:
    out = kernels.matmul(x, weight)
    check_finite("linear", out)
    return out


def _sum(x: Array, y: Array) -> Array:
    out = kernels.add(x, y)
    check_finite("add", out)
    return out


def _rotated(x: Array, head_dim: int, table: tuple[Array, Array]) -> Array:
    heads = x.reshape(len(x), -1, head_dim)
    kernels.rope(heads, *table, out=heads)
    check_finite("rope", x)
    return x


def _full_attention(q: Array, k: Array, v: Array, counts: Ids, layer: LayerKVCache) -> Array:
    """Causal attention inside each of some sequences that lie one after the other."""
    heads, kv_heads = layer.n_heads, layer.n_kv_heads
    if (counts == counts[0]).all():
        shape = (len(counts), int(counts[0]), -1)
        mixed = kernels.attention(
            q.reshape(shape), k.reshape(shape), v.reshape(shape), heads, n_kv_heads=kv_heads
        )
        return mixed.reshape(q.shape)
    out = kernels.empty_like(q)
    start = 0
    for count in counts.tolist():
        part = slice(start, start + count)
        kernels.attention(
            q[None, part],
            k[None, part],
            v[None, part],
            heads,
            n_kv_heads=kv_heads,
            out=out[None, part],
        )
        start += count
    return out
