"""Two orders of the features of a rotary head.

llmcy, Meta's code, llama2.c and GGUF turn neighbours: pair i is features (2 i, 2 i + 1).  Hugging
Face turns halves: pair i is features (i, i + w / 2).  The rows of the query and key weights say
which feature comes where, so a permutation of rows inside every head converts one into the other;
the scores, which are sums over features of products, are the same numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["adjacent_to_half", "half_to_adjacent"]

Array = NDArray[Any]


def adjacent_to_half(weight: Array, n_heads: int) -> Array:
    """Rows (n_heads * w, D) from neighbours to halves."""
    rows, columns = weight.shape
    pairs = rows // n_heads // 2
    heads = weight.reshape(n_heads, pairs, 2, columns).swapaxes(1, 2)
    return np.ascontiguousarray(heads).reshape(rows, columns)


def half_to_adjacent(weight: Array, n_heads: int) -> Array:
    """Rows (n_heads * w, D) from halves to neighbours: undoes `adjacent_to_half`."""
    rows, columns = weight.shape
    pairs = rows // n_heads // 2
    heads = weight.reshape(n_heads, 2, pairs, columns).swapaxes(1, 2)
    return np.ascontiguousarray(heads).reshape(rows, columns)
