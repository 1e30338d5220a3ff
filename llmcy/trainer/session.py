"""A training run as a state machine: it can stand still after any step and go on from there.

The state is the parameters, the optimizer, the number of finished steps and the best state so far.
The plan and the data are given again by whoever continues a run; batches are a function of the
step, so nothing has to be played again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from llmcy.data import Batch, MiniBatchEpoch
from llmcy.errors import TrainerError
from llmcy.evaluate import evaluate_no_grad
from llmcy.model import Decoder
from llmcy.optim import AdamW
from llmcy.state import (
    DecoderModelState,
    OptimizerSnapshot,
    SelectedTrainingState,
    _issue_selected_state,
)
from llmcy.trainer.plan import TrainerConfig
from llmcy.trainer.records import LossCheckpoint, TrainingStep
from llmcy.trainer.update import Updater

__all__ = ["Advance", "Best", "CyclingEpoch", "TrainingSession", "UpdateBatches"]


class UpdateBatches(Protocol):
    """Which batch an update uses, as a function of its number alone."""

    def batch_of(self, step: int, /) -> Batch:
        """The batch of update ``step``, 1-based."""
        ...


class CyclingEpoch:
    """One epoch again and again in the same order: update s uses batch ``(s - 1) % count``."""

    def __init__(self, epoch: MiniBatchEpoch) -> None:
        self._batches = epoch.batches

    def batch_of(self, step: int) -> Batch:
        """The batch of update ``step``, 1-based."""
        return self._batches[(step - 1) % len(self._batches)]


@dataclass(frozen=True)
class Best:
    """The measured state with the smallest validation loss so far, the earliest among equals."""

    validation_loss: float
    state: SelectedTrainingState

    @classmethod
    def restored(
        cls,
        validation_loss: float,
        step: int,
        model: DecoderModelState,
        optimizer: OptimizerSnapshot,
    ) -> Best:
        """The best state of a run that is being continued, as a session left it."""
        return cls(validation_loss, _issue_selected_state(step, model, optimizer))

    @property
    def step(self) -> int:
        """The step that was measured."""
        return self.state.step


@dataclass(frozen=True)
class Advance:
    """What one step did; step 0 has no update, a step that is not measured no measurement."""

    step: int
    update: TrainingStep | None
    measurement: LossCheckpoint | None


class TrainingSession:
    """A run between two steps.

    Parameters
    ----------
    model, optimizer
        The working copies; the session owns and changes them.
    plan
        Rates, ceiling, steps to measure at, rows of a micro-batch.
    batches
        The batch of every update.
    train_evaluation_epoch, validation_epoch
        What is measured.
    best
        The best state so far, when the session continues a run.
    at_step
        The last step that is finished, its measurement included; None when not even step 0 is,
        which has no update but may have a measurement.

    Raises
    ------
    TrainerError
        ``OptimizerStepMismatch`` when the optimizer stands at another step than the session.
    """

    def __init__(
        self,
        model: Decoder,
        optimizer: AdamW,
        plan: TrainerConfig,
        batches: UpdateBatches,
        train_evaluation_epoch: MiniBatchEpoch,
        validation_epoch: MiniBatchEpoch,
        *,
        best: Best | None = None,
        at_step: int | None = None,
    ) -> None:
        finished = 0 if at_step is None else at_step
        if optimizer.step_count != finished:
            raise TrainerError(
                "OptimizerStepMismatch",
                f"the optimizer is at step {optimizer.step_count}, the run at step {finished}",
                expected=finished,
                actual=optimizer.step_count,
            )
        self.model = model
        self.optimizer = optimizer
        self.plan = plan
        self._batches = batches
        self._train_evaluation_epoch = train_evaluation_epoch
        self._validation_epoch = validation_epoch
        self._best = best
        self._next = 0 if at_step is None else at_step + 1
        self._measured_at = frozenset(plan.validation_steps)
        self._updater = Updater(model, optimizer, plan.max_grad_norm, plan.micro_batch_size)

    @property
    def step(self) -> int | None:
        """The last finished step; None before step 0 is."""
        return self._next - 1 if self._next > 0 else None

    @property
    def finished(self) -> bool:
        """True when every planned step is done."""
        return self._next > self.plan.schedule.steps()

    @property
    def best(self) -> Best | None:
        """The best state so far; None before the first measurement."""
        return self._best

    def advance(self) -> Advance:
        """Do the next step: its update, if it has one, and its measurement, if one is due.

        Raises
        ------
        TrainerError
            As :func:`llmcy.trainer.train_decoder`; the session cannot be used afterwards.
        IndexError
            When the run is finished.
        """
        step = self._next
        if self.finished:
            raise IndexError(f"all {self.plan.schedule.steps()} planned updates are done")
        update = None
        if step > 0:
            rate = self.plan.schedule.rates()[step - 1]
            update = self._updater.update(step, self._batches.batch_of(step), rate)
        measurement = self._measure(step) if step in self._measured_at else None
        self._next = step + 1
        return Advance(step, update, measurement)

    def _measure(self, step: int) -> LossCheckpoint:
        """Measure both epochs; keep the state if the validation loss is a new minimum."""
        train = evaluate_no_grad(self.model, self._train_evaluation_epoch)
        validation = evaluate_no_grad(self.model, self._validation_epoch)
        better = self._best is None or validation.loss < self._best.validation_loss
        if better:
            self._best = None  # so that two candidates never exist at once
            self._best = Best.restored(
                validation.loss,
                step,
                DecoderModelState.snapshot(self.model),
                self.optimizer.snapshot(),
            )
        return LossCheckpoint(step, train, validation, better)
