"""One token each of a few sequences through a whole decoder, from packed weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from llmcy import _check, _kernels
from llmcy._kernels.memory import empty
from llmcy._threads import num_threads, resolve_threads
from llmcy.kernels.attention_step import KEY_BLOCK, _checked_places

__all__ = ["BlockWeights", "CachedDecodeStep", "DecodeStep", "DecoderWeights", "StepResult"]

Array = NDArray[Any]
Ids = NDArray[np.int64]
INT64 = np.dtype(np.int64)
MOST_ROWS = 4


class BlockWeights(NamedTuple):
    """Arrays of one block: D features, H heads and Hk key/value heads of width w, F hidden ones."""

    attention_gain: Array
    """(D,)"""
    query: Array
    """(D, H * w)"""
    key: Array
    """(D, Hk * w)"""
    value: Array
    """(D, Hk * w)"""
    output: Array
    """(H * w, D)"""
    ffn_gain: Array
    """(D,)"""
    gate: Array
    """(D, F)"""
    up: Array
    """(D, F)"""
    down: Array
    """(F, D)"""


class DecoderWeights(NamedTuple):
    """Arrays of a decoder with a vocabulary of V and T positions."""

    table: Array
    """(V, D)"""
    blocks: tuple[BlockWeights, ...]
    final_gain: Array
    """(D,)"""
    head: Array
    """(V, D); of a tied model the table"""
    cos: Array
    """(T, w / 2), the rotary table"""
    sin: Array
    """(T, w / 2)"""


class StepResult(NamedTuple):
    """What a step found: logits, and what :meth:`CachedDecodeStep.append` puts into the cache."""

    logits: Array
    """(n, V)"""
    projected: Array
    """(L, n, width): for every layer and token rotated query and key, value, and padding"""


class DecodeStep:
    """A decoder for single tokens: the kernels of all its layers in a single call.

    Its matrices are copied into one array in the order in which a token needs them, in panels of
    columns (``llmcy/_kernels/panels.pxd``), so memory for as many weights again is taken.

    Parameters
    ----------
    weights
        The decoder's arrays, float64 or float32, all of one dtype.  Matrices and gains are copied;
        ``table``, ``cos`` and ``sin`` are not, and must keep their values.
    eps
        Of the norms.
    n_heads, n_kv_heads
        H, and Hk, which divides it.

    Raises
    ------
    ShapeError, DTypeError, RangeError
        When the arrays do not make a decoder.
    MemoryError
        When there is no room for the copies.
    """

    __slots__ = ("_cos", "_eps", "_gains", "_packed", "_scratch", "_sin", "_sizes", "_table",
                 "_width", "dtype", "n_layers")  # fmt: skip

    def __init__(
        self, weights: DecoderWeights, eps: float, n_heads: int, n_kv_heads: int
    ) -> None:
        self._sizes = _checked_sizes(weights, n_heads, n_kv_heads)
        self._eps = _check.finite("eps", eps)
        self._table, self._cos, self._sin = weights.table, weights.cos, weights.sin
        dtype = self.dtype = weights.table.dtype
        d, hidden, vocab, heads, kv_heads, width = self._sizes
        self.n_layers = len(weights.blocks)
        padded = _kernels.for_dtype(dtype).decode_step.width_in_panels
        self._width: int = padded((heads + 2 * kv_heads) * width)
        # elements of scratch a token needs
        self._scratch: int = 2 * padded(d) + padded(hidden) + (heads + 2) * width
        gains = [gain for b in weights.blocks for gain in (b.attention_gain, b.ffn_gain)]
        self._gains = np.stack([*gains, weights.final_gain])
        a_block = (self._width + 2 * padded(hidden)) * d
        a_block += (heads * width + hidden) * padded(d)
        self._packed = empty((self.n_layers * a_block + padded(vocab) * d,), dtype)
        self._packed.fill(0)  # the padding
        packing = _Packing(self._packed)
        for block in weights.blocks:
            packing.beside(block.query, block.key, block.value)
            packing.beside(block.output)
            packing.by_turns(block.gate, block.up)
            packing.beside(block.down)
        packing.beside(weights.head, transposed=True)

    def over(
        self, keys: Sequence[Array], values: Sequence[Array], lengths: Ids
    ) -> CachedDecodeStep:
        """The decoder over a cache.

        Parameters
        ----------
        keys, values
            Storage of every layer, as :func:`llmcy.kernels.empty_cache` makes it, with room for at
            most T positions.
        lengths
            Int64 (L, B): how many positions of every layer and sequence are filled.

        Raises
        ------
        ShapeError, DTypeError
            When these are no storage for this decoder.
        """
        _, _, _, _, heads, width = self._sizes
        if not len(keys) == len(values) == self.n_layers:
            expected = f"one array for each of {self.n_layers} layers"
            _check.fail_shape("keys and values", expected, (len(keys), len(values)))
        batch, capacity = (
            (values[0].shape[0], values[0].shape[2])
            if self.n_layers
            else (lengths.shape[-1], self._cos.shape[0])
        )
        if capacity > self._cos.shape[0]:
            expected = f"(B, Hk, C, w) with C up to {self._cos.shape[0]}"
            _check.fail_shape("values", expected, values[0].shape)
        of_keys = (batch, heads, -(-capacity // KEY_BLOCK), width, KEY_BLOCK)
        for key, value in zip(keys, values, strict=True):
            _check.updated("keys", key, self.dtype, of_keys, (("values", value),))
            _check.updated("values", value, self.dtype, (batch, heads, capacity, width))
        _check.updated("lengths", lengths, INT64, (self.n_layers, batch))
        return CachedDecodeStep(self, tuple(keys), tuple(values), lengths, capacity)


class CachedDecodeStep:
    """A :class:`DecodeStep` with the cache it works on; made by :meth:`DecodeStep.over`."""

    __slots__ = ("_arrays", "_batch", "_capacity", "_held", "_lengths", "_of", "_storage")

    def __init__(
        self, of: DecodeStep, keys: tuple[Array, ...], values: tuple[Array, ...], lengths: Ids,
        capacity: int,
    ) -> None:  # fmt: skip
        self._of = of
        self._arrays = keys, values  # what `storage` points to
        self._lengths = lengths
        self._batch, self._capacity = lengths.shape[1], capacity
        self._storage = np.empty(2 * of.n_layers, np.int64)
        _kernels.for_dtype(of.dtype).decode_step.addresses(keys, values, self._storage)
        d, hidden, vocab, heads, kv_heads, width = of._sizes
        self._held = (
            of._table, of._gains, of._packed, of._cos, of._sin, of._eps,
            of.n_layers, d, hidden, vocab, capacity, heads, kv_heads, width,
        )  # fmt: skip

    def step(
        self, tokens: Ids, rows: Ids, positions: Ids, *, n_threads: int | None = None
    ) -> StepResult | None:
        """Take one token of each of n sequences, 1 <= n <= 4, through the decoder.

        Parameters
        ----------
        tokens
            Int64 (n,), each from 0 to V - 1.
        rows
            Int64 (n,): which sequence of the cache each token continues.
        positions
            Int64 (n,): how many positions of that sequence are filled.
        n_threads
            Threads to use; no bit depends on it.

        Returns
        -------
        StepResult or None
            None when a value was not finite; the single kernels tell which.  The cache has not
            changed.

        Raises
        ------
        ShapeError, DTypeError, RangeError
            When an argument cannot be used.

        Notes
        -----
        docs/numerics.md, section 6.

        Compatibility guarantee: the bits are those of the kernels it stands for.
        """
        of = self._of
        vocab = of._sizes[2]
        n = len(tokens)
        if not 1 <= n <= MOST_ROWS:
            _check.fail_shape("tokens", f"(n,) with n from 1 to {MOST_ROWS}", tokens.shape)
        _check.token_ids("tokens", tokens, (n,))
        for index, token in enumerate(tokens.tolist()):
            if not 0 <= token < vocab:
                _check.token_out_of_range("tokens", index, token, vocab)
        longest = _checked_places(rows, positions, "positions", n, self._batch, self._capacity)
        dtype = of.dtype
        logits = np.empty((n, vocab), dtype)
        projected = np.empty((of.n_layers, n, of._width), dtype)
        finite = _kernels.for_dtype(dtype).decode_step.decode_step(
            self._held, self._storage, tokens, rows, positions, np.empty(n * of._scratch, dtype),
            projected, logits, n, longest, resolve_threads(n_threads),
        )  # fmt: skip
        return StepResult(logits, projected) if finite else None

    def append(self, result: StepResult, rows: Ids, positions: Ids) -> int | None:
        """Put the keys and values of a step into the caches of all layers, and count them.

        Parameters
        ----------
        result
            From :meth:`step`.
        rows, positions
            As they were given there; all rows different.

        Returns
        -------
        int or None
            None, or the first layer in which a sequence does not end at its position any more; then
            nothing has changed.

        Raises
        ------
        ShapeError, DTypeError, RangeError
            When an argument cannot be used; the cache is unchanged.
        """
        of, n = self._of, len(rows)
        _checked_places(rows, positions, "positions", n, self._batch, self._capacity)
        if n > 1 and len(set(rows.tolist())) != n:
            _check.fail_range("rows", rows.tolist(), "different sequences")
        _check.like("projected", result.projected, of.dtype, (of.n_layers, n, of._width))
        changed: int = _kernels.for_dtype(of.dtype).decode_step.append_step(
            self._held, self._storage, result.projected, self._lengths, rows, positions, n,
            self._batch,
        )  # fmt: skip
        return None if changed < 0 else changed

    def advance(
        self, tokens: list[int], rows: list[int], lengths: Ids
    ) -> tuple[Array, Ids, Ids, Ids, int] | int | None:
        """A step and what follows it, in the usual case.

        Behind a pass over the weights little is left in the caches of an interpreter: every line of
        Python there takes several times as long as elsewhere.

        Parameters
        ----------
        tokens, rows
            One token for each of some sequences.
        lengths
            Int64 (B,): the filled positions of all sequences, which grow, too.

        Returns
        -------
        tuple, int or None
            Logits (n, V); the rows, their positions and their new lengths as int64 (n,); the sum of
            the latter.

            Or None, when nothing has been done: numbers that are no plain ones or out of range,
            more than 4 of them, sequences that are empty, full, given twice or of another length
            in some layer, a value that is not finite.  :meth:`step` tells what it is.

            Or the first layer that another thread has changed meanwhile; nothing has been done.
        """
        return _kernels.for_dtype(self._of.dtype).decode_step.advance(  # type: ignore[no-any-return]
            self._held, self._storage, self._lengths, lengths, tokens, rows, self._batch,
            num_threads(),
        )  # fmt: skip


class _Packing:
    """Fills an array with packed matrices, one after the other."""

    def __init__(self, packed: Array) -> None:
        self._packed = packed
        self._kernel = _kernels.for_dtype(packed.dtype).decode_step
        self._at = 0

    def beside(self, *matrices: Array, transposed: bool = False) -> None:
        """Matrices (k, columns) side by side, as one."""
        axis = 0 if transposed else 1
        k = matrices[0].shape[1 - axis]
        total = sum(matrix.shape[axis] for matrix in matrices)
        before = 0
        for matrix in matrices:
            columns = matrix.shape[axis]
            self._kernel.pack(
                matrix, self._packed, self._at, k, columns, before, total, 1, 0, transposed
            )
            before += columns
        self._at += k * self._kernel.width_in_panels(total)

    def by_turns(self, *matrices: Array) -> None:
        """The first panel of every matrix, then the second of every one, and so on."""
        k, columns = matrices[0].shape
        for turn, matrix in enumerate(matrices):
            self._kernel.pack(
                matrix, self._packed, self._at, k, columns, 0, columns, len(matrices), turn, False
            )
        self._at += len(matrices) * k * self._kernel.width_in_panels(columns)


def _checked_sizes(weights: DecoderWeights, n_heads: int, n_kv_heads: int) -> tuple[int, ...]:
    """D, F, V, H, Hk and w of arrays that make a decoder."""
    _check.float_array("table", weights.table)
    if weights.table.ndim != 2:
        _check.fail_shape("table", "(V, D)", weights.table.shape)
    dtype = weights.table.dtype
    vocab, d = weights.table.shape
    heads = _check.whole_number("n_heads", n_heads, 1)
    kv_heads = _check.whole_number("n_kv_heads", n_kv_heads, 1)
    if heads % kv_heads:
        _check.fail_range("n_kv_heads", n_kv_heads, f"a divisor of {heads} heads")
    _check.float_array("cos", weights.cos)
    if weights.cos.ndim != 2:
        _check.fail_shape("cos", "(T, w / 2)", weights.cos.shape)
    width = 2 * weights.cos.shape[1]
    hidden = weights.blocks[0].gate.shape[-1] if weights.blocks else 1
    shapes: tuple[tuple[int, ...], ...] = (
        (d,), (d, heads * width), (d, kv_heads * width), (d, kv_heads * width), (heads * width, d),
        (d,), (d, hidden), (d, hidden), (hidden, d),
    )  # fmt: skip
    for index, block in enumerate(weights.blocks):
        for name, array, shape in zip(BlockWeights._fields, block, shapes, strict=True):
            _check.like(f"blocks[{index}].{name}", array, dtype, shape)
    _check.like("final_gain", weights.final_gain, dtype, (d,))
    _check.like("head", weights.head, dtype, (vocab, d))
    _check.like("cos", weights.cos, dtype, weights.cos.shape)
    _check.like("sin", weights.sin, dtype, weights.cos.shape)
    return d, hidden, vocab, heads, kv_heads, width
