"""Micro-batches change memory and nothing else."""

import dataclasses
import gc

import pytest

from llmcy._kernels import memory
from llmcy.config import ModelConfig
from llmcy.data import (
    BatchDocument,
    BatchOrder,
    MiniBatchConfig,
    MiniBatchEpoch,
    Partition,
    WindowConfig,
)
from llmcy.errors import RangeError, TrainerError
from llmcy.kernels.memory import release_memory
from llmcy.model import Decoder
from llmcy.optim import AdamW, AdamWConfig, LearningRateSchedule
from llmcy.recorded import RECORDING_BYTES, RecordedStep
from llmcy.reference.fixtures import TrainingFixture, wide
from llmcy.rng import SplitMix64
from llmcy.tape import Tensor
from llmcy.trainer import TrainerConfig, TrainingResult, Updater, train_decoder


def fixture_of(dtype: str) -> TrainingFixture:
    fixture = wide(1.2)
    return dataclasses.replace(
        fixture, model_config=dataclasses.replace(fixture.model_config, dtype=dtype)
    )


def train(fixture: TrainingFixture, micro_batch_size: int | None) -> TrainingResult:
    plan = fixture.trainer_config()
    return train_decoder(
        fixture.model(),
        fixture.optimizer(),
        fixture.update_epoch(),
        fixture.train_evaluation_epoch(),
        fixture.validation_epoch(),
        TrainerConfig(
            plan.schedule,
            plan.validation_steps,
            plan.max_grad_norm,
            micro_batch_size=micro_batch_size,
        ),
    )


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_every_size_gives_the_bits_of_the_whole_batch(dtype: str) -> None:
    fixture = fixture_of(dtype)
    whole = train(fixture, None)
    assert any(step.clipped for step in whole.steps)
    for size in (1, 2, 3, 4, 5, 100):
        pieces = train(fixture, size)
        assert pieces.steps == whole.steps
        assert pieces.checkpoints == whole.checkpoints
        assert pieces.final_state.equal_bits(whole.final_state)
        assert pieces.final_optimizer.state().equal_bits(whole.final_optimizer.state())
        assert pieces.selected_state.equal_bits(whole.selected_state)


def test_adding_finished_gradients_would_be_something_else() -> None:
    """The comparison above can fail: pieces that are added up give other bits."""
    fixture = fixture_of("float64")
    batch = fixture.update_epoch().batches[0]
    whole, added = fixture.model(), fixture.model()
    whole.loss(batch.inputs, batch.targets).backward()
    for row in range(batch.width):
        piece = slice(row, row + 1)
        added.loss(batch.inputs[piece], batch.targets[piece], batch.token_count).backward()
    assert any(
        a.grad.tobytes() != b.grad.tobytes()  # type: ignore[union-attr]
        for (_, a), (_, b) in zip(whole.named_parameters(), added.named_parameters(), strict=True)
    )


@pytest.mark.parametrize("size", [0, -1, 1.5, True, "2"])
def test_a_size_must_be_a_whole_number_of_rows(size: object) -> None:
    with pytest.raises(RangeError):
        TrainerConfig(
            LearningRateSchedule([0.1]),
            [0, 1],
            1.0,
            micro_batch_size=size,  # type: ignore[arg-type]
        )


def test_a_failure_in_a_later_piece_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    fixture = fixture_of("float64")
    model, optimizer = fixture.model(), fixture.optimizer()
    before = [p.data.tobytes() for _, p in model.named_parameters()]
    updater = Updater(model, optimizer, 1.0, micro_batch_size=2)
    original, calls = Tensor.backward, []

    def failing(self: Tensor, *args: object, **kwargs: object) -> None:
        calls.append(self)
        if len(calls) == 3:
            raise MemoryError
        original(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Tensor, "backward", failing)
    with pytest.raises(MemoryError):
        updater.update(1, fixture.update_epoch().batches[0], 0.1)
    assert [p.data.tobytes() for _, p in model.named_parameters()] == before
    assert optimizer.step_count == 0
    assert all(p.grad is None or not p.grad.any() for _, p in model.named_parameters())


def test_a_loss_that_is_not_finite_is_refused_in_pieces_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fixture = fixture_of("float64")
    updater = Updater(fixture.model(), fixture.optimizer(), 1.0, micro_batch_size=2)
    original = Decoder.loss

    def overflowing(*args: object, **kwargs: object) -> Tensor:
        loss = original(*args, **kwargs)  # type: ignore[arg-type]
        kwargs["row_losses"][:] = 1e308  # type: ignore[index]
        return loss

    monkeypatch.setattr(Decoder, "loss", overflowing)
    with pytest.raises(TrainerError) as caught:
        updater.update(1, fixture.update_epoch().batches[0], 0.1)
    assert caught.value.kind == "NonFiniteLoss"
    assert updater.optimizer.step_count == 0


@pytest.mark.parametrize("limit", [0, RECORDING_BYTES], ids=["tape", "recorded"])
def test_memory_follows_the_micro_batch(limit: int) -> None:
    """Counted by the store of large arrays: what a step had in use lies there afterwards."""
    config = ModelConfig(256, 64, 2, 2, 128, 128, dtype="float32")
    rng = SplitMix64(1)
    tokens = [rng.below(256) for _ in range(128 * 16 + 1)]
    epoch = MiniBatchEpoch.build(
        Partition.TRAIN,
        [BatchDocument("d", Partition.TRAIN, tokens)],
        WindowConfig(128, 128),
        MiniBatchConfig(16, BatchOrder.sequential()),
    )
    batch = epoch.batches[0]
    assert batch.width == 16
    used = {}
    for size in (1, 2, 4, 8, 16):
        model = Decoder.initialize(config, 1)
        updater = Updater(model, AdamW(AdamWConfig(1e-3)), 1.0, micro_batch_size=size)
        updater._step = RecordedStep(model, limit=limit)
        gc.collect()  # what others have left may not come into the store meanwhile
        release_memory()
        before = memory.held()
        for step in (1, 2, 3):
            updater.update(step, batch, 1e-3)
        del model, updater  # with what it keeps from one update to the next
        gc.collect()
        used[size] = memory.held() - before
    row = used[2] - used[1]
    assert row > 0
    # each further row in memory takes as much as the first, whatever the parameters take
    assert used[4] - used[2] == pytest.approx(2 * row, rel=0.1), used
    assert used[8] - used[4] == pytest.approx(4 * row, rel=0.1), used
    assert used[16] > used[8] + 7 * row, used
    assert used[1] < used[16] / 5, used


def test_the_rows_of_all_pieces_make_the_loss() -> None:
    """The recorded loss is one mean over all targets, not a mean of means."""
    fixture = fixture_of("float64")
    batch = fixture.update_epoch().batches[0]
    whole = fixture.model().loss(batch.inputs, batch.targets).item()
    updater = Updater(fixture.model(), fixture.optimizer(), 1.0, micro_batch_size=3)
    assert updater.update(1, batch, 0.1).train_loss.hex() == whole.hex()
