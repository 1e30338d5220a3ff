"""A forward and a backward pass as one list of compiled calls on fixed arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from numpy.typing import NDArray

from llmcy.kernels import BlockSums, RecordedCalls
from llmcy.tape.recording import is_recording
from llmcy.tape.tensor import Tensor, _Zeros
from llmcy.tape.value import WRITING

__all__ = ["RecordedPass", "ready_to_record"]

Array = NDArray[Any]


def ready_to_record(leaves: Sequence[Tensor]) -> bool:
    """Would a backward pass now put its results, and nothing added to them, into these leaves?"""
    return is_recording() and all(
        leaf._requires_grad and isinstance(leaf._grad, _Zeros) for leaf in leaves
    )


class RecordedPass:
    """What an ordinary pass did, to be done again on other numbers in the same arrays.

    Parameters
    ----------
    calls
        The compiled calls of the forward pass to a loss and of its backward pass, perhaps in
        pieces, which started with leaves that were :func:`ready_to_record`.
    loss
        Reads the loss from the arrays that the calls write.
    leaves
        All tensors that received a gradient.
    """

    __slots__ = ("_calls", "_leaves", "_loss")

    def __init__(
        self, calls: RecordedCalls, loss: Callable[[], float], leaves: Sequence[Tensor]
    ) -> None:
        self._calls = calls
        self._loss = loss
        self._leaves = [(leaf, leaf._value, leaf._value.array, leaf._grad) for leaf in leaves]

    @property
    def nbytes(self) -> int:
        """Memory of the arrays that are kept."""
        return self._calls.nbytes

    @property
    def sums(self) -> BlockSums | None:
        """What a run finds out about the squares of the gradients, or nothing (float64)."""
        return self._calls.sums

    def fits(self) -> bool:
        """Would an ordinary pass make the same calls, on the very arrays of these leaves?"""
        for leaf, value, array, _ in self._leaves:
            if leaf._value is not value or value.array is not array:
                return False
        return self._calls.fits()

    def ready(self) -> bool:
        """Could it run now: are all gradients cleared, is nothing being written?"""
        for leaf, value, _, _ in self._leaves:
            if value.leases == WRITING or not isinstance(leaf._grad, _Zeros):
                return False
        return is_recording()

    def run(self) -> float | None:
        """Run both passes: the loss, with gradients in the leaves, or nothing if a value that is
        not finite (or a token id out of range) was met; then no gradient has changed.

        The gradients of the next run will have the same arrays.
        """
        if not self._calls.run():
            return None
        value = self._loss()
        if not math.isfinite(value):
            return None
        for leaf, _, _, gradient in self._leaves:
            leaf._grad = gradient
        return value
