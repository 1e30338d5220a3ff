"""The update loop: every planned step, measurements in between, the earliest best state kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from llmcy.data import MiniBatchEpoch
from llmcy.errors import OptimizerError, TrainerError, trainer_errors
from llmcy.evaluate import evaluate_no_grad, loss_value
from llmcy.model import Decoder
from llmcy.optim import AdamW, clip_to, measure_grad_norm
from llmcy.state import DecoderModelState, OptimizerSnapshot, _issue_selected_state
from llmcy.tape import Tensor
from llmcy.trainer.plan import TrainerConfig, earliest_minimum
from llmcy.trainer.preflight import check_run
from llmcy.trainer.records import LossCheckpoint, TrainingResult, TrainingStep

__all__ = ["train_decoder"]


def train_decoder(
    model: Decoder,
    optimizer: AdamW,
    update_epoch: MiniBatchEpoch,
    train_evaluation_epoch: MiniBatchEpoch,
    validation_epoch: MiniBatchEpoch,
    config: TrainerConfig,
    *,
    on_step: Callable[[TrainingStep], object] | None = None,
    on_checkpoint: Callable[[LossCheckpoint], object] | None = None,
) -> TrainingResult:
    """Train a copy of ``model`` and select the measured state with the smallest validation loss.

    Parameters
    ----------
    model, optimizer
        Where to start; both stay as they are, whatever happens.  The optimizer must be fresh.
    update_epoch
        Update s uses batch ``(s - 1) % batch_count``; training partition.
    train_evaluation_epoch
        Measured beside the validation epoch, for information; training partition.
    validation_epoch
        Measured for the selection; validation partition.
    config
        Rates, ceiling of the gradient norm, steps to measure at.  Every planned update runs.
    on_step, on_checkpoint
        Called with each record as soon as it exists.  An exception they raise ends the run.

    Returns
    -------
    TrainingResult
        Equal inputs give equal bits.

    Raises
    ------
    TrainerError
        Before anything is computed, as :func:`~llmcy.trainer.preflight.check_run`.  During the run
        ``NonScalarLoss``, ``NonFiniteLoss``, ``MissingGradient``, ``NonFiniteGradient``,
        ``UnrepresentableGradientClip``, ``OptimizerStepMismatch``, ``ParameterGradientNotZero``,
        those of :func:`~llmcy.evaluate.evaluate_no_grad`, and ``Model``, ``Optimizer``,
        ``Autodiff``, ``Initialization`` or ``Tensor`` with the reason as ``cause``.

    Notes
    -----
    A measurement replaces the selected state only by a strictly smaller validation loss, so the
    earliest minimum wins.  Parameters and optimizer state are copied together.
    """
    check_run(model, optimizer, update_epoch, train_evaluation_epoch, validation_epoch)
    run = _Run(model, optimizer, config, update_epoch, train_evaluation_epoch, validation_epoch)
    measured_at = frozenset(config.validation_steps)
    for step in range(config.schedule.steps() + 1):
        if step > 0:
            update = run.update(step)
            if on_step is not None:
                on_step(update)
        if step in measured_at:
            checkpoint = run.measure(step)
            if on_checkpoint is not None:
                on_checkpoint(checkpoint)
    return run.result()


class _Run:
    """The working copies of a run and what it has recorded so far."""

    def __init__(
        self,
        model: Decoder,
        optimizer: AdamW,
        config: TrainerConfig,
        update_epoch: MiniBatchEpoch,
        train_evaluation_epoch: MiniBatchEpoch,
        validation_epoch: MiniBatchEpoch,
    ) -> None:
        # the one copy of the parameters: the snapshot's arrays become the working model's
        self.model = DecoderModelState.snapshot(model).into_model()
        self.optimizer = optimizer.copy()
        self.config = config
        self.update_batches = update_epoch.batches
        self.train_evaluation_epoch = train_evaluation_epoch
        self.validation_epoch = validation_epoch
        self.steps: list[TrainingStep] = []
        self.checkpoints: list[LossCheckpoint] = []
        self.best: tuple[DecoderModelState, OptimizerSnapshot] | None = None

    def update(self, step: int) -> TrainingStep:
        """One update; the record lists what happened in the order in which it did."""
        batch = self.update_batches[(step - 1) % len(self.update_batches)]
        rate = self.config.schedule.rates()[step - 1]
        named = self.model.named_parameters()
        events = []
        with trainer_errors(f"step {step}"):
            loss = self.model.loss(batch.inputs, batch.targets)
            value = loss_value(loss)
            events.append("forward")
            loss.backward(1.0)
            events.append("backward")
            with _own_kinds():
                norm = measure_grad_norm(named)
                events.append("finite-check")
                clip = clip_to(norm, self.config.max_grad_norm)
            events.append("clip")
            committed = self.optimizer.step(named, learning_rate=rate, transform=clip.transform)
            if committed != step:
                raise TrainerError(
                    "OptimizerStepMismatch",
                    f"the optimizer says it finished step {committed}, the trainer is at {step}",
                    expected=step,
                    actual=committed,
                )
            events.append("adamw-step")
            after = self.model.named_parameters()
            preserved = len(named) == len(after) and all(
                a_name == b_name and a is b
                for (a_name, a), (b_name, b) in zip(named, after, strict=True)
            )
            self.model.zero_grad()
            for name, parameter in after:
                _check_cleared(name, parameter)
            events.append("zero-grad")
        record = TrainingStep(
            step=step,
            windows=tuple(f"{p.document_id}@{p.start}" for p in batch.provenance),
            target_count=batch.token_count,
            learning_rate=rate,
            train_loss=value,
            norm_before=clip.norm_before,
            norm_after=clip.norm_after,
            transform=clip.transform,
            clipped=clip.clipped,
            finite_gradients=True,
            parameter_nodes_preserved=preserved,
            cleared_gradients=True,
            events=tuple(events),
        )
        self.steps.append(record)
        return record

    def measure(self, step: int) -> LossCheckpoint:
        """Measure both epochs; keep the state if the validation loss is a new minimum."""
        train = evaluate_no_grad(self.model, self.train_evaluation_epoch)
        validation = evaluate_no_grad(self.model, self.validation_epoch)
        losses = [checkpoint.validation.loss for checkpoint in self.checkpoints]
        better = earliest_minimum([*losses, validation.loss]) == len(losses)
        if better:
            self.best = None  # so that two candidates never exist at once
            self.best = DecoderModelState.snapshot(self.model), self.optimizer.snapshot()
        record = LossCheckpoint(step, train, validation, better)
        self.checkpoints.append(record)
        return record

    def result(self) -> TrainingResult:
        assert self.best is not None  # step 0 is always measured
        chosen = earliest_minimum([checkpoint.validation.loss for checkpoint in self.checkpoints])
        selected = self.checkpoints[chosen]
        return TrainingResult(
            tuple(self.steps),
            tuple(replace(c, selected=c is selected) for c in self.checkpoints),
            selected.validation.loss,
            _issue_selected_state(selected.step, *self.best),
            DecoderModelState.snapshot(self.model),
            self.optimizer,
        )


@contextmanager
def _own_kinds() -> Iterator[None]:
    """Clipping failures become kinds of the trainer's own, with the same fields."""
    try:
        yield
    except OptimizerError as error:
        if error.kind in TrainerError.KINDS:
            raise TrainerError(error.kind, str(error), cause=error, **error.fields) from error
        raise


def _check_cleared(name: str, parameter: Tensor) -> None:
    gradient = None if parameter.grad_is_zero else parameter.grad
    if gradient is None:
        return
    bits = gradient.view(np.uint64 if gradient.itemsize == 8 else np.uint32).reshape(-1)
    if bits.any():
        index = int(np.argmax(bits != 0))
        value = float(gradient.reshape(-1)[index])
        raise TrainerError(
            "ParameterGradientNotZero",
            f"the gradient of {name!r} is {value!r} at flat index {index} after clearing",
            name=name,
            index=index,
            value=value,
        )
