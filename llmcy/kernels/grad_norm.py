"""The Euclidean norm of all gradients together."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from operator import is_
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from llmcy import _check as check
from llmcy._kernels import for_dtype, scalars
from llmcy._kernels.arrays import first_not_of
from llmcy._threads import num_threads, resolve_threads
from llmcy.errors import NonFiniteError

__all__ = ["BlockSums", "GradNorm", "grad_norm"]

Array = NDArray[Any]


class GradNorm(NamedTuple):
    """A norm as ``top * root``, which clipping needs apart.

    Clipping to c: the scale is exactly 1 if ``top <= c / root``, else ``(c / top) / root``.
    """

    top: float
    """The largest magnitude; the norm itself for float32."""
    root: float
    """Norm over top, at least 1; exactly 1 for float32."""
    norm: float
    """``top * root``, or the largest finite number when that overflows."""


class BlockSums:
    """Sums of squares of the blocks that lie in each of several float32 arrays.

    The sums are written by whoever searches the arrays for values that are not finite, while they
    are in the cache; :func:`grad_norm` need then not read the arrays again.

    Parameters
    ----------
    arrays
        Float32 arrays in the order of their norm.
    """

    __slots__ = ("_arrays", "_firsts", "_sums")

    def __init__(self, arrays: Sequence[Array]) -> None:
        whole_blocks = for_dtype(np.dtype(np.float32)).grad_norm.whole_blocks
        self._arrays = tuple(arrays)
        self._firsts: list[int] = []
        sums = []
        start = 0
        for x in self._arrays:
            first, count = whole_blocks(start, x.size)
            self._firsts.append(first)
            sums.append(np.zeros(count))
            start += x.size
        self._sums = tuple(sums)

    def __len__(self) -> int:
        return len(self._arrays)

    def search(self, index: int, x: Array, n_threads: int) -> tuple[Any, ...]:
        """Compiled function and arguments of the search that writes the sums of an array.

        ``x`` may be another array in the same place.
        """
        search = for_dtype(x.dtype).grad_norm.search_and_sum
        return search, (x, self._firsts[index], self._sums[index], n_threads)

    def of(self, arrays: tuple[Array, ...]) -> tuple[NDArray[np.float64], ...]:
        """The sums of each array, or nothing if these are other arrays."""
        same = len(arrays) == len(self._arrays) and all(map(is_, arrays, self._arrays))
        return self._sums if same else ()


def grad_norm(
    arrays: Iterable[Array],
    *,
    names: Sequence[str] | None = None,
    sums: BlockSums | None = None,
    n_threads: int | None = None,
) -> GradNorm:
    """Norm of all elements of all arrays, in their order, without joining them.

    Parameters
    ----------
    arrays
        C-contiguous arrays of any shapes and one dtype, float32 or float64.
    names
        What to call each array in an error; ``arrays[i]`` if not given.
    sums
        What is known of these arrays; they must not have changed since.
    n_threads
        Threads to use; no result depends on it, and float64 is one chain.

    Returns
    -------
    GradNorm
        All zero elements, or none at all, give ``top`` 0, ``root`` 1 and ``norm`` 0.

    Raises
    ------
    NonFiniteError
        ``NonFiniteValue`` for the first NaN or infinity, with array name, flat index and value.
    DTypeError, ShapeError
        When an array cannot be used, or has another dtype than the first.

    Notes
    -----
    Numerics contract, section 9: float64 elements update a pair, the largest magnitude so far and
    the sum of squares relative to it, so that nothing overflows or underflows. float32 squares are
    exact in binary64; they are added in blocks of 4096 elements of the concatenation, then blocks
    in order (contract for float32, rule 8).
    """
    xs = tuple(arrays)
    if not xs:
        return GradNorm(0.0, 1.0, 0.0)
    check.float_array(_name(0, names), xs[0])
    dtype = xs[0].dtype
    index = first_not_of(xs, dtype)
    if index >= 0:
        check.like(_name(index, names), xs[index], dtype, xs[index].shape)
    known = () if sums is None else sums.of(xs)
    top, total = for_dtype(dtype).grad_norm.total(xs, known, resolve_threads(n_threads))
    if not (math.isfinite(top) and math.isfinite(total)):
        _fail(xs, names)
    root = scalars.root(total)
    if dtype.itemsize == 4:
        return GradNorm(root, 1.0, root)
    return GradNorm(top, root, min(scalars.product(top, root), sys.float_info.max))


def _name(index: int, names: Sequence[str] | None) -> str:
    return f"arrays[{index}]" if names is None else names[index]


def _fail(xs: tuple[Array, ...], names: Sequence[str] | None) -> NoReturn:
    search = for_dtype(xs[0].dtype).elementwise.first_non_finite
    index, x, bad = next(
        (index, x, bad) for index, x in enumerate(xs) if (bad := search(x, num_threads())) >= 0
    )
    name, value = _name(index, names), float(x.flat[bad])
    raise NonFiniteError(
        "NonFiniteValue",
        f"{name} holds {value} at flat index {bad}",
        name=name,
        index=bad,
        value=value,
    )
