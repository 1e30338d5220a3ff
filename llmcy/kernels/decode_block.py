"""A whole block of a decoder for one token each of a few sequences."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from llmcy import _check, _kernels
from llmcy._threads import resolve_threads
from llmcy.kernels.attention_step import KEY_BLOCK, _checked_places

__all__ = ["BlockWeights", "DecodeBlock", "turning_factors"]

Array = NDArray[Any]
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


def turning_factors(cos: Array, sin: Array) -> tuple[Array, Array]:
    """Rows of a rotary table, (n, w / 2), spread over the features of a head, (n, w).

    A rotated feature is ``x * cos`` plus its pair's other feature times ``sin``.
    """
    spread = np.repeat(sin, 2, axis=1)
    spread[:, ::2] = -sin
    return np.repeat(cos, 2, axis=1), spread


class DecodeBlock:
    """The kernels of one block in a single call.

    Parameters
    ----------
    weights
        The block's arrays, float64 or float32, all of one dtype; they are not copied, and must not
        change their place.
    eps_attention, eps_ffn
        Of the two norms.
    n_heads, n_kv_heads
        H, and Hk, which divides it.

    Raises
    ------
    ShapeError, DTypeError, RangeError
        When the arrays do not make a block.
    """

    __slots__ = ("_eps", "_kv_heads", "_scratch", "_sizes", "_weights", "dtype")

    def __init__(
        self,
        weights: BlockWeights,
        eps_attention: float,
        eps_ffn: float,
        n_heads: int,
        n_kv_heads: int,
    ) -> None:
        _check.float_array("query", weights.query)
        _check.axes("query", weights.query, 2, "(D, H * w)")
        dtype = self.dtype = weights.query.dtype
        heads = _check.whole_number("n_heads", n_heads, 1)
        kv_heads = _check.whole_number("n_kv_heads", n_kv_heads, 1)
        d, features = weights.query.shape
        if features % heads or heads % kv_heads:
            _check.fail_shape("query", f"(D, H * w) with H = {heads}", weights.query.shape)
        width = features // heads
        _check.axes("gate", weights.gate, 2, "(D, F)")
        hidden = weights.gate.shape[1]
        shared = (d, kv_heads * width)
        shapes: tuple[tuple[int, ...], ...] = (
            (d,), (d, features), shared, shared, (features, d),
            (d,), (d, hidden), (d, hidden), (hidden, d),
        )  # fmt: skip
        for name, array, shape in zip(BlockWeights._fields, weights, shapes, strict=True):
            _check.like(name, array, dtype, shape)
        self._weights = tuple(weights)
        self._eps = _check.finite("eps_attention", eps_attention), _check.finite("eps_ffn", eps_ffn)
        self._sizes = d, hidden, heads, kv_heads, width
        self._scratch = np.empty(0, dtype)

    def step(
        self,
        x: Array,
        cos: Array,
        sin: Array,
        keys: Array,
        values: Array,
        rows: NDArray[np.int64],
        lengths: NDArray[np.int64],
        new_key: Array,
        new_value: Array,
        *,
        n_threads: int | None = None,
    ) -> bool:
        """Take one token of each of n sequences, 1 <= n <= 4, through the block.

        Parameters
        ----------
        x
            (n, D), the residual stream, replaced by that behind the block.
        cos, sin
            (n, w), from :func:`turning_factors`.
        keys, values, rows, lengths
            The cache, as for :func:`llmcy.kernels.attention_step`; only read.
        new_key, new_value
            (n, Hk * w); receive the rotated keys and the values of the tokens.
        n_threads
            Threads to use; no bit depends on it.

        Returns
        -------
        bool
            Whether every value was finite.  If not, ``x`` is of no use; the single kernels tell
            which value it was.

        Raises
        ------
        ShapeError, DTypeError, RangeError
            When an argument cannot be used.

        Notes
        -----
        Compatibility guarantee: the bits are those of the kernels it stands for.
        """
        d, hidden, heads, kv_heads, width = self._sizes
        dtype = self.dtype
        _check.updated("x", x, dtype, x.shape)
        n = x.shape[0]
        if x.ndim != 2 or x.shape[1] != d or not 1 <= n <= MOST_ROWS:
            _check.fail_shape("x", f"(n, {d}) with n from 1 to {MOST_ROWS}", x.shape)
        for name, factors in (("cos", cos), ("sin", sin)):
            _check.like(name, factors, dtype, (n, width))
        _check.float_array("values", values)
        batch, capacity = values.shape[0], values.shape[2]
        _check.like("values", values, dtype, (batch, kv_heads, capacity, width))
        blocks = -(-capacity // KEY_BLOCK)
        _check.like("keys", keys, dtype, (batch, kv_heads, blocks, width, KEY_BLOCK))
        longest = _checked_places(rows, lengths, "lengths", n, batch, capacity)
        reads = (("x", x), ("cos", cos), ("sin", sin), ("keys", keys), ("values", values))
        _check.updated("new_key", new_key, dtype, (n, kv_heads * width), reads)
        _check.updated(
            "new_value", new_value, dtype, new_key.shape, (*reads, ("new_key", new_key))
        )
        wanted = 2 * n * (d + heads * width + hidden)
        if self._scratch.size < wanted:
            self._scratch = np.empty(wanted, dtype)
        return _kernels.for_dtype(dtype).decode_block.decode_block(  # type: ignore[no-any-return]
            x, self._weights, *self._eps, cos, sin, keys, values, rows, lengths, new_key,
            new_value, self._scratch, n, d, hidden, capacity, heads, kv_heads, width, longest,
            resolve_threads(n_threads),
        )  # fmt: skip
