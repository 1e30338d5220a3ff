"""Training a decoder by a complete plan, and selecting a state by validation loss."""

from llmcy.evaluate import Evaluation, evaluate_no_grad
from llmcy.optim.schedule import LearningRateSchedule
from llmcy.state import DecoderModelState, OptimizerSnapshot, SelectedTrainingState
from llmcy.trainer.loop import train_decoder
from llmcy.trainer.plan import UPDATE_EVENT_ORDER, TrainerConfig, earliest_minimum
from llmcy.trainer.records import LossCheckpoint, TrainingResult, TrainingStep
from llmcy.trainer.session import Advance, Best, CyclingEpoch, TrainingSession, UpdateBatches
from llmcy.trainer.update import Updater

__all__ = [
    "UPDATE_EVENT_ORDER",
    "Advance",
    "Best",
    "CyclingEpoch",
    "DecoderModelState",
    "Evaluation",
    "LearningRateSchedule",
    "LossCheckpoint",
    "OptimizerSnapshot",
    "SelectedTrainingState",
    "TrainerConfig",
    "TrainingResult",
    "TrainingSession",
    "TrainingStep",
    "UpdateBatches",
    "Updater",
    "earliest_minimum",
    "evaluate_no_grad",
    "train_decoder",
]
