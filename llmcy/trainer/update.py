"""One update: the six events, on a whole batch or on consecutive pieces of its rows."""

from __future__ import annotations

import numpy as np

from llmcy.data import Batch
from llmcy.errors import OptimizerError, TrainerError, trainer_errors
from llmcy.evaluate import check_loss, loss_value
from llmcy.model import Decoder
from llmcy.optim import AdamW
from llmcy.recorded import RecordedStep
from llmcy.tape import Tensor
from llmcy.trainer.records import TrainingStep

__all__ = ["Updater"]


class Updater:
    """Updates a model in place, one batch at a time.

    Parameters
    ----------
    model, optimizer
        The working copies.
    max_grad_norm
        Ceiling of the global gradient norm.
    micro_batch_size
        Rows that go forward and backward at once; None takes the whole batch.  No bit depends on
        it (contract, part two, section 2): each piece continues the accumulators of the one before
        and divides by the targets of the whole batch.
    """

    def __init__(
        self,
        model: Decoder,
        optimizer: AdamW,
        max_grad_norm: float,
        micro_batch_size: int | None = None,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.max_grad_norm = max_grad_norm
        self.micro_batch_size = micro_batch_size
        self._step = RecordedStep(model)

    def update(self, step: int, batch: Batch, learning_rate: float) -> TrainingStep:
        """One update; the record lists what happened in the order in which it did.

        Raises
        ------
        TrainerError
            As :func:`llmcy.trainer.train_decoder`.
        """
        wiring = self.model.wiring()
        named = wiring.named
        events: list[str] = []
        with trainer_errors(f"step {step}"):
            loss = self._gradients(batch, events)
            try:
                clip = self.optimizer.step_clipped(
                    named,
                    self.max_grad_norm,
                    learning_rate=learning_rate,
                    sums=self._step.sums,
                )
            except OptimizerError as error:
                _raise_own_kind(error)
                raise
            events += ("finite-check", "clip", "adamw-step")
            committed = self.optimizer.step_count
            if committed != step:
                raise TrainerError(
                    "OptimizerStepMismatch",
                    f"the optimizer says it finished step {committed}, the trainer is at {step}",
                    expected=step,
                    actual=committed,
                )
            preserved = wiring.holds() or named == tuple(self.model.named_parameters())
            self.model.zero_grad()
            for name, parameter in self.model.wiring().named:
                if not parameter.grad_is_zero:
                    _fail_not_cleared(name, parameter)
            events.append("zero-grad")
        return TrainingStep(
            step=step,
            windows=tuple(f"{p.document_id}@{p.start}" for p in batch.provenance),
            target_count=batch.token_count,
            learning_rate=learning_rate,
            train_loss=loss,
            norm_before=clip.norm_before,
            norm_after=clip.norm_after,
            transform=clip.transform,
            clipped=clip.clipped,
            finite_gradients=True,
            parameter_nodes_preserved=preserved,
            cleared_gradients=True,
            events=tuple(events),
        )

    def _gradients(self, batch: Batch, events: list[str]) -> float:
        """Leave the gradients of the batch's mean loss in the parameters; return the loss."""
        value = self._step.run(
            batch.inputs,
            batch.targets,
            rows=self.micro_batch_size,
            check=loss_value,
            check_mean=check_loss,
        )
        events += ("forward", "backward")
        return value


def _raise_own_kind(error: OptimizerError) -> None:
    """Clipping failures become kinds of the trainer's own, with the same fields."""
    if error.kind in TrainerError.KINDS:
        raise TrainerError(error.kind, str(error), cause=error, **error.fields) from error


def _fail_not_cleared(name: str, parameter: Tensor) -> None:
    gradient = parameter.grad
    if gradient is None:
        return
    bits = gradient.view(np.uint64 if gradient.itemsize == 8 else np.uint32).reshape(-1)
    index = int(np.argmax(bits != 0))
    value = float(gradient.reshape(-1)[index])
    raise TrainerError(
        "ParameterGradientNotZero",
        f"the gradient of {name!r} is {value!r} at flat index {index} after clearing",
        name=name,
        index=index,
        value=value,
    )
