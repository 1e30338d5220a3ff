"""What a training run leaves behind: one record an update, one a measurement, and the result."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from llmcy.evaluate import Evaluation
from llmcy.model import Decoder
from llmcy.optim import AdamW
from llmcy.optim.clip import ClipTransform
from llmcy.state import DecoderModelState, OptimizerSnapshot, SelectedTrainingState

__all__ = ["LossCheckpoint", "TrainingResult", "TrainingStep"]


@dataclass(frozen=True)
class TrainingStep:
    """One finished update.

    Attributes
    ----------
    step
        1-based.
    windows
        ``document@start`` of every row of the batch.
    target_count
        Targets in the batch, B * T.
    learning_rate
        The scheduled rate used.
    train_loss
        Loss of the batch before the update.
    norm_before, norm_after
        Global gradient norm before clipping, and after it (the ceiling when clipped).
    transform
        What clipping did to the gradient on its way into AdamW.
    clipped
        True when the norm was above the ceiling.
    finite_gradients
        Every raw gradient coordinate was finite.
    parameter_nodes_preserved
        Every parameter is the object it was before the update.
    cleared_gradients
        Every gradient was +0 after clearing.
    events
        What happened, in order.
    """

    step: int
    windows: tuple[str, ...]
    target_count: int
    learning_rate: float
    train_loss: float
    norm_before: float
    norm_after: float
    transform: ClipTransform
    clipped: bool
    finite_gradients: bool
    parameter_nodes_preserved: bool
    cleared_gradients: bool
    events: tuple[str, ...]


@dataclass(frozen=True)
class LossCheckpoint:
    """Both losses, measured after ``step`` updates.

    Attributes
    ----------
    step
        Updates finished when measuring.
    train, validation
        Evaluation of the training documents and of the validation documents.
    selected
        True for the one checkpoint whose state the run selected.  While a run goes on it says
        whether this is the best so far.
    """

    step: int
    train: Evaluation
    validation: Evaluation
    selected: bool


@dataclass(frozen=True)
class TrainingResult:
    """Everything a run produced.

    Attributes
    ----------
    steps
        One record an update.
    checkpoints
        One record a measurement; exactly one is selected.
    selected_validation_loss
        The smallest validation loss that was measured.
    selected_training_state
        Model and optimizer of the earliest step with that loss, sealed together.
    final_state
        Values of the model after the last update.
    final_optimizer
        The optimizer after the last update.
    """

    steps: tuple[TrainingStep, ...]
    checkpoints: tuple[LossCheckpoint, ...]
    selected_validation_loss: float
    selected_training_state: SelectedTrainingState
    final_state: DecoderModelState
    final_optimizer: AdamW

    @property
    def selected_step(self) -> int:
        """The earliest measured step with the smallest validation loss."""
        return self.selected_training_state.step

    @property
    def selected_state(self) -> DecoderModelState:
        """Values of the model at the selected step."""
        return self.selected_training_state.model

    @property
    def selected_optimizer_state(self) -> OptimizerSnapshot:
        """The optimizer at the selected step."""
        return self.selected_training_state.optimizer

    @cached_property
    def selected_model(self) -> Decoder:
        """A decoder with copies of the selected values, built on first use."""
        return self.selected_state.restore_independent_model()

    def __repr__(self) -> str:
        return (
            f"TrainingResult({len(self.steps)} updates, selected step {self.selected_step} "
            f"at {self.selected_validation_loss!r})"
        )
