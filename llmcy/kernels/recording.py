"""Compiled calls written down once and made again later, without everything that led to them.

A piece of work that computes the same things on the same arrays every time (a training step) is a
fixed list of compiled calls.  :class:`Recording` writes that list down while the work runs as
usual; :meth:`Recording.finish` makes a :class:`RecordedCalls` of it, which repeats the work on
whatever numbers the arrays hold then.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmcy import _kernels
from llmcy._kernels.calls import Calls
from llmcy._kernels.noting import noting
from llmcy._threads import num_threads

__all__ = ["RecordedCalls", "Recording"]

Array = NDArray[Any]
Call = tuple[Callable[..., Any], tuple[Any, ...], Any]

SMALL = 512  # elements up to which searches for non-finite values are put off and made together


class RecordedCalls:
    """Work that can be repeated.

    Attributes
    ----------
    nbytes
        Memory of all arrays that the calls use; they live as long as this object.
    """

    __slots__ = ("_calls", "_isa", "_n_threads", "nbytes")

    def __init__(self, calls: list[Call], nbytes: int, isa: str, n_threads: int) -> None:
        functions, arguments, results = zip(*calls, strict=True) if calls else ((), (), ())
        self._calls = Calls(functions, arguments, results)
        self.nbytes = nbytes
        self._isa = isa
        self._n_threads = n_threads

    def fits(self) -> bool:
        """Are instruction set and number of threads still the ones that were recorded?"""
        return self._isa == _kernels.active.isa and self._n_threads == num_threads()

    def __len__(self) -> int:
        return len(self._calls)

    def run(self) -> bool:
        """Make all calls; False as soon as one finds what its recorded call had not found.

        That is a value that is not finite, or a token id out of range.  Results are then to be
        thrown away.
        """
        return self._calls.run() < 0


class Recording:
    """A context in which this thread's compiled calls are written down.

    Parameters
    ----------
    limit
        Bytes of arrays beyond which the recording is given up.

    Notes
    -----
    Everything between the calls must be free of arithmetic on the arrays: what numpy does itself is
    not seen.  Arrays that the calls use stay alive, so none has the memory of another.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._calls: list[Call] = []
        self._owners: dict[int, int] = {}
        self._complete = False
        self._isa = _kernels.active.isa
        self._n_threads = num_threads()
        self._listening = noting(self._note)

    def _note(self, function: Callable[..., Any], arguments: tuple[Any, ...], result: Any) -> None:
        if not self._complete:
            return
        for argument in arguments:
            if isinstance(argument, np.ndarray):
                owner = _owner(argument)
                self._owners[id(owner)] = owner.nbytes
        self._calls.append((function, arguments, result))
        if sum(self._owners.values()) > self._limit:
            self._complete = False
            self._calls = []

    def __enter__(self) -> Recording:
        self._complete = self._listening.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._complete = self._complete and error is None
        self._listening.__exit__(kind, error, traceback)

    def finish(self) -> RecordedCalls | None:
        """The calls, or nothing if they were too many or another thread was recording."""
        if not self._complete:
            return None
        return RecordedCalls(
            _searches_together(self._calls),
            sum(self._owners.values()),
            self._isa,
            self._n_threads,
        )


def _owner(array: Array) -> Array:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _searches_together(calls: list[Call]) -> list[Call]:
    """Join the searches for non-finite values in small arrays to one per dtype, at the end.

    No call changes what another one finished, except by adding to it, rotating or scaling it, and
    neither a NaN nor an infinity ever becomes a number again by that: what the single searches
    would have found is still there.  A second look at token ids is left out.
    """
    kept: list[Call] = []
    put_off: dict[Any, dict[int, Array]] = {}
    seen: set[tuple[Any, ...]] = set()
    for function, arguments, result in calls:
        name = function.__name__
        if name == "first_non_finite" and result == -1 and arguments[0].size <= SMALL:
            put_off.setdefault(arguments[0].dtype, {})[id(arguments[0])] = arguments[0]
            continue
        if name == "first_out_of_range":
            key = (arguments[0].ctypes.data, arguments[0].size, arguments[1])
            if key in seen:
                continue
            seen.add(key)
        kept.append((function, arguments, result))
    for dtype, arrays in put_off.items():
        search = _kernels.for_dtype(dtype).elementwise.first_with_non_finite
        kept.append((search, (tuple(arrays.values()),), -1))
    return kept
