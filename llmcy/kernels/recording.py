"""Compiled calls written down once and made again later, without everything that led to them.

A piece of work that computes the same things on the same arrays every time (a training step) is a
fixed list of compiled calls.  :class:`Recording` writes that list down while the work runs as
usual; :meth:`Recording.finish` makes a :class:`RecordedCalls` of it, which repeats the work on
whatever numbers the arrays hold then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmcy import _kernels
from llmcy._kernels.calls import Calls
from llmcy._kernels.memory import SMALLEST, Workspace, placed
from llmcy._kernels.noting import noting
from llmcy._threads import num_threads
from llmcy.kernels.grad_norm import BlockSums

__all__ = ["RecordedCalls", "Recording"]

Array = NDArray[Any]
Call = tuple[Callable[..., Any], tuple[Any, ...], Any]

FAR = 2**17  # bytes of a matrix from which a product asks for the one that the next one will read
SMALL = 512  # elements up to which searches for non-finite values are put off and made together

PASSING_ON = frozenset(
    {
        "accumulate", "add", "attention", "attention_backward", "copy", "embedding",
        "embedding_backward", "matmul", "matmul_d_weight", "rms_norm", "rms_norm_backward",
        "rope", "swiglu", "swiglu_backward",
    }
)  # fmt: skip
"""Kernels for which a NaN or an infinity in an argument shows in a result.

Products, sums and norms: infinity times zero is NaN, and every element meets a result.  SwiGLU: its
sigmoid of minus infinity is 0, and 0 times minus infinity NaN.  Attention: a query or a value shows
in the result; an infinite key may have scores of minus infinity and so probabilities of 0, but then
the gradient of the queries has 0 times that key.  Softmax and loss are no such kernels.
"""


class RecordedCalls:
    """Work that can be repeated.

    Attributes
    ----------
    nbytes
        Memory of all arrays that the calls use; they live as long as this object.
    sums
        Of the squares of the results, as each run leaves them; None if no run measures them.
    """

    __slots__ = ("_calls", "_isa", "_n_threads", "_workspace", "nbytes", "sums")

    def __init__(
        self,
        calls: list[Call],
        workspace: Workspace,
        nbytes: int,
        isa: str,
        n_threads: int,
        sums: BlockSums | None = None,
    ) -> None:
        functions, arguments, results = zip(*calls, strict=True) if calls else ((), (), ())
        self._calls = Calls(functions, arguments, results)
        self._workspace = workspace
        self.nbytes = nbytes
        self.sums = sums
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
    small_limit
        The same for small arrays alone, which never take each other's places.

    Notes
    -----
    Everything between the calls must be free of arithmetic on the arrays: what numpy does itself is
    not seen.  Small arrays that the calls use stay alive.  Large new ones live in a workspace where
    they take each other's places as they do in the ordinary run, and keep their places.
    """

    def __init__(self, limit: int, *, small_limit: int | None = None) -> None:
        self._limit = limit
        self._small_limit = limit if small_limit is None else small_limit
        self._calls: list[Call] = []
        self._workspace = Workspace()
        self._small: dict[int, int] = {}
        self._complete = False
        self._isa = _kernels.active.isa
        self._n_threads = num_threads()
        self._listening = noting(self._note)

    def _note(self, function: Callable[..., Any], arguments: tuple[Any, ...], result: Any) -> None:
        if not self._complete:
            return
        for argument in arguments:
            if isinstance(argument, np.ndarray) and argument.nbytes < SMALLEST:
                self._small[id(argument)] = argument.nbytes
        places = tuple(
            placed(a, self._workspace) if isinstance(a, np.ndarray) else a for a in arguments
        )
        self._calls.append((function, places, result))
        small = sum(self._small.values())
        if small > self._small_limit or self._workspace.nbytes + small > self._limit:
            self._give_up()

    def _nbytes(self) -> int:
        return self._workspace.nbytes + sum(self._small.values())

    def _give_up(self) -> None:
        self._complete = False
        self._calls = []
        self._workspace.close()

    @contextmanager
    def unheard(self) -> Iterator[None]:
        """A scope whose calls are not written down: they look at results and change nothing."""
        complete, self._complete = self._complete, False
        try:
            yield
        finally:
            self._complete = complete

    def __enter__(self) -> Recording:
        self._complete = self._listening.__enter__()
        if self._complete:
            self._workspace.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._workspace.close()
        if error is not None:
            self._give_up()
        self._listening.__exit__(kind, error, traceback)

    def finish(
        self, results: Sequence[Array] = (), *, searched: bool = False
    ) -> RecordedCalls | None:
        """What was recorded, if that can be repeated.

        Parameters
        ----------
        results
            Arrays made by the calls that will be looked at after each run.
        searched
            Everything the calls compute goes into the results, and these are searched for values
            that are not finite: leave out the searches of arrays that only kernels
            :data:`PASSING_ON` such values read.  Results of float32 are measured by their searches.

        Returns
        -------
        RecordedCalls or None
            Nothing if the arrays took too much memory, another thread was recording, or other large
            arrays than the results are still in use.
        """
        if not self._complete:
            return None
        calls = self._calls
        sums = None
        if searched:
            calls = _needed_searches(calls, {x.ctypes.data for x in results})
            if results and all(x.dtype == np.float32 for x in results):
                sums = BlockSums(results)
                measuring = _measuring(calls, results, sums)
                calls, sums = (calls, None) if measuring is None else (measuring, sums)
        kept = [x for x in results if placed(x, self._workspace) is not x]
        if self._workspace.in_use != len(kept):
            return None
        return RecordedCalls(
            _asking_ahead(_searches_together(calls)),
            self._workspace,
            self._nbytes(),
            self._isa,
            self._n_threads,
            sums,
        )


