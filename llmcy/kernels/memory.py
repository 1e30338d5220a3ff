"""New arrays for results: large ones take over memory that earlier ones have given back.

A training step makes the same arrays again and again.  Fresh memory is paid for page by page when
it is first written, which would cost such a step a quarter of its time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from llmcy._kernels import for_dtype
from llmcy._kernels import memory as _memory
from llmcy._threads import num_threads

__all__ = ["empty", "empty_like", "release_memory", "zeros"]

Array = NDArray[Any]


def empty(shape: tuple[int, ...], dtype: npt.DTypeLike = np.float64) -> Array:
    """An array of arbitrary contents, like :func:`numpy.empty`.

    Its memory returns to a store when the array and all views of it are gone. The store holds at
    most a quarter of the machine's memory; :func:`release_memory` empties it.
    """
    kind = np.dtype(dtype)
    if kind.kind not in "fiu" or not kind.isnative:
        return np.empty(shape, kind)
    return _memory.empty(shape, kind)


def empty_like(array: Array) -> Array:
    """:func:`empty` with the shape and dtype of ``array``."""
    return empty(array.shape, array.dtype)


def zeros(shape: tuple[int, ...], dtype: npt.DTypeLike = np.float64) -> Array:
    """An array of +0, like :func:`numpy.zeros`, in the memory of :func:`empty`."""
    array = empty(shape, dtype)
    if array.dtype == np.float64 or array.dtype == np.float32:
        for_dtype(array.dtype).elementwise.clear(array, num_threads())
    else:
        array.fill(0)
    return array


def release_memory() -> None:
    """Return the memory that waits for new arrays to the system."""
    _memory.release()
