"""Attention of one new token a sequence over cached keys and values."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from llmcy import _check, _kernels
from llmcy._threads import resolve_threads

__all__ = ["KEY_BLOCK", "attention_step", "cache_append", "cached_keys", "empty_cache"]

Array = NDArray[Any]

KEY_BLOCK = 32  # positions whose keys lie side by side


def empty_cache(
    batch: int, n_kv_heads: int, capacity: int, head_dim: int, dtype: npt.DTypeLike
) -> tuple[Array, Array]:
    """Zeroed storage for the keys and values of ``batch`` sequences.

    Returns
    -------
    keys : numpy.ndarray
        (batch, n_kv_heads, ceil(capacity / KEY_BLOCK), head_dim, KEY_BLOCK): in blocks of
        positions, features first, so that a query meets a block of keys without rearranging them.
    values : numpy.ndarray
        (batch, n_kv_heads, capacity, head_dim).
    """
    kind = _check.float_dtype("dtype", dtype)
    blocks = -(-capacity // KEY_BLOCK)
    keys = np.zeros((batch, n_kv_heads, blocks, head_dim, KEY_BLOCK), kind)
    return keys, np.zeros((batch, n_kv_heads, capacity, head_dim), kind)


def cached_keys(keys: Array, length: int) -> Array:
    """A copy of the first ``length`` keys, (batch, n_kv_heads, length, head_dim)."""
    batch, heads, blocks, width, size = keys.shape
    rows = keys.transpose(0, 1, 2, 4, 3).reshape(batch, heads, blocks * size, width)
    return np.ascontiguousarray(rows[:, :, :length])


def _checked_cache(keys: Array, values: Array, dtype: np.dtype[Any]) -> tuple[int, int, int, int]:
    """Sequences, key/value heads, capacity and head width of a cache of this dtype."""
    _check.float_array("values", values)
    if values.ndim != 4:
        _check.fail_shape("values", "(B, Hk, C, w)", values.shape)
    batch, heads, capacity, width = values.shape
    _check.like("values", values, dtype, values.shape)
    blocks = -(-capacity // KEY_BLOCK)
    _check.like("keys", keys, dtype, (batch, heads, blocks, width, KEY_BLOCK))
    return batch, heads, capacity, width


def _checked_places(
    rows: Array, positions: Array, name: str, n: int, batch: int, capacity: int
) -> int:
    """Check sequences and positions of n tokens; the largest position."""
    _check.token_ids("rows", rows, (n,))
    _check.token_ids(name, positions, (n,))
    if n == 0:
        return 0
    owners, places = rows.tolist(), positions.tolist()  # numpy takes longer to look at so few
    if min(owners) < 0 or max(owners) >= batch:
        _check.fail_range("rows", owners, f"whole numbers from 0 to {batch - 1}")
    longest: int = max(places)
    if min(places) < 0 or longest >= capacity:
        _check.fail_range(name, places, f"whole numbers from 0 to {capacity - 1}")
    return longest


def attention_step(
    q: Array,
    new_key: Array,
    new_value: Array,
    keys: Array,
    values: Array,
    rows: NDArray[np.int64],
    lengths: NDArray[np.int64],
    n_heads: int,
    *,
    out: Array | None = None,
    weights: Array | None = None,
    n_threads: int | None = None,
) -> Array:
    """One token of each of n sequences attends to that sequence's cached positions and to itself.

    Parameters
    ----------
    q
        (n, H * w), float64 or float32: rotated queries, heads side by side.
    new_key, new_value
        (n, Hk * w): the rotated key and the value of the same tokens.  They are not in the cache
        yet; query head h uses key/value head ``h // (H / Hk)``.
    keys, values
        The cache, laid out as :func:`empty_cache` makes it; only read.
    rows
        Int64 (n,): which sequence of the cache each token continues.
    lengths
        Int64 (n,): how many positions of that sequence are filled; each less than the capacity.
    n_heads
        Query heads, H; a multiple of Hk.
    out
        Where to write the result.
    weights
        (n, H, max(lengths) + 1): receives the probabilities of every position; entries behind a
        shorter sequence are left as they are.
    n_threads
        Threads to use; no bit depends on it.

    Returns
    -------
    numpy.ndarray
        (n, H * w).

    Raises
    ------
    ShapeError, DTypeError, RangeError
        When an argument cannot be used.

    Notes
    -----
    docs/numerics.md, section 6, steps 5 to 8.

    Compatibility guarantee: the bits are those of the token's row in :func:`attention` over the
    whole sequence, whatever else is in the batch.
    """
    _check.float_array("q", q)
    dtype = q.dtype
    batch, kv_heads, capacity, width = _checked_cache(keys, values, dtype)
    heads = _check.whole_number("n_heads", n_heads, 1)
    if kv_heads == 0 or heads % kv_heads:
        _check.fail_range("n_heads", n_heads, f"a multiple of the cache's {kv_heads} heads")
    if q.ndim != 2 or q.shape[1] != heads * width:
        _check.fail_shape("q", f"(n, {heads * width})", q.shape)
    n = q.shape[0]
    _check.like("new_key", new_key, dtype, (n, kv_heads * width))
    _check.like("new_value", new_value, dtype, (n, kv_heads * width))
    longest = _checked_places(rows, lengths, "lengths", n, batch, capacity)
    reads = (
        ("q", q), ("new_key", new_key), ("new_value", new_value), ("keys", keys),
        ("values", values),
    )  # fmt: skip
    result = _check.output(out, dtype, q.shape, reads)
    if weights is not None:
        shape = (n, heads, longest + 1)
        _check.updated("weights", weights, dtype, shape, (*reads, ("out", result)))
    _kernels.for_dtype(dtype).attention_step.attention_step(
        q, new_key, new_value, keys, values, rows, lengths, result, weights,
        n, capacity, heads, kv_heads, width, longest, resolve_threads(n_threads),
    )  # fmt: skip
    return result


def cache_append(
    new_key: Array,
    new_value: Array,
    keys: Array,
    values: Array,
    rows: NDArray[np.int64],
    positions: NDArray[np.int64],
) -> None:
    """Put keys and values of n tokens into the cache.

    Parameters
    ----------
    new_key, new_value
        (n, Hk * w), float64 or float32.
    keys, values
        The cache, laid out as :func:`empty_cache` makes it.
    rows, positions
        Int64 (n,): the sequence each token belongs to and its place in it.

    Raises
    ------
    ShapeError, DTypeError, RangeError
        When an argument cannot be used; the cache is unchanged.
    """
    _check.float_array("new_key", new_key)
    dtype = new_key.dtype
    batch, heads, capacity, width = _checked_cache(keys, values, dtype)
    if new_key.ndim != 2 or new_key.shape[1] != heads * width:
        _check.fail_shape("new_key", f"(n, {heads * width})", new_key.shape)
    n = new_key.shape[0]
    _check.like("new_value", new_value, dtype, new_key.shape)
    _checked_places(rows, positions, "positions", n, batch, capacity)
    reads = (("new_key", new_key), ("new_value", new_value))
    _check.updated("keys", keys, dtype, keys.shape, (*reads, ("values", values)))
    _check.updated("values", values, dtype, values.shape, reads)
    _kernels.for_dtype(dtype).attention_step.cache_append(
        new_key, new_value, keys, values, rows, positions, n, capacity, heads, width
    )
