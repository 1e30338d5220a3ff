"""Run a training fixture and measure what its report claims."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from llmcy.checksum import fingerprint
from llmcy.data import BatchOrder, Partition
from llmcy.errors import TrainerError
from llmcy.optim import AdamW, AdamWState
from llmcy.reference.fixtures import TrainingFixture
from llmcy.reference.text import float_bits
from llmcy.state import DecoderModelState
from llmcy.trainer import TrainingResult, train_decoder

__all__ = [
    "MeasuredTraining",
    "earliest_minimum",
    "measure_training",
    "moments_fingerprint",
    "optimizer_bits",
    "refuses_test_updates",
    "same_bits",
]


@dataclasses.dataclass(frozen=True)
class MeasuredTraining:
    """A finished run, and facts that were observed around it.

    Attributes
    ----------
    fixture, result
        What ran and what came out.
    input_model_unchanged, input_optimizer_unchanged
        The caller's objects had the same bits (and the optimizer no step and no moment) afterwards.
    selected_restored
        The model rebuilt from the selected state has the state's bits.
    test_partition_rejected
        A test epoch offered for updates was refused by name.
    replay_bitwise
        A second run from fresh seeds gave the same records, selection and states, bit for bit.
    """

    fixture: TrainingFixture
    result: TrainingResult
    input_model_unchanged: bool
    input_optimizer_unchanged: bool
    selected_restored: bool
    test_partition_rejected: bool
    replay_bitwise: bool


def measure_training(fixture: TrainingFixture) -> MeasuredTraining:
    """Run ``fixture`` twice and observe inputs, selection and the refusal of test data."""
    model, optimizer = fixture.model(), fixture.optimizer()
    model_before, optimizer_before = _model_bits(model), optimizer_bits(optimizer.state())
    result = train_decoder(
        model,
        optimizer,
        fixture.update_epoch(),
        fixture.train_evaluation_epoch(),
        fixture.validation_epoch(),
        fixture.trainer_config(),
    )
    restored = DecoderModelState.snapshot(result.selected_model)
    return MeasuredTraining(
        fixture,
        result,
        input_model_unchanged=_model_bits(model) == model_before,
        input_optimizer_unchanged=optimizer.step_count == 0
        and optimizer_bits(optimizer.state()) == optimizer_before,
        selected_restored=restored.equal_bits(result.selected_state),
        test_partition_rejected=refuses_test_updates(fixture),
        replay_bitwise=same_bits(result, fixture.train_decoder()),
    )


def refuses_test_updates(fixture: TrainingFixture) -> bool:
    """Whether a test epoch in the role of updates is refused as ``WrongPartition``."""
    test_epoch = fixture.epoch(
        fixture.train, Partition.TEST, fixture.batch_size, BatchOrder.sequential()
    )
    try:
        train_decoder(
            fixture.model(),
            fixture.optimizer(),
            test_epoch,
            fixture.train_evaluation_epoch(),
            fixture.validation_epoch(),
            fixture.trainer_config(),
        )
    except TrainerError as error:
        return error.kind == "WrongPartition" and (
            error.expected is Partition.TRAIN and error.actual is Partition.TEST
        )
    return False


def same_bits(a: TrainingResult, b: TrainingResult) -> bool:
    """Whether two runs agree in every record, in the selection and in every stored bit."""
    return (
        _bits(a.steps) == _bits(b.steps)
        and _bits(a.checkpoints) == _bits(b.checkpoints)
        and a.selected_step == b.selected_step
        and _bits(a.selected_validation_loss) == _bits(b.selected_validation_loss)
        and a.selected_state.equal_bits(b.selected_state)
        and optimizer_bits(a.selected_optimizer_state.state)
        == optimizer_bits(b.selected_optimizer_state.state)
        and a.final_state.equal_bits(b.final_state)
        and _optimizer_state_bits(a.final_optimizer) == _optimizer_state_bits(b.final_optimizer)
    )


def optimizer_bits(state: AdamWState) -> tuple[Any, ...]:
    """Everything an optimizer state holds, as comparable bits."""
    return (
        state.step,
        float_bits((state.beta1_power, state.beta2_power)),
        tuple(
            (entry.name, entry.shape, entry.first_moment.tobytes(), entry.second_moment.tobytes())
            for entry in state.entries
        ),
    )


def moments_fingerprint(state: AdamWState) -> str:
    """Fingerprint of all moments: name order, first then second (numerics contract, section 12)."""
    return fingerprint(
        moment for entry in state.entries for moment in (entry.first_moment, entry.second_moment)
    )


def earliest_minimum(losses: Sequence[float]) -> int:
    """Index of the smallest loss, the first of equals."""
    return min(range(len(losses)), key=lambda index: losses[index])


def _model_bits(model: Any) -> bytes:
    return DecoderModelState.snapshot(model).bit_pattern().tobytes()


def _optimizer_state_bits(optimizer: AdamW) -> tuple[Any, ...]:
    return optimizer_bits(optimizer.state())


def _bits(value: Any) -> Any:
    """A record with every float replaced by its bits, so that equal means bit-equal."""
    if isinstance(value, float):
        return float_bits((value,))[0]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return tuple(_bits(getattr(value, field.name)) for field in dataclasses.fields(value))
    if isinstance(value, (tuple, list)):
        return tuple(_bits(item) for item in value)
    return value
