"""The cache of one attention layer, and one new token through that layer.

What a later token needs of an earlier one is its rotated key and its value.  Both are functions of
the token's prefix only, so once computed they stay valid as long as the layer's parameters do.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from llmcy import kernels
from llmcy.errors import AutodiffError, CacheError
from llmcy.nn import Attention
from llmcy.nn.module import Parameter
from llmcy.tape.tensor import check_finite

__all__ = [
    "AttentionEvidence",
    "LayerKVCache",
    "PreparedTokens",
    "changed_cache",
    "forward_incremental",
]

Array = NDArray[Any]
Ids = NDArray[np.int64]
MAX_ELEMENTS = 2**63 - 1
PARTS = ("query", "key", "value", "output")


@dataclass(frozen=True, eq=False, slots=True)
class PreparedTokens:
    """Keys and values that a cache will take when the whole computation has succeeded.

    Attributes
    ----------
    rows, positions
        Int64 (n,): the sequence of each token, and its place there.
    key, value
        (n, Hk * w): rotated keys, plain values.
    """

    rows: Ids
    positions: Ids
    key: Array
    value: Array


class LayerKVCache:
    """Rotated keys and plain values of the tokens that one attention layer has seen.

    Parameters
    ----------
    attention
        The layer.  The cache belongs to its four parameter nodes, at their present revisions, and
        to its rotary table; :meth:`check_binding` refuses any other.
    batch
        Sequences, B.
    capacity
        Positions a sequence can fill, C.
    lengths
        Int64 (B,), zeros: where to note how many of them are filled.

    Raises
    ------
    CacheError
        ``ZeroBatchSize``, ``ZeroCapacity``, ``CapacityExceedsPositions``,
        ``ElementCountOverflow``, ``AllocationFailed``.
    """

    def __init__(
        self, attention: Attention, batch: int, capacity: int, lengths: Ids | None = None
    ) -> None:
        if batch <= 0:
            raise CacheError("ZeroBatchSize", f"a cache needs at least one sequence, got {batch}")
        if capacity <= 0:
            raise CacheError("ZeroCapacity", f"a cache needs at least one position, got {capacity}")
        rotary = attention.rotary
        if capacity > rotary.max_seq_len:
            raise CacheError(
                "CapacityExceedsPositions",
                f"capacity {capacity} is more than the layer's {rotary.max_seq_len} positions",
                capacity=capacity,
                positions=rotary.max_seq_len,
            )
        self.batch = batch
        self.capacity = capacity
        self.head_dim = rotary.head_dim
        self.n_heads = attention.n_heads
        self.n_kv_heads = attention.n_kv_heads
        self.d_model = attention.query.weight.shape[0]
        self._rotary = (rotary.head_dim, rotary.max_seq_len, _bits(rotary.theta))
        self._nodes = _parts(attention)
        self._revisions = [node.revision for node in self._nodes]
        elements = batch * self.n_kv_heads * capacity * self.head_dim
        if elements > MAX_ELEMENTS:
            raise CacheError(
                "ElementCountOverflow", f"a cache of {elements} elements", elements=elements
            )
        try:
            self._keys, self._values = kernels.empty_cache(
                batch, self.n_kv_heads, capacity, self.head_dim, self._nodes[0].dtype
            )
        except (MemoryError, ValueError) as error:
            raise CacheError(
                "AllocationFailed",
                f"no memory for a cache of 2 x {elements} elements",
                cause=error,
                elements=elements,
            ) from error
        self._lengths = np.zeros(batch, np.int64) if lengths is None else lengths

    # ------------------------------------------------------------------ looking
    @property
    def lengths(self) -> Ids:
        """Filled positions of every sequence, (B,); a copy."""
        return self._lengths.copy()

    def __len__(self) -> int:
        """Filled positions of the longest sequence."""
        return int(self._lengths.max())

    def __bool__(self) -> bool:
        return True

    @property
    def is_full(self) -> bool:
        """Whether some sequence has no room for another token."""
        return len(self) == self.capacity

    @property
    def storage(self) -> tuple[Array, Array]:
        """The whole storage as :func:`llmcy.kernels.empty_cache` lays it out, read-only."""
        views = self._keys.view(), self._values.view()
        for view in views:
            view.flags.writeable = False
        return views

    @property
    def arrays(self) -> tuple[Array, Array]:
        """The storage itself, for the kernels that read and fill it."""
        return self._keys, self._values

    def keys(self) -> Array:
        """Rotated keys, (B, Hk, length, w), a copy; +0 behind a shorter sequence."""
        return self._logical(kernels.cached_keys(self._keys, len(self)))

    def values(self) -> Array:
        """Values, (B, Hk, length, w), a copy; +0 behind a shorter sequence."""
        return self._logical(self._values[:, :, : len(self)].copy())

    def _logical(self, copied: Array) -> Array:
        for row, length in enumerate(self._lengths.tolist()):
            copied[row, :, length:] = 0
        return copied

    # ------------------------------------------------------------------ binding
    def check_binding(self, attention: Attention) -> None:
        """Refuse a layer that is not the one this cache was made for, as it was then.

        Raises
        ------
        CacheError
            The first of ``CacheModelWidthMismatch``, ``CacheHeadCountMismatch``,
            ``CacheHeadWidthMismatch``, ``CacheLayerMismatch``, ``CacheLayerRevisionMismatch``,
            ``CacheRopeMismatch``.
        """
        rotary = attention.rotary
        sizes = (
            ("CacheModelWidthMismatch", "width", self.d_model, attention.query.weight.shape[0]),
            ("CacheHeadCountMismatch", "number of heads", self.n_heads, attention.n_heads),
            (
                "CacheHeadCountMismatch",
                "number of key and value heads",
                self.n_kv_heads,
                attention.n_kv_heads,
            ),
            ("CacheHeadWidthMismatch", "head width", self.head_dim, rotary.head_dim),
        )
        for kind, what, mine, theirs in sizes:
            if mine != theirs:
                raise CacheError(
                    kind,
                    f"the cache is for a {what} of {mine}, the layer has {theirs}",
                    cache=mine,
                    layer=theirs,
                )
        nodes = _parts(attention)
        for part, mine_node, node in zip(PARTS, self._nodes, nodes, strict=True):
            if node is not mine_node:
                raise CacheError(
                    "CacheLayerMismatch",
                    f"the cache belongs to another layer: its {part} weight is another node",
                    parameter=part,
                )
        for part, revision, node in zip(PARTS, self._revisions, nodes, strict=True):
            if node.revision != revision:
                raise CacheError(
                    "CacheLayerRevisionMismatch",
                    f"the {part} weight has changed: the cache holds results of revision "
                    f"{revision}, the layer is at {node.revision}",
                    parameter=part,
                    cache=revision,
                    layer=node.revision,
                )
        if (rotary.head_dim, rotary.max_seq_len, _bits(rotary.theta)) != self._rotary:
            raise CacheError("CacheRopeMismatch", "the layer has another rotary table")

    # ------------------------------------------------------------------ changing
    def attend(
        self, q: Array, key: Array, value: Array, rows: Ids, *, weights: Array | None = None
    ) -> tuple[Array, PreparedTokens]:
        """One token a row: mix the cached values and its own; nothing is stored yet.

        Parameters
        ----------
        q
            (n, H * w), rotated.
        key, value
            (n, Hk * w); ``key`` rotated.
        rows
            Int64 (n,): the sequence each token continues; each has room.
        weights
            Receives the probabilities; see :func:`llmcy.kernels.attention_step`.
        """
        lengths = self._lengths[rows]
        mixed = kernels.attention_step(
            q, key, value, self._keys, self._values, rows, lengths, self.n_heads, weights=weights
        )
        return mixed, PreparedTokens(rows, lengths, key, value)

    def accepts(self, prepared: PreparedTokens) -> bool:
        """Whether every sequence still ends where the prepared tokens begin."""
        if len(prepared.rows) == 1:
            return bool(self._lengths[prepared.rows[0]] == prepared.positions[0])
        expected = self._lengths.copy()
        for row, position in zip(
            prepared.rows.tolist(), prepared.positions.tolist(), strict=True
        ):
            if expected[row] != position:
                return False
            expected[row] += 1
        return True

    def commit(self, prepared: PreparedTokens) -> None:
        """Take prepared tokens in; :meth:`accepts` must hold."""
        kernels.cache_append(
            prepared.key,
            prepared.value,
            self._keys,
            self._values,
            prepared.rows,
            prepared.positions,
        )
        if len(prepared.rows) == 1:
            self._lengths[prepared.rows[0]] += 1
        else:
            np.maximum.at(self._lengths, prepared.rows, prepared.positions + 1)

    def reset(self) -> None:
        """Forget every position; the storage is neither cleared nor made anew."""
        self._lengths[:] = 0


def changed_cache(layer: int) -> CacheError:
    """What to raise when a cache has changed since new tokens for it were computed."""
    return CacheError(
        "PreparedCacheChanged",
        f"layer {layer} has changed since its new row was prepared",
        layer=layer,
    )


def _parts(attention: Attention) -> tuple[Parameter, ...]:
    layers = (attention.query, attention.key, attention.value, attention.output)
    return tuple(layer.weight for layer in layers)


def _bits(value: float) -> bytes:
    return struct.pack("<d", value)


@dataclass(frozen=True, eq=False)
class AttentionEvidence:
    """What one token did in one attention layer.

    Attributes
    ----------
    query, key, value
        Heads of the new token, (B, H, 1, w) and (B, Hk, 1, w); query and key rotated.
    weights
        Probabilities over the cached positions and the new one, (B, H, 1, length).
    heads
        Head outputs, (B, H, 1, w).
    merged, output
        (B, 1, D): heads side by side, and after the output projection.
    position
        Place of the new token, which is also the number of cached rows that were used again.
    full_prefix_rows
        Rows that a pass without a cache projects for the same result: ``position + 1``.
    incremental_rows
        Rows projected here: 1.
    cache_length
        Filled positions after the token was taken in.
    """

    query: Array
    key: Array
    value: Array
    weights: Array
    heads: Array
    merged: Array
    output: Array
    position: int
    full_prefix_rows: int
    incremental_rows: int
    cache_length: int

    @property
    def reused_rows(self) -> int:
        """Cached rows of keys (and of values) that were used again."""
        return self.position


def forward_incremental(
    attention: Attention, x: ArrayLike, cache: LayerKVCache
) -> AttentionEvidence:
    """One new token of every sequence through an attention layer.

    Parameters
    ----------
    attention
        The layer that ``cache`` was made for.
    x
        (B, 1, D), the layer's input.
    cache
        All its sequences must have the same length; it grows by the new token.

    Returns
    -------
    AttentionEvidence
        ``output`` has the bits of the last row of ``attention`` over the whole sequence.

    Raises
    ------
    CacheError
        In this order ``InputRank``, ``SingleTokenRequired``, ``InputBatchMismatch``,
        ``InputWidthMismatch``, those of :meth:`LayerKVCache.check_binding`, ``Cache`` wrapping
        ``Full``, ``Autodiff`` for a result that is not finite.  The cache is then unchanged.
    """
    given = np.ascontiguousarray(x, attention.query.weight.dtype)
    _check_input(given, cache)
    cache.check_binding(attention)
    if cache.is_full:
        full = CacheError(
            "Full", f"all {cache.capacity} positions are filled", capacity=cache.capacity
        )
        raise CacheError("Cache", str(full), cause=full)
    position = len(cache)
    rows = np.arange(cache.batch)
    width, batch = cache.head_dim, cache.batch
    weights = np.zeros((batch, cache.n_heads, position + 1), given.dtype)
    table = attention.rotary
    cos, sin = (np.repeat(t[position : position + 1], batch, 0) for t in (table.cos, table.sin))
    try:
        flat = given.reshape(batch, -1)
        check_finite("input", flat)
        q, k, v = (
            _checked("linear", kernels.matmul(flat, layer.weight.data))
            for layer in (attention.query, attention.key, attention.value)
        )
        q, k = (
            _checked("rope", kernels.rope(x.reshape(batch, -1, width), cos, sin)).reshape(batch, -1)
            for x in (q, k)
        )
        merged, prepared = cache.attend(q, k, v, rows, weights=weights)
        check_finite("attention", merged)
        output = _checked("linear", kernels.matmul(merged, attention.output.weight.data))
    except AutodiffError as error:
        raise CacheError("Autodiff", str(error), cause=error) from error
    cache.commit(prepared)
    heads = merged.reshape(batch, cache.n_heads, 1, width)
    return AttentionEvidence(
        q.reshape(batch, cache.n_heads, 1, width),
        k.reshape(batch, cache.n_kv_heads, 1, width),
        v.reshape(batch, cache.n_kv_heads, 1, width),
        weights[:, :, None],
        heads,
        merged[:, None],
        output[:, None],
        position,
        position + 1,
        1,
        len(cache),
    )


def _checked(op: str, array: Array) -> Array:
    check_finite(op, array)
    return array


def _check_input(x: Array, cache: LayerKVCache) -> None:
    if x.ndim != 3:
        raise CacheError("InputRank", f"input must be (B, 1, D), got {x.shape}", shape=x.shape)
    if x.shape[1] != 1:
        raise CacheError(
            "SingleTokenRequired",
            f"one token at a time, got {x.shape[1]}",
            tokens=x.shape[1],
        )
    for kind, what, expected, actual in (
        ("InputBatchMismatch", "sequences", cache.batch, x.shape[0]),
        ("InputWidthMismatch", "features", cache.d_model, x.shape[2]),
    ):
        if expected != actual:
            raise CacheError(
                kind,
                f"input has {actual} {what}, expected {expected}",
                expected=expected,
                actual=actual,
            )
