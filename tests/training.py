"""Small training runs for tests."""

import dataclasses
from typing import Any

from llmcy.data import BatchOrder, Partition
from llmcy.model import Decoder
from llmcy.reference.fixtures import PUBLISHED, TrainingFixture
from llmcy.trainer import (
    LearningRateSchedule,
    TrainerConfig,
    TrainingResult,
    train_decoder,
)

RATES = LearningRateSchedule([0.1, 0.1])
TRUE_LOSS = Decoder.loss


def run(fixture: TrainingFixture = PUBLISHED, **changes: Any) -> TrainingResult:
    """Train the fixture with some of the arguments exchanged."""
    arguments = {
        "model": changes.pop("model", None) or fixture.model(),
        "optimizer": changes.pop("optimizer", None) or fixture.optimizer(),
        "update_epoch": changes.pop("update_epoch", None) or fixture.update_epoch(),
        "train_evaluation_epoch": changes.pop("train_evaluation_epoch", None)
        or fixture.train_evaluation_epoch(),
        "validation_epoch": changes.pop("validation_epoch", None) or fixture.validation_epoch(),
        "config": changes.pop("config", None) or fixture.trainer_config(),
    }
    return train_decoder(**arguments, **changes)


def plan(rates: list[float], validation_steps: list[int] | None = None) -> TrainerConfig:
    steps = [0, len(rates)] if validation_steps is None else validation_steps
    return TrainerConfig(LearningRateSchedule(rates), steps, 0.35)


def epoch(documents: list[list[int]], partition: Partition, size: int = 2, **changes: int) -> Any:
    fixture = dataclasses.replace(PUBLISHED, **changes)
    named = [(f"d{k}", tokens) for k, tokens in enumerate(documents)]
    return fixture.epoch(named, partition, size, BatchOrder.sequential())
