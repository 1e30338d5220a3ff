"""Training steps of small models without the tape's cost: recorded once, then made again.

A model of some hundred parameters spends nearly all of a step in Python: checking, recording,
choosing kernels.  For one model and one batch shape all of that has the same outcome every time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import numpy as np
from numpy.typing import ArrayLike, NDArray

from llmcy import kernels
from llmcy.kernels import Recording
from llmcy.model import Decoder
from llmcy.nn.module import Wiring
from llmcy.ops.ids import as_ids
from llmcy.tape import CarriedGradients, RecordedPass, Tensor, ready_to_record

__all__ = ["RECORDING_BYTES", "RecordedStep"]

RECORDING_BYTES = 2**31
"""Memory that the recorded steps of one model may take; each takes what an ordinary step does."""

PIECES_BYTES = 2**24
"""Memory that the small arrays of all pieces of a batch may take: it grows with their number."""

TokenIds = NDArray[np.int64]
Form = tuple[tuple[int, ...], int | None]


class RecordedStep:
    """Loss and gradients of batches, with the bits of ``model.loss(...).backward()``.

    The first batch of a shape goes through the ordinary tape, which is listened to; later ones
    repeat the compiled calls alone, as long as model, instruction set and number of threads stay as
    they were and all gradients are cleared.  Whenever a batch cannot be repeated, or meets a value
    that is not finite, it goes through the ordinary tape, which then says what is wrong.

    Parameters
    ----------
    model
        Its parameters receive the gradients.  Repeating is for a plain :class:`Decoder`: one whose
        ``loss`` or ``forward`` has been replaced always uses the tape.
    limit
        Bytes of arrays that recorded steps may keep.  A step that needs more is not recorded.

    Notes
    -----
    A repeated step writes the gradients into the arrays of the step before: copy what is to be
    kept.

    Examples
    --------
    >>> step = RecordedStep(model)
    >>> for inputs, targets in batches:
    ...     loss = step.run(inputs, targets)
    ...     optimizer.step(model.named_parameters())
    ...     model.zero_grad()
    """

    def __init__(self, model: Decoder, *, limit: int = RECORDING_BYTES) -> None:
        self._model = model
        self._free = threading.Lock()
        self._sums: kernels.BlockSums | None = None
        self._left = limit
        self._wiring: Wiring | None = None
        self._steps: dict[Form, tuple[TokenIds, TokenIds, RecordedPass] | None] = {}

    @property
    def sums(self) -> kernels.BlockSums | None:
        """What the last run found out about the gradients' norm, which
        :meth:`~llmcy.optim.AdamW.step_clipped` uses; None if it was no repeated one, or in float64.

        It is of use as long as nobody changes the gradients.
        """
        return self._sums

    def run(
        self,
        inputs: ArrayLike,
        targets: ArrayLike,
        *,
        rows: int | None = None,
        check: Callable[[Tensor], object] | None = None,
        check_mean: Callable[[float], object] | None = None,
    ) -> float:
        """The loss of a batch; its gradients are added to those of the parameters.

        Parameters
        ----------
        inputs, targets
            Token ids (B, T).
        rows
            Rows that go forward and backward at once, >= 1; None: all.  No bit depends on it.
        check
            Called with the loss of an ordinary pass before it goes backward.
        check_mean
            Called with the loss of a batch that went through the tape in pieces, before the
            parameters receive gradients.

        Raises
        ------
        ModelError, AutodiffError
            As :meth:`Decoder.loss` and :meth:`Tensor.backward`; no gradient has then changed.
        """
        shape = np.shape(inputs)
        self._sums = None
        if rows is not None and (not shape or rows >= shape[0]):
            rows = None  # one piece
        value = None
        if self._free.acquire(blocking=False):  # one thread at a time can use the arrays
            try:
                value = self._repeat(inputs, targets, rows)
            finally:
                self._free.release()
        if value is None:
            value = self._pass(inputs, targets, rows, check, check_mean)
        return value

    def _repeat(self, inputs: ArrayLike, targets: ArrayLike, rows: int | None) -> float | None:
        if not (isinstance(inputs, np.ndarray) and isinstance(targets, np.ndarray)):
            return None
        step = self._steps.get((inputs.shape, rows))
        if step is None or targets.shape != inputs.shape:
            return None
        fixed_inputs, fixed_targets, both = step
        if (
            inputs.dtype != fixed_inputs.dtype
            or targets.dtype != fixed_targets.dtype
            or not _is_plain(self._model)
            or self._model.wiring() is not self._wiring
            or not (both.fits() and both.ready())
        ):
            return None
        fixed_inputs[...] = inputs
        fixed_targets[...] = targets
        value = both.run()
        self._sums = None if value is None else both.sums
        return value

    def _pass(
        self,
        inputs: ArrayLike,
        targets: ArrayLike,
        rows: int | None,
        check: Callable[[Tensor], object] | None,
        check_mean: Callable[[float], object] | None,
    ) -> float:
        model = self._model
        wiring = model.wiring()
        if wiring is not self._wiring or not all(s[2].fits() for s in self._steps.values() if s):
            self._left += sum(step[2].nbytes for step in self._steps.values() if step)
            self._steps = {}  # nothing recorded can be of use again
            self._wiring = wiring
        leaves = [parameter for _, parameter in wiring.named]
        form = np.shape(inputs), rows
        if form in self._steps or not _is_plain(model) or not ready_to_record(leaves):
            return _ordinary(model, inputs, targets, rows, check, check_mean, nullcontext)()
        fixed = as_ids("inputs", inputs).copy(), as_ids("targets", targets).copy()
        small = None if rows is None else PIECES_BYTES
        with Recording(self._left, small_limit=small) as recording:
            loss = _ordinary(model, *fixed, rows, check, check_mean, recording.unheard)
        gradients = [leaf.grad for leaf in leaves if leaf.grad is not None]
        calls = recording.finish(gradients, searched=True)
        self._steps[form] = None  # not to be tried again
        if calls is not None:
            both = RecordedPass(calls, loss, leaves)
            self._steps[form] = (*fixed, both)
            self._left -= both.nbytes
        return loss()


def _ordinary(
    model: Decoder,
    inputs: ArrayLike,
    targets: ArrayLike,
    rows: int | None,
    check: Callable[[Tensor], object] | None,
    check_mean: Callable[[float], object] | None,
    unheard: Callable[[], AbstractContextManager[None]],
) -> Callable[[], float]:
    """Both passes; what is returned reads the loss from the array that holds it."""
    if rows is not None:
        ids = as_ids("inputs", inputs), as_ids("targets", targets)
        return _in_pieces(model, *ids, rows, check, check_mean, unheard)
    loss = model.loss(inputs, targets)
    if check is not None:
        check(loss)
    loss.backward()
    return loss.data.item


def _in_pieces(
    model: Decoder,
    inputs: TokenIds,
    targets: TokenIds,
    rows: int,
    check: Callable[[Tensor], object] | None,
    check_mean: Callable[[float], object] | None,
    unheard: Callable[[], AbstractContextManager[None]],
) -> Callable[[], float]:
    """Piece after piece, each continuing the accumulators of the one before (contract, part two,
    section 2); the loss is one mean over the targets of all of them."""
    carry = CarriedGradients()
    row_losses: NDArray[np.float64] = np.empty(targets.size)
    done = 0
    for first in range(0, len(inputs), rows):
        piece = slice(first, first + rows)
        here = row_losses[done : done + targets[piece].size]
        done += here.size
        loss = model.loss(inputs[piece], targets[piece], targets.size, row_losses=here)
        if check is not None:
            check(loss)
        loss.backward(1.0, carry=carry)

    def mean() -> float:
        return float(kernels.mean(row_losses))

    if check_mean is not None:
        with unheard():
            value = mean()
        check_mean(value)
    carry.commit()
    return mean


_METHODS = Decoder.loss, Decoder.forward


def _is_plain(model: Decoder) -> bool:
    """Is this a decoder whose computation is the one of this package?"""
    return type(model) is Decoder and (Decoder.loss, Decoder.forward) == _METHODS