def _measuring(
    calls: list[Call], results: Sequence[Array], sums: BlockSums
) -> list[Call] | None:
    """Let the last search of each large result write the sums of its squares.

    None if one is not searched; small ones have no blocks.
    """
    left = {x.ctypes.data: index for index, x in enumerate(results)}
    measuring: list[Call] = []
    for call in reversed(calls):
        function, arguments, result = call
        if function.__name__ == "first_non_finite" and arguments[0].size > SMALL:
            x, n_threads = arguments
            index = left.pop(x.ctypes.data, None)
            if index is not None:
                call = (*sums.search(index, x, n_threads), result)
        measuring.append(call)
    if any(results[index].size > SMALL for index in left.values()):
        return None
    return measuring[::-1]


def _needed_searches(calls: list[Call], results: set[int]) -> list[Call]:
    """Leave out the searches in large arrays whose finds would show in the results all the same.

    ``results`` are addresses.  A search stays if it is the last one of a result, or if a later call
    that may hide a value has an argument at its address (operations take whole arrays, not parts).
    """
    open_results = set(results)
    hiding: set[int] = set()
    kept: list[Call] = []
    for call in reversed(calls):
        function, arguments, _ = call
        name = function.__name__
        if name == "first_non_finite":
            x = arguments[0]
            address = x.ctypes.data
            if x.size <= SMALL or address in hiding or address in open_results:
                kept.append(call)
            open_results.discard(address)
            continue
        if name == "clear":  # what was there before is gone
            hiding.discard(arguments[0].ctypes.data)
        elif name not in PASSING_ON:
            hiding.update(a.ctypes.data for a in arguments if isinstance(a, np.ndarray))
        kept.append(call)
    return calls if open_results else kept[::-1]


def _searches_together(calls: list[Call]) -> list[Call]:
    """Join the searches for non-finite values in small arrays to one per dtype, at the end.

    No call changes what another one finished, except by adding to it, rotating or multiplying it
    (gradients of scale, silu and SwiGLU take the place of the adjoint), and neither a NaN nor an
    infinity ever becomes a number again by that: what the single searches would have found is still
    there.  A second look at token ids is left out.
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


def _asking_ahead(calls: list[Call]) -> list[Call]:
    """Let each product ask for the right-hand matrix of the next one, as a rule a weight, which it
    would wait for: all that a step with few rows pays for weights is their way from memory."""
    asking: list[Call] = []
    ahead: Array | None = None
    for function, arguments, result in reversed(calls):
        if function.__name__ == "matmul":
            b = arguments[1]
            if ahead is not None:
                arguments = (*arguments, ahead)
            ahead = b if b.nbytes >= FAR else None
        asking.append((function, arguments, result))
    return asking[::-1]
